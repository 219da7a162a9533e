"""The sending side of SMTP and LMTP as a sans-I/O state machine: commands to bytes, bytes to events (RFC 5321, 2033).

The driver moves the bytes both ways and answers events by the next command::

    session.receive(data)
    while (event := session.next_event()) is not None:
        ...                                 # e.g. GreetingReceived -> session.hello()
    transport.write(session.take_output())

On `BodyWanted` it sends the message in pieces as long as `wants_body` says so, then `end_body`. When the connection
ends, or time does, it says so with `fail`; every transaction that was begun ends with a `TransactionEnded` that tells
each recipient's fate. What silence means depends on how far things got: `data_started`, `final_sent`.
"""

import enum
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from postroom.smtp.channel import SessionStateError
from postroom.smtp.chunks import write_bdat
from postroom.smtp.client_events import (
    Authenticated,
    BodyWanted,
    ClientConfig,
    ClientEvent,
    CommandRefused,
    Extensions,
    GreetingReceived,
    HelloDone,
    MailRequest,
    ResetDone,
    SessionEnded,
    TlsReady,
    TransactionEnded,
    read_extensions,
)
from postroom.smtp.data import DotStuffer
from postroom.smtp.evidence import Evidence, Fault, Stage
from postroom.smtp.params import Body
from postroom.smtp.reply_reader import ReplyError, ReplyReader, ServerReply
from postroom.smtp.sasl import UnsupportedError, client_exchange
from postroom.smtp.transaction import Transaction

_SERVICE_CLOSING: Final = 421
_NO_EXTENSIONS: Final = Extensions()

__all__ = ["ClientConfig", "ClientSession", "UnsupportedError"]


class _Phase(enum.Enum):
    GREETING = enum.auto()
    GREETED = enum.auto()
    READY = enum.auto()
    BUSY = enum.auto()
    """A single command is waiting for its reply."""
    HANDSHAKE = enum.auto()
    ENVELOPE = enum.auto()
    BODY = enum.auto()
    FINAL = enum.auto()
    QUITTING = enum.auto()
    CLOSED = enum.auto()


_Handler = Callable[[ServerReply], None]

# Where a phase has no command under way: the stage that it stands before.
_STAGES: Final = {
    _Phase.GREETING: Stage.GREETING,
    _Phase.GREETED: Stage.HELLO,
    _Phase.HANDSHAKE: Stage.TLS,
    _Phase.BODY: Stage.BODY,
    _Phase.FINAL: Stage.FINAL,
    _Phase.QUITTING: Stage.QUIT,
}


