"""One SMTP connection: moves bytes between a socket and a `ClientSession`, and says when time is up (C5, RFC 5321
§4.5.3.2)."""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, cast

from postroom.smtp.channel import SessionStateError
from postroom.smtp.client import ClientSession, UnsupportedError
from postroom.smtp.client_events import (
    Authenticated,
    BodyWanted,
    ClientConfig,
    ClientEvent,
    CommandRefused,
    GreetingReceived,
    HelloDone,
    MailRequest,
    RecipientResult,
    SessionEnded,
    TlsReady,
    TransactionEnded,
)
from postroom.smtp.evidence import Evidence, Fault, Stage
from postroom.smtp.schedule import Route, reply_timeout

Connect = Callable[
    [Callable[[], asyncio.Protocol], str, int, ssl.SSLContext | None, str | None], Awaitable[asyncio.BaseTransport]
]
"""Connects a protocol to host and port: with a context TLS from the start, by the name of the server."""

Content = Callable[[], Awaitable[bytes | AsyncIterator[bytes]]]
"""The message anew: in one piece, or in pieces."""

BLOCK_SECONDS: Final = 180.0
"""How long a peer may take to accept a part of the message (RFC 5321 §4.5.3.2.5)."""
QUIT_SECONDS: Final = 2.0
LAST_BYTES: Final = 16 * 1024
"""So much of the message may go out with its end. More has to be on its way before: of a peer that stops reading it is
known then that it did not get all."""
ATTEMPT_SECONDS: Final = 840.0
RELAY_ATTEMPT_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `attempt` is for all of an attempt's hosts and recipients together."""

    connect: float
    command: float
    final: float
    attempt: float
    block: float = BLOCK_SECONDS

    @classmethod
    def of(cls, route: Route) -> Timeouts:
        """Those of C5 and outbound §9.2, §9.3."""
        return cls(
            connect=reply_timeout(route, Stage.CONNECT),
            command=reply_timeout(route, Stage.MAIL),
            final=reply_timeout(route, Stage.FINAL),
            attempt=ATTEMPT_SECONDS if route is Route.DIRECT else RELAY_ATTEMPT_SECONDS,
        )

    def at(self, stage: Stage) -> float:
        if stage is Stage.FINAL:
            return self.final
        return self.connect if stage <= Stage.GREETING else self.command


class TlsUse(enum.Enum):
    """What of TLS a link insists on."""

    OPPORTUNISTIC = "opportunistic"
    """STARTTLS where it is offered, whatever the certificate says."""
    STARTTLS = "starttls"
    IMPLICIT = "implicit"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect, and how. `name` is the server's, `address` what is connected to."""

    name: str
    address: str
    port: int
    tls: TlsUse
    context: ssl.SSLContext | None
    username: str = ""
    password: str = field(default="", repr=False)

    @property
    def key(self) -> tuple[str, int]:
        return self.address, self.port


class Unusable(Exception):
    """No transaction can be begun; `evidence` says why."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence.stage.name)
        self.evidence = evidence


async def connect_tcp(
    make: Callable[[], asyncio.Protocol], host: str, port: int, context: ssl.SSLContext | None, name: str | None
) -> asyncio.BaseTransport:
    """The way to the network."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(make, host, port, ssl=context, server_hostname=name)
    return transport


