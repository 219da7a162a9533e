"""A committer's own session when its database goes away, however the driver says so."""

from __future__ import annotations

from typing import Any, cast

import asyncpg
import pytest

from postroom.db import Database
from postroom.db.errors import BROKEN
from postroom.mailbox.committing import Session

FAULTS: list[BaseException] = [
    ConnectionResetError(),
    TimeoutError(),
    asyncpg.ConnectionDoesNotExistError("gone"),
    asyncpg.AdminShutdownError("shut down"),
    asyncpg.InterfaceError("connection is closed"),
    asyncpg.InternalClientError("got result for unknown protocol state 3"),
]


class Connection:
    """Does as it is told; `fault` is what the next statements raise, `closed` whether the driver knows."""

    def __init__(self) -> None:
        self.fault: BaseException | None = None
        self.asked: list[str] = []
        self.open = self.terminated = False

    async def execute(self, statement: str) -> None:
        self.asked.append(statement)
        if self.fault is not None:
            raise self.fault
        self.open = statement == "BEGIN"

    async def close(self, timeout: float) -> None:
        if self.fault is not None:
            raise self.fault

    def is_closed(self) -> bool:
        return False

    def is_in_transaction(self) -> bool:
        return self.open

    def terminate(self) -> None:
        self.terminated = True
        if self.fault is not None:
            raise self.fault


class Connections:
    """The database: a new connection each time."""

    def __init__(self) -> None:
        self.made: list[Connection] = []

    async def connect(self, **_: Any) -> Connection:
        self.made.append(Connection())
        return self.made[-1]


@pytest.mark.covers("decisions:B15", "edge:J1")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_a_session_outlives_its_connection(fault: BaseException) -> None:
    assert isinstance(fault, BROKEN)
    database = Connections()
    session = Session(cast(Database, database))
    await session.begin()
    # There was nothing to store after all, and meanwhile the database has gone.
    database.made[0].fault = fault
    await session.abandon()
    assert (session.begun, database.made[0].terminated) == (False, True)
    await session.begin()
    assert (session.begun, len(database.made)) == (True, 2)
    # While a transaction is begun.
    await session.abandon()
    database.made[1].fault = fault
    await session.begin()
    assert not session.begun
    await session.begin()
    assert (session.begun, len(database.made)) == (True, 3)
    # Within it.
    database.made[2].fault = fault
    with pytest.raises(type(fault)):
        async with session.use() as conn:
            await conn.execute("SELECT 1")
    await session.begin()
    assert (session.begun, len(database.made)) == (True, 4)
    # At the end.
    database.made[3].fault = fault
    await session.close()
