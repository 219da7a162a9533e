"""Public ids of domains by their row keys, which never change: remembered for the life of the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from postroom.db import Database

MAX_KNOWN: Final = 100_000

_SELECT: Final = "SELECT id, public_id FROM domains WHERE id = ANY ($1::bigint[])"


class DomainIds:
    """Looks up what it does not know yet, in one statement."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, str] = {}

    async def of(self, keys: Iterable[int]) -> Mapping[int, str]:
        """The public id of every key that has one."""
        wanted = set(keys)
        missing = [key for key in wanted if key not in self._known]
        if missing:
            if len(self._known) + len(missing) > MAX_KNOWN:
                self._known.clear()
                missing = list(wanted)
            async with self._database.acquire() as conn:
                for row in await conn.fetch(_SELECT, missing):
                    self._known[row["id"]] = row["public_id"]
        return self._known
