"""From the final dot of a submitted message to its rows: what is mended, stored, signed, and refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.permissions import GrantRole
from postroom.accounts.policy import DEFAULT_POLICY
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.directory import IdentityKind
from postroom.mail import mime
from postroom.outbound.allowance import SubmissionLimits
from postroom.outbound.send_rules import SendRules
from postroom.outbound.submission import Destination, reply_of
from postroom.outbound.submitted import REPLIES, Read, read
from postroom.outbound.thread_lock import ThreadLocks
from postroom.servers.submission import Door
from postroom.smtp.envelope import SessionInfo
from postroom.smtp.params import Body, MailParameters, Notify, RcptParameters, Return

from .submitting import DOMAIN, SIGNATURE, PostOffice, lab, mail, post_office, recipients_of

CAROL = f"carol@{DOMAIN}"


@pytest.fixture
async def office(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[PostOffice]:
    async with post_office(db, clock, ids, tmp_path) as made:
        yield made


async def submit(office: PostOffice, raw: bytes, *to: str, account: Any = None, **more: Any) -> str:
    """The reply to a message."""
    account = account or await office.account()
    envelope = await office.envelope(*to, **more)
    reply = await office.submission().submit(envelope, raw, account)
    return f"{reply.code} {reply.enhanced} {reply.text}"


@pytest.mark.covers("mail-server:A3", "mail-server:C5", "mail-server:A8", "RFC 6409 §8", "FR-OUT-1")
async def test_what_is_stored(office: PostOffice) -> None:
    raw = mail(to=f"Ann <Ann@Example.com>, dave@{DOMAIN}", Cc="bob@example.net", Bcc="eve@example.org")
    to = (
        "Ann@example.com",
        f"dave@{DOMAIN}",
        "bob@example.net",
        "eve@example.org",
        "list@example.com",
        "ann@example.com",
    )
    reply = await submit(office, raw, *to)
    row, copy, wire = await office.stored()
    assert reply == f"250 2.0.0 Ok: queued as {row['public_id']}"
    assert recipients_of(await office.deliveries()) == [
        ("ann@example.com", "to", "direct", "queued"),
        (f"dave@{DOMAIN}", "to", "local", "queued"),
        ("bob@example.net", "cc", "direct", "queued"),
        ("eve@example.org", "bcc", "direct", "queued"),
        ("list@example.com", "envelope", "direct", "queued"),
    ]
    person = await office.rows("SELECT id FROM people")
    assert (row["operation"], row["source"], row["direction"], row["status"]) == (
        *("submission", "send", "outbound", "queued"),
    )
    assert (row["person_id"], row["envelope_from"], row["eight_bit"]) == (person[0]["id"], CAROL, False)
    # Signed once, over what goes out; the Sent copy has the Bcc and is otherwise the same.
    ((unsigned, domain),) = office.signed
    assert domain == DOMAIN
    assert wire == SIGNATURE + DOMAIN.encode() + b"\r\n" + unsigned
    assert copy.replace(b"Bcc: eve@example.org\r\n", b"") == wire
    assert b"bcc" not in wire.lower()
    parsed = message_from_bytes(wire, policy=policy.default)
    assert parsed["Date"] is not None
    assert parsed["Date"].datetime == office.clock.now()
    assert parsed["Message-ID"].endswith(f"@{DOMAIN}>")
    assert parsed["Return-Path"] is None
    assert "by mail.agents.example (Postroom 1) with ESMTPSA id c0ffee;" in " ".join(parsed["Received"].split())
    # Where the client is concerns nobody (A3).
    assert b"192.0.2.7" not in wire
    assert b"laptop.example" not in wire
    assert office.routed == [(one, DOMAIN) for one in ("ann@example.com", *to[2:5])]
    (placed,) = await office.rows(
        "SELECT f.name, p.flags FROM placements p JOIN folders f ON f.tenant_id = p.tenant_id AND f.id = p.folder_id"
    )
    assert (placed["name"], placed["flags"]) == ("Sent", ["$seen"])
    blind = await office.rows("SELECT address FROM recipients WHERE kind = 'bcc'")
    assert [one["address"] for one in blind] == ["eve@example.org"]
    assert len(office.woken) == len(office.changed) == 1


@pytest.mark.covers("mail-server:A3")
async def test_the_clients_address_is_told_when_wanted(office: PostOffice) -> None:
    reply = await office.submission(hide_client_ip=False).submit(
        await office.envelope(), mail(), await office.account()
    )
    assert reply.code == 250
    _, _, wire = await office.stored()
    assert b"Received: from laptop.example ([192.0.2.7])\r\n\tby mail.agents.example" in wire


@pytest.mark.covers("mail-server:A3")
async def test_what_the_client_wrote_stays(office: PostOffice) -> None:
    raw = mail(Date="Mon, 31 Dec 2029 10:00:00 +0100", Message_ID="<mine@laptop.example>", X_Odd="  two  blanks ")
    await submit(office, raw)
    row, copy, wire = await office.stored()
    assert wire.endswith(raw)
    assert copy.endswith(raw)
    assert row["rfc_message_id"] == "mine@laptop.example"
    assert row["raw_size"] == len(copy)
    assert row["raw_prefix_len"] == len(copy) - len(raw)


@pytest.mark.covers("RFC 3461 §4.2", "RFC 3461 §4.3")
async def test_dsn_parameters_are_kept(office: PostOffice) -> None:
    given = (
        RcptParameters(frozenset((Notify.SUCCESS, Notify.FAILURE)), ("rfc822", "Ann@example.com")),
        RcptParameters(frozenset((Notify.NEVER,))),
        RcptParameters(),
    )
    await submit(
        office,
        mail(),
        *("ann@example.com", "bob@example.com", "eve@example.com"),
        parameters=MailParameters(ret=Return.HEADERS, envid="QQ314159"),
        recipient_parameters=given,
    )
    row, _, _ = await office.stored()
    assert (row["dsn_ret"], row["dsn_envid"]) == ("HDRS", "QQ314159")
    assert [(one["dsn_notify"], one["dsn_orcpt"]) for one in await office.deliveries()] == [
        (["FAILURE", "SUCCESS"], "rfc822;Ann@example.com"),
        (["NEVER"], None),
        (None, None),
    ]


@pytest.mark.covers("mail-server:A3", "security-privacy:A3.3")
@pytest.mark.parametrize(
    ("sender", "more", "code"),
    [
        (f"dave@{DOMAIN}", {}, 550),
        ("carol@example.com", {}, 550),
        (f"carol@{DOMAIN}, dave@{DOMAIN}", {}, 550),
        (CAROL, {"Sender": f"dave@{DOMAIN}"}, 550),
        (CAROL, {"Resent_From": "ann@example.com"}, 550),
        (f"<carol@{DOMAIN.upper()}>", {}, 250),
        (f'"dave@{DOMAIN}" <carol+lists@{DOMAIN}>', {}, 250),
        (CAROL, {"Sender": f"Carol <{CAROL}>", "Reply_To": "ann@example.com"}, 250),
        ("a@[192.0.2.1]", {}, 550),
    ],
)
async def test_whom_the_header_may_name(office: PostOffice, sender: str, more: dict[str, str], code: int) -> None:
    reply = await submit(office, mail(sender, **more))
    assert reply.startswith(f"{code} ")
    if code == 550:
        assert reply == "550 5.7.1 Sender address rejected: not owned by user"
        assert await office.deliveries() == []
        assert office.signed == []


@pytest.mark.covers("mail-server:A3", "mail-server:A2", "edge:B13", "edge:B2")
@pytest.mark.parametrize(
    ("raw", "reply"),
    [
        (b"Subject: x\r\n\r\nx\r\n", "554 5.6.0"),
        (mail(f"{CAROL}\r\nFrom: dave@{DOMAIN}"), "554 5.6.0"),
        (mail() + b"a\nb\r\n", "554 5.5.1"),
        (b"From: carol@agents.example\r\nnonsense\r\nTo: x@example.com\r\n\r\n", "554 5.6.0"),
        (mail(X="y" * 300_000), "552 5.3.4"),
        (mail(", ".join(CAROL for _ in range(101))), "554 5.6.0"),
    ],
)
async def test_malformed_messages(office: PostOffice, raw: bytes, reply: str) -> None:
    assert (await submit(office, raw)).startswith(reply)
    assert await office.rows("SELECT 1 FROM messages") == []


def nested(depth: int) -> bytes:
    """A message whose deepest part is so many levels down."""
    inner = b"Content-Type: text/plain\r\n\r\nx\r\n"
    for level in range(depth - 1):
        edge = b"b%d" % level
        inner = b"Content-Type: multipart/mixed; boundary=%b\r\n\r\n--%b\r\n%b\r\n--%b--\r\n" % (
            edge,
            edge,
            inner,
            edge,
        )
    return f"From: {CAROL}\r\nTo: ann@example.com\r\nMIME-Version: 1.0\r\n".encode() + inner


@pytest.mark.covers("mail-server:A7", "edge:B2")
def test_depth_and_number_of_parts() -> None:
    def outcome(raw: bytes) -> object:
        return read(raw, date=datetime(2030, 1, 1, tzinfo=UTC), message_id="x@y.example", binary=False)

    def parts(number: int) -> bytes:
        head = f"From: {CAROL}\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n".encode()
        return head + b"--b\r\n\r\nx\r\n" * number + b"--b--\r\n"

    assert isinstance(outcome(nested(mime.MAX_DEPTH)), Read)
    assert outcome(nested(mime.MAX_DEPTH + 1)) == "too_deep"
    assert isinstance(outcome(parts(mime.MAX_PARTS - 1)), Read)
    assert outcome(parts(mime.MAX_PARTS)) == "too_deep"
    assert all(reply.is_permanent for reply in REPLIES.values())


@pytest.mark.covers("RFC 3030 §3")
async def test_binary_content_becomes_fit_for_everybody_before_it_is_signed(office: PostOffice) -> None:
    raw = mail(MIME_Version="1.0", Content_Type="application/octet-stream", Content_Transfer_Encoding="binary")
    raw = raw[:-8] + b"\x00\xff\n\r" * 50
    assert (await submit(office, raw, parameters=MailParameters(body=Body.BINARY))).startswith("250 ")
    row, copy, wire = await office.stored()
    assert wire.isascii()
    assert not row["eight_bit"]
    assert message_from_bytes(copy).get_payload(decode=True) == b"\x00\xff\n\r" * 50


@pytest.mark.covers("RFC 6531 §3.4")
async def test_smtputf8_is_asked_of_others_only_when_it_is_needed(office: PostOffice) -> None:
    utf8 = MailParameters(body=Body.EIGHT_BIT, smtputf8=True)
    await submit(office, mail(text="Grüße"), parameters=utf8)
    await submit(office, mail("Cäröl <carol@agents.example>"), parameters=utf8)
    await submit(office, mail(), "jörg@example.com", parameters=utf8)
    rows = await office.rows("SELECT eight_bit, smtputf8 FROM outbound_messages ORDER BY message_id")
    assert [tuple(row) for row in rows] == [(True, False), (True, True), (False, True)]


@pytest.mark.covers("mail-server:A7")
async def test_a_large_message(office: PostOffice) -> None:
    """It is read and described in a process of its own, and comes out as it went in."""
    raw = mail(
        Date="Mon, 31 Dec 2029 10:00:00 +0100", Message_ID="<l@x.example>", text="0123456789abcdef\r\n" * 200_000
    )
    assert (await submit(office, raw)).startswith("250 ")
    _, copy, wire = await office.stored()
    assert wire.endswith(raw)
    assert copy == wire
    # What cannot be taken is told apart there, too.
    assert (await submit(office, raw[:100_000] + b"\n" + raw[100_000:])).startswith("554 5.5.1")


# -- who may send


@pytest.mark.covers("mail-server:A3", "mail-server:A7")
async def test_the_envelope_sender(office: PostOffice) -> None:
    account, submission = await office.account(), office.submission()
    assert await submission.check_sender(CAROL, account) is None
    assert await submission.check_sender(f"carol+x@{DOMAIN}", account) is None
    for address in ("", f"dave@{DOMAIN}", "carol@example.com", f"robot@{DOMAIN}"):
        reply = await submission.check_sender(address, account)
        assert reply is not None
        assert (reply.code, reply.enhanced) == (550, "5.7.1")


@pytest.mark.covers("mail-server:A3", "decisions:A2")
@pytest.mark.parametrize(("role", "code"), [(GrantRole.OWNER, None), (GrantRole.FULL, None), (GrantRole.READ, 550)])
async def test_a_grant_lets_send_from_another_mailbox(office: PostOffice, role: GrantRole, code: int | None) -> None:
    account = await office.account()
    await office.people.grant(office.tenant.id, office.dave.public_id, office.person.public_id, role, by_operator=True)
    dave = f"dave@{DOMAIN}"
    reply = await office.submission().check_sender(dave, account)
    assert (None if reply is None else reply.code) == code
    said = await submit(office, mail(dave), account=account, mail_from=dave)
    assert said.startswith("250 " if code is None else "550 ")
    if code is None:
        # The copy is in the Sent folder of the mailbox that sent.
        row, _, _ = await office.stored()
        assert row["mailbox_id"] == office.dave.id


@pytest.mark.covers("mail-server:A3", "edge:A7", "edge:A8", "edge:G12", "decisions:D10", "FR-TEN-3")
@pytest.mark.parametrize(
    ("statement", "reply"),
    [
        ("UPDATE identities SET status = 'paused', pause_reason = 'manual'", "550 5.7.1 identity_paused"),
        ("UPDATE identities SET status = 'deleted'", "550 5.7.1 Sender address rejected: not owned by user"),
        ("UPDATE tenants SET status = 'suspended', suspended_at = now()", "550 5.7.1 tenant_suspended"),
        (
            "UPDATE tenants SET sending_paused_at = now(), sending_pause_reason = 'abuse_burst'",
            "550 5.7.1 sending_paused",
        ),
        (
            "UPDATE domains SET tenant_id = (SELECT min(id) FROM tenants), kind = 'zone', sending_paused_at = now()",
            "550 5.7.1 sending_paused",
        ),
        ("UPDATE people SET enabled = false", "550 5.7.1 Sender address rejected: not owned by user"),
        ("DELETE FROM mailbox_grants", "550 5.7.1 Sender address rejected: not owned by user"),
        ("UPDATE addresses SET status = 'retired'", "550 5.7.1 Sender address rejected: not owned by user"),
        ("UPDATE addresses SET status = 'retiring'", "250 "),
        ("UPDATE addresses SET status = 'pending'", "450 4.7.0 domain_not_ready"),
        ("UPDATE domains SET status = 'verifying'", "450 4.7.0 domain_not_ready"),
        ("UPDATE domains SET status = 'failing'", "550 5.7.1 domain_not_ready: the domain is failing"),
        ("UPDATE domains SET enabled = false", "550 5.7.1 Sender address rejected: not owned by user"),
    ],
)
async def test_what_ends_sending_ends_it_for_open_sessions(office: PostOffice, statement: str, reply: str) -> None:
    account, submission = await office.account(), office.submission()
    envelope = await office.envelope()
    await office.execute(statement)
    said = await submission.submit(envelope, mail(), account)
    assert f"{said.code} {said.enhanced} {said.text}".startswith(reply)
    early = await submission.check_sender(CAROL, account)
    assert (early is None) if said.code == 250 else (early == said)


async def received(office: PostOffice, more: str = "", kind: str = "normal") -> None:
    """The agent has a message of Ann's, `q@example.com`, whose header has more fields."""
    robot, raw = office.robot, f"From: ann@example.com\r\n{more}\r\nx\r\n".encode()
    await office.blobs.put("t/k", raw)
    await office.execute(
        "INSERT INTO threads (tenant_id, mailbox_id, seq, public_id, subject, first_at, last_at, message_count,"
        " unread_count, participants_json, archived) VALUES ($1, $2, 900, $3, '', now(), now(), 1, 1, '[]', false)",
        robot.tenant_id,
        robot.id,
        office.ids.new("thr"),
    )
    await office.execute(
        "INSERT INTO messages (tenant_id, id, public_id, mailbox_id, thread_seq, source, direction, status,"
        " rfc_message_id, reference_ids, raw_sha256, body_sha256, blob_key, raw_size, raw_prefix_len, from_address,"
        " is_bcc, is_primary_recipient, subject, subject_fold, snippet, sent_at, received_at, kind, verdict, facts,"
        " parser_version, envelope, body_structure, part_tree)"
        " VALUES ($1, 900, $3, $2, 900, 'mx', 'inbound', 'received', 'q@example.com', '{}', $4, $4, 't/k', $5, 0,"
        " 'ann@example.com', false, true, '', '', '', now(), now(), $6, 'pass', '{}', 9, '', '', '')",
        *(robot.tenant_id, robot.id, office.ids.new("msg"), b"x" * 32, len(raw), kind),
    )


