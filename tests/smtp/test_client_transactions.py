"""The sending side: envelopes, replies and losses, and what each means for the recipients."""

import pytest

from postroom.smtp import (
    Address,
    Body,
    BodyWanted,
    ClientConfig,
    ClientSession,
    Evidence,
    Fault,
    SessionEnded,
    SessionStateError,
    Stage,
)
from tests.smtp.talking import PIPELINING, PLAIN_OFFER, events, fates_of, mail_request, ready, say, to_body


@pytest.mark.covers("RFC 2920 §3.1")
def test_pipelined_transaction() -> None:
    session = ready()
    session.send(mail_request("a", "b", "c", size=10, body=Body.EIGHT_BIT))
    assert session.take_output() == (
        b"MAIL FROM:<ann@example.com> SIZE=10 BODY=8BITMIME\r\nRCPT TO:<a@agents.example>\r\n"
        b"RCPT TO:<b@agents.example>\r\nRCPT TO:<c@agents.example>\r\nDATA\r\n"
    )
    (wanted,) = say(session, "250 ok", "250 ok", "550 5.1.1 no", "450 later", "354 go")
    assert wanted == BodyWanted((Address("a", "agents.example"),))
    assert (session.data_started, session.final_sent) == (False, False)
    session.send_body(b"Subject: x\r\n\r\n.dot")
    assert (session.data_started, session.final_sent) == (True, False)
    session.end_body()
    assert (session.final_sent, session.wants_body, session.stage) == (True, False, Stage.FINAL)
    assert session.take_output() == b"Subject: x\r\n\r\n..dot\r\n.\r\n"
    (ended,) = say(session, "250 2.0.0 queued")
    assert fates_of(ended) == [(Stage.FINAL, 250), (Stage.RCPT, 550), (Stage.RCPT, 450)]
    # Reuse: the transaction ended with the reply to its dot, so no RSET is needed.
    session.send(mail_request())
    assert session.take_output().startswith(b"MAIL FROM")


@pytest.mark.parametrize(("offer", "pipelining"), [(PLAIN_OFFER, True), (PIPELINING, False)])
@pytest.mark.covers("edge:N20")
def test_lock_step(offer: bytes, pipelining: bool) -> None:
    session = ready(offer, pipelining=pipelining)
    session.send(mail_request("a", "b"))
    for line, reply in [
        (b"MAIL FROM:<ann@example.com>\r\n", "250 ok"),
        (b"RCPT TO:<a@agents.example>\r\n", "550 no"),
        (b"RCPT TO:<b@agents.example>\r\n", "250 ok"),
    ]:
        assert session.take_output() == line
        assert say(session, reply) == []
    assert session.take_output() == b"DATA\r\n"
    assert isinstance(say(session, "354 go")[0], BodyWanted)
    # Everybody refused: DATA is not said, and the next transaction clears the table first.
    session = ready(offer, pipelining=pipelining)
    session.send(mail_request())
    say(session, "250 ok")
    (ended,) = say(session, "550 no")
    assert fates_of(ended) == [(Stage.RCPT, 550)]
    assert b"DATA" not in session.take_output()
    session.send(mail_request())
    assert session.take_output() == b"RSET\r\n"
    say(session, "250 ok")
    assert session.take_output().startswith(b"MAIL FROM")


@pytest.mark.covers("RFC 2920 §3.1")
def test_everybody_refused_in_the_pipeline() -> None:
    session = ready()
    session.send(mail_request("a", "b"))
    session.take_output()
    assert say(session, "250 ok", "550 no", "550 no", "354 go")[0:] == []
    assert session.take_output() == b".\r\n"
    (ended,) = say(session, "554 no valid recipients")
    assert fates_of(ended) == [(Stage.RCPT, 550)] * 2
    assert not session.data_started
    session = ready()
    session.send(mail_request("a", "b"))
    session.take_output()
    (ended,) = say(session, "250 ok", "550 no", "450 no", "503 no recipients")
    assert fates_of(ended) == [(Stage.RCPT, 550), (Stage.RCPT, 450)]
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
    session = ready()
    session.send(mail_request("a", "b"))
    (ended,) = say(session, *replies)
    assert fates_of(ended) == fates
    session.take_output()
    session.send(mail_request())
    assert session.take_output().startswith(b"RSET\r\nMAIL FROM")
    (wanted,) = say(session, "250 ok", "250 ok", "250 ok", "354 go")
    assert isinstance(wanted, BodyWanted)


