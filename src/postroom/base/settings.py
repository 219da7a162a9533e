"""Reads settings from where they are written, and says in words a person can use what is wrong (H1, B1, D13).

`load` is a function of its arguments: the environment is passed in, files are read where the arguments say.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .settings_checks import cross_checks
from .settings_tree import (
    SECTIONS,
    TOP_LEVEL,
    ApiSettings,
    DatabaseSettings,
    DkimSettings,
    DnsSettings,
    Environment,
    ImapSettings,
    LimitSettings,
    LmtpSettings,
    LogFormat,
    LogLevel,
    OutboundSettings,
    PlaintextAuth,
    QueueSettings,
    RelayTls,
    Role,
    ServerSettings,
    Settings,
    SmtpSettings,
    StorageSettings,
    TlsSettings,
    TlsVersion,
    UnknownOutcome,
    all_keys,
)

__all__ = [
    "ApiSettings",
    "DatabaseSettings",
    "DkimSettings",
    "DnsSettings",
    "Environment",
    "ImapSettings",
    "LimitSettings",
    "LmtpSettings",
    "LogFormat",
    "LogLevel",
    "OutboundSettings",
    "PlaintextAuth",
    "QueueSettings",
    "RelayTls",
    "Role",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "SmtpSettings",
    "StorageSettings",
    "TlsSettings",
    "TlsVersion",
    "UnknownOutcome",
    "default_data_dir",
    "environment_names",
    "find_config",
    "load",
]

PREFIX: Final = "POSTROOM_"
SERVICE_DATA_DIR: Final = Path("/var/lib/postroom")
MAX_FILE_BYTES: Final = 1024 * 1024

# Other names for the same settings (mail-server H1, cli-config-ops B2).
_ALIASES: Final = {
    "DATABASE_URL": "database.url",
    "POSTROOM_HOSTNAME": "server.hostname",
    "POSTROOM_DATA_DIR": "server.data_dir",
    "POSTROOM_ROLES": "server.roles",
    "POSTROOM_NODE_ID": "server.node_id",
    "POSTROOM_LOG_LEVEL": "server.log_level",
    "POSTROOM_LOG_FORMAT": "server.log_format",
    "POSTROOM_TLS_CERT": "tls.cert_path",
    "POSTROOM_TLS_KEY": "tls.key_path",
    "POSTROOM_MAX_MESSAGE_BYTES": "limits.max_message_size",
    "POSTROOM_RESOLVERS": "dns.resolvers",
    "POSTROOM_TRUSTED_AUTHSERV_ID": "policy.trusted_authserv_id",
    "POSTROOM_DEFAULT_POLICY": "tenants.default_policy",
    "POSTROOM_QUARANTINE_KEY_RELEASE": "tenants.quarantine_key_release",
    "POSTROOM_MARKETING_DIRECT": "outbound.marketing_direct",
}
_DATA_DIR_NAMES: Final = ("POSTROOM_DATA_DIR", "POSTROOM_SERVER_DATA_DIR", "POSTROOM__SERVER__DATA_DIR")
# Read by other parts: where the file is, and the secrets (see `base.secrets`).
_ELSEWHERE: Final = frozenset(
    {"POSTROOM_CONFIG", "POSTROOM_MASTER_KEY_ACTIVE", "POSTROOM_KEY", "POSTROOM_WEBHOOK_SECRET"}
    | {
        f"POSTROOM_{name}{suffix}"
        for name in ("MASTER_KEY", "MASTER_KEY_B", "KEY_PEPPER", "HASH_KEY")
        for suffix in ("", "_FILE")
    }
)
_SECRET_WORDS: Final = frozenset({"master_key", "master_key_b", "key_pepper", "hash_key", "master_key_active"})
_CONFIDENTIAL: Final = frozenset({"database.url", "queue.relay_password"})
# Keys of the tree that are secrets all the same: no value in the file, a variable may name a file (B1).
_FROM_FILES: Final = {
    f"{name}_FILE": (name, key)
    for name, key in (
        ("POSTROOM_QUEUE_RELAY_PASSWORD", "queue.relay_password"),
        ("POSTROOM__QUEUE__RELAY_PASSWORD", "queue.relay_password"),
    )
}
MAX_SECRET_BYTES: Final = 64 * 1024
_NOT_IN_NODE_ID: Final = re.compile(r"[^A-Za-z0-9._-]")
_LOCAL_DOMAIN: Final = "postroom.localhost"
_LOCAL_HOST: Final = "localhost"


class SettingsError(Exception):
    """The settings cannot be used. `problems` has a line for each thing that is wrong; so has the text of the error."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


