"""`postroom list`: sender lists."""

from __future__ import annotations

import pytest

from tests.cli.driver import Cli


@pytest.mark.covers("cli-config-ops:A7")
def test_an_entry_comes_and_goes(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    made = cli.json("list", "add", "send", "block", "Ann@EXAMPLE.com", "--note", "asked us to stop")
    assert {**made, "created_at": None} == {
        "direction": "send",
        "kind": "block",
        "entry": "ann@example.com",
        "note": "asked us to stop",
        "created_at": None,
    }
    assert cli("list", "add", "receive", "allow", "@example.org").out == "@example.org is on receive/allow.\n"
    assert cli.json("list", "list", "send", "block", "--tenant", "acme") == {"data": [made], "next_cursor": None}
    assert cli("list", "list", "receive", "allow", "--quiet").out == "@example.org\n"
    assert cli.json("list", "list", "send", "allow")["data"] == []
    again = cli.json("list", "add", "send", "block", "ann@example.com")
    assert again == {**made, "note": None}
    gone = cli.json("list", "remove", "send", "block", "ANN@example.com")
    assert gone == {"direction": "send", "kind": "block", "entry": "ann@example.com"}
    missing = cli("list", "remove", "send", "block", "ann@example.com", "--json")
    assert (missing.code, missing.error["code"]) == (5, "list_entry_not_found")
    done = [(one["action"], one["target_id"]) for one in cli.json("audit", "list", "--limit", "2")["data"]]
    assert done == [("list.delete", "send/block"), ("list.put", "send/block")]


@pytest.mark.covers("cli-config-ops:A3")
def test_a_list_is_cut_and_continues(cli: Cli) -> None:
    """Entries are addresses, which may have any characters, and their place is in the cursor."""
    cli.json("tenant", "create", "acme")
    entries = ["a/b@example.com", "jörg@example.com", '"a%20$(b)"@example.com', "z@example.com"]
    for entry in entries:
        cli.json("list", "add", "send", "allow", entry)
    seen: list[str] = []
    cursor = None
    for _ in entries:
        page = cli.json("list", "list", "send", "allow", "--limit", "1", *(("--cursor", cursor) if cursor else ()))
        (one,) = page["data"]
        seen, cursor = [*seen, one["entry"]], page["next_cursor"]
        assert cursor is None or not set(cursor) & set(" $();'\"")
    assert cursor is None
    assert seen == [entry.replace('"', "") for entry in reversed(entries)]  # as they are compared
    assert [one["entry"] for one in cli.json("list", "list", "send", "allow", "--all")["data"]] == seen
    for wrong in ("x", "2030-01-01T00:00:00+00:00/%00", "2030-01-01T00:00:00+00:00/%ff"):
        assert cli("list", "list", "send", "allow", "--cursor", wrong).code == 2, wrong


@pytest.mark.covers("cli-config-ops:A2", "cli-config-ops:A3")
def test_lists_that_are_none(cli: Cli) -> None:
    cli.json("tenant", "create", "one")
    cli.json("tenant", "create", "two")
    for wrong in (("out", "block"), ("send", "deny"), ("send",)):
        assert cli("list", "list", *wrong, "--tenant", "one").code == 2, wrong
    assert cli("list", "list", "send", "block").code == 2  # which tenant?
    assert cli("list", "list", "send", "block", "--tenant", "none").code == 5
    for entry in ("nobody", "a@b@example.com", "a b@example.com", "@"):
        refused = cli("list", "add", "send", "block", entry, "--tenant", "one", "--json")
        assert (refused.code, refused.error["details"]["errors"][0]["path"]) == (7, "entry"), entry
    cli.json("list", "add", "send", "block", "ann@example.com", "--tenant", "one")
    assert cli.json("list", "list", "send", "block", "--tenant", "two")["data"] == []
    assert cli("list", "remove", "send", "block", "ann@example.com", "--tenant", "two").code == 5
