"""The sending side against written conversations, each side's bytes in the test: before and after transactions."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import (
    Authenticated,
    BodyWanted,
    ClientConfig,
    ClientSession,
    CommandRefused,
    Evidence,
    Extensions,
    Fault,
    GreetingReceived,
    HelloDone,
    ResetDone,
    SessionEnded,
    SessionStateError,
    Stage,
    TlsReady,
    TransactionEnded,
    UnsupportedError,
)
from postroom.smtp.client_events import read_extensions
from tests.smtp.talking import (
    events,
    fates_of,
    mail_request,
    ready,
    say,
)


@pytest.mark.covers("RFC 5321 §3.2")
def test_greeting_and_hello() -> None:
    session = ClientSession(ClientConfig("mail.example.com"))
    stages = [session.stage]
    with pytest.raises(SessionStateError):
        session.hello()
    assert [type(event) for event in say(session, "220-welcome", "220 to mx.example")] == [GreetingReceived]
    session.hello()
    assert session.take_output() == b"EHLO mail.example.com\r\n"
    assert [*stages, session.stage] == [Stage.GREETING, Stage.HELLO]
    (done,) = say(
        session, "250-mx.example hi", "250-size 1000", "250-AUTH=LOGIN", "250-AUTH PLAIN", "250 Limits RCPTMAX=7"
    )
    assert done.extensions.size == 1000
    assert set(done.extensions.auth_mechanisms) == {"PLAIN", "LOGIN"}
    assert done.extensions.max_recipients == 7
    assert session.is_ready


@pytest.mark.covers("RFC 5321 §3.2")
@pytest.mark.parametrize("code", [500, 501, 502, 504, 550])
def test_falls_back_to_helo(code: int) -> None:
    session = ClientSession(ClientConfig("mail.example.com"))
    say(session, "220 hello")
    session.hello()
    session.take_output()
    assert say(session, f"{code} what?") == []
    assert session.take_output() == b"HELO mail.example.com\r\n"
    (done,) = say(session, "250 mx.example")
    assert done.extensions == Extensions()


def test_lmtp_says_lhlo_and_nothing_else() -> None:
    session = ClientSession(ClientConfig("mail.example.com", lmtp=True))
    say(session, "220 hello")
    session.hello()
    assert session.take_output() == b"LHLO mail.example.com\r\n"
    (refused,) = say(session, "500 what?")
    assert isinstance(refused, CommandRefused)
    assert refused.stage is Stage.HELLO


@pytest.mark.parametrize(
    ("lines", "size"), [(["SIZE"], None), (["SIZE 0"], None), (["SIZE x"], None), (["SIZE 5", ""], 5), ([], None)]
)
def test_size_offers(lines: list[str], size: int | None) -> None:
    assert read_extensions(lines).size == size


@pytest.mark.parametrize("reply", ["421 4.3.2 busy", "450 later", "554 go away"])
def test_greeting_refused(reply: str) -> None:
    session = ClientSession(ClientConfig("mail.example.com"))
    refused, *ended = say(session, reply)
    assert refused.stage is Stage.GREETING
    assert refused.reply.code == int(reply[:3])
    if reply.startswith("421"):
        assert ended == [SessionEnded(Evidence(Stage.GREETING, refused.reply))]
    else:
        session.quit()
        assert say(session, "221 bye") == [SessionEnded(None)]


@pytest.mark.covers("RFC 3207 §4.2")
def test_starttls() -> None:
    session = ready(b"250-mx.example\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n")
    with pytest.raises(SessionStateError):
        session.authenticate("ann", "secret")
    session.start_tls()
    assert session.take_output() == b"STARTTLS\r\n"
    assert say(session, "220 go ahead") == [TlsReady()]
    assert session.stage is Stage.TLS
    with pytest.raises(SessionStateError):
        session.hello()
    session.tls_started()
    assert session.encrypted
    assert not session.extensions.offered
    session.hello()
    session.receive(b"250-mx.example\r\n250 STARTTLS\r\n")
    with pytest.raises(UnsupportedError):
        session.start_tls()
    with pytest.raises(UnsupportedError):
        ready().start_tls()


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.covers("RFC 3207 §5")
def test_replies_before_the_handshake_are_not_believed_after_it(split: bool) -> None:
    session = ready(b"250-mx.example\r\n250 STARTTLS\r\n")
    session.start_tls()
    for piece in [b"220 go\r\n", b"250 x\r\n"] if split else [b"220 go\r\n250 x\r\n"]:
        session.receive(piece)
    assert events(session)[-1] == SessionEnded(Evidence(Stage.TLS, fault=Fault.BAD_REPLY))


def test_starttls_refused_and_failed() -> None:
    session = ready(b"250-mx.example\r\n250 STARTTLS\r\n")
    session.start_tls()
    (refused,) = say(session, "454 4.7.0 not now")
    assert refused.stage is Stage.TLS
    assert session.is_ready
    session.start_tls()
    say(session, "220 go")
    session.fail(Fault.TLS_FAILED)
    assert events(session) == [SessionEnded(Evidence(Stage.TLS, fault=Fault.TLS_FAILED))]


@pytest.mark.covers("RFC 4954 §4", "mail-server:C6", "edge:N16")
def test_authentication() -> None:
    def begin(offer: bytes, name: str = "ann", word: str = "secret") -> tuple[ClientSession, bytes]:
        session = ready(b"250-mx.example\r\n250 " + offer + b"\r\n", encrypted=True)
        session.authenticate(name, word)
        assert session.stage is Stage.AUTH
        return session, session.take_output()

    session, said = begin(b"AUTH LOGIN PLAIN")
    assert said == b"AUTH PLAIN " + base64.b64encode(b"\0ann\0secret") + b"\r\n"
    assert isinstance(say(session, "235 2.7.0 ok")[0], Authenticated)
    session, said = begin(b"AUTH LOGIN")
    assert said == b"AUTH LOGIN\r\n"
    assert say(session, "334 VXNlcm5hbWU6") == []
    assert session.take_output() == b"YW5u\r\n"
    assert say(session, "334 UGFzc3dvcmQ6") == []
    assert session.take_output() == b"c2VjcmV0\r\n"
    (refused,) = say(session, "535 5.7.8 no")
    assert (refused.stage, refused.reply.code) == (Stage.AUTH, 535)
    assert session.is_ready
    # Too long for a command line.
    session, said = begin(b"AUTH PLAIN", word="x" * 400)
    assert said == b"AUTH PLAIN\r\n"
    say(session, "334 ")
    assert base64.b64decode(session.take_output()) == b"\0ann\0" + b"x" * 400
    # A challenge that is none of ours is given up.
    session, _ = begin(b"AUTH PLAIN")
    say(session, "334 more")
    assert session.take_output() == b"*\r\n"
    with pytest.raises(UnsupportedError):
        begin(b"AUTH CRAM-MD5")
    with pytest.raises(ValueError):
        begin(b"AUTH PLAIN", word="sec\0ret")


def test_reset_and_quit() -> None:
    session = ready()
    session.reset()
    assert session.take_output() == b"RSET\r\n"
    assert say(session, "250 ok") == [ResetDone()]
    session.quit()
    assert session.take_output() == b"QUIT\r\n"
    assert session.stage is Stage.QUIT
    session.fail(Fault.CONNECTION_LOST)
    assert events(session) == [SessionEnded(None)]
    for command in (session.hello, session.reset, session.quit, session.end_body, session.start_tls):
        with pytest.raises(SessionStateError):
            command()


def test_a_reset_that_is_refused_ends_it() -> None:
    session = ready()
    session.send(mail_request())
    say(session, "550 no", "503 x", "503 x")
    session.send(mail_request())
    ended, over = say(session, "500 what?")
    assert fates_of(ended) == [(Stage.RESET, 500)]
    assert isinstance(over, SessionEnded)


@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(
    [b"220 x\r\n", b"250 x\r\n", b"354 x\r\n", b"421 x\r\n", b"550 x\r\n", b"334 \r\n", b"250-PIPELINING\r\n"]
)), max_size=15))  # fmt: skip
def test_no_server_makes_it_raise(chunks: list[bytes]) -> None:
    """Whatever comes: no exception, each transaction ends once, and only a reply to the end is an acceptance."""
    session = ClientSession(ClientConfig("mail.example.com"))
    sent = ended = over = 0
    for chunk in chunks:
        session.receive(chunk)
        for event in events(session):
            if isinstance(event, GreetingReceived):
                session.hello()
            elif isinstance(event, HelloDone) or (isinstance(event, TransactionEnded) and session.is_ready):
                session.send(mail_request("a", "b"))
                sent += 1
            elif isinstance(event, BodyWanted):
                session.send_body(b"x")
                session.end_body()
            ended += isinstance(event, TransactionEnded)
            over += isinstance(event, SessionEnded)
    session.fail(Fault.CONNECTION_LOST)
    rest = events(session)
    ended += sum(isinstance(event, TransactionEnded) for event in rest)
    over += sum(isinstance(event, SessionEnded) for event in rest)
    assert (ended, over) == (sent, 1)
    assert session.is_closed
