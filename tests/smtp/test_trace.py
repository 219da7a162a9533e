import email.utils
from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes
from email.policy import SMTP
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import trace_header, transmission_type

pytestmark = pytest.mark.covers("mail-server:A8")

_MOMENT = datetime(2026, 3, 5, 7, 8, 9, tzinfo=UTC)


def _trace(**changes: Any) -> bytes:
    arguments: dict[str, Any] = {
        "return_path": "ann@example.com",
        "helo": "mail.example.com",
        "peer_ip": "192.0.2.7",
        "peer_name": None,
        "hostname": "mx.agents.example",
        "version": "0.1",
        "transmission": "ESMTPS",
        "connection_id": "0d9f",
        "recipient": "bot@agents.example",
        "received_at": _MOMENT,
    }
    return trace_header(**{**arguments, **changes})


def test_all_parts_in_order() -> None:
    assert _trace(peer_name="mail.example.com") == (
        b"Return-Path: <ann@example.com>\r\n"
        b"Received: from mail.example.com (mail.example.com [192.0.2.7])\r\n"
        b"\tby mx.agents.example (Postroom 0.1)\r\n"
        b"\twith ESMTPS id 0d9f\r\n"
        b"\tfor <bot@agents.example>;\r\n"
        b"\tThu, 05 Mar 2026 07:08:09 +0000\r\n"
    )


def test_parts_left_out() -> None:
    raw = _trace(recipient=None, return_path="", peer_ip="2001:db8::1")
    assert raw.startswith(b"Return-Path: <>\r\n")
    assert b"(" + b"[IPv6:2001:db8::1])\r\n" in raw
    assert b"for <" not in raw
    assert b"Delivered-To" not in raw
    assert b"(local)" in _trace(peer_ip="")


@given(helo=st.text(max_size=40), sender=st.text(max_size=40), recipient=st.text(max_size=40))
def test_nothing_claimed_can_add_a_line(helo: str, sender: str, recipient: str) -> None:
    try:
        raw = _trace(helo=helo, return_path=sender, recipient=recipient)
    except UnicodeEncodeError:
        return
    lines = raw.split(b"\r\n")
    assert len(lines) == 7 - (not recipient)
    assert not any(b"\r" in line or b"\n" in line for line in lines)
    assert all(line.startswith(b"\t") for line in lines[2:-1])


def test_standard_library_reads_it() -> None:
    message = message_from_bytes(_trace() + b"Subject: x\r\n\r\nbody\r\n", policy=SMTP)
    assert message.keys() == ["Return-Path", "Received", "Subject"]


@given(st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)), st.integers(-720, 720))
def test_date_as_the_standard_library_reads_it(moment: datetime, offset: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=offset)), microsecond=0)
    (received,) = message_from_bytes(_trace(received_at=aware) + b"\r\n").get_all("Received", [])
    text = received.rpartition(";")[2].strip()
    assert email.utils.parsedate_to_datetime(text) == aware
    assert text.endswith(" +0000")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"esmtp": False}, "SMTP"),
        ({"esmtp": True}, "ESMTP"),
        ({"esmtp": True, "tls": True}, "ESMTPS"),
        ({"esmtp": True, "authenticated": True}, "ESMTPA"),
        ({"esmtp": True, "tls": True, "authenticated": True}, "ESMTPSA"),
        ({"esmtp": True, "smtputf8": True}, "UTF8SMTP"),
        ({"esmtp": True, "tls": True, "smtputf8": True}, "UTF8SMTPS"),
        ({"esmtp": True, "tls": True, "authenticated": True, "smtputf8": True}, "UTF8SMTPSA"),
    ],
)
def test_transmission_type(flags: dict[str, bool], name: str) -> None:
    assert transmission_type(**flags) == name
