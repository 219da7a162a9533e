"""`quota.warning`: once a day at 80 % and at 100 % of what an account may send (events §4, outbound §18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from postroom.accounts import NewTenant, Principal, Tenants
from postroom.accounts.permissions import GrantRole
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator, is_id
from postroom.db import Connection, Database
from postroom.events import quotas
from postroom.outbound.accept import Also
from postroom.outbound.allowance import Allowance, SubmissionLimits
from postroom.outbound.models import Accepted, Outgoing
from postroom.outbound.submission import Submission

from .submitting import DOMAIN, HASH_KEY, PostOffice, mail, post_office

CAROL: Final = f"carol@{DOMAIN}"
DAVE: Final = f"dave@{DOMAIN}"
DAY: Final = 86_400


@pytest.fixture
async def office(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[PostOffice]:
    async with post_office(db, clock, ids, tmp_path) as made:
        made.limits = SubmissionLimits(recipients=10)
        yield made


async def send(
    office: PostOffice, number: int, account: Principal, sender: str = CAROL, node: Submission | None = None
) -> int:
    """The reply to a message to so many."""
    to = (f"a{n}@example.com" for n in range(number))
    envelope = await office.envelope(*to, mail_from=sender)
    return (await (node or office.submission()).submit(envelope, mail(sender), account)).code


async def warnings(office: PostOffice) -> list[tuple[str, int, int]]:
    """Whose they are, what was used, and their sequence."""
    rows = await office.rows("SELECT * FROM events WHERE type = 'quota.warning' ORDER BY id")
    found = []
    for row in rows:
        told = orjson.loads(row["payload"])
        assert (told["id"], told["sequence"]) == (row["public_id"], row["sequence"])
        assert is_id("evt", told["id"])
        assert told["data"] == {
            "metric": "sends",
            "scope": "identity",
            "limit": office.limits.recipients,
            "used": told["data"]["used"],
        }
        found.append((told["identity_id"], told["data"]["used"], told["sequence"]))
    assert len({row["public_id"] for row in rows}) == len(rows)
    return found


class Node:
    """A process of its own, stopped where a test wants it: `before` accepting, and `within` the transaction."""

    def __init__(
        self,
        office: PostOffice,
        *,
        before: Callable[[], Awaitable[object]] | None = None,
        within: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.submission = office.submission()
        self._accept = self.submission._acceptance.accept
        self._before, self._within = before, within
        self.accepted: list[tuple[Outgoing, Also | None]] = []
        self.submission._acceptance = self

    async def accept(self, outgoing: Outgoing, /, *, also: Also | None = None) -> Accepted:
        self.accepted.append((outgoing, also))
        if self._before is not None:
            await self._before()

        async def stopped(conn: Connection) -> None:
            if self._within is not None:
                await self._within()
            assert also is not None
            await also(conn)

        return await self._accept(outgoing, also=None if also is None else stopped)


@pytest.mark.covers("edge:O23", "mail-server:A7")
async def test_once_at_each_threshold_and_day(office: PostOffice) -> None:
    account, whose = await office.account(), office.carol.public_id
    said = []
    for number in (7, 1, 1, 1):
        assert await send(office, number, account) == 250
        said.append([used for _, used, _ in await warnings(office)])
    assert said == [[], [8], [8], [8, 10]]
    assert await send(office, 1, account) == 452
    assert [whose, whose] == [one for one, _, _ in await warnings(office)]
    first, second = (sequence for _, _, sequence in await warnings(office))
    assert 0 < first < second
    office.clock.advance(DAY)
    assert await send(office, 10, account) == 250
    assert [used for _, used, _ in await warnings(office)] == [8, 10, 10, 10]


async def test_only_near_a_threshold_something_more_is_asked(office: PostOffice) -> None:
    office.limits = SubmissionLimits(recipients=100)
    account, node = await office.account(), Node(office)
    for number in (60, 9, 1, 9, 1, 9, 1):
        assert await send(office, number, account, node=node.submission) == 250
    # At 60, 69, 70, 79, 80, 89, 90: once it was told of 80, nothing is asked until 90.
    assert [also is not None for _, also in node.accepted] == [False, False, True, True, True, False, True]
    assert [used for _, used, _ in await warnings(office)] == [80]


@pytest.mark.covers("mail-server:A7")
async def test_two_nodes_that_get_there_together_warn_once(office: PostOffice) -> None:
    """Both have counted before either has stored: each takes itself for the first."""
    account = await office.account()
    assert await send(office, 7, account) == 250
    before = asyncio.Barrier(2)
    nodes = [Node(office, before=before.wait) for _ in range(2)]
    assert await asyncio.gather(*(send(office, 1, account, node=one.submission) for one in nodes)) == [250, 250]
    assert [used for _, used, _ in await warnings(office)] == [8]
    assert await asyncio.gather(*(send(office, 1, account, node=one.submission) for one in nodes)) == [250, 250]
    assert [used for _, used, _ in await warnings(office)] == [8, 10]


@pytest.mark.parametrize(("already", "told"), [(6, [8]), (8, [8, 10])])
async def test_neither_of_two_gets_there_alone(office: PostOffice, already: int, told: list[int]) -> None:
    """From two mailboxes, which wait for nothing of each other: both messages are stored, and neither is committed,
    when it is looked whether a threshold is reached."""
    await office.people.grant(
        office.tenant.id, office.dave.public_id, office.person.public_id, GrantRole.OWNER, by_operator=True
    )
    account, within = await office.account(), asyncio.Barrier(2)
    assert await send(office, already, account) == 250
    nodes = [Node(office, within=within.wait) for _ in range(2)]
    sent = (send(office, 1, account, sender, one.submission) for one, sender in zip(nodes, (CAROL, DAVE), strict=True))
    assert await asyncio.wait_for(asyncio.gather(*sent), 30) == [250, 250]
    assert [used for _, used, _ in await warnings(office)] == told


async def test_what_is_not_stored_warns_of_nothing(office: PostOffice) -> None:
    account = await office.account()
    await office.execute("UPDATE mailboxes SET quota_bytes = 1 WHERE id = $1", office.carol.id)
    assert await send(office, 10, account) == 452
    assert await warnings(office) == []


async def test_what_a_person_sends_in_another_tenant_is_not_counted(office: PostOffice) -> None:
    other = await Tenants(office.db, office.ids, office.clock).create(NewTenant(slug="other", name="Other"))
    theirs = await office.new_identity("carol.too", tenant=other)
    await office.people.grant(other.id, theirs.public_id, office.person.public_id, GrantRole.OWNER, by_operator=True)
    (address,) = (one.address for one in theirs.addresses)
    here, there = await office.account(), await office.account(address)
    assert await send(office, 7, here) == 250
    assert await send(office, 7, there, address) == 250
    assert await warnings(office) == []
    assert await send(office, 1, there, address) == 250
    assert await send(office, 1, here) == 250
    assert [(whose, used) for whose, used, _ in await warnings(office)] == [
        (theirs.public_id, 8),
        (office.carol.public_id, 8),
    ]
    rows = await office.rows("SELECT tenant_id, identity_id FROM events WHERE type = 'quota.warning' ORDER BY id")
    assert [tuple(row) for row in rows] == [(other.id, theirs.id), (office.tenant.id, office.carol.id)]


async def test_an_agent_is_warned_whichever_key_it_uses(office: PostOffice) -> None:
    await office.execute("UPDATE identities SET send_policy_json = '{\"require_known_recipient\": false}'")
    address = f"robot@{DOMAIN}"
    accounts: list[Any] = [await office.account(address, await office.key()) for _ in range(2)]
    for account, number in zip(accounts * 2, (7, 1, 1, 1), strict=True):
        assert await send(office, number, account, address) == 250
    robot = office.robot.public_id
    assert [(whose, used) for whose, used, _ in await warnings(office)] == [(robot, 8), (robot, 10)]


async def test_who_may_send_nothing_is_not_warned_of_mail_to_nobody(office: PostOffice) -> None:
    account, node = await office.account(), Node(office)
    assert await send(office, 1, account, node=node.submission) == 250
    outgoing = node.accepted[0][0]
    nobody = replace(outgoing, recipients=tuple(replace(one, suppressed="listed") for one in outgoing.recipients))
    allowance = Allowance(SubmissionLimits(recipients=1), HASH_KEY)
    async with office.db.acquire() as conn:
        assert await allowance.admit(conn, account, nobody, office.clock.now()) is None


def test_ids_are_of_key_counter_day_and_threshold(clock: ManualClock) -> None:
    day = clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
    asked = [(HASH_KEY, "a", day, 80), (b"x" * 32, "a", day, 80), (HASH_KEY, "b", day, 80), (HASH_KEY, "a", day, 100)]
    made = [quotas.warning_id(*one) for one in asked]
    assert len(set(made)) == len(made)
    assert made[0] == quotas.warning_id(*asked[0])
    assert len({one[:14] for one in made}) == 1, "the time is that of the day's beginning"


@pytest.mark.parametrize(("limit", "marks"), [(500, [400, 500]), (3, [3, 3]), (1, [1, 1]), (7, [6, 7]), (0, [0, 0])])
def test_a_threshold_is_reached_by_whole_recipients(limit: int, marks: list[int]) -> None:
    assert [quotas.mark(limit, percent) for percent in quotas.THRESHOLDS] == marks
