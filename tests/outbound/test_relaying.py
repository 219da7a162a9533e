"""The mailboxes of relays: nobody's to see, and empty again soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts import Level, NewKey
from postroom.accounts.models import PLATFORM_SCOPE, tenant_scope
from postroom.accounts.permissions import GrantRole
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.words import WordIndexer
from postroom.outbound.relaying import clear_relays
from postroom.outbound.rules import Action
from tests.mailbox.letters import check_mailbox
from tests.outbound.crossroads import OWN, Crossroads, crossroads
from tests.outbound.fake_mx import FakeMx
from tests.outbound.submitting import DOMAIN

HOUR = 3600
OUT = f"out@{OWN}"
LETTER = b"From: ann@example.com\r\nSubject: Secretword\r\nMessage-ID: <1@example.com>\r\n\r\nSecretword.\r\n"


@pytest.fixture
async def here(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Crossroads]:
    async with crossroads(db, clock, ids, tmp_path) as made:
        await made.alias(OUT, "bob@target.example")
        yield made
        async with db.acquire() as conn:
            for row in await conn.fetch("SELECT tenant_id, id FROM mailboxes"):
                await check_mailbox(conn, MailboxRef(row["tenant_id"], row["id"]))


async def clear(here: Crossroads) -> int:
    return await clear_relays(here.db, here.office.blobs, here.office.clock)


async def send(here: Crossroads, raw: bytes = LETTER) -> None:
    assert (await here.send(raw, OUT))[""][0] == 250


async def count(here: Crossroads, table: str) -> int:
    (row,) = await here.office.rows(f"SELECT count(*) FROM {table}")
    return int(row["count"])


@pytest.mark.covers("mail-server:A6", "mail-server:C9")
async def test_what_went_on_is_gone_after_an_hour(here: Crossroads) -> None:
    await here.send(LETTER, f"carol@{DOMAIN}")
    others = await here.office.blobs.list("")
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        await send(here)
        here.office.clock.advance(10 * HOUR)
        # It waits, however long.
        assert await clear(here) == 0
        await here.work()
        here.office.clock.advance(HOUR - 1)
        assert await clear(here) == 0
        here.office.clock.advance(2)
        assert sum(await asyncio.gather(*(clear(here) for _ in range(3)))) == 1
        assert await clear(here) == 0
        assert await here.office.blobs.list("") == others
        for table in ("outbound_messages", "deliveries", "delivery_attempts"):
            assert await count(here, table) == 0
        assert await count(here, "messages") == 1
        # It is known what was passed on, for as long as anybody tries again.
        await send(here)
        here.office.clock.advance(6 * 86_400)
        await clear(here)
        await send(here)
        assert await here.relayed() == []
        here.office.clock.advance(86_400)
        await clear(here)
        assert await count(here, "forwards") == 0
        await send(here)
        assert len(await here.relayed()) == 1


@pytest.mark.covers("mail-server:A6")
async def test_the_rows_say_nothing_of_the_content(here: Crossroads) -> None:
    await send(here)
    (row,) = await here.office.rows("SELECT m.*, t.* FROM messages m JOIN message_texts t ON t.message_id = m.id")
    assert "secretword" not in repr(dict(row)).lower()
    assert row["from_address"] == "ann@example.com"
    assert await count(here, "recipients") == 0


@pytest.mark.covers("mail-server:A6", "decisions:B20")
async def test_nothing_of_it_gets_into_the_word_index(here: Crossroads) -> None:
    """Words stay there when messages go."""
    await send(here)
    await here.send(LETTER.replace(b"Secret", b"Open"), f"carol@{DOMAIN}")
    indexer = WordIndexer(here.db, here.office.clock, here.office.blobs.get_many)
    assert await indexer.run_once() == 2
    words = {row["word"] for row in await here.office.rows("SELECT word FROM lexicon")}
    assert "openword" in words
    assert not [word for word in words if "secret" in word]
    assert await count(here, "word_tasks") == 0
    async with FakeMx() as mx:
        here.net.add("target.example", mx)
        await here.work()
    here.office.clock.advance(HOUR + 1)
    assert await clear(here) == 1


@pytest.mark.covers("mail-server:C7", "mail-server:C9")
async def test_what_somebody_is_still_to_be_told_of_stays(here: Crossroads) -> None:
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No"]}) as mx:
        here.net.add("target.example", mx)
        here.net.add("example.com", mx)
        await send(here)
        await here.office.execute("UPDATE messages SET verdict = 'pass'")
        dispatcher, writer = here.dispatcher(), here.bounce_writer()
        await dispatcher.run_due()
        here.office.clock.advance(2 * HOUR)
        assert await clear(here) == 0
        await here.office.execute("UPDATE bounce_tasks SET next_attempt_at = NULL, parked_at = '2030-01-01'")
        assert await clear(here) == 0
        await here.office.execute("UPDATE bounce_tasks SET next_attempt_at = '2030-01-01', parked_at = NULL")
        # The notice is written, and the process dies before its task is done.
        assert await writer.run_due() == 1
        await here.office.execute("UPDATE bounce_tasks SET next_attempt_at = '2030-01-01'")
        await dispatcher.run_due()
        await dispatcher.drain(0)
        here.office.clock.advance(2 * HOUR)
        # What the notice became at our own door goes; the notice itself stays, for its task is known to be done by it.
        assert await clear(here) == 1
        assert [row["operation"] for row in await here.relayed()] == ["redirect", "bounce"]
        assert await here.bounce_writer().run_due() == 1
        assert len(await here.relayed()) == 2
        assert await clear(here) == 2
    assert await here.office.blobs.list("") == []


@pytest.mark.covers("mail-server:C9")
async def test_a_notice_that_nobody_could_write_keeps_it_for_a_week(here: Crossroads) -> None:
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No"]}) as mx:
        here.net.add("target.example", mx)
        await send(here)
        await here.dispatcher().run_due()
    await here.office.execute("UPDATE bounce_tasks SET next_attempt_at = NULL, parked_at = $1", here.office.clock.now())
    here.office.clock.advance(7 * 86_400 - 1)
    assert await clear(here) == 0
    here.office.clock.advance(2)
    assert await clear(here) == 1
    # The octets that were kept for the notice as well.
    assert await here.office.blobs.list("") == []


@pytest.mark.covers("mail-server:C2")
async def test_what_an_operator_holds_or_tries_again_stays(here: Crossroads) -> None:
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No"]}) as mx:
        here.net.add("target.example", mx)
        await send(here)
        (row,) = await here.relayed()
        await here.queue().act(Action.HOLD, [row["id"]])
        here.office.clock.advance(2 * HOUR)
        await here.work()
        assert await clear(here) == 0
        await here.queue().act(Action.RELEASE, [row["id"]])
        await here.work()
        here.office.clock.advance(2 * HOUR)
        await here.queue().act(Action.RETRY, [row["id"]])
        assert await clear(here) == 0
        await here.queue().act(Action.CANCEL, [row["id"]])
        here.office.clock.advance(2 * HOUR)
        assert await clear(here) == 1


@pytest.mark.covers("mail-server:A6", "SEC-1")
async def test_nobody_has_a_relay(here: Crossroads) -> None:
    office = here.office
    await send(here)
    (row,) = await office.rows("SELECT * FROM identities WHERE kind = 'relay'")
    tenant = office.tenant
    for scope in (PLATFORM_SCOPE, tenant_scope(tenant.id)):
        with pytest.raises(PostroomError, match="identity"):
            await office.identities.get(scope, row["public_id"])
        listed = await office.identities.page(scope, tenant.id, limit=100)
        assert row["public_id"] not in [one.public_id for one in listed]
        assert len(listed) == 3

    async def refused(work: Any) -> str:
        with pytest.raises(PostroomError) as caught:
            await work
        return caught.value.code

    new = NewKey("a key", Level.IDENTITY, ("messages:read",), tenant.id, row["id"])
    assert await refused(office.keys.create(None, new)) == "identity_not_found"
    granted = office.people.grant(
        tenant.id, row["public_id"], office.person.public_id, GrantRole.OWNER, by_operator=True
    )
    assert await refused(granted) == "identity_not_found"
    assert await office.rows("SELECT FROM addresses WHERE identity_id = $1", row["id"]) == []
    # A suspension pauses and resumes people and agents; what the tenant passed on waits for it by itself.
    await office.identities.suspend_tenant(tenant.id)
    await office.identities.resume_tenant(tenant.id)
    assert await office.rows("SELECT FROM events WHERE identity_id = $1", row["id"]) == []
    # Nor is it the system's identity, of which there may still be one, in this tenant as well.
    made = await office.identities.create_system(tenant.id, "notices", "Notices", "ops@example.com")
    assert made.public_id != row["public_id"]
    assert (await office.identities.create_system(tenant.id, "x", "X", "ops@example.com")).public_id == made.public_id
