"""Where a demo is: its ports, its settings, its files. Pure but for looking which ports are free."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

from postroom.base.settings import Settings, load

HOST: Final = "127.0.0.1"
DOMAIN: Final = "agents.example"
DEFAULT_BASE: Final = 8025
BASES_TRIED: Final = 20
MAX_BASE: Final = 65531
RECORD: Final = "demo.json"
CONFIG: Final = "postroom.toml"
MAX_RECORD: Final = 64 * 1024


class PortsTaken(Exception):
    """The ports that the demo should use are somebody else's. The message says which."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Five in a row, on the loopback address alone."""

    http: int
    smtp: int
    imap: int
    submission: int
    smtps: int

    @classmethod
    def from_base(cls, base: int) -> Ports:
        return cls(*range(base, base + 5))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http}"


def choose_ports(base: int | None) -> Ports:
    """The ports from *base* on; without one, the first five from 8025 on that are free.

    Raises PortsTaken.
    """
    bases = [base] if base is not None else [DEFAULT_BASE + 10 * step for step in range(BASES_TRIED)]
    for first in bases:
        ports = Ports.from_base(first)
        taken = [port for port in astuple(ports) if not _is_free(port)]
        if not taken:
            return ports
    raise PortsTaken(f"port {', '.join(map(str, taken))} of {HOST} cannot be had")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def demo_settings(data_dir: Path, ports: Ports) -> Settings:
    """The settings of a demo. Nothing of the environment or of another configuration gets in."""
    flat = {f"{section}.{key}": value for section, keys in _sections(ports).items() for key, value in keys.items()}
    return load({**_TOP, **flat, "server.data_dir": data_dir}, {}, None, host_name="demo")


def config_text(ports: Ports) -> str:
    """The same settings as a file, so that other commands, and `serve`, work on the demo's data directory."""
    lines = ["# Written by postroom demo."]
    lines += [f"{key} = {json.dumps(value)}" for key, value in _TOP.items()]
    for section, keys in _sections(ports).items():
        lines += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


_TOP: Final[Mapping[str, str]] = {"env": "local", "platform_domain": DOMAIN, "api_host": "localhost"}


def _sections(ports: Ports) -> dict[str, dict[str, Any]]:
    return {
        "smtp": {
            "host": HOST,
            "port": ports.smtp,
            "submission_port": ports.submission,
            "smtps_port": ports.smtps,
        },
        "imap": {"host": HOST, "port": ports.imap},
        "api": {"host": HOST, "port": ports.http},
        "metrics": {"listen": ""},  # its port is the same for every demo and server here
    }


@dataclass(frozen=True, slots=True)
class Person:
    address: str
    password: str
    identity_id: str


@dataclass(frozen=True, slots=True)
class Agent:
    """`key` is one of this identity alone: the password of its mail program."""

    address: str
    identity_id: str
    key: str


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays in the demo, with what they sign in with."""

    tenant_id: str
    api_key: str
    person: Person
    agent: Agent

    def __repr__(self) -> str:
        return f"Cast({self.tenant_id!r})"


def record(cast: Cast, ports: Ports) -> dict[str, Any]:
    """What `demo.json` says, for programs that try the demo."""
    return {
        "http": ports.url,
        "smtp": {"host": HOST, "port": ports.smtp},
        "submission": {"host": HOST, "port": ports.submission},
        "smtps": {"host": HOST, "port": ports.smtps},
        "imap": {"host": HOST, "port": ports.imap},
        "domain": DOMAIN,
        "tenant_id": cast.tenant_id,
        "api_key": cast.api_key,
        "person": {
            "address": cast.person.address,
            "password": cast.person.password,
            "identity_id": cast.person.identity_id,
        },
        "agent": {
            "address": cast.agent.address,
            "identity_id": cast.agent.identity_id,
            "key": cast.agent.key,
        },
    }


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier run left in `demo.json`: only what this one could not find out again."""

    api_key: str | None = None
    password: str | None = None
    agent_key: str | None = None

    def __repr__(self) -> str:
        return "Known(…)"


def read_known(data_dir: Path) -> Known:
    """What an earlier run left; nothing when there is no such file or it is not ours."""
    try:
        with (data_dir / RECORD).open("rb") as file:
            document = json.loads(file.read(MAX_RECORD))
        key, password = document["api_key"], document["person"]["password"]
        agent_key = document["agent"].get("key")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Known()
    if not isinstance(key, str) or not isinstance(password, str):
        return Known()
    return Known(key, password, agent_key if isinstance(agent_key, str) else None)


def write_private(path: Path, text: str) -> None:
    """Put *text* into *path*, whole or not at all, for its owner alone."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.unlink(missing_ok=True)
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    staged.replace(path)
