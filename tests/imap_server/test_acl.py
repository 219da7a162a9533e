"""Rights as RFC 4314 has them: grants of a mailbox, and what cannot be said of them."""

from __future__ import annotations

import asyncio
import imaplib
from collections.abc import AsyncIterator
from typing import Any

import imapclient
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap import acl
from postroom.imap.commands import StoreMode
from postroom.servers.imap.boxes import OF_ROLE
from tests.imap_server.neighbours import PASSWORDS, Street, street_of
from tests.imap_server.test_shared import names

READ, FULL, OWNER = b"lr", b"lrswipkxtecd", b"lrswipkxteacd"


@pytest.fixture
async def street(office: Any) -> AsyncIterator[Street]:
    async with street_of(office) as made:
        yield made


@given(st.frozensets(st.sampled_from(acl.RIGHTS)), st.frozensets(st.sampled_from(acl.RIGHTS)))
@pytest.mark.covers("RFC 4314 §2.1.1", "RFC 4314 §3.1")
def test_rights_as_sets(now: frozenset[str], given_: frozenset[str]) -> None:
    written = acl.shown(now)
    assert set(written) - {"c", "d"} == now
    assert ("c" in written) == bool(now & {"k", "x"})
    assert ("d" in written) == bool(now & {"e", "t"})
    added = acl.changed(now, StoreMode.ADD, given_)
    assert added == now | given_
    assert acl.changed(added, StoreMode.REMOVE, given_) == now - given_
    assert acl.changed(now, StoreMode.REPLACE, given_) == given_


def test_each_role_has_more_than_the_one_before() -> None:
    read, full, owner = (OF_ROLE[role] for role in OF_ROLE)
    assert read < full < owner == frozenset(acl.RIGHTS)
    assert "s" not in read


@pytest.mark.covers("RFC 4314 §3.5", "RFC 4314 §3.8")
@pytest.mark.parametrize(("role", "rights"), [("read", READ), ("full", FULL), ("owner", OWNER)])
async def test_my_rights(street: Street, role: str, rights: bytes) -> None:
    await street.grant("bob", "carol", role)
    theirs, hers = await street.client("carol"), await street.client("carol", box="bob")
    name = street.prefix("bob") + b"Sent"
    assert await theirs.ok(b'MYRIGHTS "%b"' % name) == [b'* MYRIGHTS "%b" %b' % (name, rights)]
    assert await hers.ok(b"MYRIGHTS Sent") == [b"* MYRIGHTS Sent " + rights]
    assert await theirs.ok(b"MYRIGHTS inbox") == [b"* MYRIGHTS INBOX " + OWNER]
    assert (await theirs.ask(b"MYRIGHTS Missing"))[-1].startswith(b"NO [NONEXISTENT]")


@pytest.mark.parametrize(("permissions", "rights"), [(("messages:read",), b"lr"), (("messages:write",), b"lrswikc")])
async def test_rights_of_keys(street: Street, permissions: tuple[str, ...], rights: bytes) -> None:
    client = await street.office.connect()
    key = await street.office.new_key("messages:read", *permissions)
    await client.ok(b"LOGIN %b %b" % (street.address("robot"), key.encode()))
    assert await client.ok(b"MYRIGHTS INBOX") == [b"* MYRIGHTS INBOX " + rights]
    for command in (b"GETACL INBOX", b"SETACL INBOX x lr", b"DELETEACL INBOX x", b"LISTRIGHTS INBOX x"):
        assert (await client.ask(command))[-1].startswith(b"NO [NOPERM]"), command