async def leave(office: PostOffice) -> None:
    """What was accepted has left, and with it the locks of threads."""
    await office.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")


async def lock(office: PostOffice) -> tuple[str | None, str | None]:
    """Who holds the thread of what was received, and the message that was accepted last."""
    (row,) = await office.rows("SELECT lock_owner FROM threads WHERE seq = 900")
    sent = await office.rows("SELECT public_id FROM messages WHERE source = 'send' ORDER BY id DESC LIMIT 1")
    return row["lock_owner"], sent[0]["public_id"] if sent else None


@pytest.mark.covers("edge:C4", "FR-OUT-9", "mail-server:A3")
async def test_an_agent_answers_one_at_a_time(office: PostOffice) -> None:
    await received(office)
    address = f"robot@{DOMAIN}"
    account = await office.account(address, await office.key())
    locks = ThreadLocks(office.db, office.clock, wait=0.05, poll=0.01)
    submission = office.submission(locks=locks)

    async def send(**more: str) -> str:
        envelope = await office.envelope("ann@example.com", mail_from=address)
        reply = await submission.submit(envelope, mail(address, **more), account)
        return f"{reply.code} {reply.enhanced}"

    answer = {"In_Reply_To": "<q@example.com>"}
    # What is refused gives the lock back.
    strict = office.submission(locks=locks, limits=SubmissionLimits(0, 100))
    envelope = await office.envelope("ann@example.com", mail_from=address)
    assert (await strict.submit(envelope, mail(address, **answer), account)).code == 452
    assert await lock(office) == (None, None)
    assert await send(**answer) == "250 2.0.0"
    owner, sent = await lock(office)
    assert owner == sent is not None
    assert await send(**answer) == "451 4.3.0", "the one before has not left"
    assert await lock(office) == (owner, sent)
    # What answers nothing waits for nobody; nor does a person.
    assert await send() == "250 2.0.0"
    assert (await submit(office, mail(**answer))).startswith("250 ")
    await leave(office)
    assert await send(**answer) == "250 2.0.0"


