"""Operations that a client may repeat, and that are done once (sync-webmail-client A4)."""

from __future__ import annotations

from typing import Protocol, TypeVar

from postroom.db import Connection

T = TypeVar("T")


class Once(Protocol[T]):
    """Remembers what an operation did in the transaction that does it, under the mailbox lock: of several who ask at
    once one does it, and a process that dies leaves either both or nothing.
    """

    async def begin(self, conn: Connection) -> T | None:
        """What it did when it was done, or None when it is to be done now. Raises `idempotency_conflict`."""
        ...

    async def complete(self, conn: Connection, done: T) -> None:
        """Keep what it did."""
        ...
