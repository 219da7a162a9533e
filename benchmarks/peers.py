"""Postfix with Dovecot as a peer: a private instance that delivers over LMTP into Maildirs and shows them over IMAP.

Nothing of the machine's own configuration is read or changed. Both run as shipped where that matters for a comparison:
queue files and mail files are made durable, process limits are the defaults (100). Only what needs a network is off:
no DNS, no TLS. They do no mail authentication and build no text index.
"""

from __future__ import annotations

import contextlib
import grp
import imaplib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from .common import (
    DOMAIN,
    PASSWORD,
    Memory,
    cpu_seconds,
    free_ports,
    is_in_memory,
    keep_niceness,
    kill,
    memory,
    tree,
    work_root,
)
from .common import wait_for_ports as wait_for

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 20.0
MAX_PATH: Final = 64
"""Octets of the directory's path; a socket's path below it must stay under 108."""
_MAIL_USER: Final = "mail"
_QUEUES: Final = ("maildrop", "incoming", "active", "deferred")
_MASTERS: Final = frozenset({"master", "dovecot"})
_PROGRAMS: Final = ("postfix", "postconf", "dovecot")
_DOVECOT_PARTS: Final = ("/usr/lib/dovecot/imap", "/usr/lib/dovecot/lmtp")

_MAIN_CF: Final = """\
compatibility_level = 3.6
queue_directory = {root}/queue
data_directory = {root}/lib
mail_owner = postfix
setgid_group = postdrop
myhostname = mx.{domain}
mydomain = {domain}
myorigin = {domain}
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
lmtp_host_lookup = native
smtpd_tls_security_level = none
smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination
virtual_mailbox_domains = {domain}
virtual_mailbox_maps = texthash:{root}/postfix/users
virtual_transport = lmtp:unix:private/dovecot-lmtp
"""

_MASTER_CF: Final = """\
127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
proxywrite unix - - n - 1 proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
local unix - n n - - local
virtual unix - n n - - virtual
lmtp unix - - n - - lmtp
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
"""

_DOVECOT: Final = """\
base_dir = {root}/run
state_dir = {root}/state
log_path = {root}/dovecot.log
protocols = imap lmtp
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
first_valid_uid = 1
first_valid_gid = 1
mail_location = maildir:{root}/mail/%Ln
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={root}/mail/%Ln allow_all_users=yes
}}
namespace inbox {{
  inbox = yes
}}
service imap-login {{
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service lmtp {{
  unix_listener {root}/queue/private/dovecot-lmtp {{
    mode = 0600
    user = postfix
    group = postfix
  }}
}}
"""


def available() -> bool:
    """Whether both are installed, and can be run: they need root to become their own users."""
    there = all(shutil.which(name) for name in _PROGRAMS) and all(Path(part).exists() for part in _DOVECOT_PARTS)
    return there and os.geteuid() == 0


def _root() -> Path:
    """A directory that users other than ours can reach, on a disk, with a short path. Raises RuntimeError."""
    for parent in (work_root(), Path("/var/tmp")):
        reachable = all(above.stat().st_mode & 0o001 for above in (parent, *parent.parents))
        if reachable and len(str(parent)) + 20 <= MAX_PATH and not is_in_memory(parent):
            root = Path(tempfile.mkdtemp(prefix="peer-", dir=parent))
            root.chmod(0o755)
            return root
    raise RuntimeError("there is no directory that Postfix and Dovecot could use; set TMPDIR to one")


