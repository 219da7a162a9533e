"""How the sessions of one listener behave, and what they offer in answer to EHLO."""

from dataclasses import dataclass

from postroom.sasl import Offer
from postroom.smtp.machine import Profile


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
    auth: bool = False
    """Whether AUTH is served (RFC 4954). LMTP has none whatever this says (A1)."""
    scram: Offer | None = None
    """What AUTH by SCRAM begins with (RFC 5802); without it there is none."""
    require_auth: bool = True
    """Whether MAIL needs AUTH first on the submission profile (A2); the others never ask for it."""
    propose_sender: bool = False
    """Whether MAIL is put to the driver (`SenderProposed`) without AUTH; with AUTH it always is (A3)."""
    dsn: bool = False
    """Whether delivery status notifications are offered (RFC 3461): who offers them must send them."""
    requiretls: bool = False
    """Whether REQUIRETLS is offered under TLS (RFC 8689): who offers it must insist on TLS onward."""

    @property
    def serves_auth(self) -> bool:
        """Whether this listener has AUTH at all."""
        return self.auth and self.profile is not Profile.LMTP

    @property
    def needs_auth(self) -> bool:
        """Whether MAIL is refused before AUTH."""
        return self.profile is Profile.SUBMISSION and self.require_auth


def ehlo_lines(config: ServerConfig, *, encrypted: bool, mechanisms: tuple[str, ...]) -> list[str]:
    """The extension lines of the answer to EHLO or LHLO, in order (A2).

    `mechanisms` are those that AUTH would accept as the session stands (D1).
    """
    if not config.advertise_extensions:
        return ["OK"]
    offered = {
        "PIPELINING": True,
        f"SIZE {config.max_message_size}": config.advertise_size,
        "8BITMIME": True,
        "SMTPUTF8": True,
        "CHUNKING": True,
        "BINARYMIME": True,
        "ENHANCEDSTATUSCODES": True,
        f"LIMITS RCPTMAX={config.max_recipients}": True,
        "DSN": config.dsn,
        # RFC 8689 §3: never in clear text.
        "REQUIRETLS": config.requiretls and encrypted,
        "STARTTLS": config.tls_available and not encrypted,
        f"AUTH {' '.join(mechanisms)}": bool(mechanisms),
        "HELP": True,
    }
    return [keyword for keyword, is_offered in offered.items() if is_offered]
