"""The receiving side of SMTP as a sans-I/O state machine: bytes in, events out, replies as bytes (RFC 5321, RFC 2920).

The driver's loop is::

    session.receive(data)
    while (event := session.next_event()) is not None:
        ...                                 # answer events that ask for a decision
    transport.write(session.take_output())

A session stops at an event that needs a decision: `next_event` returns `None` until the matching answer is given, and
input that comes meanwhile waits in order. Everything the session holds is in `held`, so that the driver can stop
reading.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from postroom.smtp import replies
from postroom.smtp.address import Address, AddressSyntaxError, parse_path
from postroom.smtp.authenticating import AuthenticatingChannel
from postroom.smtp.channel import COMMAND_LINE_LIMIT, SessionStateError, Waiting
from postroom.smtp.chunks import read_bdat
from postroom.smtp.config import ServerConfig, ehlo_lines
from postroom.smtp.data import BareLineEndingError, ChunkReceiver, DataReceiver, count_received
from postroom.smtp.events import Event, MessageReceived, RecipientProposed, SenderProposed, Signal
from postroom.smtp.machine import COMMANDS, Profile, State, Step, verbs
from postroom.smtp.params import (
    NO_MAIL_PARAMETERS,
    NO_RCPT_PARAMETERS,
    Body,
    MailParameters,
    ParameterError,
    RcptParameters,
    mail_parameters,
    rcpt_parameters,
)
from postroom.smtp.replies import Reply

__all__ = ["COMMAND_LINE_LIMIT", "ServerConfig", "ServerSession", "SessionStateError"]

# RFC 5321 §6.3 asks for at least 100 before assuming a loop; rule A6 says 50.
MAX_RECEIVED: Final = 50
# A message over the size limit is read to its end so that the client sees the reply, but not without end.
_DISCARD_FACTOR: Final = 8
# Recipients over the cap in one session, as a multiple of the cap, before they count as unproductive.
_SURPLUS_FACTOR: Final = 10
_MAX_HELO: Final = 255
_SPACE: Final = b" \t"


class ServerSession(AuthenticatingChannel):
    """One connection's protocol state. Never raises on what the client sends.

    `encrypted`: the connection began with TLS, to which `binding` binds if there is one (tls-server-end-point).
    `auth_in_clear`: this client may use AUTH without TLS (D1). The client of an LMTP listener is one that the driver
    lets in; here it is taken as it comes.
    """

    __slots__ = (
        "_chunk_reply",
        "_chunks",
        "_closed_reported",
        "_commands",
        "_esmtp",
        "_helo",
        "_is_lmtp",
        "_message_size",
        "_parameters",
        "_proposed",
        "_proposed_parameters",
        "_receiver",
        "_recipient_parameters",
        "_recipients",
        "_sender",
        "_state",
        "_surplus",
    )

    def __init__(
        self,
        config: ServerConfig,
        *,
        encrypted: bool = False,
        auth_in_clear: bool = False,
        binding: bytes | None = None,
    ) -> None:
        super().__init__(config, encrypted=encrypted, auth_in_clear=auth_in_clear, binding=binding)
        self._commands = _COMPILED[config.profile]
        self._is_lmtp = config.profile is Profile.LMTP
        self._state = State.CONNECTED
        self._closed_reported = False
        self._helo = ""
        self._esmtp = False
        self._receiver: DataReceiver | ChunkReceiver | None = None
        self._chunks: ChunkReceiver | None = None
        self._chunk_reply = replies.CHUNK_OK
        self._message_size = 0
        self._proposed: Address | None = None
        self._proposed_parameters = NO_RCPT_PARAMETERS
        self._sender: Address | None = None
        self._parameters = NO_MAIL_PARAMETERS
        self._recipients: list[tuple[Address, object]] = []
        self._recipient_parameters: list[RcptParameters] = []
        self._surplus = 0
        self._say(replies.banner(config.hostname, config.banner))

    # -- what the driver may look at

    @property
    def state(self) -> State:
        """Where the session stands; `RCPT` while data comes in after DATA."""
        return self._state

    @property
    def helo(self) -> str:
        """The name the client claims; empty before it did."""
        return self._helo

    @property
    def esmtp(self) -> bool:
        """Whether the client said EHLO."""
        return self._esmtp

    @property
    def sender(self) -> Address | None:
        """The reverse-path of the transaction; `None` for the null sender, or when there is no transaction."""
        return self._sender

    @property
    def parameters(self) -> MailParameters:
        """What MAIL of the transaction declared."""
        return self._parameters

    @property
    def in_data(self) -> bool:
        """Whether message data is being received; between the chunks of a message, too."""
        return self._receiver is not None or self._chunks is not None

    @property
    def is_idle(self) -> bool:
        """Whether the session waits for the client's next command, and has no part of a message."""
        return self._waiting is Waiting.FOR_INPUT and self._receiver is None and self._chunks is None

    @property
    def held(self) -> int:
        """Octets held: unread input, and the message being received or decided about."""
        receiver = self._receiver
        if receiver is None:
            receiver = self._chunks
        collected = receiver.held if receiver is not None else self._message_size
        return len(self._input) - self._position + collected

    # -- events

    def next_event(self) -> Event | None:
        """Go on with the input up to the next event; `None` when more input, or an answer, is needed first."""
        while True:
            if self._unproductive:
                self._unproductive = False
                return Signal.UNPRODUCTIVE
            if self._waiting is not Waiting.FOR_INPUT:
                if self._waiting is Waiting.CLOSED and not self._closed_reported:
                    self._closed_reported = True
                    return Signal.CLOSED
                return None
            if self._receiver is not None:
                if self._position == len(self._input):
                    return None
                event = self._continue_data(self._receiver)
            else:
                line = self._next_line()
                if line is None:
                    if self._unproductive or self.is_closed:
                        continue
                    return None
                event = self._dispatch(line)
            if event is not None:
                return event

    # -- answers of the driver

    def accept_sender(self) -> None:
        """Answer `SenderProposed`: the transaction begins."""
        self._expect(Waiting.FOR_SENDER)
        self._state = State.MAIL
        self._say(replies.SENDER_OK)

    def reject_sender(self, reply: Reply) -> None:
        """Answer `SenderProposed`: there is no transaction. A 421 ends the session."""
        self._expect(Waiting.FOR_SENDER)
        self._end_transaction()
        self._decline(reply)

    def accept_recipient(self, value: object) -> None:
        """Answer `RecipientProposed`: the recipient is taken; `value` comes back in `MessageReceived`."""
        self._expect(Waiting.FOR_RECIPIENT)
        if self._proposed is not None:
            self._recipients.append((self._proposed, value))
            if self._config.dsn:
                self._recipient_parameters.append(self._proposed_parameters)
        self._proposed = None
        self._state = State.RCPT
        self._say(replies.RECIPIENT_OK)

    def reject_recipient(self, reply: Reply) -> None:
        """Answer `RecipientProposed`: the recipient is refused; earlier ones stay. A 421 ends the session."""
        self._expect(Waiting.FOR_RECIPIENT)
        self._proposed = None
        self._decline(reply)

    def finish_message(self, reply: Reply) -> None:
        """Answer `MessageReceived` with the final reply; the transaction is over. A 421 ends the session.

        Over LMTP the reply is given once for each recipient.
        """
        self._expect(Waiting.FOR_MESSAGE)
        self._finish(reply)

    def finish_recipients(self, answers: Sequence[Reply]) -> None:
        """Answer `MessageReceived` over LMTP: one reply for each accepted recipient, in order (RFC 2033 §4.2).

        Raises `ValueError` for another number of replies, `SessionStateError` on another profile.
        """
        if not self._is_lmtp:
            raise SessionStateError("only LMTP answers for each recipient")
        if len(answers) != len(self._recipients):
            raise ValueError("one reply for each recipient")
        self._expect(Waiting.FOR_MESSAGE)
        self._answer_recipients(answers)

    def _finish(self, reply: Reply) -> None:
        """End the transaction after its final dot or last chunk."""
        if self._is_lmtp:
            self._answer_recipients([reply] * len(self._recipients))
            return
        self._end_transaction()
        if reply.is_failure:
            self._decline(reply)
        else:
            self._say(reply)

    def _answer_recipients(self, answers: Sequence[Reply]) -> None:
        self._end_transaction()
        for reply in answers:
            self._say(reply)
        self._unproductive = all(reply.is_permanent for reply in answers)
        if any(reply.code == 421 for reply in answers):
            self._shut()

    def start_tls(self) -> None:
        """Answer `TLS_REQUESTED`: the output now says 220. Call `tls_started` once the handshake is done."""
        self._expect(Waiting.FOR_TLS_ANSWER)
        self._waiting = Waiting.FOR_HANDSHAKE
        self._say(replies.READY_FOR_TLS)

    def refuse_tls(self, reply: Reply = replies.TLS_UNAVAILABLE) -> None:
        """Answer `TLS_REQUESTED`: go on in clear text."""
        self._expect(Waiting.FOR_TLS_ANSWER)
        self._decline(reply)

    def tls_started(self, binding: bytes | None = None) -> None:
        """The handshake is done: everything learned in clear text is forgotten (RFC 3207 §4.2). `binding`: what binds
        to the channel, if anything does.
        """
        self._expect(Waiting.FOR_HANDSHAKE)
        self._encrypted = True
        self._binding = binding
        self._forget_account()
        self._helo = ""
        self._esmtp = False
        self._end_transaction()
        self._state = State.CONNECTED

    def _drop(self) -> None:
        super()._drop()
        self._receiver = None
        self._end_transaction()

    # -- input

    def _dispatch(self, line: bytes) -> Event | None:
        if self._exchange is not None:
            return self._go_on_authenticating(line)
        verb, _, argument = line.partition(b" ")
        row = self._commands.get(verb.upper())
        if row is None:
            self._decline(replies.UNKNOWN_COMMAND)
            return None
        state = self._state
        if state is State.CONNECTED and not self._config.helo_required:
            state = State.GREETED
        cell = row[state]
        if isinstance(cell, Reply):
            self._decline(cell)
            return None
        return cell(self, argument.strip(_SPACE))

    def _continue_data(self, receiver: DataReceiver | ChunkReceiver) -> Event | None:
        chunk = self._input[self._position :] if self._position else self._input
        self._input, self._position = b"", 0
        try:
            rest = receiver.feed(chunk)
        except BareLineEndingError:
            self.close(replies.BARE_LINE_ENDING)
            return None
        if receiver.size > self._config.max_message_size * _DISCARD_FACTOR:
            self.close(replies.TOO_LARGE)
            return None
        if rest is None:
            return None
        self._input = rest
        self._receiver = None
        if isinstance(receiver, ChunkReceiver):
            return self._end_chunk(receiver)
        if receiver.is_oversize:
            self._finish(replies.TOO_LARGE)
            return None
        return self._complete(receiver.take())

    def _end_chunk(self, receiver: ChunkReceiver) -> Event | None:
        if receiver is not self._chunks:
            # It was refused before it came; nothing of it was kept.
            self._decline(self._chunk_reply)
        elif receiver.is_oversize:
            # RFC 3030 §2: a refused chunk fails the message, and what is left of it is passed over.
            if receiver.is_last:
                self._finish(replies.TOO_LARGE)
            else:
                self._end_transaction()
                self._decline(replies.TOO_LARGE)
        elif receiver.is_last:
            self._chunks = None
            return self._complete(receiver.take())
        else:
            self._say(replies.CHUNK_OK)
        return None

    def _complete(self, data: bytes) -> Event | None:
        if count_received(data) > MAX_RECEIVED:
            self._finish(replies.MAIL_LOOP)
            return None
        self._message_size = len(data)
        self._waiting = Waiting.FOR_MESSAGE
        return MessageReceived(
            self._sender, self._parameters, tuple(self._recipients), data, tuple(self._recipient_parameters)
        )

    def _end_transaction(self) -> None:
        self._sender = None
        self._parameters = NO_MAIL_PARAMETERS
        self._recipients.clear()
        self._recipient_parameters.clear()
        self._proposed = None
        self._chunks = None
        self._message_size = 0
        if self._state is not State.CONNECTED:
            self._state = State.GREETED

    # -- commands; each gets its argument without surrounding blanks

    def _helo_command(self, argument: bytes, esmtp: bool) -> bool:
        if not argument or len(argument) > _MAX_HELO or any(not 0x21 <= octet <= 0x7E for octet in argument):
            self._decline(replies.SYNTAX_NAME)
            return False
        # Greeting again and again moves no mail; the first one does its work.
        self._unproductive = self._state is not State.CONNECTED
        self._helo = argument.decode("ascii")
        self._esmtp = esmtp
        self._state = State.GREETED
        self._end_transaction()
        return True

    def _on_helo(self, argument: bytes) -> None:
        if self._helo_command(argument, esmtp=False):
            self._say(Reply(250, None, self._config.hostname))

    def _on_ehlo(self, argument: bytes) -> None:
        if self._helo_command(argument, esmtp=True):
            lines = ehlo_lines(self._config, encrypted=self._encrypted, mechanisms=self._mechanisms)
            # RFC 2034 §3: no enhanced code in the answer to EHLO.
            self._say(Reply(250, None, "\n".join([self._config.hostname, *lines])))

    def _on_auth(self, argument: bytes) -> Event | None:
        if self._state is State.CONNECTED:
            self._decline(replies.SEND_HELO)  # even where MAIL does not ask for a greeting (A2)
            return None
        return self._begin_authentication(argument)

    def _on_mail(self, argument: bytes) -> Event | None:
        refusal = replies.AUTH_REQUIRED if self._needs_auth else self._read_mail(argument)
        if refusal is not None:
            self._decline(refusal)
            return None
        if self._proposes_sender:
            self._waiting = Waiting.FOR_SENDER
            return SenderProposed(self._sender, self._parameters)
        self._state = State.MAIL
        self._say(replies.SENDER_OK)
        return None

    def _read_mail(self, argument: bytes) -> Reply | None:
        """Take sender and parameters, or say what is wrong with them."""
        config = self._config
        if argument[:5].upper() != b"FROM:":
            return replies.SYNTAX_SENDER
        try:
            path = parse_path(argument[5:].lstrip(_SPACE))
            parameters = mail_parameters(path.parameters, dsn=config.dsn)
        except AddressSyntaxError:
            return replies.SYNTAX_ADDRESS
        except ParameterError:
            return replies.SYNTAX_PARAMETERS
        if path.international and not parameters.smtputf8:
            return replies.SYNTAX_ADDRESS
        if parameters.size is not None and parameters.size > config.max_message_size:
            return replies.TOO_LARGE
        if parameters.requiretls and not (config.requiretls and self._encrypted):
            return replies.REQUIRETLS_UNAVAILABLE
        self._sender = path.address
        self._parameters = parameters
        return None

    def _on_rcpt(self, argument: bytes) -> Event | None:
        config = self._config
        if argument[:3].upper() != b"TO:":
            self._decline(replies.SYNTAX_RECIPIENT)
            return None
        try:
            path = parse_path(
                argument[3:].lstrip(_SPACE), bare_postmaster=config.postmaster_domain or config.hostname.lower()
            )
            parameters = rcpt_parameters(path.parameters, dsn=config.dsn)
        except AddressSyntaxError:
            self._decline(replies.SYNTAX_ADDRESS)
            return None
        except ParameterError:
            self._decline(replies.SYNTAX_PARAMETERS)
            return None
        if path.address is None or (path.international and not self._parameters.smtputf8):
            self._decline(replies.SYNTAX_ADDRESS)
            return None
        if len(self._recipients) >= config.max_recipients:
            # A long list is no offence: its sender delivers in parts. One without end is.
            self._surplus += 1
            self._decline(replies.TOO_MANY_RECIPIENTS)
            self._unproductive = self._surplus > config.max_recipients * _SURPLUS_FACTOR
            return None
        self._proposed = path.address
        self._proposed_parameters = parameters
        self._waiting = Waiting.FOR_RECIPIENT
        return RecipientProposed(path.address, parameters)

    def _on_data(self, argument: bytes) -> None:
        if argument:
            return self._decline(replies.NO_PARAMETERS)
        if self._parameters.body is Body.BINARY:
            return self._decline(replies.NEED_BDAT)  # RFC 3030 §3
        self._receiver = DataReceiver(self._config.max_message_size)
        return self._say(replies.START_DATA)

    def _on_bdat(self, argument: bytes) -> Event | None:
        chunk = read_bdat(argument)
        if chunk is None or chunk.size > self._config.max_message_size * _DISCARD_FACTOR:
            # Without knowing where the data ends, or without taking it all, no command behind it can be told from it.
            self.close(replies.SYNTAX_CHUNK if chunk is None else replies.TOO_LARGE)
            return None
        in_transaction = self._state in (State.RCPT, State.CHUNKS)
        receiver = ChunkReceiver(self._config.max_message_size)
        if in_transaction:
            receiver = self._chunks = self._chunks or receiver
            self._state = State.CHUNKS
        else:
            self._chunk_reply = replies.NEED_RCPT
        receiver.begin(chunk.size, last=chunk.is_last, wanted=in_transaction)
        if chunk.size:
            self._receiver = receiver
            return None
        event = self._end_chunk(receiver)
        self._unproductive |= event is None  # an empty chunk moves nothing
        return event

    def _on_rset(self, argument: bytes) -> None:
        if argument:
            return self._decline(replies.NO_PARAMETERS)
        self._end_transaction()
        return self._say_unproductive(replies.OK)

    def _on_noop(self, argument: bytes) -> None:
        self._say_unproductive(replies.OK)

    def _on_vrfy(self, argument: bytes) -> None:
        self._say_unproductive(replies.CANNOT_VERIFY)

    def _on_help(self, argument: bytes) -> None:
        self._say_unproductive(replies.help_text(verbs(self._config.profile, auth=self._config.serves_auth)))

    def _say_unproductive(self, reply: Reply) -> None:
        self._unproductive = True
        self._say(reply)

    def _on_quit(self, argument: bytes) -> None:
        if argument:
            return self._decline(replies.NO_PARAMETERS)
        return self.close(replies.BYE)

    def _on_starttls(self, argument: bytes) -> Event | None:
        if argument:
            self._decline(replies.NO_PARAMETERS)
        elif self._encrypted:
            self._decline(replies.TLS_ACTIVE)
        elif not self._config.tls_available:
            self._decline(replies.TLS_OFF)
        elif self._position != len(self._input):
            self.close(replies.PIPELINING_VIOLATED)
        else:
            self._waiting = Waiting.FOR_TLS_ANSWER
            return Signal.TLS_REQUESTED
        return None


_Handler = Callable[[ServerSession, bytes], Event | None]

_HANDLERS: Final[Mapping[Step, _Handler]] = {
    Step.HELO: ServerSession._on_helo,
    Step.EHLO: ServerSession._on_ehlo,
    Step.MAIL: ServerSession._on_mail,
    Step.RCPT: ServerSession._on_rcpt,
    Step.DATA: ServerSession._on_data,
    Step.RSET: ServerSession._on_rset,
    Step.NOOP: ServerSession._on_noop,
    Step.QUIT: ServerSession._on_quit,
    Step.VRFY: ServerSession._on_vrfy,
    Step.HELP: ServerSession._on_help,
    Step.STARTTLS: ServerSession._on_starttls,
    Step.AUTH: ServerSession._on_auth,
    Step.BDAT: ServerSession._on_bdat,
}

# The command tables with each step replaced by what carries it out, so that a command costs one lookup.
_COMPILED: Final[Mapping[Profile, Mapping[bytes, tuple[_Handler | Reply, ...]]]] = {
    profile: {
        verb: tuple(_HANDLERS[cell] if isinstance(cell, Step) else cell for cell in row) for verb, row in table.items()
    }
    for profile, table in COMMANDS.items()
}
