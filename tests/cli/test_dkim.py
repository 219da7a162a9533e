"""`postroom dkim`: records to publish, and new keys; never a private part."""

from __future__ import annotations

import pytest

from tests.cli.driver import DOMAIN, Cli


@pytest.mark.covers("mail-server:C8", "decisions:D2")
def test_show_and_rotate(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    (first,) = cli.json("dkim", "show", DOMAIN)["data"]
    assert (first["selector"], first["state"], first["name"]) == ("pm1", "signing", f"pm1._domainkey.{DOMAIN}")
    assert first["record"].startswith("v=DKIM1; k=rsa; p=")
    early = cli("dkim", "rotate", DOMAIN, "--switch", "--json")
    assert (early.code, early.error["code"]) == (6, "cli_conflict")
    made = cli.json("dkim", "rotate", DOMAIN)["data"]
    assert [(one["selector"], one["state"]) for one in made] == [("pm1", "signing"), ("pm2", "pending")]
    switched = cli.json("dkim", "rotate", DOMAIN, "--switch")["data"]
    assert [(one["selector"], one["state"]) for one in switched] == [("pm1", "retiring"), ("pm2", "signing")]
    again = cli("dkim", "rotate", DOMAIN)
    assert (again.code, switched[0]["retire_at"] in again.err) == (6, True)
    shown = cli("dkim", "show", DOMAIN)
    assert f'pm2._domainkey.{DOMAIN} TXT "v=DKIM1' in shown.out
    assert "PRIVATE" not in shown.out
    assert cli("dkim", "show", "elsewhere.example", "--json").error["code"] == "domain_not_found"


@pytest.mark.covers("mail-server:C8", "decisions:D2")
def test_the_second_signature(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is shown to be published, then it is switched on. What new keys are for is heard here, too."""
    cli.json("tenant", "create", "acme")
    shown = cli.json("dkim", "show", DOMAIN, "--second")["data"]
    assert [(one["selector"], one["state"]) for one in shown] == [("pm1", "signing"), ("pm1e", "pending")]
    assert shown[1]["record"].startswith("v=DKIM1; k=ed25519; p=")
    monkeypatch.setenv("POSTROOM_DKIM_SECOND_SIGNATURE", "true")
    shown = cli.json("dkim", "show", DOMAIN)["data"]
    assert [(one["selector"], one["state"]) for one in shown] == [("pm1", "signing"), ("pm1e", "signing")]
    monkeypatch.setenv("POSTROOM_DKIM_ALGORITHM", "ed25519-sha256")
    assert cli("dkim", "show", DOMAIN).code != 0, "a second signature of the same kind says nothing more"
    monkeypatch.delenv("POSTROOM_DKIM_SECOND_SIGNATURE")
    made = cli.json("dkim", "rotate", DOMAIN)["data"]
    assert {one["selector"]: one["algorithm"] for one in made}["pm2"] == "ed25519-sha256"
