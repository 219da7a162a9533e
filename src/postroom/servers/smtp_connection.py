"""One SMTP connection: moves bytes between a socket and `smtp.ServerSession`, and asks the services for decisions."""

import asyncio
import ssl
from collections.abc import Awaitable
from typing import Final, Generic, TypeVar, cast

from postroom.net.tls import end_point
from postroom.sasl import Proven
from postroom.servers.limits import normalise_ip
from postroom.servers.smtp_context import ConnectionContext
from postroom.smtp import replies
from postroom.smtp.envelope import Envelope, Refusal, SessionInfo
from postroom.smtp.events import (
    CredentialsOffered,
    MessageReceived,
    ProofOffered,
    RecipientProposed,
    SenderProposed,
    Signal,
)
from postroom.smtp.replies import Reply
from postroom.smtp.server import ServerSession

A = TypeVar("A")
R = TypeVar("R")

# Input that may wait behind a decision before reading stops, and output that may gather before it is written.
_BACKLOG: Final = 16 * 1024
_OUTPUT: Final = 16 * 1024

# Why a connection does not read, as bits. Plain integers: they are looked at several times per command.
_BEHIND_DECISION: Final = 1
_OVER_BUDGET: Final = 2
_WRITE_BLOCKED: Final = 4
_IN_HANDSHAKE: Final = 8


Question = CredentialsOffered | ProofOffered | SenderProposed | RecipientProposed | MessageReceived
"""An event that a service decides on."""

_OF_EVERY_MESSAGE: Final = (RecipientProposed, MessageReceived)
_REFUSALS: Final = (Refusal, Reply)
_NOT_ADMITTED: Final = Reply(554, "5.7.1", "You may not connect here")


