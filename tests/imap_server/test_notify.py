"""NOTIFY over the wire: what is told between commands, in IDLE, and to sessions of another listener (RFC 5465)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from postroom.events.live import LiveHub
from postroom.servers.imap import ImapListener, notify
from tests.imap_server.conftest import NoHints, Until

ALL = b"(MessageNew MessageExpunge FlagChange)"
NAMES = b"(personal (MailboxName SubscriptionChange))"


def _mail(n: int) -> bytes:
    return b"From: ann@example.com\r\nSubject: number %d\r\n\r\nText %d\r\n" % (n, n)


async def _is_quiet(client: Any) -> bool:
    """Whether nothing is told for a while, longer than a look takes; then the client has its next command."""
    reading = asyncio.ensure_future(client.reader.readline())
    done, _ = await asyncio.wait({reading}, timeout=2 * notify.PAUSE)
    if not done:
        reading.cancel()
        await asyncio.wait({reading})
    return not done


async def _lines(client: Any, count: int) -> list[bytes]:
    return [await client.line() for _ in range(count)]


@pytest.mark.covers("RFC 5465 §5.2", "RFC 5465 §5.1", "RFC 5465 §5.3")
async def test_the_selected_mailbox_is_told_of_between_commands(office: Any) -> None:
    await office.deliver(_mail(1))
    mine, other = await office.client(), await office.client()
    assert await mine.ok(b"NOTIFY SET (selected " + ALL + b")") == []
    await office.deliver(_mail(2))
    assert await _lines(mine, 2) == [b"* 2 EXISTS", b"* 2 RECENT"]
    await other.ok(rb"UID STORE 1 +FLAGS (\Deleted)")
    assert await mine.line() == rb"* 1 FETCH (FLAGS (\Deleted \Recent) UID 1)"
    await other.ok(b"EXPUNGE")
    assert await mine.line() == b"* 1 EXPUNGE"
    assert await mine.ok(b"NOOP") == []


@pytest.mark.covers("RFC 5465 §5.2")
async def test_new_messages_are_shown_as_was_asked(office: Any) -> None:
    mine = await office.client()
    other = await office.client(None)
    wanted = b"(UID BODY[HEADER.FIELDS (Subject)])"
    await mine.ok(b"NOTIFY SET (selected (MessageNew " + wanted + b" MessageExpunge))")
    await office.deliver(_mail(1))
    lines = await _lines(mine, 3)
    assert lines[:2] == [b"* 1 EXISTS", b"* 1 RECENT"]
    assert lines[2] == b"* 1 FETCH (UID 1 BODY[HEADER.FIELDS (Subject)] {21}\r\nSubject: number 1\r\n\r\n)"
    # It was shown, not read; and changed flags were not asked for: they are told at the next command.
    await other.ok(b"SELECT INBOX")
    assert await other.ok(b"FETCH 1 FLAGS") == [b"* 1 FETCH (FLAGS ())"]
    await other.ok(rb"STORE 1 +FLAGS (\Flagged)")
    assert await _is_quiet(mine)
    assert await mine.ok(b"NOOP") == [rb"* 1 FETCH (FLAGS (\Flagged \Recent) UID 1)"]
    assert await mine.ok(b"NOOP") == []


@pytest.mark.covers("RFC 5465 §6.1")
async def test_delayed_expunges_wait_for_a_command(office: Any) -> None:
    for n in range(1, 4):
        await office.deliver(_mail(n))
    mine, other = await office.client(), await office.client()
    await mine.ok(b"NOTIFY SET (selected-delayed (MessageNew MessageExpunge))")
    await other.ok(rb"STORE 1 +FLAGS.SILENT (\Deleted)")
    await other.ok(b"EXPUNGE")
    await office.deliver(_mail(4))
    # The number of the message that went is still in use.
    assert await _lines(mine, 2) == [b"* 4 EXISTS", b"* 4 RECENT"]
    assert await mine.ok(b"FETCH 2,4 UID") == [b"* 2 FETCH (UID 2)", b"* 4 FETCH (UID 4)"]
    mine.send(b"x IDLE\r\n")
    assert await _lines(mine, 2) == [b"+ idling", b"* 1 EXPUNGE"]
    mine.send(b"DONE\r\n")
    assert await mine.line() == b"x OK IDLE completed"


@pytest.mark.covers("RFC 5465 §4", "RFC 5465 §3.1")
async def test_what_is_not_wanted_is_not_told(office: Any) -> None:
    mine = await office.client()
    commands = (b"NOTIFY NONE", b"NOTIFY SET (selected NONE)", b"NOTIFY SET (mailboxes Archive " + ALL + b")")
    for number, command in enumerate(commands):
        await mine.ok(command)
        await office.deliver(_mail(2 * number))
        assert await _is_quiet(mine), command
        # RFC 3501 §5.2: a command tells how many there are all the same.
        assert len(await mine.ok(b"NOOP")) == 2, command
        mine.send(b"x IDLE\r\n")
        assert await mine.line() == b"+ idling"
        await office.deliver(_mail(2 * number + 1))
        assert await _is_quiet(mine), command
        mine.send(b"DONE\r\n")
        assert (await mine.until(b"x"))[-1] == b"x OK IDLE completed"


@pytest.mark.covers("RFC 5465 §5.2", "RFC 5465 §5.1", "RFC 5465 §5.3")
async def test_other_mailboxes_are_told_of_by_status(office: Any) -> None:
    mine, other = await office.client(None), await office.client(None)
    assert await mine.ok(b"NOTIFY SET (mailboxes (Archive Missing) (MessageNew MessageExpunge))") == []
    await other.append(_mail(1), b"Archive")
    said = (await mine.line()).split()
    assert said[:3] == [b"*", b"STATUS", b"Archive"]
    assert said[3:7] == [b"(MESSAGES", b"1", b"UIDNEXT", b"2"]
    assert said[7] == b"UIDVALIDITY"
    assert said[9:] == [b"UNSEEN", b"1)"]
    await other.append(_mail(2), b"Junk")
    await other.ok(b"SELECT Archive")
    await other.ok(rb"STORE 1 +FLAGS (\Seen \Deleted)")
    assert await _is_quiet(mine)
    await other.ok(b"EXPUNGE")
    assert b"(MESSAGES 0 UIDNEXT 2 " in await mine.line()
    # With FlagChange, or CONDSTORE, the modseq is told too.
    await mine.ok(b"NOTIFY SET (subtree Archive " + ALL + b")")
    await other.append(_mail(3), b"Archive", rb"(\Seen) ")
    assert b" UNSEEN 0 HIGHESTMODSEQ " in await mine.line()
    await other.ok(b"NOOP")
    await other.ok(rb"STORE 1 -FLAGS (\Seen)")
    assert b" UNSEEN 1 HIGHESTMODSEQ " in await mine.line()


@pytest.mark.covers("RFC 5465 §3.1")
async def test_status_at_once_but_not_of_what_is_selected(office: Any) -> None:
    mine = await office.client()
    await office.deliver(_mail(1))
    lines = await mine.ok(b"NOTIFY SET STATUS (selected " + ALL + b") (mailboxes (INBOX Archive Junk) " + ALL + b")")
    assert lines[:2] == [b"* 1 EXISTS", b"* 1 RECENT"]
    assert [line.split()[2] for line in lines[2:]] == [b"Archive", b"Junk"]
    assert all(line.startswith(b"* STATUS ") for line in lines[2:])
    # What is wanted of names is no reason to tell how full they are.
    assert await mine.ok(b"NOTIFY SET STATUS " + NAMES) == []
    # A mailbox that is selected no more is one of the others.
    await mine.ok(b"NOTIFY SET (selected NONE) (inboxes " + ALL + b")")
    await office.deliver(_mail(2))
    assert await _is_quiet(mine)
    await mine.ok(b"UNSELECT")
    await office.deliver(_mail(3))
    assert b"STATUS INBOX (MESSAGES 3 " in await mine.line()


@pytest.mark.covers("RFC 5465 §5.4", "RFC 5465 §5.5")
async def test_names_and_subscriptions(office: Any) -> None:
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(b"NOTIFY SET " + NAMES)
    await other.ok(b"CREATE Work/Old")
    created = await _lines(mine, 2)
    assert [line.rpartition(b' "/" ')[2] for line in created] == [b"Work", b"Work/Old"]
    assert rb"\HasChildren" in created[0]
    assert rb"\HasNoChildren" in created[1]
    await other.ok(b"UNSUBSCRIBE Work/Old")
    assert await mine.line() == rb'* LIST (\HasNoChildren) "/" Work/Old'
    await other.ok(b"SUBSCRIBE Work/Old")
    assert await mine.line() == rb'* LIST (\Subscribed \HasNoChildren) "/" Work/Old'
    await other.ok(b"RENAME Work Projects")
    assert await _lines(mine, 2) == [
        rb'* LIST (\Subscribed \HasChildren) "/" Projects ("OLDNAME" (Work))',
        rb'* LIST (\Subscribed \HasNoChildren) "/" Projects/Old ("OLDNAME" (Work/Old))',
    ]
    await other.ok(b"DELETE Projects/Old")
    assert await mine.line() == rb'* LIST (\NonExistent) "/" Projects/Old'
    await other.ok(b"CREATE &AOk-t&AOk-")
    assert (await mine.line()).endswith(b" &AOk-t&AOk-")
    # What is named is all that is told of, by its old name too.
    await mine.ok(b"NOTIFY SET (subtree (Projects) (MailboxName))")
    await other.ok(b"RENAME Projects Elsewhere")
    assert (await mine.line()).endswith(b' Elsewhere ("OLDNAME" (Projects))')
    await other.ok(b"DELETE Elsewhere")
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §6.4")
async def test_subscriptions_are_looked_at_anew(office: Any) -> None:
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(b"NOTIFY SET (subscribed (MessageNew MessageExpunge SubscriptionChange))")
    await other.append(_mail(1), b"Archive")
    assert (await mine.line()).startswith(b"* STATUS Archive (MESSAGES 1 ")
    await other.ok(b"UNSUBSCRIBE Archive")
    assert await mine.line() == rb'* LIST (\HasNoChildren \Archive) "/" Archive'
    await other.append(_mail(2), b"Archive")
    assert await _is_quiet(mine)
    await other.ok(b"SUBSCRIBE Archive")
    assert await mine.line() == rb'* LIST (\Subscribed \HasNoChildren \Archive) "/" Archive'


@pytest.mark.covers("RFC 5465 §5.3", "RFC 7162 §3.2.10")
async def test_what_went_is_told_as_the_client_follows_it(office: Any) -> None:
    await office.fill(2)
    mine, other = await office.client(None), await office.client()
    await mine.ok(b"ENABLE QRESYNC")
    await mine.ok(b"SELECT INBOX")
    await mine.ok(b"NOTIFY SET (selected " + ALL + b") (mailboxes Archive (MessageNew MessageExpunge))")
    await other.ok(b"UID MOVE 1 Archive")
    told = await _lines(mine, 2)
    assert told[0] == b"* VANISHED 1"
    assert b" HIGHESTMODSEQ " in told[1]


@pytest.mark.covers("RFC 5465 §5")
async def test_nobody_is_told_of_what_they_do_themselves(office: Any) -> None:
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(b"NOTIFY SET " + NAMES)
    for command in (b"CREATE A", b"UNSUBSCRIBE A", b"SUBSCRIBE A", b"RENAME A B", b"DELETE B"):
        assert await mine.ok(command) == []
        assert await _is_quiet(mine), command
    # But others may undo it.
    await mine.ok(b"UNSUBSCRIBE Archive")
    assert await mine.ok(b"UNSUBSCRIBE Archive") == []
    await other.ok(b"SUBSCRIBE Archive")
    assert b"LIST (\\Subscribed " in await mine.line()


@pytest.mark.covers("RFC 5465 §4")
async def test_idle_tells_the_same(office: Any) -> None:
    mine, other = await office.client(), await office.client(None)
    await mine.ok(b"NOTIFY SET (selected " + ALL + b") (personal (MessageNew MessageExpunge MailboxName))")
    mine.send(b"x IDLE\r\n")
    assert await mine.line() == b"+ idling"
    await office.deliver(_mail(1))
    assert await _lines(mine, 2) == [b"* 1 EXISTS", b"* 1 RECENT"]
    await other.append(_mail(2), b"Archive")
    assert (await mine.line()).startswith(b"* STATUS Archive (MESSAGES 1 ")
    await other.ok(b"CREATE Work")
    assert (await mine.line()).endswith(b" Work")
    mine.send(b"DONE\r\n")
    assert await mine.line() == b"x OK IDLE completed"


@pytest.mark.covers("RFC 5465 §5", "RFC 5465 §6.1", "RFC 5465 §3.1")
async def test_what_is_refused_changes_nothing(office: Any) -> None:
    mine, other = await office.client(), await office.client(None)
    await mine.ok(b"NOTIFY SET (mailboxes Archive (MessageNew MessageExpunge))")
    known = (
        b"NO [BADEVENT (MessageNew MessageExpunge FlagChange MailboxName SubscriptionChange MailboxMetadataChange"
        b" ServerMetadataChange)] "
    )
    for command in (
        b"NOTIFY SET (selected (MessageNew MessageExpunge AnnotationChange))",
        b"NOTIFY SET (personal (SomethingElse))",
    ):
        assert (await mine.ask(command))[-1].startswith(known), command
    many = b" ".join(b"M%d" % n for n in range(1001))
    assert (await mine.ask(b"NOTIFY SET (mailboxes (" + many + b") (MailboxName))"))[-1].startswith(
        b"NO [NOTIFICATIONOVERFLOW] "
    )
    for command in (b"NOTIFY", b"NOTIFY SET", b"NOTIFY SET (selected (MessageNew))"):
        assert (await mine.ask(command))[-1].startswith(b"BAD "), command
    await other.append(_mail(1), b"Archive")
    assert (await mine.line()).startswith(b"* STATUS Archive ")


@pytest.mark.covers("RFC 5465 §5.8")
async def test_too_much_ends_it(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MAX_TOLD", 1)
    mine, other = await office.client(), await office.client(None)
    await mine.ok(b"NOTIFY SET " + NAMES)
    await other.ok(b"CREATE A/B/C")
    assert await mine.line() == b"* OK [NOTIFICATIONOVERFLOW] Too much happens; no more notices"
    await other.ok(b"CREATE D")
    assert await _is_quiet(mine)
    await mine.ok(b"NOTIFY SET (selected (MessageNew (UID) MessageExpunge))")
    mine.send(b"x STATUS INBOX (MESSAGES")
    await office.fill(2)
    # Not before the command, of which a part came, has its answer.
    assert await _is_quiet(mine)
    mine.send(b")\r\n")
    lines = await mine.until(b"x")
    assert lines[1:] == [
        b"* 2 EXISTS",
        b"* 2 RECENT",
        b"* OK [NOTIFICATIONOVERFLOW] Too much happens; no more notices",
        b"x OK STATUS completed",
    ]
    await office.deliver(_mail(3))
    assert await _is_quiet(mine)


@pytest.mark.covers("decisions:B13", "RFC 5465 §3.1")
async def test_another_listener(office: Any) -> None:
    """A node that hears nothing of another's changes finds them when it polls."""
    deaf = LiveHub(NoHints())
    listener = ImapListener(replace(office.services, live=deaf), office.config)
    await listener.start("127.0.0.1", 0)
    office.listeners.append(listener)
    here, there = await office.client(None, await office.listen()), await office.client(b"INBOX", listener)
    await there.ok(b"NOTIFY SET (selected " + ALL + b") (personal (MessageNew MessageExpunge MailboxName))")
    polling = asyncio.create_task(deaf.poll(office.db, every=0.05))
    try:
        await here.append(_mail(1))
        assert await _lines(there, 2) == [b"* 1 EXISTS", b"* 1 RECENT"]
        await here.append(_mail(2), b"Archive")
        assert (await there.line()).startswith(b"* STATUS Archive (MESSAGES 1 ")
        await here.ok(b"CREATE Work")
        assert (await there.line()).endswith(b" Work")
        await here.ok(b"SELECT INBOX")
        await here.ok(rb"STORE 1 +FLAGS (\Deleted)")
        assert rb"\Deleted" in await there.line()
        await here.ok(b"EXPUNGE")
        assert await there.line() == b"* 1 EXPUNGE"
    finally:
        polling.cancel()
        await asyncio.wait({polling})


