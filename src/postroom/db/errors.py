"""What can go wrong with the database, and what each failure means to the caller (B15).

The classifiers look at the SQLSTATE (PostgreSQL manual, appendix A) and, for failures of the connection itself, at
the class of the exception. They answer about one exception only; a lost connection at COMMIT stays ambiguous whatever
they say.
"""

from __future__ import annotations

import asyncpg

_DATA_CLASSES = frozenset({"22", "23", "54"})
_SERIALIZATION = frozenset({"40001", "40P01"})
_LOCK_NOT_AVAILABLE = "55P03"
_DISK_FULL = "53100"
# Connection exceptions (class 08), operator intervention that ends a session, and a server that is not (yet) taking
# sessions.
_CONNECTION_LOST = frozenset({"57P01", "57P02", "57P03", "57P05"})
# The driver has no class of its own for "it was closed before you asked".
_CLOSED_WORDS = ("connection is closed", "connection was closed", "connection has been released back to the pool")
# Resources short (53: disk, memory, connections), lock timeouts, cancelled or timed-out statements, I/O errors of the
# server.
_TRANSIENT_CLASSES = frozenset({"08", "53", "58"})
_TRANSIENT = _CONNECTION_LOST | _SERIALIZATION | {_LOCK_NOT_AVAILABLE, "57014", "25P03", "25P04"}


BROKEN = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""How a connection that has lost its server may answer the next call; the driver's own state can be out of step."""


class DatabaseError(Exception):
    """Base of the errors that this package raises itself. The message says what happened and what to do."""


class DatabaseUnavailable(DatabaseError):
    """No connection could be had in time: the pool is exhausted, or the server is down. Transient."""


class DatabaseRefusedError(DatabaseError):
    """The URL is wrong, or the server does not let us in: no such role or database, bad password. An operator acts."""


class UnsupportedServerError(DatabaseError):
    """The server is too old, or the database is not UTF-8. Permanent until an operator acts."""


class NestedAcquireError(RuntimeError):
    """A task that holds a pooled connection asked for another one (B19): a programming error, a deadlock waiting to
    happen.
    """


class MigrationError(DatabaseError):
    """The schema and this program's migrations do not fit together. Nothing has been changed by the attempt that
    raised it.
    """


class PostgresLaunchError(DatabaseError):
    """The bundled PostgreSQL cannot be started, adopted or stopped."""


def sqlstate(exc: BaseException) -> str | None:
    """The five-character SQLSTATE of *exc*, or None when it does not come from the server."""
    state = getattr(exc, "sqlstate", None)
    return state if isinstance(state, str) else None


def is_data_error(exc: BaseException) -> bool:
    """The row itself is at fault (SQLSTATE 22, 23, 54, or a value the driver cannot encode): the same row fails
    again, others do not.
    """
    if isinstance(exc, asyncpg.exceptions.DataError):
        return True
    state = sqlstate(exc)
    return state is not None and state[:2] in _DATA_CLASSES


def is_serialization(exc: BaseException) -> bool:
    """Serialisation failure or deadlock victim (40001, 40P01): retry the whole transaction."""
    return sqlstate(exc) in _SERIALIZATION


def is_lock_timeout(exc: BaseException) -> bool:
    """A lock was not had within ``lock_timeout``, or with NOWAIT (55P03)."""
    return sqlstate(exc) == _LOCK_NOT_AVAILABLE


def is_disk_full(exc: BaseException) -> bool:
    """The server has no disk space left (53100)."""
    return sqlstate(exc) == _DISK_FULL


def is_connection_lost(exc: BaseException) -> bool:
    """The connection is gone or was never made. At COMMIT the outcome is unknown: look rows up by id before deciding
    (B15).
    """
    state = sqlstate(exc)
    if state is not None:
        return state[:2] == "08" or state in _CONNECTION_LOST
    if isinstance(exc, asyncpg.InternalClientError):
        # The driver finds its protocol out of step: what it says when a session dies inside a statement.
        return True
    if isinstance(exc, asyncpg.InterfaceError) and not isinstance(exc, asyncpg.exceptions.DataError):
        # A pooled connection whose session ended while nobody was asking is taken back by the pool at once.
        return any(words in str(exc) for words in _CLOSED_WORDS)
    # OSError covers refused, reset and broken sockets, and a socket file that is not there.
    return isinstance(exc, ConnectionError | FileNotFoundError | EOFError)


def is_transient(exc: BaseException) -> bool:
    """The same work may succeed later: connection lost, resources short, lock or statement timeout, serialisation,
    pool exhausted.
    """
    if isinstance(exc, DatabaseUnavailable | TimeoutError) or is_connection_lost(exc):
        return True
    state = sqlstate(exc)
    return state is not None and (state in _TRANSIENT or state[:2] in _TRANSIENT_CLASSES)
