"""The one tree of settings: sections, keys, defaults, and what each value must be (mail-server A1, A7, H2; D13).

Values come from built-in defaults < `postroom.toml` < environment < command line; `load` of
`postroom.base.settings` reads them and says what is wrong with all of them at once. Secrets are not settings:
they have a module of their own. A key appears here when the program uses it.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

MASK: Final = "********"

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
MAX_DNS_NAME_CHARS: Final = 253
MAX_LOCAL_CHARS: Final = 64


class Role(StrEnum):
    """What a process does; `serve --roles` picks some."""

    SMTP = "smtp"
    IMAP = "imap"
    HTTP = "http"
    WORKER = "worker"


class PlaintextAuth(StrEnum):
    """When AUTH and LOGIN are allowed without TLS (D1)."""

    NEVER = "never"
    LOOPBACK = "loopback"
    ALWAYS = "always"


class Environment(StrEnum):
    """`local` is a machine of a developer: it gets a domain and a host name without being told one."""

    PRODUCTION = "production"
    STAGING = "staging"
    LOCAL = "local"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class TlsVersion(StrEnum):
    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


def _dns_name(text: str) -> str:
    name = text.lower().removesuffix(".")
    if len(name) > MAX_DNS_NAME_CHARS or _DNS_NAME.fullmatch(name) is None:
        raise ValueError("a DNS name in its ASCII form, such as mail.example.com, is needed")
    return name


def _database_url(text: str) -> str:
    if text and re.fullmatch(r"postgres(ql)?://\S+", text) is None:
        raise ValueError("a URL that starts with postgresql:// is needed, or nothing for the bundled server")
    return text


def _mailbox_address(text: str) -> str:
    """Whether there is such a mailbox is known when mail comes; nothing is as good as none."""
    local, at, domain = text.strip().rpartition("@")
    if not text.strip():
        return ""
    if not at or not local or len(local) > MAX_LOCAL_CHARS or not local.isascii() or not local.isprintable():
        raise ValueError("the address of a mailbox here is needed, such as operator@agents.example.com, or nothing")
    return f"{local}@{_dns_name(domain)}"


def _split(value: object) -> object:
    """A list written in one string, as the environment has it: separated by commas."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _roles(value: object) -> object:
    parts = _split(value)
    if parts == ["all"]:
        return list(Role)
    if isinstance(parts, list) and not parts:
        raise ValueError("at least one role is needed")
    return parts


def _level(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


DnsName = Annotated[str, AfterValidator(_dns_name)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400 * 366)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Field(ge=1, le=2**53)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, hide_input_in_errors=True)


class ServerSettings(_Section):
    """The process as a whole."""

    hostname: DnsName = "localhost"
    """Name in greetings, EHLO and trace headers; the first of `mx_hosts` unless set, `localhost` on a local machine."""
    data_dir: Path = Path("postroom-data")
    """Where everything lives that is kept: message bytes, secrets, the bundled database. Relative to the working
    directory."""
    roles: Annotated[frozenset[Role], BeforeValidator(_roles)] = frozenset(Role)
    """What this process does: `smtp`, `imap`, `http`, `worker`, or `all`."""
    node_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "node"
    """Names this node to the database; the machine's host name unless set."""
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """How many processes share the ports of this machine; limits of connections are divided among them."""
    shutdown_timeout_secs: Seconds = 30.0
    """How long what is in hand may take to finish when the server stops."""
    strict_config: bool = True
    """Whether a setting that does not exist stops the start."""
    log_level: Annotated[LogLevel, BeforeValidator(_level)] = LogLevel.INFO
    """The least severe kind of log line that is written: `debug`, `info`, `warning`, `error` or `critical`."""
    log_format: LogFormat = LogFormat.TEXT
    """`text` for people, `json` for programs."""


class DatabaseSettings(_Section):
    """PostgreSQL: the bundled one while `url` is empty. Connections are per process (B19)."""

    url: Annotated[str, AfterValidator(_database_url)] = ""
    """Where PostgreSQL is, `postgresql://…`; empty for the bundled one."""
    max_connections: Annotated[int, Field(ge=2, le=1000)] = 20
    """The most connections of each process; with the bundled server no more than its share."""
    min_connections: Annotated[int, Field(ge=0, le=1000)] = 2
    """How many connections of each process stay open."""
    acquire_timeout_secs: Seconds = 10.0
    """How long a piece of work waits for a connection before it fails for now."""
    run_migrations: bool = True
    """Whether `serve` brings the schema up to date."""


