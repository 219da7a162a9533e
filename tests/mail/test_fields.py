"""Header text, addresses, dates, message ids, subjects."""

import email.utils
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.address import parse_addresses, parse_raw_list, read_addresses, read_domains
from postroom.mail.date import parse_date
from postroom.mail.envelope import encode_words
from postroom.mail.header import Headers, decode_value
from postroom.mail.ids import kept_references, normalise_message_id, parse_references
from postroom.mail.subject import normalise_subject


@pytest.mark.covers("edge:B5")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b" plain \r\n", "plain"),
        (b"a\r\n b\n\tc", "a b\tc"),
        (b"=?utf-8?q?J=C3=B6rg_x?=", "Jörg x"),
        (b"=?UTF-8?B?w6Q=?=\r\n =?UTF-8?B?w7Y=?=", "äö"),
        (b"=?utf-8?b?w6?= =?utf-8?b?pA==?=", "ä"),  # padding missing
        (b"=?utf-8?q?=E2=82?= =?utf-8?q?=AC?=", "€"),  # one character in two words
        (b"=?iso-8859-1*en?q?=E4?= x =?utf-8?q?y?=", "ä x y"),
        (b"a =?utf-8?q?b?= c", "a b c"),
        (b"=?iso-2022-jp?B?GyRCRnxLXBsoQg==?=", "日本"),
        (b"=?gb2312?B?1tDOxA==?=", "中文"),
        (b"=?shift_jis?B?k/qWew==?=", "日本"),
        (b"=?windows-1252?q?=93x=94?=", "“x”"),
        (b"=?x-unknown?q?=C3=A4?=", "ä"),
        (b"=?x-unknown?q?=E4?=", "ä"),
        ("rä".encode(), "rä"),
        (b"r\xe4", "rä"),
        (b"=?utf-8?q?a=0D=0AX:_y?=", "a X: y"),  # no line break gets in
        (b"=?broken", "=?broken"),
        (b"=?utf-8?x?abc?=", "=?utf-8?x?abc?="),
        (b"a\x00b", "ab"),
    ],
)
def test_decoded_text(value: bytes, text: str) -> None:
    assert decode_value(value) == text


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
def test_encoded_words_come_back(text: str) -> None:
    encoded = encode_words(text)
    assert encoded.isascii()
    assert all(len(word) <= 75 for word in encoded.split(" "))
    assert decode_value(encoded.encode()) == text


@given(st.binary(max_size=300))
def test_any_value(value: bytes) -> None:
    decode_value(value).encode()
    parse_addresses(value)
    parse_date(decode_value(value))
    Headers.parse(value)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a@example.com", [("", "a@example.com")]),
        ("Al Ice <a@example.com>, b@example.com", [("Al Ice", "a@example.com"), ("", "b@example.com")]),
        ('"Doe, Jane \\"J\\"" <j@example.com>', [('Doe, Jane "J"', "j@example.com")]),
        ("=?utf-8?q?J=C3=B6rg?= <j@example.com>", [("Jörg", "j@example.com")]),
        ('"=?utf-8?q?J=C3=B6rg?=" <j@example.com>', [("Jörg", "j@example.com")]),
        ("j@example.com (Jane (the) Doe)", [("Jane (the) Doe", "j@example.com")]),
        ("Jane (c) <j@example.com>", [("Jane", "j@example.com")]),
        ("Team: a@example.com, B <b@example.com>;, c@example.com", [
            ("", "a@example.com"), ("B", "b@example.com"), ("", "c@example.com")]),
        ("undisclosed-recipients:;", []),
        ("<@one.example,@two.example:a@example.com>", [("", "a@example.com")]),
        ('"a b"@example.com', [("", '"a b"@example.com')]),
        ("<a . b @ example . com>", [("", "a.b@example.com")]),
        ("a@[192.0.2.1]", [("", "a@[192.0.2.1]")]),
        ("Jane Doe j@example.com", [("Jane Doe", "j@example.com")]),
        ("Jane <j@example.com", [("Jane", "j@example.com")]),
        ("Dr. J. Doe <j@example.com>", [("Dr. J. Doe", "j@example.com")]),
        (",, a@example.com ,", [("", "a@example.com")]),
        ("root, nobody here", []),
        ('"unclosed <a@example.com>', [("unclosed", "a@example.com")]),
        ("jörg@exämple.com", [("", "jörg@exämple.com")]),
        ("", []),
    ],
)  # fmt: skip
def test_address_lists(value: str, found: list[tuple[str, str]]) -> None:
    assert [(a.name, a.address) for a in parse_addresses(value)] == found


