"""Forwarding under another envelope sender, so that SPF holds and bounces find back; and loops (mail-server A6).

The Sender Rewriting Scheme turns `local@domain` into `SRS0=hash=day=domain=local@forwarder`. A sender that another
forwarder rewrote becomes `SRS1=hash=that-forwarder=…@forwarder`, which keeps its length however often it is forwarded.
It has no field for the day, so ours stands behind the hash, in the field that everybody else takes for the hash. The
hash is 40 bits of an HMAC over lower-cased text, because relays may change the case of a local part on the way, and
over the forwarding domain, so that an address is good at the domain it was made for and at no other.
"""

import hmac
import re
from base64 import b32encode
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from postroom.mail.address import Address

MAX_LOCAL: Final = 64
"""Octets of a local part that every relay takes (RFC 5321 §4.5.3.1.1)."""
VALID_DAYS: Final = 21
"""How long a rewritten sender takes bounces: a retry schedule of five days on both ways, and room."""
MIN_KEY_BYTES: Final = 16
MAX_KEYS: Final = 8

MAX_HOP: Final = 10
MAX_RECEIVED: Final = 50

_DAYS: Final = 1024
_MAC_BYTES: Final = 5
_MAC_CHARS: Final = 8
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_SECONDS_OF_DAY: Final = 86_400

# ASCII: letters whose other case is outside of it are no letters here, such as the Kelvin sign.
_ANY_CASE: Final = re.IGNORECASE | re.ASCII
_FIRST: Final = re.compile(r"srs0[=+-](?s:.+)", _ANY_CASE)
_SECOND: Final = re.compile(r"srs1[=+-]([^=]++)=([^=]++)=([=+-](?s:.+))", _ANY_CASE)
_OUR_SECOND: Final = re.compile(r"srs1[=+-]([a-z2-7]{8})([a-z2-7]{2})=([^=]++)=([=+-](?s:.+))", _ANY_CASE)
_OUR_FIRST: Final = re.compile(r"srs0[=+-]([a-z2-7]{8})=([a-z2-7]{2})=([^=]++)=((?s:.+))", _ANY_CASE)
_TAGGED: Final = re.compile(r"srs[01][=+-]", _ANY_CASE)
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)*+")
_HOP: Final = re.compile(r"[0-9]{1,9}")


class SrsProblem(StrEnum):
    TOO_LONG = "too_long"
    """The rewritten local part would exceed the limit: use a return path that is looked up instead."""
    MALFORMED = "malformed"
    FORGED = "forged"
    EXPIRED = "expired"


