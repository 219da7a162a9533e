"""Thread tokens with the deployment's keys, how often they may fail, and what the receiver makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.signing_keys import Purpose, SigningKey, SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.sealing import Keyring
from postroom.db import Database, DatabaseUnavailable
from postroom.inbound.thread_tokens import FailureCounts, ThreadTokens, TokenReader
from postroom.mail.thread_token import MAX_SEQ, TokenState
from postroom.mailbox.ingest import Failure, IngestError
from postroom.mailbox.models import Filing
from tests.inbound.fakes import FakeIngest, FakeKeys, To, envelope, reader
from tests.inbound.test_receive import receiver
from tests.mailbox.letters import raw_mail

MASTER = Keyring(b"m" * 32)
IDENTITY, OTHER = "idn_01J9Z3K8V4QW7X2M5N6P8R0T1Y", "idn_01J9Z3K8V4QW7X2M5N6P8R0T1Z"
ANNA = "anna@example.com"
SUSPECT = Filing(is_suspect=True)


def forged(token: str) -> str:
    """The same with one bit of its MAC turned."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    return token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]


@pytest.fixture
def tokens(clock: ManualClock) -> ThreadTokens:
    return ThreadTokens(FakeKeys(), clock)


# -- keys


@given(number=st.integers(1, MAX_SEQ), change=st.sampled_from([str, str.upper, str.title]))
@pytest.mark.covers("edge:A2", "FR-OUT-6")
async def test_what_is_minted_is_found_again(number: int, change: Callable[[str], str]) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    token = await ThreadTokens(FakeKeys(), clock).mint(IDENTITY, number)
    read = reader(clock)
    assert await read.filing([change(token)], IDENTITY, 1, ANNA) == Filing(joins=number)
    assert await read.filing([change(token)], OTHER, 2, ANNA) == SUSPECT
    assert await read.filing([forged(token)], IDENTITY, 1, ANNA) == SUSPECT
    assert (read.counts[TokenState.VALID], read.counts[TokenState.INVALID]) == (1, 2)


@pytest.mark.covers("edge:D10")
async def test_a_rotated_key_files_and_a_revoked_one_does_not(db: Database, clock: ManualClock) -> None:
    keys = SigningKeys(db, MASTER, clock)
    read = TokenReader(ThreadTokens(keys, clock), clock, b"h" * 32)
    old = await ThreadTokens(keys, clock).mint(IDENTITY, 7)
    await keys.rotate(Purpose.THREAD)
    new = await ThreadTokens(keys, clock).mint(IDENTITY, 7)
    assert (old[1], new[1]) == ("0", "1")
    assert await read.filing([old], IDENTITY, 1, ANNA) == Filing(joins=7)
    assert read.of_previous_keys == 1
    assert await read.filing([new], IDENTITY, 1, ANNA) == Filing(joins=7)
    assert read.of_previous_keys == 1
    clock.advance(timedelta(days=90).total_seconds())
    assert await read.filing([old], IDENTITY, 1, ANNA) == SUSPECT
    await keys.rotate(Purpose.THREAD, revoke_previous=True)
    assert await read.filing([new], IDENTITY, 1, ANNA) == SUSPECT


@pytest.mark.covers("edge:D10")
async def test_a_key_that_another_process_made_is_looked_up(db: Database, clock: ManualClock) -> None:
    here, there = SigningKeys(db, MASTER, clock), SigningKeys(db, MASTER, clock)
    read = TokenReader(ThreadTokens(here, clock), clock, b"h" * 32)
    assert await read.filing(["t01.00000000"], IDENTITY, 1, ANNA) == SUSPECT
    await there.rotate(Purpose.THREAD)
    clock.advance(60)
    token = await ThreadTokens(there, clock).mint(IDENTITY, 3)
    assert await read.filing([token], IDENTITY, 1, ANNA) == Filing(joins=3)


