"""The operating-system user that runs the bundled PostgreSQL, and how programs are started as that user (B17).

PostgreSQL refuses to run as root. When Postroom itself runs as root, its server gets a user of its own: ``postroom``
if the machine has one, otherwise a *user number without an entry in the user database*, derived from the data
directory and unused by anybody. Sharing ``nobody`` or ``postgres`` would let every other program of that user signal
the server and, where the directories allow, read the mail.

A data directory commonly lies below a directory that only root may enter, and no parent's mode is ever changed. So
the server is never given a path to walk: root opens its directories, the server inherits the descriptors and names
them ``/proc/self/fd/<n>``. This needs no permission on any parent, and a socket bound that way has no length limit of
its own.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .errors import PostgresLaunchError

SERVICE_USER = "postroom"
# The range systemd draws its dynamic users from: outside what adduser and distributions hand out.
_PRIVATE_UIDS = range(61184, 65520)
# Where root may put a copy of PostgreSQL's programs when they are installed below a directory closed to others (such
# as /root).
_PROGRAM_CACHES = ("/var/cache", "/var/lib", "/run", "/tmp")


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """Who owns PGDATA and runs the server. ``clients`` are the OS user names that peer authentication lets in."""

    uid: int
    gid: int
    clients: tuple[str, ...]
    from_root: bool

    def popen(
        self,
        argv: Sequence[str],
        *,
        fds: Sequence[int] = (),
        cwd: Path | str = "/",
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
    ) -> subprocess.Popen[bytes]:
        """Start *argv* under this account, in a session of its own (no terminal signal reaches it), with a clean
        environment.
        """
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
        if "LD_LIBRARY_PATH" in os.environ:
            env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        drop = self.from_root
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=cwd,
            pass_fds=tuple(fds),
            start_new_session=True,
            user=self.uid if drop else None,
            group=self.gid if drop else None,
            extra_groups=[] if drop else None,
            umask=0o077,
        )

    def own(self, path: Path) -> None:
        """Give *path* (not what a link points to) to this account; does nothing unless we are root."""
        if self.from_root:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def own_tree(self, top: Path) -> None:
        """Give a whole directory tree to this account, following no link."""
        if not self.from_root:
            return
        for _, _, files, dir_fd in os.fwalk(top):
            os.fchown(dir_fd, self.uid, self.gid)
            for name in files:
                os.chown(name, self.uid, self.gid, dir_fd=dir_fd, follow_symlinks=False)


def _name_of(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _running_uids() -> set[int]:
    uids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                uids.add(entry.stat().st_uid)
            except OSError:
                continue
    return uids


def _private_uid(data_dir: Path) -> int:
    taken = _running_uids()
    start = int.from_bytes(hashlib.sha256(os.fsencode(data_dir)).digest()[:4], "big")
    for step in range(len(_PRIVATE_UIDS)):
        uid = _PRIVATE_UIDS[(start + step) % len(_PRIVATE_UIDS)]
        if uid not in taken and _name_of(uid) is None:
            return uid
    raise PostgresLaunchError(
        f"no free user number between {_PRIVATE_UIDS[0]} and {_PRIVATE_UIDS[-1]} to run PostgreSQL as"
    )


def server_account(data_dir: Path, pgdata: Path) -> ServerAccount:
    """The account for *pgdata*: its present owner if it exists, else a suitable one.

    Raises PostgresLaunchError when an ordinary user has no name (peer authentication needs one), or does not own an
    existing PGDATA.
    """
    owner = pgdata.stat() if pgdata.exists() else None
    me = os.geteuid()
    if me != 0:
        name = _name_of(me)
        if name is None:
            raise PostgresLaunchError(
                f"user number {me} has no name in the user database, and PostgreSQL needs one to know who connects: "
                f"add an entry to /etc/passwd, or use an external server through POSTROOM_DATABASE_URL"
            )
        if owner is not None and owner.st_uid != me:
            whose = _name_of(owner.st_uid) or f"user number {owner.st_uid}"
            raise PostgresLaunchError(
                f"the database in {pgdata} belongs to {whose}, not to {name}: run Postroom as before, or give the "
                f"files to {name} as root"
            )
        return ServerAccount(me, os.getegid(), (name,), from_root=False)
    root = _name_of(0)
    if root is None:
        raise PostgresLaunchError(
            "root has no name in the user database (/etc/passwd), and PostgreSQL needs one to know who connects"
        )
    if owner is not None and owner.st_uid != 0:
        own_name = _name_of(owner.st_uid)
        return ServerAccount(owner.st_uid, owner.st_gid, (root, own_name) if own_name else (root,), from_root=True)
    try:
        service = pwd.getpwnam(SERVICE_USER)
    except KeyError:
        uid = _private_uid(data_dir)
        return ServerAccount(uid, uid, (root,), from_root=True)
    return ServerAccount(service.pw_uid, service.pw_gid, (root, SERVICE_USER), from_root=True)


def initdb_account(account: ServerAccount) -> ServerAccount:
    """Who runs initdb: it insists on a user with a name, so a nameless account borrows ``nobody`` for that one second.

    It works in a directory below one that is root's alone, and everything is given to *account* before it is used.
    """
    if not account.from_root or _name_of(account.uid) is not None:
        return account
    for entry in sorted(pwd.getpwall(), key=lambda e: e.pw_name != "nobody"):
        if entry.pw_uid != 0:
            return ServerAccount(entry.pw_uid, entry.pw_gid, account.clients, from_root=True)
    raise PostgresLaunchError(
        "the user database (/etc/passwd) has nobody but root, and initdb refuses to run as root: add a user 'postroom'"
    )


def _runs(program: Path, account: ServerAccount) -> bool:
    try:
        process = account.popen([str(program), "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except PermissionError:
        return False
    return process.wait(timeout=60) == 0


def _trusted(directory: Path) -> bool:
    try:
        info = directory.lstat()
    except FileNotFoundError:
        return False
    return directory.is_dir() and not directory.is_symlink() and info.st_uid == 0 and not info.st_mode & 0o022


def reachable_programs(install: Path, account: ServerAccount) -> Path:
    """The directory of PostgreSQL's programs that *account* can execute: *install*, or a copy of it owned by root.

    *install* has ``bin``, ``lib`` and ``share``. PostgreSQL resolves its own program's real path, so these cannot be
    passed as descriptors.
    """
    if not account.from_root or _runs(install / "bin" / "postgres", account):
        return install
    stamp = (install / "bin" / "postgres").stat()
    key = hashlib.sha256(os.fsencode(install) + f"{stamp.st_size}.{stamp.st_mtime_ns}".encode()).hexdigest()[:16]
    for parent in map(Path, _PROGRAM_CACHES):
        copy = parent / f"postroom-postgresql-{key}"
        try:
            if not copy.exists():
                _copy_programs(install, copy)
            if _trusted(copy) and _runs(copy / "bin" / "postgres", account):
                return copy
        except OSError:
            continue
    raise PostgresLaunchError(
        f"PostgreSQL may not run as root, and no other user can reach its programs in {install}: "
        f"install Postroom where others may read (such as /opt), or run it as an ordinary user (also where "
        f"root is not allowed to change users)"
    )


def _copy_programs(install: Path, copy: Path) -> None:
    staging = Path(tempfile.mkdtemp(prefix=".postroom-postgresql-", dir=copy.parent))
    try:
        for part in ("bin", "lib", "share"):
            shutil.copytree(install / part, staging / part, symlinks=True)
        for directory, names, files in os.walk(staging):
            Path(directory).chmod(0o755)
            for name in files:
                path = Path(directory) / name
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            del names
        staging.rename(copy)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
