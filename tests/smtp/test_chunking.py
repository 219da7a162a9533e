"""BDAT and BINARYMIME (RFC 3030)."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import Body, Profile, Reply, ServerConfig, Signal, State

Drive = Callable[..., Any]

_EHLO = b"EHLO c\r\n"
_MAIL = b"MAIL FROM:<ann@example.com>\r\n"
_RCPT = b"RCPT TO:<bot@agents.example>\r\n"
_BEGIN = _EHLO + _MAIL + _RCPT
_SMALL = ServerConfig("mx.example.com", max_message_size=100)


def _bdat(data: bytes, *, last: bool = False) -> bytes:
    return b"BDAT %d%s\r\n" % (len(data), b" LAST" if last else b"") + data


@pytest.mark.covers("decisions:C2", "RFC 3030 §2")
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.lists(st.integers(0, 500), max_size=8))
def test_any_octets_in_any_chunks(drive: Drive, pieces: list[bytes], cuts: list[int]) -> None:
    *first, last = pieces
    script = _BEGIN + b"".join(map(_bdat, first)) + _bdat(last, last=True) + b"NOOP\r\n"
    places = sorted({min(cut, len(script)) for cut in cuts} | {0, len(script)})
    seen = drive([script[begin:end] for begin, end in itertools.pairwise(places)])
    assert seen.codes == ["250 -", "250 2.1.0", "250 2.1.5", *["250 2.0.0"] * (len(pieces) + 1)]
    assert [message.data for message in seen.messages] == [b"".join(pieces)]
    assert seen.session.state is State.GREETED
    assert seen.session.held == 0


def test_nothing_is_special_in_a_chunk(drive: Drive) -> None:
    data = b"..x\r\n.\r\nQUIT\r\n\n.\n\r\0\xff"
    assert drive([_BEGIN + _bdat(data, last=True)]).messages[0].data == data


@pytest.mark.covers("RFC 3030 §3")
def test_binarymime_needs_bdat(drive: Drive) -> None:
    begin = _EHLO + b"MAIL FROM:<ann@example.com> BODY=BINARYMIME\r\n" + _RCPT
    seen = drive([begin + b"DATA\r\n" + _bdat(b"\0\n", last=True)])
    assert seen.codes[3:] == ["503 5.5.1", "250 2.0.0"]
    assert seen.messages[0].parameters.body is Body.BINARY


@pytest.mark.covers("RFC 3030 §2")
def test_data_and_chunks_do_not_mix(drive: Drive) -> None:
    seen = drive(
        [_BEGIN + _bdat(b"x") + b"DATA\r\n" + _RCPT + _MAIL + b"RSET\r\n" + _MAIL + _RCPT + b"DATA\r\ny\r\n.\r\n"]
    )
    assert seen.codes[3:] == [
        *("250 2.0.0", "503 5.5.1", "503 5.5.1", "503 5.5.1", "250 2.0.0", "250 2.1.0", "250 2.1.5", "354 -"),
        "250 2.0.0",
    ]
    assert [message.data for message in seen.messages] == [b"y\r\n"]


@pytest.mark.covers("RFC 3030 §2")
@pytest.mark.parametrize("prefix", [b"", _EHLO, _EHLO + _MAIL])
def test_chunks_out_of_turn_are_passed_over(drive: Drive, prefix: bytes) -> None:
    seen = drive([prefix + _bdat(b"QUIT\r\nMAIL FROM:<evil@example.com>\r\n") + _bdat(b"", last=True) + b"VRFY x\r\n"])
    assert seen.codes[-3:] == ["503 5.5.1", "503 5.5.1", "252 2.5.2"]
    assert seen.session.sender is None or prefix.endswith(_MAIL)
    assert seen.signals == [Signal.UNPRODUCTIVE] * 3


@pytest.mark.covers("RFC 3030 §2", "mail-server:A9")
def test_recipients_all_refused(drive: Drive) -> None:
    no = Reply(550, "5.1.1", "No such user here")
    seen = drive([_BEGIN + _bdat(b"a" * 50) + _bdat(b"b", last=True) + _EHLO], refuse=lambda address: no)
    assert seen.codes[2:] == ["550 5.1.1", "503 5.5.1", "503 5.5.1", "250 -"]
    assert not seen.messages


@pytest.mark.covers("mail-server:A7", "edge:B1", "RFC 3030 §2")
def test_size_limit(drive: Drive) -> None:
    fits = drive([_BEGIN + _bdat(b"x" * 60) + _bdat(b"x" * 40, last=True)], _SMALL)
    assert fits.codes[3:] == ["250 2.0.0", "250 2.0.0"]
    seen = drive([_BEGIN + _bdat(b"x" * 60) + _bdat(b"x" * 41) + _bdat(b"x" * 5, last=True) + _MAIL], _SMALL)
    # What was sent behind the refused chunk is passed over, then all is well again.
    assert seen.codes[3:] == ["250 2.0.0", "552 5.3.4", "503 5.5.1", "250 2.1.0"]
    assert drive([_BEGIN + _bdat(b"x" * 101, last=True) + _MAIL], _SMALL).codes[3:] == ["552 5.3.4", "250 2.1.0"]
    assert not seen.messages


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"BDAT\r\n", "501 5.5.4"),
        (b"BDAT x\r\n", "501 5.5.4"),
        (b"BDAT -1\r\n", "501 5.5.4"),
        (b"BDAT 5 FIRST\r\n", "501 5.5.4"),
        (b"BDAT 5 LAST x\r\n", "501 5.5.4"),
        (b"BDAT 123456789012345678901\r\n", "501 5.5.4"),
        (b"BDAT 801\r\n", "552 5.3.4"),
    ],
)
@pytest.mark.covers("mail-server:A9")
def test_where_the_data_ends_must_be_known(drive: Drive, line: bytes, code: str) -> None:
    seen = drive([_BEGIN + line + b"MAIL FROM:<evil@example.com>\r\n"], _SMALL)
    assert seen.codes[3:] == [code]
    assert seen.session.is_closed


@pytest.mark.covers("mail-server:A6")
def test_loops_are_seen(drive: Drive) -> None:
    assert drive([_BEGIN + _bdat(b"Received: x\r\n" * 51, last=True)]).codes[3:] == ["554 5.4.6"]


@pytest.mark.covers("edge:B1")
def test_what_is_held(drive: Drive) -> None:
    def held(*chunks: bytes) -> int:
        session = drive([_BEGIN, *chunks], _SMALL).session
        assert session.in_data or not session.held
        assert session.is_idle != session.in_data
        return int(session.held)

    assert held() == 0
    assert held(_bdat(b"x" * 60)) == 60
    assert held(_bdat(b"x" * 60), b"BDAT 40\r\n", b"x" * 30) == 90
    assert held(_bdat(b"x" * 60), b"BDAT 41\r\n", b"x" * 30) == 0
    assert held(_bdat(b"x" * 60), b"RSET\r\n") == 0
    assert held(b"BDAT 700\r\n", b"x" * 600) == 0


def test_empty_chunks_move_no_mail(drive: Drive) -> None:
    seen = drive([_BEGIN + _bdat(b"") * 3 + _bdat(b"x", last=True)])
    assert seen.signals == [Signal.UNPRODUCTIVE] * 3
    assert seen.messages[0].data == b"x"


@pytest.mark.parametrize("profile", list(Profile))
def test_offered_everywhere(drive: Drive, profile: Profile) -> None:
    hello = b"LHLO c\r\n" if profile is Profile.LMTP else _EHLO
    output = drive([hello], ServerConfig("mx.example.com", profile=profile)).output
    assert b"250-CHUNKING\r\n250-BINARYMIME\r\n" in output
    assert b"250-LIMITS RCPTMAX=100\r\n" in output
