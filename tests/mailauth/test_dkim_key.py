"""Keys of DKIM and their DNS records."""

import base64
import subprocess
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from postroom.mailauth.dkim_key import (
    Algorithm,
    PrivateKey,
    PrivateKeyError,
    record_name,
    split_strings,
    zone_file_value,
)
from postroom.mailauth.dkim_record import choose_record, fetch_record, parse_record, publishes
from postroom.mailauth.dkim_result import DkimError, Reason
from postroom.mailauth.resolver import NameNotFoundError, TemporaryResolverError
from tests.mailauth.dkim_tools import Answers, ed_key, rsa_key

KEYS = pytest.mark.parametrize("make", [rsa_key, ed_key])
PUBLIC = rsa_key().public_record().partition("p=")[2].encode()


def refused(text: bytes) -> Reason:
    with pytest.raises(DkimError) as caught:
        parse_record(text)
    return caught.value.reason


@pytest.mark.covers("mail-server:C8")
def test_the_default_is_rsa_2048() -> None:
    assert (rsa_key().algorithm, rsa_key().bits) == (Algorithm.RSA_SHA256, 2048)
    assert (ed_key().algorithm, ed_key().bits) == (Algorithm.ED25519_SHA256, 256)


@pytest.mark.covers("mail-server:C8")
@KEYS
def test_a_key_comes_back_from_storage(make: Callable[[], PrivateKey]) -> None:
    key = make()
    for again in (PrivateKey.from_der(key.to_der()), PrivateKey.from_pem(key.to_pem())):
        assert again.algorithm is key.algorithm
        assert again.public_record() == key.public_record()
        assert again.to_der() == key.to_der()


@pytest.mark.covers("mail-server:C8")
@KEYS
def test_a_key_does_not_show_itself(make: Callable[[], PrivateKey]) -> None:
    assert repr(make()) in ("<PrivateKey rsa-sha256 2048 bits>", "<PrivateKey ed25519-sha256 256 bits>")
    with pytest.raises(PrivateKeyError) as caught:
        PrivateKey.from_pem(make().to_pem()[:-40])
    assert str(caught.value) == "not an unencrypted private key"
    assert caught.value.__cause__ is None


def test_signatures_are_what_the_library_verifies() -> None:
    digest = bytes(range(32))
    public = rsa_key().public_key
    assert isinstance(public, rsa.RSAPublicKey)
    hashed = hashes.Hash(hashes.SHA256())
    hashed.update(b"abc")
    public.verify(rsa_key().sign_digest(hashed.finalize()), b"abc", padding.PKCS1v15(), hashes.SHA256())
    edwards = ed_key().public_key
    assert isinstance(edwards, ed25519.Ed25519PublicKey)
    edwards.verify(ed_key().sign_digest(digest), digest)


@pytest.mark.parametrize("command", [["genrsa", "2048"], ["genpkey", "-algorithm", "ed25519"]])
def test_keys_that_openssl_makes(command: list[str]) -> None:
    pem = subprocess.run(["openssl", *command], capture_output=True, check=True).stdout
    key = PrivateKey.from_pem(pem)
    public = subprocess.run(
        ["openssl", "pkey", "-pubout", "-outform", "DER"], input=pem, capture_output=True, check=True
    ).stdout
    value = base64.b64decode(key.public_record().partition("p=")[2])
    assert value == (public if key.algorithm is Algorithm.RSA_SHA256 else public[-32:])


def test_a_key_of_pkcs1_is_read() -> None:
    key = rsa.generate_private_key(65537, 2048)
    der = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    assert PrivateKey.from_der(der).public_key == key.public_key()


@pytest.mark.covers("RFC 8301 §3.2")
@pytest.mark.parametrize("bits", [512, 1023, 4097, 16384])
def test_sizes_that_verifiers_need_not_accept_are_not_made(bits: int) -> None:
    with pytest.raises(PrivateKeyError):
        PrivateKey.generate(bits=bits)


