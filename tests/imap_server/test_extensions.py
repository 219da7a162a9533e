"""What CAPABILITY names beyond RFC 3501, said over the wire: each extension has a test here, or one that is named."""

from __future__ import annotations

import re
from typing import Any

import pytest

from postroom.sasl import MECHANISM, PLUS
from postroom.servers.imap.capabilities import SAID_OF, capabilities

ELSEWHERE = {
    "LITERAL+",  # test_append: every message
    "ID",  # test_sessions
    "ENABLE",
    "NAMESPACE",
    "IDLE",  # test_selected
    "UIDPLUS",
    "UNSELECT",
    "MOVE",
    "CHILDREN",  # test_folders
    "SPECIAL-USE",
    "IMAP4rev2",  # test_rev2
    "CONDSTORE",  # test_modseq
    "QRESYNC",
    "QUOTA",  # test_quota
    "QUOTA=RES-STORAGE",
    "COMPRESS=DEFLATE",  # test_compress
    "METADATA",  # test_metadata
    "MULTIAPPEND",  # test_multiappend
    "CATENATE",  # test_catenate
    "REPLACE",  # test_replace
    "BINARY",  # test_binary
    "UTF8=ACCEPT",  # test_utf8
    "PREVIEW",  # test_preview
    "SORT",  # test_sort
    "SORT=DISPLAY",
    "ESORT",
    "CONTEXT=SORT",
    "THREAD=ORDEREDSUBJECT",  # test_thread
    "THREAD=REFERENCES",
    "SEARCHRES",  # test_search_results
    "PARTIAL",
    "CONTEXT=SEARCH",
    "SEARCH=FUZZY",
    "NOTIFY",  # test_notify
    "INPROGRESS",  # test_progress
    "ACL",  # test_acl
    "RIGHTS=kxte",
    "LIST-MYRIGHTS",
}


def test_every_extension_that_is_advertised_is_known_here() -> None:
    advertised = set(capabilities(signed_in=True, may_sign_in=True, may_start_tls=False))
    here = {"ESEARCH", "LIST-EXTENDED", "LIST-STATUS", "STATUS=SIZE", "CREATE-SPECIAL-USE", "WITHIN", "OBJECTID"}
    assert advertised == {"IMAP4rev1", "SAVEDATE"} | ELSEWHERE | here


@pytest.mark.covers("RFC 4731", "mail-server:D7")
async def test_esearch(office: Any) -> None:
    client = await office.client()
    for n in range(3):
        await client.append(b"Subject: %d\r\n\r\n" % n)
    assert b"ALL 1:3" in (await client.ok(b"SEARCH RETURN () ALL"))[-1]
    (line,) = await client.ok(b"UID SEARCH RETURN (MIN MAX COUNT) 2:*")
    assert line.endswith(b" UID MIN 2 MAX 3 COUNT 2")


@pytest.mark.covers("RFC 5258", "RFC 5819", "RFC 8438", "mail-server:D2")
async def test_list_tells_subscriptions_and_status_at_once(office: Any) -> None:
    client = await office.client(None)
    await client.append(b"Subject: x\r\n\r\n", b"Archive")
    await client.ok(b"UNSUBSCRIBE Junk")
    listed = await client.ok(b'LIST (SUBSCRIBED) "" (Archive Junk) RETURN (CHILDREN STATUS (MESSAGES UNSEEN SIZE))')
    assert listed == [
        rb'* LIST (\Subscribed \HasNoChildren \Archive) "/" Archive',
        b"* STATUS Archive (MESSAGES 1 UNSEEN 1 SIZE 14)",
    ]


@pytest.mark.covers("RFC 8438", "mail-server:D2")
async def test_status_tells_the_size_of_a_folder(office: Any) -> None:
    client = await office.client(None)
    assert await client.ok(b"STATUS Archive (SIZE)") == [b"* STATUS Archive (SIZE 0)"]
    for size in (10, 200):
        await client.append(b"Subject: x\r\n\r\n" + b"y" * size, b"Archive")
    assert await client.ok(b"STATUS Archive (MESSAGES SIZE)") == [b"* STATUS Archive (MESSAGES 2 SIZE 238)"]


