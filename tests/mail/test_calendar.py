"""Invitations: properties as RFC 5545 writes them, folding anywhere, and whatever else comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail import mime
from postroom.mail.calendar import MAX_CHARS, Invitation, find_invitation, parse_calendar

TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=120)
STAMP = "20260312T093000"


def event(*lines: str, before: str = "") -> bytes:
    return "\r\n".join(
        ("BEGIN:VCALENDAR", "VERSION:2.0", *([before] if before else []), "BEGIN:VEVENT", *lines, "END:VEVENT",
         "END:VCALENDAR", "")
    ).encode()  # fmt: skip


def read(*lines: str, **how: str) -> Invitation:
    found, has_event = parse_calendar(event(*lines, **how))
    assert has_event
    return found


def escaped(text: str) -> str:
    """RFC 5545 §3.3.11."""
    return text.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,").replace("\n", "\\n")


@pytest.mark.covers("edge:B8", "RFC 5545 §3.3.11")
@given(TEXT, TEXT)
def test_text_comes_back(summary: str, location: str) -> None:
    found = read(f"SUMMARY:{escaped(summary)}", f"LOCATION;LANGUAGE=en:{escaped(location)}")
    assert found.summary == (" ".join(summary.split())[:MAX_CHARS].rstrip() or None)
    assert found.location == (" ".join(location.split())[:MAX_CHARS].rstrip() or None)


@pytest.mark.covers("RFC 5545 §3.1")
@given(st.lists(st.integers(1, 60), max_size=30), st.sampled_from([b"\r\n ", b"\r\n\t", b"\n "]))
def test_folds_anywhere(steps: list[int], fold: bytes) -> None:
    line = "SUMMARY:Größe 漢字 prüfen, 🎉 und feiern".encode()
    folded, at = bytearray(), 0
    for step in steps:
        folded += line[at : at + step] + fold
        at += step
        if at >= len(line):
            break
    folded += line[at:]
    data = b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n" + folded + b"\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    assert parse_calendar(data)[0].summary == "Größe 漢字 prüfen, 🎉 und feiern"


@pytest.mark.covers("edge:B8", "RFC 5545 §3.3.5", "RFC 5545 §3.3.4")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (f"DTSTART:{STAMP}Z", "2026-03-12T09:30:00Z"),
        (f"DTSTART:{STAMP}", "2026-03-12T09:30:00"),
        (f"DTSTART;TZID=Europe/Berlin:{STAMP}", "2026-03-12T09:30:00[Europe/Berlin]"),
        (f'DTSTART;TZID="/example.org/Europe/Berlin":{STAMP}', "2026-03-12T09:30:00[example.org/Europe/Berlin]"),
        (f"DTSTART;TZID=Etc/UTC:{STAMP}", "2026-03-12T09:30:00Z"),
        (f'DTSTART;X-A="a:b;c";TZID="(UTC+01:00) Berlin":{STAMP}', "2026-03-12T09:30:00[(UTC+01:00) Berlin]"),
        (f"DTSTART;TZID=a]b[c:{STAMP}", "2026-03-12T09:30:00[abc]"),
        ("DTSTART;VALUE=DATE:20260501", "2026-05-01"),
        ("DTSTART:20260501", "2026-05-01"),
        ("DTSTART:20261231T235960Z", "2026-12-31T23:59:59Z"),
        ("DTSTART:20260231", None),
        ("DTSTART:00000101", None),
        ("DTSTART:tomorrow", None),
        ("dtstart;value=date:20260501", "2026-05-01"),
        ("group.DTSTART:20260501", "2026-05-01"),
    ],
)
def test_moments(line: str, wanted: str | None) -> None:
    assert read(line).dtstart == wanted


@pytest.mark.covers("RFC 5545 §3.3.6")
@pytest.mark.parametrize(
    ("duration", "wanted"),
    [("PT1H30M", "11:00:00Z"), ("P1W", None), ("-PT30M", "09:00:00Z"), ("PT15S", "09:30:15Z"), ("1H", None)],
)
def test_durations(duration: str, wanted: str | None) -> None:
    found = read(f"DTSTART:{STAMP}Z", f"DURATION:{duration}")
    day = "2026-03-19T09:30:00Z" if duration == "P1W" else None
    assert found.dtend == (day if wanted is None else f"2026-03-12T{wanted}")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("ORGANIZER;CN=Bob:MAILTO:bob@example.org", "bob@example.org"),
        ("ORGANIZER;CN=Bob:mailto:", "Bob"),
        ("ORGANIZER;CN=\"Bob ^'B^' ^^\":mailto:", 'Bob "B" ^'),
        ("ORGANIZER:urn:uuid:1", "urn:uuid:1"),
        ("ORGANIZER:", None),
    ],
)
def test_organizers(line: str, wanted: str | None) -> None:
    assert read(line).organizer == wanted


@pytest.mark.covers("RFC 5546", "edge:B8")
def test_the_first_event_and_no_other_component() -> None:
    data = event(
        "SUMMARY:One", "BEGIN:VALARM", "SUMMARY:Alarm", "TRIGGER:-PT5M", "END:VALARM", "SUMMARY:Again",
        before="METHOD:request\r\nBEGIN:VTIMEZONE\r\nMETHOD:no\r\nDTSTART:19700101T000000\r\nEND:VTIMEZONE",
    ) + event("SUMMARY:Two")  # fmt: skip
    found, _ = parse_calendar(data, None, "CANCEL")
    assert (found.summary, found.method, found.dtstart) == ("One", "REQUEST", None)
    assert parse_calendar(event("SUMMARY:x"), None, "cancel")[0].method == "CANCEL"
    assert parse_calendar(event("SUMMARY:x"), None, "no token")[0].method is None


def test_parts_of_nested_messages_do_not_count() -> None:
    inner = b"Content-Type: text/calendar\r\n\r\n" + event("SUMMARY:x")
    raw = b"Content-Type: message/rfc822\r\n\r\n" + inner
    assert find_invitation(raw, mime.parse(raw)) is None
    found = find_invitation(inner, mime.parse(inner))
    assert found is not None
    assert found.summary == "x"


PIECES = st.sampled_from(
    ["BEGIN:VCALENDAR", "BEGIN:VEVENT", "END:VEVENT", "METHOD:", "SUMMARY", "DTSTART", "DURATION:P", "ORGANIZER", ";",
     ":", "TZID=", '"', "\r\n", "\r\n ", "\\", "^", "2026", "0312T093000Z", "mailto:", "ä", "\x00", "\u2028", "99999W"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=4), max_size=60), st.sampled_from([None, "utf-8", "utf-16", "latin-1", "x"]))
def test_whatever_comes(pieces: list[str], label: str | None) -> None:
    found, _ = parse_calendar("".join(pieces).encode("utf-8", "replace"), label)
    for name in Invitation.__slots__:
        value = getattr(found, name)
        assert value is None or (0 < len(value) <= MAX_CHARS and "\n" not in value and "\x00" not in value)
        (value or "").encode()
