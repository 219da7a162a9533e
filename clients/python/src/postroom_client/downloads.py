"""Bytes that are not JSON: raw messages, attachments, linked files. They come in pieces and are not kept."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Final, Protocol
from urllib.parse import unquote

import httpx

from ._core import transport_error
from .errors import ConfigError, DecodeError, TransportError

DEFAULT_READ: Final = 64 * 1024 * 1024
"""Bytes that `read` keeps in memory unless told otherwise."""

_EXTENDED: Final = re.compile(r"filename\*=UTF-8''([^;\s]+)", re.IGNORECASE | re.ASCII)
_QUOTED: Final = re.compile(r'filename="([^"\\]*)"', re.IGNORECASE | re.ASCII)


class Writable(Protocol):
    """A file that takes bytes."""

    def write(self, data: bytes, /) -> object: ...


class _About:
    """What the head of the answer says."""

    def __init__(self, response: httpx.Response) -> None:
        headers = response.headers
        self.content_type: str = headers.get("content-type", "application/octet-stream")
        length = headers.get("content-length", "")
        self.size: int | None = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
        """Bytes, where the server says so."""
        self.filename: str | None = file_name(headers.get("content-disposition", ""))
        """What the file was called: a name alone, without a directory. Who wrote the mail chose it."""


class Download(_About):
    """An open answer."""

    def __init__(self, operation: str, response: httpx.Response) -> None:
        super().__init__(response)
        self._operation = operation
        self._response = response

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces, once. Raises TransportError where they end too early."""
        failure: TransportError | None = None
        try:
            yield from self._response.iter_bytes()
        except httpx.TransportError as error:
            failure = transport_error(self._operation, error)
        if failure is not None:
            raise failure

    def read(self, max_bytes: int = DEFAULT_READ) -> bytes:
        """All of it. Raises DecodeError beyond `max_bytes`."""
        pieces = _Pieces(max_bytes)
        for piece in self.chunks():
            pieces.add(piece)
        return pieces.joined()

    def write_to(self, file: Writable) -> int:
        """All of it into an open binary file; how many bytes it was."""
        written = 0
        for piece in self.chunks():
            file.write(piece)
            written += len(piece)
        return written


class AsyncDownload(_About):
    """An open answer."""

    def __init__(self, operation: str, response: httpx.Response) -> None:
        super().__init__(response)
        self._operation = operation
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes in pieces, once. Raises TransportError where they end too early."""
        failure: TransportError | None = None
        try:
            async for piece in self._response.aiter_bytes():
                yield piece
        except httpx.TransportError as error:
            failure = transport_error(self._operation, error)
        if failure is not None:
            raise failure

    async def read(self, max_bytes: int = DEFAULT_READ) -> bytes:
        """All of it. Raises DecodeError beyond `max_bytes`."""
        pieces = _Pieces(max_bytes)
        async for piece in self.chunks():
            pieces.add(piece)
        return pieces.joined()

    async def write_to(self, file: Writable) -> int:
        """All of it into an open binary file, whose writing blocks; how many bytes it was."""
        written = 0
        async for piece in self.chunks():
            file.write(piece)
            written += len(piece)
        return written


class Downloading:
    """A download that is asked for when the `with` begins, and hung up when it ends."""

    def __init__(self, operation: str, open: Callable[[], httpx.Response]) -> None:
        self._operation = operation
        self._open = open
        self._response: httpx.Response | None = None

    def __enter__(self) -> Download:
        if self._response is not None:
            raise ConfigError("a download is opened once")
        self._response = self._open()
        return Download(self._operation, self._response)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._response is not None:
            self._response.close()


class AsyncDownloading:
    """A download that is asked for when the `async with` begins, and hung up when it ends."""

    def __init__(self, operation: str, open: Callable[[], Awaitable[httpx.Response]]) -> None:
        self._operation = operation
        self._open = open
        self._response: httpx.Response | None = None

    async def __aenter__(self) -> AsyncDownload:
        if self._response is not None:
            raise ConfigError("a download is opened once")
        self._response = await self._open()
        return AsyncDownload(self._operation, self._response)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._response is not None:
            await self._response.aclose()


class _Pieces:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise DecodeError(f"the download is longer than {self._limit} bytes")
        self._pieces.append(piece)

    def joined(self) -> bytes:
        return b"".join(self._pieces)


def file_name(disposition: str) -> str | None:
    """From `Content-Disposition` (RFC 6266 §4.3): the last part alone, printable, and no hidden file."""
    if found := _EXTENDED.search(disposition):
        name = unquote(found[1], errors="replace")
    elif found := _QUOTED.search(disposition):
        name = found[1]
    else:
        return None
    name = re.split(r"[/\\]", name)[-1]
    return "".join(one for one in name if one.isprintable()).strip().lstrip(".") or None