@pytest.mark.covers("edge:C4")
async def test_the_lock_of_another_thread_is_given_back(office: PostOffice) -> None:
    """Where the message goes its References may say otherwise."""
    await received(office)
    address = f"robot@{DOMAIN}"
    account = await office.account(address, await office.key())
    raw = mail(address, In_Reply_To="<q@example.com>")
    other = "UPDATE messages SET reference_ids = '{}', rfc_message_id = $1 WHERE id = 900"
    real = office.sign

    async def sign(wire: bytes, domain: str) -> bytes:
        # After the answer's target was looked up, and before it is filed.
        await office.execute(other, "gone@example.com")
        return await real(wire, domain)

    envelope = await office.envelope("ann@example.com", mail_from=address)
    reply = await office.submission(sign=sign).submit(envelope, raw, account)
    assert reply.code == 250
    assert (await lock(office))[0] is None
    (row,) = await office.rows("SELECT t.lock_owner FROM threads t WHERE seq <> 900")
    assert row["lock_owner"] == (await lock(office))[1]


@pytest.mark.covers("edge:N13", "FR-OUT-14", "mail-server:A6")
@pytest.mark.parametrize(
    ("fields", "hop"),
    [("", 1), ("X-Postroom-Hop: 3\r\n", 4), ("X-Postroom-Hop: 8\r\nX-Postroom-Hop: 2\r\n", 9),
     ("X-Postroom-Hop: 9\r\n", None), ("X-Postroom-Hop: none\r\n", None)],
)  # fmt: skip
async def test_an_agents_answer_is_one_hop_further(office: PostOffice, fields: str, hop: int | None) -> None:
    await received(office, fields)
    address = f"robot@{DOMAIN}"
    account = await office.account(address, await office.key())
    raw = mail(address, In_Reply_To="<q@example.com>", X_Postroom_Hop="0")
    said = await submit(office, raw, account=account, mail_from=address)
    if hop is None:
        assert said.startswith("554 5.4.6")
        assert await office.deliveries() == []
        return
    assert said.startswith("250 ")
    row, copy, wire = await office.stored()
    assert row["hop"] == hop
    for stored in (copy, wire):
        assert message_from_bytes(stored).get_all("X-Postroom-Hop") == [str(hop)]


