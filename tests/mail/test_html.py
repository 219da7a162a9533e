"""HTML from outside: one reading, what is hidden, what it costs (inbound §11, §12)."""

from __future__ import annotations

import random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from postroom.mail.colours import alike, attribute_colour, colour
from postroom.mail.css import PLAIN, Look, Rules, declarations, look
from postroom.mail.html import read_html, sanitise
from postroom.mail.html_balance import MAX_DEPTH, VOID, Balance
from postroom.mail.html_scan import scan


@pytest.mark.covers("edge:B7", "security-privacy:A8")
def test_images_from_elsewhere_stay_only_for_who_asks() -> None:
    markup = '<img src="https://example.com/a.png" alt="a"><img src="cid:b"><img src="data:image/png,xx"><img src=//c>'
    assert sanitise(markup) == '<img alt="a"><img src="cid:b"><img><img>'
    asked = sanitise(markup, remote_images=True)
    assert asked == '<img src="https://example.com/a.png" alt="a"><img src="cid:b"><img><img>'
    assert sanitise(asked, remote_images=True) == asked


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("a<b>b<i>c</b>d</i>", "a<b>b<i>c</i></b><i>d</i>"),
        ("<h1><section><h2>x</h2></section></h1>", "<h1></h1><h2>x</h2>"),
        ("<listing>a</listing><image src=cid:x><xmp><b></xmp>", '<pre>a</pre><img src="cid:x">'),
        ("1 < 2 && 3 > 2 <3 </>", "1 &lt; 2 &amp;&amp; 3 &gt; 2 &lt;3 "),
        ("<p title=\"a'b\" title=second lang='x\"y'>t</p>", '<p title="a\'b" lang="x&quot;y">t</p>'),
        ("<p/title=x/lang=y>t", '<p title="x/lang=y">t</p>'),
        ("<P\nTITLE\n=\n'a b'>t</P\n>", '<p title="a b">t</p>'),
        ('<p title="never closed>t</p> and <b>more</b>', "<p>t</p> and <b>more</b>"),
        ("a<!-->b<!--->c<!--x--!>d<!-- y", "abcd"),
        ("<![CDATA[x]]>y<?php z?>w<!doctype html>v", "ywv"),
        ("<svg/>a<svg><svg></svg>b</svg>c", "ac"),
        ("a<object><object>b</object>c</object>d", "ad"),
        ("<plaintext>a<b>c</b>", "a<b>c</b>"),
        ("\u200b <a href=' https://example.com '>\u200bx</a>", None),
        ("", ""),
    ],
)
@pytest.mark.covers("edge:E1", "FR-IN-7")
def test_one_reading(markup: str, expected: str | None) -> None:
    safe = sanitise(markup)
    if expected is not None:
        assert safe == expected
    assert safe is not None
    assert sanitise(safe) == safe


@pytest.mark.covers("edge:B11")
@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("color:red", Look(ink=(255, 0, 0))),
        ("color: RGB(10%, 0 , 0)", Look(ink=(26, 0, 0))),
        ("color:rgb(1 2 3 / 50%)", Look(ink=(1, 2, 3))),
        ("color:#0f08", Look(ink=(0, 255, 0))),
        ("color:#00ff0005", Look(ink="clear")),
        ("color:hsl(120,100%,50%)", Look(ink=(0, 255, 0))),
        ("color:nonsense", PLAIN),
        ("background:url(x.png) no-repeat #ABC", Look(ground=(170, 187, 204))),
        ("background:url(white.png)", PLAIN),
        ("background:transparent", PLAIN),
        ("background:red;background-color:blue", Look(ground=(0, 0, 255))),
        ("background-color:blue;background:red", Look(ground=(255, 0, 0))),
        ("font-size:12px", Look(tiny=False)),
        ("font-size:small", Look(tiny=False)),
        ("font-size:90%", PLAIN),
        ("font-size:0.05em", Look(tiny=True)),
        ("font:italic bold 1px/2px serif", Look(tiny=True)),
        ("font:italic bold 12px/0 serif", Look(tiny=False)),
        ("visibility:visible", Look(unseen=False)),
        ("visibility:inherit", PLAIN),
        ("opacity:0.051", PLAIN),
        ("opacity:5%", Look(hides=True)),
        ("height:0", PLAIN),
        ("height:0;overflow-y:hidden", Look(hides=True)),
        ("width:0.5px;overflow:hidden", PLAIN),
        ("left:-9999px", PLAIN),
        ("position:relative;left:-9999px", PLAIN),
        ("position:absolute;left:-998px", PLAIN),
        ("position:absolute;right:-70em", Look(hides=True)),
        ("clip:rect(1px,1px,1px,1px)", Look(hides=True)),
        ("clip:rect(0,100px,50px,0)", PLAIN),
        ("clip-path:inset(49%)", PLAIN),
        ("clip-path:circle(0)", Look(hides=True)),
        ("display:none;display:block", PLAIN),
        ("display:none!important;display:block", Look(hides=True)),
        ("/*x*/display/**/:/**/none", Look(hides=True)),
        ("margin:0;padding:0", PLAIN),
        ("display", PLAIN),
    ],
)
def test_looks(style: str, expected: Look) -> None:
    assert look([declarations(style)]) == expected


@pytest.mark.covers("edge:B11")
def test_rules_apply_as_strong_as_they_are() -> None:
    sheet = "@import url(x); p{color:red} .a{color:blue} #i{color:lime} p.a{color:gray} a:hover{color:white}"
    rules = Rules([sheet, "div p{opacity:0}"])

    def ink(tag: str, classes: str = "", name: str = "") -> object:
        return look(rules.matching(tag, classes, name)).ink

    assert ink("p") == colour("red")
    assert ink("b", "x A") == colour("blue")
    assert ink("p", "a") == colour("gray")
    assert ink("p", "a", "i") == colour("lime")
    assert ink("a") is None
    assert not Rules(["@media screen { p{display:none} } @font-face{color:red}"])
    assert not Rules(["<!-- /* p{display:none} */ -->"])