class PostfixDovecot:
    """Users `user0` … of `DOMAIN`, all with `PASSWORD`. A context manager; raises RuntimeError when it does not start.

    `smtp_port` takes mail, `imap_port` shows it.
    """

    def __init__(self, users: int = 200) -> None:
        self.users = users
        self.host = "127.0.0.1"
        self.smtp_port, self.imap_port = free_ports(2)
        self.root = Path()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.root = _root()
        try:
            self._configure()
            deadline = time.monotonic() + START_SECONDS
            # Dovecot first: it makes the socket in Postfix's queue.
            self._run("dovecot", "-F", "-c", str(self.root / "dovecot.conf"))
            wait_for([self.imap_port], self._processes[-1], deadline)
            self._run("postfix", "-c", str(self.root / "postfix"), "start-fg")
            wait_for([self.smtp_port], self._processes[-1], deadline)
            keep_niceness(self._tree())
        except BaseException as error:
            said = self._said()
            self._stop()
            if isinstance(error, (RuntimeError, OSError)):
                raise RuntimeError(f"Postfix and Dovecot did not start: {error}\n{said}") from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def address(self, number: int) -> str:
        return f"user{number}@{DOMAIN}"

    def cpu(self) -> float:
        """CPU seconds of all their processes so far."""
        return cpu_seconds(self._tree())

    def memory(self) -> Memory:
        return memory(self._tree())

    def queued(self) -> int:
        """Messages that were accepted and are not delivered yet."""
        return sum(len(files) for queue in _QUEUES for _, _, files in os.walk(self.root / "queue" / queue))

    def delivered(self) -> int:
        """Messages in all Maildirs."""
        return sum(self.in_maildir(number) for number in range(self.users))

    def in_maildir(self, number: int) -> int:
        """Messages in one user's inbox."""
        box = self.root / "mail" / f"user{number}"
        count = 0
        for place in ("new", "cur"):
            with contextlib.suppress(FileNotFoundError), os.scandir(box / place) as entries:
                count += sum(1 for _ in entries)
        return count

    def wait_delivered(self, timeout: float = 120.0) -> float:
        """Until nothing is queued; the monotonic time at which that was seen. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while self.queued():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Postfix still holds {self.queued()} messages after {timeout:.0f} s")
            time.sleep(0.01)
        return time.monotonic()

    def fill(self, number: int, raws: Iterable[bytes]) -> int:
        """Put messages into a user's inbox as Dovecot's delivery leaves them; how many. The mailbox must be new."""
        box = self.root / "mail" / f"user{number}"
        user = pwd.getpwnam(_MAIL_USER)
        for path in (box, box / "cur", box / "new", box / "tmp"):
            path.mkdir(mode=0o700)
            os.chown(path, user.pw_uid, user.pw_gid)
        count = 0
        for count, raw in enumerate(raws, start=1):
            text = raw.replace(b"\r\n", b"\n")
            # S and W are the sizes on disk and on the wire, which spares Dovecot from reading files for RFC822.SIZE.
            path = box / "cur" / f"{1_700_000_000 + count}.M{count}P1.bench,S={len(text)},W={len(raw)}:2,"
            path.write_bytes(text)
            os.chown(path, user.pw_uid, user.pw_gid)
        return count

    @contextlib.contextmanager
    def imap(self, number: int = 0) -> Iterator[imaplib.IMAP4]:
        """A connection, signed in."""
        with imaplib.IMAP4(self.host, self.imap_port, timeout=30) as client:
            client.login(self.address(number), PASSWORD)
            yield client

    def _configure(self) -> None:
        user, group = pwd.getpwnam(_MAIL_USER).pw_uid, grp.getgrnam(_MAIL_USER).gr_gid
        postfix = pwd.getpwnam("postfix").pw_uid
        values = {"root": self.root, "domain": DOMAIN, "password": PASSWORD, "uid": user, "gid": group}
        for name in ("postfix", "queue", "queue/private", "lib", "mail", "run", "state"):
            (self.root / name).mkdir(mode=0o755)
        (self.root / "queue" / "private").chmod(0o700)
        os.chown(self.root / "queue" / "private", postfix, -1)
        os.chown(self.root / "lib", postfix, -1)
        os.chown(self.root / "mail", user, group)
        users = "".join(f"{self.address(number)} x\n" for number in range(self.users))
        (self.root / "postfix" / "users").write_text(users)
        (self.root / "postfix" / "main.cf").write_text(_MAIN_CF.format(**values))
        (self.root / "postfix" / "master.cf").write_text(_MASTER_CF.format(port=self.smtp_port))
        (self.root / "dovecot.conf").write_text(_DOVECOT.format(**values, port=self.imap_port))

    def _run(self, *command: str) -> None:
        with (self.root / "output").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            )

    def _tree(self) -> list[psutil.Process]:
        return [process for started in self._processes for process in tree(started.pid)]

    def _said(self) -> str:
        """The end of their logs."""
        texts = []
        for name in ("output", "dovecot.log"):
            with contextlib.suppress(OSError):
                texts.append((self.root / name).read_text(errors="replace")[-2000:])
        return "\n".join(texts)

    def _stop(self) -> None:
        """Both masters, which end their children; then what is left by force."""
        members = self._tree()
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                # Postfix's is run by a shell script, which would not pass a signal on.
                if process.name() in _MASTERS:
                    process.terminate()
        for started in self._processes:
            try:
                started.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
        _, alive = psutil.wait_procs(members, timeout=STOP_SECONDS)
        kill(alive)
        self._processes.clear()
        shutil.rmtree(self.root, ignore_errors=True)
