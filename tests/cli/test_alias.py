"""`postroom alias`: made, listed, removed; and the identity that passes mail on shows nowhere."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from postroom.directory.relays import USERNAME
from tests.cli.driver import Cli


@pytest.mark.covers("mail-server:A6")
def test_aliases(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    cli.json("identity", "create", "bot")
    made = cli.json("alias", "create", "Sales.acme@agents.example", "bot.acme")
    assert made["id"].startswith("als_")
    assert (made["address"], made["target"]) == ("sales.acme@agents.example", "bot.acme@agents.example")
    out = cli("alias", "create", "out.acme@agents.example", "ann@example.com", "--quiet").out.strip()
    assert out.startswith("als_")
    first = cli.json("alias", "list", "--limit", "1")
    assert [one["target"] for one in first["data"]] == ["ann@example.com"]
    assert cli.json("alias", "list", "--cursor", first["next_cursor"])["data"] == [made]
    assert "sales.acme@agents.example" in cli("alias", "list").out
    taken = cli("alias", "create", "bot.acme@agents.example", "x@example.com", "--json")
    assert (taken.code, taken.error["code"]) == (6, "address_taken")
    assert cli("identity", "create", "sales").code == 6
    assert cli("alias", "delete", "SALES.acme@agents.example").out == "sales.acme@agents.example takes no more mail.\n"
    cli.json("tenant", "create", "other")
    for named in (out, "out.acme@agents.example", "als_x", made["id"], "nobody@agents.example", "@"):
        gone = cli("alias", "delete", named, "--tenant", "other", "--json")
        assert (gone.code, gone.error["code"]) == (5, "address_not_found")
    assert cli.json("alias", "delete", out, "--tenant", "acme")["address"] == "out.acme@agents.example"
    assert cli.json("alias", "list", "--tenant", "acme")["data"] == []
    cli.json("identity", "create", "sales", "--tenant", "acme")


@pytest.mark.covers("mail-server:A6", "SEC-1")
def test_a_relay_is_in_no_list(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "acme")
    cli.json("identity", "create", "bot")
    relay = "idn_01ARZ3NDEKTSV4RRFFQ69G5FAV"

    async def make() -> None:
        conn = await asyncpg.connect(database_url)
        await conn.execute(
            "INSERT INTO identities (tenant_id, public_id, kind, username, username_fold, display_name, is_system,"
            " created_at, updated_at) SELECT id, $1, 'relay', $2, $2, 'Relay', true, now(), now() FROM tenants",
            relay,
            USERNAME,
        )
        await conn.close()

    asyncio.run(make())
    for noun in ("tenant", "identity", "person", "key", "alias"):
        shown = cli(noun, "list", "--json").out
        assert relay not in shown
        assert USERNAME not in shown
    argv = ("key", "create", "--name", "x", "--level", "identity", "--identity", relay, "--permissions", "all")
    assert cli(*argv, "--json").error["code"] == "identity_not_found"
