"""Any sequence of operations, against a model of a mailbox that is a few dictionaries; the log and every counter are
checked on the way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.models import FolderKey
from postroom.mailbox.rules import FlagMode

from .seed import Seeded, World, make_world

T = TypeVar("T")
WORDS = ("$seen", "$deleted", "$flagged", "work", "later")
FLAG_SETS = st.frozensets(st.sampled_from(WORDS), max_size=3)


@dataclass(slots=True)
class Placement:
    message: str
    flags: frozenset[str]
    saved_at: datetime
    modseq: int = 0


@dataclass(slots=True)
class Model:
    """What the mailbox should hold."""

    folders: dict[FolderKey, str] = field(default_factory=dict)
    uid_next: dict[FolderKey, int] = field(default_factory=dict)
    messages: dict[str, tuple[Seeded, bool, int]] = field(default_factory=dict)
    """Message, whether it is inbound, size."""
    places: dict[tuple[FolderKey, int], Placement] = field(default_factory=dict)

    def uids(self, folder: FolderKey) -> list[int]:
        return sorted(uid for f, uid in self.places if f == folder)

    def of(self, message: str) -> list[tuple[FolderKey, int]]:
        return sorted(
            (key for key, place in self.places.items() if place.message == message),
            key=lambda key: (self.places[key].saved_at, *key),
        )

    def put(self, folder: FolderKey, message: str, flags: frozenset[str], now: datetime) -> int:
        uid = self.uid_next[folder]
        self.uid_next[folder] = uid + 1
        self.places[folder, uid] = Placement(message, flags, now)
        return uid

    def drop(self, key: tuple[FolderKey, int]) -> None:
        message = self.places.pop(key).message
        if not self.of(message):
            del self.messages[message]

    def change(self, keys: list[tuple[FolderKey, int]], add: frozenset[str], remove: frozenset[str]) -> None:
        for key in keys:
            self.places[key] = replace(self.places[key], flags=(self.places[key].flags - remove) | add)

    def unread(self, message: str) -> bool:
        return self.messages[message][1] and "$seen" not in self.places[self.of(message)[0]].flags


async def unless(codes: Collection[str], attempt: Awaitable[T]) -> T | None:
    """The outcome; None for a refusal of one of `codes`."""
    try:
        return await attempt
    except PostroomError as error:
        if error.code not in codes:
            raise
        return None


class Driver:
    """Does the same to the mailbox and to the model."""

    def __init__(self, world: World, data: st.DataObject) -> None:
        self.world, self.data, self.model = world, data, Model()
        self.threads: list[Seeded] = []

    async def start(self) -> None:
        for folder in await self.world.boxes.list_folders(self.world.ref):
            self.model.folders[folder.id] = folder.name
            self.model.uid_next[folder.id] = 1

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def a_folder(self) -> FolderKey:
        key: FolderKey = self.draw(st.sampled_from(sorted(self.model.folders)))
        return key

    def a_source(self) -> FolderKey:
        """A folder, rather one that holds something."""
        full = sorted({folder for folder, _ in self.model.places})
        key: FolderKey = self.draw(st.sampled_from(full)) if full else self.a_folder()
        return key

    def some_uids(self, folder: FolderKey) -> list[int]:
        uids: list[int] = self.draw(st.lists(st.sampled_from([*self.model.uids(folder), 4_000_000]), max_size=6))
        return uids

    def a_message(self) -> str | None:
        names = sorted(self.model.messages)
        return self.draw(st.sampled_from(names)) if names else None

    async def add(self) -> None:
        folder, flags = self.a_folder(), self.draw(FLAG_SETS)
        inbound = self.draw(st.booleans())
        live = {seeded.thread for seeded, _, _ in self.model.messages.values()}
        candidates = [None, *(seeded for seeded in self.threads if seeded.thread in live)]
        size = self.draw(st.integers(1, 5000))
        seeded = await self.world.add(
            self.model.folders[folder],
            flags=sorted(flags),
            direction="inbound" if inbound else "outbound",
            thread=self.draw(st.sampled_from(candidates)),
            size=size,
        )
        self.threads.append(seeded)
        self.model.messages[seeded.id] = (seeded, inbound, size)
        assert self.model.put(folder, seeded.id, flags, self.world.clock.now()) == seeded.uid

    async def store(self) -> None:
        folder = self.a_source()
        uids, mode, flags = self.some_uids(folder), self.draw(st.sampled_from(FlagMode)), self.draw(FLAG_SETS)
        since = self.draw(st.none() | st.integers(1, 30))
        before = await self._modseqs()
        answer = await self.world.boxes.set_flags(self.world.ref, folder, uids, mode, flags, since)
        assert [row.uid for row in answer] == sorted(uid for uid in set(uids) if (folder, uid) in self.model.places)
        for row in answer:
            place = self.model.places[folder, row.uid]
            if since is None or before[folder, row.uid] <= since:
                place.flags = {
                    FlagMode.ADD: place.flags | flags,
                    FlagMode.REMOVE: place.flags - flags,
                    FlagMode.REPLACE: flags,
                }[mode]
            assert set(row.flags) == place.flags
        after = await self._modseqs()
        assert {row.uid: row.modseq for row in answer} == {row.uid: after[folder, row.uid] for row in answer}

    async def copy(self) -> None:
        source, target = self.a_source(), self.a_folder()
        uids = self.some_uids(source)
        result = await self.world.boxes.copy(self.world.ref, source, uids, target)
        expected = []
        for uid in sorted(uid for uid in set(uids) if (source, uid) in self.model.places):
            place = self.model.places[source, uid]
            expected.append((uid, self.model.put(target, place.message, place.flags, self.world.clock.now())))
        assert list(result.pairs) == expected

    async def move(self) -> None:
        source, target = self.a_source(), self.a_folder()
        uids = self.some_uids(source)
        result = await self.world.boxes.move(self.world.ref, source, uids, target)
        expected = []
        for uid in sorted(uid for uid in set(uids) if (source, uid) in self.model.places):
            place = self.model.places.pop((source, uid))
            expected.append((uid, self.model.put(target, place.message, place.flags, self.world.clock.now())))
        assert list(result.pairs) == expected

    async def expunge(self) -> None:
        folder = self.a_source()
        uids = self.draw(st.none() | st.just(self.some_uids(folder)))
        gone = await self.world.boxes.expunge(self.world.ref, folder, uids)
        expected = [
            uid
            for uid in self.model.uids(folder)
            if "$deleted" in self.model.places[folder, uid].flags and (uids is None or uid in uids)
        ]
        assert gone == expected
        for uid in gone:
            self.model.drop((folder, uid))

    async def edit_message(self) -> None:
        if message := self.a_message():
            add, remove = self.draw(FLAG_SETS), self.draw(FLAG_SETS)
            await self.world.boxes.change_message(self.world.ref, message, add=add, remove=remove)
            self.model.change(self.model.of(message), add, remove)

    async def edit_thread(self) -> None:
        if message := self.a_message():
            add, remove = self.draw(FLAG_SETS), self.draw(FLAG_SETS)
            thread = self.model.messages[message][0].thread
            await self.world.boxes.change_thread(self.world.ref, thread, add=add, remove=remove)
            for other, (seeded, _, _) in self.model.messages.items():
                if seeded.thread == thread:
                    self.model.change(self.model.of(other), add, remove)

    async def move_message(self) -> None:
        if message := self.a_message():
            target = self.a_folder()
            await self.world.boxes.move_messages(self.world.ref, [message], target)
            places = self.model.of(message)
            if all(folder != target for folder, _ in places):
                flags = self.model.places[places[0]].flags
                self.model.put(target, message, flags, self.world.clock.now())
            for key in places:
                if key[0] != target:
                    self.model.drop(key)

    async def copy_message(self) -> None:
        if message := self.a_message():
            target = self.a_folder()
            await self.world.boxes.copy_messages(self.world.ref, [message], target)
            places = self.model.of(message)
            if all(folder != target for folder, _ in places):
                self.model.put(target, message, self.model.places[places[0]].flags, self.world.clock.now())

    async def expunge_message(self) -> None:
        if message := self.a_message():
            await self.world.remove(message)
            for key in self.model.of(message):
                self.model.drop(key)

    async def create_folder(self) -> None:
        name = self.draw(st.sampled_from(["A", "A/B", "A/B/C", "Inbox/D", "E"]))
        folder = await unless(["folder_exists"], self.world.boxes.create_folder(self.world.ref, name))
        if folder is None:
            return
        assert folder.name not in self.model.folders.values()
        for made in await self.world.boxes.list_folders(self.world.ref):
            if made.id not in self.model.folders:
                self.model.folders[made.id], self.model.uid_next[made.id] = made.name, 1

    async def rename_folder(self) -> None:
        folder = self.a_folder()
        name = self.draw(st.sampled_from(["A", "F", "F/G", "INBOX/H", "Sent/I"]))
        refusals = ["folder_exists", "invalid_request"]
        if await unless(refusals, self.world.boxes.rename_folder(self.world.ref, folder, name)) is None:
            return
        old = self.model.folders[folder]
        for key, path in self.model.folders.items():
            if path == old or path.startswith(old + "/"):
                self.model.folders[key] = name + path[len(old) :]
        for made in await self.world.boxes.list_folders(self.world.ref):
            if made.id not in self.model.folders:
                self.model.folders[made.id], self.model.uid_next[made.id] = made.name, 1

    async def delete_folder(self) -> None:
        folder = self.a_folder()
        await unless(["folder_not_empty", "invalid_request"], self.world.boxes.delete_folder(self.world.ref, folder))
        if any(left.id == folder for left in await self.world.boxes.list_folders(self.world.ref)):
            return
        for uid in self.model.uids(folder):
            self.model.drop((folder, uid))
        del self.model.folders[folder], self.model.uid_next[folder]

    async def pass_time(self) -> None:
        if self.draw(st.booleans()):
            self.world.clock.advance(self.draw(st.integers(0, 5)))
        else:
            self.world.clock.set(self.world.clock.now() - timedelta(seconds=self.draw(st.integers(1, 60))))

    async def _modseqs(self) -> dict[tuple[FolderKey, int], int]:
        rows = await self.world.rows(
            "SELECT folder_id, uid, modseq FROM placements WHERE tenant_id = $1 AND mailbox_id = $2"
        )
        return {(row["folder_id"], row["uid"]): row["modseq"] for row in rows}

    # -- what must hold after every step -------------------------------------------------------------------------------

    async def check(self) -> None:
        world, model = self.world, self.model
        rows = await world.rows(
            "SELECT p.folder_id, p.uid, p.flags, p.modseq, m.public_id FROM placements p JOIN messages m "
            "ON m.tenant_id = p.tenant_id AND m.id = p.message_id WHERE p.tenant_id = $1 AND p.mailbox_id = $2"
        )
        stored = {(r["folder_id"], r["uid"]): (r["public_id"], frozenset(r["flags"])) for r in rows}
        assert stored == {key: (place.message, place.flags) for key, place in model.places.items()}
        assert all(len(r["flags"]) == len(set(r["flags"])) for r in rows)
        folders = await world.boxes.list_folders(world.ref)
        assert {folder.id: folder.name for folder in folders} == model.folders
        for folder in folders:
            places = [place for (key, _), place in model.places.items() if key == folder.id]
            assert folder.uid_next == model.uid_next[folder.id]
            assert folder.message_count == len(places)
            assert folder.unseen_count == sum("$seen" not in place.flags for place in places)
            assert folder.deleted_count == sum("$deleted" in place.flags for place in places)
            assert folder.total_bytes == sum(model.messages[place.message][2] for place in places)
        await self._check_messages()
        await self._check_log(
            {(r["folder_id"], r["uid"]): r["modseq"] for r in rows}, {f.id: f.highest_modseq for f in folders}
        )

    async def _check_messages(self) -> None:
        world, model = self.world, self.model
        used = await world.value("SELECT used_bytes FROM mailboxes WHERE tenant_id = $1 AND id = $2")
        assert used == sum(size for _, _, size in model.messages.values())
        kept = await world.rows("SELECT public_id FROM messages WHERE tenant_id = $1 AND mailbox_id = $2")
        assert {row["public_id"] for row in kept} == set(model.messages)
        deleted = {seeded.blob_key for seeded in self.threads if seeded.id not in model.messages}
        assert sorted(world.blobs.deleted) == sorted(deleted)
        threads = await world.rows(
            "SELECT public_id, message_count, unread_count FROM threads WHERE tenant_id = $1 AND mailbox_id = $2"
        )
        for row in threads:
            members = [name for name, (seeded, _, _) in model.messages.items() if seeded.thread == row["public_id"]]
            assert row["message_count"] == len(members)
            assert row["unread_count"] == sum(map(model.unread, members))

    async def _check_log(self, modseqs: dict[tuple[FolderKey, int], int], highest: dict[FolderKey, int]) -> None:
        log = await self.world.rows("SELECT * FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 ORDER BY seq")
        assert [row["seq"] for row in log] == list(range(1, len(log) + 1))
        assert [row["modseq"] for row in log] == sorted(row["modseq"] for row in log)
        box = (await self.world.rows("SELECT modseq, change_seq FROM mailboxes WHERE tenant_id = $1 AND id = $2"))[0]
        assert (box["modseq"], box["change_seq"]) == (log[-1]["modseq"], len(log))
        places: dict[tuple[FolderKey, int], tuple[str, frozenset[str]]] = {}
        touched: dict[tuple[FolderKey, int], int] = {}
        last: dict[FolderKey, int] = {}
        for row in log:
            key = (row["folder_id"], row["uid"])
            if row["kind"] in ("placed", "flags"):
                if row["kind"] == "placed":
                    assert row["uid"] > last.get(row["folder_id"], 0)
                    last[row["folder_id"]] = row["uid"]
                else:
                    assert places[key] != (row["message"], frozenset(row["flags"])), "a change that changes nothing"
                places[key] = (row["message"], frozenset(row["flags"]))
                touched[key] = row["modseq"]
            elif row["kind"] == "removed":
                assert places.pop(key)[0] == row["message"]
                del touched[key]
            elif row["kind"] == "folder_removed":
                assert not any(folder == row["folder_id"] for folder, _ in places)
        assert places == {key: (place.message, place.flags) for key, place in self.model.places.items()}
        assert touched == modseqs
        for folder, modseq in highest.items():
            assert modseq == max(
                row["modseq"] for row in log if row["folder_id"] == folder and row["kind"] in _OF_FOLDER
            )


_OF_FOLDER = ("placed", "flags", "removed", "folder_created")
_STEPS = (
    *(Driver.add, Driver.add, Driver.add, Driver.store, Driver.store, Driver.copy, Driver.move, Driver.expunge),
    *(Driver.edit_message, Driver.edit_thread, Driver.move_message, Driver.copy_message, Driver.expunge_message),
    *(Driver.create_folder, Driver.rename_folder, Driver.delete_folder, Driver.pass_time),
)


@pytest.mark.covers(
    "decisions:A5",
    "decisions:A7",
    "decisions:B10",
    "decisions:B14",
    "decisions:B21",
    "mail-server:D2",
    "mail-server:D4",
    "mail-server:D5",
    "mail-server:D8",
    "mail-server:E2",
    "mail-server:E4",
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
async def test_any_sequence_of_operations(db: Database, data: st.DataObject) -> None:
    clock = ManualClock(datetime.fromisoformat("2030-01-01T00:00:00+00:00"))
    driver = Driver(await make_world(db, clock, IdGenerator(clock)), data)
    await driver.start()
    for _ in range(4):
        await driver.add()
    for step in data.draw(st.lists(st.sampled_from(_STEPS), min_size=5, max_size=20)):
        await step(driver)
        await driver.check()