@pytest.mark.covers("edge:N13")
async def test_what_answers_nothing_is_the_first_hop(office: PostOffice) -> None:
    await received(office, "X-Postroom-Hop: 9\r\n")
    # The message is in another mailbox.
    await submit(office, mail(In_Reply_To="<q@example.com>", X_Postroom_Hop="7"))
    row, _, wire = await office.stored()
    assert row["hop"] == 1
    assert message_from_bytes(wire).get_all("X-Postroom-Hop") == ["1"]


@pytest.mark.covers("edge:D6", "FR-OUT-7")
@pytest.mark.parametrize(
    ("fields", "kind", "taken"),
    [("", "normal", 2), ("", "automated", 0), ("Auto-Submitted: auto-generated\r\n", "normal", 0)],
)
async def test_an_agents_automatic_answers_end(office: PostOffice, fields: str, kind: str, taken: int) -> None:
    await received(office, fields, kind)
    address = f"robot@{DOMAIN}"
    account = await office.account(address, await office.key())

    async def send(**more: str) -> str:
        return await submit(office, mail(address, **more), account=account, mail_from=address)

    answer = {"In_Reply_To": "<q@example.com>", "Auto_Submitted": "Auto-Replied (away)"}
    for _ in range(taken):
        assert (await send(**answer)).startswith("250 ")
        await leave(office)
    assert await send(**answer) == "550 5.7.1 auto_reply_not_allowed"
    # What says that it is no answer by machine is none.
    assert (await send(In_Reply_To="<q@example.com>")).startswith("250 ")
    rows = await office.rows("SELECT kind FROM outbound_messages ORDER BY message_id")
    assert [row["kind"] for row in rows] == ["auto_reply"] * taken + ["transactional"]


