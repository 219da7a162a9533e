"""Notes of clients on folders and on the mailbox (RFC 5464)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.mailbox.annotations import MAX_ENTRIES


@pytest.mark.covers("RFC 5464 §4.2", "RFC 5464 §4.3", "RFC 5464 §4.4.1")
async def test_what_is_set_is_told(office: Any) -> None:
    client = await office.client(None)
    assert await client.ok(b"GETMETADATA INBOX /shared/comment") == [b"* METADATA INBOX (/shared/comment NIL)"]
    await client.ok(b'SETMETADATA INBOX (/Shared/Comment "Our inbox" /private/colour ~{3+}\r\na\0b)')
    assert await client.ok(b"GETMETADATA inbox (/shared/comment /private/colour)") == [
        b'* METADATA INBOX (/shared/comment "Our inbox" /private/colour ~{3}\r\na\0b)'
    ]
    assert await client.ok(b"GETMETADATA Sent /shared/comment") == [b"* METADATA Sent (/shared/comment NIL)"]
    await client.ok(b"SETMETADATA INBOX (/shared/comment NIL /shared/other NIL)")
    assert await client.ok(b"GETMETADATA INBOX /shared/comment") == [b"* METADATA INBOX (/shared/comment NIL)"]
    assert (await client.ask(b"GETMETADATA Nowhere /shared/comment"))[-1].startswith(b"NO [NONEXISTENT]")


@pytest.mark.covers("RFC 5464 §4.2.1", "RFC 5464 §4.2.2")
async def test_depth_and_size(office: Any) -> None:
    client = await office.client(None)
    await client.ok(b'SETMETADATA INBOX (/private/f "0" /private/f/a "1" /private/f/a/b "22" /private/fa "x")')
    ask = b"GETMETADATA (DEPTH %b) INBOX /private/f"
    assert await client.ok(ask % b"1") == [b'* METADATA INBOX (/private/f "0" /private/f/a "1")']
    deep = b'* METADATA INBOX (/private/f "0" /private/f/a "1" /private/f/a/b "22")'
    assert await client.ok(ask % b"infinity") == [deep]
    # As some clients put it.
    assert await client.ok(b"GETMETADATA INBOX (DEPTH infinity) (/private/f)") == [deep]
    lines = await client.ask(b"GETMETADATA (MAXSIZE 1 DEPTH infinity) INBOX /private/f")
    assert lines[0] == b'* METADATA INBOX (/private/f "0" /private/f/a "1")'
    assert lines[-1].startswith(b"OK [METADATA LONGENTRIES 2]")
    # All that there is, as KMail asks for it; what there is not is not NIL then.
    assert await client.ok(b"GETMETADATA (DEPTH 1) INBOX (/private)") == [
        b'* METADATA INBOX (/private/f "0" /private/fa "x")'
    ]
    assert await client.ok(b"GETMETADATA (DEPTH infinity) INBOX (/shared)") == []


@pytest.mark.covers("RFC 5464 §3.2", "RFC 5464 §4.3")
@pytest.mark.parametrize(
    "entry",
    [
        b"/other/x",
        b"/shared",
        b"/shared/",
        b"/shared//x",
        b"shared/x",
        b'"/shared/a*"',
        b'"/shared/\xc3\xa4"',
        b"/private",
    ],
)
async def test_names_that_are_none(office: Any, entry: bytes) -> None:
    client = await office.client(None)
    assert (await client.ask(b'SETMETADATA INBOX (%b "x")' % entry))[-1].startswith(b"BAD")
    assert (await client.ask(b"GETMETADATA INBOX %b" % entry))[-1].startswith(b"BAD")


@pytest.mark.covers("RFC 5464 §4.3")
async def test_limits(office: Any) -> None:
    client = await office.client(None)
    big = b"x" * 65_536
    await client.ok(b"SETMETADATA INBOX (/private/a {%d+}\r\n%b)" % (len(big), big))
    many = b" ".join(b'/private/e%d "v"' % n for n in range(MAX_ENTRIES))
    assert (await client.ask(b"SETMETADATA INBOX (%b)" % many))[-1].startswith(b"NO [METADATA TOOMANY]")
    # All of them or none.
    assert await client.ok(b"GETMETADATA INBOX /private/e0") == [b"* METADATA INBOX (/private/e0 NIL)"]
    folders = [b"F%d" % n for n in range(16)]
    for folder in folders:
        await client.ok(b"CREATE " + folder)
    answers = [
        (await client.ask(b"SETMETADATA %b (/shared/a {%d+}\r\n%b)" % (folder, len(big), big)))[-1]
        for folder in folders
    ]
    # A mebibyte in all, however many folders there are.
    assert [answer[:2] for answer in answers] == [b"OK"] * 14 + [b"NO"] * 2
    assert (await client.ask(b'SETMETADATA "" (/shared/comment "x")'))[-1].startswith(b"NO [NOPERM]")
    await client.ok(b'SETMETADATA "" (/private/vendor/x "y")')
    assert await client.ok(b'GETMETADATA "" /private/vendor/x') == [b'* METADATA "" (/private/vendor/x "y")']


@pytest.mark.covers("RFC 5464 §4.3")
async def test_two_at_a_time_do_not_exceed_the_limit(office: Any) -> None:
    clients = [await office.client(None) for _ in range(3)]
    half = b" ".join(b'/shared/%%b%d "v"' % n for n in range(MAX_ENTRIES // 2))
    answers = await asyncio.gather(
        *(
            client.ask(b"SETMETADATA INBOX (%b)" % half.replace(b"%b", name))
            for client, name in zip(clients, (b"a", b"b", b"c"), strict=True)
        )
    )
    assert sorted(lines[-1][:2] for lines in answers) == [b"NO", b"OK", b"OK"]


@pytest.mark.covers("RFC 5464 §3.2", "mail-server:D1")
async def test_private_is_of_who_wrote_it_and_a_removed_folder_takes_its_notes_along(office: Any) -> None:
    client = await office.client(None)
    await client.ok(b"CREATE Projects")
    await client.ok(b'SETMETADATA Projects (/private/x "mine")')
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE annotations SET owner = 'usr_other' WHERE tenant_id = $1", office.ref.tenant_id)
    assert await client.ok(b"GETMETADATA Projects /private/x") == [b"* METADATA Projects (/private/x NIL)"]
    await client.ok(b"RENAME Projects Done")
    await client.ok(b"DELETE Done")
    async with office.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM annotations WHERE tenant_id = $1", office.ref.tenant_id) == 0
