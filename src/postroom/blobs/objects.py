"""The store in object storage: S3 and whatever else `obstore` speaks, or memory (data-model §15).

The key is the object's key, and a PUT takes the place of write and rename: it is durable when it has been answered.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

from .store import (
    BATCH_BYTES,
    STREAM_CHUNK,
    BlobMissing,
    Data,
    Discarded,
    Keys,
    MarkerMismatch,
    PutGroup,
    Results,
    Span,
    StorageError,
    Want,
    check_key,
    check_prefix,
)

MARKER: Final = "store-id"
TIMEOUT_SECONDS: Final = 60.0
PARALLEL: Final = 16
# Objects read at one time by `batches`, whose sizes are not known before they are asked for.
_READ_AHEAD: Final = 4


class AlreadyExists(StorageError):
    """An object that was to be created is there."""

    def __init__(self) -> None:
        super().__init__("exists")


class ObjectStore:
    """A `BlobStore` over an obstore store object (`S3Store`, `MemoryStore` …), which the caller has configured.

    At most `parallel` requests run at a time; each operation fails with a StorageError after `timeout` seconds.
    """

    def __init__(self, store: Any, *, parallel: int = PARALLEL, timeout: float = TIMEOUT_SECONDS) -> None:
        self._store = store
        self._slots = asyncio.Semaphore(parallel)
        self._timeout = timeout

    async def put(self, key: str, data: Data) -> None:
        check_key(key)
        await self._ask(key, obstore.put_async, key, bytes(data))

    async def put_many(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
        return await asyncio.gather(*(self._put_group(group) for group in groups))

    async def _put_group(self, group: PutGroup) -> StorageError | None:
        try:
            if not group.keys:
                raise StorageError("no_keys")
            keys = [check_key(key) for key in dict.fromkeys(group.keys)]
            data = b"".join(group.pieces)
            await self._ask(keys[0], obstore.put_async, keys[0], data)
            for key in keys[1:]:
                await self._ask(key, obstore.copy_async, keys[0], key)
        except StorageError as error:
            return error
        return None

    async def get(self, key: str) -> bytes:
        check_key(key)
        data: bytes = await self._ask(key, _whole, key)
        return data

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        span = Span(check_key(key), start, end)
        # A range that starts at or past the end is an error to object stores and empty to us.
        end = min(end, await self.size(key))
        if span.start >= end:
            return b""
        return bytes(await self._ask(key, obstore.get_range_async, key, start=start, end=end))

    async def get_many(self, wants: Sequence[Want]) -> Results:
        return await asyncio.gather(*(self._get_one(want) for want in wants))

    async def _get_one(self, want: Want) -> bytes | StorageError:
        try:
            if isinstance(want, str):
                return await self.get(want)
            return await self.get_range(want.key, want.start, want.end)
        except StorageError as error:
            return error

    async def batches(self, wants: Sequence[Want], max_bytes: int = BATCH_BYTES) -> AsyncIterator[Results]:
        batch: Results = []
        taken = 0
        for first in range(0, len(wants), _READ_AHEAD):
            for result in await self.get_many(wants[first : first + _READ_AHEAD]):
                length = len(result) if isinstance(result, bytes) else 0
                if batch and taken + length > max_bytes:
                    yield batch
                    batch, taken = [], 0
                batch.append(result)
                taken += length
        if batch:
            yield batch

    async def stream(
        self, key: str, chunk: int = STREAM_CHUNK, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        size = await self.size(key)
        end = size if end is None else min(end, size)
        while start < end:
            stop = min(start + chunk, end)
            yield bytes(await self._ask(key, obstore.get_range_async, key, start=start, end=stop))
            start = stop

    async def link(self, existing: str, new: str) -> None:
        check_key(existing)
        check_key(new)
        await self._ask(existing, obstore.copy_async, existing, new)

    async def delete(self, keys: Iterable[str], *, durably: bool = True) -> None:
        await asyncio.gather(*(self._delete(check_key(key)) for key in keys))

    async def _delete(self, key: str) -> None:
        try:
            await self._ask(key, obstore.delete_async, key)
        except BlobMissing:
            return

    async def discard(self, keys: Iterable[str], before: datetime, *, dry_run: bool = False) -> Discarded:
        one_by_one = (self._discard(check_key(key), before, dry_run) for key in keys)
        return sum(await asyncio.gather(*one_by_one), Discarded())

    async def _discard(self, key: str, before: datetime, dry_run: bool) -> Discarded:
        try:
            meta = await self._ask(key, obstore.head_async, key)
        except BlobMissing:
            return Discarded()
        if meta["last_modified"] >= before:
            return Discarded()
        if not dry_run:
            await self._delete(key)
        return Discarded(1, int(meta["size"]))

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> Keys:
        below = check_prefix(prefix)
        keys: Keys = []
        if limit <= 0:
            return keys
        pages = obstore.list(self._store, below or None, offset=after or None, chunk_size=min(limit + 1, 1000))
        while len(keys) < limit:
            page = await self._ask(prefix, _next_page, pages)
            if page is None:
                break
            keys += [key for meta in page if (key := str(meta["path"])) != MARKER and key > after]
        return keys[:limit]

    async def size(self, key: str) -> int:
        check_key(key)
        meta = await self._ask(key, obstore.head_async, key)
        return int(meta["size"])

    async def check_marker(self, store_id: str, *, create: bool = False) -> None:
        try:
            found = (await self.get(MARKER)).decode("ascii", "replace").strip()
        except BlobMissing:
            if not create or await self.list("", "", 1):
                raise MarkerMismatch("no_marker") from None
            marker = f"{store_id}\n".encode("ascii")
            try:
                # Only if it is not there: of two nodes that start together one must lose.
                await self._ask(MARKER, obstore.put_async, MARKER, marker, mode="create")
            except AlreadyExists:
                await self.check_marker(store_id)
            return
        if found != store_id:
            raise MarkerMismatch("other_marker")

    async def close(self) -> None:
        """Nothing is held: connections belong to the store object that was passed in."""

    async def _ask(self, key: str, request: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        async with self._slots:
            with _translated(key):
                return await asyncio.wait_for(request(self._store, *args, **options), self._timeout)


async def _whole(store: Any, key: str) -> bytes:
    result = await obstore.get_async(store, key)
    return bytes(await result.bytes_async())


async def _next_page(_store: Any, pages: Any) -> Any:
    return await anext(pages, None)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    """Errors of the library and of time as ours; their words, which may hold URLs and credentials, go no further."""
    try:
        yield
    except (FileNotFoundError, NotFoundError):
        raise BlobMissing(key) from None
    except AlreadyExistsError:
        raise AlreadyExists from None
    except TimeoutError:
        raise StorageError("timeout") from None
    except BaseError as error:
        raise StorageError(type(error).__name__) from None
    except OSError as error:
        raise StorageError(type(error).__name__) from None