@pytest.mark.covers("RFC 4314 §3.1", "RFC 4314 §3.2", "RFC 4314 §3.3", "RFC 4314 §3.6", "decisions:A2")
async def test_sharing(street: Street) -> None:
    bob = await street.client("bob")
    carol, me = street.address("carol"), street.address("bob")
    assert await bob.ok(b"GETACL Sent") == [b"* ACL Sent %b %b" % (me, OWNER)]
    for word, rights in (
        (b"lr", READ),
        (b"+swipkxte", FULL),
        (b"-swipcd", READ),
        (b"rl", READ),
        (b"lrswipcd", FULL),
        (b"+lr", FULL),
        (b"-a", FULL),
        (b"lrswipcda", OWNER),
        (b"-a", FULL),
    ):
        await bob.ok(b"SETACL inbox %b %b" % (carol, word))
        (line,) = await bob.ok(b"GETACL INBOX")
        # Who owns two mailboxes is called by the one that is theirs alone.
        assert b"%b %b" % (carol, rights) in line, word
    hers = await street.client("carol")
    assert street.prefix("bob") + b"INBOX" in names(await hers.ok(b'LIST "" *'))
    await bob.ok(b"DELETEACL INBOX " + carol)
    await bob.ok(b"DELETEACL INBOX " + carol)
    assert await bob.ok(b"GETACL INBOX") == [b"* ACL INBOX %b %b" % (me, OWNER)]
    await bob.ok(b"SETACL INBOX %b lr" % carol.upper())
    await bob.ok(b'SETACL INBOX %b ""' % carol)
    assert await bob.ok(b"GETACL INBOX") == [b"* ACL INBOX %b %b" % (me, OWNER)]
    async with street.office.db.acquire() as conn:
        rows = await conn.fetch("SELECT action, actor_person FROM audit_log WHERE action LIKE 'grant.%' ORDER BY id")
    by_bob = [row["action"] for row in rows if row["actor_person"] == street.people["bob"].public_id]
    assert by_bob[-3:] == ["grant.remove", "grant.put", "grant.remove"]


@pytest.mark.covers("RFC 4314 §3.1", "RFC 4314 §3.4", "RFC 4314 §2")
async def test_what_cannot_be_said_is_refused(street: Street) -> None:
    bob, carol = await street.client("bob"), street.address("carol")
    for word in (b"l", b"r", b"lrs", b"lrswite", b"lra", b"a", b"+s", b"lrswipkxt"):
        said = (await bob.ask(b"SETACL INBOX %b %b" % (carol, word)))[-1]
        assert said.startswith(b"NO [CANNOT] These rights cannot be granted"), word
    for identifier in (b"anyone", b"Anyone", b"anonymous", b"-" + carol, b"$group", b'"-"'):
        for command in (b"SETACL INBOX %b lr", b"DELETEACL INBOX %b", b"LISTRIGHTS INBOX %b"):
            said = (await bob.ask(command % identifier))[-1]
            assert said.startswith(b"NO [CANNOT] "), (command, identifier)
    # One folder is not to be shared, when all of them would be.
    for command in (b"SETACL Sent %b lr", b"DELETEACL Sent %b"):
        assert (await bob.ask(command % carol))[-1].startswith(b"NO [CANNOT] Rights are of the whole mailbox"), command
    for word in (b"q", b"LR", b"lr+"):
        assert (await bob.ask(b"SETACL INBOX %b %b" % (carol, word)))[-1].startswith(b"BAD "), word
    assert len((await bob.ok(b"GETACL INBOX"))[0].split()) == 5
    assert (await bob.ask(b"SETACL INBOX %b lr" % street.address("bob")))[-1].startswith(b"NO [CANNOT] A mailbox keeps")
    assert (await bob.ask(b"DELETEACL INBOX " + street.address("bob")))[-1].startswith(b"NO [CANNOT] A mailbox keeps")


@pytest.mark.covers("RFC 4314 §6", "SEC-2")
async def test_nobody_learns_of_other_tenants_people(street: Street) -> None:
    bob = await street.client("bob")
    said = set()
    for identifier in (street.address("dora"), street.people["dora"].public_id.encode(), b"nobody@agents.example"):
        for command in (b"SETACL INBOX %b lr", b"SETACL INBOX %b -lr", b"DELETEACL INBOX %b"):
            said.add((await bob.ask(command % identifier))[-1])
        assert (await bob.ok(b"LISTRIGHTS INBOX " + identifier)) == [
            b'* LISTRIGHTS INBOX %b "" lr swipkxtecd a' % identifier
        ]
    assert len(said) == 1
    assert said.pop().startswith(b"NO [CANNOT] No such person")


@pytest.mark.covers("RFC 4314 §4")
@pytest.mark.parametrize("role", ["read", "full"])
async def test_only_owners_administer(street: Street, role: str) -> None:
    await street.grant("bob", "carol", role)
    there = street.prefix("bob") + b"INBOX"
    for client, name in (
        (await street.client("carol"), b'"%b"' % there),
        (await street.client("carol", box="bob"), b"INBOX"),
    ):
        for command in (b"GETACL %b", b"LISTRIGHTS %b x", b"SETACL %b x lr", b"DELETEACL %b x"):
            assert (await client.ask(command % name))[-1].startswith(b"NO [NOPERM]"), command


