"""Transfer encodings, charsets, body choice, derived text, attachments."""

import base64
import binascii
import quopri

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import charset
from postroom.mail.body import attachments, body_parts, sanitise_filename, snippet
from postroom.mail.content import read
from postroom.mail.html_text import html_to_text
from postroom.mail.invisible import visible
from postroom.mail.mime import parse
from postroom.mail.transfer import decode_base64, decode_quoted_printable, decode_uuencode


@given(st.binary(max_size=500))
def test_base64(data: bytes) -> None:
    encoded = base64.encodebytes(data)
    assert decode_base64(encoded) == data
    assert decode_base64(encoded.replace(b"\n", b"\r\n!  ")) == data
    assert decode_base64(encoded.rstrip(b"=\n")) == data


@pytest.mark.covers("edge:B5")
@pytest.mark.parametrize(
    ("encoded", "data"),
    [
        (b"QUJ=QUJD", b"ABABC"),
        (b"QQ==QQ==", b"AA"),
        (b"QUJDR", b"ABC"),
        (b"Q", b""),
        (b"====", b""),
        (b"*QU*JD*", b"ABC"),
    ],
)
def test_base64_as_it_is_written(encoded: bytes, data: bytes) -> None:
    assert decode_base64(encoded) == data


@given(st.binary(max_size=500))
def test_quoted_printable(data: bytes) -> None:
    assert decode_quoted_printable(quopri.encodestring(data, quotetabs=True)) == data
    decode_base64(data)
    decode_quoted_printable(data)
    decode_uuencode(data)


@pytest.mark.parametrize(
    ("encoded", "data"),
    [(b"a=3Db", b"a=b"), (b"a= \r\nb", b"ab"), (b"a  \r\nb", b"a\r\nb"), (b"a=XYb", b"a=XYb"), (b"a=", b"a"),
     (b"=e4", b"\xe4"), (b"a=\rb", b"ab"), (b"=\n", b"")],
)  # fmt: skip
def test_quoted_printable_as_it_is_written(encoded: bytes, data: bytes) -> None:
    assert decode_quoted_printable(encoded) == data


def test_uuencode() -> None:
    data = bytes(range(100))
    lines = b"".join(binascii.b2a_uu(data[at : at + 45]) for at in range(0, 100, 45))
    assert decode_uuencode(b"note\nbegin 644 x.bin\n" + lines + b"`\nend\nrest") == data


@pytest.mark.covers("edge:B5")
@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("windows-1252", "cp1252", "“€”"),
        ("ISO-8859-1", "cp1252", "é“x”"),
        ("iso-2022-jp", "iso2022_jp", "日本語"),
        ("Shift_JIS", "cp932", "日本①"),
        ("gb2312", "gb18030", "中文€"),
        ("GB18030", "gb18030", "中文😀"),
        ("big5", "big5", "中文"),
        ("euc-kr", "cp949", "한국어"),
        ("ks_c_5601-1987", "cp949", "한국어"),
        ("koi8-r", "koi8-r", "Привет"),
        ("windows-1251", "cp1251", "Привет"),
        ("iso-8859-15", "iso8859-15", "€"),
        ("utf-16", "utf-16", "hé"),
        ("utf-7", "utf-7", "hé"),
        ('"utf8"', "utf-8", "hé"),
        (None, "utf-8", "hé"),
        ("us-ascii", "utf-8", "hé"),
        ("us-ascii", "cp1252", "hé"),
        ("x-no-such", "utf-8", "hé"),
        ("x-no-such", "cp1252", "hé"),
        (None, "iso2022_jp", "日本語"),
    ],
)
def test_charsets(label: str | None, codec: str, text: str) -> None:
    assert charset.decode(text.encode(codec), label) == (text, True)


@pytest.mark.covers("edge:B5")
def test_what_cannot_be_decoded_is_replaced_and_told() -> None:
    assert charset.decode(b"a\xffb", "utf-8") == ("a\ufffdb", False)
    assert charset.decode("a\ufffdb".encode(), "utf-8") == ("a\ufffdb", True)
    assert charset.decode(b"a\x81b", "windows-1252")[1] is False
    assert charset.decode(b"a\x00b", "utf-8") == ("ab", True)
    assert charset.decode(b"+2AA-x", "utf-7")[0].encode().endswith(b"x")
    assert charset.decode(b"\x1b$B-!\x1b(B", "iso-2022-jp") == ("①", True)
    for transformation in ("zlib", "base64", "unicode_escape", "idna", "rot13", "undefined"):
        assert charset.codec_for(transformation) is None


