"""ENVELOPE read back."""

from __future__ import annotations

from email.header import Header

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.envelope import render_envelope
from postroom.mail.envelope_reading import NOBODY, EnvelopeValues, Person, read_envelope, read_people
from postroom.mail.header import Headers

WORDS = st.text(st.sampled_from('aZ 1"\\().é日'), max_size=12).map(str.strip)
NAMES = st.text(st.sampled_from("abc xyzé日"), min_size=1, max_size=12).map(lambda text: f"N{text}".strip())


def _envelope(**fields: str) -> bytes:
    block = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return render_envelope(Headers.parse(block.encode() + b"\r\n"))


@pytest.mark.covers("RFC 3501 §7.4.2")
@given(WORDS, st.lists(NAMES, max_size=3), st.booleans())
def test_what_was_written_is_read(subject: str, names: list[str], literal: bool) -> None:
    local = "ü" if literal else "u"
    people = [Person(" ".join(name.split()), local, f"d{n}.example") for n, name in enumerate(names)]
    listed = ", ".join(f"{Header(one.name, 'utf-8').encode()} <{one.local}@{one.domain}>" for one in people)
    data = _envelope(Subject=subject, To=listed, Date="Mon, 31 Dec 2029 10:00:00 +0100")
    assert (b"}\r\n" in data) is (literal and bool(people))
    found = read_envelope(data)
    assert found.date == "Mon, 31 Dec 2029 10:00:00 +0100"
    assert found.to == (people[0] if people else NOBODY)
    assert found.cc == found.author == NOBODY
    assert " ".join(found.subject.split()) == " ".join(subject.split())
    assert read_people(data) == ([], people, [], [])


@pytest.mark.parametrize("data", [b"", b"x", b"(NIL", b"(NIL NIL)", b'("a" "b" ((NIL NIL NIL NIL)))', b"({9}\r\nab"])
def test_what_is_none_says_nothing(data: bytes) -> None:
    assert read_envelope(data) == EnvelopeValues("", "", NOBODY, NOBODY, NOBODY)
    assert read_people(data) == ([], [], [], [])