def test_data_without_a_sender_is_not_given() -> None:
    session = ready()
    session.send(mail_request())
    ended, over = say(session, "550 no", "250 ok", "354 go")
    assert fates_of(ended) == [(Stage.MAIL, 550)]
    assert over.evidence.fault is Fault.BAD_REPLY
    assert session.is_closed


@pytest.mark.covers("edge:G2", "edge:N15", "mail-server:C5")
@pytest.mark.parametrize("fault", [Fault.CONNECTION_LOST, Fault.TIMEOUT])
def test_what_a_loss_means_depends_on_the_stage(fault: Fault) -> None:
    def lost(*replies: str, body: bool = False, end: bool = False) -> list[tuple[Stage, int | Fault]]:
        session = ready()
        session.send(mail_request("a", "b"))
        say(session, *replies)
        if body:
            session.send_body(b"x")
        if end:
            session.end_body()
        session.fail(fault)
        session.fail(fault)
        ended, over = events(session)
        assert over.evidence.fault is fault
        return fates_of(ended)

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
    session = ready()
    to_body(session)
    session.end_body()
    ended = say(session, reply)[0]
    assert fates_of(ended) == [fate]


@pytest.mark.covers("mail-server:C5")
def test_a_server_that_breaks_off_the_message() -> None:
    for reply, fate in [
        ("552 5.3.4 too large", (Stage.BODY, 552)),
        ("421 4.3.2 closing", (Stage.BODY, 421)),
        ("250 ok already", (Stage.BODY, Fault.BAD_REPLY)),
    ]:
        session = ready()
        to_body(session)
        session.send_body(b"x")
        ended, over = say(session, reply)
        assert fates_of(ended) == [fate]
        assert isinstance(over, SessionEnded)
        assert not session.wants_body
        with pytest.raises(SessionStateError):
            session.end_body()


@pytest.mark.covers("RFC 5321 §3.8")
@pytest.mark.parametrize("answered", range(4))
@pytest.mark.parametrize("pipelining", [True, False])
def test_421_anywhere(answered: int, pipelining: bool) -> None:
    session = ready(pipelining=pipelining)
    session.send(mail_request("a", "b"))
    for _ in range(answered):
        assert say(session, "250 ok") == []
    ended, over = say(session, "421 4.3.2 closing")
    stage = [Stage.MAIL, Stage.RCPT, Stage.RCPT, Stage.DATA][answered]
    assert fates_of(ended) == [(stage, 421)] * 2
    assert (over.evidence.stage, over.evidence.reply.code) == (stage, 421)
    assert session.is_closed


def test_421_between_transactions() -> None:
    session = ready()
    (over,) = say(session, "421 4.4.2 idle for too long")
    assert over.evidence.reply.code == 421
    assert session.next_event() is None


@pytest.mark.parametrize("reply", ["hello", "250-a\r\n550 b", "199 x", "250 " + "x" * 3000])
@pytest.mark.parametrize("stage", [Stage.GREETING, Stage.HELLO, Stage.MAIL, Stage.RCPT, Stage.DATA])
def test_bad_replies(stage: Stage, reply: str) -> None:
    session = ClientSession(ClientConfig("mail.example.com")) if stage < Stage.MAIL else ready()
    if stage is Stage.HELLO:
        session.receive(b"220 hello\r\n")
        session.hello()
    elif stage >= Stage.MAIL:
        session.send(mail_request())
        session.receive(b"250 ok\r\n" * (stage - Stage.MAIL))
    event = say(session, reply)[-1]
    assert event == SessionEnded(Evidence(stage, fault=Fault.BAD_REPLY))
    session.receive(b"250 ok\r\n")
    assert events(session) == []


@pytest.mark.parametrize("stage", [Stage.GREETING, Stage.HELLO, Stage.AUTH, Stage.MAIL, Stage.RCPT, Stage.DATA])
def test_replies_of_the_wrong_kind(stage: Stage) -> None:
    session = (
        ClientSession(ClientConfig("m"))
        if stage < Stage.AUTH
        else ready(b"250-x\r\n250-PIPELINING\r\n250 AUTH PLAIN\r\n", encrypted=True)
    )
    if stage is Stage.HELLO:
        session.receive(b"220 hello\r\n")
        session.hello()
    elif stage is Stage.AUTH:
        session.authenticate("ann", "secret")
    elif stage >= Stage.MAIL:
        session.send(mail_request())
        session.receive(b"250 ok\r\n" * (stage - Stage.MAIL))
    over = say(session, "250 ok" if stage is Stage.DATA else "354 go")[-1]
    assert (over.evidence.stage, over.evidence.fault) == (stage, Fault.BAD_REPLY)
