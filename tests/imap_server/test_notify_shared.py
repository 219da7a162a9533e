"""NOTIFY over several mailboxes: what is personal, what is named, and what comes and goes with grants (RFC 5465)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroom.mailbox.models import MailboxRef
from postroom.servers.imap import notify
from tests.imap_server.conftest import Until, mail
from tests.imap_server.neighbours import Street, street_of
from tests.imap_server.test_notify import ALL, _is_quiet, _lines


@pytest.fixture
async def street(office: Any) -> AsyncIterator[Street]:
    async with street_of(office) as made:
        await made.grant("bob", "carol", "full")
        yield made


@pytest.mark.covers("RFC 5465 §6.3", "RFC 5465 §6.5", "RFC 5465 §6.6")
@pytest.mark.parametrize(
    ("wanted", "is_told"),
    [
        (b"personal", False),
        (b"inboxes", False),
        (b"subscribed", False),
        (b'subtree "Other Users"', True),
        (b'subtree "{-}"', True),
        (b'mailboxes "{}INBOX"', True),
        (b'mailboxes "{}Sent"', False),
        (b'mailboxes "Other Users"', False),
    ],
)
async def test_what_is_meant(street: Street, wanted: bytes, is_told: bool) -> None:
    prefix = street.prefix("bob")
    mine = await street.client("carol")
    await mine.ok(b"NOTIFY SET (%b %b)" % (wanted.replace(b"{}", prefix).replace(b"{-}", prefix[:-1]), ALL))
    await street.deliver("bob", mail("his"))
    if is_told:
        assert (await mine.line()).startswith(b'* STATUS "%bINBOX" (MESSAGES 1 ' % prefix)
    assert await _is_quiet(mine)
    await street.deliver("carol", mail("hers"))
    if wanted in (b"personal", b"inboxes", b"subscribed"):
        assert (await mine.line()).startswith(b"* STATUS INBOX (MESSAGES 1 ")
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §6.4", "RFC 5465 §5.5")
async def test_subscriptions_to_folders_of_others(street: Street) -> None:
    inbox = street.prefix("bob") + b"INBOX"
    mine = await street.client("carol")
    await mine.ok(b"NOTIFY SET (subscribed (MessageNew MessageExpunge SubscriptionChange))")
    await mine.ok(b'SUBSCRIBE "%b"' % inbox)
    assert await _is_quiet(mine), "she did it herself"
    for verb in (b"UNSUBSCRIBE", b"SUBSCRIBE"):
        await mine.ok(b'%b "%binbox"' % (verb, street.prefix("bob")))
        assert await _is_quiet(mine), "by whatever name"
    await street.deliver("bob", mail("one"))
    assert (await mine.line()).startswith(b'* STATUS "%b" ' % inbox)
    # What bob subscribes to is his.
    his = await street.client("bob")
    await his.ok(b"UNSUBSCRIBE INBOX")
    assert await _is_quiet(mine)
    # Of what she does elsewhere she is told with the next change there.
    other = await street.client("carol")
    await other.ok(b'UNSUBSCRIBE "%b"' % inbox)
    await street.deliver("bob", mail("two"))
    assert await mine.line() == rb'* LIST (\HasNoChildren) "/" "%b"' % inbox
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §5.4")
async def test_names_in_mailboxes_of_others(street: Street) -> None:
    prefix = street.prefix("bob")
    mine, his = await street.client("carol"), await street.client("bob")
    await mine.ok(b'NOTIFY SET (subtree "Other Users" (MailboxName))')
    await his.ok(b"CREATE Work")
    assert await mine.line() == rb'* LIST (\HasNoChildren) "/" "%bWork"' % prefix
    await his.ok(b"RENAME Work Play")
    assert await mine.line() == rb'* LIST (\HasNoChildren) "/" "%bPlay" ("OLDNAME" ("%bWork"))' % (prefix, prefix)
    await his.ok(b"DELETE Play")
    assert await mine.line() == rb'* LIST (\NonExistent) "/" "%bPlay"' % prefix
    for command in (b'CREATE "{}Mine"', b'RENAME "{}Mine" "{}Yours"', b'DELETE "{}Yours"'):
        await mine.ok(command.replace(b"{}", prefix))
    await his.ok(b"CREATE Last")
    assert await mine.line() == rb'* LIST (\HasNoChildren) "/" "%bLast"' % prefix


@pytest.mark.covers("RFC 5465 §5.2", "RFC 5465 §6.1")
async def test_the_selected_folder_may_be_anybodys(street: Street) -> None:
    """Whichever is selected when it happens."""
    inbox = street.prefix("bob") + b"INBOX"
    mine = await street.client("carol")
    await mine.ok(b"NOTIFY SET (selected (MessageNew (UID) MessageExpunge FlagChange))")
    for turn, (folder, box) in enumerate(((inbox, "bob"), (b"INBOX", "carol"), (inbox, "bob"))):
        await mine.ok(b'SELECT "%b"' % folder)
        await street.deliver(box, mail(f"told {turn}"))
        told = await _lines(mine, 3)
        assert told[0].endswith(b" EXISTS")
        assert b" FETCH (UID " in told[2]
        await street.deliver("carol" if box == "bob" else "bob", mail(f"not told {turn}"))
        assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §5.9", "decisions:A2")
async def test_grants_that_come_and_go(street: Street) -> None:
    mine = await street.client("carol")
    await mine.ok(b'NOTIFY SET (subtree "Other Users" (MailboxName MessageNew MessageExpunge))')
    await street.grant("dora", "carol", "read")
    came = await _lines(mine, 6)
    assert {line.partition(b'"/" ')[2] for line in came} == {
        b'"%b%b"' % (street.prefix("dora"), name)
        for name in (b"INBOX", b"Sent", b"Drafts", b"Trash", b"Junk", b"Archive")
    }
    await street.deliver("dora", mail("one"))
    assert (await mine.line()).startswith(b'* STATUS "%bINBOX" ' % street.prefix("dora"))
    await street.grant("bob", "carol", None)
    went = await _lines(mine, 6)
    assert all(rb"LIST (\NoAccess)" in line and street.prefix("bob") in line for line in went)
    await street.deliver("bob", mail("not for her"))
    assert await _is_quiet(mine)
    await street.grant("dora", "carol", "full")
    assert await _is_quiet(mine), "it is there as before"
    await street.deliver("dora", mail("two"))
    assert (await mine.line()).startswith(b'* STATUS "%bINBOX" ' % street.prefix("dora"))


async def test_who_asks_for_personal_ones_watches_no_others(street: Street, until: Until) -> None:
    mine = await street.client("carol")
    watches = street.office.hub._watches
    await mine.ok(b"NOTIFY SET (personal " + ALL + b")")
    assert set(watches) == {street.boxes["carol"].id}
    await mine.ok(b'NOTIFY SET (subtree "Other Users" ' + ALL + b")")
    assert set(watches) == {street.boxes["carol"].id, street.boxes["bob"].id}
    await mine.ok(b'NOTIFY SET STATUS (subtree "Other Users" ' + ALL + b")")
    await street.grant("bob", "carol", None)
    await until(lambda: set(watches) == {street.boxes["carol"].id})
    await mine.ok(b"NOTIFY NONE")
    assert not watches


@pytest.mark.covers("RFC 5465 §3.1")
async def test_what_happens_while_others_are_read_is_told(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hers was read before, and is not read again for the beginning."""
    mine = await street.client("carol")
    boxes = street.office.boxes
    before, delivered = boxes.list_folders, False

    async def meanwhile(ref: MailboxRef) -> Any:
        nonlocal delivered
        if ref == street.ref("bob") and not delivered:
            delivered = True
            await street.deliver("carol", mail("meanwhile"))
        return await before(ref)

    monkeypatch.setattr(boxes, "list_folders", meanwhile)
    await mine.ok(b'NOTIFY SET (personal %b) (subtree "Other Users" %b)' % (ALL, ALL))
    assert delivered
    assert (await mine.line()).startswith(b"* STATUS INBOX (MESSAGES 1 ")
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §5.2", "RFC 5465 §5.9")
async def test_a_look_that_fails_loses_nothing_of_any_mailbox(
    street: Street, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "RETRY", 0.05)
    await street.grant("dora", "carol", "read")
    mine = await street.client("carol")
    await mine.ok(b'NOTIFY SET (personal %b) (subtree "Other Users" (MailboxName MessageNew MessageExpunge))' % ALL)
    boxes = street.office.boxes
    before, fails, failures = boxes.list_folders, True, 0

    async def failing(ref: MailboxRef) -> Any:
        nonlocal failures
        # Hers can be read all the time, so that it is the second that fails, or the third.
        if fails and ref != street.ref("carol"):
            failures += 1
            raise ConnectionError
        return await before(ref)

    monkeypatch.setattr(boxes, "list_folders", failing)
    for name in ("carol", "bob"):
        await street.deliver(name, mail("one"))
    await until(lambda: failures > 1)
    # Taken away and given back before she could be told.
    await street.grant("dora", "carol", None)
    seen = failures
    await until(lambda: failures > seen + 1)
    await street.grant("dora", "carol", "read")
    seen = failures
    await until(lambda: failures > seen + 1)
    fails = False
    told = await _lines(mine, 2)
    assert {line.split(b" (")[0] for line in told} == {
        b"* STATUS INBOX",
        b'* STATUS "%bINBOX"' % street.prefix("bob"),
    }
    assert await _is_quiet(mine)
    await street.deliver("dora", mail("two"))
    assert (await mine.line()).startswith(b'* STATUS "%bINBOX" (MESSAGES 1 ' % street.prefix("dora"))
    fails, seen = True, failures
    await street.deliver("bob", mail("three"))
    await until(lambda: failures > seen)
    await street.grant("dora", "carol", None)
    seen = failures
    await until(lambda: failures > seen + 1)
    fails = False
    told = await _lines(mine, 7)
    assert sum(rb"LIST (\NoAccess)" in line and street.prefix("dora") in line for line in told) == 6
    assert sum(line.startswith(b'* STATUS "%bINBOX" (MESSAGES 2 ' % street.prefix("bob")) for line in told) == 1
    assert set(street.office.hub._watches) == {street.boxes["carol"].id, street.boxes["bob"].id}
