import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import (
    Body,
    MailParameters,
    Profile,
    Reply,
    ServerConfig,
    ServerSession,
    SessionStateError,
    Signal,
    State,
)
from postroom.smtp.machine import COMMANDS, Step

Drive = Callable[..., Any]

_MAIL = b"MAIL FROM:<ann@example.com>\r\n"
_RCPT = b"RCPT TO:<bot@agents.example>\r\n"
_TO_STATE = {
    State.CONNECTED: b"",
    State.GREETED: b"EHLO client.example\r\n",
    State.MAIL: b"EHLO client.example\r\n" + _MAIL,
    State.RCPT: b"EHLO client.example\r\n" + _MAIL + _RCPT,
    State.CHUNKS: b"EHLO client.example\r\n" + _MAIL + _RCPT + b"BDAT 3\r\nx\r\n",
}
_TLS = ServerConfig("mx.example.com", tls_available=True)


def _codes_after(drive: Drive, state: State, line: bytes, **kwargs: Any) -> list[str]:
    skip = len(drive([_TO_STATE[state]], **kwargs).codes)
    codes: list[str] = drive([_TO_STATE[state] + line], **kwargs).codes
    return codes[skip:]


def test_greeting_and_ehlo(drive: Drive) -> None:
    seen = drive([b"EHLO client.example\r\n"], _TLS)
    assert seen.output == (
        b"220 mx.example.com ESMTP Postroom\r\n250-mx.example.com\r\n250-PIPELINING\r\n250-SIZE 26214400\r\n"
        b"250-8BITMIME\r\n250-SMTPUTF8\r\n250-CHUNKING\r\n250-BINARYMIME\r\n250-ENHANCEDSTATUSCODES\r\n"
        b"250-LIMITS RCPTMAX=100\r\n250-STARTTLS\r\n250 HELP\r\n"
    )


@pytest.mark.covers("mail-server:A2")
def test_extensions_follow_the_configuration(drive: Drive) -> None:
    def ehlo(**config: Any) -> bytes:
        output: bytes = drive([b"EHLO c\r\n"], ServerConfig("mx.example.com", **config)).output
        return output

    assert b"STARTTLS" not in ehlo()
    assert b"SIZE" not in ehlo(advertise_size=False)
    plain = ServerConfig("mx.example.com", advertise_extensions=False)
    assert drive([b"EHLO c\r\n" + _MAIL + b"NONE\r\n"], plain).output == (
        b"220 mx.example.com ESMTP Postroom\r\n250-mx.example.com\r\n250 OK\r\n250 Sender ok\r\n"
        b"500 Command not recognised\r\n"
    )


def test_helo_answers_one_line(drive: Drive) -> None:
    seen = drive([b"helo client.example\r\n"])
    assert seen.output.endswith(b"\r\n250 mx.example.com\r\n")
    assert not seen.session.esmtp
    assert seen.session.helo == "client.example"


def test_one_message(drive: Drive) -> None:
    seen = drive(
        [
            b"EHLO c\r\nMAIL FROM:<Ann@Example.com> SIZE=99 BODY=8bitmime SMTPUTF8 AUTH=<>\r\n" + _RCPT,
            b"DATA\r\nSubject: x\r\n\r\n..dot\r\n.\r\nQUIT\r\n",
        ]
    )
    assert seen.codes == ["250 -", "250 2.1.0", "250 2.1.5", "354 -", "250 2.0.0", "221 2.0.0"]
    (message,) = seen.messages
    assert str(message.sender) == "Ann@example.com"
    assert message.parameters == MailParameters(size=99, body=Body.EIGHT_BIT, smtputf8=True, submitter="")
    assert message.parameters.body_8bit
    assert [value for _, value in message.recipients] == ["bot@agents.example"]
    assert message.data == b"Subject: x\r\n\r\n.dot\r\n"
    assert seen.signals == [Signal.CLOSED]


