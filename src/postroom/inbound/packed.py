"""Attachments inside attachments: what `winmail.dat` holds is listed beside the message's own (inbound §10, edge B6).

What an attached message holds is not listed; the message has the worst risk of it (B10).

Such a file has the path of the part that holds it and its place there, counted from one: `2.1/3`. Its bytes are taken
out when somebody asks for them, by the same reader, so nothing is stored twice. IMAP shows the message as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from postroom.mail import mime
from postroom.mail.body import body_parts, filename
from postroom.mail.safety import UNKNOWN, Risk, inspect
from postroom.mail.tnef import UnpackedAttachment, is_tnef, says_tnef, unpack
from postroom.mail.transfer import decode, decoded
from postroom.mailbox.models import PartInfo, part_place

_MESSAGES: Final = ("message/rfc822", "message/global")
_MAX_ENCODED: Final = 3
"""Messages in base64 within one another that are opened."""


def holds_message(part: mime.Part) -> bool:
    """Whether a part is a message, which may have attachments of its own."""
    return part.content_type in _MESSAGES


def worst_within(raw: bytes, part: mime.Part) -> Risk | None:
    """The worst of what an attached message holds, at any depth. Never raises on content."""
    return _first(_within(raw, part, _MAX_ENCODED))


def _within(raw: bytes, part: mime.Part, encoded: int) -> Iterator[Risk | None]:
    root = part.nested
    if root is None:
        if not encoded:
            return
        raw, encoded = decoded(raw, part), encoded - 1
        root = mime.parse(raw).root
    for _, held in body_parts(root).attachments:
        if holds_message(held):
            yield from _within(raw, held, encoded)
            continue
        data = decoded(raw, held)
        yield inspect(data, held.content_type, filename(held)).risk
        found = unpack(data) if is_tnef(data) else None
        if found is not None:
            yield from _risks(found.attachments)


def opened(part: PartInfo, data: bytes) -> Sequence[PartInfo]:
    """What is listed in place of a part whose content is TNEF.

    What it holds, if it says what it is and could be taken apart; the part itself if not, and beside that if something
    had to be left out. Its risk is then the worst of what is in it (B10).
    """
    found = unpack(data)
    if found is None:
        return (part,)
    whole = replace(part, risk=part.risk or _name(_worst(found.attachments)))
    if not says_tnef(part.content_type, part.filename):
        return (whole,)
    listed = [_listed(f"{part.part_path}/{place}", one) for place, one in enumerate(found.attachments, start=1)]
    # A stream that holds nothing that we know of is more use to somebody whole.
    is_told = found.complete and (listed or found.text or found.html)
    return listed if is_told else (whole, *listed)


def _listed(path: str, one: UnpackedAttachment) -> PartInfo:
    inspected = inspect(one.data, one.content_type, one.filename)
    return PartInfo(
        part_path=path,
        filename=one.filename,
        content_type=one.content_type,
        size=len(one.data),
        disposition="attachment" if one.content_id is None else "inline",
        content_id=one.content_id,
        sniffed_type=None if inspected.sniffed_type == UNKNOWN else inspected.sniffed_type,
        risk=_name(inspected.risk or _worst(one.inside)),
    )


def _worst(found: Sequence[UnpackedAttachment]) -> Risk | None:
    """The worst of what a stream holds: it is opened as if it were attached itself."""
    return _first(_risks(found))


def _first(found: Iterable[Risk | None]) -> Risk | None:
    risks = set(found)
    return next((risk for risk in Risk if risk in risks), None)


def _risks(found: Sequence[UnpackedAttachment]) -> Iterator[Risk | None]:
    for one in found:
        yield inspect(one.data, one.content_type, one.filename).risk
        yield from _risks(one.inside)


def _name(risk: Risk | None) -> str | None:
    return None if risk is None else risk.value


def taken_out(encoded: bytes, encoding: str, path: str) -> bytes | None:
    """The bytes of a packed file, from those of the part that holds it; None when it is not there any more. For a
    child process: a part may be as large as a message."""
    place = part_place(path)
    data = decode(encoded, encoding)
    found = unpack(data) if is_tnef(data) else None
    if found is None or place is None or not 0 < place <= len(found.attachments):
        return None
    return found.attachments[place - 1].data
