"""`postroom mail`: what is sent and answered, what is refused, and that a server that runs takes it at once."""

from __future__ import annotations

import asyncio
import email
import email.policy
import json
import sys
import time
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroom.blobs import MaildirStore
from postroom.outbound import ledger
from postroom.outbound.models import Operation
from tests.cli.driver import DEADLINE, Cli, Result, clean_environment, run_program
from tests.cli.test_running import place, serving, wait_until_healthy

__all__ = ["place"]

ADA = "ada@agents.example"
ANNA = "anna@example.com"
OWNED = ("--kind", "person", "--owner-name", "Ola", "--owner-email", "ola@example.com")
SEND = ("mail", "send", "--from", ADA, "--to", ANNA, "--subject", "Hello")


def rows(url: str, statement: str, *values: Any) -> list[Any]:
    async def inner() -> list[Any]:
        connection = await asyncpg.connect(url, server_settings={"search_path": "postroom"})
        found = await connection.fetch(statement, *values)
        await connection.close()
        return list(found)

    return asyncio.run(inner())


@pytest.fixture
def ada(cli: Cli) -> Cli:
    """A deployment in which Ada has a mailbox."""
    cli.json("identity", "create", "ada", *OWNED, "--name", "Ada")
    return cli


def wire(cli: Cli, url: str) -> EmailMessage:
    """The newest message that waits to be handed over."""
    key = rows(url, "SELECT wire_key FROM outbound_messages ORDER BY message_id DESC LIMIT 1")[0]["wire_key"]

    async def read() -> bytes:
        store = MaildirStore(cli.data_dir)
        try:
            return await store.get(key)
        finally:
            await store.close()

    return email.message_from_bytes(asyncio.run(read()), policy=email.policy.default)


def nothing_sent(url: str) -> bool:
    counts = rows(url, "SELECT (SELECT count(*) FROM outbound_messages) + (SELECT count(*) FROM send_ledger) AS n")
    return bool(counts[0]["n"] == 0)