def test_what_is_no_key_for_dkim() -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    locked = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, pkcs8, serialization.BestAvailableEncryption(b"x")
    )
    for pem in (b"", b"x", locked, b"a" * 100_000, curve.private_bytes(serialization.Encoding.PEM, pkcs8, plain)):
        with pytest.raises(PrivateKeyError):
            PrivateKey.from_pem(pem)
    with pytest.raises(PrivateKeyError):
        PrivateKey.from_der(curve.private_bytes(serialization.Encoding.DER, pkcs8, plain))


@given(st.binary(max_size=200))
def test_any_bytes_as_a_key(data: bytes) -> None:
    for load in (PrivateKey.from_der, PrivateKey.from_pem):
        with pytest.raises(PrivateKeyError):
            load(data)


@pytest.mark.covers("mail-server:C8", "RFC 6376 §3.6.2.2")
@KEYS
def test_the_record_in_strings(make: Callable[[], PrivateKey]) -> None:
    record = make().public_record()
    strings = split_strings(record)
    assert b"".join(strings).decode() == record
    assert all(1 <= len(string) <= 255 for string in strings)
    assert len(strings) == (2 if make().algorithm is Algorithm.RSA_SHA256 else 1)
    assert zone_file_value(record).replace('" "', "") == f'"{record}"'
    assert record_name("pm1", "example.com") == "pm1._domainkey.example.com"


@pytest.mark.covers("RFC 6376 §3.6.1", "RFC 8463 §4")
@KEYS
def test_our_record_is_read_again(make: Callable[[], PrivateKey]) -> None:
    record = parse_record(make().public_record().encode())
    assert record.key == make().public_key
    assert record.bits == make().bits
    assert not record.testing
    assert not record.strict_identity
    assert publishes([make().public_record().encode()], make())


def test_whether_dns_has_our_key() -> None:
    spaced = b" v = DKIM1 ;p=\t" + PUBLIC[:9] + b" " + PUBLIC[9:] + b";"
    assert publishes([b"v=spf1 -all", spaced], rsa_key())
    assert not publishes([spaced], ed_key())
    assert not publishes([ed_key().public_record().encode()], PrivateKey.generate(Algorithm.ED25519_SHA256))
    assert not publishes([], rsa_key())


@pytest.mark.covers("RFC 6376 §3.6.1")
@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (b"p=%b", (False, False)),
        (b"v=DKIM1;k=rsa;t=y;p=%b", (True, False)),
        (b"v=DKIM1; t=x : s : y; h=sha1:sha256; s=tlsrpt:email; n=a note; x=1; p=%b", (True, True)),
        (b"v=DKIM1; s=*; t=; h=sha256; p=%b;", (False, False)),
    ],
)
def test_records_of_others(text: bytes, flags: tuple[bool, bool]) -> None:
    record = parse_record(text % PUBLIC)
    assert record.key == rsa_key().public_key
    assert (record.testing, record.strict_identity) == flags


@pytest.mark.covers("RFC 6376 §3.6.1", "RFC 6376 §6.1.2")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"v=DKIM1; p=", Reason.KEY_REVOKED),
        (b"p= ;", Reason.KEY_REVOKED),
        (b"v=DKIM1; k=rsa", Reason.KEY_SYNTAX),
        (b"k=rsa; v=DKIM1; p=" + PUBLIC, Reason.KEY_SYNTAX),
        (b"v=DKIM1; p=" + PUBLIC + b"; p=" + PUBLIC, Reason.KEY_SYNTAX),
        (b"v=DKIM1; p=" + PUBLIC[:-8], Reason.KEY_SYNTAX),
        (b"v=DKIM1; p=%%%", Reason.KEY_SYNTAX),
        (b"v=DKIM1; k=ed25519; p=" + PUBLIC, Reason.KEY_SYNTAX),
        (b"v=DKIM1; k=ed25519; p=" + base64.b64encode(bytes(31)), Reason.KEY_SYNTAX),
        (b"v=DKIM1; p=" + base64.b64encode(bytes(32)), Reason.KEY_SYNTAX),
        (b"v=DKIM1; n=" + b"a" * 4096 + b"; p=" + PUBLIC, Reason.KEY_SYNTAX),
        (b"v=DKIM1; h=sha1; p=" + PUBLIC, Reason.KEY_MISMATCH),
        (b"v=DKIM1; s=tlsrpt; p=" + PUBLIC, Reason.KEY_MISMATCH),
        (b"v=DKIM1; k=lattice; p=" + PUBLIC, Reason.NO_KEY),
        (b"v=DKIM2; p=" + PUBLIC, Reason.NO_KEY),
        (b"v=spf1 -all", Reason.NO_KEY),
        (b"a word", Reason.NO_KEY),
        (b"", Reason.NO_KEY),
    ],
)
def test_records_that_are_not_used(text: bytes, reason: Reason) -> None:
    assert refused(text) is reason


