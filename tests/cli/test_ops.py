"""Sending is stopped and goes on; a tenant's policy is shown and changed."""

from __future__ import annotations

import pytest

from tests.cli.driver import DOMAIN, Cli


@pytest.mark.covers("edge:G12", "edge:J33")
def test_a_tenant_is_paused_and_resumed(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    shown = cli.json("ops", "pause", "--tenant", "acme", "--reason", "abuse_burst")
    assert [(one["slug"], one["reason"]) for one in shown["tenants"]] == [("acme", "abuse_burst")]
    (listed,) = cli.json("tenant", "list")["data"]
    assert listed["sending_pause_reason"] == "abuse_burst"
    assert listed["sending_paused_at"] == shown["tenants"][0]["sending_paused_at"]
    # Again, it is paused since then, and for the reason of then.
    assert cli.json("ops", "pause", "--tenant", "acme")["tenants"] == shown["tenants"]
    assert cli("ops", "resume", "--tenant", "acme").out == "acme sends again.\n"
    assert cli.json("ops", "status")["tenants"] == []


@pytest.mark.covers("edge:G12")
def test_the_platform_domain_is_never_paused(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    refused = cli("ops", "pause", "--domain", DOMAIN, "--json")
    assert refused.error["code"] == "policy_denied"
    assert cli("ops", "pause", "--domain", "elsewhere.example", "--json").error["code"] == "domain_not_found"
    assert cli.json("ops", "resume", "--domain", DOMAIN)["domains"] == []


def test_a_switch_has_a_reason(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    before = cli.json("ops", "status")["switches"]
    assert [(one["name"], one["state"], one["set_by"]) for one in before] == [
        ("read_only", "off", None),
        ("free_sending", "on", None),
        ("emergency_prune", "off", None),
    ]
    done = cli.json("ops", "switch", "read_only", "on", "--reason", "restoring")
    assert (done["state"], done["set_by"], done["reason"]) == ("on", "platform", "restoring")
    assert cli.json("ops", "status")["switches"] == [done, *before[1:]]
    (told,) = cli.json("audit", "list", "--action", "ops.switch")["data"]
    assert (told["target_id"], told["details"]) == ("read_only", {"state": "on", "reason": "restoring"})
    assert cli.json("ops", "switch", "read_only", "off", "--reason", "done")["state"] == "off"
    assert cli("ops", "switch", "read_only", "on", "--reason", " ", "--json").error["code"] == "invalid_request"


@pytest.mark.parametrize(
    "argv",
    [
        ("pause",),
        ("pause", "--tenant", "acme", "--domain", "x.example"),
        ("pause", "--tenant", "acme", "--reason", "because"),
        ("resume",),
        ("switch", "read_only", "maybe", "--reason", "x"),
        ("switch", "free_beer", "on", "--reason", "x"),
    ],
)
def test_usage(cli: Cli, argv: tuple[str, ...]) -> None:
    assert cli("ops", *argv).code == 2


def test_a_policy(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    assert cli.json("tenant", "policy", "acme")["domain_fallback"] is True
    words = ("domain_fallback=false", "max_recipients=3", "ai_disclosure.mode=footer", "ai_disclosure.text=42")
    shown = cli.json("tenant", "policy", "acme", *words)
    assert (shown["domain_fallback"], shown["max_recipients"]) == (False, 3)
    assert shown["ai_disclosure"] == {"mode": "footer", "text": "42"}
    assert cli.json("tenant", "policy", "acme") == shown
    again = cli.json("tenant", "policy", "acme", "max_recipients=", "domain_fallback=")
    assert (again["domain_fallback"], again["max_recipients"]) == (True, 10)
    assert cli("tenant", "policy", "acme", "max_recipients=many", "--json").error["code"] == "invalid_request"
    assert cli("tenant", "policy", "acme", "nonsense").code == 2


def test_a_tenant_is_shown_changed_suspended_and_resumed(cli: Cli) -> None:
    cli.json("tenant", "create", "shop", "--name", "Shop")
    assert cli.json("tenant", "show", "shop")["name"] == "Shop"
    changed = cli.json("tenant", "set", "shop", "--name", "Other", "--timezone", "Europe/Berlin")
    assert (changed["name"], changed["timezone"]) == ("Other", "Europe/Berlin")
    assert cli("tenant", "set", "shop").code == 2
    assert cli("tenant", "set", "shop", "--timezone", "Mars", "--json").error["code"] == "invalid_request"
    suspended = cli.json("tenant", "suspend", "shop")
    assert (suspended["status"], suspended["suspended_by"]) == ("suspended", "platform")
    assert cli.json("tenant", "resume", "shop")["suspended_by"] is None


def test_who_may_change_what_of_a_policy(cli: Cli) -> None:
    cli.json("tenant", "create", "shop")
    cli.json("tenant", "policy", "shop", "max_recipients=5", "quarantine.spam_threshold=0.5")
    shown = cli.json("tenant", "policy", "shop", "--access")
    assert (shown["policy_version"], shown["policy"]["quarantine"]["spam_threshold"]) == (1, 0.5)
    (member,) = [one for one in shown["fields"] if one["field"] == "max_recipients"]
    assert (member["ceiling"], member["ceiling_source"]) == (5, "platform")
    assert cli("tenant", "policy", "shop", "quarantine=1", "quarantine.spam_threshold=0.5").code == 2


def test_partners(cli: Cli) -> None:
    made = cli.json("partner", "create", "Integrator", "--max-tenants", "3")
    assert (made["name"], made["max_tenants"], made["status"]) == ("Integrator", 3, "active")
    one = made["id"]
    assert cli.json("partner", "suspend", one)["status"] == "suspended"
    assert cli.json("partner", "resume", one)["status"] == "active"
    assert cli.json("partner", "set", one, "--name", "Other", "--ramp-exempt")["ramp_exempt"] is True
    assert cli("partner", "set", one).code == 2
    assert cli("partner", "set", one, "--default-billing-mode", "never").code == 2
    assert cli.json("partner", "list")["data"][0]["name"] == "Other"
    assert cli("partner", "delete", one).code == 2
    assert cli.json("partner", "delete", one, "--yes")["status"] == "deleted"
    assert cli.json("partner", "show", one)["name"] == ""
    assert cli("partner", "delete", one, "--yes", "--json").error["code"] == "partner_not_found"
