"""`postroom queue`: counting work, showing and retrying what was given up; `postroom migrate`."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.cli.driver import Cli

_ROWS = """
INSERT INTO postroom.word_tasks
       (tenant_id, mailbox_id, first_id, last_id, next_attempt_at, attempts, parked_at, last_error)
VALUES (1, 1, 1, 1, now() - interval '1 minute', 0, NULL, NULL),
       (1, 1, 2, 2, now() + interval '1 hour', 1, NULL, NULL),
       (1, 1, 3, 3, NULL, 5, now(), 'worker_lost'), (1, 1, 4, 4, NULL, 5, now() - interval '1 day', 'worker_lost')
"""


def execute(url: str, statement: str) -> None:
    async def inner() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(inner())


@pytest.mark.covers("decisions:B1")
def test_work_is_counted_shown_and_retried(cli: Cli, database_url: str) -> None:
    cli.json("tenant", "create", "acme")
    execute(database_url, _ROWS)
    counts = {one["queue"]: one for one in cli.json("queue", "list")["data"]}
    assert set(counts) == {"deliveries", "bounces", "invitations", "words", "schedules"}
    words = counts["words"]
    assert [words[name] for name in ("due", "waiting", "claimed", "parked")] == [1, 1, 0, 2]
    assert words["oldest_due"] is not None
    parked = cli.json("queue", "show", "words")["data"]
    assert [(one["attempts"], one["last_error"]) for one in parked] == [(5, "worker_lost")] * 2
    assert cli("queue", "show", "words", "--limit", "1", "--quiet").out == f"{parked[0]['key']}\n"
    assert cli.json("queue", "retry", "words", parked[0]["key"]) == {"queue": "words", "retried": 1}
    assert cli("queue", "retry", "words", parked[0]["key"]).out == "0 made due again.\n"
    assert cli("queue", "retry", "words", "--all", "--quiet").out == "1\n"
    assert "Nothing was given up." in cli("queue", "show", "words").err
    assert "words" in cli("queue", "list").out


def test_migrations(bare: Cli, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_URL", database_url)
    execute(database_url, "DROP SCHEMA postroom CASCADE")
    pending = bare("migrate", "--check", "--json")
    assert (pending.code, pending.error["code"]) == (10, "cli_prerequisite")
    assert "0001_initial" in pending.error["message"]
    assert bare("tenant", "list", "--json").code == 10
    done = bare.json("migrate")
    assert done["applied"][0] == "0001_initial"
    assert (done["pending"], done["schema"]) == ([], len(done["applied"]))
    assert bare.json("migrate", "--check")["applied"] == []
    assert bare("migrate").out == f"Nothing to do. The schema is at {done['schema']:04}.\n"


def test_the_first_command_makes_the_schema(bare: Cli, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_URL", database_url)
    execute(database_url, "DROP SCHEMA postroom CASCADE")
    assert bare.json("tenant", "create", "acme")["slug"] == "acme"


@pytest.mark.covers("cli-config-ops:A3")
def test_a_database_that_is_away_is_exit_10(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_URL", "postgresql://postroom@127.0.0.1:1/postroom")
    for command in (("tenant", "list"), ("tenant", "create", "acme"), ("migrate",)):
        result = bare(*command, "--json")
        assert (result.code, result.error["code"]) == (10, "cli_infrastructure")


_SENT = """
SET search_path = postroom;
INSERT INTO threads (tenant_id, mailbox_id, seq, public_id, subject, first_at, last_at)
  SELECT tenant_id, id, 1, 'thr_01ARZ3NDEKTSV4RRFFQ69G5FAV', 's', now(), now() FROM mailboxes;
