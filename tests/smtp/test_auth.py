"""AUTH and the submission profile (RFC 4954, rules A2–A4)."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import Profile, Reply, ServerConfig, Signal
from postroom.smtp.channel import AUTH_LINE_LIMIT, COMMAND_LINE_LIMIT
from postroom.smtp.sasl import Credentials, Exchange

Drive = Callable[..., Any]

_EHLO = b"EHLO c\r\n"
_MAIL = b"MAIL FROM:<ann@example.com>\r\n"
_RCPT = b"RCPT TO:<bot@agents.example>\r\n"
_SUBMISSION = ServerConfig("mail.example.com", profile=Profile.SUBMISSION, auth=True, tls_available=True)
_BAD_PASSWORD = Reply(535, "5.7.8", "Authentication credentials invalid")


def _b64(text: str | bytes) -> bytes:
    return base64.b64encode(text.encode() if isinstance(text, str) else text)


_PLAIN = b"AUTH PLAIN " + _b64("\0ann@example.com\0secret") + b"\r\n"


def _codes(drive: Drive, *lines: bytes, config: ServerConfig = _SUBMISSION, **kwargs: Any) -> list[str]:
    kwargs.setdefault("encrypted", True)
    codes: list[str] = drive([_EHLO, *lines], config, **kwargs).codes
    return codes[1:]


@pytest.mark.covers("mail-server:A4", "RFC 4954 §4", "RFC 4616")
@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ([_PLAIN], ["235 2.7.0"]),
        ([b"auth plain\r\n", _b64("ann@example.com\0ann@example.com\0secret") + b"\r\n"], ["334 -", "235 2.7.0"]),
        (
            [b"AUTH LOGIN\r\n", _b64("ann@example.com") + b"\r\n", _b64("secret") + b"\r\n"],
            ["334 -", "334 -", "235 2.7.0"],
        ),
        ([b"AUTH LOGIN " + _b64("ann@example.com") + b"\r\n", _b64("secret") + b"\r\n"], ["334 -", "235 2.7.0"]),
    ],
)
def test_signing_in(drive: Drive, lines: list[bytes], codes: list[str]) -> None:
    seen = drive([_EHLO, *lines], _SUBMISSION, encrypted=True)
    assert seen.codes[1:] == codes
    (offered,) = seen.credentials
    assert (offered.credentials.username, offered.credentials.password) == ("ann@example.com", "secret")
    assert seen.session.account == "ann@example.com"


def test_challenges_are_the_known_ones(drive: Drive) -> None:
    seen = drive([b"EHLO c\r\nAUTH LOGIN\r\nYW5u\r\nc2VjcmV0\r\n"], _SUBMISSION, encrypted=True)
    assert seen.output.endswith(b"334 VXNlcm5hbWU6\r\n334 UGFzc3dvcmQ6\r\n235 2.7.0 Authentication successful\r\n")
    assert drive([b"EHLO c\r\nAUTH PLAIN\r\n"], _SUBMISSION, encrypted=True).output.endswith(b"334 \r\n")


@pytest.mark.covers("mail-server:A4", "mail-server:A9")
@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ([b"AUTH\r\n"], ["501 5.5.4"]),
        ([b"AUTH CRAM-MD5\r\n"], ["504 5.5.4"]),
        ([b"AUTH \xff\r\n"], ["504 5.5.4"]),
        ([b"AUTH PLAIN =\r\n"], ["501 5.5.4"]),
        ([b"AUTH LOGIN =\r\n"], ["501 5.5.4"]),
        ([b"AUTH PLAIN *\r\n"], ["501 5.5.4"]),
        ([b"AUTH PLAIN !!!!\r\n"], ["501 5.5.4"]),
        ([b"AUTH PLAIN QUJD QUJD\r\n"], ["501 5.5.4"]),
        ([b"AUTH PLAIN " + _b64("\0ann\0") + b"\r\n"], ["501 5.5.4"]),
        ([b"AUTH PLAIN " + _b64("ann\0secret") + b"\r\n"], ["501 5.5.4"]),
        ([b"AUTH PLAIN " + _b64("\0ann\0sec\0ret") + b"\r\n"], ["501 5.5.4"]),
        ([b"AUTH PLAIN " + _b64(b"\0\xff\0secret") + b"\r\n"], ["501 5.5.4"]),
        ([b"AUTH PLAIN " + _b64("bob\0ann\0secret") + b"\r\n"], ["535 5.7.8"]),
        ([b"AUTH PLAIN\r\n", b"*\r\n"], ["334 -", "501 5.5.4"]),
        ([b"AUTH PLAIN\r\n", b"\r\n"], ["334 -", "501 5.5.4"]),
        ([b"AUTH LOGIN\r\n", b"*\r\n"], ["334 -", "501 5.5.4"]),
        ([b"AUTH LOGIN\r\n", _b64("ann") + b"\r\n", b"*\r\n"], ["334 -", "334 -", "501 5.5.4"]),
        ([b"AUTH LOGIN\r\n", _b64("ann") + b"\r\n", b"x\r\n"], ["334 -", "334 -", "501 5.5.4"]),
        ([b"AUTH LOGIN\r\n", b"\r\n"], ["334 -", "501 5.5.4"]),
        ([b"AUTH LOGIN\r\n", _b64("ann") + b"\r\n", b"\r\n"], ["334 -", "334 -", "501 5.5.4"]),
        ([b"AUTH PLAIN\r\n", b"x" * AUTH_LINE_LIMIT + b"\r\n"], ["334 -", "500 5.5.2"]),
        ([b"AUTH PLAIN " + b"x" * COMMAND_LINE_LIMIT + b"\r\n"], ["500 5.5.2"]),
    ],
)
def test_refused_exchanges(drive: Drive, lines: list[bytes], codes: list[str]) -> None:
    # The exchange is over: what comes next is a command, and the client may try again.
    assert _codes(drive, *lines, b"VRFY x\r\n", _PLAIN) == [*codes, "252 2.5.2", "235 2.7.0"]


@pytest.mark.covers("mail-server:A4", "mail-server:A9")
def test_refused_credentials(drive: Drive) -> None:
    later = Reply(454, "4.7.0", "Temporary authentication failure")
    for reply in (_BAD_PASSWORD, later):
        seen = drive([_EHLO, _PLAIN, _MAIL], _SUBMISSION, encrypted=True, sign_in=lambda name, word, r=reply: r)
        assert seen.codes[1:] == [f"{reply.code} {reply.enhanced}", "530 5.7.0"]
        assert seen.session.account is None
        # Guessing counts, whoever is at fault.
        assert seen.signals == [Signal.UNPRODUCTIVE] * 2
    bye = Reply(421, "4.7.0", "Too many")
    assert drive([_EHLO, _PLAIN], _SUBMISSION, encrypted=True, sign_in=lambda name, word: bye).signals == [
        Signal.CLOSED
    ]


@pytest.mark.covers("mail-server:A2")
def test_auth_line_may_be_long(drive: Drive) -> None:
    password = "p" * 9000
    response = _b64(f"\0ann\0{password}")
    assert COMMAND_LINE_LIMIT < len(response) < AUTH_LINE_LIMIT - 2
    seen = drive([_EHLO, b"AUTH PLAIN\r\n", response + b"\r\n", b"NOOP " + b"x" * 510 + b"\r\n"], _SUBMISSION,
                 encrypted=True)  # fmt: skip
    assert seen.credentials[0].credentials.password == password
    assert seen.codes[-2:] == ["235 2.7.0", "500 5.5.2"]
    most = b"A" * (AUTH_LINE_LIMIT - 4)
    assert _codes(drive, b"AUTH LOGIN\r\n", most + b"\r\n") == ["334 -", "334 -"]


@pytest.mark.covers("decisions:D1", "mail-server:A2", "mail-server:A9")
def test_clear_text(drive: Drive) -> None:
    def ehlo(**kwargs: Any) -> bytes:
        output: bytes = drive([_EHLO], _SUBMISSION, **kwargs).output
        return output

    assert b"AUTH" not in ehlo()
    assert b"250-AUTH PLAIN LOGIN\r\n" in ehlo(encrypted=True)
    assert b"250-AUTH PLAIN LOGIN\r\n" in ehlo(auth_in_clear=True)
    assert _codes(drive, _PLAIN, b"AUTH LOGIN\r\n", encrypted=False) == ["538 5.7.11", "538 5.7.11"]
    assert _codes(drive, _PLAIN, encrypted=False, auth_in_clear=True) == ["235 2.7.0"]


@pytest.mark.covers("mail-server:A2", "mail-server:A9")
def test_sequence(drive: Drive) -> None:
    assert drive([_PLAIN], _SUBMISSION, encrypted=True).output.endswith(b"503 5.5.1 Send HELO/EHLO first\r\n")
    relaxed = ServerConfig("mail.example.com", profile=Profile.SUBMISSION, auth=True, helo_required=False)
    assert drive([_PLAIN], relaxed, encrypted=True).codes == ["503 5.5.1"]
    assert _codes(drive, _MAIL) == ["530 5.7.0"]
    assert _codes(drive, _PLAIN + _MAIL + _RCPT) == ["235 2.7.0", "250 2.1.0", "250 2.1.5"]
    seen = drive([_EHLO, _PLAIN, _PLAIN], _SUBMISSION, encrypted=True)
    assert seen.output.endswith(b"503 5.5.1 Already authenticated\r\n")
    # AUTH survives RSET and a repeated EHLO.
    assert _codes(drive, _PLAIN, b"RSET\r\n", _EHLO, _MAIL)[-1] == "250 2.1.0"
    mx = ServerConfig("mx.example.com", auth=True)
    assert _codes(drive, _MAIL, _PLAIN, b"RSET\r\n", _PLAIN, config=mx) == [
        *("250 2.1.0", "503 5.5.1", "250 2.0.0", "235 2.7.0")
    ]
    open_door = ServerConfig("mail.example.com", profile=Profile.SUBMISSION, auth=True, require_auth=False)
    assert _codes(drive, _MAIL, config=open_door) == ["250 2.1.0"]


@pytest.mark.covers("mail-server:A2", "mail-server:A5", "RFC 3207 §4.2")
def test_starttls_clears_auth(drive: Drive) -> None:
    seen = drive([_EHLO, _PLAIN, b"STARTTLS\r\n", _EHLO, _MAIL], _SUBMISSION, auth_in_clear=True)
    assert seen.codes[1:] == ["235 2.7.0", "220 2.0.0", "250 -", "530 5.7.0"]
    assert seen.session.account is None


@pytest.mark.covers("mail-server:A3")
def test_the_driver_decides_on_the_sender(drive: Drive) -> None:
    no = Reply(550, "5.7.1", "Sender address rejected: not owned by user")
    seen = drive([_EHLO, _PLAIN, _MAIL, _RCPT, b"MAIL FROM:<> SIZE=5\r\n"], _SUBMISSION, encrypted=True,
                 refuse_sender=no)  # fmt: skip
    assert seen.codes[2:] == ["550 5.7.1", "503 5.5.1", "550 5.7.1"]
    assert [str(proposed.sender or "") for proposed in seen.senders] == ["ann@example.com", ""]
    assert seen.senders[1].parameters.size == 5
    assert seen.session.sender is None
    # Without AUTH only where the configuration asks for it.
    assert drive([_EHLO + _MAIL], ServerConfig("mx.example.com")).senders == []
    assert len(drive([_EHLO + _MAIL], ServerConfig("mx.example.com", propose_sender=True)).senders) == 1


@pytest.mark.covers("mail-server:A2")
def test_help_names_auth_only_where_it_is_served(drive: Drive) -> None:
    assert b"AUTH" in drive([b"HELP\r\n"], _SUBMISSION).output
    assert b"AUTH" not in drive([b"HELP\r\n"], ServerConfig("mx.example.com")).output


def test_passwords_do_not_show() -> None:
    assert "secret" not in repr(Credentials("PLAIN", "ann", "secret"))


def test_only_known_mechanisms() -> None:
    with pytest.raises(ValueError):
        Exchange("GSSAPI")


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_garbage_never_signs_in(drive: Drive, lines: list[bytes]) -> None:
    script = b"".join(line.replace(b"\r", b"").replace(b"\n", b"") + b"\r\n" for line in lines)
    for begin in (b"AUTH PLAIN\r\n", b"AUTH LOGIN\r\n"):
        seen = drive([_EHLO, begin, script], _SUBMISSION, encrypted=True, sign_in=lambda name, word: _BAD_PASSWORD)
        assert b"235" not in seen.output
        assert seen.output.isascii()
