"""SASLprep, by the examples of its RFC and by its tables."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.sasl import PrepError, saslprep


@pytest.mark.covers("RFC 4013 §3")
@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("\x07", None),
        ("\u06271", None),
    ],
)
def test_the_examples_of_the_rfc(text: str, prepared: str | None) -> None:
    if prepared is None:
        with pytest.raises(PrepError):
            saslprep(text)
    else:
        assert saslprep(text) == prepared


@pytest.mark.covers("RFC 4013 §2")
@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("", ""),
        ("\u00ad", ""),
        ("a\u3000b", "a b"),
        ("\x7f", None),
        ("é\x07", None),
        ("é\u0340", "é\u0300"),  # mapped before it is prohibited
        ("\ue000", None),
        ("\ufffd", None),
        ("\U000e0001", None),
        ("\u2028", None),
        ("\ufdd0", None),
        ("\u05d0\u05d1", "\u05d0\u05d1"),
        ("\u05d01\u05d1", "\u05d01\u05d1"),
        ("\u05d0a\u05d1", None),
        ("1\u05d0", None),
    ],
)
def test_mapping_prohibition_and_direction(text: str, prepared: str | None) -> None:
    if prepared is None:
        with pytest.raises(PrepError):
            saslprep(text)
    else:
        assert saslprep(text) == prepared


@pytest.mark.covers("RFC 4013 §2.5", "RFC 3454 §7")
def test_what_unicode_had_not_yet() -> None:
    assert saslprep("\U0001f600") == "\U0001f600"
    with pytest.raises(PrepError):
        saslprep("\U0001f600", stored=True)


@given(text=st.text())
def test_what_is_prepared_stays(text: str) -> None:
    try:
        prepared = saslprep(text)
    except PrepError:
        return
    assert saslprep(prepared) == prepared
    assert unicodedata.ucd_3_2_0.normalize("NFKC", prepared) == prepared
    assert not any(unicodedata.category(char) == "Cc" for char in prepared)


@given(text=st.text(st.characters(codec="ascii")))
def test_ascii_is_not_changed(text: str) -> None:
    controls = any(unicodedata.category(char) == "Cc" for char in text)
    try:
        assert saslprep(text) == text
        assert not controls
    except PrepError:
        assert controls
