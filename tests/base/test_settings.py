from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.settings import (
    PlaintextAuth,
    Role,
    Settings,
    SettingsError,
    default_data_dir,
    environment_names,
    find_config,
    load,
)

BASE = {"POSTROOM_PLATFORM_DOMAIN": "agents.example", "POSTROOM_API_HOST": "api.example.com"}


def problems(overrides: dict[str, object] | None = None, toml: Path | None = None, **environ: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(overrides, BASE | environ, toml)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


@pytest.mark.covers("decisions:D1", "decisions:D13", "decisions:D21", "decisions:D23")
def test_defaults() -> None:
    settings = load(environ=BASE)
    assert settings.allow_plaintext_auth is PlaintextAuth.LOOPBACK
    assert settings.server.hostname == "mx.agents.example"
    assert settings.api_host == "api.example.com"
    assert settings.server.roles == frozenset(Role)
    assert (settings.smtp.port, settings.imap.imaps_port, settings.imap.port, settings.api.port) == (25, 0, 143, 8080)
    assert settings.limits.max_message_size == 26_214_400
    assert settings.limits.max_connections_per_ip == 50
    assert settings.tls.cert_path is None
    assert settings.database.url == ""


@pytest.mark.covers("decisions:C5")
def test_passkeys() -> None:
    assert load(environ=BASE).passkeys.rp_id == ""
    given = {
        "passkeys.rp_id": "Example.com.",
        "passkeys.origins": "https://Mail.Example.com:443, https://example.com:8443",
    }
    passkeys = load(given, BASE).passkeys
    assert passkeys.rp_id == "example.com"
    assert passkeys.origins == ("https://mail.example.com", "https://example.com:8443")
    local = load({"api_host": "localhost", "passkeys.origins": "http://localhost:8080"}, BASE)
    assert local.passkeys.origins == ("http://localhost:8080",)


@pytest.mark.covers("decisions:D13", "mail-server:H1")
def test_precedence(tmp_path: Path) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_text('platform_domain = "file.example"\n[smtp]\nport = 1025\n[imap]\nport = 1587\nimaps_port = 1465\n')
    settings = load(
        {"imap.imaps_port": 3465, "smtp.port": None},
        {"POSTROOM_API_HOST": "api.example.com", "POSTROOM_IMAP_PORT": "2587"},
        toml,
    )
    assert settings.platform_domain == "file.example"
    assert (settings.smtp.port, settings.imap.port, settings.imap.imaps_port) == (1025, 2587, 3465)


@pytest.mark.covers("decisions:D13", "mail-server:H1")
@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("POSTROOM_SMTP_PORT", "2525", lambda s: s.smtp.port == 2525),
        ("POSTROOM__SMTP__PORT", "2525", lambda s: s.smtp.port == 2525),
        ("POSTROOM_DATABASE_URL", "postgresql://h/d", lambda s: s.database.url == "postgresql://h/d"),
        ("DATABASE_URL", "postgresql://h/d", lambda s: s.database.url == "postgresql://h/d"),
        ("POSTROOM_DATA_DIR", "/srv/mail", lambda s: s.server.data_dir == Path("/srv/mail")),
        ("POSTROOM_ROLES", "smtp, worker", lambda s: s.server.roles == {Role.SMTP, Role.WORKER}),
        ("POSTROOM_ROLES", "all", lambda s: s.server.roles == frozenset(Role)),
        ("POSTROOM_MAX_MESSAGE_BYTES", "30000000", lambda s: s.limits.max_message_size == 30_000_000),
        ("POSTROOM_MARKETING_DIRECT", "on", lambda s: s.outbound.marketing_direct),
        ("POSTROOM_OUTBOUND_MAX_MESSAGE_BYTES", "52428800", lambda s: s.outbound.max_message_bytes == 50 << 20),
        ("POSTROOM_LOG_LEVEL", "DEBUG", lambda s: s.server.log_level == "debug"),
        ("POSTROOM_MX_HOSTS", '["b.example", "a.example"]', lambda s: s.mx_hosts == ("b.example", "a.example")),
        (
            "POSTROOM_SERVER_OWN_ADDRESSES",
            "203.0.113.7, 2001:db8::7",
            lambda s: list(map(str, s.server.own_addresses)) == ["203.0.113.7", "2001:db8::7"],
        ),
        ("POSTROOM_MX_HOSTS", "b.example,a.example", lambda s: s.server.hostname == "b.example"),
        ("POSTROOM__API__HOST", "127.0.0.1", lambda s: (s.api.host, s.api_host) == ("127.0.0.1", "api.example.com")),
        ("POSTROOM_ALLOW_PLAINTEXT_AUTH", "never", lambda s: s.allow_plaintext_auth is PlaintextAuth.NEVER),
        ("POSTROOM_PLATFORM_DOMAIN", "Agents.Example.", lambda s: s.platform_domain == "agents.example"),
    ],
)
def test_names_in_the_environment(name: str, value: str, found: object) -> None:
    assert callable(found)
    assert found(load(environ=BASE | {name: value}))


