"""Invitations in mail: the first event of a `text/calendar` part (RFC 5545, RFC 5546, RFC 6047; inbound §10, B8).

Only a summary for people and agents is read; nothing is expanded, and nothing answered.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from postroom.mail import charset, mime, reports, transfer
from postroom.mail.reports import one_line

MAX_CHARS: Final = 256
"""Of each value (inbound §10)."""
MAX_ZONE_CHARS: Final = 64
MAX_SOURCE_BYTES: Final = 512 * 1024
MAX_LINES: Final = 20_000

_FOLD: Final = re.compile(rb"\r?\n[ \t]")
_NAME: Final = re.compile(r"(?:[A-Za-z0-9-]{1,60}\.)?([A-Za-z0-9-]{1,60})(?=[;:])")
_PARAMETER: Final = re.compile(r';([A-Za-z0-9-]{1,60})=((?:"[^"]*+"|[^";:,])*+(?:,(?:"[^"]*+"|[^";:,])*+)*+)')
_ESCAPED: Final = re.compile(r"\\([\\;,nN])")
_CARET: Final = re.compile(r"\^([n'^])")
_TIME: Final = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z?))?")
_DURATION: Final = re.compile(
    r"([+-]?)P(?:(\d{1,4})W|(?:(\d{1,5})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,5})M)?(?:(\d{1,6})S)?)?)"
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9-]{1,40}")
_UTC: Final = frozenset(("utc", "etc/utc", "gmt", "etc/gmt", "z", "etc/universal", "zulu", "etc/zulu"))
_MAILTO: Final = re.compile(r"mailto:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Invitation:
    """The first event. Each value is one line of at most 256 characters, or None.

    `dtstart` and `dtend` are `2026-03-05` for whole days (the end is the day after, RFC 5545 §3.6.1),
    `2026-03-05T09:00:00Z` in UTC, `2026-03-05T09:00:00[Europe/Berlin]` in a named zone and without any suffix in the
    reader's. `organizer` is an address where the property has one.
    """

    method: str | None
    summary: str | None
    dtstart: str | None
    dtend: str | None
    organizer: str | None
    location: str | None


class _Property(NamedTuple):
    name: str
    parameters: dict[str, str]
    value: str


def is_calendar(part: mime.Part) -> bool:
    """Whether a part is an invitation by its declared type."""
    return part.type == "text" and part.subtype == "calendar"


def find_invitation(raw: bytes, message: mime.Message) -> Invitation | None:
    """The event of the first `text/calendar` part that has one; of a calendar without events its method alone.

    None for mail without such a part. Nested messages do not count. Never raises on content.
    """
    bare: Invitation | None = None
    for part in reports.leaves(message.root):
        if is_calendar(part):
            # As many octets of quoted-printable or base64 as the limit can come from.
            data = transfer.decoded(raw, part, 3 * MAX_SOURCE_BYTES)
            found, has_event = parse_calendar(data, part.params.get("charset"), part.params.get("method"))
            if has_event:
                return found
            bare = bare or found
    return bare


def parse_calendar(data: bytes, label: str | None = None, method: str | None = None) -> tuple[Invitation, bool]:
    """The invitation in a calendar, and whether there was an event. Of more than 512 KiB the beginning is read.

    `label` is the charset of the part, UTF-8 without one (RFC 5545 §3.1.4); `method` that of its Content-Type, for a
    calendar that does not say its own.
    """
    # Lines are folded between octets, also within a character (RFC 5545 §3.1), so they are joined before decoding.
    joined = _FOLD.sub(b"", data[:MAX_SOURCE_BYTES])
    text, _ = charset.decode(joined, label or "utf-8")
    said: str | None = None
    event: dict[str, _Property] | None = None
    depth: list[str] = []
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        found = _property(line.rstrip("\r"))
        if found is None:
            continue
        value = found.value.strip().upper()
        if found.name == "BEGIN":
            if len(depth) >= 16:
                break
            depth.append(value)
            if value == "VEVENT" and event is None:
                event = {}
        elif found.name == "END":
            if depth:
                depth.pop()
            if value == "VEVENT" and event is not None:
                break
        elif depth[-1:] == ["VEVENT"] and event is not None:
            event.setdefault(found.name, found)
        elif found.name == "METHOD" and depth[-1:] in ([], ["VCALENDAR"]):
            said = said or _method(found.value)
    return _invitation(said or _method(method), event or {}), event is not None


def _property(line: str) -> _Property | None:
    """A content line (RFC 5545 §3.1)."""
    name = _NAME.match(line)
    if name is None:
        return None
    at = name.end()
    parameters: dict[str, str] = {}
    while (found := _PARAMETER.match(line, at)) is not None:
        value = found[2].replace('"', "")
        parameters.setdefault(found[1].upper(), _CARET.sub(_caret, value))
        at = found.end()
    colon = line.find(":", at)
    return None if colon < 0 else _Property(name[1].upper(), parameters, line[colon + 1 :])


def _invitation(method: str | None, event: dict[str, _Property]) -> Invitation:
    start, end, duration = event.get("DTSTART"), event.get("DTEND"), event.get("DURATION")
    ends = None if end is None else _moment(end, timedelta(0))
    if ends is None and start is not None and duration is not None:
        length = _length(duration.value.strip())
        ends = None if length is None else _moment(start, length)
    return Invitation(
        method=method,
        summary=_text(event.get("SUMMARY")),
        dtstart=None if start is None else _moment(start, timedelta(0)),
        dtend=ends,
        organizer=_organizer(event.get("ORGANIZER")),
        location=_text(event.get("LOCATION")),
    )


def _method(value: str | None) -> str | None:
    """A method is a token (RFC 5545 §3.7.2)."""
    text = (value or "").strip()
    return text.upper() if _TOKEN.fullmatch(text) else None


def _text(found: _Property | None) -> str | None:
    """A value of type TEXT (RFC 5545 §3.3.11) on one line."""
    if found is None:
        return None
    return _cut(_ESCAPED.sub(lambda part: " " if part[1] in "nN" else part[1], found.value[: 16 * MAX_CHARS]))


def _cut(text: str) -> str | None:
    return " ".join(one_line(text).split())[:MAX_CHARS].rstrip() or None


def _caret(found: re.Match[str]) -> str:
    return {"n": " ", "'": '"', "^": "^"}[found[1]]  # RFC 6868


def _organizer(found: _Property | None) -> str | None:
    """Of a `mailto:` address the address, else the value, else the common name."""
    if found is None:
        return None
    scheme = _MAILTO.match(found.value.strip())
    value = found.value.strip()[0 if scheme is None else scheme.end() :]
    return _cut(value) or _cut(found.parameters.get("CN", ""))


def _moment(found: _Property, after: timedelta) -> str | None:
    """A DATE or DATE-TIME (RFC 5545 §3.3.4, §3.3.5), moved by a duration; None when it is neither."""
    shape = _TIME.fullmatch(found.value.strip())
    if shape is None:
        return None
    year, month, day, hour, minute, second, utc = shape.groups()
    try:
        if hour is None:
            return (date(int(year), int(month), int(day)) + after).isoformat()
        # A leap second has no place in datetime.
        local = datetime(int(year), int(month), int(day), int(hour), int(minute), min(int(second), 59)) + after
    except (ValueError, OverflowError):
        return None
    zone = (_cut(found.parameters.get("TZID", "").lstrip("/")) or "")[:MAX_ZONE_CHARS]
    if utc or zone.lower() in _UTC:
        return f"{local.isoformat()}Z"
    zone = zone.translate({ord("["): None, ord("]"): None})
    return f"{local.isoformat()}[{zone}]" if zone else local.isoformat()


def _length(text: str) -> timedelta | None:
    shape = _DURATION.fullmatch(text)
    if shape is None:
        return None
    sign, weeks, days, hours, minutes, seconds = shape.groups()
    length = timedelta(
        weeks=int(weeks or 0), days=int(days or 0), hours=int(hours or 0), minutes=int(minutes or 0),
        seconds=int(seconds or 0),
    )  # fmt: skip
    return -length if sign == "-" else length
