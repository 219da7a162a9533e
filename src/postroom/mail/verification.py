"""Codes and links with which services have an address verified (inbound §20; edge rows E4, E5)."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import re2  # type: ignore[import-untyped]  # it has no types

from postroom.mail.html import Link

MAX_TEXT: Final = 2000
"""Characters of text in which trigger words count."""
_WINDOW: Final = 80
_MAX_URL: Final = 2048
_MAX_LINKS: Final = 200
_MAX_TRIGGERS: Final = 200

_WORDS: Final = (
    *(
        "verification",
        "verify",
        "code",
        "passcode",
        "one-time",
        "otp",
        "security code",
        "confirm",
        "sign in",
        "sign-in",
    ),
    *("log in", "login", "password reset", "reset your password", "2fa", "authentication", "bestätigungscode"),
    *("code de vérification", "código de verificación"),
    # Beyond the table: as services write it elsewhere.
    *("confirmation", "one time", "sicherheitscode", "verifizierungscode", "anmeldecode", "verificatiecode"),
    *("bevestigingscode", "codice di verifica", "código de verificação", "código de segurança", "verifieringskod"),
    *("bekräftelsekod", "bekræftelseskode", "bekreftelseskode", "vahvistuskoodi", "kod weryfikacyjny", "ověřovací kód"),
    *(
        "doğrulama kodu",
        "код подтверждения",
        "код",
        "認証コード",
        "確認コード",
        "验证码",
        "驗證碼",
        "인증번호",
        "인증 코드",
    ),
)
# Where words are not set apart, they begin anywhere.
_RUNNING: Final = ("認証コード", "確認コード", "验证码", "驗證碼", "인증번호", "인증 코드")


def _any_of(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_TRIGGER: Final = re.compile(rf"(?<![^\W_])(?:{_any_of(_WORDS)})|{_any_of(_RUNNING)}", re.IGNORECASE)
# The same for an automaton that takes a tenth of the time to find nothing, which is what there is in most mail.
_ANYWHERE: Final = re2.compile(rf"(?i)(?:^|[^\pL\pN])(?:{_any_of(_WORDS)})|{_any_of(_RUNNING)}")
# A code of another kind: it says what follows is no secret.
_OTHER_CODE: Final = re.compile(
    r"(?:discount|promo(?:tion(?:al)?)?|coupon|voucher|gift|offer|referral|invite|zip|post(?:al)?|area|country|dress"
    r"|source|qr|bar|error|status|sort|swift|booking|product|tracking|tax|dial(?:l?ing)?)[ -]?\Z",
    re.IGNORECASE,
)
_EDGE: Final = r"(?<![A-Za-z0-9_/=.@#&£$€%+-])"
_CODE: Final = re.compile(
    rf"{_EDGE}(?:(?P<spaced>[0-9]{{3}}[ -][0-9]{{3}})|(?P<digits>[0-9]{{4,8}})"
    r"|(?P<mixed>(?=[A-Z]{0,7}[0-9])[A-Z0-9]{6,8})|(?:[A-Z]-)(?P<tagged>[0-9]{4,8}))(?![A-Za-z0-9_%-]|[.,:/@][A-Za-z0-9])"
)
_BEFORE: Final = re.compile(rf"{_CODE.pattern}(?=\s(?:is|ist|est|es)\s(?:your|the|ihr|dein|votre|su|tu)\b)")
_YEAR: Final = re.compile(r"(?:19|20)[0-9]{2}")
_DIRECTLY: Final = re.compile(r"\s{0,3}(?:is|ist|est|es|:|：)?\s{0,3}:?\s{0,3}\Z", re.IGNORECASE)
_LINK_WORD: Final = re.compile(r"verify|confirm|activate|reset|magic|token|login|signin", re.IGNORECASE)
_NO_LINK: Final = re.compile(r"unsubscribe|opt-?out|/preferences\b", re.IGNORECASE)
_URL: Final = re.compile(r"https?://[^\s<>\"'\\^`{|}\x00-\x20]{1,2048}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Verification:
    """What a message hands over. Secrets: they belong in no log and no event."""

    code: str | None
    """As it is written, spacing included."""
    link: str | None

    @property
    def kind(self) -> Literal["code", "link"]:
        return "code" if self.code is not None else "link"


def find_verification(subject: str, text: str, links: Iterable[Link] = ()) -> Verification | None:
    """The code and the link of a message whose new text is `text`, None if it has neither or no trigger word.

    `links` are those of its HTML; those in the text are looked for when there are none of use. Pure, never raises;
    looks at a bounded part of everything.
    """
    head = f"{subject[:MAX_TEXT]}\n{text[:MAX_TEXT]}"
    triggers = list(_triggers(head))
    if not triggers:
        return None
    code, link = _code(head, triggers), _link(links) or _link(text_links(text))
    return None if code is None and link is None else Verification(code, link)


def _triggers(head: str) -> Iterator[int]:
    """Where each trigger word ends."""
    if _ANYWHERE.search(head.encode("utf-8", "replace")) is None:
        return
    for number, found in enumerate(_TRIGGER.finditer(head)):
        if number == _MAX_TRIGGERS:
            return
        if found[0].lower() != "code" or _OTHER_CODE.search(head[max(0, found.start() - 16) : found.start()]) is None:
            yield found.end()


def _code(head: str, triggers: list[int]) -> str | None:
    for end in triggers:
        for found in _CODE.finditer(head, end, end + _WINDOW + 12):
            if found.start() > end + _WINDOW:
                break
            if (code := _value(found)) and _is_code(code, head[end : found.start()]):
                return code
    for found in _BEFORE.finditer(head):
        if any(0 <= end - found.end() <= _WINDOW for end in triggers) and (code := _value(found)):
            return code
    return None


def _value(found: re.Match[str]) -> str:
    return found["spaced"] or found["digits"] or found["tagged"] or found["mixed"]


def _is_code(code: str, between: str) -> bool:
    """A year is one only where nothing else can be meant."""
    return _YEAR.fullmatch(code) is None or _DIRECTLY.fullmatch(between) is not None


def _link(links: Iterable[Link]) -> str | None:
    for number, link in enumerate(links):
        if number == _MAX_LINKS:
            break
        url = link.url
        if len(url) > _MAX_URL or not url[:8].lower().startswith(("http://", "https://")):
            continue
        if (_LINK_WORD.search(url) or _LINK_WORD.search(link.text)) and not _NO_LINK.search(url):
            return url
    return None


def text_links(text: str) -> Iterator[Link]:
    """The http and https URLs in plain text, at most 200, without the punctuation that ends a sentence."""
    for number, found in enumerate(_URL.finditer(text)):
        if number == _MAX_LINKS:
            return
        url = found[0].rstrip(".,;:!?*_~")
        if url.endswith(")") and "(" not in url:
            url = url[:-1]
        yield Link("", url)
