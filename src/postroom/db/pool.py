"""The process's connections to PostgreSQL (B15, B19).

One :class:`Database` per process. It opens a pool, sets up codecs, refuses a server it cannot work with, and refuses
a task that holds one connection to wait for a second: with every task doing so the pool would stand still for ever.

Connections go back to the pool without a reset query (a round trip each time). So whatever takes one leaves no
session state behind: ``SET LOCAL``, transaction-level advisory locks, no LISTEN, no temporary tables. What needs a
session takes a connection of its own (:meth:`Database.connect`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg
import orjson
from asyncpg.transaction import Transaction

from postroom.base import log

from .errors import BROKEN, DatabaseRefusedError, DatabaseUnavailable, NestedAcquireError, UnsupportedServerError
from .launcher import LocalPostgres

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    _Pooled: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
    Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
    _RawConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
    _Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
else:
    _Pooled: TypeAlias = asyncpg.Connection
    Connection: TypeAlias = asyncpg.Connection
    _RawConnection: TypeAlias = asyncpg.Connection
    _Pool: TypeAlias = asyncpg.Pool

_log = log.get("db.pool")

MINIMUM_VERSION = 150000
SCHEMA = "postroom"
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_JSONB_VERSION = b"\x01"


_UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
)
_REFUSED = (
    ValueError,  # a malformed URL
    asyncpg.InvalidPasswordError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


class Isolation(Enum):
    """Transaction isolation levels other than the server's default, as asyncpg names them."""

    REPEATABLE_READ = "repeatable_read"


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """Which database, and how a session there is set up. ``url`` is a libpq URL; ``connect_timeout`` is in seconds."""

    url: str
    application_name: str = "postroom"
    connect_timeout: float = 10.0
    statement_cache_size: int = 500
    settings: Mapping[str, str] = field(default_factory=dict)
    command_timeout: float | None = None
    """Seconds that no statement outlives unless it names a timeout of its own."""

    def arguments(self) -> dict[str, Any]:
        """What asyncpg's connect functions take."""
        return {
            "dsn": self.url,
            "timeout": self.connect_timeout,
            "statement_cache_size": self.statement_cache_size,
            "command_timeout": self.command_timeout,
            "server_settings": {
                "application_name": self.application_name,
                # Extensions of an external server may be installed in public.
                "search_path": f"{SCHEMA}, public",
                "timezone": "UTC",
                **self.settings,
            },
        }

    async def connect(self) -> _RawConnection:
        """A connection of the caller's own, codecs set up; the caller closes it.

        Raises DatabaseUnavailable when none can be made now, DatabaseRefusedError when none ever will.
        """
        try:
            connection = await asyncpg.connect(**self.arguments(), connection_class=_Connection)
        except _REFUSED as exc:
            raise DatabaseRefusedError(f"the database refuses us, see POSTROOM_DATABASE_URL: {exc}") from exc
        except _UNREACHABLE as exc:
            raise DatabaseUnavailable(f"the database cannot be reached: {type(exc).__name__}") from exc
        await set_up_codecs(connection)
        return connection


