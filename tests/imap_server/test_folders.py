"""Folders and rights: LIST in all forms, STATUS, the tree, agents with keys (mail-server D1, D2; A6)."""

from typing import Any

import pytest

ALL = {b"INBOX", b"Sent", b"Drafts", b"Trash", b"Junk", b"Archive"}


def _names(lines: list[bytes]) -> list[bytes]:
    return [line.split(b'"/" ')[1].split(b" (")[0].strip(b'"') for line in lines if line[:6] in (b"* LIST", b"* LSUB")]


@pytest.mark.covers("mail-server:D2")
async def test_list(office: Any) -> None:
    client = await office.client(None)
    await client.ok(b"CREATE Work/2030/January")
    assert await client.ok(b'LIST "" ""') == [rb'* LIST (\Noselect) "/" ""']
    assert _names(await client.ok(b'LIST "" *'))[0] == b"INBOX"
    assert set(_names(await client.ok(b'LIST "" %'))) == ALL | {b"Work"}
    assert _names(await client.ok(b'LIST "" Work/%')) == [b"Work/2030"]
    assert _names(await client.ok(b"LIST Work/ *")) == [b"Work/2030", b"Work/2030/January"]
    assert await client.ok(b'LIST "" inbox') == [rb'* LIST (\HasNoChildren) "/" INBOX']
    assert await client.ok(b'LIST "" Work') == [rb'* LIST (\HasChildren) "/" Work']
    assert await client.ok(b'LIST "" Trash') == [rb'* LIST (\HasNoChildren \Trash) "/" Trash']
    await client.ok(b"CREATE &AOQ-/b")
    assert _names(await client.ok(b'LIST "" "&AOQ-*"')) == [b"&AOQ-", b"&AOQ-/b"]


@pytest.mark.covers("mail-server:D2")
async def test_lsub_and_subscriptions(office: Any) -> None:
    client = await office.client(None)
    await client.ok(b"CREATE Work/2030")
    await client.ok(b"UNSUBSCRIBE Work")
    await client.ok(b"UNSUBSCRIBE Junk")
    assert set(_names(await client.ok(b'LSUB "" *'))) == ALL - {b"Junk"} | {b"Work/2030"}
    assert rb'* LSUB (\Noselect) "/" Work' in await client.ok(b'LSUB "" %')
    await client.ok(b"SUBSCRIBE Work")
    assert rb'* LSUB (\HasChildren) "/" Work' in await client.ok(b'LSUB "" %')
    assert (await client.ask(b"SUBSCRIBE Missing"))[-1].startswith(b"NO [NONEXISTENT]")


@pytest.mark.covers("mail-server:D2", "decisions:C1")
async def test_extended_list(office: Any) -> None:
    client = await office.client(None)
    await client.ok(b"CREATE Work/2030")
    await client.ok(b"UNSUBSCRIBE Work")
    await client.append(b"Subject: x\r\n\r\n", b"Work/2030")
    assert rb'* LIST (\Subscribed \HasNoChildren) "/" Work/2030' in await client.ok(b'LIST (SUBSCRIBED) "" *')
    assert b"Work" not in _names(await client.ok(b'LIST (SUBSCRIBED) "" *'))
    assert rb'* LIST (\HasChildren) "/" Work ("CHILDINFO" ("SUBSCRIBED"))' in await client.ok(
        b'LIST (SUBSCRIBED RECURSIVEMATCH) "" %'
    )
    assert set(_names(await client.ok(b'LIST (SPECIAL-USE) "" *'))) == ALL - {b"INBOX"}
    assert _names(await client.ok(b'LIST "" (INBOX Work/*)')) == [b"INBOX", b"Work/2030"]
    assert await client.ok(b'LIST "" Work/* RETURN (SUBSCRIBED CHILDREN STATUS (MESSAGES UIDNEXT SIZE))') == [
        rb'* LIST (\Subscribed \HasNoChildren) "/" Work/2030',
        b"* STATUS Work/2030 (MESSAGES 1 UIDNEXT 2 SIZE 14)",
    ]
    assert (await client.ask(b'LIST (RECURSIVEMATCH) "" *'))[-1].startswith(b"BAD ")


