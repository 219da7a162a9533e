"""`postroom doctor` on sending: the relay, port 25 outwards, the queue, the keys that sign; and LMTP's socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.base.clock import SystemClock
from postroom.base.sealing import Keyring
from postroom.base.settings import Settings, load
from postroom.cli import check_ports, check_sending
from postroom.cli.verdicts import Check, Status
from postroom.net import tls
from postroom.outbound.signing import DkimKeys
from postroom.outbound.transports.link import Timeouts, connect_tcp
from tests.cli.driver import Cli, Result
from tests.cli.test_queue import _SENT, execute
from tests.outbound.fake_mx import SILENCE, FakeMx

HOSTNAME = "relay.example"
PASSWORD = "a secret of the relay"


@pytest.fixture
def certificate(tmp_path: Path) -> tls.Certificate:
    return tls.certificate(None, None, data_dir=tmp_path / "tls", hostnames=(HOSTNAME,), now=SystemClock().now())


@pytest.fixture
def server_context(certificate: tls.Certificate) -> ssl.SSLContext:
    return tls.server_context(certificate)


@pytest.fixture
def trusting(certificate: tls.Certificate) -> ssl.SSLContext:
    """A context that trusts the test's certificate, names checked."""
    context = ssl.create_default_context(cafile=str(certificate.cert_path))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def relayed(**changes: Any) -> Settings:
    queue = {"relay_host": HOSTNAME, "relay_username": "user", "relay_password": PASSWORD, **changes}
    given = {f"queue.{key}": value for key, value in queue.items()}
    return load({"platform_domain": "mail.example", "api_host": "api.mail.example", **given})


async def outbound(settings: Settings, mx: FakeMx, context: ssl.SSLContext | None = None) -> Check:
    """The one check, with every name leading to *mx*."""

    async def connect(make: Any, host: str, port: int, tls_: Any, name: str | None) -> asyncio.BaseTransport:
        assert (host, port) == (HOSTNAME, 587)
        return await connect_tcp(make, "127.0.0.1", mx.port, tls_, name)

    (found,) = await check_sending.outbound(settings, connect=connect, context=context)
    assert found.name == "sending.outbound.relay"
    assert PASSWORD not in found.detail + found.fix
    assert bool(found.fix) == (found.status is not Status.PASS)
    return found


@pytest.mark.covers("cli-config-ops:C9", "mail-server:C6")
async def test_a_relay_that_works(server_context: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async with FakeMx(tls=server_context, credentials=("user", PASSWORD)) as mx:
        found = await outbound(relayed(), mx, trusting)
        assert (found.status, found.detail) == (Status.PASS, "relay.example:587: TLS holds, signed in")
        assert mx.secured == 1
        assert [one.split()[0] for one in mx.commands] == ["EHLO", "STARTTLS", "EHLO", "AUTH", "QUIT"]
        without = await outbound(relayed(relay_username="", relay_password=""), mx, trusting)
        assert "it offers sign-in, and none is set" in without.detail
    async with FakeMx() as plain:
        clear = await outbound(relayed(relay_tls="none", relay_username="", relay_password=""), plain)
    assert clear.status is Status.WARN


@pytest.mark.covers("cli-config-ops:C9", "edge:N16")
@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("auth", "refuses the sign-in (535)"),
        ("no_auth", "no way to sign in"),
        ("no_tls", "no STARTTLS"),
        ("certificate", "TLS fails"),
        ("greeting", "refuses us at once (554)"),
        ("hello", "refuses our name (550)"),
        ("nonsense", "does not speak SMTP"),
        ("dropped", "hangs up"),
        ("silent", "does not answer"),
    ],
)
async def test_a_relay_with_troubles(
    server_context: ssl.SSLContext,
    trusting: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    told: str,
) -> None:
    mx = FakeMx(tls=server_context, credentials=("user", PASSWORD))
    match trouble:
        case "auth":
            mx.replies["AUTH"] = ["535 5.7.8 <user@example.com> is wrong"]
        case "no_auth":
            mx.credentials = None
        case "no_tls":
            mx.tls = None
        case "certificate":
            trusting = ssl.create_default_context()
        case "greeting":
            mx.replies["greeting"] = ["554 5.7.1 Go away"]
        case "hello":
            mx.replies["EHLO"] = mx.replies["HELO"] = ["550 5.7.1 Who?"]
        case "nonsense":
            mx.replies["greeting"] = ["SSH-2.0-OpenSSH_9.6"]
        case "dropped":
            mx.replies["greeting"] = [None]
        case "silent":
            mx.replies["greeting"] = [SILENCE]
            monkeypatch.setattr(check_sending, "TIMEOUTS", Timeouts(0.1, 0.1, 0.1, 0.1))
    async with mx:
        found = await outbound(relayed(), mx, trusting)
    assert found.status is Status.FAIL
    assert told in found.detail
    # Words of a stranger are not repeated, and nothing secret was said without TLS that holds.
    assert "user@example.com" not in found.detail
    assert trouble == "auth" or not any(one.startswith("AUTH") for one in mx.commands)


