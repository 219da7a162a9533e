"""The fuzz targets of what agents read, on made-up input and on the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import body, mime
from postroom.mail.content import read
from tests.fuzz.reading import check_html, check_text, quote_strip, refs_extract, sanitize

CORPUS: Final = sorted((Path(__file__).parents[1] / "corpus").glob("*/*.eml"))

_MARKUP: Final = (
    "<a href= <img src= 'javascript:x' \"https://x.example/\" cid:1 > </a> <b> </b> <i <p> </p> <div </div> "
    "<table> <tr> <td> </td> </table> <li> <ul> </ul> <script> </script> <style> </style> <!-- --> <svg> "
    "</svg> <math> <mtext> <title> </title> <noscript> </noscript> <template> <textarea> <plaintext> "
    "<xmp> </xmp> <iframe> <select> <option> <button> <form> </form> <![CDATA[ ]]> <? "
    "style=\"display:none\" style='color:#fff' hidden class=gmail_quote type=cite <blockquote </blockquote> "
    "bgcolor=white color=white font-size:0 &lt; &gt; &amp; &#106; &#8203; &zwnj; &nbsp; &quot; &colon; "
    "\u200b \u202e \ufeff \U000e0041 \xad text onclick=x() onerror= =\" =' / <h1> <section> <h2> <font> "
    "<x-y> <body <html <head> <meta charset=x> <p.a{display:none} {color:red} @media} <pre> <br> <hr> "
    "<center> title='<' alt=\"&quot;>\" rel=x \n \ufdd0 &amp;amp;"
)
MARKUP = st.sampled_from(_MARKUP.split(" "))
LINES = st.sampled_from(
    [
        *("", "> quoted", ">> deeper", "On Mon, 2 Feb 2026, Bob <bob@example.com> wrote:", "wrote:", "On Monday Bob"),
        *(
            "-----Original Message-----",
            "---------- Forwarded message ---------",
            "From: Bob",
            "Sent: Monday",
            "To: Ann",
        ),
        *(
            "Subject: x",
            "--",
            "-- ",
            "Sent from my iPhone",
            "____________",
            "words",
            " ",
            "Bob skrev:",
            "Am 1.1. schrieb B:",
        ),
        *(
            "2026年2月2日 写道：",
            "napisał(a):",
            "<bob@example.com> wrote:",
            "Begin forwarded message:",
            "Von: B",
            "An: C",
        ),
    ]
)
_REFS: Final = (
    "£ € $ GBP EUR 1 412.80 1.234,56 , . +44 00 020 7946 0958 ( ) - / bob @ example.com https:// 2026-02-03 3/2/2026 3 "
    "March 2026 31.2.2026 invoice INV-88213 no. # : order PO AB12 CDE PCN AB12345678 case-17 \u0661 é"
)
REFS = st.sampled_from(_REFS.split())


@pytest.mark.covers("edge:B7", "edge:B11", "edge:E1", "security-privacy:A8")
@settings(max_examples=400, deadline=None)
@given(st.lists(MARKUP | st.text(max_size=4), max_size=40), st.sampled_from(["", " "]))
def test_sanitize(pieces: list[str], between: str) -> None:
    sanitize(between.join(pieces).encode("utf-8", "replace"))


@pytest.mark.covers("edge:B11", "security-privacy:A8")
@settings(max_examples=100, deadline=None)
@given(st.lists(MARKUP, min_size=320, max_size=400))
def test_sanitize_what_is_balanced_first(pieces: list[str]) -> None:
    sanitize(" ".join(pieces).encode("utf-8", "replace"))


@pytest.mark.covers("FR-IN-7", "decisions:D27")
@settings(max_examples=400, deadline=None)
@given(st.lists(LINES | st.text(max_size=30), max_size=20))
def test_quote_strip(lines: list[str]) -> None:
    quote_strip("\n".join(lines).encode("utf-8", "replace"))


@pytest.mark.covers("edge:F5")
@settings(max_examples=300, deadline=None)
@given(st.lists(REFS | st.text(max_size=5), max_size=30), st.sampled_from(["", " "]))
def test_refs_extract(pieces: list[str], between: str) -> None:
    refs_extract(between.join(pieces).encode("utf-8", "replace"))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_on_the_corpus(path: Path) -> None:
    raw = path.read_bytes()
    message = mime.parse(raw)
    found = read(raw, message)
    for text in (found.text, found.extracted_text, found.snippet):
        check_text(text)
    if found.html is not None:
        check_html(found.html)
    assert bool(found.extracted_text) == bool(found.text.strip())
    for _, part in mime.walk(message.root):
        if part.type == "text":
            data = body.part_text(raw, part)[0].encode("utf-8", "replace")
            for target in (sanitize, quote_strip, refs_extract):
                target(data)
