"""The sending side against written conversations: each side's bytes are in the test."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import (
    Address,
    Authenticated,
    Body,
    BodyWanted,
    ClientConfig,
    ClientSession,
    CommandRefused,
    Evidence,
    Extensions,
    Fault,
    GreetingReceived,
    HelloDone,
    MailRequest,
    Notify,
    RcptParameters,
    RecipientRequest,
    ResetDone,
    Return,
    SessionEnded,
    SessionStateError,
    Stage,
    TlsReady,
    TransactionEnded,
    UnsupportedError,
)
from postroom.smtp.client_events import read_extensions

_ANN = Address("ann", "example.com")
_PLAIN_OFFER = b"250 mx.example\r\n"
_PIPELINING = b"250-mx.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE 1000\r\n"
_CHUNKING = b"250-mx.example\r\n250-PIPELINING\r\n250-BINARYMIME\r\n250 CHUNKING\r\n"


def _request(*names: str, **kwargs: Any) -> MailRequest:
    recipients = tuple(RecipientRequest(Address(name, "agents.example")) for name in names or ("bot",))
    return MailRequest(_ANN, recipients, **kwargs)


def _events(session: ClientSession) -> list[Any]:
    return list(iter(session.next_event, None))


def _ready(offer: bytes = _PIPELINING, *, encrypted: bool = False, **config: Any) -> ClientSession:
    session = ClientSession(ClientConfig("mail.example.com", **config), encrypted=encrypted)
    session.receive(b"220 hello\r\n")
    session.hello()
    session.receive(offer)
    assert isinstance(_events(session)[-1], HelloDone)
    session.take_output()
    return session


def _say(session: ClientSession, *replies: str) -> list[Any]:
    session.receive("".join(f"{reply}\r\n" for reply in replies).encode())
    return _events(session)


def _fates(event: Any) -> list[tuple[Stage, int | Fault]]:
    assert isinstance(event, TransactionEnded)
    return [(e.stage, e.fault or (e.reply.code if e.reply else 0)) for e in (r.evidence for r in event.results)]


def _to_body(session: ClientSession, *names: str) -> None:
    """With pipelining and without chunks, up to the body."""
    names = names or ("bot",)
    session.send(_request(*names))
    assert isinstance(_say(session, "250 ok", *["250 ok"] * len(names), "354 go")[-1], BodyWanted)
    session.take_output()


@pytest.mark.covers("RFC 5321 §3.2")
def test_greeting_and_hello() -> None:
    session = ClientSession(ClientConfig("mail.example.com"))
    stages = [session.stage]
    with pytest.raises(SessionStateError):
        session.hello()
    assert [type(event) for event in _say(session, "220-welcome", "220 to mx.example")] == [GreetingReceived]
    session.hello()
    assert session.take_output() == b"EHLO mail.example.com\r\n"
    assert [*stages, session.stage] == [Stage.GREETING, Stage.HELLO]
    (done,) = _say(
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
    _say(session, "220 hello")
    session.hello()
    session.take_output()
    assert _say(session, f"{code} what?") == []
    assert session.take_output() == b"HELO mail.example.com\r\n"
    (done,) = _say(session, "250 mx.example")
    assert done.extensions == Extensions()


def test_lmtp_says_lhlo_and_nothing_else() -> None:
    session = ClientSession(ClientConfig("mail.example.com", lmtp=True))
    _say(session, "220 hello")
    session.hello()
    assert session.take_output() == b"LHLO mail.example.com\r\n"
    (refused,) = _say(session, "500 what?")
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
    refused, *ended = _say(session, reply)
    assert refused.stage is Stage.GREETING
    assert refused.reply.code == int(reply[:3])
    if reply.startswith("421"):
        assert ended == [SessionEnded(Evidence(Stage.GREETING, refused.reply))]
    else:
        session.quit()
        assert _say(session, "221 bye") == [SessionEnded(None)]


@pytest.mark.covers("RFC 3207 §4.2")
def test_starttls() -> None:
    session = _ready(b"250-mx.example\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n")
    with pytest.raises(SessionStateError):
        session.authenticate("ann", "secret")
    session.start_tls()
    assert session.take_output() == b"STARTTLS\r\n"
    assert _say(session, "220 go ahead") == [TlsReady()]
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
        _ready().start_tls()


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.covers("RFC 3207 §5")
def test_replies_before_the_handshake_are_not_believed_after_it(split: bool) -> None:
    session = _ready(b"250-mx.example\r\n250 STARTTLS\r\n")
    session.start_tls()
    for piece in [b"220 go\r\n", b"250 x\r\n"] if split else [b"220 go\r\n250 x\r\n"]:
        session.receive(piece)
    assert _events(session)[-1] == SessionEnded(Evidence(Stage.TLS, fault=Fault.BAD_REPLY))


def test_starttls_refused_and_failed() -> None:
    session = _ready(b"250-mx.example\r\n250 STARTTLS\r\n")
    session.start_tls()
    (refused,) = _say(session, "454 4.7.0 not now")
    assert refused.stage is Stage.TLS
    assert session.is_ready
    session.start_tls()
    _say(session, "220 go")
    session.fail(Fault.TLS_FAILED)
    assert _events(session) == [SessionEnded(Evidence(Stage.TLS, fault=Fault.TLS_FAILED))]


@pytest.mark.covers("RFC 4954 §4", "mail-server:C6", "edge:N16")
def test_authentication() -> None:
    def begin(offer: bytes, name: str = "ann", word: str = "secret") -> tuple[ClientSession, bytes]:
        session = _ready(b"250-mx.example\r\n250 " + offer + b"\r\n", encrypted=True)
        session.authenticate(name, word)
        assert session.stage is Stage.AUTH
        return session, session.take_output()

    session, said = begin(b"AUTH LOGIN PLAIN")
    assert said == b"AUTH PLAIN " + base64.b64encode(b"\0ann\0secret") + b"\r\n"
    assert isinstance(_say(session, "235 2.7.0 ok")[0], Authenticated)
    session, said = begin(b"AUTH LOGIN")
    assert said == b"AUTH LOGIN\r\n"
    assert _say(session, "334 VXNlcm5hbWU6") == []
    assert session.take_output() == b"YW5u\r\n"
    assert _say(session, "334 UGFzc3dvcmQ6") == []
    assert session.take_output() == b"c2VjcmV0\r\n"
    (refused,) = _say(session, "535 5.7.8 no")
    assert (refused.stage, refused.reply.code) == (Stage.AUTH, 535)
    assert session.is_ready
    # Too long for a command line.
    session, said = begin(b"AUTH PLAIN", word="x" * 400)
    assert said == b"AUTH PLAIN\r\n"
    _say(session, "334 ")
    assert base64.b64decode(session.take_output()) == b"\0ann\0" + b"x" * 400
    # A challenge that is none of ours is given up.
    session, _ = begin(b"AUTH PLAIN")
    _say(session, "334 more")
    assert session.take_output() == b"*\r\n"
    with pytest.raises(UnsupportedError):
        begin(b"AUTH CRAM-MD5")
    with pytest.raises(ValueError):
        begin(b"AUTH PLAIN", word="sec\0ret")


@pytest.mark.covers("RFC 2920 §3.1")
def test_pipelined_transaction() -> None:
    session = _ready()
    session.send(_request("a", "b", "c", size=10, body=Body.EIGHT_BIT))
    assert session.take_output() == (
        b"MAIL FROM:<ann@example.com> SIZE=10 BODY=8BITMIME\r\nRCPT TO:<a@agents.example>\r\n"
        b"RCPT TO:<b@agents.example>\r\nRCPT TO:<c@agents.example>\r\nDATA\r\n"
    )
    (wanted,) = _say(session, "250 ok", "250 ok", "550 5.1.1 no", "450 later", "354 go")
    assert wanted == BodyWanted((Address("a", "agents.example"),))
    assert (session.data_started, session.final_sent) == (False, False)
    session.send_body(b"Subject: x\r\n\r\n.dot")
    assert (session.data_started, session.final_sent) == (True, False)
    session.end_body()
    assert (session.final_sent, session.wants_body, session.stage) == (True, False, Stage.FINAL)
    assert session.take_output() == b"Subject: x\r\n\r\n..dot\r\n.\r\n"
    (ended,) = _say(session, "250 2.0.0 queued")
    assert _fates(ended) == [(Stage.FINAL, 250), (Stage.RCPT, 550), (Stage.RCPT, 450)]
    # Reuse: the transaction ended with the reply to its dot, so no RSET is needed.
    session.send(_request())
    assert session.take_output().startswith(b"MAIL FROM")


@pytest.mark.parametrize(("offer", "pipelining"), [(_PLAIN_OFFER, True), (_PIPELINING, False)])
@pytest.mark.covers("edge:N20")
def test_lock_step(offer: bytes, pipelining: bool) -> None:
    session = _ready(offer, pipelining=pipelining)
    session.send(_request("a", "b"))
    for line, reply in [
        (b"MAIL FROM:<ann@example.com>\r\n", "250 ok"),
        (b"RCPT TO:<a@agents.example>\r\n", "550 no"),
        (b"RCPT TO:<b@agents.example>\r\n", "250 ok"),
    ]:
        assert session.take_output() == line
        assert _say(session, reply) == []
    assert session.take_output() == b"DATA\r\n"
    assert isinstance(_say(session, "354 go")[0], BodyWanted)
    # Everybody refused: DATA is not said, and the next transaction clears the table first.
    session = _ready(offer, pipelining=pipelining)
    session.send(_request())
    _say(session, "250 ok")
    (ended,) = _say(session, "550 no")
    assert _fates(ended) == [(Stage.RCPT, 550)]
    assert b"DATA" not in session.take_output()
    session.send(_request())
    assert session.take_output() == b"RSET\r\n"
    _say(session, "250 ok")
    assert session.take_output().startswith(b"MAIL FROM")


@pytest.mark.covers("RFC 2920 §3.1")
def test_everybody_refused_in_the_pipeline() -> None:
    session = _ready()
    session.send(_request("a", "b"))
    session.take_output()
    assert _say(session, "250 ok", "550 no", "550 no", "354 go")[0:] == []
    assert session.take_output() == b".\r\n"
    (ended,) = _say(session, "554 no valid recipients")
    assert _fates(ended) == [(Stage.RCPT, 550)] * 2
    assert not session.data_started
    session = _ready()
    session.send(_request("a", "b"))
    session.take_output()
    (ended,) = _say(session, "250 ok", "550 no", "450 no", "503 no recipients")
    assert _fates(ended) == [(Stage.RCPT, 550), (Stage.RCPT, 450)]
    assert session.is_ready


@pytest.mark.parametrize(
    ("replies", "fates"),
    [
        (["550 no", "503 x", "503 x", "503 x"], [(Stage.MAIL, 550)] * 2),
        (["451 later", "250 x", "503 x", "503 x"], [(Stage.MAIL, 451)] * 2),
        (["250 ok", "250 ok", "550 no", "451 later"], [(Stage.DATA, 451), (Stage.RCPT, 550)]),
    ],
)
def test_refused_envelopes(replies: list[str], fates: list[tuple[Stage, int]]) -> None:
    session = _ready()
    session.send(_request("a", "b"))
    (ended,) = _say(session, *replies)
    assert _fates(ended) == fates
    session.take_output()
    session.send(_request())
    assert session.take_output().startswith(b"RSET\r\nMAIL FROM")
    (wanted,) = _say(session, "250 ok", "250 ok", "250 ok", "354 go")
    assert isinstance(wanted, BodyWanted)


def test_data_without_a_sender_is_not_given() -> None:
    session = _ready()
    session.send(_request())
    ended, over = _say(session, "550 no", "250 ok", "354 go")
    assert _fates(ended) == [(Stage.MAIL, 550)]
    assert over.evidence.fault is Fault.BAD_REPLY
    assert session.is_closed


@pytest.mark.covers("edge:G2", "edge:N15", "mail-server:C5")
@pytest.mark.parametrize("fault", [Fault.CONNECTION_LOST, Fault.TIMEOUT])
def test_what_a_loss_means_depends_on_the_stage(fault: Fault) -> None:
    def lost(*replies: str, body: bool = False, end: bool = False) -> list[tuple[Stage, int | Fault]]:
        session = _ready()
        session.send(_request("a", "b"))
        _say(session, *replies)
        if body:
            session.send_body(b"x")
        if end:
            session.end_body()
        session.fail(fault)
        session.fail(fault)
        ended, over = _events(session)
        assert over.evidence.fault is fault
        return _fates(ended)

    assert lost() == [(Stage.MAIL, fault)] * 2
    assert lost("250 ok", "550 no") == [(Stage.RCPT, 550), (Stage.RCPT, fault)]
    assert lost("250 ok", "550 no", "250 ok") == [(Stage.RCPT, 550), (Stage.DATA, fault)]
    envelope = ["250 ok", "550 no", "250 ok", "354 go"]
    assert lost(*envelope) == [(Stage.RCPT, 550), (Stage.BODY, fault)]
    assert lost(*envelope, body=True) == [(Stage.RCPT, 550), (Stage.BODY, fault)]
    assert lost(*envelope, body=True, end=True) == [(Stage.RCPT, 550), (Stage.FINAL, fault)]


@pytest.mark.covers("mail-server:C5", "edge:G2")
@pytest.mark.parametrize(
    ("reply", "fate"),
    [
        ("250 ok", (Stage.FINAL, 250)),
        ("421 4.3.2 closing", (Stage.FINAL, 421)),
        ("451 later", (Stage.FINAL, 451)),
        ("554 5.6.0 no", (Stage.FINAL, 554)),
        ("354 more?", (Stage.FINAL, Fault.BAD_REPLY)),
        ("hello", (Stage.FINAL, Fault.BAD_REPLY)),
        ("250-" + "x" * 3000, (Stage.FINAL, Fault.BAD_REPLY)),
    ],
)
def test_replies_to_the_final_dot(reply: str, fate: tuple[Stage, int | Fault]) -> None:
    session = _ready()
    _to_body(session)
    session.end_body()
    ended = _say(session, reply)[0]
    assert _fates(ended) == [fate]


@pytest.mark.covers("mail-server:C5")
def test_a_server_that_breaks_off_the_message() -> None:
    for reply, fate in [
        ("552 5.3.4 too large", (Stage.BODY, 552)),
        ("421 4.3.2 closing", (Stage.BODY, 421)),
        ("250 ok already", (Stage.BODY, Fault.BAD_REPLY)),
    ]:
        session = _ready()
        _to_body(session)
        session.send_body(b"x")
        ended, over = _say(session, reply)
        assert _fates(ended) == [fate]
        assert isinstance(over, SessionEnded)
        assert not session.wants_body
        with pytest.raises(SessionStateError):
            session.end_body()


@pytest.mark.covers("RFC 5321 §3.8")
@pytest.mark.parametrize("answered", range(4))
@pytest.mark.parametrize("pipelining", [True, False])
def test_421_anywhere(answered: int, pipelining: bool) -> None:
    session = _ready(pipelining=pipelining)
    session.send(_request("a", "b"))
    for _ in range(answered):
        assert _say(session, "250 ok") == []
    ended, over = _say(session, "421 4.3.2 closing")
    stage = [Stage.MAIL, Stage.RCPT, Stage.RCPT, Stage.DATA][answered]
    assert _fates(ended) == [(stage, 421)] * 2
    assert (over.evidence.stage, over.evidence.reply.code) == (stage, 421)
    assert session.is_closed


def test_421_between_transactions() -> None:
    session = _ready()
    (over,) = _say(session, "421 4.4.2 idle for too long")
    assert over.evidence.reply.code == 421
    assert session.next_event() is None


@pytest.mark.parametrize("reply", ["hello", "250-a\r\n550 b", "199 x", "250 " + "x" * 3000])
@pytest.mark.parametrize("stage", [Stage.GREETING, Stage.HELLO, Stage.MAIL, Stage.RCPT, Stage.DATA])
def test_bad_replies(stage: Stage, reply: str) -> None:
    session = ClientSession(ClientConfig("mail.example.com")) if stage < Stage.MAIL else _ready()
    if stage is Stage.HELLO:
        session.receive(b"220 hello\r\n")
        session.hello()
    elif stage >= Stage.MAIL:
        session.send(_request())
        session.receive(b"250 ok\r\n" * (stage - Stage.MAIL))
    event = _say(session, reply)[-1]
    assert event == SessionEnded(Evidence(stage, fault=Fault.BAD_REPLY))
    session.receive(b"250 ok\r\n")
    assert _events(session) == []


@pytest.mark.parametrize("stage", [Stage.GREETING, Stage.HELLO, Stage.AUTH, Stage.MAIL, Stage.RCPT, Stage.DATA])
def test_replies_of_the_wrong_kind(stage: Stage) -> None:
    session = (
        ClientSession(ClientConfig("m"))
        if stage < Stage.AUTH
        else _ready(b"250-x\r\n250-PIPELINING\r\n250 AUTH PLAIN\r\n", encrypted=True)
    )
    if stage is Stage.HELLO:
        session.receive(b"220 hello\r\n")
        session.hello()
    elif stage is Stage.AUTH:
        session.authenticate("ann", "secret")
    elif stage >= Stage.MAIL:
        session.send(_request())
        session.receive(b"250 ok\r\n" * (stage - Stage.MAIL))
    over = _say(session, "250 ok" if stage is Stage.DATA else "354 go")[-1]
    assert (over.evidence.stage, over.evidence.fault) == (stage, Fault.BAD_REPLY)


@pytest.mark.covers("edge:G5", "mail-server:C5", "RFC 1870 §6")
@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        (_request(size=1001), Fault.TOO_LARGE),
        (_request(smtputf8=True), Fault.UTF8_MISSING),
        (_request(body=Body.BINARY), Fault.BINARY_MISSING),
        (_request(requiretls=True), Fault.REQUIRETLS_MISSING),
        (MailRequest(Address("änn", "example.com"), _request().recipients), Fault.UTF8_MISSING),
    ],
)
def test_what_the_server_cannot_take_is_not_sent(request_: MailRequest, fault: Fault) -> None:
    session = _ready()
    session.send(request_)
    (ended,) = _events(session)
    assert _fates(ended) == [(Stage.MAIL, fault)]
    assert session.take_output() == b""
    assert session.is_ready


def test_8bit_and_requiretls_need_an_offer() -> None:
    session = _ready(_PLAIN_OFFER)
    session.send(_request(body=Body.EIGHT_BIT))
    assert _fates(_events(session)[0]) == [(Stage.MAIL, Fault.EIGHT_BIT_MISSING)]
    offer = b"250-x\r\n250 REQUIRETLS\r\n"
    session = _ready(offer)
    session.send(_request(requiretls=True))
    assert _fates(_events(session)[0]) == [(Stage.MAIL, Fault.REQUIRETLS_MISSING)]
    session = _ready(offer, encrypted=True)
    session.send(_request(requiretls=True))
    assert session.take_output() == b"MAIL FROM:<ann@example.com> REQUIRETLS\r\n"


@pytest.mark.covers("mail-server:C5", "RFC 6531 §3.4")
def test_smtputf8() -> None:
    session = _ready()
    session.send(_request("bot", "bötchen"))
    assert session.take_output() == b"MAIL FROM:<ann@example.com>\r\nRCPT TO:<bot@agents.example>\r\nDATA\r\n"
    _say(session, "250 ok", "250 ok", "354 go")
    session.end_body()
    (ended,) = _say(session, "250 ok")
    assert _fates(ended) == [(Stage.FINAL, 250), (Stage.RCPT, Fault.UTF8_MISSING)]
    session = _ready(b"250-x\r\n250-PIPELINING\r\n250 SMTPUTF8\r\n")
    session.send(_request("bötchen"))
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
    session = _ready(b"250-x\r\n250-PIPELINING\r\n250 DSN\r\n")
    session.send(request)
    assert session.take_output() == (
        b"MAIL FROM:<> RET=HDRS ENVID=x+3D1\r\n"
        b"RCPT TO:<bot@agents.example> NOTIFY=FAILURE,DELAY ORCPT=rfc822;a+2Bb@example.com\r\nDATA\r\n"
    )
    session = _ready()
    session.send(request)
    assert session.take_output() == b"MAIL FROM:<>\r\nRCPT TO:<bot@agents.example>\r\nDATA\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        MailRequest(_ANN, ()),
        MailRequest(Address("a\r\nDATA", "example.com"), _request().recipients),
        MailRequest(Address("a", "example.com>\r\nDATA"), _request().recipients),
        MailRequest(_ANN, (RecipientRequest(Address("a", "b> X=1")),)),
        MailRequest(_ANN, (RecipientRequest(Address("", "example.com")),)),
        MailRequest(_ANN, _request().recipients, envid="a\nb"),
        MailRequest(_ANN, _request().recipients, envid="x" * 101),
    ],
)
def test_requests_that_cannot_be_sent(request_: MailRequest) -> None:
    session = _ready(b"250-x\r\n250 DSN\r\n")
    with pytest.raises(ValueError):
        session.send(request_)
    assert session.take_output() == b""
    assert session.is_ready


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_no_address_breaks_out_of_its_line(local: str, domain: str) -> None:
    session = _ready(b"250-x\r\n250 SMTPUTF8\r\n")
    try:
        session.send(MailRequest(Address(local, domain), _request().recipients))
    except ValueError:
        return
    line = session.take_output()
    assert line.count(b"\r") == line.count(b"\n") == 1
    assert line.startswith(b"MAIL FROM:<")
    assert line.rstrip(b"\r\n").endswith((b">", b"> SMTPUTF8"))


@pytest.mark.covers("RFC 3030 §2")
def test_chunks() -> None:
    session = _ready(_CHUNKING, chunking=True)
    session.send(_request("a", "b"))
    assert not session.take_output().endswith(b"DATA\r\n")
    (wanted,) = _say(session, "250 ok", "550 no", "250 ok")
    assert wanted.recipients == (Address("b", "agents.example"),)
    session.send_body(b".\nx")
    session.send_body(b"")
    session.send_body(b"y")
    session.end_body()
    assert session.take_output() == b"BDAT 3\r\n.\nxBDAT 1\r\nyBDAT 0 LAST\r\n"
    assert _say(session, "250 3 octets", "250 1 octet") == []
    (ended,) = _say(session, "250 queued")
    assert _fates(ended) == [(Stage.RCPT, 550), (Stage.FINAL, 250)]


def _chunked(*, end: bool) -> ClientSession:
    session = _ready(_CHUNKING, chunking=True)
    session.send(_request())
    _say(session, "250 ok", "250 ok")
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
    (ended,) = _say(session, "552 5.3.4 full")
    assert _fates(ended) == [(Stage.BODY, 552)]
    session.send(_request())
    assert session.take_output().startswith(b"RSET\r\nMAIL FROM")
    (wanted,) = _say(session, "503 late chunk", "250 ok", "250 ok", "250 ok")
    assert isinstance(wanted, BodyWanted)
    # After it: the first refusal is the reason, if the last chunk is refused too.
    (ended,) = _say(_chunked(end=True), "552 5.3.4 full", "503 x", "503 x")
    assert _fates(ended) == [(Stage.BODY, 552)]
    # A server that took the rest may have sent half a message.
    (ended,) = _say(_chunked(end=True), "552 5.3.4 full", "503 x", "250 ok")
    assert _fates(ended) == [(Stage.FINAL, Fault.BAD_REPLY)]
    # Lost: unknown, unless a refusal came before.
    for replies, fate in [
        (["250 ok"], (Stage.FINAL, Fault.CONNECTION_LOST)),
        (["250 ok", "452 4.3.1 full"], (Stage.BODY, 452)),
    ]:
        session = _chunked(end=True)
        assert _say(session, *replies) == []
        session.fail(Fault.CONNECTION_LOST)
        assert _fates(_events(session)[0]) == [fate]


@pytest.mark.covers("RFC 2033 §4.2", "edge:G2")
def test_lmtp_answers_for_each_recipient() -> None:
    def begin() -> ClientSession:
        session = _ready(lmtp=True)
        session.send(_request("a", "b", "c", "d"))
        _say(session, "250 ok", "250 ok", "550 no", "250 ok", "250 ok", "354 go")
        session.end_body()
        return session

    session = begin()
    assert _say(session, "250 ok", "452 4.2.2 full") == []
    (ended,) = _say(session, "550 5.1.1 gone")
    assert _fates(ended) == [(Stage.FINAL, 250), (Stage.RCPT, 550), (Stage.FINAL, 452), (Stage.FINAL, 550)]
    assert session.is_ready
    session = begin()
    _say(session, "250 ok", "421 4.3.2 closing")
    session.fail(Fault.CONNECTION_LOST)
    ended = _events(session)[0]
    assert _fates(ended)[2:] == [(Stage.FINAL, 421), (Stage.FINAL, Fault.CONNECTION_LOST)]


def test_reset_and_quit() -> None:
    session = _ready()
    session.reset()
    assert session.take_output() == b"RSET\r\n"
    assert _say(session, "250 ok") == [ResetDone()]
    session.quit()
    assert session.take_output() == b"QUIT\r\n"
    assert session.stage is Stage.QUIT
    session.fail(Fault.CONNECTION_LOST)
    assert _events(session) == [SessionEnded(None)]
    for command in (session.hello, session.reset, session.quit, session.end_body, session.start_tls):
        with pytest.raises(SessionStateError):
            command()


def test_a_reset_that_is_refused_ends_it() -> None:
    session = _ready()
    session.send(_request())
    _say(session, "550 no", "503 x", "503 x")
    session.send(_request())
    ended, over = _say(session, "500 what?")
    assert _fates(ended) == [(Stage.RESET, 500)]
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
        for event in _events(session):
            if isinstance(event, GreetingReceived):
                session.hello()
            elif isinstance(event, HelloDone) or (isinstance(event, TransactionEnded) and session.is_ready):
                session.send(_request("a", "b"))
                sent += 1
            elif isinstance(event, BodyWanted):
                session.send_body(b"x")
                session.end_body()
            ended += isinstance(event, TransactionEnded)
            over += isinstance(event, SessionEnded)
    session.fail(Fault.CONNECTION_LOST)
    rest = _events(session)
    ended += sum(isinstance(event, TransactionEnded) for event in rest)
    over += sum(isinstance(event, SessionEnded) for event in rest)
    assert (ended, over) == (sent, 1)
    assert session.is_closed
