"""DKIM against dkimpy, which others verify and sign with."""

import base64
import re
import time
from collections.abc import Callable
from typing import Any

import dkim  # type: ignore[import-untyped]  # it has no annotations
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from postroom.mailauth.canonical import Canonicalisation
from postroom.mailauth.dkim_key import Algorithm, PrivateKey
from postroom.mailauth.dkim_result import Reason, Status
from postroom.mailauth.dkim_sign import Signer, SigningPolicy, sign_message
from tests.mailauth.dkim_tools import DOMAIN, MAIL, NOW, ed_key, one, published, rsa_key, signer

KEYS = pytest.mark.parametrize("make", [rsa_key, ed_key])
FORMS = st.sampled_from(list(Canonicalisation))
VALUES = st.lists(st.sampled_from([b"a", b" ", b"\t", b"\r\n ", b"\r\n\t", b"b:;=", b"\xc3\xa4"]), max_size=8).map(
    lambda parts: b"x" + b"".join(parts) + b"y"
)
MESSAGES = st.builds(
    lambda fields, body: (
        b"From: a@example.com\r\n" + b"".join(b"%b:%b\r\n" % field for field in fields) + b"\r\n" + body
    ),
    st.lists(st.tuples(st.sampled_from([b"To", b"Cc", b"Subject", b"X-Other", b"subject"]), VALUES), max_size=6),
    st.lists(st.sampled_from([b"a", b" ", b"\t", b"\r\n", b"\r\n\r\n", b".", b"b c", b"\xff"]), max_size=20).map(
        lambda parts: b"".join(parts) + b"\r\n"
    ),
)


def txt(name: bytes, timeout: float = 0) -> bytes:
    found = published().records[name.decode().rstrip(".")]
    assert not isinstance(found, Exception)
    return found[0]


def they_verify(raw: bytes, index: int = 0) -> bool:
    return bool(dkim.DKIM(raw).verify(idx=index, dnsfunc=txt))


def they_sign(raw: bytes, key: PrivateKey, how: tuple[Canonicalisation, Canonicalisation], **more: Any) -> bytes:
    secret = key.to_pem() if key.algorithm is Algorithm.RSA_SHA256 else base64.b64encode(key.to_der()[-32:])
    field: bytes = dkim.sign(
        raw,
        key.algorithm.key_type.encode(),
        DOMAIN.encode(),
        secret,
        canonicalize=(how[0].value.encode(), how[1].value.encode()),
        signature_algorithm=key.algorithm.value.encode(),
        **more,
    )
    return field + raw


@pytest.mark.covers("mail-server:C8", "RFC 6376", "RFC 8463")
@KEYS
@settings(deadline=None)
@given(raw=MESSAGES, header=FORMS, body=FORMS)
def test_they_verify_what_we_sign(
    make: Callable[[], PrivateKey], raw: bytes, header: Canonicalisation, body: Canonicalisation
) -> None:
    policy = SigningPolicy(header=header, body=body)
    signed = sign_message(raw, [signer(make())], signed_at=NOW, policy=policy)
    assert one(signed).status is Status.PASS
    assert they_verify(signed)


@pytest.mark.covers("mail-server:B4", "RFC 6376", "RFC 8463")
@KEYS
@settings(deadline=None, max_examples=50)
@given(raw=MESSAGES, header=FORMS, body=FORMS, length=st.booleans())
def test_we_verify_what_they_sign(
    make: Callable[[], PrivateKey], raw: bytes, header: Canonicalisation, body: Canonicalisation, length: bool
) -> None:
    signed = they_sign(raw, make(), (header, body), length=length)
    result = one(signed, now=int(time.time()))  # which they sign with
    assert result.status is Status.PASS
    assert (result.body_length is not None) is length


@pytest.mark.covers("mail-server:C8")
def test_they_verify_both_of_two_signatures() -> None:
    signed = sign_message(MAIL, [signer(rsa_key()), signer(ed_key())], signed_at=NOW)
    assert they_verify(signed, 0)
    assert they_verify(signed, 1)


@pytest.mark.covers("mail-server:C8", "RFC 6376 §5.4")
def test_they_see_over_signing() -> None:
    signed = sign_message(MAIL, [signer(rsa_key())], signed_at=NOW)
    assert not they_verify(b"From: mallory@example.net\r\n" + signed)
    assert not they_verify(b"Reply-To: mallory@example.net\r\n" + signed)


@pytest.mark.covers("mail-server:C8")
def test_keys_of_a_thousand_bits_and_of_four_thousand() -> None:
    for bits in (1024, 4096):
        key = PrivateKey(rsa.generate_private_key(65537, bits))
        record = key.public_record().encode()
        signed = sign_message(MAIL, [Signer(DOMAIN, "s", key)], signed_at=NOW)
        assert dkim.verify(signed, dnsfunc=lambda name, timeout=0, record=record: record)
        numbers = key.public_key
        assert isinstance(numbers, rsa.RSAPublicKey)
        assert numbers.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ) == base64.b64decode(record.partition(b"p=")[2])


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(MAIL)), st.sampled_from([b"", b" ", b"\r\n", b"x", b"\t"]), st.integers(0, 2), FORMS)
def test_we_agree_about_changes(where: int, put: bytes, removed: int, how: Canonicalisation) -> None:
    """But for headers that are no list of fields, which they read as they can."""
    signed = sign_message(MAIL, [signer(ed_key())], signed_at=NOW, policy=SigningPolicy(header=how, body=how))
    at = len(signed) - len(MAIL) + where
    changed = signed[:at] + put + signed[at + removed :]
    # What a CR of its own means, and a last line that does not end, is nowhere said.
    assume(changed.endswith(b"\r\n") and b"\r" not in changed.replace(b"\r\n", b""))
    # Space before the colon of a field (RFC 5322 §4.5) hides the field from them, though RFC 6376 §3.4.2 removes it.
    assume(re.search(rb"(?m)^[!-9;-~]+[ \t]+:", changed) is None)
    try:
        theirs = they_verify(changed)
    except dkim.DKIMException:
        theirs = False
    ours = one(changed)
    assert ours.reason is Reason.MALFORMED_MESSAGE or (ours.status is Status.PASS) == theirs
