"""The bytes that go out, where they have to be made anew: for a peer that takes only 7 bits, or from the sent copy."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from postroom.mail.address import Address
from postroom.mail.compose import ComposeError
from postroom.mail.compose.downgrade import DowngradeError, downgrade_to_7bit
from postroom.mail.compose.fields import address_list
from postroom.mail.header import FIELD
from postroom.mailauth.tags import TagListError, parse_tags

HEADER_BYTES: Final = 1024 * 1024


def seven_bit(wire: bytes, own_domains: Collection[str]) -> bytes | None:
    """`wire` for a peer without 8BITMIME (RFC 6152 §3), without those signatures of ours that the change breaks: it is
    to be signed again. What needs no change is returned as it is; None when it has no form in 7 bits.
    """
    try:
        changed = downgrade_to_7bit(wire)
    except DowngradeError:
        return None
    return wire if changed == wire else without_signatures(changed, own_domains)


def without_signatures(raw: bytes, domains: Collection[str]) -> bytes:
    """`raw` without DKIM-Signature fields of `domains` (lower case)."""
    return _without(raw, b"dkim-signature", lambda value: _signer(value) in domains)


def readdressed(raw: bytes, domains: Collection[str], from_: Address, reply_to: Address | None) -> bytes:
    """A message that was composed here, to be sent from another address: with that From (RFC 5322 §3.6.2) and Reply-To,
    without signatures of `domains`. Nothing else changes, its Message-ID neither; it is to be signed again.

    Raises ValueError for one without From.
    """
    bare = _without(without_signatures(raw, domains), b"reply-to", lambda _: True)
    end = _header_end(bare)
    field = next((one for one in FIELD.finditer(bare, 0, end) if one[1].lower() == b"from"), None)
    if field is None:
        raise ValueError("a composed message has a From")
    try:
        written = address_list("From", (from_,))
    except ComposeError:  # the name that was read back is one that cannot be written
        written = address_list("From", (replace(from_, name=""),))
    answers = b"" if reply_to is None else address_list("Reply-To", (reply_to,))
    return b"".join((bare[: field.start()], written, answers, bare[field.end() :]))


def from_sent_copy(raw: bytes) -> bytes:
    """What goes out, unsigned, of what the Sent folder holds: without the blind recipients (C7)."""
    return _without(raw, b"bcc", lambda _: True)


def _without(raw: bytes, name: bytes, unwanted: Callable[[bytes], bool]) -> bytes:
    end = _header_end(raw)
    kept, at = [], 0
    for field in FIELD.finditer(raw, 0, end):
        if field[1].lower() == name and unwanted(field[2]):
            kept.append(raw[at : field.start()])
            at = field.end()
    kept.append(raw[at:])
    return b"".join(kept)


def _header_end(raw: bytes) -> int:
    return raw.find(b"\n\r\n", 0, HEADER_BYTES) + 1 or min(len(raw), HEADER_BYTES)


def _signer(value: bytes) -> str | None:
    """`d=` of a signature, None if it cannot be read."""
    try:
        tag = parse_tags(value).get("d")
    except TagListError:
        return None
    return None if tag is None else tag.value.decode("ascii", "replace").lower()