ATOM = st.text("abcdefghijklmnopqrstuvwxyzABC0123456789!#$%&'*+-/=?^_`{|}~", min_size=1, max_size=10)
NAME = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), max_size=30)


@given(st.lists(st.tuples(NAME, ATOM, st.sampled_from(["example.com", "mail.example.net"])), max_size=5))
def test_lists_agree_with_the_standard_library(boxes: list[tuple[str, str, str]]) -> None:
    text = ", ".join(email.utils.formataddr((name, f"{local}@{domain}")) for name, local, domain in boxes)
    ours = [(a.name, a.address) for a in parse_addresses(text)]
    theirs = [(decode_value(name.encode()), spec) for name, spec in email.utils.getaddresses([text])]
    assert [spec for _, spec in ours] == [spec for _, spec in theirs if spec]
    assert [name.split() for name, _ in ours] == [name.split() for name, spec in theirs if spec]


def test_raw_list_for_imap() -> None:
    boxes = parse_raw_list(b"=?utf-8?q?x?= <a@example.com>, G: b@example.com;, root, <@r:c@example.com>, Only Name")
    assert [(b.name, b.route, b.local, b.domain) for b in boxes] == [
        ("=?utf-8?q?x?=", None, "a", "example.com"),
        (None, None, "G", None),
        (None, None, "b", "example.com"),
        (None, None, None, None),
        (None, None, "root", ""),
        (None, "@r", "c", "example.com"),
        ("Only Name", None, "", ""),
    ]


@given(st.datetimes(datetime(1950, 1, 1), datetime(2049, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_dates_agree_with_the_standard_library(moment: datetime, minutes: int) -> None:
    aware = moment.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=minutes)))
    text = email.utils.format_datetime(aware)
    assert parse_date(text) == aware
    assert parse_date(text.split(", ")[1]) == aware


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("Mon, 2 Feb 2026 10:00:00 -0000", "2026-02-02T10:00:00+00:00"),
        ("2 Feb 26 10:00 EST (comment (no))", "2026-02-02T10:00:00-05:00"),
        ("Mon,2 Feb 2026 10:00:00 GMT", "2026-02-02T10:00:00+00:00"),
        ("Mon, 02 Feb 99 10:00:00 +01:00", "1999-02-02T10:00:00+01:00"),
        ("Mon Feb  2 10:00:00 2026", "2026-02-02T10:00:00+00:00"),
        ("2026-02-02T10:00:00Z", "2026-02-02T10:00:00+00:00"),
        ("Thu, 31 Dec 2026 23:59:60 +0000", "2026-12-31T23:59:59+00:00"),
        ("2-Feb-2026 10:00:00 +9999", "2026-02-02T10:00:00+00:00"),
    ],
)
def test_dates_as_they_are_written(text: str, iso: str) -> None:
    found = parse_date(text)
    assert found is not None
    assert found == datetime.fromisoformat(iso)
    assert found.tzinfo is not None


@pytest.mark.parametrize("text", ["", "soon", "99 Foo 2026", "31 Feb 2026 10:00:00 +0000", "1 Jan 2026 25:00:00 +0000"])
def test_dates_that_are_none(text: str) -> None:
    assert parse_date(text) is None


def test_date_without_zone_is_utc() -> None:
    assert parse_date("2 Feb 2026 10:00:00") == datetime(2026, 2, 2, 10, tzinfo=UTC)


@pytest.mark.covers("edge:B3")
@pytest.mark.parametrize(
    ("value", "normal"),
    [
        ("<AbC@EXAMPLE.com>", "AbC@example.com"),
        (" junk <a@B> <c@d>", "a@b"),
        ("a@B (comment)", "a@b"),
        ("<a b\r\n@ C>", "ab@c"),
        ('<"x@y"@Z>', '"x@y"@z'),
        ("<no-at>", None),
        ("", None),
        ("<>", None),
        ("@", None),
        (f"<{'a' * 998}@b>", None),
    ],
)
def test_message_ids(value: str, normal: str | None) -> None:
    assert normalise_message_id(value) == normal


@given(st.text(max_size=60))
def test_message_id_normalising_is_idempotent(value: str) -> None:
    normal = normalise_message_id(f"<{value}@x.example>")
    if normal is not None:
        assert normalise_message_id(f"<{normal}>") == normal


