"""Folders and messages of the first mailbox over HTTP, for tests of what is done with them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.mailbox.letters import check_mailbox
from tests.rest.world import World, simple_mail

MISSING = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
BODIES: dict[str, dict[str, Any]] = {
    "move": {"special_use": "archive"},
    "copy": {"special_use": "archive"},
    "expunge": {},
    "flags": {"add": ["$flagged"]},
}
"""What each of the operations on many messages wants beside their ids."""


async def folders(world: World, **params: Any) -> dict[str, dict[str, Any]]:
    """The folders, by name."""
    found: dict[str, dict[str, Any]] = {}
    cursor: str | None = None
    while True:
        answer = await world.get(world.at("/folders"), **params, **({} if cursor is None else {"cursor": cursor}))
        assert answer.status_code == 200, answer.text
        found |= {one["name"]: one for one in answer.json()["data"]}
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


async def make(world: World, name: str, **more: Any) -> dict[str, Any]:
    answer = await world.post(world.at("/folders"), {"name": name, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def letters(world: World, count: int) -> list[str]:
    return [(await world.deliver(simple_mail(f"Number {n}"))).message_id for n in range(count)]


async def batch(world: World, name: str, ids: list[str], **more: Any) -> httpx.Response:
    return await world.post(world.at(f"/messages/{name}"), {"ids": ids, **more})


async def results(world: World, name: str, ids: list[str], **more: Any) -> list[str]:
    answer = await batch(world, name, ids, **more)
    assert answer.status_code == 200, answer.text
    told = answer.json()["data"]
    assert [one["id"] for one in told] == list(dict.fromkeys(ids))
    return [one["result"] for one in told]


async def places(world: World, message: str) -> dict[str, list[str]]:
    """Folder → flags there."""
    names = {one["id"]: name for name, one in (await folders(world)).items()}
    answer = await world.get(world.at(f"/messages/{message}"), include="placements")
    assert answer.status_code == 200, answer.text
    return {names[one["folder_id"]]: one["flags"] for one in answer.json()["placements"]}


async def changes(world: World) -> int:
    """Rows of the mailbox's log; its counters are true."""
    async with world.db.acquire() as conn:
        await check_mailbox(conn, world.ref)
        return int(await conn.fetchval("SELECT count(*) FROM changes WHERE mailbox_id = $1", world.box.id))


async def rows(world: World, statement: str, *values: Any) -> list[Any]:
    async with world.db.acquire() as conn:
        return list(await conn.fetch(statement, *values))
