"""`postroom person`: what people sign in with, as the operator of the host sees it."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime

import asyncpg
import pytest

from postroom.accounts import totp
from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from tests.cli.driver import PASSWORD, Cli

ADA = "ada@agents.example"


@pytest.fixture
def ada(cli: Cli) -> str:
    made = cli.json("person", "create", "ada", "--password-stdin", stdin=f"{PASSWORD}\n")
    return str(made["id"])


@pytest.mark.covers("mail-server:H4", "mail-server:F5")
def test_application_passwords(cli: Cli, ada: str) -> None:
    made = cli.json("person", "app-password", "create", ADA, "--label", "Phone")
    assert made["password"].startswith("ap_")
    shown = cli("person", "app-password", "create", ada, "--label", "Laptop")
    assert shown.out.startswith("ap_")
    listed = cli("person", "app-password", "list", ADA, "--json")
    assert [one["label"] for one in listed.document["data"]] == ["Laptop", "Phone"]
    assert made["password"] not in listed.out
    assert "Phone" in cli("person", "app-password", "list", ADA).out
    assert cli("person", "app-password", "revoke", ADA, made["id"]).code == 0
    again = cli("person", "app-password", "revoke", ADA, made["id"], "--json")
    assert (again.code, again.error["code"]) == (5, "app_password_not_found")


@pytest.mark.covers("mail-server:F4")
def test_two_step_verification(cli: Cli, ada: str) -> None:
    begun = cli.json("person", "totp", "enable", ADA)
    assert begun["uri"].startswith("otpauth://totp/")
    secret = base64.b32decode(begun["secret"])
    wrong = cli("person", "totp", "enable", ADA, "--code", "x", "--json")
    assert wrong.error["code"] == "invalid_credentials"
    now = totp.step_of(datetime.now(UTC))
    done = cli.json("person", "totp", "enable", ADA, "--code", totp.code_at(secret, now))
    assert len(done["recovery_codes"]) == 10
    assert cli.json("person", "totp", "show", ADA)["recovery_codes_left"] == 10
    assert cli.json("person", "show", ADA)["totp"] == "enabled"
    assert cli("person", "totp", "disable", ADA).code == 2
    assert cli("person", "totp", "disable", ADA, "--yes").code == 0
    assert cli("person", "totp", "disable", ADA, "--yes", "--json").error["code"] == "totp_not_enabled"


@pytest.mark.covers("decisions:A4", "decisions:C5")
def test_passkeys(cli: Cli, ada: str, database_url: str) -> None:
    assert cli.json("person", "passkey", "list", ADA)["data"] == []
    assert "No passkeys" in cli("person", "passkey", "list", ada).err
    missing = cli("person", "passkey", "remove", ADA, "pky_x", "--json")
    assert (missing.code, missing.error["code"]) == (5, "passkey_not_found")
    laptop, phone = asyncio.run(_with_passkeys(database_url, ada, "Laptop", "Phone"))
    listed = cli.json("person", "passkey", "list", ADA)["data"]
    assert [(one["id"], one["name"]) for one in listed] == [(phone, "Phone"), (laptop, "Laptop")]
    assert cli.json("person", "passkey", "remove", ADA, laptop) == {"id": laptop, "removed": 1}
    assert cli("person", "passkey", "remove", ADA).code == 2
    assert cli.json("person", "passkey", "remove", ADA, "--yes") == {"id": ada, "removed": 1}
    assert cli.json("person", "passkey", "list", ADA)["data"] == []
    rows = cli.json("audit", "list", "--action", "passkey.remove")["data"]
    assert [one["target_id"] for one in rows] == [phone, laptop]


async def _with_passkeys(url: str, person: str, *names: str) -> list[str]:
    """No command makes one: browsers do."""
    ids = IdGenerator(SystemClock())
    made = [ids.new("pky_") for _ in names]
    conn = await asyncpg.connect(url)
    for public_id, name in zip(made, names, strict=True):
        await conn.execute(
            "INSERT INTO person_passkeys (public_id, person_id, credential_id, public_key, sign_count, transports,"
            " name, backup_eligible, backed_up, created_at)"
            " SELECT $1, id, $2, 'k', 0, '{}', $3, true, true, now() FROM people WHERE public_id = $4",
            *(public_id, name.encode(), name, person),
        )
    await conn.close()
    return made


def test_disabled_and_enabled(cli: Cli, ada: str) -> None:
    assert cli.json("person", "disable", ADA)["enabled"] is False
    assert cli.json("person", "show", ada)["enabled"] is False
    assert "enabled" in cli("person", "enable", ada).out
    assert cli.json("person", "show", ada)["enabled"] is True


def test_sessions(cli: Cli, ada: str) -> None:
    assert cli.json("person", "sessions", "list", ADA)["data"] == []
    assert cli("person", "sessions", "revoke", ADA).code == 0
    missing = cli("person", "sessions", "revoke", ADA, "ses_x", "--json")
    assert (missing.code, missing.error["code"]) == (5, "session_not_found")


@pytest.mark.covers("decisions:A2")
def test_grants(cli: Cli, ada: str) -> None:
    team = cli.json("identity", "create", "team", "--kind", "person")["id"]
    own = cli.json("person", "grant", "list", ADA)["data"]
    assert [one["role"] for one in own] == ["owner"]
    put = cli.json("person", "grant", "put", ADA, "team@agents.example", "read")
    assert put == {"identity_id": team, "person_id": ada, "role": "read"}
    assert "full" in cli("person", "grant", "put", ada, team, "full").out
    listed = cli.json("person", "grant", "list", ada, "--limit", "1")
    assert [(one["identity_id"], one["role"]) for one in listed["data"]] == [(team, "full")]
    assert cli.json("person", "grant", "list", ada, "--cursor", listed["next_cursor"])["data"] == own
    assert cli("person", "grant", "put", ada, team, "all").code == 2
    assert cli("person", "grant", "remove", ada, team).code == 0
    assert cli("person", "grant", "remove", ada, team, "--json").error["code"] == "grant_not_found"


@pytest.mark.covers("mail-server:F6")
def test_devices(cli: Cli, ada: str) -> None:
    assert cli.json("person", "device", "list", ADA)["data"] == []
    assert cli("person", "device", "revoke", ada, "dev_x", "--json").error["code"] == "device_not_found"


@pytest.mark.covers("decisions:A2")
def test_removed(cli: Cli, ada: str) -> None:
    assert cli("person", "remove", ADA).code == 2
    assert cli.json("person", "remove", ADA, "--yes")["id"] == ada
    assert cli("person", "show", ada, "--json").error["code"] == "person_not_found"
    assert cli.json("identity", "get", ADA)["primary_address"] == ADA, "the mailbox stays"


@pytest.mark.covers("decisions:A2", "security-privacy:A2")
def test_roles(cli: Cli, ada: str) -> None:
    assert cli.json("person", "role", ADA, "admin")["role"] == "admin"
    assert cli("person", "role", ADA, "owner").code == 0
    assert cli("person", "role", ADA, "member", "--json").error["code"] == "owner_required"
    assert cli("person", "role", ADA, "king").code == 2
    (joined,) = cli.json("audit", "list", "--action", "member.join")["data"]
    assert joined["details"] == {"role": "admin"}
    (changed,) = cli.json("audit", "list", "--action", "member.role_change")["data"]
    assert changed["details"] == {"from": "admin", "to": "owner"}
