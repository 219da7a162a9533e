"""The corpus: messages with what is expected of them, read by the libraries alone (requirements §6).

A case is `<row>-<what>.eml` with a `.toml` of the same name beside it. `[expect]` holds any of the keys of `CHECKS`; a
new key is a new function there. `flags` are those that the libraries know; the tables name fields of what is read, and
those alone are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from postroom.mail import body, calendar, cms, reports, tnef, transfer
from postroom.mail import protection as protections
from postroom.mail.safety import UNKNOWN
from tests.corpus import reading
from tests.corpus.cases import EXPECTED, Case, load
from tests.corpus.judging import METHODS, check_auth, judge

OF_A_MAILBOX: Final = frozenset(("thread", "thread_subject", "join_unverified"))
"""What depends on the messages that are there already: `test_over_smtp` alone can tell."""
FLAGS: Final = frozenset(("parse_degraded", "encrypted", "hidden_text"))


def _text_contains(case: Case, wanted: list[str]) -> None:
    text = reading.reading(case.raw).text
    assert [piece for piece in wanted if piece not in text] == []


def _flags(case: Case, wanted: list[str]) -> None:
    assert FLAGS.intersection(case.described.facts) == set(wanted)


def _protection(case: Case, wanted: dict[str, Any]) -> None:
    found = protections.protection(case.raw, case.message)
    signature = found.signature
    assert found.encrypted is wanted["encrypted"]
    assert (found.encryption and found.encryption.value) == wanted.get("encryption")
    assert (signature and signature.type.value) == wanted.get("signature")
    assert (signature and signature.form.value) == wanted.get("form")
    assert signature is None or signature.status == "present_unverified"
    if "content" in wanted:
        assert found.part is not None
        inner = cms.signed_content(transfer.decoded(case.raw, found.part))
        assert inner is not None
        assert wanted["content"] in reading.reading(inner).text


def _tnef(case: Case, wanted: dict[str, Any]) -> None:
    (part,) = (
        part
        for part in reports.leaves(case.message.root)
        if tnef.says_tnef(part.content_type, body.filename(part)) and tnef.is_tnef(transfer.decoded(case.raw, part, 64))
    )
    found = tnef.unpack(transfer.decoded(case.raw, part))
    if wanted.get("kept"):
        assert found is None
        return
    assert found is not None
    assert [[a.filename, a.content_type, len(a.data)] for a in found.attachments] == wanted["attachments"]
    assert found.html == wanted.get("html")
    assert found.text == wanted.get("text")


def _calendar(case: Case, wanted: dict[str, Any]) -> None:
    found = case.classified.calendar
    assert found == calendar.find_invitation(case.raw, case.message)
    _same(found, {name: wanted.get(name) for name in calendar.Invitation.__slots__})


def _dsn(case: Case, wanted: dict[str, Any]) -> None:
    found = case.classified.dsn
    assert found is not None
    recipients = [[r.final_recipient, r.action and r.action.value, r.status] for r in found.recipients]
    assert recipients == wanted["recipients"]
    assert (found.report_class.value if found.report_class else "") == wanted["class"]
    _same(found, {name: value for name, value in wanted.items() if name not in ("recipients", "class")})


def _method(name: str) -> Callable[[Case, str], None]:
    def compare(case: Case, wanted: str) -> None:
        assert judge(case).auth["summary"][name] == wanted

    return compare


def _verdict(case: Case, wanted: str) -> None:
    assert judge(case).content.verdict == wanted


def _same(found: object, wanted: dict[str, Any]) -> None:
    assert found is not None
    values = {name: getattr(found, name) for name in wanted}
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()} == wanted


def _of_reading(check: Callable[[bytes, Any], None]) -> Callable[[Case, Any], None]:
    return lambda case, wanted: check(case.raw, wanted)


CHECKS: Final[dict[str, Callable[[Case, Any], None]]] = {}


def _check(name: str, read: Callable[[Case], Any]) -> None:
    def compare(case: Case, wanted: Any) -> None:
        assert read(case) == wanted

    CHECKS[name] = compare


_check("subject", lambda case: case.message.subject)
_check("message_id", lambda case: case.message.message_id)
_check("in_reply_to", lambda case: next(iter(case.message.in_reply_to), ""))
_check("references", lambda case: case.message.references)
_check("normalised", lambda case: case.described.thread_subject)
_check("kind", lambda case: case.classified.kind.value)
_check("automated", lambda case: case.classified.automated)
_check("signs", lambda case: [sign.value for sign in case.classified.evidence])
_check("hop", lambda case: case.classified.hop)
_check("attachments", lambda case: [part.filename for part in case.described.attachments])
_check("sniffed", lambda case: [part.sniffed_type or UNKNOWN for part in case.described.attachments])
_check("risks", lambda case: [part.risk or "none" for part in case.described.attachments])
CHECKS.update(
    {
        "text_contains": _text_contains,
        "flags": _flags,
        "protection": _protection,
        "tnef": _tnef,
        "calendar": _calendar,
        "dsn": _dsn,
        "verdict": _verdict,
        "auth": lambda case, wanted: check_auth(judge(case).auth, wanted),
        **{name: _method(name) for name in METHODS},
        "mdn": lambda case, wanted: _same(case.classified.mdn, wanted),
        "feedback": lambda case, wanted: _same(case.classified.feedback, wanted),
        **{name: _of_reading(check) for name, check in reading.CHECKS.items()},
    }
)


@pytest.mark.covers(
    "edge:B2",
    "edge:B4",
    "edge:B6",
    "edge:B7",
    "edge:B11",
    "edge:E1",
    "decisions:D27",
    "FR-IN-7",
    "FR-IN-9",
    "edge:B8",
    "edge:B9",
    "edge:B10",
    "edge:D4",
    "edge:D6",
    "FR-IN-6",
)
@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_as_expected(path: Path) -> None:
    case = load(path)
    for name, wanted in case.expect.items():
        if name not in OF_A_MAILBOX:
            CHECKS[name](case, wanted)
