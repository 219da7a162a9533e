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

from . import settings_values as check
from .settings_values import (
    MASK,
    MAX_PORT,
    Addresses,
    Bytes,
    Count,
    DnsName,
    Endpoint,
    NameServers,
    Network,
    Origins,
    Password,
    Port,
    Schedule,
    Seconds,
    parse_endpoint,
)


class Role(StrEnum):
    """What a process does; `serve --roles` picks some."""

    SMTP = "smtp"
    """Mail from other servers."""
    SUBMISSION = "submission"
    """Mail from the mail programs of our own people, and from agents."""
    LMTP = "lmtp"
    """Mail from a front that we trust."""
    IMAP = "imap"
    HTTP = "http"
    WORKER = "worker"


class PlaintextAuth(StrEnum):
    """When AUTH and LOGIN are allowed without TLS (D1)."""

    NEVER = "never"
    LOOPBACK = "loopback"
    ALWAYS = "always"


class RelayTls(StrEnum):
    """How the connection to the deployment's relay is encrypted (C6)."""

    STARTTLS = "starttls"
    IMPLICIT = "implicit"
    NONE = "none"


class DkimAlgorithm(StrEnum):
    """RFC 6376 §3.3 and RFC 8463."""

    RSA_SHA256 = "rsa-sha256"
    ED25519_SHA256 = "ed25519-sha256"


class UnknownOutcome(StrEnum):
    """What becomes of mail that may or may not have been taken: the connection broke after the final dot (C5)."""

    HOLD = "hold"
    RETRY = "retry"
    """Once more, for mail that people submitted by SMTP: it may arrive twice."""


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


def _roles(value: object) -> object:
    parts = check.split(value)
    if parts == ["all"]:
        return list(Role)
    if isinstance(parts, list) and not parts:
        raise ValueError("at least one role is needed")
    return parts


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
    """What this process does: `smtp`, `submission`, `lmtp`, `imap`, `http`, `worker`, or `all`."""
    node_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "node"
    """Names this node to the database; the machine's host name unless set."""
    own_addresses: Addresses = ()
    """Public addresses of the other nodes of this deployment, and of what stands before any of them (NAT, a load
    balancer): URLs and mail servers that others name may not lead there. This machine's own are found by themselves."""
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """How many processes share the ports of this machine; limits of connections are divided among them."""
    shutdown_timeout_secs: Seconds = 30.0
    """How long what is in hand may take to finish when the server stops."""
    strict_config: bool = True
    """Whether a setting that does not exist stops the start."""
    log_level: Annotated[LogLevel, BeforeValidator(check.level)] = LogLevel.INFO
    """The least severe kind of log line that is written: `debug`, `info`, `warning`, `error` or `critical`."""
    log_format: LogFormat = LogFormat.TEXT
    """`text` for people, `json` for programs."""


class DatabaseSettings(_Section):
    """PostgreSQL: the bundled one while `url` is empty. Connections are per process (B19)."""

    url: Annotated[str, AfterValidator(check.database_url)] = ""
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
    """The listeners for mail from outside, and for mail that is submitted. An empty host is every address; to receive
    no mail use `enabled`, not port 0. The ports of submission are off with 0."""

    enabled: bool = True
    """Whether mail from outside is taken."""
    host: str = ""
    """The address to listen on."""
    port: Port = 25
    """The port to listen on; 0 is refused."""
    submission_port: Port = 587
    """The port where people and agents submit mail, with STARTTLS."""
    smtps_port: Port = 0
    """The port where they do so with TLS from the first byte; the usual one is 465."""
    auth_on_mx: bool = True
    """Whether mail can be submitted at `port`, too, after signing in."""
    hide_client_ip: bool = True
    """Whether the trace header of submitted mail leaves out from where it was submitted."""
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


class LmtpSettings(_Section):
    """The listener for a mail front of our own, which we believe (LMTP, RFC 2033)."""

    listen: Annotated[str, AfterValidator(check.endpoint)] = ""
    """Where to listen: the path of a socket, such as `/run/postroom/lmtp`, or an address and a port; off unless
    set."""
    allow: Annotated[tuple[Network, ...], BeforeValidator(check.split)] = ()
    """The networks that may connect; this machine alone unless set. Who reaches a socket in the file system is what
    the permissions of its directory say."""

    @property
    def endpoint(self) -> Endpoint | None:
        return parse_endpoint(self.listen)


