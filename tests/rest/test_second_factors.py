"""Whoever has a second factor changes credentials with it alone: the password, which may have leaked, makes no way past
it (A4; security-privacy A10). Every operation of one's own account and of signing in is here, or the first test fails.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from postroom.accounts.audit import HOST
from tests.accounts.authenticator import Authenticator
from tests.rest.lobby import RIGHT, Lobby
from tests.rest.sender import code
from tests.rest.test_passkeys import ACCOUNT, creation, entered, keep, registered

NOBODYS: Final = Authenticator().create({"challenge": "", "user": {"id": ""}})


@dataclass(frozen=True)
class Change:
    """An operation that changes what somebody signs in with. `coded`: it takes a code, and what it says without."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    coded: str | None = None


AGAIN: Final = {"current_password": RIGHT}
CHANGES: Final[dict[str, Change]] = {
    "changePassword": Change("POST", "password", {**AGAIN, "new_password": "another horse"}),
    "enrolTotp": Change("POST", "totp", AGAIN),
    "confirmTotp": Change("POST", "totp/confirm", {"code": "123456"}),
    "disableTotp": Change("POST", "totp/disable", {"password": RIGHT, "totp": "000000"}, "invalid_credentials"),
    "replaceRecoveryCodes": Change(
        "POST", "recovery-codes", {"password": RIGHT, "totp": "000000"}, "invalid_credentials"
    ),
    "createAppPassword": Change("POST", "app-passwords", {**AGAIN, "label": "x"}, "totp_required"),
    "revokeAppPassword": Change("DELETE", "app-passwords/{app_password}"),
    "getPasskeyCreationOptions": Change("POST", "passkeys/options", AGAIN, "totp_required"),
    "createPasskey": Change("POST", "passkeys", {"name": "x", "credential": NOBODYS}, "invalid_request"),
    "updatePasskey": Change("PATCH", "passkeys/{passkey}", {"name": "x"}),
    "deletePasskey": Change("DELETE", "passkeys/{passkey}"),
}
FREE: Final = frozenset(
    (
        *("createSession", "recoverSession", "getPasskeyRequestOptions", "createPasskeySession"),
        *("deleteSession", "revokeSession", "revokeOtherSessions", "revokeDevice", "updateAccount"),
    )
)
"""What signs in, what ends something, and one's name."""


async def ask(lobby: Lobby, name: str, token: str) -> httpx.Response:
    change = CHANGES[name]
    path = change.path
    if "{app_password}" in path:
        made, _ = await lobby.account.app_passwords.create(lobby.ada, "Phone", HOST)
        path = path.format(app_password=made.public_id)
    if "{passkey}" in path:
        known = await lobby.account.passkeys.page(lobby.ada.id)
        path = path.format(passkey=known[0].public_id if known else "pky_01ARZ3NDEKTSV4RRFFQ69G5FAV")
    return await lobby.ask(change.method, f"/v1/account/{path}", change.body, token)


async def all_of_it(lobby: Lobby) -> list[Any]:
    """Whatever the person signs in with, but for application passwords that `ask` made."""
    tables = ("person_passkeys", "person_totp", "recovery_codes", "passkey_challenges")
    async with lobby.world.db.acquire() as conn:
        found = [await conn.fetch(f"SELECT * FROM {table}") for table in tables]  # names of ours
        found.append(await conn.fetch("SELECT password_hash FROM people"))
        found.append(await conn.fetch("SELECT id FROM app_passwords WHERE label <> 'Phone' OR revoked_at IS NOT NULL"))
    return found


def test_every_operation_is_here(lobby: Lobby) -> None:
    there = {
        operation["operationId"]
        for methods in lobby.document["paths"].values()
        for method, operation in methods.items()
        if method != "get" and set(operation.get("tags", ())) & {"Account", "Sign-in"}
    }
    assert there == set(CHANGES) | FREE


