"""COPY, MOVE and REPLACE from one mailbox into another: octets, flags, order, quota; all or nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroom.blobs import BlobMissing
from tests.imap_server.conftest import mail
from tests.imap_server.neighbours import Street, street_of


@pytest.fixture
async def street(office: Any) -> AsyncIterator[Street]:
    async with street_of(office) as made:
        await made.grant("bob", "carol", "full")
        await made.grant("dora", "carol", "full")
        yield made


async def _all(client: Any, folder: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Subject, flags and date of each message."""
    await client.ok(b'EXAMINE "%b"' % folder)
    found = []
    for line in await client.ok(b"FETCH 1:* (FLAGS INTERNALDATE BODY.PEEK[HEADER.FIELDS (SUBJECT)])"):
        if b" FETCH (" in line:
            flags = set(re.search(rb"FLAGS \(([^)]*)\)", line)[1].split()) - {rb"\Recent"}  # type: ignore[index] # there
            date = re.search(rb'INTERNALDATE ("[^"]*")', line)[1]  # type: ignore[index] # it is there
            subject = re.search(rb"Subject: ([^\r]*)", line)[1]  # type: ignore[index] # it is there
            found.append((subject, b" ".join(sorted(flags)), date))
    await client.ok(b"UNSELECT")
    return found


async def _raw(client: Any, folder: bytes) -> list[bytes]:
    await client.ok(b'EXAMINE "%b"' % folder)
    found = [
        line.partition(b"}\r\n")[2][:-1] for line in await client.ok(b"FETCH 1:* BODY.PEEK[]") if b" FETCH (" in line
    ]
    await client.ok(b"UNSELECT")
    return found


@pytest.mark.covers("RFC 3501 §6.4.7", "RFC 4315 §3", "mail-server:E2", "decisions:A5")
@pytest.mark.parametrize("where", ["there", "back", "between"])
@pytest.mark.parametrize("command", [b"COPY", b"MOVE"])
async def test_what_comes_is_what_went(street: Street, command: bytes, where: str) -> None:
    source, target = {"there": ("carol", "bob"), "back": ("bob", "carol"), "between": ("bob", "dora")}[where]
    name = {"carol": b"", "bob": street.prefix("bob"), "dora": street.prefix("dora")}
    for n in range(5):
        flags = ("$seen", "work") if n % 2 else ("$flagged",)
        await street.deliver(source, mail(f"number {n}", f"text {n}"), flags=flags)
    carol = await street.client("carol")
    inbox, archive = name[source] + b"INBOX", name[target] + b"Archive"
    before, octets = await _all(carol, inbox), await _raw(carol, inbox)
    await carol.ok(b'SELECT "%b"' % inbox)
    lines = await carol.ask(b'%b 2:4 "%b"' % (command, archive))
    code = lines[-1] if command == b"COPY" else lines[0]
    found = re.search(rb"\[COPYUID (\d+) 2:4 1:3\]", code)
    assert found, lines
    (status,) = await carol.ok(b'STATUS "%b" (UIDVALIDITY)' % archive)
    assert b"(UIDVALIDITY %b)" % found[1] in status
    if command == b"MOVE":
        assert [line for line in lines if line.endswith(b"EXPUNGE")] == [
            *(b"* 4 EXPUNGE", b"* 3 EXPUNGE", b"* 2 EXPUNGE")
        ] or [line for line in lines if line.endswith(b"EXPUNGE")] == [b"* 2 EXPUNGE"] * 3
    assert await _all(carol, archive) == before[1:4]
    assert await _raw(carol, archive) == octets[1:4]
    left = before if command == b"COPY" else [before[0], before[4]]
    assert await _all(carol, inbox) == left
    # Each mailbox has what is its own, and nobody's bytes are the other's.
    async with street.office.db.acquire() as conn:
        rows = await conn.fetch("SELECT tenant_id, mailbox_id, blob_key, source FROM messages")
        used = await conn.fetch("SELECT id, used_bytes FROM mailboxes")
        sums = await conn.fetch("SELECT mailbox_id, sum(raw_size) AS size FROM messages GROUP BY 1")
    assert len({row["blob_key"] for row in rows}) == len(rows)
    for row in rows:
        box = next(box for box in street.boxes.values() if box.id == row["mailbox_id"])
        assert row["tenant_id"] == box.tenant_id
        assert box.public_id in row["blob_key"]
    assert {row["id"]: row["used_bytes"] for row in used if row["used_bytes"]} == {
        row["mailbox_id"]: row["size"] for row in sums
    }


