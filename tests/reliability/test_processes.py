"""Starting, stopping and crowding of server processes (architecture §4, B19)."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import psutil
import pytest

from tests.reliability.conftest import Launch
from tests.reliability.helpers import copies, deliver, eventually, letter
from tests.torture.clients import Imap, Lost, Sent
from tests.torture.deployment import HOST, Server

SESSIONS = 500
AGENTS = 10


@pytest.mark.covers("decisions:B19", "NFR-REL-1")
async def test_stopping_finishes_the_delivery_in_hand(launch: Launch) -> None:
    server = await launch()
    box = server.deployment.boxes[0]
    conn = await server.deployment.postgres.connect()
    # Somebody holds the mailbox, so the delivery's transaction waits when the stop comes.
    holding = conn.transaction()
    await holding.start()
    await conn.fetch("SELECT FROM mailboxes WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE", box.tenant, box.key)
    message_id, text = letter()
    delivery = asyncio.create_task(deliver(server, text))
    await eventually(lambda: _blob_is_there(server))
    stopping = asyncio.create_task(server.terminate())
    await eventually(lambda: _is_closed(server))
    assert not delivery.done()
    await holding.rollback()
    await conn.close()
    assert (await delivery).code == 250
    assert await stopping == 0
    await server.start()
    assert await copies(server, message_id) == 1


async def _blob_is_there(server: Server) -> bool | None:
    return any(server.deployment.data_dir.glob("mail/*/*/cur/*")) or None


async def _is_closed(server: Server) -> bool | None:
    try:
        _, writer = await asyncio.open_connection(HOST, server.deployment.ports["smtp"])
    except OSError:
        return True
    writer.close()
    return None


@pytest.mark.covers("decisions:B19")
async def test_five_hundred_sessions_share_a_pool_of_twenty(launch: Launch) -> None:
    server = await launch(agents=AGENTS)
    lanes = asyncio.Semaphore(40)
    everybody = asyncio.Barrier(SESSIONS + 1)

    async def session(number: int) -> None:
        box = server.deployment.boxes[number % AGENTS]
        async with contextlib.AsyncExitStack() as stack:
            async with lanes:
                client = await stack.enter_async_context(_SignedIn(server, box.address, box.secret))
            await everybody.wait()
            for command in ("SELECT INBOX", "STATUS Sent (MESSAGES UIDNEXT)", 'LIST "" "*"', "NOOP"):
                assert (await client.command(command)).status == "OK"
            answer = await client.command("APPEND INBOX", letter()[1])
            assert answer.status == "OK", answer.text

    sessions = [asyncio.create_task(session(number)) for number in range(SESSIONS)]
    try:
        async with asyncio.timeout(100):
            sending = asyncio.create_task(_send_when(everybody, server))
            await asyncio.gather(*sessions)
            sent = await sending
    finally:
        for task in sessions:
            task.cancel()
    assert {one.code for one in sent} == {250}
    conn = await server.deployment.postgres.connect()
    try:
        assert await conn.fetchval("SELECT count(*) FROM messages") == SESSIONS + 50
        assert await conn.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    finally:
        await conn.close()


async def _send_when(everybody: asyncio.Barrier, server: Server) -> list[Sent]:
    await everybody.wait()
    return await asyncio.gather(*(deliver(server, letter()[1], number % AGENTS) for number in range(50)))


class _SignedIn(Imap):
    """A connection that is signed in once it is open; tries again when the server has its hands full."""

    def __init__(self, server: Server, address: str, secret: str) -> None:
        super().__init__(server.deployment.ports["imap"])
        self._account = address, secret

    async def _greet(self) -> None:
        await super()._greet()

        async def attempt() -> bool | None:
            try:
                await self.login(*self._account)
            except Lost as lost:
                if "UNAVAILABLE" in str(lost):
                    return None
                raise
            return True

        await eventually(attempt)


@pytest.mark.covers("decisions:B19")
async def test_a_process_that_dies_is_replaced(launch: Launch) -> None:
    server = await launch(processes=2)
    victim = server.workers()[0]
    victim.kill()

    async def replaced() -> bool | None:
        now = server.workers()
        return (victim.pid not in [one.pid for one in now] and server.all_listen()) or None

    await eventually(replaced)
    _, text = letter()
    assert (await deliver(server, text)).code == 250
    assert await server.terminate() == 0, server.tail()


@pytest.mark.covers("decisions:B19")
async def test_processes_end_when_their_supervisor_was_killed(launch: Launch) -> None:
    server = await launch(processes=2)
    workers = server.workers()
    assert len(workers) == 2
    psutil.Process(server.pid).send_signal(signal.SIGKILL)

    async def gone() -> bool | None:
        return all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in workers) or None

    try:
        await eventually(gone)
    finally:
        for one in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    await server.start()
    _, text = letter()
    assert (await deliver(server, text)).code == 250