# Every cell of the machine: what each command answers in each state.
_LEGAL = {
    "EHLO": (b"EHLO c\r\n", ["250 -"]),
    "HELO": (b"HELO c\r\n", ["250 -"]),
    "MAIL": (_MAIL, ["250 2.1.0"]),
    "RCPT": (_RCPT, ["250 2.1.5"]),
    "DATA": (b"DATA\r\n", ["354 -"]),
    "RSET": (b"RSET\r\n", ["250 2.0.0"]),
    "NOOP": (b"NOOP whatever\r\n", ["250 2.0.0"]),
    "QUIT": (b"QUIT\r\n", ["221 2.0.0"]),
    "VRFY": (b"VRFY ann\r\n", ["252 2.5.2"]),
    "HELP": (b"HELP\r\n", ["214 2.0.0"]),
    "STARTTLS": (b"STARTTLS\r\n", ["220 2.0.0"]),
    "AUTH": (b"AUTH PLAIN\r\n", ["334 -"]),
    "EXPN": (b"EXPN list\r\n", []),
}
_REFUSED = {
    ("MAIL", State.CONNECTED): "503 Send HELO/EHLO first",
    ("MAIL", State.MAIL): "503 Sender already specified",
    ("MAIL", State.RCPT): "503 Sender already specified",
    ("MAIL", State.CHUNKS): "503 Sender already specified",
    ("RCPT", State.CONNECTED): "503 Need MAIL FROM before RCPT TO",
    ("RCPT", State.GREETED): "503 Need MAIL FROM before RCPT TO",
    ("RCPT", State.CHUNKS): "503 Message data has begun",
    ("DATA", State.CONNECTED): "503 Need RCPT TO before DATA",
    ("DATA", State.GREETED): "503 Need RCPT TO before DATA",
    ("DATA", State.MAIL): "503 Need RCPT TO before DATA",
    ("DATA", State.CHUNKS): "503 Binary data and chunks need BDAT",
    ("AUTH", State.CONNECTED): "503 Send HELO/EHLO first",
    **{("AUTH", state): "503 AUTH not permitted during a mail transaction" for state in list(State)[2:]},
    **{("EXPN", state): "502 Command not implemented" for state in State},
}
_WITH_AUTH = ServerConfig("mx.example.com", tls_available=True, auth=True)
_AFTER: dict[Step, Callable[[State], State]] = {
    Step.EHLO: lambda state: State.GREETED,
    Step.HELO: lambda state: State.GREETED,
    Step.MAIL: lambda state: State.MAIL,
    Step.RCPT: lambda state: State.RCPT,
    Step.RSET: lambda state: state if state is State.CONNECTED else State.GREETED,
    Step.STARTTLS: lambda state: State.CONNECTED,
}


@pytest.mark.covers("mail-server:A2", "mail-server:A9")
@pytest.mark.parametrize("verb", sorted(_LEGAL))
@pytest.mark.parametrize("state", list(State))
def test_every_cell(drive: Drive, verb: str, state: State) -> None:
    line, codes = _LEGAL[verb]
    refusal = _REFUSED.get((verb, state))
    seen = drive([_TO_STATE[state] + line], _WITH_AUTH, auth_in_clear=True)
    cell = COMMANDS[Profile.MX][verb.encode()][state]
    if refusal is not None:
        assert isinstance(cell, Reply)
        code, _, text = refusal.partition(" ")
        assert seen.output.endswith(f"\r\n{code} 5.5.1 {text}\r\n".encode())
        assert seen.session.state is state
    else:
        assert isinstance(cell, Step)
        assert _codes_after(drive, state, line, config=_WITH_AUTH, auth_in_clear=True) == codes
        if cell is not Step.QUIT:
            assert seen.session.state is (_AFTER[cell](state) if cell in _AFTER else state)


def test_the_table_is_complete() -> None:
    assert {verb.decode() for verb in COMMANDS[Profile.MX]} == {*_LEGAL, "BDAT"}
    assert COMMANDS[Profile.SUBMISSION] is COMMANDS[Profile.MX]


@pytest.mark.covers("mail-server:A2")
def test_helo_not_required(drive: Drive) -> None:
    assert drive([_MAIL], ServerConfig("mx.example.com", helo_required=False)).codes == ["250 2.1.0"]