class _Connection(asyncpg.Connection):
    """asyncpg's connection, with no query on its way back to the pool; an open transaction is still rolled back."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A pool of connections to one database.

    *source* is a URL or the :class:`LocalPostgres` that serves it. ``max_size`` × processes must stay under the
    server's ``max_connections`` with a few to spare for the dedicated connections (B19). *acquire_timeout* and
    *command_timeout* are seconds; no statement outlives the latter unless it names a timeout of its own.
    """

    def __init__(
        self,
        source: str | LocalPostgres,
        *,
        min_size: int = 2,
        max_size: int = 20,
        acquire_timeout: float = 10.0,
        command_timeout: float = 60.0,
        application_name: str = "postroom",
        statement_cache_size: int = 500,
        settings: Mapping[str, str] = _NO_SETTINGS,
    ) -> None:
        if not 0 <= min_size <= max_size or max_size < 1:
            raise ValueError("a pool needs 0 <= min_size <= max_size and room for one connection")
        self.target = ConnectionTarget(
            url=source if isinstance(source, str) else source.dsn,
            application_name=application_name,
            statement_cache_size=statement_cache_size,
            settings=settings,
            command_timeout=command_timeout,
        )
        self._min_size = min_size
        self._max_size = max_size
        self._acquire_timeout = acquire_timeout
        self._pool: _Pool | None = None
        self._holders: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Database:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Check the server and open the pool.

        Raises UnsupportedServerError (too old, not UTF-8), DatabaseRefusedError or DatabaseUnavailable (not reachable).
        """
        if self._pool is not None:
            return
        connection = await self.target.connect()
        try:
            await _check_server(connection)
        finally:
            await connection.close(timeout=5)
        try:
            self._pool = await asyncpg.create_pool(
                **self.target.arguments(),
                min_size=self._min_size,
                max_size=self._max_size,
                connection_class=_Connection,
                init=set_up_codecs,
            )
        except _UNREACHABLE as exc:
            raise DatabaseUnavailable(f"the database cannot be reached: {type(exc).__name__}") from exc

    async def close(self, *, patience: float = 10.0) -> None:
        """Wait up to *patience* seconds for connections in use, then close them all."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), patience)
        except TimeoutError:
            pool.terminate()

    async def connect(
        self, *, settings: Mapping[str, str] = _NO_SETTINGS, command_timeout: float | None = None
    ) -> _RawConnection:
        """A connection outside the pool, for what needs a session of its own, with more settings of that session. The
        caller closes it. Raises DatabaseUnavailable.
        """
        target = replace(self.target, settings={**self.target.settings, **settings}, command_timeout=command_timeout)
        return await target.connect()

    @contextlib.asynccontextmanager
    async def acquire(self, *, timeout: float | None = None) -> AsyncIterator[Connection]:
        """A pooled connection for the block, each statement its own transaction.

        Raises NestedAcquireError when this task already holds one (B19), DatabaseUnavailable when none is free or
        reachable within *timeout* seconds (default: the pool's).
        """
        pool = self._pool
        if pool is None:
            raise RuntimeError("the database is not open")
        task = asyncio.current_task()
        assert task is not None
        if task in self._holders:
            raise NestedAcquireError("this task holds a connection already: pass it down instead of acquiring another")
        self._holders.add(task)
        try:
            connection = await self._take(pool, self._acquire_timeout if timeout is None else timeout)
            try:
                yield connection
            finally:
                await self._give_back(pool, connection)
        finally:
            self._holders.discard(task)

    @contextlib.asynccontextmanager
    async def transaction(
        self, isolation: Isolation | None = None, *, readonly: bool = False, timeout: float | None = None
    ) -> AsyncIterator[Connection]:
        """A pooled connection with a transaction around the block: committed at its end, rolled back when it raises.

        An error of the connection itself out of the commit leaves its outcome unknown (B15).
        """
        async with self.acquire(timeout=timeout) as connection:
            level: Any = isolation.value if isolation is not None else None
            transaction = connection.transaction(isolation=level, readonly=readonly)
            await transaction.start()
            try:
                yield connection
            except BaseException:
                await _roll_back(connection, transaction)
                raise
            await transaction.commit()

    async def _take(self, pool: _Pool, timeout: float) -> _Pooled:
        try:
            return await pool.acquire(timeout=timeout)
        except TimeoutError as exc:
            raise DatabaseUnavailable(f"no database connection was free within {timeout:g} s") from exc
        except _UNREACHABLE as exc:
            raise DatabaseUnavailable(f"the database cannot be reached: {type(exc).__name__}") from exc

    async def _give_back(self, pool: _Pool, connection: _Pooled) -> None:
        try:
            await pool.release(connection, timeout=self._acquire_timeout)
        except BROKEN as exc:
            # The pool has closed it. What the block did is decided: a commit that succeeded must not become an error.
            _log.debug("a broken connection was dropped", error_class=type(exc).__name__)

    def stats(self) -> dict[str, int]:
        """Sizes for the metrics page: ``size``, ``idle``, ``max``."""
        if self._pool is None:
            return {"size": 0, "idle": 0, "max": self._max_size}
        return {"size": self._pool.get_size(), "idle": self._pool.get_idle_size(), "max": self._max_size}


async def _roll_back(connection: Connection, transaction: Transaction) -> None:
    """Roll back; on a connection that is broken, end it, so that the block's own error is the one that is seen."""
    try:
        await transaction.rollback()
    except BROKEN as exc:
        # When the session ended by itself the pool has taken the connection back already.
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.terminate()
        _log.debug("a broken connection was ended", error_class=type(exc).__name__)


async def _check_server(connection: _RawConnection) -> None:
    version = int(await connection.fetchval("SHOW server_version_num", timeout=10))
    if version < MINIMUM_VERSION:
        raise UnsupportedServerError(
            f"the database server is PostgreSQL {version // 10000}, and Postroom needs {MINIMUM_VERSION // 10000} or "
            f"newer: upgrade it, "
            f"or leave POSTROOM_DATABASE_URL unset to use the PostgreSQL that comes with Postroom"
        )
    encoding = await connection.fetchval("SHOW server_encoding", timeout=10)
    if encoding != "UTF8":
        raise UnsupportedServerError(
            f"the database is encoded in {encoding}, and mail needs UTF8: create it with ENCODING 'UTF8' TEMPLATE "
            f"template0"
        )


async def set_up_codecs(connection: Connection) -> None:
    """``jsonb`` and ``json`` are Python values, by orjson."""
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=_encode_jsonb, decoder=_decode_jsonb, format="binary"
    )
    await connection.set_type_codec(
        "json", schema="pg_catalog", encoder=orjson.dumps, decoder=orjson.loads, format="binary"
    )


def _encode_jsonb(value: Any) -> bytes:
    return _JSONB_VERSION + orjson.dumps(value)


def _decode_jsonb(data: bytes) -> Any:
    return orjson.loads(data[1:])
