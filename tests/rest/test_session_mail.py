"""What people do with mailboxes over HTTP, by their sessions: as far as their grants go (decisions A2, E)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from postroom.accounts import GrantRole, NewPerson
from postroom.directory import Identity
from postroom.outbound.allowance import SubmissionLimits
from postroom.servers.http import create_http
from tests.rest.lobby import Lobby
from tests.rest.mailroom import MISSING, rows
from tests.rest.sender import code, details
from tests.rest.test_access import mailbox_requests, without_request_id
from tests.rest.test_wait import until
from tests.rest.world import World, sending_of, simple_mail

FOLDER = "/folders"


def at(box: Identity, path: str = "") -> str:
    return f"/v1/identities/{box.public_id}{path}"


async def grant(lobby: Lobby, box: Identity, role: GrantRole) -> None:
    await lobby.people.grant(box.tenant_id, box.public_id, lobby.ada.public_id, role, by_operator=True)


# -- which mailboxes


@pytest.mark.covers("decisions:A2", "FR-KEY-3")
async def test_identities_that_are_granted(lobby: Lobby) -> None:
    world = lobby.world
    await world.new_identity(world.tenant, "nobodys")
    lobby.world.clock.advance(1)
    far = await world.new_identity(world.other_tenant, "far", purpose="travel")
    await grant(lobby, far, GrantRole.READ)
    token = await lobby.token()
    listed = await lobby.ask("GET", "/v1/identities", token=token)
    lobby.check("IdentityPage", listed.json())
    assert [one["id"] for one in listed.json()["data"]] == [far.public_id, lobby.box.public_id]
    assert listed.headers["ratelimit-limit"] == "600"
    first = (await lobby.ask("GET", "/v1/identities", token=token, limit=1)).json()
    rest = await lobby.ask("GET", "/v1/identities", token=token, limit=1, cursor=first["next_cursor"])
    assert [one["id"] for one in rest.json()["data"]] == [lobby.box.public_id]
    assert rest.json()["next_cursor"] is None
    for params, wanted in (
        ({"purpose": "travel"}, [far.public_id]),
        ({"status": "paused"}, []),
        ({"tenant_id": world.tenant.public_id}, [lobby.box.public_id]),
        ({"tenant_id": f"ten_{MISSING}"}, []),
    ):
        found = (await lobby.ask("GET", "/v1/identities", token=token, **params)).json()
        assert [one["id"] for one in found["data"]] == wanted, params
    assert (await lobby.ask("GET", at(far), token=token)).json()["id"] == far.public_id
    await rows(world, "UPDATE tenants SET status = 'erasing' WHERE id = $1", world.other_tenant.id)
    found = (await lobby.ask("GET", "/v1/identities", token=token)).json()
    assert [one["id"] for one in found["data"]] == [lobby.box.public_id]
    stranger = await lobby.people.create(NewPerson("Bob", "bob@example.com", "a long enough one"))
    world.clock.advance(60)
    body = {"email": "bob@example.com", "password": "a long enough one"}
    theirs = (await lobby.ask("POST", "/v1/auth/session", body)).json()["token"]
    assert (await lobby.ask("GET", "/v1/identities", token=theirs)).json()["data"] == []
    # Another's cursor is none of theirs.
    assert code(await lobby.ask("GET", "/v1/identities", token=theirs, cursor=first["next_cursor"])) == (
        "invalid_request"
    )
    assert stranger.public_id != lobby.ada.public_id


# -- how far


async def _requests(lobby: Lobby, box: Identity) -> list[tuple[str, str, Any]]:
    """One for each operation of a mailbox, about things that are there."""
    stored = await lobby.world.deliver(simple_mail(), to=box)
    view = await lobby.ask("GET", at(box, FOLDER), token=lobby.world.platform)
    junk = next(one["id"] for one in view.json()["data"] if one["special_use"] == "junk")
    made = mailbox_requests(box.public_id, stored.message_id, stored.thread_id, f"att_{MISSING}")
    return [
        (method, path.replace(f"fld_{MISSING}", junk), _named(body, stored.message_id, junk))
        for method, path, body in made
    ]


def _named(body: Any, message: str, folder: str) -> Any:
    if not isinstance(body, dict) or "ids" not in body:
        return body
    return {**body, "ids": [message], **({"folder_id": folder} if "folder_id" in body else {})}


READS = {"GET"}


@pytest.mark.covers("decisions:A2")
async def test_who_may_read_changes_nothing(lobby: Lobby) -> None:
    await grant(lobby, lobby.box, GrantRole.READ)
    token = await lobby.token()
    requests = await _requests(lobby, lobby.box)
    before = await rows(lobby.world, "SELECT change_seq FROM mailboxes WHERE id = $1", lobby.box.id)
    for method, path, body in requests:
        answer = await lobby.ask(method, path, body, token)
        if method in READS:
            assert answer.status_code in (200, 404), path
        else:
            assert (answer.status_code, code(answer)) == (403, "permission_denied"), path
    assert await rows(lobby.world, "SELECT change_seq FROM mailboxes WHERE id = $1", lobby.box.id) == before
    assert await rows(lobby.world, "SELECT 1 FROM outbound_messages") == []


@pytest.mark.covers("decisions:A2", "security-privacy:A4.2", "SEC-1")
async def test_foreign_mailboxes_look_missing(lobby: Lobby) -> None:
    """Whoever's it is, whatever is asked, the answer is the one for an id that nobody has, byte for byte."""
    world, token = lobby.world, await lobby.token()
    missing = mailbox_requests(f"idn_{MISSING}", f"msg_{MISSING}", f"thr_{MISSING}", f"att_{MISSING}")
    malformed = mailbox_requests("idn_1", "msg_x", "thr_", "att")
    for box in (world.box, world.other_box):
        real = await _requests(lobby, box)
        for (method, path, body), (_, gone, _), (_, wrong, _) in zip(real, missing, malformed, strict=True):
            found = [without_request_id(await lobby.ask(method, to, body, token)) for to in (path, gone, wrong)]
            assert found[0] == found[1] == found[2], path
            assert found[0][1]["error"]["code"] == "identity_not_found"


