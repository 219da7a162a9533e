"""`postroom folder`: listed, made, renamed, removed."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.cli.driver import Cli

BOT = "bot.acme@agents.example"


@pytest.mark.covers("mail-server:D2")
def test_folders(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    identity = cli.json("identity", "create", "bot")["id"]
    listed = cli.json("folder", "list", BOT)
    assert [one["name"] for one in listed["data"]] == ["INBOX", "Archive", "Drafts", "Junk", "Sent", "Trash"]
    assert listed["data"][0] | {"id": None, "uid_validity": 0} == {
        "id": None,
        "name": "INBOX",
        "special_use": "inbox",
        "subscribed": True,
        "message_count": 0,
        "unseen_count": 0,
        "total_bytes": 0,
        "uid_validity": 0,
        "uid_next": 1,
    }
    made = cli.json("folder", "create", identity, "Work/Old")
    assert made["id"].startswith("fld_")
    first = cli.json("folder", "list", BOT, "--limit", "6")
    assert cli.json("folder", "list", BOT, "--cursor", first["next_cursor"])["data"][-1] == made
    assert cli("folder", "list", BOT, "--quiet").out.splitlines()[-2:] == ["Work", "Work/Old"]
    renamed = cli.json("folder", "rename", BOT, "Work", "Play")
    assert renamed["name"] == "Play"
    assert cli.json("folder", "rename", BOT, "Play", "Play") == renamed
    for argv, code, exit_code in (
        (("create", BOT, "Sent"), "folder_exists", 6),
        (("rename", BOT, "Play", "Sent"), "folder_exists", 6),
        (("rename", BOT, "INBOX", "Other"), "invalid_request", 7),
        (("rename", BOT, "Work", "Other"), "folder_not_found", 5),
        (("delete", BOT, "Trash"), "invalid_request", 7),
        (("delete", BOT, "Play"), "folder_not_empty", 6),
        (("delete", BOT, "a:b"), "folder_not_found", 5),
        (("create", BOT, "a:b"), "invalid_request", 7),
        (("list", "nobody@agents.example"), "address_not_found", 5),
    ):
        refused = cli("folder", *argv, "--json")
        assert (refused.error["code"], refused.code) == (code, exit_code), argv
    assert cli("folder", "delete", BOT, "Play/Old").out == "Play/Old is gone.\n"
    assert cli.json("folder", "delete", BOT, "Play")["name"] == "Play"


@pytest.mark.covers("mail-server:D2", "mail-server:C3")
def test_what_holds_messages_goes_when_asked(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "acme")
    cli.json("identity", "create", "bot")
    cli.json("folder", "create", BOT, "Work")

    async def count(number: int) -> None:
        conn = await asyncpg.connect(database_url)
        await conn.execute("UPDATE folders SET message_count = $1 WHERE name = 'Work'", number)
        await conn.close()

    asyncio.run(count(1))
    assert cli("folder", "delete", BOT, "Work", "--json").error["code"] == "folder_not_empty"
    assert cli("folder", "delete", BOT, "Work", "--expunge").code == 0
