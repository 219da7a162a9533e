"""Base subjects (RFC 5256 §2.1)."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap.subject import BaseSubject, base_subject

_PIECES = [
    "re",
    "Re:",
    "FW:",
    "fwd :",
    "[list]",
    "[fwd:",
    "]",
    "[",
    " ",
    "(fwd)",
    "(FWD)",
    "\t",
    ":",
    "x",
    "ü",
    "re[2]:",
]
SUBJECTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(_PIECES), max_size=14).map("".join))


def _model(subject: str) -> BaseSubject:
    """The steps of the RFC as they are written, one piece at a time."""
    blob = r"\[[^\[\]]*\][ \t]*"
    text = re.sub(r"[\t\r\n ]+", " ", subject)
    reply = False
    while True:
        while trailer := re.search(r"(\(fwd\)| )\Z", text, re.IGNORECASE):
            reply = reply or trailer[0] != " "
            text = text[: trailer.start()]
        while True:
            if leader := re.match(rf"(?:(?:{blob})*(?:re|fwd?)[ \t]*(?:{blob})?:| )", text, re.IGNORECASE):
                reply = reply or leader[0] != " "
                text = text[leader.end() :]
            elif (one := re.match(blob, text)) and text[one.end() :].strip(" "):
                text = text[one.end() :]
            else:
                break
        if text.lower().startswith("[fwd:") and text.endswith("]"):
            text, reply = text[5:-1], True
        else:
            return BaseSubject(text, reply)


@pytest.mark.covers("RFC 5256 §2.1")
@pytest.mark.parametrize(
    ("subject", "base", "is_reply"),
    [
        ("Hello", "Hello", False),
        ("Re: Hello", "Hello", True),
        ("RE : re:Fwd: FW: Hello  there", "Hello there", True),
        ("Re[4]: [list] re [x]: Hello (fwd) (FWD) ", "Hello", True),
        ("[list] Hello", "Hello", False),
        ("[a] [b] [c]", "[c]", False),
        ("[Fwd: Re: Hello]", "Hello", True),
        ("[fwd: [fwd: Hello (fwd)]]", "Hello", True),
        ("Aw: Hello", "Aw: Hello", False),
        ("Regarding: us", "Regarding: us", False),
        ("Re:", "", True),
        ("  \t ", "", False),
        ("Hello (fwd) more", "Hello (fwd) more", False),
        ("[fwd:]", "", True),
    ],
)
def test_examples(subject: str, base: str, is_reply: bool) -> None:
    assert base_subject(subject) == (base, is_reply)


@pytest.mark.covers("RFC 5256 §2.1")
@given(SUBJECTS)
def test_agrees_with_the_steps_as_written(subject: str) -> None:
    assert base_subject(subject) == _model(subject)


@given(SUBJECTS)
def test_a_base_has_itself_as_base(subject: str) -> None:
    base = base_subject(subject).text
    assert base_subject(base) == (base, False)


@pytest.mark.parametrize("piece", ["[a]", "[a", "re:", "[fwd:", "re [", "(fwd)", " ", "]", "[]re:"])
def test_takes_linear_time(piece: str) -> None:
    begin = time.perf_counter()
    for text in (piece * 50_000, piece * 50_000 + "]" * 50_000):
        base_subject(text)
    assert time.perf_counter() - begin < 5
