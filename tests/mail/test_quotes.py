"""New text: quoted messages, signatures and footers, in many languages (inbound §14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.flowed import unflow
from postroom.mail.quote_lines import Header, is_footer, is_forward_line, is_header_block, is_separator, reply_header
from postroom.mail.quotes import TooManyCandidates, new_text

YES = (Header.YES, Header.FROM_THE_START)


@pytest.mark.covers("FR-IN-7")
@pytest.mark.parametrize(
    "line",
    [
        "On Monday Bob wrote:",
        "on mon, 2 feb 2026 at 10:00, bob <bob@example.com> wrote :",
        "Am 02.02.2026 um 10:00 schrieb Bob Example:",
        "Am Montag schrieb Bob <bob@example.com> folgendes:",
        "Le 2 févr. 2026, Bob a écrit :",
        "Le 2 févr. 2026, Bob a écrit\xa0:",
        "El lun, 2 feb 2026, Bob escribió:",
        "Il giorno 2 feb 2026 Bob ha scritto:",
        "Op 2 feb. 2026 schreef Bob het volgende:",
        "Em 2 de fev. de 2026 Bob escreveu:",
        "Den 2 feb. 2026 skrev Bob:",
        "Bob skrev:",
        "W dniu 2.02.2026 Bob pisze:",
        "Bob napisał:",
        "Ola napisała:",
        "Боб писал:",
        "Оля писала:",
        "пн, 2 февр. 2026 г. в 10:00, Bob <bob@example.com>:",
        "Bob kirjoitti:",
        "Dne 2. 2. 2026 v 10:00 Bob napsal(a):",
        "Bob, 2 Şub 2026 tarihinde şunu yazdı:",
        "2026. febr. 2. Bob ezt írta:",
        "Pe 2 feb. 2026, Bob a scris:",
        "Στις 2 Φεβ 2026, Bob έγραψε:",
        "Vào 2 thg 2, 2026, Bob đã viết:",
        "田中さんは書きました:",
        "田中 wrote：",
        "2026年2月2日 10:00 田中 <tanaka@example.com>：",
        "张三 写道：",
        "張三 寫道:",
        "2026년 2월 2일 김 님이 작성:",
    ],
)
def test_reply_lines(line: str) -> None:
    assert reply_header(line) in YES


@pytest.mark.parametrize(
    "line",
    [
        *("", "wrote:", "Please note:", "He wrote it down", "The ghostwrote:", "On Monday Bob wrote", "napisał:"),
        *("On " + "x" * 300 + " wrote:", "The following people are coming:", "写道：", "Subject:"),
    ],
)
def test_other_lines(line: str) -> None:
    assert reply_header(line) not in YES


@pytest.mark.parametrize("line", ["Bob wrote:", "bob@example.com said:", "2026-02-02 Bob:"])
def test_lines_that_need_quoted_ones_below(line: str) -> None:
    assert reply_header(line) is Header.IF_QUOTED
    assert new_text(f"Hi.\n\n{line}\n> old\n") == "Hi."
    assert new_text(f"Hi.\n\n{line}\nnew\n") == f"Hi.\n\n{line}\nnew"


@pytest.mark.parametrize(
    ("line", "forward"),
    [
        ("-----Original Message-----", False),
        ("-- Ursprüngliche Nachricht --", False),
        ("----- Message d’origine -----", False),
        ("---------- Forwarded message ----------", True),
        ("-------- Weitergeleitete Nachricht --------", True),
        ("Begin forwarded message:", True),
        ("Anfang der weitergeleiteten Nachricht:", True),
        ("-------- 原始邮件 --------", False),
    ],
)
@pytest.mark.covers("decisions:D27")
def test_separators(line: str, forward: bool) -> None:
    assert is_separator(line)
    assert is_forward_line(line) is forward
    assert new_text(f"New.\n\n{line}\nOld.") == "New."
    assert (
        new_text(f"{line}\nOld.\n\nOn Monday Bob wrote:\n> x") == f"{line}\nOld.\n\nOn Monday Bob wrote:\n> x"
    ) is forward


@pytest.mark.parametrize(
    "line", ["----------", "--", "- Original Message -", "Original Message", "-----Other words-----"]
)
def test_no_separators(line: str) -> None:
    assert not is_separator(line)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (["From: a", "Sent: b", "To: c"], True),
        (["*From:* a", "*Date:* b", "*Subject:* c"], True),
        (["Von: a", "Gesendet: b", "An: c"], True),
        (["De : a", "Envoyé : b", "À : c"], True),
        (["差出人: a", "送信日時: b", "宛先: c"], True),
        (["보낸 사람: a", "날짜: b", "받는 사람: c"], True),
        (["From: a", "", "x", "y", "Sent: b", "To: c"], False),
        (["From: a", "Sent: b"], False),
        (["From: a", "To: c"], False),
        (["From here", "Sent: b", "To: c"], False),
    ],
)
def test_header_blocks(block: list[str], expected: bool) -> None:
    assert is_header_block([*block, "", ""], 0) is expected


@pytest.mark.parametrize(
    "line",
    [
        *("Sent from my iPhone", "sent from my Galaxy", "Get Outlook for Android", "Sent from Mail for Windows"),
        *("Von meinem Smartphone gesendet", "Envoyé de mon iPad", "Enviado desde mi iPhone", "Inviato da iPad"),
        *("Verzonden met mijn iPhone", "Skickat från min iPhone", "Sendt fra min iPad", "Lähetetty iPhonesta"),
        *("Wysłane z iPhone'a", "Отправлено с iPhone", "iPhoneから送信", "发自我的 iPhone", "나의 iPhone에서 보냄"),
        *("iPhone'umdan gönderildi", "Sent with Proton Mail secure email."),
    ],
)
def test_footers(line: str) -> None:
    assert is_footer(line)
    assert new_text(f"New.\n\n{line}\n") == "New."


@pytest.mark.parametrize("line", ["Best regards", "I sent from my desk", "Kind regards from my iPhone", "iPhone"])
def test_ordinary_endings_stay(line: str) -> None:
    assert not is_footer(line)
    assert new_text(f"New.\n\n{line}\n") == f"New.\n\n{line}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("New.\n-- \nBob\n", "New."),
        ("New.\n--\nBob\n", "New."),
        ("New.\n --\nBob", "New."),
        ("New.\n---\nBob", "New.\n---\nBob"),
        ("New.\n-- \n" + "line\n" * 14, "New."),
        ("New.\n-- \n" + "line\n" * 15, "New.\n-- \n" + "line\n" * 14 + "line"),
        ("One\n--\nTwo\n--\nThree", "One"),
        ("> a\n> b", "> a\n> b"),
        ("a\n> b\nc\n  > d\n>From here", "a\nc\n>From here"),
        ("On Monday Bob wrote:\n\nfirst line stays", "On Monday Bob wrote:\n\nfirst line stays"),
        ("\n\nOn Monday Bob wrote:\n> q\n\nYes.\n", "Yes."),
        ("New.\n\nOn Monday Bob wrote:\n", "New.\n\nOn Monday Bob wrote:"),
        ("New.\n\nOn Monday Bob wrote:\n> q\n\nSent from my iPhone\n", "New."),
        ("New.\n\nOn Monday Bob wrote:\n> q\n_______________\nlist mailing list\n", "New."),
        ("A.\n\nOn Monday Bob wrote:\n> q\nB.\nOn Sunday Ann wrote:\n> r\nC.", "A.\n\nB.\nC."),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_new_text(text: str, expected: str) -> None:
    assert new_text(text) == expected


@pytest.mark.covers("FR-IN-7")
def test_the_mark_in_the_html_comes_first() -> None:
    assert new_text("New.\nunknown words\nold", "New.") == "New."
    assert new_text("New.\nold", "") == "New.\nold"
    assert (
        new_text("---------- Forwarded message ---------\nold", " \n") == "---------- Forwarded message ---------\nold"
    )


def test_only_so_many_lines_are_looked_at() -> None:
    text = "a\n" + "Note: x\n" * 50
    assert new_text(text, candidates=60) == text.strip()
    with pytest.raises(TooManyCandidates):
        new_text(text, candidates=40)
    with pytest.raises(TooManyCandidates):
        new_text("a:\n" * 5 + "\n" * 1000, candidates=10)


# What looks again and again at the same lines takes minutes here.
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "unit",
    [
        *(
            "\n",
            ":\n",
            "> q\n",
            "On x wrote:\n> q\nb\n",
            "On 1@\nwrote:\n> q\n",
            "From:\n",
            "--\n",
            "wrote ",
            "wrote:\n",
        ),
        *("From: a\nSent: b\n", "____________\n", "Sent from my iPhone\n", "<a@b>:\n", "1:00<x@y", "On \n", "：\n"),
    ],
)
def test_hostile_lines_end(unit: str) -> None:
    text = "a\n" + unit * (500_000 // len(unit))
    assert new_text(text)
    assert new_text(text, text)


@pytest.mark.covers("RFC 3676 §4.2", "RFC 3676 §4.4", "RFC 3676 §4.5")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a \nb\nc", "a b\nc"),
        ("a  \n b", "a  b"),
        (" >not quoted\n From here", ">not quoted\nFrom here"),
        ("> a \n> b\n>> c \n> d", "> a b\n>> c\n> d"),
        (">a \n>b", "> a b"),
        ("a \n-- \nBob \nExample", "a\n-- \nBob Example"),
        ("> -- \n> x", "> --\n> x"),
        ("a \n\nb", "a\n\nb"),
        ("a ", "a"),
        ("", ""),
    ],
)
def test_flowed(text: str, expected: str) -> None:
    assert unflow(text) == expected


@pytest.mark.covers("RFC 3676 §4.3")
def test_flowed_without_the_space() -> None:
    assert unflow("日本 \n語  \nx", delete_space=True) == "日本語 x"


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=8), max_size=12))
def test_flowing_keeps_the_words(lines: list[str]) -> None:
    text = "\n".join(lines)
    flowed = unflow(text)
    assert flowed.count("\n") <= text.count("\n")
    assert [c for c in flowed if c not in " >\n"] == [c for c in text if c not in " >\n"]