def test_a_second_signature_stands_beside_rsa() -> None:
    assert load(environ=BASE | {"POSTROOM_DKIM_SECOND_SIGNATURE": "on"}).dkim.second_signature
    (problem,) = problems(POSTROOM_DKIM_SECOND_SIGNATURE="on", POSTROOM_DKIM_ALGORITHM="ed25519-sha256")
    assert problem.startswith("dkim.second_signature: ")


@pytest.mark.covers("edge:G5")
@pytest.mark.parametrize("value", ["52428801", "65535", "x"])
def test_how_large_composed_mail_may_be_made(value: str) -> None:
    (problem,) = problems(POSTROOM_OUTBOUND_MAX_MESSAGE_BYTES=value)
    assert problem.startswith("outbound.max_message_bytes: ")


def test_our_database_url_goes_before_everybodys() -> None:
    environ = BASE | {"DATABASE_URL": "postgres://a/a", "POSTROOM_DATABASE_URL": "postgres://b/b"}
    assert load(environ=environ).database.url == "postgres://b/b"


def test_two_of_our_names_that_differ_are_a_problem() -> None:
    (problem,) = problems(POSTROOM_SMTP_PORT="25", POSTROOM__SMTP__PORT="26")
    assert "POSTROOM_SMTP_PORT" in problem
    assert "POSTROOM__SMTP__PORT" in problem


def test_every_name_leads_to_a_key_and_loading_ignores_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_SMTP_PORT", "2600")
    assert load(environ=BASE).smtp.port == 25
    assert environment_names()["POSTROOM_API_HOST"] == "api_host"


def test_all_problems_come_at_once_with_key_source_and_want(tmp_path: Path) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_text('key_pepper = "x"\n[imap]\nprot = 1\n[storage]\nread_threads = 0\n')
    found = problems(
        {"api.port": 70000},
        toml,
        POSTROOM_SMTP_PORT="25a",
        POSTROOM_DATABASE_URL="mysql://u:canary@h",
        POSTROOM_LIMITS_NONSENSE="1",
        POSTROOM_ROLES="smtp,ftp",
    )
    text = "\n".join(found)
    for key, source in [
        ("key_pepper", str(toml)),
        ("imap.prot", str(toml)),
        ("storage.read_threads", str(toml)),
        ("api.port", "the command line"),
        ("smtp.port", "POSTROOM_SMTP_PORT"),
        ("database.url", "POSTROOM_DATABASE_URL"),
        ("POSTROOM_LIMITS_NONSENSE", "the environment"),
        ("server.roles", "POSTROOM_ROLES"),
    ]:
        assert any(line.startswith(key + ":") and source in line for line in found), key
    assert len(found) == 8
    assert "canary" not in text


@pytest.mark.covers("mail-server:A1", "mail-server:A7", "mail-server:H2")
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"POSTROOM_SMTP_PORT": "0"}, "smtp.port: 0 is refused"),
        ({"POSTROOM_IMAP_PORT": "25"}, "smtp.port, imap.port"),
        ({"POSTROOM_HOSTNAME": "not_a_name"}, "server.hostname"),
        ({"POSTROOM_SERVER_OWN_ADDRESSES": "203.0.113.7,mx.example.com"}, "server.own_addresses"),
        ({"POSTROOM_SERVER_OWN_ADDRESSES": "203.0.113.0/24"}, "server.own_addresses"),
        ({"POSTROOM_HOSTNAME": "-a.example"}, "server.hostname"),
        ({"POSTROOM_LIMITS_MAX_CONNECTIONS_PER_IP": "2000"}, "limits.max_connections_per_ip"),
        ({"POSTROOM_LIMITS_MAX_MESSAGE_SIZE": "0"}, "limits.max_message_size"),
        ({"POSTROOM_DATABASE_MIN_CONNECTIONS": "21"}, "database.min_connections"),
        ({"POSTROOM_TLS_CERT": "/c.pem"}, "tls.cert_path, tls.key_path"),
        ({"POSTROOM_ROLES": ""}, "server.roles"),
        ({"POSTROOM_IMAP_IDLE_TIMEOUT_SECS": "nan"}, "imap.idle_timeout_secs"),
    ],
)
def test_cross_checks(environ: dict[str, str], words: str) -> None:
    found = problems(None, None, **environ)
    assert any(line.startswith(words) for line in found)


