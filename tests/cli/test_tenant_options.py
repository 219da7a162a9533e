"""`postroom tenant` with all its options, and `--all` of lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.driver import Cli


@pytest.mark.covers("cli-config-ops:A7", "FR-TEN-1")
def test_tenants_are_narrowed(cli: Cli) -> None:
    partner = cli.json("partner", "create", "Integrator")["id"]
    for slug, mode in (("one", "live"), ("two", "test"), ("three", "live")):
        cli.json("tenant", "create", slug, "--mode", mode)
    cli.json("tenant", "suspend", "three")

    def slugs(*options: str) -> list[str]:
        return [one["slug"] for one in cli.json("tenant", "list", *options)["data"]]

    assert slugs() == ["three", "two", "one"]
    assert slugs("--status", "suspended") == ["three"]
    assert slugs("--status", "active") == ["two", "one"]
    assert slugs("--mode", "live") == ["three", "one"]
    assert slugs("--mode", "live", "--status", "active") == ["one"]
    assert slugs("--status", "erased") == []
    assert slugs("--partner", partner) == []
    assert cli("tenant", "list", "--partner", partner).err == "No such tenants.\n"
    missing = cli("tenant", "list", "--partner", "ptn_none", "--json")
    assert (missing.code, missing.error["code"]) == (5, "partner_not_found")
    for wrong in (("--status", "gone"), ("--mode", "dry")):
        assert cli("tenant", "list", *wrong).code == 2, wrong
    assert "'gone' is not active or suspended or" in cli("tenant", "list", "--status", "gone").err


@pytest.mark.covers("cli-config-ops:A3")
def test_all_of_a_list(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        cli.json("tenant", "create", f"t{number}")
    monkeypatch.setattr("postroom.cli.frame.DEFAULT_LIMIT", 2)
    assert len(cli.json("tenant", "list")["data"]) == 2
    whole = cli.json("tenant", "list", "--all")
    assert (len(whole["data"]), whole["next_cursor"]) == (4, None)
    some = cli.json("tenant", "list", "--all", "--limit", "3")
    assert (len(some["data"]), some["next_cursor"] is None) == (3, False)
    monkeypatch.setattr("postroom.cli.frame.MAX_LIMIT", 3)
    assert len(cli.json("tenant", "list", "--all")["data"]) == 3
    assert len(cli.json("partner", "list", "--all")["data"]) == 0


@pytest.mark.covers("cli-config-ops:A7", "FR-TEN-2")
def test_a_tenant_with_a_policy(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"max_recipients": 3, "ai_disclosure": {"mode": "footer"}}))
    cli.json("tenant", "create", "acme", "--policy-file", str(file))
    policy = cli.json("tenant", "policy", "acme")
    assert (policy["max_recipients"], policy["ai_disclosure"]["mode"]) == (3, "footer")
    cli.json("tenant", "create", "two", "--policy-file", "-", stdin='{"max_recipients": 4}')
    assert cli.json("tenant", "policy", "two")["max_recipients"] == 4
    changed = cli.json(
        "tenant", "set", "acme", "--name", "Acme", "--policy-file", "-", stdin='{"max_recipients": null}'
    )
    assert changed["name"] == "Acme"
    after = cli.json("tenant", "policy", "acme")
    assert (after["max_recipients"], after["ai_disclosure"]["mode"]) == (10, "footer")


@pytest.mark.covers("cli-config-ops:A3")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON (line 1, column 2)"),
        ("[]", "it is not a JSON object"),
        ('{"a": NaN}', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"a": "\udc80"}', "it is not JSON"),
        (" " * (1024 * 1024 + 1), "a policy has at most 1,048,576 bytes"),
    ],
    ids=["nothing", "half", "a list", "NaN", "deep", "not UTF-8", "large"],
)
def test_policies_that_cannot_be_read(bare: Cli, tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text, "utf-8", "surrogateescape")
    for options in (("create", "acme"), ("set", "acme")):
        refused = bare("tenant", *options, "--policy-file", str(file))
        assert refused.code == 2
        assert f"--policy-file: {file}: {why}" in refused.err
    assert not (bare.data_dir / "postgres").exists()


@pytest.mark.covers("cli-config-ops:A3")
def test_policies_that_may_not_be(cli: Cli, tmp_path: Path) -> None:
    missing = cli("tenant", "create", "acme", "--policy-file", str(tmp_path / "none"))
    assert (missing.code, "No such file or directory" in missing.err) == (2, True)
    assert cli("tenant", "create", "acme", "--policy-file", str(tmp_path)).code == 2
    assert cli("tenant", "create", "acme", "--policy-file", "a\0b").code == 2
    unknown = cli("tenant", "create", "acme", "--policy-file", "-", "--json", stdin='{"no_such": 1}')
    assert (unknown.code, unknown.error["details"]["errors"][0]["path"]) == (7, "policy.no_such")
    assert cli.json("tenant", "list")["data"] == []


@pytest.mark.covers("cli-config-ops:A7", "FR-TEN-1")
def test_a_tenant_with_an_owner(cli: Cli) -> None:
    owner = ("--owner-email", "Anna@Example.com")
    cli.json("tenant", "create", "shop", *owner, "--owner-name", "Anna", "--billing-mode", "exempt")
    (anna,) = cli.json("member", "list", "--tenant", "shop")["data"]
    assert (anna["role"], anna["email"], anna["name"]) == ("owner", "anna@example.com", "Anna")
    cli.json("tenant", "create", "second", *owner)
    (again,) = cli.json("member", "list", "--tenant", "second")["data"]
    assert again["id"] == anna["id"]
    cli.json("tenant", "create", "third", "--owner-email", "bo@example.com")
    assert cli.json("member", "list", "--tenant", "third")["data"][0]["name"] == "bo"
    for email in ("nobody", "box@agents.example", "a b@example.com", "x@exa mple.com"):
        refused = cli("tenant", "create", "no", "--owner-email", email, "--json")
        assert (refused.code, refused.error["details"]["errors"][0]["path"]) == (7, "owner.email"), email
    assert cli("tenant", "create", "no", "--owner-name", "Anna").code == 2
    assert cli("tenant", "create", "no", "--billing-mode", "free").code == 2
    assert cli("tenant", "show", "no").code == 5
