"""The sending side: what a server must offer for a message, chunks, and LMTP's answers for each recipient."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import (
    Address,
    Body,
    BodyWanted,
    ClientSession,
    Fault,
    MailRequest,
    Notify,
    RcptParameters,
    RecipientRequest,
    Return,
    Stage,
)
from tests.smtp.talking import ANN, CHUNKING, PLAIN_OFFER, events, fates_of, mail_request, ready, say


@pytest.mark.covers("edge:G5", "mail-server:C5", "RFC 1870 §6")
@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        (mail_request(size=1001), Fault.TOO_LARGE),
        (mail_request(smtputf8=True), Fault.UTF8_MISSING),
        (mail_request(body=Body.BINARY), Fault.BINARY_MISSING),
        (mail_request(requiretls=True), Fault.REQUIRETLS_MISSING),
        (MailRequest(Address("änn", "example.com"), mail_request().recipients), Fault.UTF8_MISSING),
    ],
)
def test_what_the_server_cannot_take_is_not_sent(request_: MailRequest, fault: Fault) -> None:
    session = ready()
    session.send(request_)
    (ended,) = events(session)
    assert fates_of(ended) == [(Stage.MAIL, fault)]
    assert session.take_output() == b""
    assert session.is_ready


def test_8bit_and_requiretls_need_an_offer() -> None:
    session = ready(PLAIN_OFFER)
    session.send(mail_request(body=Body.EIGHT_BIT))
    assert fates_of(events(session)[0]) == [(Stage.MAIL, Fault.EIGHT_BIT_MISSING)]
    offer = b"250-x\r\n250 REQUIRETLS\r\n"
    session = ready(offer)
    session.send(mail_request(requiretls=True))
    assert fates_of(events(session)[0]) == [(Stage.MAIL, Fault.REQUIRETLS_MISSING)]
    session = ready(offer, encrypted=True)
    session.send(mail_request(requiretls=True))
    assert session.take_output() == b"MAIL FROM:<ann@example.com> REQUIRETLS\r\n"


@pytest.mark.covers("mail-server:C5", "RFC 6531 §3.4")
def test_smtputf8() -> None:
    session = ready()
    session.send(mail_request("bot", "bötchen"))
    assert session.take_output() == b"MAIL FROM:<ann@example.com>\r\nRCPT TO:<bot@agents.example>\r\nDATA\r\n"
    say(session, "250 ok", "250 ok", "354 go")
    session.end_body()
    (ended,) = say(session, "250 ok")
    assert fates_of(ended) == [(Stage.FINAL, 250), (Stage.RCPT, Fault.UTF8_MISSING)]
    session = ready(b"250-x\r\n250-PIPELINING\r\n250 SMTPUTF8\r\n")
    session.send(mail_request("bötchen"))
    assert (
        session.take_output()
        == "MAIL FROM:<ann@example.com> SMTPUTF8\r\nRCPT TO:<bötchen@agents.example>\r\nDATA\r\n".encode()
    )


@pytest.mark.covers("decisions:C2", "RFC 3461 §4")
def test_dsn_parameters() -> None:
    recipient = RecipientRequest(
        Address("bot", "agents.example"),
        RcptParameters(frozenset({Notify.DELAY, Notify.FAILURE}), ("rfc822", "a+b@example.com")),
    )
    request = MailRequest(None, (recipient,), ret=Return.HEADERS, envid="x=1")
    session = ready(b"250-x\r\n250-PIPELINING\r\n250 DSN\r\n")
    session.send(request)
    assert session.take_output() == (
        b"MAIL FROM:<> RET=HDRS ENVID=x+3D1\r\n"
        b"RCPT TO:<bot@agents.example> NOTIFY=FAILURE,DELAY ORCPT=rfc822;a+2Bb@example.com\r\nDATA\r\n"
    )
    session = ready()
    session.send(request)
    assert session.take_output() == b"MAIL FROM:<>\r\nRCPT TO:<bot@agents.example>\r\nDATA\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        MailRequest(ANN, ()),
        MailRequest(Address("a\r\nDATA", "example.com"), mail_request().recipients),
        MailRequest(Address("a", "example.com>\r\nDATA"), mail_request().recipients),
        MailRequest(ANN, (RecipientRequest(Address("a", "b> X=1")),)),
        MailRequest(ANN, (RecipientRequest(Address("", "example.com")),)),
        MailRequest(ANN, mail_request().recipients, envid="a\nb"),
        MailRequest(ANN, mail_request().recipients, envid="x" * 101),
    ],
)
def test_requests_that_cannot_be_sent(request_: MailRequest) -> None:
    session = ready(b"250-x\r\n250 DSN\r\n")
    with pytest.raises(ValueError):
        session.send(request_)
    assert session.take_output() == b""
    assert session.is_ready


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_no_address_breaks_out_of_its_line(local: str, domain: str) -> None:
    session = ready(b"250-x\r\n250 SMTPUTF8\r\n")
    try:
        session.send(MailRequest(Address(local, domain), mail_request().recipients))
    except ValueError:
        return
    line = session.take_output()
    assert line.count(b"\r") == line.count(b"\n") == 1
    assert line.startswith(b"MAIL FROM:<")
    assert line.rstrip(b"\r\n").endswith((b">", b"> SMTPUTF8"))


@pytest.mark.covers("RFC 3030 §2")
def test_chunks() -> None:
    session = ready(CHUNKING, chunking=True)
    session.send(mail_request("a", "b"))
    assert not session.take_output().endswith(b"DATA\r\n")
    (wanted,) = say(session, "250 ok", "550 no", "250 ok")
    assert wanted.recipients == (Address("b", "agents.example"),)
    session.send_body(b".\nx")
    session.send_body(b"")
    session.send_body(b"y")
    session.end_body()
    assert session.take_output() == b"BDAT 3\r\n.\nxBDAT 1\r\nyBDAT 0 LAST\r\n"
    assert say(session, "250 3 octets", "250 1 octet") == []
    (ended,) = say(session, "250 queued")
    assert fates_of(ended) == [(Stage.RCPT, 550), (Stage.FINAL, 250)]


def _chunked(*, end: bool) -> ClientSession:
    session = ready(CHUNKING, chunking=True)
    session.send(mail_request())
    say(session, "250 ok", "250 ok")
    session.send_body(b"x")
    session.send_body(b"y")
    if end:
        session.end_body()
    session.take_output()
    return session


@pytest.mark.covers("RFC 3030 §2", "edge:G2")
def test_refused_chunks() -> None:
    # Before the last chunk is out: the message has failed, and the connection can be used again.
    session = _chunked(end=False)
    (ended,) = say(session, "552 5.3.4 full")
    assert fates_of(ended) == [(Stage.BODY, 552)]
    session.send(mail_request())
    assert session.take_output().startswith(b"RSET\r\nMAIL FROM")
    (wanted,) = say(session, "503 late chunk", "250 ok", "250 ok", "250 ok")
    assert isinstance(wanted, BodyWanted)
    # After it: the first refusal is the reason, if the last chunk is refused too.
    (ended,) = say(_chunked(end=True), "552 5.3.4 full", "503 x", "503 x")
    assert fates_of(ended) == [(Stage.BODY, 552)]
    # A server that took the rest may have sent half a message.
    (ended,) = say(_chunked(end=True), "552 5.3.4 full", "503 x", "250 ok")
    assert fates_of(ended) == [(Stage.FINAL, Fault.BAD_REPLY)]
    # Lost: unknown, unless a refusal came before.
    for replies, fate in [
        (["250 ok"], (Stage.FINAL, Fault.CONNECTION_LOST)),
        (["250 ok", "452 4.3.1 full"], (Stage.BODY, 452)),
    ]:
        session = _chunked(end=True)
        assert say(session, *replies) == []
        session.fail(Fault.CONNECTION_LOST)
        assert fates_of(events(session)[0]) == [fate]


@pytest.mark.covers("RFC 2033 §4.2", "edge:G2")
def test_lmtp_answers_for_each_recipient() -> None:
    def begin() -> ClientSession:
        session = ready(lmtp=True)
        session.send(mail_request("a", "b", "c", "d"))
        say(session, "250 ok", "250 ok", "550 no", "250 ok", "250 ok", "354 go")
        session.end_body()
        return session

    session = begin()
    assert say(session, "250 ok", "452 4.2.2 full") == []
    (ended,) = say(session, "550 5.1.1 gone")
    assert fates_of(ended) == [(Stage.FINAL, 250), (Stage.RCPT, 550), (Stage.FINAL, 452), (Stage.FINAL, 550)]
    assert session.is_ready
    session = begin()
    say(session, "250 ok", "421 4.3.2 closing")
    session.fail(Fault.CONNECTION_LOST)
    ended = events(session)[0]
    assert fates_of(ended)[2:] == [(Stage.FINAL, 421), (Stage.FINAL, Fault.CONNECTION_LOST)]
