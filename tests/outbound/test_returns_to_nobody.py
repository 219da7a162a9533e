"""Late bounces of what is gone, and what comes to a return path and is no report."""

from __future__ import annotations

import email.policy
from collections.abc import AsyncIterator, Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.models import Mode
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.inbound.parsing import Parser, ParserBusy, ParsingFailed
from postroom.outbound.models import Operation, RouteKind
from postroom.outbound.routes import Routes
from postroom.outbound.transports.local import Local
from postroom.sending import _with_host
from tests.outbound.fake_mx import FakeMx
from tests.outbound.late_bounces import (
    DELIVERED,
    RECEIVED,
    SENT,
    statuses,
)
from tests.outbound.returning import (
    HOST,
    QuickParser,
    Returning,
    recipient,
    report,
    returning,
)


@pytest.fixture
async def post(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Returning]:
    async with returning(db, clock, ids, tmp_path) as made:
        yield made


# -- what is gone, and what is no report ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement", ["UPDATE tenants SET status = 'erasing'", "UPDATE identities SET status = 'deleting'"]
)
async def test_nothing_is_stored_for_who_is_being_erased(post: Returning, statement: str) -> None:
    async with FakeMx() as mx:
        await post.send(mx)
        (received,) = mx.delivered
    await post.execute(statement)
    for raw in (report(received, recipient("anna@example.com")), b"Subject: I am away\r\n\r\nx\r\n"):
        assert (await post.bounce(received.sender, raw))[0] == 250
    assert await post.inbox() == []
    assert post.places[0].returns.dropped == {"gone": 2}


@pytest.mark.covers("edge:D4", "mail-server:C7")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE mailboxes SET erased = true",
        "DELETE FROM messages",
        "DELETE FROM deliveries",
    ],
)
@pytest.mark.parametrize("moment", ["before", "found", "applied"])
async def test_of_what_is_gone_nobody_is_told(
    post: Returning, statement: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeMx() as mx:
        await post.send(mx)
        (received,) = mx.delivered
    returns = post.places[0].returns

    async def erase() -> None:
        if "messages" in statement:
            await post.execute("DELETE FROM placements")
        await post.execute(statement)

    def then(function: Callable[..., Any]) -> Callable[..., Any]:
        async def patched(*arguments: Any) -> Any:
            answer = await function(*arguments)
            monkeypatch.undo()
            await erase()
            return answer

        return patched

    if moment == "before":
        await erase()
    else:
        name = "_find" if moment == "found" else "_apply"
        monkeypatch.setattr(returns, name, then(getattr(returns, name)))
    assert (await post.bounce(received.sender, report(received, recipient("anna@example.com"))))[0] == 250
    stored = len(await post.inbox())
    if moment == "applied" and "erased" not in statement:
        assert stored <= 1  # it was being stored already
    else:
        assert (stored, returns.dropped) == (0, {"gone": 1})
    # So that what always holds of mailboxes can be looked at.
    await post.execute("DELETE FROM changes")
    await post.execute("UPDATE mailboxes SET erased = false, change_seq = 0")
    await post.execute("DELETE FROM placements")
    await post.execute("DELETE FROM messages")
    await post.execute("DELETE FROM threads")
    await post.execute("UPDATE mailboxes SET used_bytes = 0")
    await post.execute("UPDATE folders SET message_count = 0, unseen_count = 0, total_bytes = 0")


@pytest.mark.covers("edge:D4", "edge:N19")
@pytest.mark.parametrize("kind", ["person", "agent"])
async def test_an_answer_that_is_no_report_is_mail(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path, kind: str
) -> None:
    async with returning(db, clock, ids, tmp_path, kind=kind) as post, FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
        answer = EmailMessage(email.policy.SMTP)
        answer["From"], answer["To"], answer["Subject"] = "anna@example.com", received.sender, "Out of office"
        answer["Auto-Submitted"] = "auto-replied"
        answer.set_content("I am away.")
        assert (await post.bounce(received.sender, answer.as_bytes()))[0] == 250
        assert await post.kinds() == [SENT, DELIVERED, RECEIVED]
        ((row, _),) = await post.inbox()
        assert (row["kind"], row["delivered_to"]) == ("automated", post.box.address)
        assert (await statuses(post, message))[0] == "delivered"


@pytest.mark.parametrize(("trouble", "code"), [(ParserBusy, 451), (ParsingFailed, 250)])
async def test_a_report_that_cannot_be_read_is_kept_for_people(
    post: Returning, trouble: type[Exception], code: int
) -> None:
    class Broken(QuickParser):
        async def run(self, size: int, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            raise trouble

    place = await post.place(Broken())
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    raw = report(received, recipient("anna@example.com"))
    assert (await post.bounce(received.sender, raw, place=place))[0] == code
    assert (await statuses(post, message))[0] == "delivered"
    assert len(await post.inbox()) == (code == 250)


async def test_reading_is_done_in_another_process(post: Returning) -> None:
    place = await post.place(Parser())
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    raw = report(received, recipient("anna@example.com"))
    assert (await post.bounce(received.sender, raw, place=place))[0] == 250
    assert place.parser.process_ids
    assert (await statuses(post, message))[0] == "bounced"


@pytest.mark.covers("mail-server:C7", "RFC 5321 §6.1")
async def test_a_notice_of_ours_finds_its_way_to_a_return_path_of_ours(post: Returning) -> None:
    """Mail of ours that came back by way of another server, and could not be passed on from here."""
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    room, place = post.room, post.places[0]
    room.transports[RouteKind.LOCAL] = Local(
        place.reception.resolve,
        place.reception.receive,
        room.clock,
        hostname="mx.agents.example",
        new_id=lambda _: "local:1",
    )
    notice = await room.accept(
        received.sender,
        raw=report(received, recipient("anna@example.com")),
        route=RouteKind.LOCAL,
        operation=Operation.BOUNCE,
        envelope_from="",
    )
    await room.dispatcher().run_due()
    assert await room.status(notice) == "delivered"
    assert (await statuses(post, message))[0] == "bounced"

    async def nothing(domain: str) -> bool:
        return False

    for host, route in ((HOST, RouteKind.LOCAL), ("", RouteKind.DIRECT)):
        routes = Routes(_with_host(nothing, host))
        assert await routes.route(received.sender, from_domain="agents.example", mode=Mode.LIVE) is route