class QueueSettings(_Section):
    """Mail that leaves. Times in seconds."""

    poll_interval_secs: Seconds = 10.0
    """How often is looked for mail that is due; new mail does not wait for it."""
    retry_schedule_secs: Schedule = (60, 300, 900, 3600, 21600, 86400)
    """How long mail waits after each attempt that failed for now; the last one repeats."""
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 12
    """Attempts, after which mail that could not be delivered goes back to its sender."""
    delivery_timeout_secs: Seconds = 840.0
    """How long one attempt may take in all."""
    connect_timeout_secs: Seconds = 30.0
    """How long connecting to one host may take."""
    max_connections_per_host: Annotated[int, Field(ge=1, le=1000)] = 4
    """Connections to one host at a time, of each process."""
    begin_ahead: Annotated[int, Field(ge=0, le=4)] = 1
    """So many messages for each connection to a host that answers quickly are recorded as begun before their turn, so
    that mail to one host leaves faster. Where the machine itself stops, those are `uncertain` though they had not left;
    a process that is killed leaves word that they had not."""
    allow_private_targets: bool = False
    """Whether mail may go to hosts with private addresses, and to this one: for tests."""
    relay_host: Annotated[str, AfterValidator(check.dns_name_or_nothing)] = ""
    """The relay that takes all mail for elsewhere; without one it goes directly to the recipients' servers."""
    relay_port: Annotated[int, Field(ge=1, le=MAX_PORT)] = 587
    """The relay's port."""
    relay_tls: RelayTls = RelayTls.STARTTLS
    """`starttls`, `implicit` or `none`; its certificate is verified."""
    relay_username: Annotated[str, Field(max_length=320)] = ""
    """The name to sign in with at the relay."""
    relay_password: Password = ""
    """The password to sign in with at the relay. It is read from the environment alone, or from the file that
    `POSTROOM_QUEUE_RELAY_PASSWORD_FILE` names."""
    relay_from_domains: Annotated[tuple[DnsName, ...], BeforeValidator(check.split)] = ()
    """The senders' domains whose mail uses the relay; all unless set."""
    return_path_host: Annotated[str, AfterValidator(check.dns_name_or_nothing)] = ""
    """The host of signed envelope senders, to which late bounces come back, such as `pm-bounce.example.com`: its MX
    record must lead here, and its SPF record name what sends. Without one the envelope sender is the author's
    address."""
    unknown_outcome: UnknownOutcome = UnknownOutcome.HOLD
    """What becomes of mail that may have been taken, or not: `hold`, or `retry`, which is for mail that people
    submitted and can deliver it twice."""
    bounce_on_failure: bool = True
    """Whether the sender gets a notice of mail that could not be delivered."""
    delay_notice_secs: Annotated[float, Field(ge=0, le=86400 * 30)] = 0.0
    """After how long the sender is told that mail still waits; 0 is never."""
    retention_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """How long the queue shows what is done with, and keeps its attempts."""


class OutboundSettings(_Section):
    """What is composed here: by the API, agents and the command line."""

    max_message_bytes: Annotated[int, Field(ge=65_536, le=50 * 1024 * 1024)] = 5 * 1024 * 1024
    """How large a composed message may be, in bytes; what people submit by SMTP has `limits.max_message_size`."""
    marketing_direct: bool = False
    """Whether marketing of tenants' own domains may leave from this server's address, or by its relay; from
    `platform_domain` it never does."""


class DkimSettings(_Section):
    """Signatures: of mail that leaves, where every domain that we send for signs (D2), and of mail that comes in."""

    verify_inbound: bool = True
    """Whether the signatures of mail from outside are verified, those of ARC included."""

    algorithm: DkimAlgorithm = DkimAlgorithm.RSA_SHA256
    """What new keys are made for: `rsa-sha256`, which everybody can verify, or `ed25519-sha256`."""
    second_signature: bool = False
    """Whether mail is signed a second time, with Ed25519, beside RSA. Publish its records first: `postroom dkim show
    --second`."""


class PolicySettings(_Section):
    """How mail from outside is judged (mail-server B4). Nothing is refused for it; verdicts are recorded and told."""

    spf_enabled: bool = True
    """Whether the sender's domain is asked which hosts may send for it."""
    spf_max_lookups: Annotated[int, Field(ge=1, le=20)] = 10
    """How many terms of an SPF record may ask the DNS; the standard says ten."""
    dmarc_enabled: bool = True
    """Whether the author's domain is asked for its policy; without it no message has a verdict but `unverified`."""
    add_auth_results: bool = True
    """Whether the results are written before the message, as `Authentication-Results`."""
    trusted_authserv_id: str = ""
    """The authserv-id of a mail server before this one, whose results are believed on mail that it hands over by LMTP;
    nobody's when empty."""


class DnsSettings(_Section):
    """How the DNS is asked."""

    resolvers: NameServers = ()
    """The name servers to ask, in order: `192.0.2.1`, `tls://192.0.2.1#name`, `https://host/path`; those of the system
    unless set."""
    timeout_secs: Seconds = 3.0
    """How long a name server has for an answer."""
    attempts: Annotated[int, Field(ge=0, le=10)] = 1
    """How often a question is asked again, each time of the next name server."""
    cache_ttl_secs: Annotated[int, Field(ge=0, le=86400)] = 300
    """The longest that an answer is kept."""
    negative_ttl_secs: Annotated[int, Field(ge=0, le=86400)] = 60
    """The longest that the answer that there is none is kept."""
    tcp_fallback: bool = True
    """Whether an answer that was cut off is asked for again by TCP."""


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
    max_idle_secs: Seconds = 1800.0
    """How long one IDLE command may last; programs begin a new one every 29 minutes (RFC 2177)."""
    max_append_size: Bytes = 26_214_400
    """The largest message that APPEND takes, in bytes."""
    message_limit: Annotated[int, Field(ge=1000)] = 1_000_000
    """Messages that one command works on (RFC 9738). Programs that do not know of it would take the rest for gone."""


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


