"""Claims on product rows (B1): held by one worker, reclaimed after a death, parked in the end."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.db import Claim, ClaimSpec, Database, Finish, Retry, queue
from postroom.db.claim import MAX_CLAIM, WORKER_LOST

pytestmark = pytest.mark.covers("decisions:B1")

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=60)
SPEC = ClaimSpec("work", {"tenant_id": "bigint", "id": "bigint"}, LEASE, max_attempts=3, values=("note",))
WORK = queue(SPEC)


@pytest.fixture
async def work(db: Database) -> Database:
    async with db.acquire() as connection:
        await connection.execute(
            """
            CREATE TABLE work (
                tenant_id bigint, id bigint, note text, destination text, paused boolean NOT NULL DEFAULT false,
                next_attempt_at timestamptz(3), lease_until timestamptz(3), claim_token uuid,
                attempts integer NOT NULL DEFAULT 0, parked_at timestamptz(3), last_error text,
                PRIMARY KEY (tenant_id, id)
            )
            """
        )
    return db


async def add(
    db: Database, count: int, *, at: datetime = NOW, destination: str = "example.com", first: int = 1
) -> None:
    async with db.acquire() as connection:
        await connection.execute(
            "INSERT INTO work (tenant_id, id, note, destination, next_attempt_at)"
            " SELECT 1, n, 'note ' || n, $3, $2 FROM generate_series($4::int, $4::int + $1::int - 1) AS n",
            count,
            at,
            destination,
            first,
        )


async def row(db: Database, number: int = 1) -> asyncpg.Record:
    async with db.acquire() as connection:
        found = await connection.fetchrow("SELECT * FROM work WHERE id = $1", number)
    assert found is not None
    return found


async def claim(db: Database, limit: int = 10, *, now: datetime = NOW) -> tuple[Claim, ...]:
    async with db.acquire() as connection:
        return (await WORK.claim(connection, now=now, limit=limit)).claims


async def test_claims_what_is_due_the_oldest_first(work: Database) -> None:
    await add(work, 2, at=NOW, first=1)
    await add(work, 2, at=NOW - timedelta(hours=1), first=3)
    await add(work, 2, at=NOW + timedelta(milliseconds=1), first=5)
    first = await claim(work, 3)
    assert [c.key for c in first] == [(1, 3), (1, 4), (1, 1)]
    assert [c.values for c in first] == [{"note": "note 3"}, {"note": "note 4"}, {"note": "note 1"}]
    assert {c.attempt for c in first} == {1}
    assert {c.lease_until for c in first} == {NOW + LEASE}
    assert len({c.token for c in first}) == 3
    assert [c.key for c in await claim(work, 3)] == [(1, 2)]
    assert await claim(work, 3) == ()
    assert await claim(work, 0) == ()


async def test_finish_ends_the_work(work: Database) -> None:
    await add(work, 3)
    claims = await claim(work)
    async with work.acquire() as connection:
        assert await WORK.finish(connection, claims[:2]) == {(1, 1), (1, 2)}
        assert await WORK.finish(connection, claims) == {(1, 3)}
        assert await WORK.finish(connection, []) == frozenset()
    done = await row(work)
    assert (done["next_attempt_at"], done["lease_until"], done["claim_token"]) == (None, None, None)
    assert await claim(work, now=NOW + timedelta(days=1)) == ()


async def test_finish_may_delete(work: Database) -> None:
    await add(work, 2)
    deleting = queue(ClaimSpec("work", SPEC.keys, LEASE, max_attempts=3, finish=Finish.DELETE))
    async with work.acquire() as connection:
        claims = (await deleting.claim(connection, now=NOW, limit=1)).claims
        assert await deleting.finish(connection, claims) == {(1, 1)}
        assert await connection.fetchval("SELECT count(*) FROM work") == 1


async def test_two_workers_never_hold_one_row(work: Database) -> None:
    await add(work, 300)

    async def worker() -> list[Claim]:
        mine: list[Claim] = []
        while True:
            async with work.transaction() as connection:
                batch = await WORK.claim(connection, now=NOW, limit=7)
                await asyncio.sleep(0)  # the transaction, and so its row locks, stay open while the others claim
            if not batch.claims:
                return mine
            mine += batch.claims

    held = [c for mine in await asyncio.gather(*(worker() for _ in range(6))) for c in mine]
    assert sorted(c.key for c in held) == [(1, n) for n in range(1, 301)]


async def test_a_locked_row_is_passed_over(work: Database) -> None:
    await add(work, 2)
    async with work.transaction() as connection:
        await connection.execute("SELECT FROM work WHERE id = 1 FOR NO KEY UPDATE")
        other = await asyncio.create_task(claim(work))
        assert [c.key for c in other] == [(1, 2)]


async def test_an_uncommitted_claim_is_no_claim(work: Database) -> None:
    await add(work, 1)

    async def worker_that_fails() -> None:
        async with work.transaction() as connection:
            assert len((await WORK.claim(connection, now=NOW, limit=1)).claims) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await worker_that_fails()
    assert [c.attempt for c in await claim(work)] == [1]


async def test_a_dead_workers_rows_come_back_when_the_lease_ends(work: Database) -> None:
    await add(work, 1)
    (dead,) = await claim(work)
    assert await claim(work, now=NOW + LEASE - timedelta(milliseconds=1)) == ()
    (successor,) = await claim(work, now=NOW + LEASE)
    assert successor.key == dead.key
    assert successor.attempt == 2
    assert successor.token != dead.token


async def test_a_stale_token_changes_nothing(work: Database) -> None:
    await add(work, 1)
    (dead,) = await claim(work)
    (successor,) = await claim(work, now=NOW + LEASE)
    before = await row(work)
    later = NOW + timedelta(hours=1)
    async with work.acquire() as connection:
        assert await WORK.finish(connection, [dead]) == frozenset()
        assert await WORK.retry(connection, dead, now=later, at=later, error="x") is Retry.STALE
        assert await WORK.extend(connection, [dead], until=later) == frozenset()
        assert await WORK.park(connection, [dead], now=later, error="x") == frozenset()
        assert await WORK.release(connection, [dead]) == frozenset()
        assert not await WORK.reschedule(connection, dead, later)
    assert await row(work) == before
    async with work.acquire() as connection:
        assert await WORK.finish(connection, [successor]) == {(1, 1)}


async def test_a_token_of_another_row_changes_nothing(work: Database) -> None:
    await add(work, 2)
    one, two = await claim(work)
    crossed = Claim(two.key, one.token, 1, one.lease_until)
    async with work.acquire() as connection:
        assert await WORK.finish(connection, [crossed]) == frozenset()


async def test_retry_waits_and_counts(work: Database) -> None:
    await add(work, 1)
    (first,) = await claim(work)
    later = NOW + timedelta(minutes=5)
    async with work.acquire() as connection:
        assert await WORK.retry(connection, first, now=NOW, at=later, error="timeout") is Retry.SCHEDULED
    assert (await row(work))["last_error"] == "timeout"
    assert await claim(work, now=later - timedelta(seconds=1)) == ()
    assert [c.attempt for c in await claim(work, now=later)] == [2]


async def test_the_last_retry_parks(work: Database) -> None:
    await add(work, 1)
    for expected in (Retry.SCHEDULED, Retry.SCHEDULED, Retry.PARKED):
        (held,) = await claim(work)
        async with work.acquire() as connection:
            assert await WORK.retry(connection, held, now=NOW, at=NOW, error="refused") is expected
    parked = await row(work)
    assert parked["parked_at"] == NOW
    assert parked["next_attempt_at"] is None
    assert parked["last_error"] == "refused"
    assert await claim(work, now=NOW + timedelta(days=365)) == ()


async def test_a_row_that_kills_its_workers_is_parked(work: Database) -> None:
    await add(work, 2)
    now = NOW
    for attempt in (1, 2, 3):
        held = await claim(work, 1, now=now)
        assert [(c.key, c.attempt) for c in held] == [((1, 1), attempt)]
        now += LEASE  # nobody is left to finish it
    async with work.acquire() as connection:
        batch = await WORK.claim(connection, now=now, limit=10)
        assert batch.parked == ((1, 1),)
        assert [c.key for c in batch.claims] == [(1, 2)]
        (parked,) = await WORK.parked(connection)
        assert (parked.key, parked.parked_at, parked.attempts, parked.last_error) == ((1, 1), now, 3, WORKER_LOST)
        assert (await WORK.claim(connection, now=now + LEASE / 2, limit=10)).claims == ()
        # A person looks at it and lets it run again, with a clean slate.
        assert await WORK.unpark(connection, [(1, 1), (1, 2), (9, 9)], now=now) == {(1, 1)}
        assert await WORK.unpark(connection, [], now=now) == frozenset()
        batch = await WORK.claim(connection, now=now, limit=10)
        assert [(c.key, c.attempt) for c in batch.claims] == [((1, 1), 1)]


async def test_extend_release_and_reschedule(work: Database) -> None:
    await add(work, 3)
    one, two, three = await claim(work)
    async with work.acquire() as connection:
        assert await WORK.extend(connection, [one], until=NOW + 2 * LEASE) == {(1, 1)}
        assert await WORK.release(connection, [two]) == {(1, 2)}
        assert await WORK.reschedule(connection, three, NOW + timedelta(hours=1))
        batch = await WORK.claim(connection, now=NOW, limit=10)
        assert [(c.key, c.attempt) for c in batch.claims] == [((1, 2), 1)]
        await WORK.finish(connection, batch.claims)
        assert (await WORK.claim(connection, now=NOW + LEASE, limit=10)).claims == ()
        batch = await WORK.claim(connection, now=NOW + timedelta(hours=1), limit=10)
        assert [(c.key, c.attempt) for c in batch.claims] == [((1, 1), 2), ((1, 3), 1)]


async def test_counts_and_next_due(work: Database) -> None:
    async with work.acquire() as connection:
        assert await WORK.next_due(connection, now=NOW) is None
    await add(work, 2, at=NOW - timedelta(minutes=1), first=1)
    await add(work, 3, at=NOW + timedelta(minutes=1), first=3)
    async with work.acquire() as connection:
        assert await WORK.next_due(connection, now=NOW) == NOW - timedelta(minutes=1)
        claims = (await WORK.claim(connection, now=NOW, limit=1)).claims
        counts = await WORK.counts(connection, now=NOW)
        assert (counts.due, counts.waiting, counts.claimed, counts.parked) == (1, 3, 1, 0)
        assert counts.oldest_due == NOW - timedelta(minutes=1)
        await WORK.park(connection, claims, now=NOW, error="no")
        await WORK.finish(connection, (await WORK.claim(connection, now=NOW, limit=1)).claims)
        counts = await WORK.counts(connection, now=NOW)
        assert (counts.due, counts.waiting, counts.claimed, counts.parked, counts.oldest_due) == (0, 3, 0, 1, None)
        assert await WORK.next_due(connection, now=NOW) == NOW + timedelta(minutes=1)


async def test_extra_condition_and_limit(work: Database) -> None:
    await add(work, MAX_CLAIM + 5)
    waiting = queue(ClaimSpec("work", SPEC.keys, LEASE, max_attempts=3, due="NOT t.paused", order=("id",)))
    async with work.acquire() as connection:
        await connection.execute("UPDATE work SET paused = true WHERE id = 1")
        claims = (await waiting.claim(connection, now=NOW, limit=10**9)).claims
    assert [c.key for c in claims] == [(1, n) for n in range(2, MAX_CLAIM + 2)]


GROUPED = queue(ClaimSpec("work", SPEC.keys, LEASE, max_attempts=3, values=("destination",), group=("destination",)))


async def test_a_group_is_claimed_whole_under_one_token(work: Database) -> None:
    await add(work, 3, destination="a.example", first=1)
    await add(work, 2, destination="b.example", first=10)
    await add(work, 1, destination="a.example", first=20, at=NOW + timedelta(hours=1))
    async with work.acquire() as connection:
        claims = (await GROUPED.claim(connection, now=NOW, limit=1)).claims
        assert [c.key for c in claims] == [(1, 1), (1, 2), (1, 3)]
        assert len({c.token for c in claims}) == 1
        claims = (await GROUPED.claim(connection, now=NOW, limit=5)).claims
        assert [c.key for c in claims] == [(1, 10), (1, 11)]


async def test_a_group_is_never_split_between_workers(work: Database) -> None:
    for n in range(20):
        await add(work, 10, destination=f"{n}.example", first=n * 10)

    async def worker() -> list[Claim]:
        mine: list[Claim] = []
        while True:
            async with work.acquire() as connection:
                claims = (await GROUPED.claim(connection, now=NOW, limit=3)).claims
            if not claims:
                return mine
            mine += claims

    held = [c for mine in await asyncio.gather(*(worker() for _ in range(5))) for c in mine]
    assert len(held) == 200
    tokens: dict[str, set[object]] = {}
    for c in held:
        tokens.setdefault(c.values["destination"], set()).add(c.token)
    assert len(tokens) == 20
    assert all(len(of_group) == 1 for of_group in tokens.values())


@pytest.mark.parametrize(
    "broken",
    [
        {"table": "work; DROP TABLE work"},
        {"keys": {"id": "bigint[]"}},
        {"keys": {}},
        {"keys": {"a b": "bigint"}},
        {"values": ("x, y",)},
        {"order": ("id DESC",)},
        {"group": ('"x"',)},
        {"max_attempts": 0},
        {"lease": timedelta(0)},
    ],
)
def test_specs_take_plain_names_only(broken: dict[str, object]) -> None:
    sound: dict[str, object] = {"table": "work", "keys": {"id": "bigint"}, "lease": LEASE, "max_attempts": 1}
    with pytest.raises(ValueError):
        ClaimSpec(**{**sound, **broken})  # type: ignore[arg-type] # wrong values are the test


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "finish", "retry", "extend", "release", "park", "die", "unpark"]),
        st.integers(0, 5),
        st.integers(0, 150),
    ),
    min_size=1,
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_workers_do_no_row_is_lost_or_held_twice(
    work: Database, steps: Sequence[tuple[str, int, int]]
) -> None:
    """At any time each row is in exactly one state, a live claim has one holder, and no row is claimed more often
    than allowed.
    """
    async with work.acquire() as connection:
        await connection.execute("TRUNCATE work")
    await add(work, 4)
    now = NOW
    holders: dict[tuple[int, int], Claim] = {}
    for step, pick, seconds in steps:
        now += timedelta(seconds=seconds)
        held = list(holders.values())
        chosen = held[pick % len(held)] if held else Claim((1, 1), uuid4(), 1, now)
        async with work.acquire() as connection:
            if step == "claim":
                batch = await WORK.claim(connection, now=now, limit=pick)
                for new in batch.claims:
                    old = holders.get(new.key)
                    assert old is None or old.lease_until <= now
                    assert 1 <= new.attempt <= SPEC.max_attempts
                    holders[new.key] = new
                for key in batch.parked:
                    assert holders.pop(key).lease_until <= now
            elif step == "unpark":
                await WORK.unpark(connection, [(1, n) for n in range(1, 5)], now=now)
            elif step == "die":
                continue
            elif step == "extend":
                ours = await WORK.extend(connection, [chosen], until=now + LEASE)
                assert bool(ours) == bool(held)
                if ours:
                    holders[chosen.key] = Claim(chosen.key, chosen.token, chosen.attempt, now + LEASE)
            else:
                if step == "finish":
                    ended = bool(await WORK.finish(connection, [chosen]))
                elif step == "retry":
                    ended = await WORK.retry(connection, chosen, now=now, at=now, error="x") is not Retry.STALE
                elif step == "release":
                    ended = bool(await WORK.release(connection, [chosen]))
                else:
                    ended = bool(await WORK.park(connection, [chosen], now=now, error="x"))
                assert ended == bool(held)
                holders.pop(chosen.key, None)
            rows = await connection.fetch("SELECT * FROM work")
        assert len(rows) == 4
        for found in rows:
            key = (found["tenant_id"], found["id"])
            assert found["claim_token"] == (holders[key].token if key in holders else None)
            assert (found["claim_token"] is None) == (found["lease_until"] is None)
            assert found["parked_at"] is None or found["next_attempt_at"] is None
            assert found["attempts"] <= SPEC.max_attempts