@pytest.mark.covers("mail-server:A9")
@pytest.mark.parametrize(
    ("state", "line", "code"),
    [
        (State.GREETED, b"WHAT\r\n", "500 5.5.2"),
        (State.GREETED, b"\r\n", "500 5.5.2"),
        (State.GREETED, b"NO\0OP\r\n", "500 5.5.2"),
        (State.GREETED, b"NOOP " + b"x" * 505 + b"\r\n", "250 2.0.0"),
        (State.GREETED, b"NOOP " + b"x" * 506 + b"\r\n", "500 5.5.2"),
        (State.GREETED, b"NOOP " + b"x" * 100_000 + b"\n\r" + b"x" * 99 + b"\r\n", "500 5.5.2"),
        (State.CONNECTED, b"EHLO\r\n", "501 5.5.4"),
        (State.CONNECTED, b"HELO   \r\n", "501 5.5.4"),
        (State.CONNECTED, b"EHLO two words\r\n", "501 5.5.4"),
        (State.CONNECTED, b"EHLO \xc3\xa4\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL TO:<a@example.com>\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL FROM:a@example.com\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL FROM:<a@[192.0.2.1]>\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL FROM:<a@example.com> SIZE=x\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL FROM:<a@example.com> SIZE\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL FROM:<a@example.com> SIZE=1 SIZE=2\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL FROM:<a@example.com> BODY=NINEBIT\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL FROM:<a@example.com> BODY=BINARYMIME\r\n", "250 2.1.0"),
        (State.GREETED, b"MAIL FROM:<a@example.com> REQUIRETLS\r\n", "550 5.7.30"),
        (State.GREETED, b"MAIL FROM:<a@example.com> AUTH=x+\r\n", "501 5.5.4"),
        (State.GREETED, b"AUTH PLAIN\r\n", "502 5.5.1"),
        (State.GREETED, b"MAIL FROM:<a@example.com> SMTPUTF8=1\r\n", "501 5.5.4"),
        (State.GREETED, b"MAIL FROM:<a@example.com> =x\r\n", "501 5.5.4"),
        (State.GREETED, "MAIL FROM:<ä@example.com>\r\n".encode(), "501 5.5.4"),
        (State.GREETED, "MAIL FROM:<ä@example.com> SMTPUTF8\r\n".encode(), "250 2.1.0"),
        (State.GREETED, b"MAIL FROM:<a@example.com> RET=HDRS ENVID=x UNKNOWN\r\n", "250 2.1.0"),
        (State.GREETED, b"MAIL FROM:<>\r\n", "250 2.1.0"),
        (State.GREETED, b"MAIL FROM: <a@example.com>\r\n", "250 2.1.0"),
        (State.GREETED, b"mail from:<a@example.com> size=26214400\r\n", "250 2.1.0"),
        (State.GREETED, b"MAIL FROM:<a@example.com> SIZE=26214401\r\n", "552 5.3.4"),
        (State.GREETED, b"MAIL FROM:<a@example.com> SIZE=99999999999999999999\r\n", "552 5.3.4"),
        (State.MAIL, b"RCPT\r\n", "501 5.5.4"),
        (State.MAIL, b"RCPT TO:<>\r\n", "501 5.5.4"),
        (State.MAIL, b"RCPT TO:<a>\r\n", "501 5.5.4"),
        (State.MAIL, "RCPT TO:<ä@agents.example>\r\n".encode(), "501 5.5.4"),
        (State.MAIL, b"RCPT TO:<a@agents.example> NOTIFY=NEVER ORCPT=rfc822;a@b\r\n", "250 2.1.5"),
        (State.MAIL, b"RCPT TO:<a@agents.example> NOTIFY=\r\n", "501 5.5.4"),
        (State.MAIL, b"RCPT TO:<PostMaster>\r\n", "250 2.1.5"),
        (State.RCPT, b"DATA now\r\n", "501 5.5.4"),
        (State.RCPT, b"RSET now\r\n", "501 5.5.4"),
        (State.GREETED, b"QUIT now\r\n", "501 5.5.4"),
        (State.GREETED, b"STARTTLS now\r\n", "501 5.5.4"),
        (State.GREETED, b"STARTTLS\r\n", "502 5.5.1"),
    ],
)
def test_one_line(drive: Drive, state: State, line: bytes, code: str) -> None:
    assert _codes_after(drive, state, line) == [code]
    # The session goes on.
    assert _codes_after(drive, state, line + b"VRFY x\r\n") == [code, "252 2.5.2"]


