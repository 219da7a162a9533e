"""Notes on mailboxes of others are told after NOTIFY: to whom they are granted, and who asks for them by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroom.mailbox.models import MailboxRef
from postroom.servers.imap import notes, notify
from tests.imap_server.neighbours import Street, street_of
from tests.imap_server.test_notify import _is_quiet, _lines

OTHERS = b'NOTIFY SET (subtree "Other Users" (MailboxMetadataChange ServerMetadataChange))'


@pytest.fixture
async def street(office: Any) -> AsyncIterator[Street]:
    async with street_of(office) as made:
        await made.grant("bob", "carol", "full")
        await made.grant("dora", "carol", "read")
        yield made


@pytest.mark.covers("RFC 5465 §5.6", "RFC 5464 §4.4.2")
async def test_what_is_changed_there_is_told_by_their_names(street: Street) -> None:
    mine, his, hers = await street.client("carol"), await street.client("bob"), await street.client("dora")
    await his.ok(b'SETMETADATA INBOX (/shared/before "1")')
    assert await mine.ok(OTHERS) == []
    await his.ok(b'SETMETADATA Archive (/shared/a "1")')
    assert await mine.line() == b'* METADATA "%bArchive" /shared/a' % street.prefix("bob")
    # Reading is enough.
    await hers.ok(b'SETMETADATA INBOX (/shared/b "1")')
    assert await mine.line() == b'* METADATA "%bINBOX" /shared/b' % street.prefix("dora")
    # What is on her own is not asked for, and what is on his as a whole is his server's.
    other = await street.client("carol")
    await other.ok(b'SETMETADATA INBOX (/shared/c "1")')
    await his.ok(b'SETMETADATA "" (/private/c "1")')
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5464 §3.2", "RFC 5465 §5.6")
async def test_private_ones_are_the_persons_everywhere(street: Street) -> None:
    mine, other, his = await street.client("carol"), await street.client("carol"), await street.client("bob")
    inbox = street.prefix("bob") + b"INBOX"
    await mine.ok(OTHERS)
    await his.ok(b'SETMETADATA INBOX (/private/a "his")')
    assert await _is_quiet(mine)
    await other.ok(b'SETMETADATA "%b" (/private/a "hers")' % inbox)
    assert await mine.line() == b'* METADATA "%b" /private/a' % inbox
    # Her own, by whatever name, and what she did before it came from somebody else.
    for name in (inbox, street.prefix("bob") + b"inbox"):
        await mine.ok(b'SETMETADATA "%b" (/private/a "%b" /shared/a "%b")' % (name, name, name))
        assert await _is_quiet(mine)
    await mine.ok(b'SETMETADATA "%b" (/shared/a "mine")' % inbox)
    await his.ok(b'SETMETADATA INBOX (/shared/a "his")')
    assert await mine.line() == b'* METADATA "%b" /shared/a' % inbox


@pytest.mark.covers("RFC 5465 §6.3", "RFC 5465 §6.4", "RFC 5465 §6.5")
@pytest.mark.parametrize(
    ("wanted", "is_told"),
    [
        (b"personal (MailboxMetadataChange)", False),
        (b'personal (MailboxMetadataChange)) (subtree "Other Users" (MailboxName)', False),
        (b"subscribed (MailboxMetadataChange)", True),
        (b'mailboxes "{}INBOX" (MailboxMetadataChange)', True),
        (b'mailboxes "{}Sent" (MailboxMetadataChange)', False),
        (b'mailboxes "{}INBOX" (ServerMetadataChange)', False),
    ],
)
async def test_what_is_meant(street: Street, wanted: bytes, is_told: bool) -> None:
    mine, his = await street.client("carol"), await street.client("bob")
    prefix = street.prefix("bob")
    await mine.ok(b'SUBSCRIBE "%bINBOX"' % prefix)
    await mine.ok(b"NOTIFY SET (%b)" % wanted.replace(b"{}", prefix))
    await his.ok(b'SETMETADATA INBOX (/shared/a "1")')
    if is_told:
        assert await mine.line() == b'* METADATA "%bINBOX" /shared/a' % prefix
    assert await _is_quiet(mine)


async def test_a_grant_is_no_change_of_notes(street: Street) -> None:
    mine, hers = await street.client("carol"), await street.client("dora")
    await hers.ok(b'SETMETADATA INBOX (/shared/a "1")')
    await street.grant("dora", "carol", None)
    await mine.ok(OTHERS)
    await street.grant("dora", "carol", "full")
    assert await _is_quiet(mine)
    await hers.ok(b'SETMETADATA INBOX (/shared/a "2")')
    assert await mine.line() == b'* METADATA "%bINBOX" /shared/a' % street.prefix("dora")
    await street.grant("dora", "carol", None)
    await hers.ok(b'SETMETADATA INBOX (/shared/a "3")')
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §5.6")
async def test_what_cannot_be_read_is_told_later(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "RETRY", 0.05)
    mine, his, hers = await street.client("carol"), await street.client("bob"), await street.client("dora")
    await mine.ok(OTHERS)
    annotations = street.office.boxes.annotations
    before, failures = annotations.marks, 3

    async def failing(ref: MailboxRef, *arguments: Any) -> Any:
        nonlocal failures
        if ref == street.ref("bob"):
            failures -= 1
            if failures >= 0:
                raise ConnectionError
        return await before(ref, *arguments)

    monkeypatch.setattr(annotations, "marks", failing)
    await hers.ok(b'SETMETADATA INBOX (/shared/a "1")')
    await his.ok(b'SETMETADATA INBOX (/shared/a "1")')
    assert set(await _lines(mine, 2)) == {
        b'* METADATA "%bINBOX" /shared/a' % street.prefix(name) for name in ("bob", "dora")
    }
    assert failures < 0
    assert await _is_quiet(mine)


@pytest.mark.covers("RFC 5465 §5.8")
async def test_all_mailboxes_together_may_be_too_many(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MAX_NOTES", 3)
    mine, his, hers = await street.client("carol"), await street.client("bob"), await street.client("dora")
    await his.ok(b'SETMETADATA INBOX (/shared/a "1" /shared/b "1")')
    await mine.ok(OTHERS)
    await hers.ok(b'SETMETADATA INBOX (/shared/a "1")')
    assert await mine.line() == b'* METADATA "%bINBOX" /shared/a' % street.prefix("dora")
    await hers.ok(b'SETMETADATA INBOX (/shared/b "1")')
    assert (await mine.line()).startswith(b"* OK [NOTIFICATIONOVERFLOW] ")
    assert (await mine.ask(OTHERS))[-1].startswith(b"NO [NOTIFICATIONOVERFLOW] ")
    assert not street.office.hub._watches
