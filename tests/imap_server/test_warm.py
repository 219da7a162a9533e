"""A folder that is open is in memory: what asks for flags, UIDs and numbers asks the database nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroom.db import Connection, Database

ASKED = (
    b"FETCH 1:* (FLAGS)",
    b"FETCH 1:* (UID FLAGS MODSEQ)",
    b"UID FETCH 2:* (FLAGS)",
    b"SEARCH UNSEEN",
    b"UID SEARCH RETURN (MIN MAX COUNT ALL) NOT FLAGGED",
    b"UID SEARCH RETURN (PARTIAL 1:2) KEYWORD work",
    b"SEARCH UID 2:*",
    b"FETCH 2,4 (FLAGS)",
)


@pytest.mark.covers("mail-server:D6", "mail-server:D7")
async def test_a_warm_folder_asks_the_database_nothing(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await office.fill(5)
    client, other = await office.client(), await office.client()
    await client.ok(b"ENABLE CONDSTORE")
    await other.ok(b"STORE 1:3 +FLAGS (\\Seen work)")
    await other.ok(b"NOOP")
    await client.ok(b"NOOP")
    asked: list[str] = []
    acquire = Database.acquire

    @asynccontextmanager
    async def counted(self: Database, **given: Any) -> AsyncIterator[Connection]:
        async with acquire(self, **given) as conn:
            conn.add_query_logger(seen)
            try:
                yield conn
            finally:
                conn.remove_query_logger(seen)

    def seen(record: Any) -> None:
        asked.append(re.sub(r"\s+", " ", record.query))

    monkeypatch.setattr(Database, "acquire", counted)
    for command in ASKED:
        await client.ok(command)
    assert asked == []
    await client.ok(b"FETCH 1 (ENVELOPE)")
    assert asked, "what is asked of the database is seen"
