"""Envelope senders of mail that goes on, and back (mail-server A6; `mail.srs`). Pure.

A rewritten sender names the tenant in whose name the mail went on: its key stands behind the hash, in a field that all
other forwarders take for the hash and drop or keep whole. So it changes nothing of what is theirs, as it would behind
the author's local part: a forwarder before us would not know its own hash again. The hash is of a key of the tenant's,
and of the domain, so that it is good there only, and for three weeks.

The whole may be as long as a path, since what mailing lists send from seldom leaves room for it within 64 octets, and
no server in use refuses more.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from postroom.mail.address import Address as MailAddress
from postroom.mail.srs import MAX_KEYS, Rewriter, SrsError, SrsProblem
from postroom.smtp.address import MAX_PATH, Address, AddressSyntaxError, parse_path

_DIGITS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_MAX_KEY: Final = 2**63 - 1
_TAGS: Final = ("srs0=", "srs1=")
# SRS1 has the day behind the hash as well.
_OURS: Final = re.compile(
    r"(srs0=[a-z2-7]{8}|srs1=[a-z2-7]{10})([a-z2-7]{1,13})(=.*)", re.IGNORECASE | re.DOTALL | re.ASCII
)
_BRACKETS_AND_AT: Final = 3


class Author(NamedTuple):
    """To whom what comes back to a rewritten sender goes, and the tenant that had passed the mail on."""

    address: str
    tenant_id: int


def rewrite(sender: str, domain: str, tenant_id: int, keys: Sequence[bytes], now: datetime) -> str:
    """The envelope sender under which mail of `sender` goes on from `domain`; the null sender (empty) stays.

    Raises SrsError: it does not fit a path.
    """
    if not sender:
        return ""
    try:
        given = parse_path(f"<{sender}>".encode()).address
    except (AddressSyntaxError, UnicodeEncodeError):
        raise SrsError(SrsProblem.MALFORMED) from None
    assert given is not None, "this is not the null sender"
    number = _number(tenant_id)
    made = _rewriter(domain, tenant_id, keys).rewrite(MailAddress("", given.local, given.domain), now)
    assert made is not None, "this is not the null sender"
    head = made.local.index("=", len("SRS0="))
    path = str(Address(f"{made.local[:head]}{number}{made.local[head:]}", made.domain))
    # Quotes take room, too.
    if len(path.encode()) > MAX_PATH - 2:
        raise SrsError(SrsProblem.TOO_LONG)
    return path


def is_rewritten(address: str) -> bool:
    """Whether a local part has the form of those that `rewrite` makes."""
    return address.removeprefix('"')[:5].lower() in _TAGS


def reverse(address: str, keys: Sequence[bytes], now: datetime) -> Author:
    """Who is told what is sent to a rewritten sender, as it was given or in lower case. Raises SrsError: we did not
    make it for this domain, or did so long ago.
    """
    local, domain = _parts(address)
    form = _OURS.fullmatch(local)
    tenant_id = None if form is None else _key(form[2].lower())
    if form is None or tenant_id is None:
        raise SrsError(SrsProblem.MALFORMED)
    found = _rewriter(domain, tenant_id, keys).reverse(MailAddress("", f"{form[1]}{form[3]}", domain), now)
    assert found is not None, "the tag and the domain are there"
    return Author(str(Address(found.local, found.domain.lower())), tenant_id)


def _rewriter(domain: str, tenant_id: int, keys: Sequence[bytes]) -> Rewriter:
    own = [hmac.digest(key, b"tenant %d" % tenant_id, "sha256") for key in keys[:MAX_KEYS]]
    return Rewriter(domain, own, max_local=MAX_PATH - _BRACKETS_AND_AT - len(domain))


def _parts(address: str) -> tuple[str, str]:
    """Local part, without quotes, and domain; also of an address that somebody took the quotes from already."""
    try:
        found = parse_path(f"<{address}>".encode()).address
    except (AddressSyntaxError, UnicodeEncodeError):
        found = None
    if found is not None:
        return found.local, found.domain
    local, _, domain = address.rpartition("@")
    return local, domain


def _number(key: int) -> str:
    digits = ""
    while key or not digits:
        key, digit = divmod(key, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


def _key(digits: str) -> int | None:
    """The number, None beyond those of rows, and for a spelling that is not the one of `_number`."""
    if digits != "a" and digits.startswith("a"):
        return None
    key = 0
    for digit in digits:
        key = key * len(_DIGITS) + _DIGITS.index(digit)
    return key if key <= _MAX_KEY else None
