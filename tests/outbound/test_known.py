"""Whom a mailbox has written to, with a thread token in the address or without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.rules import without_token
from postroom.outbound.known import written_to
from postroom.outbound.models import NewRecipient, RecipientField, RouteKind
from tests.outbound.mail_room import MailRoom

TOKEN, OTHER = "+t03k.9f2mq7xa", "+tz1.00000000"


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path / "mail")
    yield made
    await made.close()


@pytest.mark.covers("edge:A2")
@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        (f"ann{TOKEN}@example.com", "ann@example.com"),
        ("ann@example.com", "ann@example.com"),
        ("ann+news@example.com", "ann+news@example.com"),
        (f"ann+x{TOKEN}@example.com", f"ann+x{TOKEN}@example.com"),  # the detail begins at the first plus
        (f"{TOKEN}@example.com", "@example.com"),
    ],
)
def test_a_token_is_not_part_of_whom(address: str, wanted: str) -> None:
    assert without_token(address) == wanted


@given(st.text("at+.0k@", max_size=30))
def test_any_address(address: str) -> None:
    assert without_token(without_token(address)) == without_token(address)


@pytest.mark.covers("edge:E2", "FR-OUT-13", "decisions:B12")
@pytest.mark.parametrize(
    ("written", "asked", "known"),
    [
        ("ann@example.com", "ann@example.com", True),
        ("ann@example.com", f"ann{TOKEN}@example.com", True),
        (f"ann{TOKEN}@example.com", "ann@example.com", True),
        (f"ann{TOKEN}@example.com", f"ann{OTHER}@example.com", True),
        (f"ann{TOKEN}@example.com", f"ann{TOKEN}@example.org", False),
        (f"ann{TOKEN}@example.com", "ann@example.org", False),
        (f"ann{TOKEN}@example.com", "ann@ample.com", False),
        (f"ann{TOKEN}@example.com", "an@example.com", False),
        (f"ann{TOKEN}@example.com", "anna@example.com", False),
        (f"ann{TOKEN}@example.com", "ann+news@example.com", False),
        ("ann+news@example.com", "ann@example.com", False),
        ("ann+today@example.com", "ann@example.com", False),
        (f"ann+x{TOKEN}@example.com", "ann@example.com", False),
        ("a_n%@example.com", "a_n%@example.com", True),
        (f"ann{TOKEN}@example.com", "_nn@example.com", False),
        ("ann@example.com", "", False),
    ],
)
async def test_whom_it_has_written_to(room: MailRoom, written: str, asked: str, known: bool) -> None:
    await room.accept(written)
    ref = room.box.ref
    async with room.db.acquire() as conn:
        assert await written_to(conn, ref, [asked]) == ({asked} if known else frozenset())
        assert await written_to(conn, ref, []) == frozenset()
        for other in (MailboxRef(ref.tenant_id, ref.mailbox_id + 1), MailboxRef(ref.tenant_id + 1, ref.mailbox_id)):
            assert await written_to(conn, other, [asked]) == frozenset()


@pytest.mark.covers("edge:E2")
async def test_what_was_suppressed_was_not_written(room: MailRoom) -> None:
    for address in ("ann@example.com", f"bob{TOKEN}@example.com"):
        await room.accept(NewRecipient(address, RecipientField.TO, RouteKind.DIRECT, suppressed="unknown_recipient"))
    async with room.db.acquire() as conn:
        asked = ["ann@example.com", "bob@example.com", f"bob{TOKEN}@example.com"]
        assert await written_to(conn, room.box.ref, asked) == frozenset()
