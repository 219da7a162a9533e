"""Dates of header fields (RFC 5322 §3.3, obsolete forms of §4.3), read with tolerance."""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

_LIMIT: Final = 256
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
# RFC 5322 §4.3: the North American names; every other name is read as UTC.
_ZONES: Final = {"edt": -4, "est": -5, "cdt": -5, "cst": -6, "mdt": -6, "mst": -7, "pdt": -7, "pst": -8}
_ZONES_MORE: Final = {"bst": 1, "cet": 1, "cest": 2, "eet": 2, "eest": 3, "msk": 3, "jst": 9, "kst": 9}

_COMMENT: Final = re.compile(r"\([^()]*+\)")
_CLOCK: Final = r"(\d{1,2})\s*+[:.]\s*+(\d{2})(?:\s*+[:.]\s*+(\d{2})(?:[.,]\d++)?)?"
_RFC5322: Final = re.compile(
    rf"(?:[A-Za-z]++\.?\s*+,?\s*+)?(\d{{1,2}})[\s.-]++([A-Za-z]{{3}})[a-z]*+[\s.,-]++(\d{{2,4}})(?:[\s,]++{_CLOCK})?"
    r"\s*+(?:(?:GMT|UTC)?\s*+([+-]\d{2}:?\d{2})|([A-Za-z]{1,5}))?"
)
_ASCTIME: Final = re.compile(
    rf"(?:[A-Za-z]++,?\s++)?([A-Za-z]{{3}})[a-z]*+\s++(\d{{1,2}}),?\s++(?:{_CLOCK}\s++)?(\d{{4}})"
)
_ISO: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}[0-9:.,+Z-]*)?")


def parse_date(value: str) -> datetime | None:
    """An aware datetime, or None when `value` holds no date.

    `-0000`, unknown zone names and a missing zone count as UTC. Two-digit years follow RFC 5322 §4.3.
    """
    text = value[:_LIMIT].strip()
    for _ in range(4):
        if "(" not in text:
            break
        text = _COMMENT.sub(" ", text)
    text = text.strip()
    try:
        if match := _RFC5322.match(text):
            day, month, year, hour, minute, second, offset, zone = match.groups()
            return _build(year, month, day, hour, minute, second, _offset(offset, zone))
        if match := _ASCTIME.match(text):
            month, day, hour, minute, second, year = match.groups()
            return _build(year, month, day, hour, minute, second, UTC)
        if match := _ISO.match(text):
            parsed = datetime.fromisoformat(match[0])
            return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, KeyError, OverflowError):
        pass
    return None


def _build(
    year: str, month: str, day: str, hour: str | None, minute: str | None, second: str | None, zone: timezone
) -> datetime:
    number = int(year)
    if len(year) == 2:
        number += 2000 if number < 50 else 1900
    elif len(year) == 3:
        number += 1900
    seconds = min(int(second or 0), 59)  # a leap second has no place in datetime
    return datetime(number, _MONTHS[month.lower()], int(day), int(hour or 0), int(minute or 0), seconds, tzinfo=zone)


def _offset(offset: str | None, zone: str | None) -> timezone:
    if offset:
        digits = offset.replace(":", "")
        minutes = int(digits[1:3]) * 60 + int(digits[3:5])
        if minutes == 0 or minutes >= 24 * 60:
            return UTC
        return timezone(timedelta(minutes=-minutes if digits[0] == "-" else minutes))
    name = (zone or "").lower()
    hours = _ZONES.get(name) or _ZONES_MORE.get(name) or 0
    return timezone(timedelta(hours=hours)) if hours else UTC