@pytest.mark.covers("decisions:D28")
def test_postmaster_belongs_to_the_configured_domain(drive: Drive) -> None:
    config = ServerConfig("MX.example.com", postmaster_domain="agents.example")
    lines = [_TO_STATE[State.MAIL] + b"RCPT TO:<postmaster>\r\nDATA\r\n.\r\n"]
    assert drive(lines, config).messages[0].recipients[0][1] == "postmaster@agents.example"
    assert drive(lines).messages[0].recipients[0][1] == "postmaster@mx.example.com"


@pytest.mark.covers("mail-server:A2", "mail-server:A9")
def test_bare_line_feed_ends_the_session(drive: Drive) -> None:
    seen = drive([_TO_STATE[State.MAIL] + b"RCPT TO:<a\nRCPT TO:<b@agents.example>\r\n"])
    assert seen.codes[-1] == "500 5.5.2"
    assert seen.session.is_closed


@pytest.mark.covers("mail-server:A9")
def test_data_refusals(drive: Drive) -> None:
    config = ServerConfig("mx.example.com", max_message_size=1000)
    begin = _TO_STATE[State.RCPT] + b"DATA\r\n"

    def outcome(data: bytes) -> tuple[list[str], int, bool]:
        seen = drive([begin + data, _MAIL], config)
        return seen.codes[4:], len(seen.messages), seen.session.is_closed

    assert outcome(b"x" * 998 + b"\r\n.\r\n") == (["250 2.0.0", "250 2.1.0"], 1, False)
    assert outcome(b"x" * 999 + b"\r\n.\r\n") == (["552 5.3.4", "250 2.1.0"], 0, False)
    assert outcome(b"x" * 9000 + b"\r\n") == (["552 5.3.4"], 0, True)
    assert outcome(b"x\ny\r\n.\r\n") == (["554 5.5.1"], 0, True)
    assert outcome(b"x\ry\r\n.\r\n") == (["554 5.5.1"], 0, True)
    assert outcome(b"x\n.\r\nMAIL FROM:<evil@example.com>\r\n") == (["554 5.5.1"], 0, True)
    many = ServerConfig("mx.example.com")
    assert drive([begin + b"Received: x\r\n" * 50 + b".\r\n"], many).codes[-1] == "250 2.0.0"
    assert drive([begin + b"Received: x\r\n" * 51 + b".\r\n"], many).codes[-1] == "554 5.4.6"
    assert drive([begin + b".\r\n"]).messages[0].data == b""


@pytest.mark.covers("mail-server:A6", "mail-server:A9")
def test_recipient_cap_keeps_the_accepted(drive: Drive) -> None:
    config = ServerConfig("mx.example.com", max_recipients=2)
    seen = drive([_TO_STATE[State.MAIL] + _RCPT * 4 + b"DATA\r\n.\r\n"], config)
    assert seen.codes[2:] == ["250 2.1.5", "250 2.1.5", "452 4.5.3", "452 4.5.3", "354 -", "250 2.0.0"]
    assert len(seen.messages[0].recipients) == 2
    assert not seen.signals


def test_partial_refusal(drive: Drive) -> None:
    no = Reply(550, "5.1.1", "No such user here")
    lines = _TO_STATE[State.MAIL] + b"RCPT TO:<no@agents.example>\r\nDATA\r\n" + _RCPT + b"DATA\r\nx\r\n.\r\n"
    seen = drive([lines], refuse=lambda address: no if address.startswith("no@") else None)
    assert seen.codes[2:] == ["550 5.1.1", "503 5.5.1", "250 2.1.5", "354 -", "250 2.0.0"]
    assert [value for _, value in seen.messages[0].recipients] == ["bot@agents.example"]


