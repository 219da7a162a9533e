"""Lines with which mail programs begin what they quote or forward, and sign (inbound §14), in many languages."""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

MAX_GAP: Final = 200
"""Characters between the words of a reply line."""
_MAX_LINE: Final = 2 * MAX_GAP + 60
_MAX_VERBS: Final = 4


class Header(Enum):
    """How sure it is that a line says whose words follow."""

    NO = 0
    IF_QUOTED = 1
    """Only if lines with `>` follow at once."""
    YES = 2
    FROM_THE_START = 3
    """Yes, and nothing of it can stand on the line above."""


# Verb: what the line begins with ("" for anything), and whether the name may stand behind the verb.
_REPLIES: Final[dict[str, tuple[str, bool]]] = {
    "wrote": ("on ", False),
    "schrieb": ("am ", True),
    "a écrit": ("le ", False),
    "escribió": ("el ", False),
    "ha scritto": ("il ", False),
    "schreef": ("op ", True),
    "escreveu": ("em ", False),
    "skrev": ("", True),
    "napisał": ("", False),
    "napisała": ("", False),
    "napisał(a)": ("", False),
    "pisze": ("w dniu ", False),
    "писал": ("", False),
    "писала": ("", False),
    "написал": ("", False),
    "написала": ("", False),
    "написал(а)": ("", False),
    "пише": ("", False),
    "kirjoitti": ("", False),
    "napsal": ("", False),
    "napsala": ("", False),
    "napsal(a)": ("", False),
    "napísal": ("", False),
    "napísala": ("", False),
    "yazdı": ("", False),
    "írta": ("", False),
    "a scris": ("", False),
    "έγραψε": ("", False),
    "đã viết": ("", False),
    "さんは書きました": ("", False),
    "님이 작성": ("", False),
    "님이 쓴 글": ("", False),
    "写道": ("", False),
    "寫道": ("", False),
}
_VERB: Final = re.compile("|".join(sorted(map(re.escape, _REPLIES), key=len, reverse=True)), re.IGNORECASE)
_END: Final = re.compile(r"\s{0,2}[:：]\Z")
_NAMED_END: Final = re.compile(r".*[:：]\Z", re.DOTALL)
# Gmail in several languages has no verb: a date with a time, and an address.
_DATED_ADDRESS: Final = re.compile(r"\d{1,2}[:.]\d{2}(?!\d)[^<>]*<[^<>\s]{3,254}>[:：]\Z")
_ADDRESS_OR_DATE: Final = re.compile(r"@|\d[:.]\d\d|(?<!\d)\d{4}(?!\d)|\d[./-]\d")

_ORIGINALS: Final = (
    *("original message", "ursprüngliche nachricht", "message d'origine", "mensaje original", "messaggio originale"),
    *("oorspronkelijk bericht", "mensagem original", "ursprungligt meddelande", "originalmeddelande"),
    *("oprindelig meddelelse", "opprinnelig melding", "alkuperäinen viesti", "oryginalna wiadomość"),
    *("wiadomość oryginalna", "původní zpráva", "исходное сообщение", "orijinal mesaj", "원본 메시지"),
    *("元のメッセージ", "原始邮件", "原始郵件"),
)
_FORWARDS: Final = (
    *(
        "forwarded message",
        "weitergeleitete nachricht",
        "message transféré",
        "mensaje reenviado",
        "mensagem encaminhada",
    ),
    *("messaggio inoltrato", "doorgestuurd bericht", "vidarebefordrat meddelande", "videresendt meddelelse"),
    *("videresendt melding", "välitetty viesti", "edelleenlähetetty viesti", "wiadomość przekazana"),
    *("przekazana wiadomość", "přeposlaná zpráva", "пересылаемое сообщение", "iletilen mesaj", "전달된 메시지"),
    *("転送されたメッセージ", "转发的邮件", "轉寄的郵件"),
)
_APPLE_FORWARDS: Final = (
    *("begin forwarded message", "anfang der weitergeleiteten nachricht", "début du message réexpédié"),
    *("début du message transféré", "inicio del mensaje reenviado", "inizio messaggio inoltrato"),
    *("begin doorgestuurd bericht", "início da mensagem reencaminhada", "vidarebefordrat brev"),
)


def _any_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word).replace("'", "['’]") for word in words)


_SEPARATOR: Final = re.compile(
    rf"-{{2,60}}+ ?(?:(?P<forward>{_any_of(_FORWARDS)})|{_any_of(_ORIGINALS)}) ?-{{2,60}}", re.IGNORECASE
)
_APPLE_FORWARD: Final = re.compile(rf"(?:{_any_of(_APPLE_FORWARDS)})\s?[:：]", re.IGNORECASE)

_FROM_WORDS: Final = (
    "From Von De Da Van Från Od Fra Lähettäjä Kimden От 差出人 发件人 寄件者 寄件人 보낸사람 Feladó Expeditor Від"
)
_SENT_WORDS: Final = (
    "Sent Date Gesendet Datum Envoyé Enviado Inviato Verzonden Skickat Wysłano Enviada Data Fecha Sendt Dato Lähetetty "
    "Päivämäärä Odesláno Gönderildi Tarih Отправлено Дата 送信日時 日時 日付 发送时间 日期 傳送時間 보낸날짜 날짜"
)
_TO_WORDS: Final = (
    "To Subject An Betreff À Objet Para Asunto A Oggetto Aan Onderwerp Till Ämne Do Temat Assunto Til Emne "
    "Vastaanottaja Aihe Komu Předmět Kime Konu Кому Тема 宛先 件名 收件人 主题 收件者 主旨 받는사람 제목"
)