@pytest.mark.covers("RFC 6154", "mail-server:D2")
async def test_create_gives_a_special_use(office: Any) -> None:
    client = await office.client(None)
    await client.ok(rb"CREATE Everything (USE (\All))")
    (line,) = await client.ok(b'LIST "" Everything RETURN (SPECIAL-USE)')
    assert rb"\All" in line
    assert (await client.ask(rb"CREATE Other (USE (\All))"))[-1].startswith(b"NO [USEATTR]")


@pytest.mark.covers("RFC 5032", "mail-server:D7")
async def test_within(office: Any) -> None:
    client = await office.client()
    await client.append(b"Subject: old\r\n\r\n", extra=b'"01-Jan-2020 00:00:00 +0000" ')
    await client.append(b"Subject: new\r\n\r\n")
    assert await client.ok(b"SEARCH OLDER 3600") == [b"* SEARCH 1"]
    assert await client.ok(b"SEARCH YOUNGER 3600") == [b"* SEARCH 2"]


@pytest.mark.covers("RFC 8474", "mail-server:D2", "decisions:A5")
async def test_ids_of_folders_messages_and_threads(office: Any) -> None:
    client = await office.client(None)
    created = (await client.ask(b"CREATE Work"))[-1]
    found = re.search(rb"\[MAILBOXID \((fld_\w+)\)\]", created)
    assert found is not None
    assert await client.ok(b"STATUS Work (MAILBOXID)") == [b"* STATUS Work (MAILBOXID (%b))" % found[1]]
    assert any(b"[MAILBOXID (%b)]" % found[1] in line for line in await client.ok(b"SELECT Work"))
    await client.ok(b"RENAME Work Play")
    assert await client.ok(b"STATUS Play (MAILBOXID)") == [b"* STATUS Play (MAILBOXID (%b))" % found[1]]
    await client.append(b"Subject: a\r\n\r\n", b"Play")
    await client.append(b"Subject: b\r\n\r\n", b"Play")
    first, _ = await _ids(client)
    assert await client.ok(b"SEARCH EMAILID " + first[0]) == [b"* SEARCH 1"]
    assert await client.ok(b"SEARCH THREADID " + first[1]) == [b"* SEARCH 1"]
    assert await client.ok(b"SEARCH EMAILID msg_nothing") == [b"* SEARCH"]


async def _ids(client: Any) -> list[tuple[bytes, bytes]]:
    lines = b"\n".join(await client.ok(b"FETCH 1:2 (EMAILID THREADID)"))
    found: list[tuple[bytes, bytes]] = re.findall(rb"EMAILID \((msg_\w+)\) THREADID \((thr_\w+)\)", lines)
    assert len(found) == 2
    return found


@pytest.mark.covers("RFC 8514", "mail-server:D7")
async def test_save_dates(office: Any) -> None:
    client = await office.client()
    await client.append(b"Subject: x\r\n\r\n", extra=b'"01-Jan-2020 00:00:00 +0000" ')
    (line,) = [one for one in await client.ok(b"FETCH 1 (SAVEDATE INTERNALDATE)") if b"FETCH" in one]
    assert b'SAVEDATE " 1-Jan-2030' in line
    assert b'INTERNALDATE " 1-Jan-2020' in line
    for query, found in (
        (b"SAVEDON 1-Jan-2030", b" 1"),
        (b"SAVEDSINCE 1-Jan-2030", b" 1"),
        (b"SAVEDBEFORE 1-Jan-2030", b""),
        (b"SAVEDATESUPPORTED", b" 1"),
        (b"NOT SAVEDATESUPPORTED", b""),
    ):
        assert await client.ok(b"SEARCH " + query) == [b"* SEARCH" + found], query


def test_the_reference_names_every_extension() -> None:
    offered = {
        word.partition("=")[0] if word.startswith(("APPENDLIMIT", "MESSAGELIMIT")) else word
        for signed_in in (False, True)
        for tls in (False, True)
        for word in capabilities(
            signed_in=signed_in,
            may_sign_in=tls,
            may_start_tls=tls,
            append_limit=1,
            message_limit=1,
            scram=(MECHANISM, PLUS),
        )
    }
    assert offered == set(SAID_OF)
