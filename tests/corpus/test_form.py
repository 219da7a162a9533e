"""What every case must have, and what nothing of the corpus may hold (requirements §6, loader checks)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from postroom.mail import mime, transfer
from tests.corpus.cases import EXPECTED, GENERATED, GENERATORS, HERE, KEYS, MESSAGES, ZONES, load, zone

FOLDERS: Final = {"attachments", "auth", "dns", "dsn", "keys", "mime", "sanitize", "text", "threading"}
SOURCES: Final = ("authored", GENERATED, "derived:", "imported:")
MEMBERS: Final = {"id", "edge", "source", "licence", "envelope", "expect", "read", "session", "after", "generate"}
MAX_BYTES: Final = 1024 * 1024
AUTH: Final = {"verdict", "spf", "dkim", "dmarc", "arc"}
THREADING: Final = {"thread", "join_unverified", "in_reply_to", "references"}
_NAME: Final = re.compile(r"[a-z]\d{1,2}-[a-z0-9-]+")
_ROW: Final = re.compile(r"[A-LNOW]\d{1,2}")
_DOMAIN_OF_ADDRESS: Final = re.compile(r"[\w.%+=/!#$&'*?^`{|}~\"-]@((?:[\w-]+\.)+[\w-]+)")
_RESERVED: Final = re.compile(r"(?i)(?:.*\.)?(?:example(?:\.(?:com|net|org))?|test|invalid|localhost)")


def foreign(text: str) -> set[str]:
    """Domains of addresses in the text that may be somebody's (RFC 2606 has those that are not)."""
    return {name for name in _DOMAIN_OF_ADDRESS.findall(text) if not _RESERVED.fullmatch(name)}


def everything_of(raw: bytes) -> str:
    """The message as it stands, its fields decoded, and its parts, since base64 hides addresses."""
    message = mime.parse(raw)
    fields = [value for _, value in message.headers]
    parts = [transfer.decoded(raw, part) for _, part in mime.walk(message.root) if not part.children]
    texts = [raw, *parts]
    return "\n".join(
        [*fields, *(text.decode("latin-1") for text in texts), *(t.decode("utf-8", "replace") for t in texts)]
    )


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_a_case_is_complete(path: Path) -> None:
    case = load(path)
    known = case.known
    assert known.keys() <= MEMBERS
    assert _NAME.fullmatch(path.stem)
    assert known["id"] == path.stem
    assert known["edge"]
    assert all(_ROW.fullmatch(row) for row in known["edge"])
    assert known["source"].startswith(SOURCES)
    assert known["licence"] == "Apache-2.0"
    assert known["expect"]
    assert {"from", "to"} <= known["envelope"].keys() <= {"from", "to", "ip", "helo", "via"}
    assert set(known.get("session", {})) <= {"data", "refused", "removes", "place", "token", "detail"}
    assert foreign(path.read_text("utf-8")) == set()
    if path.parent.name == "auth":
        assert known["expect"].keys() >= AUTH
    if path.parent.name == "threading":
        assert known["expect"].keys() >= THREADING
        assert all((path.parent / f"{name}.toml").exists() for name in known.get("after", ()))


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: path.stem)
def test_addresses_are_nobodys(path: Path) -> None:
    assert foreign(everything_of(path.read_bytes())) == set()


def test_what_would_be_somebodys_is_seen() -> None:
    encoded = b"Content-Transfer-Encoding: base64\r\n\r\nYW5uQG1haWwuc29tZWJvZHk=\r\n"
    word = b"To: =?utf-8?q?ann=40mail.somebody?=\r\n\r\n"
    for raw in (b"From: ann@mail.somebody\r\n\r\n", encoded, word):
        assert foreign(everything_of(raw)) == {"mail.somebody"}
    assert foreign("ann@bücher.somebody") == {"bücher.somebody"}
    assert foreign("ann@sub.agents.example, x@a.invalid, y@example.org, z@example.com.somebody") == {
        "example.com.somebody"
    }


def test_each_message_has_its_expectations() -> None:
    kept = {path for path in EXPECTED if not load(path).known["source"].startswith(GENERATED)}
    assert {path.with_suffix(".eml") for path in kept} == set(MESSAGES)
    assert {path.name for path in HERE.iterdir() if path.is_dir()} - {"__pycache__"} == FOLDERS
    ids = [path.stem for path in EXPECTED]
    assert len(ids) == len(set(ids))


def test_nothing_large_is_kept() -> None:
    assert max(path.stat().st_size for path in HERE.rglob("*") if path.is_file()) <= MAX_BYTES


@pytest.mark.covers("edge:B1")
def test_large_messages_are_made_of_a_seed() -> None:
    made = [load(path).known for path in EXPECTED if load(path).known["source"].startswith(GENERATED)]
    assert {known["generate"]["size"] for known in made} >= {25 * 1024 * 1024, 39_000_000}
    small: dict[str, Any] = {"size": 5000, "seed": 1}
    for make in GENERATORS.values():
        assert make(**small) == make(**small) != make(**{**small, "seed": 2})
        assert len(make(**small)) == 5000
        assert foreign(make(**small).decode("ascii")) == set()


def test_keys_are_for_tests_alone() -> None:
    assert KEYS
    for path in KEYS:
        assert path.name.endswith(".test-only.pem")
        load_pem_private_key(path.read_bytes(), None)


def test_zones_name_nobody() -> None:
    zone()  # reads them all
    for path in ZONES:
        text = path.read_text("utf-8")
        assert foreign(text) == set()
        assert [name for name in tomllib.loads(text) if not _RESERVED.fullmatch(name)] == []
    kinds = {path.name.partition(".")[0] for path in ZONES}
    assert kinds == {"dkim", "dmarc", "spf"}
