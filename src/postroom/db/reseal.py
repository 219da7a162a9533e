"""Sealing anew what is stored sealed (security-privacy A6.3): the sweep over the registry of sealed columns.

A value is replaced only if it is still the one that was opened, each in a transaction of its own: whoever writes
meanwhile wins, any number of sweeps may run at once, and one that is killed has done what it has done. What no key
opens is left as it is, and counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from postroom.base import log as base_log
from postroom.base.sealed_columns import REGISTRY, SealedColumn
from postroom.base.sealing import Keyring, UnknownKeyError, UnsealError, prefix_of, sealed_under
from postroom.db.pool import Database

log = base_log.get("reseal")

PAGE: Final = 100

# The prefix, 21 octets, is compared as such; a value of before 0.1 has another one, too. What stands behind it is for
# `look` to find out: it counts as sealed here, whether it opens or not.
_COUNT: Final = """
SELECT count(*) FROM {table} WHERE {column} IS NOT NULL AND substring({column} FROM 1 FOR 21) <> $1
"""
_KINDS: Final = """
SELECT CASE WHEN substring({column} FROM 1 FOR 4) = 'pm1.' THEN substring({column} FROM 5 FOR 16) END AS kid,
       count(*) AS n
FROM {table} WHERE {column} IS NOT NULL GROUP BY 1
"""
_PAGE: Final = """
SELECT {keys}, {column} FROM {table} WHERE {column} IS NOT NULL AND substring({column} FROM 1 FOR 21) <> $1 {after}
ORDER BY {keys} LIMIT {limit}
"""
_LOOK: Final = """
SELECT {keys}, {column} FROM {table} WHERE {column} IS NOT NULL {after} ORDER BY {keys} LIMIT {limit}
"""
_SAMPLE: Final = "SELECT {keys}, {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY {keys} LIMIT 1"
_REPLACE: Final = "UPDATE {table} SET {column} = $1 WHERE {column} = $2 AND {row}"


@dataclass(frozen=True, slots=True)
class Swept:
    """Values that were sealed anew, that somebody else changed or removed meanwhile, and that no key opens."""

    resealed: int = 0
    overtaken: int = 0
    unopened: int = 0

    def __add__(self, more: Swept) -> Swept:
        return Swept(self.resealed + more.resealed, self.overtaken + more.overtaken, self.unopened + more.unopened)


@dataclass(frozen=True, slots=True)
class Looked:
    """A page of a column. `broken` values name a key that is held, or none, and do not open; what is under a key that
    is not held `standing` tells.
    """

    column: SealedColumn
    values: int
    broken: int


async def remaining(database: Database, kid: str) -> int:
    """Sealed values that are not under that key."""
    counts = []
    async with database.acquire() as conn:
        for column in REGISTRY:
            counts.append(await conn.fetchval(_sql(_COUNT, column), prefix_of(kid)))
    return sum(counts)


async def standing(database: Database) -> dict[str, Mapping[str | None, int]]:
    """For each sealed column, how many values are under which kid; None is how they were sealed before 0.1."""
    found: dict[str, Mapping[str | None, int]] = {}
    async with database.acquire() as conn:
        for column in REGISTRY:
            rows = await conn.fetch(_sql(_KINDS, column))
            found[column.name] = {
                None if row["kid"] is None else bytes(row["kid"]).decode("ascii", "replace"): row["n"] for row in rows
            }
    return found


async def opens_any(database: Database, keyring: Keyring) -> bool:
    """Whether the keys are of this database: they open one value at least of those that are looked at, one of each
    column; or there is none.
    """
    seen = False
    async with database.acquire() as conn:
        for column in REGISTRY:
            for row in await conn.fetch(_sql(_SAMPLE, column)):
                seen = True
                if _opened(keyring, column, row) is not None:
                    return True
    return not seen


async def look(database: Database, keyring: Keyring) -> AsyncIterator[Looked]:
    """Open each value once, a page at a time, and change nothing. What is written meanwhile may be seen or not."""
    for column in REGISTRY:
        after: tuple[Any, ...] | None = None
        while True:
            rows = await _rows(database, _LOOK, column, after, ())
            if rows:
                yield Looked(column, len(rows), sum(_is_broken(keyring, column, row) for row in rows))
            if len(rows) < PAGE:
                break
            after = _row(column, rows[-1])


async def sweep(database: Database, keyring: Keyring, *, limit: int | None = None) -> Swept:
    """Seal anew what is not under the active key, at most `limit` values (None: all). May run twice."""
    total = Swept()
    async for done in rounds(database, keyring):
        total += done
        if limit is not None and total.resealed + total.overtaken >= limit:
            break
    return total


async def rounds(database: Database, keyring: Keyring) -> AsyncIterator[Swept]:
    """The same by the page: what each page came to."""
    for column in REGISTRY:
        after: tuple[Any, ...] | None = None
        while True:
            rows = await _rows(database, _PAGE, column, after, (prefix_of(keyring.active),))
            if not rows:
                break
            yield await _reseal(database, keyring, column, rows)
            if len(rows) < PAGE:
                break
            after = _row(column, rows[-1])


async def _rows(
    database: Database, template: str, column: SealedColumn, after: tuple[Any, ...] | None, values: tuple[Any, ...]
) -> Sequence[Any]:
    """A page of the statement, whose own values come first, from behind that row."""
    condition = ""
    if after is not None:
        marks = ", ".join(f"${at}::{kind}" for at, (_, kind) in enumerate(column.row, len(values) + 1))
        condition = f"AND ({', '.join(column.keys)}) > ({marks})"
    statement = _sql(template, column, after=condition, limit=PAGE)
    async with database.acquire() as conn:
        return list(await conn.fetch(statement, *values, *(after or ())))


async def _reseal(database: Database, keyring: Keyring, column: SealedColumn, rows: Sequence[Any]) -> Swept:
    names = " AND ".join(f"{name} = ${at}::{kind}" for at, (name, kind) in enumerate(column.row, 3))
    statement = _sql(_REPLACE, column, row=names)
    resealed = overtaken = unopened = 0
    strange: set[str | None] = set()
    async with database.acquire() as conn:
        for row in rows:
            value = _opened(keyring, column, row)
            if value is None:
                unopened += 1
                strange.add(sealed_under(bytes(row[column.column])))
                continue
            key, old = _row(column, row), bytes(row[column.column])
            # No more than one row's lock at a time: two sweeps cannot be in each other's way.
            done = await conn.execute(statement, keyring.seal(column, value, *key), old, *key)
            if done == "UPDATE 1":
                resealed += 1
            else:
                overtaken += 1
    for kid in strange:
        log.error("sealed_values_unusable", column=column.name, master_kid=kid, count=unopened)
    return Swept(resealed, overtaken, unopened)


def _opened(keyring: Keyring, column: SealedColumn, row: Any) -> bytes | None:
    try:
        return keyring.open(column, bytes(row[column.column]), *_row(column, row))
    except UnsealError:
        return None


def _is_broken(keyring: Keyring, column: SealedColumn, row: Any) -> bool:
    try:
        keyring.open(column, bytes(row[column.column]), *_row(column, row))
    except UnknownKeyError:
        return False
    except UnsealError:
        return True
    return False


def _row(column: SealedColumn, row: Any) -> tuple[Any, ...]:
    return tuple(row[name] for name in column.keys)


def _sql(template: str, column: SealedColumn, **more: object) -> str:
    return template.format(table=column.table, column=column.column, keys=", ".join(column.keys), **more)