def test_references_keep_the_last_two_hundred() -> None:
    found = parse_references(" ".join(f"<{n}@x>" for n in range(300)) + " <bad>")
    assert len(found) == 200
    assert found[-1] == "299@x"
    assert parse_references("a@x b@Y") == ["a@x", "b@y"]
    assert parse_references("nothing here") == []


@given(st.integers(1, 250), st.integers(0, 900))
def test_references_keep_what_fits_into_32_kib(count: int, length: int) -> None:
    ids = [f"{n}-{'é' * (length // 2)}@x" for n in range(count)]
    kept, complete = kept_references(" ".join(f"<{one}>" for one in ids))
    assert kept == ids[count - len(kept) :] == parse_references(" ".join(f"<{one}>" for one in ids))
    size = sum(len(one.encode()) + 1 for one in kept)
    assert size <= 32 * 1024
    assert complete == (len(kept) == count)
    assert complete or len(kept) == 200 or size + len(ids[count - len(kept) - 1].encode()) + 1 > 32 * 1024


@pytest.mark.covers("edge:C8")
@pytest.mark.parametrize(
    ("subject", "normal"),
    [
        ("Re: hello", "hello"),
        ("RE: Fwd: AW[2]: hello", "hello"),
        ("Antw：x", "x"),
        ("回复：转发: x", "x"),
        ("ΣΧΕΤ: x", "x"),
        ("R: I: x", "x"),
        ("R2D2: x", "R2D2: x"),
        ("R:x", "R:x"),
        ("[list] Re: x", "[list] x"),
        ("Re: [list] Re: x", "[list] x"),
        ("Re(3): x", "x"),
        ("Re[12345]: x", "Re[12345]: x"),
        ("Reply: x", "Reply: x"),
        (" a\t b\r\nc ", "a b c"),
        ("Re: ", "(no subject)"),
        ("", "(no subject)"),
        (None, "(no subject)"),
        ("Re: " * 11 + "x", "Re: x"),
        ("FS: a bicycle", "FS: a bicycle"),
    ],
)
def test_subjects(subject: str | None, normal: str) -> None:
    assert normalise_subject(subject) == normal


