"""`postroom events` on the host, and `postroom webhooks listen`, which passes on what a stream tells."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.cli.listening import Sent, Source, listen, parse
from postroom.events.webhooks.signing import secret_text
from tests.cli.driver import DEADLINE, Cli

EVENT: Final = (
    '{"id":"evt_01ARZ3NDEKTSV4RRFFQ69G5FAV","type":"identity.created","api_version":"2026-10-01","data":{"name":"é"}}'
)


@pytest.fixture
def made(cli: Cli) -> list[str]:
    """Two tenants and three identities."""
    cli.json("tenant", "create", "acme")
    cli.json("tenant", "create", "globex")
    return [
        cli.json("identity", "create", name, "--tenant", tenant)["id"]
        for name, tenant in (("one", "acme"), ("two", "acme"), ("three", "globex"))
    ]


def test_list(cli: Cli, made: list[str]) -> None:
    found = cli.json("events", "list")["data"]
    assert [one["identity_id"] for one in found if one["type"] == "identity.created"] == made[::-1]
    acme = cli.json("events", "list", "--tenant", "acme", "--type", "identity.created")["data"]
    assert [one["identity_id"] for one in acme] == [made[1], made[0]]
    mine = cli.json("events", "list", "--identity", made[0])["data"]
    assert {one["identity_id"] for one in mine} == {made[0]}
    first = cli.json("events", "list", "--limit", "1", "--type", "identity.created")
    second = cli.json("events", "list", "--limit", "9", "--type", "identity.created", "--cursor", first["next_cursor"])
    assert [one["identity_id"] for one in first["data"] + second["data"]] == made[::-1]
    assert cli.json("events", "list", "--since", "2100-01-01")["data"] == []
    assert cli("events", "list", "--type", "message.nothing").code == 2
    assert cli("events", "list", "--cursor", "2026-01-01T00:00:00+00:00/evt_x").code == 2
    assert "identity.created" in cli("events", "list").out


def test_tail(cli: Cli, made: list[str]) -> None:
    shown = cli("events", "tail", "--type", "identity.created", "-n", "2", "--json")
    assert shown.code == 0
    assert [json.loads(line)["identity_id"] for line in shown.out.splitlines()] == made[1:]
    followed = cli("events", "tail", "--type", "identity.created", "--follow", "--count", "3", "--quiet")
    assert len(followed.out.split()) == 3
    assert made[2] in cli("events", "tail").out


@pytest.mark.covers("cli-config-ops:A3")
def test_tail_from_a_place_on(cli: Cli, made: list[str]) -> None:
    """What came after an event, or since a time, oldest first, however much it is."""
    kind = ("--type", "identity.created")
    first, *_ = cli.json("events", "list", *kind)["data"][::-1]

    def tail(*more: str) -> list[str]:
        shown = cli("events", "tail", *kind, *more, "--json")
        assert shown.code == 0, shown.out
        return [json.loads(line)["identity_id"] for line in shown.out.splitlines()]

    assert tail("--after", first["id"]) == made[1:]
    assert tail("--after", first["id"], "--count", "1") == made[1:2]
    assert tail("--since", "2020-01-01") == made
    assert tail("--since", "2020-01-01", "--follow", "--count", "3") == made
    assert tail("--since", "2100-01-01") == tail("--last", "0") == []
    gone = cli("events", "tail", "--after", f"evt_{'0' * 26}", "--json")
    assert (gone.code, gone.error["code"]) == (6, "cursor_expired")
    for wrong in (("--after", "evt_1"), ("--since", "soon"), ("--since", "2030-01-01", "-n", "1")):
        assert cli("events", "tail", *wrong, "--json").error["code"] == "cli_usage", wrong


@pytest.mark.covers("FR-WH-1")
def test_tail_goes_from_page_to_page(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event once, in the order in which they came to be, beyond what one look reads."""
    monkeypatch.setattr("postroom.events.reading.MAX_PAGE", 2)
    for number in range(5):
        cli.json("identity", "create", f"bot{number}")
    shown = cli("events", "tail", "--since", "2020-01-01", "--json").out.splitlines()
    monkeypatch.undo()
    ids = [json.loads(line)["id"] for line in shown]
    assert len(ids) >= 5
    assert len(set(ids)) == len(ids)


WEBHOOK: Final = f"whk_{'1' * 26}"


