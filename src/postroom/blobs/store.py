"""What a blob store is: keys, errors, the interface and the retry rule (data-model §15, mail-server E2)."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

Data = bytes | bytearray | memoryview

MAX_KEY_CHARS: Final = 512
MAX_KEY_DEPTH: Final = 16
STREAM_CHUNK: Final = 256 * 1024
BATCH_BYTES: Final = 4 * 1024 * 1024

# First gate: a component starts with a letter or digit, so that it is never empty, `.`, `..` or hidden.
_COMPONENT: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_KEY: Final = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT}){{0,{MAX_KEY_DEPTH - 1}}}")


class StorageError(Exception):
    """The store could not do it; nothing is known to be durable. `reason` is a short word, such as ``EIO``."""

    # `args` stay those of the constructor, so that the errors below survive being pickled.
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class StorageFull(StorageError):
    """There is no room: the disk, its inodes or the quota of the user are used up."""


class BlobMissing(StorageError):
    """No blob has this key."""

    def __init__(self, key: str) -> None:
        super().__init__("missing")
        self.key = key


class MarkerMismatch(StorageError):
    """The store is not the one that belongs to this database; starting must stop (decisions B5)."""


class InvalidKey(StorageError, ValueError):
    """The text is not a key: it did not pass the gate of components."""

    def __init__(self) -> None:
        super().__init__("invalid_key")


@dataclass(frozen=True, slots=True)
class PutGroup:
    """One object under one or more keys: `pieces` are concatenated (a trace header, then the message as received)."""

    pieces: Sequence[Data]
    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes `start` ≤ offset < `end` of a blob; what lies past its end is left out."""

    key: str
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError("a span has 0 <= start <= end")


@dataclass(frozen=True, slots=True)
class Discarded:
    """How many keys were removed, and the octets that were freed by it: none where another key shares the bytes."""

    count: int = 0
    octets: int = 0

    def __add__(self, other: "Discarded") -> "Discarded":
        return Discarded(self.count + other.count, self.octets + other.octets)


Want = str | Span
Results = list[bytes | StorageError]
Keys = list[str]


class BlobStore(Protocol):
    """Bytes by key. Methods raise StorageError: InvalidKey for a malformed key, BlobMissing, StorageFull, or itself.

    Those that take many answer with an error in the place of a result, so that one failure is not everybody's.
    """

    async def put(self, key: str, data: Data) -> None:
        """Store `data`, replacing what the key held. Durable on return."""
        ...

    async def put_many(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
        """Store many objects at the price of few waits; durable on return where the result is None.

        One group's failure is its own: the answer has a result for each group, in order.
        """
        ...

    async def get(self, key: str) -> bytes:
        """All bytes of the blob. Raises BlobMissing."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes of a `Span`. Raises BlobMissing."""
        ...

    async def get_many(self, wants: Sequence[Want]) -> Results:
        """Whole blobs or spans, all held in memory at once; a result for each, in order."""
        ...

    def batches(self, wants: Sequence[Want], max_bytes: int = BATCH_BYTES) -> AsyncIterator[Results]:
        """As `get_many`, but in successive lists of about `max_bytes` each, read as the caller comes for them.

        A single blob larger than that is a list of its own.
        """
        ...

    def stream(
        self, key: str, chunk: int = STREAM_CHUNK, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """The blob, or a span of it, in pieces of at most `chunk` bytes. Raises BlobMissing at the first step."""
        ...

    async def link(self, existing: str, new: str) -> None:
        """Give a blob a second key, sharing its bytes where the store can. Durable on return. Raises BlobMissing."""
        ...

    async def delete(self, keys: Iterable[str], *, durably: bool = True) -> None:
        """Remove keys; one that is not there is no error. Bytes go with their last key.

        Not `durably`: after a power failure some may be there again, and what they stood in may stay.
        """
        ...

    async def discard(self, keys: Iterable[str], before: datetime, *, dry_run: bool = False) -> Discarded:
        """Remove those of the keys that came to be before `before`, by the store's own clock, whether by a write or by
        a link; what was removed, or with `dry_run` would be. One that is not there is no error.

        Not durable: after a power failure some may be there again.
        """
        ...

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> Keys:
        """Up to `limit` keys in order, greater than `after`, below the directory `prefix` (whole components).

        A store on disk reads a whole directory for each call, though it keeps no more than the answer in memory: to go
        through a large one, ask for many at a time.
        """
        ...

    async def size(self, key: str) -> int:
        """Length of the blob in bytes. Raises BlobMissing."""
        ...

    async def check_marker(self, store_id: str, *, create: bool = False) -> None:
        """Raise MarkerMismatch unless the store carries the marker of `store_id` (decisions B5).

        `create`, for a database that has just been made, marks a store that has neither marker nor blobs. A store
        without marker is a mismatch otherwise: it may be the empty mount point of a disk that is not there.
        """
        ...

    async def close(self) -> None:
        """Finish what is running and let go of threads and connections."""
        ...


def check_key(key: str) -> str:
    """The key itself, if it is one; raises InvalidKey. ASCII letters, digits, ``._-`` and ``/`` between components."""
    if len(key) > MAX_KEY_CHARS or _KEY.fullmatch(key) is None:
        raise InvalidKey
    return key


def check_prefix(prefix: str) -> str:
    """A prefix as `list` takes it, normalised to end in ``/``, or empty. Raises InvalidKey."""
    bare = prefix.removesuffix("/")
    return check_key(bare) + "/" if bare else ""


async def put_durably(
    store: BlobStore,
    groups: Sequence[PutGroup],
    *,
    retries: int = 2,
    pause: float = 0.05,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[StorageError | None]:
    """`put_many`, trying failed groups again up to `retries` times with `pause` seconds between (edge case J1).

    What is still an error afterwards must be refused for the time being: SMTP ``451 4.3.0``.
    """
    results = await store.put_many(groups)
    for _ in range(retries):
        failed = [i for i, result in enumerate(results) if result is not None]
        if not failed:
            break
        await sleep(pause)
        for i, result in zip(failed, await store.put_many([groups[i] for i in failed]), strict=True):
            results[i] = result
    return results
