"""SPF against pyspf, over records and zones that are made up. Where it and RFC 7208 part, the test says where."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Final

import pytest
import spf  # type: ignore[import-untyped]  # it has no annotations
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from postroom.mailauth.resolver import IpAddress, NameNotFoundError, TemporaryResolverError
from postroom.mailauth.spf_result import Reason
from postroom.mailauth.zone import Trouble, Written, Zone
from tests.mailauth.spf_tools import check


@contextmanager
def their_dns(names: Mapping[str, Written], *, voids: int) -> Iterator[None]:
    """pyspf asking `names`, with a limit of void look-ups."""
    zone = Zone(names)

    def lookup(name: str, kind: str, strict: Any = True, timeout: Any = 0) -> list[Any]:
        try:
            found = _ask(zone, name, kind)
        except NameNotFoundError:
            return []
        except TemporaryResolverError as error:
            raise spf.TempError(str(error)) from None
        return [((name, kind), value) for value in found]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spf, "DNSLookup", lookup)
        patch.setattr(spf, "MAX_VOID_LOOKUPS", voids)
        yield


def _ask(zone: Zone, name: str, kind: str) -> list[Any]:
    # Only these are asked for, and the zone waits for nothing.
    match kind:
        case "TXT":
            return [(text,) for text in _done(zone.txt(name))]
        case "MX":
            return [(number, host) for number, host in enumerate(_done(zone.mx(name)))]
        case "PTR":
            return list(_done(zone.ptr(_address(name))))
        case "A":
            return [str(one) for one in _done(zone.a(name))]
        case _:
            return [str(one) for one in _done(zone.aaaa(name))]


def _address(reverse: str) -> IpAddress:
    labels = reverse.split(".")[:-2]
    if len(labels) == 4:
        return ip_address(".".join(reversed(labels)))
    return ip_address(int("".join(reversed(labels)), 16).to_bytes(16, "big"))


def _done(work: Any) -> Any:
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited")


def theirs(names: Mapping[str, Written], sender: str, ip: str, helo: str, *, voids: int = 10**6) -> tuple[str, str]:
    """Their status and what they say."""
    with their_dns(names, voids=voids):
        status, _, text = spf.query(i=ip, s=sender, h=helo, receiver="mx.postroom.example").check()
    return status, text


HOSTS: Final = ["example.com", "a.example.com", "b.example.com", "c.example.com", "gone.example.com", "example.org"]
WITH_RECORD: Final = HOSTS[:4]
IPS: Final = ["192.0.2.1", "192.0.2.2", "198.51.100.7", "2001:db8::1", "2001:db8:1::7"]
CLIENTS: Final = [*IPS, "::ffff:192.0.2.1"]
SENDERS: Final = [
    "user@example.com",
    "strong-bad@a.example.com",
    "x@b.example.com",
    "@example.com",
    "",
    "u@example.org",
]

GOOD_SPECS: Final = [
    *HOSTS,
    *("%{d}", "%{o}", "%{h}", "a.%{d}", "%{l}.%{d}", "%{d2}", "%{ir}.%{v}._spf.example.com", "B.Example.COM."),
    *("%{l1r-}.example.com", "%{S}.example.com", "%{i}.example.com", "a..example.com", "x" * 64 + ".example.com"),
    *("%%.example.com", "%{dr}.example", "%{p2}", "%{L}%_x.example.com"),
]
BAD_SPECS: Final = ["com", "a.1", "%{x}.com", "%.com", "a.%", "%{c}.example.com", "", "a.example.com:25", "%{d}x"]
GOOD: Final = [
    *("a", "mx", "ptr", "ip4:192.0.2.1", "ip4:192.0.2.0/24", "ip4:198.51.100.7/31", "ip6:2001:db8::/32", "A", "Mx//64"),
    *("ip6:2001:db8::1", "IP4:192.0.2.2", "ip6:::/0", "a/24", "a//64", "mx/24//48", "a/0", "mx//0", "ptr:example.com"),
]
BAD: Final = [
    *("ip4:1.2.3", "ip6:1.2.3.4", "foo", "foo:bar", "all:x.com", "ip4:1.2.3.4/33", "include", "exists", "a:", "all/8"),
    *("ip4:1.2.3.4//24", "a/33", "mx/024", "a//129", "ptr/24", "exists:a.example.com/24", "include:example.com//64"),
]
MODIFIERS: Final = ["x=y", "y=%{d}", "moo=", "a-b_c.9=%%2", "x2=%{l1r-}"]

NAMED = st.sampled_from(["a", "mx", "include", "include", "exists", "ptr"])
TERMS = st.one_of(
    st.sampled_from(GOOD),
    st.builds("{}:{}".format, NAMED, st.sampled_from(GOOD_SPECS)),
    st.builds("{}:{}".format, NAMED, st.sampled_from(WITH_RECORD)),
)
WRONG = st.one_of(st.sampled_from(BAD), st.builds("{}:{}".format, NAMED, st.sampled_from(BAD_SPECS)))
QUALIFIED = st.builds("{}{}".format, st.sampled_from(["", "", "+", "-", "~", "?"]), TERMS)
ENDS = st.one_of(
    st.sampled_from(["-all", "~all", "?all", "+all", "", "-ALL a"]),
    st.builds("redirect={}".format, st.sampled_from(GOOD_SPECS + BAD_SPECS[:3])),
    st.builds("exp={} -all".format, st.sampled_from(GOOD_SPECS + BAD_SPECS)),
)


@st.composite
def records(draw: st.DrawFn) -> str:
    terms = draw(st.lists(QUALIFIED, max_size=4))
    if draw(st.integers(0, 9)) == 0:
        terms.insert(draw(st.integers(0, len(terms))), draw(st.sampled_from(MODIFIERS) | WRONG))
    return " ".join(["v=spf1", *terms, draw(ENDS)]).rstrip()


def some(of: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(of, max_size=3, unique=True)


@st.composite
def zones(draw: st.DrawFn) -> dict[str, Written]:
    made: dict[str, dict[str, list[str]]] = {name: {"TXT": [draw(records())]} for name in WITH_RECORD}
    hosts = st.sampled_from(HOSTS)
    for name in [*HOSTS, "user.example.com", "1.2.0.192.in-addr._spf.example.com"]:
        here = made.setdefault(name, {})
        addresses = draw(some(st.sampled_from(IPS)))
        here["A"] = [one for one in addresses if ":" not in one]
        here["AAAA"] = [one for one in addresses if ":" in one]
        here["MX"] = [f"{number} {host}" for number, host in enumerate(draw(some(hosts)))]
    for ip in IPS:
        made[ip_address(ip).reverse_pointer] = {"PTR": draw(some(hosts))}
    if draw(st.booleans()):
        made["example.org"]["TXT"] = draw(st.lists(st.just("other") | records(), max_size=2))
    return {name: {kind: texts for kind, texts in here.items() if texts} for name, here in made.items()}


@pytest.mark.covers("mail-server:B4", "RFC 7208")
@settings(deadline=None, max_examples=300)
@given(names=zones(), sender=st.sampled_from(SENDERS), ip=st.sampled_from(CLIENTS), helo=st.sampled_from(HOSTS))
def test_we_agree(names: dict[str, Written], sender: str, ip: str, helo: str) -> None:
    ours = check(names, sender, ip, helo)
    # How limits are counted differs, see below; where they agree has a test of its own.
    assume(ours.reason not in (Reason.VOID_LIMIT, Reason.LOOKUP_LIMIT))
    status, text = theirs(names, sender, ip, helo)
    assume("trivial recursion" not in text)
    assert ours.status.value == status, (ours, text)


SIMPLE = st.builds(
    "{}:{}".format, st.sampled_from(["a", "exists", "include"]), st.sampled_from([*HOSTS, "one.example.com"])
)


@pytest.mark.covers("RFC 7208 §5")
@settings(deadline=None, max_examples=150)
@given(data=st.data(), ip=st.sampled_from(CLIENTS))
def test_we_agree_about_trouble(data: st.DataObject, ip: str) -> None:
    names: dict[str, Written] = {"gone.example.com": Trouble.TIMEOUT}
    for name in HOSTS[:4]:
        terms = [term for term in data.draw(st.lists(SIMPLE, max_size=3)) if term != f"include:{name}"]
        trouble: dict[str, Sequence[str] | Trouble] = {
            "TXT": [" ".join(["v=spf1", *terms, data.draw(st.sampled_from(["", "-all"]))])]
        }
        for kind, address in (("A", IPS[0]), ("AAAA", IPS[3])):
            trouble[kind] = data.draw(st.sampled_from([[address], [address], Trouble.SERVFAIL]))
        if data.draw(st.integers(0, 5)) == 0:
            trouble["TXT"] = Trouble.SERVFAIL
        names[name] = trouble
    ours = check(names, "user@example.com", ip)
    assume(ours.reason not in (Reason.VOID_LIMIT, Reason.LOOKUP_LIMIT))
    assert theirs(names, "user@example.com", ip, "example.com")[0] == ours.status.value


@pytest.mark.covers("RFC 7208 §4.6.4")
@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(["there", "there", "there", "gone"]), max_size=13),
    st.lists(st.sampled_from(["there", "there", "there", "gone"]), max_size=5),
    st.sampled_from(["a", "exists", "mx"]),
)
def test_we_agree_about_limits(outer: list[str], inner: list[str], mechanism: str) -> None:
    def terms(kinds: list[str], tag: str) -> list[str]:
        sign = "" if mechanism != "exists" else "?"
        return [f"{sign}{mechanism}:{kind}{number}{tag}.example.com" for number, kind in enumerate(kinds)]

    there = (
        {"A": ["198.51.100.1"], "MX": ["0 host.example.com"]} if mechanism != "exists" else {"AAAA": ["2001:db8::1"]}
    )
    names: dict[str, Written] = {f"there{number}{tag}.example.com": there for number in range(13) for tag in "oi"}
    names["host.example.com"] = {"A": ["198.51.100.1"]}
    names["example.com"] = {"TXT": [" ".join(["v=spf1", *terms(outer, "o"), "include:i.example.com -all"])]}
    names["i.example.com"] = {"TXT": [" ".join(["v=spf1", *terms(inner, "i"), "-all"])]}
    ours = check(names, "user@example.com")
    status, text = theirs(names, "user@example.com", "192.0.2.3", "example.com", voids=2)
    assert status == ours.status.value, (ours, text)
    assert ("Void lookup limit" in text) is (ours.reason is Reason.VOID_LIMIT)
    assert ("Too many DNS lookups" in text) is (ours.reason is Reason.LOOKUP_LIMIT)


A_RECORD: Final[dict[str, Written]] = {"host.example.com": {"A": ["192.0.2.3"]}}


@pytest.mark.parametrize(
    ("text", "more", "ours", "they"),
    [
        pytest.param("exists:%{d0}.x.com -all", {}, "permerror", "fail", id="§7.3: the number of parts is not zero"),
        pytest.param("moo=%% -all", {}, "fail", "permerror", id="§7.1: two percent signs are one, at the end, too"),
        pytest.param(
            "exists:%{dR}.x.com -all",
            {"com.example.x.com": {"A": ["192.0.2.3"]}},
            "pass",
            "fail",
            id="§12, RFC 5234 §2.3: r in any case",
        ),
        pytest.param("moo=%{c} -all", {}, "fail", "permerror", id="§6: what nobody knows is ignored"),
        pytest.param("moo=1 moo=2 -all", {}, "fail", "permerror", id="§6: however often it stands there"),
        pytest.param(
            "Redirect=host.example.com",
            {"host.example.com": {"TXT": ["v=spf1 -all"]}},
            "fail",
            "neutral",
            id="§12, RFC 5234 §2.3: names of modifiers in any case",
        ),
        pytest.param(
            "ip4:192.0.2.3 include:example.com -all",
            {},
            "pass",
            "permerror",
            id="§4.6.2: what stands behind a match is not evaluated",
        ),
        pytest.param(
            " ".join(["a:host.example.com"] * 10) + " -all redirect=x.example.com",
            {"host.example.com": {"A": ["198.51.100.1"]}},
            "fail",
            "permerror",
            id="§6.1: a redirect behind all is ignored, so that it asks nothing",
        ),
        pytest.param(
            "ptr -all",
            {"3.2.0.192.in-addr.arpa": Trouble.TIMEOUT},
            "fail",
            "temperror",
            id="§5.5: without an answer ptr does not match",
        ),
        pytest.param(
            "mx -all",
            {**A_RECORD, "slow.example.com": Trouble.TIMEOUT},
            "pass",
            "temperror",
            id="§5.4: hosts are looked at in turn",
        ),
        pytest.param(
            "mx:six.example.com -all",
            {"six.example.com": {"MX": [f"0 {name}.example.com" for name in "abc"]}}
            | {f"{name}.example.com": {"AAAA": ["2001:db8::1"]} for name in "abc"},
            "fail",
            "permerror",
            id="§4.6.4: terms without an answer are counted, not hosts of one term",
        ),
    ],
)
@pytest.mark.covers("RFC 7208")
def test_where_we_part(text: str, more: dict[str, Written], ours: str, they: str) -> None:
    names: dict[str, Written] = {
        "example.com": {"TXT": [f"v=spf1 {text}"], "MX": ["0 host.example.com", "1 slow.example.com"]}
    } | more
    assert check(names, "user@example.com").status.value == ours
    assert theirs(names, "user@example.com", "192.0.2.3", "example.com", voids=2)[0] == they
