"""The LMTP profile (RFC 2033, rule A1)."""

from collections.abc import Callable
from typing import Any

import pytest

from postroom.smtp import MessageReceived, Profile, Reply, ServerConfig, ServerSession, SessionStateError, Signal
from postroom.smtp.trace import transmission_type

Drive = Callable[..., Any]

_LMTP = ServerConfig("mx.example.com", profile=Profile.LMTP, auth=True, max_message_size=100)
_LHLO = b"LHLO relay\r\n"
_MAIL = b"MAIL FROM:<ann@example.com>\r\n"
_BEGIN = _LHLO + _MAIL + b"RCPT TO:<a@agents.example>\r\nRCPT TO:<no@agents.example>\r\nRCPT TO:<b@agents.example>\r\n"
_OK = Reply(250, "2.0.0", "Ok: queued as msg_1")
_FULL = Reply(452, "4.2.2", "Mailbox full")
_GONE = Reply(550, "5.1.1", "No such user here")


def _refuse(address: str) -> Reply | None:
    return _GONE if address.startswith("no@") else None


@pytest.mark.covers("mail-server:A1", "RFC 2033 §4.1")
def test_only_lhlo(drive: Drive) -> None:
    seen = drive([b"EHLO c\r\n", b"HELO c\r\n", _MAIL, _LHLO, _MAIL], _LMTP)
    assert seen.codes == ["500 5.5.2", "500 5.5.2", "503 5.5.1", "250 -", "250 2.1.0"]
    assert b"503 5.5.1 Send LHLO first\r\n" in seen.output
    assert drive([_LHLO]).codes == ["500 5.5.2"]


@pytest.mark.covers("mail-server:A1")
def test_no_auth(drive: Drive) -> None:
    seen = drive([_LHLO, b"AUTH PLAIN\r\n"], _LMTP, encrypted=True)
    assert b"AUTH" not in seen.output
    assert seen.codes[1:] == ["502 5.5.1"]


@pytest.mark.covers("mail-server:A1", "RFC 2033 §4.2")
@pytest.mark.parametrize("data", [b"DATA\r\nx\r\n.\r\n", b"BDAT 3 LAST\r\nx\r\n"])
def test_one_reply_for_each_recipient(drive: Drive, data: bytes) -> None:
    begin = ["354 -"] if data.startswith(b"DATA") else []
    seen = drive([_BEGIN + data + _MAIL], _LMTP, refuse=_refuse, finals=lambda count: [_OK, _FULL][:count])
    assert seen.codes[2:] == ["250 2.1.5", "550 5.1.1", "250 2.1.5", *begin, "250 2.0.0", "452 4.2.2", "250 2.1.0"]
    # One reply by itself is everybody's.
    seen = drive([_BEGIN + data + _MAIL], _LMTP, refuse=_refuse, final=_FULL)
    assert seen.codes[-3:] == ["452 4.2.2", "452 4.2.2", "250 2.1.0"]


@pytest.mark.covers("RFC 2033 §4.2", "mail-server:A7", "mail-server:A9")
def test_our_own_refusals_too(drive: Drive) -> None:
    large = drive([_BEGIN + b"DATA\r\n" + b"x" * 200 + b"\r\n.\r\n"], _LMTP, refuse=_refuse)
    assert large.codes[-2:] == ["552 5.3.4", "552 5.3.4"]
    assert large.codes[-3] == "354 -"
    chunk = drive([_BEGIN + b"BDAT 200 LAST\r\n" + b"x" * 200], _LMTP, refuse=_refuse)
    assert chunk.codes[-2:] == ["552 5.3.4", "552 5.3.4"]
    # A chunk that is not the last has one reply (RFC 2033 §4.3).
    chunk = drive([_BEGIN + b"BDAT 200\r\n" + b"x" * 200 + b"VRFY x\r\n"], _LMTP, refuse=_refuse)
    assert chunk.codes[-3:] == ["250 2.1.5", "552 5.3.4", "252 2.5.2"]
    loop = ServerConfig("mx.example.com", profile=Profile.LMTP)
    seen = drive([_BEGIN + b"DATA\r\n" + b"Received: x\r\n" * 51 + b".\r\n"], loop, refuse=_refuse)
    assert seen.codes[-3:] == ["354 -", "554 5.4.6", "554 5.4.6"]


@pytest.mark.covers("RFC 2033 §4.2", "mail-server:A9")
def test_no_recipients_no_data(drive: Drive) -> None:
    seen = drive([_LHLO + _MAIL + b"RCPT TO:<no@agents.example>\r\nDATA\r\nBDAT 1 LAST\r\nx"], _LMTP, refuse=_refuse)
    assert seen.codes[-3:] == ["550 5.1.1", "503 5.5.1", "503 5.5.1"]


def test_a_421_ends_it_when_all_are_told(drive: Drive) -> None:
    bye = Reply(421, "4.3.2", "Service shutting down, try again later")
    seen = drive([_BEGIN + b"DATA\r\nx\r\n.\r\n" + _MAIL], _LMTP, refuse=_refuse, finals=lambda count: [bye, _OK])
    assert seen.codes[-2:] == ["421 4.3.2", "250 2.0.0"]
    assert seen.signals[-1] is Signal.CLOSED


def test_the_driver_answers_for_all() -> None:
    session = ServerSession(_LMTP)
    session.receive(_LHLO + _MAIL + b"RCPT TO:<a@agents.example>\r\nDATA\r\n.\r\n")
    session.next_event()
    session.accept_recipient(1)
    assert isinstance(session.next_event(), MessageReceived)
    with pytest.raises(ValueError):
        session.finish_recipients([_OK, _OK])
    session.finish_recipients([_OK])
    assert session.take_output().endswith(b"354 End data with <CR><LF>.<CR><LF>\r\n250 2.0.0 Ok: queued as msg_1\r\n")
    with pytest.raises(SessionStateError):
        ServerSession(ServerConfig("mx.example.com")).finish_recipients([])


@pytest.mark.covers("mail-server:A8")
def test_transmission_type() -> None:
    assert transmission_type(esmtp=True, lmtp=True) == "LMTP"
    assert transmission_type(esmtp=True, lmtp=True, tls=True, smtputf8=True) == "UTF8LMTPS"
