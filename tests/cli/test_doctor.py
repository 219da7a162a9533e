"""`postroom doctor` and `postroom healthcheck`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import asyncpg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroom import BUILT
from postroom.base.settings import load
from postroom.cli import checks
from postroom.cli.verdicts import Status
from tests.cli.driver import Cli

NAMES = ["configuration", "data_dir", "secrets", "database", "migrations", "storage", "secrets.sealed"]
QUEUE = ["queue.deliveries", "queue.uncertain", "queue.bounces", "dlq"]
SENDING = ["sending.domains", "sending.outbound.direct"]
PORTS = ["port.smtp", "port.submission", "port.smtps", "port.imap", "port.http", "port.metrics"]
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Free ports in the settings."""
    found = {"SMTP": free_port(), "IMAP": free_port(), "API": free_port()}
    for section, port in found.items():
        monkeypatch.setenv(f"POSTROOM__{section}__PORT", str(port))
        monkeypatch.setenv(f"POSTROOM__{section}__HOST", "127.0.0.1")
    for name in ("SUBMISSION", "SMTPS"):
        found[name] = free_port()
        monkeypatch.setenv(f"POSTROOM__SMTP__{name}_PORT", str(found[name]))
    found["METRICS"] = free_port()
    monkeypatch.setenv("POSTROOM_METRICS_LISTEN", f"127.0.0.1:{found['METRICS']}")
    return found


def statuses(document: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in document["checks"]}


@pytest.mark.covers("mail-server:H4", "cli-config-ops:C9")
def test_a_deployment_in_order(cli: Cli, ports: dict[str, int]) -> None:
    cli.json("tenant", "create", "acme")
    document = cli.json("doctor")
    found = statuses(document)
    assert list(found) == [*NAMES, *QUEUE, *SENDING, *PORTS, "tls", "dns", "security_txt"]
    assert {found[name] for name in (*NAMES, *QUEUE, *PORTS)} == {"pass"}
    assert [found[name] for name in SENDING] == ["warn", "skip"]
    assert (found["tls"], found["dns"], document["status"]) == ("warn", "warn", "warn")
    assert document["summary"] == {"pass": 17, "warn": 4, "fail": 0, "skip": 1}
    told = cli("doctor")
    assert told.code == 0
    assert "17 pass, 4 warn, 1 skip" in told.out
    assert cli("doctor", "--quiet").out == "warn\n"