@pytest.mark.covers("mail-server:D9", "decisions:A7")
async def test_both_sides_are_told(street: Street) -> None:
    await street.deliver("bob", mail("one"))
    carol = await street.client("carol", street.prefix("bob") + b"INBOX")
    his, hers = await street.client("bob", b"INBOX"), await street.client("carol", b"Archive")
    for client in (his, hers):
        client.send(b"i IDLE\r\n")
        assert await client.line() == b"+ idling"
    await carol.ok(b"MOVE 1 Archive")
    assert await his.line() == b"* 1 EXPUNGE"
    assert await hers.line() == b"* 1 EXISTS"


@pytest.mark.covers("mail-server:D8", "decisions:D9", "RFC 3501 §6.4.7")
@pytest.mark.parametrize("command", [b"COPY", b"MOVE"])
async def test_the_quota_is_that_of_the_target(street: Street, monkeypatch: pytest.MonkeyPatch, command: bytes) -> None:
    monkeypatch.setattr("postroom.servers.imap.across.GROUP_MESSAGES", 2)
    for n in range(5):
        await street.deliver("carol", mail(f"number {n}", "x" * 1000))
    async with street.office.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = 3000 WHERE id = $1", street.boxes["bob"].id)
        await conn.execute("UPDATE mailboxes SET quota_bytes = 1 WHERE id = $1", street.boxes["carol"].id)
    carol = await street.client("carol", b"INBOX")
    lines = await carol.ask(b'%b 1:5 "%bArchive"' % (command, street.prefix("bob")))
    assert lines[-1].startswith(b"NO [OVERQUOTA]")
    there = await _all(carol, street.prefix("bob") + b"Archive")
    here = await _all(carol, b"INBOX")
    if command == b"COPY":
        assert (len(here), len(there)) == (5, 0)
    else:
        # What was moved is told, though not all could be (RFC 6851 §4.3).
        assert (len(here), len(there)) == (3, 2)
        assert re.fullmatch(rb"\* OK \[COPYUID \d+ 1:2 1:2\] Moved", lines[0])
        assert sum(line.endswith(b"EXPUNGE") for line in lines) == 2
    async with street.office.db.acquire() as conn:
        used = await conn.fetchval("SELECT used_bytes FROM mailboxes WHERE id = $1", street.boxes["bob"].id)
    assert (used == 0) == (command == b"COPY")


@pytest.mark.covers("mail-server:C3", "RFC 6851 §3.3")
async def test_what_is_still_to_be_sent_stays(street: Street) -> None:
    await street.deliver("bob", mail("one"))
    async with street.office.db.acquire() as conn:
        await conn.execute("UPDATE messages SET status = 'queued'")
    carol = await street.client("carol", street.prefix("bob") + b"INBOX")
    assert (await carol.ask(b"MOVE 1 INBOX"))[-1].startswith(b"NO [INUSE]")
    await carol.ok(b"COPY 1 INBOX")
    await carol.ok(b'MOVE 1 "%bArchive"' % street.prefix("bob"))


@pytest.mark.covers("RFC 8508 §3.4")
async def test_replace_into_another_mailbox(street: Street) -> None:
    await street.deliver("carol", mail("draft"))
    carol = await street.client("carol", b"INBOX")
    new = mail("final")
    lines = await carol.ok(b'REPLACE 1 "%bDrafts" (\\Draft) {%d+}\r\n%b' % (street.prefix("bob"), len(new), new))
    assert lines[0].startswith(b"* OK [APPENDUID ")
    assert lines[1] == b"* 1 EXPUNGE"
    assert [one[:2] for one in await _all(carol, street.prefix("bob") + b"Drafts")] == [(b"final", rb"\Draft")]


