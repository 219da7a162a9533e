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

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.smtp import replies
from postroom.smtp.address import Address, AddressSyntaxError, parse_path
from postroom.smtp.data import BareLineEndingError, DataReceiver, count_received
from postroom.smtp.events import Event, MessageReceived, RecipientProposed, Signal
from postroom.smtp.machine import COMMANDS, Profile, State, Step, verbs
from postroom.smtp.params import MailParameters, ParameterError, check_rcpt_parameters, mail_parameters
from postroom.smtp.replies import Reply

# RFC 5321 §4.5.3.1.4, CRLF included.
COMMAND_LINE_LIMIT: Final = 512
# RFC 5321 §6.3 asks for at least 100 before assuming a loop; rule A6 says 50.
MAX_RECEIVED: Final = 50
# A message over the size limit is read to its end so that the client sees the reply, but not without end.
_DISCARD_FACTOR: Final = 8
# Recipients over the cap in one session, as a multiple of the cap, before they count as unproductive.
_SURPLUS_FACTOR: Final = 10
_MAX_HELO: Final = 255
_SPACE: Final = b" \t"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How a listener's sessions behave. `max_message_size` is in octets; `tls_available` whether STARTTLS can be had.

    `postmaster_domain` is what `<postmaster>` without a domain belongs to (D28), by default `hostname`.
    """

    hostname: str
    profile: Profile = Profile.MX
    banner: str = "ESMTP Postroom"
    max_message_size: int = 26_214_400
    max_recipients: int = 100
    tls_available: bool = False
    advertise_extensions: bool = True
    advertise_size: bool = True
    helo_required: bool = True
    postmaster_domain: str | None = None


class _Waiting(enum.Enum):
    """What the session waits for before it looks at further input."""

    FOR_INPUT = enum.auto()
    FOR_RECIPIENT = enum.auto()
    FOR_MESSAGE = enum.auto()
    FOR_TLS_ANSWER = enum.auto()
    FOR_HANDSHAKE = enum.auto()
    CLOSED = enum.auto()


class SessionStateError(RuntimeError):
    """The driver gave an answer that nothing asked for."""


class ServerSession:
    """One connection's protocol state. Never raises on what the client sends."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._commands = _COMPILED[config.profile]
        self._state = State.CONNECTED
        self._waiting = _Waiting.FOR_INPUT
        self._input = b""
        self._position = 0
        self._discarding_line = False
        self._output: list[bytes] = []
        self._output_size = 0
        self._unproductive = False
        self._closed_reported = False
        self._encrypted = False
        self._helo = ""
        self._esmtp = False
        self._receiver: DataReceiver | None = None
        self._message_size = 0
        self._proposed: Address | None = None
        self._sender: Address | None = None
        self._parameters = MailParameters()
        self._recipients: list[tuple[Address, object]] = []
        self._surplus = 0
        self._say(replies.banner(config.hostname, config.banner))

    # -- what the driver may look at

    @property
    def state(self) -> State:
        """Where the session stands; `RCPT` while data comes in."""
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
    def encrypted(self) -> bool:
        """Whether TLS is active."""
        return self._encrypted

    @property
    def sender(self) -> Address | None:
        """The reverse-path of the transaction; `None` for the null sender, or when there is no transaction."""
        return self._sender

    @property
    def in_data(self) -> bool:
        """Whether message data is being received."""
        return self._receiver is not None

    @property
    def is_idle(self) -> bool:
        """Whether the session waits for the client's next command."""
        return self._waiting is _Waiting.FOR_INPUT and self._receiver is None

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self._waiting is _Waiting.CLOSED

    @property
    def held(self) -> int:
        """Octets held: unread input, and the message being received or decided about."""
        collected = self._receiver.held if self._receiver is not None else self._message_size
        return len(self._input) - self._position + collected

    @property
    def backlog(self) -> int:
        """Octets of unread input."""
        return len(self._input) - self._position

    @property
    def output_size(self) -> int:
        """Octets waiting for `take_output`."""
        return self._output_size

    # -- bytes

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._waiting is _Waiting.CLOSED:
            return
        if self._position == len(self._input):
            self._input = data
        else:
            self._input = self._input[self._position :] + data
        self._position = 0
        if self._waiting in (_Waiting.FOR_TLS_ANSWER, _Waiting.FOR_HANDSHAKE):
            # Plain text behind STARTTLS would be taken as if it had come under TLS (A5, CVE-2011-0411).
            self.close(replies.PIPELINING_VIOLATED)

    def take_output(self) -> bytes:
        """The bytes to send, which are thereby forgotten here."""
        output = self._output[0] if len(self._output) == 1 else b"".join(self._output)
        self._output.clear()
        self._output_size = 0
        return output

    def next_event(self) -> Event | None:
        """Go on with the input up to the next event; `None` when more input, or an answer, is needed first."""
        while True:
            if self._unproductive:
                self._unproductive = False
                return Signal.UNPRODUCTIVE
            if self._waiting is not _Waiting.FOR_INPUT:
                if self._waiting is _Waiting.CLOSED and not self._closed_reported:
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

    def accept_recipient(self, value: object) -> None:
        """Answer `RecipientProposed`: the recipient is taken; `value` comes back in `MessageReceived`."""
        self._expect(_Waiting.FOR_RECIPIENT)
        if self._proposed is not None:
            self._recipients.append((self._proposed, value))
        self._proposed = None
        self._state = State.RCPT
        self._say(replies.RECIPIENT_OK)

    def reject_recipient(self, reply: Reply) -> None:
        """Answer `RecipientProposed`: the recipient is refused; earlier ones stay. A 421 ends the session."""
        self._expect(_Waiting.FOR_RECIPIENT)
        self._proposed = None
        self._decline(reply)

    def finish_message(self, reply: Reply) -> None:
        """Answer `MessageReceived` with the final reply; the transaction is over. A 421 ends the session."""
        self._expect(_Waiting.FOR_MESSAGE)
        self._end_transaction()
        if reply.is_failure:
            self._decline(reply)
        else:
            self._say(reply)

    def start_tls(self) -> None:
        """Answer `TLS_REQUESTED`: the output now says 220. Call `tls_started` once the handshake is done."""
        self._expect(_Waiting.FOR_TLS_ANSWER)
        self._waiting = _Waiting.FOR_HANDSHAKE
        self._say(replies.READY_FOR_TLS)

    def refuse_tls(self, reply: Reply = replies.TLS_UNAVAILABLE) -> None:
        """Answer `TLS_REQUESTED`: go on in clear text."""
        self._expect(_Waiting.FOR_TLS_ANSWER)
        self._decline(reply)

    def tls_started(self) -> None:
        """The handshake is done: everything learned in clear text is forgotten (RFC 3207 §4.2)."""
        self._expect(_Waiting.FOR_HANDSHAKE)
        self._encrypted = True
        self._helo = ""
        self._esmtp = False
        self._end_transaction()
        self._state = State.CONNECTED

    def close(self, reply: Reply) -> None:
        """End the session with `reply`, at any time; what was being received or decided is dropped."""
        if self._waiting is _Waiting.CLOSED:
            return
        self._waiting = _Waiting.CLOSED
        self._receiver = None
        self._input, self._position = b"", 0
        self._end_transaction()
        self._say(reply)

    def _expect(self, waiting: _Waiting) -> None:
        if self._waiting is not waiting:
            raise SessionStateError(f"not waiting {waiting.name.lower().replace('_', ' ')}")
        self._waiting = _Waiting.FOR_INPUT

    # -- output

    def _say(self, reply: Reply) -> None:
        wire = reply.wire if self._config.advertise_extensions else reply.bare
        self._output.append(wire)
        self._output_size += len(wire)

    def _decline(self, reply: Reply) -> None:
        """Say a refusal; one for good counts as unproductive, a temporary one may be our own fault."""
        if reply.code == 421:
            self.close(reply)
            return
        self._say(reply)
        self._unproductive = reply.is_permanent

    # -- input

    def _next_line(self) -> bytes | None:
        """The next command line without its CRLF, or `None`. Answers lines that are none."""
        if self._discarding_line:
            end = self._input.find(b"\r\n", self._position)
            if end < 0:
                # Only a CR may be of use when the rest of the line comes.
                self._position = len(self._input) - self._input.endswith(b"\r", self._position)
                return None
            self._position = end + 2
            self._discarding_line = False
            self._decline(replies.LINE_TOO_LONG)
            return None
        start = self._position
        end = self._input.find(b"\n", start, start + COMMAND_LINE_LIMIT)
        if end < 0:
            if len(self._input) - start >= COMMAND_LINE_LIMIT:
                self._discarding_line = True
                return self._next_line()
            return None
        if end == start or self._input[end - 1] != 0x0D:
            # Taking a bare LF for a line end, or skipping over it, both let a command hide inside another.
            self.close(replies.BARE_LINE_FEED)
            return None
        self._position = end + 1
        return self._input[start : end - 1]

    def _dispatch(self, line: bytes) -> Event | None:
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

    def _continue_data(self, receiver: DataReceiver) -> Event | None:
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
        if receiver.is_oversize:
            self._end_transaction()
            self._decline(replies.TOO_LARGE)
            return None
        data = receiver.take()
        if count_received(data) > MAX_RECEIVED:
            self._end_transaction()
            self._decline(replies.MAIL_LOOP)
            return None
        self._message_size = len(data)
        self._waiting = _Waiting.FOR_MESSAGE
        return MessageReceived(self._sender, self._parameters, tuple(self._recipients), data)

    def _end_transaction(self) -> None:
        self._sender = None
        self._parameters = MailParameters()
        self._recipients.clear()
        self._proposed = None
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
            # RFC 2034 §3: no enhanced code in the answer to EHLO.
            self._say(Reply(250, None, "\n".join([self._config.hostname, *self._extensions()])))

    def _extensions(self) -> list[str]:
        config = self._config
        if not config.advertise_extensions:
            return ["OK"]
        offered = {
            "PIPELINING": True,
            f"SIZE {config.max_message_size}": config.advertise_size,
            "8BITMIME": True,
            "SMTPUTF8": True,
            "ENHANCEDSTATUSCODES": True,
            "STARTTLS": config.tls_available and not self._encrypted,
            "HELP": True,
        }
        return [keyword for keyword, is_offered in offered.items() if is_offered]

    def _on_mail(self, argument: bytes) -> None:
        if argument[:5].upper() != b"FROM:":
            return self._decline(replies.SYNTAX_SENDER)
        try:
            path = parse_path(argument[5:].lstrip(_SPACE))
            parameters = mail_parameters(path.parameters)
        except AddressSyntaxError:
            return self._decline(replies.SYNTAX_ADDRESS)
        except ParameterError:
            return self._decline(replies.SYNTAX_PARAMETERS)
        if path.international and not parameters.smtputf8:
            return self._decline(replies.SYNTAX_ADDRESS)
        if parameters.size is not None and parameters.size > self._config.max_message_size:
            return self._decline(replies.TOO_LARGE)
        self._sender = path.address
        self._parameters = parameters
        self._state = State.MAIL
        return self._say(replies.SENDER_OK)

    def _on_rcpt(self, argument: bytes) -> Event | None:
        config = self._config
        if argument[:3].upper() != b"TO:":
            self._decline(replies.SYNTAX_RECIPIENT)
            return None
        try:
            path = parse_path(
                argument[3:].lstrip(_SPACE), bare_postmaster=config.postmaster_domain or config.hostname.lower()
            )
            check_rcpt_parameters(path.parameters)
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
        self._waiting = _Waiting.FOR_RECIPIENT
        return RecipientProposed(path.address)

    def _on_data(self, argument: bytes) -> None:
        if argument:
            return self._decline(replies.NO_PARAMETERS)
        self._receiver = DataReceiver(self._config.max_message_size)
        return self._say(replies.START_DATA)

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
        self._say_unproductive(replies.help_text(verbs(self._config.profile)))

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
            self._waiting = _Waiting.FOR_TLS_ANSWER
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
}

# The command tables with each step replaced by what carries it out, so that a command costs one lookup.
_COMPILED: Final[Mapping[Profile, Mapping[bytes, tuple[_Handler | Reply, ...]]]] = {
    profile: {
        verb: tuple(_HANDLERS[cell] if isinstance(cell, Step) else cell for cell in row) for verb, row in table.items()
    }
    for profile, table in COMMANDS.items()
}
