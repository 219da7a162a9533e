"""`postroom address`, `postroom identity delete`, `postroom audit`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from tests.cli.driver import Cli


@pytest.mark.covers("FR-ADR-1", "FR-ADR-2", "FR-ADR-3", "FR-ADR-4", "FR-IDN-4", "edge:A14")
def test_addresses_deletion_and_the_log(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "acme")
    bot = cli.json("identity", "create", "bot")

    async def make() -> None:
        conn = await asyncpg.connect(database_url)
        await conn.execute(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)"
            " SELECT $1, id, 'acme.example', 'external', 'healthy', $2, $2 FROM tenants",
            *(IdGenerator(SystemClock()).new("dom_"), datetime.now(UTC)),
        )
        await conn.close()

    asyncio.run(make())
    assert cli("address", "add", "bot.acme@agents.example", "Sales@acme.example").out.endswith(" receives.\n")
    help_ = cli.json("address", "add", bot["id"], "help@ACME.example")
    assert help_["status"] == "active"
    unknown = cli("address", "add", bot["id"], "x@elsewhere.example", "--json")
    assert (unknown.code, unknown.error["code"]) == (5, "domain_not_found")
    promoted = cli.json("address", "promote", "sales@acme.example")
    assert promoted["primary_address"] == "sales@acme.example"
    assert cli.json("address", "promote", help_["id"], "--retire-previous-after-days", "3")["primary_address"] == (
        "help@acme.example"
    )
    states = {one["address"]: one["status"] for one in cli.json("address", "list", bot["id"])["data"]}
    assert states == {
        "bot.acme@agents.example": "active",
        "sales@acme.example": "retiring",
        "help@acme.example": "active",
    }
    back = cli.json("address", "rollback", "help@acme.example")
    assert back["primary_address"] == "sales@acme.example"
    assert cli.json("address", "rollback", bot["id"])["primary_address"] == "bot.acme@agents.example"
    assert cli("address", "rollback", bot["id"], "--json").error["code"] == "address_is_primary"
    assert cli("address", "retire", "help@acme.example", "--after-days", "0").out == "It receives nothing more.\n"
    assert cli("address", "remove", "help@acme.example", "--json").error["code"] == "address_in_use"
    first = cli.json("address", "list", bot["id"], "--limit", "1")
    rest = cli.json("address", "list", bot["id"], "--cursor", first["next_cursor"])
    assert len(first["data"]) + len(rest["data"]) == 3
    assert cli("identity", "delete", bot["id"]).code == 2
    erasure = cli.json("identity", "delete", bot["id"], "--yes")
    assert (erasure["status"], erasure["identity_id"]) == ("queued", bot["id"])
    assert cli.json("identity", "delete", bot["id"], "--yes") == erasure
    assert cli.json("address", "list", bot["id"])["data"] == []
    assert cli("address", "list", bot["id"]).err == "It has no addresses any more.\n"
    done = [one["action"] for one in cli.json("audit", "list")["data"]]
    assert done[:2] == ["erasure.create", "identity.delete"]
    assert done.count("address.promote") == 4
    assert [one["action"] for one in cli.json("audit", "list", "--action", "identity.delete")["data"]] == done[1:2]
    assert cli.json("audit", "list", "--after", "2100-01-01")["data"] == []
    assert cli("audit", "list", "--before", "tomorrow").code == 2
    assert cli.json("audit", "list", "--tenant", "acme", "--target", bot["id"])["data"]


@pytest.mark.covers("cli-config-ops:A7")
def test_the_log_of_one_actor(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "acme")
    by_key, by_person = "aud_01ARZ3NDEKTSV4RRFFQ69G5FAV", "aud_01ARZ3NDEKTSV4RRFFQ69G5FAW"
    key, person = "key_01ARZ3NDEKTSV4RRFFQ69G5FAV", "usr_01ARZ3NDEKTSV4RRFFQ69G5FAV"

    async def act() -> None:
        conn = await asyncpg.connect(database_url)
        await conn.executemany(
            "INSERT INTO audit_log (public_id, tenant_id, actor_key, actor_person, action, target_type, target_id,"
            " details, created_at) SELECT $1, id, $2, $3, 'test.act', 'tenant', public_id, '{}', now() FROM tenants",
            [(by_key, key, None), (by_person, None, person)],
        )
        await conn.close()

    asyncio.run(act())

    def ids(*options: str) -> list[str]:
        return [one["id"] for one in cli.json("audit", "list", *options)["data"]]

    for only in ((), ("--tenant", "acme")):
        assert ids("--actor", key, *only) == [by_key]
        assert ids("--key", key, *only) == [by_key]
        assert ids("--actor", person, *only) == [by_person]
        assert ids("--actor", "usr_none", *only) == []
    assert len(ids("--all")) == 3
    assert cli("audit", "list", "--actor", "ada@example.com").code == 2
