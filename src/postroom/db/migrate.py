"""Brings a database to the schema of this program (data-model §17.6).

Migrations are files ``NNNN_name.sql`` in ``db/migrations``, numbered from 1 without gaps, forward only. Each runs in
one transaction with the row that records it. One runner at a time works on a database, under an advisory lock; the
others wait and find nothing left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.resources
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

import asyncpg

from postroom.base import log

from .errors import MigrationError
from .pool import SCHEMA, ConnectionTarget, Database

if TYPE_CHECKING:
    from .pool import _RawConnection

_log = log.get("db.migrate")

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql", re.ASCII)
# "postroom" as a number; advisory locks are per database.
_LOCK_KEY = 0x706F7374726F6F6D
_QUERY_TIMEOUT = 30.0
_MIGRATIONS_TABLE = f"""
CREATE TABLE {SCHEMA}.schema_migrations (
    version    integer PRIMARY KEY CHECK (version > 0),
    name       text COLLATE "C" NOT NULL,
    checksum   text COLLATE "C" NOT NULL,
    applied_at timestamptz(3) NOT NULL DEFAULT now()
)
"""
# The previous release must run on the schema of the next (cli-config-ops A8), but no further.
_MAY_BE_AHEAD = 1
_LOCK_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. ``checksum`` is the SHA-256 of its text with line ends normalised."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.replace("\r\n", "\n").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """Where a database stands: versions applied, migrations yet to run, and applied versions that only a newer
    program knows (at most one, worth a warning).
    """

    applied: tuple[int, ...]
    pending: tuple[Migration, ...]
    ahead: tuple[int, ...]


def read_migrations(directory: Traversable) -> tuple[Migration, ...]:
    """The migrations in *directory*, in order. Raises MigrationError for a misnamed file, a number used twice, or a
    gap.
    """
    found: dict[int, Migration] = {}
    for entry in directory.iterdir():
        if not entry.name.endswith(".sql"):
            continue
        match = _FILE_NAME.fullmatch(entry.name)
        if match is None:
            raise MigrationError(f"{entry.name} is not named like 0001_what_it_does.sql")
        version = int(match[1])
        if version in found:
            raise MigrationError(f"two migrations have the number {version:04}: {found[version].name} and {match[2]}")
        found[version] = Migration(version, match[2], entry.read_text(encoding="utf-8"))
    ordered = tuple(found[version] for version in sorted(found))
    for expected, migration in enumerate(ordered, start=1):
        if migration.version != expected:
            raise MigrationError(f"migration {expected:04} is missing before {migration.version:04}_{migration.name}")
    return ordered


def packaged_migrations() -> tuple[Migration, ...]:
    """The migrations of this program."""
    return read_migrations(importlib.resources.files(__package__).joinpath("migrations"))


class Migrator:
    """Runs *migrations* on the database of *target*, over a connection of its own."""

    def __init__(
        self,
        target: ConnectionTarget | Database,
        migrations: Sequence[Migration] | None = None,
        *,
        lock_patience: float = 600.0,
    ) -> None:
        self._target = target.target if isinstance(target, Database) else target
        self._migrations = tuple(packaged_migrations() if migrations is None else migrations)
        self._lock_patience = lock_patience

    async def status(self) -> MigrationStatus:
        """What has run and what is pending, changing nothing. Raises MigrationError when they do not fit together."""
        connection = await self._target.connect()
        try:
            return await self._status(connection)
        finally:
            await connection.close(timeout=5)

    async def pending(self) -> tuple[Migration, ...]:
        """What :meth:`run` would apply; empty when the schema is up to date."""
        return (await self.status()).pending

    async def run(self) -> tuple[Migration, ...]:
        """Apply what is pending, and return it.

        Raises MigrationError when a migration that ran was changed since, when the database is newer than this
        program, when the lock is not had in time, or when a file fails; earlier files stay applied, the failed one
        leaves nothing.
        """
        connection = await self._target.connect()
        try:
            async with self._locked(connection):
                await self._make_table(connection)
                status = await self._status(connection)
                if status.ahead:
                    _log.warning("the schema is of the next release", version=status.ahead[-1])
                for migration in status.pending:
                    await self._apply(connection, migration)
                return status.pending
        finally:
            await connection.close(timeout=5)

    @contextlib.asynccontextmanager
    async def _locked(self, connection: _RawConnection) -> AsyncIterator[None]:
        deadline = time.monotonic() + self._lock_patience
        while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK_KEY, timeout=_QUERY_TIMEOUT):
            if time.monotonic() > deadline:
                raise MigrationError(
                    f"another node has been migrating this database for {self._lock_patience:.0f} s: see what it is "
                    f"doing"
                )
            await asyncio.sleep(_LOCK_POLL)
        try:
            yield
        finally:
            # The session ends right after; a lost connection has let go of the lock already.
            if not connection.is_closed():
                await connection.execute("SELECT pg_advisory_unlock_all()", timeout=_QUERY_TIMEOUT)

    async def _make_table(self, connection: _RawConnection) -> None:
        exists = await connection.fetchval(
            "SELECT to_regclass($1) IS NOT NULL", f"{SCHEMA}.schema_migrations", timeout=_QUERY_TIMEOUT
        )
        if exists:
            return
        try:
            async with connection.transaction():
                await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}", timeout=_QUERY_TIMEOUT)
                await connection.execute(_MIGRATIONS_TABLE, timeout=_QUERY_TIMEOUT)
        except asyncpg.InsufficientPrivilegeError as exc:
            raise MigrationError(
                f"the database role may not create the schema {SCHEMA}: GRANT CREATE ON DATABASE to it, or make it the "
                f"owner"
            ) from exc

    async def _status(self, connection: _RawConnection) -> MigrationStatus:
        exists = await connection.fetchval(
            "SELECT to_regclass($1) IS NOT NULL", f"{SCHEMA}.schema_migrations", timeout=_QUERY_TIMEOUT
        )
        if not exists:
            return MigrationStatus((), self._migrations, ())
        rows = await connection.fetch(
            "SELECT version, name, checksum FROM postroom.schema_migrations ORDER BY version", timeout=_QUERY_TIMEOUT
        )
        known = {migration.version: migration for migration in self._migrations}
        for expected, row in enumerate(rows, start=1):
            version = row["version"]
            if version != expected:
                raise MigrationError(
                    f"the database has migration {version:04} but not {expected:04}: schema_migrations was tampered "
                    f"with"
                )
            if version in known and row["checksum"] != known[version].checksum:
                raise MigrationError(
                    f"migration {version:04}_{row['name']} was changed after it ran on this database, an applied file "
                    f"is "
                    "frozen: install an unmodified Postroom, or make the database anew if a development version made it"
                )
        applied = tuple(row["version"] for row in rows)
        ahead = applied[len(known) :]
        if len(ahead) > _MAY_BE_AHEAD:
            raise MigrationError(
                f"the database is newer than this program: it has migration {applied[-1]:04}, this program knows "
                f"{len(known)}. Install the Postroom that ran on it last, or restore a backup from before"
            )
        return MigrationStatus(applied, self._migrations[len(applied) :], ahead)

    async def _apply(self, connection: _RawConnection, migration: Migration) -> None:
        began = time.monotonic()
        try:
            async with connection.transaction():
                # A rewrite of a large table takes the time it takes; what must not be long is waiting for somebody's
                # lock.
                await connection.execute("SET LOCAL lock_timeout = '60s'", timeout=_QUERY_TIMEOUT)
                await connection.execute(migration.sql, timeout=None)
                await connection.execute(
                    "INSERT INTO postroom.schema_migrations (version, name, checksum) VALUES ($1, $2, $3)",
                    migration.version,
                    migration.name,
                    migration.checksum,
                    timeout=_QUERY_TIMEOUT,
                )
        except Exception as exc:
            raise MigrationError(
                f"migration {migration.version:04}_{migration.name} failed, nothing of it was kept: {exc}"
            ) from exc
        _log.info("migration applied", version=migration.version, duration_ms=round((time.monotonic() - began) * 1000))
