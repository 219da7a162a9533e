"""`postroom message`: moved, copied, flagged, removed; and what a mailbox may hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.cli.driver import Cli

BOT = "bot.acme@agents.example"
MBOX = b"".join(
    b"From a@example.com Tue Jan  1 00:00:00 2030\nFrom: a@example.com\nMessage-ID: <%d@example.com>\n\nx\n\n" % n
    for n in range(2)
)
MISSING = "msg_01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def two(cli: Cli, tmp_path: Path, database_url: str) -> list[str]:
    cli.json("tenant", "create", "acme")
    cli.json("identity", "create", "bot")
    path = tmp_path / "some.mbox"
    path.write_bytes(MBOX)
    assert cli("import", "mbox", str(path), "--into", BOT).code == 0

    async def ids() -> list[str]:
        conn = await asyncpg.connect(database_url)
        found = await conn.fetch("SELECT public_id FROM messages ORDER BY id")
        await conn.close()
        return [row["public_id"] for row in found]

    return asyncio.run(ids())


def told(cli: Cli, *argv: str) -> list[str]:
    return [one["result"] for one in cli.json("message", *argv)["data"]]


def counts(cli: Cli) -> dict[str, tuple[int, int]]:
    found = cli.json("folder", "list", BOT)["data"]
    return {one["name"]: (one["message_count"], one["unseen_count"]) for one in found if one["message_count"]}


@pytest.mark.covers("decisions:D11", "mail-server:H4")
def test_each_message_is_told_of(cli: Cli, two: list[str]) -> None:
    one, other = two
    assert told(cli, "flag", BOT, one, other, MISSING, "--add", "$seen", "--add", "work") == [
        *("changed", "changed", "not_found")
    ]
    assert told(cli, "flag", BOT, one, "--remove", "$seen") == ["changed"]
    assert told(cli, "copy", BOT, "Archive", one) == ["copied"]
    assert counts(cli) == {"INBOX": (2, 1), "Archive": (1, 1)}
    assert told(cli, "move", BOT, "Trash", one, other) == ["moved", "moved"]
    assert counts(cli) == {"Trash": (2, 1)}
    assert cli("message", "expunge", BOT, one).code == 2
    assert told(cli, "expunge", BOT, one, "--yes") == ["expunged"]
    assert counts(cli) == {"Trash": (1, 0)}


def test_refusals(cli: Cli, two: list[str]) -> None:
    assert cli("message", "move", BOT, "Nowhere", two[0], "--json").error["code"] == "folder_not_found"
    assert cli("message", "move", BOT, "Trash", "x").code == 2
    assert cli("message", "flag", BOT, two[0]).code == 2
    assert cli("message", "flag", BOT, two[0], "--add", "a b", "--json").error["code"] == "invalid_request"


@pytest.mark.covers("mail-server:E4", "decisions:D9")
def test_what_a_mailbox_may_hold(cli: Cli, two: list[str], tmp_path: Path) -> None:
    shown = cli.json("identity", "quota", BOT)
    assert (shown["used_bytes"] > 0, shown["quota_bytes"]) == (True, None)
    assert cli.json("identity", "quota", BOT, "--bytes", "1") == shown | {"quota_bytes": 1}
    assert cli("message", "copy", BOT, "Archive", two[0], "--json").error["code"] == "mailbox_full"
    assert told(cli, "move", BOT, "Archive", two[0]) == ["moved"]
    path = tmp_path / "more.mbox"
    path.write_bytes(MBOX.replace(b"@example.com>", b"@example.net>"))
    assert cli("import", "mbox", str(path), "--into", BOT).code == 7
    assert cli.json("identity", "quota", BOT, "--unlimited") == shown
    assert cli("import", "mbox", str(path), "--into", BOT).code == 0
    assert cli("identity", "quota", BOT, "--bytes", "1", "--unlimited").code == 2
