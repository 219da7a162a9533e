"""A session ends with what it was opened with: at once when nothing is under way, else with the command in hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from postroom.accounts import Level, NewKey
from postroom.accounts.service.standing import Standing
from postroom.servers.imap.session import SIGNED_OUT

BYE = b"* BYE Signed out; sign in again"


@pytest.fixture
async def watched(office: Any) -> AsyncIterator[Standing]:
    """The office, its sessions watched."""
    standing = Standing(office.db, office.clock, interval=0.05)
    office.services = replace(office.services, standing=standing)
    running = asyncio.create_task(standing.run())
    yield standing
    running.cancel()


@pytest.mark.covers("mail-server:F1", "mail-server:F2")
@pytest.mark.parametrize("idle", [False, True])
async def test_a_changed_password_ends_the_session(office: Any, watched: Standing, idle: bool) -> None:
    client = await office.client()
    if idle:
        client.send(b"i IDLE\r\n")
        assert (await client.line()).startswith(b"+ ")
    (person,) = await office.people.page()
    await office.people.set_password(person.public_id, "another horse")
    watched.wake()
    assert await client.line() == BYE
    assert await client.rest() == b""
    assert not watched._watched


@pytest.mark.covers("mail-server:F2")
async def test_the_next_command_is_not_begun(office: Any, watched: Standing) -> None:
    client = await office.client()
    (session,) = {one.ended.__self__ for one in watched._watched}  # type: ignore[attr-defined] # a bound method is in it
    # As when a command is under way: nobody may speak in between.
    session.farewell = SIGNED_OUT
    client.send(b"x NOOP\r\ny NOOP\r\n")
    assert await client.line() == BYE
    assert await client.rest() == b""


async def test_a_revoked_key_ends_its_sessions_and_no_others(office: Any, watched: Standing) -> None:
    address = office.agent.primary.address.encode()
    new = NewKey("k", Level.IDENTITY, ("messages:read",), office.agent.tenant_id, office.agent.id)
    clients, keys = [], []
    for _ in range(2):
        key, text = await office.keys.create(None, new)
        client = await office.connect()
        await client.ok(b"LOGIN %b %b" % (address, text.encode()))
        clients.append(client)
        keys.append(key)
    await office.keys.revoke(None, keys[0].public_id)
    assert await clients[0].line() == BYE
    await clients[1].ok(b"NOOP")
    clients[1].send(b"z LOGOUT\r\n")
    await clients[1].until(b"z")
    await clients[1].rest()
    assert not watched._watched
