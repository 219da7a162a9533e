"""What comes of verifying one DKIM signature, in the words of RFC 8601 §2.7.1."""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Status(StrEnum):
    """Results for one signature. `none`, of a message without any, is the caller's to say."""

    PASS = "pass"
    FAIL = "fail"
    NEUTRAL = "neutral"
    TEMPERROR = "temperror"
    PERMERROR = "permerror"
    POLICY = "policy"


class Reason(StrEnum):
    """Why a signature has its status; each belongs to one status."""

    VERIFIED = "verified"
    BODY_HASH = "body_hash"
    """The body is not the one that was signed."""
    SIGNATURE = "signature"
    """The header is not the one that was signed, or the key is another."""
    SYNTAX = "syntax"
    """The field cannot be read, or contradicts itself."""
    UNSUPPORTED = "unsupported"
    """Version, algorithm, canonicalisation or query method are unknown (RFC 6376 §3.5, §6.1.1)."""
    MALFORMED_MESSAGE = "malformed_message"
    """The message's header is no list of fields."""
    MISSING_TAG = "missing_tag"
    FROM_UNSIGNED = "from_unsigned"
    DOMAIN_MISMATCH = "domain_mismatch"
    """`i=` lies outside of `d=`, or below it where the key's `t=s` forbids that."""
    EXPIRED = "expired"
    FUTURE = "future"
    """It says that it is yet to be made (RFC 6376 §3.5, t=)."""
    HISTORIC_ALGORITHM = "historic_algorithm"
    """rsa-sha1 has permanently failed (RFC 8301 §3.1)."""
    BODY_LENGTH = "body_length"
    """`l=` counts more octets than there are (RFC 6376 §3.5)."""
    NO_KEY = "no_key"
    KEY_SYNTAX = "key_syntax"
    KEY_REVOKED = "key_revoked"
    KEY_AMBIGUOUS = "key_ambiguous"
    """Several key records at one selector (RFC 6376 §3.6.2.2)."""
    KEY_MISMATCH = "key_mismatch"
    """The key is not for this algorithm, hash or service."""
    DNS = "dns"
    WEAK_KEY = "weak_key"
    """RSA below 1024 bits (RFC 8301 §3.2)."""
    KEY_TOO_LARGE = "key_too_large"
    UNSIGNED_TAIL = "unsigned_tail"
    """All is right but `l=` leaves out the end of the body, which anybody may have written (RFC 6376 §8.2)."""

    @property
    def status(self) -> Status:
        return _STATUS.get(self, Status.PERMERROR)


_STATUS: Final = MappingProxyType(
    {
        Reason.VERIFIED: Status.PASS,
        Reason.BODY_HASH: Status.FAIL,
        Reason.SIGNATURE: Status.FAIL,
        Reason.SYNTAX: Status.NEUTRAL,
        Reason.UNSUPPORTED: Status.NEUTRAL,
        Reason.MALFORMED_MESSAGE: Status.NEUTRAL,
        Reason.DNS: Status.TEMPERROR,
        Reason.WEAK_KEY: Status.POLICY,
        Reason.KEY_TOO_LARGE: Status.POLICY,
        Reason.UNSIGNED_TAIL: Status.POLICY,
    }
)
"""The others are `permerror`."""


class DkimError(Exception):
    """Ends the verification of one signature, with its reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SignatureResult:
    """The result for one signature. What could not be read of it is empty or None; texts come from the sender."""

    reason: Reason
    domain: str = ""
    """`d=`, lower case, ASCII: the domain that answers for the message when `status` is `pass`."""
    selector: str = ""
    identity: str = ""
    """`i=`, decoded; `@` and the domain when the signature has none."""
    algorithm: str = ""
    signature_start: str = ""
    """The first characters of `b=`, that tell signatures apart (RFC 6008)."""
    signed_fields: tuple[str, ...] = ()
    """`h=`, lower case."""
    signed_at: int | None = None
    expires_at: int | None = None
    """Seconds since 1970."""
    body_length: int | None = None
    """`l=`, where the signature has one."""
    key_bits: int | None = None
    testing: bool = False
    """The key says `t=y`: to be treated as if unsigned (RFC 6376 §3.6.1)."""
    strict_identity: bool = False
    """The key says `t=s`: `i=` has the very domain of `d=`."""

    @property
    def status(self) -> Status:
        return self.reason.status

    @property
    def expired(self) -> bool:
        return self.reason is Reason.EXPIRED

    @property
    def revoked(self) -> bool:
        return self.reason is Reason.KEY_REVOKED