@pytest.mark.covers("decisions:A2")
@pytest.mark.parametrize("role", [GrantRole.FULL, GrantRole.OWNER])
async def test_who_may_do_everything(lobby: Lobby, role: GrantRole) -> None:
    world = lobby.world
    await grant(lobby, lobby.box, role)
    token = await lobby.token()
    one = (await world.deliver(simple_mail(), to=lobby.box)).message_id
    made = await lobby.ask("POST", at(lobby.box, FOLDER), {"name": "Work"}, token)
    assert made.status_code == 201
    body = {"ids": [one], "folder_id": made.json()["id"], "operation_id": "op"}
    for _ in range(2):
        moved = await lobby.ask("POST", at(lobby.box, "/messages/move"), body, token)
        assert moved.json()["data"] == [{"id": one, "result": "moved"}]
    # What a key may not, people may: remove for good, as over IMAP.
    flags = {"ids": [one], "add": ["$deleted", "$flagged"]}
    assert (await lobby.ask("POST", at(lobby.box, "/messages/flags"), flags, token)).status_code == 200
    view = await lobby.ask("GET", at(lobby.box, f"/messages/{one}"), token=token, include="placements")
    assert [(place["folder_id"], place["flags"]) for place in view.json()["placements"]] == [
        (made.json()["id"], ["$deleted", "$flagged"])
    ]
    for path in ("/threads", f"/messages/{one}/raw", f"/messages?folder={made.json()['id']}"):
        assert (await lobby.ask("GET", at(lobby.box, path), token=token)).status_code == 200
    gone = await lobby.ask("DELETE", at(lobby.box, f"/folders/{made.json()['id']}"), token=token, expunge="true")
    assert gone.status_code == 204
    assert code(await lobby.ask("GET", at(lobby.box, f"/messages/{one}"), token=token)) == "message_not_found"


