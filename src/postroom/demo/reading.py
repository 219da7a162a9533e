"""Steps of the story over IMAP: what FETCH says is what stdlib `email` says of the same bytes, and what one door
changes the other shows.
"""

from __future__ import annotations

import imaplib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any, Final

from postroom.demo.clients import imap
from postroom.demo.stage import Stage, Wrong, expect

LETTER: Final = "person-0"
LABEL: Final = "demo-urgent"
PARTIAL: Final = (7, 40)
"""Offset and length of the partial that is fetched (RFC 3501 §6.4.5)."""


def fetch(stage: Stage) -> str:
    """ENVELOPE, BODYSTRUCTURE, a part, and a partial of it."""
    raw = stage.sent[LETTER].raw
    sent = message_from_bytes(raw, policy=default)
    assert isinstance(sent, EmailMessage)
    with imap(stage.ports, stage.cast) as client:
        uid = _find(client, "INBOX", stage)
        _envelope(_fetch(client, uid, "(ENVELOPE)"), sent)
        _structure(_fetch(client, uid, "(BODYSTRUCTURE)"), sent)
        body = _literal(_fetch(client, uid, "(BODY.PEEK[])"))
        expect(body.endswith(raw), "BODY[] differs from what was sent")
        part = _literal(_fetch(client, uid, "(BODY.PEEK[2])"))
        wanted = list(sent.iter_parts())[1].get_payload()
        expect(part.split() == str(wanted).encode().split(), "part 2 differs")
        offset, length = PARTIAL
        partial = _literal(_fetch(client, uid, f"(BODY.PEEK[2]<{offset}.{length}>)"))
        expect(partial == part[offset : offset + length], "the partial differs")
        size = re.search(rb"RFC822\.SIZE (\d+)", _flat(_fetch(client, uid, "(RFC822.SIZE)")))
        expect(size and int(size[1]) == len(body), "RFC822.SIZE differs")
    return f"{len(body)} bytes read in five ways"


def flags(stage: Stage) -> str:
    """A flag set at one door shows at the other at once."""
    identity = stage.cast.person.identity_id
    message_id = stage.find(identity, LETTER)["id"]
    path = f"/v1/identities/{identity}/messages/{message_id}"
    with imap(stage.ports, stage.cast) as client:
        uid = _find(client, "INBOX", stage)
        _ok(client.uid("STORE", uid, "+FLAGS", f"(\\Seen {LABEL})"))
        message = stage.rest.get(path).document
        expect(message["read"] is True, "\\Seen does not show as read")
        expect(LABEL in message["labels"], "the keyword does not show as a label")
        answer = stage.rest.patch(path, {"read": False, "labels_remove": [LABEL], "labels_add": ["demo-later"]})
        expect(answer.status == 200, f"the change over REST answered {answer.status}")
        shown = _flat(_fetch(client, uid, "(FLAGS)")).lower()
        expect(b"\\seen" not in shown and LABEL.encode() not in shown, "the change over REST does not show in FLAGS")
        expect(b"demo-later" in shown, "the label does not show as a keyword")
    return "\\Seen and keywords agree, both ways"


def places(stage: Stage) -> str:
    """A copy keeps the message when the original is expunged; a move takes it along (decisions A5)."""
    identity = stage.cast.person.identity_id
    before = stage.find(identity, LETTER)["id"]
    with _folder(stage, f"demo-{stage.token}") as (client, name):
        uid = _find(client, "INBOX", stage)
        _ok(client.uid("COPY", uid, name))
        _ok(client.uid("STORE", uid, "+FLAGS.SILENT", "(\\Deleted)"))
        _ok(client.uid("EXPUNGE", uid))
        expect(_search(client, "INBOX", stage) == [], "the original is still in INBOX")
        expect(stage.find(identity, LETTER)["id"] == before, "the message's id changed with COPY and EXPUNGE")
        copied = _find(client, name, stage)
        _ok(client.uid("MOVE", copied, "INBOX"))
        moved = _find(client, "INBOX", stage)
        expect(int(moved) > int(uid), "the UID did not increase")
        expect(stage.find(identity, LETTER)["id"] == before, "the message's id changed with MOVE")
    return f"the id stays, UID {uid} became {moved}"


@contextmanager
def _folder(stage: Stage, name: str) -> Iterator[tuple[imaplib.IMAP4, str]]:
    """A session, and a folder of its own that goes with it."""
    with imap(stage.ports, stage.cast) as client:
        _ok(client.create(name))
        yield client, name
        _ok(client.select("INBOX"))
        _ok(client.delete(name))


def _find(client: imaplib.IMAP4, folder: str, stage: Stage) -> str:
    found = _search(client, folder, stage)
    expect(len(found) == 1, f"{folder} holds the message {len(found)} times")
    return found[0]


def _search(client: imaplib.IMAP4, folder: str, stage: Stage) -> list[str]:
    _ok(client.select(folder))
    data = _ok(client.uid("SEARCH", "HEADER", "Message-ID", f"<{LETTER}.{stage.token}@example.com>"))
    return [uid.decode() for uid in (data[0] or b"").split()]


def _fetch(client: imaplib.IMAP4, uid: str, items: str) -> list[Any]:
    return _ok(client.uid("FETCH", uid, items))


def _ok(result: tuple[str, list[Any]]) -> list[Any]:
    status, data = result
    if status != "OK":
        raise Wrong(f"the server said {status} {data!r}"[:200])
    return data


def _literal(data: list[Any]) -> bytes:
    for item in data:
        if isinstance(item, tuple):
            return bytes(item[1])
    # A short string may come quoted.
    quoted = re.search(rb'"((?:[^"\\]|\\.)*)"\)?$', _flat(data))
    expect(quoted, "FETCH returned no text")
    assert quoted is not None
    return re.sub(rb"\\(.)", rb"\1", quoted[1])


def _flat(data: list[Any]) -> bytes:
    """A FETCH answer as one run of bytes, its literals in place."""
    return b" ".join(b" ".join(item) if isinstance(item, tuple) else bytes(item or b"") for item in data)


def _envelope(data: list[Any], sent: EmailMessage) -> None:
    """Subject, sender and Message-ID are those of the message; the subject as it stands there, encoded."""
    text = _flat(data)
    encoded = re.search(rb"^Subject: ((?:.|\r?\n[ \t])*)\r?\n", sent.as_bytes(), re.MULTILINE)
    assert encoded is not None
    expect(b"".join(encoded[1].split()) in b"".join(text.split()), "the subject of ENVELOPE differs")
    expect(str(sent["Message-ID"]).encode() in text, "the Message-ID of ENVELOPE differs")
    expect(b'"olga" "example.com"' in text, "the sender of ENVELOPE differs")


def _structure(data: list[Any], sent: EmailMessage) -> None:
    """Every part is there, in order, with its type and encoding."""
    text = _flat(data).lower()
    at = 0
    for part in sent.walk():
        if part.is_multipart():
            continue
        kind = f'"{part.get_content_maintype()}" "{part.get_content_subtype()}"'.encode()
        at = text.find(kind, at) + 1
        expect(at > 0, f"BODYSTRUCTURE lacks {part.get_content_type()}")
        encoding = f'"{part.get("Content-Transfer-Encoding", "7bit")}"'.encode().lower()
        expect(text.find(encoding, at) > 0, f"BODYSTRUCTURE lacks the encoding of {part.get_content_type()}")
    expect(b'"mixed"' in text and b'"alternative"' in text, "BODYSTRUCTURE lacks a multipart")