@pytest.mark.covers("cli-config-ops:C9")
def test_every_failure_has_a_fix_and_the_exit_code_is_12(
    cli: Cli, ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.json("tenant", "create", "acme")
    (cli.data_dir / "store-id").write_text("another\n")
    (cli.data_dir / "secrets.toml").chmod(0o644)
    monkeypatch.setenv("POSTROOM_TLS_CERT", str(cli.data_dir / "none.pem"))
    monkeypatch.setenv("POSTROOM_TLS_KEY", str(cli.data_dir / "none.key"))
    monkeypatch.setenv("POSTROOM_ENV", "production")
    monkeypatch.setenv("POSTROOM_API_HOST", "api")
    with socket.socket() as other, socket.socket() as another:
        for taken, port in ((other, ports["SMTP"]), (another, ports["SUBMISSION"])):
            taken.bind(("127.0.0.1", port))
            taken.listen()
        result = cli("doctor", "--json")
    assert result.code == 12
    failed = {check["name"]: check for check in result.document["checks"] if check["status"] == "fail"}
    assert set(failed) == {"secrets", "storage", "port.smtp", "port.submission", "tls", "dns"}
    assert all(check["fix"] for check in failed.values())


def test_nothing_is_set_up_yet(bare: Cli, ports: dict[str, int]) -> None:
    found = statuses(bare.json("doctor"))
    assert [found[name] for name in NAMES] == ["pass", "warn", "skip", "skip", "skip", "skip", "skip"]
    assert not bare.data_dir.exists()


@pytest.mark.covers("cli-config-ops:C9")
def test_bad_settings_fail_the_doctor_not_the_command(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_SMTP_PORT", "many")
    result = bare("doctor", "--json")
    assert result.code == 12
    found = statuses(result.document)
    assert found.pop("configuration") == "fail"
    assert set(found.values()) == {"skip"}


def test_a_database_that_is_away(bare: Cli, ports: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_URL", "postgresql://postroom@127.0.0.1:1/postroom")
    result = bare("doctor", "--json")
    assert result.code == 12
    assert statuses(result.document)["database"] == "fail"


def test_another_deployments_database(
    cli: Cli, ports: dict[str, int], monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    cli.json("tenant", "create", "acme")
    monkeypatch.setenv("POSTROOM_PLATFORM_DOMAIN", "other.example")
    assert statuses(cli("doctor", "--json").document)["storage"] == "fail"

    async def forget() -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute("DELETE FROM postroom.schema_migrations WHERE version > 1")
        await connection.close()

    asyncio.run(forget())
    found = statuses(cli("doctor", "--json").document)
    assert (found["migrations"], found["storage"]) == ("fail", "skip")


def make_certificate(directory: Path, name: str, *, days: int, self_signed: bool = False) -> dict[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    issuer = subject if self_signed else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(private)
    return {"tls.cert_path": str(directory / "cert.pem"), "tls.key_path": str(directory / "key.pem")}


@pytest.mark.parametrize(
    ("name", "days", "self_signed", "status"),
    [
        ("mx.mail.example", 90, False, Status.PASS),
        ("*.mail.example", 90, False, Status.PASS),
        ("*.example", 90, False, Status.WARN),
        ("mx.mail.example", 90, True, Status.WARN),
        ("mx.mail.example", 14, False, Status.FAIL),
        ("mx.mail.example", -1, False, Status.FAIL),
    ],
)
def test_certificates(tmp_path: Path, name: str, days: int, self_signed: bool, status: Status) -> None:
    given = make_certificate(tmp_path, name, days=days, self_signed=self_signed)
    settings = load({"platform_domain": "mail.example", "api_host": "api.mail.example", **given})
    assert checks.tls(settings, NOW).status is status


@pytest.mark.parametrize(
    ("domain", "env", "status"),
    [
        ("agents.postroom.dev", "production", Status.PASS),
        ("agents.example.com", "production", Status.FAIL),
        ("agents.example", "production", Status.FAIL),
        ("agents.local", "staging", Status.FAIL),
        ("agents", "production", Status.FAIL),
        ("192.0.2.1", "production", Status.FAIL),
        ("agents.example", "local", Status.WARN),
    ],
)
def test_names(domain: str, env: str, status: Status) -> None:
    settings = load({"platform_domain": domain, "api_host": "api.postroom.dev", "env": env})
    assert checks.dns(settings).status is status


@pytest.mark.covers("security-privacy:A13", "cli-config-ops:C9")
@pytest.mark.parametrize(
    ("contact", "days", "status"),
    [
        ("", 0, Status.WARN),
        ("security@mail.example", 0, Status.PASS),
        ("security@mail.example", 334, Status.PASS),
        ("security@mail.example", 335, Status.FAIL),
        ("security@mail.example", 400, Status.FAIL),
    ],
)
def test_where_faults_are_reported(contact: str, days: int, status: Status) -> None:
    given = {"platform_domain": "mail.example", "api_host": "api.mail.example", "security_contact": contact}
    now = datetime.fromisoformat(BUILT).replace(tzinfo=UTC) + timedelta(days=days)
    found = checks.security_txt(load(given), now)
    assert found.status is status
    assert found.status is Status.PASS or found.fix


@pytest.mark.covers("cli-config-ops:A5")
def test_some_of_the_checks(cli: Cli, ports: dict[str, int]) -> None:
    cli.json("tenant", "create", "acme")
    assert list(statuses(cli.json("doctor", "--check", "tls", "--check", "queue"))) == [*QUEUE[:3], "tls"]
    assert list(statuses(cli.json("doctor", "--check", "port"))) == PORTS
    # What is asked for is answered, also when there is nothing to look at.
    assert statuses(cli.json("doctor", "--check", "port.imaps")) == {"port.imaps": "skip"}
    assert statuses(cli.json("doctor", "--check", "sending.outbound")) == {"sending.outbound.direct": "skip"}
    for unknown in ("ports", "queue.", "", "port.25"):
        assert cli("doctor", "--check", unknown, "--json").error["code"] == "cli_usage"


@pytest.mark.covers("cli-config-ops:C9", "decisions:B19")
def test_ports_of_metrics(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process wants one. Whoever takes it keeps nothing but monitoring from its work."""
    cli.json("tenant", "create", "acme")
    with socket.socket() as first, socket.socket() as second:
        for attempt in range(100):
            port = free_port()
            with contextlib.suppress(OSError):
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
                break
            assert attempt < 99
            first.close()
            first = socket.socket()
        monkeypatch.setenv("POSTROOM_METRICS_LISTEN", f"127.0.0.1:{port}")
        monkeypatch.setenv("POSTROOM__SERVER__PROCESSES", "2")
        second.listen()
        document = cli.json("doctor", "--check", "port.metrics")
        assert statuses(document) == {"port.metrics": "warn", "port.metrics.2": "warn"}
        assert [one["detail"].partition(":")[0] for one in document["checks"]] == [str(port), str(port + 1)]
        assert all(one["fix"] for one in document["checks"])
        first.close()
        assert statuses(cli.json("doctor", "--check", "port.metrics")) == {
            "port.metrics": "pass",
            "port.metrics.2": "warn",
        }
    with answering(200, b"# HELP postroom_database_up\n", "/metrics") as url:
        monkeypatch.setenv("POSTROOM_METRICS_LISTEN", url.removeprefix("http://"))
        monkeypatch.setenv("POSTROOM__SERVER__PROCESSES", "1")
        (one,) = cli.json("doctor", "--check", "port.metrics")["checks"]
        assert (one["status"], "this Postroom listens" in one["detail"]) == ("pass", True)
    monkeypatch.setenv("POSTROOM_METRICS_LISTEN", "")
    assert statuses(cli.json("doctor", "--check", "port.metrics")) == {"port.metrics": "skip"}


@contextmanager
def answering(status: int, body: bytes, path: str = "/health") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == path else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_healthy_server(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with answering(200, json.dumps({"status": "ok", "version": "1"}).encode()) as url:
        assert bare.json("healthcheck", "--url", url) == {"status": "ok", "version": "1"}
        assert bare("healthcheck", "--url", f"{url}/", "--quiet").out == "ok\n"
    with answering(200, b"no JSON") as url:
        assert bare("healthcheck", "--url", url).code == 0


@pytest.mark.covers("cli-config-ops:A3", "cli-config-ops:A5")
@pytest.mark.parametrize("status", [404, 500, 503, 204])
def test_an_unwell_server(bare: Cli, status: int) -> None:
    with answering(status, b"") as url:
        result = bare("healthcheck", "--url", url, "--json")
    assert result.code == 9
    assert result.error["code"] == "upstream_unavailable"


def test_no_server(bare: Cli) -> None:
    assert bare("healthcheck", "--url", f"http://127.0.0.1:{free_port()}").code == 9