@pytest.mark.covers("edge:J7")
async def test_keys_that_cannot_be_had(clock: ManualClock) -> None:
    keys = FakeKeys()
    read, token = reader(clock, keys), await ThreadTokens(keys, clock).mint(IDENTITY, 3)
    keys.error = PostroomError("unavailable")  # a stored key does not open: that will not pass by itself
    assert await read.filing([token], IDENTITY, 1, ANNA) == SUSPECT
    for keys.error in (DatabaseUnavailable("away"), TimeoutError(), ConnectionResetError()):
        with pytest.raises(IngestError) as raised:
            await read.filing([token], IDENTITY, 1, ANNA)
        assert raised.value.failure is Failure.DATABASE
    assert len(read.failures) == 0
    keys.error = RuntimeError("a fault")
    with pytest.raises(RuntimeError):
        await read.filing([token], IDENTITY, 1, ANNA)


# -- details


@pytest.mark.covers("edge:A2", "mail-server:A6")
@pytest.mark.parametrize(
    "detail", ["", "news", "t", "t01.0123456", "t0l.01234567", "T01.0123456i", "t01.01234567+", "ſ"]
)
async def test_ordinary_details_cost_no_key(clock: ManualClock, detail: str) -> None:
    keys = FakeKeys()
    read = reader(clock, keys)
    assert await read.filing([detail, "news"], IDENTITY, 1, ANNA) is None
    assert (keys.asked, len(read.failures), read.counts.total()) == (0, 0, 0)


@pytest.mark.covers("edge:A2")
async def test_the_first_valid_one_counts(clock: ManualClock, tokens: ThreadTokens) -> None:
    read = reader(clock)
    one, two = [await tokens.mint(IDENTITY, number) for number in (1, 2)]
    assert await read.filing(["news", forged(one), two, one], IDENTITY, 1, ANNA) == Filing(joins=2)


# -- guessing


@pytest.mark.covers("edge:D10")
async def test_the_eleventh_failure_of_a_sender_is_the_last_that_is_looked_at(
    clock: ManualClock, tokens: ThreadTokens
) -> None:
    keys = FakeKeys()
    read, token = reader(clock, keys), await tokens.mint(IDENTITY, 5)
    for _ in range(10):
        assert await read.filing([forged(token)], IDENTITY, 1, ANNA) == SUSPECT
    assert keys.asked == 10
    assert await read.filing([token], IDENTITY, 1, ANNA) == SUSPECT  # unchecked, though it is good
    assert keys.asked == 10
    assert read.counts[TokenState.INVALID] == 11
    assert await read.filing([token], IDENTITY, 1, "ben@example.com") == Filing(joins=5)
    assert await read.filing([token], IDENTITY, 2, ANNA) == Filing(joins=5)  # another mailbox
    clock.advance(3600)
    assert await read.filing([token], IDENTITY, 1, ANNA) == Filing(joins=5)


@pytest.mark.covers("edge:D10")
async def test_many_senders_are_stopped_together(clock: ManualClock, tokens: ThreadTokens) -> None:
    keys = FakeKeys()
    read, token = reader(clock, keys), await tokens.mint(IDENTITY, 5)
    for n in range(100):
        await read.filing([forged(token)], IDENTITY, 1, f"s{n}@example.com")
    assert keys.asked == 100
    assert await read.filing([token], IDENTITY, 1, "new@example.com") == SUSPECT
    assert await read.filing([token], IDENTITY, 2, "new@example.com") == Filing(joins=5)
    assert keys.asked == 101


@pytest.mark.covers("edge:D10")
async def test_one_message_has_no_more_guesses_than_an_hour(clock: ManualClock, tokens: ThreadTokens) -> None:
    keys = FakeKeys()
    token = await tokens.mint(IDENTITY, 5)
    assert await reader(clock, keys).filing([forged(token)] * 50 + [token], IDENTITY, 1, ANNA) == SUSPECT
    assert keys.asked == 10


@pytest.mark.covers("edge:D10", "edge:I5")
def test_counts_are_bounded_and_name_nobody(clock: ManualClock) -> None:
    counts = FailureCounts(clock, b"h" * 32, max_entries=20)
    for n in range(1000):
        counts.add(n % 50, f"s{n}@example.com")
    assert len(counts) <= 40
    assert not any(b"example" in key for key in counts._senders)
    for _ in range(10):
        counts.add(7, "\ud800@example.com")
    assert counts.are_used_up(7, "\ud800@example.com")
    clock.advance(3600)
    assert not counts.are_used_up(7, "\ud800@example.com")
    assert len(counts) == 0