async def test_no_relay_there() -> None:
    async def refuse(*_: Any) -> asyncio.BaseTransport:
        raise ConnectionRefusedError

    (found,) = await check_sending.outbound(relayed(), connect=refuse)
    assert (found.status, found.detail) == (Status.FAIL, "relay.example:587: it cannot be connected to")


@pytest.mark.covers("cli-config-ops:C9")
async def test_port_25_is_tried_only_when_a_host_is_named(server_context: ssl.SSLContext) -> None:
    asked = []

    async def connect(make: Any, host: str, port: int, *rest: Any) -> asyncio.BaseTransport:
        asked.append((host, port))
        return await connect_tcp(make, "127.0.0.1", mx.port, *rest)

    settings = load({"platform_domain": "mail.example", "api_host": "api.mail.example"})
    both = relayed(relay_from_domains="other.example", relay_username="", relay_password="", relay_tls="none")
    async with FakeMx(tls=server_context) as mx:
        (skipped,) = await check_sending.outbound(settings, connect=connect)
        assert (skipped.name, skipped.status, asked) == ("sending.outbound.direct", Status.SKIP, [])
        (tried,) = await check_sending.outbound(settings, ("mx.example.net", 25), connect=connect)
        assert (tried.status, tried.detail) == (Status.PASS, "mx.example.net:25 answers, with TLS")
        assert asked == [("mx.example.net", 25)]
        assert mx.messages == []
        names = [one.name for one in await check_sending.outbound(both, connect=connect)]
        assert names == ["sending.outbound.relay", "sending.outbound.direct"]

    async def blocked(*_: Any) -> asyncio.BaseTransport:
        raise TimeoutError

    (found,) = await check_sending.outbound(settings, ("mx.example.net", 25), connect=blocked)
    assert found.status is Status.FAIL
    assert "port 25" in found.fix


def test_the_option_names_a_host(cli: Cli) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{nobody.getsockname()[1]}"
        result = cli("doctor", "--check", "sending.outbound", "--outgoing", place, "--json")
    assert result.code == 12
    assert result.document["checks"][0]["detail"] == f"{place} cannot be connected to"
    for wrong in ("", "a b", "mx.example:0", "mx.example:x", "mx.example:99999", "[::1]", "-:25\n"):
        assert cli("doctor", "--outgoing", wrong, "--json").error["code"] == "cli_usage"


# -- queue and keys ----------------------------------------------------------------------------------------------------


def looked_at(result: Result) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["status"], one["detail"]) for one in result.document["checks"]}


@pytest.mark.covers("cli-config-ops:C9", "mail-server:H5")
def test_the_queue(cli: Cli, database_url: str) -> None:
    cli.json("identity", "create", "box")
    names = ("--check", "queue", "--check", "dlq", "--json")
    quiet = looked_at(cli("doctor", *names))
    assert {status for status, _ in quiet.values()} == {"pass"}
    execute(database_url, _SENT)
    assert looked_at(cli("doctor", *names))["queue.deliveries"] == ("pass", "nothing waits longer than it should")
    execute(
        database_url,
        """
        SET search_path = postroom;
        UPDATE deliveries SET next_attempt_at = NULL WHERE id = 3;
        UPDATE deliveries SET next_attempt_at = now() - interval '3 hours', held_by_operator = id = 1;
        UPDATE deliveries SET next_attempt_at = now() - interval '20 minutes' WHERE id = 2;
        INSERT INTO deliveries (tenant_id, id, message_id, mailbox_id, position, recipient, field, domain, route,
            status, created_at, updated_at)
          SELECT tenant_id, 4, message_id, mailbox_id, 4, 'r4@example.com', 'to', 'example.com', 'direct', 'uncertain',
            now(), '2030-01-02 03:04Z' FROM deliveries WHERE id = 1;
        UPDATE deliveries SET next_attempt_at = NULL WHERE id = 3;
        INSERT INTO bounce_tasks (tenant_id, delivery_id, action, message, next_attempt_at)
          SELECT tenant_id, 3, 'failed', 'n', now() - interval '2 hours' FROM deliveries WHERE id = 3;
        INSERT INTO word_tasks
            (tenant_id, mailbox_id, first_id, last_id, next_attempt_at, attempts, parked_at, last_error)
          VALUES (1, 1, 3, 3, NULL, 5, now(), 'worker_lost')
        """,
    )
    result = cli("doctor", *names)
    assert result.code == 12
    assert looked_at(result) == {
        "queue.deliveries": ("fail", "the oldest mail that is due waits for 20 minutes; 1 held by an operator"),
        "queue.uncertain": ("warn", "1 may or may not have arrived, the oldest since 2030-01-02 03:04 UTC"),
        "queue.bounces": ("warn", "1 senders wait to be told, the first for 2 hours"),
        "dlq": ("fail", "given up: 1 of words"),
    }
    assert all(one["fix"] for one in result.document["checks"])


