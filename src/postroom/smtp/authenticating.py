"""The part of a receiving session that knows who the client is: TLS as a fact, and AUTH (RFC 4954, rules A2 and A4)."""

from postroom.sasl import Proof
from postroom.smtp import replies
from postroom.smtp.channel import AUTH_LINE_LIMIT, Channel, SessionStateError, Waiting
from postroom.smtp.config import ServerConfig
from postroom.smtp.events import CredentialsOffered, ProofOffered
from postroom.smtp.replies import Reply
from postroom.smtp.sasl import MECHANISMS, Credentials, Exchange, ScramExchange


class AuthenticatingChannel(Channel):
    """A channel whose client may sign in. A session derives from it."""

    __slots__ = (
        "_account",
        "_auth_in_clear",
        "_binding",
        "_encrypted",
        "_exchange",
        "_needs_auth",
        "_proposes_sender",
        "_proven",
    )

    def __init__(self, config: ServerConfig, *, encrypted: bool, auth_in_clear: bool, binding: bytes | None) -> None:
        super().__init__(config)
        self._encrypted = encrypted
        self._auth_in_clear = auth_in_clear
        self._binding = binding
        self._exchange: Exchange | ScramExchange | None = None
        self._proven: object = None
        self._forget_account()

    def _forget_account(self) -> None:
        self._account: object = None
        self._needs_auth = self._config.needs_auth
        self._proposes_sender = self._config.propose_sender

    @property
    def _offers_auth(self) -> bool:
        return self._config.serves_auth and (self._encrypted or self._auth_in_clear)

    @property
    def _mechanisms(self) -> tuple[str, ...]:
        """Those that AUTH takes as the session stands."""
        if not self._offers_auth:
            return ()
        scram = self._config.scram
        return MECHANISMS if scram is None else (*MECHANISMS, *scram.mechanisms(self._binding))

    @property
    def encrypted(self) -> bool:
        """Whether TLS is active."""
        return self._encrypted

    @property
    def account(self) -> object:
        """What `accept_credentials` or `accept_proof` was given; `None` without AUTH."""
        return self._account

    def accept_credentials(self, account: object) -> None:
        """Answer `CredentialsOffered`: `account`, which must not be `None`, is signed in."""
        self._expect(Waiting.FOR_CREDENTIALS)
        self._sign_in(account)

    def accept_proof(self, account: object, signature: bytes) -> None:
        """Answer `ProofOffered`: `account`, which must not be `None`, will be signed in when the client has seen the
        signature and has no objection (RFC 5802 §5).
        """
        self._expect(Waiting.FOR_CREDENTIALS)
        exchange = self._exchange
        if not isinstance(exchange, ScramExchange):
            raise SessionStateError("no proof was offered")
        self._proven = account
        self._say(exchange.accept(signature))

    def reject_credentials(self, reply: Reply = replies.AUTH_FAILED) -> None:
        """Answer `CredentialsOffered` or `ProofOffered`: not signed in. A 421 ends the session."""
        self._expect(Waiting.FOR_CREDENTIALS)
        self._end_exchange()
        self._decline(reply)
        # Guessing costs us, whoever is at fault.
        self._unproductive = not self.is_closed

    def _sign_in(self, account: object) -> None:
        self._account = account
        self._needs_auth = False
        self._proposes_sender = True  # who may use which sender is the driver's to say (A3)
        self._say(replies.AUTHENTICATED)

    def _begin_authentication(self, argument: bytes) -> CredentialsOffered | ProofOffered | None:
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
        elif name not in self._mechanisms:
            refusal = replies.UNKNOWN_MECHANISM
        if refusal is not None:
            self._decline(refusal)
            return None
        scram = self._config.scram
        if name in MECHANISMS or scram is None:
            self._exchange = Exchange(name)
        else:
            self._exchange = ScramExchange(name, scram, self._binding)
        self._line_limit = AUTH_LINE_LIMIT
        return self._take_step(self._exchange.start(initial.strip(b" \t")))

    def _go_on_authenticating(self, line: bytes) -> CredentialsOffered | ProofOffered | None:
        return self._take_step(self._exchange.respond(line)) if self._exchange is not None else None

    def _take_step(self, step: Reply | Credentials | Proof) -> CredentialsOffered | ProofOffered | None:
        if isinstance(step, Proof):
            self._waiting = Waiting.FOR_CREDENTIALS
            return ProofOffered(step)  # and the exchange goes on when that is decided
        if isinstance(step, Reply) and not step.is_failure and step is not replies.AUTHENTICATED:
            self._say(step)
            return None
        proven = self._proven
        self._end_exchange()
        if isinstance(step, Credentials):
            self._waiting = Waiting.FOR_CREDENTIALS
            return CredentialsOffered(step)
        if step.is_failure:
            self._decline(step)
        else:
            self._sign_in(proven)
        return None

    def _end_exchange(self) -> None:
        self._exchange = None
        self._proven = None
        self._line_limit = self._command_limit

    def _drop(self) -> None:
        self._end_exchange()

    def _refuse_long_line(self) -> None:
        self._end_exchange()
        super()._refuse_long_line()