def _field(words: str) -> re.Pattern[str]:
    names = "|".join(" ?".join(word) if not word.isascii() and word[0] > "\u3000" else word for word in words.split())
    return re.compile(rf"\s{{0,8}}\*{{0,2}}(?:{names})\s?\*{{0,2}}\s?[:：]", re.IGNORECASE)


_FROM: Final = _field(_FROM_WORDS)
_SENT: Final = _field(_SENT_WORDS)
_TO: Final = _field(_TO_WORDS)

_DEVICES: Final = (
    "iPhone|iPad|Android|mobile device|phone|Smartphone|Handy|Galaxy|Samsung[ \\w]{0,20}|Huawei|BlackBerry"
)
_FOOTER: Final = re.compile(
    rf"""
      Sent\ from\ my\ (?:{_DEVICES})
    | Get\ Outlook\ for\ (?:iOS|Android|Mac)
    | Sent\ from\ (?:Mail|Outlook|Yahoo\ Mail|AOL|Proton\ ?Mail)\ (?:for|on|mobile|Android|iOS)
    | Sent\ with\ (?:Proton\ ?Mail|Spark|Mailbird)
    | Sent\ from\ (?:Proton\ Mail|Spark|Samsung|Nine)
    | Von\ meinem\ (?:{_DEVICES})\ gesendet
    | (?:Gesendet\ von\ meinem|Gesendet\ mit|Outlook\ für\ (?:iOS|Android)\ beziehen)
    | Envoyé\ de(?:puis)?\ mon\ (?:{_DEVICES})
    | Télécharger\ Outlook\ pour\ (?:iOS|Android)
    | Enviado\ (?:desde\ mi|do\ meu|de\ meu)\ (?:{_DEVICES})
    | (?:Obtener|Obter)\ (?:o\ )?Outlook\ para\ (?:iOS|Android)
    | Inviato\ da(?:l\ mio)?\ (?:{_DEVICES})
    | Verzonden\ (?:vanaf|met)\ mijn\ (?:{_DEVICES})
    | Skickat\ från\ min\ (?:{_DEVICES})
    | Sendt\ fra\ min\ (?:{_DEVICES})
    | Lähetetty\ (?:iPhonesta|iPadista|Androidista)
    | Wysłan[eo]\ z\ (?:mojego\ )?(?:{_DEVICES})
    | Odesláno\ z\ (?:mého\ )?(?:{_DEVICES})
    | Отправлено\ с\ (?:моего\ )?(?:{_DEVICES})
    | (?:iPhone|iPad)['’]?(?:umdan|imden|ımdan)\ gönderildi
    | (?:iPhone|iPad|Android)から送信
    | (?:发自我的|從我的|从我的|傳自我的)\ ?(?:iPhone|iPad|Android)
    | (?:나의|내)\ (?:iPhone|iPad)에서\ 보냄
    """,
    re.IGNORECASE | re.VERBOSE,
)


def reply_header(line: str) -> Header:
    """Whether a line without white space around it says whose words follow: `On … wrote:` and its like."""
    if not line or line[-1] not in ":：" or len(line) > _MAX_LINE:
        return Header.NO
    for number, verb in enumerate(_VERB.finditer(line)):
        begins, named = _REPLIES.get(verb[0].lower(), ("", False))
        before, tail = line[: verb.start()], line[verb.end() :]
        ends = _NAMED_END.match(tail) if named else _END.match(tail)
        if ends is None or len(tail) > MAX_GAP or not 0 < len(before.strip()) <= MAX_GAP + len(begins):
            continue
        if not begins and not tail.strip(" :：") and before[-1:].isalnum() and verb[0][0].isascii():
            continue  # the end of a longer word
        if begins and line[: len(begins)].lower() == begins:
            return Header.FROM_THE_START
        if not begins and (not named or not tail.strip(" :：") or _dated(before)):
            return Header.YES
        if _dated(before) and (not named or tail.strip(" :：")):
            return Header.YES
        if number == _MAX_VERBS:
            break
        return Header.IF_QUOTED
    if _DATED_ADDRESS.search(line):
        return Header.YES
    return Header.IF_QUOTED if _ADDRESS_OR_DATE.search(line) else Header.NO


def _dated(text: str) -> bool:
    return _ADDRESS_OR_DATE.search(text) is not None or not text.isascii()


def is_separator(line: str) -> bool:
    """`--- Original Message ---` and its like, forwards included."""
    return (line[:2] == "--" and _SEPARATOR.fullmatch(line[:200]) is not None) or _is_apple_forward(line)


def is_forward_line(line: str) -> bool:
    """A line after which there is a message that was handed on."""
    found = _SEPARATOR.fullmatch(line[:200]) if line[:2] == "--" else None
    return (found is not None and found["forward"] is not None) or _is_apple_forward(line)


def _is_apple_forward(line: str) -> bool:
    return line[-1:] in (":", "：") and _APPLE_FORWARD.fullmatch(line[:200]) is not None


def is_header_block(lines: list[str], at: int) -> bool:
    """Whether at `at` stand the fields that Outlook writes above a message: sender, then date and addressee or subject.

    They are within four lines after the first.
    """
    if _FROM.match(lines[at]) is None:
        return False
    sent = other = False
    for line in lines[at + 1 : at + 5]:
        if not sent and _SENT.match(line):
            sent = True
        elif not other and _TO.match(line):
            other = True
    return sent and other


def is_footer(line: str) -> bool:
    """What telephones and mail programs write below a text."""
    return _FOOTER.match(line[:120]) is not None
