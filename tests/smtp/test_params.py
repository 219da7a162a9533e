"""Parameters of MAIL and RCPT: DSN, AUTH=, REQUIRETLS (RFC 3461, 4954 §5, 8689)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import MailParameters, Notify, RcptParameters, Return, ServerConfig
from postroom.smtp.params import (
    ParameterError,
    decode_xtext,
    encode_xtext,
    mail_parameters,
    rcpt_parameters,
)

Drive = Callable[..., Any]

_DSN = ServerConfig("mail.example.com", dsn=True)
_printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80)


@pytest.mark.covers("RFC 3461 §4")
@given(_printable)
def test_xtext_round_trip(text: str) -> None:
    encoded = encode_xtext(text)
    assert decode_xtext(encoded) == text
    assert not set(encoded) & {" ", "="}
    assert mail_parameters(b"ENVID=" + (encoded[:100].rpartition("+")[0] or "x").encode(), dsn=True).envid


@pytest.mark.parametrize("text", ["a+b", "a+", "+2", "+2g", "a=b", "a b", "+0D+0A", "ä", "+00", "+2b"])
def test_no_xtext(text: str) -> None:
    with pytest.raises(ParameterError):
        decode_xtext(text)


@pytest.mark.covers("decisions:C2", "RFC 3461 §4.3", "RFC 3461 §4.4")
def test_mail() -> None:
    assert mail_parameters(b"RET=hdrs ENVID=QQ+2B314159", dsn=True) == MailParameters(
        ret=Return.HEADERS, envid="QQ+314159"
    )
    assert mail_parameters(b"RET=FULL", dsn=True).ret is Return.FULL
    assert mail_parameters(b"AUTH=e+3Dmc2@example.com").submitter == "e=mc2@example.com"
    assert mail_parameters(b"AUTH=<>").submitter == ""
    assert mail_parameters(b"").submitter is None


@pytest.mark.covers("RFC 3461 §4.1", "RFC 3461 §4.2", "RFC 6533 §3")
def test_rcpt() -> None:
    read = rcpt_parameters(b"NOTIFY=success,FAILURE ORCPT=RFC822;Bob+2BX@Example.com", dsn=True)
    assert read == RcptParameters(frozenset({Notify.SUCCESS, Notify.FAILURE}), ("rfc822", "Bob+X@Example.com"))
    assert rcpt_parameters(b"NOTIFY=NEVER", dsn=True).notify == {Notify.NEVER}
    assert rcpt_parameters(b"ORCPT=utf-8;\\x{E4}+2Bx@b ", dsn=True).orcpt == ("utf-8", "ä+x@b")


@pytest.mark.parametrize(
    "raw",
    [
        b"RET", b"RET=SOME", b"ENVID", b"ENVID=" + b"x" * 101, b"ENVID=a+b", b"AUTH", b"AUTH=a+b",
        b"REQUIRETLS=1", b"RET=FULL RET=FULL",
    ],
)  # fmt: skip
def test_bad_mail_parameters(raw: bytes) -> None:
    with pytest.raises(ParameterError):
        mail_parameters(raw, dsn=True)


@pytest.mark.parametrize(
    "raw",
    [
        b"NOTIFY", b"NOTIFY=NEVER,DELAY", b"NOTIFY=DELAY,DELAY", b"NOTIFY=SOMETIMES", b"NOTIFY=,", b"ORCPT",
        b"ORCPT=a@b", b"ORCPT=rfc822;", b"ORCPT=;a@b", b"ORCPT=r\xc3\xa4;a@b", b"ORCPT=rfc822;a+b",
        b"ORCPT=rfc822;" + b"x" * 500, b"ORCPT=utf-8;\\x{110000}", b"ORCPT=utf-8;\\x{0}",
    ],
)  # fmt: skip
def test_bad_rcpt_parameters(raw: bytes) -> None:
    with pytest.raises(ParameterError):
        rcpt_parameters(raw, dsn=True)


@given(st.binary(max_size=200))
def test_garbage_is_an_error_or_nothing(raw: bytes) -> None:
    for read in (mail_parameters, rcpt_parameters):
        try:
            read(raw, dsn=True)
        except ParameterError:
            continue


@pytest.mark.covers("decisions:C2", "mail-server:A2")
def test_session_hands_them_on(drive: Drive) -> None:
    script = (
        b"EHLO c\r\nMAIL FROM:<ann@example.com> RET=HDRS ENVID=42 AUTH=<>\r\n"
        b"RCPT TO:<a@agents.example> NOTIFY=NEVER\r\nRCPT TO:<b@agents.example>\r\nDATA\r\nx\r\n.\r\n"
    )
    seen = drive([script], _DSN)
    (message,) = seen.messages
    assert b"250-DSN\r\n" in seen.output
    assert (message.parameters.ret, message.parameters.envid) == (Return.HEADERS, "42")
    assert message.recipient_parameters == (RcptParameters(frozenset({Notify.NEVER})), RcptParameters())
    # Where it is not offered it has no meaning, good or bad.
    seen = drive([script.replace(b"HDRS", b"NONSENSE")])
    assert b"DSN" not in seen.output
    assert seen.messages[0].parameters.ret is None
    assert seen.messages[0].recipient_parameters == ()


@pytest.mark.covers("RFC 3461 §5", "mail-server:A2")
def test_lines_with_parameters_may_be_longer(drive: Drive) -> None:
    rcpt = b"RCPT TO:<a@agents.example> ORCPT=rfc822;" + b"x" * 480 + b"\r\n"
    begin = b"EHLO c\r\nMAIL FROM:<ann@example.com>\r\n"
    assert drive([begin + rcpt], _DSN).codes[-1] == "250 2.1.5"
    assert drive([begin + rcpt]).codes[-1] == "500 5.5.2"
    assert drive([begin + b"NOOP " + b"x" * 506 + b"\r\n"], _DSN).codes[-1] == "500 5.5.2"
    long = drive([begin + b"RCPT TO:<" + b"x" * 2000 + b"\r\nVRFY x\r\n"], _DSN)
    assert long.codes[-2:] == ["500 5.5.2", "252 2.5.2"]


@pytest.mark.covers("RFC 8689 §3", "RFC 8689 §4.1")
def test_requiretls(drive: Drive) -> None:
    config = ServerConfig("mx.example.com", requiretls=True)
    line = b"EHLO c\r\nMAIL FROM:<ann@example.com> REQUIRETLS\r\n"
    clear, covered = drive([line], config), drive([line], config, encrypted=True)
    assert b"REQUIRETLS\r\n" not in clear.output
    assert clear.codes[-1] == "550 5.7.30"
    assert b"250-REQUIRETLS\r\n" in covered.output
    assert covered.codes[-1] == "250 2.1.0"
    assert covered.session.parameters.requiretls
    assert drive([line], encrypted=True).codes[-1] == "550 5.7.30"
