"""The corpus: messages with what is expected of them, read by the libraries alone (requirements §6).

A case is `<row>-<what>.eml` with a `.toml` of the same name beside it. `[expect]` holds any of the keys of `CHECKS`; a
new key is a new function there. `flags` are those that the libraries know; the tables name fields of what is read, and
those alone are compared.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

from postroom.mail import automation, body, calendar, cms, mime, reports, tnef, transfer
from postroom.mail import protection as protections
from postroom.mail.automation import Classification
from postroom.mail.safety import Inspected, inspect
from tests.corpus import reading

HERE: Final = Path(__file__).parent
CASES: Final = sorted(HERE.glob("*/*.eml"))
_NAME: Final = re.compile(r"[a-z]\d{1,2}-[a-z0-9-]+")
_DOMAIN_OF_ADDRESS: Final = re.compile(rb"[A-Za-z0-9._%+-]@([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)")
_RESERVED: Final = re.compile(rb"(?i)(?:.*\.)?(?:example(?:\.(?:com|net|org))?|test|invalid|localhost)\.?")
_SOURCES: Final = ("authored", "generated:", "derived:", "imported:")
_MAX_BYTES: Final = 1024 * 1024


@dataclass
class Case:
    """A message, and what the libraries make of it when they are asked."""

    raw: bytes
    known: dict[str, Any]

    @cached_property
    def message(self) -> mime.Message:
        return mime.parse(self.raw)

    @cached_property
    def classified(self) -> Classification:
        return automation.classify(self.raw, self.message, null_sender=self.known["envelope"]["from"] == "")

    @cached_property
    def attachments(self) -> list[body.AttachmentInfo]:
        return body.attachments(self.message, self.raw)

    @cached_property
    def inspected(self) -> list[Inspected]:
        parts = [self.message.part(item.path) for item in self.attachments]
        return [
            inspect(transfer.decoded(self.raw, part), item.content_type, item.filename)
            for part, item in zip(parts, self.attachments, strict=True)
            if part is not None
        ]


def load(path: Path) -> Case:
    return Case(path.read_bytes(), tomllib.loads(path.with_suffix(".toml").read_text("utf-8")))


def _text_contains(case: Case, wanted: list[str]) -> None:
    text = reading.reading(case.raw).text
    assert [piece for piece in wanted if piece not in text] == []


def _flags(case: Case, wanted: list[str]) -> None:
    found = set()
    if case.message.degraded:
        found.add("parse_degraded")
    if protections.protection(case.raw, case.message).encrypted:
        found.add("encrypted")
    if reading.reading(case.raw).hidden:
        found.add("hidden_text")
    assert found == set(wanted)


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
_check("kind", lambda case: case.classified.kind.value)
_check("automated", lambda case: case.classified.automated)
_check("signs", lambda case: [sign.value for sign in case.classified.evidence])
_check("hop", lambda case: case.classified.hop)
_check("attachments", lambda case: [item.filename for item in case.attachments])
_check("sniffed", lambda case: [item.sniffed_type for item in case.inspected])
_check("risks", lambda case: [item.risk.value if item.risk else "none" for item in case.inspected])
CHECKS.update(
    {
        "text_contains": _text_contains,
        "flags": _flags,
        "protection": _protection,
        "tnef": _tnef,
        "calendar": _calendar,
        "dsn": _dsn,
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
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_as_expected(path: Path) -> None:
    case = load(path)
    for name, wanted in case.known["expect"].items():
        CHECKS[name](case, wanted)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    case = load(path)
    known = case.known
    assert _NAME.fullmatch(path.stem)
    assert known["id"] == path.stem
    assert known["edge"]
    assert known["source"].startswith(_SOURCES)
    assert known["licence"]
    assert known["expect"]
    assert set(known["envelope"]) == {"from", "to"}
    assert len(case.raw) <= _MAX_BYTES
    domains = set(_DOMAIN_OF_ADDRESS.findall(case.raw))
    assert [name for name in domains if not _RESERVED.fullmatch(name)] == []


def test_every_expectation_has_its_message() -> None:
    assert {path.with_suffix(".eml") for path in HERE.glob("*/*.toml")} == set(CASES)
    assert CASES