@pytest.mark.covers("FR-OUT-16", "FR-OUT-13", "edge:E2")
async def test_the_tenants_lists_hold_here_too(office: PostOffice) -> None:
    robot, carol = f"robot@{DOMAIN}", f"carol@{DOMAIN}"
    agent, person = await office.account(robot, await office.key()), await office.account()

    async def send(*to: str, by: str = carol) -> str:
        return await submit(office, mail(by), *to, account=agent if by == robot else person, mail_from=by)

    async def put(kind: str, entry: str) -> None:
        await office.rows(
            "INSERT INTO sender_lists (tenant_id, direction, kind, entry, created_at) SELECT id, 'send', $1, $2, now()"
            " FROM tenants",
            *(kind, entry),
        )

    # Whom the list allows an agent may write to first.
    assert await send("eve@example.org", by=robot) == "550 5.7.1 recipient_not_allowed"
    await put("allow", "@example.org")
    assert (await send("eve@example.org", by=robot)).startswith("250 ")
    # Whom it blocks nobody does; with one such recipient nothing goes.
    assert (await send("bob@example.net")).startswith("250 ")
    await put("block", "bob@example.net")
    assert await send("eve@example.org", "bob@example.net") == "550 5.7.1 recipient_not_allowed"
    await office.rows("""UPDATE tenants SET policy_json = '{"send_allowlist_only": true}'""")
    assert (await send("eve@example.org")).startswith("250 ")
    assert await send("cat@example.net") == "550 5.7.1 recipient_not_allowed"
    # So it is where the deployment says so and the tenant says nothing.
    await office.rows("UPDATE tenants SET policy_json = '{}'")
    strict = SendRules().by_default(replace(DEFAULT_POLICY, send_allowlist_only=True))
    for to, answer in (("cat@example.net", "550"), ("eve@example.org", "250")):
        envelope = await office.envelope(to)
        reply = await office.submission(rules=strict).submit(envelope, mail(to=to), await office.account())
        assert str(reply.code) == answer


