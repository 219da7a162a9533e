"""Objects that the API and the command line show alike are what the schemas say, and hold no secret (rest-api §6)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import pytest
from pydantic import BaseModel

from postroom.accounts.audit import Event
from postroom.accounts.models import AppPassword, Device, Grant, PersonKey, TenantKey
from postroom.accounts.permissions import GrantRole
from postroom.accounts.signing_keys import Purpose, Rotation, SigningKey
from postroom.directory.lists import ListDirection, ListEntry, ListKind
from postroom.directory.models import Alias
from postroom.directory.sending_controls import Switch, SwitchState
from postroom.events.webhooks.models import Attempt, AttemptStatus, DisabledReason, Endpoint
from postroom.outbound.dead_letters import DeadLetter, DeadQueue
from postroom.outbound.models import QueueState
from postroom.outbound.queue import AttemptLog, QueueStatistics
from postroom.servers import objects
from postroom.servers.http.rest import (
    dead_letters,
    directory_schemas,
    identity_schemas,
    key_schemas,
    people_schemas,
    platform,
    queue_schemas,
    webhook_schemas,
)

AT: Final = datetime(2026, 3, 1, 12, 0, 0, 5_000, tzinfo=timezone(timedelta(hours=2)))
ULID: Final = "01HZY3V7Q8R9S0T1V2W3X4Y5Z6"
SECRET: Final = b"never-to-be-seen"


def _of(kind: str) -> str:
    return f"{kind}_{ULID}"


def _rotation() -> Rotation:
    return Rotation(next(iter(Purpose)), SigningKey("k2", SECRET, AT), "k1", AT, revoked=False)


SHOWN: Final[list[tuple[type[BaseModel], objects.Object]]] = [
    (
        webhook_schemas.Webhook,
        objects.webhook(
            Endpoint(
                *(1, _of("whk"), 2, _of("ten"), None, None, "https://hooks.example.com/", None),
                *(("*",), None, False, DisabledReason.FAILING, AT, AT),
            )
        ),
    ),
    (
        webhook_schemas.WebhookDelivery,
        objects.delivery(
            Attempt(
                *(_of("dlv"), _of("whk"), _of("evt"), "message.received", 2, AttemptStatus.FAILED, 503),
                *("status_5xx", 120, AT, AT),
            )
        ),
    ),
    (
        people_schemas.AppPassword,
        objects.app_password(AppPassword(7, _of("apw"), "Phone", AT, None, AT)),
    ),
    (
        people_schemas.Device,
        objects.device(Device(_of("dev"), "uid-of-device-1", "Phone", "ios", None, AT, AT, None)),
    ),
    (
        people_schemas.Grant,
        objects.grant(Grant(TenantKey(1), 2, _of("idn"), PersonKey(3), _of("usr"), GrantRole.READ, AT)),
    ),
    (
        identity_schemas.Alias,
        objects.alias(
            Alias(1, _of("als"), 2, _of("ten"), "a@x.example", "x.example", _of("dom"), "b@y.example", AT),
        ),
    ),
    (
        directory_schemas.ListEntry,
        objects.list_entry(ListEntry(next(iter(ListDirection)), next(iter(ListKind)), "a@x.example", None, AT)),
    ),
    (
        directory_schemas.AuditEvent,
        objects.audit_event(
            Event(_of("aud"), _of("ten"), None, _of("usr"), "session.revoke", "session", "s", {"a": 1}, None, AT)
        ),
    ),
    (key_schemas.SigningKeyRotation, objects.signing_key_rotation(_rotation())),
    (platform.Switch, objects.switch(SwitchState(Switch.READ_ONLY, True, "platform", "a fault", AT))),
    (
        dead_letters.DlqItem,
        objects.dead_letter(DeadLetter(_of("dlq"), next(iter(DeadQueue)), "deliveries", None, AT, None, 2)),
    ),
    (
        queue_schemas.QueueStatistics,
        objects.queue_statistics(QueueStatistics(dict.fromkeys(QueueState, 3), 1, 2, 4, 5, None)),
    ),
    (queue_schemas.QueueAttempt, objects.queue_attempt(AttemptLog(1, "mx.example", 250, "ok", None, 12, AT))),
]


@pytest.mark.parametrize(("schema", "shown"), SHOWN, ids=lambda value: getattr(value, "__name__", ""))
def test_each_is_what_its_schema_says(schema: type[BaseModel], shown: objects.Object) -> None:
    names = {field.alias or name for name, field in schema.model_fields.items()}
    assert shown.keys() == names
    schema.model_validate_json(json.dumps(shown))


def test_times_are_of_utc_with_milliseconds() -> None:
    assert objects.moment(None) is None
    assert objects.moment(AT) == "2026-03-01T10:00:00.005Z"
    assert datetime.fromisoformat(str(objects.moment(AT))) == AT.astimezone(UTC)


def test_a_signing_key_is_not_shown() -> None:
    assert SECRET.decode() not in json.dumps(objects.signing_key_rotation(_rotation()))
