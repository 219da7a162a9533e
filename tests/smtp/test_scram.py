"""AUTH by SCRAM (RFC 4954, RFC 5802, rules A2 and A4): the session without I/O."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.sasl import Offer, Proof, derive_keys
from postroom.smtp import Profile, Reply, ServerConfig, ServerSession, SessionStateError, Signal
from postroom.smtp.events import CredentialsOffered, ProofOffered
from tests.sasl.client import Client

Drive = Callable[..., Any]

NAME, PASSWORD, SALT = "ann@example.com", "ap_secret", b"salt"
BINDING = b"b" * 32
KEYS = derive_keys(PASSWORD, SALT, 4096)
OFFER = Offer(SALT, 4096, lambda: "eighteen.characters")
CONFIG = ServerConfig("mail.example.com", profile=Profile.SUBMISSION, auth=True, tls_available=True, scram=OFFER)
REFUSED = Reply(535, "5.7.8", "Authentication credentials invalid")
LATER = Reply(454, "4.7.0", "Temporary authentication failure")


def b64(data: bytes) -> bytes:
    return base64.b64encode(data) + b"\r\n"


def right(proof: Proof) -> Reply | bytes:
    return proof.verified(KEYS) or REFUSED


class Talk:
    """A session that a SCRAM client talks to."""

    def __init__(
        self, *, binding: bytes | None = None, prove: Callable[[Proof], Reply | bytes] = right, config: Any = CONFIG
    ) -> None:
        self.session = ServerSession(config, encrypted=True, binding=binding)
        self.prove = prove
        self.signals: list[Signal] = []
        self.say(b"EHLO c\r\n")

    def say(self, line: bytes) -> bytes:
        """The answer to it."""
        self.session.take_output()
        self.session.receive(line)
        while (event := self.session.next_event()) is not None:
            if isinstance(event, ProofOffered):
                verdict = self.prove(event.proof)
                if isinstance(verdict, Reply):
                    self.session.reject_credentials(verdict)
                else:
                    self.session.accept_proof(event.proof.username, verdict)
            elif isinstance(event, CredentialsOffered):
                self.session.accept_credentials(event.credentials.username)
            else:
                assert isinstance(event, Signal)
                self.signals.append(event)
        return self.session.take_output()

    def challenge(self, line: bytes) -> bytes:
        answer = self.say(line)
        assert answer.startswith(b"334 ")
        assert answer.endswith(b"\r\n")
        return base64.b64decode(answer[4:-2], validate=True)

    def sign_in(self, client: Client, *, initial: bool = True) -> bytes:
        """The last reply."""
        name = b"SCRAM-SHA-256" if client.binding is None else b"SCRAM-SHA-256-PLUS"
        if initial:
            first = self.challenge(b"AUTH %b %b" % (name, b64(client.first())))
        else:
            assert self.challenge(b"auth %b\r\n" % name.lower()) == b""
            first = self.challenge(b64(client.first()))
        answer = self.say(b64(client.final(first)))
        if not answer.startswith(b"334 "):
            return answer
        client.check(base64.b64decode(answer[4:-2], validate=True))
        assert self.session.account is None  # not before it has seen that we know it too
        return self.say(b"\r\n")


@pytest.mark.covers("mail-server:A4", "RFC 4954 §4", "RFC 5802 §5")
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("binding", [None, BINDING])
def test_signing_in(initial: bool, binding: bytes | None) -> None:
    talk = Talk(binding=binding)
    assert talk.sign_in(Client(NAME, PASSWORD, binding=binding), initial=initial).startswith(b"235 2.7.0 ")
    assert talk.session.account == NAME
    assert talk.say(b"AUTH PLAIN\r\n").startswith(b"503 ")
    assert talk.signals == [Signal.UNPRODUCTIVE]


@pytest.mark.covers("mail-server:A2", "decisions:D1", "RFC 5802 §6")
def test_what_ehlo_offers(drive: Drive) -> None:
    def offered(**how: Any) -> bytes:
        lines = drive([b"EHLO c\r\n"], how.pop("config", CONFIG), **how).output.split(b"\r\n")
        return b"".join(line[4:] for line in lines if line[4:].startswith(b"AUTH"))

    assert offered() == b""
    assert offered(encrypted=True) == b"AUTH PLAIN LOGIN SCRAM-SHA-256"
    assert offered(auth_in_clear=True) == b"AUTH PLAIN LOGIN SCRAM-SHA-256"
    assert offered(encrypted=True, binding=BINDING) == b"AUTH PLAIN LOGIN SCRAM-SHA-256-PLUS SCRAM-SHA-256"
    assert offered(encrypted=True, config=replace(CONFIG, scram=None)) == b"AUTH PLAIN LOGIN"
    upgraded = drive([b"EHLO c\r\n", b"STARTTLS\r\n", b"EHLO c\r\n"], CONFIG, binding=None).output
    assert upgraded.count(b"AUTH") == 1
    # What is not offered is not taken.
    for lines, how in (
        ([b"AUTH SCRAM-SHA-256-PLUS\r\n"], {"encrypted": True}),
        ([b"AUTH SCRAM-SHA-256\r\n"], {"encrypted": True, "config": replace(CONFIG, scram=None)}),
        ([b"AUTH SCRAM-SHA-1\r\n"], {"encrypted": True, "binding": BINDING}),
    ):
        config = how.pop("config", CONFIG)
        assert drive([b"EHLO c\r\n", *lines], config, **how).codes[-1] == "504 5.5.4"
    assert drive([b"EHLO c\r\n", b"AUTH SCRAM-SHA-256\r\n"], CONFIG).codes[-1] == "538 5.7.11"


@pytest.mark.covers("RFC 5929 §4", "mail-server:A5")
def test_the_binding_comes_with_starttls() -> None:
    session = ServerSession(CONFIG, auth_in_clear=True)
    session.receive(b"EHLO c\r\nSTARTTLS\r\n")
    assert session.next_event() is Signal.TLS_REQUESTED
    assert b"SCRAM-SHA-256\r\n" in session.take_output()
    session.start_tls()
    session.tls_started(BINDING)
    session.receive(b"EHLO c\r\n")
    assert session.next_event() is None
    assert b"SCRAM-SHA-256-PLUS SCRAM-SHA-256\r\n" in session.take_output()


@pytest.mark.covers("mail-server:A4", "RFC 4422 §3.6")
def test_a_wrong_proof() -> None:
    talk = Talk()
    assert talk.sign_in(Client(NAME, "wrong")) == REFUSED.wire
    assert talk.session.account is None
    # The exchange is over, and guessing was counted once.
    assert talk.signals == [Signal.UNPRODUCTIVE]
    assert talk.say(b"MAIL FROM:<ann@example.com>\r\n").startswith(b"530 ")
    assert talk.sign_in(Client(NAME, PASSWORD)).startswith(b"235 ")


@pytest.mark.covers("mail-server:A4")
def test_when_nobody_can_say() -> None:
    talk = Talk(prove=lambda proof: LATER)
    assert talk.sign_in(Client(NAME, PASSWORD)) == LATER.wire
    talk = Talk(prove=lambda proof: Reply(421, "4.7.0", "Too many"))
    assert talk.sign_in(Client(NAME, PASSWORD)).startswith(b"421 ")
    assert talk.session.is_closed


@pytest.mark.covers("mail-server:A4", "RFC 4954 §4", "RFC 5802 §6")
@pytest.mark.parametrize(
    "lines",
    [
        [b"AUTH SCRAM-SHA-256 =\r\n"],
        [b"AUTH SCRAM-SHA-256\r\n", b"\r\n"],
        [b"AUTH SCRAM-SHA-256 " + b64(b"n,,n=ann,r=")],
        [b"AUTH SCRAM-SHA-256 " + b64(b"y,,n=ann,r=x")],
        [b"AUTH SCRAM-SHA-256-PLUS " + b64(b"n,,n=ann,r=x")],
        [b"AUTH SCRAM-SHA-256 " + b64(b"n,,n=ann,r=x"), b64(b"c=biws,r=x")],
    ],
)
def test_messages_that_are_none(lines: list[bytes]) -> None:
    talk = Talk(binding=BINDING)
    for line in lines[:-1]:
        talk.challenge(line)
    assert talk.say(lines[-1]) == REFUSED.wire
    assert talk.say(b"NOOP\r\n").startswith(b"250 ")


@pytest.mark.covers("mail-server:A4", "RFC 4954 §4")
@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("line", "code"), [(b"*\r\n", b"501 5.5.4"), (b"!!\r\n", b"501 5.5.4"), (b"x" * 13_000, b"500")]
)
def test_an_exchange_that_is_broken_off(after: int, line: bytes, code: bytes) -> None:
    talk, client = Talk(), Client(NAME, PASSWORD)
    if after:
        talk.challenge(b"AUTH SCRAM-SHA-256\r\n")
    if after > 1:
        first = talk.challenge(b64(client.first()))
    if after > 2:
        client.check(talk.challenge(b64(client.final(first))))
    if not after:
        line = b"AUTH SCRAM-SHA-256 " + line
    assert talk.say(line + b"\r\n").startswith(code)
    assert talk.session.account is None
    assert talk.say(b"MAIL FROM:<ann@example.com>\r\n").startswith(b"530 ")
    assert talk.sign_in(Client(NAME, PASSWORD)).startswith(b"235 ")


@pytest.mark.covers("RFC 4422 §5")
def test_a_last_word_that_says_something() -> None:
    talk, client = Talk(), Client(NAME, PASSWORD)
    first = talk.challenge(b"AUTH SCRAM-SHA-256 " + b64(client.first()))
    client.check(talk.challenge(b64(client.final(first))))
    assert talk.say(b64(b"x")).startswith(b"535 ")
    assert talk.session.account is None


def test_answers_that_nothing_asked_for() -> None:
    session = ServerSession(CONFIG, encrypted=True)
    with pytest.raises(SessionStateError):
        session.accept_proof("ann", b"")
    session.receive(b"EHLO c\r\nAUTH PLAIN " + b64(b"\0ann\0secret"))
    assert isinstance(session.next_event(), CredentialsOffered)
    with pytest.raises(SessionStateError):
        session.accept_proof("ann", b"")


def test_the_longest_challenge_fits_a_reply_line() -> None:
    talk = Talk()
    answer = talk.say(b"AUTH SCRAM-SHA-256 " + b64(b"n,,n=a,r=" + b"n" * 256))
    assert answer.startswith(b"334 ")
    assert len(answer) <= 512
    assert base64.b64decode(answer[4:-2], validate=True).endswith(b",i=4096")


@given(lines=st.lists(st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")), max_size=4), raw=st.booleans())
def test_nobody_comes_in_by_chance(lines: list[bytes], raw: bool) -> None:
    talk = Talk(binding=BINDING)
    talk.say(b"AUTH SCRAM-SHA-256\r\n")
    for line in lines:
        talk.say(line + b"\r\n" if raw else b64(line))
    assert talk.session.account is None