class SmtpSettings(_Section):
    """The listener for mail from outside. An empty host is every address; to receive no mail use `enabled`, not
    port 0."""

    enabled: bool = True
    """Whether mail from outside is taken."""
    host: str = ""
    """The address to listen on."""
    port: Port = 25
    """The port to listen on; 0 is refused."""
    banner: Annotated[str, Field(max_length=200, pattern=r"^[ -~]*$")] = ""
    """The text of the greeting after the host name."""
    helo_required: bool = True
    """Whether a client must say EHLO or HELO before MAIL."""
    advertise_size: bool = True
    """Whether EHLO tells the largest message that is taken (SIZE)."""
    advertise_extensions: bool = True
    """Whether EHLO names PIPELINING, 8BITMIME and the others."""
    command_timeout_secs: Seconds = 300.0
    """How long a client may be silent between commands; no longer than `limits.idle_timeout_secs`."""
    data_timeout_secs: Seconds = 600.0
    """How long a client may be silent within a message."""


class ImapSettings(_Section):
    """The IMAP listeners. A port of 0 is off; an empty host is every address."""

    enabled: bool = True
    """Whether mailboxes are served by IMAP."""
    host: str = ""
    """The address to listen on."""
    port: Port = 143
    """The port where connections begin without TLS and STARTTLS is offered."""
    imaps_port: Port = 0
    """The port where connections begin with TLS; the usual one is 993."""
    banner: Annotated[str, Field(max_length=200, pattern=r"^[ -~]*$")] = ""
    """The text of the greeting."""
    idle_timeout_secs: Seconds = 1800.0
    """How long a client may be silent; RFC 3501 wants at least 30 minutes."""
    max_idle_secs: Seconds = 1740.0
    """How long one IDLE command may last."""
    max_append_size: Bytes = 26_214_400
    """The largest message that APPEND takes, in bytes."""


class ApiSettings(_Section):
    """The HTTP listeners. `host` is where they listen; the public name is `api_host`."""

    enabled: bool = True
    """Whether the REST API is served."""
    host: str = ""
    """The address to listen on; its variable is `POSTROOM__API__HOST`."""
    port: Port = 8080
    """The port without TLS, for a proxy on the same machine."""
    tls_port: Port = 0
    """The port with TLS; 0 is off."""


class TlsSettings(_Section):
    """The certificate of all listeners; without one a self-signed one is made in the data directory (D23)."""

    cert_path: Path | None = None
    """The certificate with its chain, PEM; a changed file is noticed within about a minute."""
    key_path: Path | None = None
    """The private key of the certificate, PEM, without a passphrase."""
    min_version: TlsVersion = TlsVersion.TLS_1_2
    """The oldest version of TLS that is spoken: `1.2` or `1.3`."""


class StorageSettings(_Section):
    """Message bytes. The threads are per process; see `MaildirStore`."""

    fsync_on_write: bool = True
    """Whether a message is on the disk before it is acknowledged; off only for tests."""
    write_threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads that write message files."""
    read_threads: Annotated[int, Field(ge=1, le=64)] = 4
    """Threads that read message files."""
    sync_threads: Annotated[int, Field(ge=1, le=64)] = 4
    """Threads that wait for the disk."""


class LimitSettings(_Section):
    """What is refused for its size or number (mail-server A7, D21). Sizes in bytes."""

    max_message_size: Bytes = 26_214_400
    """The largest message that is taken from outside, in bytes."""
    max_recipients: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Recipients of one message."""
    max_connections: Count = 1000
    """Open connections of each protocol on this machine, all processes together."""
    max_connections_per_ip: Count = 50
    """Open connections of each protocol from one address, all processes together; this machine itself is exempt."""
    smtp_rate_limit: Count = 100
    """Unproductive commands per minute and address before authentication."""
    mailbox_quota: Bytes = 1_073_741_824
    """What a person's mailbox may hold, in bytes; agents have no quota."""
    idle_timeout_secs: Seconds = 300.0
    """How long an SMTP client may be silent between commands."""
    max_failed_logins: Count = 10
    """Failed attempts within a minute after which signing in is locked."""
    login_lockout_secs: Seconds = 900.0
    """How long a lock of signing in lasts."""


