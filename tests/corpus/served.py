"""What is expected of a case, asked of what REST, IMAP and the store say of it after a real session (requirements §6).

The keys are those that the libraries alone are asked for. What no interface shows is looked up where it is stored; what
is not kept either stands in `NOT_SERVED`, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from typing import Any, Final

from postroom.mail.safety import UNKNOWN
from tests.corpus.cases import Case
from tests.corpus.judging import METHODS, check_auth
from tests.corpus.reading import NOW
from tests.corpus.room import Served

Check = Callable[[Case, Served, Any], None]

FLAGS: Final = {"parse_degraded", "encrypted", "hidden_text"}
"""What the libraries tell of a message; the rest comes of where it stands and of what else is there."""

NOT_SERVED: Final = {
    "content_ids": "those that the HTML names, which is served with them",
    "links": "links are not kept",
    "links_total": "links are not kept",
    "addressed": "links are not kept",
    "disguised": "links are not kept",
    "international": "links are not kept",
    "domains": "links are not kept",
    "tnef": "what it holds is listed among the attachments",
    "params": "they are IMAP's, as the tree",
    "parts": "the tree is IMAP's, whose answer is compared in tests/imap_server",
    "subject_absent": "no subject is served as an empty one",
}


def document(served: Served, column: str) -> dict[str, Any]:
    """A column of JSON."""
    text = served.stored[column]
    return {} if text is None else dict(json.loads(text))


def one_line(text: str | None) -> str:
    """As texts of one line are shown: no control characters, single spaces."""
    return " ".join(
        "".join(char if char >= " " and not "\x7f" <= char < "\xa0" else " " for char in text or "").split()
    )


def fields(served: Served, name: str) -> list[str]:
    return [field["value"] for field in served.message["headers"] if field["name"].lower() == name.lower()]


def _points(points: list[dict[str, str]]) -> list[list[str]]:
    return [[one["name"], one["address"]] for one in points]


def _shown(points: list[list[str]]) -> list[list[str]]:
    """Addresses as they are compared: in lower case, and without what has none."""
    return [[name, address.lower()] for name, address in points if address]


def _is(read: Callable[[Served], Any]) -> Check:
    def check(case: Case, served: Served, wanted: Any) -> None:
        assert read(served) == wanted

    return check


def _holds(member: str, *, lacks: bool = False) -> Check:
    def check(case: Case, served: Served, pieces: list[str]) -> None:
        text = (served.message[member] or "").replace("\r\n", "\n")
        assert [piece for piece in pieces if (piece in text) is lacks] == []

    return check


def _from(case: Case, served: Served, wanted: list[list[str]]) -> None:
    found = served.message["from"]
    assert ([] if found is None else _points([found])) == _shown(wanted)[:1]


def _attachments(case: Case, served: Served, wanted: list[str | None]) -> None:
    assert [one["filename"] for one in served.message["attachments"]] == wanted


def _contents(case: Case, served: Served, wanted: list[str]) -> None:
    assert [piece.encode() in body for piece, body in zip(wanted, served.bodies, strict=True)] == [True] * len(wanted)


def _flags(case: Case, served: Served, wanted: list[str]) -> None:
    assert FLAGS & {*served.message["flags"], *served.message["trust"]["flags"]} == set(wanted)


def _protection(case: Case, served: Served, wanted: dict[str, Any]) -> None:
    assert ("encrypted" in served.message["flags"]) is wanted["encrypted"]
    signature = document(served, "auth").get("signature")
    known = wanted.get("signature")
    assert signature == (None if known is None else {"type": known, "status": "present_unverified"})


def _told(name: str) -> Check:
    """Of what the classification keeps, where it keeps it."""

    def check(case: Case, served: Served, wanted: dict[str, Any]) -> None:
        told = document(served, "automated")[name]
        told["kind"] = told.get("type")
        for member, value in wanted.items():
            if name == "dsn" and member == "recipients":
                assert [[r["final_recipient"], r.get("action"), r.get("status")] for r in told[member]] == value
            else:
                assert (told.get(member) or "") == (value or "")

    return check


def _verification(case: Case, served: Served, wanted: dict[str, str]) -> None:
    """What confirms a sign-up is kept only of mail that is known to come from whom it says (E4)."""
    if served.message["trust"]["verdict"] != "pass":
        wanted = {}
    assert document(served, "verifications") == {name: value for name, value in wanted.items() if name != "kind"}


def _refs(case: Case, served: Served, wanted: list[list[str]]) -> None:
    """Those of one country are looked for only where a tenant wants that; what is kept has no order."""
    found = [[ref["kind"], ref["value"]] for ref in served.message["refs"]]
    assert sorted(found) == sorted(ref for ref in wanted if ref[0] not in ("uk_plate", "pcn"))


def _deceptive(case: Case, served: Served, wanted: int) -> None:
    assert ("deceptive_link" in served.stored["facts"]) is (wanted > 0)


def _date(case: Case, served: Served, wanted: str) -> None:
    """A date that cannot be true is replaced by that of arrival (inbound §10)."""
    sent = datetime.fromisoformat(wanted).astimezone(UTC) if wanted else NOW
    true = NOW - timedelta(days=3652) <= sent <= NOW + timedelta(days=1)
    assert datetime.fromisoformat(served.message["sent_at"]) == (sent if true else NOW)


def _headers(case: Case, served: Served, wanted: list[list[str]]) -> None:
    assert [pair for pair in wanted if pair[1] not in fields(served, pair[0])] == []


def _thread(case: Case, served: Served, wanted: str) -> None:
    """`new`, or the case whose thread it joined."""
    same = {name for name, thread in served.threads.items() if thread == served.message["thread_id"]} - {case.name}
    assert same == (set() if wanted == "new" else {wanted})


def _normalised(case: Case, served: Served, wanted: str) -> None:
    """A thread has the subject of its first message."""
    if case.expect["thread"] == "new":
        assert served.thread["subject"] == wanted


def _text(name: str) -> Check:
    def check(case: Case, served: Served, wanted: str) -> None:
        """Of what is encrypted nothing is said, which the library does by an empty text."""
        is_encrypted = "encrypted" in served.message["flags"]
        found = served.message[name]
        assert (found is None) is is_encrypted
        assert (found or "").replace("\r\n", "\n") == wanted

    return check


def _method(name: str) -> Check:
    def check(case: Case, served: Served, wanted: str) -> None:
        assert served.message["trust"][name] == wanted
        # What another server found is not told as ours.
        if name != "verdict" and (name != "spf" or case.envelope.get("via") != "lmtp"):
            assert f" {name}={wanted}" in results_told(served)

    return check


def results_told(served: Served) -> str:
    """Our own results, which stand before the message."""
    return message_from_bytes(served.raw)["Authentication-Results"].replace("\r\n", "")


SERVED: Final[dict[str, Check]] = {
    "subject": lambda case, served, wanted: _equal(served.message["subject"], one_line(wanted)),
    "shown_subject": _is(lambda served: served.message["subject"]),
    "message_id": lambda case, served, wanted: _equal(served.message["rfc_message_id"] or "", wanted),
    "references": _is(lambda served: served.stored["reference_ids"]),
    "in_reply_to": lambda case, served, wanted: _equal(served.message["in_reply_to"] or "", wanted),
    "thread": _thread,
    "thread_subject": _is(lambda served: served.thread["subject"]),
    "normalised": _normalised,
    "join_unverified": _is(lambda served: "thread_join_unverified" in served.stored["facts"]),
    **{name: _method(name) for name in ("verdict", *METHODS)},
    "auth": lambda case, served, wanted: check_auth(document(served, "auth"), wanted),
    "kind": _is(lambda served: served.message["kind"]),
    "automated": _is(lambda served: served.message["trust"]["automated"]),
    "signs": _is(lambda served: document(served, "automated").get("evidence", [])),
    "hop": _is(lambda served: document(served, "automated").get("hop")),
    "calendar": _told("calendar"),
    "dsn": _told("dsn"),
    "mdn": _told("mdn"),
    "feedback": _told("feedback"),
    "from": _from,
    "to": lambda case, served, wanted: _equal(_points(served.message["to"]), _shown(wanted)),
    "date": _date,
    "headers": _headers,
    "attachments": _attachments,
    "attachments_seen": _is(lambda served: [one["content_type"] for one in served.message["attachments"]]),
    "contents": _contents,
    "sniffed": _is(lambda served: [one or UNKNOWN for one in served.stored["sniffed"]]),
    "risks": _is(lambda served: [one["risk"] or "none" for one in served.message["attachments"]]),
    "flags": _flags,
    "facts": lambda case, served, wanted: _equal([f for f in served.stored["facts"] if f in wanted], wanted),
    "protection": _protection,
    "text": _text("text"),
    "text_is": _text("text"),
    "text_contains": _holds("text"),
    "text_lacks": _holds("text", lacks=True),
    "html": lambda case, served, wanted: _equal((served.message["html"] or "").strip() or None, wanted),
    "html_contains": _holds("html"),
    "html_lacks": _holds("html", lacks=True),
    "extracted_text": _text("extracted_text"),
    "extracted_contains": _holds("extracted_text"),
    "extracted_lacks": _holds("extracted_text", lacks=True),
    "language": _is(lambda served: served.message["triage"]["language"] or ""),
    "verification": _verification,
    "refs": _refs,
    "deceptive": _deceptive,
}


def _equal(found: object, wanted: object) -> None:
    assert found == wanted