@pytest.mark.covers("mail-server:A3", "FR-IDN-2", "FR-OUT-13", "edge:E2", "edge:E3")
async def test_an_agents_controls_hold_here_too(office: PostOffice) -> None:
    address = f"robot@{DOMAIN}"
    account = await office.account(address, await office.key())

    async def send(*to: str, **more: str) -> str:
        return await submit(office, mail(address, **more), *to, account=account, mail_from=address)

    assert await send("ann@example.com") == "550 5.7.1 recipient_not_allowed"
    # Answering somebody is allowed; that somebody wrote is not enough for anything else.
    await received(office)
    assert await send("ann@example.com") == "550 5.7.1 recipient_not_allowed"
    assert await send("bob@example.com", In_Reply_To="<q@example.com>") == "550 5.7.1 recipient_not_allowed"
    # The token in an address is that of a thread; it is Ann whom this goes to.
    assert await send("ann+x@example.com", In_Reply_To="<q@example.com>") == "550 5.7.1 recipient_not_allowed"
    assert (await send("ann+t01.0123abcd@example.com", In_Reply_To="<q@example.com>")).startswith("250 ")
    await leave(office)
    # Whom it has written to it knows.
    assert (await send("ann@example.com")).startswith("250 ")
    await office.execute("UPDATE identities SET send_policy_json = '{\"require_known_recipient\": false}'")
    assert (await send("bob@example.com")).startswith("250 ")
    assert await send(*(f"a{n}@example.com" for n in range(11))) == "550 5.7.1 too_many_recipients"
    await office.execute("UPDATE identities SET owner_email = NULL")
    assert await send("ann@example.com") == "550 5.7.1 identity_owner_required"
    rows = await office.rows("SELECT person_id FROM outbound_messages")
    assert {row["person_id"] for row in rows} == {None}


