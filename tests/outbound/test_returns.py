"""Late bounces: sent to the return path that a host saw, taken at the MX listener, kept where people see them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db import Database, DatabaseUnavailable
from postroom.outbound.models import Operation, RouteKind
from postroom.outbound.return_paths import ReturnPaths
from postroom.outbound.transports.link import TlsUse
from postroom.outbound.transports.smarthost import Smarthost, SmarthostConfig
from tests.outbound.fake_mx import FakeMx, Received
from tests.outbound.late_bounces import (
    BOUNCED,
    DELIVERED,
    RECEIVED,
    RECONCILED,
    SENT,
    UNCERTAIN,
    statuses,
)
from tests.outbound.mail_room import SOON
from tests.outbound.returning import (
    HOST,
    Returning,
    like_exim,
    like_postfix,
    like_qmail,
    recipient,
    report,
    returning,
)

PATH = re.compile(r"bounces\+[0-9a-z]+\.[0-9a-z]+\.[0-9a-z]{16}@pm-bounce\.agents\.example")


@pytest.fixture
async def post(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Returning]:
    async with returning(db, clock, ids, tmp_path) as made:
        yield made


# -- what leaves ------------------------------------------------------------------------------------------------------


@pytest.mark.covers("mail-server:C5", "RFC 3461 §5.2.1", "RFC 5321 §4.5.3.1.1")
async def test_mail_leaves_with_a_signed_return_path(post: Returning) -> None:
    async with FakeMx(replies={"RCPT": ["451 4.7.1 Later", "250 Ok"]}) as mx:
        await post.send(mx, "anna@example.com")
        post.room.clock.advance(100)
        await post.room.dispatcher().run_due()
        (received,) = mx.delivered
    paths = {command[11:].partition(">")[0] for command in mx.commands if command.startswith("MAIL")}
    assert paths == {received.sender}, "each try has the same one"
    assert PATH.fullmatch(received.sender)
    assert len(received.sender.partition("@")[0]) <= 64
    assert "ORCPT=rfc822;anna@example.com" in received.parameters
    assert f"From: Box <{post.box.address}>".encode() in received.data


@pytest.mark.covers("mail-server:C6", "mail-server:C7")
@pytest.mark.parametrize(
    ("changes", "sender"),
    [
        ({"envelope_from": ""}, ""),
        ({"operation": Operation.REDIRECT, "envelope_from": "srs0=x@agents.example"}, "srs0=x@agents.example"),
        ({"operation": Operation.BOUNCE, "envelope_from": ""}, ""),
    ],
)
async def test_what_keeps_its_envelope_sender(post: Returning, changes: dict[str, Any], sender: str) -> None:
    async with FakeMx() as mx:
        await post.send(mx, **changes)
        (received,) = mx.messages
    assert received.sender == sender
    assert not any(one.startswith("ORCPT") for one in received.parameters)


async def test_mail_waits_while_the_key_cannot_be_had(
    post: Returning, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeMx() as mx:
        post.room.net.add("example.com", mx)
        await post.keys.current(Purpose.BOUNCE)
        post.room.return_path = ReturnPaths(SigningKeys(post.room.db, Keyring(b"x" * 32), clock), HOST).of
        message = await post.room.accept("anna@example.com")
        await post.room.dispatcher().run_due()
        row = await post.room.row(message)
        assert (row["status"], row["tries"]) == ("queued", 0)
        assert row["smtp_response"] == "The return path cannot be made"
        clock.advance(120)

        async def away(_: object) -> str:
            raise DatabaseUnavailable("away")

        post.room.return_path = away
        await post.room.dispatcher().run_due()
        row = await post.room.row(message)
        assert (row["status"], row["tries"], row["claim_token"]) == ("queued", 0, None)
        assert row["next_attempt_at"] > clock.now()
        clock.advance(120)
        post.room.return_path = post.paths.of
        await post.room.dispatcher().run_due()
        assert len(mx.delivered) == 1


# -- late bounces -----------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:D11", "edge:G6", "edge:N19", "mail-server:C7", "FR-DLV-1", "FR-DLV-5", "RFC 3464 §2.3")
@pytest.mark.parametrize(
    ("written", "code"),
    [
        (lambda received, address: report(received, recipient(address, Diagnostic_Code="smtp; 550 5.1.1 No")), 550),
        (like_postfix, 550),
        (like_exim, None),
        (like_qmail, None),
    ],
    ids=["rfc3464", "postfix", "exim", "qmail"],
)
async def test_a_late_bounce(post: Returning, written: Callable[[Received, str], bytes], code: int | None) -> None:
    async with FakeMx() as mx:
        message = await post.send(mx)
        assert (await statuses(post, message))[0] == "delivered"
        (received,) = mx.delivered
    seen = len(post.room.changed)
    assert (await post.bounce(received.sender, written(received, "anna@example.com")))[0] == 250
    assert await statuses(post, message) == ("bounced", {"anna@example.com": "bounced"})
    row = await post.room.row(message)
    assert (row["bounce_type"], row["enhanced_code"][:2], row["smtp_code"]) == ("hard", "5.", code)
    assert row["remote_mx"] == "mx0.example.com", "whoever took it"
    assert row["next_attempt_at"] is None
    assert await post.kinds() == [SENT, DELIVERED, BOUNCED, RECEIVED]
    told = (await post.room.events())[2][1]
    assert (told["recipient"], told["bounce_type"]) == ("anna@example.com", "hard")
    assert len(post.room.changed) == seen + 1, "clients are told at once"
    ((stored, notice),) = await post.inbox()
    assert (stored["kind"], stored["direction"], stored["delivered_to"]) == ("dsn", "inbound", post.box.address)
    assert notice["Return-Path"] == "<>"
    assert "bcc" not in stored["facts"]
    async with post.room.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(DISTINCT thread_seq) FROM messages") == 1
        assert await conn.fetchval("SELECT count(*) FROM bounce_tasks") == 0, "the report is the notice"


@pytest.mark.covers("mail-server:C7")
async def test_an_agent_has_the_events_of_the_bounce_alone(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path
) -> None:
    async with returning(db, clock, ids, tmp_path, kind="agent") as post, FakeMx() as mx:
        await post.send(mx)
        (received,) = mx.delivered
        await post.bounce(received.sender, report(received, recipient("anna@example.com", status="4.4.7")))
        assert await post.kinds() == [SENT, DELIVERED, BOUNCED]
        assert (await post.room.events())[2][1]["bounce_type"] == "soft"
        assert [row["kind"] for row, _ in await post.inbox()] == ["dsn"]


@pytest.mark.covers("edge:G6")
@pytest.mark.parametrize(
    ("action", "status", "events"),
    [
        ("failed", "bounced", [UNCERTAIN, SENT, RECONCILED, BOUNCED]),
        ("delivered", "delivered", [UNCERTAIN, SENT, RECONCILED, DELIVERED]),
        ("relayed", "delivered", [UNCERTAIN, SENT, RECONCILED, DELIVERED]),
        ("expanded", "delivered", [UNCERTAIN, SENT, RECONCILED, DELIVERED]),
        ("delayed", "submitted", [UNCERTAIN, SENT, RECONCILED]),
    ],
)
async def test_a_report_decides_what_is_uncertain(post: Returning, action: str, status: str, events: list[str]) -> None:
    async with FakeMx(drop_after_dot=True) as mx:
        message = await post.send(mx)
        (received,) = mx.messages
    assert (await statuses(post, message))[0] == "uncertain"
    await post.bounce(received.sender, report(received, recipient("anna@example.com", action)))
    assert await statuses(post, message) == (status, {"anna@example.com": status})
    assert [kind for kind in await post.kinds() if kind != RECEIVED] == events
    async with post.room.db.acquire() as conn:
        assert "reconciled" in await conn.fetchval("SELECT facts FROM messages WHERE public_id = $1", message)


@pytest.mark.covers("edge:G6")
@pytest.mark.parametrize("action", ["delayed", "delivered", "relayed"])
async def test_good_news_about_what_was_delivered_changes_nothing_and_is_kept(post: Returning, action: str) -> None:
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    await post.bounce(received.sender, report(received, recipient("anna@example.com", action, "4.4.1")))
    assert await statuses(post, message) == ("delivered", {"anna@example.com": "delivered"})
    assert await post.kinds() == [SENT, DELIVERED, RECEIVED]
    assert len(await post.inbox()) == 1


@pytest.mark.covers("mail-server:C6", "edge:N19")
async def test_what_a_relay_took(post: Returning) -> None:
    async with FakeMx(extensions=("8BITMIME",)) as mx:
        post.room.net.ports["relay.example"] = mx.port
        config = SmarthostConfig("out.agents.example", "relay.example", tls=TlsUse.NONE, timeouts=SOON)
        room = post.room
        room.transports[RouteKind.SMARTHOST] = Smarthost(config, room.breakers, room.clock, connect=room.net.connect)
        names = ("anna@example.com", "bob@example.org", "carl@example.net")
        message = await room.accept(*names, route=RouteKind.SMARTHOST)
        await room.dispatcher().run_due()
        assert set((await room.deliveries(message)).values()) == {"submitted"}
        (received,) = mx.delivered
    groups = [recipient("bob@example.org"), recipient("carl@example.net", "delayed", "4.4.1")]
    await post.bounce(received.sender, report(received, *groups))
    expected = {"anna@example.com": "submitted", "bob@example.org": "bounced", "carl@example.net": "submitted"}
    assert await statuses(post, message) == ("submitted", expected)
    await post.bounce(received.sender, report(received, recipient("anna@example.com", "delivered", "2.0.0")))
    await post.bounce(received.sender, report(received, recipient("carl@example.net", "delivered", "2.0.0")))
    assert (await statuses(post, message))[0] == "bounced"
    assert [kind for kind in await post.kinds() if kind != RECEIVED] == [SENT, BOUNCED, DELIVERED, DELIVERED]


@pytest.mark.covers("mail-server:C2")
async def test_a_delivery_that_waits_is_tried_no_more(post: Returning) -> None:
    async with FakeMx(replies={"final": ["451 4.3.0 Later"]}) as mx:
        message = await post.send(mx)
        (received,) = mx.messages
        await post.bounce(received.sender, report(received, recipient("anna@example.com")))
        assert (await statuses(post, message))[0] == "bounced"
        post.room.clock.advance(90_000)
        await post.room.dispatcher().run_due()
        assert len(mx.messages) == 1
    assert await post.room.wire_key(message) is None


# -- which of them ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:D11", "RFC 3464 §2.3")
async def test_of_several_the_report_says_which(post: Returning) -> None:
    async with FakeMx() as mx:
        post.room.net.add("example.org", mx)
        names = ("anna@example.com", "bob@example.com", "anna@example.org")
        message = await post.send(mx, *names)
        received = next(one for one in mx.delivered if len(one.recipients) == 2)
    groups = (
        recipient("elsewhere@example.net", Original_Recipient="rfc822; Bob@EXAMPLE.com"),
        recipient("anna@example.org"),  # of the same message, but at another place
        recipient("stranger@example.com"),
    )
    await post.bounce(received.sender, report(received, *groups))
    expected = {"anna@example.com": "delivered", "bob@example.com": "bounced", "anna@example.org": "delivered"}
    assert await statuses(post, message) == ("bounced", expected)


@pytest.mark.covers("edge:D11")
@pytest.mark.parametrize("alone", [True, False])
async def test_a_report_that_names_a_stranger(post: Returning, alone: bool) -> None:
    async with FakeMx() as mx:
        names = ["anna@example.com"] if alone else ["anna@example.com", "bob@example.com"]
        message = await post.send(mx, *names)
        (received,) = mx.delivered
    assert (await post.bounce(received.sender, report(received, recipient("stranger@example.net"))))[0] == 250
    # Of one, it is what became of the address on the way; of several nobody knows.
    wanted = "bounced" if alone else "delivered"
    assert await statuses(post, message) == (wanted, dict.fromkeys(names, wanted))
    assert len(await post.inbox()) == 1


# -- who may say so ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:D4", "edge:D11", "security-privacy:A6.2", "RFC 5321 §4.5.1")
async def test_what_the_host_of_return_paths_takes(post: Returning, clock: ManualClock) -> None:
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    local = received.sender.partition("@")[0]
    raw = report(received, recipient("anna@example.com"))
    forged = local[:-1] + ("0" if local[-1] != "0" else "1")
    for address, sender, code in (
        (f"{forged}@{HOST}", "", "5.1.1"),
        (f"{forged}@{HOST}", "eve@example.com", "5.1.1"),
        (f"bounces@{HOST}", "", "5.1.1"),
        (f"anybody@{HOST}", "eve@example.com", "5.1.1"),
        (f"{local}@{HOST}", "eve@example.com", "5.7.1"),
        (f"{local}@{post.box.address.partition('@')[2]}", "", "5.1.1"),
        (f"{local}@other.example", "", "5.7.1"),
    ):
        answer = await post.bounce(address, raw, sender=sender)
        assert (answer[0], answer[1][:5]) == (550, code), address
    assert post.places[0].returns.dropped == {"backscatter": 1}
    assert await statuses(post, message) == ("delivered", {"anna@example.com": "delivered"})
    assert await post.inbox() == []
    # Its postmaster is the deployment's.
    answer = await post.bounce(f"Postmaster@{HOST}", b"Subject: Hello\r\n\r\nHello\r\n", sender="eve@example.com")
    assert answer[0] == 250
    assert [row["subject"] for row, _ in await post.inbox()] == ["Hello"]
    # In any case, and under the key before as long as that is honoured.
    await post.keys.rotate(Purpose.BOUNCE)
    clock.advance(timedelta(days=29).total_seconds())
    assert (await post.bounce(f"{local.upper()}@{HOST.upper()}", raw))[0] == 250
    assert (await statuses(post, message))[0] == "bounced"
    clock.advance(timedelta(days=2).total_seconds())
    assert (await post.bounce(received.sender, raw))[0] == 550


@pytest.mark.covers("edge:J1")
async def test_while_the_database_is_away_it_is_put_off(post: Returning, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    raw = report(received, recipient("anna@example.com"))

    async def away(*_: object, **__: object) -> Any:
        raise DatabaseUnavailable("away")

    returns = post.places[0].returns
    for owner, name in ((post.paths, "delivery"), (returns, "_find"), (returns._applying, "apply")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, away)
            assert (await post.bounce(received.sender, raw))[0] == 451
        assert (await statuses(post, message))[0] == "delivered"
        assert await post.inbox() == []
    with monkeypatch.context() as patched:
        patched.setattr(post.keys, "_rings", {})
        patched.setattr(post.keys, "_keyring", Keyring(b"x" * 32))
        assert (await post.bounce(received.sender, raw))[0] == 451
    assert (await post.bounce(received.sender, raw))[0] == 250
