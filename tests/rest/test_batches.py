"""Many messages at once over HTTP: what becomes of each, once (decisions E, D11, B14; sync-webmail-client A4, B4)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import Level, idempotency
from postroom.mailbox import transfer
from postroom.servers.http.rest.batches import MAX_IDS
from tests.rest.mailroom import BODIES, MISSING, batch, changes, folders, letters, make, places, results, rows
from tests.rest.sender import code, details
from tests.rest.test_folders import check
from tests.rest.test_fuzz import _json, _settings, fine, run
from tests.rest.world import World, simple_mail

ROOT = Path(__file__).parents[2]
GONE = f"msg_{MISSING}"


@pytest.mark.covers("decisions:A1", "decisions:D11")
async def test_moved_to_the_trash_and_removed(world: World) -> None:
    one, two, three = await letters(world, 3)
    before = await changes(world)
    answer = await batch(world, "move", [one, GONE, two, one], special_use="trash")
    await check(world, "MessageResults", answer.json())
    assert answer.json() == {
        "data": [
            {"id": one, "result": "moved"},
            {"id": GONE, "result": "not_found"},
            {"id": two, "result": "moved"},
        ]
    }
    # One change row for each placement that came and for each that went.
    assert await changes(world) == before + 4
    assert await results(world, "move", [one, three], special_use="trash") == ["unchanged", "moved"]
    assert (await folders(world))["Trash"]["message_count"] == 3
    assert await results(world, "expunge", [two, GONE, three]) == ["expunged", "not_found", "expunged"]
    assert await results(world, "expunge", [two, one]) == ["not_found", "expunged"]
    for message in (one, two, three):
        assert code(await world.get(world.at(f"/messages/{message}"))) == "message_not_found"
    assert await world.blobs.list("t") == []
    await changes(world)


@pytest.mark.covers("decisions:A5")
async def test_a_copy_is_another_place_and_a_move_leaves_one(world: World) -> None:
    work = await make(world, "Work")
    (one,) = await letters(world, 1)
    assert await results(world, "copy", [one], folder_id=work["id"]) == ["copied"]
    assert await results(world, "copy", [one], folder_id=work["id"]) == ["unchanged"]
    assert await results(world, "flags", [one], add=["Invoice", "$flagged"]) == ["changed"]
    assert await places(world, one) == {"INBOX": ["$flagged", "invoice"], "Work": ["$flagged", "invoice"]}
    assert (await world.get(world.at(f"/messages/{one}"))).json()["labels"] == ["invoice"]
    assert await results(world, "move", [one], folder_id=work["id"]) == ["moved"]
    assert await places(world, one) == {"Work": ["$flagged", "invoice"]}
    await results(world, "copy", [one], special_use="archive")
    assert await results(world, "expunge", [one]) == ["expunged"]
    assert (await folders(world))["Work"]["message_count"] == 0
    await changes(world)


@pytest.mark.covers("mail-server:D5", "decisions:A5")
async def test_flags(world: World) -> None:
    one, two = await letters(world, 2)
    assert await results(world, "flags", [one, two], add=["$Seen", "a", "A", "$Label1"]) == ["changed", "changed"]
    assert await places(world, one) == {"INBOX": ["$label1", "$seen", "a"]}
    assert (await world.get(world.at(f"/messages/{one}"))).json()["read"] is True
    assert await results(world, "flags", [one], add=["a"], remove=["zzz"]) == ["unchanged"]
    assert await results(world, "flags", [one], add=["b"], remove=["a", "$seen", "b"]) == ["changed"]
    assert await places(world, one) == {"INBOX": ["$label1", "b"]}
    assert await results(world, "flags", [one, two], set=["$flagged"]) == ["changed", "changed"]
    assert await places(world, two) == {"INBOX": ["$flagged"]}
    assert (await folders(world))["INBOX"]["unseen_count"] == 2
    assert await results(world, "flags", [one], set=[]) == ["changed"]
    # Who has too many keeps those that it has, and stops nobody else.
    assert await results(world, "flags", [one], set=[f"k{n}" for n in range(64)]) == ["changed"]
    assert await results(world, "flags", [one, two], add=["one-more"]) == ["limit_exceeded", "changed"]
    assert len((await places(world, one))["INBOX"]) == 64
    assert await results(world, "flags", [one], add=["$seen"], remove=["k1"]) == ["changed"]
    await changes(world)


@pytest.mark.covers("mail-server:D1", "mail-server:C3")
async def test_what_keys_may_not_remove_and_what_is_to_be_sent(world: World) -> None:
    one, two = await letters(world, 2)
    writer = await world.new_key(Level.IDENTITY, ["messages:read", "messages:write"], identity=world.box)
    for name, more in (("expunge", {}), ("flags", {"add": ["$Deleted"]}), ("flags", {"set": ["$deleted"]})):
        refused = await world.post(world.at(f"/messages/{name}"), {"ids": [one], **more}, writer)
        assert (code(refused), details(refused)["required"]) == ("permission_denied", ["erasure:manage"])
    fine_ = await world.post(world.at("/messages/flags"), {"ids": [one], "remove": ["$deleted"]}, writer)
    assert fine_.json()["data"][0]["result"] == "unchanged"
    assert await results(world, "flags", [one], add=["$deleted"]) == ["changed"]
    await rows(world, "UPDATE messages SET status = 'queued', direction = 'outbound' WHERE public_id = $1", one)
    assert await results(world, "expunge", [one, two]) == ["in_use", "expunged"]
    assert await results(world, "move", [one], special_use="trash") == ["moved"]
    assert await places(world, one) == {"Trash": ["$deleted"]}


@pytest.mark.covers("security-privacy:A4.4", "decisions:A6")
async def test_hidden_mail_is_found_by_those_who_may_see_it(world: World) -> None:
    one, two = await letters(world, 2)
    # Nothing is quarantined or hidden yet, so that the database knows no such status.
    await rows(world, "ALTER DOMAIN message_status DROP CONSTRAINT message_status_check")
    await rows(world, "UPDATE messages SET status = 'quarantined' WHERE public_id = $1", one)
    writer = await world.new_key(
        Level.IDENTITY, ["messages:read", "messages:write", "erasure:manage"], identity=world.box
    )
    for name, more in BODIES.items():
        answer = await world.post(world.at(f"/messages/{name}"), {"ids": [one, GONE], **more}, writer)
        assert [told["result"] for told in answer.json()["data"]] == ["not_found", "not_found"], name
    assert await results(world, "move", [one], special_use="archive") == ["moved"]
    # What stands nowhere is not found by anybody.
    await rows(world, "UPDATE messages SET status = 'hidden' WHERE public_id = $1", two)
    await rows(world, "DELETE FROM placements p USING messages m WHERE m.id = p.message_id AND m.public_id = $1", two)
    for name, more in BODIES.items():
        assert await results(world, name, [two], **more) == ["not_found"]


@pytest.mark.covers("mail-server:E4")
async def test_a_full_mailbox_takes_moves_and_no_copies(world: World) -> None:
    (one,) = await letters(world, 1)
    await rows(world, "UPDATE mailboxes SET quota_bytes = 1")
    refused = await batch(world, "copy", [one], special_use="archive", operation_id="op")
    assert (refused.status_code, code(refused)) == (413, "mailbox_full")
    assert await results(world, "move", [one], special_use="archive") == ["moved"]
    await rows(world, "UPDATE mailboxes SET quota_bytes = NULL")
    # The refusal was not kept.
    assert await results(world, "copy", [one], special_use="trash") == ["copied"]
    assert (await batch(world, "copy", [one], special_use="archive", operation_id="op")).status_code == 200


@pytest.mark.covers("SEC-1", "security-privacy:A4.2")
async def test_messages_of_others_are_not_found(world: World) -> None:
    theirs = (await world.deliver(simple_mail(), to=world.other_box)).message_id
    sibling = await world.new_identity(world.tenant, "sibling")
    near = (await world.deliver(simple_mail(), to=sibling)).message_id
    mine = (await world.deliver(simple_mail())).message_id
    for name, more in BODIES.items():
        found = await results(world, name, [theirs, near, GONE, mine], **more)
        assert found[:3] == ["not_found"] * 3, name
    for box, key, message in ((world.other_box, world.other_key, theirs), (sibling, world.key, near)):
        seen = (await world.get(f"/v1/identities/{box.public_id}/messages/{message}", key, include="placements")).json()
        assert len(seen["placements"]) == 1
        assert seen["placements"][0]["flags"] == []


@pytest.mark.parametrize("name", BODIES)
async def test_bodies_that_are_none(world: World, name: str) -> None:
    (one,) = await letters(world, 1)
    good = {"ids": [one], **BODIES[name]}
    bad: list[Any] = [
        *([], "x", None, {}, {**good, "ids": []}, {**good, "ids": None}, {**good, "ids": one}),
        *({**good, "ids": ["msg_x"]}, {**good, "ids": [one, 1]}, {**good, "ids": [f"thr_{MISSING}"]}),
        {**good, "ids": [one] * (MAX_IDS + 1)},
        *({**good, "operation_id": value} for value in ("", " ", " x", "x" * 256, "é", "a\n", 1, None)),
    ]
    if name in ("move", "copy"):
        bad += [
            {"ids": [one]},
            {"ids": [one], "folder_id": None},
            {"ids": [one], "folder_id": "fld_x"},
            {"ids": [one], "special_use": "other"},
            {"ids": [one], "special_use": "trash", "folder_id": f"fld_{MISSING}"},
        ]
    if name == "flags":
        bad += [
            {"ids": [one]},
            {"ids": [one], "add": None},
            {"ids": [one], "add": ["$seen"], "set": ["$seen"]},
            *({"ids": [one], "add": [word]} for word in ("", "a b", "\\Seen", "é", "x" * 101, "a\u0000", '"', "{", 1)),
            {"ids": [one], "add": ["a"] * 70},
        ]
    before = await changes(world)
    for body in bad:
        assert code(await world.post(world.at(f"/messages/{name}"), body)) == "invalid_request", body
    assert await changes(world) == before
    assert await rows(world, "SELECT 1 FROM idempotency_records") == []


async def test_a_special_folder_that_is_not_there(world: World) -> None:
    (one,) = await letters(world, 1)
    assert code(await batch(world, "move", [one], special_use="all")) == "folder_not_found"


@pytest.mark.covers("decisions:B14")
@pytest.mark.parametrize("name", BODIES)
async def test_as_many_as_may_be_named(world: World, name: str) -> None:
    ids = await letters(world, 3)
    many = ids + [world.ids.new("msg_") for _ in range(MAX_IDS - 3)]
    found = Counter(await results(world, name, many, operation_id="op", **BODIES[name]))
    assert found["not_found"] == MAX_IDS - 3
    again = await batch(world, name, many, operation_id="op", **BODIES[name])
    assert Counter(told["result"] for told in again.json()["data"]) == found
    assert again.headers["idempotent-replayed"] == "true"


# -- once


@pytest.mark.covers("decisions:A1")
@pytest.mark.parametrize("name", BODIES)
async def test_done_once_for_an_operation(world: World, name: str) -> None:
    one, two = await letters(world, 2)
    body = {"ids": [one, GONE], **BODIES[name]}
    first = await world.post(world.at(f"/messages/{name}"), {**body, "operation_id": "op_1"})
    assert first.json()["data"][0]["result"] not in ("unchanged", "not_found")
    assert "idempotent-replayed" not in first.headers
    before = await changes(world) if name != "copy" else 0
    for more in ({"operation_id": "op_1"}, {"operation_id": "op_1", "later": 1}):
        again = await world.post(world.at(f"/messages/{name}"), {**body, **more})
        assert (again.status_code, again.json()) == (200, first.json())
        assert again.headers["idempotent-replayed"] == "true"
    # The header is the same thing.
    as_header = await world.post(world.at(f"/messages/{name}"), body, key="op_1")
    assert (as_header.json(), as_header.headers["idempotent-replayed"]) == (first.json(), "true")
    twice = await world.post(world.at(f"/messages/{name}"), {**body, "operation_id": "op_1"}, key="op_2")
    assert code(twice) == "invalid_request"
    spaced = await world.post(world.at(f"/messages/{name}"), body, key="x" * 256)
    assert code(spaced) == "invalid_idempotency_key"
    other = await world.post(world.at(f"/messages/{name}"), {**body, "ids": [two], "operation_id": "op_1"})
    assert (other.status_code, code(other)) == (409, "idempotency_conflict")
    kind = "flags" if name != "flags" else "expunge"
    elsewhere = await world.post(world.at(f"/messages/{kind}"), {"ids": [one], **BODIES[kind], "operation_id": "op_1"})
    assert code(elsewhere) == "idempotency_conflict"
    if name != "copy":
        assert await changes(world) == before
    # Another caller's operations are its own; so are those on another mailbox.
    second = await world.new_key(Level.TENANT, tenant=world.tenant)
    mine = await world.post(world.at(f"/messages/{name}"), {**body, "operation_id": "op_1"}, second)
    assert "idempotent-replayed" not in mine.headers
    # For thirty days.
    async with world.db.acquire() as conn:
        world.clock.advance(timedelta(days=29, hours=23).total_seconds())
        assert await idempotency.prune(conn, world.clock.now()) == 0
        world.clock.advance(3600)
        assert await idempotency.prune(conn, world.clock.now()) == 2


@pytest.mark.covers("decisions:A1")
async def test_a_refusal_is_not_kept(world: World) -> None:
    (one,) = await letters(world, 1)
    body = {"ids": [one], "special_use": "all", "operation_id": "op"}
    assert code(await world.post(world.at("/messages/move"), body)) == "folder_not_found"
    await make(world, "Everything", special_use="all")
    answer = await world.post(world.at("/messages/move"), body)
    assert (answer.json()["data"][0]["result"], "idempotent-replayed" in answer.headers) == ("moved", False)


@pytest.mark.covers("decisions:A1")
@pytest.mark.parametrize("name", BODIES)
async def test_twenty_at_once(world: World, name: str) -> None:
    ids = await letters(world, 3)
    body = {"ids": ids, **BODIES[name], "operation_id": "op"}
    answers = await asyncio.gather(*(world.post(world.at(f"/messages/{name}"), body) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert "unchanged" not in answers[0].text
    assert "not_found" not in answers[0].text
    if name != "copy":
        await changes(world)


@pytest.mark.covers("decisions:A1")
async def test_two_bodies_race_for_one_operation(world: World) -> None:
    one, two = await letters(world, 2)
    answers = await asyncio.gather(
        *(batch(world, "move", [message], special_use="trash", operation_id="op") for message in (one, two) * 5)
    )
    assert Counter(answer.status_code for answer in answers) == {200: 5, 409: 5}
    assert (await folders(world))["Trash"]["message_count"] == 1


@pytest.mark.covers("decisions:B15")
async def test_a_fault_leaves_neither_the_work_nor_the_operation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = await letters(world, 1)
    before = await changes(world)

    async def broken(*_: Any) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "move_messages", broken)
        refused = await batch(world, "move", [one], special_use="trash", operation_id="op")
        assert code(refused) == "internal_error"
    assert await changes(world) == before
    assert await rows(world, "SELECT 1 FROM idempotency_records") == []
    answer = await batch(world, "move", [one], special_use="trash", operation_id="op")
    assert (answer.json()["data"][0]["result"], "idempotent-replayed" in answer.headers) == ("moved", False)


@pytest.mark.covers("decisions:A1", "edge:I9")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["move", "expunge"])
async def test_a_process_that_is_killed(world: World, database_url: str, tmp_path: Path, name: str, when: str) -> None:
    """Killed before the commit it has done nothing; after it, its answer is found."""
    (one,) = await letters(world, 1)
    body = {"ids": [one], **BODIES[name], "operation_id": "op"}
    path = world.at(f"/messages/{name}")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.rest.killed_child", when, database_url, str(tmp_path / "mail")),
        *(world.clock.now().isoformat(), path, world.key["authorization"], json.dumps(body)),
        cwd=ROOT,
    )
    async with asyncio.timeout(60):
        assert await child.wait() == -signal.SIGKILL
    kept = await rows(world, "SELECT status FROM idempotency_records")
    assert [row["status"] for row in kept] == ([] if when == "before" else ["completed"])
    answer = await world.post(path, body)
    assert answer.json()["data"] == [{"id": one, "result": f"{name}d"}]
    assert answer.headers.get("idempotent-replayed") == (None if when == "before" else "true")
    assert (await folders(world))["INBOX"]["message_count"] == 0
    await changes(world)


@pytest.mark.covers("mail-server:D9")
async def test_who_waits_is_woken(world: World) -> None:
    (one,) = await letters(world, 1)
    woken = asyncio.Event()
    watch = world.hub.watch(world.box.id, woken.set)
    try:
        for name in ("flags", "copy", "move", "expunge"):
            woken.clear()
            await results(world, name, [one], operation_id=name, **BODIES[name])
            async with asyncio.timeout(10):
                await woken.wait()
            woken.clear()
            await results(world, name, [one], operation_id=name, **BODIES[name]) if name != "expunge" else None
            await asyncio.sleep(0)
            assert not woken.is_set(), "a repetition changes nothing"
    finally:
        watch.close()


# -- whatever comes


async def test_any_body(world: World) -> None:
    ids = await letters(world, 3)
    named = st.lists(st.sampled_from([*ids, GONE, "x"]) | _json, max_size=6)
    words = st.lists(st.sampled_from(["$seen", "a", "$Flagged", "a b", ""]) | _json, max_size=4)
    body = st.fixed_dictionaries(
        {"ids": named},
        optional={
            "operation_id": st.sampled_from(["op", "other"]) | _json,
            "special_use": st.sampled_from(["trash", "inbox", "x"]) | _json,
            "folder_id": _json,
            **dict.fromkeys(("add", "remove", "set"), words),
        },
    )

    @_settings
    @given(st.sampled_from(["move", "copy", "flags"]), body | _json)
    async def inner(name: str, given_body: Any) -> None:
        fine(await world.post(world.at(f"/messages/{name}"), given_body))
        world.clock.advance(61)

    await run(inner)


async def test_places_follow_a_model(world: World) -> None:
    """Whatever is moved, copied, flagged and removed in whatever order, each message stands where a set says."""
    ids = await letters(world, 4)
    uses = {"inbox": "INBOX", "archive": "Archive", "trash": "Trash"}
    model: dict[str, dict[str, set[str]]] = {message: {"INBOX": set()} for message in ids}
    step = st.one_of(
        st.tuples(st.sampled_from(["move", "copy"]), st.sampled_from(sorted(uses))),
        st.tuples(st.sampled_from(["add", "remove", "set"]), st.sampled_from(["$seen", "a", "b"])),
    )

    @_settings
    @given(st.lists(st.tuples(step, st.sets(st.sampled_from(ids), min_size=1)), min_size=1, max_size=4))
    async def inner(steps: list[tuple[tuple[str, str], set[str]]]) -> None:
        for (kind, what), chosen in steps:
            if kind in ("move", "copy"):
                expected = [_place(model[message], kind, uses[what]) for message in sorted(chosen)]
                told = await results(world, kind, sorted(chosen), special_use=what)
            else:
                expected = [_flag(model[message], kind, what) for message in sorted(chosen)]
                told = await results(world, "flags", sorted(chosen), **{kind: [what]})
            assert told == expected
        for message, standing in model.items():
            assert await places(world, message) == {name: sorted(words) for name, words in standing.items()}
        world.clock.advance(61)

    await run(inner)


def _place(standing: dict[str, set[str]], kind: str, target: str) -> str:
    oldest = next(iter(standing.values()))
    if kind == "copy":
        if target in standing:
            return "unchanged"
        standing[target] = set(oldest)
        return "copied"
    if set(standing) == {target}:
        return "unchanged"
    kept = standing.get(target, oldest)
    standing.clear()
    standing[target] = kept
    return "moved"


def _flag(standing: dict[str, set[str]], kind: str, word: str) -> str:
    before = {name: set(words) for name, words in standing.items()}
    for words in standing.values():
        if kind == "set":
            words.clear()
        (words.discard if kind == "remove" else words.add)(word)
    return "unchanged" if before == standing else "changed"
