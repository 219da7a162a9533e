"""Push goes on when what carries it was cut: hints, sessions of the database, the database itself (B13)."""

from __future__ import annotations

import asyncio

import pytest

from tests.reliability.conftest import Launch
from tests.reliability.helpers import PATIENCE, Idlers, copies, deliver, deliver_in_the_end, eventually, letter
from tests.torture.clients import Imap
from tests.torture.deployment import Server

_LISTENING = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN %'
"""


async def _cut_hints(server: Server, count: int) -> None:
    """End the connections of so many processes, when they are all there: the ports answer before the last is."""
    conn = await server.deployment.postgres.connect()
    try:
        async with asyncio.timeout(PATIENCE):
            pids: list[int] = []
            while len(pids) < count:
                await asyncio.sleep(0.05)
                pids = [row["pid"] for row in await conn.fetch(_LISTENING)]
        assert len(pids) == count
        await conn.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS gone (pid)", pids)
    finally:
        await conn.close()


@pytest.mark.covers("decisions:B13", "decisions:B19")
async def test_two_processes_share_the_ports_and_wake_each_others_clients(launch: Launch) -> None:
    server = await launch(processes=2)
    async with Idlers(server) as idlers:
        # With this many on ports that two processes share, both hold some.
        await idlers.idle(12)
        _, text = letter()
        assert (await deliver(server, text)).code == 250
        await idlers.told()
        # A flag that is set in one of them is seen by those who idle in either, and so is that it was taken off.
        async with Imap(server.deployment.ports["imap"]) as client:
            box = server.deployment.boxes[0]
            await client.login(box.address, box.secret)
            assert (await client.command("SELECT INBOX")).status == "OK"
            for sign, line in (("+", rb"\* 1 FETCH .*\\Flagged.*"), ("-", rb"\* 1 FETCH (?!.*\\Flagged).*")):
                assert (await client.command(rf"STORE 1 {sign}FLAGS.SILENT (\Flagged)")).status == "OK"
                await idlers.told(line)
    assert await server.terminate() == 0, server.tail()


@pytest.mark.covers("decisions:B13")
async def test_hints_are_heard_again_after_their_connections_were_cut(launch: Launch) -> None:
    server = await launch(processes=2)
    async with Idlers(server) as idlers:
        await idlers.idle(8)
        waiting = await idlers.wait(2)
        await _cut_hints(server, 2)
        _, text = letter()
        assert (await deliver(server, text)).code == 250
        await idlers.told()
        for answer in waiting:
            status, body = await asyncio.wait_for(answer, PATIENCE)
            assert (status, body["timed_out"]) == (200, False)
    assert server.is_running


@pytest.mark.covers("decisions:B13")
@pytest.mark.parametrize("what", ["postmaster", "sessions"])
async def test_clients_that_wait_are_told_after_the_database_was_restarted(launch: Launch, what: str) -> None:
    server = await launch()
    async with Idlers(server) as idlers:
        await idlers.idle(3)
        waiting = await idlers.wait(1)
        if what == "postmaster":
            assert server.kill_postmaster()
        else:
            conn = await server.deployment.postgres.connect()
            await conn.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            await conn.close()
        message_id, text = letter()
        await deliver_in_the_end(server, text)
        await idlers.told()
        status, body = await asyncio.wait_for(waiting[0], PATIENCE)
        # A request that met the outage may say so; one that did not has the message.
        assert status == 503 or (status == 200 and not body["timed_out"])
        assert await copies(server, message_id) == 1
    assert server.is_running
    await _indexed(server)


async def _indexed(server: Server) -> None:
    """The worker lived through it: it does what is still to be done."""

    async def look() -> bool | None:
        conn = await server.deployment.postgres.connect()
        try:
            return not await conn.fetchval("SELECT count(*) FROM word_tasks") or None
        finally:
            await conn.close()

    await eventually(look)
