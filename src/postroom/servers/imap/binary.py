"""BINARY: parts without their Content-Transfer-Encoding (RFC 3516, RFC 9051 §6.4.5).

Small parts are decoded where they are read. Larger ones are read twice, for the client is told their size first: once
to count, once to send, a piece at a time. What can only be decoded as a whole is, in a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from postroom.blobs import BlobStore, StorageError
from postroom.imap import Code, ProtocolNo
from postroom.inbound.parsing import Parser, ParserBusy, ParsingFailed
from postroom.mail import transfer
from postroom.mail.mime import Part
from postroom.mail.transfer_stream import Irregular, stream_decoder
from postroom.servers.imap.sections import Piece

SMALL: Final = 64 * 1024
"""Encoded octets that are decoded at once, which takes less than 2 ms."""
KEPT: Final = 1024 * 1024
"""Encoded octets whose content is kept, not read again."""

_BUSY: Final = ProtocolNo(Code.UNAVAILABLE, "The part cannot be decoded now")


@dataclass(slots=True)
class Content:
    """What a part is when it is decoded: its octets, or only how many there are."""

    size: int
    octets: bytes | None
    has_nul: bool


class BinaryReader:
    """Decodes parts. At most `wholes` of those that cannot be decoded in pieces are in memory at a time."""

    def __init__(self, blobs: BlobStore, parser: Parser, *, wholes: int = 2) -> None:
        self._blobs = blobs
        self._parser = parser
        self._whole = asyncio.Semaphore(wholes)

    async def read(self, piece: Piece) -> Content:
        """The content of a part, which the store has. Raises StorageError, and `ProtocolNo` when it is not decoded."""
        kept: list[bytes] | None = [] if piece.size <= KEPT else None
        size, has_nul = 0, False
        try:
            async for data in self._decoded(piece):
                size += len(data)
                has_nul = has_nul or b"\0" in data
                if kept is not None:
                    kept.append(data)
        except Irregular:
            octets = await self._at_once(piece)
            return Content(len(octets), octets, b"\0" in octets)
        return Content(size, None if kept is None else b"".join(kept), has_nul)

    async def stream(self, piece: Piece, start: int, end: int) -> AsyncIterator[bytes]:
        """The octets `start` to `end` of what `read` has counted. Raises StorageError."""
        at = 0
        async for data in self._decoded(piece):
            shown = data[max(0, start - at) : max(0, end - at)]
            at += len(data)
            if shown:
                yield shown
            if at >= end:
                return

    async def _decoded(self, piece: Piece) -> AsyncIterator[bytes]:
        part, span = _coded(piece), piece.span
        assert span is not None
        decoder = None
        async for data in self._blobs.stream(span.key, SMALL, start=span.start, end=span.end):
            if decoder is None:
                decoder = stream_decoder(part, data)
            yield decoder.feed(data)
            await asyncio.sleep(0)  # a store that answers at once leaves turns to the others, too
        if decoder is not None:
            yield decoder.finish()

    async def _at_once(self, piece: Piece) -> bytes:
        span = piece.span
        assert span is not None
        async with self._whole:
            data = await self._blobs.get_range(span.key, span.start, span.end)
            if len(data) != piece.size:
                raise StorageError("short")
            try:
                return await self._parser.run(len(data), transfer.content, data, _coded(piece))
            except (ParserBusy, ParsingFailed):
                raise _BUSY from None


def _coded(piece: Piece) -> Part:
    assert piece.coded is not None
    return piece.coded
