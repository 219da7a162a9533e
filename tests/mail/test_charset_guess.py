"""Which charset octets are in that say none: what each script's letters give away, and what must never be guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.charset import codec_for, decode, decode_raw_text
from postroom.mail.charset_guess import guess

TOLD = [
    ("koi8-r", "Отчёт о встрече в среду"),
    ("koi8-r", "Договор и счёт"),
    ("cp1251", "Отчёт о встрече в среду"),
    ("cp1251", "Отчет за март"),
    ("cp1251", "СРОЧНО: ДОГОВОР ПОДПИСАН"),
    ("cp1253", "Σας στέλνω το έγγραφο που ζητήσατε"),
    ("cp1255", "שלום רב, מצורף המסמך"),
    ("gb18030", "会议通知：请各位同事准时参加"),
    ("gb18030", "测试邮件"),
    ("big5hkscs", "會議通知：請各位同事準時參加"),
    ("big5hkscs", "測試郵件"),
    ("cp949", "회의 일정 안내 드립니다"),
    ("cp949", "테스트 메일입니다"),
    ("cp932", "会議のお知らせ"),
    ("cp932", "テストメール"),
    ("euc-jp", "ご注文ありがとうございます"),
]


@pytest.mark.covers("edge:B5")
@pytest.mark.parametrize(("codec", "text"), TOLD)
def test_told_by_their_letters(codec: str, text: str) -> None:
    data = text.encode(codec)
    assert guess(data) == codec
    assert decode(data) == (text, True)
    assert decode(b"Fwd: some words\r\n" * 1000 + data) == ("Fwd: some words\r\n" * 1000 + text, True)
    assert decode_raw_text(data) == text


@pytest.mark.covers("edge:B5")
@pytest.mark.parametrize(
    "text",
    [
        "Grüße aus München über die Straße",
        "Ça va être à l'été : où êtes-vous ? « Noël »",
        "¿El niño comió piñas en España?",
        "São João: coração, informações, não à mão",
        "Höghastighetståg på påminnelse ÅÄÖ",
        "Æblegrød på Færøerne, øl",
        "“Quoted” – dashes… and 5 €",
        "ÉTÉ À L'ÎLE",
        "£ 5 ± ½ °C",
        "café",
    ],
)
def test_western_text_is_windows_1252(text: str) -> None:
    data = text.encode("cp1252")
    assert guess(data) is None
    assert decode(data) == (text, True)
    assert decode_raw_text(data) == text


@given(st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1).map(lambda w: w + "é" + w), min_size=1))
def test_letters_among_letters_are_no_other_script(words: list[str]) -> None:
    assert guess(" ".join(words).encode("cp1252")) is None


@given(st.binary(max_size=300))
def test_any_octets(data: bytes) -> None:
    found = guess(data)
    assert found is None or codec_for(found) is not None
    decode_raw_text(data).encode("utf-8", "surrogatepass")


@pytest.mark.covers("edge:B5")
def test_the_charset_of_the_body_is_that_of_the_header() -> None:
    short = "Zażółć".encode("iso8859-2")
    assert decode_raw_text(short, "iso-8859-2") == "Zażółć"
    assert decode_raw_text("Zażółć".encode(), "iso-8859-2") == "Zażółć"
    assert decode_raw_text("会议通知".encode("gb18030"), "iso-8859-1") == "会议通知"  # a label nobody chose
    assert decode_raw_text(b"\xff\xfe\xfd", "shift_jis") != ""


@pytest.mark.parametrize(
    "label",
    ["cp-850", "x-mac-ce", "ANSI_X3.110-1983", "windows-31j", "ks_c_5601-1987", "iso-8859-8-i", "gb_2312-80", "csBig5",
     "csISOLatin1", "iso_8859-2:1987", "x-windows-949", "unicode-1-1-utf-7", "dos-866", "IBM775", "ms932",
     "cswindows31j"],
)  # fmt: skip
def test_labels_that_are_written(label: str) -> None:
    assert codec_for(label) is not None


@pytest.mark.covers("edge:B5")
def test_utf_8_under_another_label() -> None:
    for text in ("für alle", "日本", "Привет", "schön – oder?"):
        assert decode(text.encode(), "iso-8859-1") == (text, True)
    for text in ("NESTLÉ® and CAFÉ™", "Grüße", "É"):
        assert decode(text.encode("cp1252"), "iso-8859-1") == (text, True)
    for text in ("Zażółć gęślą jaźń", "Příliš žluťoučký kůň"):
        assert decode(text.encode(), "iso-8859-2") == (text, True)
        assert decode(text.encode("iso8859-2"), "iso-8859-2") == (text, True)
    for label, text in (("gb2312", "附件是我们的报价单"), ("shift_jis", "会議のお知らせ"), ("big5", "會議通知")):
        assert decode(text.encode(), label) == (text, True)
    assert decode("联通".encode("gb2312"), "gb2312") == ("联通", True)  # two characters of UTF-8 by chance
    assert decode("Гі".encode("cp1251"), "windows-1251") == ("Гі", True)


@pytest.mark.covers("edge:B5")
@pytest.mark.parametrize(("codec", "text"), TOLD)
def test_what_is_labelled_utf_8_and_never_was(codec: str, text: str) -> None:
    assert decode(text.encode(codec), "utf-8") == (text, True)


@pytest.mark.covers("edge:B5")
@given(st.sampled_from([text for _, text in TOLD]), st.integers(0, 200), st.none() | st.integers(0x80, 0xFF))
def test_damaged_utf_8_is_nothing_else(text: str, at: int, octet: int | None) -> None:
    data = bytearray((text * 2).encode())
    data[at % len(data) : at % len(data) + 1] = b"" if octet is None else bytes((octet,))
    whole = "".join(set(text))
    assert sum(char in whole for char in decode(bytes(data), "utf-8")[0]) >= 2 * len(text) - 4


@pytest.mark.covers("edge:B5")
def test_western_text_under_the_label_utf_8() -> None:
    for text in ("Grüße aus Köln", "café au lait", "“Quoted” – 5 €"):
        assert decode(text.encode("cp1252"), "utf-8") == (text, True)
    # What was UTF-8, or is nothing that anybody writes, is damaged.
    for data in (b"Gr\xc3\xbc\xdfe", b"a\xffb", b"a\x81b", "naïve €".encode()[:-1]):
        text, clean = decode(data, "utf-8")
        assert "\ufffd" in text
        assert not clean


@pytest.mark.covers("edge:B5")
@pytest.mark.parametrize(("codec", "text"), TOLD)
def test_what_is_labelled_latin_1_and_never_was(codec: str, text: str) -> None:
    assert decode((text + " " + text).encode(codec), "iso-8859-1") == (text + " " + text, True)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])), st.sampled_from(["utf-8", None]))
def test_utf_8_stays_utf_8(text: str, label: str | None) -> None:
    assert decode(text.encode(), label) == (text, True)