class Settings(_Section):
    """The whole tree. Made by `load`; frozen."""

    env: Environment = Environment.PRODUCTION
    """`production`, `staging`, or `local` for a developer's machine, which needs no domain."""
    platform_domain: DnsName
    """The domain of the mailboxes."""
    api_host: DnsName
    """The public name of the REST API."""
    mx_hosts: Annotated[tuple[DnsName, ...], BeforeValidator(_split), Field(min_length=1)]
    """The names that the MX record may give, the first one being this machine's; `mx.` and the platform domain
    unless set."""
    security_contact: Annotated[str, AfterValidator(_mailbox_address)] = ""
    """A local mailbox that gets mail to `postmaster`, `abuse`, `security`, `hostmaster`, `webmaster` and `noc` of the
    platform domain, and to `<postmaster>`; without one such mail is refused."""
    allow_plaintext_auth: PlaintextAuth = PlaintextAuth.LOOPBACK
    """From where passwords are accepted without TLS: `never`, `loopback` or `always`."""
    server: ServerSettings = ServerSettings()
    database: DatabaseSettings = DatabaseSettings()
    smtp: SmtpSettings = SmtpSettings()
    imap: ImapSettings = ImapSettings()
    api: ApiSettings = ApiSettings()
    tls: TlsSettings = TlsSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    ignored_environment: tuple[str, ...] = ()
    """Names of variables that look like ours and mean nothing to us, for the log and doctor to tell."""

    def masked(self) -> dict[str, Any]:
        """All values in plain types, for `config show`: a password within a URL is masked."""
        tree = self.model_dump(mode="json", exclude={"ignored_environment"})
        tree["server"]["roles"] = sorted(tree["server"]["roles"])
        tree["database"]["url"] = mask_url(self.database.url)
        return tree


SECTIONS: Final[dict[str, type[_Section]]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, _Section)
}
TOP_LEVEL: Final = tuple(name for name in Settings.model_fields if name not in {*SECTIONS, "ignored_environment"})


def all_keys() -> Iterator[str]:
    """Every key, dotted: ``platform_domain``, ``smtp.port`` …"""
    yield from TOP_LEVEL
    for section, model in SECTIONS.items():
        for key in model.model_fields:
            yield f"{section}.{key}"


def mask_url(url: str) -> str:
    """A URL with its password, and any it carries as a parameter, replaced."""
    if not url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    netloc = parts.netloc
    credentials, at, host = netloc.rpartition("@")
    if at and ":" in credentials:
        netloc = f"{credentials.partition(':')[0]}:{MASK}@{host}"
    query = re.sub(r"(?i)(^|&)([^=&]*password[^=&]*)=[^&]*", rf"\1\2={MASK}", parts.query)
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def cross_checks(settings: Settings) -> Iterator[str]:
    """What is wrong between settings that are each well-formed (mail-server A1, A7, G1)."""
    yield from _port_checks(settings)
    limits, database, tls = settings.limits, settings.database, settings.tls
    if limits.max_connections_per_ip > limits.max_connections:
        yield "limits.max_connections_per_ip: wants at most limits.max_connections"
    if database.min_connections > database.max_connections:
        yield "database.min_connections: wants at most database.max_connections"
    if (tls.cert_path is None) != (tls.key_path is None):
        yield "tls.cert_path, tls.key_path: both or neither must be set"


def _port_checks(settings: Settings) -> Iterator[str]:
    smtp, imap, api = settings.smtp, settings.imap, settings.api
    if smtp.enabled and smtp.port == 0:
        yield "smtp.port: 0 is refused; to receive no mail set smtp.enabled = false"
    listeners = [
        ("smtp.port", smtp.enabled, smtp.port),
        ("imap.port", imap.enabled, imap.port),
        ("imap.imaps_port", imap.enabled, imap.imaps_port),
        ("api.port", api.enabled, api.port),
        ("api.tls_port", api.enabled, api.tls_port),
    ]
    users: dict[int, list[str]] = {}
    for name, enabled, port in listeners:
        if enabled and port:
            users.setdefault(port, []).append(name)
    for port, names in users.items():
        if len(names) > 1:
            yield f"{', '.join(names)}: all want port {port}; each listener needs one of its own"
