"""Folders of a mailbox over HTTP (decisions E; mail-server D2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from postroom.accounts import Level
from postroom.mailbox.models import SpecialUse
from postroom.mailbox.rules import MAX_FOLDERS
from tests.rest.mailroom import MISSING, changes, folders, letters, make, results, rows
from tests.rest.sender import code
from tests.rest.test_access import without_request_id
from tests.rest.test_fuzz import _settings, _text, fine, run
from tests.rest.world import World, simple_mail

STANDARD = ["INBOX", "Archive", "Drafts", "Junk", "Sent", "Trash"]


async def check(world: World, name: str, value: Any) -> None:
    """Raises when `value` is not what the OpenAPI document says, or has a member more."""
    document = (await world.client.get("/openapi.json")).json()
    schemas = {
        one: {**schema, "additionalProperties": False} if "properties" in schema else schema
        for one, schema in document["components"]["schemas"].items()
    }
    validator = Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})
    assert [error.message for error in validator.iter_errors(value)] == []


@pytest.mark.covers("decisions:A1", "mail-server:D2")
async def test_the_standard_folders_with_their_counters(world: World) -> None:
    first, second = await letters(world, 2)
    await results(world, "flags", [first], add=["$seen"])
    answer = await world.get(world.at("/folders"))
    await check(world, "FolderPage", answer.json())
    listed = answer.json()["data"]
    assert [one["name"] for one in listed] == STANDARD
    inbox = listed[0]
    assert (inbox["message_count"], inbox["unseen_count"], inbox["uid_next"]) == (2, 1, 3)
    assert (inbox["special_use"], inbox["parent_id"], inbox["subscribed"]) == ("inbox", None, True)
    raw = await world.get(world.at(f"/messages/{first}/raw"))
    assert inbox["total_bytes"] == 2 * len(raw.content)
    assert (await world.get(world.at(f"/folders/{inbox['id']}"))).json() == inbox
    assert second != first


@pytest.mark.covers("mail-server:D2", "FR-API-1")
async def test_made_renamed_moved_subscribed(world: World) -> None:
    made = await make(world, "Work/2030/Invoices")
    tree = await folders(world)
    assert made["parent_id"] == tree["Work/2030"]["id"]
    assert tree["Work/2030"]["parent_id"] == tree["Work"]["id"]
    await check(world, "Folder", made)
    below = await make(world, "Paid", parent_id=made["id"], subscribed=False)
    assert (below["name"], below["parent_id"], below["subscribed"]) == ("Work/2030/Invoices/Paid", made["id"], False)
    at = world.at(f"/folders/{made['id']}")
    # The whole path; what is below goes along, UIDVALIDITY stays.
    renamed = (await world.patch(at, {"name": "Bills"})).json()
    assert (renamed["name"], renamed["parent_id"]) == ("Bills", None)
    assert renamed["uid_validity"] == made["uid_validity"]
    assert (await world.get(world.at(f"/folders/{below['id']}"))).json()["name"] == "Bills/Paid"
    # Below another one, with the same name or with another.
    moved = (await world.patch(at, {"parent_id": tree["Archive"]["id"]})).json()
    assert (moved["name"], moved["parent_id"]) == ("Archive/Bills", tree["Archive"]["id"])
    both = (await world.patch(at, {"parent_id": tree["Work"]["id"], "name": "Old/Bills", "subscribed": False})).json()
    assert (both["name"], both["subscribed"]) == ("Work/Old/Bills", False)
    top = (await world.patch(at, {"parent_id": None})).json()
    assert (top["name"], top["subscribed"]) == ("Bills", False)
    before = await changes(world)
    assert (await world.patch(at, {"parent_id": None, "name": "Bills", "subscribed": False})).json() == top
    assert await changes(world) == before
    # A special folder keeps its use when it is called something else.
    sent = (await world.patch(world.at(f"/folders/{tree['Sent']['id']}"), {"name": "Gesendet"})).json()
    assert (sent["name"], sent["special_use"]) == ("Gesendet", "sent")
    assert (await make(world, "Everything", special_use="all"))["special_use"] == "all"


@pytest.mark.covers("mail-server:D2")
async def test_what_a_folder_may_not_be(world: World) -> None:
    work, tree = await make(world, "Work"), await folders(world)
    inbox = world.at(f"/folders/{tree['INBOX']['id']}")
    at = world.at(f"/folders/{work['id']}")
    before = await changes(world)
    for name in ("Work", "inbox", "Sent"):
        assert code(await world.post(world.at("/folders"), {"name": name})) == "folder_exists"
    for body in ({"name": "Sent"}, {"name": "Archive", "parent_id": None}):
        assert code(await world.patch(at, body)) == "folder_exists"
    for name in ("", "/", "a//b", ".", "a/..", "a\\b", "a:b", "a\nb", "a\u2028b", "x" * 256, "a/" * 600 + "a"):
        assert code(await world.post(world.at("/folders"), {"name": name})) == "invalid_request", name
    bad: list[Any] = [
        *({}, [], "x", None, {"name": None}, {"name": 1}, {"subscribed": None}, {"subscribed": "yes"}),
        *({"parent_id": "x"}, {"parent_id": 0}, {"parent_id": ""}, {"parent_id": work["id"]}, {"name": "Work/Below"}),
    ]
    for body in bad:
        assert code(await world.patch(at, body)) == "invalid_request", body
    assert code(await world.patch(inbox, {"name": "Other"})) == "invalid_request"
    assert code(await world.patch(at, {"parent_id": f"fld_{MISSING}"})) == "folder_not_found"
    assert (
        code(await world.post(world.at("/folders"), {"name": "a", "parent_id": f"fld_{MISSING}"})) == "folder_not_found"
    )
    assert code(await world.post(world.at("/folders"), {"name": "a", "special_use": "sent"})) == "invalid_request"
    assert code(await world.post(world.at("/folders"), {"name": "a", "special_use": "other"})) == "invalid_request"
    assert (await changes(world), await folders(world)) == (before, tree)


@pytest.mark.covers("mail-server:D2")
async def test_removed_when_empty_or_when_asked(world: World) -> None:
    work, tree = await make(world, "Work/Old"), await folders(world)
    (one,) = await letters(world, 1)
    await results(world, "move", [one], folder_id=work["id"])
    parent, at = world.at(f"/folders/{tree['Work']['id']}"), world.at(f"/folders/{work['id']}")
    for query in ("", "?expunge=true"):
        # What is below it is not meant by anything.
        assert code(await world.client.delete(parent + query, headers=world.key)) == "folder_not_empty"
    assert code(await world.client.delete(at, headers=world.key)) == "folder_not_empty"
    assert code(await world.client.delete(at + "?expunge=maybe", headers=world.key)) == "invalid_request"
    for name in STANDARD:
        special = world.at(f"/folders/{tree[name]['id']}?expunge=true")
        assert code(await world.client.delete(special, headers=world.key)) == "invalid_request"
    assert (await world.client.delete(at + "?expunge=true", headers=world.key)).status_code == 204
    assert code(await world.get(world.at(f"/messages/{one}"))) == "message_not_found"
    assert await rows(world, "SELECT 1 FROM messages") == []
    assert code(await world.client.delete(at, headers=world.key)) == "folder_not_found"
    assert (await world.client.delete(parent, headers=world.key)).status_code == 204
    assert list(await folders(world)) == STANDARD
    await changes(world)


@pytest.mark.covers("mail-server:D1", "mail-server:C3")
async def test_keys_remove_for_good_only_what_they_may_erase(world: World) -> None:
    writer = await world.new_key(Level.IDENTITY, ["messages:read", "messages:write"], identity=world.box)
    work = await make(world, "Work")
    (one,) = await letters(world, 1)
    await results(world, "move", [one], folder_id=work["id"])
    at = world.at(f"/folders/{work['id']}")
    refused = await world.client.delete(at + "?expunge=true", headers=writer)
    assert code(refused) == "permission_denied"
    assert refused.json()["error"]["details"]["required"] == ["erasure:manage"]
    # What is still to be sent stays, and so does its folder.
    await rows(world, "UPDATE messages SET status = 'queued', direction = 'outbound'")
    in_use = await world.client.delete(at + "?expunge=true", headers=world.key)
    assert (code(in_use), in_use.json()["error"]["details"]) == ("folder_not_empty", {"reason": "in_use"})
    await results(world, "move", [one], special_use="sent")
    assert (await world.client.delete(at, headers=writer)).status_code == 204


@pytest.mark.covers("FR-API-1")
async def test_pages_in_the_order_of_the_tree(world: World) -> None:
    names = [
        "INBOX/a",
        "Archive/b",
        "Ähnlich",
        "z",
        '"' * 250 + "/" + "\U0001f4ec" * 60 + "/" + '"' * 250 + "/" + '"' * 250,
    ]
    for name in names:
        await make(world, name)
    whole = list(await folders(world, limit=100))
    assert (whole[:2], whole[-1]) == (["INBOX", "INBOX/a"], "Ähnlich")
    assert len(whole) == 14
    for limit in (1, 2, 5):
        assert list(await folders(world, limit=limit)) == whole
    # What goes or comes between two pages moves nothing else.
    page = (await world.get(world.at("/folders"), limit=3)).json()
    gone = page["data"][2]["id"]
    await rows(world, "DELETE FROM folders WHERE public_id = $1", gone)
    following = (await world.get(world.at("/folders"), limit=100, cursor=page["next_cursor"])).json()
    assert [one["name"] for one in following["data"]] == whole[3:]
    other = f"/v1/identities/{(await world.new_identity(world.tenant, 'sibling')).public_id}/folders"
    assert code(await world.get(other, cursor=page["next_cursor"])) == "invalid_request"
    world.clock.advance(25 * 3600)
    assert code(await world.get(world.at("/folders"), cursor=page["next_cursor"])) == "cursor_expired"


@pytest.mark.covers("decisions:A6")
async def test_quarantine_is_for_those_who_review_it(world: World) -> None:
    tree = await folders(world)
    quarantine = await make(world, "Quarantine/Old")
    (one,) = await letters(world, 1)
    await results(world, "copy", [one], folder_id=quarantine["id"])
    plain = await world.new_key(
        Level.IDENTITY, ["messages:read", "messages:write", "erasure:manage"], identity=world.box
    )
    listed = (await world.get(world.at("/folders"), plain)).json()["data"]
    assert {folder["id"] for folder in listed} == {folder["id"] for folder in tree.values()}
    at, missing = world.at(f"/folders/{quarantine['id']}"), world.at(f"/folders/fld_{MISSING}")
    for method, body in (("GET", None), ("PATCH", {"name": "Mine"}), ("DELETE", None)):
        found = [
            without_request_id(await world.client.request(method, path, json=body, headers=plain))
            for path in (at, missing)
        ]
        assert found[0] == found[1]
        assert found[0][1]["error"]["code"] == "folder_not_found"
    into = {"ids": [one], "folder_id": quarantine["id"]}
    for name in ("move", "copy"):
        assert code(await world.post(world.at(f"/messages/{name}"), into, plain)) == "folder_not_found"
    assert code(await world.get(world.at("/messages"), plain, folder=quarantine["id"])) == "folder_not_found"
    assert code(await world.post(world.at("/folders"), {"name": "Quarantine/New"}, plain)) == "permission_denied"
    assert code(await world.patch(world.at(f"/folders/{tree['Junk']['id']}"), {"name": "Quarantine/J"}, plain)) == (
        "permission_denied"
    )
    shown = (await world.get(world.at(f"/messages/{one}"), plain, include="placements")).json()["placements"]
    assert [place["folder_id"] for place in shown] == [tree["INBOX"]["id"]]
    assert len((await world.get(world.at(f"/messages/{one}"), include="placements")).json()["placements"]) == 2
    assert (await world.get(world.at("/messages"), folder=quarantine["id"])).json()["data"] != []


@pytest.mark.covers("SEC-1", "security-privacy:A4.2")
async def test_folders_of_others_look_missing(world: World) -> None:
    theirs = f"/v1/identities/{world.other_box.public_id}"
    foreign = (await world.get(f"{theirs}/folders", world.other_key)).json()["data"][0]["id"]
    (one,) = await letters(world, 1)
    for at in (foreign, f"fld_{MISSING}", "fld_x", "x"):
        requests: list[tuple[str, str, Any]] = [
            ("GET", f"/folders/{at}", None),
            ("PATCH", f"/folders/{at}", {"subscribed": False}),
            ("DELETE", f"/folders/{at}", None),
        ]
        if at in (foreign, f"fld_{MISSING}"):
            requests += [
                ("PATCH", f"/folders/{(await folders(world))['Junk']['id']}", {"parent_id": at}),
                ("POST", "/folders", {"name": "New", "parent_id": at}),
                ("POST", "/messages/move", {"ids": [one], "folder_id": at}),
                ("POST", "/messages/copy", {"ids": [one], "folder_id": at}),
                ("GET", f"/messages?folder={at}", None),
            ]
        found = [
            without_request_id(await world.client.request(method, world.at(path), json=body, headers=world.key))
            for method, path, body in requests
        ]
        assert {one[1]["error"]["code"] for one in found} == {"folder_not_found"}
        assert len({str(one) for one in found}) == 1
    assert list(await folders(world)) == STANDARD


@pytest.mark.covers("FR-API-1")
async def test_made_once_for_a_key(world: World) -> None:
    at = world.at("/folders")
    first = await world.post(at, {"name": "Work"}, key="k")
    again = await world.post(at, {"name": "Work"}, key="k")
    assert (again.status_code, again.json()) == (201, first.json())
    assert (again.headers["idempotent-replayed"], "idempotent-replayed" in first.headers) == ("true", False)
    assert code(await world.post(at, {"name": "Other"}, key="k")) == "idempotency_conflict"
    assert code(await world.post(at, {"name": "Work"}, key="other")) == "folder_exists"
    # A refusal keeps nothing: a corrected request may have the key.
    assert (await world.post(at, {"name": "Later"}, key="other")).status_code == 201
    await world.patch(f"{at}/{first.json()['id']}", {"name": "Play"})
    assert (await world.post(at, {"name": "Work"}, key="k")).json()["name"] == "Play"
    await world.client.delete(f"{at}/{first.json()['id']}", headers=world.key)
    assert code(await world.post(at, {"name": "Work"}, key="k")) == "folder_not_found"
    answers = await asyncio.gather(*(world.post(at, {"name": "Race"}, key="race") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert code(await world.post(at, {"name": "x"}, key=" ")) == "invalid_idempotency_key"


async def test_there_is_a_limit(world: World) -> None:
    await rows(
        world,
        "INSERT INTO folders (tenant_id, mailbox_id, public_id, name, uid_validity, created_at)"
        " SELECT $1, $2, 'fld_' || lpad(n::text, 26, '0'), 'f' || n, 1, now() FROM generate_series(1, $3) AS n",
        *(world.box.tenant_id, world.box.id, MAX_FOLDERS - 6),
    )
    assert code(await world.post(world.at("/folders"), {"name": "one more"})) == "invalid_request"
    assert len(await folders(world, limit=100)) == MAX_FOLDERS


@pytest.mark.covers("decisions:A1")
async def test_messages_of_a_folder(world: World) -> None:
    tree, ids = await folders(world), await letters(world, 7)
    await results(world, "move", ids[:3], special_use="archive")
    await results(world, "copy", ids[4:5], special_use="archive")
    wanted = {"Archive": [ids[4], *reversed(ids[:3])], "INBOX": list(reversed(ids[3:])), "Sent": []}
    for name, expected in wanted.items():
        for limit in (1, 3, 100):
            found: list[str] = []
            cursor: str | None = None
            while True:
                more = {} if cursor is None else {"cursor": cursor}
                page = (await world.get(world.at("/messages"), folder=tree[name]["id"], limit=limit, **more)).json()
                found += [one["id"] for one in page["data"]]
                cursor = page["next_cursor"]
                if cursor is None:
                    break
            assert found == expected, (name, limit)
    await world.patch(world.at(f"/messages/{ids[4]}"), {"labels_add": ["x"]})
    both = await world.get(world.at("/messages"), folder=tree["Archive"]["id"], label="x", include="placements")
    (shown,) = both.json()["data"]
    assert [place["folder_id"] for place in shown["placements"]] == [tree["INBOX"]["id"], tree["Archive"]["id"]]
    assert shown["placements"][0]["flags"] == ["x"]
    thread = (await world.get(world.at(f"/threads/{shown['thread_id']}"), include="placements")).json()
    assert thread["messages"][0]["placements"] == shown["placements"]
    assert code(await world.get(world.at("/messages"), folder="x")) == "invalid_request"
    assert code(await world.get(world.at("/messages"), folder=f"fld_{MISSING}")) == "folder_not_found"
    assert code(await world.get(world.at("/messages"), include="html")) == "invalid_request"


async def test_any_body(world: World) -> None:
    """Whatever comes, the answer is a defined one, and the tree stays a tree."""
    await world.deliver(simple_mail())
    likely = st.one_of(_text, st.sampled_from(["INBOX", "inbox/x", "Work/a", "a/../b", "Work", None, True]))
    uses = st.sampled_from([None, "x", *(use.value for use in SpecialUse)])

    @_settings
    @given(
        st.dictionaries(st.sampled_from(["name", "parent_id", "subscribed", "special_use"]), likely | uses, max_size=4)
    )
    async def inner(body: dict[str, Any]) -> None:
        known = await folders(world, limit=100)
        target = list(known.values())[len(str(body)) % len(known)]
        for given_body in (body, {**body, "parent_id": target["id"]}):
            fine(await world.post(world.at("/folders"), given_body))
            fine(await world.patch(world.at(f"/folders/{target['id']}"), given_body))
        fine(await world.client.delete(world.at(f"/folders/{target['id']}"), headers=world.key))
        tree = await folders(world, limit=100)
        ids = {one["id"]: name for name, one in tree.items()}
        for name, one in tree.items():
            above = name.rpartition("/")[0]
            assert ids.get(one["parent_id"], "") == above
        assert {one["special_use"] for one in tree.values()} >= {"inbox", "sent", "drafts", "trash", "junk", "archive"}
        world.clock.advance(61)

    await run(inner)
