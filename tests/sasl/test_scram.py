"""SCRAM-SHA-256 without a protocol around it: the RFC's example, a second implementation, and what is refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.sasl import (
    MECHANISM,
    PLUS,
    SUCCEEDED,
    Challenge,
    Exchange,
    Keys,
    Offer,
    PrepError,
    Proof,
    Refused,
    ServerError,
    Step,
    derive_keys,
)
from postroom.sasl.scram import MAX_MESSAGE, MAX_NAME, MAX_NONCE, write_first
from tests.sasl.client import Client

NAME, PASSWORD, SALT = "ann@example.com", "ap_3vZ0Wq8eJ1uX5tY7oP2aS4dF6gH9kL0m", b"sixteen octets!!"
BINDING = b"\x01" * 32
KEYS = derive_keys(PASSWORD, SALT, 4096)
OTHERS = derive_keys("ap_another", SALT, 4096)
NONCE = "server nonce without spaces".replace(" ", "/")
OFFER = Offer(SALT, 4096, lambda: NONCE)


class Wrong(Exception):
    """What an exchange was refused for."""


def verdict(exchange: Exchange, step: Step, *keys: Keys) -> Step:
    """What a service with these keys would say."""
    if isinstance(step, Proof):
        for one in keys:
            signature = step.verified(one)
            if signature is not None:
                return exchange.accept(signature)
        return Refused(ServerError.INVALID_PROOF)
    return step


def said(step: Step) -> bytes:
    """Raises `Wrong`."""
    if isinstance(step, Refused):
        raise Wrong(step.error.value)
    assert isinstance(step, Challenge)
    return step.data


def talk(
    client: Client, mechanism: str = MECHANISM, binding: bytes | None = None, keys: tuple[Keys, ...] = (OTHERS, KEYS)
) -> str:
    """A whole exchange. Raises `Wrong`."""
    exchange = Exchange(mechanism, OFFER, binding)
    proof = exchange.respond(client.final(said(exchange.respond(client.first()))))
    username = proof.username if isinstance(proof, Proof) else ""
    client.check(said(verdict(exchange, proof, *keys)))
    assert exchange.respond(b"") is SUCCEEDED
    return username


@pytest.mark.covers("RFC 7677 §3", "RFC 5802 §5")
def test_the_example_of_the_rfc() -> None:
    offer = Offer(base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096, lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    exchange = Exchange(MECHANISM, offer, None)
    assert exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    proof = exchange.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert isinstance(proof, Proof)
    assert proof.username == "user"
    signature = proof.verified(derive_keys("pencil", offer.salt, 4096))
    assert signature is not None
    assert exchange.accept(signature) == Challenge(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert exchange.respond(b"") is SUCCEEDED


@pytest.mark.covers("RFC 5802 §5", "RFC 5802 §6", "RFC 5929 §4")
def test_the_second_implementation_signs_in() -> None:
    assert talk(Client(NAME, PASSWORD)) == NAME
    assert talk(Client(NAME, PASSWORD, flag="y")) == NAME
    assert talk(Client(NAME, PASSWORD, authzid=NAME.upper())) == NAME
    assert talk(Client("a,b=c", PASSWORD, authzid="a,b=c")) == "a,b=c"
    assert talk(Client("a\u00a0\u00adnn", PASSWORD)) == "a nn"  # SASLprep
    assert talk(Client(NAME, PASSWORD, binding=BINDING), PLUS, BINDING) == NAME
    # Who cannot bind need not, where others do.
    assert talk(Client(NAME, PASSWORD), MECHANISM, BINDING) == NAME
    # The keys of the one password among those of others.
    assert talk(Client(NAME, PASSWORD), keys=(OTHERS, OTHERS, KEYS, OTHERS)) == NAME


@pytest.mark.covers("RFC 5802 §5.1", "RFC 5802 §6", "RFC 5802 §7")
@pytest.mark.parametrize(
    ("client", "mechanism", "binding", "error"),
    [
        (Client(NAME, "ap_wrong"), MECHANISM, None, "invalid-proof"),
        (Client(NAME, PASSWORD, flag="y"), MECHANISM, BINDING, "server-does-support-channel-binding"),
        (Client(NAME, PASSWORD, binding=BINDING), MECHANISM, None, "channel-binding-not-supported"),
        (Client(NAME, PASSWORD, binding=BINDING), MECHANISM, BINDING, "channel-binding-not-supported"),
        (Client(NAME, PASSWORD, binding=b"\x02" * 32), PLUS, BINDING, "channel-bindings-dont-match"),
        (Client(NAME, PASSWORD, binding=b""), PLUS, BINDING, "channel-bindings-dont-match"),
        (
            Client(NAME, PASSWORD, binding=BINDING, binding_type="tls-unique"),
            PLUS,
            BINDING,
            "unsupported-channel-binding-type",
        ),
        (Client(NAME, PASSWORD), PLUS, BINDING, "other-error"),
        (Client(NAME, PASSWORD, flag="y"), PLUS, BINDING, "other-error"),
        (Client(NAME, PASSWORD, authzid="bob@example.com"), MECHANISM, None, "other-error"),
    ],
)
def test_what_is_refused(client: Client, mechanism: str, binding: bytes | None, error: str) -> None:
    with pytest.raises(Wrong, match=f"^{error}$"):
        talk(client, mechanism, binding)


def test_a_mechanism_that_is_not_there() -> None:
    for mechanism, binding in ((PLUS, None), ("SCRAM-SHA-1", BINDING), ("scram-sha-256", None)):
        with pytest.raises(ValueError, match="not offered"):
            Exchange(mechanism, OFFER, binding)


@pytest.mark.covers("RFC 5802 §7")
@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"", "other-error"),
        (b"n", "other-error"),
        (b"n=user,r=abc", "other-error"),
        (b"n,n=user,r=abc", "other-error"),
        (b"x,,n=user,r=abc", "other-error"),
        (b"F,n,,n=user,r=abc", "other-error"),
        (b"N,,n=user,r=abc", "other-error"),
        (b"p=,,n=user,r=abc", "other-error"),
        (b"n,a=,n=user,r=abc", "other-error"),
        (b"n,user,n=user,r=abc", "other-error"),
        (b"n,,n=user", "other-error"),
        (b"n,,n=user,r=", "other-error"),
        (b"n,,n=user,r=a b", "other-error"),
        (b"n,,n=user,r=abc,", "other-error"),
        (b"n,,n=user,r=abc\r\n", "other-error"),
        (b"n,,n=user,r=abc\n", "other-error"),
        (b"n,,n=user\0,r=abc", "other-error"),
        (b"n,,r=abc,n=user", "other-error"),
        (b"n,,n=user,r=abc,x", "other-error"),
        (b"n,,n=user,r=abc,x=", "other-error"),
        (b"n,,n=user,r=abc,n=admin", "other-error"),
        (b"n,,n=user,r=abc,r=xyz", "other-error"),
        (b"n,,n=user,r=abc,a=admin", "other-error"),
        (b"n,,n=user,r=abc,m=must", "other-error"),
        (b"n,,n=user,r=" + b"a" * (MAX_NONCE + 1), "other-error"),
        (b"n,,n=user,r=abc,x=" + b"a" * MAX_MESSAGE, "other-error"),
        (b"n,,m=must,n=user,r=abc", "extensions-not-supported"),
        (b"n,,n=\xff,r=abc", "invalid-encoding"),
        (b"n,,n=,r=abc", "invalid-username-encoding"),
        (b"n,,n=us=er,r=abc", "invalid-username-encoding"),
        (b"n,,n=user=2c,r=abc", "invalid-username-encoding"),
        (b"n,,n=user=,r=abc", "invalid-username-encoding"),
        (b"n,,n=us\x07er,r=abc", "invalid-username-encoding"),
        (b"n,,n=\xc2\xad,r=abc", "invalid-username-encoding"),
        (b"n,a=us=er,n=user,r=abc", "invalid-username-encoding"),
        (b"n,,n=" + b"a" * (MAX_NAME + 1) + b",r=abc", "invalid-username-encoding"),
        (b"n,,n=user,r=abc,x=optional", None),
        (b"n,a=user,n=user,r=abc", None),
        (b"n,a=USER,n=user,r=abc", None),
    ],
)
def test_client_first(message: bytes, error: str | None) -> None:
    step = Exchange(MECHANISM, OFFER, None).respond(message)
    if error is None:
        assert isinstance(step, Challenge)
    else:
        assert step == Refused(ServerError(error))


def begun(exchange: Exchange | None = None) -> tuple[Exchange, bytes]:
    """An exchange, and the client-final-message that is right."""
    exchange = exchange or Exchange(MECHANISM, OFFER, None)
    client = Client(NAME, PASSWORD, nonce="client-nonce")
    step = exchange.respond(client.first())
    assert isinstance(step, Challenge)
    return exchange, client.final(step.data)


@pytest.mark.covers("RFC 5802 §5.1", "RFC 5802 §7")
@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (b"c=biws", b"c=eSws", "channel-bindings-dont-match"),
        (b"c=biws", b"c=biwsAA==", "channel-bindings-dont-match"),
        (b"c=biws", b"c=biw", "invalid-encoding"),
        (b"c=biws", b"c=", "other-error"),
        (b"c=biws", b"c=bi ws", "other-error"),
        (b"r=client-nonce", b"r=client-nonc", "other-error"),
        (b"r=client-nonce", b"r=Client-nonce", "other-error"),
        (b",p=", b"x,p=", "other-error"),
        (b",p=", b",p=AAAA", "invalid-proof"),
        (b",p=", b",p=A", "invalid-encoding"),
        (b",p=", b",q=", "other-error"),
        (b",p=", b",x=1,p=", "invalid-proof"),  # an extension is part of what is proved
        (b",p=", b",m=1,p=", "other-error"),
        (b"c=biws,", b"", "other-error"),
        (b"c=biws,", b"c=biws,c=biws,", "other-error"),
    ],
)
def test_client_final(old: bytes, new: bytes, error: str) -> None:
    exchange, right = begun()
    assert right.count(old) == 1
    step = verdict(exchange, exchange.respond(right.replace(old, new)), KEYS)
    assert step == Refused(ServerError(error))


@pytest.mark.covers("RFC 5802 §5.1")
@given(at=st.integers(0, 4000), flip=st.integers(1, 255))
@settings(max_examples=400)
def test_no_byte_can_be_another(at: int, flip: int) -> None:
    exchange, right = begun()
    at %= len(right)
    changed = right[:at] + bytes([right[at] ^ flip]) + right[at + 1 :]
    assert isinstance(verdict(exchange, exchange.respond(changed), KEYS), Refused)


@pytest.mark.covers("RFC 4648 §3.5")
@pytest.mark.parametrize("bits", [1, 2, 3])
def test_no_bit_of_the_base64_can_be_another(bits: int) -> None:
    # Of the last digit before the padding two bits mean nothing.
    digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    exchange, right = begun()
    other = digits[digits.index(right[-2:-1]) + bits]
    step = exchange.respond(right[:-2] + bytes([other]) + b"=")
    assert isinstance(step, Refused)
    assert step.error == "invalid-encoding"


@given(length=st.integers(0, 4000))
def test_no_part_of_a_message_will_do(length: int) -> None:
    exchange, right = begun()
    assert isinstance(verdict(exchange, exchange.respond(right[: length % len(right)]), KEYS), Refused)
    first = Client(NAME, PASSWORD, nonce="x").first()
    exchange = Exchange(MECHANISM, OFFER, None)
    step = exchange.respond(first[: length % len(first)])
    assert isinstance(step, Refused)


@pytest.mark.covers("RFC 5802 §5.1")
@given(theirs=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=18, max_size=40))
def test_what_was_said_once_does_not_sign_in_again(theirs: str) -> None:
    _, right = begun()
    again = Exchange(MECHANISM, Offer(SALT, 4096, lambda: theirs), None)
    again.respond(Client(NAME, PASSWORD, nonce="client-nonce").first())
    assert isinstance(verdict(again, again.respond(right), KEYS), Refused)


@given(messages=st.lists(st.binary(max_size=80), min_size=1, max_size=3), bound=st.booleans())
def test_whatever_is_said_is_answered(messages: list[bytes], bound: bool) -> None:
    exchange = Exchange(PLUS if bound else MECHANISM, OFFER, BINDING if bound else None)
    for message in messages:
        step = verdict(exchange, exchange.respond(message), KEYS)
        if isinstance(step, Refused):
            return
        assert isinstance(step, Challenge)


def test_the_last_word_is_empty() -> None:
    exchange, right = begun()
    assert isinstance(verdict(exchange, exchange.respond(right), KEYS), Challenge)
    assert isinstance(exchange.respond(b"x"), Refused)
    with pytest.raises(RuntimeError):
        exchange.respond(b"")
    with pytest.raises(RuntimeError):
        exchange.accept(b"")


def test_grammar_takes_linear_time() -> None:
    # What is not linear does not end before the test is ended.
    for message in (
        b"n,,n=" + b"=2C" * 1300,
        b"n,,n=a,r=a" + b",x=a" * 1000 + b",",
        b"n,," + b"m=a," * 1000,
        b"p=" + b"a" * 4000,
    ):
        assert isinstance(Exchange(MECHANISM, OFFER, None).respond(message), Refused)
    for middle in (b",x=a" * 990, b",p=a" * 990, b"a" * 3900):
        exchange, _ = begun()
        assert isinstance(exchange.respond(b"c=biws,r=a" + middle + b",p=!"), Refused)


@pytest.mark.covers("RFC 5802 §2.2", "RFC 7677 §4")
def test_keys_of_a_password() -> None:
    client = Client("x", "pencil")
    assert derive_keys("I\u00adX", SALT, 4096) == derive_keys("IX", SALT, 4096)
    with pytest.raises(PrepError):
        derive_keys("a\x07", SALT, 4096)
    with pytest.raises(PrepError):
        derive_keys("\u00ad", SALT, 4096)
    for salt, count in ((SALT, 4095), (b"", 4096)):
        with pytest.raises(ValueError, match="4,096"):
            derive_keys(client.password, salt, count)
    with pytest.raises(ValueError, match="nonce"):
        write_first("a", "b,c", SALT, 4096)
    assert "stored" not in repr(KEYS)