def test_equal_ports_are_fine_where_one_is_off() -> None:
    assert load({"imap.port": 25, "imap.enabled": False}, BASE).imap.port == 25
    assert load({"smtp.port": 0, "smtp.enabled": False}, BASE).smtp.port == 0


def test_unknown_keys_pass_when_not_strict(tmp_path: Path) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_text("[server]\nstrict_config = false\n[smtp]\nprot = 1\n[nothing]\nx = 1\n")
    assert load(None, BASE, toml).server.strict_config is False


def test_strange_variables_are_told_not_refused() -> None:
    settings = load(environ=BASE | {"POSTROOM_SERVICE_HOST": "10.0.0.1", "POSTROOM_MASTER_KEY": "x", "PATH": "/bin"})
    assert settings.ignored_environment == ("POSTROOM_SERVICE_HOST",)
    # What commands read is no setting, and none that nobody knows: a server may have it in its environment.
    assert load(environ=BASE | {"POSTROOM_WEBHOOK_SECRET": "whsec_", "POSTROOM_KEY": "k"}).ignored_environment == ()


def test_required_names_and_local_stand_ins() -> None:
    with pytest.raises(SettingsError) as caught:
        load()
    assert [line.partition(":")[0] for line in caught.value.problems] == ["platform_domain", "api_host"]
    local = load(environ={"POSTROOM_ENV": "local"})
    assert (local.platform_domain, local.api_host, local.server.hostname) == (
        "postroom.localhost",
        "localhost",
        "localhost",
    )


@pytest.mark.parametrize(
    "content", [b"smtp = ", b"\xff", b"[smtp]\nport = 1\nport = 2\n", b"smtp = 5\n", b"[[smtp]]\n"]
)
def test_files_that_are_not_settings(tmp_path: Path, content: bytes) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_bytes(content)
    assert problems(None, toml)


def test_missing_file_is_a_problem(tmp_path: Path) -> None:
    assert "cannot be read" in problems(None, tmp_path / "none.toml")[0]


@given(st.dictionaries(st.sampled_from(sorted(environment_names())), st.text(max_size=20), max_size=5))
def test_any_environment_gives_settings_or_lines(environ: dict[str, str]) -> None:
    lines: tuple[str, ...] = ()
    try:
        settings = load(environ=BASE | environ)
    except SettingsError as error:
        lines = error.problems
    else:
        assert isinstance(settings, Settings)
        return
    assert lines
    assert all(line.strip() for line in lines)


def test_masked_hides_passwords_in_urls() -> None:
    settings = load(environ=BASE | {"DATABASE_URL": "postgresql://u:canary@h:5432/d?sslpassword=canary&x=1"})
    dump = settings.masked()
    assert "canary" not in str(dump)
    assert dump["database"]["url"] == "postgresql://u:********@h:5432/d?sslpassword=********&x=1"
    assert dump["smtp"]["port"] == 25


@pytest.mark.covers("decisions:D13")
def test_where_files_are(tmp_path: Path) -> None:
    assert find_config({"POSTROOM_CONFIG": "/x/y.toml"}, tmp_path) == Path("/x/y.toml")
    (tmp_path / "postroom.toml").touch()
    assert find_config({}, tmp_path) == tmp_path / "postroom.toml"
    # The data directory's own, whatever names it; one that has none changes nothing.
    (tmp_path / "d").mkdir()
    for name in (name for name, key in environment_names().items() if key == "server.data_dir"):
        for directory in ("d", str(tmp_path / "d")):
            (tmp_path / "d" / "postroom.toml").unlink(missing_ok=True)
            assert find_config({name: directory}, tmp_path) == tmp_path / "postroom.toml"
            (tmp_path / "d" / "postroom.toml").touch()
            assert find_config({name: directory}, tmp_path) == tmp_path / "d" / "postroom.toml"
            assert find_config({name: directory, "POSTROOM_CONFIG": "/x/y.toml"}, tmp_path) == Path("/x/y.toml")
    assert default_data_dir({"STATE_DIRECTORY": "/var/lib/p:/other"}, tmp_path) == Path("/var/lib/p")
    assert load(environ=BASE, data_dir=tmp_path).server.data_dir == tmp_path
    assert load(environ=BASE, host_name="node 7!").server.node_id == "node-7-"


