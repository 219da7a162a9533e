"""The writer's decisions against a model of them, and every row and counter that it leaves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.mailbox.models import (
    Appended,
    Busy,
    Direction,
    FolderKey,
    MailboxRef,
    NewMessage,
    Refusal,
    Refused,
    Source,
)

from .letters import Box, Pen, check_mailbox, inbox, make_boxes, raw_mail

SENDERS = ("anna@example.com", "bert@example.com", "carl@example.com")
SUBJECTS = ("Plans", "Re: Plans", "Lunch")
NAMES = st.sampled_from("abcd")


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as the strategy draws it; ids are letters."""

    name: str | None
    reply_to: str | None
    references: tuple[str, ...]
    sender: str
    subject: str
    body: str
    trace: str
    appended: bool
    flags: tuple[str, ...]

    def raw(self) -> bytes:
        return raw_mail(
            message_id=self.name and f"{self.name}@example.com",
            in_reply_to=self.reply_to and f"{self.reply_to}@example.com",
            references=[f"{name}@example.com" for name in self.references],
            sender=self.sender,
            subject=self.subject,
            body=self.body,
            trace=self.trace,
        )


LETTERS = st.builds(
    Letter,
    name=NAMES | st.none(),
    reply_to=NAMES | st.none(),
    references=st.lists(NAMES, max_size=3).map(tuple),
    sender=st.sampled_from(SENDERS),
    subject=st.sampled_from(SUBJECTS),
    body=st.sampled_from(("one", "two")),
    trace=st.sampled_from(("", "x")),
    appended=st.booleans(),
    flags=st.sampled_from(((), ("$seen",), ("$deleted", "work"))),
)


@dataclass(slots=True)
class Thread:
    people: list[str] = field(default_factory=list)
    subject: str = ""


@dataclass(slots=True)
class Kept:
    letter: Letter
    message: NewMessage
    thread: Thread
    facts: set[str]


@dataclass(slots=True)
class Model:
    """What the writer should decide, message by message (inbound.md §23, §28)."""

    kept: list[Kept] = field(default_factory=list)

    def named(self, name: str | None) -> list[Kept]:
        return [one for one in reversed(self.kept) if name is not None and one.letter.name == name]

    def add(self, letter: Letter, message: NewMessage) -> Kept:
        if not letter.appended:
            arrived = [one for one in self.kept if not one.letter.appended]
            for one in arrived:
                if one.letter.raw() == letter.raw():
                    return one
            for one in self.named(letter.name):
                theirs, ours = one.letter, letter
                same = (theirs.sender, theirs.subject, theirs.body) == (ours.sender, ours.subject, ours.body)
                if same and not one.letter.appended:
                    return one
        facts = set() if letter.name else {"message_id_synthetic"}
        for name in (letter.reply_to, *reversed(letter.references)):
            if found := self.named(name):
                thread = found[0].thread
                if letter.sender not in thread.people:
                    facts.add("thread_join_unverified")
                break
        else:
            thread = Thread(subject=letter.subject.removeprefix("Re: "))
        rivals = [one for one in self.named(letter.name) if not one.letter.appended]
        if rivals and not letter.appended:
            facts.add("message_id_conflict")
            for one in rivals:
                one.facts.add("message_id_conflict")
        for person in (letter.sender, "box@agents.example"):
            if person not in thread.people:
                thread.people.append(person)
        self.kept.append(Kept(letter, message, thread, facts))
        return self.kept[-1]


