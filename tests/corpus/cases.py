"""The corpus as it lies there: messages, and what is expected of each (requirements §6). `README.md` tells the format.

Read by the libraries alone in `test_corpus`, over a real SMTP session and the API in `test_over_smtp`.
"""

from __future__ import annotations

import base64
import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from postroom.inbound.describe import describe
from postroom.mail import automation, mime
from postroom.mail.automation import Classification
from postroom.mailauth.zone import Trouble, Written, Zone
from postroom.mailbox.models import Content
from tests.corpus.reading import NOW

HERE: Final = Path(__file__).parent
EXPECTED: Final = sorted(HERE.glob("*/*-*.toml"))
MESSAGES: Final = sorted(HERE.glob("*/*.eml"))
ZONES: Final = sorted((HERE / "dns").glob("*.zone.toml"))
KEYS: Final = sorted((HERE / "keys").iterdir())
GENERATED: Final = "generated:"
LINE: Final = 76


@dataclass
class Case:
    """A message, and what the libraries make of it when they are asked. `name` is its `id`."""

    path: Path
    raw: bytes
    known: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def envelope(self) -> Mapping[str, Any]:
        """`from`, `to`; and, where it matters, `ip`, `helo` and `via`."""
        found: dict[str, Any] = self.known["envelope"]
        return found

    @property
    def expect(self) -> Mapping[str, Any]:
        found: dict[str, Any] = self.known["expect"]
        return found

    @property
    def session(self) -> Mapping[str, Any]:
        """What is different of it over SMTP."""
        found: dict[str, Any] = self.known.get("session", {})
        return found

    @cached_property
    def message(self) -> mime.Message:
        return mime.parse(self.raw)

    @cached_property
    def classified(self) -> Classification:
        return automation.classify(self.raw, self.message, null_sender=self.envelope["from"] == "")

    @cached_property
    def described(self) -> Content:
        """What would be stored of it."""
        return describe(b"", self.raw, NOW)


@cache
def load(path: Path) -> Case:
    """The case whose expectations are at `path`; the same whoever asks."""
    known = tomllib.loads(path.read_text("utf-8"))
    source = known["source"]
    if source.startswith(GENERATED):
        return Case(path, GENERATORS[source.removeprefix(GENERATED)](**known["generate"]), known)
    return Case(path, path.with_suffix(".eml").read_bytes(), known)


def _filled(size: int, seed: int) -> bytes:
    """A message of `size` octets in all, most of them an attachment of bytes that the seed decides."""
    head = (
        b"From: Ann <ann@example.com>\r\nTo: Bob <bob@example.org>\r\nSubject: Large\r\n"
        b"Message-ID: <large-%d@example.com>\r\nDate: Mon, 02 Feb 2026 10:00:00 +0000\r\nMIME-Version: 1.0\r\n"
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nSee the attachment.\r\n"
        b"--b\r\nContent-Type: application/octet-stream\r\nContent-Disposition: attachment; filename=large.bin\r\n"
        b"Content-Transfer-Encoding: base64\r\n\r\n" % size
    )
    end = b"\r\n--b--\r\n"
    room = size - len(head) - len(end)
    encoded = base64.b64encode(random.Random(seed).randbytes(room * 3 // 4))
    lines = b"\r\n".join(encoded[at : at + LINE] for at in range(0, len(encoded), LINE))
    return head + lines[:room].rstrip(b"\r\n").ljust(room, b"A") + end


GENERATORS: Final[Mapping[str, Callable[..., bytes]]] = {"filled": _filled}
"""What is made at run time, being too large to be kept."""


@cache
def names() -> Mapping[str, Written]:
    """All that the DNS of the corpus says: every zone file has domains of its own, so they stand beside each other."""
    found: dict[str, Written] = {}
    for path in ZONES:
        for name, written in tomllib.loads(path.read_text("utf-8")).items():
            assert name not in found, (path, name)
            found[name] = _trouble(written)
    return found


def _trouble(written: Any) -> Written:
    if isinstance(written, str):
        return Trouble(written)
    return {kind: Trouble(records) if isinstance(records, str) else records for kind, records in written.items()}


def zone() -> Zone:
    """A resolver that knows them."""
    return Zone(names())
