"""Several sessions on one folder: numbers, what is told and when (RFC 3501 §5.5, §7.4.1; mail-server D3–D5, D8, D9)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from postroom.events.live import LiveHub
from postroom.servers.imap import ImapListener


class NoHints:
    """Tells no other node anything."""

    def hint(self, channel: str, key: int | str, value: int = 0) -> None:
        pass


def _mail(n: int) -> bytes:
    return b"From: ann@example.com\r\nSubject: number %d\r\n\r\nText %d\r\n" % (n, n)


async def _fill(office: Any, count: int) -> None:
    for n in range(1, count + 1):
        await office.deliver(_mail(n))


@pytest.mark.covers("mail-server:D3", "mail-server:D5")
async def test_select_says_everything(office: Any) -> None:
    await _fill(office, 3)
    client = await office.client(None)
    lines = await client.ask(b"SELECT INBOX")
    assert lines[0] == rb"* FLAGS (\Answered \Flagged \Deleted \Seen \Draft)"
    assert lines[1:4] == [b"* 3 EXISTS", b"* 3 RECENT", b"* OK [UNSEEN 1] First unseen message"]
    assert lines[4].startswith(b"* OK [UIDVALIDITY ")
    assert lines[5] == b"* OK [UIDNEXT 4] Predicted next UID"
    assert lines[6] == rb"* OK [PERMANENTFLAGS (\Answered \Flagged \Deleted \Seen \Draft \*)] Flags permitted"
    assert lines[-1] == b"OK [READ-WRITE] SELECT completed"
    second = await office.client(None)
    lines = await second.ask(b"EXAMINE INBOX")
    assert b"* 0 RECENT" in lines
    assert b"* OK [PERMANENTFLAGS ()] Flags permitted" in lines
    assert lines[-1] == b"OK [READ-ONLY] EXAMINE completed"
    for command in (rb"STORE 1 +FLAGS (\Seen)", b"EXPUNGE", b"MOVE 1 Trash", b"UID EXPUNGE 1"):
        assert (await second.ask(command))[-1].startswith(b"NO [READ-ONLY]")
    await second.ok(b"FETCH 1 BODY[]")
    assert await second.ok(b"FETCH 1 FLAGS") == [b"* 1 FETCH (FLAGS ())"]


@pytest.mark.covers("mail-server:D5")
async def test_recent_belongs_to_one_session(office: Any) -> None:
    await _fill(office, 1)
    first = await office.client(None)
    assert b"* 1 RECENT" in await first.ok(b"SELECT INBOX")
    second = await office.client(None)
    assert b"* 0 RECENT" in await second.ok(b"SELECT INBOX")
    assert await first.ok(b"FETCH 1 FLAGS") == [rb"* 1 FETCH (FLAGS (\Recent))"]
    assert await second.ok(b"FETCH 1 FLAGS") == [b"* 1 FETCH (FLAGS ())"]
    assert await first.ok(b"SEARCH RECENT") == [b"* SEARCH 1"]
    assert await second.ok(b"SEARCH OLD") == [b"* SEARCH 1"]
    await office.deliver(_mail(2))
    assert await second.ok(b"NOOP") == [b"* 2 EXISTS", b"* 1 RECENT"]
    assert await first.ok(b"NOOP") == [b"* 2 EXISTS", b"* 1 RECENT"]
    assert await second.ok(b"SEARCH NEW") == [b"* SEARCH 2"]
    assert (await first.ask(rb"STORE 1 FLAGS (\Recent)"))[:-1] == [rb"* 1 FETCH (FLAGS (\Recent))"]


@pytest.mark.covers("mail-server:D3", "mail-server:D4", "mail-server:D8")
async def test_numbers_stay_until_they_may_change(office: Any) -> None:
    await _fill(office, 5)
    mine, other = await office.client(), await office.client()
    await other.ok(rb"STORE 2,4 +FLAGS.SILENT (\Deleted)")
    assert await other.ok(b"EXPUNGE") == [b"* 2 EXPUNGE", b"* 3 EXPUNGE"]
    # Neither FETCH nor STORE nor SEARCH by number may tell it, and number 5 is still the fifth message.
    assert await mine.ok(b"FETCH 5 UID") == [b"* 5 FETCH (UID 5)"]
    assert await mine.ok(b"FETCH 3 (UID BODY.PEEK[TEXT])") == [b"* 3 FETCH (UID 3 BODY[TEXT] {8}\r\nText 3\r\n)"]
    assert await mine.ok(b"SEARCH ALL") == [b"* SEARCH 1 2 3 4 5"]
    # A message that went is left out, and its number is a NO.
    lines = await mine.ask(b"FETCH 1:* UID")
    assert lines == [
        *(b"* %d FETCH (UID %d)" % (n, n) for n in (1, 3, 5)),
        b"NO [EXPUNGEISSUED] Some of the messages do not exist any more",
    ]
    lines = await mine.ask(rb"STORE 1:2 +FLAGS (\Flagged)")
    assert lines[0] == rb"* 1 FETCH (FLAGS (\Flagged \Recent))"
    assert lines[-1].startswith(b"NO [EXPUNGEISSUED]")
    assert (await mine.ask(b"COPY 1:2 Archive"))[-1].startswith(b"NO [EXPUNGEISSUED]")
    # The COPY was a chance to tell; numbers moved then.
    assert await mine.ok(b"FETCH 1:* UID") == [b"* 1 FETCH (UID 1)", b"* 2 FETCH (UID 3)", b"* 3 FETCH (UID 5)"]


@pytest.mark.covers("mail-server:D3", "mail-server:D4")
async def test_uid_commands_may_tell(office: Any) -> None:
    await _fill(office, 3)
    mine, other = await office.client(), await office.client()
    await other.ok(rb"UID STORE 2 +FLAGS.SILENT (\Deleted)")
    assert await other.ok(b"UID EXPUNGE 1:3") == [b"* 2 EXPUNGE"]
    assert await mine.ok(b"UID FETCH 1:* FLAGS") == [
        rb"* 1 FETCH (UID 1 FLAGS (\Recent))",
        rb"* 3 FETCH (UID 3 FLAGS (\Recent))",
        b"* 2 EXPUNGE",
    ]
    assert await mine.ok(b"UID FETCH 2 FLAGS") == []
    assert await mine.ok(b"UID FETCH 9:* UID") == [b"* 2 FETCH (UID 3)"]


@pytest.mark.covers("mail-server:D3")
async def test_arrivals_while_numbers_are_held(office: Any) -> None:
    """New messages are told even while those that went keep their numbers."""
    await _fill(office, 3)
    mine, other = await office.client(), await office.client()
    await other.ok(rb"STORE 1 +FLAGS.SILENT (\Deleted)")
    await other.ok(b"EXPUNGE")
    await office.deliver(_mail(4))
    assert await mine.ok(b"FETCH 2 UID") == [b"* 2 FETCH (UID 2)", b"* 4 EXISTS", b"* 4 RECENT"]
    assert await mine.ok(b"FETCH 4 (UID)") == [b"* 4 FETCH (UID 4)"]
    await office.deliver(_mail(5))
    assert await mine.ok(b"NOOP") == [b"* 1 EXPUNGE", b"* 4 EXISTS", b"* 4 RECENT"]
    assert await mine.ok(b"FETCH 1:* UID") == [b"* %d FETCH (UID %d)" % (n, n + 1) for n in range(1, 5)]


@pytest.mark.covers("mail-server:D5")
async def test_flags_of_others_are_told_once_and_own_silent_ones_never(office: Any) -> None:
    await _fill(office, 2)
    mine, other = await office.client(), await office.client()
    assert await other.ok(rb"STORE 1 +FLAGS (\Seen work)") == [
        rb"* 1 FETCH (FLAGS (\Seen work))",
        rb"* FLAGS (\Answered \Flagged \Deleted \Seen \Draft work)",
    ]
    lines = await mine.ok(b"NOOP")
    assert lines == [
        rb"* FLAGS (\Answered \Flagged \Deleted \Seen \Draft work)",
        rb"* 1 FETCH (FLAGS (\Seen work \Recent) UID 1)",
    ]
    assert await mine.ok(b"NOOP") == []
    assert await other.ok(b"NOOP") == []
    assert await mine.ok(rb"STORE 2 +FLAGS.SILENT (\Answered)") == []
    assert await mine.ok(b"NOOP") == []
    # Silence is for one's own change only: here another's flag came in between.
    await other.ok(rb"STORE 2 +FLAGS.SILENT (\Flagged)")
    assert await mine.ok(rb"STORE 2 +FLAGS.SILENT (\Draft)") == [
        rb"* 2 FETCH (FLAGS (\Answered \Draft \Flagged \Recent) UID 2)"
    ]


@pytest.mark.covers("decisions:A5", "mail-server:D4", "mail-server:D8")
async def test_a_copy_outlives_its_original(office: Any) -> None:
    await _fill(office, 2)
    client = await office.client()
    (line,) = [line for line in await client.ask(b"COPY 1:2 Archive") if line.startswith(b"OK")]
    assert line.startswith(b"OK [COPYUID ")
    assert line.split(b"]")[0].split()[-2:] == [b"1:2", b"1:2"]
    (before,) = await client.ok(b"FETCH 1 EMAILID")
    await client.ok(rb"STORE 1:2 +FLAGS.SILENT (\Deleted)")
    assert await client.ok(b"EXPUNGE") == [b"* 1 EXPUNGE", b"* 1 EXPUNGE"]
    await client.ok(b"SELECT Archive")
    assert await client.ok(b"FETCH 1 EMAILID") == [before]
    assert await client.ok(b"FETCH 1 BODY.PEEK[TEXT]") == [b"* 1 FETCH (BODY[TEXT] {8}\r\nText 1\r\n)"]


@pytest.mark.covers("mail-server:D8")
async def test_move_tells_copyuid_then_expunge(office: Any) -> None:
    await _fill(office, 3)
    mine, other = await office.client(), await office.client()
    lines = await mine.ask(b"UID MOVE 1,3 Archive")
    assert lines[0].startswith(b"* OK [COPYUID ")
    assert lines[0].endswith(b" 1,3 1:2] Moved")
    assert lines[1:] == [b"* 1 EXPUNGE", b"* 2 EXPUNGE", b"OK MOVE completed"]
    assert await other.ok(b"NOOP") == [b"* 1 EXPUNGE", b"* 2 EXPUNGE"]
    assert (await mine.ask(b"MOVE 1 Missing"))[-1].startswith(b"NO [TRYCREATE]")
    assert await mine.ask(b"UID MOVE 99 Archive") == [b"OK No messages to move"]
    assert (await mine.ask(b"MOVE 9 Archive"))[-1].startswith(b"BAD ")


@pytest.mark.covers("mail-server:D3", "mail-server:D8")
async def test_close_expunges_silently_and_unselect_never(office: Any) -> None:
    await _fill(office, 2)
    client = await office.client()
    await client.ok(rb"STORE 1 +FLAGS.SILENT (\Deleted)")
    assert await client.ok(b"UNSELECT") == []
    assert b"* 2 EXISTS" in await client.ok(b"EXAMINE INBOX")
    assert await client.ok(b"CLOSE") == []
    assert b"* 2 EXISTS" in await client.ok(b"SELECT INBOX")
    assert await client.ok(b"CLOSE") == []
    assert b"* 1 EXISTS" in await client.ok(b"SELECT INBOX")


@pytest.mark.covers("mail-server:D9", "decisions:D21")
async def test_idle_pushes_what_another_session_does(office: Any) -> None:
    await _fill(office, 2)
    mine, other = await office.client(), await office.client()
    mine.send(b"x IDLE\r\n")
    assert await mine.line() == b"+ idling"
    await office.deliver(_mail(3))
    assert [await mine.line(), await mine.line()] == [b"* 3 EXISTS", b"* 3 RECENT"]
    await other.ok(b"NOOP")
    await other.ok(rb"STORE 2 +FLAGS (\Deleted)")
    assert await mine.line() == rb"* 2 FETCH (FLAGS (\Deleted \Recent) UID 2)"
    await other.ok(b"EXPUNGE")
    assert await mine.line() == b"* 2 EXPUNGE"
    mine.send(b"DONE\r\ny NOOP\r\n")
    assert [await mine.line(), await mine.line()] == [b"x OK IDLE completed", b"y OK NOOP completed"]
    mine.send(b"x IDLE\r\nNOOP\r\ny NOOP\r\n")
    assert [await mine.line() for _ in range(3)] == [b"+ idling", b"x BAD Expected DONE", b"y OK NOOP completed"]
    free = await office.client(None)
    free.send(b"x IDLE\r\nDONE\r\n")
    assert [await free.line(), await free.line()] == [b"+ idling", b"x OK IDLE completed"]


@pytest.mark.covers("mail-server:D2")
async def test_a_folder_that_goes_takes_its_sessions_along(office: Any) -> None:
    mine, idling, other = await office.client(None), await office.client(None), await office.client(None)
    await other.ok(b"CREATE Work")
    await mine.ok(b"SELECT Work")
    await idling.ok(b"SELECT Work")
    idling.send(b"x IDLE\r\n")
    assert await idling.line() == b"+ idling"
    await other.ok(b"RENAME Work Projects")
    assert await mine.ok(b"NOOP") == []
    await other.ok(b"DELETE Projects")
    assert await idling.rest() == b"* BYE Selected mailbox was removed\r\n"
    mine.send(b"x NOOP\r\n")
    assert await mine.rest() == b"* BYE Selected mailbox was removed\r\n"
    # Whoever deletes the folder that it has selected has none afterwards.
    await other.ok(b"CREATE Work")
    await other.ok(b"SELECT Work")
    await other.ok(b"DELETE Work")
    assert await other.ask(b"FETCH 1 UID") == [b"BAD Command not valid in this state"]


@pytest.mark.covers("mail-server:D4", "decisions:D28", "decisions:D21")
async def test_star_and_empty_folders(office: Any) -> None:
    client = await office.client()
    assert await client.ask(b"UID FETCH 1:* FLAGS") == [b"OK FETCH completed"]
    assert await client.ask(b"FETCH * UID") == [b"OK FETCH completed"]
    assert (await client.ask(b"FETCH 1 UID"))[0].startswith(b"BAD ")
    assert await client.ok(b"SEARCH ALL") == [b"* SEARCH"]
    await _fill(office, 3)
    await client.ok(b"NOOP")
    assert await client.ok(b"FETCH * UID") == [b"* 3 FETCH (UID 3)"]
    assert await client.ok(b"FETCH 3:2 UID") == [b"* 2 FETCH (UID 2)", b"* 3 FETCH (UID 3)"]
    assert (await client.ask(b"FETCH 4 UID"))[0].startswith(b"BAD ")
    assert await client.ok(b"SEARCH 2:9 UID 1:2") == [b"* SEARCH 2"]


@pytest.mark.covers("mail-server:D4")
async def test_many_sessions_and_concurrent_changes_agree(office: Any) -> None:
    """However changes and commands interleave, each session's list, followed by what it is told, is the folder's."""
    await _fill(office, 30)
    clients = [await office.client() for _ in range(4)]
    lists = [list(range(1, 31)) for _ in clients]

    async def follow(place: int) -> None:
        client, known = clients[place], lists[place]
        for round_ in range(12):
            if round_ % 3 == 0 and known:
                uid = known[(place * 7 + round_) % len(known)]
                lines = await client.ok(rb"UID STORE %d +FLAGS.SILENT (\Deleted)" % uid)
            elif round_ % 3 == 1:
                lines = await client.ok(b"EXPUNGE")
            else:
                lines = await client.ok(b"UID FETCH 1:* FLAGS")
                for line in lines:
                    if b"FETCH (UID" in line:
                        number, uid = int(line.split()[1]), int(line.split()[4])
                        assert known[number - 1] == uid
            for line in lines:
                words = line.split()
                if words[-1] == b"EXPUNGE":
                    del known[int(words[1]) - 1]

    await asyncio.gather(*map(follow, range(len(clients))))
    for client, known in zip(clients, lists, strict=True):
        for line in await client.ok(b"NOOP"):
            if line.endswith(b"EXPUNGE"):
                del known[int(line.split()[1]) - 1]
        fetched = [int(line.split()[4].strip(b")")) for line in await client.ok(b"FETCH 1:* (UID)")]
        assert fetched == known
    assert len({tuple(known) for known in lists}) == 1
    assert len(lists[0]) < 30


@pytest.mark.covers("mail-server:D9", "decisions:B13")
async def test_another_node(office: Any) -> None:
    """A node that hears nothing of another's changes sees them at NOOP, and while it idles when it is woken."""
    await _fill(office, 2)
    deaf = LiveHub(NoHints())
    listener = ImapListener(replace(office.services, live=deaf), office.config)
    await listener.start("127.0.0.1", 0)
    office.listeners.append(listener)
    here, there = await office.client(b"INBOX", await office.listen()), await office.client(b"INBOX", listener)
    await here.ok(rb"STORE 1 +FLAGS (\Deleted)")
    await here.ok(b"EXPUNGE")
    assert await there.ok(b"NOOP") == [b"* 1 EXPUNGE"]
    there.send(b"x IDLE\r\n")
    assert await there.line() == b"+ idling"
    await office.deliver(_mail(3))
    deaf.hinted(str(office.box.id), 1 << 40)
    assert await there.line() == b"* 2 EXISTS"


@pytest.mark.covers("mail-server:C3")
async def test_what_is_still_to_be_sent_is_not_expunged(office: Any) -> None:
    await _fill(office, 2)
    client = await office.client()
    async with office.db.acquire() as conn:
        await conn.execute("UPDATE messages SET direction = 'outbound', status = 'queued' WHERE subject = 'number 1'")
    await client.ok(rb"STORE 1:2 +FLAGS.SILENT (\Deleted)")
    for command in (b"EXPUNGE", b"UID EXPUNGE 1:2", b"EXPUNGE"):
        lines = await client.ask(command)
        assert lines[-1].startswith(b"NO [INUSE] ")
    assert await client.ok(b"FETCH 1:* UID") == [b"* 1 FETCH (UID 1)"]