@pytest.mark.covers("mail-server:A3")
async def test_a_key_sends_for_its_identity_while_it_is_valid(office: PostOffice) -> None:
    address = f"robot@{DOMAIN}"
    account, submission = await office.account(address, await office.key()), office.submission()
    assert await submission.check_sender(address, account) is None
    reply = await submission.check_sender(CAROL, account)
    assert reply is not None
    await office.execute("UPDATE api_keys SET revoked_at = now()")
    assert (await submission.check_sender(address, account)) == reply


@pytest.mark.covers("FR-TEN-2", "mail-server:A3", "edge:L1", "edge:L3", "FR-OUT-12")
async def test_nothing_of_a_test_tenant_leaves(office: PostOffice) -> None:
    tenant = await lab(office)
    owner = {"owner_name": "O", "owner_email": "o@example.com", "send_policy": {"require_known_recipient": False}}
    one = await office.new_identity("one", IdentityKind.AGENT, tenant=tenant, **owner)
    two = await office.new_identity("two", IdentityKind.AGENT, tenant=tenant, **owner)
    address = one.primary.address
    account = await office.account(address, await office.key(identity=one))
    for outside in ("ann@example.com", CAROL, "x@sub.simulator.invalid"):
        said = await submit(office, mail(address), two.primary.address, outside, account=account, mail_from=address)
        assert said == "550 5.7.1 test_mode_recipient"
    assert await office.deliveries() == []
    said = await submit(
        office,
        mail(address),
        *("bounce@simulator.invalid", two.primary.address),
        account=account,
        mail_from=address,
    )
    assert said.startswith("250 ")
    assert [row["route"] for row in await office.deliveries()] == ["simulator", "local"]
    assert office.routed == []


# -- how much


@pytest.mark.covers("mail-server:A7", "mail-server:C3")
async def test_rate_and_daily_limit_are_counted_from_rows(office: PostOffice) -> None:
    office.limits = SubmissionLimits(messages=3, recipients=8)
    account = await office.account()

    async def send(number: int) -> str:
        return (await submit(office, mail(), *(f"a{n}@example.com" for n in range(number)), account=account))[:9]

    assert await send(2) == "250 2.0.0"
    assert await send(2) == "250 2.0.0"
    assert await send(5) == "452 4.7.0"  # the day's
    assert await send(1) == "250 2.0.0"
    assert await send(1) == "452 4.7.0"  # the hour's
    # A new process knows it, and says so before the message comes.
    reply = await office.submission().check_sender(CAROL, account)
    assert reply is not None
    assert (reply.code, reply.text) == (452, "Submission rate limit exceeded")
    office.clock.advance(timedelta(hours=1, seconds=1).total_seconds())
    assert await send(4) == "452 4.7.0"
    assert await send(3) == "250 2.0.0"
    reply = await office.submission().check_sender(CAROL, account)
    assert reply is not None
    assert reply.text == "Daily send limit exceeded"
    office.clock.advance(timedelta(days=1).total_seconds())
    assert await send(8) == "250 2.0.0"