@pytest.mark.covers("RFC 6851 §3.3", "decisions:B10", "decisions:B14")
async def test_crowds_that_move_to_and_fro_lose_nothing(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sessions and nodes move all they see, in both directions, while others set flags and expunge nothing."""
    monkeypatch.setattr("postroom.servers.imap.across.GROUP_MESSAGES", 3)
    await street.office.listen()
    await street.office.listen()
    subjects = {f"number {n}".encode() for n in range(12)}
    for n in range(12):
        await street.deliver("carol" if n % 2 else "bob", mail(f"number {n}"))
    there = street.prefix("bob") + b"INBOX"

    async def move(n: int) -> None:
        client = await street.client("carol")
        for turn in range(4):
            source, target = (b"INBOX", there) if (n + turn) % 2 else (there, b"INBOX")
            await client.ok(b'SELECT "%b"' % source)
            await client.ask(b"UID STORE 1:* +FLAGS.SILENT (seen%d)" % n)
            answer = (await client.ask(b'UID MOVE 1:* "%b"' % target))[-1]
            assert answer.startswith((b"OK", b"NO [INUSE]")), answer

    await asyncio.gather(*(move(n) for n in range(4)))
    carol = await street.client("carol")
    found = [subject for folder in (b"INBOX", there) for subject, _, _ in await _all(carol, folder)]
    assert len(found) == 12
    assert set(found) == subjects


@pytest.mark.covers("mail-server:D5", "RFC 6851 §3.3")
async def test_a_flag_that_is_set_while_the_message_moves_moves_too(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    await street.deliver("bob", mail("one"))
    his = await street.client("bob", b"INBOX")
    carol = await street.client("carol", street.prefix("bob") + b"INBOX")
    ingest = street.office.ingest
    together = ingest.deliver_together

    async def flagged_before(deliveries: Any) -> Any:
        await his.ok(rb"STORE 1 +FLAGS (\Answered urgent)")
        return await together(deliveries)

    monkeypatch.setattr(ingest, "deliver_together", flagged_before)
    await carol.ok(b"MOVE 1 Archive")
    assert [one[1] for one in await _all(carol, b"Archive")] == [rb"\Answered urgent"]


@pytest.mark.covers("RFC 3501 §6.4.7")
async def test_a_copy_that_is_broken_off_while_it_commits_does_not_stay(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        await street.deliver("carol", mail(f"number {n}"))
    monkeypatch.setattr("postroom.servers.imap.across.GROUP_MESSAGES", 2)
    ingest = street.office.ingest
    together, began, groups = ingest.deliver_together, asyncio.Event(), 0

    async def slowly(deliveries: Any) -> Any:
        nonlocal groups
        groups += 1
        done = await together(deliveries)
        if groups == 2:
            began.set()
            await asyncio.sleep(0.3)
        return done

    monkeypatch.setattr(ingest, "deliver_together", slowly)
    carol = await street.client("carol", b"INBOX")
    there = street.prefix("bob") + b"Archive"
    carol.writer.write(b'c COPY 1:* "%b"\r\n' % there)
    await began.wait()
    listener = street.office.listeners[0]
    monkeypatch.setattr(listener, "_linger", 0.05)
    await listener.drain(0)
    for _ in range(100):
        async with street.office.db.acquire() as conn:
            left = await conn.fetchval(
                "SELECT count(*) FROM placements p JOIN folders f ON f.tenant_id = p.tenant_id AND f.id = p.folder_id"
                " WHERE f.name = 'Archive'"
            )
        if not left:
            break
        await asyncio.sleep(0.05)
    assert (left, groups) == (0, 2)


@pytest.mark.covers("RFC 2180 §4.1", "mail-server:D4")
async def test_messages_that_go_meanwhile_are_left_out(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        await street.deliver("bob", mail(f"number {n}"))
    his = await street.client("bob", b"INBOX")
    there = street.prefix("bob") + b"INBOX"
    ingest, blobs = street.office.ingest, street.office.blobs
    together, get_many = ingest.deliver_together, blobs.get_many
    for command in (b"UID MOVE 1:* Archive", b"UID COPY 1:* Archive"):
        carol = await street.client("carol", there)
        done = False

        async def gone_before(*arguments: Any, real: Any) -> Any:
            nonlocal done
            if not done:
                done = True
                await his.ok(b"NOOP")
                await his.ok(rb"STORE 1 +FLAGS (\Deleted)")
                await his.ok(b"EXPUNGE")
            return await real(*arguments)

        moving = command.startswith(b"UID MOVE")
        with monkeypatch.context() as patch:
            if moving:
                patch.setattr(ingest, "deliver_together", lambda one: gone_before(one, real=together))
            else:
                patch.setattr(blobs, "get_many", lambda one: gone_before(one, real=get_many))
            assert (await carol.ask(command))[-1].startswith(b"OK")
        archived = [subject for subject, _, _ in await _all(carol, b"Archive")]
        if moving:
            assert archived == [b"number 1", b"number 2", b"number 3"]
            for n in range(4, 7):
                await street.deliver("bob", mail(f"number {n}"))
        else:
            assert archived[3:] == [b"number 5", b"number 6"]


async def test_octets_that_are_not_there_are_said_to_be_missing(street: Street) -> None:
    stored = await street.deliver("bob", mail("one"))
    async with street.office.db.acquire() as conn:
        key = await conn.fetchval("SELECT blob_key FROM messages WHERE public_id = $1", stored.message_id)
    await street.office.blobs.delete([key])
    with pytest.raises(BlobMissing):
        await street.office.blobs.get(key)
    carol = await street.client("carol", street.prefix("bob") + b"INBOX")
    for command in (b"COPY", b"MOVE"):
        assert (await carol.ask(command + b" 1 INBOX"))[-1] == b"NO [SERVERBUG] message body missing"
    assert len(await carol.ok(b"FETCH 1 FLAGS")) == 1


@pytest.mark.covers("mail-server:D4")
async def test_a_message_whose_number_is_gone_is_not_moved(street: Street) -> None:
    await street.deliver("bob", mail("one"))
    await street.deliver("bob", mail("two"))
    carol, his = await street.client("carol", street.prefix("bob") + b"INBOX"), await street.client("bob", b"INBOX")
    await his.ok(rb"STORE 1 +FLAGS (\Deleted)")
    await his.ok(b"EXPUNGE")
    assert (await carol.ask(b"MOVE 1:2 INBOX"))[-1].startswith(b"NO [EXPUNGEISSUED]")
    assert await _all(carol, b"INBOX") == []


@pytest.mark.covers("decisions:B16")
async def test_large_messages_go_one_by_one(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held of them counts as the session's, and is let go."""
    monkeypatch.setattr("postroom.servers.imap.across.GROUP_BYTES", 50_000)
    for n in range(4):
        await street.deliver("carol", mail(f"number {n}", "y" * 30_000))
    carol = await street.client("carol", b"INBOX")
    groups: list[int] = []
    together = street.office.ingest.deliver_together

    async def counted(deliveries: Any) -> Any:
        groups.append(len(deliveries))
        return await together(deliveries)

    monkeypatch.setattr(street.office.ingest, "deliver_together", counted)
    await carol.ok(b'COPY 1:* "%bINBOX"' % street.prefix("bob"))
    assert groups == [1, 1, 1, 1]
    for listener in street.office.listeners:
        assert all(one._session.gathered == 0 for one in listener._context.connections)


@pytest.mark.covers("RFC 9738 §3.1", "RFC 6851 §4.3")
async def test_no_more_than_a_command_may_work_on(street: Street) -> None:
    """MESSAGELIMIT is of all commands, wherever the messages go and come from."""
    node = await street.office.listen(message_limit=3)
    for n in range(7):
        await street.deliver("carol", mail(f"number {n}"))
    carol = await street.client("carol", b"INBOX", node=node)
    unbound = await street.client("carol", node=await street.office.listen())
    archive = street.prefix("bob") + b"Archive"
    for command in (b"COPY 1:*", b"UID COPY 2:5"):
        (line,) = await carol.ask(b'%b "%b"' % (command, archive))
        assert line.startswith(b"NO [MESSAGELIMIT 3 "), line
    assert await _all(unbound, archive) == []
    assert (await carol.ask(b'COPY 1:3 "%b"' % archive))[-1].startswith(b"OK [COPYUID ")
    codes = []
    for _ in range(3):
        lines = await carol.ask(b'UID MOVE 1:* "%b"' % archive)
        assert lines[0].startswith(b"* OK [COPYUID ")
        codes.append(lines[-1])
    assert codes == [
        b"OK [MESSAGELIMIT 3 5] MOVE completed for the last messages only",
        b"OK [MESSAGELIMIT 3 2] MOVE completed for the last messages only",
        b"OK MOVE completed",
    ]
    subjects = [subject.removeprefix(b"number ") for subject, _, _ in await _all(unbound, archive)]
    assert subjects == [b"0", b"1", b"2", b"4", b"5", b"6", b"1", b"2", b"3", b"0"]
    # Back again, and with who may only read before who asks for too much.
    await carol.ok(b'SELECT "%b"' % archive)
    assert (await carol.ask(b"MOVE 1:10 Trash"))[-1].startswith(b"OK [MESSAGELIMIT 3 8] MOVE completed")
    await street.grant("dora", "carol", "read")
    raw = b" {1+}\r\nx"
    for command, words in ((b"COPY 1:* ", b""), (b"APPEND ", 4 * raw)):
        (line,) = await carol.ask(b'%b"%bArchive"%b' % (command, street.prefix("dora"), words))
        assert line.startswith(b"NO [NOPERM] "), line
    (line,) = await carol.ask(b'APPEND "%b"%b' % (archive, 4 * raw))
    assert line.startswith(b"NO [MESSAGELIMIT 3] ")
