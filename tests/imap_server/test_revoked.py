"""A grant that is taken away, or lowered, while its folders are in use: within a second, whatever is going on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.imap_server.conftest import Until, mail
from tests.imap_server.neighbours import Street, street_of
from tests.imap_server.test_shared import names

BYE = b"* BYE Selected mailbox is not open to you any more"


@pytest.fixture
async def street(office: Any) -> AsyncIterator[Street]:
    async with street_of(office) as made:
        yield made


async def _shared(street: Street, role: str = "full", count: int = 2) -> bytes:
    """Bob's INBOX, as carol calls it."""
    await street.grant("bob", "carol", role)
    for n in range(count):
        await street.deliver("bob", mail(f"number {n}"))
    return street.prefix("bob") + b"INBOX"


@pytest.mark.covers("decisions:A2", "mail-server:D2", "mail-server:F2")
@pytest.mark.parametrize("idle", [False, True])
async def test_the_selected_folder_closes_and_nothing_else(street: Street, idle: bool) -> None:
    there = await _shared(street)
    selected, own, elsewhere = [await street.client("carol") for _ in range(3)]
    await selected.ok(b'SELECT "%b"' % there)
    await own.ok(b"SELECT INBOX")
    await elsewhere.ok(b'STATUS "%b" (MESSAGES)' % there)
    if idle:
        selected.send(b"i IDLE\r\n")
        assert await selected.line() == b"+ idling"
    bob = await street.client("bob")
    await bob.ok(b"DELETEACL INBOX " + street.address("carol"))
    async with asyncio.timeout(1):
        assert await selected.line() == BYE
        assert await selected.rest() == b""
    # What else the person has open goes on, without the mailbox.
    await own.ok(b"FETCH 1:* FLAGS")
    for client in (own, elsewhere):
        assert (await client.ask(b'SELECT "%b"' % there))[-1].startswith(b"NO [NONEXISTENT]")
        assert there not in names(await client.ok(b'LIST "" *'))
    again = await street.client("carol")
    assert (await again.ask(b'STATUS "%b" (MESSAGES)' % there))[-1].startswith(b"NO [NONEXISTENT]")


@pytest.mark.covers("RFC 3501 §7.1", "decisions:A2")
@pytest.mark.parametrize("idle", [False, True])
async def test_a_lowered_grant_makes_the_folder_read_only(street: Street, idle: bool) -> None:
    there = await _shared(street)
    carol, bob = await street.client("carol", there), await street.client("bob")
    if idle:
        carol.send(b"i IDLE\r\n")
        assert await carol.line() == b"+ idling"
    await bob.ok(b"SETACL INBOX %b lr" % street.address("carol"))
    if idle:
        async with asyncio.timeout(1):
            told = [await carol.line() for _ in range(2)]
        carol.send(b"DONE\r\n")
        await carol.until(b"i")
    else:
        await street.standing.check()
        told = await carol.ok(b"NOOP")
    assert told == [
        b"* OK [READ-ONLY] Only reading is permitted now",
        b"* OK [PERMANENTFLAGS ()] Flags permitted",
    ]
    assert await carol.ok(b"NOOP") == []
    for command in (b"STORE 1 +FLAGS (\\Seen)", b"EXPUNGE", b"MOVE 1 INBOX", b'APPEND "%b" {3+}\r\nx\r\n' % there):
        assert (await carol.ask(command))[-1].startswith(b"NO [NOPERM]"), command
    await carol.ok(b"FETCH 1 BODY[]")
    await carol.ok(b"COPY 1 INBOX")
    assert await carol.ok(b"SEARCH UNSEEN") == [b"* SEARCH 1 2"]
    # Once more it may be written to: what is selected stays as it is.
    await bob.ok(b"SETACL INBOX %b lrswipkxte" % street.address("carol"))
    await street.standing.check()
    assert (await carol.ask(b"STORE 1 +FLAGS (\\Seen)"))[-1].startswith(b"NO [READ-ONLY]")
    await carol.ok(b'SELECT "%b"' % there)
    await carol.ok(b"STORE 1 +FLAGS (\\Seen)")


async def test_who_only_looks_is_told_nothing_of_a_lowered_grant(street: Street) -> None:
    there = await _shared(street)
    carol = await street.client("carol")
    await carol.ok(b'EXAMINE "%b"' % there)
    await street.grant("bob", "carol", "read")
    assert await carol.ok(b"NOOP") == []


