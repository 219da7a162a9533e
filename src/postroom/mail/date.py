"""Dates of header fields (RFC 5322 §3.3, obsolete forms of §4.3), read with tolerance.

What a program or a person meant is read if it can mean one thing only: other orders, other languages, 12-hour clocks,
names of zones. `3/2/2026` can mean two, so it means nothing.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

_LIMIT: Final = 256  # bounds every pattern below

_MONTHS: Final[dict[str, int]] = {
    name: number
    for number, names in enumerate(
        (
            "jan january januar jänner januari janvier janv enero ene gennaio gen janeiro stycznia sty янв января ocak",
            "feb february februar februari février fevrier févr fevr fév febrero febbraio fevereiro fev lutego lut фев "
            "февраля şubat subat",
            "mar march märz maerz mär mrz mars marzo março marco maart mrt marca мар марта mart",
            "apr april avril avr abril abr aprile kwietnia kwi апр апреля nisan",
            "may mai mayo maggio mag maio mei maj maja мая май mayıs mayis",
            "jun june juni juin junio giugno giu junho czerwca cze июн июня haziran",
            "jul july juli juillet juil julio luglio lug julho lipca lip июл июля temmuz",
            "aug august août aout agosto ago augustus augusti sierpnia sie авг августа ağustos agustos",
            "sep sept september septembre septiembre setiembre set settembre setembro września wrz сен сентября eylül",
            "oct october okt oktober octobre octubre ottobre ott outubro out października paź окт октября ekim",
            "nov november novembre noviembre novembro ноя ноября kasım kasim",
            "dec december dez dezember décembre decembre déc diciembre dic dicembre dezembro grudnia gru дек декабря "
            "aralık aralik",
        ),
        start=1,
    )
    for name in names.split()
}
# RFC 5322 §4.3 has the North American names, and reads every other one as UTC: those below are known all the same.
_ZONE_HOURS: Final = (
    "edt=-4 est=-5 cdt=-5 cst=-6 mdt=-6 mst=-7 pdt=-7 pst=-8 akst=-9 akdt=-8 hst=-10 nst=-3.5 ndt=-2.5 brt=-3 wat=1 "
    "bst=1 west=1 cet=1 mez=1 met=1 cest=2 mesz=2 mest=2 eet=2 sast=2 eest=3 msk=3 pkt=5 wib=7 ict=7 hkt=8 sgt=8 "
    "awst=8 jst=9 kst=9 acst=9.5 aest=10 aedt=11 nzst=12 nzdt=13"
)
# As Windows writes them, without `Time`; the longer of two that begin alike first.
_LONG_ZONE_HOURS: Final = (
    "pacific standard=-8;pacific daylight=-7;mountain standard=-7;mountain daylight=-6;central standard=-6;"
    "central daylight=-5;eastern standard=-5;eastern daylight=-4;w. europe standard=1;w. europe daylight=2;"
    "romance standard=1;romance daylight=2;central europe standard=1;central europe daylight=2;"
    "central european standard=1;central european summer=2;central european=1;gmt daylight=1;british summer=1;"
    "fle standard=2;fle daylight=3;russian standard=3;moscow standard=3;india standard=5.5;china standard=8;"
    "singapore standard=8;tokyo standard=9;japan standard=9;korea standard=9;aus eastern standard=10;"
    "aus eastern daylight=11;new zealand standard=12;new zealand daylight=13"
)


def _table(text: str, separator: str) -> dict[str, float]:
    return {name: float(hours) for name, _, hours in (entry.partition("=") for entry in text.split(separator))}


_ZONES: Final = _table(_ZONE_HOURS, " ")
_LONG_ZONES: Final = _table(_LONG_ZONE_HOURS, ";")

_COMMENT: Final = re.compile(r"\(([^()]*+)\)")
_USUAL: Final = re.compile(
    r"(?:[A-Za-z]{3},[ ]++)?(\d{1,2})[ ]([A-Za-z]{3})[ ](\d{4})[ ](\d\d):(\d\d):(\d\d)[ ]([+-])(\d\d)([0-5]\d)",
    re.ASCII,
)
_WORD: Final = r"([^\W\d_]{3,12})"
_DAY_FIRST: Final = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th)?[\s.,/-]*(?:(?:de|of)\s+)?{_WORD}\.?[\s.,/-]*(?:de\s+)?(\d{{2,4}})(?![\d:])"
)
_MONTH_FIRST: Final = re.compile(
    rf"{_WORD}\.?[\s-]+(\d{{1,2}})(?:st|nd|rd|th)?[\s,]+(?:\d{{1,2}}[:.]\d\d(?:[:.]\d\d)?\s+)?"
    r"(?:(?:[a-z]{1,5}|[+-]\d{4})\s+)?(\d{4})(?!\d)"
)
_YEAR_FIRST: Final = re.compile(r"(?<!\d)(\d{4})[-/.年](\d{1,2})[-/.月](\d{1,2})日?(?!\d)")
_YEAR_AND_NAME: Final = re.compile(rf"(?<!\d)(\d{{4}})[\s,-]+{_WORD}\.?[\s,-]+(\d{{1,2}})(?![\d:])")
_NUMBERS: Final = re.compile(r"(?<!\d)(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?!\d)")
_CLOCK: Final = re.compile(
    r"(?<![\d+-])(\d{1,2})\s*[:.h]\s*(\d{1,2})(?:\s*[:.]\s*(\d{1,2})(?:[.,]\d+)?)?(?![\d:])\s*([ap]\.?m\b\.?)?"
)
_OFFSET: Final = re.compile(r"([+-])\s?(\d{1,4})(?::(\d\d))?(?![\d:-])")
_NAME: Final = re.compile(r"[a-z]{1,5}\b")


def parse_date(value: str) -> datetime | None:
    """An aware datetime, or None when `value` holds no date.

    `-0000`, unknown zone names and a missing zone count as UTC. Two-digit years follow RFC 5322 §4.3.
    """
    text = value[:_LIMIT].strip()
    try:
        if usual := _USUAL.match(text):
            day, name, year, hour, minute, second, sign, hours, minutes = usual.groups()
            month = _MONTHS.get(name.lower())
            if month is not None:
                return _build(
                    (int(year), month, int(day)), (hour, minute, second), _offset(sign, hours + minutes, None)
                )
        return _read(text)
    except (ValueError, OverflowError):
        return None


def _read(text: str) -> datetime | None:
    comment = ""
    for _ in range(4):
        if "(" not in text:
            break
        found = _COMMENT.search(text)
        comment = comment or (found[1] if found else "")
        text = _COMMENT.sub(" ", text)
    text = text.casefold()
    dated = _date(text)
    if dated is None:
        return None
    date, start, end = dated
    # Around the date, not in it: in `2.2.2026 10:00` a clock could be read twice.
    rest = text[end:]
    clock = _CLOCK.search(rest) or _CLOCK.search(text[start:end])
    if clock is None:
        return _build(date, ("0", "0", None), _zone(rest, comment))
    hour, minute, second, half = clock.groups()
    if half:
        if not 1 <= int(hour) <= 12:
            return None
        hour = str(int(hour) % 12 + (12 if half[0] == "p" else 0))
    after = rest[clock.end() :] if clock.string is rest else text[start + clock.end() :]
    return _build(date, (hour, minute, second), _zone(after, comment))


def _date(text: str) -> tuple[tuple[int, int, int], int, int] | None:
    """Year, month and day, and where they stand."""
    if found := _YEAR_FIRST.search(text):
        return (int(found[1]), int(found[2]), int(found[3])), found.start(), found.end()
    for found in _DAY_FIRST.finditer(text):
        if month := _MONTHS.get(found[2]):
            return (_year(found[3]), month, int(found[1])), found.start(), found.end()
    for found in _MONTH_FIRST.finditer(text):
        if month := _MONTHS.get(found[1]):
            return (int(found[3]), month, int(found[2])), found.start(), found.end()
    for found in _YEAR_AND_NAME.finditer(text):
        if month := _MONTHS.get(found[2]):
            return (int(found[1]), month, int(found[3])), found.start(), found.end()
    if found := _NUMBERS.search(text):
        first, second = int(found[1]), int(found[3])
        if found[2] == "." or first > 12 or first == second:
            return (int(found[4]), second, first), found.start(), found.end()
        if second > 12:
            return (int(found[4]), first, second), found.start(), found.end()
    return None


def _year(digits: str) -> int:
    number = int(digits)
    if len(digits) == 2:
        return number + (2000 if number < 50 else 1900)
    return number + 1900 if len(digits) == 3 else number


def _build(date: tuple[int, int, int], clock: tuple[str, str, str | None], zone: timezone) -> datetime:
    seconds = int(clock[2] or 0)
    if seconds == 60:
        seconds = 59  # a leap second has no place in datetime
    return datetime(*date, int(clock[0]), int(clock[1]), seconds, tzinfo=zone)


def _zone(text: str, comment: str) -> timezone:
    """What stands after the clock: an offset, else a name, else the name in a comment."""
    if offset := _OFFSET.search(text):
        return _offset(offset[1], offset[2], offset[3])
    for place in (text, comment.casefold()):
        place = place.strip(" ,\t")
        for name, hours in _LONG_ZONES.items():
            if place.startswith(name):
                return _hours(hours)
        if found := _NAME.match(place):
            return _hours(_ZONES.get(found[0], 0))
    return UTC


def _offset(sign: str, digits: str, minutes: str | None) -> timezone:
    if minutes is None:
        digits, minutes = (digits[:-2], digits[-2:]) if len(digits) > 2 else (digits, "0")
    if int(minutes) > 59:
        return UTC
    total = int(digits) * 60 + int(minutes)
    if total == 0 or total >= 24 * 60:
        return UTC
    return timezone(timedelta(minutes=-total if sign == "-" else total))


def _hours(hours: float) -> timezone:
    return timezone(timedelta(hours=hours)) if hours else UTC