@pytest.mark.covers("mail-server:D2")
async def test_the_tree(office: Any) -> None:
    client = await office.client(None)
    await client.ok(b"CREATE Work/2030/")
    for command, code in (
        (b"CREATE Work", b"NO [ALREADYEXISTS]"),
        (b"CREATE inbox", b"NO [ALREADYEXISTS]"),
        (b"CREATE a//b", b"NO [CANNOT]"),
        (b'CREATE "a:b"', b"NO [CANNOT]"),
        (b"CREATE " + b"x" * 300, b"NO [CANNOT]"),
        (b"DELETE Missing", b"NO [NONEXISTENT]"),
        (b"DELETE Work", b"NO [HASCHILDREN]"),
        (b"DELETE INBOX", b"NO [CANNOT]"),
        (b"DELETE Sent", b"NO [CANNOT]"),
        (b"RENAME INBOX Old", b"NO [CANNOT]"),
        (b"RENAME Work Work/sub", b"NO [CANNOT]"),
        (b"RENAME Work Sent", b"NO [ALREADYEXISTS]"),
        (b"RENAME Missing There", b"NO [NONEXISTENT]"),
        (b"STATUS Missing (MESSAGES)", b"NO [NONEXISTENT]"),
        (b"CREATE More (USE (\\Sent))", b"NO [USEATTR]"),
        (b"CREATE More (USE (\\Nonsense))", b"NO [USEATTR]"),
    ):
        assert (await client.ask(command))[-1].startswith(code), command
    await client.ok(b"RENAME Sent Versandt")
    assert rb'* LIST (\HasNoChildren \Sent) "/" Versandt' in await client.ok(b'LIST "" *')
    (before,) = await client.ok(b"STATUS Work/2030 (UIDVALIDITY)")
    await client.ok(b"RENAME Work a/b/c")
    (after,) = await client.ok(b"STATUS a/b/c/2030 (UIDVALIDITY)")
    assert before.split(b"(")[1] == after.split(b"(")[1]
    await client.ok(rb"CREATE Everything (USE (\All))")
    assert rb'* LIST (\HasNoChildren \All) "/" Everything' in await client.ok(b'LIST "" *')


async def _agent(office: Any, *permissions: str) -> Any:
    client = await office.connect()
    key = await office.new_key(*permissions)
    await client.ok(b"LOGIN %b %b" % (office.agent.primary.address.encode(), key.encode()))
    return client


@pytest.mark.covers("mail-server:D1")
async def test_an_agent_with_a_key(office: Any) -> None:
    client = await _agent(office, "messages:read", "messages:write")
    await client.append(b"Subject: x\r\n\r\n")
    lines = await client.ok(b"SELECT INBOX")
    assert rb"* OK [PERMANENTFLAGS (\Answered \Flagged \Seen \Draft \*)] Flags permitted" in lines
    await client.ok(rb"STORE 1 +FLAGS (\Seen work)")
    await client.ok(b"CREATE Work")
    await client.ok(b"COPY 1 Work")
    for command in (
        rb"STORE 1 +FLAGS (\Deleted)",
        rb"STORE 1 FLAGS (\Seen \Deleted)",
        b"EXPUNGE",
        b"UID EXPUNGE 1",
        b"DELETE Work",
        rb"APPEND INBOX (\Deleted) {3+}" + b"\r\nx\r\n",
    ):
        assert (await client.ask(command))[-1].startswith(b"NO [NOPERM]"), command
    await client.ok(rb"STORE 1 -FLAGS (\Deleted)")
    await client.ok(b"MOVE 1 Work")
    await client.ok(b"CLOSE")


@pytest.mark.covers("mail-server:D1", "decisions:A6")
async def test_an_agent_that_may_only_read(office: Any) -> None:
    writer = await _agent(office, "messages:read", "messages:write", "quarantine:review")
    await writer.append(b"Subject: x\r\n\r\nbody\r\n")
    await writer.ok(b"CREATE Quarantine")
    reader = await _agent(office, "messages:read")
    assert (await reader.ask(b"SELECT INBOX"))[-1] == b"OK [READ-ONLY] SELECT completed"
    await reader.ok(b"FETCH 1 BODY[]")
    assert await reader.ok(b"SEARCH UNSEEN") == [b"* SEARCH 1"]
    for command in (rb"STORE 1 +FLAGS (\Seen)", b"COPY 1 Archive", b"CREATE x", b"UNSUBSCRIBE Junk", b"RENAME Junk x"):
        assert (await reader.ask(command))[-1].startswith(b"NO [NOPERM]"), command
    assert b"NO [NOPERM]" in await reader.append(b"x\r\n")
    # Quarantine is there only for those who review it.
    assert b"Quarantine" in _names(await writer.ok(b'LIST "" *'))
    assert b"Quarantine" not in _names(await reader.ok(b'LIST "" *'))
    assert (await reader.ask(b"SELECT Quarantine"))[-1].startswith(b"NO [NONEXISTENT]")
    assert (await reader.ask(b"STATUS Quarantine (MESSAGES)"))[-1].startswith(b"NO [NONEXISTENT]")