def test_a_key_of_another_kind_under_rsa() -> None:
    curve = ec.generate_private_key(ec.SECP256R1()).public_key()
    der = curve.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert refused(b"p=" + base64.b64encode(der)) is Reason.KEY_SYNTAX


@pytest.mark.covers("RFC 6376 §3.6.1")
def test_a_record_with_the_bare_rsa_key() -> None:
    der = rsa_key().public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.PKCS1)
    assert parse_record(b"p=" + base64.b64encode(der)).key == rsa_key().public_key


@pytest.mark.covers("RFC 8301 §3.2")
@pytest.mark.parametrize(
    ("bits", "exponent", "reason"),
    [
        (768, 65537, Reason.WEAK_KEY),
        (1023, 65537, Reason.WEAK_KEY),
        (4104, 65537, Reason.KEY_TOO_LARGE),
        (2048, (1 << 1000) + 1, Reason.KEY_TOO_LARGE),
        (1024, 3, None),
        (4096, 65537, None),
    ],
)
def test_strength(bits: int, exponent: int, reason: Reason | None) -> None:
    # No private key belongs to it: such keys are no longer made by the library.
    numbers = rsa.RSAPublicNumbers(exponent, (1 << (bits - 1)) + 12345)
    der = numbers.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    record = parse_record(b"p=" + base64.b64encode(der))
    assert record.bits == bits
    if reason is None:
        record.check_strength()
    else:
        with pytest.raises(DkimError) as caught:
            record.check_strength()
        assert caught.value.reason is reason


@pytest.mark.covers("RFC 6376 §3.6.2.2")
def test_several_records() -> None:
    ours, other = rsa_key().public_record().encode(), ed_key().public_record().encode()
    assert choose_record([b"v=spf1 -all", ours, ours, b"text"]).key == rsa_key().public_key
    for texts, reason in (
        ([], Reason.NO_KEY),
        ([b"v=spf1 -all"], Reason.NO_KEY),
        ([ours, other], Reason.KEY_AMBIGUOUS),
        ([ours, b"v=DKIM1; p="], Reason.KEY_AMBIGUOUS),
        ([b"v=DKIM1; p=", b"x"], Reason.KEY_REVOKED),
        ([*(b"%d" % n for n in range(20)), ours], Reason.NO_KEY),
    ):
        with pytest.raises(DkimError) as caught:
            choose_record(texts)
        assert caught.value.reason is reason


@pytest.mark.covers("RFC 6376 §6.1.2", "decisions:D3")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [(NameNotFoundError(), Reason.NO_KEY), (TemporaryResolverError(), Reason.DNS), ([], Reason.NO_KEY)],
)
async def test_no_answer(answer: list[bytes] | Exception, reason: Reason) -> None:
    with pytest.raises(DkimError) as caught:
        await fetch_record(Answers({"x._domainkey.example.com": answer}), "x._domainkey.example.com")
    assert caught.value.reason is reason


@given(st.binary(max_size=300) | st.builds(lambda a, b: a + b, st.sampled_from([b"v=DKIM1;", b"p="]), st.binary()))
def test_any_record(text: bytes) -> None:
    reason = None
    try:
        parse_record(text)
    except DkimError as error:
        reason = error.reason
    assert reason in (
        None, Reason.NO_KEY, Reason.KEY_SYNTAX, Reason.KEY_MISMATCH, Reason.KEY_REVOKED
    )  # fmt: skip