@pytest.mark.covers("mail-server:F2")
async def test_a_fetch_ends_with_its_page(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads slowly does not go on reading what is not theirs any more."""
    monkeypatch.setattr("postroom.servers.imap.fetch.BYTES_PAGE", 1)
    # More than sockets hold.
    for n in range(8):
        await street.deliver("bob", mail(f"large {n}", "x" * 3_000_000))
    there = await _shared(street, count=40)
    carol = await street.client("carol", there)
    carol.send(b"f FETCH 1:* BODY.PEEK[]\r\n")
    assert (await carol.line()).startswith(b"* ")
    carol.writer.transport.pause_reading()
    await street.grant("bob", "carol", None)
    carol.writer.transport.resume_reading()
    said: list[bytes] = []
    while line := await carol.line():
        said.append(line)
    assert said[-1] == BYE
    assert len(said) < 42
    assert not any(line.startswith(b"f ") for line in said)


@pytest.mark.covers("decisions:A2")
async def test_revoked_while_it_is_being_selected(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    there = await _shared(street)
    carol = await street.client("carol")
    await carol.ok(b'STATUS "%b" (MESSAGES)' % there)
    views = street.office.listeners[0]._context.shared.views
    opened, go_on, open_ = asyncio.Event(), asyncio.Event(), views.open

    async def slowly(*arguments: Any) -> Any:
        view = await open_(*arguments)
        opened.set()
        await go_on.wait()
        return view

    monkeypatch.setattr(views, "open", slowly)
    carol.send(b's SELECT "%b"\r\n' % there)
    await opened.wait()
    await street.grant("bob", "carol", None)
    go_on.set()
    assert (await carol.until(b"s"))[-1].startswith(b"s NO [NONEXISTENT]")
    assert all(not view.users for view in views._views.values())


async def test_appends_in_a_row_look_again(street: Street) -> None:
    """A run of APPENDs looks its folder up once; not beyond the grant."""
    there = await _shared(street)
    carol = await street.client("carol")
    one = b'x APPEND "%b" {3+}\r\nx\r\n\r\n' % there
    carol.send(one * 20)
    await street.grant("bob", "carol", "read")
    carol.send(one * 20)
    said = [await carol.line() for _ in range(40)]
    assert said[-1].startswith(b"x NO [NOPERM]")
    first = next(n for n, line in enumerate(said) if not line.startswith(b"x OK"))
    assert all(line.startswith(b"x NO [NOPERM]") for line in said[first:])


@pytest.mark.covers("RFC 3501 §6.4.7")
@pytest.mark.parametrize("command", [b"COPY", b"MOVE"])
async def test_revoked_while_messages_go_elsewhere(
    street: Street, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    """What was moved is moved; of what was copied nothing stays. Nothing is lost, and nothing in both."""
    monkeypatch.setattr("postroom.servers.imap.across.GROUP_MESSAGES", 2)
    there = await _shared(street, count=6)
    carol = await street.client("carol", there)
    ingest, done = street.office.ingest, 0
    together = ingest.deliver_together

    async def revoked_after_one(deliveries: Any) -> Any:
        nonlocal done
        done += 1
        stored = await together(deliveries)
        if done == 1:
            await street.grant("bob", "carol", None)
        return stored

    monkeypatch.setattr(ingest, "deliver_together", revoked_after_one)
    carol.send(b"x %b 1:* INBOX\r\n" % command)
    said = []
    while line := await carol.line():
        said.append(line)
    assert BYE in said
    hers, his = await street.client("carol"), await street.client("bob")
    (line,) = await hers.ok(b"STATUS INBOX (MESSAGES)")
    assert line.endswith(b"(MESSAGES 2)" if command == b"MOVE" else b"(MESSAGES 0)")
    (line,) = await his.ok(b"STATUS INBOX (MESSAGES)")
    assert line.endswith(b"(MESSAGES 4)" if command == b"MOVE" else b"(MESSAGES 6)")


@pytest.mark.covers("decisions:A2", "RFC 3501 §6.4.7", "RFC 6851 §4.3")
@pytest.mark.parametrize(("role", "code"), [(None, b"NONEXISTENT"), ("read", b"NOPERM")])
@pytest.mark.parametrize("command", [b"COPY", b"MOVE"])
@pytest.mark.parametrize("target", ["bob", "carol"])
async def test_a_grant_that_changes_between_two_groups(
    street: Street, monkeypatch: pytest.MonkeyPatch, target: str, command: bytes, role: str | None, code: bytes
) -> None:
    """Nothing more comes into a mailbox that may not be written into any more, and nothing more goes from one."""
    monkeypatch.setattr("postroom.servers.imap.across.GROUP_MESSAGES", 2)
    await street.grant("bob", "carol", "full")
    source = {"bob": "carol", "carol": "bob"}[target]
    for n in range(6):
        await street.deliver(source, mail(f"number {n}"))
    prefix = {"bob": street.prefix("bob"), "carol": b""}
    carol = await street.client("carol", prefix[source] + b"INBOX")
    together, done = street.office.ingest.deliver_together, 0

    async def changed_after_one(deliveries: Any) -> Any:
        nonlocal done
        done += 1
        stored = await together(deliveries)
        if done == 1:
            await street.grant("bob", "carol", role)
        return stored

    monkeypatch.setattr(street.office.ingest, "deliver_together", changed_after_one)
    carol.send(b'x %b 1:* "%bINBOX"\r\n' % (command, prefix[target]))
    said = [await carol.line()]
    while not said[-1].startswith((b"x ", b"* BYE")):
        said.append(await carol.line())
    # Who may still read may still copy from there.
    goes_on = (target, command, role) == ("carol", b"COPY", "read")
    closes = target == "carol" and role is None
    assert said[-1].startswith(b"x OK" if goes_on else b"* BYE" if closes else b"x NO [%b]" % code)
    moved = {b"COPY": 6 if goes_on else 0, b"MOVE": 2}[command]
    there, here = await street.client(target), await street.client(source)
    (line,) = await there.ok(b"STATUS INBOX (MESSAGES)")
    assert line.endswith(b"(MESSAGES %d)" % moved)
    (line,) = await here.ok(b"STATUS INBOX (MESSAGES)")
    assert line.endswith(b"(MESSAGES %d)" % (6 if command == b"COPY" else 4))


@pytest.mark.covers("decisions:A2", "RFC 4314 §4")
async def test_a_fetch_marks_nothing_once_the_grant_is_lowered(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.servers.imap.fetch.BYTES_PAGE", 2)
    there = await _shared(street, count=6)
    carol = await street.client("carol", there)
    boxes = street.office.boxes
    set_flags = boxes.set_flags

    async def lowered_after_one(*given: Any, **named: Any) -> Any:
        stored = await set_flags(*given, **named)
        await street.grant("bob", "carol", "read")
        return stored

    monkeypatch.setattr(boxes, "set_flags", lowered_after_one)
    await carol.ok(b"FETCH 1:* BODY[]")
    (line,) = await (await street.client("bob")).ok(b"STATUS INBOX (UNSEEN)")
    assert line.endswith(b"(UNSEEN 4)")


async def test_a_disabled_person_is_out_everywhere(street: Street) -> None:
    there = await _shared(street)
    carol = await street.client("carol", there)
    await street.office.people.set_enabled(street.people["carol"].public_id, False)
    street.standing.wake()
    assert await carol.line() == b"* BYE Signed out; sign in again"


async def test_nobody_is_watched_any_more_in_the_end(street: Street, until: Until) -> None:
    there = await _shared(street)
    clients = [await street.client("carol", there) for _ in range(3)]
    sharing = street.office.services.sharing
    assert len(sharing._reaches[street.people["carol"].id].watchers) == 3
    clients[0].send(b"x LOGOUT\r\n")
    await clients[1].close()
    clients[2].writer.transport.abort()
    await clients[0].until(b"x")
    await until(lambda: not sharing._reaches)


@pytest.mark.covers("edge:J1")
async def test_a_grant_that_nobody_hinted_of_is_found_by_the_poll(street: Street) -> None:
    there = await _shared(street)
    carol = await street.client("carol", there)
    street.standing._interval = 0.05
    street.standing.wake()
    bob = street.boxes["bob"]
    async with street.office.db.acquire() as conn:
        await conn.execute("DELETE FROM mailbox_grants WHERE mailbox_id = $1 AND role = 'full'", bob.id)
    assert await carol.line() == BYE


@pytest.mark.parametrize("status", ["deleting", "suspended"])
async def test_what_becomes_of_the_mailbox_becomes_of_the_grant(street: Street, status: str) -> None:
    there = await _shared(street)
    carol = await street.client("carol", there)
    async with street.office.db.acquire() as conn:
        if status == "deleting":
            await conn.execute("UPDATE identities SET status = 'deleting' WHERE id = $1", street.boxes["bob"].id)
        else:
            await conn.execute("UPDATE tenants SET status = 'suspended' WHERE id = $1", street.boxes["bob"].tenant_id)
    await street.standing.check()
    if status == "deleting":
        assert await carol.line() == BYE
    else:
        await carol.ok(b"FETCH 1 FLAGS")
