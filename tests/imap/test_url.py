"""URLs of messages, as CATENATE has them (RFC 5092, RFC 4469 §3)."""

from __future__ import annotations

import contextlib
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap.fetch import Section, SectionText
from postroom.imap.url import MessageUrl, parse_message_url, shown_url


@pytest.mark.covers("RFC 5092 §6", "RFC 5092 §7.2")
@pytest.mark.parametrize(
    ("url", "selected", "expected"),
    [
        (b"/Drafts;UIDVALIDITY=385759045/;UID=20", None, MessageUrl("Drafts", 20, 385759045)),
        (b"/Drafts/;uid=3002", None, MessageUrl("Drafts", 3002)),
        (b"/inbox/a/;UID=1", "Other", MessageUrl("INBOX/a", 1)),
        (b"/Drafts/;UID=20/;Section=HEADER", None, MessageUrl("Drafts", 20, None, Section((), SectionText.HEADER))),
        (b"/Drafts/;UID=20/;section=2.MIME", None, MessageUrl("Drafts", 20, None, Section((2,), SectionText.MIME))),
        (b"/a/;UID=2/;PARTIAL=5", None, MessageUrl("a", 2, partial=(5, None))),
        (b"/a/;UID=2/;SECTION=1.2/;PARTIAL=0.1024", None, MessageUrl("a", 2, None, Section((1, 2)), (0, 1024))),
        (
            b"/a/;UID=2/;SECTION=1.HEADER.FIELDS%20(DATE%20From)",
            None,
            MessageUrl("a", 2, None, Section((1,), SectionText.HEADER_FIELDS, (b"DATE", b"From"))),
        ),
        (b"/Entw%C3%BCrfe%20%26%3B/;UID=4", None, MessageUrl("Entwürfe &;", 4)),
        (b";UID=7", "Work/2030", MessageUrl("Work/2030", 7)),
        (b"/;UID=7", "Work/2030", MessageUrl("Work/2030", 7)),
        (b"2029/;UID=7", "Work/2030", MessageUrl("Work/2029", 7)),
        (b"Sent/;UID=7", "INBOX", MessageUrl("Sent", 7)),
        (b"Sent/;UID=7", None, MessageUrl("Sent", 7)),
    ],
)
def test_urls(url: bytes, selected: str | None, expected: MessageUrl) -> None:
    assert parse_message_url(url, selected) == expected


@pytest.mark.covers("RFC 4469 §4.1")
@pytest.mark.parametrize(
    "url",
    [
        b"",
        b"/",
        b"/INBOX",
        b";UID=7",
        b"imap://carol@agents.example/INBOX/;UID=7",
        b"/INBOX/;UID=0",
        b"/INBOX/;UID=4294967296",
        b"/INBOX/;UID=1:2",
        b"/INBOX;UIDVALIDITY=0/;UID=1",
        b"/INBOX/;UID=1/;SECTION=1.NONSENSE",
        b"/INBOX/;UID=1/;SECTION=1]x",
        b"/INBOX/;UID=1/;PARTIAL=0.0",
        b"/INBOX/;UID=1;EXPIRE=2030-01-01T00:00:00Z;URLAUTH=anonymous",
        b"/%ZZ/;UID=1",
        b"/%FF/;UID=1",
        b"/\xe9/;UID=1",
    ],
)
def test_what_is_no_message_of_this_session(url: bytes) -> None:
    with pytest.raises(ValueError):
        parse_message_url(url)


@given(st.binary(max_size=80), st.none() | st.text(max_size=10))
def test_any_octets(url: bytes, selected: str | None) -> None:
    with contextlib.suppress(ValueError):
        parse_message_url(url, selected)
    shown = shown_url(url)
    assert shown.isascii()
    assert shown.isprintable()
    assert not set(" ]\\") & set(shown)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20), st.integers(1, 2**32 - 1))
def test_any_mailbox(name: str, uid: int) -> None:
    found = parse_message_url(f"/{quote(name, safe='')}/;UID={uid}".encode())
    assert found.uid == uid
    assert parse_message_url(f"/{quote(found.mailbox, safe='')}/;UID={uid}".encode()) == found