@pytest.mark.covers("mail-server:A9")
@pytest.mark.parametrize(
    "reply",
    [
        Reply(450, "4.2.1", "x"), Reply(450, "4.7.1", "x"), Reply(451, "4.3.0", "x"), Reply(451, "4.7.1", "x"),
        Reply(452, "4.2.2", "x"), Reply(452, "4.3.1", "x"), Reply(550, "5.1.1", "x"), Reply(550, "5.1.2", "x"),
        Reply(550, "5.1.6", "x"), Reply(550, "5.2.1", "x"), Reply(550, "5.4.6", "x"), Reply(550, "5.7.1", "x"),
        Reply(554, "5.7.1", "x"),
    ],
)  # fmt: skip
def test_replies_of_the_services_pass_unchanged(drive: Drive, reply: Reply) -> None:
    seen = drive([_TO_STATE[State.MAIL] + _RCPT], refuse=lambda address: reply)
    assert seen.codes[-1] == f"{reply.code} {reply.enhanced}"
    seen = drive([_TO_STATE[State.RCPT] + b"DATA\r\nx\r\n.\r\n" + _MAIL], final=reply)
    assert seen.codes[-2:] == [f"{reply.code} {reply.enhanced}", "250 2.1.0"]
    assert (Signal.UNPRODUCTIVE in seen.signals) == (reply.code >= 500)


def test_a_421_of_a_service_ends_the_session(drive: Drive) -> None:
    seen = drive([_TO_STATE[State.MAIL] + _RCPT + _RCPT], refuse=lambda address: Reply(421, "4.3.2", "x"))
    assert seen.codes[-1] == "421 4.3.2"
    assert seen.signals == [Signal.CLOSED]


@pytest.mark.covers("mail-server:A5", "mail-server:A9")
def test_starttls_forgets_everything(drive: Drive) -> None:
    seen = drive([_TO_STATE[State.RCPT] + b"STARTTLS\r\n", _MAIL, b"EHLO c\r\n", b"STARTTLS\r\n", _RCPT], _TLS)
    assert seen.codes[3:] == ["220 2.0.0", "503 5.5.1", "250 -", "503 5.5.1", "503 5.5.1"]
    assert seen.output.count(b"250-STARTTLS") == 1
    assert seen.session.encrypted
    assert seen.output.endswith(b"503 5.5.1 TLS already active\r\n503 5.5.1 Need MAIL FROM before RCPT TO\r\n")


@pytest.mark.covers("mail-server:A5", "mail-server:A9")
def test_starttls_refused_by_the_driver(drive: Drive) -> None:
    seen = drive([b"EHLO c\r\nSTARTTLS\r\n", _MAIL], _TLS, tls=False)
    assert seen.codes == ["250 -", "454 4.7.0", "250 2.1.0"]


@pytest.mark.covers("mail-server:A5", "mail-server:A9")
def test_starttls_injection(drive: Drive) -> None:
    seen = drive([b"EHLO c\r\nSTARTTLS\r\n" + _MAIL], _TLS)
    assert seen.codes == ["250 -", "554 5.5.1"]
    assert seen.signals == [Signal.CLOSED]
    session = ServerSession(_TLS)
    session.receive(b"STARTTLS\r\n")
    assert session.next_event() is Signal.TLS_REQUESTED
    session.start_tls()
    session.receive(b"M")
    assert session.next_event() is Signal.CLOSED
    assert session.take_output().endswith(b"554 5.5.1 Pipelining violated\r\n")


def test_unproductive_commands_are_told(drive: Drive) -> None:
    lines = [
        b"NOOP\r\n",
        b"RSET\r\n",
        b"VRFY x\r\n",
        b"HELP\r\n",
        b"EXPN x\r\n",
        b"WHAT\r\n",
        b"EHLO c\r\n",
        b"DATA\r\n",
    ]
    assert drive([_TO_STATE[State.GREETED], *lines]).signals == [Signal.UNPRODUCTIVE] * len(lines)
    assert drive([_TO_STATE[State.RCPT] + b"DATA\r\n.\r\n" + _MAIL + _RCPT]).signals == []


def test_input_waits_for_the_decision() -> None:
    session = ServerSession(ServerConfig("mx.example.com"))
    session.receive(_TO_STATE[State.MAIL] + _RCPT + b"NOOP\r\n")
    assert session.next_event() is not None
    session.take_output()
    assert session.next_event() is None
    session.receive(b"NOOP\r\n")
    assert session.next_event() is None
    assert session.backlog == session.held == 12
    assert session.take_output() == b""
    session.reject_recipient(Reply(451, "4.3.0", "x"))
    assert session.next_event() is Signal.UNPRODUCTIVE
    assert session.next_event() is Signal.UNPRODUCTIVE
    assert session.take_output() == b"451 4.3.0 x\r\n250 2.0.0 Ok\r\n250 2.0.0 Ok\r\n"