class MetricsSettings(_Section):
    """The page that Prometheus reads. It asks nobody who they are, so it is not for public addresses."""

    listen: Annotated[str, AfterValidator(check.inside_endpoint)] = "127.0.0.1:9464"
    """The address and port of `/metrics`: this machine's or a private one; nothing is off. Of several processes each
    has a port of its own, from this one on."""

    @property
    def endpoint(self) -> Endpoint | None:
        return parse_endpoint(self.listen)


class PasskeySettings(_Section):
    """For which domain passkeys are made, and which pages may ask for them."""

    rp_id: Annotated[str, AfterValidator(check.dns_name_or_nothing)] = ""
    """The domain that passkeys belong to, `api_host` unless set: a host, or a domain that it is below. Passkeys that
    were made for another one stop working."""
    origins: Origins = ()
    """Where pages that ask for passkeys come from, such as `https://mail.example.com`; all at `rp_id` or below it.
    `https://` and `api_host`, with `api.tls_port` too, unless set."""


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
    submission_rate_limit: Count = 50
    """Messages that one person, or one agent, may submit within an hour."""
    daily_send_limit: Count = 500
    """Recipients that one person, or one agent, may write to on one day (UTC), each time counted."""
    mailbox_quota: Bytes = 1_073_741_824
    """What a new person's mailbox may hold, in bytes; `postroom identity quota` changes it. Agents have no quota."""
    idle_timeout_secs: Seconds = 300.0
    """How long an SMTP client may be silent between commands."""
    max_failed_logins: Count = 10
    """Failed attempts within `login_lockout_secs` that lock an account; three times as many lock a network."""
    login_lockout_secs: Seconds = 900.0
    """How long a lock of signing in lasts."""


class TenantSettings(_Section):
    """What holds for all tenants."""

    default_policy: Annotated[dict[str, Any], BeforeValidator(check.document)] = {}
    """Members of the tenants' policy that are other than built in, where nobody has set anything: a table, in the
    environment a JSON object. Nothing that tenants have set changes with it."""
    quarantine_key_release: bool = True
    """Whether API keys may take decisions that are people's otherwise: release quarantined mail, and loosen what guards
    against it. When not, only for tenants whose policy has `quarantine.key_release`."""


class Settings(_Section):
    """The whole tree. Made by `load`; frozen."""

    env: Environment = Environment.PRODUCTION
    """`production`, `staging`, or `local` for a developer's machine, which needs no domain."""
    platform_domain: DnsName
    """The domain of the mailboxes."""
    api_host: DnsName
    """The public name of the REST API."""
    mx_hosts: Annotated[tuple[DnsName, ...], BeforeValidator(check.split), Field(min_length=1)]
    """The names that the MX record may give, the first one being this machine's; `mx.` and the platform domain
    unless set."""
    security_contact: Annotated[str, AfterValidator(check.mailbox_address)] = ""
    """A local mailbox that gets mail to `postmaster`, `abuse`, `security`, `hostmaster`, `webmaster` and `noc` of the
    platform domain, and to `<postmaster>`; without one such mail is refused."""
    allow_plaintext_auth: PlaintextAuth = PlaintextAuth.LOOPBACK
    """From where passwords are accepted without TLS: `never`, `loopback` or `always`."""
    offer_scram: bool = False
    """Whether SCRAM-SHA-256 is offered by IMAP and SMTP. It takes application passwords alone: where it is offered,
    mail programs that prefer it unasked, as isync does, cannot sign in with another password or with an API key before
    they are told to use PLAIN."""
    server: ServerSettings = ServerSettings()
    database: DatabaseSettings = DatabaseSettings()
    smtp: SmtpSettings = SmtpSettings()
    lmtp: LmtpSettings = LmtpSettings()
    queue: QueueSettings = QueueSettings()
    outbound: OutboundSettings = OutboundSettings()
    dkim: DkimSettings = DkimSettings()
    policy: PolicySettings = PolicySettings()
    dns: DnsSettings = DnsSettings()
    imap: ImapSettings = ImapSettings()
    api: ApiSettings = ApiSettings()
    metrics: MetricsSettings = MetricsSettings()
    passkeys: PasskeySettings = PasskeySettings()
    tls: TlsSettings = TlsSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    tenants: TenantSettings = TenantSettings()
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