@pytest.mark.covers("mail-server:A1", "mail-server:A7", "mail-server:C4", "mail-server:C6", "mail-server:H2")
def test_defaults_of_sending() -> None:
    settings = load(environ=BASE)
    smtp, queue, limits = settings.smtp, settings.queue, settings.limits
    assert (smtp.submission_port, smtp.smtps_port, smtp.auth_on_mx, smtp.hide_client_ip) == (587, 0, True, True)
    assert (limits.submission_rate_limit, limits.daily_send_limit) == (50, 500)
    assert (queue.poll_interval_secs, queue.max_attempts, queue.max_connections_per_host) == (10, 12, 4)
    assert queue.retry_schedule_secs == (60, 300, 900, 3600, 21600, 86400)
    assert (queue.delivery_timeout_secs, queue.connect_timeout_secs, queue.retention_days) == (840, 30, 30)
    assert (queue.relay_host, queue.relay_port, queue.relay_tls, queue.relay_password) == ("", 587, "starttls", "")
    assert (queue.unknown_outcome, queue.bounce_on_failure, queue.delay_notice_secs) == ("hold", True, 0)
    assert not queue.allow_private_targets
    assert queue.return_path_host == ""
    assert load({"queue.return_path_host": "PM-Bounce.example."}, BASE).queue.return_path_host == "pm-bounce.example"
    assert settings.lmtp.endpoint is None
    assert settings.dkim.algorithm == "rsa-sha256"
    assert (settings.dns.timeout_secs, settings.dns.attempts, settings.dns.resolvers) == (3, 1, ())
    assert {Role.SUBMISSION, Role.LMTP} <= settings.server.roles


@pytest.mark.covers("decisions:D13", "mail-server:C4", "mail-server:G4", "mail-server:A1")
def test_settings_of_sending_from_the_environment() -> None:
    settings = load(
        environ=BASE
        | {
            "POSTROOM_SMTP_SUBMISSION_PORT": "1587",
            "POSTROOM_QUEUE_RETRY_SCHEDULE_SECS": "60,120",
            "POSTROOM_QUEUE_RELAY_FROM_DOMAINS": "A.example, b.example",
            "POSTROOM_RESOLVERS": "192.0.2.1,tls://192.0.2.2#dns.example.com",
            "POSTROOM_LMTP_LISTEN": "unix:/run/postroom/lmtp",
            "POSTROOM_LMTP_ALLOW": "192.0.2.0/24,2001:db8::1",
        }
    )
    assert settings.smtp.submission_port == 1587
    assert settings.queue.retry_schedule_secs == (60, 120)
    assert settings.queue.relay_from_domains == ("a.example", "b.example")
    assert settings.dns.resolvers == ("192.0.2.1", "tls://192.0.2.2#dns.example.com")
    assert settings.lmtp.endpoint is not None
    assert (settings.lmtp.endpoint.is_path, settings.lmtp.endpoint.host) == (True, "/run/postroom/lmtp")
    assert [str(network) for network in settings.lmtp.allow] == ["192.0.2.0/24", "2001:db8::1/128"]
    assert load({"queue.retry_schedule_secs": []}, BASE).queue.retry_schedule_secs == (60,)
    assert settings.masked()["lmtp"]["allow"] == ["192.0.2.0/24", "2001:db8::1/128"]


@pytest.mark.covers("mail-server:A1")
@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:24", "127.0.0.1", 24),
        ("[::1]:24", "::1", 24),
        ("/run/x", "/run/x", 0),
        (" lmtp.example:2424 ", "lmtp.example", 2424),
    ],
)
def test_where_lmtp_listens(text: str, host: str, port: int) -> None:
    endpoint = load({"lmtp.listen": text}, BASE).lmtp.endpoint
    assert endpoint is not None
    assert (endpoint.host, endpoint.port) == (host, port)


