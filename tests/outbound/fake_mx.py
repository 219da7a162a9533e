"""A mail server that does what it is told, names that lead to it, and the way there."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from postroom.net.dns_types import (
    Answer,
    Failure,
    IpAddress,
    Kind,
    MxRecord,
    NoData,
    NoSuchName,
    TemporaryFailure,
    TlsaRecord,
)

SILENCE = ""
"""A reply that never comes."""


@dataclass
class Received:
    """A message that the server took, or was given and did not take."""

    sender: str
    recipients: list[str]
    data: bytes
    parameters: list[str]
    accepted: bool


@dataclass
class FakeMx:
    """Answers every command with success unless told otherwise: `replies[command]` and `replies[address]` are answers
    to be given in turn, the last one again and again. `None` drops the connection.

    `drop_before_dot` ends it after so many octets of the message, `drop_after_dot` instead of the last reply.
    `hold` is waited for before the reply to the final dot.
    """

    extensions: Sequence[str] = ("PIPELINING", "8BITMIME", "SIZE 50000000", "SMTPUTF8", "DSN", "ENHANCEDSTATUSCODES")
    replies: dict[str, list[str | None]] = field(default_factory=dict)
    drop_before_dot: int | None = None
    drop_after_dot: bool = False
    hold: asyncio.Event | None = None
    on_data: Callable[[], None] | None = None
    tls: ssl.SSLContext | None = None
    credentials: tuple[str, str] | None = None
    delay: float = 0.0
    messages: list[Received] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    most_open: int = 0
    secured: int = 0

    async def __aenter__(self) -> FakeMx:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def delivered(self) -> list[Received]:
        return [message for message in self.messages if message.accepted]

    def _answer(self, name: str, default: str) -> str | None:
        script = self.replies.get(name)
        if not script:
            return default
        return script.pop(0) if len(script) > 1 else script[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            # A stream's task that is cancelled, as it is at the end of a test, would be told of in the log.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await _Session(self, reader, writer).run()
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()


class _Session:
    def __init__(self, mx: FakeMx, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.mx, self.reader, self.writer = mx, reader, writer
        self.sender, self.recipients, self.parameters = "", list[str](), list[str]()
        self.is_secure = False

    async def say(self, name: str, default: str) -> str | None:
        """The reply's first digit; None when the connection is to be dropped."""
        reply = self.mx._answer(name, default)
        if reply is None:
            return None
        if reply == SILENCE:
            await asyncio.Event().wait()
        if self.mx.delay:
            await asyncio.sleep(self.mx.delay)
        self.writer.write(reply.encode() + b"\r\n")
        await self.writer.drain()
        return reply[0]

    async def run(self) -> None:
        if await self.say("greeting", "220 mx.example ESMTP") is None:
            return
        while line := await self.reader.readline():
            command = line.decode("utf-8", "replace").rstrip("\r\n")
            self.mx.commands.append(command)
            verb = command.split(" ")[0].split(":")[0].upper()
            if not await getattr(self, f"do_{verb.lower()}")(command):
                return

    async def do_ehlo(self, command: str) -> bool:
        extensions = list(self.mx.extensions)
        if self.mx.tls is not None and not self.is_secure:
            extensions.append("STARTTLS")
        if self.mx.credentials is not None:
            extensions.append("AUTH PLAIN")
        lines = ["mx.example", *extensions]
        text = "\r\n".join(f"250{' ' if at == len(lines) - 1 else '-'}{one}" for at, one in enumerate(lines))
        return await self.say("EHLO", text) is not None

    async def do_helo(self, command: str) -> bool:
        return await self.say("HELO", "250 mx.example") is not None

    async def do_starttls(self, command: str) -> bool:
        digit = await self.say("STARTTLS", "220 2.0.0 Ready")
        if digit == "2":
            assert self.mx.tls is not None
            try:
                await self.writer.start_tls(self.mx.tls)
            except (ssl.SSLError, ConnectionError):
                return False
            self.is_secure = True
            self.mx.secured += 1
        return digit is not None

    async def do_auth(self, command: str) -> bool:
        return await self.say("AUTH", "235 2.7.0 Welcome") is not None

    async def do_mail(self, command: str) -> bool:
        self.sender, _, rest = command[len("MAIL FROM:<") :].partition(">")
        self.parameters = rest.split()
        self.recipients = []
        return await self.say("MAIL", "250 2.1.0 Ok") is not None

    async def do_rcpt(self, command: str) -> bool:
        address, _, rest = command[len("RCPT TO:<") :].partition(">")
        digit = await self.say(address, self.mx._answer("RCPT", "250 2.1.5 Ok") or "421 Bye")
        if digit == "2":
            self.recipients.append(address)
            self.parameters += rest.split()
        return digit is not None

    async def do_rset(self, command: str) -> bool:
        return await self.say("RSET", "250 2.0.0 Ok") is not None

    async def do_noop(self, command: str) -> bool:
        return await self.say("NOOP", "250 2.0.0 Ok") is not None

    async def do_quit(self, command: str) -> bool:
        await self.say("QUIT", "221 2.0.0 Bye")
        return False

    async def do_data(self, command: str) -> bool:
        digit = await self.say("DATA", "354 Go on" if self.recipients else "554 5.5.1 No recipients")
        if digit != "3":
            return digit is not None
        if self.mx.on_data is not None:
            self.mx.on_data()
        if self.mx.drop_before_dot is not None:
            await self.reader.readexactly(self.mx.drop_before_dot)
            self.writer.transport.abort()
            return False
        lines = []
        while (line := await self.reader.readline()) != b".\r\n":
            if not line:
                return False
            lines.append(line.removeprefix(b"."))
        message = Received(self.sender, list(self.recipients), b"".join(lines), list(self.parameters), accepted=False)
        self.mx.messages.append(message)
        if self.mx.hold is not None:
            await self.mx.hold.wait()
        if self.mx.drop_after_dot:
            return False
        digit = await self.say("final", "250 2.0.0 Ok: queued")
        message.accepted = digit == "2"
        return digit is not None