class SrsError(ValueError):
    """A sender that cannot be rewritten, or a rewritten one that is not honoured: `550 5.1.1` for its bounce."""

    def __init__(self, problem: SrsProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class Rewriter:
    """Rewrites for one forwarding domain, in A-labels. `keys`: the first signs, all verify; each of 16 octets or
    more."""

    __slots__ = ("_domain", "_keys", "_max_local", "_valid_days")

    def __init__(
        self, domain: str, keys: Sequence[bytes], *, valid_days: int = VALID_DAYS, max_local: int = MAX_LOCAL
    ) -> None:
        if not 0 < len(keys) <= MAX_KEYS or any(len(key) < MIN_KEY_BYTES for key in keys):
            raise ValueError("from 1 to 8 keys of at least 16 octets are needed")
        if not 0 < valid_days < _DAYS - 1:
            raise ValueError("a rewritten sender is valid for 1 to 1022 days")
        self._domain = domain.lower()
        self._keys = tuple(keys)
        self._valid_days = valid_days
        self._max_local = max_local

    def rewrite(self, sender: Address | None, now: datetime) -> Address | None:
        """The envelope sender under which mail of `sender` is forwarded; the null sender (None) stays what it is.

        A sender within the forwarding domain is rewritten like any other. Raises SrsError.
        """
        if sender is None:
            return None
        if not sender.local or _DOMAIN.fullmatch(sender.domain) is None:
            raise SrsError(SrsProblem.MALFORMED)
        second = _SECOND.fullmatch(sender.local)
        if second is not None:
            # Whoever wrote this may have put anything there, such as an address literal, and bounces would go to it.
            if _DOMAIN.fullmatch(second[2]) is None:
                raise SrsError(SrsProblem.MALFORMED)
            local = self._second(second[2].lower(), second[3], now)
        elif _FIRST.fullmatch(sender.local) is not None:
            local = self._second(sender.domain.lower(), sender.local[4:], now)
        else:
            rest, today = f"{sender.domain.lower()}={sender.local}", _day(now)
            local = f"SRS0={self._mac(self._keys[0], 'SRS0', today, rest)}={_day_code(today)}={rest}"
        if len(local.encode("utf-8")) > self._max_local:
            raise SrsError(SrsProblem.TOO_LONG)
        return Address("", local, self._domain)

    def reverse(self, recipient: Address, now: datetime) -> Address | None:
        """Where a bounce to `recipient` goes on to; None when it is no rewritten address of this domain.

        Raises SrsError: for such an address that we did not make or that is too old, nothing may be sent.
        """
        if recipient.domain.lower() != self._domain or _TAGGED.match(recipient.local) is None:
            return None
        first = _OUR_FIRST.fullmatch(recipient.local)
        if first is not None:
            return self._reverse_first(first, now)
        second = _OUR_SECOND.fullmatch(recipient.local)
        if second is None:
            raise SrsError(SrsProblem.MALFORMED)
        mac, code, domain, rest = second.groups()
        self._check(mac, "SRS1", code, f"{domain}={rest}", now)
        return Address("", f"SRS0{rest}", domain)

    def _reverse_first(self, found: re.Match[str], now: datetime) -> Address:
        mac, code, domain, local = found.groups()
        self._check(mac, "SRS0", code, f"{domain}={local}", now)
        return Address("", local, domain)

    def _second(self, domain: str, rest: str, now: datetime) -> str:
        today, rest = _day(now), f"{domain}={rest}"
        return f"SRS1={self._mac(self._keys[0], 'SRS1', today, rest)}{_day_code(today)}={rest}"

    def _check(self, mac: str, tag: str, code: str, rest: str, now: datetime) -> None:
        today = _day(now)
        age = (today - _day_number(code)) % _DAYS
        # A clock that was a day ahead made it, or one that is a day behind reads it.
        day = today - age if age != _DAYS - 1 else today + 1
        given = mac.upper().encode("utf-8", "surrogatepass")
        matches = [hmac.compare_digest(self._mac(key, tag, day, rest).encode("ascii"), given) for key in self._keys]
        if not any(matches):
            raise SrsError(SrsProblem.FORGED)
        if today - day > self._valid_days:
            raise SrsError(SrsProblem.EXPIRED)

    def _mac(self, key: bytes, tag: str, day: int, rest: str) -> str:
        """Of the whole day, not of its code, which comes round again every three years."""
        data = "\x00".join((tag, self._domain, str(day), rest.lower())).encode("utf-8", "surrogatepass")
        return b32encode(hmac.digest(key, data, "sha256")[:_MAC_BYTES]).decode("ascii")


def _day(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp()) // _SECONDS_OF_DAY


def _day_code(day: int) -> str:
    day %= _DAYS
    return _ALPHABET[day >> 5] + _ALPHABET[day & 31]


def _day_number(code: str) -> int:
    return _ALPHABET.index(code[0].upper()) << 5 | _ALPHABET.index(code[1].upper())


class LoopError(ValueError):
    """The message has been passed on too often: `554 5.4.6`, or `409 loop_detected` for a send (N13, FR-OUT-14)."""

    def __init__(self, hop: int) -> None:
        super().__init__(f"hop {hop}")
        self.hop = hop


class Hops(NamedTuple):
    """How far a message has come: its highest `X-Postroom-Hop`, and the number of its `Received` fields."""

    hop: int
    received: int


def hops(hop_values: Sequence[str], received: int) -> Hops:
    """`hop_values` are the values of all `X-Postroom-Hop` fields; the largest counts. One that is no number is over
    every limit: it was tampered with (edge row N13)."""
    stripped = (value.strip() for value in hop_values)
    numbers = [int(value) if _HOP.fullmatch(value) else MAX_HOP + 1 for value in stripped]
    return Hops(max(numbers, default=0), received)


def check_arrival(found: Hops) -> None:
    """LoopError for a message with over 50 `Received` fields or a hop over 10 (mail-server A6)."""
    if found.received > MAX_RECEIVED or found.hop > MAX_HOP:
        raise LoopError(found.hop)


def next_hop(hop: int | None) -> int:
    """The hop of an answer to, or a forward of, a message with `hop` (None: none). LoopError at 10 (outbound §5.6)."""
    following = 1 + (hop or 0)
    if following >= MAX_HOP:
        raise LoopError(following)
    return following


def hop_field(hop: int) -> bytes:
    """`X-Postroom-Hop`, to stand before a forwarded message; older fields stay, since the highest counts."""
    return f"X-Postroom-Hop: {hop}\r\n".encode("ascii")
