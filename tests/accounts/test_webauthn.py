"""The two ceremonies of WebAuthn: what holds, and whatever does not (Level 3 §7.1, §7.2). Without a database."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from fido2 import cbor
from hypothesis import example, given, settings
from hypothesis import strategies as st

from postroom.accounts.passkeys import (
    Assertion,
    CeremonyError,
    Credential,
    Registration,
    RelyingParty,
    challenge_hash,
    counts_on,
    from_text,
    known_transports,
    to_text,
    user_handle,
)
from postroom.accounts.webauthn import Ceremonies
from tests.accounts.authenticator import (
    AT,
    BE,
    BOUND,
    BS,
    ED,
    EDDSA,
    ES256,
    ORIGIN,
    PARTY,
    RS256,
    SYNCED,
    UP,
    UV,
    Authenticator,
    assertion,
    cose,
    new_key,
    registration,
)

SERVER: Final = Ceremonies(PARTY, timeout_ms=300_000)
CHALLENGE: Final = b"c" * 32
OTHER: Final = b"d" * 32
HANDLE: Final = user_handle("usr_01J9Z3K8V4QW7X2M5N6P8R0T1Y")


def asked_to_create(server: Ceremonies = SERVER, challenge: bytes = CHALLENGE) -> dict[str, Any]:
    return server.creation_options(challenge, HANDLE, "ada@example.com", "Ada", [])


def asked_to_get(challenge: bytes = CHALLENGE) -> dict[str, Any]:
    return SERVER.request_options(challenge)


def made(authenticator: Authenticator, **wrong: Any) -> Credential:
    return SERVER.register(CHALLENGE, registration(authenticator.create(asked_to_create(), **wrong)))


@cache
def key_of(algorithm: int, bits: int = 2048) -> Any:
    return new_key(algorithm, bits)


def refused_to_register(answer: Registration, challenge: bytes = CHALLENGE) -> None:
    with pytest.raises(CeremonyError):
        SERVER.register(challenge, answer)


def refused_to_sign_in(answer: Assertion, known: Credential, challenge: bytes = CHALLENGE) -> None:
    with pytest.raises(CeremonyError):
        SERVER.authenticate(challenge, answer, known)


@pytest.mark.covers("decisions:C5")
def test_what_a_browser_is_asked() -> None:
    known = [(b"one", ["internal", "smart-card"]), (b"two", [])]
    asked = SERVER.creation_options(CHALLENGE, HANDLE, "ada@example.com", "Ada", known)
    assert asked == {
        "rp": {"id": "api.example", "name": "Postroom (agents.example)"},
        "user": {"id": to_text(HANDLE), "name": "ada@example.com", "displayName": "Ada"},
        "challenge": to_text(CHALLENGE),
        "pubKeyCredParams": [{"type": "public-key", "alg": alg} for alg in (ES256, EDDSA, RS256)],
        "timeout": 300_000,
        "excludeCredentials": [
            {"type": "public-key", "id": to_text(b"one"), "transports": ["internal"]},
            {"type": "public-key", "id": to_text(b"two")},
        ],
        "authenticatorSelection": {
            "residentKey": "required",
            "requireResidentKey": True,
            "userVerification": "required",
        },
        "attestation": "none",
    }
    assert json.loads(json.dumps(asked)) == asked
    assert asked_to_get() == {
        "challenge": to_text(CHALLENGE),
        "timeout": 300_000,
        "rpId": "api.example",
        "userVerification": "required",
    }


@pytest.mark.covers("decisions:C5")
@pytest.mark.parametrize("algorithm", [ES256, EDDSA, RS256])
@pytest.mark.parametrize(("flags", "eligible", "backed_up"), [(SYNCED, True, True), (BOUND, False, False)])
def test_made_and_shown(algorithm: int, flags: int, eligible: bool, backed_up: bool) -> None:
    authenticator = Authenticator(flags=flags, key=key_of(algorithm), counter=7, counts=True)
    credential = made(authenticator)
    assert credential.credential_id == authenticator.credential_id
    assert cbor.decode(credential.public_key) == cose(authenticator.key)
    assert (credential.sign_count, credential.backup_eligible, credential.backed_up) == (7, eligible, backed_up)
    answer = assertion(authenticator.get(asked_to_get()))
    assert SERVER.challenge_of(answer.client_data) == CHALLENGE
    shown = SERVER.authenticate(CHALLENGE, answer, credential)
    assert (shown.sign_count, shown.backed_up) == (8, backed_up)


def test_the_statement_of_an_attestation_is_not_looked_at() -> None:
    """Some browsers do not leave it out (§5.4.7)."""
    assert made(Authenticator(), attestation={"fmt": "packed", "attStmt": {"alg": -7, "sig": b"x"}})


WRONG: Final[dict[str, dict[str, Any]]] = {
    "another ceremony": {"client": {"type": "webauthn.steal"}},
    "another page": {"client": {"origin": "https://api.example.evil.example"}},
    "a page below": {"client": {"origin": "https://www.api.example"}},
    "a page without TLS": {"client": {"origin": "http://api.example"}},
    "another port": {"client": {"origin": "https://api.example:8443"}},
    "no page": {"client": {"origin": None}},
    "pages": {"client": {"origin": [ORIGIN]}},
    "within another page": {"client": {"crossOrigin": True}},
    "somehow within a page": {"client": {"crossOrigin": "no"}},
    "below a page of others": {"client": {"crossOrigin": True, "topOrigin": "https://evil.example"}},
    "below a page, it says": {"client": {"topOrigin": "https://evil.example"}},
    "below our page": {"client": {"topOrigin": ORIGIN}},
    "below no page": {"client": {"topOrigin": None}},
    "another challenge": {"client": {"challenge": to_text(OTHER)}},
    "no challenge": {"client": {"challenge": ""}},
    "a number": {"client": {"challenge": 7}},
    "nobody there": {"flags": UV},
    "not verified": {"flags": UP},
    "backed up, which it cannot be": {"flags": UP | UV | BS},
    "another id": {"credential_id": b"other"},
}


@pytest.mark.covers("decisions:C5", "NFR-SEC-1")
@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_hold(what: str) -> None:
    authenticator = Authenticator()
    refused_to_register(registration(authenticator.create(asked_to_create(), **WRONG[what])))
    credential = made(authenticator)
    refused_to_sign_in(assertion(authenticator.get(asked_to_get(), **WRONG[what])), credential)
    assert SERVER.authenticate(CHALLENGE, assertion(authenticator.get(asked_to_get())), credential)


def test_another_relying_party() -> None:
    authenticator = Authenticator()
    credential = made(authenticator)
    elsewhere = replace(authenticator, party="evil.example")
    refused_to_register(registration(elsewhere.create(asked_to_create())))
    refused_to_sign_in(assertion(elsewhere.get(asked_to_get())), credential)
    there = Ceremonies(RelyingParty("example", "x", frozenset({ORIGIN})), timeout_ms=1)
    with pytest.raises(CeremonyError):
        there.register(CHALLENGE, registration(authenticator.create(asked_to_create(there))))


def test_signatures_of_others() -> None:
    authenticator, other = Authenticator(), Authenticator()
    credential = made(authenticator)
    for wrong in ({"signer": other.key}, {"signature": b""}, {"signature": bytes(70)}, {"signer": key_of(RS256)}):
        refused_to_sign_in(assertion(authenticator.get(asked_to_get(), **wrong)), credential)
    right = assertion(authenticator.get(asked_to_get()))
    refused_to_sign_in(replace(right, authenticator_data=right.authenticator_data[:-1] + b"\x01"), credential)
    refused_to_sign_in(replace(right, client_data=right.client_data.replace(b"{", b"{ ")), credential)


def test_the_answers_of_one_ceremony_are_none_of_the_other() -> None:
    authenticator = Authenticator()
    credential = made(authenticator)
    create, get = authenticator.create(asked_to_create()), authenticator.get(asked_to_get())
    get["response"]["clientDataJSON"] = create["response"]["clientDataJSON"]
    refused_to_sign_in(assertion(get), credential)


def test_a_passkey_does_not_become_another_kind() -> None:
    authenticator = Authenticator(flags=SYNCED)
    credential = made(authenticator)
    refused_to_sign_in(assertion(authenticator.get(asked_to_get(), flags=BOUND)), credential)
    shown = SERVER.authenticate(CHALLENGE, assertion(authenticator.get(asked_to_get(), flags=UP | UV | BE)), credential)
    assert not shown.backed_up


def _keys() -> dict[str, Any]:
    es, rs = cose(key_of(ES256)), cose(key_of(RS256))
    return {
        "another algorithm": es | {3: -35},
        "none": {1: 2},
        "ECDSA by another name": es | {3: -9},
        "Ed25519 by another name": cose(key_of(EDDSA)) | {3: -19},
        "PSS": rs | {3: -37},
        "another type": es | {1: 3},
        "another curve": es | {-1: 2},
        "no curve": {1: 2, 3: ES256},
        "not on the curve": es | {-2: bytes(32)},
        "half a point": {name: value for name, value in es.items() if name != -3},
        "a list": es | {-2: [1, 2]},
        "small RSA": cose(key_of(RS256, 1024)),
        "padded RSA": rs | {-1: bytes(128) + cose(key_of(RS256, 1024))[-1]},
        "huge RSA": rs | {-1: b"\xff" * 900},
        "huge exponent": rs | {-2: b"\xff" * 200},
        "even exponent": rs | {-2: b"\x02"},
        "much more beside it": es | {99: bytes(1000)},
    }


@pytest.mark.parametrize("what", _keys())
def test_keys_that_nothing_can_be_checked_by(what: str) -> None:
    refused_to_register(registration(Authenticator().create(asked_to_create(), key=_keys()[what])))


def test_nothing_was_made() -> None:
    authenticator = Authenticator()
    answer = registration(authenticator.create(asked_to_create()))
    whole: Any = cbor.decode(answer.attestation)
    data = bytearray(whole["authData"][:37])
    data[32] = BOUND
    attestation = cbor.encode({"fmt": "none", "attStmt": {}, "authData": bytes(data)})
    refused_to_register(replace(answer, attestation=attestation))


def test_long_ids() -> None:
    assert made(Authenticator(credential_id=b"i" * 1023))
    refused_to_register(registration(Authenticator(credential_id=b"i" * 1024).create(asked_to_create())))


NESTED: Final = b'{"type":' + b"[" * 4000


@cache
def fixed() -> Authenticator:
    """The same each time: Ed25519 signatures have one form."""
    key = ed25519.Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    return Authenticator(key=key, credential_id=b"i" * 16)


@cache
def right() -> tuple[Credential, Registration, Assertion]:
    created = registration(fixed().create(asked_to_create()))
    return SERVER.register(CHALLENGE, created), created, assertion(fixed().get(asked_to_get()))


@pytest.mark.covers("NFR-SEC-1")
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mangled_answers_are_refused(data: st.DataObject) -> None:
    """Whatever a bit is changed to, or bytes are: refused in one way, and never taken."""
    credential, created, shown = right()
    kind = data.draw(st.sampled_from(["attestation", "client_data", "authenticator_data", "signature"]))
    answer: Any = created if kind == "attestation" else shown
    there: bytes = getattr(answer, kind)
    wrong = data.draw(st.binary(max_size=200) | _changed(there))
    if wrong == there:
        return
    mangled = replace(answer, **{kind: wrong})
    if isinstance(mangled, Assertion):
        refused_to_sign_in(mangled, credential)
        return
    try:
        again = SERVER.register(CHALLENGE, mangled)
    except CeremonyError:
        return
    # Nobody signs it: the key and the flags can be others. The id cannot, nor how sure the authenticator is.
    assert again.credential_id == created.credential_id
    assert (again.backup_eligible, again.backed_up) != (False, True)


def _changed(there: bytes) -> st.SearchStrategy[bytes]:
    def change(at: int, value: int, cut: int) -> bytes:
        return (there[:at] + bytes([value]) + there[at + 1 :])[: len(there) - cut]

    return st.builds(change, st.integers(0, len(there) - 1), st.integers(0, 255), st.integers(0, 3))


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.covers("NFR-SEC-1")
@settings(max_examples=200, deadline=None)
@given(said=st.fixed_dictionaries({}, optional=dict.fromkeys(("type", "challenge", "origin", "crossOrigin"), JSON)))
@example(said={})
def test_client_data_of_any_shape(said: dict[str, Any]) -> None:
    client_data = json.dumps(said).encode()
    refused_to_register(replace(right()[1], client_data=client_data))
    with contextlib.suppress(CeremonyError):
        assert isinstance(SERVER.challenge_of(client_data), bytes)


@pytest.mark.parametrize(
    "client_data",
    [b"", b"[]", b"7", b"null", b"\xff\xfe", NESTED, b'{"challenge":"%s"}' % (b"9" * 3000), b'{"challenge":"A"}'],
)
def test_client_data_that_is_none(client_data: bytes) -> None:
    with pytest.raises(CeremonyError):
        SERVER.challenge_of(client_data)


@pytest.mark.parametrize("attestation", [b"", b"\x81" * 4096, b"\x9b" + b"\xff" * 8, b"\xa1\xf5", b"\xbf", b"\xa0"])
def test_attestations_that_are_none(attestation: bytes) -> None:
    refused_to_register(replace(registration(Authenticator().create(asked_to_create())), attestation=attestation))


def _deep() -> dict[str, Registration | Assertion]:
    """What nests, everywhere where there is CBOR: whole, in the key that was made, behind it, in an assertion."""
    found: dict[str, Registration | Assertion] = {}
    _, created, shown = right()
    whole: Any = cbor.decode(created.attestation)
    data: bytes = whole["authData"]
    key = data[: 55 + len(created.credential_id)]
    extended = bytes([data[32] | ED])
    for name, junk in (("maps", b"\xa1" * 1900), ("lists", b"\x81" * 1900), ("values", b"\xa1\x01" * 950)):
        found[f"{name} alone"] = replace(created, attestation=junk * 2)
        inside = {
            "as statement": whole | {"attStmt": "JUNK"},
            "as key": whole | {"authData": key + junk},
            "as extension": whole | {"authData": data[:32] + extended + data[33:] + junk},
            "nothing made": whole | {"authData": data[:32] + bytes([BOUND | ED]) + data[33:37] + junk},
        }
        for where, value in inside.items():
            octets = cbor.encode(value).replace(cbor.encode("JUNK"), junk)
            found[f"{name} {where}"] = replace(created, attestation=octets)
        short = shown.authenticator_data
        found[f"{name} shown"] = replace(
            shown, authenticator_data=short[:32] + bytes([short[32] | ED]) + short[33:] + junk
        )
        made_too = short[:32] + bytes([short[32] | AT]) + short[33:] + bytes(18) + junk
        found[f"{name} shown as made"] = replace(shown, authenticator_data=made_too)
    return found


@pytest.mark.covers("NFR-SEC-1")
@pytest.mark.parametrize("what", _deep())
def test_the_library_goes_down_into_nothing_deep(what: str) -> None:
    """It would, a thousand calls far, and take up to 30 ms of the loop for it."""
    answer, known = _deep()[what], right()[0]
    with pytest.raises(CeremonyError) as refused:
        _ = (
            SERVER.register(CHALLENGE, answer)
            if isinstance(answer, Registration)
            else SERVER.authenticate(CHALLENGE, answer, known)
        )
    assert refused.value.__cause__ is None, "nothing of the library's"


@pytest.mark.parametrize(
    ("stored", "shown", "counts"),
    [(0, 0, True), (0, 1, True), (5, 6, True), (5, 5, False), (5, 4, False), (5, 0, False), (5, 2**32 - 1, True)],
)
def test_counters(stored: int, shown: int, counts: bool) -> None:
    assert counts_on(stored, shown) is counts


@given(st.binary(max_size=100))
def test_base64url(data: bytes) -> None:
    assert from_text(to_text(data)) == data


@pytest.mark.parametrize("text", ["A", "AB=", "AB==", "A+/A", "AB\n", "AB", "é"])
def test_what_is_not_base64url(text: str) -> None:
    with pytest.raises(ValueError, match="base64url"):
        from_text(text)


def test_transports() -> None:
    said = ["usb", "usb", "smart-card", "Bad", "x" * 17, "a b", "", *"abcdefghij"]
    assert known_transports(said) == ("usb", "smart-card", "a", "b", "c", "d", "e", "f")


def test_hashes() -> None:
    assert len(challenge_hash(CHALLENGE)) == 32
    assert challenge_hash(CHALLENGE) != challenge_hash(OTHER)
