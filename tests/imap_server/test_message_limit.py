"""MESSAGELIMIT (RFC 9738): what one command does not do it says, and the client gets to the end."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.imap_server.conftest import mail

LIMIT = 3
CODE = re.compile(rb"OK \[MESSAGELIMIT 3 (\d+)\] ")


@pytest.fixture
async def client(office: Any) -> Any:
    """One who has selected a folder with eight messages, of which 2 is gone: numbers are not UIDs."""
    listener = await office.listen(message_limit=LIMIT)
    await office.fill(9)
    made = await office.client(listener=listener)
    await made.ok(rb"STORE 2 +FLAGS.SILENT (\Deleted)")
    await made.ok(b"EXPUNGE")
    return made


def lowest(line: bytes) -> int:
    """The UID in the code."""
    found = CODE.match(line)
    assert found, line
    return int(found[1])


def numbers(lines: list[bytes], word: bytes) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.split()[2:3] == [word]]


@pytest.mark.covers("RFC 9738 §3")
async def test_it_is_on_offer(office: Any, client: Any) -> None:
    (line,) = await client.ok(b"CAPABILITY")
    assert b" MESSAGELIMIT=3 " in line + b" "
    assert b"MESSAGELIMIT" not in (await (await office.connect()).ok(b"CAPABILITY"))[0]
    assert (
        b" MESSAGELIMIT=1000000 "
        in (await (await office.client(None, await office.listen())).ok(b"CAPABILITY"))[0] + b" "
    )


@pytest.mark.covers("RFC 9738 §3.1")
@pytest.mark.parametrize(
    "command",
    [b"FETCH 1:* UID", b"FETCH 1:* (UID BODY.PEEK[])", b"UID FETCH 1:* (FLAGS)", b"FETCH 1,3:8 (UID ENVELOPE)"],
)
async def test_fetch_shows_the_last(client: Any, command: bytes) -> None:
    lines = await client.ask(command)
    assert numbers(lines, b"FETCH") == [6, 7, 8]
    assert lines[-1] == b"OK [MESSAGELIMIT 3 7] FETCH completed for the last messages only"


@pytest.mark.covers("RFC 9738 §3.1")
async def test_what_is_few_is_done_whole(client: Any) -> None:
    for command in (
        b"FETCH 2:4 UID",
        b"UID FETCH 1:100 FLAGS (PARTIAL 1:3)",
        b"UID FETCH 1:* FLAGS (PARTIAL -1:-3)",
        rb"STORE 1,3,8 +FLAGS (\Seen)",
        b"SEARCH 3:5",
        b"UID SEARCH UID 1:4 ALL",
        b"UID SEARCH RETURN (ALL) UNDELETED UIDBEFORE 5",
        b"UID SEARCH UIDAFTER 6",
        b"COPY 1:3 Archive",
        b"UID MOVE 1:3 Archive",
    ):
        lines = await client.ask(command)
        assert lines[-1].startswith((b"OK [COPYUID", b"OK FETCH", b"OK STORE", b"OK SEARCH", b"OK MOVE")), command


@pytest.mark.covers("RFC 9738 §3.1", "RFC 7162 §3.1.4.1")
async def test_only_what_changed_counts(client: Any) -> None:
    line = (await client.ok(b"STATUS INBOX (HIGHESTMODSEQ)"))[0]
    since = re.search(rb"HIGHESTMODSEQ (\d+)", line)[1]  # type: ignore[index]  # it is there, or it fails
    for number in (1, 2, 3, 5):
        await client.ok(rb"STORE %d +FLAGS.SILENT (\Flagged)" % number)
    command = b"UID FETCH %b FLAGS (CHANGEDSINCE " + since + b")"
    lines = await client.ask(command % b"1:*")
    assert numbers(lines, b"FETCH") == [2, 3, 5]
    assert lowest(lines[-1]) == 3
    lines = await client.ask(command % b"1:2")
    assert numbers(lines, b"FETCH") == [1]
    assert lines[-1] == b"OK FETCH completed"


@pytest.mark.covers("RFC 9738 §3.1")
async def test_a_client_that_goes_on_below_sets_all_flags(client: Any) -> None:
    top, stored = 9, []
    while True:
        lines = await client.ask(rb"UID STORE 1:%d +FLAGS (\Seen)" % top)
        stored.append(numbers(lines, b"FETCH"))
        found = CODE.match(lines[-1])
        if not found:
            break
        top = int(found[1]) - 1
    assert stored == [[6, 7, 8], [3, 4, 5], [1, 2]]
    assert await client.ok(b"SEARCH RETURN (COUNT) 1:2 SEEN") == [b'* ESEARCH (TAG "a8") COUNT 2']


@pytest.mark.covers("RFC 9738 §3.1", "RFC 7162 §3.1.3")
async def test_what_was_left_alone_is_told_behind_the_tag(client: Any) -> None:
    lines = await client.ask(rb"STORE 1:* (UNCHANGEDSINCE 1) +FLAGS.SILENT (\Seen)")
    assert b"* OK [MESSAGELIMIT 3 7] Only the last messages were looked at" in lines
    assert lines[-1].startswith(b"OK [MODIFIED 6:8] ")


@pytest.mark.covers("RFC 9738 §3.1")
async def test_copies_are_made_of_all_or_none(client: Any) -> None:
    for command in (b"COPY 1:* Archive", b"UID COPY 1:8 Archive"):
        (line,) = await client.ask(command)
        assert line.startswith(b"NO [MESSAGELIMIT 3 "), line
    assert b"MESSAGES 0" in (await client.ok(b"STATUS Archive (MESSAGES)"))[0]
    raw = mail("x")
    one = b" {%d+}\r\n%b" % (len(raw), raw)
    (line,) = await client.ask(b"APPEND Archive" + 4 * one)
    assert line == b"NO [MESSAGELIMIT 3] Too many messages at once; try fewer"
    assert (await client.ask(b"APPEND Archive" + 3 * one))[-1].startswith(b"OK [APPENDUID ")
    assert (await client.ask(b"COPY 1:* Missing"))[-1].startswith(b"NO [TRYCREATE]")


@pytest.mark.covers("RFC 9738 §3.1")
async def test_moving_goes_on_with_the_same_command(client: Any) -> None:
    lines = await client.ask(b"UID MOVE 1:* Archive")
    assert re.match(rb"\* OK \[COPYUID \d+ 7:9 1:3\] ", lines[0])
    assert numbers(lines, b"EXPUNGE") == [6, 6, 6]
    assert lines[-1] == b"OK [MESSAGELIMIT 3 7] MOVE completed for the last messages only"
    assert lowest((await client.ask(b"UID MOVE 1:* Archive"))[-1]) == 4
    lines = await client.ask(b"UID MOVE 1:* Archive")
    assert lines[-1] == b"OK MOVE completed"
    assert b"MESSAGES 8" in (await client.ok(b"STATUS Archive (MESSAGES)"))[0]


@pytest.mark.covers("RFC 9738 §3.1", "RFC 4315 §2.1")
async def test_expunging_goes_on_with_the_same_command(client: Any) -> None:
    # What stays does not count: else it would be in the way for ever.
    for uids in (b"1", b"3:4", b"6"):
        await client.ok(rb"UID STORE %b +FLAGS.SILENT (\Deleted)" % uids)
    lines = await client.ask(b"UID EXPUNGE 1:*")
    assert numbers(lines, b"EXPUNGE") == [2, 2, 3]
    assert lowest(lines[-1]) == 3
    lines = await client.ask(b"UID EXPUNGE 1:*")
    assert numbers(lines, b"EXPUNGE") == [1]
    assert lines[-1] == b"OK EXPUNGE completed"
    # Without UIDs there is no limit.
    await client.ok(rb"STORE 1:2 +FLAGS.SILENT (\Deleted)")
    await client.ok(rb"STORE 3:4 +FLAGS.SILENT (\Deleted)")
    lines = await client.ask(b"EXPUNGE")
    assert len(numbers(lines, b"EXPUNGE")) == 4
    assert lines[-1] == b"OK EXPUNGE completed"


@pytest.mark.covers("RFC 9738 §3.1", "RFC 7162 §3.2.7")
async def test_both_codes_where_both_are_due(client: Any) -> None:
    await client.ok(b"ENABLE QRESYNC")
    lines = await client.ask(b"UID MOVE 1:* Archive")
    assert lines[-3] == b"* VANISHED 7:9"
    assert re.match(rb"\* OK \[HIGHESTMODSEQ \d+\] ", lines[-2])
    assert CODE.match(lines[-1])


@pytest.mark.covers("RFC 9738 §3.1", "RFC 9738 §3.2", "RFC 9738 §3.4")
async def test_searches_look_at_the_last(client: Any) -> None:
    lines = await client.ask(b"UID SEARCH UNSEEN")
    assert lines == [b"* SEARCH 7 8 9", b"OK [MESSAGELIMIT 3 7] SEARCH completed"]
    # What is named is looked at, not what is found.
    lines = await client.ask(b"UID SEARCH SEEN UIDBEFORE 7")
    assert lines == [b"* SEARCH", b"OK [MESSAGELIMIT 3 4] SEARCH completed"]
    lines = await client.ask(b"UID SEARCH RETURN (SAVE ALL) UNSEEN UIDBEFORE 7")
    assert lines[0].endswith(b" UID ALL 4:6")
    assert numbers(await client.ok(b"FETCH $ UID"), b"FETCH") == [3, 4, 5]
    assert (await client.ask(b"UID SEARCH 1:4 UID 3:* ALL"))[-1] == b"OK SEARCH completed"
    assert CODE.match((await client.ask(b"SEARCH OR 1 2"))[-1])
    lines = await client.ask(b"UID SEARCH RETURN (UPDATE COUNT) ALL")
    assert lines[0].startswith(b"* NO [NOUPDATE ")
    assert lines[1].endswith(b" UID COUNT 3")
    assert CODE.match(lines[-1])


@pytest.mark.covers("RFC 9738 §3.3")
async def test_sorted_and_threaded_is_all(client: Any) -> None:
    assert await client.ok(b"UID SORT (ARRIVAL) UTF-8 ALL") == [b"* SORT 1 3 4 5 6 7 8 9"]
    (line,) = await client.ok(b"UID THREAD ORDEREDSUBJECT UTF-8 ALL")
    assert len(re.findall(rb"\d+", line)) == 8
