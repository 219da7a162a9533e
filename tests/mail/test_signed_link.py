"""Tokens of links to files: what opens, and that nothing else does (outbound §6.8)."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.signed_link import FileLink, kid_of, mint, verify

SECRET, OTHER = b"s" * 32, b"o" * 32
ULIDS = [f"01ARZ3NDEKTSV4RRFFQ69G5FA{n}" for n in "VWXYZ"]
LINK = FileLink(f"ten_{ULIDS[0]}", f"idn_{ULIDS[1]}", f"msg_{ULIDS[2]}", f"att_{ULIDS[3]}", 2_000_000_000)
TOKEN = mint("0", SECRET, LINK)
NOW = 1_999_999_999.9


@pytest.mark.covers("edge:G5")
def test_the_form_is_that_of_the_specification() -> None:
    payload = f"l1:0:att:{LINK.tenant}:{LINK.identity}:{LINK.message}:{LINK.attachment}:2000000000".encode()
    mac = hmac.new(SECRET, payload, hashlib.sha256).digest()[:16]
    assert base64.urlsafe_b64encode(payload + mac).rstrip(b"=").decode() == TOKEN
    assert kid_of(TOKEN) == "0"
    assert verify(TOKEN, {"0": SECRET}, NOW) == LINK


def test_it_ends_when_it_says() -> None:
    assert verify(TOKEN, {"0": SECRET}, 2_000_000_000.0) is None
    assert verify(TOKEN, {"0": OTHER}, NOW) is None
    assert verify(TOKEN, {"1": SECRET}, NOW) is None
    assert verify(TOKEN, {}, NOW) is None


@given(at=st.integers(0, len(TOKEN) - 1), char=st.sampled_from("ABCabc019-_.=+/ é\x00"))
def test_no_other_spelling_opens(at: int, char: str) -> None:
    for changed in (TOKEN[:at] + char + TOKEN[at + 1 :], TOKEN[:at] + char + TOKEN[at:], TOKEN[:at] + TOKEN[at + 1 :]):
        if changed != TOKEN:
            assert verify(changed, {"0": SECRET}, NOW) is None
    assert verify(TOKEN + "=", {"0": SECRET}, NOW) is None


@given(st.text(max_size=600) | st.binary(max_size=300).map(lambda b: base64.urlsafe_b64encode(b).rstrip(b"=").decode()))
def test_whatever_comes_is_only_refused(token: str) -> None:
    assert verify(token, {"0": SECRET}, NOW) is None
    kid_of(token)


@pytest.mark.parametrize("payload", [b"l1:0:export:x:y:2000000000", b"l2:0:att:a:b:c:d:9", b""])
def test_a_signed_text_of_another_form_opens_nothing(payload: bytes) -> None:
    mac = hmac.digest(SECRET, payload, "sha256")[:16]
    assert verify(base64.urlsafe_b64encode(payload + mac).rstrip(b"=").decode(), {"0": SECRET}, NOW) is None


@pytest.mark.parametrize(
    ("kid", "changes"),
    [
        ("00", {}),
        ("", {}),
        ("i", {}),
        ("0", {"tenant": "ten_1"}),
        ("0", {"message": f"msg_{ULIDS[0]}:x"}),
        ("0", {"expires": 0}),
    ],
)
def test_what_is_no_id_is_not_signed(kid: str, changes: dict[str, object]) -> None:
    values = {name: getattr(LINK, name) for name in ("tenant", "identity", "message", "attachment", "expires")}
    with pytest.raises(ValueError, match="link"):
        mint(kid, SECRET, FileLink(**{**values, **changes}))