@pytest.mark.covers("mail-server:A1", "mail-server:C6", "edge:N16")
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"smtp.smtps_port": 587}, "smtp.submission_port, smtp.smtps_port"),
        ({"smtp.submission_port": 25}, "smtp.port, smtp.submission_port"),
        ({"lmtp.listen": "127.0.0.1:587"}, "smtp.submission_port, lmtp.listen"),
        ({"lmtp.listen": "24"}, "lmtp.listen"),
        ({"lmtp.listen": "host:70000"}, "lmtp.listen"),
        ({"lmtp.listen": "/" + "x" * 120}, "lmtp.listen"),
        ({"lmtp.allow": "192.0.2.1/24"}, "lmtp.allow"),
        ({"dns.resolvers": "udp://x y"}, "dns.resolvers"),
        ({"queue.retry_schedule_secs": "60,0"}, "queue.retry_schedule_secs"),
        ({"queue.relay_username": "u"}, "queue.relay_username, queue.relay_password"),
        ({"queue.relay_username": "u", "queue.relay_password": "p"}, "queue.relay_host"),
        (
            {
                "queue.relay_username": "u",
                "queue.relay_password": "p",
                "queue.relay_host": "r.example",
                "queue.relay_tls": "none",
            },
            "queue.relay_tls: none is refused",
        ),
        ({"queue.relay_host": "not_a_name"}, "queue.relay_host"),
        ({"passkeys.rp_id": "https://example.com"}, "passkeys.rp_id"),
        ({"passkeys.rp_id": "example.net"}, "passkeys.rp_id: wants to be api_host, or a domain that it is below"),
        ({"passkeys.rp_id": "pi.example.com"}, "passkeys.rp_id: wants to be api_host, or a domain that it is below"),
        ({"passkeys.origins": "https://mail.example.net"}, "passkeys.origins: https://mail.example.net is not at"),
        ({"passkeys.origins": "http://api.example.com"}, "passkeys.origins"),
        ({"passkeys.origins": "https://api.example.com/"}, "passkeys.origins"),
        ({"passkeys.origins": "https://api.example.com:0"}, "passkeys.origins"),
        ({"passkeys.origins": "https://ada@api.example.com"}, "passkeys.origins"),
        ({"passkeys.origins": "api.example.com"}, "passkeys.origins"),
        ({"queue.return_path_host": "bounces@example.com"}, "queue.return_path_host"),
        ({"queue.return_path_host": "Agents.Example."}, "queue.return_path_host: wants a name of its own"),
        ({"queue.connect_timeout_secs": 900}, "queue.connect_timeout_secs"),
        ({"limits.daily_send_limit": 0}, "limits.daily_send_limit"),
    ],
)
def test_what_is_wrong_with_settings_of_sending(overrides: dict[str, object], words: str) -> None:
    assert any(line.startswith(words) for line in problems(overrides, None))


@pytest.mark.covers("cli-config-ops:B1", "mail-server:C6", "mail-server:H1")
def test_the_relays_password_is_a_secret(tmp_path: Path) -> None:
    relay: dict[str, object] = {"queue.relay_host": "relay.example", "queue.relay_username": "u"}
    file = tmp_path / "password"
    file.write_text("[canary] from a file\n")
    for environ, password in (
        ({"POSTROOM_QUEUE_RELAY_PASSWORD": "[canary]"}, "[canary]"),
        ({"POSTROOM__QUEUE__RELAY_PASSWORD_FILE": str(file)}, "[canary] from a file"),
    ):
        settings = load(relay, BASE | environ)
        assert settings.queue.relay_password == password
        assert settings.masked()["queue"]["relay_password"] == "********"
        assert "canary" not in repr(settings)
    toml = tmp_path / "postroom.toml"
    toml.write_text('[queue]\nrelay_password = "canary"\n')
    for found in (
        problems(None, toml),
        problems(relay, None, POSTROOM_QUEUE_RELAY_PASSWORD_FILE=str(tmp_path / "none")),
        problems(None, None, POSTROOM_QUEUE_RELAY_PASSWORD_FILE=str(file), POSTROOM_QUEUE_RELAY_PASSWORD="canary"),
        problems(relay, None, POSTROOM_QUEUE_RELAY_PASSWORD="canary" * 1000),
    ):
        assert any("queue.relay_password" in line for line in found)
        assert "canary" not in "\n".join(found)


def test_the_policy_of_all_tenants_is_an_object(tmp_path: Path) -> None:
    """A table of TOML, in the environment JSON; what its members may be is known where policies are."""
    file = tmp_path / "postroom.toml"
    file.write_text('[tenants.default_policy]\nmax_recipients = 5\nai_disclosure = {mode = "footer"}\n')
    wanted = {"max_recipients": 5, "ai_disclosure": {"mode": "footer"}}
    assert load(environ=BASE, toml_path=file).tenants.default_policy == wanted
    for name in ("POSTROOM_DEFAULT_POLICY", "POSTROOM_TENANTS_DEFAULT_POLICY"):
        assert load(environ=BASE | {name: '{"max_recipients": 7}'}).tenants.default_policy == {"max_recipients": 7}
        assert load(environ=BASE | {name: ""}).tenants.default_policy == {}
    for wrong in ("5", "[1]", "{", "max_recipients=5"):
        (problem,) = problems(POSTROOM_DEFAULT_POLICY=wrong)
        assert "default_policy" in problem
    assert not load(environ=BASE | {"POSTROOM_QUARANTINE_KEY_RELEASE": "off"}).tenants.quarantine_key_release
