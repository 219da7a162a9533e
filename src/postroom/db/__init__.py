"""The database room: how Postroom reaches PostgreSQL, and the primitives that every department builds on.

* :mod:`.launcher` runs the bundled PostgreSQL of a one-machine installation (B17);
* :mod:`.pool` is the process's connection pool, :mod:`.errors` what its failures mean (B15, B19);
* :mod:`.migrate` brings a database to the schema of this program;
* :mod:`.claim` hands out work that is recorded in product rows (B1);
* :mod:`.notify` sends and receives wake-up hints between processes (B13).

Nothing here knows a product table.
"""

from .claim import Claim, ClaimBatch, ClaimQueue, ClaimSpec, Finish, ParkedRow, QueueCounts, Retry, queue
from .errors import (
    DatabaseRefusedError,
    DatabaseUnavailable,
    MigrationError,
    NestedAcquireError,
    PostgresLaunchError,
    UnsupportedServerError,
    is_connection_lost,
    is_data_error,
    is_disk_full,
    is_lock_timeout,
    is_serialization,
    is_transient,
)
from .launcher import LocalPostgres
from .migrate import Migration, MigrationStatus, Migrator, packaged_migrations
from .notify import Listener, Notifier
from .pool import Connection, ConnectionTarget, Database, Isolation

__all__ = [
    "Claim",
    "ClaimBatch",
    "ClaimQueue",
    "ClaimSpec",
    "Connection",
    "ConnectionTarget",
    "Database",
    "DatabaseRefusedError",
    "DatabaseUnavailable",
    "Finish",
    "Isolation",
    "Listener",
    "LocalPostgres",
    "Migration",
    "MigrationError",
    "MigrationStatus",
    "Migrator",
    "NestedAcquireError",
    "Notifier",
    "ParkedRow",
    "PostgresLaunchError",
    "QueueCounts",
    "Retry",
    "UnsupportedServerError",
    "is_connection_lost",
    "is_data_error",
    "is_disk_full",
    "is_lock_timeout",
    "is_serialization",
    "is_transient",
    "packaged_migrations",
    "queue",
]
