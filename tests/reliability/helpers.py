"""What the tests of this directory say to a server."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from tests.torture.clients import Http, Imap, Lost, Sent, Smtp
from tests.torture.deployment import Server

T = TypeVar("T")

PATIENCE: Final = 30.0
_numbers = itertools.count(1)


def letter(size: int = 0) -> tuple[str, bytes]:
    """A Message-ID never used before, and a message with it and `size` more octets."""
    message_id = f"{next(_numbers)}.reliability@sender.example"
    padding = "".join(f"{'x' * 70}\r\n" for _ in range(size // 72))
    text = (
        f"From: Anna <anna@example.com>\r\nTo: <box@agents.example>\r\nSubject: Number\r\n"
        f"Message-ID: <{message_id}>\r\n\r\nHello.\r\n{padding}"
    )
    return message_id, text.encode()


async def deliver(server: Server, text: bytes, *boxes: int) -> Sent:
    """One message over a connection of its own. Raises Lost."""
    async with Smtp(server.deployment.ports["smtp"]) as client:
        return await client.deliver([server.deployment.boxes[box].address for box in boxes or (0,)], text)


async def deliver_in_the_end(server: Server, text: bytes, *boxes: int) -> Sent:
    """As a sender does: again and again until it is stored. Fails after `PATIENCE` seconds."""

    async def attempt() -> Sent | None:
        try:
            sent = await deliver(server, text, *boxes)
        except Lost:
            return None
        return sent if sent.code == 250 else None

    return await eventually(attempt)


async def eventually(look: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE) -> T:
    """What `look` finds, as soon as that is not None. Fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            found = await look()
            if found is not None:
                return found
            await asyncio.sleep(0.05)


async def copies(server: Server, message_id: str) -> int:
    """How many messages of that Message-ID the database holds."""
    conn = await server.deployment.postgres.connect()
    try:
        return int(
            await conn.fetchval(
                "SELECT count(*) FROM messages WHERE rfc_message_id IN ($1, $2)", message_id, f"<{message_id}>"
            )
        )
    finally:
        await conn.close()


class Idlers:
    """IMAP connections that wait for mail, and REST calls that do, in a mailbox."""

    def __init__(self, server: Server, box: int = 0) -> None:
        self._server = server
        self._box = server.deployment.boxes[box]
        self._stack = AsyncExitStack()
        self._imap: list[Imap] = []
        self._http: list[Http] = []

    async def __aenter__(self) -> Idlers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def idle(self, count: int) -> None:
        ports = self._server.deployment.ports
        for _ in range(count):
            client = await self._stack.enter_async_context(Imap(ports["imap"]))
            await client.login(self._box.address, self._box.secret)
            assert (await client.command("SELECT INBOX")).status == "OK"
            await client.send(b"i IDLE\r\n")
            assert (await client.response()).startswith(b"+")
            self._imap.append(client)

    async def wait(self, count: int) -> list[asyncio.Task[tuple[int, Any]]]:
        """REST calls that wait for a message; each one's answer. They say since when, for the server may come to read
        them only after the message came.
        """
        ports, key = self._server.deployment.ports, self._server.deployment.api_keys[0]
        tasks = []
        for _ in range(count):
            client = await self._stack.enter_async_context(Http(ports["http"], key))
            path = f"/v1/identities/{self._box.identity_id}/wait?timeout=50&since=2020-01-01T00:00:00Z"
            tasks.append(asyncio.create_task(client.request("GET", path)))
        return tasks

    async def told(self, line: bytes = rb"\* \d+ EXISTS") -> None:
        """Until every IMAP connection was told of a message, or of what else such a line says. Fails after `PATIENCE`
        seconds.
        """
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(_told(client, re.compile(line)) for client in self._imap))


async def _told(client: Imap, line: re.Pattern[bytes]) -> None:
    while not line.fullmatch((await client.response()).rstrip()):
        pass
