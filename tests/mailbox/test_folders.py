"""The tree of folders: the standard set, making, renaming, deleting, subscribing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox import rules
from postroom.mailbox.models import STANDARD_FOLDERS, Folder, SpecialUse
from postroom.mailbox.rules import LimitExceeded

from .seed import World, make_world


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


async def names(world: World) -> list[str]:
    return [folder.name for folder in await world.boxes.list_folders(world.ref)]


async def with_role(world: World, role: SpecialUse) -> Folder:
    (found,) = [folder for folder in await world.boxes.list_folders(world.ref) if folder.special_use is role]
    return found


async def refused(code: str, awaitable: object) -> None:
    with pytest.raises(PostroomError) as caught:
        await awaitable  # type: ignore[misc] # every case is a coroutine
    assert caught.value.code == code


async def make_again(world: World) -> None:
    async with world.db.transaction() as conn:
        await world.boxes.create_mailbox_rows(conn, world.ref, identity_id="unused", tenant_id="unused")


@pytest.mark.covers("mail-server:D2", "decisions:B21")
async def test_the_standard_set(world: World) -> None:
    folders = await world.boxes.list_folders(world.ref)
    assert [(f.name, f.special_use) for f in folders] == sorted(
        STANDARD_FOLDERS, key=lambda pair: rules.folder_order(pair[0])
    )
    assert all(f.subscribed and f.uid_next == 1 and f.message_count == 0 for f in folders)
    now = int(world.clock.now().timestamp())
    assert sorted(f.uid_validity for f in folders) == list(range(now, now + len(folders)))


@pytest.mark.covers("mail-server:D2")
async def test_making_the_standard_set_again_makes_only_what_is_missing(world: World) -> None:
    before = await world.boxes.list_folders(world.ref)
    seq = await world.value("SELECT change_seq FROM mailboxes WHERE tenant_id = $1 AND id = $2")
    await make_again(world)
    assert await world.boxes.list_folders(world.ref) == before
    assert await world.value("SELECT change_seq FROM mailboxes WHERE tenant_id = $1 AND id = $2") == seq
    sent = await with_role(world, SpecialUse.SENT)
    await world.boxes.rename_folder(world.ref, sent.id, "Gesendet")
    await world.rows("DELETE FROM folders WHERE tenant_id = $1 AND mailbox_id = $2 AND name IN ('Junk', 'Archive')")
    await world.boxes.create_folder(world.ref, "Archive")
    await make_again(world)
    assert await names(world) == ["INBOX", "Archive", "Drafts", "Gesendet", "Junk", "Trash"]
    assert (await with_role(world, SpecialUse.ARCHIVE)).name == "Archive"


@pytest.mark.covers("mail-server:D2")
async def test_creating_makes_parents(world: World) -> None:
    made = await world.boxes.create_folder(world.ref, "a/b/c")
    assert made.name == "a/b/c"
    assert made.public_id.startswith("fld_")
    assert {"a", "a/b", "a/b/c"} <= set(await names(world))
    assert await world.boxes.folder(world.ref, made.name) == made
    kinds = await world.rows(
        "SELECT kind, folder FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 ORDER BY seq DESC LIMIT 3"
    )
    assert [row["kind"] for row in kinds] == ["folder_created"] * 3
    assert kinds[0]["folder"] == made.public_id
    await refused("folder_exists", world.boxes.create_folder(world.ref, "a/b"))
    await refused("folder_exists", world.boxes.create_folder(world.ref, "inbox"))
    await refused("invalid_request", world.boxes.create_folder(world.ref, "a//b"))
    child = await world.boxes.create_folder(world.ref, "Inbox/lists")
    assert child.name == "INBOX/lists"
    assert (await world.boxes.folder(world.ref, "iNBOX/lists")).id == child.id
    await refused("folder_not_found", world.boxes.folder(world.ref, "nowhere"))
    await refused("folder_not_found", world.boxes.folder(world.ref, "not//possible"))


@pytest.mark.covers("mail-server:D2")
async def test_one_folder_of_a_special_use(world: World) -> None:
    made = await world.boxes.create_folder(world.ref, "Everything", SpecialUse.ALL)
    assert made.special_use is SpecialUse.ALL
    await refused("invalid_request", world.boxes.create_folder(world.ref, "More", SpecialUse.ALL))
    await refused("invalid_request", world.boxes.create_folder(world.ref, "More", SpecialUse.INBOX))


async def test_folders_have_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_FOLDERS", 8)
    with pytest.raises(LimitExceeded):
        await world.boxes.create_folder(world.ref, "a/b/c")
    made = await world.boxes.create_folder(world.ref, "a/b")
    with pytest.raises(LimitExceeded):
        await world.boxes.rename_folder(world.ref, made.id, "c/d")


@pytest.mark.covers("mail-server:D2", "mail-server:D4")
async def test_renaming_takes_what_is_below(world: World) -> None:
    top = await world.boxes.create_folder(world.ref, "a%_")
    child = await world.boxes.create_folder(world.ref, "a%_/x")
    await world.boxes.create_folder(world.ref, "axx/other")
    renamed = await world.boxes.rename_folder(world.ref, top.id, "new/ä")
    assert (renamed.id, renamed.name, renamed.uid_validity) == (top.id, "new/ä", top.uid_validity)
    moved = await world.boxes.folder(world.ref, "new/ä/x")
    assert (moved.id, moved.uid_validity, moved.public_id) == (child.id, child.uid_validity, child.public_id)
    assert "axx/other" in await names(world)
    log = await world.rows(
        "SELECT kind, folder FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 ORDER BY seq DESC LIMIT 3"
    )
    assert [row["kind"] for row in log] == ["folder_renamed", "folder_renamed", "folder_created"]
    assert log[0]["folder"] == child.public_id


@pytest.mark.covers("mail-server:D2")
async def test_renames_that_are_refused(world: World) -> None:
    inbox = await world.folder("INBOX")
    a = await world.boxes.create_folder(world.ref, "a")
    await world.boxes.create_folder(world.ref, "a/" + "x" * 250)
    await refused("invalid_request", world.boxes.rename_folder(world.ref, inbox, "Other"))
    await refused("invalid_request", world.boxes.rename_folder(world.ref, a.id, "a/b"))
    await refused("folder_exists", world.boxes.rename_folder(world.ref, a.id, "inbox"))
    await refused("folder_exists", world.boxes.rename_folder(world.ref, a.id, "a"))
    await refused("invalid_request", world.boxes.rename_folder(world.ref, a.id, "/".join(["y" * 200] * 4)))
    # A sum is no key.
    await refused("folder_not_found", world.boxes.rename_folder(world.ref, inbox + 10_000, "b"))  # type: ignore[arg-type]


@pytest.mark.covers("mail-server:D2", "mail-server:D4", "decisions:B21")
async def test_deleting(world: World) -> None:
    a = await world.boxes.create_folder(world.ref, "a/b")
    top = await world.boxes.folder(world.ref, "a")
    m = await world.add("a/b")
    await refused("folder_not_empty", world.boxes.delete_folder(world.ref, top.id))
    for name, _ in STANDARD_FOLDERS:
        await refused("invalid_request", world.boxes.delete_folder(world.ref, await world.folder(name)))
    await world.boxes.delete_folder(world.ref, a.id)
    assert world.blobs.deleted == [m.blob_key]
    assert await world.value("SELECT count(*) FROM messages WHERE tenant_id = $1 AND mailbox_id = $2") == 0
    log = await world.rows(
        "SELECT kind, uid FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 ORDER BY seq DESC LIMIT 2"
    )
    assert [(row["kind"], row["uid"]) for row in log] == [("folder_removed", None), ("removed", m.uid)]
    again = await world.boxes.create_folder(world.ref, "a/b")
    assert again.uid_validity > a.uid_validity
    world.clock.set(world.clock.now() - timedelta(days=1))
    await world.boxes.delete_folder(world.ref, again.id)
    assert (await world.boxes.create_folder(world.ref, "a/b")).uid_validity > again.uid_validity


@pytest.mark.covers("decisions:B14", "mail-server:D2")
async def test_deleting_a_large_folder_goes_in_steps(world: World) -> None:
    folder = await world.boxes.create_folder(world.ref, "big")
    await world.fill("big", 2300)
    world.told.clear()
    await world.boxes.delete_folder(world.ref, folder.id)
    assert len(world.told) == 3
    assert len(set(world.blobs.deleted)) == 2300
    sizes = await world.rows(
        "SELECT modseq, count(*) FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 AND kind = 'removed' "
        "GROUP BY 1 ORDER BY 1"
    )
    assert [row["count"] for row in sizes] == [1000, 1000, 300]
    assert await world.value("SELECT used_bytes FROM mailboxes WHERE tenant_id = $1 AND id = $2") == 0


async def test_subscribing_is_told_once(world: World) -> None:
    folder = await world.folder("Sent")
    world.told.clear()
    await world.boxes.subscribe(world.ref, folder, False)
    await world.boxes.subscribe(world.ref, folder, False)
    assert len(world.told) == 1
    assert not (await world.boxes.folder(world.ref, "Sent")).subscribed
    # A sum is no key.
    await refused("folder_not_found", world.boxes.subscribe(world.ref, folder + 10_000))  # type: ignore[arg-type]


@pytest.mark.covers("mail-server:D5")
async def test_recent_goes_to_one_session(world: World) -> None:
    inbox = await world.folder("INBOX")
    assert list(await world.boxes.mark_recent(world.ref, inbox)) == []
    for _ in range(3):
        await world.add()
    modseq = (await world.boxes.folder(world.ref, "INBOX")).highest_modseq
    assert await world.boxes.mark_recent(world.ref, inbox) == range(1, 4)
    assert list(await world.boxes.mark_recent(world.ref, inbox)) == []
    await world.add()
    assert await world.boxes.mark_recent(world.ref, inbox) == range(4, 5)
    assert (await world.boxes.folder(world.ref, "INBOX")).highest_modseq == modseq + 1


@pytest.mark.covers("decisions:B12")
async def test_folders_of_another_mailbox_do_not_exist(world: World) -> None:
    other = await make_world(world.db, world.clock, world.ids)
    theirs = await other.boxes.create_folder(other.ref, "private")
    mine = await world.folder("INBOX")
    for awaitable in (
        world.boxes.rename_folder(world.ref, theirs.id, "taken"),
        world.boxes.delete_folder(world.ref, theirs.id),
        world.boxes.subscribe(world.ref, theirs.id, False),
        world.boxes.copy(world.ref, mine, [1], theirs.id),
        world.boxes.move(world.ref, theirs.id, [1], mine),
        world.boxes.expunge(world.ref, theirs.id, [1]),
        world.boxes.reads.folder_snapshot(world.ref, theirs.id),
    ):
        await refused("folder_not_found", awaitable)
    assert list(await world.boxes.mark_recent(world.ref, theirs.id)) == []