@dataclass(frozen=True, slots=True)
class _Value:
    value: object
    source: str


def find_config(environ: Mapping[str, str], directory: Path) -> Path | None:
    """The file to read: `POSTROOM_CONFIG`, else `postroom.toml` in the data directory that the environment names, in
    `directory` or ``/etc/postroom``, else none.
    """
    named = environ.get("POSTROOM_CONFIG")
    if named:
        return Path(named)
    of_data = [directory / environ[name] for name in _DATA_DIR_NAMES if environ.get(name)]
    for place in (*of_data, directory, Path("/etc/postroom")):
        path = place / "postroom.toml"
        if path.is_file():
            return path
    return None


def default_data_dir(environ: Mapping[str, str], directory: Path) -> Path:
    """Where data is when nothing says so (D13): the service's state directory, or `postroom-data` in `directory`."""
    state = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if state:
        return Path(state)
    return SERVICE_DATA_DIR if SERVICE_DATA_DIR.is_dir() else directory / "postroom-data"


def load(
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    toml_path: Path | None = None,
    *,
    data_dir: Path = Path("postroom-data"),
    host_name: str = "node",
) -> Settings:
    """The settings, from `overrides` (dotted keys) over `environ` over the file over the defaults.

    `data_dir` is the default of `server.data_dir`, `host_name` that of `server.node_id`; an override of None is none.
    Raises SettingsError, with all problems at once.
    """
    problems: list[str] = []
    values = {
        "server.data_dir": _Value(data_dir, "default"),
        "server.node_id": _Value(_NOT_IN_NODE_ID.sub("-", host_name)[:64] or "node", "default"),
    }
    unknown: list[tuple[str, str]] = []
    ignored: list[str] = []
    if toml_path is not None:
        _read_file(toml_path, values, unknown, problems)
    _read_environment(environ or {}, values, unknown, ignored, problems)
    known = frozenset(all_keys())
    for key, value in (overrides or {}).items():
        if value is None:
            continue
        if key in known:
            values[key] = _Value(value, "the command line")
        else:
            unknown.append((key, "the command line"))
    if _strict(values):
        problems += [f"{key}: no such setting (from {source})" for key, source in unknown]
    _derive(values, problems)
    settings = _build(values, tuple(ignored), problems)
    if settings is not None:
        problems += cross_checks(settings)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def _read_file(path: Path, values: dict[str, _Value], unknown: list[tuple[str, str]], problems: list[str]) -> None:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            problems.append(f"{path}: larger than {MAX_FILE_BYTES} bytes")
            return
        tree = tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8 text")
        return
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: is not TOML: {error}")
        return
    for key, value in _flatten(tree):
        name = key.rpartition(".")[2]
        if key in {secret for _, secret in _FROM_FILES.values()}:
            problems.append(f"{key}: a password does not belong in {path}; use the environment")
        elif name in _SECRET_WORDS:
            problems.append(f"{key}: secrets do not belong in {path}; use the environment or the secrets file")
        elif key in TOP_LEVEL or _is_section_key(key):
            values[key] = _Value(value, str(path))
        else:
            unknown.append((key, str(path)))


def _flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if name in SECTIONS and isinstance(value, dict):
            for key, inner in value.items():
                yield f"{name}.{key}", inner
        else:
            yield name, value


def _is_section_key(key: str) -> bool:
    section, _, name = key.partition(".")
    return section in SECTIONS and name in SECTIONS[section].model_fields


def environment_names() -> dict[str, str]:
    """Variable → dotted key, for every name a setting may have in the environment.

    Where a top-level key and a section's key would share a name, it is the top-level key's: `POSTROOM_API_HOST` is the
    public `api_host`, and the address that HTTP listens on is `POSTROOM__API__HOST`.
    """
    names: dict[str, str] = {}
    for section, model in SECTIONS.items():
        for key in model.model_fields:
            names[f"{PREFIX}{section}_{key}".upper()] = f"{section}.{key}"
            names[f"POSTROOM__{section}__{key}".upper()] = f"{section}.{key}"
    for key in TOP_LEVEL:
        names[f"{PREFIX}{key}".upper()] = key
    return names | _ALIASES


