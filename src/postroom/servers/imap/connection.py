"""One IMAP connection: moves bytes between a socket and a `Session`, with back-pressure and timeouts both ways."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from postroom.base import log as base_log
from postroom.imap import Code, SessionState
from postroom.imap import commands as c
from postroom.net.tls import end_point
from postroom.servers.imap.compression import Compression
from postroom.servers.imap.failures import Disconnected
from postroom.servers.imap.session import Handler, Session
from postroom.servers.imap.shared import SharedState
from postroom.servers.limits import ConnectionCounter, MemoryBudget, normalise_ip

_log = base_log.get("servers.imap")

# Input that may wait behind a command before reading stops. Large enough for a window of pipelined APPENDs.
_BACKLOG: Final = 256 * 1024

# Why a connection does not read, as bits.
_BEHIND_COMMAND: Final = 1
_IN_HANDSHAKE: Final = 2
_OVER_BUDGET: Final = 4

# What a connection may hold without being counted: commands that are no messages.
_UNCOUNTED: Final = 64 * 1024


@dataclass(slots=True)
class ConnectionContext:
    """What the connections of one listener share."""

    shared: SharedState
    ssl_context: ssl.SSLContext | None
    counter: ConnectionCounter
    budget: MemoryBudget
    handlers: Mapping[type[c.Command], Handler]
    connections: set[ImapConnection] = field(default_factory=set)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is no connection, once there has been one."""
    draining: bool = False


