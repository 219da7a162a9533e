"""The same mail for the same recipient once more: not after the first one went on, always after it came to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.models import MailboxRef
from postroom.outbound.closing import Closing, Resolution
from postroom.outbound.models import Status
from postroom.outbound.relaying import clear_relays
from postroom.outbound.rules import Action
from tests.mailbox.letters import check_mailbox
from tests.outbound.crossroads import OWN, Crossroads, crossroads
from tests.outbound.fake_mx import FakeMx

HOUR, WEEK = 3600, 7 * 86_400
OUT, OTHER = f"out@{OWN}", f"other@{OWN}"
BOB, CARL = "bob@target.example", "carl@target.example"
LETTER = b"From: ann@example.com\r\nSubject: Again\r\nMessage-ID: <1@example.com>\r\n\r\nDear Bob.\r\n"


@pytest.fixture
async def here(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Crossroads]:
    async with crossroads(db, clock, ids, tmp_path) as made:
        await made.alias(OUT, BOB)
        await made.alias(OTHER, CARL)
        yield made
        async with db.acquire() as conn:
            for row in await conn.fetch("SELECT tenant_id, id FROM mailboxes"):
                await check_mailbox(conn, MailboxRef(row["tenant_id"], row["id"]))


async def send(here: Crossroads, *to: str) -> None:
    assert (await here.send(LETTER, *(to or (OUT,))))[""][0] == 250


async def clear(here: Crossroads) -> int:
    return await clear_relays(here.db, here.office.blobs, here.office.clock)


async def states(here: Crossroads) -> list[tuple[str, str]]:
    return [(row["recipient"], row["status"]) for row in await here.relayed()]


async def ended(here: Crossroads, status: Status) -> None:
    """As if an attempt, a report or a person had said so."""
    await here.office.execute(
        "UPDATE deliveries SET status = $1, next_attempt_at = NULL, finished_at = now()", status.value
    )
    await here.office.execute("UPDATE messages SET status = $1 WHERE direction = 'outbound'", status.value)


def closing(here: Crossroads) -> Closing:
    office = here.office
    return Closing(
        *(office.db, office.blobs, office.clock, office.ids),
        queries=office.boxes.queries,
        changed=lambda ref, modseq: None,
    )


def ref_of(row: Any) -> MailboxRef:
    return MailboxRef(row["tenant_id"], row["mailbox_id"])


PASSED = {Status.QUEUED, Status.DEFERRED, Status.SUBMITTED, Status.DELIVERED, Status.UNCERTAIN, Status.COMPLAINED}


@pytest.mark.covers("mail-server:A6", "mail-server:C2", "edge:G2")
@pytest.mark.parametrize("status", Status)
async def test_what_ended_so_is_passed_on_again_or_not(here: Crossroads, status: Status) -> None:
    """Whether the recipient may have it decides, and nothing else; what nobody knows is not sent twice."""
    await send(here)
    await ended(here, status)
    await send(here)
    expected = [status] if status in PASSED else [status, Status.QUEUED]
    assert await states(here) == [(BOB, one) for one in expected]
    # The second one counts from now on.
    await send(here)
    assert len(await states(here)) == len(expected)


@pytest.mark.covers("mail-server:A6", "mail-server:C9")
@pytest.mark.parametrize("status", sorted(set(Status) - {Status.QUEUED, Status.DEFERRED}))
async def test_it_is_the_same_when_the_rows_of_the_first_are_gone(here: Crossroads, status: Status) -> None:
    await send(here)
    await ended(here, status)
    here.office.clock.advance(HOUR + 1)
    assert await clear(here) == 1
    await send(here)
    assert await states(here) == ([] if status in PASSED else [(BOB, "queued")])


@pytest.mark.covers("mail-server:A6")
async def test_a_sender_who_sends_it_anew_after_it_bounced(here: Crossroads) -> None:
    """As it happens: over SMTP, a host that refuses at first, the author's next try a day later, and the hour in
    which an operator may look at it."""
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No such user", "250 Ok"]}) as mx:
        here.net.add("target.example", mx)
        await send(here)
        await here.work()
        assert await states(here) == [(BOB, "bounced")]
        here.office.clock.advance(86_400)
        assert await clear(here) == 1
        await send(here)
        await here.work()
        assert [one.recipients for one in mx.delivered] == [[BOB]]
        for wait in (1, 2 * HOUR, 5 * 86_400):
            here.office.clock.advance(wait)
            await clear(here)
            await send(here)
            await here.work()
        assert len(mx.delivered) == 1


@pytest.mark.covers("mail-server:A6")
async def test_of_two_recipients_the_one_who_has_it_gets_no_second_copy(here: Crossroads) -> None:
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No such user", "250 Ok"]}) as mx:
        here.net.add("target.example", mx)
        await send(here, OUT, OTHER)
        await here.work()
        assert sorted(await states(here)) == [(BOB, "bounced"), (CARL, "delivered")]
        await send(here, OUT, OTHER)
        await here.work()
        assert [one.recipients for one in mx.delivered] == [[CARL], [BOB]]
        here.office.clock.advance(HOUR + 1)
        assert await clear(here) == 2
        await send(here, OUT, OTHER)
        assert await states(here) == []


@pytest.mark.covers("mail-server:C2", "FR-OUT-11")
@pytest.mark.parametrize("by_operator", [True, False])
async def test_what_was_canceled(here: Crossroads, by_operator: bool) -> None:
    await send(here)
    (row,) = await here.relayed()
    if by_operator:
        (done,) = await here.queue().act(Action.CANCEL, [row["id"]])
        assert done.refused is None
    else:
        await closing(here).cancel(ref_of(row), row["public_id"])
    await send(here)
    assert await states(here) == [(BOB, "canceled"), (BOB, "queued")]


@pytest.mark.covers("FR-DLV-7", "edge:G2")
@pytest.mark.parametrize(("found", "copies"), [(Resolution.SENT, 0), (Resolution.NOT_SENT, 1)])
async def test_what_nobody_knows_until_somebody_says(here: Crossroads, found: Resolution, copies: int) -> None:
    await send(here)
    await ended(here, Status.UNCERTAIN)
    await send(here)
    (row,) = await here.relayed()
    await closing(here).resolve(ref_of(row), row["public_id"], found)
    await send(here)
    assert len(await here.relayed()) == 1 + copies


@pytest.mark.covers("mail-server:C2")
async def test_what_an_operator_tries_again_is_not_passed_on_beside_that(here: Crossroads) -> None:
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No such user"]}) as mx:
        here.net.add("target.example", mx)
        await send(here)
        await here.work()
        (row,) = await here.relayed()
        await here.queue().act(Action.RETRY, [row["id"]])
        await send(here)
        assert await states(here) == [(BOB, "queued")]
        await here.work()
        await send(here)
        assert await states(here) == [(BOB, "bounced"), (BOB, "queued")]


@pytest.mark.covers("mail-server:A6")
async def test_many_send_at_once_what_had_failed(here: Crossroads, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(here)
    await ended(here, Status.BOUNCED)
    look = here.forwarding._missing

    async def looked_before(tenant_id: int, digests: Sequence[bytes]) -> list[bytes]:
        found = await look(tenant_id, digests)
        # All have seen the failure before the first one stores anything.
        arrived.append(None)
        if len(arrived) == 4:
            everybody.set()
        await everybody.wait()
        return found

    arrived: list[None] = []
    everybody = asyncio.Event()
    monkeypatch.setattr(here.forwarding, "_missing", looked_before)
    await asyncio.gather(*(send(here) for _ in range(4)))
    assert len(arrived) >= 4
    assert await states(here) == [(BOB, "bounced"), (BOB, "queued")]


@pytest.mark.covers("mail-server:A6", "mail-server:C9")
async def test_it_is_sent_anew_while_the_first_is_cleared(here: Crossroads) -> None:
    for status in (Status.BOUNCED, Status.DELIVERED):
        await here.office.execute("DELETE FROM forwards")
        await send(here)
        await ended(here, status)
        here.office.clock.advance(HOUR + 1)
        await asyncio.gather(clear(here), send(here), clear(here), send(here))
        assert await states(here) == ([] if status in PASSED else [(BOB, "queued")])
        await ended(here, Status.DELIVERED)
        here.office.clock.advance(HOUR + 1)
        await clear(here)


@pytest.mark.covers("mail-server:A6")
async def test_what_was_passed_on_twice_is_remembered_from_the_second_time(here: Crossroads) -> None:
    await send(here)
    await ended(here, Status.BOUNCED)
    here.office.clock.advance(WEEK - 60)
    await send(here)
    await ended(here, Status.DELIVERED)
    here.office.clock.advance(WEEK - 60)
    await clear(here)
    await send(here)
    assert await states(here) == []


@pytest.mark.covers("mail-server:A6")
async def test_what_was_passed_on_before_there_was_a_delivery_beside_it(here: Crossroads) -> None:
    """A row from before the migration says that it went on."""
    await send(here)
    await here.office.execute("UPDATE forwards SET delivery_id = NULL")
    await ended(here, Status.BOUNCED)
    await send(here)
    assert len(await here.relayed()) == 1
