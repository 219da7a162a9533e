"""Secrets of the deployment: 32 random bytes each, one purpose each (requirements §3, cli-config-ops B1, B2).

Each comes from the environment (base64), from the file that `<NAME>_FILE` names, or from ``secrets.toml`` in the data
directory, in that order. They are never settings, never in `postroom.toml`, never shown.
"""

import base64
import binascii
import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .settings import SettingsError

SECRET_BYTES: Final = 32
FILE_NAME: Final = "secrets.toml"
MAX_FILE_BYTES: Final = 64 * 1024

# Those that are made when they are missing; the second master-key slot exists only during a rotation.
_MADE: Final = ("master_key", "key_pepper", "hash_key")
_KNOWN: Final = (*_MADE, "master_key_b")


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


def load_secrets(data_dir: Path, environ: Mapping[str, str]) -> Secrets:
    """The secrets of a deployment. Raises SettingsError, naming all that are missing or of the wrong form."""
    problems: list[str] = []
    found = _collect(data_dir, environ, problems)
    active = environ.get("POSTROOM_MASTER_KEY_ACTIVE", "a")
    if active not in ("a", "b"):
        problems.append("POSTROOM_MASTER_KEY_ACTIVE: wants a or b")
    slots = {"a": found.get("master_key"), "b": found.get("master_key_b")}
    needed = {"master_key" if active != "b" else "master_key_b", "key_pepper", "hash_key"}
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
    return Secrets(master, found["key_pepper"], found["hash_key"], slots["b" if active == "a" else "a"])


def ensure_secrets(
    data_dir: Path, random: Callable[[int], bytes] = os.urandom, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Make the secrets that are neither in `environ` nor in the secrets file, and add them to it; the names made.

    The file is replaced atomically, durable before this returns, and for its owner alone. Of two processes that start
    together both end with the same secrets only if one waits for the other: call it under the data directory's lock.
    Raises SettingsError if what is there cannot be used.
    """
    environ = environ or {}
    problems: list[str] = []
    path = data_dir / FILE_NAME
    stored = _read_file(path, problems)
    if problems:
        raise SettingsError(problems)
    missing = [
        name
        for name in _MADE
        if name not in stored and not environ.get(_variable(name)) and not environ.get(f"{_variable(name)}_FILE")
    ]
    if missing:
        stored |= {name: base64.b64encode(random(SECRET_BYTES)).decode("ascii") for name in missing}
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, "".join(f'{name} = "{value}"\n' for name, value in sorted(stored.items())))
    return tuple(missing)


def _collect(data_dir: Path, environ: Mapping[str, str], problems: list[str]) -> dict[str, bytes]:
    stored = _read_file(data_dir / FILE_NAME, problems)
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
        if name not in _KNOWN or not isinstance(value, str):
            problems.append(f"{path}: holds {name!r}, which is no secret of ours")
        else:
            texts[name] = value
    return texts


def _replace(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        staged.unlink()
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
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