class ImapConnection(asyncio.Protocol):
    """The protocol object of one connection; a `wire.Wire`.

    A task exists only while input is being handled (IDLE included). One timer serves all timeouts: it is not moved at
    each read, but looks at what is due when it fires and sleeps on.
    """

    __slots__ = (
        "_closing",
        "_compression",
        "_context",
        "_counted",
        "_eof",
        "_farewell",
        "_lead_until",
        "_loop",
        "_notified",
        "_patience",
        "_pauses",
        "_seen",
        "_session",
        "_signed_in_by",
        "_task",
        "_timer",
        "_transport",
        "_waiter",
        "_writable",
        "_write_blocked",
        "held",
        "peer_ip",
        "secure",
    )

    def __init__(self, context: ConnectionContext, *, secure: bool) -> None:
        self.held = 0  # the memory budget's
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.peer_ip = ""
        self.secure = secure
        self._compression: Compression | None = None
        self._session = Session(context.shared, self, context.handlers)
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._notified = False
        self._write_blocked = 0.0
        self._pauses = 0
        self._counted = False
        self._closing = False
        self._eof = False
        self._seen = 0.0
        self._patience = context.shared.config.idle_timeout
        self._farewell = ""
        self._signed_in_by: float | None = None
        self._lead_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or refuse the connection (D21) and greet."""
        context = self._context
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_ip = normalise_ip(str(peer[0])) if isinstance(peer, tuple) else ""
        refusal = ""
        if context.draining:
            refusal = "Server is shutting down"
        elif context.counter.is_full():
            refusal = "Too many connections"
        elif context.counter.is_full_for(self.peer_ip):
            refusal = "Too many connections from your address"
        if refusal:
            self._closing = True
            _log.info("imap_connection_refused", reason=refusal)
            self._transport.write(b"* BYE [UNAVAILABLE] %b\r\n" % refusal.encode())
            self._transport.close()
            return
        context.counter.add(self.peer_ip)
        context.connections.add(self)
        context.empty.clear()
        self._counted = True
        self._signed_in_by = self._loop.time() + context.shared.config.login_timeout
        self._arm(self._signed_in_by)
        self._session.greet()
        self._rest()

    def data_received(self, data: bytes) -> None:
        """Take input; begin to handle it unless that is under way."""
        if self._closing:
            return
        self._seen = self._loop.time()
        if self._compression is None:
            self._session.reader.feed(data)
        else:
            self._compression.feed(data)
            if not self._inflate(self._compression):
                return
        self._handle()

    def _handle(self) -> None:
        """There is input: begin to handle it, or let whoever handles it know."""
        if self._task is None:
            self._task = self._loop.create_task(self._work())
            return
        self.notify()
        if self._session.reader.buffered > _BACKLOG or (self._compression is not None and self._compression.is_unread):
            self._pause(_BEHIND_COMMAND)
        self.account()

    def _inflate(self, compression: Compression) -> bool:
        """Read on in what came compressed, as far as there is room; False when that cannot be read."""
        try:
            compression.inflate()
        except zlib.error:
            _log.info("imap_deflate_failed")
            self.abort()
            self._forget()
            return False
        return True

    def eof_received(self) -> bool:
        """The client sends no more. What it asked for is still answered."""
        self._eof = True
        self.notify()
        return self._task is not None and not self._closing and not self.secure

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever is under way ends at its next word to the client; what is being committed goes on."""
        self._forget()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._write_blocked = self._loop.time()
        if self._writable is None:
            self._writable = self._loop.create_future()
        self._arm(self._write_blocked + self._context.shared.config.write_timeout)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._write_blocked = 0.0
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # -- Wire

    def send(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Hand bytes to the transport; what a command still has to say when the end was sent is for nobody."""
        if self._closing or self._transport.is_closing():
            return
        if self._compression is None:
            self._transport.writelines(buffers)
        else:
            self._compression.send(buffers)

    def compress(self, received: bytes) -> None:
        """Go on compressed, both ways."""
        self._compression = Compression(self._session.reader, self._transport, room=_BACKLOG)
        self._compression.feed(received)
        if self._inflate(self._compression):
            self.notify()

    @property
    def binding(self) -> bytes | None:
        """What binds to the TLS channel, if anything does."""
        return end_point(self._transport.get_extra_info("ssl_object"))

    @property
    def compressed(self) -> bool:
        """Whether it is."""
        return self._compression is not None

    @property
    def _compressing(self) -> bool:
        """Whether something that was sent waits to be compressed."""
        return self._compression is not None and self._compression.is_unsent and not self._closing

    async def drained(self) -> None:
        """Wait until the client has read enough. Raises `Disconnected`."""
        while self._compressing:  # noqa: ASYNC110 - each turn of the loop compresses a piece
            await asyncio.sleep(0)
        if self._writable is not None:
            await self._writable
        else:
            await asyncio.sleep(0)  # whoever reads fast still leaves turns to the others
        if self._closing:
            raise Disconnected

    async def wait(self, *, reading: bool = True) -> None:
        """Wait for input or `notify`. Raises `Disconnected` when there is nothing to wait for any more."""
        if not self._notified:
            if self._closing or (self._eof and not self._session.has_pending):
                raise Disconnected
            if reading and self._go_on_inflating():
                return
            if reading:
                self._unpause(_BEHIND_COMMAND)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._notified = False
        if self._closing:
            raise Disconnected

    def notify(self) -> None:
        """End a `wait`, or the next one."""
        self._notified = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def attend(self) -> None:
        """The session has something to tell: let it, or whoever handles a command know."""
        if self._closing:
            return
        if self._task is None:
            self._task = self._loop.create_task(self._work(heard=self._seen))
        else:
            self.notify()

    def account(self) -> None:
        """Let the budget know what is held."""
        held = self._session.held
        if held <= _UNCOUNTED:
            held = 0
        if held != self.held and self._counted:
            self._context.budget.hold(self, held, wants_more=held > 0 and self._session.awaits_input)

    def expect(self, seconds: float, farewell: str) -> None:
        """Without anything from the client for so long from now, say BYE and go."""
        self._seen = self._loop.time()
        self._patience, self._farewell = seconds, farewell
        self._arm(self._seen + seconds)

    async def start_tls(self) -> None:
        """Go on under TLS; a failed handshake ends the connection (never go on in clear text)."""
        config = self._context.shared.config
        self._pause(_IN_HANDSHAKE)
        try:
            transport = await self._loop.start_tls(
                self._transport,
                self,
                cast(ssl.SSLContext, self._context.ssl_context),
                server_side=True,
                ssl_handshake_timeout=config.handshake_timeout,
                ssl_shutdown_timeout=config.linger,
            )
        except (OSError, TimeoutError) as error:
            _log.info("imap_tls_failed", error=type(error).__name__)
            self._transport.abort()
            self._forget()
            raise Disconnected from None
        if transport is None or self._closing:
            raise Disconnected
        self._transport = transport
        self._pauses &= ~_IN_HANDSHAKE
        self.secure = True

    def _go_on_inflating(self) -> bool:
        """Whether more of what came compressed could be read now."""
        compression = self._compression
        if compression is None or not compression.is_unread or self._closing:
            return False
        before = self._session.reader.buffered
        return self._inflate(compression) and self._session.reader.buffered > before

    # -- handling

    async def _work(self, *, heard: float | None = None) -> None:
        """With `heard`, when the client was last heard of, it is not the client who wants something."""
        session = self._session
        over = False
        try:
            await session.run()
        except Disconnected:
            over = True
        except asyncio.CancelledError:
            self._transport.abort()
        except Exception:  # noqa: BLE001 - a session that fails is ended, not its listener; the cause is in the log
            _log.exception("imap_session_failed")
            session.bye("Internal error", Code.SERVERBUG)
        self._task = None
        self.account()
        if self._closing:
            session.close()
        elif over or session.state is SessionState.LOGOUT or self._eof:
            self._finish()
        elif session.is_dismissed:
            self.say_bye(session.farewell)
        elif self._context.draining:
            self.drain()
        else:
            is_unheard = self._seen == heard
            self._rest()
            if is_unheard and heard is not None:
                self._seen = heard  # what we tell is no sign of life

    def _rest(self) -> None:
        """Nothing to do until the client says more."""
        if self._closing:
            return
        if self._session.principal is not None:
            self._signed_in_by = None
        if self._go_on_inflating():
            self._handle()
            return
        self._unpause(_BEHIND_COMMAND)
        self.expect(self._context.shared.config.idle_timeout, "Autologout; idle for too long")

    # -- ending

    @property
    def is_busy(self) -> bool:
        """Whether a command is under way; waiting in IDLE is not."""
        return self._task is not None and (self._waiter is None or self._session.has_pending)

    def drain(self) -> None:
        """The listener is draining: say goodbye unless a command is under way."""
        if not self.is_busy:
            self.say_bye("Server is shutting down")

    def dismiss(self, farewell: str) -> None:
        """Say goodbye unless a command is under way, which ends with its answer."""
        if not self.is_busy:
            self.say_bye(farewell)

    def expire(self) -> None:
        """Patience with a draining session is over."""
        self.say_bye("Server is shutting down")

    def say_bye(self, text: str) -> None:
        """End the session now."""
        if self._closing:
            return
        self._session.bye(text)
        self._finish()

    def abort(self) -> None:
        """Drop the connection, and whatever is pending, at once."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    def _finish(self) -> None:
        """Send what is queued, then the end; wait a moment for the client's end.

        Closing a socket while input is unread resets it, and the client would lose the line that says why.
        """
        if self._closing:
            return
        self._session.flush()
        if self._compression is not None:
            self._compression.finish()
        self._closing = True
        self._release()
        transport = self._transport
        self._pauses = 0
        self._arm(self._loop.time() + self._context.shared.config.linger)
        if transport.is_closing():
            return
        transport.resume_reading()
        if self._eof or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.abort()

    def _release(self) -> None:
        """Let go of the folder and of whoever waits."""
        if self._task is None:
            self._session.close()
        self.notify()
        self.resume_writing()

    def _forget(self) -> None:
        self._closing = True
        self._release()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._counted:
            self._counted = False
            context = self._context
            context.counter.remove(self.peer_ip)
            context.budget.leave(self)
            context.connections.discard(self)
            if not context.connections:
                context.empty.set()

    # -- reading and time

    def _pause(self, reason: int) -> None:
        if not self._pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses |= reason

    def _unpause(self, reason: int) -> None:
        if self._pauses & reason:
            self._pauses &= ~reason
            if not self._pauses and not self._transport.is_closing():
                self._transport.resume_reading()

    def stop_reading(self) -> None:
        """The memory budget is used up."""
        self._pause(_OVER_BUDGET)

    def go_on_reading(self) -> None:
        """There is room again; the time until now was not the client's."""
        self._seen = self._loop.time()
        self._unpause(_OVER_BUDGET)

    def lead(self) -> None:
        """The others wait for this connection's message."""
        self._lead_until = self._loop.time() + self._context.shared.config.lead_timeout
        self._arm(self._lead_until)

    def _arm(self, when: float) -> None:
        """See that the timer fires no later than `when`. One that fires earlier finds nothing due and sleeps on."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._closing:
            self._transport.abort()
            return
        config = self._context.shared.config
        dues: list[tuple[float, str]] = []
        if self._write_blocked:
            dues.append((self._write_blocked + config.write_timeout, ""))
        elif self._pauses & _OVER_BUDGET:
            self._seen = now
        elif not self.is_busy:
            if self._context.budget.is_leader(self):
                dues.append((self._lead_until, "Autologout; others wait"))
            dues.append((self._seen + self._patience, self._farewell))
        if self._signed_in_by is not None and self._session.principal is None:
            dues.append((self._signed_in_by, "Autologout; no login"))
        if not dues:
            self._arm(now + self._patience)
            return
        due, farewell = min(dues)
        if now < due:
            self._arm(due)
        elif farewell:
            self.say_bye(farewell)
        else:
            _log.info("imap_write_timeout")
            self.abort()