def any_certificate() -> ssl.SSLContext:
    """For opportunistic TLS: a stranger's certificate proves nothing that its address did not (RFC 7435)."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Link(asyncio.Protocol):
    """Use `open_link`. Never raises for what the peer does: events tell."""

    def __init__(self, config: ClientConfig, timeouts: Timeouts, *, encrypted: bool = False) -> None:
        self.session = ClientSession(config, encrypted=encrypted)
        self.transactions = 0
        self._timeouts = timeouts
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._until = 0.0
        self._watch: tuple[float, asyncio.TimerHandle] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.session.receive(data)
        self._flush()
        self._waken()
        if self._closing and self.session.is_closed:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.fail(Fault.CONNECTION_LOST)
        self._writable.set()
        self._waken()
        if self._watch is not None:
            self._watch[1].cancel()
            self._watch = None

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- for the driver

    @property
    def is_ready(self) -> bool:
        """Whether the next transaction can begin."""
        transport = self._transport
        return self.session.is_ready and transport is not None and not transport.is_closing()

    def abort(self) -> None:
        """Close at once; of a message that is not complete the peer keeps nothing (RFC 5321 §4.1.1.4)."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def quit(self) -> None:
        """Take leave; the connection is closed when the peer has answered, or soon."""
        self._closing = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            self.session.quit()
        except SessionStateError:
            self.abort()
            return
        self._flush()
        asyncio.get_running_loop().call_later(QUIT_SECONDS, transport.abort)

    async def event(self, deadline: float) -> ClientEvent:
        """The next event; of silence, `SessionEnded` with a time-out at the stage that it happened."""
        loop = asyncio.get_running_loop()
        while True:
            event = self.session.next_event()
            if event is not None:
                return event
            self._until = min(loop.time() + self._timeouts.at(self.session.stage), deadline)
            if self._watch is None or self._watch[0] > self._until:
                self._watch_until(loop)
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _watch_until(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `_look` called at `_until`. One timer serves many waits: it is moved only when it would come too late,
        for almost every wait ends long before its time."""
        if self._watch is not None:
            self._watch[1].cancel()
        self._watch = self._until, loop.call_at(self._until, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._waiter is None:
            return
        loop = self._waiter.get_loop()
        if loop.time() < self._until:
            self._watch_until(loop)
            return
        self.session.fail(Fault.TIMEOUT)
        self.abort()
        self._waken()

    def _waken(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def settle(self, deadline: float, *wanted: type[ClientEvent]) -> ClientEvent:
        """The next event of a wanted kind. Raises Unusable for a refusal or the end of the session."""
        while True:
            event = await self.event(deadline)
            if isinstance(event, wanted):
                return event
            if isinstance(event, CommandRefused):
                raise Unusable(Evidence(event.stage, event.reply))
            if isinstance(event, SessionEnded):
                raise Unusable(event.evidence or Evidence(self.session.stage, fault=Fault.CONNECTION_LOST))

    async def start_tls(self, context: ssl.SSLContext, name: str, deadline: float) -> None:
        """The handshake. Raises Unusable."""
        loop = asyncio.get_running_loop()
        transport = self._transport
        assert transport is not None, "a link that is connected"
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + self._timeouts.connect)):
                secured = await loop.start_tls(transport, self, context, server_hostname=name)
        except (OSError, TimeoutError) as error:  # ssl.SSLError is one
            self.session.fail(Fault.TLS_FAILED)
            self.abort()
            raise Unusable(Evidence(Stage.TLS, fault=Fault.TLS_FAILED)) from error
        if secured is None:
            raise Unusable(Evidence(Stage.TLS, fault=Fault.TLS_FAILED))
        self._transport = secured
        self.session.tls_started()

    def command(self, say: Callable[[], None]) -> None:
        """Have the session say something."""
        say()
        self._flush()

    async def transact(
        self,
        request: MailRequest,
        begin: Callable[[BodyWanted], Awaitable[bool]],
        content: Content,
        deadline: float,
    ) -> tuple[RecipientResult, ...] | None:
        """One message. None when `begin` said that it must not go out: then the connection is gone, and those who were
        not refused before did not get it.

        Raises what `begin` and `content` raise, the connection being gone as well.
        """
        self.transactions += 1
        self.command(lambda: self.session.send(request))
        try:
            while True:
                event = await self.event(deadline)
                if isinstance(event, BodyWanted):
                    if not await begin(event):
                        self.abort()
                        return None
                    await self._send_body(await content(), deadline)
                elif isinstance(event, TransactionEnded):
                    return event.results
                elif isinstance(event, SessionEnded):  # before the transaction was known to the session
                    raise Unusable(event.evidence or Evidence(Stage.MAIL, fault=Fault.CONNECTION_LOST))
        except BaseException:
            self.abort()
            raise

    async def _send_body(self, content: bytes | AsyncIterator[bytes], deadline: float) -> None:
        session = self.session
        if isinstance(content, bytes):
            if session.wants_body:
                session.send_body(content)
        else:
            async for piece in content:
                await self._push(deadline)
                if not session.wants_body:
                    return
                session.send_body(piece)
        # What is small goes with the end of the message: the peer is woken once.
        if session.output_size > LAST_BYTES:
            await self._push(deadline)
        if self._transport is None or self._transport.is_closing():
            # It would never leave; `connection_lost` is still to come.
            session.fail(Fault.CONNECTION_LOST)
        if session.wants_body:
            session.end_body()
            self._flush()

    async def _push(self, deadline: float) -> None:
        self._flush()
        await self._drained(deadline)

    async def _drained(self, deadline: float) -> None:
        if self._writable.is_set():
            return
        until = min(asyncio.get_running_loop().time() + self._timeouts.block, deadline)
        try:
            async with asyncio.timeout_at(until):
                await self._writable.wait()
        except TimeoutError:
            self.session.fail(Fault.TIMEOUT)
            self.abort()

    def _flush(self) -> None:
        output = self.session.take_output()
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.write(output)


async def open_link(
    endpoint: Endpoint, config: ClientConfig, timeouts: Timeouts, connect: Connect, deadline: float
) -> Link:
    """Connect, greet, secure and sign in. Raises Unusable; then nothing is left open."""
    loop = asyncio.get_running_loop()
    implicit = endpoint.tls is TlsUse.IMPLICIT
    link = Link(config, timeouts, encrypted=implicit)
    context, name = (endpoint.context, endpoint.name) if implicit else (None, None)
    try:
        async with asyncio.timeout_at(min(deadline, loop.time() + timeouts.connect)):
            await connect(lambda: link, endpoint.address, endpoint.port, context, name)
    except TimeoutError:
        raise Unusable(Evidence(Stage.CONNECT, fault=Fault.TIMEOUT)) from None
    except ssl.SSLError:
        raise Unusable(Evidence(Stage.TLS, fault=Fault.TLS_FAILED)) from None
    except OSError:
        raise Unusable(Evidence(Stage.CONNECT, fault=Fault.CONNECT_FAILED)) from None
    try:
        await link.settle(deadline, GreetingReceived)
        await _hello(link, deadline)
        await _secure(link, endpoint, deadline)
        if endpoint.username:
            try:
                link.command(lambda: link.session.authenticate(endpoint.username, endpoint.password))
            except UnsupportedError:
                raise Unusable(Evidence(Stage.AUTH, fault=Fault.AUTH_MISSING)) from None
            await link.settle(deadline, Authenticated)
    except BaseException:
        link.quit()
        raise
    return link


async def _hello(link: Link, deadline: float) -> None:
    link.command(link.session.hello)
    await link.settle(deadline, HelloDone)


async def _secure(link: Link, endpoint: Endpoint, deadline: float) -> None:
    wanted = endpoint.tls in (TlsUse.OPPORTUNISTIC, TlsUse.STARTTLS)
    if not wanted or endpoint.context is None:
        return
    if "STARTTLS" not in link.session.extensions:
        if endpoint.tls is TlsUse.STARTTLS:
            raise Unusable(Evidence(Stage.TLS, fault=Fault.TLS_MISSING))
        return
    link.command(link.session.start_tls)
    try:
        await link.settle(deadline, TlsReady)
    except Unusable:
        # Offered and refused (RFC 3207 §4.1: 454): without any promise of privacy, clear text is no worse.
        if endpoint.tls is TlsUse.OPPORTUNISTIC and link.is_ready:
            return
        raise
    await link.start_tls(endpoint.context, endpoint.name, deadline)
    await _hello(link, deadline)
