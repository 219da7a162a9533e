"""Return paths: layout, verification, and that nothing else verifies."""

import hmac

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.mail import crockford
from postroom.mail.return_path import MAX_LOCAL, MAX_NUMBER, DeliveryRef, kid_of, mint, verify

SECRET = bytes(range(32))
OTHER = bytes(32)
SECRETS = {"0": SECRET, "z": OTHER}
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
NUMBERS = st.integers(1, MAX_NUMBER)


@pytest.mark.covers("mail-server:C5", "security-privacy:A6.2")
def test_layout_by_hand() -> None:
    data = b"pm-bounce\x01" + b"0" + (7).to_bytes(8, "big") + (115).to_bytes(8, "big")
    bits = "".join(f"{octet:08b}" for octet in hmac.digest(SECRET, data, "sha256")[:10])
    mac = "".join(ALPHABET[int(bits[at : at + 5], 2)] for at in range(0, 80, 5))
    assert mint("0", SECRET, DeliveryRef(7, 115)) == f"bounces+07.3k.{mac}"  # 115 is 3, 19


@given(NUMBERS, NUMBERS, st.sampled_from(sorted(SECRETS)))
@example(MAX_NUMBER, MAX_NUMBER, "z")
@pytest.mark.covers("edge:D11", "RFC 5321 §4.5.3.1.1")
def test_what_was_minted_verifies_in_any_case(tenant: int, delivery: int, kid: str) -> None:
    ref = DeliveryRef(tenant, delivery)
    local = mint(kid, SECRETS[kid], ref)
    assert len(local) <= MAX_LOCAL <= 64
    assert local == local.lower()
    for spelling in (local, local.upper(), local.title()):
        assert kid_of(spelling) == kid
        assert verify(spelling, SECRETS) == ref
    assert verify(local, {}) is None
    assert verify(local, {kid: bytes(31) + b"x"}) is None


@given(NUMBERS, NUMBERS, st.data())
@pytest.mark.covers("edge:D11")
def test_no_other_character_verifies(tenant: int, delivery: int, data: st.DataObject) -> None:
    local = mint("0", SECRET, DeliveryRef(tenant, delivery))
    at = data.draw(st.integers(0, len(local) - 1))
    char = data.draw(st.sampled_from(ALPHABET + "+.ilou!=\n").filter(lambda c: c != local[at]))
    assert verify(local[:at] + char + local[at + 1 :], SECRETS) is None
    inserted = data.draw(st.integers(0, len(local)))
    assert verify(local[:inserted] + char + local[inserted:], SECRETS) is None


@given(st.text(st.sampled_from(ALPHABET + ".+Kı")) | st.text())
@example("bounces+0" + "z" * 13 + ".1." + "0" * 16)
@example("bounces+001.1." + "0" * 16)
@example("bounces+0")
@example("bounces+01.1." + "0" * 15 + "\u212a")  # the Kelvin sign becomes k in lower case
@example("")
def test_anything_else(local: str) -> None:
    assert verify(local, SECRETS) is None
    assert verify("bounces+" + local, SECRETS) is None


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (MAX_NUMBER + 1, 1), (1, MAX_NUMBER + 1), (-1, 1)])
def test_references_that_are_none(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="key of the database"):
        DeliveryRef(*numbers)


@pytest.mark.parametrize(("kid", "secret"), [("", SECRET), ("ab", SECRET), ("i", SECRET), ("0", SECRET[:31])])
def test_keys_that_are_none(kid: str, secret: bytes) -> None:
    with pytest.raises(ValueError, match="32 octets"):
        mint(kid, secret, DeliveryRef(1, 1))


@given(st.integers(0, 1 << 200))
def test_base_32(number: int) -> None:
    digits = crockford.encode(number)
    assert crockford.decode(digits) == number
    assert not digits.startswith("0")
    octets = number.to_bytes(30, "big")
    assert crockford.decode(crockford.of_octets(octets)) == number
    assert len(crockford.of_octets(octets)) == 48
    with pytest.raises(ValueError, match="fives"):
        crockford.of_octets(octets + b"x")
