"""Passkeys over HTTP, end to end: a browser with an authenticator in software registers, and signs in."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.accounts import MemberRole, NewPerson
from postroom.accounts.audit import HOST
from postroom.accounts.service.passkeys import MAX_PASSKEYS
from tests.accounts.authenticator import SYNCED, UP, Authenticator, text
from tests.rest.lobby import RIGHT, WRONG, Lobby
from tests.rest.sender import code
from tests.rest.test_fuzz import run

ACCOUNT: Final = "/v1/account/passkeys"
SIGN_IN: Final = "/v1/auth/passkeys"


async def creation(lobby: Lobby, token: str, **more: Any) -> Mapping[str, Any]:
    answer = await lobby.ask("POST", f"{ACCOUNT}/options", {"current_password": RIGHT, **more}, token)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    lobby.check("PasskeyCreationOptions", answer.json())
    found: Mapping[str, Any] = answer.json()["public_key"]
    return found


async def keep(lobby: Lobby, token: str, credential: Any, name: Any = "Laptop") -> httpx.Response:
    return await lobby.ask("POST", ACCOUNT, {"name": name, "credential": credential}, token)


async def registered(lobby: Lobby, token: str, authenticator: Authenticator | None = None) -> Authenticator:
    authenticator = authenticator or Authenticator()
    answer = await keep(lobby, token, authenticator.create(await creation(lobby, token)))
    assert answer.status_code == 201, answer.text
    lobby.check("Passkey", answer.json())
    return authenticator


async def asked(lobby: Lobby) -> Mapping[str, Any]:
    lobby.world.clock.advance(60)  # a new window for the rate limit
    answer = await lobby.ask("POST", f"{SIGN_IN}/options")
    assert answer.status_code == 200, answer.text
    lobby.check("PasskeyRequestOptions", answer.json())
    found: Mapping[str, Any] = answer.json()["public_key"]
    return found


async def show(lobby: Lobby, credential: Any, **more: Any) -> httpx.Response:
    return await lobby.ask("POST", SIGN_IN, {"credential": credential, **more})


async def entered(lobby: Lobby, authenticator: Authenticator, **more: Any) -> str:
    answer = await show(lobby, authenticator.get(await asked(lobby)), **more)
    assert answer.status_code == 201, answer.text
    lobby.check("SignedIn", answer.json())
    return str(answer.json()["token"])


async def audited(lobby: Lobby) -> list[tuple[str, str | None]]:
    async with lobby.world.db.acquire() as conn:
        rows = await conn.fetch("SELECT action, actor_person FROM audit_log WHERE action LIKE 'passkey.%' ORDER BY id")
    return [(row["action"], row["actor_person"]) for row in rows]


@pytest.mark.covers("decisions:A4", "decisions:C5")
async def test_registered_listed_used_renamed_removed(lobby: Lobby) -> None:
    token = await lobby.token()
    laptop = await registered(lobby, token)
    lobby.world.clock.advance(1)
    phone = await registered(lobby, await entered(lobby, laptop))
    answer = await show(lobby, laptop.get(await asked(lobby)))
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["person"]["id"] == lobby.ada.public_id
    session = answer.json()["session"]
    assert (session["second_factor"], session["passkey"], session["app_password"]) == (True, True, False)
    theirs = answer.json()["token"]
    listed = (await lobby.ask("GET", ACCOUNT, token=theirs)).json()
    lobby.check("PasskeyPage", listed)
    assert [one["last_used_at"] is not None for one in listed["data"]] == [False, True]
    assert listed["data"][1]["transports"] == ["internal", "hybrid"]
    assert listed["data"][1]["backed_up"]
    first = await lobby.ask("GET", ACCOUNT, token=theirs, limit=1)
    rest = await lobby.ask("GET", ACCOUNT, token=theirs, limit=1, cursor=first.json()["next_cursor"])
    assert first.json()["data"] + rest.json()["data"] == listed["data"]
    path = f"{ACCOUNT}/{listed['data'][1]['id']}"
    renamed = await lobby.ask("PATCH", path, {"name": "Old laptop"}, theirs)
    assert (renamed.status_code, renamed.json()["name"]) == (200, "Old laptop")
    assert code(await lobby.ask("DELETE", path, token=token)) == "permission_denied", "the password alone"
    other = await entered(lobby, phone)
    assert (await lobby.ask("DELETE", path, token=other)).status_code == 204
    assert code(await lobby.ask("DELETE", path, token=other)) == "passkey_not_found"
    assert code(await lobby.ask("PATCH", path, {"name": "x"}, other)) == "passkey_not_found"
    assert (await lobby.ask("GET", "/v1/account", token=theirs)).status_code == 401, "what it opened ends"
    assert (await lobby.ask("GET", "/v1/account", token=token)).status_code == 200, "what it did not goes on"
    assert code(await show(lobby, laptop.get(await asked(lobby)))) == "invalid_credentials"
    mine = lobby.ada.public_id
    assert await audited(lobby) == [("passkey.create", mine), ("passkey.create", mine), ("passkey.remove", mine)]


@pytest.mark.covers("decisions:A2", "decisions:A4")
async def test_counts_wherever_a_second_factor_is_wanted(lobby: Lobby) -> None:
    world = lobby.world
    await lobby.people.put_member(world.tenant.id, lobby.ada.public_id, MemberRole.ADMIN, by_operator=True)
    token = await lobby.token()
    people = f"/v1/tenants/{world.tenant.public_id}/people"
    refused = await lobby.ask("GET", people, token=token)
    assert (code(refused), refused.json()["error"]["details"]["reason"]) == (
        "permission_denied",
        "second_factor_required",
    )
    passkey = await registered(lobby, token)
    assert code(await lobby.ask("GET", people, token=token)) == "permission_denied", "making one proves nothing yet"
    assert (await lobby.ask("GET", people, token=await entered(lobby, passkey))).status_code == 200


async def test_devices(lobby: Lobby) -> None:
    passkey = await registered(lobby, await lobby.token())
    token = await entered(lobby, passkey, device={"device_uid": "phone-1", "name": "Phone", "platform": "android"})
    (device,) = (await lobby.ask("GET", "/v1/account/devices", token=token)).json()["data"]
    assert device["device_uid"] == "phone-1"
    sessions = (await lobby.ask("GET", "/v1/account/sessions", token=token)).json()["data"]
    assert [(one["kind"], one["device_id"]) for one in sessions] == [("client", device["id"]), ("web", None)]


@pytest.mark.covers("mail-server:F4", "mail-server:F5", "security-privacy:A10")
async def test_a_session_alone_makes_none(lobby: Lobby) -> None:
    token = await lobby.token()
    wrong = await lobby.ask("POST", f"{ACCOUNT}/options", {"current_password": WRONG}, token)
    assert (wrong.status_code, code(wrong)) == (401, "invalid_credentials")
    assert code(await lobby.ask("POST", f"{ACCOUNT}/options", {}, token)) == "invalid_request"
    await lobby.two_steps(token)
    ask = {"current_password": RIGHT}
    assert code(await lobby.ask("POST", f"{ACCOUNT}/options", ask, token)) == "totp_required"
    assert code(await lobby.ask("POST", f"{ACCOUNT}/options", ask | {"totp": "000000"}, token)) == "invalid_credentials"
    assert await creation(lobby, token, totp=lobby.code())
    _, phone = await lobby.account.app_passwords.create(lobby.ada, "Phone", HOST)
    by_app_password = await lobby.token(phone)
    for method, path, body in (
        ("POST", f"{ACCOUNT}/options", ask),
        ("POST", ACCOUNT, {"name": "x", "credential": Authenticator().create({"challenge": "", "user": {"id": ""}})}),
        ("PATCH", f"{ACCOUNT}/pky_01ARZ3NDEKTSV4RRFFQ69G5FAV", {"name": "x"}),
        ("DELETE", f"{ACCOUNT}/pky_01ARZ3NDEKTSV4RRFFQ69G5FAV", None),
    ):
        refused = await lobby.ask(method, path, body, by_app_password)
        assert (refused.status_code, code(refused)) == (403, "permission_denied"), path


async def test_passkey_alone_where_there_are_two_steps(lobby: Lobby) -> None:
    passkey = await registered(lobby, await lobby.token())
    await lobby.two_steps(await entered(lobby, passkey))
    assert code(await lobby.enter()) == "totp_required"
    assert (await lobby.ask("GET", "/v1/account", token=await entered(lobby, passkey))).status_code == 200


@pytest.mark.covers("decisions:C5")
async def test_challenges_count_once_and_for_five_minutes(lobby: Lobby) -> None:
    token = await lobby.token()
    authenticator, clock = Authenticator(counter=1, counts=True), lobby.world.clock
    options = await creation(lobby, token)
    clock.advance(300)
    late = await keep(lobby, token, authenticator.create(options))
    assert (late.status_code, code(late)) == (400, "invalid_request")
    options = await creation(lobby, token)
    clock.advance(299)
    assert (await keep(lobby, token, authenticator.create(options))).status_code == 201
    token = await entered(lobby, authenticator)
    assert code(await keep(lobby, token, Authenticator().create(options))) == "invalid_request", "replayed"
    older = await creation(lobby, token)
    await creation(lobby, token)
    assert code(await keep(lobby, token, Authenticator().create(older))) == "invalid_request", "void"

    request = await asked(lobby)
    answer = authenticator.get(request)
    assert (await show(lobby, answer)).status_code == 201
    assert code(await show(lobby, answer)) == "invalid_credentials"
    assert code(await show(lobby, authenticator.get(request))) == "invalid_credentials"
    request = await asked(lobby)
    clock.advance(300)
    assert code(await show(lobby, authenticator.get(request))) == "invalid_credentials"
    request = await asked(lobby)
    assert code(await show(lobby, authenticator.get(request, flags=UP))) == "invalid_credentials"
    assert (await show(lobby, authenticator.get(request))).status_code == 201, "a wrong answer takes nothing away"


async def test_challenges_are_of_one_person_and_one_ceremony(lobby: Lobby) -> None:
    bob = await lobby.people.create(NewPerson("Bob", "bob@example.com", RIGHT))
    entry = await lobby.ask("POST", "/v1/auth/session", {"email": "bob@example.com", "password": RIGHT})
    mine, theirs = await lobby.token(), entry.json()["token"]
    options = await creation(lobby, mine)
    assert code(await keep(lobby, theirs, Authenticator().create(options))) == "invalid_request"
    request = await asked(lobby)
    assert code(await keep(lobby, mine, Authenticator().create({**options, **request}))) == "invalid_request"
    passkey = await registered(lobby, mine)
    options = await creation(lobby, await entered(lobby, passkey))
    assert code(await show(lobby, passkey.get(options))) == "invalid_credentials"
    # Nor does a person's own handle make another's passkey theirs.
    request = await asked(lobby)
    answer = passkey.get(request, handle=bob.public_id.encode())
    assert code(await show(lobby, answer)) == "invalid_credentials"
    without = Authenticator(**{**vars(passkey), "handle": None})
    assert code(await show(lobby, without.get(await asked(lobby)))) == "invalid_credentials"


@pytest.mark.covers("NFR-SEC-1")
async def test_of_several_with_one_challenge_one_wins(lobby: Lobby) -> None:
    token = await lobby.token()
    options = await creation(lobby, token)
    made = [Authenticator() for _ in range(4)]
    kept = await asyncio.gather(*(keep(lobby, token, one.create(options)) for one in made))
    # Who comes when the first is done meets what wants a second factor.
    assert sorted(one.status_code for one in kept)[0] == 201
    assert {one.status_code for one in kept} <= {201, 400, 403}
    assert sum(one.status_code == 201 for one in kept) == 1
    passkey = next(one for one, answer in zip(made, kept, strict=True) if answer.status_code == 201)
    request = await asked(lobby)
    shown = await asyncio.gather(*(show(lobby, passkey.get(request)) for _ in range(4)))
    assert sorted(one.status_code for one in shown) == [201, 401, 401, 401]


async def test_one_credential_of_one_person(lobby: Lobby) -> None:
    await lobby.people.create(NewPerson("Bob", "bob@example.com", RIGHT))
    entry = await lobby.ask("POST", "/v1/auth/session", {"email": "bob@example.com", "password": RIGHT})
    mine, theirs = await lobby.token(), entry.json()["token"]
    passkey = await registered(lobby, mine)
    mine = await entered(lobby, passkey)
    for token in (mine, theirs):
        again = Authenticator(key=passkey.key, credential_id=passkey.credential_id)
        answer = await keep(lobby, token, again.create(await creation(lobby, token)))
        assert (answer.status_code, code(answer)) == (409, "passkey_registered")
    (known,) = (await creation(lobby, mine))["excludeCredentials"]
    assert known["id"] == text(passkey.credential_id)
    assert (await creation(lobby, theirs))["excludeCredentials"] == []


async def test_there_is_a_limit(lobby: Lobby) -> None:
    token = await entered(lobby, await registered(lobby, await lobby.token()))
    for _ in range(MAX_PASSKEYS - 2):
        await registered(lobby, token)
    options = await creation(lobby, token)
    last = Authenticator().create(options)
    assert (await keep(lobby, token, last)).status_code == 201
    full = await lobby.ask("POST", f"{ACCOUNT}/options", {"current_password": RIGHT}, token)
    assert (full.status_code, code(full)) == (422, "passkey_limit_reached")


@pytest.mark.covers("decisions:C5", "security-privacy:A2")
async def test_a_counter_that_goes_back(lobby: Lobby) -> None:
    passkey = await registered(lobby, await lobby.token(), Authenticator(counter=5, counts=True))
    await entered(lobby, passkey)
    copy = Authenticator(**{**vars(passkey), "counter": 5})
    request = await asked(lobby)
    assert code(await show(lobby, copy.get(request))) == "invalid_credentials"
    assert (await audited(lobby))[-1] == ("passkey.counter_went_back", None)
    async with lobby.world.db.acquire() as conn:
        row = await conn.fetchrow("SELECT target_id, details FROM audit_log ORDER BY id DESC LIMIT 1")
        assert row is not None
        assert row["target_id"].startswith("pky_")
        assert row["details"] == {"person": lobby.ada.public_id, "stored": 6, "shown": 6}
        assert await conn.fetchval("SELECT sign_count FROM person_passkeys") == 6
    await entered(lobby, passkey)


@pytest.mark.covers("mail-server:F1", "decisions:A2")
async def test_disabled_people_and_reset_passwords(lobby: Lobby) -> None:
    token = await lobby.token()
    passkey = await registered(lobby, token)
    options = await creation(lobby, await entered(lobby, passkey))
    await lobby.people.set_password(lobby.ada.public_id, "another horse")
    fresh = await entered(lobby, passkey)
    answer = await keep(lobby, fresh, Authenticator().create(options))
    assert (answer.status_code, code(answer)) == (401, "invalid_credentials"), "proved by a password that was reset"
    await entered(lobby, passkey)  # which stays, as application passwords do
    await lobby.people.set_enabled(lobby.ada.public_id, False)
    assert code(await show(lobby, passkey.get(await asked(lobby)))) == "invalid_credentials"
    await lobby.people.set_enabled(lobby.ada.public_id, True)
    token = await entered(lobby, passkey)
    assert await lobby.account.passkeys.remove_all(lobby.ada, HOST) == 1
    assert (await lobby.ask("GET", "/v1/account", token=token)).status_code == 401


@pytest.mark.covers("mail-server:F3", "security-privacy:A5")
async def test_how_often(lobby: Lobby) -> None:
    passkey, clock = await registered(lobby, await lobby.token()), lobby.world.clock
    # Wrong answers of a passkey lock the account for passwords; a right one is let in all the same.
    for _ in range(10):
        assert code(await show(lobby, passkey.get(await asked(lobby), flags=UP))) == "invalid_credentials"
    clock.advance(60)
    wrong = await lobby.ask("POST", "/v1/auth/session", {"email": "ada@example.com", "password": RIGHT})
    assert code(wrong) == "too_many_attempts"
    await entered(lobby, passkey)
    codes = []
    for attempt in range(30):
        request = await asked(lobby) if attempt % 8 == 0 else {"challenge": "x"}
        codes.append(code(await show(lobby, passkey.get(request, flags=UP))))
    refused = codes.count("invalid_credentials")
    assert 20 <= refused < 30, "ten before"
    assert codes == ["invalid_credentials"] * refused + ["too_many_attempts"] * (30 - refused)
    locked = await show(lobby, passkey.get({"challenge": "x"}))
    assert (locked.status_code, code(locked)) == (429, "too_many_attempts")
    assert int(locked.headers["retry-after"]) > 0
    clock.advance(60)
    answers = [await lobby.ask("POST", f"{SIGN_IN}/options") for _ in range(11)]
    assert [one.status_code for one in answers] == [200] * 10 + [429]
    assert code(answers[-1]) == "rate_limited"
    assert code(await show(lobby, passkey.get({"challenge": "x"}))) == "rate_limited"


async def test_nobody_is_asked_who_they_are(lobby: Lobby) -> None:
    """What is answered before somebody signs in is the same for everybody but for the challenge."""
    before = await asked(lobby)
    await registered(lobby, await lobby.token())
    after = await asked(lobby)
    assert {**before, "challenge": ""} == {**after, "challenge": ""}
    assert before["challenge"] != after["challenge"]


MALFORMED: Final[dict[str, Any]] = {
    "no object": "x",
    "none": None,
    "no response": {"id": "AAAA", "rawId": "AAAA", "type": "public-key"},
    "another type": {"type": "password"},
    "two ids": {"rawId": "BBBB"},
    "no id": {"id": ""},
    "not base64url": {"id": "A+/A", "rawId": "A+/A"},
    "padded": {"id": "AA==", "rawId": "AA=="},
    "impossible": {"id": "A", "rawId": "A"},
    "long id": {"id": "A" * 1368, "rawId": "A" * 1368},
    "number": {"id": 7},
    "long client data": {"response": {"clientDataJSON": "A" * 5464}},
    "long attestation": {"response": {"attestationObject": "A" * 5464}},
    "long data": {"response": {"authenticatorData": "A" * 2736}},
    "long signature": {"response": {"signature": "A" * 1368}},
    "long handle": {"response": {"userHandle": "A" * 88}},
    "many transports": {"response": {"transports": ["usb"] * 33}},
}


@pytest.mark.covers("NFR-SEC-1", "FR-API-2")
async def test_what_is_no_answer_of_a_browser(lobby: Lobby) -> None:
    token = await lobby.token()
    options, passkey = await creation(lobby, token), Authenticator()
    for what, change in MALFORMED.items():
        for right in (passkey.create(options), passkey.get(options)):
            members = change.get("response", {}) if isinstance(change, dict) else {}
            if members and not set(members) & set(right["response"]):
                continue
            if what == "no response":
                wrong = change
            elif members:
                wrong = {**right, "response": {**right["response"], **members}}
            else:
                wrong = {**right, **change} if isinstance(change, dict) else change
            made = "attestationObject" in right["response"]
            answer = await (keep(lobby, token, wrong) if made else show(lobby, wrong))
            assert (answer.status_code, code(answer)) == (400, "invalid_request"), (what, answer.text)
    assert (await keep(lobby, token, passkey.create(options))).status_code == 201, "none of them used it up"
    for name in ("", "x" * 129, "a\u0000b", 7):
        assert code(await keep(lobby, token, passkey.create(options), name)) == "invalid_request"


@pytest.mark.covers("NFR-SEC-1")
async def test_mangled_answers_are_refused(lobby: Lobby) -> None:
    token = await lobby.token()
    passkey = await registered(lobby, token)
    token = await entered(lobby, passkey)
    options = await creation(lobby, token)
    kinds = ("clientDataJSON", "attestationObject", "authenticatorData", "signature")

    async def refused(kind: str, junk: bytes) -> None:
        lobby.world.clock.advance(61)
        right = passkey.create(options) if kind == "attestationObject" else passkey.get(await asked(lobby))
        wrong = {**right, "response": {**right["response"], kind: base64.urlsafe_b64encode(junk).decode().rstrip("=")}}
        if kind == "attestationObject":
            answer = await keep(lobby, token, wrong)
            assert (answer.status_code, code(answer)) == (400, "invalid_request")
        else:
            answer = await show(lobby, wrong)
            assert code(answer) in ("invalid_credentials", "too_many_attempts"), answer.text

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(kinds), st.binary(min_size=1, max_size=300))
    async def inner(kind: str, junk: bytes) -> None:
        await refused(kind, junk)

    await asyncio.wait_for(run(inner), 110)


async def test_the_table_of_challenges_does_not_grow(lobby: Lobby) -> None:
    token = await lobby.token()
    for _ in range(3):
        await creation(lobby, token)
        await asked(lobby)
    async with lobby.world.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM passkey_challenges") == 1
        assert await conn.fetchval("SELECT count(*) FROM passkey_answers") == 0
    lobby.world.clock.advance(timedelta(minutes=5).total_seconds())
    await lobby.account.passkeys.prune()
    async with lobby.world.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM passkey_challenges") == 0


async def test_synced_passkeys_do_not_count(lobby: Lobby) -> None:
    """Nearly all say 0 for ever."""
    passkey = await registered(lobby, await lobby.token(), Authenticator(flags=SYNCED, counter=0))
    for _ in range(2):
        await entered(lobby, passkey)
