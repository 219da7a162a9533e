"""The part of a receiving session that knows who the client is: TLS as a fact, and AUTH (RFC 4954, rules A2 and A4)."""

from postroom.smtp import replies
from postroom.smtp.channel import AUTH_LINE_LIMIT, Channel, Waiting
from postroom.smtp.config import ServerConfig
from postroom.smtp.events import CredentialsOffered
from postroom.smtp.replies import Reply
from postroom.smtp.sasl import MECHANISMS, Credentials, Exchange


class AuthenticatingChannel(Channel):
    """A channel whose client may sign in. A session derives from it."""

    __slots__ = ("_account", "_auth_in_clear", "_encrypted", "_exchange", "_needs_auth", "_proposes_sender")

    def __init__(self, config: ServerConfig, *, encrypted: bool, auth_in_clear: bool) -> None:
        super().__init__(config)
        self._encrypted = encrypted
        self._auth_in_clear = auth_in_clear
        self._exchange: Exchange | None = None
        self._forget_account()

    def _forget_account(self) -> None:
        self._account: object = None
        self._needs_auth = self._config.needs_auth
        self._proposes_sender = self._config.propose_sender

    @property
    def _offers_auth(self) -> bool:
        return self._config.serves_auth and (self._encrypted or self._auth_in_clear)

    @property
    def encrypted(self) -> bool:
        """Whether TLS is active."""
        return self._encrypted

    @property
    def account(self) -> object:
        """What `accept_credentials` was given; `None` without AUTH."""
        return self._account

    def accept_credentials(self, account: object) -> None:
        """Answer `CredentialsOffered`: `account`, which must not be `None`, is signed in."""
        self._expect(Waiting.FOR_CREDENTIALS)
        self._account = account
        self._needs_auth = False
        self._proposes_sender = True  # who may use which sender is the driver's to say (A3)
        self._say(replies.AUTHENTICATED)

    def reject_credentials(self, reply: Reply = replies.AUTH_FAILED) -> None:
        """Answer `CredentialsOffered`: not signed in. A 421 ends the session."""
        self._expect(Waiting.FOR_CREDENTIALS)
        self._decline(reply)
        # Guessing costs us, whoever is at fault.
        self._unproductive = not self.is_closed

    def _begin_authentication(self, argument: bytes) -> CredentialsOffered | None:
        mechanism, _, initial = argument.partition(b" ")
        name = mechanism.decode("ascii", "replace").upper()
        refusal: Reply | None = None
        if not self._config.serves_auth:
            refusal = replies.NOT_IMPLEMENTED
        elif self._account is not None:
            refusal = replies.ALREADY_AUTHENTICATED
        elif not self._offers_auth:
            refusal = replies.AUTH_NEEDS_TLS
        elif not mechanism:
            refusal = replies.SYNTAX_AUTH
        elif name not in MECHANISMS:
            refusal = replies.UNKNOWN_MECHANISM
        if refusal is not None:
            self._decline(refusal)
            return None
        self._exchange = Exchange(name)
        self._line_limit = AUTH_LINE_LIMIT
        return self._take_step(self._exchange.start(initial.strip(b" \t")))

    def _go_on_authenticating(self, line: bytes) -> CredentialsOffered | None:
        return self._take_step(self._exchange.respond(line)) if self._exchange is not None else None

    def _take_step(self, step: Reply | Credentials) -> CredentialsOffered | None:
        if isinstance(step, Reply) and not step.is_failure:
            self._say(step)
            return None
        self._end_exchange()
        if isinstance(step, Reply):
            self._decline(step)
            return None
        self._waiting = Waiting.FOR_CREDENTIALS
        return CredentialsOffered(step)

    def _end_exchange(self) -> None:
        self._exchange = None
        self._line_limit = self._command_limit

    def _drop(self) -> None:
        self._end_exchange()

    def _refuse_long_line(self) -> None:
        self._end_exchange()
        super()._refuse_long_line()