@pytest.mark.covers("edge:C8")
@pytest.mark.parametrize(
    "prefix",
    [
        *("Re", "Fwd", "رد", "إعادة توجيه", "Отг", "回复", "回覆", "轉發", "Odg", "SV", "VS", "Antw", "Doorst"),
        *("VL", "Rép", "TR", "AW", "WG", "Antwort", "ΑΠ", "ΣΧΕΤ", "ΠΡΘ", "השב", "הועבר", "Vá"),
        *("Továbbítás", "BLS", "TRS", "RIF", "Inoltro", "返信", "転送", "답장", "회신", "전달", "Atb", "Ats"),
        *("پاسخ", "Odp", "PD", "ENC", "RES", "Ответ", "Отв", "RV", "VB", "ตอบกลับ", "ส่งต่อ", "YNT"),
        *("İLT", "Yanıt", "Відп", "Trả lời", "Chuyển tiếp"),
    ],
)  # fmt: skip
def test_prefixes_of_many_languages(prefix: str) -> None:
    for written in (f"{prefix}: x", f"{prefix}：x", f"{prefix}[2]: {prefix.capitalize()} : x"):
        assert normalise_subject(written) == "x"


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("Mon, 2 Feb 126 10:00:00 +0100", "2026-02-02T10:00:00+01:00"),
        ("Monday, 2 February 2026 10:00:00 GMT", "2026-02-02T10:00:00+00:00"),
        ("Fri, 2 Feb 2026 10:00:00 +0100", "2026-02-02T10:00:00+01:00"),
        ("2-Feb-2026 10.00.00", "2026-02-02T10:00:00+00:00"),
        ("Mon Feb  2 10:00:00 EST 2026", "2026-02-02T10:00:00-05:00"),
        ("Mon Feb  2 10:00:00 2026 +0100", "2026-02-02T10:00:00+01:00"),
        ("Mon, 2 Feb 2026 10:00:00 PM", "2026-02-02T22:00:00+00:00"),
        ("Mon, 2 Feb 2026 12:00:00 a.m. -0500", "2026-02-02T00:00:00-05:00"),
        ("Mon, 2 Feb 2026 10:00:00 +1:00", "2026-02-02T10:00:00+01:00"),
        ("Mon, 2 Feb 2026 10:00:00 +100", "2026-02-02T10:00:00+01:00"),
        ("Mon, 2 Feb 2026 10:00:00 GMT+1", "2026-02-02T10:00:00+01:00"),
        ("Mon, 2 Feb 2026 10:00:00 UTC+01:00", "2026-02-02T10:00:00+01:00"),
        ("Mon, 2 Feb 2026 10:00:00 Z", "2026-02-02T10:00:00+00:00"),
        ("Mon, 2 Feb 2026 10:00:00 A", "2026-02-02T10:00:00+00:00"),
        ("Mon, 2 Feb 2026 10:00:00 (PST)", "2026-02-02T10:00:00-08:00"),
        ("Mon, 2 Feb 2026 10:00:00 +0200 (W. Europe Standard Time)", "2026-02-02T10:00:00+02:00"),
        ("Mon, 2 Feb 2026 10:00:00 W. Europe Standard Time", "2026-02-02T10:00:00+01:00"),
        ("2026-02-02T10:00:00.123+0100", "2026-02-02T10:00:00+01:00"),
        ("2026/02/02 10:00:00", "2026-02-02T10:00:00+00:00"),
        ("13/02/2026 10:00", "2026-02-13T10:00:00+00:00"),
        ("02/13/2026 10:00", "2026-02-13T10:00:00+00:00"),
        ("3.2.2026 10:00", "2026-02-03T10:00:00+00:00"),
        ("lun., 2 févr. 2026 10:00:00 +0100", "2026-02-02T10:00:00+01:00"),
        ("mar, 3 mar 2026 10:00:00 +0100", "2026-03-03T10:00:00+01:00"),
        ("2. Februar 2026 10:00 Uhr", "2026-02-02T10:00:00+00:00"),
        ("2 de febrero de 2026 10:00:00 -0300", "2026-02-02T10:00:00-03:00"),
        ("Пн, 2 фев 2026 10:00:00 +0300", "2026-02-02T10:00:00+03:00"),
        ("2026年2月2日 10:00:00", "2026-02-02T10:00:00+00:00"),
        ("Feb 2, 2026 10:00:00 AM", "2026-02-02T10:00:00+00:00"),
        ("Mon, 2 Feb, 2026, 10:00:00 +0100", "2026-02-02T10:00:00+01:00"),
        ("2nd of February 2026 at 10:00 CET", "2026-02-02T10:00:00+01:00"),
        ("02Feb2026 10:00:00", "2026-02-02T10:00:00+00:00"),
        ("Mon, 2 Feb 2026 10:00:00 - 0500", "2026-02-02T10:00:00-05:00"),
        ("Mon, 2 Feb 2026 10:00:00 +0100 +0100", "2026-02-02T10:00:00+01:00"),
        ("Mon, 02 Feb 2026 9:5:3 +0000", "2026-02-02T09:05:03+00:00"),
        ("2026 Feb 2 10:00:00", "2026-02-02T10:00:00+00:00"),
        ("Mon, 2 Feb 2026", "2026-02-02T00:00:00+00:00"),
        ("Thu, 31 Dec 2026 23:59:60 -0800", "2026-12-31T23:59:59-08:00"),
        ("Mon, 2 Feb 2026 10:00:00 +05:30", "2026-02-02T10:00:00+05:30"),
        ("Mon, 2 Feb 2026 10:00:00 -0199", "2026-02-02T10:00:00+00:00"),
        ('"Mon, 2 Feb 2026 10:00:00 +0100"', "2026-02-02T10:00:00+01:00"),
        ("Mon, 2 Feb 2026 03:02:01.5 +0000", "2026-02-02T03:02:01+00:00"),
    ],
)
def test_dates_that_can_mean_one_thing_only(text: str, iso: str) -> None:
    found = parse_date(text)
    assert found is not None
    assert found.isoformat() == iso


@pytest.mark.parametrize(
    "text", ["03/02/2026 10:00", "2 Feb 2026 13:00 PM", "2 lis 2026", "2 Feb 2026 24:00:00", "Feb 2026"]
)
def test_dates_that_can_mean_two_things(text: str) -> None:
    assert parse_date(text) is None


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"Ann <a@b.example>, c@d.example", b"'e@f.example'", b"g:;"]))
)
def test_domains_are_those_of_the_addresses(values: list[bytes]) -> None:
    addresses, are_all = read_addresses(values, 3)
    assert read_domains(values, 3) == ([address.domain for address in addresses], are_all)