# -- names ------------------------------------------------------------------------------------------------------------


@dataclass
class FakeDns:
    """A `Resolver` that knows what it was told. A domain of `broken` has no answer at the moment."""

    exchanges: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    addresses: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, list[bytes]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def _find(self, name: str, kind: Kind, records: Sequence[Any]) -> Answer[Any]:
        self.asked.append(name)
        if name in self.broken:
            raise TemporaryFailure(name, kind, Failure.TIMEOUT)
        if records:
            return Answer(name, name, tuple(records), 60.0)
        if name in self.exchanges or name in self.addresses or name in self.texts:
            raise NoData(name, kind, canonical=name)
        raise NoSuchName(name, kind, canonical=name)

    async def mx(self, name: str, *, within: float | None = None) -> Answer[MxRecord]:
        return self._find(name, Kind.MX, [MxRecord(*one) for one in self.exchanges.get(name, ())])

    async def a(self, name: str, *, within: float | None = None) -> Answer[IPv4Address]:
        found = [ip_address(one) for one in self.addresses.get(name, ())]
        return self._find(name, Kind.A, [one for one in found if one.version == 4])

    async def aaaa(self, name: str, *, within: float | None = None) -> Answer[IPv6Address]:
        found = [ip_address(one) for one in self.addresses.get(name, ())]
        return self._find(name, Kind.AAAA, [one for one in found if one.version == 6])

    async def txt(self, name: str, *, within: float | None = None) -> Answer[bytes]:
        return self._find(name, Kind.TXT, self.texts.get(name, ()))

    async def ptr(self, address: IpAddress, *, within: float | None = None) -> Answer[str]:
        return self._find(address.reverse_pointer, Kind.PTR, ())

    async def tlsa(self, name: str, *, within: float | None = None) -> Answer[TlsaRecord]:
        return self._find(name, Kind.TLSA, ())


@dataclass
class Net:
    """Domains, the hosts behind them, and connections to those: `add` makes a domain whose mail goes to servers in
    order of preference. A host without a server refuses; one of `silent` never answers.
    """

    dns: FakeDns = field(default_factory=FakeDns)
    ports: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    dialled: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, domain: str, *servers: FakeMx | None, address: str | None = None) -> str:
        """The address of the domain's first host."""
        addresses = []
        for place, server in enumerate(servers):
            host = f"mx{place}.{domain}"
            where = (
                address or f"8.{len(self.ports) // 65536 % 256}.{len(self.ports) // 256 % 256}.{len(self.ports) % 256}"
            )
            self.dns.exchanges.setdefault(domain, []).append((10 * (place + 1), host))
            self.dns.addresses[host] = [where]
            self.ports[where] = server.port if server is not None else 0
            addresses.append(where)
        return addresses[0]

    async def connect(
        self,
        make: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        name: str | None,
    ) -> asyncio.BaseTransport:
        self.dialled[host] += 1
        if host in self.silent:
            await asyncio.Event().wait()
        if not self.ports.get(host):
            raise ConnectionRefusedError
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(
            make, "127.0.0.1", self.ports[host], ssl=context, server_hostname=name
        )
        return transport


@contextlib.asynccontextmanager
async def servers(count: int, **options: Any) -> AsyncIterator[list[FakeMx]]:
    """So many of them."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeMx(**options)) for _ in range(count)]
