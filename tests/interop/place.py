"""Where peers are found, the addresses they live at, and how they are started and certainly stopped."""

from __future__ import annotations

import functools
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol

import pytest

DEFAULT_PLACE: Final = "/var/cache/postroom-peers"
PLACE: Final = Path(os.environ.get("POSTROOM_TEST_PEERS") or DEFAULT_PLACE)
"""Where `scripts/peers.sh` unpacks servers. Whoever sets the variable wants them: then a test fails without them."""
SMTP_PORT: Final = 25
"""The only port that mail goes to by itself. It is bound on addresses of our own in 127.0.0.0/8."""
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0
DELIVERY_SECONDS: Final = 30.0

# Ends a server's processes, and removes its directory, when its standard input closes: when the test wants it to, or
# when the tests' process goes away without tidying up. A server whose processes are in several sessions leaves the id
# of the one to end in the file that the third argument names.
_REAPER: Final = """
read -r _
main=$(cat "$3" 2>/dev/null)
groups="-$1"
for pid in $main ; do groups="$groups -$pid" ; done
kill -TERM $main -"$1" 2>/dev/null
n=0
while kill -0 $groups 2>/dev/null && [ "$n" -lt 100 ] ; do sleep 0.05 ; n=$((n + 1)) ; done
kill -KILL $groups 2>/dev/null
rm -rf "$2"
"""


class Missing(Exception):
    """A peer cannot run here; the text says which, why, and what to do."""


def skip_or_fail(error: Missing) -> NoReturn:
    """Skip the test; where the peers are wanted, fail it."""
    if os.environ.get("POSTROOM_TEST_PEERS"):
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


def unpacked(name: str, *parts: str) -> list[Path]:
    """The files of a server that was unpacked. Raises Missing."""
    found = [PLACE / part for part in parts]
    if not all(path.exists() for path in found):
        raise Missing(f"{name} is not in {PLACE}: run `make peers`")
    return found


def libraries() -> Path:
    """The directory of the libraries that were unpacked. Raises Missing."""
    for path in PLACE.glob("usr/lib/*/libnss_wrapper.so"):
        return path.parent
    raise Missing(f"there is no libnss_wrapper in {PLACE}: run `make peers`")


def need_root(name: str) -> None:
    """Raises Missing."""
    if os.geteuid() != 0:
        raise Missing(f"{name} has to be started by root")


def mail_user() -> pwd.struct_passwd:
    """Whose mail files are when we are root: a user that every Debian has. Raises Missing."""
    try:
        return pwd.getpwnam("mail") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise Missing("there is no user `mail`, whom servers deliver as") from None


def new_address() -> str:
    """An address of this machine where nobody listens for mail. Raises Missing without the right to listen there."""
    for _ in range(100):
        address = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, SMTP_PORT))
            except PermissionError:
                break
            except OSError:
                continue
        return address
    raise Missing(f"mail goes to port {SMTP_PORT}, which cannot be bound on addresses of 127.0.0.0/8: run as root")


@functools.cache
def our_address() -> str:
    """Where the Postroom of this process's tests takes mail: peers are told once. Raises Missing."""
    return new_address()


@functools.cache
def exim_address() -> str:
    """Where this process's Exim is, if there is one: Postfix relays to it. Raises Missing."""
    return new_address()


class Peer(Protocol):
    """A mail server: domain, host name and address, and the Maildir that it delivers everything into."""

    name: str
    address: str
    mail: Path

    @property
    def domain(self) -> str: ...

    @property
    def host(self) -> str: ...

    def log(self) -> str: ...


class Daemon:
    """A server below a directory of its own: `root`, reachable by other users, removed with it.

    `run` starts it, `stop` ends it; it ends with this process, too, however that ends.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.root = Path(tempfile.mkdtemp(prefix=f"postroom-{name}-"))
        self.root.chmod(0o755)
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def pid_file(self) -> Path:
        """Where process ids may be left that are to be ended besides the one that was started."""
        return self.root / "master.pid"

    def output(self) -> str:
        path = self.root / "output"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def run(self, command: Sequence[object], address: str, *ports: int) -> None:
        """Start it and wait until it greets at each port. Raises AssertionError, with what it said."""
        try:
            with (self.root / "output").open("ab") as output:
                self._process = subprocess.Popen(
                    [str(part) for part in command],
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                    cwd=self.root,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._reaper = subprocess.Popen(
                ["sh", "-c", _REAPER, "sh", str(self.pid), str(self.root), str(self.pid_file)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            deadline = time.monotonic() + START_SECONDS
            for port in ports:
                while not _greets(address, port):
                    assert self._process.poll() is None, f"{self.name} ended:\n{self.output()}"
                    assert time.monotonic() < deadline, f"{self.name} does not greet:\n{self.output()}"
                    time.sleep(0.02)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._reaper is not None:
            assert self._process is not None
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
            # What nobody waits for stays, and the reaper would take it for alive.
            self._process.wait(STOP_SECONDS)
            self._reaper.wait(STOP_SECONDS)
        shutil.rmtree(self.root, ignore_errors=True)


def _greets(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=5) as connection:
            return connection.recv(4).startswith(b"220")
    except OSError:
        return False


def in_maildir(mail: Path) -> list[bytes]:
    """The messages of a Maildir, as they are there."""
    found = []
    for path in sorted(mail.glob("new/*")) + sorted(mail.glob("cur/*")):
        try:
            found.append(_content(path))
        except FileNotFoundError:
            continue  # moved meanwhile
    return found


@functools.lru_cache(maxsize=1000)
def _content(path: Path) -> bytes:
    """Of a file that comes by renaming and never changes: a test looks again and again."""
    return path.read_bytes()