@pytest.mark.covers("decisions:A2")
async def test_what_is_kept_of_an_operation_is_its_own_persons(lobby: Lobby) -> None:
    world, token = lobby.world, await lobby.token()
    one = (await world.deliver(simple_mail(), to=lobby.box)).message_id
    body = {"ids": [one], "special_use": "trash", "operation_id": "op"}
    path = at(lobby.box, "/messages/move")
    assert (await lobby.ask("POST", path, body, token)).json()["data"][0]["result"] == "moved"
    # Another session of the same person is the same caller; a key is not.
    second = await lobby.token()
    again = await lobby.ask("POST", path, body, second)
    assert (again.json()["data"][0]["result"], again.headers["idempotent-replayed"]) == ("moved", "true")
    by_key = await lobby.ask("POST", path, body, world.key)
    assert (by_key.json()["data"][0]["result"], "idempotent-replayed" in by_key.headers) == ("unchanged", False)


@pytest.mark.covers("decisions:A2")
async def test_the_rate_of_a_person(lobby: Lobby) -> None:
    token = await lobby.token()
    path = at(lobby.box, FOLDER)
    for _ in range(600):
        answer = await lobby.ask("GET", path, token=token)
        assert answer.status_code == 200
    refused = await lobby.ask("GET", path, token=token)
    # The contract's list of buckets is of those of keys.
    error = refused.json()["error"]
    assert (error["code"], error["details"]["bucket"]) == ("rate_limited", "session")
    # All of a person's sessions together, and nobody else.
    assert (await lobby.ask("GET", path, token=lobby.world.key)).status_code == 200
    lobby.world.clock.advance(60)
    assert (await lobby.ask("GET", path, token=token)).status_code == 200


# -- waiting


async def _waits(lobby: Lobby, token: str) -> asyncio.Task[Any]:
    world = lobby.world
    waiting = asyncio.create_task(lobby.ask("GET", at(lobby.box, "/wait"), token=token, timeout=60))
    await until(lambda: lobby.box.id in world.hub._watches)
    await until(lambda: world.db.stats()["idle"] == world.db.stats()["size"])
    world.clock.advance(1)
    return waiting


@pytest.mark.covers("decisions:A2", "FR-API-1")
async def test_people_wait_for_mail(lobby: Lobby) -> None:
    waiting = await _waits(lobby, await lobby.token())
    one = await lobby.world.deliver(simple_mail(), to=lobby.box)
    async with asyncio.timeout(20):
        answer = await waiting
    assert (answer.status_code, answer.json()["message"]["id"]) == (200, one.message_id)


@pytest.mark.covers("FR-KEY-3", "mail-server:F2")
@pytest.mark.parametrize("how", ["session", "grant"])
async def test_who_is_shut_out_meanwhile_sees_nothing(lobby: Lobby, how: str) -> None:
    token = await lobby.token()
    waiting = await _waits(lobby, token)
    if how == "session":
        assert (await lobby.ask("DELETE", "/v1/auth/session", token=token)).status_code == 204
    else:
        await rows(lobby.world, "DELETE FROM mailbox_grants")
    await lobby.world.deliver(simple_mail(), to=lobby.box)
    async with asyncio.timeout(20):
        answer = await waiting
    assert code(answer) == ("unauthenticated" if how == "session" else "identity_not_found")


# -- sending

LETTER = {"to": ["ann@example.com"], "subject": "Hello", "text": "Good morning."}


async def _send(lobby: Lobby, token: str, key: str, body: Any = None, path: str = "/messages", **params: Any) -> Any:
    headers = {"authorization": f"Bearer {token}", "idempotency-key": key}
    return await lobby.ask("POST", at(lobby.box, path), body or LETTER, headers, **params)


