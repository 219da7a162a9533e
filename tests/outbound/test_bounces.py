"""What senders are told by mail: once, in words and for programs, and never of a notice."""

from __future__ import annotations

import email
import email.policy
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.inbound.describe import describe
from postroom.mail.dsn import parse_dsn
from postroom.mailbox import folders
from postroom.mailbox.expunge import MessagesInUse
from postroom.mailbox.ingest import Delivery, Failure, Ingest, IngestError
from postroom.mailbox.models import GroupOutcome
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.service import Mailboxes
from postroom.outbound.bounces import QUEUE, BounceWriter, Elsewhere
from postroom.outbound.models import NewRecipient, Operation, RecipientField, RouteKind
from tests.mailbox.letters import check_mailbox
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom, in_process


@dataclass
class Post:
    """A mail room with people, and what writes notices to them."""

    room: MailRoom
    ingest: Ingest
    fails: list[Failure]

    @property
    def writer(self) -> BounceWriter:
        async def deliver(delivery: Delivery) -> GroupOutcome:
            if self.fails:
                raise IngestError(self.fails.pop())
            return await self.ingest.deliver(delivery)

        async def describing(prefix: bytes, original: bytes, at: Any) -> Any:
            return describe(prefix, original, at)

        async def route(address: str) -> RouteKind:
            return RouteKind.DIRECT

        return BounceWriter(
            self.room.db,
            self.room.blobs,
            self.room.clock,
            self.room.ids,
            hostname="mx.agents.example",
            deliver=deliver,
            describe=describing,
            offload=in_process,
            elsewhere=Elsewhere(self.room.acceptance.accept, route),
        )

    async def inbox(self) -> list[tuple[dict[str, Any], EmailMessage]]:
        """What was received: rows and messages."""
        async with self.room.db.acquire() as conn:
            rows = await conn.fetch("SELECT * FROM messages WHERE source = 'mx' ORDER BY id")
        found = []
        for row in rows:
            raw = await self.room.blobs.get(row["blob_key"])
            parsed = email.message_from_bytes(raw, policy=email.policy.default)
            found.append((dict(row), parsed))
        return found

    async def tasks(self) -> int:
        async with self.room.db.acquire() as conn:
            return (await QUEUE.counts(conn, now=self.room.clock.now())).due


async def open_post(
    db: Database, clock: ManualClock, ids: IdGenerator, directory: Path, kind: str = "person", **options: Any
) -> AsyncIterator[Post]:
    room = await MailRoom.open(db, clock, ids, directory, kind=kind, **options)
    ingest = Ingest(db, room.blobs, clock, committed=lambda _: None)
    ingest.start()
    yield Post(room, ingest, [])
    await ingest.stop()
    async with db.acquire() as conn:
        await check_mailbox(conn, room.box.ref)
    await room.close()


@pytest.fixture
async def post(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Post]:
    async for made in open_post(db, clock, ids, tmp_path):
        yield made


async def refused(post: Post, *recipients: str | NewRecipient, **changes: Any) -> str:
    """A message that its recipients' server refuses; its id."""
    async with FakeMx(replies={"RCPT": ["550 5.1.1 No such user here"]}) as mx:
        if not post.room.net.ports:
            post.room.net.add("example.com", mx)
        post.room.net.ports = dict.fromkeys(post.room.net.ports, mx.port)
        message = await post.room.accept(*recipients, **changes)
        await post.room.dispatcher().run_due()
    return message


@pytest.mark.covers("mail-server:C7", "RFC 3464 §2.1")
async def test_a_notice_in_the_senders_inbox(post: Post) -> None:
    message = await refused(post, "anna@example.com", "bob@example.com", body="Some words")
    key = await post.room.wire_key(message)
    assert key is not None
    assert await post.writer.run_due() == 1
    ((row, notice),) = await post.inbox()
    assert (row["kind"], row["direction"], row["public_id"][:4]) == ("dsn", "inbound", "msg_")
    assert notice["From"].addresses[0].addr_spec == "MAILER-DAEMON@mx.agents.example"
    assert notice["To"].addresses[0].addr_spec == post.room.box.address
    assert (notice["Auto-Submitted"], notice["Return-Path"]) == ("auto-replied", "<>")
    assert notice["In-Reply-To"] == notice["References"] == f"<{message}@agents.example>"
    assert (notice.get_content_type(), notice.get_param("report-type")) == ("multipart/report", "delivery-status")
    words, status, original = cast(Sequence[EmailMessage], notice.get_payload())
    assert "anna@example.com" in words.get_content()
    assert original.get_content_type() == "message/rfc822"
    assert b"Some words" in original.as_bytes()
    report = parse_dsn(notice.as_bytes())
    assert report is not None
    found = {one.final_recipient: (one.action, one.status) for one in report.recipients}
    assert found == {"anna@example.com": ("failed", "5.1.1"), "bob@example.com": ("failed", "5.1.1")}
    assert "550 5.1.1 No such user here" in str(status)
    # It stands in the thread of what it is about, and the bytes of that are not needed any more.
    async with post.room.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(DISTINCT thread_seq) FROM messages") == 1
    assert await post.room.wire_key(message) is None
    kinds = [kind for kind, _ in await post.room.events()]
    assert kinds == ["message.sent", "message.bounced", "message.bounced", "message.received"]
    assert await post.writer.run_due() == 0


