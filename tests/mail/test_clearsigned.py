"""Text that is signed where it stands (edge row B9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.clearsigned import unwrapped
from postroom.mail.content import read
from postroom.mail.mime import parse

SIGNED = (
    "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nHello Anna,\n- --\nBob\n- - a list\n"
    "-----BEGIN PGP SIGNATURE-----\n\niQEzBAEBCAAdFiEE\n=aBcD\n-----END PGP SIGNATURE-----\n"
)


@pytest.mark.covers("edge:B9", "RFC 9580 §7")
def test_what_was_signed_is_what_is_read() -> None:
    assert unwrapped(SIGNED) == "Hello Anna,\n--\nBob\n- a list\n"
    assert unwrapped(f"Before\n{SIGNED}After\n{SIGNED}") == (
        "Before\nHello Anna,\n--\nBob\n- a list\nAfter\nHello Anna,\n--\nBob\n- a list\n"
    )
    raw = b"From: a@example.com\r\n\r\n" + SIGNED.replace("\n", "\r\n").encode()
    assert read(raw, parse(raw)).extracted_text.startswith("Hello Anna,")
    assert "PGP" not in read(raw, parse(raw)).text


@pytest.mark.parametrize("cut", ["Hash: SHA256\n\n", "-----BEGIN PGP SIGNATURE-----", "-----END PGP SIGNATURE-----"])
def test_what_is_not_whole_stays(cut: str) -> None:
    text = SIGNED.replace(cut, "")
    assert unwrapped(text) == text


PIECES = st.sampled_from([*SIGNED.splitlines(keepends=True), SIGNED, "\n", "> ", "x", "-----"])


@given(st.lists(PIECES, max_size=12))
def test_nothing_else_changes(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = unwrapped(text)
    assert len(found) <= len(text)
    if "-----BEGIN PGP SIGNED MESSAGE-----\n" not in text:
        assert found == text


def test_many_beginnings_take_linear_time() -> None:
    text = "-----BEGIN PGP SIGNED MESSAGE-----\n\n" * 20_000
    assert unwrapped(text) == text
