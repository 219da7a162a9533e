"""Tenants, people, identities and keys, made and listed, for people and for programs."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, Level
from tests.cli.driver import PASSWORD, Cli


def test_tenants(cli: Cli) -> None:
    made = cli.json("tenant", "create", "acme", "--name", "Acme & Söhne", "--timezone", "Europe/Berlin")
    assert (made["slug"], made["name"], made["mode"], made["address_suffix"]) == (
        "acme",
        "Acme & Söhne",
        "live",
        ".acme",
    )
    assert cli.json("tenant", "create", "main", "--default", "--mode", "test")["address_suffix"] == ""
    quiet = cli("tenant", "create", "third", "--address-suffix", ".x3", "--quiet")
    assert quiet.out.startswith("ten_")
    listed = cli.json("tenant", "list")
    assert [one["slug"] for one in listed["data"]] == ["third", "main", "acme"]
    assert listed["next_cursor"] is None
    table = cli("tenant", "list").out
    assert "Acme & Söhne" in table
    assert "SLUG" in table


@pytest.mark.covers("cli-config-ops:A3")
def test_api_errors_have_their_exit_codes(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    taken = cli("tenant", "create", "acme", "--json")
    assert (taken.code, taken.error["code"]) == (6, "slug_taken")
    bad = cli("tenant", "create", "No Slug", "--json")
    assert (bad.code, bad.error["code"]) == (7, "invalid_request")
    missing = cli("identity", "list", "--tenant", "nobody", "--json")
    assert (missing.code, missing.error["code"]) == (5, "tenant_not_found")
    told = cli("tenant", "create", "acme")
    assert told.out == ""
    assert told.err.startswith("error: slug_taken (409): ")
    assert "\nfix: " in told.err


def test_lists_are_cut_and_continue(cli: Cli) -> None:
    for number in range(5):
        cli.json("identity", "create", f"agent-{number}")
    first = cli.json("identity", "list", "--limit", "2")
    second = cli.json("identity", "list", "--limit", "2", "--cursor", first["next_cursor"])
    third = cli.json("identity", "list", "--limit", "2", "--cursor", second["next_cursor"])
    names = [one["username"] for page in (first, second, third) for one in page["data"]]
    assert names == ["agent-4", "agent-3", "agent-2", "agent-1", "agent-0"]
    assert third["next_cursor"] is None
    assert f"--cursor {first['next_cursor']}" in cli("identity", "list", "--limit", "2").err
    for cursor in ("nonsense", "2030-01-01/x", "2030-01-01T00:00:00+00:00/\N{SNOWMAN}", "/"):
        assert cli("identity", "list", "--cursor", cursor).code == 2


def test_a_person_has_a_mailbox_of_their_own(cli: Cli) -> None:
    made = cli.json(
        *("person", "create", "ada", "--name", "Ada Example", "--contact-email", "Ada@example.com", "--operator"),
        *("--password-stdin",),
        stdin=f"{PASSWORD}\nnot this\n",
    )
    assert made["addresses"] == ["ada@agents.example"]
    assert (made["contact_email"], made["is_operator"], made["has_password"]) == ("ada@example.com", True, True)
    identities = cli.json("identity", "list")["data"]
    assert [(one["kind"], one["primary_address"], one["id"]) for one in identities] == [
        ("person", "ada@agents.example", made["identity_ids"][0])
    ]
    (listed,) = cli.json("person", "list")["data"]
    assert listed == {key: value for key, value in made.items() if key != "tenant_id"}
    assert "ada@agents.example" in cli("person", "list").out


def test_a_person_whose_name_is_taken_is_not_half_made(cli: Cli) -> None:
    cli.json("identity", "create", "ada")
    argv = ("person", "create", "ada", "--contact-email", "ada@example.com", "--password-stdin", "--json")
    taken = cli(*argv, stdin=f"{PASSWORD}\n")
    assert (taken.code, taken.error["code"]) == (6, "username_taken")
    assert cli.json("person", "list")["data"] == []
    assert cli(*argv[:2], "ada2", *argv[3:], stdin=f"{PASSWORD}\n").code == 0


@pytest.mark.parametrize("password", ["short\n", "\n", "", "x" * 2000 + "\n", "x" * 100_000])
def test_bad_passwords_make_nobody(cli: Cli, password: str) -> None:
    cli.json("tenant", "create", "acme")
    result = cli("person", "create", "ada", "--password-stdin", "--json", stdin=password)
    assert (result.code, result.error["code"]) == (7, "invalid_request")
    assert cli.json("person", "list")["data"] == []
    assert cli.json("identity", "list")["data"] == []


def test_setting_a_password(cli: Cli) -> None:
    made = cli.json("person", "create", "ada", "--password-stdin", stdin=f"{PASSWORD}\r\n")
    for named in (made["id"], "ada@agents.example", "ADA@agents.example"):
        assert cli.json("person", "set-password", named, "--password-stdin", stdin="another one\n")["id"] == made["id"]
    told = cli("person", "set-password", made["id"], "--password-stdin", stdin="a third one\n")
    assert told.out == f"The password of {made['id']} was changed.\n"
    cli.json("identity", "create", "bot")
    for named, code in (("usr_x", "person_not_found"), ("bot@agents.example", "person_not_found")):
        missing = cli("person", "set-password", named, "--password-stdin", "--json", stdin="another one\n")
        assert (missing.code, missing.error["code"]) == (5, code)
    assert cli("person", "set-password", "no@agents.example", "--password-stdin", stdin="another one\n").code == 5


def test_an_identity_is_made_once_for_its_client_id(cli: Cli) -> None:
    argv = ("identity", "create", "bot", "--client-id", "crm-7", "--purpose", "support", "--display-name", "The Bot")
    first = cli.json(*argv)
    assert (first["kind"], first["display_name"], first["client_id"]) == ("agent", "The Bot", "crm-7")
    assert cli.json(*argv) == first
    assert cli("identity", "create", "other", "--client-id", "crm-7").code == 6


def test_tenants_are_named_where_several_could_be_meant(cli: Cli) -> None:
    cli.json("tenant", "create", "one")
    assert cli.json("identity", "create", "bot")["primary_address"] == "bot.one@agents.example"
    two = cli.json("tenant", "create", "two")
    assert cli("identity", "create", "bot").code == 2
    for named in ("two", two["id"]):
        assert cli.json("identity", "list", "--tenant", named)["data"] == []
    cli.json("tenant", "create", "main", "--default")
    assert cli.json("identity", "create", "bot")["primary_address"] == "bot@agents.example"


def test_keys(cli: Cli) -> None:
    identity = cli.json("identity", "create", "bot")
    made = cli.json(
        *("key", "create", "--name", "reader", "--permissions", "messages:read,search:read", "--expires-in", "30d"),
        *("--permissions", "attachments:read"),
    )
    assert made["key"].startswith(f"{made['prefix']}_")
    assert made["permissions"] == ["messages:read", "attachments:read", "search:read"]
    assert made["expires_at"] is not None
    own = cli.json(
        *("key", "create", "--name", "own", "--level", "identity", "--identity", "bot@agents.example"),
        *("--permissions", "all", "--expires-at", "2099-01-01"),
    )
    assert (own["identity_id"], own["expires_at"]) == (identity["id"], "2099-01-01T00:00:00.000Z")
    assert set(own["permissions"]) == MAY_HOLD[Level.IDENTITY]
    platform = cli("key", "create", "--name", "root", "--level", "platform", "--permissions", "all", "--quiet")
    assert platform.out.startswith("pmk_live_")
    listed = cli.json("key", "list")["data"]
    assert [one["name"] for one in listed] == ["root", "own", "reader"]
    assert set(listed[0]["permissions"]) == MAY_HOLD[Level.PLATFORM]
    assert not any("key" in one for one in listed)
    assert [one["name"] for one in cli.json("key", "list", "--tenant", "default")["data"]] == ["own", "reader"]
    told = cli("key", "create", "--name", "everything", "--permissions", "all")
    assert "shown this once" in told.err
    whole = cli.json("key", "list", "--limit", "1")["data"][0]
    assert set(whole["permissions"]) == MAY_HOLD[Level.TENANT] - OWNER_ONLY


@pytest.mark.covers("cli-config-ops:A7", "FR-KEY-1", "FR-KEY-5")
def test_keys_of_every_level_are_shown_and_rotated(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "main", "--default")
    ada = cli.json("person", "create", "ada", "--password-stdin", stdin=f"{PASSWORD}\n")
    bo = cli.json("person", "create", "bo", "--password-stdin", stdin=f"{PASSWORD}\n")
    partner = asyncio.run(_partner_and_member(database_url, ada["id"]))
    base = ("key", "create", "--name", "k", "--permissions", "messages:read")
    made = cli.json(*base, "--level", "partner", "--partner", partner)
    assert (made["level"], made["partner_id"], made["tenant_id"]) == ("partner", partner, None)
    hers = cli.json(*base[:4], "--permissions", "tenants:erase,erasure:manage", "--person", "ada@agents.example")
    assert hers["created_by_user_id"] == ada["id"]
    for key in (made, hers):
        shown = cli.json("key", "show", key["id"])
        assert shown == {name: value for name, value in key.items() if name != "key"}
        turned = cli.json("key", "rotate", key["id"], "--overlap-hours", "0")
        assert turned["key"].startswith(f"{key['prefix']}_")
        assert turned["key"] != key["key"]
    assert cli("key", "show", "key_none", "--json").code == 5
    for wrong in (("--level", "partner"), ("--partner", partner), ("--level", "platform", "--tenant", "main")):
        assert cli(*base, *wrong).code == 2, wrong
    missing = cli(*base, "--level", "partner", "--partner", "ptn_none", "--json")
    assert (missing.code, missing.error["code"]) == (5, "partner_not_found")
    stranger = cli(*base, "--person", bo["id"], "--json")
    assert (stranger.code, stranger.error["code"]) == (5, "person_not_found")
    everything = cli("key", "create", "--name", "k", "--permissions", "tenants:erase", "--json")
    assert everything.error["details"] == {"reason": "permission_owner_only"}


async def _partner_and_member(database_url: str, person: str) -> str:
    """A partner, whose noun comes with partners; and the person made the owner of the tenant, as sign-up will."""
    partner = "ptn_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    conn = await asyncpg.connect(database_url)
    try:
        await conn.execute("INSERT INTO partners (public_id, name, created_at) VALUES ($1, 'One', now())", partner)
        await conn.execute(
            "INSERT INTO members (tenant_id, person_id, role, created_at)"
            " SELECT t.id, p.id, 'owner', now() FROM tenants t, people p WHERE p.public_id = $1",
            person,
        )
    finally:
        await conn.close()
    return partner


def test_revoking_a_key(cli: Cli) -> None:
    made = cli.json("key", "create", "--name", "k", "--permissions", "messages:read")
    assert cli("key", "revoke", made["id"]).out == f"{made['id']} was revoked.\n"
    assert cli.json("key", "revoke", made["id"])["revoked_at"] is not None
    missing = cli("key", "revoke", "key_none", "--json")
    assert (missing.code, missing.error["code"]) == (5, "key_not_found")


def test_key_requests_that_cannot_be_met(cli: Cli) -> None:
    for permissions, code in (("messages:fly", 7), ("platform:ops", 7)):
        argv = ("key", "create", "--name", "k", "--permissions", permissions, "--json")
        assert cli(*argv).code == code
    assert cli("key", "create", "--name", "k", "--permissions", "all", "--expires-at", "2001-01-01").code == 7


def test_text_from_outside_is_harmless_on_a_terminal(cli: Cli) -> None:
    cli.json("identity", "create", "bot", "--display-name", "evil \u202eeman")
    assert "evil <U+202E>eman" in cli("identity", "list").out
    assert cli.json("identity", "list")["data"][0]["display_name"] == "evil \u202eeman"


@pytest.mark.covers("cli-config-ops:A7", "FR-IDN-1")
def test_an_identity_is_made_whole(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "main", "--default")
    domain = asyncio.run(_domain(database_url))
    whole = ("--signature-text", "Yours", "--metadata", "a=1", "--metadata", "b=x=y")
    made = cli.json("identity", "create", "bot", "--domain", "ACME.example", "--client-id", "crm-7", *whole)
    assert made["primary_address"] == "bot@acme.example"
    assert [one["address"] for one in made["addresses"]] == ["bot@acme.example", "bot@agents.example"]
    assert (made["signature"]["text"], made["metadata"]) == ("Yours", {"a": "1", "b": "x=y"})
    assert cli.json("identity", "create", "bot", "--domain", domain, "--client-id", "crm-7", *whole) == made
    for named in ("elsewhere.example", "dom_none", "", "dom_\udc80", "no domain"):
        missing = cli("identity", "create", "two", "--domain", named, "--json")
        assert (missing.code, missing.error["code"]) == (5, "domain_not_found"), named
    for wrong in ("a", "=a", ""):
        assert cli("identity", "create", "two", "--metadata", wrong).code == 2, wrong


@pytest.mark.covers("cli-config-ops:A7")
def test_identities_are_narrowed(cli: Cli) -> None:
    made = [
        cli.json("identity", "create", f"bot{at}", "--purpose", purpose, "--client-id", f"c{at}")
        for at, purpose in enumerate(("sales", "help", "sales"))
    ]
    cli.json("identity", "pause", made[0]["id"])
    cli.json("identity", "delete", made[1]["id"], "--yes")

    def named(*options: str) -> list[str]:
        return [one["username"] for one in cli.json("identity", "list", *options)["data"]]

    assert named("--status", "active") == ["bot2"]
    assert named("--status", "paused") == ["bot0"]
    assert named("--status", "deleting") == ["bot1"]
    assert named("--purpose", "sales", "--tenant", "default") == ["bot2", "bot0"]
    assert named("--client-id", "c0") == ["bot0"]
    assert cli("identity", "list", "--client-id", "c9").err == "No such identities.\n"
    assert cli("identity", "list", "--status", "gone").code == 2


async def _domain(database_url: str) -> str:
    """A domain of the one tenant, as if it had been proved."""
    public_id = "dom_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    conn = await asyncpg.connect(database_url)
    try:
        await conn.execute(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)"
            " SELECT $1, id, 'acme.example', 'external', 'healthy', now(), now() FROM tenants",
            public_id,
        )
    finally:
        await conn.close()
    return public_id


@pytest.mark.covers("cli-config-ops:A7", "FR-IDN-3")
def test_an_identity_is_changed(cli: Cli) -> None:
    made = cli.json("identity", "create", "bot", "--purpose", "p")
    changed = cli.json(
        *("identity", "update", "bot@agents.example", "--name", "Bot", "--purpose", "", "--owner-name", "Bo"),
        *("--owner-email", "bo@example.com", "--signature-text", "Yours", "--metadata", "a=1", "--metadata", "b=x=y"),
        *("--daily-cap", "9000", "--auto-reply", "denied", "--any-recipient"),
    )
    assert (changed["id"], changed["display_name"], changed["purpose"]) == (made["id"], "Bot", None)
    assert changed["owner"] == {"name": "Bo", "email": "bo@example.com"}
    assert changed["metadata"] == {"a": "1", "b": "x=y"}
    assert changed["send_policy"] == {"daily_cap": 9000, "auto_reply": "denied", "require_known_recipient": False}
    again = cli.json("identity", "update", made["id"], "--require-known-recipient")
    assert again["send_policy"] == {**changed["send_policy"], "require_known_recipient": True}
    assert cli.json("identity", "get", "bot@agents.example") == again
    assert cli("identity", "pause", made["id"]).out == "bot@agents.example sends no more.\n"
    assert cli.json("identity", "pause", made["id"])["pause_reason"] == "manual"
    assert cli.json("identity", "resume", "bot@agents.example")["status"] == "active"
    for wrong in ("", "--auto-reply perhaps", "--metadata a", "--metadata =a", "--metadata ", "--daily-cap -1"):
        assert cli("identity", "update", made["id"], *wrong.split(" ")[: 2 if wrong else 0]).code == 2, wrong
    assert cli("identity", "update", made["id"], "--owner-email", "nobody").code == 7
    assert cli("identity", "update", "nobody@agents.example", "--name", "x").code == 5


@pytest.mark.covers("cli-config-ops:A7", "security-privacy:A6.2")
def test_signing_keys(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    listed = cli.json("key", "ring")["data"]
    assert [(one["purpose"], one["kid"], one["state"], one["verify_until"]) for one in listed] == [
        (purpose, "0", "signing", None) for purpose in ("thread", "bounce", "forward", "link", "cursor")
    ]
    turned = cli.json("key", "rotate", "thread")
    assert (turned["kid"], turned["previous"]["kid"], turned["previous"]["revoked"]) == ("1", "0", False)
    assert cli("key", "rotate", "thread", "--quiet").out == "2\n"
    assert [one["kid"] for one in cli.json("key", "ring", "thread")["data"]] == ["2", "1", "0"]
    assert cli("key", "retire", "thread", "1").out == "Key 1 of thread is honoured no more.\n"
    assert cli("key", "retire", "thread", "1").code == 5
    assert cli("key", "retire", "thread", "2").code == 6
    unsure = cli("key", "rotate", "thread", "--revoke-previous", "--json")
    assert (unsure.code, unsure.error["code"]) == (2, "cli_usage")
    told = cli("key", "rotate", "thread", "--revoke-previous", "--yes")
    assert told.out == "Key 3 makes new ones of thread; key 2 is honoured no more.\n"
    assert [one["kid"] for one in cli.json("key", "ring", "thread")["data"]] == ["3"]
    for wrong in (
        ("rotate", "web_bot_auth"),
        ("ring", "x"),
        ("retire", "x", "0"),
        ("rotate", "thread", "--overlap-hours", "1"),
    ):
        assert cli("key", *wrong).code == 2


@pytest.mark.covers("cli-config-ops:A7", "security-privacy:A3.6")
def test_a_key_with_a_new_secret(cli: Cli) -> None:
    made = cli.json("key", "create", "--name", "k", "--permissions", "messages:read")
    turned = cli.json("key", "rotate", made["id"])
    assert (turned["id"], turned["prefix"]) == (made["id"], made["prefix"])
    assert turned["key"] != made["key"]
    told = cli("key", "rotate", made["id"], "--overlap-hours", "0")
    assert "shown this once" in told.err
    assert cli("key", "rotate", made["id"], "--overlap-hours", "169").code == 7
    assert cli("key", "rotate", made["id"], "--revoke-previous").code == 2
    assert cli("key", "rotate", "key_none").code == 5
    cli.json("key", "revoke", made["id"])
    assert cli("key", "rotate", made["id"], "--json").error["details"] == {"reason": "key_revoked"}
