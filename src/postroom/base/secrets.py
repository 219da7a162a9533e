"""Secrets of the deployment: 32 random bytes each, one purpose each (requirements §3, cli-config-ops B1, B2).

Each comes from the environment (base64), from the file that `<NAME>_FILE` names, or from ``secrets.toml`` in the data
directory, in that order. They are never settings, never in `postroom.toml`, never shown.
"""

import base64
import binascii
import fcntl
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from .settings import SettingsError

SECRET_BYTES: Final = 32
FILE_NAME: Final = "secrets.toml"
MAX_FILE_BYTES: Final = 64 * 1024

# Those that are made when they are missing; the second master-key slot is filled by a rotation.
_MADE: Final = ("master_key", "key_pepper", "hash_key")
_KNOWN: Final = (*_MADE, "master_key_b")
SLOTS: Final = ("a", "b")
_OF_SLOT: Final = {"a": "master_key", "b": "master_key_b"}
_SELECTOR: Final = "master_key_active"
_SELECTOR_VARIABLE: Final = "POSTROOM_MASTER_KEY_ACTIVE"
_LOCK_NAME: Final = ".secrets.lock"


@dataclass(frozen=True, slots=True)
class Secrets:
    """The opened secrets; their values are not part of `repr`."""

    master_key: bytes = field(repr=False)
    """The active master key: seals what is stored sealed."""
    key_pepper: bytes = field(repr=False)
    """For the keyed hashes of API keys, sessions and application passwords (B11)."""
    hash_key: bytes = field(repr=False)
    """For pseudonyms in logs, suppressions and tombstones."""
    other_master_key: bytes | None = field(repr=False, default=None)
    """The slot that is not active, with which older values may still be sealed."""
    active_slot: str = field(repr=False, default="a")
    """Which slot `master_key` is in."""


class Source(Enum):
    """Where a secret comes from."""

    NOWHERE = "nowhere"
    FILE = "file"
    """`secrets.toml`, which the program may change."""
    ENVIRONMENT = "environment"
    """A variable, or the file that one names: the operator's."""


@dataclass(frozen=True, slots=True)
class MasterSlots:
    """The two slots of the master key (security-privacy A6.3): what a rotation goes by."""

    active: str
    """`a` or `b`: which one seals."""
    selector: Source
    """What says so; NOWHERE is `a`."""
    keys: Mapping[str, bytes | None] = field(repr=False)
    sources: Mapping[str, Source]

    @property
    def inactive(self) -> str:
        return "b" if self.active == "a" else "a"


def master_slots(data_dir: Path, environ: Mapping[str, str]) -> MasterSlots:
    """What the slots hold and where that comes from. Raises SettingsError as `load_secrets`."""
    load_secrets(data_dir, environ)
    problems: list[str] = []
    stored = _read_file(data_dir / FILE_NAME, problems)
    found = _collect(stored, environ, problems)
    if problems:
        raise SettingsError(problems)
    sources = {}
    for slot, name in _OF_SLOT.items():
        given = environ.get(_variable(name)) or environ.get(f"{_variable(name)}_FILE")
        sources[slot] = Source.ENVIRONMENT if given else Source.FILE if name in stored else Source.NOWHERE
    selector = Source.FILE if _SELECTOR in stored else Source.NOWHERE
    if environ.get(_SELECTOR_VARIABLE):
        selector = Source.ENVIRONMENT
    keys = {slot: found.get(name) for slot, name in _OF_SLOT.items()}
    return MasterSlots(_active(environ, stored), selector, keys, sources)


def store_master_key(data_dir: Path, slot: str, key: bytes) -> None:
    """Put a master key into that slot of the secrets file, durably. Raises SettingsError for a file that cannot be
    used, OSError.
    """
    _change(data_dir, {_OF_SLOT[slot]: base64.b64encode(key).decode("ascii")})


def select_master_key(data_dir: Path, slot: str) -> None:
    """Let the key of that slot seal from now on, as the secrets file says. Raises as `store_master_key`."""
    _change(data_dir, {_SELECTOR: slot})


def load_secrets(data_dir: Path, environ: Mapping[str, str]) -> Secrets:
    """The secrets of a deployment. Raises SettingsError, naming all that are missing or of the wrong form."""
    problems: list[str] = []
    stored = _read_file(data_dir / FILE_NAME, problems)
    found = _collect(stored, environ, problems)
    active = _active(environ, stored)
    if active not in SLOTS:
        problems.append(f"{_SELECTOR_VARIABLE}: wants a or b")
    slots = {slot: found.get(name) for slot, name in _OF_SLOT.items()}
    needed = {_OF_SLOT.get(active, "master_key"), "key_pepper", "hash_key"}
    named = {problem.partition(":")[0] for problem in problems}
    problems += [
        f"{_variable(name)}: missing; set it, or {_variable(name)}_FILE, or {name} in {data_dir / FILE_NAME}"
        for name in _KNOWN
        if name in needed and name not in found and _variable(name) not in named
    ]
    if slots["a"] is not None and slots["a"] == slots["b"]:
        problems.append("POSTROOM_MASTER_KEY_B: must differ from POSTROOM_MASTER_KEY")
    master = slots.get(active)
    if problems or master is None:
        raise SettingsError(problems)
    return Secrets(master, found["key_pepper"], found["hash_key"], slots["b" if active == "a" else "a"], active)