# -- the receiver


def to(base: str = "box@agents.example", detail: str = "", mailbox_id: int = 1, identity: str = IDENTITY) -> To:
    return To(base, mailbox_id, identity_public_id=identity, detail=detail)


@pytest.mark.covers("edge:C1", "edge:A2")
async def test_each_mailbox_has_its_own(clock: ManualClock, tokens: ThreadTokens) -> None:
    ingest = FakeIngest()
    token = await tokens.mint(IDENTITY, 5)
    recipients = (
        to(),
        to("alias@agents.example", token),
        to("other@agents.example", token, 2, OTHER),
        to("news@agents.example", "news", 3),
        to("plain@agents.example", "", 4),
    )
    await receiver(clock, ingest).receive(envelope(*recipients), raw_mail())
    (delivery,) = ingest.taken
    assert {copy.mailbox.mailbox_id: copy.filing for copy in delivery.copies} == {
        1: Filing(joins=5),
        2: SUSPECT,
        3: None,
        4: None,
    }


@pytest.mark.covers("edge:D10")
@pytest.mark.parametrize(
    ("sender", "mail_from", "counted"),
    [
        ("Anna <ANNA@example.com>", "list@example.net", ANNA),
        ("", ANNA, ANNA),
        ("nobody", ANNA, ANNA),
        ("", "", ""),
    ],
)
async def test_whose_failure_it_is(clock: ManualClock, sender: str, mail_from: str, counted: str) -> None:
    read = reader(clock)
    raw = raw_mail(sender=sender)
    for n in range(10):
        assert not read.failures.are_used_up(1, counted)
        there = envelope(to(detail="t01.00000000"), mail_from=mail_from)
        reply = await receiver(clock, FakeIngest(), tokens=read).receive(there, raw + b"%d" % n)
        assert reply.code == 250
    assert read.failures.are_used_up(1, counted)


@pytest.mark.covers("edge:J7")
async def test_mail_with_a_token_comes_again_when_the_keys_are_away(clock: ManualClock) -> None:
    keys, ingest = FakeKeys(error=DatabaseUnavailable("away")), FakeIngest()
    there = receiver(clock, ingest, tokens=reader(clock, keys))
    assert (await there.receive(envelope(to(detail="t01.00000000")), raw_mail())).code == 451
    assert (await there.receive(envelope(to()), raw_mail())).code == 250
    assert [copy.filing for delivery in ingest.taken for copy in delivery.copies] == [None]


@pytest.mark.covers("edge:A10", "edge:A2", "edge:A9")
async def test_a_recipient_that_is_named_with_its_detail_is_no_blind_one(clock: ManualClock) -> None:
    ingest = FakeIngest()
    raw = raw_mail(to="Box <box+t01.00000000@agents.example>", cc="two+x@agents.example")
    named = (to(detail="t01.00000000"), to("two@agents.example", "", 2), to("blind@agents.example", "", 3))
    await receiver(clock, ingest).receive(envelope(*named), raw)
    (delivery,) = ingest.taken
    assert [copy.is_bcc for copy in delivery.copies] == [False, False, True]
    assert [copy.delivered_to for copy in delivery.copies] == [one.base for one in named]
    # The first of them in the header is who the message is to.
    assert [copy.is_primary_recipient for copy in delivery.copies] == [True, False, False]


async def test_a_ring_holds_old_keys_by_their_end(clock: ManualClock) -> None:
    end = clock.now() + timedelta(days=1)
    old = SigningKey("z", bytes(32), clock.now(), end)
    keys = FakeKeys((replace(old, verify_until=None),))
    token = await ThreadTokens(keys, clock).mint(IDENTITY, 1)
    keys.keys = (*FakeKeys().keys, old)
    read = reader(clock, keys)
    assert await read.filing([token], IDENTITY, 1, ANNA) == Filing(joins=1)
    clock.advance(timedelta(days=1).total_seconds())
    assert await read.filing([token], IDENTITY, 1, ANNA) == SUSPECT