@pytest.mark.covers("mail-server:A7")
async def test_what_an_agent_sends_otherwise_counts_for_the_day_only(office: PostOffice) -> None:
    office.limits = SubmissionLimits(messages=2, recipients=3)
    await office.execute("UPDATE identities SET send_policy_json = '{\"require_known_recipient\": false}'")
    address = f"robot@{DOMAIN}"
    account = await office.account(address, await office.key())
    for _ in range(2):
        assert (await submit(office, mail(address), account=account, mail_from=address)).startswith("250 ")
    assert (await office.submission().check_sender(address, account)) is not None
    await office.execute("UPDATE outbound_messages SET operation = 'send'")
    assert await office.submission().check_sender(address, account) is None
    assert (await submit(office, mail(address), account=account, mail_from=address)).startswith("250 ")
    reply = await office.submission().check_sender(address, account)
    assert reply is not None
    assert reply.text == "Daily send limit exceeded"


@pytest.mark.covers("mail-server:A7")
async def test_submissions_at_the_same_time_do_not_exceed_a_limit(office: PostOffice) -> None:
    office.limits = SubmissionLimits(messages=3)
    account, submission, envelope = await office.account(), office.submission(), await office.envelope()
    found = await asyncio.gather(*(submission.submit(envelope, mail(), account) for _ in range(8)))
    assert sorted(reply.code for reply in found) == [250] * 3 + [452] * 5


@pytest.mark.covers("mail-server:A3", "mail-server:A8", "edge:J1")
async def test_faults_of_ours_are_temporary(office: PostOffice) -> None:
    office.failure = PostroomError("unavailable")
    assert (await submit(office, mail())).startswith("451 4.3.0")
    office.failure = None
    await office.execute("UPDATE mailboxes SET quota_bytes = 1 WHERE id = $1", office.carol.id)
    assert await submit(office, mail()) == "452 4.2.2 Mailbox full"
    assert await office.deliveries() == []
    assert reply_of(PostroomError("thread_busy")).code == 451
    assert reply_of(PostroomError("identity_paused")).text == "identity_paused"


@pytest.mark.covers("mail-server:F1", "mail-server:F2")
async def test_who_was_signed_out_submits_nothing(office: PostOffice) -> None:
    account = await office.account()
    door = Door(office.sign_in, office.find, office.submission())
    info = SessionInfo("c0ffee", "192.0.2.7", "laptop.example", True, "", account)
    envelope = (await office.envelope())._replace(account=account)
    assert await door.check_sender(f"carol@{DOMAIN}", info) is None
    await office.execute("UPDATE people SET sign_in_epoch = sign_in_epoch + 1")
    refused = await door.check_sender(f"carol@{DOMAIN}", info)
    assert refused is not None
    assert refused.reply.code == 421
    assert (await door.receive(envelope, mail())).code == 421
    assert await office.deliveries() == []


@pytest.mark.covers("mail-server:A3", "mail-server:A6", "edge:A6")
async def test_recipients(office: PostOffice) -> None:
    door = Door(office.sign_in, office.find, office.submission())
    info = SessionInfo("c0ffee", "192.0.2.7", "laptop.example", True, f"carol@{DOMAIN}")

    async def found(address: str) -> tuple[str, bool] | int:
        answer = await door.resolve(address, info)
        return (answer.address, answer.local is not None) if isinstance(answer, Destination) else answer.reply.code

    assert await found("ann@example.com") == ("ann@example.com", False)
    assert await found(f"dave+tag@{DOMAIN}") == (f"dave+tag@{DOMAIN}", True)
    assert await found(f"nobody@{DOMAIN}") == 550
    assert await found("jörg@example.com") == ("jörg@example.com", False)
    await office.execute("UPDATE mailboxes SET quota_bytes = 0 WHERE id = $1", office.dave.id)
    office.directory.invalidate("*")
    assert await found(f"dave@{DOMAIN}") == 452