@pytest.mark.covers("decisions:A4", "mail-server:F4", "security-privacy:A10", "NFR-SEC-1")
@pytest.mark.parametrize("name", CHANGES)
async def test_a_passkey_is_not_got_round_with_the_password(lobby: Lobby, name: str) -> None:
    """Whether the session was there before the passkey or not."""
    older = await lobby.token()
    passkey = await registered(lobby, older)
    before = await all_of_it(lobby)
    for token in (older, await lobby.token()):
        refused = await ask(lobby, name, token)
        assert (refused.status_code, code(refused)) == (403, "permission_denied"), refused.text
        assert refused.json()["error"]["details"] == {"reason": "second_factor_required"}
        assert "second factor" in refused.json()["error"]["message"]
    assert await all_of_it(lobby) == before
    done = await ask(lobby, name, await entered(lobby, passkey))
    assert done.is_success or code(done) in ("totp_not_enabled", "invalid_request"), done.text


@pytest.mark.covers("decisions:A4", "mail-server:F4", "security-privacy:A10", "NFR-SEC-1")
@pytest.mark.parametrize("with_passkey", [False, True], ids=["code", "code and passkey"])
@pytest.mark.parametrize("name", CHANGES)
async def test_nor_is_a_code_with_a_session_of_before(lobby: Lobby, name: str, with_passkey: bool) -> None:
    older, mine = await lobby.token(), await lobby.token()
    if with_passkey:
        mine = await entered(lobby, await registered(lobby, mine))
    await lobby.two_steps(mine)
    before = await all_of_it(lobby)
    refused = await ask(lobby, name, older)
    coded = CHANGES[name].coded
    assert code(refused) == (coded or "permission_denied"), refused.text
    if coded is None:
        assert refused.json()["error"]["details"] == {"reason": "second_factor_required"}
    assert await all_of_it(lobby) == before


@pytest.mark.covers("decisions:A4")
async def test_options_of_before_are_no_way_in_either(lobby: Lobby) -> None:
    """Asked for with the second factor, or before there was one: whoever answers them needs it by then."""
    older = await lobby.token()
    passkey = await registered(lobby, older)
    options = await creation(lobby, await entered(lobby, passkey))
    refused = await keep(lobby, older, Authenticator().create(options))
    assert (code(refused), refused.json()["error"]["details"]["reason"]) == (
        "permission_denied",
        "second_factor_required",
    )
    assert len(await lobby.account.passkeys.page(lobby.ada.id)) == 1


@pytest.mark.covers("decisions:A4")
async def test_a_secret_that_waits_is_not_confirmed_by_the_password(lobby: Lobby) -> None:
    """Begun before there was a passkey, by whoever had the password."""
    older, mine = await lobby.token(), await lobby.token()
    enrolled = await lobby.ask("POST", "/v1/account/totp", AGAIN, older)
    assert enrolled.status_code == 201
    passkey = await registered(lobby, mine)
    lobby.secret = base64.b32decode(enrolled.json()["secret"])
    confirm = ("POST", "/v1/account/totp/confirm", {"code": lobby.code()})
    assert code(await lobby.ask(*confirm, older)) == "permission_denied"
    assert (await lobby.ask("GET", "/v1/account/totp", token=mine)).json()["status"] == "pending"
    token = await entered(lobby, passkey)
    assert (await lobby.ask("POST", "/v1/account/totp/confirm", {"code": lobby.code()}, token)).status_code == 200


@pytest.mark.covers("decisions:A4")
async def test_the_password_is_enough_again_when_the_host_took_the_passkeys(lobby: Lobby) -> None:
    """Whoever lost the only one."""
    token = await lobby.token()
    await registered(lobby, token)
    assert code(await lobby.ask("POST", f"{ACCOUNT}/options", AGAIN, token)) == "permission_denied"
    await lobby.account.passkeys.remove_all(lobby.ada, HOST)
    await registered(lobby, token)
