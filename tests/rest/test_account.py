"""People over HTTP: signing in, their own account, and what a session may do elsewhere."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from postroom.accounts import GrantRole, MemberRole, NewPerson
from tests.rest.lobby import RIGHT, WRONG, Lobby
from tests.rest.sender import code
from tests.rest.world import simple_mail

PHONE = {"label": "Phone", "current_password": RIGHT}


def plain(response: httpx.Response) -> tuple[int, Any, dict[str, str]]:
    body = response.json()
    del body["error"]["request_id"]
    headers = {name: value for name, value in response.headers.items() if name not in ("request-id", "content-length")}
    return response.status_code, body, headers


@pytest.mark.covers("mail-server:F2")
async def test_in_and_out(lobby: Lobby) -> None:
    answer = await lobby.enter()
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    body = answer.json()
    lobby.check("SignedIn", body)
    assert body["person"]["id"] == lobby.ada.public_id
    assert body["session"]["current"]
    token = body["token"]
    view = await lobby.ask("GET", "/v1/account", token=token)
    lobby.check("AccountView", view.json())
    assert view.json()["totp"] == {"status": "disabled", "recovery_codes_left": 0}
    assert view.headers["ratelimit-limit"] == "600"
    assert (await lobby.ask("DELETE", "/v1/auth/session", token=token)).status_code == 204
    for path in ("/v1/account", f"/v1/identities/{lobby.box.public_id}"):
        gone = await lobby.ask("GET", path, token=token)
        assert (gone.status_code, code(gone)) == (401, "unauthenticated")


@pytest.mark.covers("mail-server:F1")
async def test_failures_look_the_same_whoever_it_is(lobby: Lobby) -> None:
    disabled = await lobby.people.create(NewPerson("Bob", "bob@example.com", RIGHT))
    await lobby.people.set_enabled(disabled.public_id, False)
    await lobby.people.create(NewPerson("Eve", "eve@example.com"))
    answers = []
    for address, password in [
        (lobby.address, WRONG),
        (lobby.address, ""),
        (lobby.address, "x" * 2000),
        ("ada@example.com", WRONG),
        ("nobody@agents.example", RIGHT),
        ("nobody", RIGHT),
        ("bob@example.com", RIGHT),
        ("eve@example.com", RIGHT),
        ("a\u0000b@example.com", RIGHT),
    ]:
        lobby.world.clock.advance(1000)
        answers.append(plain(await lobby.ask("POST", "/v1/auth/session", {"email": address, "password": password})))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 401
    assert answers[0][1]["error"]["code"] == "invalid_credentials"


@pytest.mark.covers("mail-server:F3", "security-privacy:A5")
async def test_limits(lobby: Lobby) -> None:
    for _ in range(10):
        assert code(await lobby.enter(WRONG)) == "invalid_credentials"
    locked = await lobby.enter()
    assert (locked.status_code, code(locked)) == (429, "too_many_attempts")
    assert 0 < int(locked.headers["retry-after"]) <= 960
    answers = [
        code(await lobby.ask("POST", "/v1/auth/session", {"email": "x@example.com", "password": WRONG}))
        for _ in range(12)
    ]
    assert answers[-1] == "rate_limited"


@pytest.mark.parametrize(
    "body", [None, [], {"email": "a@b.c"}, {"email": 1, "password": "x"}, {"email": "x" * 321, "password": "x"}]
)
async def test_bodies(lobby: Lobby, body: Any) -> None:
    assert code(await lobby.client.post("/v1/auth/session", json=body)) == "invalid_request"
    large = {"email": "a@b.c", "password": "x", "more": "x" * 70_000}
    assert code(await lobby.client.post("/v1/auth/session", json=large)) == "payload_too_large"


@pytest.mark.covers("mail-server:F4", "decisions:A4")
async def test_two_steps(lobby: Lobby) -> None:
    token = await lobby.token()
    codes = await lobby.two_steps(token)
    assert code(await lobby.ask("POST", "/v1/account/totp", {"current_password": RIGHT}, token)) == "totp_enabled"
    wanted = await lobby.enter()
    assert (wanted.status_code, code(wanted)) == (401, "totp_required")
    assert code(await lobby.enter(WRONG, totp=lobby.code())) == "invalid_credentials"
    assert code(await lobby.enter(totp="000000")) == "invalid_credentials"
    lobby.world.clock.advance(60)
    answer = await lobby.ask(
        "POST", "/v1/auth/session", {"email": lobby.address, "password": RIGHT, "totp": lobby.code()}
    )
    assert answer.json()["session"]["second_factor"]
    recovered = await lobby.ask(
        "POST", "/v1/auth/recover", {"email": lobby.address, "password": RIGHT, "recovery_code": codes[0]}
    )
    assert recovered.status_code == 201
    status = await lobby.ask("GET", "/v1/account/totp", token=token)
    assert status.json() == {"status": "enabled", "recovery_codes_left": 9}
    both = {"password": RIGHT, "totp": codes[1]}
    fresh = await lobby.ask("POST", "/v1/account/recovery-codes", both, token)
    lobby.check("RecoveryCodes", fresh.json())
    off = {"password": RIGHT, "totp": fresh.json()["recovery_codes"][0]}
    wrong = await lobby.ask("POST", "/v1/account/totp/disable", {**off, "password": WRONG}, token)
    assert (wrong.status_code, code(wrong)) == (401, "invalid_credentials")
    assert (await lobby.ask("POST", "/v1/account/totp/disable", off, token)).status_code == 204
    await lobby.token()


@pytest.mark.covers("mail-server:F5")
async def test_application_passwords(lobby: Lobby) -> None:
    token = await lobby.token()
    made = await lobby.ask("POST", "/v1/account/app-passwords", PHONE, token)
    assert made.status_code == 201
    lobby.check("AppPasswordCreated", made.json())
    secret = made.json().pop("password")
    listed = await lobby.ask("GET", "/v1/account/app-passwords", token=token)
    lobby.check("AppPasswordPage", listed.json())
    assert secret not in listed.text
    inside = await lobby.token(secret)
    refused = await lobby.ask("POST", "/v1/account/app-passwords", PHONE, inside)
    assert (refused.status_code, refused.json()["error"]["details"]) == (403, {"reason": "app_password"})
    path = f"/v1/account/app-passwords/{made.json()['id']}"
    assert (await lobby.ask("DELETE", path, token=token)).status_code == 204
    assert code(await lobby.ask("DELETE", path, token=token)) == "app_password_not_found"
    assert code(await lobby.ask("GET", "/v1/account", token=inside)) == "unauthenticated"
    assert code(await lobby.enter(secret)) == "invalid_credentials"


@pytest.mark.covers("mail-server:F1", "FR-API-3")
async def test_password_sessions_and_devices(lobby: Lobby) -> None:
    token = await lobby.token()
    device = {"device_uid": "u1", "name": "Laptop", "platform": "linux"}
    other = await lobby.token(device=device)
    first = (await lobby.ask("GET", "/v1/account/sessions", token=token, limit=1)).json()
    lobby.check("SessionPage", first)
    cursor = first["next_cursor"]
    second = (await lobby.ask("GET", "/v1/account/sessions", token=token, limit=1, cursor=cursor)).json()
    assert [one["current"] for one in (*first["data"], *second["data"])] == [False, True]
    assert first["data"][0]["kind"] == "client"
    devices = (await lobby.ask("GET", "/v1/account/devices", token=token)).json()
    lobby.check("DevicePage", devices)
    (shown,) = devices["data"]
    assert shown["id"] == first["data"][0]["device_id"]
    assert (await lobby.ask("DELETE", f"/v1/account/devices/{shown['id']}", token=token)).status_code == 204
    assert code(await lobby.ask("DELETE", f"/v1/account/devices/{shown['id']}", token=token)) == "device_not_found"
    assert code(await lobby.ask("GET", "/v1/account", token=other)) == "unauthenticated"
    third = await lobby.token()
    change = {"current_password": RIGHT, "new_password": "another horse"}
    wrong = {**change, "current_password": WRONG}
    assert code(await lobby.ask("POST", "/v1/account/password", wrong, token)) == "invalid_credentials"
    assert (await lobby.ask("POST", "/v1/account/password", change, token)).status_code == 204
    assert code(await lobby.ask("GET", "/v1/account", token=third)) == "unauthenticated"
    assert (await lobby.ask("GET", "/v1/account", token=token)).status_code == 200
    fourth = await lobby.token("another horse")
    assert (await lobby.ask("DELETE", "/v1/account/sessions", token=token)).status_code == 204
    assert code(await lobby.ask("GET", "/v1/account", token=fourth)) == "unauthenticated"
    for path, wanted in (("sessions/ses_x", "session_not_found"), ("devices/dev_x", "device_not_found")):
        assert code(await lobby.ask("DELETE", f"/v1/account/{path}", token=token)) == wanted
    renamed = await lobby.ask("PATCH", "/v1/account", {"display_name": "Ada L."}, token)
    assert renamed.json()["person"]["display_name"] == "Ada L."
    boxes = (await lobby.ask("GET", "/v1/account/mailboxes", token=token)).json()
    lobby.check("AccountMailboxPage", boxes)
    assert [(box["address"], box["role"]) for box in boxes["data"]] == [(lobby.address, "owner")]


@pytest.mark.covers("FR-KEY-3")
async def test_a_session_opens_the_mailboxes_that_are_granted_and_no_others(lobby: Lobby) -> None:
    world = lobby.world
    stored = await world.deliver(simple_mail(), to=lobby.box)
    token = await lobby.token()
    at = f"/v1/identities/{lobby.box.public_id}"
    assert (await lobby.ask("GET", f"{at}/messages", token=token)).json()["data"][0]["id"] == stored.message_id
    message = f"{at}/messages/{stored.message_id}"
    assert (await lobby.ask("PATCH", message, {"read": True}, token)).status_code == 200
    missing = plain(await lobby.ask("GET", f"/v1/identities/{world.ids.new('idn_')}/messages", token=token))
    for other in (world.box, world.other_box):
        assert plain(await lobby.ask("GET", f"/v1/identities/{other.public_id}/messages", token=token)) == missing
    await lobby.people.grant(world.tenant.id, lobby.box.public_id, lobby.ada.public_id, GrantRole.READ)
    assert (await lobby.ask("GET", message, token=token)).status_code == 200
    assert code(await lobby.ask("PATCH", message, {"read": False}, token)) == "permission_denied"
    for path in ("/v1/me", "/v1/identities/lookup?address=a@example.com"):
        assert code(await lobby.ask("GET", path, token=token)) == "scope_denied"


async def test_keys_have_no_account(lobby: Lobby) -> None:
    for headers in (lobby.world.platform, lobby.world.key):
        refused = await lobby.ask("GET", "/v1/account", token=headers)
        assert (refused.status_code, refused.json()["error"]["details"]) == (403, {"reason": "person_required"})
    for bad in ("pms_" + "x" * 43, "pms_", "x"):
        assert code(await lobby.ask("GET", "/v1/account", token=bad)) == "unauthenticated"


@pytest.mark.covers("mail-server:F4", "mail-server:F5", "security-privacy:A10")
async def test_a_session_alone_makes_nothing_to_sign_in_with(lobby: Lobby) -> None:
    token = await lobby.token()
    for path, rest in (("/v1/account/totp", {}), ("/v1/account/app-passwords", {"label": "Phone"})):
        assert code(await lobby.ask("POST", path, rest, token)) == "invalid_request"
        wrong = await lobby.ask("POST", path, {**rest, "current_password": WRONG}, token)
        assert (wrong.status_code, code(wrong)) == (401, "invalid_credentials")
    assert (await lobby.ask("GET", "/v1/account/totp", token=token)).json()["status"] == "disabled"
    assert (await lobby.ask("GET", "/v1/account/app-passwords", token=token)).json()["data"] == []
    codes = await lobby.two_steps(token)
    missing = await lobby.ask("POST", "/v1/account/app-passwords", PHONE, token)
    assert (missing.status_code, code(missing)) == (401, "totp_required")
    wrong = await lobby.ask("POST", "/v1/account/app-passwords", {**PHONE, "totp": "000000"}, token)
    assert (wrong.status_code, code(wrong)) == (401, "invalid_credentials")
    made = await lobby.ask("POST", "/v1/account/app-passwords", {**PHONE, "totp": codes[0]}, token)
    assert made.status_code == 201
    used = await lobby.ask("POST", "/v1/account/app-passwords", {**PHONE, "totp": codes[0]}, token)
    assert code(used) == "invalid_credentials"
    lobby.world.clock.advance(60)
    for _ in range(10):
        await lobby.ask("POST", "/v1/account/app-passwords", {"label": "x", "current_password": WRONG}, token)
    locked = await lobby.ask("POST", "/v1/account/app-passwords", {**PHONE, "totp": codes[1]}, token)
    assert (locked.status_code, code(locked)) == (429, "too_many_attempts")
    assert "retry-after" in locked.headers


@pytest.mark.covers("decisions:A2", "decisions:A4")
async def test_memberships_count_with_a_second_factor(lobby: Lobby) -> None:
    world = lobby.world
    path = f"/v1/tenants/{world.tenant.public_id}/people"
    token = await lobby.token()
    missing = plain(await lobby.ask("GET", f"/v1/tenants/{world.ids.new('ten_')}/people", token=token))
    assert plain(await lobby.ask("GET", path, token=token)) == missing
    await lobby.people.put_member(world.tenant.id, lobby.ada.public_id, MemberRole.MEMBER)
    assert code(await lobby.ask("GET", path, token=token)) == "permission_denied"
    await lobby.people.put_member(world.tenant.id, lobby.ada.public_id, MemberRole.ADMIN)
    refused = await lobby.ask("GET", path, token=token)
    assert refused.json()["error"]["details"] == {"reason": "second_factor_required"}
    await lobby.two_steps(token)
    assert (await lobby.ask("GET", path, token=token)).status_code == 200
    other = f"/v1/tenants/{world.other_tenant.public_id}/people"
    assert plain(await lobby.ask("GET", other, token=token)) == missing
    made = await lobby.ask("POST", "/v1/account/app-passwords", {**PHONE, "totp": lobby.code()}, token)
    inside = await lobby.token(made.json()["password"])
    assert plain(await lobby.ask("GET", path, token=inside)) == missing


@pytest.mark.covers("decisions:A2")
async def test_operators_run_the_deployment_and_read_no_mail(lobby: Lobby) -> None:
    world = lobby.world
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE people SET is_operator = true WHERE id = $1", lobby.ada.id)
    token = await lobby.token()
    rotate = "/v1/platform/keys/thread/rotate"
    people = f"/v1/tenants/{world.other_tenant.public_id}/people"
    assert code(await lobby.ask("POST", rotate, token=token)) == "scope_denied"
    await lobby.two_steps(token)
    assert (await lobby.ask("POST", rotate, token=token)).status_code == 200
    assert (await lobby.ask("GET", people, token=token)).status_code == 200
    at = f"/v1/identities/{world.box.public_id}"
    assert code(await lobby.ask("GET", f"{at}/messages", token=token)) == "identity_not_found"