class SmtpConnection(asyncio.Protocol, Generic[R]):
    """The protocol object of one connection.

    Commands are handled inside `data_received`; a task exists only while a decision is awaited. One timer serves all
    timeouts: it is not moved at each read, but looks at the deadline when it fires and sleeps on.
    """

    def __init__(self, context: ConnectionContext[R]) -> None:
        self.held = 0  # the memory budget's
        self._context = context
        # Made when it is known who the peer is.
        self._session: ServerSession = cast(ServerSession, None)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._log = context.log
        self._connection_id = ""
        self._peer_ip = ""
        self._task: asyncio.Task[None] | None = None
        self._pauses = 0
        self._counted = False
        self._closing = False
        self._overdue = False
        self._eof = False
        self._auth_failures = 0
        # What came under TLS before this side learned that the handshake was done; `None` outside a handshake.
        self._early: bytes | None = None
        self._deadline = 0.0
        self._lead_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or refuse the connection (A7) and greet."""
        context = self._context
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer_ip = normalise_ip(str(peer[0])) if isinstance(peer, tuple) else ""
        self._connection_id = context.new_id()
        self._log = context.log.bind(connection_id=self._connection_id)
        refusal = None
        if context.draining:
            refusal = replies.SHUTTING_DOWN
        elif context.counter.is_full():
            refusal = replies.TOO_MANY_CONNECTIONS
        elif context.counter.is_full_for(self._peer_ip):
            refusal = replies.TOO_MANY_FROM_ADDRESS
        elif not context.admits(self._peer_ip):
            refusal = _NOT_ADMITTED
        if refusal is not None:
            self._closing = True
            self._log.info("smtp_connection_refused", code=refusal.code)
            self._transport.write(refusal.wire)
            self._transport.close()
            return
        self._session = ServerSession(
            context.config,
            encrypted=context.implicit_tls,
            auth_in_clear=context.sign_in is not None and context.auth_in_clear(self._peer_ip),
            binding=end_point(transport.get_extra_info("ssl_object")),
        )
        context.counter.add(self._peer_ip)
        context.connections.add(self)
        context.empty.clear()
        self._counted = True
        self._settle()

    def data_received(self, data: bytes) -> None:
        """Feed the session; go on unless a decision is pending."""
        if self._closing:
            return
        if self._early is not None:
            self._early += data
            return
        self._session.receive(data)
        if self._task is None:
            self._go_on()
        else:
            if self._session.backlog > _BACKLOG:
                self._pause(_BEHIND_DECISION)
            self._account()

    def eof_received(self) -> bool:
        """The client sends no more. A decision that is pending is still carried out and answered."""
        self._eof = True
        return self._task is not None and not self._closing and not self._session.encrypted

    def connection_lost(self, exc: Exception | None) -> None:
        """A message that is being committed goes on; one still coming in is dropped."""
        self._forget()

    def _forget(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._counted:
            self._counted = False
            self._context.counter.remove(self._peer_ip)
            self._context.budget.leave(self)
            self._context.connections.discard(self)
            if not self._context.connections:
                self._context.empty.set()

    def pause_writing(self) -> None:
        """The client does not read its replies: take no further commands."""
        self._pause(_WRITE_BLOCKED)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._unpause(_WRITE_BLOCKED)
        if self._task is None and not self._closing:
            self._go_on()

    # -- the session

    def _go_on(self) -> None:
        event = self._advance()
        if event is None:
            self._settle()
        else:
            self._task = self._loop.create_task(self._decide(event))
            self._account()

    def _advance(self) -> Question | None:
        """Handle commands up to the next one that needs a decision, which is returned."""
        session, context = self._session, self._context
        while not self._pauses & _WRITE_BLOCKED:
            event = session.next_event()
            if event is None:
                break
            if event is Signal.UNPRODUCTIVE:
                # Who has signed in is known, and has limits of their own (A7).
                if session.account is None and context.rate.exceeded(self._peer_ip):
                    session.close(replies.TOO_MANY_COMMANDS)
            elif event is Signal.TLS_REQUESTED:
                self._begin_tls()
            elif event is Signal.CLOSED:
                self._close()
                break
            elif isinstance(event, _OF_EVERY_MESSAGE):
                return event
            elif isinstance(event, SenderProposed) and context.check_sender is None:
                session.accept_sender()
            elif isinstance(event, CredentialsOffered) and context.sign_in is None:
                session.reject_credentials(replies.AUTH_UNAVAILABLE)
            else:
                return event
            if session.output_size > _OUTPUT:
                self._flush()
        return None

    async def _decide(self, event: Question | None) -> None:
        task = self._task
        while event is not None and not self._closing:
            if isinstance(event, RecipientProposed):
                await self._resolve(event)
            elif isinstance(event, MessageReceived):
                await self._receive(event)
            elif isinstance(event, SenderProposed):
                await self._check_sender(event)
            else:
                await self._sign_in(event)
            if self._session.is_idle and self._context.draining:
                break
            event = self._advance()
        if self._task is not task:
            return  # STARTTLS came next, and its task has taken over
        self._task = None
        if self._closing:
            self._account()
        else:
            self._settle()

    async def _asked(self, answer: Awaitable[A], about: str, seconds: float) -> A | Reply:
        """A service's answer; a temporary reply when it fails or takes too long (J1)."""
        self._expect_by(seconds)
        try:
            return await answer
        except asyncio.CancelledError:
            return self._reply_to_cancelling(f"smtp_{about}_timeout")
        except Exception:  # noqa: BLE001  a fault of ours is never a 5xx (J1); the cause is in the log
            self._log.exception(f"smtp_{about}_failed")
            return replies.LOCAL_ERROR

    def _info(self, mail_from: str) -> SessionInfo:
        session = self._session
        return SessionInfo(
            self._connection_id, self._peer_ip, session.helo, session.encrypted, mail_from, session.account
        )

    async def _sign_in(self, event: CredentialsOffered | ProofOffered) -> None:
        session, context = self._session, self._context
        asked: Awaitable[object]
        if isinstance(event, ProofOffered):
            assert context.prove is not None
            mechanism, asked = event.proof.mechanism, context.prove(event.proof, self._info(""))
        else:
            assert context.sign_in is not None
            mechanism, asked = event.credentials.mechanism, context.sign_in(event.credentials, self._info(""))
        answer = await self._asked(asked, "sign_in", context.limits.resolve_timeout)
        if session.is_closed:
            return
        if isinstance(answer, Proven):
            session.accept_proof(answer.account, answer.signature)
            return
        if not isinstance(answer, _REFUSALS):
            session.accept_credentials(answer)
            return
        # Our own faults look like any other that waiting helps (A4).
        reply = answer.reply if isinstance(answer, Refusal) else replies.AUTH_UNAVAILABLE
        self._auth_failures += 1
        self._log.info("smtp_login_failed", code=reply.code, mechanism=mechanism)
        session.reject_credentials(reply)
        if self._auth_failures >= context.limits.auth_failures:
            session.close(replies.TOO_MANY_FAILURES)

    async def _check_sender(self, event: SenderProposed) -> None:
        session, context = self._session, self._context
        assert context.check_sender is not None
        address = "" if event.sender is None else event.sender.key
        asked = context.check_sender(address, self._info(address))
        answer = await self._asked(asked, "sender", context.limits.resolve_timeout)
        if session.is_closed:
            return
        if answer is None:
            session.accept_sender()
            return
        reply = answer.reply if isinstance(answer, Refusal) else answer
        self._log.info("smtp_sender_refused", code=reply.code, enhanced=reply.enhanced)
        session.reject_sender(reply)

    async def _resolve(self, event: RecipientProposed) -> None:
        session, context = self._session, self._context
        asked = context.resolve(event.address.key, self._info(str(session.sender or "")))
        answer = await self._asked(asked, "resolve", context.limits.resolve_timeout)
        if session.is_closed:
            return
        if isinstance(answer, _REFUSALS):
            reply = answer.reply if isinstance(answer, Refusal) else answer
            self._log.info("smtp_recipient_refused", code=reply.code, enhanced=reply.enhanced)
            session.reject_recipient(reply)
        else:
            session.accept_recipient(answer)

    async def _receive(self, event: MessageReceived) -> None:
        session, context = self._session, self._context
        started = self._loop.time()
        envelope = Envelope(
            connection_id=self._connection_id,
            peer_ip=self._peer_ip,
            peer_name=None,
            helo=session.helo,
            esmtp=session.esmtp,
            tls=session.encrypted,
            mail_from=str(event.sender or ""),
            recipients=tuple((str(address), cast(R, value)) for address, value in event.recipients),
            smtputf8=event.parameters.smtputf8,
            body_8bit=event.parameters.body_8bit,
            declared_size=event.parameters.size,
            received_at=context.now(),
            parameters=event.parameters,
            recipient_parameters=event.recipient_parameters,
            account=session.account,
            lmtp=context.lmtp,
        )
        asked = context.receive(envelope, event.data)
        answer = await self._asked(asked, "receive", context.limits.receive_timeout)
        replied = (answer,) if isinstance(answer, Reply) else tuple(answer)
        # Who accepts a message logs it, with its id; here it is of interest when it was not, or when looking closely.
        failed = [reply for reply in replied if reply.is_failure]
        note = self._log.info if failed else self._log.debug
        note(
            "smtp_message",
            code=(failed or replied)[0].code,
            recipient_count=len(envelope.recipients),
            size_bytes=len(event.data),
            duration_ms=round((self._loop.time() - started) * 1000, 1),
        )
        if session.is_closed:
            return
        if isinstance(answer, Reply):
            session.finish_message(answer)
        else:
            session.finish_recipients(replied)
        self._flush()

    def _reply_to_cancelling(self, event: str) -> Reply:
        """The decision was cancelled: by our timer or inside the service, which is answered; else this task ends."""
        task = self._task
        if task is not None and self._overdue:
            task.uncancel()
        elif task is None or task.cancelling():
            raise asyncio.CancelledError
        self._overdue = False
        self._log.warning(event)
        return replies.LOCAL_ERROR

    def _settle(self) -> None:
        """Nothing to do until the client says more: send what is to be sent, and wait for it."""
        if self._closing:
            return
        session = self._session
        if self._context.draining and session.is_idle:
            self.finish(replies.SHUTTING_DOWN)
            return
        self._flush()
        self._account()
        if self._eof:
            self._transport.close()
            return
        limits = self._context.limits
        self._expect_by(limits.data_timeout if session.in_data else limits.command_timeout)
        if self._pauses & _BEHIND_DECISION:
            self._unpause(_BEHIND_DECISION)

    def _flush(self) -> None:
        if self._session.output_size:
            output = self._session.take_output()
            if not self._transport.is_closing():
                self._transport.write(output)

    # -- ending

    def finish(self, reply: Reply) -> None:
        """End the session now, with `reply`; a pending decision is abandoned."""
        if self._closing:
            return
        self._session.close(reply)
        self._close()

    @property
    def is_deciding(self) -> bool:
        """Whether a decision is pending."""
        return self._task is not None

    def drain(self) -> None:
        """The listener is draining: end the session unless a message is coming in or a decision is pending."""
        if self._task is None and self._session.is_idle:
            self.finish(replies.SHUTTING_DOWN)

    def expire(self) -> None:
        """Patience with a draining session is over, unless a decision is pending."""
        if self._task is None:
            self.finish(replies.SHUTTING_DOWN)

    def abort(self) -> None:
        """Drop the connection, and whatever is pending, at once."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    def _close(self) -> None:
        """Send the last reply, then the end; wait a moment for the client's end.

        Closing a socket while input is unread resets it, and the client would lose the reply that says why.
        """
        self._flush()
        self._closing = True
        transport = self._transport
        self._account()
        self._pauses = 0
        self._expect_by(self._context.limits.linger)
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

    # -- TLS

    def _begin_tls(self) -> None:
        self._session.start_tls()
        self._flush()
        self._pause(_IN_HANDSHAKE)
        self._task = self._loop.create_task(self._do_handshake())

    async def _do_handshake(self) -> None:
        limits = self._context.limits
        self._expect_by(limits.handshake_timeout + limits.linger)
        try:
            # From here on the TLS layer is between the socket and us, so what arrives has come through it.
            self._early = b""
            transport = await self._loop.start_tls(
                self._transport,
                self,
                cast(ssl.SSLContext, self._context.ssl_context),
                server_side=True,
                ssl_handshake_timeout=limits.handshake_timeout,
                ssl_shutdown_timeout=limits.linger,
            )
        except (OSError, asyncio.CancelledError) as error:
            # Never go on in clear text (A5).
            self._log.info("smtp_tls_failed", error=type(error).__name__)
            self._task = None
            self._transport.abort()
            self._forget()
            return
        self._task = None
        if transport is None or self._closing:
            return
        self._transport = transport
        self._pauses &= ~_IN_HANDSHAKE
        self._session.tls_started(end_point(transport.get_extra_info("ssl_object")))
        self._settle()
        early, self._early = self._early, None
        if early:
            self.data_received(early)

    # -- reading, memory, time

    def _pause(self, reason: int) -> None:
        if not self._pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses |= reason

    def _unpause(self, reason: int) -> None:
        if self._pauses & reason:
            self._pauses &= ~reason
            if not self._pauses and not self._transport.is_closing():
                self._transport.resume_reading()

    def _account(self) -> None:
        held = self._session.held
        if held != self.held and self._counted:
            self._context.budget.hold(self, held, wants_more=self._session.in_data)

    def stop_reading(self) -> None:
        """The memory budget is used up."""
        self._pause(_OVER_BUDGET)

    def go_on_reading(self) -> None:
        """There is room again; the time until now was not the client's."""
        self._unpause(_OVER_BUDGET)
        if not self._closing:
            self._expect_by(self._context.limits.data_timeout)

    def lead(self) -> None:
        """The others wait for this connection's message."""
        self._lead_until = self._loop.time() + self._context.limits.lead_timeout
        self._arm(self._lead_until)

    def _expect_by(self, seconds: float) -> None:
        self._deadline = self._loop.time() + seconds
        self._arm(self._deadline)

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
        session = self._session
        leads = session.in_data and self._context.budget.is_leader(self)
        due = min(self._deadline, self._lead_until) if leads else self._deadline
        if now < due:
            self._arm(due)
        elif self._closing:
            self._transport.abort()
        elif self._task is not None:
            # Only a decision can be overdue here: the handshake has its own, earlier timeout.
            self._overdue = True
            self._task.cancel()
            self._expect_by(self._context.limits.linger)
        elif self._pauses & _OVER_BUDGET:
            self._expect_by(self._context.limits.data_timeout)
        else:
            self._log.info("smtp_timeout", leads=leads)
            self.finish(replies.DATA_TIMEOUT if session.in_data else replies.COMMAND_TIMEOUT)