@pytest.mark.covers("FR-OUT-1", "cli-config-ops:A3")
def test_a_message(ada: Cli, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_bytes(b"x,y\n")
    (tmp_path / "logs.tar.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "page.html").write_text("<p>Grüße.</p>", encoding="utf-8")
    sent = ada.json(
        *("mail", "send", "--from", "Ada@Agents.Example", "--to", "Änna <anna@example.com>", "--to", "bo@example.org"),
        *("--cc", '"Cy, C." <cy@example.com>', "--bcc", "di@example.com", "--subject", "Grüße"),
        *("--text-file", "-", "--html-file", "page.html", "--attach", "a b.csv", "--attach", "logs.tar.gz"),
        *("--key", "task 1"),
        stdin="Grüße.\n",
    )
    assert (sent["status"], sent["deduplicated"], sent["idempotency_key"]) == ("queued", False, "task 1")
    assert [(one["address"], one["field"], one["status"]) for one in sent["deliveries"]] == [
        (ANNA, "to", "queued"),
        ("bo@example.org", "to", "queued"),
        ("cy@example.com", "cc", "queued"),
        ("di@example.com", "bcc", "queued"),
    ]
    out = wire(ada, database_url)
    assert (out["From"], out["Subject"], out["Bcc"]) == (f"Ada <{ADA}>", "Grüße", None)
    assert [(one.display_name, one.addr_spec) for one in out["To"].addresses] == [
        ("Änna", ANNA),
        ("", "bo@example.org"),
    ]
    assert [one.display_name for one in out["Cc"].addresses] == ["Cy, C."]
    text, html = out.get_body(("plain",)), out.get_body(("html",))
    assert text is not None
    assert text.get_content().strip() == "Grüße."
    assert html is not None
    assert "Grüße" in html.get_content()
    assert [(one.get_filename(), one.get_content_type()) for one in out.iter_attachments()] == [
        ("a b.csv", "text/csv"),
        ("logs.tar.gz", "application/gzip"),
    ]
    assert out["DKIM-Signature"] is not None
    assert ada("queue", "list", "deliveries", "--state", "pending", "--quiet").out.count("\n") == 4


@pytest.mark.covers("FR-OUT-6")
def test_an_agents_answers_come_to_their_thread(ada: Cli, database_url: str) -> None:
    ada.json("identity", "create", "robot", "--owner-name", "Ola", "--owner-email", "ola@example.com")
    sent = ada.json("mail", "send", "--from", "robot@agents.example", *SEND[4:], "--text", "Hi.")
    assert sent["reply_to"][0]["address"].startswith("robot+t01.")
    again = ada.json("mail", "reply", sent["id"], "--from", "robot@agents.example", "--text", "So?")
    assert again["reply_to"] == sent["reply_to"]
    # People's have no token.
    assert ada.json(*SEND, "--text", "Hi.")["reply_to"] == []
    assert wire(ada, database_url)["Reply-To"] is None


@pytest.mark.covers("edge:G1")
def test_once_for_a_key(ada: Cli, database_url: str) -> None:
    first = ada.json(*SEND, "--text", "Hi.", "--key", "k")
    again = ada.json(*SEND, "--text", "Hi.", "--key", "k")
    assert again == {**first, "deduplicated": True}
    told = ada(*SEND, "--text", "Hi.", "--key", "k")
    assert told.out.startswith(f"{first['id']} was accepted before, under the same key: queued, ")
    other = ada(*SEND, "--text", "Ho.", "--key", "k", "--json")
    assert (other.code, other.error["code"]) == (6, "idempotency_conflict")
    assert other.error["details"] == {"original_message_id": first["id"], "idempotency_key": "k"}
    assert ada(*SEND, "--text", "Hi.", "--key", "", "--json").error["code"] == "invalid_idempotency_key"
    # The same request as over the API has the same fingerprint, so a key may be repeated there.
    body = {"to": [ANNA], "subject": "Hello", "text": "Hi.", "from_address": ADA}
    (row,) = rows(database_url, "SELECT fingerprint FROM send_ledger")
    printed = ledger.fingerprint_json(json.dumps(body).encode(), Operation.SEND, first["identity_id"])
    assert row["fingerprint"] == printed


def test_for_people(ada: Cli) -> None:
    told = ada(*SEND, "--text", "Hi.")
    assert told.code == 0
    assert "was accepted: queued, thread thr_" in told.out
    assert "ADDRESS" in told.out
    assert ANNA in told.out
    key = told.err.removeprefix("Idempotency-Key: ").strip()
    assert key.startswith("cli-")
    assert "before, under the same key" in ada(*SEND, "--text", "Hi.", "--key", key).out
    other = ada(*SEND, "--text", "Hi.")
    assert other.err not in ("", told.err)
    quiet = ada(*SEND, "--text", "Hi.", "--quiet")
    assert quiet.out.startswith("msg_")
    assert quiet.out.count("\n") == 1
    assert quiet.err == ""
    assert ada.json(*SEND, "--text", "Hi.")["idempotency_key"].startswith("cli-")


@pytest.mark.covers("FR-OUT-1")
def test_a_dry_run(ada: Cli, database_url: str) -> None:
    assert ada.json(*SEND, "--text", "Hi.", "--dry-run") == {
        "would_send": True,
        "recipients": [{"address": ANNA, "field": "to", "status": "queued", "reason": None}],
    }
    told = ada(*SEND, "--text", "Hi.", "--dry-run")
    assert told.out.startswith("Nothing was sent. ")
    assert ANNA in told.out
    assert ada(*SEND, "--text", "Hi.", "--dry-run", "--quiet").out == f"{ANNA}\n"
    assert nothing_sent(database_url)


@pytest.mark.covers("FR-OUT-1", "edge:C4")
def test_an_answer(ada: Cli, database_url: str) -> None:
    ada.json("identity", "create", "bob", *OWNED)
    first = ada.json(*SEND, "--cc", "bob@agents.example", "--text", "Hi.")
    # An answer to one's own message goes to whom that went to.
    answer = ada.json("mail", "reply", first["id"], "--from", ADA, "--all", "--text", "Well?", "--key", "r")
    assert (answer["thread_id"], answer["deduplicated"]) == (first["thread_id"], False)
    assert {one["address"] for one in answer["deliveries"]} == {ANNA, "bob@agents.example"}
    assert wire(ada, database_url)["In-Reply-To"] == f"<{first['rfc_message_id']}>"
    again = ada.json("mail", "reply", first["id"], "--from", ADA, "--all", "--text", "Well?", "--key", "r")
    assert again["deduplicated"]
    foreseen = ada.json("mail", "reply", first["id"], "--from", first["identity_id"], "--text", "So?", "--dry-run")
    assert [one["address"] for one in foreseen["recipients"]] == [ANNA, "bob@agents.example"]
    # While the first answer waits, its thread is taken.
    busy = ada("mail", "reply", first["id"], "--from", ADA, "--text", "So?", "--json")
    assert (busy.code, busy.error["code"]) == (6, "thread_busy")
    other = ada.json(*SEND, "--text", "Hi.")
    ada.json("mail", "reply", other["id"], "--from", ADA, "--text", "So?")
    operations = rows(database_url, "SELECT operation FROM send_ledger ORDER BY created_at")
    assert [row["operation"] for row in operations] == ["send", "reply_all", "send", "reply"]
    # What lies in another mailbox is not there.
    for mailbox, message in (("bob@agents.example", first["id"]), (ADA, "msg_x"), (ADA, "msg_" + "0" * 26)):
        refused = ada("mail", "reply", message, "--from", mailbox, "--text", "No.", "--json")
        assert (refused.code, refused.error["code"]) == (5, "message_not_found")


@pytest.mark.covers("edge:C6", "FR-OUT-1")
def test_a_forward(ada: Cli, database_url: str) -> None:
    first = ada.json(*SEND, "--text", "Hi.", "--attach", __file__)
    asked = ("mail", "forward", first["id"], "--from", ADA, "--to", "Bo <bo@example.org>")
    passed = ada.json(*asked, "--text", "Look.", "--key", "f")
    assert [one["address"] for one in passed["deliveries"]] == ["bo@example.org"]
    assert [one["filename"] for one in passed["attachments"]] == [Path(__file__).name]
    assert ada.json(*asked, "--text", "Look.", "--key", "f")["deduplicated"]
    bare = ada.json(*asked[:-1], "cy@example.org", "--no-attachments", "--dry-run")
    assert [one["address"] for one in bare["recipients"]] == ["cy@example.org"]
    assert ada("mail", "forward", "msg_x", "--from", ADA, "--to", ANNA, "--json").error["code"] == "message_not_found"
    operations = rows(database_url, "SELECT operation FROM send_ledger ORDER BY created_at")
    assert [row["operation"] for row in operations] == ["send", "forward"]


@pytest.mark.covers("FR-OUT-11", "FR-DLV-7", "edge:E7")
def test_what_is_decided_later(ada: Cli, database_url: str) -> None:
    first, second = (ada.json(*SEND, "--text", text)["id"] for text in ("One.", "Two."))
    assert ada.json("mail", "cancel", first, "--from", ADA) == {"id": first, "status": "canceled"}
    again = ada("mail", "cancel", first, "--from", ADA, "--json")
    assert (again.code, again.error["code"]) == (6, "not_cancelable")
    early = ada("mail", "resolve", second, "sent", "--from", ADA, "--json")
    assert (early.code, early.error["code"]) == (6, "not_uncertain")
    for statement in (
        "UPDATE deliveries SET status = 'uncertain', next_attempt_at = NULL WHERE status = 'queued' RETURNING id",
        "UPDATE messages SET status = 'uncertain' WHERE status = 'queued' RETURNING id",
    ):
        assert len(rows(database_url, statement)) == 1
    assert ada("mail", "resolve", second, "perhaps", "--from", ADA).code == 2
    told = ada("mail", "resolve", second, "not_sent", "--from", ADA)
    assert told.out == f"{second} is failed.\n"
    assert ada("mail", "cancel", second, "--from", "nobody@agents.example", "--json").code == 5


@pytest.mark.covers("cli-config-ops:A3", "FR-OUT-2")
def test_refusals(ada: Cli, database_url: str) -> None:
    ada.json("identity", "create", "robot")
    robot = ("mail", "send", "--from", "robot@agents.example", *SEND[4:], "--text", "")

    def refused(sender: str = ADA, to: str = ANNA, *more: str, stdin: str = "") -> Result:
        return ada("mail", "send", "--from", sender, "--to", to, *(more or ("--text", "")), "--json", stdin=stdin)

    cases: list[tuple[int, str, Result]] = [
        (5, "address_not_found", refused("no@agents.example")),
        (5, "identity_not_found", refused("nobody")),
        (7, "address_invalid", refused(ADA, "a@b@c, d@e.f")),
        (7, "invalid_request", refused(ADA, ANNA, "--subject", "a\nb", "--text", "")),
        (7, "invalid_request", refused(ADA, ANNA, "--text-file", "-", stdin="a\0b")),
        (7, "message_too_large", refused(ADA, ANNA, "--text-file", "-", stdin="x" * (6 << 20))),
        (6, "identity_owner_required", ada(*robot, "--json")),
    ]
    for exit_code, name, result in cases:
        assert (result.code, result.error["code"]) == (exit_code, name)
        assert result.error["fix"]
    told = ada(*robot)
    assert told.out == ""
    assert "error: identity_owner_required (409): " in told.err
    assert "\nfix: Set an owner" in told.err
    assert nothing_sent(database_url)


@pytest.mark.covers("edge:G5", "FR-OUT-10")
def test_how_large_a_message_may_be_is_set(ada: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x" * 200_000
    assert ada(*SEND, "--text-file", "-", "--dry-run", "--json", stdin=text).code == 0
    monkeypatch.setenv("POSTROOM_OUTBOUND_MAX_MESSAGE_BYTES", "131072")
    refused = ada(*SEND, "--text-file", "-", "--dry-run", "--json", stdin=text)
    assert (refused.code, refused.error["code"]) == (7, "message_too_large")
    assert refused.error["details"] == {"limit": 131072 - 8192}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to say"),
        (("--text", "a", "--text-file", "b"), "exclude"),
        (("--text-file", "-", "--html-file", "-"), "standard input"),
        (("--text-file", "missing"), "No such file"),
        (("--text-file", "."), "directory"),
        (("--text", "a", "--attach", "missing"), "No such file"),
        (("--text", "a", "--attach", "-"), "No such file"),
        (("--html-file", "latin"), "not UTF-8"),
        (("--text", "a\udcff"), "not UTF-8"),
        (("--text", "a", "--to", "\udcff@example.com"), "not UTF-8"),
        (("--text", "a", "--attach", "\udcff"), "No such file"),
    ],
)
def test_what_makes_no_sense(bare: Cli, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "latin").write_bytes(b"\xff")
    for more in ((), ("--json",)):
        result = bare(*SEND, *arguments, *more)
        assert result.code == 2
        assert words in result.out + result.err


# -- beside a server


@pytest.mark.skipif(sys.platform != "linux", reason="the bundled PostgreSQL needs Linux")
@pytest.mark.covers("decisions:B17", "decisions:B13", "mail-server:C3")
def test_a_server_takes_it_at_once(place: tuple[Path, int]) -> None:
    data_dir, base = place
    with (data_dir / "postroom.toml").open("a") as file:
        # So that nothing but the hint can be why it goes.
        file.write("[queue]\npoll_interval_secs = 600\n")
    at = ("--data-dir", str(data_dir))
    env = clean_environment()

    def ran(*argv: str) -> Any:
        result = run_program(*argv, "--json", *at, env=env)
        assert result.code == 0, (result.out, result.err)
        return result.document

    def send(text: str) -> str:
        return str(ran("mail", "send", "--from", ADA, "--to", "bob@agents.example", "--text", text)["id"])

    def wait_delivered(message: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while True:
            found = ran("queue", "list", "deliveries")["data"]
            if [one["state"] for one in found if one["message_id"] == message] == ["delivered"]:
                return
            assert time.monotonic() < deadline, found

    for name in ("ada", "bob"):
        ran("identity", "create", name, *OWNED)
    before = send("While nothing runs.")
    assert [one["state"] for one in ran("queue", "list", "deliveries")["data"]] == ["pending"]
    with serving(data_dir):
        wait_until_healthy(base)
        wait_delivered(before)
        time.sleep(1)  # the dispatcher has gone to sleep
        wait_delivered(send("Beside a server."))