@pytest.mark.covers("decisions:A2", "mail-server:A7")
async def test_people_send_and_answer(lobby: Lobby) -> None:
    world, token = lobby.world, await lobby.token()
    sent = await _send(lobby, token, "k")
    assert sent.status_code == 202, sent.text
    assert sent.json()["from"]["address"] == lobby.address
    (row,) = await rows(world, "SELECT person_id, envelope_from FROM outbound_messages")
    assert tuple(row) == (lobby.ada.id, lobby.address)
    got = await world.deliver(simple_mail(Message_ID="<1@example.com>"), to=lobby.box)
    answered = await _send(lobby, token, "r", {"text": "Yes."}, f"/messages/{got.message_id}/reply")
    assert (answered.status_code, answered.json()["thread_id"]) == (202, got.thread_id)
    listed = await lobby.ask("GET", at(lobby.box, "/messages"), token=token, direction="outbound")
    assert len(listed.json()["data"]) == 2
    canceled = await lobby.ask("POST", at(lobby.box, f"/messages/{sent.json()['id']}/cancel"), token=token)
    assert canceled.json()["status"] == "canceled"


def _limited(lobby: Lobby, limits: SubmissionLimits) -> None:
    """The same deployment, where people may send so much."""
    world: World = lobby.world
    services = lobby.app.services
    sending = sending_of(
        *(world.db, world.clock, world.ids, world.blobs, world.mailboxes, services.parser), limits=limits
    )
    app = create_http(replace(services, sending=sending))
    lobby.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://api.example"
    )


@pytest.mark.covers("mail-server:A7", "decisions:A1")
async def test_a_person_sends_so_much_an_hour(lobby: Lobby) -> None:
    token = await lobby.token()
    _limited(lobby, SubmissionLimits(messages=2))
    for key in ("1", "2", "2", "1"):
        assert (await _send(lobby, token, key)).status_code == 202
    for params in ({}, {"dry_run": "true"}):
        refused = await _send(lobby, token, "3", **params)
        assert (code(refused), details(refused)["bucket"]) == ("rate_limited", "send")
        assert refused.headers["retry-after"] == "60"
    assert len(await rows(lobby.world, "SELECT 1 FROM outbound_messages")) == 2
    assert len(await rows(lobby.world, "SELECT 1 FROM send_ledger")) == 2
    lobby.world.clock.advance(3600)
    # The key that was refused sends.
    assert (await _send(lobby, token, "3")).status_code == 202


@pytest.mark.covers("mail-server:A7", "decisions:A1")
async def test_a_person_sends_to_so_many_a_day(lobby: Lobby) -> None:
    token = await lobby.token()
    _limited(lobby, SubmissionLimits(recipients=3))
    two = {**LETTER, "to": ["a@example.com", "b@example.com"]}
    answers = await asyncio.gather(*(_send(lobby, token, str(n), two) for n in range(4)))
    assert sorted(answer.status_code for answer in answers) == [202, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert code(refused) == "daily_cap_reached"
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert (await _send(lobby, token, "one")).status_code == 202
    lobby.world.clock.advance(int(refused.headers["retry-after"]))
    assert (await _send(lobby, token, "next", two)).status_code == 202


@pytest.mark.covers("mail-server:A7", "FR-OUT-7")
async def test_a_person_is_warned_before_the_day_is_used_up(lobby: Lobby) -> None:
    """Once, by what sent: neither a dry run nor a repetition says it, nor does a refusal."""
    token = await lobby.token()
    _limited(lobby, SubmissionLimits(recipients=5))

    async def used() -> list[int]:
        found = await rows(lobby.world, "SELECT payload FROM events WHERE type = 'quota.warning' ORDER BY id")
        return [orjson.loads(row["payload"])["data"]["used"] for row in found]

    three = {**LETTER, "to": [f"{one}@example.com" for one in "abc"]}
    assert (await _send(lobby, token, "1", three)).status_code == 202
    assert (await _send(lobby, token, "2", dry_run="true")).status_code == 200
    assert await used() == []
    for _ in range(2):
        assert (await _send(lobby, token, "2")).status_code == 202
        assert await used() == [4]
    assert (await _send(lobby, token, "3", three)).status_code == 429
    assert await used() == [4]
    for _ in range(2):
        assert (await _send(lobby, token, "4")).status_code == 202
        assert await used() == [4, 5]
