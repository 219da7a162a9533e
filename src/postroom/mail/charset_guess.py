"""Which charset unlabelled 8-bit text is in: told by what its readers would find common, else by nobody.

Mail without a charset is mostly ASCII, UTF-8 or windows-1252. The rest comes from where other charsets were the custom,
and there a letter frequency decides at a glance. Western text, with its single accents among ASCII letters, never
matches. Languages that share windows-1252's shape (Polish, Czech, Turkish) cannot be told from it, so are not guessed.
"""

import re
from itertools import pairwise
from typing import Final

_SAMPLE: Final = 4096
_LEAST: Final = 4
"""Octets beyond ASCII without which there is nothing to go by."""

_HIGH: Final = re.compile(rb"[\x80-\xff]+")
_HIGH_BESIDE_LETTER: Final = re.compile(rb"[A-Za-z][\x80-\xff]++|[\x80-\xff]++(?=[A-Za-z])")
_BLANK: Final = re.compile(rb"[ \r\n]")
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]")
# Kana, ideographs, Hangul, their punctuation and full-width forms, dashes and quotes.
_EAST_ASIAN: Final = re.compile(
    "[\u2010-\u2027\u203b\u2460-\u24ff\u3000-\u30ff\u3131-\u318e\u4e00-\u9fff\uac00-\ud7a3\uff01-\uffee]"
)

_SIMPLIFIED: Final = (
    "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可里后小么心多天而能好都然没"
    "日于起还发成事只作当想看文无开手用主行方又如前所本见经面公同已从动两长知样现分将外但身些与高意进把法此实回理美点月明其种声"
    "全工己话者向情部正名定问力机给等业最间新位因重电第门相次东使教平真听世气信北少关并内加化由代产入先水万市体别处总场师书比住"
    "员通目报立命活数件安表原车应路期提感金何更合放系计或司利受光果界及今务制各任至清记边共接特望直服题建南度统字请交论科元社术"
    "结功指思每管连远资带花快条变联言权展领传近保达办运求品转量您邮箱测试会议谢附件尊敬客户订单价格"
)
_TRADITIONAL: Final = (
    "的一是不了在人有我他這中大來上國個到說們為子和你地出道也時年得就那要下以生會自著去之過家學對可裡後小麼心多天而能好都然沒"
    "日於起還發成事只作當想看文無開手用主行方又如前所本見經面公同已從動兩長知樣現分將外但身些與高意進把法此實回理美點月明其種聲"
    "全工己話者向情部正名定問力機給等業最間新位因重電第門相次東使教平真聽世氣信北少關並內加化由代產入先水萬市體別處總場師書比住"
    "員通目報立命活數件安表原車應路期提感金何更合放系計或司利受光果界及今務制各任至清記邊共接特望直服題建南度統字請交論科元社術"
    "結功指思每管連遠資帶花快條變聯言權展領傳近保達辦運求品轉量您郵箱測試會議謝附件尊敬客戶訂單價格"
)
_HANGUL: Final = (
    "이다는에의을를가은하고한로기사지대자시서도정리어인나수있부일전주해동상장그니라면보제성원구여들과만요안스아조세비문공드경신관"
    "위국소생무산업회게간행년계조발합오트당물화체내교연용방분습거미모메합건중선실월결적양유진되터러명심금일"
)
_KANA: Final = "".join(map(chr, (*range(0x3041, 0x3094), *range(0x30A1, 0x30FB), 0x30FC)))

# Codec, its strict form for the test, the characters that must be common, and how common.
_WIDE: Final = (
    ("cp932", "cp932", frozenset(_KANA), 0.25),
    ("euc-jp", "euc-jp", frozenset(_KANA), 0.25),
    ("cp949", "euc-kr", frozenset(_HANGUL), 0.3),
    ("gb18030", "gb2312", frozenset(_SIMPLIFIED), 0.25),
    ("big5hkscs", "big5", frozenset(_TRADITIONAL), 0.25),
)
# Codec, common letters, and what share may be no letters: where Cyrillic has its capitals, Hebrew has points.
_NARROW: Final = (
    ("koi8-r", frozenset("оеаинтсрвлкмдпуя"), 0.1),
    ("cp1251", frozenset("оеаинтсрвлкмдпуя"), 0.1),
    ("cp1253", frozenset("αοιετσνηυρπκμλάόίές"), 0.1),
    ("cp1255", frozenset("יוהלארמבשתנםדעקפ"), 0.0),
)
_NARROW_SHARE: Final = 0.65
_BESIDE_LETTERS: Final = 0.2
_UNEXPECTED: Final = 0.1
_CASE_BREAKS: Final = 0.05


def guess(data: bytes, *, least: int = _LEAST) -> str | None:
    """The codec of text that is neither ASCII nor UTF-8; None when nothing speaks against windows-1252.

    Fewer than `least` octets beyond ASCII say nothing.
    """
    sample = _sample(data)
    high = sum(map(len, _HIGH.findall(sample)))
    if high < least:
        return None
    best, score = None, 0.0
    for codec, strict, common, needed in _WIDE:
        found = _share(sample, strict, common, _EAST_ASIAN, _UNEXPECTED)
        if found >= needed and found > score:
            best, score = codec, found
    if best is not None:
        return best
    if sum(map(len, _HIGH_BESIDE_LETTER.findall(sample))) > high * _BESIDE_LETTERS:
        return None
    for codec, common, unexpected in _NARROW:
        found = _share(sample, codec, common, None, unexpected)
        if found >= _NARROW_SHARE and found > score:
            best, score = codec, found
    return best


def _sample(data: bytes) -> bytes:
    """A stretch with what is not ASCII, between blanks: those are part of no character of any charset."""
    first = _HIGH.search(data)
    if first is None:
        return b""
    start = max(data.rfind(b" ", 0, first.start()), data.rfind(b"\n", 0, first.start())) + 1
    sample = data[start : start + _SAMPLE]
    if len(sample) == _SAMPLE:
        sample = sample[: max(sample.rfind(b" "), sample.rfind(b"\n"))]
    return sample


def _share(
    sample: bytes, codec: str, common: frozenset[str], expected: re.Pattern[str] | None, unexpected: float
) -> float:
    """How many of the characters beyond ASCII are common ones; 0 if it cannot be that charset."""
    try:
        text = sample.decode(codec)
    except UnicodeDecodeError:
        return 0.0
    foreign = _FOREIGN.findall(text)
    if expected is None:
        # Capitals speak less for a charset: in KOI8-R and windows-1251 the cases are exchanged.
        marks = sum(1.0 if char in common else 0.9 if char.lower() in common else 0.0 for char in foreign)
        odd = sum(not char.isalpha() for char in foreign)
        breaks = sum(before.islower() and after.isupper() for before, after in pairwise(text))
        if breaks > len(foreign) * _CASE_BREAKS:
            return 0.0
    else:
        marks = sum(char in common for char in foreign)
        odd = sum(expected.match(char) is None for char in foreign)
    if not foreign or odd > len(foreign) * unexpected:
        return 0.0
    return marks / len(foreign)