INSERT INTO messages (tenant_id, id, public_id, mailbox_id, thread_seq, source, direction, status, rfc_message_id,
    reference_ids, raw_sha256, body_sha256, blob_key, raw_size, raw_prefix_len, is_bcc, is_primary_recipient, subject,
    subject_fold, snippet, sent_at, received_at, kind, verdict, facts, parser_version, envelope, body_structure,
    part_tree)
  SELECT tenant_id, 1, 'msg_01ARZ3NDEKTSV4RRFFQ69G5FAV', id, 1, 'send', 'outbound', 'queued', 'a@b', '{}',
    sha256('a'), sha256('a'), 'k', 1, 0, false, true, 's', 's', 's', now(), now(), 'normal', 'none', '{}', 1, '', '', ''
  FROM mailboxes;
INSERT INTO outbound_messages (tenant_id, message_id, mailbox_id, operation, kind, envelope_from, hop, wire_key,
    wire_size, eight_bit, smtputf8, accepted_at)
  SELECT tenant_id, 1, id, 'send', 'transactional', 'a@agents.example', 1, 'k', 1, false, false, now() FROM mailboxes;
INSERT INTO deliveries (tenant_id, id, message_id, mailbox_id, position, recipient, field, domain, route, status,
    created_at, updated_at, next_attempt_at)
  SELECT b.tenant_id, n, 1, b.id, n, 'r' || n || '@example.com', 'to', 'example.com', 'direct', s, now(), now(), now()
  FROM mailboxes b, unnest(ARRAY['queued', 'deferred', 'delivered']) WITH ORDINALITY AS d (s, n);
"""


@pytest.mark.covers("mail-server:C2", "mail-server:C1")
def test_mail_that_leaves(cli: Cli, database_url: str) -> None:
    cli.json("identity", "create", "box")
    execute(database_url, _SENT)
    counts = {one["queue"]: one for one in cli.json("queue", "list")["data"]}
    assert counts["deliveries"]["due"] == 3
    found = cli.json("queue", "list", "deliveries")["data"]
    assert [(one["id"], one["state"], one["recipient"]) for one in found] == [
        (1, "pending", "r1@example.com"),
        (2, "retry", "r2@example.com"),
        (3, "delivered", "r3@example.com"),
    ]
    figures = cli.json("queue", "stats")
    assert {name: count for name, count in figures.items() if count} == {"pending": 1, "retry": 1, "delivered": 1}
    assert {"bounce_pending", "bounce_processing", "received_today", "sent_today", "next_due_at"} < figures.keys()
    assert cli("queue", "stats", "--quiet").out == "1\n"
    page = cli.json("queue", "list", "deliveries", "--limit", "2")
    assert page["next_cursor"] == "2"
    assert cli("queue", "list", "deliveries", "--cursor", "2", "--quiet").out == "3\n"
    assert cli("queue", "list", "deliveries", "--state", "retry", "--quiet").out == "2\n"
    assert cli.json("queue", "hold", "1")["data"] == [{"id": 1, "done": True, "why": None}]
    assert cli.json("queue", "show", "1")["state"] == "held"
    assert cli.json("queue", "release", "1")["data"][0]["done"]
    assert cli.json("queue", "retry", "deliveries", "2")["data"][0]["done"]
    mixed = cli("queue", "cancel", "1", "3", "99", "--json")
    assert mixed.code == 6
    assert [(one["id"], one["done"]) for one in mixed.document["data"]] == [(1, True), (3, False), (99, False)]
    assert cli("queue", "cancel", "99", "--json").code == 5
    shown = cli.json("queue", "show", "1")
    assert (shown["state"], shown["attempts"]) == ("cancelled", [])
    assert cli("queue", "show", "99").code == 5
    assert "r2@example.com" in cli("queue", "list", "deliveries").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "words"),
        ("list", "--state", "retry"),
        ("list", "deliveries", "--state", "lost"),
        ("list", "deliveries", "--cursor", "x"),
        ("cancel", "-1"),
        ("hold", str(2**63)),
        ("retry", "deliveries", "1/x"),
    ],
)
def test_what_makes_no_sense(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli.json("identity", "create", "box")
    assert cli("queue", *arguments).code == 2