@pytest.mark.covers(
    "edge:C1",
    "FR-THR-1",
    "edge:C8",
    "edge:C9",
    "edge:B3",
    "edge:B14",
    "edge:J2",
    "decisions:A7",
    "mail-server:D4",
    "decisions:D12",
    "decisions:B20",
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(LETTERS, min_size=1, max_size=5), min_size=1, max_size=5))
async def test_any_sequence_of_batches(
    db: Database, clock: ManualClock, ids: IdGenerator, batches: list[list[Letter]]
) -> None:
    # More than five of one Message-ID: only the newest are looked at.
    for name in "abcd":
        assume(sum(letter.name == name for batch in batches for letter in batch) <= 5)
    (box,) = await make_boxes(db, ids, clock)
    pen, model = Pen(ids, clock), Model()
    uids: list[int] = []
    async with db.acquire() as conn:
        for batch in batches:
            clock.advance(1)
            messages = [
                pen.copy(box, one.raw(), source=Source.APPEND if one.appended else Source.MX, flags=one.flags)
                for one in batch
            ]
            before = len(model.kept)
            outcomes = await pen.store(conn, *([message] for message in messages))
            for letter, message, outcome in zip(batch, messages, outcomes, strict=True):
                expected = model.add(letter, message)
                assert isinstance(outcome, tuple)
                (one,) = outcome
                assert one.message_id == expected.message.id
                assert one.duplicate == (expected.message is not message)
                if not one.duplicate:
                    uids.append(one.uid)
            modseqs = {o[0].modseq for o in outcomes if isinstance(o, tuple) and not o[0].duplicate}
            assert len(modseqs) == bool(len(model.kept) - before)
        assert uids == list(range(1, len(model.kept) + 1))
        await _compare(conn, box, model)
        await check_mailbox(conn, box.ref)


async def _compare(conn: Connection, box: Box, model: Model) -> None:
    rows = await conn.fetch(
        "SELECT m.public_id, m.facts, t.public_id AS thread, t.subject, t.participants_json AS people, t.last_at, "
        "t.message_count, t.reply_from_address FROM messages m JOIN threads t ON t.mailbox_id = m.mailbox_id "
        "AND t.seq = m.thread_seq WHERE m.mailbox_id = $1 ORDER BY m.id",
        box.ref.mailbox_id,
    )
    assert [row["public_id"] for row in rows] == [one.message.id for one in model.kept]
    threads: dict[str, Thread] = {}
    for row, one in zip(rows, model.kept, strict=True):
        assert set(row["facts"]) == one.facts
        assert threads.setdefault(row["thread"], one.thread) is one.thread
        members = [other for other in model.kept if other.thread is one.thread]
        assert row["message_count"] == len(members)
        assert row["last_at"] == max(other.message.received_at for other in members)
        assert (row["thread"], row["subject"]) == (members[0].message.thread_id, one.thread.subject)
        assert [person["address"] for person in row["people"]] == one.thread.people
        assert row["reply_from_address"] == box.address
    assert len({id(one.thread) for one in model.kept}) == len(threads)


