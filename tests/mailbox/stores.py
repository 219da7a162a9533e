"""Blob stores that keep bytes in memory, and fail when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from postroom.blobs.store import PutGroup, StorageError


class MemoryBlobs:
    """What ingest needs of a store. `fault` is asked at each put of a batch; what it returns or raises happens."""

    def __init__(self, fault: Callable[[int], StorageError | None] = lambda _: None) -> None:
        self.kept: dict[str, bytes] = {}
        self.deleted: list[str] = []
        self.puts = 0
        self.fault = fault

    async def put_many(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
        await asyncio.sleep(0)
        self.puts += 1
        results: list[StorageError | None] = []
        for number, group in enumerate(groups):
            error = self.fault(number)
            if error is None:
                for key in group.keys:
                    self.kept[key] = b"".join(map(bytes, group.pieces))
            results.append(error)
        return results

    async def delete(self, keys: Iterable[str], *, durably: bool = True) -> None:
        for key in keys:
            self.deleted.append(key)
            self.kept.pop(key, None)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"ingest has no business with {name}")