async def test_an_owner_of_somebody_elses_mailbox_administers_it(street: Street) -> None:
    await street.grant("dora", "carol", "owner")
    carol, there = await street.client("carol"), street.prefix("dora") + b"INBOX"
    # It is people of that tenant whom it is shared with: bob is of hers, not of this one.
    said = (await carol.ask(b'SETACL "%b" %b lr' % (there, street.address("bob"))))[-1]
    assert said.startswith(b"NO [CANNOT] No such person")
    await carol.ok(b'SETACL "%b" %b lr' % (there, street.people["dora"].public_id.encode()))
    (line,) = await carol.ok(b'GETACL "%b"' % there)
    assert line.endswith(b"%b %b" % (street.people["dora"].public_id.encode(), READ)) or street.address("dora") in line


async def test_who_owns_it_no_more_changes_nothing(street: Street) -> None:
    """Also in the moment before the session is told."""
    await street.grant("bob", "carol", "owner")
    carol, there = await street.client("carol"), street.prefix("bob") + b"INBOX"
    await carol.ok(b'MYRIGHTS "%b"' % there)
    bob = street.boxes["bob"]
    async with street.office.db.acquire() as conn:
        await conn.execute(
            "UPDATE mailbox_grants SET role = 'full' WHERE mailbox_id = $1 AND person_id = $2",
            *(bob.id, street.people["carol"].id),
        )
    said = (await carol.ask(b'SETACL "%b" %b lr' % (there, street.address("carol"))))[-1]
    assert said.startswith(b"NO [NOPERM]")


@pytest.mark.covers("RFC 8440")
async def test_list_my_rights(street: Street) -> None:
    await street.grant("bob", "carol", "read")
    client = await street.client("carol")
    lines = await client.ok(b'LIST "" ("%%" "%bSent") RETURN (MYRIGHTS)' % street.prefix("bob"))
    told = [line for line in lines if line.startswith(b"* MYRIGHTS ")]
    assert len(told) == 7, "not of names that are no folders"
    assert told[-1] == b'* MYRIGHTS "%bSent" lr' % street.prefix("bob")
    assert lines[lines.index(told[0]) - 1].startswith(b"* LIST ")


# -- programs that others wrote


@pytest.mark.covers("RFC 4314 §3", "quality:story")
async def test_imaplib_and_imapclient(street: Street) -> None:
    listener = await street.office.listen()
    bob, carol = street.address("bob").decode(), street.address("carol").decode()
    there = street.prefix("bob").decode()

    def share() -> None:
        with imaplib.IMAP4("127.0.0.1", listener.port, timeout=20) as box:
            box.login(bob, PASSWORDS["bob"])
            assert {"ACL", "RIGHTS=KXTE", "LIST-MYRIGHTS"} <= set(box.capability()[1][0].decode().upper().split())
            assert box.setacl("INBOX", carol, "lrswipkxte")[0] == "OK"
            assert carol.encode() in box.getacl("INBOX")[1][0]
            assert box.myrights("INBOX")[1] == [b"INBOX " + OWNER]
            assert box.setacl("INBOX", "anyone", "lr")[0] == "NO"

    def use() -> None:
        with imapclient.IMAPClient("127.0.0.1", listener.port, ssl=False, timeout=20) as box:
            box.login(carol, PASSWORDS["carol"])
            assert box.namespace().other == (("Other Users/", "/"),)
            assert there + "INBOX" in {name for _, _, name in box.list_folders()}
            assert box.find_special_folder(b"\\Sent") == "Sent"
            box.append("INBOX", b"Subject: x\r\n\r\ny\r\n", flags=[imapclient.FLAGGED])
            box.select_folder("INBOX")
            box.move([1], there + "INBOX")
            assert box.search() == []
            assert box.select_folder(there + "INBOX")[b"EXISTS"] == 1
            assert imapclient.FLAGGED in box.get_flags([1])[1]
            box.create_folder(there + "Neu & schön")
            box.copy([1], there + "Neu & schön")
            assert box.folder_status(there + "Neu & schön", ["MESSAGES"]) == {b"MESSAGES": 1}

    def take_back() -> None:
        with imaplib.IMAP4("127.0.0.1", listener.port, timeout=20) as box:
            box.login(bob, PASSWORDS["bob"])
            assert box.deleteacl("INBOX", carol)[0] == "OK"
            assert box.getacl("INBOX")[1] == [f"INBOX {bob} ".encode() + OWNER]

    await asyncio.to_thread(share)
    await asyncio.to_thread(use)
    await asyncio.to_thread(take_back)