@pytest.mark.covers("mail-server:C3", "mail-server:C7")
async def test_what_its_sender_is_still_to_be_told_of_stays(post: Post) -> None:
    room = post.room
    message = await refused(post, "anna@example.com")
    boxes = Mailboxes(room.db, room.blobs, room.clock, room.ids, lambda *_: None)
    async with room.db.acquire() as conn:
        (sent,) = [one for one in await folders.list_folders(conn, room.box.ref) if one.special_use == "sent"]
        assert await conn.fetchval("SELECT status FROM messages WHERE public_id = $1", message) == "bounced"
        with pytest.raises(asyncpg.RestrictViolationError):
            await conn.execute("DELETE FROM messages WHERE public_id = $1", message)
    await boxes.set_flags(room.box.ref, sent.id, [1], FlagMode.ADD, ["$deleted"])
    with pytest.raises(MessagesInUse):
        await boxes.expunge(room.box.ref, sent.id)
    assert await post.writer.run_due() == 1
    ((_, notice),) = await post.inbox()
    assert notice["In-Reply-To"] == f"<{message}@agents.example>"
    await boxes.expunge(room.box.ref, sent.id)
    async with room.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM messages WHERE public_id = $1", message) == 0


@pytest.mark.covers("mail-server:C7")
async def test_an_agent_has_the_notice_without_an_event(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path
) -> None:
    async for post in open_post(db, clock, ids, tmp_path, "agent"):
        await refused(post, "anna@example.com")
        await post.writer.run_due()
        assert len(await post.inbox()) == 1
        assert "message.received" not in [kind for kind, _ in await post.room.events()]


@pytest.mark.covers("mail-server:C7")
async def test_of_a_long_message_the_header_comes_back(post: Post) -> None:
    await refused(post, "anna@example.com", body="x" * 70 + ("\r\n" + "x" * 70) * 3000)
    await post.writer.run_due()
    ((_, notice),) = await post.inbox()
    original = cast(Sequence[EmailMessage], notice.get_payload())[2]
    assert original.get_content_type() == "text/rfc822-headers"
    assert "Subject: A subject" in original.get_content()
    assert len(notice.as_bytes()) < 10_000


@pytest.mark.covers("mail-server:C7")
async def test_a_crash_between_storing_and_finishing_makes_no_second_notice(post: Post) -> None:
    await refused(post, "anna@example.com")
    writer = post.writer
    async with post.room.db.transaction() as conn:
        claims = (await QUEUE.claim(conn, now=post.room.clock.now(), limit=1)).claims
    await writer._write(claims)  # and then the process dies
    assert len(await post.inbox()) == 1
    post.room.clock.advance(301)
    assert await writer.run_due() == 1
    assert len(await post.inbox()) == 1
    assert await writer.run_due() == 0


@pytest.mark.covers("mail-server:C7")
@pytest.mark.parametrize("failure", [Failure.DATABASE, Failure.STORAGE_FULL])
async def test_a_notice_that_cannot_be_stored_is_tried_again(post: Post, failure: Failure) -> None:
    await refused(post, "anna@example.com")
    post.fails = [failure, failure]
    assert await post.writer.run_due() == 1
    assert (await post.inbox(), await post.writer.run_due()) == ([], 0)
    post.room.clock.advance(60)
    assert await post.writer.run_due() == 1
    post.room.clock.advance(119)
    assert await post.writer.run_due() == 0
    post.room.clock.advance(1)
    assert await post.writer.run_due() == 1
    assert len(await post.inbox()) == 1


@pytest.mark.covers("mail-server:C7", "RFC 5321 §6.1")
@pytest.mark.parametrize(
    "changes",
    [{"envelope_from": ""}, {"operation": Operation.BOUNCE}, {"operation": Operation.BOUNCE, "envelope_from": ""}],
)
async def test_nobody_is_told_of_a_notice(post: Post, changes: dict[str, Any]) -> None:
    message = await refused(post, "anna@example.com", **changes)
    assert await post.room.status(message) == "bounced"
    assert await post.tasks() == 0
    assert await post.room.wire_key(message) is None