@pytest.mark.covers("RFC 5465 §3.1")
async def test_a_burst_is_few_looks(office: Any, monkeypatch: pytest.MonkeyPatch, until: Until) -> None:
    mine = await office.client(None)
    await mine.ok(b"NOTIFY SET (inboxes (MessageNew MessageExpunge))")
    looks = 0
    before = office.boxes.list_folders

    async def counted(ref: Any) -> Any:
        nonlocal looks
        looks += 1
        return await before(ref)

    monkeypatch.setattr(office.boxes, "list_folders", counted)
    await office.fill(40)
    line = b""
    while b"(MESSAGES 40 " not in line:
        line = await mine.line()
    assert looks <= 10
    # Nobody watches for a session that is gone, or wants nothing.
    await mine.ok(b"NOTIFY NONE")
    assert not office.hub._watches
    await mine.ok(b"NOTIFY SET (inboxes (MailboxName))")
    assert office.hub._watches
    await mine.close()
    await until(lambda: not office.hub._watches)


@pytest.mark.covers("RFC 5465 §3.1")
async def test_what_cannot_be_read_is_read_later(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "RETRY", 0.05)
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(b"NOTIFY SET " + NAMES)
    before = office.boxes.list_folders
    failures = 2

    async def failing(ref: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionError
        return await before(ref)

    monkeypatch.setattr(office.boxes, "list_folders", failing)
    await other.ok(b"CREATE Work")
    assert (await mine.line()).endswith(b" Work")


@pytest.mark.covers("mail-server:D1", "RFC 5465 §3.1")
async def test_notices_are_no_sign_of_life(office: Any) -> None:
    mine = await office.client(None, await office.listen(idle_timeout=1.0))
    await mine.ok(b"NOTIFY SET (inboxes (MessageNew MessageExpunge))")
    began = asyncio.get_running_loop().time()
    told = 0
    await office.deliver(_mail(told))
    while b"BYE" not in (line := await mine.line()):
        told += line.startswith(b"* STATUS")
        await office.deliver(_mail(told))
    assert told
    assert asyncio.get_running_loop().time() - began < 5