@given(st.text(max_size=60))
def test_any_style(text: str) -> None:
    look([declarations(text)])
    Rules([text])
    colour(text.lower())
    attribute_colour(text)


def test_colours_alike() -> None:
    assert alike((255, 255, 255), (247, 250, 255))
    assert not alike((255, 255, 255), (246, 255, 255))
    assert alike("clear", (1, 2, 3))
    assert attribute_colour("ABCDEF") == attribute_colour("#abcdef") == (171, 205, 239)


# Each unit repeated to 100 KB: what takes quadratic time takes minutes here, not a second.
_HOSTILE: Final = (
    "<a <a<a <div> </div> <p> <b><i> </b></i> <li> <td> <table> <table><tr><td> <a/href=x> <option> <select> <svg> "
    "</svg> <style> <!-- --> <! </ < & &amp; &nbsp; &lt; <br> <font/color=red> <form> <x-y> <button> <template> <pre> "
    "<h1> <blockquote> <ul><li> <img/src=cid:x> <title> <a/href=http://example.com/> <frameset> <math> </p> </br> "
    "<body> <html>"
)


@pytest.mark.timeout(60)
@pytest.mark.covers("edge:B2")
@pytest.mark.parametrize(
    "unit", [*_HOSTILE.split(), "\xa0", "<a ", "<a x='", '<a x="', "a=", " a=b", "<p style='color:red'>"]
)
def test_hostile_markup_ends(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    for markup in (
        text,
        f"<a {text}>x",
        f"<table>{text}",
        f"<style>{text}</style><p class=a>x",
        f"<p style='{text}'>x",
    ):
        read_html(markup, 10_000)


@pytest.mark.timeout(60)
def test_many_rules_for_many_elements_end() -> None:
    sheet = ".a{color:red}" * 5000 + "".join(f".c{n}{{color:red}}" for n in range(2000))
    classes = "a " + " ".join(f"c{n}" for n in range(40))
    elements = "".join(f"<p class='{classes}' style='color:#{n % 4096:03x};margin:{n}px'>x" for n in range(4000))
    assert not read_html(f"<style>{sheet}</style>{elements}").withheld


@pytest.mark.covers("edge:B2", "edge:B11")
def test_what_nests_for_the_sake_of_it_says_so() -> None:
    markup = "<div>" * 2000 + "text <p style='display:none'>hidden</p>"
    found = read_html(markup)
    assert (found.html, found.withheld, found.hidden) == (None, True, True)
    assert found.text.startswith("text")
    assert read_html("<div>" * 2000 + "text").hidden is False


_TAGS: Final = (
    "a b i font p div table tr td th tbody li ul ol dd dt dl span section h1 h2 br img caption colgroup col pre "
    "blockquote code address thead x-x center form hr details"
)


def _tree(markup: str) -> tuple[int, int]:
    """Depth and number of nodes of a parser's tree."""
    body = LexborHTMLParser(markup).body
    assert body is not None
    deepest = count = 0
    pending = [(body.first_child, 1)]
    while pending:
        node, depth = pending.pop()
        while node is not None:
            count += 1
            deepest = max(deepest, depth)
            if node.is_element_node and node.first_child is not None:
                pending.append((node.first_child, depth + 1))
            node = node.next
    return deepest, count


@pytest.mark.covers("edge:B2")
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 300))
def test_the_depth_that_is_counted_is_the_depth_there_is(seed: int, length: int) -> None:
    rng = random.Random(seed)
    names = rng.sample(_TAGS.split(), rng.randint(2, 8))
    balance = Balance()
    out: list[str] = []
    counted = tables = 0
    for _ in range(length):
        name = rng.choice(names)
        if rng.random() < 0.4 and name not in VOID:
            out.append(balance.close(name))
        else:
            out.append(f"{balance.open(name)}<{name} lang={rng.randint(0, 30)}>x")
            tables += name == "table"
        counted = max(counted, len(balance.stack))
    out.append(balance.end())
    deepest, count = _tree("".join(out))
    # A table's parts that nobody wrote stand in between.
    assert deepest <= counted + 2 * tables + 2
    assert count <= (4 + 2 * balance.formats) * (length + 1) + balance.repeated


def test_balance_gives_up_on_depth() -> None:
    balance = Balance()
    for _ in range(MAX_DEPTH):
        balance.open("div")
    assert not balance.is_costly
    balance.open("div")
    assert balance.is_costly


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("<b><i>x</b></i>y", "<b><i>x</i></b>y"),
        ("<p>a<p>b<div>c</p>d", "<p>a</p><p>b</p><div>cd</div>"),
        ("<ul><li>a<li>b<ul><li>c</ul></li></ul>d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>d"),
        ("<table><tr><td>a<td>b<tr><td>c</table>d", "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>d"),
        ("<a>x<a>y</a>", "<a>x</a><a>y</a>"),
        ("<div><table><td></div>x</table>y", "<div><table><td>x</td></table>y</div>"),
        ("<div><a><div></a></div>x</div>y", "<div><a><div></div>x</a></div>y"),
        ("<h1>a<h2>b</h1>c", "<h1>a</h1><h2>b</h2>c"),
        ("</div></p>x", "x"),
    ],
)
def test_large_markup_is_balanced(markup: str, expected: str) -> None:
    rest = "<br>" * 400
    out = scan(rest + markup).markup.replace(' rel="noopener noreferrer nofollow"', "")
    assert out == rest + expected
