"""`postroom webhooks`: endpoints, how it goes, and a verifier that asks nobody."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from postroom.events.webhooks import signing
from tests.cli.driver import Cli

# A name that has an address without a network being asked is none that webhooks go to, so nothing is made here but
# refused; what is made over HTTP is the same service (tests/rest/test_webhooks.py).


@pytest.mark.covers("cli-config-ops:A5", "FR-WH-1", "FR-WH-5")
def test_what_is_refused(cli: Cli) -> None:
    cli.json("identity", "create", "box")
    for url in ("http://hooks.example.com/", "https://127.0.0.1/", "https://hooks.localhost/"):
        refused = cli("webhooks", "create", "--url", url, "--events", "*", "--json")
        assert refused.error["code"] == "invalid_request", url
    assert cli("webhooks", "create", "--url", "https://x.example.com/", "--events", "no.such").code == 2
    assert cli("webhooks", "list", "--platform", "--partner", "ptn_x").code == 2
    assert cli.json("webhooks", "list")["data"] == cli.json("webhooks", "list", "--platform")["data"] == []
    missing = f"whk_{'0' * 26}"
    for words in (("get",), ("test",), ("rotate",), ("delete", "--yes"), ("update", "--disable"), ("deliveries",)):
        failed = cli("webhooks", words[0], missing, *words[1:], "--json")
        assert failed.error["code"] == "webhook_not_found", words
    assert cli("webhooks", "update", missing).code == 2
    assert cli("webhooks", "delete", missing).code == 2, "it is asked for first"
    assert cli("webhooks", "replay", missing).code == 2
    assert cli("webhooks", "replay", missing, "--since", "2030-01-01", "--json").error["code"] == "webhook_not_found"
    assert cli("webhooks", "deliveries", missing, "--status", "odd").code == 2


def test_what_asks_nobody_opens_no_client(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would close it."""

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("nobody is asked")

    cli.json("tenant", "create", "acme", "--default")
    monkeypatch.setattr("postroom.net.guarded_http.GuardedClient.__init__", opened)
    assert cli.json("webhooks", "list")["data"] == []
    missing = cli("webhooks", "deliveries", f"whk_{'0' * 26}", "--json")
    assert missing.error["code"] == "webhook_not_found"


@pytest.mark.covers("FR-WH-2")
def test_verify_without_a_secret_says_which_variable(bare: Cli) -> None:
    """Not that the request is none of ours (11)."""
    for more, name in (((), "POSTROOM_WEBHOOK_SECRET"), (("--secret-env", "HOOK"), "HOOK")):
        wrong = bare("webhooks", "verify", "--id", "evt_1", *more)
        assert (wrong.code, f"Set {name}" in wrong.err) == (2, True)


@pytest.mark.covers("FR-WH-2", "edge:K1")
def test_verify(cli: Cli, tmp_path: Path) -> None:
    secret, body = signing.secret_text(b"s" * 32), b'{"id": "evt_1"}'
    sent = signing.headers([b"s" * 32], "evt_1", 1_900_000_000, body)
    (tmp_path / "body").write_bytes(body)
    (tmp_path / "headers").write_text("".join(f"{name.title()}: {value}\n" for name, value in sent.items()))

    def verify(*more: str, secret: str = secret, now: str = "2030-03-17T17:46:40Z") -> tuple[int, str]:
        found = cli(
            *("webhooks", "verify", "--secret", secret, "--headers", str(tmp_path / "headers")),
            *("--body", str(tmp_path / "body"), "--now", now, "--json", *more),
        )
        return found.code, "" if found.code == 0 else found.error["code"]

    assert verify() == (0, "")
    assert verify(now="2030-03-17T17:51:41Z") == (11, "timestamp_out_of_tolerance")
    assert verify("--tolerance", "400", now="2030-03-17T17:51:41Z") == (0, "")
    assert verify("--id", "evt_2") == (11, "no_matching_signature")
    assert verify(secret=signing.secret_text(b"t" * 32)) == (11, "no_matching_signature")
    assert verify(secret="whsec_!") == (11, "malformed_secret")
    (tmp_path / "headers").write_text("webhook-id: evt_1\n")
    assert verify() == (11, "missing_header")
    (tmp_path / "body").write_bytes(json.dumps({"id": "evt_1"}).encode() + b"\n")
    assert verify(
        *("--timestamp", sent["webhook-timestamp"], "--signature", sent["webhook-signature"]),
    ) == (11, "no_matching_signature")


@pytest.mark.covers("cli-config-ops:A3", "cli-config-ops:A7")
def test_verify_says_of_which_event(bare: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server, and in each way of printing."""
    monkeypatch.setenv("POSTROOM_WEBHOOK_SECRET", signing.secret_text(b"s" * 32))
    sent = signing.headers([b"s" * 32], "evt_1", int(time.time()), b"{}")
    argv = (
        *("webhooks", "verify", "--id", "evt_1", "--body", str(tmp_path / "body")),
        *("--timestamp", sent["webhook-timestamp"], "--signature", sent["webhook-signature"]),
    )
    missing = bare(*argv, "--json")
    assert (missing.code, missing.error["code"]) == (2, "cli_usage")
    (tmp_path / "body").write_bytes(b"{}")
    assert bare.json(*argv) == {"valid": True, "id": "evt_1"}
    assert bare(*argv, "--quiet").out == "evt_1\n"
    assert bare(*argv).out == "evt_1 is one of ours.\n"


@pytest.mark.covers("cli-config-ops:A7")
@pytest.mark.parametrize("words", [("webhook", "list"), ("webhooks", "list")])
def test_other_names(cli: Cli, words: tuple[str, str]) -> None:
    """The noun in the singular, as the others are (D13), and the verb that other nouns have."""
    cli.json("tenant", "create", "acme")
    assert cli.json(*words)["data"] == []
    assert cli(words[0], "show", f"whk_{'0' * 26}", "--json").error["code"] == "webhook_not_found"
    listed = {line.split()[1] for line in cli("webhooks", "--help").out.splitlines() if line.startswith("│ ")}
    assert {"get", "replay", "verify", "listen", "show"} & listed == {"get", "replay", "verify", "listen"}
