"""How the deployment stands, and its switches (rest-api §5.21; cli-config-ops C7, C8)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictStr, StringConstraints
from starlette.responses import Response

from postroom.accounts.audit import actor_of
from postroom.accounts.permissions import Level, Permission
from postroom.db import Connection
from postroom.directory import sending_controls
from postroom.directory.sending_controls import SendingControls, SwitchState
from postroom.directory.standing import Capacity, DeploymentStanding, KeySlots, Platform
from postroom.events.catalogue import timestamp
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.rest.once import DEPLOYMENT, IdempotencyKey, Place, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule
from postroom.servers.objects import moment

SwitchName = Literal["read_only", "free_sending", "emergency_prune"]
OnOff = Literal["on", "off"]
Count = Annotated[int, Field(ge=0)]
SlotName = Literal["a", "b"]


class SwitchUpdate(fields.RequestBody):
    name: SwitchName
    state: OnOff
    reason: Annotated[
        StrictStr, StringConstraints(min_length=1, max_length=sending_controls.MAX_REASON), fields.Storable
    ]


class Switch(Answer):
    name: SwitchName
    state: OnOff
    set_by: Literal["auto", "platform"]
    reason: str
    set_at: datetime


class SwitchStates(Answer):
    read_only: OnOff
    free_sending: OnOff
    emergency_prune: OnOff


class FiringAlert(Answer):
    alert: str
    severity: Literal["page", "ticket"]
    fired_at: datetime


class MasterKeySlot(Answer):
    slot: SlotName
    present: bool
    kid: str | None


class MasterKey(Answer):
    active_slot: SlotName
    slots: list[MasterKeySlot]
    remaining: Count
    activated_at: datetime | None
    resealed_at: datetime | None


class PlatformCapacity(Answer):
    db_bytes: Count | None
    db_pct: float | None
    blob_bytes: Count | None
    blob_pct: float | None
    vectors: Count | None
    vectors_pct: float | None
    tenants: Count
    measured_at: datetime | None


class PlatformNode(Answer):
    id: str
    roles: list[str]
    version: str
    kids: list[str]
    last_seen_at: datetime


class BackupTimes(Answer):
    last_base_at: datetime | None
    last_wal_at: datetime | None
    last_blob_copy_at: datetime | None


class PlatformStatus(Answer):
    frozen: bool
    frozen_since: datetime | None
    switches: SwitchStates
    alert_email: Literal["configured", "missing"]
    firing: list[FiringAlert]
    master_key: MasterKey
    capacity: PlatformCapacity
    nodes: Annotated[list[PlatformNode] | None, NotNull()] = None
    backup: Annotated[BackupTimes | None, NotNull()] = None


class _Routes:
    def __init__(self, controls: SendingControls, platform: Platform) -> None:
        self._controls = controls
        self._platform = platform

    async def status(self, call: CurrentCall) -> Response:
        return JsonAnswer(status(await self._platform.standing()))

    async def switch(self, body: SwitchUpdate, call: CurrentCall, idempotency_key: IdempotencyKey = None) -> Response:
        by = actor_of(call.principal, exchange_of(call.request.scope).request_id)

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, done: SwitchState) -> None:
                await record(conn, objects.switch(done))

            name = sending_controls.Switch(body.name)
            done = await self._controls.switch(name, on=body.state == "on", reason=body.reason, by=by, then=then)
            if call.services.switches is not None:
                call.services.switches.forget()  # here at once, and elsewhere with the hint
            return 200, objects.switch(done)

        return await once(call, idempotency_key, work, status=200, place=Place(DEPLOYMENT))


def status(one: DeploymentStanding) -> Json:
    """A PlatformStatus. Nothing freezes a deployment yet or backs it up, alerts are not mailed, nodes not counted."""
    return {
        "frozen": False,
        "frozen_since": None,
        "switches": {each.name.value: _word(each.on) for each in one.switches},
        "alert_email": "missing",
        "firing": [
            {"alert": each.name, "severity": each.severity.value, "fired_at": timestamp(each.fired_at)}
            for each in one.firing
        ],
        "master_key": _master_key(one.master_key),
        "capacity": _capacity(one.capacity),
        "backup": {"last_base_at": None, "last_wal_at": None, "last_blob_copy_at": None},
    }


def _master_key(one: KeySlots) -> Json:
    return {
        "active_slot": one.active,
        "slots": [{"slot": each.name, "present": each.kid is not None, "kid": each.kid} for each in one.slots],
        "remaining": one.remaining,
        "activated_at": moment(one.activated_at),
        "resealed_at": moment(one.resealed_at),
    }


def _capacity(one: Capacity) -> Json:
    return {
        "db_bytes": one.db_bytes,
        "db_pct": None,
        "blob_bytes": one.blob_bytes,
        "blob_pct": one.blob_pct,
        "vectors": None,
        "vectors_pct": None,
        "tenants": one.tenants,
        "measured_at": timestamp(one.measured_at),
    }


def _word(on: bool) -> str:
    return "on" if on else "off"


_COMMON: Final[dict[str, Any]] = {
    "tag": "Platform",
    "reach": Reach.RESOURCE,
    "levels": frozenset({Level.PLATFORM}),
    "bucket": Bucket.API,
}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if what they need is at hand."""
    if services.controls is None or services.platform is None:
        return
    routes = _Routes(services.controls, services.platform)
    table.add(
        Rule(
            *("GET", "/v1/platform/status", "getPlatformStatus"),
            permissions=frozenset({Permission.AUDIT_READ}),
            idempotency=Idempotency.NONE,
            **_COMMON,
        ),
        routes.status,
        summary="How the deployment stands",
        answers={200: PlatformStatus},
    )
    table.add(
        Rule(
            *("PUT", "/v1/platform/switches", "setSwitch"),
            permissions=frozenset({Permission.PLATFORM_OPS}),
            idempotency=Idempotency.OPTIONAL,
            body=True,
            errors={400: ("invalid_request",)},
            **_COMMON,
        ),
        routes.switch,
        summary="Turn a switch of the deployment",
        answers={200: Switch},
    )
