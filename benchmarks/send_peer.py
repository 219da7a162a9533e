"""Postfix as a peer for mail that leaves: a private instance whose queue is filled first and delivered when told to.

Nothing of the machine's own configuration is read or changed. Queue files are durable and process limits are the
defaults; only what needs a network is off: no DNS, no TLS.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from .common import free_ports, keep_niceness, kill, tree
from .common import wait_for_ports as wait_for
from .peers import _MASTER_CF, START_SECONDS, STOP_SECONDS, _root

_QUEUES: Final = ("maildrop", "incoming", "active", "deferred")
_MAIN_CF: Final = """\
compatibility_level = 3.6
queue_directory = {root}/queue
data_directory = {root}/lib
mail_owner = postfix
setgid_group = postdrop
myhostname = mx.agents.example
myorigin = agents.example
mydestination =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
biff = no
alias_maps =
alias_database =
local_recipient_maps =
smtpd_peername_lookup = no
smtp_dns_support_level = disabled
smtp_host_lookup = native
smtpd_tls_security_level = none
smtp_tls_security_level = none
smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination
smtp_bind_address = 127.0.0.1
transport_maps = texthash:{root}/postfix/transport
"""
_DEFERRED: Final = "defer_transports = smtp\n"


def available() -> bool:
    """Whether it is installed and can be run: it needs root to become its own users."""
    return all(shutil.which(name) for name in ("postfix", "postqueue")) and os.geteuid() == 0


class PostfixOut:
    """Takes mail at `port` and keeps it until `deliver`. `hosts` are the addresses of destinations, all with one port.

    A context manager; raises RuntimeError when it does not start.
    """

    def __init__(self, sink_port: int, hosts: Mapping[str, str]) -> None:
        (self.port,) = free_ports(1)
        self._transport = "".join(f"{name} smtp:[{address}]:{sink_port}\n" for name, address in hosts.items())
        self.root = Path()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.root = _root()
        try:
            for name in ("postfix", "queue", "lib"):
                (self.root / name).mkdir(mode=0o755)
            os.chown(self.root / "lib", pwd.getpwnam("postfix").pw_uid, -1)
            (self.root / "postfix" / "transport").write_text(self._transport)
            (self.root / "postfix" / "master.cf").write_text(_MASTER_CF.format(port=self.port))
            self._configure(deferred=True)
            with (self.root / "output").open("ab") as output:
                self._process = subprocess.Popen(
                    ["postfix", "-c", str(self.root / "postfix"), "start-fg"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            wait_for([self.port], self._process, time.monotonic() + START_SECONDS)
            keep_niceness(tree(self._process.pid))
        except BaseException as error:
            said = ""
            with contextlib.suppress(OSError):
                said = (self.root / "output").read_text(errors="replace")[-2000:]
            self._stop()
            if isinstance(error, RuntimeError | OSError):
                raise RuntimeError(f"Postfix did not start: {error}\n{said}") from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def queued(self, *queues: str) -> int:
        """Messages in these queues."""
        return sum(len(files) for queue in queues for _, _, files in os.walk(self.root / "queue" / queue))

    def wait_queued(self, count: int) -> None:
        """Until so many messages wait to be delivered, none is on its way there. Raises TimeoutError."""
        self._until(lambda: self.queued("deferred") == count and not self.queued("incoming", "active"), 120)

    def deliver(self, timeout: float) -> float:
        """Let everything go; the seconds until nothing is queued any more. Raises TimeoutError."""
        self._configure(deferred=False)
        self._run("postfix", "reload")
        time.sleep(1.0)
        began = time.monotonic()
        self._run("postqueue", "-f")
        self._until(lambda: not self.queued(*_QUEUES), timeout)
        seconds = time.monotonic() - began
        self._configure(deferred=True)
        self._run("postfix", "reload")
        time.sleep(1.0)
        return seconds

    def _configure(self, *, deferred: bool) -> None:
        text = _MAIN_CF.format(root=self.root) + (_DEFERRED if deferred else "")
        (self.root / "postfix" / "main.cf").write_text(text)

    def _run(self, name: str, verb: str) -> None:
        subprocess.run([name, "-c", str(self.root / "postfix"), verb], check=True, timeout=30, capture_output=True)

    @staticmethod
    def _until(holds: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Postfix is not done after {timeout:.0f} s")
            time.sleep(0.01)

    def _stop(self) -> None:
        if self._process is not None:
            members = tree(self._process.pid)
            for process in members:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name() == "master":
                        process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            _, alive = psutil.wait_procs(members, timeout=STOP_SECONDS)
            kill(alive)
            self._process = None
        shutil.rmtree(self.root, ignore_errors=True)
