"""`postroom dlq`: work that was given up."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.cli.driver import Cli


@pytest.mark.covers("edge:J8")
def test_dead_letters(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "acme")
    assert cli.json("dlq", "list")["data"] == []
    made = cli.json("member", "invite", "--email", "bo@elsewhere.example", "--role", "member", "--tenant", "acme")
    asyncio.run(_give_up(database_url))
    (item,) = cli.json("dlq", "list", "--queue", "outbound")["data"]
    assert (item["kind"], item["redrive_count"]) == ("invitation", 0)
    assert made["email"] not in cli("dlq", "list", "--json").out
    assert cli.json("dlq", "list", "--queue", "index")["data"] == []
    (done,) = cli.json("dlq", "redrive", "--queue", "outbound")["data"]
    assert (done["id"], done["redrive_count"]) == (item["id"], 1)
    assert cli("dlq", "redrive", item["id"]).code == 0
    missing = cli("dlq", "redrive", f"dlq_{'0' * 26}", "--json")
    assert (missing.code, missing.error["code"]) == (5, "dlq_item_not_found")
    assert [one["id"] for one in cli.json("dlq", "list", "--status", "redriven")["data"]] == [item["id"]]


async def _give_up(url: str) -> None:
    conn = await asyncpg.connect(url)
    await conn.execute("UPDATE invitations SET parked_at = now(), next_attempt_at = NULL, last_error = 'a_test'")
    await conn.close()


@pytest.mark.parametrize(
    "argv",
    [("list", "--queue", "x"), ("list", "--status", "x"), ("redrive",), ("redrive", "dlq_x", "--queue", "index")],
)
def test_usage(cli: Cli, argv: tuple[str, ...]) -> None:
    assert cli("dlq", *argv).code == 2
