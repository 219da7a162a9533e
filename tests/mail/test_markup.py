"""HTML from outside: what is left of it, and that making it safe does not take for ever (inbound §11)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.html import sanitise

ALLOWED_SCHEMES = ("http:", "https:", "mailto:", "tel:")


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("<p class='x' id='y' style='color:red' data-z='1'>t</p>", "<p>t</p>"),
        ("a<script>b</script>c", "ac"),
        ("a<style>b</style><svg><path d='x'/>y</svg><iframe src='http://x.example'>y</iframe>c", "ac"),
        ("<!-- hidden -->t", "t"),
        ("<a href='javascript:x'>t</a>", '<a rel="noopener noreferrer nofollow">t</a>'),
        ("<a href=' JaVaScRiPt:x'>t</a>", '<a rel="noopener noreferrer nofollow">t</a>'),
        ("<a href='/relative'>t</a>", '<a rel="noopener noreferrer nofollow">t</a>'),
        ("<a href='//x.example/'>t</a>", '<a rel="noopener noreferrer nofollow">t</a>'),
        ("<a href='cid:x'>t</a>", '<a rel="noopener noreferrer nofollow">t</a>'),
        ("<a href='tel:1' target='_top'>t</a>", '<a href="tel:1" rel="noopener noreferrer nofollow">t</a>'),
        ("<img src='https://x.example/a.png' alt='t'>", '<img alt="t">'),
        ("<img src='cid:a' onerror='x'>", '<img src="cid:a">'),
        ("<img src='data:image/png;base64,xx'>", "<img>"),
        ("<form action='x'><input name='y'><button>z</button>t</form>", "t"),
        ("<td colspan=2 onclick=x>t</td>", "t"),
        ("<b>unclosed", "<b>unclosed</b>"),
    ],
)
@pytest.mark.covers("edge:B7", "security-privacy:A8", "FR-IN-7")
def test_what_is_left(markup: str, expected: str) -> None:
    assert sanitise(markup) == expected


_pieces = st.sampled_from(
    (
        *("<a href=", "<img src=", "'javascript:x'", '"https://x.example"', "cid:1", ">", "</a>", "<b>", "</b>"),
        *("<script>", "</script>", "<!--", "-->", "<svg>", "<math>", "<p", "onclick=x>", "text", "&lt;", "&#106;"),
        *("<style>", "</style>", "<iframe>", "<![CDATA[", "]]>", "<table><tr><td>", "</table>", "<noscript>"),
    )
)


@given(st.lists(_pieces | st.text(max_size=8), max_size=20))
def test_never_anything_active(pieces: list[str]) -> None:
    safe = sanitise(" ".join(pieces))
    assert safe is not None
    assert sanitise(safe) == safe
    tags = re.findall(r"<[^>]*>", safe)
    for tag in tags:
        lower = tag.lower()
        assert not re.match(r"</?(script|style|iframe|svg|math|form|input|object|embed|link|meta|base)\b", lower)
        assert not re.search(r"\son\w+=", re.sub(r'"[^"]*"', '""', lower))
        for link in re.findall(r'href="([^"]*)"', lower):
            assert link.strip().startswith(ALLOWED_SCHEMES)
        for source in re.findall(r'src="([^"]*)"', lower):
            assert source.strip().startswith("cid:")


@pytest.mark.covers("edge:B2")
@pytest.mark.parametrize(
    "markup",
    [
        "<div>" * 200_000,
        "".join(f"<font color=c{n}>" for n in range(20_000)) + "<p>x" * 100_000,
        "<b><i>" * 100_000,
        "<table><tr><td>" * 60_000,
        "<a href=x><div>" * 60_000,
        "<ul><li>" * 100_000,
    ],
    ids=["deep", "formatting", "inline", "tables", "links", "lists"],
)
def test_nesting_for_the_sake_of_it_is_not_served(markup: str) -> None:
    assert sanitise(markup) is None


@pytest.mark.parametrize(
    "markup",
    [
        "<p>paragraph" * 80_000,
        "<div><p>text <b>bold</b> <a href='https://x.example/'>link</a></p></div>" * 12_000,
        "<table>" + "<tr><td>cell<td>cell" * 40_000 + "</table>",
        "<" * 1_000_000,
        "</div>" * 170_000,
        "&lt;" * 250_000,
    ],
    ids=["paragraphs", "newsletter", "rows", "angles", "closing", "references"],
)
def test_long_mail_is_served(markup: str) -> None:
    assert sanitise(markup) is not None