@given(st.binary(max_size=200), st.one_of(st.none(), st.text(max_size=12), st.sampled_from(sorted(charset._CODECS))))
def test_any_bytes_in_any_charset(data: bytes, label: str | None) -> None:
    text, clean = charset.decode(data, label)
    text.encode()
    assert "\x00" not in text
    if not clean and text:
        assert not text.isascii()


def multipart(subtype: str, *parts: str, boundary: str = "b") -> str:
    inner = "".join(f"--{boundary}\n{part}\n" for part in parts)
    return f"Content-Type: multipart/{subtype}; boundary={boundary}\n\n{inner}--{boundary}--\n"


PLAIN = "Content-Type: text/plain\n\nplain"
HTML = "Content-Type: text/html\n\n<p>html</p>"
IMAGE = "Content-Type: image/png\nContent-ID: <i@x>\nContent-Transfer-Encoding: base64\n\nQUJD"
NAMED = "Content-Type: text/plain; name=notes.txt\n\nnotes"
ATTACHED = "Content-Type: text/plain\nContent-Disposition: attachment\n\nattached"


Paths = list[tuple[int, ...]]


def chosen(source: str) -> tuple[Paths, Paths, Paths]:
    parts = body_parts(parse(source.encode()).root)
    return ([p for p, _ in parts.text], [p for p, _ in parts.html], [p for p, _ in parts.attachments])


@pytest.mark.covers("decisions:D26", "edge:B7")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PLAIN, ([(1,)], [(1,)], [])),
        (HTML, ([(1,)], [(1,)], [])),
        (ATTACHED, ([], [], [(1,)])),
        (multipart("alternative", PLAIN, HTML), ([(1,)], [(2,)], [])),
        (multipart("alternative", HTML), ([(1,)], [(1,)], [])),
        (multipart("alternative", PLAIN), ([(1,)], [(1,)], [])),
        (multipart("alternative", PLAIN, HTML, PLAIN), ([(3,)], [(2,)], [(1,)])),
        (multipart("mixed", PLAIN, NAMED, ATTACHED), ([(1,)], [(1,)], [(2,), (3,)])),
        (multipart("mixed", PLAIN, IMAGE, PLAIN), ([(1,), (2,), (3,)], [(1,), (2,), (3,)], [])),
        (multipart("related", HTML, IMAGE), ([(1,)], [(1,)], [(2,)])),
        (
            multipart("alternative", PLAIN, multipart("related", HTML, IMAGE, boundary="r")),
            ([(1,)], [(2, 1)], [(2, 2)]),
        ),
        (
            multipart("mixed", multipart("alternative", PLAIN, HTML, boundary="a"), IMAGE, PLAIN),
            ([(1, 1), (2,), (3,)], [(1, 2), (2,), (3,)], []),
        ),
        (
            multipart("alternative", PLAIN, multipart("mixed", HTML, IMAGE, HTML, boundary="m")),
            ([(1,)], [(2, 1), (2, 2), (2, 3)], [(2, 2)]),
        ),
    ],
)
def test_body_parts(source: str, expected: tuple[Paths, Paths, Paths]) -> None:
    assert chosen(source) == expected


def test_interleaved_text_is_all_body() -> None:
    raw = multipart("mixed", PLAIN, IMAGE, "Content-Type: text/plain\n\nafter").encode()
    message = parse(raw)
    assert read(raw, message).text == "plain\nafter"
    assert [(a.path, a.content_type, a.size, a.content_id) for a in attachments(message, raw)] == [
        ((2,), "image/png", 3, "i@x")
    ]


@pytest.mark.covers("edge:B4", "FR-IN-7")
def test_html_only_and_blank_plain() -> None:
    for source in (HTML, multipart("alternative", "Content-Type: text/plain\n\n \n", HTML)):
        raw = source.encode()
        message = parse(raw)
        assert read(raw, message).text == "html"
        assert read(raw, message).html == "<p>html</p>"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=300), st.integers(0, 100))
def test_text_is_cut_between_characters(text: str, limit: int) -> None:
    raw = b"Content-Type: text/plain; charset=utf-8\n\n" + text.encode()
    found = read(raw, parse(raw), limit)
    assert visible(text).startswith(found.text)
    assert len(found.text.encode()) <= limit
    assert found.truncated or found.text == visible(text)
    assert len(text.encode()) > limit or not found.truncated
    assert found.clean


def test_cut_source_is_still_clean() -> None:
    raw = b"Content-Type: text/plain; charset=utf-8\n\n" + "€".encode() * 100_000
    found = read(raw, parse(raw), 1000)
    assert (found.truncated, found.clean) == (True, True)
    assert found.text == "€" * 333


