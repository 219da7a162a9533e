"""Streams of events at two server processes: what one writes the other tells, at once and in order (decisions B13)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.conftest import new_database
from tests.reliability.nodes import NODES, Ask, Nodes, two_nodes
from tests.torture.deployment import HOST

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),  # the first test waits for both nodes
]

PATIENCE = 20.0
AT_ONCE = 5.0
"""Seconds; a key whose revocation nobody tells of ends its streams after 30."""
RIGHTS = ["webhooks:read", "identities:read", "identities:write", "messages:read"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(postgres_url: str, template_database: str) -> AsyncIterator[Nodes]:
    async with new_database(postgres_url, template_database) as url, two_nodes(url) as made:
        yield made


@pytest.fixture
def nodes(both: Nodes) -> Nodes:
    both.turn()
    return both


class Lines:
    """A stream over a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.last_id = ""

    async def next(self, patience: float = PATIENCE) -> tuple[str, Any]:
        kind, data = "", ""
        async with asyncio.timeout(patience):
            while True:
                line = (await self._reader.readuntil(b"\n")).decode().strip("\r\n")
                name, _, value = line.partition(": ")
                if name == "id":
                    self.last_id = value
                elif name == "event":
                    kind = value
                elif name == "data":
                    data = value
                elif not line and data:
                    return kind, json.loads(data)


@asynccontextmanager
async def stream(nodes: Nodes, at: int, key: str, last_id: str = "") -> AsyncIterator[Lines]:
    reader, writer = await asyncio.open_connection(HOST, nodes.servers[at].deployment.ports["http"], limit=1 << 20)
    extra = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
    head = f"GET /v1/events/stream HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n{extra}\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(PATIENCE):
        answer = await reader.readuntil(b": hello\n")
    assert answer.startswith(b"HTTP/1.1 200"), answer
    try:
        yield Lines(reader)
    finally:
        writer.close()


@pytest.mark.covers("decisions:A7", "decisions:B13")
async def test_both_tell_the_same_and_each_goes_on_for_the_other(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    _, key = await nodes.key(level="tenant", tenant_id=tenant, permissions=RIGHTS)
    elsewhere = await nodes.tenant()
    async with stream(nodes, 0, key) as here, stream(nodes, 1, key) as there:
        asked = []
        for number in range(20):
            whose = tenant if number % 4 else elsewhere
            body = {"username": nodes.word("bot"), "display_name": "Bot"}
            asked.append(Ask(number % NODES, "POST", f"/v1/tenants/{whose}/identities", body))
        answers = await nodes.ask(*asked)
        assert {answer.status for answer in answers} == {201}
        positions, told = [], []
        for _ in range(15):
            _, event = await here.next()
            told.append(event["id"])
            positions.append(here.last_id)
        assert [(await there.next())[1]["id"] for _ in range(15)] == told
    rows = await nodes.database.fetch(
        "SELECT e.public_id FROM events e JOIN tenants t ON t.id = e.tenant_id WHERE t.public_id = $1 ORDER BY e.id",
        tenant,
    )
    assert [row["public_id"] for row in rows][-15:] == told
    for at, cut in ((1, 0), (0, 7), (1, 13)):
        async with stream(nodes, at, key, positions[cut]) as again:
            assert [(await again.next())[1]["id"] for _ in range(14 - cut)] == told[cut + 1 :]


@pytest.mark.covers("security-privacy:A3.2")
async def test_a_key_that_is_revoked_at_the_other_node(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    key_id, key = await nodes.key(level="tenant", tenant_id=tenant, permissions=RIGHTS)
    async with stream(nodes, 1, key) as there:
        await nodes.identity(tenant)
        assert (await there.next())[0] == "identity.created"
        (answer,) = await nodes.ask(Ask(0, "DELETE", f"/v1/keys/{key_id}"))
        assert answer.status == 204
        kind, why = await there.next(AT_ONCE)
        assert (kind, why["code"]) == ("error", "key_revoked")


async def test_a_node_that_stops_says_so(nodes: Nodes) -> None:
    """Last, since the node is gone then: its listeners go on at the other one."""
    tenant = await nodes.tenant()
    _, key = await nodes.key(level="tenant", tenant_id=tenant, permissions=RIGHTS)
    async with stream(nodes, 1, key) as there:
        await nodes.identity(tenant)
        assert (await there.next())[0] == "identity.created"
        stopping = asyncio.create_task(nodes.servers[1].terminate())
        kind, why = await there.next()
        assert (kind, why["code"]) == ("end", "stopping")
        await asyncio.wait_for(stopping, PATIENCE)
    await nodes.identity(tenant)
    async with stream(nodes, 0, key, there.last_id) as here:
        assert (await here.next())[0] == "identity.created"