def ensure_secrets(
    data_dir: Path, random: Callable[[int], bytes] = os.urandom, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Make the secrets that are neither in `environ` nor in the secrets file, and add them to it; the names made.

    The file is replaced atomically, durable before this returns, and for its owner alone; of two processes that start
    together one waits for the other. Raises SettingsError if what is there cannot be used.
    """
    environ = environ or {}
    if not _missing(_usable(data_dir), environ):
        return ()
    with _locked(data_dir):
        stored = _usable(data_dir)
        missing = _missing(stored, environ)
        if missing:
            made = {name: base64.b64encode(random(SECRET_BYTES)).decode("ascii") for name in missing}
            _write(data_dir, stored | made)
    return missing


def _missing(stored: Mapping[str, str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those to be made. Slot `a` is not, once `b` is the active one: its key was taken away on purpose."""
    return tuple(
        name
        for name in _MADE
        if name not in stored
        and not environ.get(_variable(name))
        and not environ.get(f"{_variable(name)}_FILE")
        and not (name == _OF_SLOT["a"] and _active(environ, stored) == "b")
    )


def _active(environ: Mapping[str, str], stored: Mapping[str, str]) -> str:
    return environ.get(_SELECTOR_VARIABLE) or stored.get(_SELECTOR) or "a"


def _usable(data_dir: Path) -> dict[str, str]:
    problems: list[str] = []
    stored = _read_file(data_dir / FILE_NAME, problems)
    if problems:
        raise SettingsError(problems)
    return stored


def _change(data_dir: Path, entries: Mapping[str, str]) -> None:
    with _locked(data_dir):
        _write(data_dir, {**_usable(data_dir), **entries})


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Whoever changes the file reads and writes it without another in between. Held for milliseconds."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = data_dir / _LOCK_NAME
    is_new = not lock.exists()
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if is_new:
            _hand_over(fd, data_dir / FILE_NAME)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _collect(stored: Mapping[str, str], environ: Mapping[str, str], problems: list[str]) -> dict[str, bytes]:
    found = {}
    for name in _KNOWN:
        variable = _variable(name)
        text, source = environ.get(variable), variable
        if not text and (file := environ.get(f"{variable}_FILE")):
            source = f"{variable}_FILE"
            try:
                text = Path(file).read_text("ascii")[:MAX_FILE_BYTES]
            except (OSError, UnicodeDecodeError):
                problems.append(f"{source}: the file it names cannot be read")
                continue
        if not text:
            text, source = stored.get(name), variable
        if text:
            value = _decode(text)
            if value is None:
                problems.append(f"{source}: wants {SECRET_BYTES} bytes in base64")
            else:
                found[name] = value
    return found


def _variable(name: str) -> str:
    return f"POSTROOM_{name}".upper()


def _decode(text: str) -> bytes | None:
    bare = text.strip().replace("-", "+").replace("_", "/").rstrip("=")
    try:
        value = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if len(value) == SECRET_BYTES else None


def _read_file(path: Path, problems: list[str]) -> dict[str, str]:
    """Names and texts of the secrets file; empty if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return {}
    with os.fdopen(fd, "rb") as file:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            problems.append(f"{path}: is open to others; make it 0600")
            return {}
        try:
            tree = tomllib.loads(file.read(MAX_FILE_BYTES).decode("ascii"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            problems.append(f"{path}: is not a file of secrets")
            return {}
    texts = {}
    for name, value in tree.items():
        if name not in (*_KNOWN, _SELECTOR) or not isinstance(value, str):
            problems.append(f"{path}: holds {name!r}, which is no secret of ours")
        else:
            texts[name] = value
    return texts


def _hand_over(fd: int, path: Path) -> None:
    """What root writes is for whom the file belonged to before, or the directory: the server's user has to read it."""
    if os.geteuid() == 0:
        owner = path.lstat() if path.exists() else path.parent.stat()
        with suppress(PermissionError):  # a root that may not
            os.fchown(fd, owner.st_uid, owner.st_gid)


def _write(data_dir: Path, stored: Mapping[str, str]) -> None:
    """The caller holds the lock, so what another left half written is nobody's."""
    for left in data_dir.glob(f".{FILE_NAME}.*"):
        left.unlink(missing_ok=True)
    _replace(data_dir / FILE_NAME, "".join(f'{name} = "{value}"\n' for name, value in sorted(stored.items())))


def _replace(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            _hand_over(fd, path)
            file.write(text)
            file.flush()
            os.fsync(fd)
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
