"""Codes of authenticator apps and recovery codes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from datetime import UTC, datetime
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import totp

SECRET = b"12345678901234567890"


def oracle(secret: bytes, step: int) -> str:
    """RFC 4226 §5.3, by hand."""
    digest = hmac.new(secret, struct.pack(">Q", step), hashlib.sha1).digest()
    offset = digest[-1] & 15
    return f"{(int.from_bytes(digest[offset : offset + 4], 'big') & 0x7FFFFFFF) % 10**6:06}"


@pytest.mark.covers("RFC 6238", "mail-server:F4")
@pytest.mark.parametrize(
    ("at", "code"),
    [
        (59, "287082"),
        (1111111109, "081804"),
        (1111111111, "050471"),
        (1234567890, "005924"),
        (2000000000, "279037"),
        (20000000000, "353130"),
    ],
)
def test_the_vectors_of_the_standard(at: int, code: str) -> None:
    now = datetime.fromtimestamp(at, UTC)
    assert totp.code_at(SECRET, totp.step_of(now)) == code
    assert totp.matching_step(SECRET, code, now, 0) == at // 30


@given(st.binary(min_size=20, max_size=20), st.integers(10, 2**32), st.integers(-3, 3))
def test_one_step_early_or_late_is_taken(secret: bytes, step: int, off: int) -> None:
    now = datetime.fromtimestamp(step * 30 + 7, UTC)
    typed = oracle(secret, step + off)
    window = {at: oracle(secret, at) for at in (step - 1, step, step + 1)}
    wanted = max((at for at, code in window.items() if code == typed), default=None)
    assert totp.matching_step(secret, typed, now, 0) == wanted
    assert totp.matching_step(secret, f" {typed[:3]} {typed[3:]} ", now, 0) == wanted
    if wanted is not None:
        # Used: neither it nor an older one is taken again.
        again = totp.matching_step(secret, typed, now, wanted)
        assert again is None or again > wanted


@given(st.text(max_size=80))
def test_what_is_no_code_matches_nothing(typed: str) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    plain = typed.strip().replace(" ", "")
    if not (plain.isascii() and plain.isdigit() and len(plain) == 6):
        assert totp.matching_step(SECRET, typed, now, 0) is None


def test_what_an_app_is_told() -> None:
    shown = totp.shown_secret(SECRET)
    assert base64.b32decode(shown) == SECRET
    parts = urlsplit(totp.provisioning_uri(SECRET, "ada@example.com", "Postroom (agents.example)"))
    assert (parts.scheme, parts.netloc) == ("otpauth", "totp")
    assert unquote(parts.path) == "/Postroom (agents.example):ada@example.com"
    query = parse_qs(parts.query)
    assert query["secret"] == [shown]
    assert (query["digits"], query["period"], query["algorithm"]) == (["6"], ["30"], ["SHA1"])


@pytest.mark.covers("mail-server:F4", "decisions:D7")
@given(st.binary(min_size=10, max_size=10))
def test_recovery_codes_are_read_however_they_are_typed(seed: bytes) -> None:
    codes = totp.draw_recovery_codes(lambda count: seed[:count])
    assert len(codes) == 10
    for code in codes:
        assert [len(group) for group in code.split("-")] == [4, 4, 4, 4]
        plain = totp.read_recovery_code(code)
        assert plain is not None
        assert base64.b32decode(plain) == seed
        for typed in (code.lower(), code.replace("-", " "), f"  {code}\t", plain):
            assert totp.read_recovery_code(typed) == plain


@given(st.text(max_size=100))
def test_codes_of_an_app_are_no_recovery_codes(typed: str) -> None:
    if totp.read_recovery_code(typed) is not None:
        assert totp.matching_step(SECRET, typed, datetime(2030, 1, 1, tzinfo=UTC), 0) is None
