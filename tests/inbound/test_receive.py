"""From the final dot to the reply: what is stored for whom, and what the sender is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Database
from postroom.events.catalogue import TextBytes, default_text_bytes
from postroom.inbound import receive
from postroom.inbound.judging import Judge, Judgement, Judging, JudgingRules
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import Receiver
from postroom.inbound.thread_tokens import TokenReader
from postroom.mailauth.zone import Zone
from postroom.mailbox.ingest import Failure, Ingest
from postroom.mailbox.models import Placed, Refusal, Refused
from postroom.net.known_names import KnownNames
from postroom.smtp.envelope import Envelope
from tests.logs import Log
from tests.mailbox.letters import Box, check_mailbox, make_boxes, raw_mail

from .fakes import FakeIngest, FakeJudge, To, envelope, reader


def receiver(
    clock: ManualClock,
    ingest: Any,
    local: Mapping[str, To] | None = None,
    tokens: TokenReader | None = None,
    judge: Judging | None = None,
    text_bytes: TextBytes = default_text_bytes,
) -> Receiver:
    known = dict(local or {})

    async def local_mailbox(address: str) -> To | None:
        return known.get(address)

    return Receiver(
        ingest,
        Parser(),
        clock,
        IdGenerator(clock),
        hostname="mx.agents.example",
        version="1",
        local_mailbox=local_mailbox,
        tokens=tokens or reader(clock),
        judge=judge,
        text_bytes=text_bytes,
    )


def target(box: Box, address: str | None = None) -> To:
    return To(address or box.address, box.ref.mailbox_id, box.ref.tenant_id, box.tenant_id, box.identity_id)


@pytest.mark.covers("FR-WH-4")
async def test_the_text_of_events_is_each_tenants_to_say(clock: ManualClock) -> None:
    """Asked of the tenant of each copy. Where it cannot be found out there is none: mail does not wait for it."""
    own = {1: 0, 2: 5}

    async def text_bytes(tenant_id: int) -> int:
        return own[tenant_id]

    ingest = FakeIngest()
    boxes = [To(f"box{n}@agents.example", n, n, f"ten_{n}", f"idn_{n}") for n in (1, 2, 3)]
    reply = await receiver(clock, ingest, text_bytes=text_bytes).receive(envelope(*boxes), raw_mail(body="Hello you"))
    assert reply.code == 250
    texts = {}
    for copy in ingest.taken[0].copies:
        placed = Placed(copy.id, copy.thread_id, "ten_1", "idn_1", copy.event_id, 1, clock.now(), (), ())
        assert copy.announce is not None
        texts[copy.mailbox.tenant_id] = orjson.loads(copy.announce(copy, placed)[1])["data"]["extracted_text"]
    assert texts == {1: "", 2: "Hello", 3: ""}


@pytest.mark.covers("edge:B2", "mail-server:B4")
async def test_what_nobody_can_judge_is_mail_all_the_same(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(FakeJudge):
        async def judge(self, envelope: Envelope[Any], raw: bytes, /) -> Judgement:
            raise ZeroDivisionError

    log = Log()
    monkeypatch.setattr(receive, "log", log)
    ingest = FakeIngest()
    reply = await receiver(clock, ingest, judge=Broken()).receive(envelope(To("box@agents.example")), raw_mail())
    assert reply.code == 250
    assert ingest.taken[0].copies[0].content.verdict == "unverified"
    assert "judge_failed" in log.events


@pytest.mark.covers("mail-server:A8", "edge:J1", "mail-server:A9")
@pytest.mark.parametrize(
    ("answer", "code", "enhanced"),
    [
        (None, 250, "2.0.0"),
        (Refused(Refusal.MAILBOX_FULL), 452, "4.2.2"),
        (Refused(Refusal.MAILBOX_GONE), 451, "4.3.0"),
        (Refused(Refusal.FOLDER_GONE), 451, "4.3.0"),
        (Refused(Refusal.UID_EXHAUSTED), 451, "4.3.0"),
        (Failure.STORAGE_FULL, 452, "4.3.1"),
        *((failure, 451, "4.3.0") for failure in Failure if failure is not Failure.STORAGE_FULL),
    ],
)
async def test_replies(clock: ManualClock, answer: Any, code: int, enhanced: str) -> None:
    ingest = FakeIngest(answer)
    reply = await receiver(clock, ingest).receive(envelope(To("box@agents.example")), raw_mail())
    assert (reply.code, reply.enhanced) == (code, enhanced)
    if code == 250:
        assert ingest.taken[0].copies[0].id in reply.text


@pytest.mark.covers("mail-server:A6", "edge:N13")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (b"X-Postroom-Hop: 10\r\n", 250),
        (b"X-Postroom-Hop: 11\r\n", 554),
        (b"x-postroom-hop:\r\n 11\r\n", 554),
        (b"X-Postroom-Hop: 1\r\nSubject: x\r\nX-Postroom-Hop: 11\r\n", 554),
        (b"X-Postroom-Hop: one\r\n", 554),
        (b"Subject: X-Postroom-Hop: 11\r\n", 250),
        (b"\r\nX-Postroom-Hop: 11\r\n", 250),
    ],
)
async def test_loops(clock: ManualClock, fields: bytes, code: int) -> None:
    ingest = FakeIngest()
    raw = b"From: a@example.com\r\n" + fields + b"\r\nX-Postroom-Hop: 12\r\n"
    reply = await receiver(clock, ingest).receive(envelope(To("box@agents.example")), raw)
    assert (reply.code, len(ingest.taken)) == (code, int(code == 250))
    if code == 554:
        assert reply.enhanced == "5.4.6"


@pytest.mark.covers("edge:D9", "RFC 8601 §5")
async def test_results_that_somebody_else_wrote_in_our_name_are_not_stored(clock: ManualClock) -> None:
    ingest = FakeIngest()
    claim, raw = b"Authentication-Results: mx.agents.example; dmarc=pass\r\n", raw_mail()
    judge = Judge(
        KnownNames(Zone({})), clock, JudgingRules(spf=False, dkim=False, dmarc=False), hostname="mx.agents.example"
    )
    made = receiver(clock, ingest, judge=judge)
    assert (await made.receive(envelope(To("box@agents.example")), claim + raw)).code == 250
    assert (await made.receive_each(envelope(To("box@agents.example")), claim + raw))[0].code == 250
    assert [delivery.pieces[1] for delivery in ingest.taken] == [raw, raw]


@pytest.mark.covers("mail-server:A8", "decisions:B5")
@settings(max_examples=50)
@given(raw=st.binary(max_size=400))
async def test_bytes_are_trace_then_exactly_the_original(raw: bytes) -> None:
    clock, ingest = ManualClock(datetime(2030, 1, 1, tzinfo=UTC)), FakeIngest()
    reply = await receiver(clock, ingest).receive(envelope(To("box@agents.example")), raw)
    assert reply.code == 250
    (delivery,) = ingest.taken
    prefix, original = delivery.pieces
    assert original == raw
    lines = prefix.split(b"\r\n")
    assert lines[0] == b"Return-Path: <anna@example.com>"
    assert lines[1].startswith(b"Received: from mx.example.com (mx.example.com [192.0.2.7])")
    assert prefix.endswith(b"\r\n")
    assert b"for <box@agents.example>" in prefix
    assert b"ESMTPS" in prefix
    content = delivery.copies[0].content
    assert (content.prefix_len, content.raw_size) == (len(prefix), len(prefix) + len(raw))


@pytest.mark.covers("mail-server:A6", "edge:A10")
async def test_an_alias_in_the_header_names_the_mailbox_and_its_own_address_receives(clock: ManualClock) -> None:
    box = To("box@agents.example", via=("sales@agents.example", "team@agents.example"))
    for header, is_bcc in (
        ("sales@agents.example", False),
        ("team@agents.example", False),
        ("box@agents.example", False),
        ("other@agents.example", True),
    ):
        ingest = FakeIngest()
        await receiver(clock, ingest).receive(envelope(box), raw_mail(to=header))
        (copy,) = ingest.taken[0].copies
        assert (copy.delivered_to, copy.is_bcc) == ("box@agents.example", is_bcc)
        assert b"for <sales@agents.example>" in ingest.taken[0].pieces[0]
    # Of two ways to one mailbox that counts which the header names; and it is the first in the header that is primary.
    ingest = FakeIngest()
    blind, other = To("box@agents.example"), To("other@agents.example", 2)
    raw = raw_mail(to="sales@agents.example, other@agents.example")
    await receiver(clock, ingest).receive(envelope(blind, box, other), raw)
    found = {copy.mailbox.mailbox_id: (copy.is_bcc, copy.is_primary_recipient) for copy in ingest.taken[0].copies}
    assert found == {1: (False, True), 2: (False, False)}


@pytest.mark.covers("mail-server:A8", "edge:A10")
async def test_several_recipients_are_named_to_nobody(clock: ManualClock) -> None:
    ingest = FakeIngest()
    one, two = To("one@agents.example", 1), To("two@agents.example", 2)
    await receiver(clock, ingest).receive(envelope(one, two), raw_mail(to="one@agents.example"))
    (delivery,) = ingest.taken
    assert b"for <" not in delivery.pieces[0]
    assert b"two@agents.example" not in b"".join(delivery.pieces)
    first, second = delivery.copies
    assert first.content is second.content
    assert [(copy.delivered_to, copy.is_bcc) for copy in delivery.copies] == [
        ("one@agents.example", False),
        ("two@agents.example", True),
    ]
    assert len({copy.id for copy in delivery.copies} | {copy.thread_id for copy in delivery.copies}) == 4
    assert first.blob_key == f"t/{one.tenant_public_id}/i/{one.identity_public_id}/m/{first.id}/raw.eml"


@pytest.mark.covers("edge:A9")
@pytest.mark.parametrize(
    ("to", "cc", "primary"),
    [
        ("one@agents.example, two@agents.example", "", {1}),
        ("two@agents.example, one@agents.example", "", {2}),
        ("x@example.com, two@agents.example", "one@agents.example", {2}),
        ("x@example.com", "one@agents.example, two@agents.example", {1}),
        # An address of the tenant that is no recipient of this copy is the primary; then neither is.
        ("three@agents.example, one@agents.example", "", set()),
        # Of another tenant, or of nobody: none resolves, so each is.
        ("other@agents.example, x@example.com", "", {1, 2}),
        (", ".join(f"x{n}@example.com" for n in range(50)) + ", one@agents.example", "", {1, 2}),
    ],
)
async def test_the_primary_recipient(clock: ManualClock, to: str, cc: str, primary: set[int]) -> None:
    ingest = FakeIngest()
    local = {"three@agents.example": To("three@agents.example", 3), "other@agents.example": To("o", 9, tenant_id=2)}
    recipients = To("one@agents.example", 1), To("two@agents.example", 2)
    await receiver(clock, ingest, local).receive(envelope(*recipients), raw_mail(to=to, cc=cc))
    (delivery,) = ingest.taken
    assert {copy.mailbox.mailbox_id for copy in delivery.copies if copy.is_primary_recipient} == primary


@pytest.mark.covers("edge:A10", "edge:B14")
@pytest.mark.parametrize("first", ["alias@agents.example", "box@agents.example"])
async def test_alias_and_primary_in_one_envelope(clock: ManualClock, first: str) -> None:
    ingest = FakeIngest()
    names = sorted(("alias@agents.example", "box@agents.example"), key=lambda name: name != first)
    await receiver(clock, ingest).receive(envelope(*(To(name) for name in names)), raw_mail(to="box@agents.example"))
    ((copy,),) = [delivery.copies for delivery in ingest.taken]
    assert (copy.delivered_to, copy.is_bcc) == ("box@agents.example", False)


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[MaildirStore]:
    store = MaildirStore(tmp_path, fsync=False)
    yield store
    await store.close()


@pytest.mark.covers("mail-server:A8", "edge:A9", "edge:A10", "edge:B14", "edge:B3", "edge:J2")
async def test_with_real_ingest(
    db: Database, clock: ManualClock, ids: IdGenerator, blobs: MaildirStore, tmp_path: Path
) -> None:
    one, two = await make_boxes(db, ids, clock, 2)
    ingest = Ingest(db, blobs, clock, committed=lambda _: None)
    ingest.start()
    inbound = receiver(clock, ingest)
    raw = raw_mail(message_id="1@example.com", to=one.address)
    try:
        first = await inbound.receive(envelope(target(one), target(two)), raw)
        clock.advance(60)
        # A retry: the trace differs, the octets do not.
        again = await inbound.receive(envelope(target(one), target(two)), raw)
        assert (first.code, again) == (250, first)
        changed = await inbound.receive(envelope(target(one)), raw_mail(message_id="1@example.com", body="Other"))
        assert changed.code == 250
    finally:
        await ingest.stop()
    async with db.acquire() as conn:
        rows = await conn.fetch("SELECT * FROM messages ORDER BY id")
        assert [(row["mailbox_id"], row["is_bcc"], row["is_primary_recipient"]) for row in rows] == [
            (one.ref.mailbox_id, False, True),
            (two.ref.mailbox_id, True, False),
            (one.ref.mailbox_id, True, True),
        ]
        assert ["message_id_conflict" in row["facts"] for row in rows] == [True, False, True]
        for row in rows:
            data = await blobs.get(row["blob_key"])
            assert len(data) == row["raw_size"]
            assert data[: row["raw_prefix_len"]].startswith(b"Return-Path: <anna@example.com>\r\n")
        assert (await blobs.get(rows[0]["blob_key"]))[rows[0]["raw_prefix_len"] :] == raw
        assert len(await blobs.list()) == 3
        # One file for both recipients of the first.
        assert blobs.path(rows[0]["blob_key"]).stat().st_ino == blobs.path(rows[1]["blob_key"]).stat().st_ino
        for box in (one, two):
            await check_mailbox(conn, box.ref)


@pytest.mark.covers("mail-server:A1", "mail-server:A8", "RFC 2033 §4.2")
async def test_lmtp_answers_for_each_recipient(clock: ManualClock) -> None:
    ingest = FakeIngest(full=frozenset({2}))
    one, two, alias = To("one@agents.example", 1), To("two@agents.example", 2), To("alias@agents.example", 1)
    lmtp = envelope(one, two, alias)._replace(lmtp=True, tls=False)
    answers = await receiver(clock, ingest).receive_each(lmtp, raw_mail())
    assert [(answer.code, answer.enhanced) for answer in answers] == [(250, "2.0.0"), (452, "4.2.2"), (250, "2.0.0")]
    # Together first, then each mailbox by itself; what was taken is what was said to be.
    tried = [[copy.mailbox.mailbox_id for copy in delivery.copies] for delivery in ingest.taken]
    assert tried == [[1, 2], [1], [2]]
    assert answers[0] == answers[2]
    assert ingest.taken[1].copies[0].id in answers[0].text
    assert b"with LMTP id c0ffee" in ingest.taken[1].pieces[0]


@pytest.mark.covers("mail-server:A1", "edge:J1")
@pytest.mark.parametrize("answer", [None, Refused(Refusal.MAILBOX_GONE), Failure.STORAGE_FULL, Failure.DATABASE])
async def test_lmtp_one_answer_where_all_fare_alike(clock: ManualClock, answer: Any) -> None:
    ingest = FakeIngest(answer)
    recipients = To("one@agents.example", 1), To("two@agents.example", 2)
    answers = await receiver(clock, ingest).receive_each(envelope(*recipients), raw_mail())
    assert len(answers) == 2
    assert len(set(answers)) == 1
    assert len(ingest.taken) == 1


@pytest.mark.covers("mail-server:A8", "RFC 3848")
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lmtp": True}, b"LMTPS"),
        ({"lmtp": True, "tls": False}, b"LMTP"),
        ({"account": object()}, b"ESMTPSA"),
        ({"account": object(), "tls": False, "smtputf8": True}, b"UTF8SMTPA"),
    ],
)
async def test_how_it_came(clock: ManualClock, change: dict[str, Any], word: bytes) -> None:
    ingest = FakeIngest()
    await receiver(clock, ingest).receive(envelope(To("box@agents.example"))._replace(**change), raw_mail())
    assert b"\twith %b id c0ffee" % word in ingest.taken[0].pieces[0]
