"""Messages made of new text and of parts of messages that are there (CATENATE, RFC 4469)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from postroom.blobs import StorageError
from postroom.imap import Code, ProtocolNo
from postroom.imap import commands as c
from postroom.imap.cursor import MAX_NUMBER64
from postroom.imap.fetch import FetchAtt, FetchItem
from postroom.imap.url import parse_message_url, shown_url
from postroom.mailbox.reads import Columns
from postroom.servers.imap.fetch import BODY_MISSING
from postroom.servers.imap.folders import find
from postroom.servers.imap.sections import Piece, pieces, section_items
from postroom.servers.imap.session import Session

TOO_BIG = ProtocolNo(Code.TOOBIG, "Message too large")


@dataclass(slots=True)
class _Made:
    """A message to be made: octets as they are, and pieces to be read."""

    message: c.AppendMessage
    parts: list[bytes | Piece]

    @property
    def size(self) -> int:
        return sum(part.size if isinstance(part, Piece) else len(part) for part in self.parts)


async def assembled(session: Session, messages: Sequence[c.AppendMessage]) -> Sequence[c.AppendMessage]:
    """The messages with their octets in `data`. What is to be read is counted before it is read.

    Raises `ProtocolNo` [BADURL] with the first URL that names no message, or no part, of this account; [TOOBIG] for a
    message over the limit, or all of them together.
    """
    if all(message.parts is None for message in messages):
        return messages
    made = [_Made(message, await _located(session, message.parts or ())) for message in messages]
    limits = session.reader.limits
    literals = sum(len(one.message.data) for one in made)
    if literals + sum(one.size for one in made) > limits.max_append_total:
        raise TOO_BIG
    if any(one.size > limits.max_append_size for one in made):
        raise TOO_BIG
    session.gathered = sum(one.size for one in made)
    session.wire.account()
    return [one.message if one.message.parts is None else await _read(session, one) for one in made]


async def _located(session: Session, parts: Iterable[bytes | c.UrlPart]) -> list[bytes | Piece]:
    return [part if isinstance(part, bytes) else await _piece(session, part.url) for part in parts]


async def _piece(session: Session, url: bytes) -> Piece:
    """Where the octets are that a URL names."""
    bad = ProtocolNo(f"BADURL {shown_url(url)}", "No such message or part")
    selected = None if session.selected is None else session.selected.name
    try:
        named = parse_message_url(url, selected)
    except ValueError:
        raise bad from None
    try:
        box, folder = await find(session, named.mailbox)
    except ProtocolNo:
        raise bad from None
    if named.uid_validity not in (None, folder.uid_validity):
        raise bad
    partial = named.partial
    wanted = None if partial is None else (partial[0], MAX_NUMBER64 if partial[1] is None else partial[1])
    items = section_items([FetchItem(FetchAtt.SECTION, named.section, wanted)])
    reads = session.services.mailboxes.reads
    # Not from the cache: it knows messages that have gone.
    async for rows in reads.fetch_rows(box.ref, folder.id, [named.uid], Columns.BYTES | Columns.PARTS):
        for row in rows:
            try:
                (piece,) = pieces(row, items)
            except ValueError:
                raise BODY_MISSING from None
            if piece.span is not None:
                return piece
    raise bad


async def _read(session: Session, made: _Made) -> c.AppendMessage:
    spans = [part.span for part in made.parts if isinstance(part, Piece) and part.span is not None]
    try:
        read = iter(await session.services.blobs.get_many(spans))
    except StorageError:
        raise BODY_MISSING from None
    found: list[bytes] = []
    for part in made.parts:
        if isinstance(part, bytes):
            found.append(part)
            continue
        data = next(read)
        if isinstance(data, StorageError) or len(data) != part.size:
            raise BODY_MISSING
        found.append(part.value(data))
    return replace(made.message, data=b"".join(found), parts=None)