@pytest.fixture
def endpoint(cli: Cli, made: list[str], database_url: str) -> str:
    """A webhook of the first tenant. Making one would ask the DNS for its host."""

    async def make() -> None:
        conn = await asyncpg.connect(database_url)
        try:
            await conn.execute(
                "INSERT INTO webhook_endpoints (public_id, tenant_id, url, events, created_at, updated_at)"
                " SELECT $1, id, 'https://h.example.com/', '{*}', now(), now() FROM tenants WHERE slug = 'acme'",
                WEBHOOK,
            )
        finally:
            await conn.close()

    asyncio.run(make())
    return WEBHOOK


def queued(database_url: str) -> list[str]:
    async def look() -> list[str]:
        conn = await asyncpg.connect(database_url)
        try:
            rows = await conn.fetch("DELETE FROM webhook_tasks RETURNING event_id")
            return sorted(row["event_id"] for row in rows)
        finally:
            await conn.close()

    return asyncio.run(look())


REPLAYS: Final = [
    (("events", "replay"), ("--webhook", WEBHOOK), ""),
    (("webhooks", "replay", WEBHOOK), (), "--event-id"),
]


@pytest.mark.covers("FR-WH-3", "edge:J4")
@pytest.mark.parametrize(("command", "more", "option"), REPLAYS, ids=["events", "webhooks"])
def test_replay(
    cli: Cli, endpoint: str, database_url: str, command: tuple[str, ...], more: tuple[str, ...], option: str
) -> None:
    """Two names of one thing: events by id, or of a window, are queued for one endpoint once more."""

    def asked(*ids: str, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
        named = [word for one in ids for word in (option, one) if word]
        return (*command, *named, *more, *flags)

    events = cli.json("events", "list")["data"]
    acme = sorted(one["id"] for one in events if one["tenant_id"] == events[-1]["tenant_id"])
    other = next(one["id"] for one in events if one["id"] not in acme)
    assert cli.json(*asked(acme[0], acme[0], other)) == {"queued": 1}
    assert queued(database_url) == [acme[0]], "what it is not told of is left out"
    assert "1 event will be sent" in cli(*asked(acme[0], other)).out
    assert cli(*asked(*acme), "--quiet").out == f"{len(acme)}\n"
    assert queued(database_url) == acme
    assert cli.json(*asked(flags=("--since", "2020-01-01"))) == {"queued": len(acme)}
    assert queued(database_url) == acme
    assert cli.json(*asked(flags=("--since", "2020-01-01", "--until", "2020-01-02"))) == {"queued": 0}
    assert cli.json(*asked(flags=("--since", "2020-01-01", "--status", "dead"))) == {"queued": 0}

    many = cli(*asked(*(f"evt_{number:026}" for number in range(101))), "--json")
    assert (many.code, many.error["details"]["errors"][0]["path"]) == (7, "event_ids")
    for wrong in (
        asked(),
        asked("evt_1"),
        asked(acme[0], flags=("--since", "2020-01-01")),
        asked(acme[0], flags=("--until", "2020-01-01")),
        asked(acme[0], flags=("--status", "dead")),
        asked(flags=("--since", "2020-01-02", "--until", "2020-01-02")),
        asked(flags=("--since", "2020-01-02", "--status", "odd")),
    ):
        assert cli(*wrong, "--json").error["code"] == "cli_usage", wrong
    assert queued(database_url) == []


@pytest.mark.covers("FR-WH-3")
@pytest.mark.parametrize(("command", "more", "option"), REPLAYS, ids=["events", "webhooks"])
def test_a_window_with_too_many_is_refused(
    cli: Cli, endpoint: str, database_url: str, command: tuple[str, ...], more: tuple[str, ...], option: str
) -> None:
    async def fill() -> None:
        conn = await asyncpg.connect(database_url)
        try:
            await conn.execute(
                "INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)"
                " SELECT 'evt_' || lpad(n::text, 26, '0'), type, tenant_id, 'platform', 'p', payload, occurred_at"
                " FROM generate_series(1, 1001) AS n, (SELECT e.* FROM events e JOIN tenants t ON t.id = e.tenant_id"
                " WHERE t.slug = 'acme' ORDER BY e.id LIMIT 1) AS one"
            )
        finally:
            await conn.close()

    asyncio.run(fill())
    refused = cli(*command, *more, "--since", "2020-01-01", "--json")
    assert (refused.code, refused.error["details"]["errors"][0]["path"]) == (7, "since")
    assert "narrower" in refused.error["details"]["errors"][0]["message"]


def test_replay_says_where_it_wants_to_go(cli: Cli, made: list[str]) -> None:
    unsaid = cli("events", "replay", "--since", "2020-01-01")
    assert (unsaid.code, "--webhook" in unsaid.err, "events tail" in unsaid.err) == (2, True, True)
    missing = cli("events", "replay", "--since", "2020-01-01", "--webhook", f"whk_{'0' * 26}", "--json")
    assert (missing.code, missing.error["code"]) == (5, "webhook_not_found")


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Hook(BaseHTTPRequestHandler):
    """Takes what is posted."""

    taken: ClassVar[list[tuple[dict[str, str], bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


INVALID: Final = (
    b'{"error":{"code":"invalid_request","message":"The request is not valid.","details":{"errors":['
    b'{"path":"types.0","message":"mesage.received is no type of event"}]}}}'
)


class _Streaming(BaseHTTPRequestHandler):
    """Tells one event in each connection, and ends it in one of the ways that connections end."""

    asked: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()} | {"path": self.path}
        self.asked.append(headers)
        if headers["authorization"] != "Bearer pmk_right":
            wrong = headers["authorization"] == "Bearer pmk_unknown_type"
            body = INVALID if wrong else b'{"error":{"code":"unauthenticated","message":"no"}}'
            self.send_response(400 if wrong else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        if len(self.asked) == 2:
            self.send_response(503)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        at = len(self.asked)
        self.wfile.write(f"retry: 2000\n: hello\nid: at{at}\n\n".encode())
        self.wfile.write(f"id: after{at}\nevent: identity.created\ndata: {EVENT}\n\n".encode())
        if at == 3:
            self.wfile.write(b'event: error\ndata: {"code":"slow_consumer","message":"m"}\n\n')

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def servers() -> Iterator[tuple[str, str]]:
    """A stream and a hook."""
    _Hook.taken.clear()
    _Streaming.asked.clear()
    running = [_Server(("127.0.0.1", 0), handler) for handler in (_Streaming, _Hook)]
    for server in running:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield (f"http://127.0.0.1:{running[0].server_port}", f"http://127.0.0.1:{running[1].server_port}/hooks?a=b")
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.mark.covers("FR-WH-2")
def test_listen_posts_what_the_stream_tells(
    bare: Cli, servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event once, signed, whatever becomes of the connection; the next one goes on where the last one was."""
    monkeypatch.setenv("POSTROOM_KEY", "pmk_right")
    monkeypatch.setattr("postroom.cli.listening._FIRST_PAUSE", 0.01)
    stream, hook = servers
    done = bare(
        *("webhooks", "listen", "--url", stream, "--forward", hook, "--type", "identity.created"),
        *("--count", "3", "--json"),
    )
    assert (done.code, done.err) == (0, "")
    first, *rest = [json.loads(line) for line in done.out.splitlines()]
    assert [(one["type"], one["status"]) for one in rest] == [("identity.created", 204)] * 3
    assert [one.get("last-event-id") for one in _Streaming.asked] == [None, "after1", "after1", "after3"]
    assert {one["path"] for one in _Streaming.asked} == {"/v1/events/stream?types=identity.created"}
    secret = base64.b64decode(first["secret"].removeprefix("whsec_"))
    assert len(secret) == 32
    for headers, body in _Hook.taken:
        assert body == EVENT.encode()
        assert headers["content-type"] == "application/json"
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.covers("cli-config-ops:A3")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", ["--json", "--quiet", None])
def test_who_has_followed_enough_reads_no_error(
    made: list[str], servers: tuple[str, str], number: signal.Signals, mode: str | None
) -> None:
    """What was shown stays as it is, documents alone; the exit code says how it ended."""
    stream, hook = servers
    environ = os.environ | {"POSTROOM_KEY": "pmk_right"}
    for command in (
        ("events", "tail", "--type", "identity.created", "--follow"),
        ("webhooks", "listen", "--url", stream, "--forward", hook),
    ):
        argv = [sys.executable, "-m", "postroom", *command, *([mode] if mode else [])]
        with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
            assert follower.stdout is not None
            first = follower.stdout.readline()
            follower.send_signal(number)
            out, err = follower.communicate(timeout=DEADLINE)
        assert (follower.returncode, err) == (130, b""), command
        if mode == "--json":
            assert all("error" not in json.loads(line) for line in (first + out).splitlines())
        assert b"cli_interrupted" not in out


@pytest.mark.covers("cli-config-ops:A3")
def test_what_goes_wrong_while_following_is_told(cli: Cli, made: list[str]) -> None:
    assert cli("events", "tail", "--follow", "--after", f"evt_{'0' * 26}", "--json").error["code"] == "cursor_expired"


def test_listen_says_why_not(bare: Cli, servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream, hook = servers
    assert bare("webhooks", "listen", "--url", stream, "--forward", hook).code == 2
    assert bare("webhooks", "listen", "--url", stream, "--forward", "ftp://a", "--key", "k").code == 2
    assert bare("webhooks", "listen", "--url", "http://a:b", "--forward", hook, "--key", "k").code == 2
    # Nobody between is to read the key.
    for far in ("http://mail.example.com", "http://192.0.2.1:8080", "http://localhost.example.com"):
        clear = bare("webhooks", "listen", "--url", far, "--forward", hook, "--key", "pmk_right")
        assert (clear.code, "http:// is for localhost and 127.0.0.1; elsewhere use https://" in clear.err) == (2, True)
    for odd in ("https://me:pmk_right@a.example", "https://a.example/?b=c", "https://a.example/#d"):
        assert bare("webhooks", "listen", "--url", odd, "--forward", hook, "--key", "k").code == 2
    monkeypatch.setenv("POSTROOM_WEBHOOK_SECRET", "whsec_?")
    assert bare("webhooks", "listen", "--url", stream, "--forward", hook, "--key", "k").code == 2
    monkeypatch.delenv("POSTROOM_WEBHOOK_SECRET")
    refused = bare("webhooks", "listen", "--url", stream, "--forward", hook, "--key", "pmk_wrong")
    assert (refused.code, _Hook.taken) == (4, [])
    assert "unauthenticated" in refused.err
    assert "not one of this server" in refused.err
    invalid = bare("webhooks", "listen", "--url", stream, "--forward", hook, "--key", "pmk_unknown_type")
    assert (invalid.code, _Hook.taken) == (7, [])
    assert "types.0 mesage.received is no type of event" in invalid.err


@pytest.mark.covers("FR-WH-2")
def test_listen_tells_how_it_stands(bare: Cli, servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is connected, and once that it is not; with a secret that is kept."""
    monkeypatch.setenv("POSTROOM_KEY", "pmk_right")
    monkeypatch.setenv("POSTROOM_WEBHOOK_SECRET", secret_text(bytes(32)))
    monkeypatch.setattr("postroom.cli.listening._FIRST_PAUSE", 0.01)
    done = bare("webhooks", "listen", "--url", servers[0], "--forward", servers[1], "--count", "3")
    assert (done.code, secret_text(bytes(32)) in done.out.splitlines()) == (0, True)
    said = done.err.splitlines()
    assert said[0].startswith("Connected:")
    assert [line for line in said if "tried again" in line] == said[1:2]
    assert said[2] == "Connected again."

    def pause(seconds: float) -> None:
        if len(paused) == 3:
            raise KeyboardInterrupt
        paused.append(seconds)

    paused: list[float] = []
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        next(listen(Source("http://127.0.0.1:1", "k", {}), tell=told.append, pause=pause))
    assert told == ["http://127.0.0.1:1 cannot be listened to now (Connection refused); it is tried again."]


def test_listen_goes_on_when_nobody_takes_it(
    bare: Cli, servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_KEY", "pmk_right")
    done = bare("webhooks", "listen", "--url", servers[0], "--forward", "http://127.0.0.1:1/", "--count", "1")
    assert done.code == 0
    assert "no answer" in done.out


_line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40)


@given(st.lists(st.tuples(_line, st.lists(_line, min_size=1, max_size=3)), max_size=5), st.sampled_from(("\n", "\r\n")))
def test_lines_are_read_as_they_are_written(events: list[tuple[str, list[str]]], end: str) -> None:
    text = ""
    for kind, data in events:
        text += f"id: 7{end}: comment{end}event: x.{kind}{end}"
        text += "".join(f"data: {line}{end}" for line in data) + end
    found = list(parse(io.BytesIO(text.encode()).readline))
    assert found == [Sent(f"x.{kind}", "7", "\n".join(data).encode()) for kind, data in events]


@given(st.binary(max_size=300))
def test_any_bytes_are_lines(raw: bytes) -> None:
    for sent in parse(io.BytesIO(raw).readline):
        assert b"\r" not in sent.data[-1:]
