"""The doctor's look at the listeners: each can be had, or our own server answers there (cli-config-ops C9)."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.base.settings import Role, Settings
from postroom.cli.reach import server_is_running
from postroom.cli.verdicts import Check, failed, passed, warned

PROBE_SECONDS: Final = 3.0
MAX_HEARD: Final = 4096
LABELS: Final = ("smtp", "submission", "smtps", "imap", "imaps", "http", "https", "lmtp", "metrics")
_HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_PAGE: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Listener:
    """One that the settings want. With `port` 0, `host` is the path of a socket. `asks` is what makes it answer.
    Without one that is `optional` the server starts all the same.
    """

    label: str
    host: str
    port: int
    role: Role | None
    """Of which role it is; None: every node has it."""
    answer: bytes
    asks: bytes = b""
    implicit_tls: bool = False
    optional: bool = False

    @property
    def place(self) -> str:
        return str(self.port) if self.port else self.host


def listeners(settings: Settings) -> Iterator[Listener]:
    """Those of the roles that this node has."""
    smtp, imap, api = settings.smtp, settings.imap, settings.api
    hello = f"220 {settings.server.hostname} ".encode()
    lmtp = settings.lmtp.endpoint
    wanted = [
        (smtp.enabled, Listener("smtp", smtp.host, smtp.port, Role.SMTP, hello)),
        (smtp.submission_port, Listener("submission", smtp.host, smtp.submission_port, Role.SUBMISSION, hello)),
        (smtp.smtps_port, Listener("smtps", smtp.host, smtp.smtps_port, Role.SUBMISSION, hello, implicit_tls=True)),
        (imap.enabled, Listener("imap", imap.host, imap.port, Role.IMAP, b"* OK ")),
        (
            imap.enabled and imap.imaps_port,
            Listener("imaps", imap.host, imap.imaps_port, Role.IMAP, b"* OK ", implicit_tls=True),
        ),
        (api.enabled, Listener("http", api.host, api.port, Role.HTTP, b'"status"', _HEALTH)),
        (
            api.enabled and api.tls_port,
            Listener("https", api.host, api.tls_port, Role.HTTP, b'"status"', _HEALTH, implicit_tls=True),
        ),
    ]
    if lmtp is not None:
        wanted.append((True, Listener("lmtp", lmtp.host, lmtp.port, Role.LMTP, hello)))
    where = settings.metrics.endpoint
    if where is not None:
        for number in range(settings.server.processes):
            label = f"metrics.{number + 1}" if number else "metrics"  # each process has a port of its own
            wanted.append(
                (True, Listener(label, where.host, where.port + number, None, b"postroom_", _PAGE, optional=True))
            )
    return (one for enabled, one in wanted if enabled and (one.role is None or one.role in settings.server.roles))


def ports(settings: Settings) -> list[Check]:
    """Each is free, or our own server listens there. Blocking: a few seconds for each."""
    ours = bool(settings.database.url) or server_is_running(settings.server.data_dir)
    return [_port(one, ours=ours) for one in listeners(settings)]


def _port(one: Listener, *, ours: bool) -> Check:
    name, wrong = f"port.{one.label}", warned if one.optional else failed
    try:
        _try_to_bind(one)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            fix = "Run as root, give the program CAP_NET_BIND_SERVICE, or choose a port above 1023."
            if not one.port:
                fix = f"Let the user that runs Postroom write in {Path(one.host).parent}."
            return wrong(name, f"{one.place}: not permitted", fix)
        if error.errno != errno.EADDRINUSE:
            where = f"{one.host}:{one.port}" if one.port else one.host
            return wrong(name, f"{where}: {error.strerror}", f"Correct where {one.label} is to listen.")
        if ours and _greets_as_ours(one):
            return passed(name, f"{one.place}: this Postroom listens")
        fix = "Stop the other program, or choose another port."
        return wrong(name, f"{one.place}: another program listens there, or a Postroom that does not answer", fix)
    return passed(name, f"{one.place}: free")


def _try_to_bind(one: Listener) -> None:
    """Raises OSError unless a listener could be had there."""
    if not one.port:
        _try_path(Path(one.host))
        return
    host = one.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the listeners do: connections that are going away are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, one.port))


def _try_path(path: Path) -> None:
    """As `_try_to_bind`, for a socket in the file system. One that nobody serves any more is no hindrance."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        code = errno.EACCES if path.parent.is_dir() else errno.ENOENT
        raise OSError(code, os.strerror(code))
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is something else")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        except TimeoutError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _greets_as_ours(one: Listener) -> bool:
    """Whether what listens there talks as our server would."""
    try:
        with _connect(one) as raw:
            connection = _unverified().wrap_socket(raw) if one.implicit_tls else raw
            connection.sendall(one.asks)
            heard = b""
            while one.answer not in heard and len(heard) < MAX_HEARD and (more := connection.recv(MAX_HEARD)):
                heard += more
    except OSError:
        return False
    return one.answer in heard


def _connect(one: Listener) -> socket.socket:
    if one.port:
        host = one.host if one.host not in ("", "0.0.0.0", "::") else "127.0.0.1"
        return socket.create_connection((host, one.port), timeout=PROBE_SECONDS)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PROBE_SECONDS)
    try:
        made.connect(one.host)
    except OSError:
        made.close()
        raise
    return made


def _unverified() -> ssl.SSLContext:
    """Only to be greeted: nothing is sent that anybody may not read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
