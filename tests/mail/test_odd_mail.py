"""Mail as it is, not as the RFCs have it: each message of the corpus gives what a person expects to see.

`tests/corpus/mime/*-odd-*.eml`, with what is expected in the `.toml` beside it: `[expect]` holds what every reader of
the corpus knows (requirements §6), `[read]` what only the libraries do. The shapes are those of public bug trackers,
written anew.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from postroom.mail import mime
from postroom.mail.address import Address
from postroom.mail.body import attachments
from postroom.mail.content import read
from postroom.mail.header import decode_value
from postroom.mail.imap_data import body, bodystructure, envelope
from postroom.mail.transfer import decoded
from postroom.mail.tree import pack_tree, unpack_tree

CASES: Final = sorted((Path(__file__).resolve().parents[1] / "corpus" / "mime").glob("*-odd-*.eml"))


def pairs(addresses: list[Address]) -> list[list[str]]:
    return [[item.name, item.address] for item in addresses]


def contents(raw: bytes, message: mime.Message) -> list[bytes]:
    parts = [message.part(item.path) for item in attachments(message, raw)]
    return [decoded(raw, part) for part in parts if part is not None]


def all_in(wanted: list[str], text: str) -> bool:
    missing = [piece for piece in wanted if piece not in text]
    assert missing == [], text
    return True


READ: Final[dict[str, Callable[[bytes, mime.Message, Any], bool]]] = {
    "subject": lambda _, message, wanted: message.subject == wanted,
    "subject_absent": lambda _, message, wanted: (message.subject is None) is wanted,
    "text_contains": lambda raw, message, wanted: all_in(wanted, read(raw, message).text),
    "text_is": lambda raw, message, wanted: read(raw, message).text == wanted,
    "attachments": lambda raw, message, wanted: [item.filename for item in attachments(message, raw)] == wanted,
    "contents": lambda raw, message, wanted: all(
        piece.encode() in content for piece, content in zip(wanted, contents(raw, message), strict=True)
    ),
    "from": lambda _, message, wanted: pairs(message.from_) == wanted,
    "to": lambda _, message, wanted: pairs(message.to) == wanted,
    "message_id": lambda _, message, wanted: (message.message_id or "") == wanted,
    "references": lambda _, message, wanted: message.references == wanted,
    "date": lambda _, message, wanted: (message.date.isoformat() if message.date else "") == wanted,
    "parts": lambda _, message, wanted: [part.content_type for _, part in mime.walk(message.root)] == wanted,
    "params": lambda _, message, wanted: all(message.root.params.get(name) == value for name, value in wanted),
    "headers": lambda _, message, wanted: all(message.headers.get(name) == value for name, value in wanted),
}


@pytest.mark.covers("edge:B2", "edge:B3", "edge:B5", "edge:B6", "edge:B7", "edge:B13", "edge:C2", "FR-IN-3")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_read_as_it_was_meant(path: Path) -> None:
    raw = path.read_bytes()
    known = tomllib.loads(path.with_suffix(".toml").read_text("utf-8"))
    message = mime.parse(raw)
    for name, wanted in {**known["expect"], **known.get("read", {})}.items():
        if name == "flags":
            continue  # that is of the whole description: `tests/corpus`
        assert READ[name](raw, message, wanted), name
    for rendered in (envelope(message), body(message.root), bodystructure(message.root)):
        assert rendered.startswith(b"(")
        assert b"\0" not in rendered
    assert unpack_tree(pack_tree(message.root)) == message.root


def test_there_is_mail_to_read() -> None:
    assert len(CASES) >= 70


HEAD: Final = b"From: Ann <ann@example.com>\r\nSubject: odd\r\n"


@pytest.mark.covers("edge:B2")
def test_six_hundred_parts() -> None:
    part = b"--b\r\nContent-Type: text/plain; name=%d.txt\r\nContent-Disposition: attachment\r\n\r\nx\r\n"
    raw = (
        HEAD
        + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
        + b"".join(part % n for n in range(600))
        + b"--b--\r\n"
    )
    message = mime.parse(raw)
    assert message.degraded
    assert [item.filename for item in attachments(message, raw)] == [f"{n}.txt" for n in range(499)]


@pytest.mark.covers("edge:B2")
@pytest.mark.parametrize("levels", [10, 40])
def test_levels(levels: int) -> None:
    opened = b"".join(b"Content-Type: multipart/mixed; boundary=b%d.\r\n\r\n--b%d.\r\n" % (n, n) for n in range(levels))
    closed = b"".join(b"\r\n--b%d.--\r\n" % n for n in reversed(range(levels)))
    raw = HEAD + opened + b"Content-Type: text/plain\r\n\r\nThe text." + closed
    message = mime.parse(raw)
    assert message.degraded is (levels > mime.MAX_DEPTH)
    assert ("The text." in read(raw, message).text) is (levels <= mime.MAX_DEPTH)


@pytest.mark.covers("edge:B2")
def test_a_header_of_300_kilobytes() -> None:
    raw = b"X-Long: " + b"a" * 150_000 + b"\r\n" + b"X-Many: b\r\n" * 9_000 + HEAD + b"X-End: " + b"c" * 60_000
    raw += b"\r\n\r\nThe text."
    message = mime.parse(raw)
    assert message.degraded
    assert read(raw, message).text == "The text."
    assert (message.subject, pairs(message.from_)) == ("odd", [["Ann", "ann@example.com"]])


def test_a_line_of_a_megabyte() -> None:
    raw = HEAD + b"\r\n" + b"x" * 1_000_000
    message = mime.parse(raw)
    found = read(raw, message)
    assert found.truncated
    assert set(found.text) == {"x"}
    assert len(mime.parse(b"Subject: " + b"y" * 100_000 + b"\r\n\r\n").subject or "") == 100_000


@pytest.mark.covers("edge:B5", "RFC 3501 §7.4.2")
def test_clients_and_agents_see_the_same_names() -> None:
    """What a header says in octets without a charset is served over IMAP as the words that the API shows."""
    for path in CASES:
        message = mime.parse(path.read_bytes())
        if message.subject and not message.subject.isascii() and message.from_ and "raw-" in path.stem:
            served = decode_value(envelope(message))
            assert message.subject in served
            assert message.from_[0].name in served
