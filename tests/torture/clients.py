"""Clients that know exactly how far a conversation came when it broke off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from tests.torture.deployment import HOST

ANSWER_SECONDS: Final = 60.0
"""How long an answer may take: a server retries a lost database for 20 s before it says 451."""
_LIMIT: Final = 32 * 1024 * 1024
_LITERAL: Final = re.compile(rb"\{(\d+)\}\r\n\Z")


class Lost(Exception):
    """The connection ended, or an answer did not come in time."""


class Wire(ABC):
    """A connection that is closed with its context."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._reader, self._writer = await asyncio.open_connection(HOST, self._port, limit=_LIMIT)
        except (OSError, TimeoutError) as error:
            raise Lost("connect") from error
        try:
            await self._greet()
        except BaseException:
            self._writer.transport.abort()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    @property
    def local_port(self) -> int:
        """Our end of the connection."""
        return int(self._writer.get_extra_info("sockname")[1])

    @abstractmethod
    async def _greet(self) -> None:
        """Whatever is said before the first request. Raises Lost."""

    async def send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._writer.write(data)
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise Lost("send") from error

    async def line(self) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                line = await self._reader.readuntil(b"\n")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Lost("line") from error
        return line

    async def octets(self, count: int) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._reader.readexactly(count)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise Lost("octets") from error


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a message: the last reply, and whether the final dot had gone out before it."""

    code: int
    text: str
    past_dot: bool


class Smtp(Wire):
    async def _greet(self) -> None:
        await self._expect(220)
        await self.send(b"EHLO sender.example\r\n")
        await self._expect(250)

    async def _expect(self, code: int) -> None:
        found, _ = await self.reply()
        if found != code:
            raise Lost(f"greeting {found}")

    async def reply(self) -> tuple[int, str]:
        while True:
            line = await self.line()
            if line[3:4] != b"-":
                return int(line[:3]), line[4:].decode("utf-8", "replace").rstrip()

    async def deliver(
        self, to: Sequence[str], message: bytes, *, hang_up: bool = False, sender: str = "sender@example.com"
    ) -> Sent:
        """One transaction. Raises Lost, with the text ``"dot"`` when the message was complete by then.

        `hang_up` leaves without reading the answer, as a sender does whose machine goes down just then.
        """
        commands = [f"MAIL FROM:<{sender}>\r\n".encode(), *(f"RCPT TO:<{one}>\r\n".encode() for one in to)]
        await self.send(b"".join(commands))
        replies = [await self.reply() for _ in commands]
        refused = [reply for reply in replies if reply[0] != 250]
        if refused:
            await self.send(b"RSET\r\n")
            await self.reply()
            return Sent(*refused[0], past_dot=False)
        await self.send(b"DATA\r\n")
        code, text = await self.reply()
        if code != 354:
            return Sent(code, text, past_dot=False)
        stuffed = message.replace(b"\r\n.", b"\r\n..")
        await self.send(stuffed[:-2])
        try:
            await self.send(b"\r\n.\r\n")
            if hang_up:
                raise Lost("dot")
            return Sent(*await self.reply(), past_dot=True)
        except Lost as error:
            raise Lost("dot") from error


@dataclass(frozen=True, slots=True)
class Answer:
    """A tagged response (`status` OK, NO or BAD) and the untagged ones before it, literals in place."""

    status: str
    text: str
    untagged: tuple[bytes, ...]


class Imap(Wire):
    _tag = 0

    async def _greet(self) -> None:
        if not (await self.line()).startswith(b"* OK"):
            raise Lost("greeting")

    async def login(self, user: str, secret: str) -> None:
        """Raises Lost when it is refused for now."""
        answer = await self.command(f'LOGIN "{user}" "{secret}"')
        if answer.status != "OK":
            raise Lost(f"login {answer.text}")

    async def command(self, text: str, literal: bytes | None = None) -> Answer:
        self._tag += 1
        tag = f"a{self._tag} ".encode()
        if literal is None:
            await self.send(tag + text.encode() + b"\r\n")
        else:
            await self.send(tag + text.encode() + f" {{{len(literal)}+}}\r\n".encode() + literal + b"\r\n")
        untagged: list[bytes] = []
        while True:
            response = await self.response()
            if response.startswith(tag):
                status, _, rest = response[len(tag) :].decode("utf-8", "replace").partition(" ")
                return Answer(status, rest.rstrip(), tuple(untagged))
            if response.startswith(b"* BYE"):
                raise Lost("bye")
            untagged.append(response)

    async def response(self) -> bytes:
        """One response with its literals."""
        whole = await self.line()
        while (found := _LITERAL.search(whole)) is not None:
            whole += await self.octets(int(found[1])) + await self.line()
        return whole


class Http(Wire):
    """Requests, one after another, on a connection that is kept."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__(port)
        self._key = key

    async def _greet(self) -> None:
        pass

    async def request(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON. Raises Lost."""
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        )
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        await self.send((head + more + "\r\n").encode() + data)
        status = await self.line()
        length = 0
        while (line := await self.line()) != b"\r\n":
            name, _, value = line.decode("latin-1").partition(":")
            if name.lower() == "content-length":
                length = int(value)
        answer = await self.octets(length)
        with contextlib.suppress(ValueError):
            return int(status.split()[1]), json.loads(answer)
        return int(status.split()[1]), None
