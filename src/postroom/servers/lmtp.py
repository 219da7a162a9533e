"""The LMTP listener: mail from a front of our own, one answer for each recipient (RFC 2033; mail-server A1).

It listens at an address, for the networks that may connect, or at a socket in the file system, for whoever may write
to it: its owner and group.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import ssl
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from postroom.base import log as base_log
from postroom.servers.listening import BACKLOG
from postroom.servers.smtp import ListenerLimits, MemoryBudget, Networks, Receive, Resolve, SmtpListener
from postroom.servers.smtp_connection import SmtpConnection
from postroom.smtp.machine import Profile
from postroom.smtp.server import ServerConfig

R = TypeVar("R")

log = base_log.get("servers.lmtp")

SOCKET_MODE: Final = 0o660
COMMAND_RATE: Final = 10_000
"""Unproductive commands within a minute: refused recipients are what strangers wrote to, not what the front did."""


class LmtpListener(SmtpListener[R]):
    """An `SmtpListener` for a configuration of the profile LMTP, whose `start` may be given a path.

    `config` need not name the profile. `allow` are the networks that may connect besides by a path; none: this machine.
    The front is one peer for everybody's mail, so limits of one peer are not for it. Of several processes that are
    given the same path, with `reuse_port`, one serves it at a time: a lock beside the socket says which.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        resolve: Resolve[R],
        receive: Receive[R],
        now: Callable[[], datetime],
        allow: Networks = (),
        limits: ListenerLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        limits = limits or ListenerLimits()
        super().__init__(
            replace(config, profile=Profile.LMTP),
            resolve=resolve,
            receive=receive,
            limits=replace(limits, max_connections_per_ip=limits.max_connections, command_rate=COMMAND_RATE),
            ssl_context=ssl_context,
            allow=allow,
            budget=budget,
            now=now,
        )
        self._path: Path | None = None
        self._lock: int | None = None

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> None:
        """Listen on `host` and `port`, or, when `host` begins with a slash, at that path. Raises `OSError`: in use, no
        such directory, not permitted.
        """
        if host is None or not host.startswith("/"):
            await super().start(host, port, reuse_port=reuse_port)
            return
        self._path = Path(host)
        self._lock = _locked(self._path)
        if self._lock is None:
            if not reuse_port:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            log.info("lmtp_socket_served_elsewhere")
            return
        context = self._context
        bound = _bound(self._path)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: SmtpConnection(context), sock=bound, backlog=BACKLOG
        )

    @property
    def port(self) -> int:
        """The port, 0 for a path. Raises `RuntimeError` when not listening."""
        return 0 if self._path is not None else super().port

    async def drain(self, timeout: float) -> None:
        """Stop; the socket is taken out of the file system first."""
        if self._path is not None and self._lock is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        await super().drain(timeout)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of the socket at `path` until it is closed; None if somebody else does."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock


def _bound(path: Path) -> socket.socket:
    """A socket at `path`, in place of one that nobody serves any more; the caller holds the lock."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(str(path))
        # Nobody can connect before it listens.
        path.chmod(SOCKET_MODE)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound
