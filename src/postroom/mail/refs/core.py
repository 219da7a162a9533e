"""The pack `core`: amounts, telephone numbers, addresses and domains, dates, invoices, orders."""

import functools
import re
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # it has no types

from postroom.mail.domain import domain_name
from postroom.mail.links import is_ip_address, url_host
from postroom.mail.suffix import registrable_domain

_MAX_MATCHES: Final = 1000
"""Of each pattern; far more than are kept."""
_MAX_PHONES: Final = 100

_CURRENCY: Final = {"£": "GBP", "€": "EUR", "$": "USD", "GBP": "GBP", "EUR": "EUR", "USD": "USD"}
_DIGITS: Final = r"[0-9]{1,12}(?:[.,][0-9]{1,3}){0,4}"
_AMOUNT: Final = re.compile(
    rf"(?<![^\W_])(?:US)?(?P<before>[£€$]|GBP|EUR|USD)\ ?(?P<first>{_DIGITS})(?![.,]?[0-9])"
    rf"|(?<![\w.,])(?P<last>{_DIGITS})\ ?(?P<after>[£€$]|(?:GBP|EUR|USD)(?![^\W_]))",
    re.IGNORECASE,
)
_PLAIN_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]{1,2})?")
_GROUPED: Final = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]{1,2})?")
_EURO_DECIMAL: Final = re.compile(r"[0-9]+,[0-9]{2}|[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{2}")

_PHONE: Final = re.compile(r"(?<![\w+/.=-])(?:\+|00|\(?0)(?:[ .()/-]{0,3}[0-9]){7,18}(?![0-9A-Za-z])")
_EMAIL: Final = re.compile(
    r"(?<![\w.!#$%&'*+/=?^`{|}~-])([A-Za-z0-9.!#$%&'*+=?^_`{|}~-]{1,64})@((?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]"
    r"[\w-]{0,61}[^\W_])"
)
_URL: Final = re.compile(r"https?://[^\s/?#<>\"']{1,255}", re.IGNORECASE)

_MONTH_WORDS: Final = "january february march april may june july august september october november december"
_MONTHS: Final = {name[:length]: at for at, name in enumerate(_MONTH_WORDS.split(), 1) for length in (3, len(name))}
_MONTHS["sept"] = 9
_ISO_DATE: Final = re.compile(r"(?<![\w-])([0-9]{4})-([0-9]{2})-([0-9]{2})(?![0-9-])")
_NUMBER_DATE: Final = re.compile(r"(?<![\w./])([0-9]{1,2})([./])([0-9]{1,2})\2([0-9]{4})(?![\w/])")
_WORD_DATE: Final = re.compile(
    rf"(?<![^\W_])([0-9]{{1,2}})(?:st|nd|rd|th)?\ (?:of\ )?({'|'.join(sorted(_MONTHS, key=len, reverse=True))})\.?,?\ "
    r"([0-9]{4})(?![^\W_])",
    re.IGNORECASE,
)

_SIGN: Final = r"[\ ]{0,2}(?:(?:no|nr|n°|number|nummer|numéro|número)(?![^\W_])\.?[\ ]{0,2})?[#:]?[\ ]{0,2}"
_INVOICE: Final = re.compile(
    rf"(?<![^\W_])(?:(?:invoice|rechnung|facture|factura|fattura|inv)(?![^\W_-]){_SIGN}[#:-]?"
    r"(?P<token>(?=[A-Z/-]{0,24}[0-9])[A-Z0-9][A-Z0-9/-]{2,24})|INV-(?P<number>[0-9]{1,24}))(?![^\W_])",
    re.IGNORECASE,
)
_ORDER: Final = re.compile(
    rf"(?<![^\W_])(?:purchase\ order|order|ord|po|bestellung|commande|pedido)(?![^\W_-]){_SIGN}[#:-]?"
    r"(?P<token>(?=[A-Z-]{0,24}[0-9])[A-Z0-9][A-Z0-9-]{3,24})(?![^\W_])",
    re.IGNORECASE,
)


# What each pattern needs to match at all. One pass of an automaton over all of them takes a tenth of what the patterns
# themselves take to find nothing, which is what they find in most mail.
_NEEDS: Final = {
    "amount": r"(?i)(?:[£€$]|gbp|eur|usd) ?[0-9]|[0-9] ?(?:[£€$]|gbp|eur|usd)",
    "phone": r"[+0](?:[ .()/-]{0,3}[0-9]){4}",
    "iso date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "number date": r"[0-9][./][0-9]{1,2}[./][0-9]{4}",
    "word date": r"(?i)[0-9](?:st|nd|rd|th)? (?:of )?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)",
    "invoice": r"(?i)(?:^|[^a-z0-9])(?:invoice|rechnung|facture|factura|fattura|inv)[^a-z]",
    "order": r"(?i)(?:^|[^a-z0-9])(?:order|ord|po|bestellung|commande|pedido)[^a-z]",
}


