"""Notes that others change are told after NOTIFY (RFC 5465 §5.6, §5.7), on every node."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from postroom.accounts import NewPerson
from postroom.accounts.permissions import GrantRole
from postroom.events.live import LiveHub
from postroom.servers.imap import ImapListener, notes, notify
from tests.imap_server.conftest import NoHints
from tests.imap_server.test_notify import _is_quiet

BOTH = b"NOTIFY SET (personal (MailboxMetadataChange ServerMetadataChange))"


@pytest.mark.covers("RFC 5465 §5.6", "RFC 5465 §5.7", "RFC 5464 §4.4.2")
async def test_what_others_change_is_told_by_name(office: Any) -> None:
    mine, other = await office.client(), await office.client(None)
    await other.ok(b'SETMETADATA INBOX (/shared/comment "before" /private/old "x")')
    assert await mine.ok(BOTH) == []
    await other.ok(b'SETMETADATA INBOX (/shared/comment "after" /private/new "y" /private/old NIL)')
    assert sorted((await mine.line()).split()[3:]) == [b"/private/new", b"/private/old", b"/shared/comment"]
    # What is set to what it was is no change; that of the mailbox as a whole is the server's.
    await other.ok(b'SETMETADATA INBOX (/shared/comment "after")')
    await other.ok(b'SETMETADATA "" (/private/vendor/x "1")')
    assert await mine.line() == b'* METADATA "" /private/vendor/x'
    await other.ok(b"CREATE &AOk-t&AOk-")
    await other.ok(b'SETMETADATA &AOk-t&AOk- (/shared/a "1")')
    assert await mine.line() == b"* METADATA &AOk-t&AOk- /shared/a"
    await other.ok(b"DELETE &AOk-t&AOk-")
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §5.6", "RFC 5465 §6.5")
async def test_only_what_is_wanted_of_whom(office: Any) -> None:
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(b"NOTIFY SET (mailboxes Archive (MailboxMetadataChange))")
    await other.ok(b'SETMETADATA INBOX (/shared/a "1")')
    await other.ok(b'SETMETADATA "" (/private/a "1")')
    assert await _is_quiet(mine)
    await other.ok(b'SETMETADATA Archive (/shared/a "1")')
    assert await mine.line() == b"* METADATA Archive /shared/a"
    await mine.ok(b"NOTIFY SET (mailboxes Archive (ServerMetadataChange MailboxName))")
    await other.ok(b'SETMETADATA Archive (/shared/a "2")')
    assert await _is_quiet(mine)
    await other.ok(b'SETMETADATA "" (/private/a "2")')
    assert await mine.line() == b'* METADATA "" /private/a'
    await mine.ok(b"NOTIFY NONE")
    await other.ok(b'SETMETADATA "" (/private/a "3")')
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §5")
async def test_nobody_is_told_of_their_own_unless_others_set_it_again(office: Any) -> None:
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(BOTH)
    for command in (b'(/shared/a "1" /private/b ~{2+}\r\n\0x)', b'(/shared/a "2")', b"(/shared/a NIL)"):
        assert await mine.ok(b"SETMETADATA INBOX " + command) == []
        assert await _is_quiet(mine), command
    await mine.ok(b'SETMETADATA INBOX (/shared/a "mine")')
    await other.ok(b'SETMETADATA INBOX (/shared/a "theirs")')
    assert await mine.line() == b"* METADATA INBOX /shared/a"


@pytest.mark.covers("RFC 5464 §3.2", "RFC 5465 §5.6")
async def test_what_is_private_to_others_is_not_told(office: Any) -> None:
    second = await office.people.create(NewPerson("Dora", password="another horse battery"))
    await office.people.grant(
        office.tenant.id, office.box.public_id, second.public_id, GrantRole.FULL, by_operator=True
    )
    mine, theirs = await office.client(None), await office.connect()
    await theirs.ok(b'LOGIN %b "another horse battery"' % office.address.encode())
    await mine.ok(BOTH)
    await theirs.ok(b'SETMETADATA INBOX (/private/a "1")')
    assert await _is_quiet(mine)
    await theirs.ok(b'SETMETADATA INBOX (/private/a "2" /shared/a "2")')
    assert await mine.line() == b"* METADATA INBOX /shared/a"


@pytest.mark.covers("RFC 5465 §4", "RFC 5465 §5.6")
async def test_in_idle_beside_other_news(office: Any) -> None:
    mine, other = await office.client(), await office.client(None)
    await mine.ok(b"NOTIFY SET (personal (MailboxName MailboxMetadataChange MessageNew MessageExpunge))")
    mine.send(b"x IDLE\r\n")
    assert await mine.line() == b"+ idling"
    await other.ok(b"CREATE Work")
    await other.ok(b'SETMETADATA Work (/shared/colour "red")')
    lines = [await mine.line(), await mine.line()]
    assert lines[0].endswith(b" Work")
    assert lines[1] == b"* METADATA Work /shared/colour"
    mine.send(b"DONE\r\n")
    assert await mine.line() == b"x OK IDLE completed"


@pytest.mark.covers("decisions:B13", "RFC 5465 §5.6")
async def test_another_node_that_hears_no_hints(office: Any) -> None:
    deaf = LiveHub(NoHints())
    listener = ImapListener(replace(office.services, live=deaf), office.config)
    await listener.start("127.0.0.1", 0)
    office.listeners.append(listener)
    here, there = await office.client(None, await office.listen()), await office.client(None, listener)
    await there.ok(BOTH)
    polling = asyncio.create_task(deaf.poll(office.db, every=0.05))
    try:
        await here.ok(b'SETMETADATA INBOX (/shared/a "1")')
        assert await there.line() == b"* METADATA INBOX /shared/a"
    finally:
        polling.cancel()
        await asyncio.wait({polling})


@pytest.mark.covers("RFC 5465 §5.8")
async def test_too_many_end_it(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MAX_NOTES", 2)
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(BOTH)
    await other.ok(b'SETMETADATA INBOX (/shared/a "1" /shared/b "1" /shared/c "1")')
    assert (await mine.line()).startswith(b"* OK [NOTIFICATIONOVERFLOW] ")
    assert (await mine.ask(BOTH))[-1].startswith(b"NO [NOTIFICATIONOVERFLOW] ")
    assert await mine.ok(b"NOTIFY SET (personal (MailboxName))") == []


@pytest.mark.covers("RFC 5465 §5.6")
async def test_what_cannot_be_read_is_told_later(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "RETRY", 0.05)
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(BOTH)
    annotations = office.boxes.annotations
    before, failures = annotations.marks, 2

    async def failing(*arguments: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionError
        return await before(*arguments)

    monkeypatch.setattr(annotations, "marks", failing)
    await other.ok(b'SETMETADATA INBOX (/shared/a "1")')
    assert await mine.line() == b"* METADATA INBOX /shared/a"
    assert failures < 0


@pytest.mark.covers("decisions:A7", "RFC 7162 §3.1.1")
async def test_notes_have_no_modseq_that_clients_of_messages_see(office: Any) -> None:
    await office.fill(1)
    mine, other = await office.client(None), await office.client(None)
    await mine.ok(b"ENABLE QRESYNC")
    lines = await mine.ok(b"SELECT INBOX")
    code = next(line for line in lines if b"HIGHESTMODSEQ" in line)
    await other.ok(b'SETMETADATA INBOX (/shared/a "1")')
    assert await mine.ok(b"NOOP") == []
    assert code in await mine.ok(b"SELECT INBOX")
    await office.fill(2)
    assert b"* 2 EXISTS" in await mine.ok(b"NOOP")
