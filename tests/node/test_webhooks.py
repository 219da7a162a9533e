"""A whole node tells a receiver over TLS of what was just committed, and none that it must not reach (FR-WH-1)."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import httpx
import orjson
import pytest

from postroom.accounts import Level, NewKey
from postroom.accounts.models import NewTenant
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY
from postroom.app import Core, open_client, open_core, own_addresses_of
from postroom.base.clock import SystemClock
from postroom.base.sealed_columns import WEBHOOK_SECRET
from postroom.base.secrets import ensure_secrets, load_secrets
from postroom.base.settings import load
from postroom.directory import NewIdentity
from postroom.directory.sending_controls import Switch
from postroom.net.dns_types import IpAddress, Resolver
from postroom.net.guard import Refusal
from postroom.net.guarded_http import GuardedClient
from postroom.net.public_address import is_public
from postroom.node import Node
from postroom.outbound.models import RouteKind
from postroom.outbound.transports.direct import Direct
from tests.inbound.fakes import envelope
from tests.mailbox.letters import raw_mail
from tests.net.test_guarded_http import HERE, HOST, Zone
from tests.net.web_server import Authority, Peer, serving


@dataclass
class Receiver:
    """What came, and how it is answered."""

    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 204

    async def behave(self, peer: Peer) -> None:
        while True:
            head, body = await peer.request()
            lines = head.decode().split("\r\n")[1:]
            pairs = [line.split(": ", 1) for line in lines if line]
            self.requests.append(({name.lower(): value for name, value in pairs}, body))
            self.came.set()
            await peer.say(b"HTTP/1.1 %d Fine\r\nContent-Length: 0\r\n\r\n" % self.status)

    async def next(self) -> tuple[dict[str, str], bytes]:
        while not self.requests:
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 20)
        return self.requests.pop(0)


@asynccontextmanager
async def running(
    url: str, data_dir: Path, context: ssl.SSLContext, *, allowed: bool
) -> AsyncIterator[tuple[Core, Node]]:
    settings = load(
        {
            "platform_domain": "agents.example",
            "api_host": "api.example.com",
            "server.roles": "http,worker",
            "api.host": "127.0.0.1",
            "api.port": 0,
            "metrics.listen": "",
            "server.shutdown_timeout_secs": 2.0,
        },
        {},
        data_dir=data_dir,
        host_name="hooks",
    )
    ensure_secrets(data_dir, os.urandom, {})

    def is_allowed(address: IpAddress) -> bool:
        return allowed and address == ip_address("127.0.0.1")

    async with open_core(settings, load_secrets(data_dir, {}), url, migrate=False) as core:
        client = GuardedClient(
            SystemClock(),
            cast(Resolver, Zone([HERE])),
            own_hosts=["api.example.com"],
            platform_domain="agents.example",
            own_addresses=frozenset,
            is_allowed=is_allowed,
            context=context,
        )
        node = Node(core, client=client)
        await node.start()
        try:
            yield core, node
            assert not node.failed.is_set()
        finally:
            await node.drain()


@pytest.mark.covers("FR-WH-1", "FR-WH-2", "FR-WH-5", "NFR-REL-3")
async def test_from_a_commit_to_a_receiver(database_url: str, tmp_path: Path) -> None:
    authority, receiver = Authority(tmp_path), Receiver()
    async with (
        serving(receiver.behave, authority.server(HOST)) as web,
        running(database_url, tmp_path / "data", authority.client(), allowed=True) as (core, node),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.ports['http']}") as client,
    ):
        tenant = await core.tenants.create(NewTenant(slug="acme", name="Acme"))
        new = NewKey("k", Level.TENANT, tuple(sorted(MAY_HOLD[Level.TENANT] - OWNER_ONLY)), tenant.id, None)
        client.headers["authorization"] = f"Bearer {(await core.keys.create(None, new))[1]}"
        where = f"/v1/tenants/{tenant.public_id}/webhooks"
        body: dict[str, Any] = {"url": f"https://{HOST}:{web.port}/in", "events": ["*"]}
        made = (await client.post(where, json=body)).json()
        tested = (await client.post(f"/v1/webhooks/{made['id']}/test")).json()
        assert tested["status"] == "succeeded", tested
        assert orjson.loads((await receiver.next())[1])["data"] == {"message": "hello"}
        identity, _ = await core.identities.create(tenant.id, NewIdentity("box", "Box"))
        headers, payload = await receiver.next()
        event = orjson.loads(payload)
        assert (event["type"], event["identity_id"]) == ("identity.created", identity.public_id)
        assert headers["webhook-id"] == event["id"]
        assert headers["user-agent"].startswith("Postroom/")
        signatures = headers["webhook-signature"]
        assert len(signatures.split()) == 1
        failed = (await client.get(f"/v1/webhooks/{made['id']}/deliveries", params={"status": "failed"})).json()
        assert failed["data"] == []
        receiver.status = 410
        await core.identities.create(tenant.id, NewIdentity("other", "Other"))
        await receiver.next()
        for _ in range(200):
            shown = (await client.get(f"/v1/webhooks/{made['id']}")).json()
            if not shown["enabled"]:
                break
            await asyncio.sleep(0.05)
        assert shown["disabled_reason"] == "failing"


@pytest.mark.covers("FR-WH-4")
async def test_a_policy_says_how_much_text_an_event_carries(database_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with running(database_url, tmp_path / "data", authority.client(), allowed=False) as (core, node):
        tenant = await core.tenants.create(NewTenant(slug="acme", name="Acme"))
        made, _ = await core.identities.create(tenant.id, NewIdentity("box", "Box"))
        async with core.database.acquire() as conn:
            await conn.execute(
                "UPDATE tenants SET policy_json = $2 WHERE id = $1", tenant.id, {"webhook_text_bytes": 5}
            )
        core.policies.forget()
        target = await node.directory.resolve(made.primary.address)
        reply = await node.receiver.receive(envelope(cast(Any, target)), raw_mail(body="Hello you"))
        assert reply.code == 250
        async with core.database.acquire() as conn:
            told = await conn.fetchval("SELECT payload FROM events WHERE type = 'message.received'")
        assert orjson.loads(told)["data"]["extracted_text"] == "Hello"


@pytest.mark.covers("FR-WH-5", "SEC-9")
async def test_what_is_inside_is_neither_taken_nor_reached(database_url: str, tmp_path: Path) -> None:
    """At creation, and at each attempt: the name may have come to lead elsewhere."""
    authority, receiver = Authority(tmp_path), Receiver()
    async with (
        serving(receiver.behave, authority.server(HOST)) as web,
        running(database_url, tmp_path / "data", authority.client(), allowed=False) as (core, node),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.ports['http']}") as client,
    ):
        tenant = await core.tenants.create(NewTenant(slug="acme", name="Acme"))
        new = NewKey("k", Level.TENANT, tuple(sorted(MAY_HOLD[Level.TENANT] - OWNER_ONLY)), tenant.id, None)
        client.headers["authorization"] = f"Bearer {(await core.keys.create(None, new))[1]}"
        body: dict[str, Any] = {"url": f"https://{HOST}:{web.port}/in", "events": ["*"]}
        refused = await client.post(f"/v1/tenants/{tenant.public_id}/webhooks", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["details"]["errors"][0]["path"] == "url"
        # It was another address when it was made.
        async with core.database.transaction() as conn:
            key = await conn.fetchval(
                "INSERT INTO webhook_endpoints (public_id, tenant_id, url, events, created_at, updated_at)"
                " VALUES ($1, $2, $3, '{*}', now(), now()) RETURNING id",
                *(core.ids.new("whk_"), tenant.id, body["url"]),
            )
            sealed = core.keyring.seal(WEBHOOK_SECRET, b"s" * 32, key)
            await conn.execute("INSERT INTO webhook_secrets (endpoint_id, secret_enc) VALUES ($1, $2)", key, sealed)
        node.webhooks.missed()
        await core.identities.create(tenant.id, NewIdentity("box", "Box"))
        for _ in range(200):
            async with core.database.acquire() as conn:
                error = await conn.fetchval("SELECT error FROM webhook_deliveries")
            if error is not None:
                break
            await asyncio.sleep(0.05)
        assert error == "ssrf_blocked"
        assert web.connections == 0


@pytest.mark.covers("edge:J30", "FR-PRV-2")
async def test_the_worker_keeps_events_as_the_switch_says(database_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with running(database_url, tmp_path / "data", authority.client(), allowed=False) as (core, node):
        async with core.database.acquire() as conn:
            await conn.execute(
                "INSERT INTO events (public_id, type, owner_kind, owner_id, payload, occurred_at)"
                " SELECT 'evt_' || lpad(d::text, 26, '0'), 'member.joined', 'platform', 'platform', '{}',"
                " now() - make_interval(days => d, hours => 1) FROM unnest(ARRAY[6, 7, 29, 30]) d"
            )

        async def left() -> int:
            await next(one for one in node._chores().periodic() if one.name == "prune_events").work()
            async with core.database.acquire() as conn:
                return int(await conn.fetchval("SELECT count(*) FROM events WHERE type = 'member.joined'"))

        assert await left() == 3
        await core.controls.switch(Switch.EMERGENCY_PRUNE, on=True, reason="disk")
        core.switches.forget()
        assert await left() == 1
        async with core.database.acquire() as conn:
            await conn.execute("DELETE FROM events")  # they say nothing


@pytest.mark.covers("FR-WH-5", "SEC-9", "security-privacy:A9.5")
async def test_other_nodes_are_inside_once_the_settings_name_them(database_url: str, tmp_path: Path) -> None:
    """A public address of another machine is known by its setting alone; to webhooks and to mail."""
    other = ip_address("8.8.4.4")
    named = {"platform_domain": "agents.example", "api_host": "api.example.com", "server.own_addresses": str(other)}
    settings = load(named, {}, data_dir=tmp_path, host_name="hooks")
    ensure_secrets(tmp_path, os.urandom, {})
    resolver = cast(Resolver, Zone([other], [ip_address("8.8.8.8")]))
    async with open_core(settings, load_secrets(tmp_path, {}), database_url, migrate=False, resolver=resolver) as core:
        client = await open_client(core)
        try:
            assert await client.check(f"https://{HOST}/") is Refusal.ADDRESS
            assert await client.check(f"https://{HOST}/") is None
        finally:
            await client.aclose()
        reached = own_addresses_of(core)()
        assert other in reached
        direct = cast(Direct, Node(core).mail_out._transports()[RouteKind.DIRECT])
        assert direct._config.policy.own_addresses == {address for address in reached if is_public(address)} >= {other}