@functools.cache
def _needed() -> Any:
    """An `re2.Set`, which has no types."""
    made = re2.Set.SearchSet()
    for pattern in _NEEDS.values():
        made.Add(pattern)
    made.Compile()
    return made


def _possible(text: str) -> frozenset[str]:
    """The patterns that may match."""
    kinds = tuple(_NEEDS)
    return frozenset(kinds[at] for at in _needed().Match(text.encode("utf-8", "replace")) or ())


def find(text: str, *, country: str, day_first: bool) -> Iterator[tuple[str, str]]:
    """Kinds and normal forms, in no particular order, repeated ones included."""
    possible = _possible(text)
    if "amount" in possible:
        yield from _each("amount", _AMOUNT, text, _amount)
    if "phone" in possible:
        yield from _phones(text, country)
    yield from _addresses(text)
    yield from _dates(text, day_first, possible)
    if "invoice" in possible:
        yield from _each("invoice", _INVOICE, text, _invoice)
    if "order" in possible:
        yield from _each("order", _ORDER, text, _order)


def _each(
    kind: str, pattern: re.Pattern[str], text: str, value: Callable[[re.Match[str]], str | None]
) -> Iterator[tuple[str, str]]:
    for number, found in enumerate(pattern.finditer(text)):
        if number == _MAX_MATCHES:
            return
        if made := value(found):
            yield kind, made


def _amount(found: re.Match[str]) -> str | None:
    """`GBP:412.80`. A comma is decimal in euros alone, where nothing else can be meant."""
    currency = _CURRENCY[(found["before"] or found["after"]).upper()]
    written = found["first"] or found["last"]
    if currency == "EUR" and _EURO_DECIMAL.fullmatch(written):
        written = written.replace(".", "").replace(",", ".")
    elif _GROUPED.fullmatch(written):
        written = written.replace(",", "")
    elif _PLAIN_NUMBER.fullmatch(written) is None:
        return None
    return f"{currency}:{Decimal(written):.2f}"


def _phones(text: str, country: str) -> Iterator[tuple[str, str]]:
    candidates = (found[0] for found in _PHONE.finditer(text))
    for number, candidate in enumerate(candidates):
        if number == _MAX_PHONES:
            return
        if (phone := _phone(candidate, country)) is not None:
            yield "phone", phone


def _phone(candidate: str, country: str) -> str | None:
    """E.164. International numbers need not be assigned; national ones must, for much else begins with a nought."""
    import phonenumbers  # here, for its tables take 20 MiB, which a process without numbers is spared

    international = candidate.startswith(("+", "00"))
    written = "+" + candidate[2:] if candidate.startswith("00") else candidate
    try:
        parsed = phonenumbers.parse(written, None if international else country)
    except phonenumbers.NumberParseException:
        parsed = None
    if parsed is not None and (
        phonenumbers.is_possible_number(parsed) if international else phonenumbers.is_valid_number(parsed)
    ):
        return str(phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164))
    digits = re.sub("[^0-9]", "", written)
    return f"+{digits}" if international and 7 <= len(digits) <= 15 else None


def _addresses(text: str) -> Iterator[tuple[str, str]]:
    """E-mail addresses, and the registrable domains of those and of URLs."""
    domains: list[str] = []
    if "@" in text:
        for number, found in enumerate(_EMAIL.finditer(text)):
            if number == _MAX_MATCHES:
                break
            local, domain = found[1].strip("."), domain_name(found[2])
            if local and domain is not None:
                domains.append(domain)
                yield "email", f"{local.lower()}@{domain}"
    if "://" in text:
        for number, found in enumerate(_URL.finditer(text)):
            if number == _MAX_MATCHES:
                break
            host, _ = url_host(found[0])
            if host is not None and not is_ip_address(host):
                domains.append(host)
    for domain in domains:
        if (registrable := registrable_domain(domain)) is not None:
            yield "domain", registrable


def _dates(text: str, day_first: bool, possible: frozenset[str]) -> Iterator[tuple[str, str]]:
    if "iso date" in possible:
        yield from _each("date", _ISO_DATE, text, lambda found: _date(found[1], found[2], found[3]))
    if "word date" in possible:
        yield from _each("date", _WORD_DATE, text, lambda found: _date(found[3], _MONTHS[found[2].lower()], found[1]))

    def from_numbers(found: re.Match[str]) -> str | None:
        if day_first or int(found[1]) > 12:
            return _date(found[4], found[3], found[1])
        return None

    if "number date" in possible:
        yield from _each("date", _NUMBER_DATE, text, from_numbers)


def _date(year: str, month: str | int, day: str) -> str | None:
    try:
        return date(int(year), int(month), int(day)).isoformat()
    except ValueError:
        return None


def _invoice(found: re.Match[str]) -> str:
    token = (found["number"] or found["token"]).upper()
    return token.removeprefix("INV-").rstrip("-/")


def _order(found: re.Match[str]) -> str:
    return found["token"].upper().rstrip("-")
