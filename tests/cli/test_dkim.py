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