class ClientSession:
    """One connection to a server. Never raises on what the server sends.

    Commands raise `SessionStateError` out of turn. `encrypted`: the connection began with TLS.
    """

    def __init__(self, config: ClientConfig, *, encrypted: bool = False) -> None:
        self._config = config
        self._reader = ReplyReader()
        self._output: list[bytes] = []
        self._events: deque[ClientEvent] = deque()
        self._phase = _Phase.GREETING
        self._pending: deque[tuple[Stage, _Handler]] = deque([(Stage.GREETING, self._on_greeting)])
        self._unsent: deque[tuple[Stage, _Handler, bytes]] = deque()
        self._secrets: deque[bytes] = deque()
        self._extensions = _NO_EXTENSIONS
        self._encrypted = encrypted
        self._transaction: Transaction | None = None
        self._stuffer = DotStuffer()
        self._uses_chunks = False
        self._needs_reset = False
        self._data_started = False
        self._final_sent = False

    # -- what the driver may look at

    @property
    def extensions(self) -> Extensions:
        """What the server offers, as of the last `HelloDone`."""
        return self._extensions

    @property
    def encrypted(self) -> bool:
        """Whether TLS is active."""
        return self._encrypted

    @property
    def stage(self) -> Stage:
        """What is waited for, for the driver's timeouts."""
        if self._phase in (_Phase.BODY, _Phase.FINAL):
            return _STAGES[self._phase]
        return self._pending[0][0] if self._pending else _STAGES.get(self._phase, Stage.RESET)

    @property
    def is_ready(self) -> bool:
        """Whether the next transaction can begin."""
        return self._phase is _Phase.READY

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self._phase is _Phase.CLOSED

    @property
    def wants_body(self) -> bool:
        """Whether the message is to be sent: from `BodyWanted` until `end_body`, unless the server breaks it off."""
        return self._phase is _Phase.BODY

    @property
    def data_started(self) -> bool:
        """Whether any of the message of the present or last transaction was given out."""
        return self._data_started

    @property
    def final_sent(self) -> bool:
        """Whether the end of that message was given out: from then on silence leaves its fate unknown."""
        return self._final_sent

    @property
    def output_size(self) -> int:
        """Octets waiting for `take_output`."""
        return sum(map(len, self._output))

    # -- bytes and events

    def receive(self, data: bytes) -> None:
        """Take bytes from the server."""
        if self._phase is _Phase.CLOSED:
            return
        self._reader.feed(data)
        if self._phase is _Phase.HANDSHAKE:
            # Said before the handshake, believed after it: a reply that anybody could have put there (RFC 3207 §5).
            self.fail(Fault.BAD_REPLY)
            return
        while not self.is_closed:
            try:
                reply = self._reader.next_reply()
            except ReplyError:
                self.fail(Fault.BAD_REPLY)
                return
            if reply is None:
                return
            self._take(reply)

    def take_output(self) -> bytes:
        """The bytes to send, which are thereby forgotten here."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def next_event(self) -> ClientEvent | None:
        """The next event, or `None`."""
        return self._events.popleft() if self._events else None

    def fail(self, fault: Fault) -> None:
        """The connection or the time is gone (`CONNECTION_LOST`, `TIMEOUT`, `TLS_FAILED`), and with it the session."""
        if self._phase is _Phase.QUITTING:
            self._shut(None)
        elif self._phase is not _Phase.CLOSED:
            self._shut(Evidence(self.stage, fault=fault))

    # -- commands

    def hello(self) -> None:
        """Say EHLO, or LHLO; HELO if the server refuses the first (RFC 5321 §3.2). Ends with `HelloDone`."""
        self._require(_Phase.GREETED, _Phase.READY)
        verb = "LHLO" if self._config.lmtp else "EHLO"
        self._command(Stage.HELLO, self._on_ehlo, f"{verb} {self._config.hostname}")

    def start_tls(self) -> None:
        """Say STARTTLS; `TlsReady` follows. Raises `UnsupportedError` where it is not offered."""
        self._require(_Phase.READY)
        if self._encrypted or "STARTTLS" not in self._extensions:
            raise UnsupportedError("no STARTTLS")
        self._command(Stage.TLS, self._on_starttls, "STARTTLS")

    def tls_started(self) -> None:
        """The handshake is done; what was learned before is forgotten (RFC 3207 §4.2). Go on with `hello`."""
        self._require(_Phase.HANDSHAKE)
        self._encrypted = True
        self._extensions = _NO_EXTENSIONS
        self._phase = _Phase.GREETED

    def authenticate(self, username: str, password: str) -> None:
        """Sign in by PLAIN, or LOGIN where that is all there is (RFC 4954). Ends with `Authenticated`.

        Raises `UnsupportedError` without either, `ValueError` for what no mechanism can carry, and `SessionStateError`
        in clear text: credentials never go there.
        """
        self._require(_Phase.READY)
        if not self._encrypted:
            raise SessionStateError("no credentials without TLS")
        command, self._secrets = client_exchange(self._extensions.auth_mechanisms, username, password)
        self._phase = _Phase.BUSY
        self._put(Stage.AUTH, self._on_auth, command + b"\r\n")

    def send(self, request: MailRequest) -> None:
        """Begin a transaction. `BodyWanted` follows if there is anybody to send to, `TransactionEnded` in any case.

        A server that cannot take the message is not asked. Raises `ValueError` for a request that cannot be sent.
        """
        self._require(_Phase.READY)
        transaction = Transaction(request, self._extensions, encrypted=self._encrypted)
        self._data_started = self._final_sent = False
        self._transaction = transaction
        if not transaction.open:
            self._end_transaction()
            return
        self._phase = _Phase.ENVELOPE
        chunking = self._config.chunking or transaction.body is Body.BINARY
        self._uses_chunks = chunking and "CHUNKING" in self._extensions and self._pipelines(Body.BINARY)
        if self._needs_reset:
            self._unsent.append((Stage.RESET, self._on_silent_reset, b"RSET\r\n"))
        self._unsent.append((Stage.MAIL, self._on_mail, transaction.mail_line))
        for index in transaction.open:
            self._unsent.append((Stage.RCPT, partial(self._on_rcpt, index), transaction.rcpt_lines[index]))
        if self._pipelines(transaction.body) and not self._uses_chunks:
            self._unsent.append((Stage.DATA, self._on_data, b"DATA\r\n"))
        self._needs_reset = True
        self._pump()

    def send_body(self, piece: bytes) -> None:
        """Send some of the message, as it is: dots are doubled, or the piece becomes a chunk, on the way."""
        self._require(_Phase.BODY)
        self._data_started = True
        if not self._uses_chunks:
            self._output.append(self._stuffer.feed(piece))
        elif piece:
            self._put(Stage.BODY, self._on_chunk, write_bdat(len(piece), is_last=False))
            self._output.append(piece)

    def end_body(self) -> None:
        """The message is complete. From now on its fate is the server's to tell."""
        self._require(_Phase.BODY)
        self._data_started = self._final_sent = True
        self._phase = _Phase.FINAL
        end = write_bdat(0, is_last=True) if self._uses_chunks else self._stuffer.end()
        self._output.append(end)
        transaction = self._transaction
        if self._config.lmtp and transaction is not None:
            handlers: list[_Handler] = [partial(self._on_recipient_final, index) for index in transaction.accepted]
        else:
            handlers = [self._on_final]
        self._pending.extend((Stage.FINAL, handler) for handler in handlers)

    def reset(self) -> None:
        """Say RSET. Ends with `ResetDone`."""
        self._require(_Phase.READY)
        self._command(Stage.RESET, self._on_reset, "RSET")

    def quit(self) -> None:
        """Say QUIT. Ends with `SessionEnded`."""
        self._require(_Phase.READY, _Phase.GREETED)
        self._phase = _Phase.QUITTING
        self._put(Stage.QUIT, self._on_quit, b"QUIT\r\n")

    # -- sending

    def _require(self, *phases: _Phase) -> None:
        if self._phase not in phases:
            raise SessionStateError(f"not while {self._phase.name.lower()}")

    def _put(self, stage: Stage, handler: _Handler, line: bytes) -> None:
        self._output.append(line)
        self._pending.append((stage, handler))

    def _command(self, stage: Stage, handler: _Handler, line: str) -> None:
        self._phase = _Phase.BUSY
        self._put(stage, handler, f"{line}\r\n".encode("ascii"))

    def _pipelines(self, body: Body) -> bool:
        wanted = self._config.pipelining or body is Body.BINARY
        return wanted and "PIPELINING" in self._extensions

    def _pump(self) -> None:
        """Send of the envelope what may be sent now; after the last reply, go on to the message."""
        transaction = self._transaction
        if transaction is None or self._phase is not _Phase.ENVELOPE:
            return
        while self._unsent and (not self._pending or self._pipelines(transaction.body)):
            self._put(*self._unsent.popleft())
        if self._pending:
            return
        if not transaction.accepted:
            self._end_transaction()
        elif self._uses_chunks:
            self._want_body(transaction)
        else:
            self._put(Stage.DATA, self._on_data, b"DATA\r\n")

    # -- replies

    def _take(self, reply: ServerReply) -> None:
        stage = self.stage
        if not self._pending:
            self._take_unasked(stage, reply)
            return
        _, handler = self._pending.popleft()
        handler(reply)
        self._pump()
        # The service is closing; over LMTP the other recipients' replies come all the same.
        if reply.code == _SERVICE_CLOSING and not (self._phase is _Phase.FINAL and self._pending):
            self._shut(Evidence(stage, reply))

    def _take_unasked(self, stage: Stage, reply: ServerReply) -> None:
        """A reply to nothing: a server that breaks off a message, or takes its leave, before it was asked."""
        if reply.is_refusal:
            self._shut(Evidence(stage, reply))
        else:
            self.fail(Fault.BAD_REPLY)

    def _on_greeting(self, reply: ServerReply) -> None:
        if reply.is_positive:
            self._phase = _Phase.GREETED
            self._events.append(GreetingReceived(reply))
        else:
            # RFC 5321 §3.1: after a 554 only QUIT is of use.
            self._refused(Stage.GREETING, reply, _Phase.GREETED)

    def _on_ehlo(self, reply: ServerReply) -> None:
        if reply.is_permanent and not self._config.lmtp:
            self._command(Stage.HELLO, self._on_helo, f"HELO {self._config.hostname}")
        else:
            self._greet(reply, read_extensions(reply.lines[1:]))

    def _on_helo(self, reply: ServerReply) -> None:
        self._greet(reply, _NO_EXTENSIONS)

    def _greet(self, reply: ServerReply, extensions: Extensions) -> None:
        if not reply.is_positive:
            self._refused(Stage.HELLO, reply, _Phase.GREETED)
            return
        self._extensions = extensions
        self._needs_reset = False
        self._phase = _Phase.READY
        self._events.append(HelloDone(reply, extensions))

    def _on_starttls(self, reply: ServerReply) -> None:
        if not reply.is_positive:
            self._refused(Stage.TLS, reply, _Phase.READY)
        elif self._reader.is_empty:
            self._phase = _Phase.HANDSHAKE
            self._events.append(TlsReady())
        else:
            self._phase = _Phase.HANDSHAKE
            self.fail(Fault.BAD_REPLY)

    def _on_auth(self, reply: ServerReply) -> None:
        if reply.code == 334:
            # A challenge that we have no answer to is given up (RFC 4954 §4).
            secret = self._secrets.popleft() if self._secrets else b"*"
            self._put(Stage.AUTH, self._on_auth, secret + b"\r\n")
            return
        self._secrets.clear()
        if reply.is_positive:
            self._phase = _Phase.READY
            self._events.append(Authenticated(reply))
        else:
            self._refused(Stage.AUTH, reply, _Phase.READY)

    def _on_reset(self, reply: ServerReply) -> None:
        if reply.is_positive:
            self._phase = _Phase.READY
            self._needs_reset = False
            self._events.append(ResetDone())
        else:
            self._refused(Stage.RESET, reply, _Phase.READY)

    def _refused(self, stage: Stage, reply: ServerReply, phase: _Phase) -> None:
        if not reply.is_refusal:
            self._shut(Evidence(stage, reply, Fault.BAD_REPLY))
            return
        self._phase = phase
        self._events.append(CommandRefused(stage, reply))

    def _on_quit(self, reply: ServerReply) -> None:
        self._shut(None)

    # -- replies within a transaction

    def _on_silent_reset(self, reply: ServerReply) -> None:
        if not reply.is_positive:
            self._shut(Evidence(Stage.RESET, reply, None if reply.is_refusal else Fault.BAD_REPLY))

    def _on_mail(self, reply: ServerReply) -> None:
        transaction = self._current()
        if reply.is_positive:
            transaction.is_sender_accepted = True
        elif reply.is_refusal:
            transaction.decide_open(Evidence(Stage.MAIL, reply))
            self._unsent.clear()
        else:
            self._shut(Evidence(Stage.MAIL, reply, Fault.BAD_REPLY))

    def _on_rcpt(self, index: int, reply: ServerReply) -> None:
        transaction = self._current()
        if not transaction.is_sender_accepted:
            return  # whatever it says, it has no sender
        if reply.is_positive:
            transaction.accepted.append(index)
        elif reply.is_refusal:
            transaction.decide(index, Evidence(Stage.RCPT, reply))
        else:
            self._shut(Evidence(Stage.RCPT, reply, Fault.BAD_REPLY))

    def _on_data(self, reply: ServerReply) -> None:
        transaction = self._current()
        if reply.is_refusal:
            transaction.decide_open(Evidence(Stage.DATA, reply))
            self._end_transaction()
        elif reply.code != 354 or not transaction.is_sender_accepted:
            # A server that takes data without a sender is out of step with us.
            self._shut(Evidence(Stage.DATA, reply, Fault.BAD_REPLY))
        elif transaction.accepted:
            self._want_body(transaction)
        else:
            # RFC 2920 §3.1: everybody was refused, yet it waits for data; it gets none.
            self._put(Stage.DATA, self._on_empty_final, b".\r\n")

    def _want_body(self, transaction: Transaction) -> None:
        self._phase = _Phase.BODY
        self._stuffer = DotStuffer()
        self._events.append(BodyWanted(transaction.accepted_addresses()))

    def _on_empty_final(self, reply: ServerReply) -> None:
        self._end_transaction()

    def _on_chunk(self, reply: ServerReply) -> None:
        transaction = self._transaction
        if transaction is None or reply.is_positive or transaction.chunk_refusal is not None:
            return
        if not reply.is_refusal:
            self._shut(Evidence(self.stage, reply, Fault.BAD_REPLY))
            return
        transaction.chunk_refusal = reply
        if not self._final_sent:
            # RFC 3030 §2: the message has failed. Chunks on their way are refused too, and those replies passed over.
            transaction.decide_open(Evidence(Stage.BODY, reply))
            self._pending = deque((stage, self._on_late_chunk) for stage, _ in self._pending)
            self._end_transaction()

    def _on_late_chunk(self, reply: ServerReply) -> None:
        """The answer to a chunk of a message that has failed."""

    def _on_final(self, reply: ServerReply) -> None:
        self._decide_final(self._current().open, reply)
        self._end_transaction()
        self._needs_reset = False

    def _on_recipient_final(self, index: int, reply: ServerReply) -> None:
        self._decide_final([index], reply)
        if not self._pending:
            self._end_transaction()
            self._needs_reset = False

    def _decide_final(self, indices: list[int], reply: ServerReply) -> None:
        transaction = self._current()
        refusal = transaction.chunk_refusal
        if refusal is not None and reply.is_refusal:
            evidence = Evidence(Stage.BODY, refusal)
        elif reply.is_refusal or (reply.is_positive and refusal is None):
            evidence = Evidence(Stage.FINAL, reply)
        else:
            # Neither yes nor no; or yes to a message of which a part was refused.
            evidence = Evidence(Stage.FINAL, reply, Fault.BAD_REPLY)
        for index in indices:
            transaction.decide(index, evidence)

    # -- ending

    def _current(self) -> Transaction:
        assert self._transaction is not None, "a transaction's reply without a transaction"
        return self._transaction

    def _end_transaction(self) -> None:
        transaction, self._transaction = self._transaction, None
        self._unsent.clear()
        if transaction is not None:
            self._phase = _Phase.READY
            self._events.append(TransactionEnded(transaction.results()))

    def _shut(self, evidence: Evidence | None) -> None:
        """The session is over. What was not answered after the end of the message stays unknown."""
        if self._phase is _Phase.CLOSED:
            return
        if self._transaction is not None and evidence is not None:
            self._transaction.decide_open(evidence)
            self._end_transaction()
        self._phase = _Phase.CLOSED
        self._pending.clear()
        self._unsent.clear()
        self._secrets.clear()
        self._events.append(SessionEnded(evidence))