def test_answers_that_nothing_asked_for() -> None:
    session = ServerSession(_TLS)
    answers: list[Callable[[], None]] = [
        lambda: session.accept_credentials(1),
        session.reject_credentials,
        session.accept_sender,
        lambda: session.reject_sender(Reply(550, "5.7.1", "x")),
        lambda: session.finish_recipients([]),
        lambda: session.accept_recipient(1),
        lambda: session.reject_recipient(Reply(550, "5.1.1", "x")),
        lambda: session.finish_message(Reply(250, "2.0.0", "x")),
        session.start_tls,
        session.refuse_tls,
        session.tls_started,
    ]
    for answer in answers:
        with pytest.raises(SessionStateError):
            answer()


@pytest.mark.covers("edge:B1")
def test_held_is_bounded_by_the_size_limit(drive: Drive) -> None:
    config = ServerConfig("mx.example.com", max_message_size=1000)
    begin = [_TO_STATE[State.RCPT] + b"DATA\r\n"]
    for amount in (0, 500, 1000, 1001, 5000):
        assert drive(begin + [b"x" * 100] * (amount // 100) + [b"x" * (amount % 100)], config).session.held <= 1000


_PIECES = [
    b"EHLO c\r\n", b"HELO c\r\n", _MAIL, b"MAIL FROM:<>\r\n", _RCPT, b"RCPT TO:<no@agents.example>\r\n", b"DATA\r\n",
    b"x\r\n", b"..\r\n", b".\r\n", b".", b"\r\n", b"\r", b"\n", b"RSET\r\n", b"NOOP\r\n", b"QUIT\r\n", b"x" * 600,
    b"BDAT 3\r\n", b"BDAT 3 LAST\r\n", b"BDAT 0 LAST\r\n", b"BDAT 400\r\n", b"BDAT x\r\n",
    b"\r\n.\r\n", b"Received: y\r\n" * 30, b"VRFY x\r\n", b"\xff\0", b"MAIL FROM:<a@b> SIZE=2000\r\n",
]  # fmt: skip
_script = st.lists(st.one_of(st.sampled_from(_PIECES), st.binary(max_size=8)), max_size=25).map(b"".join)


def _refuse_no(address: str) -> Reply | None:
    return Reply(550, "5.1.1", "No such user here") if address.startswith("no@") else None


@pytest.mark.covers("mail-server:A2")
@given(_script, st.lists(st.integers(0, 800), max_size=10))
def test_chunking_makes_no_difference(drive: Drive, script: bytes, cuts: list[int]) -> None:
    config = ServerConfig("mx.example.com", max_message_size=500)
    script = _TO_STATE[State.MAIL] + script
    places = sorted({min(cut, len(script)) for cut in cuts} | {0, len(script)})
    whole = drive([script], config, refuse=_refuse_no)
    for chunks in (
        [script[begin:end] for begin, end in itertools.pairwise(places)],
        [script[i : i + 1] for i in range(len(script))],
    ):
        cut = drive(chunks, config, refuse=_refuse_no)
        assert cut.output == whole.output
        assert cut.messages == whole.messages
        assert cut.signals == whole.signals


@given(st.lists(st.binary(max_size=700), max_size=8))
def test_garbage_never_raises(drive: Drive, chunks: list[bytes]) -> None:
    drive(chunks)
    seen = drive([_TO_STATE[State.RCPT] + b"DATA\r\n", *chunks])
    assert seen.output.isascii()


@given(st.binary(min_size=1, max_size=80))
def test_errors_echo_nothing(drive: Drive, raw: bytes) -> None:
    line = raw.replace(b"\r", b"").replace(b"\n", b"") + b"zqzq"
    for command in (line, b"MAIL FROM:" + line, b"EHLO " + line + b" x"):
        assert b"zqzq" not in drive([_TO_STATE[State.GREETED] + command + b"\r\n"]).output