def _read_environment(
    environ: Mapping[str, str],
    values: dict[str, _Value],
    unknown: list[tuple[str, str]],
    ignored: list[str],
    problems: list[str],
) -> None:
    names = environment_names()
    environ = _with_named_files(environ, problems)
    sections = tuple(f"{PREFIX}{section}_".upper() for section in SECTIONS)
    given: dict[str, str] = {}
    # DATABASE_URL is everybody's name; ours is heard first.
    for name in sorted(environ, key=lambda name: (not name.startswith(PREFIX), name)):
        key = names.get(name)
        if key is None:
            if name.startswith("POSTROOM__") or (name.startswith(sections) and name not in _ELSEWHERE):
                unknown.append((name, "the environment"))
            elif name.startswith(PREFIX) and name not in _ELSEWHERE:
                ignored.append(name)
        elif key not in given:
            given[key] = name
            values[key] = _Value(environ[name] if key in _CONFIDENTIAL else _parsed(environ[name]), name)
        elif environ[given[key]] != environ[name] and name.startswith(PREFIX):
            problems.append(f"{key}: {given[key]} and {name} say different things; keep one")


def _with_named_files(environ: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """The environment with what the files hold that it names: one line each, its end left out."""
    read = dict(environ)
    for variable, (name, key) in _FROM_FILES.items():
        path = read.pop(variable, "")
        if not path:
            continue
        if read.get(name):
            problems.append(f"{key}: {name} and {variable} are both set; keep one")
            continue
        try:
            with Path(path).open("rb") as file:
                read[name] = file.read(MAX_SECRET_BYTES).decode("utf-8").rstrip("\r\n")
        except (OSError, ValueError):
            problems.append(f"{key}: the file that {variable} names cannot be read as text")
    return read


def _parsed(text: str) -> object:
    """A list may be written as JSON; everything else is converted by the type of its key."""
    if text.startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _strict(values: Mapping[str, _Value]) -> bool:
    """Whether unknown keys are errors: unless `server.strict_config` is a clear no."""
    given = values.get("server.strict_config")
    return given is None or str(given.value).strip().lower() not in {"false", "0", "no", "off", "n", "f"}


def _derive(values: dict[str, _Value], problems: list[str]) -> None:
    """Defaults that follow from other settings (cli-config-ops B2)."""
    env = values.get("env")
    local = env is not None and str(env.value) == Environment.LOCAL
    for key, example, stand_in in (
        ("platform_domain", "agents.example.com", _LOCAL_DOMAIN),
        ("api_host", "api.example.com", _LOCAL_HOST),
    ):
        if key in values:
            continue
        if not local:
            name = f"{PREFIX}{key}".upper()
            problems.append(f"{key}: required; set {key} in postroom.toml or {name}, for example {example}")
        values[key] = _Value(stand_in, "default")
    domain = values["platform_domain"]
    values.setdefault("mx_hosts", _Value([f"mx.{domain.value}"], domain.source))
    if "server.hostname" not in values and not local:
        values["server.hostname"] = _Value(_first(values["mx_hosts"].value), values["mx_hosts"].source)


def _first(hosts: object) -> object:
    """The first of a list, in either way of writing it. What is no list is left to be told apart later."""
    if isinstance(hosts, str):
        hosts = [host.strip() for host in hosts.split(",")]
    return hosts[0] if isinstance(hosts, list) and hosts else _LOCAL_HOST


def _build(values: Mapping[str, _Value], ignored: tuple[str, ...], problems: list[str]) -> Settings | None:
    """Validates the whole tree; None when it does not hold, with what is wrong added to `problems`."""
    tree: dict[str, Any] = {"ignored_environment": ignored}
    for key, given in values.items():
        section, dot, name = key.partition(".")
        if dot:
            tree.setdefault(section, {})[name] = given.value
        else:
            tree[key] = given.value
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        seen = set()
        for detail in error.errors(include_url=False):
            problem = _describe(detail, values)
            if problem not in seen:
                seen.add(problem)
                problems.append(problem)
        return None


def _describe(detail: ErrorDetails, values: Mapping[str, _Value]) -> str:
    parts = [str(part) for part in detail["loc"]]
    key = ".".join(parts[:2]) if parts[0] in SECTIONS else parts[0]
    given = values.get(key)
    wants = detail["msg"].removeprefix("Value error, ").replace("Input should be", "wants", 1)
    if given is None:
        return f"{key}: {wants}"
    shown = "a value" if key in _CONFIDENTIAL else repr(given.value)[:80]
    return f"{key}: {wants} (got {shown} from {given.source})"
