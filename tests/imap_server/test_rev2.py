"""What a client hears that says it speaks IMAP4rev2 (RFC 9051, decisions C1)."""

from __future__ import annotations

from typing import Any

import pytest

NOTE = b"Subject: x\r\n\r\n"


async def rev2(office: Any) -> Any:
    client = await office.client(None)
    assert await client.ok(b"ENABLE imap4rev2") == [b"* ENABLED IMAP4rev2"]
    return client


@pytest.mark.covers("RFC 9051 §6.3.2", "RFC 9051 §7.3")
async def test_select_names_the_mailbox_and_says_nothing_of_recent(office: Any) -> None:
    client = await rev2(office)
    await client.append(NOTE)
    lines = await client.ok(b"SELECT INBOX")
    assert b'* LIST () "/" INBOX' in lines
    assert not any(b"RECENT" in line.upper() or b"UNSEEN" in line for line in lines)
    assert (await client.ok(b"SELECT Archive"))[0].startswith(b"* OK [CLOSED] ")
    await client.append(NOTE, b"Archive")
    lines = await client.ok(b"NOOP") + await client.ok(b"FETCH 1 (FLAGS)")
    assert lines[-1] == b"* 1 FETCH (FLAGS ())"
    assert not any(b"RECENT" in line.upper() for line in lines)


@pytest.mark.covers("RFC 9051 §6.4.4", "RFC 9051 §7.3.4")
async def test_every_search_is_an_esearch(office: Any) -> None:
    client = await rev2(office)
    for _ in range(3):
        await client.append(NOTE)
    await client.ok(b"SELECT INBOX")
    (line,) = await client.ok(b"SEARCH ALL")
    assert line.endswith(b" ALL 1:3")
    (line,) = await client.ok(b"UID SEARCH SEEN")
    assert line.endswith(b" UID")
    (line,) = await client.ok(b"SEARCH RETURN (COUNT) ALL")
    assert line.endswith(b" COUNT 3")


@pytest.mark.covers("RFC 9051 §5.1", "RFC 9051 §6.3.11")
async def test_names_are_utf8_and_status_knows_deleted(office: Any) -> None:
    client = await rev2(office)
    await client.ok(b'CREATE "Entw\xc3\xbcrfe"')
    assert any(line.endswith(b'"Entw\xc3\xbcrfe"') for line in await client.ok(b'LIST "" *'))
    assert await client.ok(b'STATUS "Entw\xc3\xbcrfe" (MESSAGES DELETED SIZE)') == [
        b'* STATUS "Entw\xc3\xbcrfe" (MESSAGES 0 DELETED 0 SIZE 0)'
    ]
    # Others hear of it in the letters that they know.
    other = await office.client(None)
    assert any(b"Entw&APw-rfe" in line for line in await other.ok(b'LIST "" *'))


@pytest.mark.covers("RFC 9051 §2.3.2")
async def test_saying_so_later_ends_recent(office: Any) -> None:
    client = await office.client()
    await client.append(NOTE)
    await client.ok(b"NOOP")
    await client.ok(b"ENABLE IMAP4rev2")
    await client.append(NOTE)
    lines = await client.ok(b"NOOP") + await client.ok(b"FETCH 1:* (FLAGS)")
    assert not any(b"RECENT" in line.upper() for line in lines)