@pytest.mark.covers("cli-config-ops:C9", "mail-server:C8")
def test_the_keys_that_sign(cli: Cli, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.json("tenant", "create", "acme")

    def state() -> tuple[str, str]:
        return looked_at(cli("doctor", "--check", "sending.domains", "--json"))["sending.domains"]

    assert state() == ("warn", "no DKIM key yet: agents.example")
    assert state() == ("warn", "no DKIM key yet: agents.example"), "looking made one"
    cli.json("dkim", "show", "agents.example")
    assert state() == ("pass", "a DKIM key signs")
    cli.json("dkim", "rotate", "agents.example")
    assert state() == ("warn", "a new DKIM key waits to be used: agents.example")
    cli.json("dkim", "rotate", "agents.example", "--switch")
    assert state() == ("pass", "a DKIM key signs")
    execute(database_url, "UPDATE postroom.dkim_keys SET private_sealed = 'x'")
    assert state() == ("fail", "the DKIM key cannot be opened: agents.example")
    (cli.data_dir / "secrets.toml").chmod(0o644)
    assert state()[0] == "skip"


async def test_domains_by_the_page(db: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.outbound.signing.DOMAINS_PAGE", 2)
    async with db.acquire() as conn:
        await conn.execute(
            "INSERT INTO domains (public_id, name, kind, status, enabled, created_at, updated_at)"
            " SELECT 'dom_' || lpad(n::text, 26, '0'), 'd' || n || '.example', 'platform', 'healthy', n <> 4, now(),"
            " now() FROM generate_series(1, 7) AS n"
        )
    keys = DkimKeys(db, Keyring(bytes(32)), clock)
    await keys.show("d3.example")
    found = [(name, state.value) async for name, state in keys.states()]
    assert found == [(f"d{n}.example", "signing" if n == 3 else "none") for n in (1, 2, 3, 5, 6, 7)]
    assert "d1.example, d2.example, d5.example, d6.example, d7.example" in (await check_sending.domains(keys)).detail


# -- LMTP's socket -----------------------------------------------------------------------------------------------------


def at(place: str) -> Check:
    settings = load({"platform_domain": "mail.example", "api_host": "x.mail.example", "lmtp.listen": place})
    (found,) = (check_ports._port(one, ours=True) for one in check_ports.listeners(settings) if one.label == "lmtp")
    return found


@pytest.mark.covers("cli-config-ops:C9")
def test_a_socket_in_the_file_system(tmp_path: Path) -> None:
    path = tmp_path / "lmtp"
    assert at(str(path)).status is Status.PASS
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert at(str(path)).detail == f"{path}: free", "nobody serves it"
        other.listen()
        taken = at(str(path))
    assert (taken.status, path.is_socket()) == (Status.FAIL, True)
    path.unlink()
    path.write_text("")
    assert at(str(path)).status is Status.FAIL
    assert at(str(tmp_path / "none" / "lmtp")).status is Status.FAIL
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.1", 0))
        elsewhere.listen()
        assert at(f"127.0.0.1:{elsewhere.getsockname()[1]}").status is Status.FAIL


def test_time_is_told_in_words() -> None:
    late = datetime(2030, 1, 1, tzinfo=UTC)
    found = check_sending._late(late - timedelta(minutes=14, seconds=59), 0, late)
    assert found.status is Status.PASS
    assert "16 minutes" in check_sending._late(late - timedelta(minutes=16), 0, late).detail
