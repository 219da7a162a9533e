"""Questions about a folder's messages (mail-server D7)."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox import search as searching
from postroom.mailbox.folding import fold
from postroom.mailbox.search import PAGE, FolderSearch, Question

from .seed import World, make_world


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


@pytest.mark.covers("mail-server:D7")
async def test_columns(world: World) -> None:
    search, folder = FolderSearch(world.db), await world.folder("INBOX")
    small = await world.add(size=10, subject="Alpha", received_at=datetime(2029, 5, 1, 23, 59, tzinfo=UTC))
    large = await world.add(size=5000, subject="beta", received_at=datetime(2029, 5, 2, tzinfo=UTC))
    await world.add("Sent", size=10, subject="Alpha")

    async def ask(test: Question, argument: Any) -> set[int]:
        return set(await search.test(world.ref, folder, test, argument))

    assert await ask(Question.LARGER, 10) == {large.uid}
    assert await ask(Question.SMALLER, 5000) == {small.uid}
    assert await ask(Question.INTERNAL_BEFORE, date(2029, 5, 2)) == {small.uid}
    assert await ask(Question.INTERNAL_ON, date(2029, 5, 1)) == {small.uid}
    assert await ask(Question.INTERNAL_SINCE, date(2029, 5, 2)) == {large.uid}
    assert await ask(Question.SAVED_SINCE, world.clock.now().date()) == {small.uid, large.uid}
    assert await ask(Question.SAVED_BEFORE, date(2029, 5, 2)) == set()
    assert await ask(Question.OLDER, datetime(2029, 5, 2, tzinfo=UTC)) == {small.uid, large.uid}
    assert await ask(Question.YOUNGER, datetime(2029, 5, 2, tzinfo=UTC)) == {large.uid}
    assert await ask(Question.SUBJECT, fold("ALPH")) == {small.uid}
    assert await ask(Question.EMAIL_ID, small.id) == {small.uid}
    assert await ask(Question.THREAD_ID, large.thread) == {large.uid}
    assert await ask(Question.THREAD_ID, "nothing") == set()


@pytest.mark.covers("mail-server:D7")
async def test_texts_are_folded_here_where_the_database_cannot(world: World) -> None:
    search, folder = FolderSearch(world.db), await world.folder("INBOX")
    texts = ["Plain STRASSE", "Die Straße", "Temperature in \u212a", "ﬁnal", "nothing"]
    uids = [(await world.add(text=text)).uid for text in texts]

    async def ask(needle: str, among: list[int]) -> list[int]:
        return [uid async for page in search.in_text(world.ref, folder, needle, among) for uid in page]

    assert await ask("strasse", uids) == uids[:2]
    assert await ask("STRAßE", uids) == uids[:2]
    assert await ask("in k", uids) == [uids[2]]
    assert await ask("FINAL", uids) == [uids[3]]
    assert await ask("100%_\\", uids) == []
    assert await ask("strasse", uids[1:]) == [uids[1]]
    assert await ask("x", []) == []


@pytest.mark.covers("mail-server:D7")
async def test_pages_of_texts(world: World) -> None:
    search, folder = FolderSearch(world.db), await world.folder("INBOX")
    uids = [(await world.add(text="needle" if n % 2 else "hay")).uid for n in range(7)]
    found = [uid async for page in search.in_text(world.ref, folder, "needle", uids) for uid in page]
    assert found == uids[1::2]
    assert len(uids) < PAGE


@pytest.mark.covers("mail-server:D7", "decisions:D5")
async def test_pages_hold_so_many_octets_and_nothing_between(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that are not asked for are not read, however many stand between those that are."""
    search, folder = FolderSearch(world.db), await world.folder("INBOX")
    texts = ["日本", "x" * 900 + "日", "日" * 300, "a日", "日", "no"]
    uids = [(await world.add(text=text)).uid for text in texts]
    monkeypatch.setattr(searching, "PAGE_BYTES", 1000)
    monkeypatch.setattr(searching, "PAGE", 3)
    monkeypatch.setattr(searching, "_SIZES_PAGE", 5)
    pages = [page async for page in search._pages(world.ref, folder, uids)]
    assert pages == [uids[0:2], uids[2:5], uids[5:]]
    found = [page async for page in search.in_text(world.ref, folder, "日", uids)]
    assert found == [uids[0:2], uids[2:5], []]
    assert [page async for page in search._pages(world.ref, folder, [uids[0], uids[5]])] == [[uids[0], uids[5]]]
    assert [page async for page in search.in_text(world.ref, folder, "日", [uids[0], uids[5]])] == [[uids[0]]]