@pytest.mark.covers("edge:B14", "mail-server:A8")
async def test_alias_and_primary_of_one_mailbox_are_one_copy(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen, raw = Pen(ids, clock), raw_mail(message_id="one@example.com")
    async with db.acquire() as conn:
        group = [pen.copy(box, raw), pen.copy(box, raw, delivered_to=box.alias)]
        (outcome,) = await pen.store(conn, group)
        assert isinstance(outcome, tuple)
        assert [one.message_id for one in outcome] == [group[0].id] * 2
        assert [one.duplicate for one in outcome] == [False, True]
        await check_mailbox(conn, box.ref)


@pytest.mark.covers("edge:B3", "FR-IN-4")
@pytest.mark.parametrize("batches", [1, 3])
async def test_who_sends_it_first_keeps_nobodys_own_from_being_taken(
    db: Database, clock: ManualClock, ids: IdGenerator, batches: int
) -> None:
    """The same Message-ID, subject and text: of somebody else, or of nobody knows whom."""
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)

    def copy(verdict: str, trace: str, sender: str = "ann@example.com") -> NewMessage:
        raw = raw_mail(message_id="one@example.com", sender=sender, trace=trace)
        made = pen.copy(box, raw)
        return replace(made, content=replace(made.content, verdict=verdict))

    copies = [
        copy("fail", "1", sender="eve@example.net"),
        copy("fail", "2"),
        copy("pass", "3"),
        copy("pass", "4"),
        copy("none", "5"),
    ]
    async with db.acquire() as conn:
        told: list[bool] = []
        for at in range(0, len(copies), -(-len(copies) // batches)):
            for outcome in await pen.store(conn, *([one] for one in copies[at : at + -(-len(copies) // batches)])):
                assert isinstance(outcome, tuple)
                told.append(outcome[0].duplicate)
        assert told == [False, False, False, True, True]
        await check_mailbox(conn, box.ref)


@pytest.mark.covers("edge:B14", "edge:J2")
async def test_a_retry_in_a_later_batch_changes_nothing(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen, raw = Pen(ids, clock), raw_mail(message_id="one@example.com")
    async with db.acquire() as conn:
        first = pen.copy(box, raw)
        await pen.store(conn, [first])
        before = await conn.fetchrow("SELECT * FROM mailboxes WHERE id = $1", box.ref.mailbox_id)
        (outcome,) = await pen.store(conn, [pen.copy(box, raw)])
        assert isinstance(outcome, tuple)
        assert (outcome[0].message_id, outcome[0].duplicate) == (first.id, True)
        assert await conn.fetchrow("SELECT * FROM mailboxes WHERE id = $1", box.ref.mailbox_id) == before
        await check_mailbox(conn, box.ref)


@pytest.mark.covers("mail-server:A8", "mail-server:E4")
async def test_quota_is_all_or_nothing(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (roomy,) = await make_boxes(db, ids, clock)
    (small,) = await make_boxes(db, ids, clock, quota_bytes=2000)
    pen = Pen(ids, clock)
    large, little = raw_mail(body="x" * 1900), raw_mail(body="y" * 1200)
    async with db.acquire() as conn:
        outcomes = await pen.store(
            conn,
            [pen.copy(roomy, large), pen.copy(small, large)],
            [pen.copy(small, little), pen.copy(roomy, little)],
            [pen.copy(small, raw_mail(body="z" * 600))],
            [pen.copy(roomy, large)],
        )
        assert outcomes[0] == Refused(Refusal.MAILBOX_FULL)
        assert isinstance(outcomes[1], tuple)
        # What the group before used in this very batch counts.
        assert outcomes[2] == Refused(Refusal.MAILBOX_FULL)
        assert isinstance(outcomes[3], tuple)
        assert not outcomes[3][0].duplicate
        # A duplicate needs no room; nor does the second of two equal copies.
        (again,) = await pen.store(conn, [pen.copy(small, little)])
        assert isinstance(again, tuple)
        for box in (roomy, small):
            await check_mailbox(conn, box.ref)
        assert await conn.fetchval("SELECT count(*) FROM messages") == 3


@pytest.mark.covers("mail-server:E4", "edge:B14")
async def test_two_equal_copies_need_room_for_one(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock, quota_bytes=2000)
    pen, raw = Pen(ids, clock), raw_mail(body="y" * 1200)
    async with db.acquire() as conn:
        (outcome,) = await pen.store(conn, [pen.copy(box, raw), pen.copy(box, raw, delivered_to=box.alias)])
        assert isinstance(outcome, tuple)
        await check_mailbox(conn, box.ref)


@pytest.mark.covers("mail-server:A8")
async def test_refusals(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    boxes = await make_boxes(db, ids, clock, 4)
    pen = Pen(ids, clock)
    erased, full, wrong, fine = boxes
    async with db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET erased = true WHERE id = $1", erased.ref.mailbox_id)
        await conn.execute(
            "UPDATE folders SET uid_next = 4294967295 WHERE mailbox_id = $1 AND special_use = 'inbox'",
            full.ref.mailbox_id,
        )
        foreign = await inbox(conn, fine.ref)
        stranger = MailboxRef(fine.ref.tenant_id + 1000, fine.ref.mailbox_id)
        outcomes = await pen.store(
            conn,
            [pen.copy(erased, raw_mail(body="1")), pen.copy(fine, raw_mail(body="1"))],
            [pen.copy(full, raw_mail(body="2")), pen.copy(fine, raw_mail(body="2"))],
            [pen.copy(wrong, raw_mail(body="3"), folder=foreign)],
            [pen.copy(wrong, raw_mail(body="4"), folder=FolderKey(10**9))],
            [pen.copy(fine, raw_mail(body="5"))],
        )
        assert outcomes[:4] == [
            Refused(Refusal.MAILBOX_GONE),
            Refused(Refusal.UID_EXHAUSTED),
            Refused(Refusal.FOLDER_GONE),
            Refused(Refusal.FOLDER_GONE),
        ]
        assert isinstance(outcomes[4], tuple)
        # The mailbox of another tenant is not there, whoever asks; only the one that is waited for is known to be gone.
        assert await pen.store(conn, [pen.copy(fine, raw_mail(body="6"), mailbox=stranger)]) == [Busy(stranger)]
        assert await conn.fetchval("SELECT count(*) FROM messages") == 1
        for box in (erased, wrong, fine):
            await check_mailbox(conn, box.ref)


@pytest.mark.covers("decisions:B14")
async def test_a_held_mailbox_leaves_its_groups_untouched(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    held, free = await make_boxes(db, ids, clock, 2)
    pen = Pen(ids, clock)
    other = await db.connect()
    try:
        async with other.transaction():
            await other.execute("SELECT FROM mailboxes WHERE id = $1 FOR NO KEY UPDATE", held.ref.mailbox_id)
            async with db.acquire() as conn:
                outcomes = await pen.store(
                    conn,
                    [pen.copy(held, raw_mail(body="1"))],
                    [pen.copy(free, raw_mail(body="2")), pen.copy(held, raw_mail(body="2"))],
                    [pen.copy(free, raw_mail(body="3"))],
                )
                assert outcomes[:2] == [Busy(held.ref)] * 2
                assert isinstance(outcomes[2], tuple)
                assert await conn.fetchval("SELECT count(*) FROM messages") == 1
    finally:
        await other.close()


@pytest.mark.covers("edge:C3", "edge:A10")
async def test_the_thread_remembers_the_address_they_wrote_to(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    async with db.acquire() as conn:

        async def reply_from(thread: str) -> object:
            return await conn.fetchval("SELECT reply_from_address FROM threads WHERE public_id = $1", thread)

        async def deliver(n: int, **changes: object) -> Appended:
            raw = raw_mail(message_id=f"{n}@example.com", in_reply_to=f"{n - 1}@example.com", to=box.address)
            (outcome,) = await pen.store(conn, [pen.copy(box, raw, **changes)])
            assert isinstance(outcome, tuple)
            return outcome[0]

        first = await deliver(1, delivered_to=box.alias, is_bcc=True)
        assert await reply_from(first.thread_id) is None
        assert "bcc" in await conn.fetchval("SELECT facts FROM messages WHERE public_id = $1", first.message_id)
        await deliver(2, delivered_to=box.alias)
        assert await reply_from(first.thread_id) == box.alias
        await deliver(3, delivered_to=box.address, is_bcc=True)
        assert await reply_from(first.thread_id) == box.alias
        last = await deliver(4, direction=Direction.OUTBOUND, source=Source.APPEND, delivered_to=None)
        assert last.thread_id == first.thread_id
        row = await conn.fetchrow("SELECT * FROM threads WHERE public_id = $1", first.thread_id)
        assert row is not None
        assert (row["message_count"], row["unread_count"], row["reply_from_address"]) == (4, 3, box.alias)
        assert row["last_outbound_at"] == row["last_inbound_at"] == clock.now()
        # Own addresses, the alias as well, are no participants.
        assert [one["address"] for one in row["participants_json"]] == ["anna@example.com"]
        await check_mailbox(conn, box.ref)


@pytest.mark.covers("edge:C1", "edge:C9")
async def test_participants_are_bounded_and_take_newer_names(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    crowd = ", ".join(f"P{n} <p{n}@example.com>" for n in range(80))
    async with db.acquire() as conn:
        await pen.store(conn, [pen.copy(box, raw_mail(message_id="1@example.com", cc=crowd))])
        raw = raw_mail(message_id="2@example.com", in_reply_to="1@example.com", sender=f"{'N' * 100} <p3@example.com>")
        await pen.store(conn, [pen.copy(box, raw)])
        people = await conn.fetchval("SELECT participants_json FROM threads WHERE mailbox_id = $1", box.ref.mailbox_id)
        assert len(people) == 50
        assert {one["name"] for one in people if one["address"] == "p3@example.com"} == {"N" * 78}

        async def facts(n: int, sender: str) -> list[str]:
            raw = raw_mail(message_id=f"{n}@example.com", in_reply_to="1@example.com", sender=sender)
            message = pen.copy(box, raw)
            await pen.store(conn, [message])
            kept = await conn.fetchval("SELECT facts FROM messages WHERE public_id = $1", message.id)
            assert isinstance(kept, list)
            return kept

        # Who has written to the thread is no stranger, though the list had no room for them.
        assert await facts(3, "late@example.com") == ["thread_join_unverified"]
        assert await facts(4, "late@example.com") == []
        assert await facts(5, "p79@example.com") == ["thread_join_unverified"]
        await check_mailbox(conn, box.ref)


@pytest.mark.covers("edge:C9", "edge:B3", "FR-THR-1")
async def test_the_newest_message_with_an_id_names_the_thread(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    async with db.acquire() as conn:
        old = pen.copy(box, raw_mail(message_id="same@example.com", body="one"))
        new = pen.copy(box, raw_mail(message_id="same@example.com", body="two"))
        answer = pen.copy(box, raw_mail(message_id="re@example.com", in_reply_to="same@example.com"))
        outcomes = await pen.store(conn, [old], [new], [answer])
        assert isinstance(outcomes[2], tuple)
        assert outcomes[2][0].thread_id == new.thread_id
        rows = await conn.fetch("SELECT public_id, facts FROM messages WHERE mailbox_id = $1", box.ref.mailbox_id)
        conflicts = {row["public_id"] for row in rows if "message_id_conflict" in row["facts"]}
        assert conflicts == {old.id, new.id}


@pytest.mark.covers("edge:D9")
async def test_rows_say_what_was_given(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    raw = raw_mail(
        message_id="1@example.com", cc="Cora <cora@example.com>", references=["x@example.com", "y@example.com"]
    )
    async with db.acquire() as conn:
        message = pen.copy(box, raw, flags=("$flagged", "work"), is_primary_recipient=False)
        (outcome,) = await pen.store(conn, [message])
        assert isinstance(outcome, tuple)
        row = await conn.fetchrow("SELECT * FROM messages m JOIN message_texts x ON x.message_id = m.id")
        assert row is not None
        content = message.content
        assert row["raw_sha256"] == hashlib.sha256(raw).digest()
        assert row["reference_ids"] == ["x@example.com", "y@example.com"]
        assert (row["raw_prefix_len"], row["raw_size"]) == (content.prefix_len, content.raw_size)
        assert (row["subject"], row["text"], row["extracted_text"]) == ("Hello", content.text, None)
        assert (row["is_primary_recipient"], row["is_bcc"], row["delivered_to"]) == (False, False, box.address)
        assert (row["envelope"], row["body_structure"]) == (content.envelope, content.body_structure)
        place = await conn.fetchrow("SELECT * FROM placements")
        change = await conn.fetchrow("SELECT * FROM changes WHERE kind = 'placed'")
        assert place is not None
        assert change is not None
        assert place["flags"] == change["flags"] == ["$flagged", "work"]
        assert (change["message"], change["uid"], change["modseq"]) == (message.id, place["uid"], outcome[0].modseq)
        assert (place["modseq"], place["uid"]) == (outcome[0].modseq, outcome[0].uid)
        recipients = await conn.fetch("SELECT kind, address, name FROM recipients ORDER BY kind")
        assert [tuple(one) for one in recipients] == [
            ("cc", "cora@example.com", "Cora"),
            ("to", "box@agents.example", ""),
        ]
