"""The pace of a compressed connection (RFC 4978): no more is inflated than there is room for, and others have their
turn after each piece that is compressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from postroom.imap import CommandReader
from postroom.servers.imap.deflate import Deflater, Inflater


class Compression:
    """Between a transport and the reader of its commands. `room` is how many octets in clear may wait to be read
    beside those that do.
    """

    __slots__ = ("_deflater", "_inflater", "_loop", "_reader", "_room", "_transport")

    def __init__(self, reader: CommandReader, transport: asyncio.WriteTransport, *, room: int) -> None:
        self._reader = reader
        self._transport = transport
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._inflater = Inflater()
        self._deflater = Deflater()

    # -- what comes in

    @property
    def is_unread(self) -> bool:
        """Whether something that came is compressed still."""
        return self._inflater.waiting > 0

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._inflater.feed(data)

    def inflate(self) -> None:
        """Read on in what came, as far as there is room. Raises `zlib.error` when that cannot be read."""
        inflater, reader = self._inflater, self._reader
        most = reader.buffered + self._room
        while reader.buffered <= most and (data := inflater.read()):
            reader.feed(data)

    # -- what goes out

    @property
    def is_unsent(self) -> bool:
        """Whether something that was given to `send` waits to be compressed."""
        return self._deflater.waiting > 0

    def send(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Compress and send these, behind what waits."""
        compressing = self.is_unsent
        self._deflater.add(buffers)
        if not compressing:
            self._deflate()

    def finish(self) -> None:
        """Send all that waits at once."""
        while self.is_unsent:
            self._transport.write(self._deflater.take())

    def _deflate(self) -> None:
        """Compress and send the next piece; others have their turn before the one after it."""
        if self._transport.is_closing():
            return
        if data := self._deflater.take():  # what was left when the connection ended is sent already
            self._transport.write(data)
        if self.is_unsent:
            self._loop.call_soon(self._deflate)