@pytest.mark.covers("edge:B6")
def test_attachments_and_names() -> None:
    raw = multipart(
        "mixed",
        PLAIN,
        'Content-Type: application/pdf; name="../..\\\\a\\\\r\u202efdp.exe"\n\nx',
        "Content-Type: application/x; name*=utf-8''%E2%82%AC.bin\n\nx",
        'Content-Type: application/x\nContent-Disposition: inline; filename="=?utf-8?q?=E2=82=AC?="\n\nx',
        "Content-Type: message/rfc822\n\nSubject: a/b\n\nx",
        "Content-Type: message/rfc822\n\nx: y\n\nx",
        "Content-Type: application/x\n\nx",
    ).encode()
    message = parse(raw)
    names = [a.filename for a in attachments(message, raw)]
    assert names == ["rfdp.exe", "€.bin", "€", "a-b.eml", "forwarded.eml", None]
    assert [a.path for a in attachments(message)] == [(2,), (3,), (4,), (5,), (6,), (7,)]


@given(st.text(max_size=400))
def test_file_names_are_safe(name: str) -> None:
    safe = sanitise_filename(name)
    if safe is not None:
        assert 0 < len(safe.encode()) <= 255
        assert not set(safe) & set("/\\\x00\n\r")
        assert safe.strip(".")
    assert sanitise_filename(f"{'ä' * 300}.pdf") == f"{'ä' * 125}.pdf"


def test_snippet() -> None:
    assert snippet(" a\n\n b\t c ") == "a b c"
    assert len(snippet("ab " * 1000)) <= 240


@pytest.mark.covers("edge:B4", "FR-IN-7")
@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>a &amp; b<br>c</p><p>d</p>", "a & b\nc\n\nd"),
        ("<style>x</style><script>a < b</script><!-- c -->t<title>x</title>", "t"),
        ("<ul><li>a<li>b</ul><ol><li>c</li><li>d</li></ol>", "- a\n- b\n1. c\n2. d"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</table>", "a | b\nc"),
        ('<a href="https://example.com/x">here</a>', "here (https://example.com/x)"),
        ('<a href="https://example.com/">https://example.com</a>', "https://example.com"),
        ('<a href="javascript:x">here</a>', "here"),
        ('<a href="mailto:a@example.com">write</a>', "write (a@example.com)"),
        ('<img src=x alt="a cat"><img src=y>', "[image: a cat]"),
        ("a<blockquote>q<br>r</blockquote>b", "a\n> q\n> r\nb"),
        ("<pre>a\n  b</pre>", "a\n  b"),
        ("a <b>b</b><i>c</i>  d", "a bc d"),
        ("1 < 2 <3", "1 < 2 <3"),
        ("a<br><br><br><br><br>b", "a\n\n\nb"),
        ("<p title='>'>x</p>", "x"),
        ("<p title=it's>x</p>", "x"),
        ("a<!-- never closed", "a"),
        ("a<script>never closed", "a"),
        ("a<svg><text>x</text></svg>b<svg>c</svg>d", "abd"),
        ("&#xD800;&#0;&nbsp;x", "\ufffd\ufffd\xa0x"),
        ("&#" + "9" * 5000 + ";x", "\ufffdx"),
    ],
)
def test_html_to_text(markup: str, text: str) -> None:
    assert html_to_text(markup) == text


SCRAPS = (
    "<p",
    '<a href="',
    "'",
    ">",
    "</a>",
    "<blockquote>",
    "<!--",
    "-->",
    "<svg>",
    "</svg>",
    "<li>",
    "<td>",
    "&#",
    "<pre>",
    "<br>",
)


@settings(max_examples=200)
@given(st.lists(st.one_of(st.text(max_size=6), st.sampled_from(SCRAPS))))
def test_any_markup(pieces: list[str]) -> None:
    text = html_to_text("".join(pieces))
    assert "\n\n\n\n" not in text or "<pre>" in pieces


# Each unit repeated to 1 MB: what takes quadratic time takes hours here, not seconds.
HOSTILE = (
    "<div> <span> </x> <b/id=x> <a/ <!-- < & &# <svg> <svg></svg> <table><td> <blockquote> <script> <li> <! </ <pre>"
)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "unit",
    [
        *HOSTILE.split(),
        "<a ",
        '<a x="',
        "<p '",
        "a=",
        "\n",
        "<script></script>",
        "<a href=http://x>y",
        "<br>",
        "</svg>",
    ],
)
def test_hostile_markup_ends(unit: str) -> None:
    html_to_text(unit * (1_000_000 // len(unit)))
    html_to_text("<a " + unit * (1_000_000 // len(unit)) + ">")
