"""Mailboxes that were granted to somebody, below Other Users: what each role may do, and what nobody learns."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroom.accounts.store import sharing as store
from tests.imap_server.conftest import mail
from tests.imap_server.neighbours import Street, street_of

ROLES = (None, "read", "full", "owner")
OK, NOPERM, MISSING = b"OK", b"NO [NOPERM]", b"NO [NONEXISTENT]"
STANDARD = {b"INBOX", b"Sent", b"Drafts", b"Trash", b"Junk", b"Archive"}


@pytest.fixture
async def street(office: Any) -> AsyncIterator[Street]:
    async with street_of(office) as made:
        yield made


def names(lines: list[bytes]) -> list[bytes]:
    return [line.split(b'"/" ')[1].split(b'" (')[0].strip(b'"') for line in lines if line[:6] in (b"* LIST", b"* LSUB")]


# -- who may do what

# A command (`{}` is the mailbox), and what is answered to whoever may do nothing, read, or write there. One code for
# all of them where the role does not matter.
NAMED: tuple[tuple[bytes, bytes, bytes, bytes], ...] = (
    (b'SELECT "{}INBOX"', MISSING, b"OK [READ-ONLY]", b"OK [READ-WRITE]"),
    (b'SELECT "{}Missing"', MISSING, MISSING, MISSING),
    (b'SELECT "{}"', MISSING, MISSING, MISSING),
    (b'EXAMINE "{}INBOX"', MISSING, b"OK [READ-ONLY]", b"OK [READ-ONLY]"),
    (b'STATUS "{}INBOX" (MESSAGES UNSEEN DELETED-STORAGE)', MISSING, OK, OK),
    (b'SUBSCRIBE "{}INBOX"', MISSING, OK, OK),
    (b'UNSUBSCRIBE "{}INBOX"', MISSING, OK, OK),
    (b'CREATE "{}New/Deep"', b"NO [CANNOT]", NOPERM, b"OK [MAILBOXID "),
    (b'CREATE "{}INBOX"', b"NO [CANNOT]", NOPERM, b"NO [ALREADYEXISTS]"),
    (b'CREATE "{}Special" (USE (\\All))', b"NO [CANNOT]", NOPERM, b"NO [USEATTR]"),
    (b'RENAME "{}Old" "{}Older"', MISSING, NOPERM, OK),
    (b'RENAME "{}Archive" Mine', MISSING, NOPERM, b"NO [CANNOT]"),
    (b'RENAME Work "{}Work"', b"NO [CANNOT]", b"NO [CANNOT]", b"NO [CANNOT]"),
    (b'DELETE "{}Gone"', MISSING, NOPERM, OK),
    (b'DELETE "{}Sent"', MISSING, NOPERM, b"NO [CANNOT]"),
    (b'APPEND "{}INBOX" (\\Seen) {3+}\r\nx\r\n', MISSING, NOPERM, b"OK [APPENDUID "),
    (b'APPEND "{}Missing" {3+}\r\nx\r\n', MISSING, NOPERM, b"NO [TRYCREATE]"),
    (b'APPEND "{}INBOX" CATENATE (URL "/INBOX/;UID=1")', MISSING, NOPERM, b"OK [APPENDUID "),
    (b'APPEND INBOX CATENATE (URL "/{%}INBOX/;UID=1")', b"NO [BADURL ", b"OK [APPENDUID ", b"OK [APPENDUID "),
    (b'GETQUOTAROOT "{}INBOX"', MISSING, OK, OK),
    (b'GETQUOTA "{-}"', MISSING, OK, OK),
    (b'GETMETADATA "{}INBOX" /shared/comment', MISSING, OK, OK),
    (b'SETMETADATA "{}INBOX" (/shared/comment "x")', MISSING, NOPERM, OK),
    (b'SETMETADATA "{}INBOX" (/private/comment "x")', MISSING, NOPERM, OK),
    (b'MYRIGHTS "{}INBOX"', MISSING, OK, OK),
)
# With INBOX of carol selected.
TOWARDS: tuple[tuple[bytes, bytes, bytes, bytes], ...] = (
    (b'COPY 1 "{}Archive"', MISSING, NOPERM, b"OK [COPYUID "),
    (b'UID COPY 1 "{}Missing"', MISSING, NOPERM, b"NO [TRYCREATE]"),
    (b'REPLACE 1 "{}Drafts" {3+}\r\ny\r\n', MISSING, NOPERM, OK),
    (b'MOVE 1 "{}Archive"', MISSING, NOPERM, OK),
)
# With INBOX of the other mailbox selected; nobody without a grant comes so far.
INSIDE: tuple[tuple[bytes, bytes, bytes], ...] = (
    (b"FETCH 1 (FLAGS BODY[])", OK, OK),
    (b"SEARCH BODY there", OK, OK),
    (b"SEARCH FUZZY TEXT there", OK, OK),
    (b"SORT (SUBJECT) UTF-8 ALL", OK, OK),
    (b"THREAD REFERENCES UTF-8 ALL", OK, OK),
    (b"UID SEARCH RETURN (SAVE COUNT) ALL", OK, OK),
    (b"NOOP", OK, OK),
    (b"COPY 1 Archive", b"OK [COPYUID ", b"OK [COPYUID "),
    (b'COPY 1 "{}Archive"', NOPERM, b"OK [COPYUID "),
    (b"STORE 1 +FLAGS (\\Seen)", NOPERM, OK),
    (b"STORE 1 -FLAGS.SILENT (work)", NOPERM, OK),
    (b'REPLACE 1 "{}INBOX" {3+}\r\ny\r\n', NOPERM, OK),
    (b"MOVE 1 Archive", NOPERM, OK),
    (b'MOVE 1 "{}Archive"', NOPERM, OK),
    (b"EXPUNGE", NOPERM, OK),
    (b"UID EXPUNGE 1", NOPERM, OK),
    (b"CHECK", OK, OK),
    (b"CLOSE", OK, OK),
)


def _filled(command: bytes, street: Street, box: str) -> bytes:
    prefix = street.prefix(box)
    command = command.replace(b"{}", prefix).replace(b"{-}", prefix[:-1])
    return command.replace(b"{%}", prefix.replace(b" ", b"%20").replace(b"@", b"%40"))


def _expected(role: str | None, *answers: bytes) -> bytes:
    return answers[{None: 0, "read": 1, "full": 2, "owner": 2}[role]]


@pytest.mark.covers("decisions:A2", "RFC 2342 §5", "RFC 4314 §4", "mail-server:D2")
@pytest.mark.parametrize("box", ["bob", "dora"])
@pytest.mark.parametrize("role", ROLES)
async def test_what_each_role_may_do(street: Street, role: str | None, box: str) -> None:
    await street.grant(box, "carol", role)
    for folder in ("Old", "Gone"):
        await street.office.boxes.create_folder(street.ref(box), folder)
    for _ in range(3):
        await street.deliver("carol", mail("of carol"))
        for _ in range(3):
            await street.deliver(box, mail("of the other", "it is there"))
    client = await street.client("carol")
    await client.ok(b"CREATE Work")
    for command, *answers in NAMED:
        said = (await client.ask(_filled(command, street, box)))[-1]
        assert said.startswith(_expected(role, *answers)), (command, said)
    for command, *answers in TOWARDS:
        await client.ok(b"SELECT INBOX")
        said = (await client.ask(_filled(command, street, box)))[-1]
        assert said.startswith(_expected(role, *answers)), (command, said)
    if role is None:
        return
    for command, *others in INSIDE:
        await client.ok(b'SELECT "%bINBOX"' % street.prefix(box))
        said = (await client.ask(_filled(command, street, box)))[-1]
        assert said.startswith(_expected(role, b"", *others)), (command, said)


@pytest.mark.covers("SEC-2", "decisions:A2", "RFC 4314 §6")
async def test_what_is_not_granted_is_not_there(street: Street) -> None:
    """Names of mailboxes that there are answer as names of those that there are not, byte for byte."""
    await street.deliver("bob", mail("secret"))
    answers = []
    for prefix in (street.prefix("bob"), street.prefix("dora"), street.prefix("robot"), b"Other Users/x@y.example/"):
        client = await street.client("carol")
        await client.append(mail("mine"))
        commands = [
            *(command for command, *_ in (*NAMED, *TOWARDS)),
            b'GETACL "{}INBOX"',
            b'SETACL "{}INBOX" x@y.example lr',
            b'DELETEACL "{}INBOX" x@y.example',
            b'LISTRIGHTS "{}INBOX" x@y.example',
            b'LIST "" "{}*"',
            b'LIST "" "{-}"',
            b'LSUB "" "{}%"',
            b'LIST (SUBSCRIBED RECURSIVEMATCH) "" "{}%"',
            b'NOTIFY SET STATUS (subtree "{-}" (MessageNew MessageExpunge))',
        ]
        said = []
        await client.ok(b"CREATE Work")
        await client.ok(b"SELECT INBOX")
        for command in commands:
            filled = command.replace(b"{}", prefix).replace(b"{-}", prefix[:-1])
            filled = filled.replace(b"{%}", prefix.replace(b" ", b"%20").replace(b"@", b"%40"))
            lines = await client.ask(filled)
            if lines[-1].startswith(b"NO [NONEXISTENT]") and filled.startswith((b"SELECT", b"EXAMINE")):
                await client.ok(b"SELECT INBOX")
            said.append([line.replace(prefix[:-1].replace(b" ", b"%20").replace(b"@", b"%40"), b"") for line in lines])
        answers.append(said)
        assert names(await client.ok(b'LIST "" "Other*"')) == []
        await client.ok(b"SELECT INBOX")
        await client.ok(b"STORE 1:* +FLAGS (\\Deleted)")
        await client.ok(b"EXPUNGE")
        await client.ok(b"DELETE Work")
    for one in answers[1:]:
        for before, after in zip(answers[0], one, strict=True):
            assert [re.sub(rb"\d+", b"n", line) for line in before] == [re.sub(rb"\d+", b"n", line) for line in after]


# -- names


@pytest.mark.covers("RFC 2342 §5", "mail-server:D2")
async def test_namespace_and_list(street: Street) -> None:
    client = await street.client("carol")
    assert await client.ok(b"NAMESPACE") == [b'* NAMESPACE (("" "/")) (("Other Users/" "/")) NIL']
    assert set(names(await client.ok(b'LIST "" *'))) == STANDARD
    assert set(names(await client.ok(b'LIST "" %'))) == STANDARD
    await street.grant("bob", "carol", "read")
    await street.grant("dora", "carol", "full")
    client = await street.client("carol")
    bob, dora = street.prefix("bob"), street.prefix("dora")
    assert set(names(await client.ok(b'LIST "" %'))) == STANDARD | {b"Other Users"}
    assert rb'* LIST (\Noselect \HasChildren) "/" "Other Users"' in await client.ok(b'LIST "" %')
    assert names(await client.ok(b'LIST "" "Other Users/%"')) == [bob[:-1], dora[:-1]]
    assert names(await client.ok(b'LIST "Other Users/" %')) == [bob[:-1], dora[:-1]]
    below = {prefix + name for prefix in (bob, dora) for name in STANDARD}
    assert set(names(await client.ok(b'LIST "" "Other Users/%/%"'))) == below
    everything = names(await client.ok(b'LIST "" *'))
    assert set(everything) == STANDARD | below | {b"Other Users", bob[:-1], dora[:-1]}
    assert len(everything) == len(set(everything))
    assert set(names(await client.ok(b'LIST "" "%bI*"' % bob))) == {bob + b"INBOX"}
    assert names(await client.ok(b'LIST "" ("INBOX" "%bSent")' % dora)) == [b"INBOX", dora + b"Sent"]
    assert names(await client.ok(b'LIST "%b" ""' % bob)) == [b""]
    # Uses are those of the mailbox that was opened: nothing else is to be filed into by itself.
    uses = await client.ok(b'LIST (SPECIAL-USE) "" * RETURN (SPECIAL-USE)')
    assert set(names(uses)) == STANDARD - {b"INBOX"}
    assert await client.ok(b'LIST "" "%bSent"' % dora) == [rb'* LIST (\HasNoChildren) "/" "%bSent"' % dora]
    lines = await client.ok(b'LIST "" ("%bINBOX" "%bINBOX") RETURN (STATUS (MESSAGES) MYRIGHTS)' % (bob, dora))
    assert [line.rpartition(b'INBOX" ')[2] for line in lines[1:3] + lines[4:]] == [
        *(b"(MESSAGES 0)", b"lr", b"(MESSAGES 0)", b"lrswipkxtecd"),
    ]


async def test_an_agent_has_no_others(street: Street) -> None:
    client = await street.office.connect()
    key = await street.office.new_key("messages:read", "messages:write")
    await client.ok(b"LOGIN %b %b" % (street.address("robot"), key.encode()))
    assert await client.ok(b"NAMESPACE") == [b'* NAMESPACE (("" "/")) NIL NIL']
    await client.ok(b'CREATE "Other Users/x"')
    assert b"Other Users/x" in names(await client.ok(b'LIST "" *'))


@pytest.mark.covers("RFC 2342 §5")
async def test_an_own_folder_of_that_name_stays_in_reach(street: Street) -> None:
    """It may have come by another way. What stands for a mailbox that was granted hides it."""
    await street.office.boxes.create_folder(street.ref("carol"), "Other Users/mine")
    await street.grant("bob", "carol", "read")
    client = await street.client("carol")
    assert names(await client.ok(b'LIST "" "Other Users/%"')) == [b"Other Users/mine", street.prefix("bob")[:-1]]
    assert names(await client.ok(b'LIST "" %')).count(b"Other Users") == 1
    await client.append(mail(), b'"Other Users/mine"')
    await client.ok(b'RENAME "Other Users/mine" Mine')
    assert (await client.ask(b'RENAME Mine "Other Users/mine"'))[-1].startswith(b"NO [CANNOT]")
    assert (await client.ask(b'CREATE "Other Users"'))[-1].startswith(b"NO [CANNOT]")
    await client.ok(b'CREATE "Other users"')


@pytest.mark.covers("RFC 2342 §5", "RFC 3501 §6.3.8")
async def test_own_folders_are_not_shown_under_the_names_of_others(street: Street) -> None:
    """An agent may have made them. A name that is told leads to what is told of it."""
    name = street.prefix("bob") + b"INBOX"
    await street.office.boxes.create_folder(street.ref("carol"), name.decode())
    await street.deliver("carol", mail(), name.decode())
    before = await street.client("carol")
    assert names(await before.ok(b'LIST "" "Other Users/*"')) == [street.prefix("bob")[:-1], name]
    await street.grant("bob", "carol", "read")
    client = await street.client("carol")
    lines = await client.ok(b'LIST "" "Other Users/*" RETURN (STATUS (MESSAGES) MYRIGHTS)')
    assert names(lines).count(name) == 1
    assert names(lines).count(street.prefix("bob")[:-1]) == 1
    assert b'* STATUS "%b" (MESSAGES 0)' % name in lines
    assert b'* MYRIGHTS "%b" lr' % name in lines
    assert names(await client.ok(b'LIST (SUBSCRIBED) "" "Other Users/*"')) == []
    assert await client.ok(b'LSUB "" "Other Users/*"') == []
    # It can be taken out of the way, by what is above it.
    await client.ok(b'RENAME "Other Users" Mine')
    assert b"Mine/" + street.address("bob") + b"/INBOX" in names(await client.ok(b'LIST "" *'))


@pytest.mark.covers("RFC 3501 §6.3.6", "RFC 5258 §3.1", "mail-server:D2")
async def test_subscriptions_are_a_persons_own(street: Street) -> None:
    await street.grant("bob", "carol", "read")
    carol, bob = await street.client("carol"), await street.client("bob")
    prefix = street.prefix("bob")
    inbox = prefix + b"INBOX"
    assert set(names(await carol.ok(b'LSUB "" *'))) == STANDARD
    await carol.ok(b'SUBSCRIBE "%b"' % inbox)
    await carol.ok(b'SUBSCRIBE "%b"' % inbox)
    assert set(names(await carol.ok(b'LSUB "" *'))) == STANDARD | {inbox}
    assert names(await carol.ok(b'LSUB "" "Other Users/%"')) == [prefix[:-1]]
    assert set(names(await carol.ok(b'LSUB "" %'))) == STANDARD | {b"Other Users"}
    assert set(names(await carol.ok(b'LIST (SUBSCRIBED) "" *'))) == STANDARD | {inbox}
    inside = rb'* LIST (\Noselect \HasChildren) "/" "%b" ("CHILDINFO" ("SUBSCRIBED"))'
    assert await carol.ok(b'LIST (SUBSCRIBED RECURSIVEMATCH) "" "Other%"') == [inside % b"Other Users"]
    assert await carol.ok(b'LIST (SUBSCRIBED RECURSIVEMATCH) "" "Other Users/%"') == [inside % prefix[:-1]]
    # Bob's own are his, whatever carol wants to see.
    await bob.ok(b"UNSUBSCRIBE INBOX")
    await carol.ok(b'UNSUBSCRIBE "%bSent"' % prefix)
    assert set(names(await bob.ok(b'LSUB "" *'))) == STANDARD - {b"INBOX"}
    assert inbox in names(await carol.ok(b'LSUB "" *'))
    # They go with the grant and with the folder.
    await bob.ok(b"CREATE Gone")
    await carol.ok(b'SUBSCRIBE "%bGone"' % prefix)
    await bob.ok(b"DELETE Gone")
    await street.grant("bob", "carol", None)
    await street.grant("bob", "carol", "full")
    carol = await street.client("carol")
    assert set(names(await carol.ok(b'LSUB "" *'))) == STANDARD
    async with street.office.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM shared_subscriptions") == 0


# -- reading and writing


@pytest.mark.covers("RFC 4314 §4", "mail-server:D3", "RFC 3501 §6.3.2")
async def test_who_may_only_read_changes_nothing(street: Street) -> None:
    await street.grant("bob", "carol", "read")
    await street.deliver("bob", mail("one"))
    carol = await street.client("carol")
    lines = await carol.ok(b'SELECT "%bINBOX"' % street.prefix("bob"))
    assert b"* OK [PERMANENTFLAGS ()] Flags permitted" in lines
    await carol.ok(b"FETCH 1 (BODY[] RFC822.TEXT)")
    assert await carol.ok(b"SEARCH UNSEEN") == [b"* SEARCH 1"]
    await carol.ok(b"CLOSE")
    bob = await street.client("bob", b"INBOX")
    assert await bob.ok(b"FETCH 1 FLAGS") == [rb"* 1 FETCH (FLAGS (\Recent))"]


@pytest.mark.covers("mail-server:D9", "RFC 2177")
async def test_idle_in_the_mailbox_of_somebody_else(street: Street) -> None:
    await street.grant("bob", "carol", "full")
    carol, bob = await street.client("carol", street.prefix("bob") + b"INBOX"), await street.client("bob", b"INBOX")
    carol.send(b"i IDLE\r\n")
    assert await carol.line() == b"+ idling"
    await street.deliver("bob", mail("one"))
    assert await carol.line() == b"* 1 EXISTS"
    assert (await carol.line()).endswith(b" RECENT")
    await bob.ok(b"NOOP")
    await bob.ok(rb"STORE 1 +FLAGS (\Flagged)")
    assert rb"FLAGS (\Flagged" in await carol.line()
    # What is of her own mailbox is not told while another is selected.
    await street.deliver("carol", mail("hers"))
    await bob.ok(rb"STORE 1 +FLAGS (\Deleted)")
    assert b"Deleted" in await carol.line()
    await bob.ok(b"EXPUNGE")
    assert await carol.line() == b"* 1 EXPUNGE"
    carol.send(b"DONE\r\n")
    assert (await carol.until(b"i"))[-1] == b"i OK IDLE completed"


@pytest.mark.covers("RFC 9051 §6.3.2", "RFC 5267 §4.3", "RFC 7162 §3.2.5")
async def test_selected_folders_are_called_as_the_session_calls_them(street: Street) -> None:
    await street.grant("bob", "carol", "full")
    await street.deliver("bob", mail("one"))
    carol = await street.client("carol")
    await carol.ok(b"ENABLE IMAP4rev2 QRESYNC")
    lines = await carol.ok(b'SELECT "%bINBOX"' % street.prefix("bob"))
    assert b'* LIST () "/" "%bINBOX"' % street.prefix("bob") in lines
    await carol.ok(b"SEARCH RETURN (ALL UPDATE) UNSEEN")
    await street.deliver("bob", mail("two"))
    assert any(b"ADDTO" in line for line in await carol.ok(b"NOOP"))
    # A URL without a name is of the folder that is selected.
    assert (await carol.ask(b'APPEND INBOX CATENATE (URL ";UID=1")'))[-1].startswith(b"OK [APPENDUID ")
    assert b"* OK [CLOSED] Previous mailbox is closed" in await carol.ok(b"SELECT INBOX")
    assert b"one" in (await carol.ok(b"FETCH 1 BODY.PEEK[HEADER.FIELDS (SUBJECT)]"))[0]


@pytest.mark.covers("RFC 9208 §4.1.2")
async def test_each_mailbox_has_its_quota(street: Street) -> None:
    await street.grant("bob", "carol", "read")
    async with street.office.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = 1048576 WHERE id = $1", street.boxes["bob"].id)
    carol, root = await street.client("carol"), street.prefix("bob")[:-1]
    assert await carol.ok(b'GETQUOTAROOT "%b/INBOX"' % root) == [
        b'* QUOTAROOT "%b/INBOX" "%b"' % (root, root),
        b'* QUOTA "%b" (STORAGE 0 1024)' % root,
    ]
    assert await carol.ok(b'GETQUOTA "%b"' % root) == [b'* QUOTA "%b" (STORAGE 0 1024)' % root]
    assert await carol.ok(b'GETQUOTA ""') == [b'* QUOTA "" ()']
    assert (await carol.ask(b'GETQUOTA "%b/INBOX"' % root))[-1].startswith(b"NO [NONEXISTENT]")
    bob = await street.client("carol", box="bob")
    assert (await bob.ask(b'GETQUOTA "%b"' % root))[-1].startswith(b"NO [NONEXISTENT]")
    assert await bob.ok(b'GETQUOTA ""') == [b'* QUOTA "" (STORAGE 0 1024)']


@pytest.mark.covers("RFC 5464 §3.2")
async def test_private_notes_are_of_the_person_in_any_mailbox(street: Street) -> None:
    await street.grant("bob", "carol", "full")
    carol, bob = await street.client("carol"), await street.client("bob")
    there = street.prefix("bob") + b"INBOX"
    await carol.ok(b'SETMETADATA "%b" (/private/comment "hers" /shared/comment "for all")' % there)
    wanted = b"(/private/comment /shared/comment)"
    (line,) = await carol.ok(b'GETMETADATA "%b" %b' % (there, wanted))
    assert line.endswith(b'(/private/comment "hers" /shared/comment "for all")')
    (line,) = await bob.ok(b"GETMETADATA INBOX " + wanted)
    assert b'/shared/comment "for all"' in line
    assert b"/private/comment NIL" in line


@pytest.mark.covers("decisions:A6", "mail-server:D1")
@pytest.mark.parametrize("role", ["read", "full"])
async def test_quarantine_of_an_agent_is_for_those_who_review(street: Street, role: str) -> None:
    await street.office.boxes.create_folder(street.ref("robot"), "Quarantine")
    await street.grant("robot", "carol", role)
    carol, folder = await street.client("carol"), street.prefix("robot") + b"Quarantine"
    assert (folder in names(await carol.ok(b'LIST "" *'))) == (role == "full")
    said = (await carol.ask(b'SELECT "%b"' % folder))[-1]
    assert said.startswith(b"OK" if role == "full" else b"NO [NONEXISTENT]")


# -- what it costs


@pytest.mark.covers("decisions:D9")
async def test_who_shares_nothing_pays_one_look_up(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    reached = store.reached

    async def counted(conn: Any, people: Any, limit: int) -> Any:
        asked.append(list(people))
        return await reached(conn, people, limit)

    monkeypatch.setattr(store, "reached", counted)
    await street.deliver("carol", mail())
    client = await street.client("carol")
    for command in (b"SELECT INBOX", b"FETCH 1 BODY[]", b"STATUS Sent (MESSAGES)", b'LIST "" INBOX', b"COPY 1 Archive"):
        await client.ok(command)
    assert asked == []
    another = await street.client("carol")
    for one in (client, another, client):
        await one.ok(b'LIST "" *')
        await one.ok(b'LSUB "" *')
        await one.ok(b'LIST "" "Other Users/%"')
    assert asked == [[street.people["carol"].id]]
