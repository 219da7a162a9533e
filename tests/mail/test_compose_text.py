"""What stands under the author's words, answers and forwards, and the header fields that callers may set."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.address import Address
from postroom.mail.compose import (
    Body,
    ComposeError,
    CustomHeaderError,
    Forwarded,
    HeaderRefusal,
    Link,
    address_key,
    assemble,
    build_references,
    choose_links,
    custom_headers,
    forward_subject,
    message_id,
    quote_text,
    reply_all_recipients,
    reply_subject,
    reply_target,
)

NOW = datetime(2026, 3, 5, 9, 7, 3, tzinfo=UTC)
ANN = Address("Ann", "ann", "example.com")


@pytest.mark.covers("edge:C7")
def test_message_id() -> None:
    assert message_id("01J9Z3K8V4QW7X2M5N6P8R0T1Y", "Bücher.Example") == (
        "01j9z3k8v4qw7x2m5n6p8r0t1y@xn--bcher-kva.example"
    )


@pytest.mark.parametrize(
    ("given_subject", "reply", "forward"),
    [
        ("Offer", "Re: Offer", "Fwd: Offer"),
        ("Re: AW: RE[2]: Offer", "Re: Offer", "Fwd: Offer"),
        ("Fwd: Re: Offer", "Re: Offer", "Fwd: Offer"),
        ("", "Re: (no subject)", "Fwd: (no subject)"),
        (None, "Re: (no subject)", "Fwd: (no subject)"),
        ("a\r\nBcc: x", "Re: a Bcc: x", "Fwd: a Bcc: x"),
    ],
)
def test_subject_prefixes(given_subject: str | None, reply: str, forward: str) -> None:
    assert reply_subject(given_subject) == reply
    assert forward_subject(given_subject) == forward
    assert reply_subject(reply) == reply


def test_a_prefixed_subject_is_cut_at_a_character() -> None:
    assert reply_subject("😀" * 998) == "Re: " + "😀" * 994


IDS = st.text(st.sampled_from("abcx@.<> ä\x01"), min_size=1, max_size=8)


@pytest.mark.covers("edge:C2", "FR-OUT-5")
def test_references_keep_the_first_and_the_newest() -> None:
    ids = [f"m{n}@example.com" for n in range(150)]
    assert build_references(ids, [], "p@example.com") == (ids[0], *ids[-18:], "p@example.com")
    assert build_references([], ["i@example.com"], "p@example.com") == ("i@example.com", "p@example.com")
    assert build_references(["r@x"], ["i@example.com"], "p@x") == ("r@x", "p@x")
    assert build_references(["a@x", "b@x", "a@x"], [], "p@x") == ("b@x", "a@x", "p@x")
    assert build_references(["p@x", "b@x"], [], "p@x") == ("b@x", "p@x")
    long = [f"{n}{'x' * 300}@example.com" for n in range(10)]
    assert build_references(long, [], "p@example.com") == (long[0], *long[-5:], "p@example.com")
    huge = ["y" * 899, "z" * 900]
    assert build_references(huge, [], "p" * 900) == ("y" * 899, "p" * 900)


@given(st.lists(IDS | st.text("xy@", min_size=200, max_size=900), max_size=40), st.lists(IDS, max_size=2), IDS)
def test_references_stay_within_their_limits(references: list[str], in_reply_to: list[str], parent: str) -> None:
    found = build_references(references, in_reply_to, parent)
    assert len(found) <= 20
    assert len(" ".join(f"<{value}>" for value in found)) <= 2048
    assert len(set(found)) == len(found)
    assert all(value.isascii() and value.isprintable() and not set("<> ") & set(value) for value in found)
    if set(parent) <= set("abcx@."):
        assert found[-1] == parent


def organisation(domain: str) -> str:
    return ".".join(domain.split(".")[-2:])


@pytest.mark.covers("edge:D3")
@pytest.mark.parametrize(
    ("reply_to", "known", "written", "target", "mismatch"),
    [
        ([], False, False, "ann@example.com", False),
        (["ann@example.com"], False, False, "ann@example.com", False),
        (["other@evil.example"], False, False, "ann@example.com", True),
        (["other@evil.example"], True, False, "other@evil.example", False),
        (["other@evil.example"], False, True, "other@evil.example", False),
        (["desk@Support.Example.com", "other@evil.example"], False, False, "desk@Support.Example.com", False),
        (["x@"], False, False, "ann@example.com", True),
    ],
)
def test_reply_target(reply_to: list[str], known: bool, written: bool, target: str, mismatch: bool) -> None:
    addresses = [Address("", *value.split("@")) for value in reply_to]
    found = reply_target(
        ANN, addresses, known_sender=known, organisational_domain=organisation, written_before=lambda _: written
    )
    assert (found.address.address, found.mismatch) == (target, mismatch)


@pytest.mark.covers("edge:A10")
def test_reply_to_all() -> None:
    own = {"agent@agents.example", "old@agents.example"}
    to = [Address("Me", "Agent+t03k.9f2mq7xa", "AGENTS.example"), Address("B\r\nob", "b", "example.com"), ANN]
    cc = [Address("", "b", "Example.com"), Address("", "old", "agents.example"), Address("C", "c", "example.com")]
    found = reply_all_recipients(ANN, to, cc, own)
    assert found.to == (ANN, Address("B ob", "b", "example.com"))
    assert found.cc == (Address("C", "c", "example.com"),)
    assert reply_all_recipients(to[0], [], [], own) == ((), ())


def test_address_key() -> None:
    assert address_key(Address("x", "Ann", "BÜCHER.example")) == "ann@xn--bcher-kva.example"
    assert address_key(Address("x", "Ann", "not a domain")) == "ann@not a domain"


def test_quoting() -> None:
    assert quote_text("a\n\n> b\nc") == "> a\n>\n>> b\n> c"


FORWARDED = Forwarded(
    from_=(Address("Ann <b>", "ann", "example.com"),),
    date=NOW,
    subject="Offer\r\n2",
    to=(Address("", "b", "example.com"),),
    body=Body("original text", "<b>original</b>"),
)


@pytest.mark.covers("edge:C6", "edge:E8", "FR-OUT-8")
def test_blocks_stand_in_their_order() -> None:
    made = assemble(
        Body("words\n\n", "<html><body><p>words</p></body></html>"), forwarded=FORWARDED,
        signature=Body("Ann <ceo>", None), disclosure="Written by <AI>", unsubscribe_url="https://example.com/u?a=1&b=2",
        links=(Link("b\nig.pdf", 4_000_000, "https://example.com/l/x", NOW),),
    )  # fmt: skip
    assert made.text == (
        "words\n\n---------- Forwarded message ---------\nFrom: Ann <b> <ann@example.com>\n"
        "Date: Thu, 05 Mar 2026 09:07:03 +0000\nSubject: Offer 2\nTo: b@example.com\n\noriginal text\n\n"
        "-- \nAnn <ceo>\n\nb ig.pdf (4000000 bytes, until 2026-03-05T09:07:03Z): https://example.com/l/x\n\n"
        "Written by <AI>\n\nUnsubscribe: https://example.com/u?a=1&b=2"
    )
    assert made.html is not None
    assert made.html.startswith(
        "<html><body><p>words</p><div>---------- Forwarded message ---------<br>From: Ann &lt;b"
    )
    assert made.html.endswith("</body></html>")
    places = [
        "<blockquote><b>original</b></blockquote>",
        "<div>-- <br>Ann &lt;ceo&gt;</div>",
        '<a href="https://example.com/l/x">b ig.pdf</a>',
        "<p>Written by &lt;AI&gt;</p>",
        '<a href="https://example.com/u?a=1&amp;b=2">',
    ]
    found = [made.html.index(place) for place in places]
    assert found == sorted(found)


def test_missing_text_is_derived_and_missing_html_is_not_invented() -> None:
    assert assemble(Body(None, "<p>Hi <b>you</b></p>")) == Body("Hi you", "<p>Hi <b>you</b></p>")
    made = assemble(Body("Hi"), signature=Body(None, "<i>Ann</i>"), disclosure="AI", forwarded=FORWARDED)
    assert made.html is None
    assert made.text is not None
    assert "-- \nAnn" in made.text
    assert assemble(Body("")) == Body("")
    assert assemble(Body("x"), signature=Body("", "")) == Body("x")


def test_unsubscribe_line_only_where_the_url_is_not() -> None:
    made = assemble(Body("see https://e.example/u", "<p>x</p>"), unsubscribe_url="https://e.example/u")
    assert made.text == "see https://e.example/u"
    assert made.html == '<p>x</p><p><a href="https://e.example/u">Unsubscribe</a></p>'


@pytest.mark.covers("edge:G5", "FR-OUT-10")
def test_the_largest_become_links() -> None:
    assert choose_links(100, [10, 50], 100, 5) == ()
    assert choose_links(100, [10, 50, 30], 60, 5) == (1,)
    assert choose_links(100, [10, 50, 30], 50, 5) == (1, 2)
    with pytest.raises(ComposeError):
        choose_links(100, [10, 50, 4], 40, 5)
    assert choose_links(100, [20, 20], 90, 5) == (0,)


def test_headers_of_callers() -> None:
    given_headers = {"x-order": "12", "IMPORTANCE": "high", "keywords": "a, b", "X-Tab": "a\tb"}
    assert custom_headers(given_headers) == (
        ("x-order", "12"), ("Importance", "high"), ("Keywords", "a, b"), ("X-Tab", "a\tb"))  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "name", "refusal"),
    [
        ({"Reply-To": "a"}, "Reply-To", HeaderRefusal.NOT_ALLOWED),
        ({"X-Postroom-Hop": "1"}, "X-Postroom-Hop", HeaderRefusal.NOT_ALLOWED),
        ({"x-ai-generated": "1"}, "x-ai-generated", HeaderRefusal.NOT_ALLOWED),
        ({"X-": "1"}, "X-", HeaderRefusal.NOT_ALLOWED),
        ({"X-Ä": "1"}, "X-Ä", HeaderRefusal.NOT_ALLOWED),
        ({"X-A b": "1"}, "X-A b", HeaderRefusal.NOT_ALLOWED),
        ({"X-A\n": "1"}, "X-A\n", HeaderRefusal.NOT_ALLOWED),
        ({"X-" + "a" * 99: "1"}, "X-" + "a" * 99, HeaderRefusal.NOT_ALLOWED),
        ({"X-A": "1", "x-a": "2"}, "x-a", HeaderRefusal.INVALID),
        ({"X-A": ""}, "X-A", HeaderRefusal.INVALID),
        ({"X-A": " "}, "X-A", HeaderRefusal.INVALID),
        ({"X-A": "a\r\nBcc: b"}, "X-A", HeaderRefusal.INVALID),
        ({"X-A": "\ud800"}, "X-A", HeaderRefusal.INVALID),
        ({"X-A": "ä" * 1025}, "X-A", HeaderRefusal.INVALID),
        ({"Priority": "high"}, "Priority", HeaderRefusal.INVALID),
        ({f"X-{n}": "x" * 2045 for n in range(9)}, "X-8", HeaderRefusal.INVALID),
    ],
)
@pytest.mark.covers("edge:G10")
def test_headers_that_callers_may_not_set(headers: dict[str, str], name: str, refusal: HeaderRefusal) -> None:
    with pytest.raises(CustomHeaderError) as caught:
        custom_headers(headers)
    assert (caught.value.name, caught.value.refusal) == (name, refusal)


@given(st.dictionaries(st.text(max_size=10) | st.just("X-A"), st.text(max_size=10)))
def test_any_headers(headers: dict[str, str]) -> None:
    try:
        found = custom_headers(headers)
    except CustomHeaderError:
        return
    assert all("\n" not in value and "\r" not in value for _, value in found)