@pytest.mark.covers("mail-server:C7", "RFC 3461 §4.1")
@pytest.mark.parametrize(
    ("notify", "status", "told"),
    [
        (None, "550 5.1.1 No", "failed"),
        (("NEVER",), "550 5.1.1 No", None),
        (("SUCCESS",), "550 5.1.1 No", None),
        (("FAILURE",), "550 5.1.1 No", "failed"),
        (None, "250 Ok", None),
        (("FAILURE", "DELAY"), "250 Ok", None),
        # The next host knows no DSN, so it is ours to say that we know no more.
        (("SUCCESS",), "250 Ok", "relayed"),
    ],
)
async def test_notify(post: Post, notify: tuple[str, ...] | None, status: str, told: str | None) -> None:
    recipient = NewRecipient(
        "anna@example.com",
        RecipientField.ENVELOPE,
        RouteKind.DIRECT,
        dsn_notify=notify,
        dsn_orcpt="rfc822;Anna+x@example.com",
    )
    async with FakeMx(extensions=("8BITMIME",), replies={"RCPT": [status]}) as mx:
        post.room.net.add("example.com", mx)
        await post.room.accept(recipient, dsn_envid="QQ 1", dsn_ret="HDRS")
        await post.room.dispatcher().run_due()
    assert await post.writer.run_due() == (told is not None)
    found = await post.inbox()
    assert len(found) == (told is not None)
    if told is not None:
        report = parse_dsn(found[0][1].as_bytes())
        assert report is not None
        assert [one.action for one in report.recipients] == [told]
        status_part = str(cast(Sequence[EmailMessage], found[0][1].get_payload())[1])
        assert "Original-Envelope-Id: QQ 1" in status_part
        assert "Original-Recipient: rfc822; Anna+x@example.com" in status_part
        original = cast(Sequence[EmailMessage], found[0][1].get_payload())[2]
        assert original.get_content_type() == "text/rfc822-headers"


async def test_dsn_parameters_go_on_to_a_host_that_knows_them(post: Post) -> None:
    recipient = NewRecipient(
        "anna@example.com",
        RecipientField.ENVELOPE,
        RouteKind.DIRECT,
        dsn_notify=("FAILURE", "SUCCESS"),
        dsn_orcpt="rfc822;Anna+x@example.com",
    )
    async with FakeMx() as mx:
        post.room.net.add("example.com", mx)
        await post.room.accept(recipient, dsn_envid="QQ 1", dsn_ret="HDRS")
        await post.room.dispatcher().run_due()
        (received,) = mx.messages
    assert {"RET=HDRS", "ENVID=QQ+201", "NOTIFY=SUCCESS,FAILURE", "ORCPT=rfc822;Anna+2Bx@example.com"} <= set(
        received.parameters
    )
    assert await post.tasks() == 0


@pytest.mark.covers("mail-server:C5", "edge:G2")
async def test_who_submitted_by_smtp_is_told_that_nobody_knows(post: Post) -> None:
    async with FakeMx(drop_after_dot=True) as mx:
        post.room.net.add("example.com", mx)
        await post.room.accept("anna@example.com", operation=Operation.SUBMISSION)
        await post.room.dispatcher().run_due()
    assert await post.writer.run_due() == 1
    ((_, note),) = await post.inbox()
    assert note["Subject"] == "Unknown outcome: A subject"
    assert "anna@example.com" in note.get_content()
    assert note["Auto-Submitted"] == "auto-replied"


@pytest.mark.covers("mail-server:C7", "edge:N19")
@pytest.mark.parametrize("verdict", ["pass", "unverified"])
async def test_a_sender_elsewhere(post: Post, verdict: str) -> None:
    async with FakeMx(replies={"anna@example.com": ["550 5.1.1 No"]}) as mx:
        post.room.net.add("example.com", mx)
        post.room.net.add("example.org", mx)
        await post.room.accept("anna@example.com", operation=Operation.REDIRECT, envelope_from="Carl@example.org")
        async with post.room.db.acquire() as conn:
            await conn.execute("UPDATE messages SET verdict = $1", verdict)
        await post.room.dispatcher().run_due()
        await post.writer.run_due()
        await post.writer.run_due()
        await post.room.dispatcher().run_due()
        assert await post.inbox() == []
        if verdict == "unverified":
            assert mx.messages == []
            return
        (sent,) = mx.messages
        # As the sender wrote it (RFC 5321 §2.4).
        assert (sent.sender, sent.recipients) == ("", ["Carl@example.org"])
        assert b"multipart/report" in sent.data
    assert await post.tasks() == 0


@pytest.mark.covers("mail-server:C7")
async def test_a_sender_who_is_gone_is_told_nothing(post: Post) -> None:
    await refused(post, "anna@example.com")
    async with post.room.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET erased = true")
    assert await post.writer.run_due() == 1
    assert (await post.inbox(), await post.tasks()) == ([], 0)
    async with post.room.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET erased = false")
