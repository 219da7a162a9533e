"""`postroom member`: who is in a tenant, and who is invited to it."""

from __future__ import annotations

import pytest

from tests.cli.driver import PASSWORD, Cli

ADA = "ada@agents.example"


@pytest.mark.covers("cli-config-ops:A5", "FR-CON-4")
def test_members(cli: Cli) -> None:
    ada = cli.json("person", "create", "ada", "--password-stdin", stdin=f"{PASSWORD}\n")["id"]
    assert cli("person", "role", ADA, "viewer").code == 0
    made = cli.json("member", "invite", "--email", "bo@elsewhere.example", "--role", "admin")
    assert (made["status"], made["role"]) == ("invited", "admin")
    listed = cli.json("member", "list")["data"]
    assert [(one["id"], one["status"], one["email"]) for one in listed] == [
        (made["id"], "invited", "bo@elsewhere.example"),
        (ada, "member", ADA),
    ]
    assert "bo@elsewhere.example" in cli("member", "list").out
    assert cli("member", "revoke", made["id"]).code == 0
    assert cli("member", "revoke", made["id"], "--json").error["code"] == "invitation_not_found"
    assert cli("member", "remove", ADA).code == 2, "it is asked for first"
    assert cli.json("member", "remove", ADA, "--yes")["id"] == ada
    assert cli("member", "remove", ada, "--yes", "--json").error["code"] == "person_not_found"
    assert cli("member", "invite", "--email", "x@y.example", "--role", "owner").code == 2
