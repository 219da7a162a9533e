"""What comes back to rewritten senders: only where they were made, and no more of it than an author can bear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.accounts import Mode, NewTenant, Tenants
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.models import MailboxRef
from postroom.outbound import passed
from postroom.outbound.relaying import clear_relays
from tests.mailbox.letters import check_mailbox
from tests.outbound.crossroads import OWN, Crossroads, crossroads
from tests.outbound.fake_mx import FakeMx
from tests.outbound.submitting import DOMAIN

ANN, CARL = "Ann.Lee@example.com", "carl@example.com"
OUT = f"out@{OWN}"
LETTER = b"From: ann@example.com\r\nSubject: Hello\r\nMessage-ID: <1@example.com>\r\n\r\nHello.\r\n"
FEW = 3
SHUT = "450 4.7.1"


@pytest.fixture
async def here(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Crossroads]:
    monkeypatch.setattr(passed, "MAX_RETURNS", FEW)
    async with crossroads(db, clock, ids, tmp_path) as made:
        await made.alias(OUT, "bob@target.example")
        yield made
        async with db.acquire() as conn:
            for row in await conn.fetch("SELECT tenant_id, id FROM mailboxes"):
                await check_mailbox(conn, MailboxRef(row["tenant_id"], row["id"]))


def bounce(number: int) -> bytes:
    return b"From: <>\r\nSubject: Undelivered %d\r\n\r\nNo.\r\n" % number


async def rewritten(here: Crossroads, author: str = ANN) -> str:
    """The sender under which mail of the author goes on."""
    await here.send(LETTER, OUT, sender=author)
    return str(here.accepted[-1].envelope_from)


async def answer(here: Crossroads, to: str, number: int) -> str:
    """To RCPT, or to the message where that was taken."""
    answers = await here.send(bounce(number), to, sender="")
    code, text = answers.get("", answers[to])
    return f"{code} {text[:5]}"


async def returned(here: Crossroads, author: str = ANN) -> int:
    rows = await here.relayed()
    return sum(row["envelope_from"] == "" and row["recipient"].lower() == author.lower() for row in rows)


@pytest.mark.covers("mail-server:A6")
async def test_an_author_gets_so_many_bounces_in_an_hour(here: Crossroads) -> None:
    here.office.clock.advance(60)
    sender, other = await rewritten(here), await rewritten(here, CARL)
    answers = [await answer(here, sender, number) for number in range(FEW + 2)]
    assert [one[:3] for one in answers] == ["250"] * FEW + ["450"] * 2
    assert answers[-1] == SHUT
    # However it is spelled, and whatever stands beside it; nobody else is kept waiting.
    assert await answer(here, sender.lower(), 90) == SHUT
    assert await answer(here, sender.upper(), 91) == SHUT
    assert (await answer(here, other, 92))[:3] == "250"
    assert await here.send_lmtp(bounce(93), sender, f"carol@{DOMAIN}", sender="") == [250]
    assert await returned(here) == FEW
    here.office.clock.advance(3600)
    assert (await answer(here, sender, 94))[:3] == "250"
    assert await returned(here) == FEW + 1


@pytest.mark.covers("mail-server:A6")
async def test_the_same_bounce_again_counts_once(here: Crossroads) -> None:
    sender = await rewritten(here)
    for _ in range(FEW + 2):
        assert (await answer(here, sender, 1))[:3] == "250"
    assert (await answer(here, sender, 2))[:3] == "250"
    assert await returned(here) == 2


@pytest.mark.covers("mail-server:A6")
async def test_a_bounce_that_the_author_cannot_be_given_counts_each_time(here: Crossroads) -> None:
    sender = await rewritten(here)
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No such user"]}) as home:
        here.net.add("example.com", home)
        answers = []
        for _ in range(FEW + 1):
            answers.append((await answer(here, sender, 1))[:3])
            await here.work()
    assert answers == ["250"] * FEW + ["450"]
    assert await returned(here) == FEW


@pytest.mark.covers("mail-server:A6")
async def test_many_at_once_are_no_more(here: Crossroads, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have passed RCPT before the first is counted: as if they came to as many processes."""
    sender = await rewritten(here)
    carol = f"carol@{DOMAIN}"

    async def everybody_may(*_: object) -> bool:
        return True

    monkeypatch.setattr(passed, "may_return", everybody_may)
    answers = await asyncio.gather(*(here.send(bounce(number), carol, sender, sender="") for number in range(FEW + 4)))
    assert sorted(one[""][0] for one in answers) == [250] * FEW + [450] * 4
    assert await returned(here) == FEW
    (row,) = await here.office.rows("SELECT passed FROM forward_returns")
    assert row["passed"] == FEW
    stored = [key for key in await here.office.blobs.list("") if "/out/" in key]
    assert len(stored) == FEW + 1, "nothing is left of those that were too many"
    # They come again, in another hour.
    here.office.clock.advance(3600)
    again = [number for number, one in enumerate(answers) if one[""][0] == 450][:FEW]
    for number in again:
        assert (await here.send(bounce(number), carol, sender, sender=""))[""][0] == 250
    assert len(await here.inbox(here.office.carol.id)) == FEW + 4


@pytest.mark.covers("mail-server:A6")
async def test_what_is_passed_on_to_a_target_is_not_counted(here: Crossroads) -> None:
    """Not even with the null sender: its target asked for it."""
    for number in range(FEW + 2):
        assert (await answer(here, OUT, number))[:3] == "250"
    assert await here.office.rows("SELECT FROM forward_returns") == []


@pytest.mark.covers("mail-server:C9")
async def test_counts_are_forgotten(here: Crossroads) -> None:
    sender = await rewritten(here)
    await answer(here, sender, 1)

    async def left() -> int:
        await clear_relays(here.db, here.office.blobs, here.office.clock)
        return len(await here.office.rows("SELECT FROM forward_returns"))

    assert await left() == 1
    here.office.clock.advance(2 * 3600)
    assert await left() == 0


@pytest.mark.covers("mail-server:A6", "SEC-1")
async def test_a_domain_that_is_another_tenants_by_now_takes_nothing_for_the_first(here: Crossroads) -> None:
    sender = await rewritten(here)
    assert (await answer(here, sender, 1))[:3] == "250"
    tenants = Tenants(here.db, here.office.ids, here.office.clock)
    lab = await tenants.create(NewTenant(slug="lab", name="Lab", mode=Mode.LIVE))
    await here.office.execute("DELETE FROM aliases")
    await here.office.execute("UPDATE domains SET tenant_id = $1 WHERE name = $2", lab.id, OWN)
    assert await answer(here, sender, 2) == "550 5.1.1"


@pytest.mark.covers("mail-server:A6")
async def test_the_platforms_domain_is_everybodys(here: Crossroads) -> None:
    out = f"out{here.office.tenant.address_suffix}@{DOMAIN}"
    await here.alias(out, "bob@target.example")
    await here.send(LETTER, out, sender=ANN)
    sender = here.accepted[-1].envelope_from
    assert sender.endswith(f"@{DOMAIN}")
    assert (await answer(here, sender, 1))[:3] == "250"
