"""SPF records and macros as they are read: the grammar of RFC 7208 §12, and what comes of macros."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.mailauth.spf_macro import (
    MacroError,
    ascii_domain,
    expand_name,
    expand_text,
    parse_domain_spec,
    parse_explanation,
    target_name,
)
from postroom.mailauth.spf_record import MAX_RECORD_BYTES, MAX_TERMS, Mechanism, choose_record, is_record, parse_record
from postroom.mailauth.spf_result import Reason, SpfError, Status
from tests.mailauth.fuzz_targets import spf_record

VALUES = {
    "s": "strong-bad@email.example.com",
    "l": "strong-bad",
    "o": "email.example.com",
    "d": "email.example.com",
    "i": "192.0.2.3",
    "p": "mx.example.org",
    "h": "mx.example.org",
    "c": "192.0.2.3",
    "r": "mx.example.net",
    "t": "1750000000",
    "v": "in-addr",
}
VALUES6 = VALUES | {
    "i": "2.0.0.1.0.d.b.8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.c.b.0.1",
    "v": "ip6",
}


@pytest.mark.covers("RFC 7208 §7.4", "RFC 7208 §7.3")
@pytest.mark.parametrize(
    ("macro", "text"),
    [
        # The examples of the section.
        *(("%{s}", "strong-bad@email.example.com"), ("%{o}", "email.example.com"), ("%{d}", "email.example.com")),
        *(("%{d4}", "email.example.com"), ("%{d3}", "email.example.com"), ("%{d2}", "example.com"), ("%{d1}", "com")),
        *(("%{dr}", "com.example.email"), ("%{d2r}", "example.email"), ("%{l}", "strong-bad"), ("%{l-}", "strong.bad")),
        *(("%{lr}", "strong-bad"), ("%{lr-}", "bad.strong"), ("%{l1r-}", "strong")),
        ("%{ir}.%{v}._spf.%{d2}", "3.2.0.192.in-addr._spf.example.com"),
        ("%{lr-}.lp._spf.%{d2}", "bad.strong.lp._spf.example.com"),
        ("%{lr-}.lp.%{ir}.%{v}._spf.%{d2}", "bad.strong.lp.3.2.0.192.in-addr._spf.example.com"),
        ("%{ir}.%{v}.%{l1r-}.lp._spf.%{d2}", "3.2.0.192.in-addr.strong.lp._spf.example.com"),
        ("%{d2}.trusted-domains.example.net", "example.com.trusted-domains.example.net"),
        # Beyond them.
        *(("%{D2}", "example.com"), ("%{DR}", "com.example.email"), ("%{d02}", "example.com")),
        *(("%{d128}", "email.example.com"), ("%{d" + "9" * 400 + "}", "email.example.com")),
        *(
            ("%{S}", "strong-bad%40email.example.com"),
            ("%{s2@}", None),
            ("%{l-+,/_=.}", "strong.bad"),
            ("%%-%_-%-", "%- -%20"),
            ("a%%b", "a%b"),
        ),
        *(("%{c} %{r} %{t}", "192.0.2.3 mx.example.net 1750000000"), ("", ""), (" ", " ")),
        *(("%{H1}", "org"), ("%{p2r}", "example.mx"), ("%{V}", "in-addr"), ("%{o-}", "email.example.com")),
    ],
)
def test_what_comes_of_a_macro(macro: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(MacroError):
            parse_explanation(macro)
    else:
        assert expand_text(parse_explanation(macro), VALUES, 1000) == text


@pytest.mark.covers("RFC 7208 §7.4")
def test_macro_of_an_ipv6_client() -> None:
    spec = parse_domain_spec("%{ir}.%{v}._spf.%{d2}")
    wanted = "1.0.b.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6._spf.example.com"
    assert expand_name(spec, VALUES6) == wanted


@pytest.mark.covers("RFC 7208 §7.1", "RFC 7208 §7.3")
@pytest.mark.parametrize(
    "wrong",
    [
        *("%", "%x", "%{", "%{}", "%{d", "%{e}", "%{dd}", "%{d2x}", "%{d0}", "%{d00r}", "%{dr2}", "%{d-2}", "%{-d}"),
        *("%{d:}", "%{d }", "% {d}", "%(d)", "100%", "%{%d}", "a\tb", "a\x7fb", "é", "%{ſ}", "a\n", "%{d}\n"),
    ],
)
def test_what_is_no_macro_string(wrong: str) -> None:
    for parse in (parse_explanation, parse_domain_spec):
        for text in (wrong, wrong + ".example.com"):
            with pytest.raises(MacroError):
                parse(text)


@pytest.mark.covers("RFC 7208 §7.1")
@pytest.mark.parametrize(
    ("spec", "good"),
    [
        *(("example.com", True), ("example.com.", True), ("%{d}", True), ("_spf.%{d2}", True), ("%{d}.com", True)),
        *((".com", True), ("a..com", True), ("a%%", True), ("a%_", True), ("a%-", True), ("x.museum", True)),
        *(("x.a1", True), ("x.1-1", True), ("x.xn--p1ai", True), ("%{i}.%{s1}.100/86400.rate.%{d}", True)),
        *(("a!#$&'()*+,/:;<=>?@[]^`{|}~.com", True),),
        *(("", False), ("com", False), ("com.", False), ("example.com..", False), ("x.1", False), ("1.2.3.4", False)),
        *(("x.-a", False), ("x.a-", False), ("x.a_b", False), ("%{d}com", False), ("%{d.}x", False), ("x.", False)),
        *(("example.com:8080", False), ("%{c}", False), ("%{r}.com", False), ("%{T}.com", False), (".", False)),
    ],
)
def test_how_a_domain_spec_ends(spec: str, good: bool) -> None:
    if good:
        parse_domain_spec(spec)
    else:
        with pytest.raises(MacroError):
            parse_domain_spec(spec)


@pytest.mark.covers("RFC 7208 §7.3", "RFC 7208 §4.8")
def test_names_that_are_too_long_lose_labels_from_the_left() -> None:
    long = ".".join(["a" * 49] * 6)
    assert len(long) == 299
    assert target_name(long) == ".".join(["a" * 49] * 5)
    exact = "b" * 53 + "." + ".".join(["a" * 49] * 4)
    assert target_name(exact) == target_name(exact + ".") == exact
    assert len(exact) == 253
    assert target_name("x" + exact) == exact.partition(".")[2]
    assert target_name("x." + exact.replace("b", "c")) == exact.replace("b", "c")
    spec = parse_domain_spec("%{l}." * 40 + "%{d}")
    made = expand_name(spec, VALUES | {"l": "x" * 50})
    assert made == ".".join(["x" * 50] * 4) + ".email.example.com"
    for bad in ("", ".", "a..b", ".a", "a" * 64 + ".b", "a b.c", "ä.b", "a" * 300, "a\x00.b", "a\n"):
        assert target_name(bad) is None
    assert target_name("ExAmple.COM.") == "example.com"


@given(st.text(alphabet="ab.", min_size=1, max_size=600))
def test_what_is_cut_is_the_end_of_what_was_there(text: str) -> None:
    made = target_name(text)
    if made is not None:
        assert len(made) <= 253
        whole = text.removesuffix(".")
        assert whole == made or whole.endswith("." + made)
        if whole != made:  # one label more would have been too many
            before = whole[: -len(made) - 1].rpartition(".")[2]
            assert len(before) + 1 + len(made) > 253


@pytest.mark.covers("RFC 7208 §4.3", "RFC 8616 §4")
@pytest.mark.parametrize(
    ("given", "domain"),
    [
        *(("Example.COM.", "example.com"), ("a_b.example", "a_b.example"), ("bücher.example", "xn--bcher-kva.example")),
        *(("_x.bücher.example", "_x.xn--bcher-kva.example"), ("BÜCHER。example", "xn--bcher-kva.example")),
        *(("", None), ("localhost", None), ("[192.0.2.1]", None), ("192.0.2.1", None), ("[IPv6:2001:db8::1]", None)),
        *(("a..b", None), (".a.b", None), ("a.b..", None), ("a" * 64 + ".com", None), ("a b.com", None)),
        *(("ab." * 85 + "com", None), ("é" * 300 + ".com", None), ("\udc80.com", None), ("a@b.com", None)),
    ],
)
def test_what_is_a_domain(given: str, domain: str | None) -> None:
    assert ascii_domain(given) == domain


@pytest.mark.covers("RFC 7208 §4.5")
@pytest.mark.parametrize(
    ("text", "yes"),
    [
        *((b"v=spf1", True), (b"v=spf1 ", True), (b"V=SpF1 -all", True), (b"v=spf1 \xff", True)),
        *((b"v=spf10", False), (b"v=spf1-all", False), (b" v=spf1", False), (b"v=spf1\t-all", False), (b"", False)),
        *((b"v=spf", False), (b"spf2.0/pra", False), (b'"v=spf1 -all"', False)),
    ],
)
def test_which_texts_are_records(text: bytes, yes: bool) -> None:
    assert is_record(text) is yes
    assert choose_record([b"other", text, b"v=DMARC1"]) == (text if yes else None)


@pytest.mark.covers("RFC 7208 §4.5", "RFC 7208 §4.6")
def test_several_records_and_large_ones() -> None:
    with pytest.raises(SpfError) as several:
        choose_record([b"v=spf1 -all", b"v=spf1 +all"])
    assert several.value.reason is Reason.SEVERAL_RECORDS
    assert choose_record([]) is None
    fits = b"v=spf1 " + b"a " * MAX_TERMS
    assert len(parse_record(fits.ljust(MAX_RECORD_BYTES)).directives) == MAX_TERMS
    for large in (fits.ljust(MAX_RECORD_BYTES + 1), fits + b"x=y"):
        with pytest.raises(SpfError) as caught:
            parse_record(large)
        assert caught.value.reason is Reason.RECORD_TOO_LARGE


def test_a_record_read() -> None:
    text = (
        b"V=SPF1  ip4:192.0.2.1/24 -IP6:2001:DB8::1/32 ~A/24//64 ?mx:%{d2}//0 ptr  Include:_spf.example.com foo=%{c}"
        b" exists:%{i}.x/8.%{d} exp=why.%{d} foo= REDIRECT=x.example -all  "
    )
    made = parse_record(text)
    assert [one.mechanism for one in made.directives] == [
        *(Mechanism.IP4, Mechanism.IP6, Mechanism.A, Mechanism.MX, Mechanism.PTR, Mechanism.INCLUDE),
        *(Mechanism.EXISTS, Mechanism.ALL),
    ]
    assert [one.status.value for one in made.directives] == [
        *("pass", "fail", "softfail", "neutral", "pass", "pass", "pass", "fail")
    ]
    assert [(one.prefix4, one.prefix6) for one in made.directives[:4]] == [(24, 128), (32, 32), (24, 64), (32, 0)]
    assert made.directives[0].network == int(ip_address("192.0.2.1"))
    assert made.directives[2].text == "~A/24//64"
    assert made.directives[4].target is None
    assert made.redirect == ("x.example",)
    assert made.explanation is not None
    assert parse_record(b"v=spf1").directives == ()


@pytest.mark.covers("RFC 7208 §4.6", "RFC 7208 §5.6", "RFC 7208 §5.3", "RFC 7208 §6")
@pytest.mark.parametrize(
    "term",
    [
        *(
            "foo",
            "foo:bar.com",
            "a.b",
            "-",
            "+",
            "--all",
            "=all",
            "!all",
            "all:x.com",
            "all/8",
            "all.",
            "-all,",
            "+foo=x",
        ),
        *(
            "include",
            "include:",
            "include:com",
            "include/8",
            "include:x.com/24",
            "exists",
            "exists:",
            "exists:x.com/24",
        ),
        *("a:", "a/33", "a/", "a/-1", "a/024", "a//", "a//129", "a//064", "a/24/64", "a/24//", "a///64", "a:x.com/33"),
        *("a:x.com//129", "a:192.0.2.1", "a:com", "mx:", "mx/99", "mx:x.com:25", "ptr:", "ptr/24", "ptr:x.com/0"),
        *("ip4", "ip4:", "ip4:1.2.3", "ip4:1.2.3.4.5", "ip4:1.2.3.256", "ip4:01.2.3.4", "ip4:1.2.3.4/33", "ip4/24"),
        *(
            "ip4:1.2.3.4/",
            "ip4:1.2.3.4/024",
            "ip4:1.2.3.4//32",
            "ip4:1.2.3.4:25",
            "ip4:::1",
            "ip4:x.com",
            "ip4=1.2.3.4/%",
        ),
        *("ip6", "ip6:", "ip6:1.2.3.4", "ip6:::1/129", "ip6:::1%eth0", "ip6:1::2::3", "ip6:12345::", "ip6:::1//64"),
        *(
            "ip6:::/",
            "ip6:[::1]",
            "ip4:١.2.3.4",
            "redirect=",
            "redirect=com",
            "redirect=x.com/24",
            "redirect:x.com",
            "exp=",
        ),
        *(
            "exp=com",
            "exp=%{c}.x.com",
            "foo=%",
            "foo=%{q}",
            "foo=%{d0}",
            "f\too",
            "\ta",
            "a\t",
            "a\r\n",
            "exp",
            "a\0",
            "é",
        ),
    ],
)
def test_a_fault_spoils_the_record(term: str) -> None:
    for text in (f"v=spf1 {term}", f"v=spf1 +all {term}", f"v=spf1 {term} a redirect=example.com"):
        with pytest.raises(SpfError) as caught:
            parse_record(text.encode())
        assert caught.value.reason is Reason.SYNTAX
        assert caught.value.term == term or not text.isascii()


@pytest.mark.covers("RFC 7208 §6")
def test_modifiers_that_are_known_stand_once_and_others_however_often() -> None:
    for twice in ("redirect=a.example REDIRECT=b.example", "exp=a.example a Exp=a.example"):
        with pytest.raises(SpfError):
            parse_record(f"v=spf1 {twice}".encode())
    parse_record(b"v=spf1 foo=1 foo=2 x-y.z_9=%{c}%{r}%{t}%% default=deny a= all=x")


@pytest.mark.covers("RFC 7208 §5.6")
@given(st.ip_addresses(), st.ip_addresses(), st.integers(0, 128))
def test_prefixes_cover_as_networks_do(
    address: IPv4Address | IPv6Address, client: IPv4Address | IPv6Address, prefix: int
) -> None:
    prefix = min(prefix, address.max_prefixlen)
    (directive,) = parse_record(f"v=spf1 ip{address.version}:{address}/{prefix}".encode()).directives
    network = ip_network(f"{address}/{prefix}", strict=False)
    for one in (client, address, type(address)(int(address) ^ 1)):
        if one.version == address.version:
            assert directive.spans(int(address), one) is (one in network)


TERMS = st.sampled_from(
    [
        *(
            "a",
            "mx",
            "-all",
            "~",
            "?",
            "+",
            "ip4:1.2.3.4",
            "ip6:::1",
            "include:x.com",
            "/24",
            "//64",
            "%{d}",
            "%{l1r-}",
        ),
        *(
            ".com",
            "redirect=",
            "exp=",
            "x.example",
            "=",
            ":",
            "%",
            " ",
            "  ",
            "foo",
            "ptr",
            "exists:",
            "%%",
            "%{c}",
            "\t",
        ),
    ]
)


@pytest.mark.covers("RFC 7208 §4.6")
@example(b"a:" + b"/1" * 2000)
@example(b"a:" + b"%{d}" * 1000)
@example(b"a" * 4000 + b"=" + b"%" * 80)
@example(b"exists:" + b"." * 4000)
@given(st.binary(max_size=60) | st.lists(TERMS, max_size=12).map(lambda terms: "".join(terms).encode()))
def test_whatever_is_published_is_read_or_refused(data: bytes) -> None:
    spf_record(data)
    spf_record(b"v=spf1 " + data)


def test_statuses_of_reasons() -> None:
    assert {reason for reason in Reason if reason.status is Status.PERMERROR} == {
        *(Reason.SEVERAL_RECORDS, Reason.SYNTAX, Reason.RECORD_TOO_LARGE, Reason.LOOKUP_LIMIT, Reason.VOID_LIMIT),
        *(Reason.MX_LIMIT, Reason.INCLUDE_WITHOUT_RECORD, Reason.REDIRECT_WITHOUT_RECORD),
    }
