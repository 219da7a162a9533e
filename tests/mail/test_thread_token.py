"""Thread tokens: layout, verification, rotation."""

import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.address import Address
from postroom.mail.thread_token import (
    MAX_SEQ,
    ThreadKey,
    TokenCheck,
    TokenState,
    looks_like_token,
    mint,
    verify,
    with_token,
)

NOW = datetime(2026, 3, 5, tzinfo=UTC)
KEY = ThreadKey("0", bytes(range(32)))
OLD = ThreadKey("z", bytes(32), NOW + timedelta(days=90))
RING = {"0": KEY, "z": OLD}
IDENTITY = "idn_01J9Z3K8V4QW7X2M5N6P8R0T1Y"
OTHER = "idn_01J9Z3K8V4QW7X2M5N6P8R0T1Z"
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def test_layout_by_hand() -> None:
    data = b"pm-thr\x010" + IDENTITY.encode() + (115).to_bytes(8, "big")
    assert len(data) == 46
    bits = "".join(f"{octet:08b}" for octet in hmac.digest(KEY.secret, data, "sha256")[:5])
    mac = "".join(ALPHABET[int(bits[at : at + 5], 2)] for at in range(0, 40, 5))
    assert mint(KEY, IDENTITY, 115) == f"t03k.{mac}"  # kid 0, and 115 is 3, 19


@pytest.mark.parametrize(
    ("key", "seq", "digest", "token"),
    [  # the beginning of each digest as `openssl dgst -sha256 -mac HMAC` writes it
        (KEY, 115, "ff370c85ae", "t03k.zwvgs1de"),
        (ThreadKey("z", bytes(range(32))), 1, "5e1dbdea8f", "tz1.brevvtmf"),
        (KEY, MAX_SEQ, "5348852991", "t0zzzzzzzzzzzz.ad48aach"),
    ],
)
@pytest.mark.covers("edge:A2")
def test_vectors(key: ThreadKey, seq: int, digest: str, token: str) -> None:
    assert mint(key, IDENTITY, seq) == token
    number = int(digest, 16)
    assert "".join(ALPHABET[number >> shift & 31] for shift in range(35, -1, -5)) == token[-8:]


@pytest.mark.parametrize("seq", [1, 115, 31 * 32, MAX_SEQ])
@pytest.mark.covers("edge:A2", "edge:D10")
def test_every_bit_counts(seq: int) -> None:
    token = mint(KEY, IDENTITY, seq)
    for at, char in enumerate(token):
        for bit in range(5) if char != "." and at else ():
            other = token[:at] + ALPHABET[ALPHABET.index(char) ^ 1 << bit] + token[at + 1 :]
            assert verify(other, IDENTITY, RING, NOW).state is not TokenState.VALID, other


@given(st.integers(1, MAX_SEQ), st.sampled_from([KEY, OLD]))
@pytest.mark.covers("edge:A2", "FR-OUT-6")
def test_minted_tokens_verify_in_any_case(seq: int, key: ThreadKey) -> None:
    token = mint(key, IDENTITY, seq)
    assert len(token) <= 23
    assert looks_like_token(token)
    wanted = TokenCheck(TokenState.VALID, seq, key.kid, key is KEY)
    assert verify(token, IDENTITY, RING, NOW) == wanted
    assert verify(token.upper(), IDENTITY, RING, NOW) == wanted
    assert verify(token, OTHER, RING, NOW) == TokenCheck(TokenState.INVALID)
    assert verify(f"{token[:2]}0{token[2:]}", IDENTITY, RING, NOW).state is not TokenState.VALID  # one spelling only


@given(st.integers(1, MAX_SEQ), st.data())
@pytest.mark.covers("edge:A2", "edge:D10")
def test_no_other_character_verifies(seq: int, data: st.DataObject) -> None:
    token = mint(KEY, IDENTITY, seq)
    at = data.draw(st.integers(0, len(token) - 1))
    char = data.draw(st.sampled_from(ALPHABET + ".ilou!").filter(lambda c: c != token[at]))
    assert verify(token[:at] + char + token[at + 1 :], IDENTITY, RING, NOW).state is not TokenState.VALID


@given(st.text(st.sampled_from(ALPHABET + "t.+Kı")) | st.text())
def test_any_detail(detail: str) -> None:
    found = verify(detail, IDENTITY, RING, NOW)
    assert found.state is (TokenState.INVALID if looks_like_token(detail) else TokenState.ABSENT)


@pytest.mark.parametrize(
    ("detail", "state"),
    [
        (None, TokenState.ABSENT),
        ("", TokenState.ABSENT),
        ("news", TokenState.ABSENT),
        ("t03k.9f2mq7x", TokenState.ABSENT),
        ("t03k.9f2mq7xl", TokenState.ABSENT),
        ("t03k.9f2mq7x\u212a", TokenState.ABSENT),  # the Kelvin sign becomes k in lower case
        ("t03k.9f2mq7xa\n", TokenState.ABSENT),
        ("t003k.9f2mq7xa", TokenState.INVALID),
        ("t00.9f2mq7xa", TokenState.INVALID),
        ("t0zzzzzzzzzzzzz.9f2mq7xa", TokenState.ABSENT),
        ("t1100000000000.9f2mq7xa", TokenState.INVALID),
        ("t1k.9f2mq7xa", TokenState.INVALID),
    ],
)
def test_forms(detail: str | None, state: TokenState) -> None:
    assert verify(detail, IDENTITY, RING, NOW).state is state


def test_rotation() -> None:
    token = mint(OLD, IDENTITY, 7)
    assert verify(token, IDENTITY, RING, NOW) == TokenCheck(TokenState.VALID, 7, "z", False)
    assert verify(token, IDENTITY, RING, NOW + timedelta(days=90)).state is TokenState.INVALID
    assert verify(token, IDENTITY, {"0": KEY}, NOW).state is TokenState.INVALID
    assert verify(token, IDENTITY, {"z": ThreadKey("z", bytes([1]) * 32)}, NOW).state is TokenState.INVALID


@pytest.mark.covers("edge:A12")
def test_room_for_the_longest_token() -> None:
    token = mint(KEY, IDENTITY, MAX_SEQ)
    made = with_token(Address("Ann", "a" * 40, "agents.example"), token)
    assert (made.name, len(made.local)) == ("Ann", 64)
    with pytest.raises(ValueError):
        with_token(Address("", "a" * 41, "agents.example"), token)
    with pytest.raises(ValueError):
        with_token(Address("", "a+b", "agents.example"), token)


@pytest.mark.parametrize(
    ("identity", "seq"), [(IDENTITY, 0), (IDENTITY, MAX_SEQ + 1), ("idn_x", 1), (IDENTITY.lower(), 1)]
)
def test_what_cannot_be_minted(identity: str, seq: int) -> None:
    with pytest.raises(ValueError):
        mint(KEY, identity, seq)


@pytest.mark.parametrize(("kid", "secret"), [("l", bytes(32)), ("00", bytes(32)), ("0", bytes(31))])
def test_keys(kid: str, secret: bytes) -> None:
    with pytest.raises(ValueError):
        ThreadKey(kid, secret)
    assert "secret" not in repr(KEY)
