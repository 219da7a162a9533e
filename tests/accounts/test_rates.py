"""Rate limits: fixed windows, settled between nodes in batches."""

from __future__ import annotations

import pytest

from postroom.accounts import Bucket, KeyVerifier, Level, Principal, PrincipalKind, RateLimiter, Upkeep
from postroom.accounts.rates import _BATCH
from postroom.base.clock import ManualClock
from postroom.db import Database, DatabaseUnavailable


def admitted(limiter: RateLimiter, bucket: Bucket, subject: str, tries: int) -> int:
    return sum(limiter.hit(bucket, subject).allowed for _ in range(tries))


def test_a_window_admits_its_limit_and_the_next_one_again(clock: ManualClock) -> None:
    limiter = RateLimiter(clock)
    assert admitted(limiter, Bucket.SEARCH, "key_a", 200) == 120
    refused = limiter.hit(Bucket.SEARCH, "key_a")
    assert (refused.allowed, refused.limit, refused.reset_after) == (False, 120, 60)
    assert limiter.hit(Bucket.SEARCH, "key_b").allowed
    assert limiter.hit(Bucket.API, "key_a").allowed
    clock.advance(59.5)
    assert limiter.hit(Bucket.SEARCH, "key_a").reset_after == 1
    clock.advance(0.5)
    assert admitted(limiter, Bucket.SEARCH, "key_a", 200) == 120


def test_a_request_counts_in_all_its_buckets_or_none(clock: ManualClock) -> None:
    limiter = RateLimiter(clock)
    one, two = (
        Principal(PrincipalKind.KEY, f"key_{n}", n, Level.TENANT, frozenset(), tenant_id=1, tenant_public_id="ten_1")
        for n in (1, 2)
    )
    assert sum(limiter.hit_request(one, search=True).allowed for _ in range(200)) == 120
    assert limiter.hit_request(one, search=True).bucket is Bucket.SEARCH
    # What the search bucket refused was counted nowhere: 480 of the key's 600 are left.
    assert sum(limiter.hit_request(one).allowed for _ in range(700)) == 480
    assert limiter.hit_request(one).bucket is Bucket.API
    assert sum(limiter.hit_request(two).allowed for _ in range(700)) == 600
    three = [
        Principal(PrincipalKind.KEY, f"key_{n}", n, Level.TENANT, frozenset(), tenant_id=1, tenant_public_id="ten_1")
        for n in (3, 4)
    ]
    assert sum(limiter.hit_request(three[0]).allowed for _ in range(700)) == 600
    assert limiter.hit_request(three[1]).bucket is Bucket.TENANT


async def test_nodes_settle_what_they_count(db: Database, clock: ManualClock) -> None:
    left, right = RateLimiter(clock), RateLimiter(clock)
    assert admitted(left, Bucket.SEARCH, "key_a", 100) == 100
    await left.flush(db)
    assert admitted(right, Bucket.SEARCH, "key_a", 10) == 10
    await right.flush(db)
    await right.flush(db)
    # The right node knows of the left's hundred now: ten more.
    assert admitted(right, Bucket.SEARCH, "key_a", 50) == 10
    await right.flush(db)
    # The left one learns with its next request.
    assert left.hit(Bucket.SEARCH, "key_a").allowed
    await left.flush(db)
    assert admitted(left, Bucket.SEARCH, "key_a", 50) == 0
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count FROM api_rate_windows") == 121


async def test_an_error_loses_no_count(db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = RateLimiter(clock)
    admitted(limiter, Bucket.SEARCH, "key_a", 50)

    def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(db, "acquire", away)
        with pytest.raises(DatabaseUnavailable):
            await limiter.flush(db)
    await limiter.flush(db)
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count FROM api_rate_windows") == 50
    assert admitted(limiter, Bucket.SEARCH, "key_a", 100) == 70


async def test_memory_is_bounded_and_the_past_forgotten(db: Database, clock: ManualClock) -> None:
    limiter = RateLimiter(clock, max_entries=3 * _BATCH)
    for n in range(5 * _BATCH):
        limiter.hit(Bucket.API, f"key_{n}")
    assert len(limiter._counts) == 3 * _BATCH
    await limiter.flush(db)
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM api_rate_windows") == 3 * _BATCH
    clock.advance(60)
    await limiter.flush(db)
    assert not limiter._counts


async def test_upkeep_prunes_and_waits_out_a_database_that_is_away(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = RateLimiter(clock)
    upkeep = Upkeep(db, clock, limiter, KeyVerifier(db, clock, b"p" * 32))
    limiter.hit(Bucket.API, "key_a")

    def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(db, "acquire", away)
        await upkeep.tick()
    await upkeep.tick()
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM api_rate_windows") == 1
    clock.advance(2 * 3600)
    await upkeep.tick()
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM api_rate_windows") == 0
