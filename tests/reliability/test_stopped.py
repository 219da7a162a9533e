"""A process of the deployment stands still while it holds a mailbox: everybody else goes on (B14, J2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psutil
import pytest

from tests.reliability.conftest import Launch
from tests.reliability.helpers import copies, deliver_in_the_end, eventually, letter
from tests.torture.clients import Answer, Imap, Lost, Smtp
from tests.torture.deployment import Box, Server

GREETING_SECONDS = 1.0
"""After which a connection counts as one that the stopped process took."""
ROUNDS = 2

_WAITS = "SELECT true FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_FREE = "SELECT true FROM mailboxes WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE SKIP LOCKED"


@pytest.mark.covers("edge:B14", "edge:J2")
async def test_mail_and_flags_of_other_mailboxes_go_on(launch: Launch) -> None:
    server = await launch(processes=2, agents=4)
    stuck, *others = server.deployment.boxes[:4]
    await deliver_in_the_end(server, letter()[1], 0)
    async with Imap(server.deployment.ports["imap"]) as client:
        await client.login(stuck.address, stuck.secret)
        assert (await client.command("SELECT INBOX")).status == "OK"
        async with _stopped_in_the_middle(server, stuck, client) as storing:
            for _ in range(ROUNDS):
                await asyncio.gather(*(_deliver(server, box) for box in others))
                await asyncio.gather(*(_flag(server, box) for box in others))
            assert not storing.done()
            assert await _is_locked(server, stuck)
        assert (await storing).status == "OK"
        assert b"Flagged" in b"".join((await client.command("FETCH 1 FLAGS")).untagged)
    message_id, text = letter()
    await deliver_in_the_end(server, text, 0)
    assert await copies(server, message_id) == 1
    assert await server.terminate() == 0, server.tail()


@contextlib.asynccontextmanager
async def _stopped_in_the_middle(server: Server, box: Box, client: Imap) -> AsyncIterator[asyncio.Task[Answer]]:
    """The process that serves `client` is stopped in the middle of a STORE; that STORE's answer.

    Its transaction has the mailbox, and waits for a folder's row that we hold until the process is stopped.
    """
    conn = await server.deployment.postgres.connect()
    try:
        holding = conn.transaction()
        await holding.start()
        await conn.fetch(
            "SELECT FROM folders WHERE tenant_id = $1 AND mailbox_id = $2 AND special_use = 'inbox' FOR UPDATE",
            *(box.tenant, box.key),
        )
        storing = asyncio.create_task(client.command(r"STORE 1 +FLAGS (\Flagged)"))
        await eventually(lambda: conn.fetchval(_WAITS))
        process = _server_of(server, client)
        process.suspend()
        try:
            await holding.rollback()
            assert await _is_locked(server, box)
            yield storing
        finally:
            process.resume()
    finally:
        await conn.close()


def _server_of(server: Server, client: Imap) -> psutil.Process:
    """The process at the other end of a connection."""
    port = client.local_port
    (found,) = (one for one in server.workers() if any(c.raddr and c.raddr.port == port for c in one.net_connections()))
    return found


async def _is_locked(server: Server, box: Box) -> bool:
    conn = await server.deployment.postgres.connect()
    try:
        return not await conn.fetchval(_FREE, box.tenant, box.key)
    finally:
        await conn.close()


async def _deliver(server: Server, box: Box) -> None:
    """As senders do: one whose connection is not greeted tries another."""
    _, text = letter()

    async def attempt() -> bool | None:
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(GREETING_SECONDS):
                    client = await stack.enter_async_context(Smtp(server.deployment.ports["smtp"]))
            except (Lost, TimeoutError):
                return None
            return (await client.deliver([box.address], text)).code == 250

    assert await eventually(attempt)


async def _flag(server: Server, box: Box) -> None:
    async def attempt() -> bool | None:
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(GREETING_SECONDS):
                    client = await stack.enter_async_context(Imap(server.deployment.ports["imap"]))
            except (Lost, TimeoutError):
                return None
            await client.login(box.address, box.secret)
            for command in ("SELECT INBOX", r"STORE 1:* +FLAGS (\Seen)", "FETCH 1:* (FLAGS ENVELOPE)"):
                assert (await client.command(command)).status == "OK"
            return True

    assert await eventually(attempt)
