"""SPF as RFC 7208 has it: its examples, every mechanism, modifier and limit, and what nothing may bring about."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailauth.resolver import Answer, IpAddress, NameNotFoundError, TemporaryResolverError
from postroom.mailauth.spf import Session, check_mail_from
from postroom.mailauth.spf_result import Identity, Reason, Status
from postroom.mailauth.zone import Trouble, Written, Zone
from tests.mailauth.spf_tools import (
    DOMAIN,
    HELO,
    IP,
    MOST_QUESTIONS,
    OTHER,
    REVERSE,
    SENDER,
    check,
    check_greeting,
    finish,
    record,
    sound,
)

# RFC 7208 §A: the zones of the examples.
APPENDIX: Final[dict[str, Written]] = {
    "example.com": {"MX": ["10 mail-a.example.com", "20 mail-b.example.com"], "A": ["192.0.2.10", "192.0.2.11"]},
    "amy.example.com": {"A": ["192.0.2.65"]},
    "bob.example.com": {"A": ["192.0.2.66"]},
    "mail-a.example.com": {"A": ["192.0.2.129"]},
    "mail-b.example.com": {"A": ["192.0.2.130"]},
    "www.example.com": {"CNAME": ["example.com"]},
    "example.org": {"MX": ["10 mail-c.example.org"]},
    "mail-c.example.org": {"A": ["192.0.2.140"]},
    "10.2.0.192.in-addr.arpa": {"PTR": ["example.com"]},
    "11.2.0.192.in-addr.arpa": {"PTR": ["example.com"]},
    "65.2.0.192.in-addr.arpa": {"PTR": ["amy.example.com"]},
    "66.2.0.192.in-addr.arpa": {"PTR": ["bob.example.com"]},
    "129.2.0.192.in-addr.arpa": {"PTR": ["mail-a.example.com"]},
    "130.2.0.192.in-addr.arpa": {"PTR": ["mail-b.example.com"]},
    "140.2.0.192.in-addr.arpa": {"PTR": ["mail-c.example.org"]},
    "4.0.0.10.in-addr.arpa": {"PTR": ["bob.example.com"]},
}
CLIENTS: Final = ("10.0.0.4", *(f"192.0.2.{host}" for host in (10, 11, 65, 66, 128, 129, 130, 131, 140, 143, 144)))


def among(names: Mapping[str, Written], name: str, **more: list[str]) -> dict[str, Written]:
    """The zone with records added to a name."""
    here = names.get(name, {})
    assert not isinstance(here, Trouble)
    return {**names, name: {**here, **more}}


@pytest.mark.covers("RFC 7208 §5", "mail-server:B4")
@pytest.mark.parametrize(
    ("terms", "hosts"),
    [
        ("+all", "10.0.0.4 10 11 65 66 128 129 130 131 140 143 144"),
        ("a -all", "10 11"),
        ("a:example.org -all", ""),
        ("a:www.example.com -all", "10 11"),
        ("mx -all", "129 130"),
        ("mx:example.org -all", "140"),
        ("mx mx:example.org -all", "129 130 140"),
        ("mx/30 mx:example.org/30 -all", "128 129 130 131 140 143"),
        ("ptr -all", "10 11 65 66 129 130"),
        ("ptr:example.org -all", "140"),
        ("ip4:192.0.2.128/28 -all", "128 129 130 131 140 143"),
    ],
)
def test_the_rfcs_simple_examples(terms: str, hosts: str) -> None:
    names = among(APPENDIX, "example.com", TXT=[f"v=spf1 {terms}"])
    passed = [ip for ip in CLIENTS if check(names, "strong-bad@example.com", ip).status is Status.PASS]
    assert passed == [host if "." in host else f"192.0.2.{host}" for host in hosts.split()]
    failed = [ip for ip in CLIENTS if check(names, "strong-bad@example.com", ip).status is Status.FAIL]
    assert len(passed) + len(failed) == len(CLIENTS)


def test_the_rfcs_several_domains() -> None:
    names: dict[str, Written] = {
        "example.org": {"TXT": ["v=spf1 include:example.com include:example.net -all"]},
        "la.example.org": {"TXT": ["v=spf1 redirect=example.org"]},
        "example.com": {"TXT": ["v=spf1 ip4:192.0.2.0/28 -all"]},
        "example.net": {"TXT": ["v=spf1 ip4:192.0.2.128/28 ~all"]},
    }
    for sender in ("a@example.org", "a@la.example.org"):
        assert [check(names, sender, f"192.0.2.{host}").status.value for host in (1, 129, 64)] == [
            "pass",
            "pass",
            "fail",
        ]
    result = check(names, "a@la.example.org", "192.0.2.129")
    assert (result.domain, result.record_domain, result.mechanism) == (
        *("la.example.org", "example.org", "include:example.net"),
    )
    assert result.lookups == 3


def test_the_rfcs_list_of_hosts() -> None:
    names: dict[str, Written] = {
        "example.com": {"TXT": ["v=spf1 mx include:mobile-users._spf.%{d} include:remote-users._spf.%{d} -all"]},
        "mobile-users._spf.example.com": {"TXT": ["v=spf1 exists:%{l1r+}.%{d}"]},
        "mary.mobile-users._spf.example.com": {"A": ["127.0.0.2"]},
        "remote-users._spf.example.com": {"TXT": ["v=spf1 exists:%{ir}.%{l1r+}.%{d}"]},
        "15.15.168.192.joel.remote-users._spf.example.com": {"A": ["127.0.0.2"]},
    }
    assert check(names, "mary@example.com").status is Status.PASS
    assert check(names, "mary+x@example.com").status is Status.PASS
    assert check(names, "fred@example.com").reason is Reason.VOID_LIMIT
    assert check(names, "joel@example.com", "192.168.15.15").status is Status.PASS


def test_the_rfcs_several_requirements() -> None:
    names = {
        **among(APPENDIX, "example.com", TXT=["v=spf1 -include:ip4._spf.%{d} -include:ptr._spf.%{d} +all"]),
        "ip4._spf.example.com": {"TXT": ["v=spf1 -ip4:192.0.2.64/26 +all"]},
        "ptr._spf.example.com": {"TXT": ["v=spf1 -ptr:example.com +all"]},
    }
    passed = [ip for ip in CLIENTS if check(names, "a@example.com", ip).status is Status.PASS]
    assert passed == ["192.0.2.65", "192.0.2.66"]


@pytest.mark.covers("RFC 7208 §2.3", "RFC 7208 §2.4", "RFC 7208 §4.3")
def test_which_identity_is_checked() -> None:
    names: dict[str, Written] = {
        HELO: {"TXT": ["v=spf1 exists:%{l}.%{o}.x.com -all"]},
        f"postmaster.{HELO}.x.com": {"A": ["127.0.0.1"]},
        DOMAIN: {"TXT": ["v=spf1 ~all"]},
    }
    mail, null = check(names), check(names, "")
    assert (mail.identity, mail.domain, mail.status) == (Identity.MAIL_FROM, DOMAIN, Status.SOFTFAIL)
    assert (null.identity, null.domain, null.status) == (Identity.HELO, HELO, Status.PASS)
    assert check_greeting(names, HELO.upper() + ".") == null
    assert check(names, f"@{HELO}").status is Status.PASS
    assert check(names, HELO).status is Status.PASS  # what has no @ is a domain (§4.3)
    quoted = {**names, "a.b@c.x.com": {"A": ["127.0.0.1"]}, DOMAIN: {"TXT": ["v=spf1 exists:%{l}.x.com -all"]}}
    assert check(quoted, f"a.b@c@{DOMAIN}").status is Status.PASS


@pytest.mark.covers("RFC 7208 §4.3")
@pytest.mark.parametrize(
    "helo", ["", "localhost", "[192.0.2.3]", "[IPv6:2001:db8::1]", "192.0.2.3", "a b.com", "x..com"]
)
def test_a_greeting_that_is_no_domain(helo: str) -> None:
    zone = Zone({})
    result = finish(check_mail_from(zone, Session(ip_address(IP), helo), ""))
    assert (result.status, result.reason, result.domain) == (Status.NONE, Reason.INVALID_DOMAIN, helo)
    assert zone.asked == []


@pytest.mark.covers("RFC 7208 §4.3", "RFC 7208 §4.4", "RFC 7208 §4.5")
@pytest.mark.parametrize(
    ("here", "reason"),
    [
        (None, Reason.NO_RECORD),
        ({"A": [IP]}, Reason.NO_RECORD),
        ({"TXT": ["v=spf10 -all", "spf2.0/pra -all", "other"]}, Reason.NO_RECORD),
        ({"TXT": ["v=spf1 -all", "v=spf1 -all"]}, Reason.MATCH),  # one record: DNS has no doubles
        ({"TXT": ["v=spf1 -all", "V=spf1"]}, Reason.SEVERAL_RECORDS),
        ({"TXT": ["other", b"\xff", "v=spf1 -all"]}, Reason.MATCH),
        ({"TXT": [b"v=spf1 -all \xff"]}, Reason.SYNTAX),
        ({"TXT": ["v=spf1 +all".ljust(4097)]}, Reason.RECORD_TOO_LARGE),
        ({"TXT": ["v=spf1"]}, Reason.NO_MATCH),
        ({"CNAME": ["real.example.com"]}, Reason.MATCH),
        ({"TXT": Trouble.TIMEOUT}, Reason.DNS),
        (Trouble.SERVFAIL, Reason.DNS),
    ],
)
def test_which_record_is_taken(here: Written | None, reason: Reason) -> None:
    names: dict[str, Written] = {"real.example.com": {"TXT": ["v=spf1 -all"]}}
    result = check(names if here is None else {**names, DOMAIN: here})
    assert result.reason is reason
    assert result.lookups == 0


@pytest.mark.covers(
    "RFC 7208 §5.1", "RFC 7208 §5.2", "RFC 7208 §5.3", "RFC 7208 §5.4", "RFC 7208 §5.5", "RFC 7208 §5.6"
)
@pytest.mark.covers("RFC 7208 §5.7", "RFC 7208 §4.6.2", "RFC 7208 §4.6.4", "RFC 7208 §6.1", "RFC 7208 §8")
@pytest.mark.parametrize(
    ("terms", "four", "six"),
    [
        ("", "neutral", "neutral"),
        *(("all", "pass", "pass"), ("-all", "fail", "fail"), ("~all", "softfail", "softfail")),
        *(("?all", "neutral", "neutral"), ("?all -all", "neutral", "neutral"), ("-ALL", "fail", "fail")),
        ("ip4:192.0.2.3 -all", "pass", "fail"),
        ("ip6:2001:db8::1 -all", "fail", "pass"),
        ("ip4:192.0.2.128/24 -all", "pass", "fail"),
        ("ip4:192.0.2.4/31 -all", "fail", "fail"),
        ("ip4:0.0.0.0/0 -all", "pass", "fail"),
        ("ip6:::/0 -all", "fail", "pass"),
        ("ip6:::ffff:192.0.2.3 -all", "fail", "fail"),  # of the other family, whatever it stands for
        ("-ip4:192.0.2.3 -ip6:2001:db8::1 +all", "fail", "fail"),
        ("a:yes.com -all", "pass", "pass"),
        ("a:YES.com. -all", "pass", "pass"),
        ("a:near.com -all", "fail", "fail"),
        ("a:twin.com -all", "fail", "fail"),
        ("a:twin.com/31//127 -all", "pass", "pass"),
        ("a:yes.com/32//128 -all", "pass", "pass"),
        ("a:near.com/24//64 -all", "pass", "pass"),
        ("a:near.com/24 -all", "pass", "fail"),
        ("a:near.com//64 -all", "fail", "pass"),
        ("a:no.com/0//0 -all", "pass", "pass"),
        ("a:gone.com/0//0 -all", "fail", "fail"),
        ("a:a..b.com -all", "fail", "fail"),
        ("a:" + "x" * 64 + ".com -all", "fail", "fail"),
        ("a:slow.com -all", "temperror", "temperror"),
        ("ip4:192.0.2.3 a:slow.com -all", "pass", "temperror"),
        ("a:yes.com foo", "permerror", "permerror"),  # read whole before anything is evaluated (§4.6)
        ("mx:mail.com -all", "pass", "pass"),
        ("mx:near.com -all", "fail", "fail"),
        ("mx:null.com -all", "fail", "fail"),
        ("mx:slow.com -all", "temperror", "temperror"),
        ("mx:slowmail.com -all", "pass", "pass"),
        ("mx:latemail.com -all", "temperror", "temperror"),
        ("mx:many.com -all", "permerror", "permerror"),
        ("mx:ten.com -all", "fail", "fail"),
        ("mx:many.com/0 +all", "permerror", "permerror"),
        ("exists:yes.com -all", "pass", "pass"),
        ("exists:no.com -all", "pass", "pass"),
        ("exists:text.com -all", "fail", "fail"),
        ("exists:slow.com -all", "temperror", "temperror"),
        ("ptr:yes.com -all", "pass", "pass"),
        ("ptr:com.com -all", "fail", "fail"),
        ("ptr:es.com -all", "fail", "fail"),  # whole labels
        ("ptr:OTHER.com -all", "pass", "fail"),
        ("ptr:forged.yes.com -all", "fail", "fail"),
        ("include:yes.com -all", "pass", "pass"),
        ("-include:yes.com +all", "fail", "fail"),
        *(("include:no.com ~all", "softfail", "softfail"), ("include:soft.com -all", "fail", "fail")),
        ("include:neutral.com -all", "fail", "fail"),
        *(("include:faulty.com -all", "permerror", "permerror"), ("include:text.com -all", "permerror", "permerror")),
        *(("include:gone.com -all", "permerror", "permerror"), ("include:slow.com -all", "temperror", "temperror")),
        ("include:a..b.com -all", "permerror", "permerror"),
        ("all include:faulty.com", "pass", "pass"),
        ("redirect=yes.com", "pass", "pass"),
        ("redirect=no.com", "fail", "fail"),
        ("redirect=no.com a:yes.com", "pass", "pass"),  # wherever it stands, it comes last
        ("redirect=no.com ~all", "softfail", "softfail"),
        *(("redirect=text.com", "permerror", "permerror"), ("redirect=gone.com", "permerror", "permerror")),
        *(("redirect=faulty.com", "permerror", "permerror"), ("redirect=slow.com", "temperror", "temperror")),
        ("redirect=a..b.com", "permerror", "permerror"),
        ("include:redirected.com -all", "permerror", "permerror"),
        ("moo=slow.com x=%{c} -all", "fail", "fail"),
        ("include:email.example.com -all", "permerror", "permerror"),
        ("redirect=email.example.com", "permerror", "permerror"),
        ("a:%{o}.%{d} redirect=%{l1r-}.com", "permerror", "permerror"),
    ],
)
def test_terms(terms: str, four: str, six: str) -> None:
    names = {**OTHER, **record(*terms.split())}
    assert check(names).status.value == four
    assert check(names, ip="::ffff:192.0.2.3").status.value == four
    assert check(names, ip="2001:db8::1").status.value == six


@pytest.mark.covers("RFC 7208 §5")
def test_a_zone_index_says_nothing() -> None:
    names: dict[str, Written] = {
        "x.com": {"AAAA": ["fe80::1"]},
        ip_address("fe80::1").reverse_pointer: {"PTR": ["x.com"]},
    }
    for terms in ("ip6:fe80::1 -all", "ptr:x.com -all"):
        assert check({**names, **record(terms)}, ip="fe80::1%eth0").status is Status.PASS


@pytest.mark.covers("RFC 7208 §4.3")
def test_a_name_of_one_label_has_no_record() -> None:
    zone = Zone({**record("include:%{p}"), "unknown": {"TXT": ["v=spf1 +all"]}})
    assert check(zone).reason is Reason.INCLUDE_WITHOUT_RECORD
    assert ("unknown", "TXT") not in zone.asked


@pytest.mark.covers("RFC 7208 §5.5", "RFC 7208 §4.6.4")
def test_reverse_names_beyond_ten_do_not_count() -> None:
    many = [f"h{number}.other.com" for number in range(10)]
    names: dict[str, Written] = {**record("ptr:yes.com -all"), "yes.com": {"A": [IP]}}
    assert check({**names, REVERSE: {"PTR": [*many[:9], "yes.com"]}}).status is Status.PASS
    assert check({**names, REVERSE: {"PTR": [*many, "yes.com"]}}).status is Status.FAIL
    for trouble in (Trouble.TIMEOUT, Trouble.SERVFAIL):
        assert check({**names, REVERSE: trouble}).status is Status.FAIL
    skipped: dict[str, Written] = {**names, REVERSE: {"PTR": ["x.yes.com", "yes.com"]}, "x.yes.com": Trouble.TIMEOUT}
    assert check(skipped).status is Status.PASS


@pytest.mark.covers("RFC 7208 §4.6.4")
def test_ten_terms_may_ask_the_dns() -> None:
    def chain(length: int) -> dict[str, Written]:
        made: dict[str, Written] = {f"c{n}.com": {"TXT": [f"v=spf1 include:c{n + 1}.com -all"]} for n in range(length)}
        return {**made, f"c{length}.com": {"TXT": ["v=spf1 +all"]}, **record("redirect=c0.com")}

    assert (check(chain(9)).status, check(chain(9)).lookups) == (Status.PASS, 10)
    over = check(chain(10))
    assert (over.reason, over.record_domain, over.mechanism) == (Reason.LOOKUP_LIMIT, "c9.com", "include:c10.com")
    plain = ["a:no.com"] * 10
    assert check({**OTHER, **record(*plain, "ip4:192.0.2.3")}).status is Status.PASS
    assert check({**OTHER, **record(*plain, "exists:yes.com")}).reason is Reason.LOOKUP_LIMIT
    assert check({**OTHER, **record(*plain, "redirect=yes.com")}).reason is Reason.LOOKUP_LIMIT
    assert check({**OTHER, **record(*plain[1:], "exists:%{p}.gone.com")}).reason is Reason.LOOKUP_LIMIT  # and PTR
    assert check({**OTHER, **record("ptr:no.com", *plain[2:], "exists:%{p}.gone.com")}).reason is Reason.NO_MATCH
    explained = {**OTHER, **record(*plain, "-all exp=%{p}.text.com"), "yes.com.text.com": {"TXT": ["because"]}}
    assert check(explained).status is Status.FAIL  # explanations are not counted
    zone = Zone({**OTHER, **record(*plain)})
    five = finish(check_mail_from(zone, Session(ip_address(IP), HELO), SENDER, max_lookups=5))
    assert (five.reason, five.lookups, zone.questions) == (Reason.LOOKUP_LIMIT, 5, 6)


@pytest.mark.covers("RFC 7208 §4.6.4")
def test_two_of_them_may_have_no_answer() -> None:
    voids = ["a:gone1.com", "mx:text.com", "exists:gone2.com"]
    two = check({**OTHER, **record(*voids[:2], "-all")})
    assert (two.status, two.void_lookups, two.lookups) == (Status.FAIL, 2, 2)
    three = check({**OTHER, **record(*voids, "-all")})
    assert (three.reason, three.mechanism) == (Reason.VOID_LIMIT, "exists:gone2.com")
    assert check({**OTHER, **record("ptr", *voids[:2], "-all")}, ip="198.51.100.9").reason is Reason.VOID_LIMIT
    # Counted by term: the hosts of one mx that lack the client's family are one at the most, none if another matches.
    hosts: dict[str, Written] = {f"four{number}.com": {"A": [IP]} for number in range(5)}
    hosts["six.com"] = {"MX": [f"{number} four{number}.com" for number in range(5)]}
    one = check({**OTHER, **hosts, **record("mx:six.com", "-all")}, ip="2001:db8::1")
    assert (one.status, one.void_lookups) == (Status.FAIL, 1)
    assert check({**OTHER, **record("mx:mail.com", "-all")}).void_lookups == 0
    some: dict[str, Written] = {**OTHER, "some.com": {"MX": ["1 gone.com", "2 no.com"]}}
    assert check({**some, **record("mx:some.com", "-all")}).void_lookups == 1
    within: dict[str, Written] = {**OTHER, "in.com": {"TXT": ["v=spf1 -mx:mail.com"]}}
    assert check({**within, **record("include:in.com", "a:no.com", "-all")}).void_lookups == 0
    # Names that cannot be asked for, empty explanations and the record itself are no look-ups.
    assert check({**OTHER, **record(*["a:a..b.com"] * 5, "-all exp=gone.com")}).void_lookups == 0


ANYTHING = st.text(max_size=30) | st.sampled_from([SENDER, "", "@", "a@", "@b.com", "\udc80@x.com", "a@b@c.com", HELO])
TERMS = st.sampled_from(
    [
        *(
            "a",
            "mx",
            "ptr",
            "-all",
            "~a",
            "include:%{d}",
            "include:x.com",
            "exists:%{l}.%{h}.com",
            "exists:%{p}.com",
            "a/0",
        ),
        *(
            "redirect=%{d}",
            "redirect=x.com",
            "exp=%{l}.%{h}.com",
            "mx:x.com",
            "a:%{S}.%{H}.com",
            "foo=%{c}",
            "foo",
            "%",
        ),
    ]
)
TEXTS = st.lists(TERMS, max_size=8).map(lambda terms: " ".join(["v=spf1", *terms]).encode()) | st.binary(max_size=40)


class Whatever:
    """Answers every question with what comes, in turn: records of strangers, nothing, or trouble."""

    def __init__(self, texts: list[bytes], names: list[str], addresses: list[IpAddress], turns: list[int]) -> None:
        self._texts, self._names, self._addresses, self._turns = texts, names, addresses, turns
        self.questions = 0

    def _next(self, records: list[object]) -> Answer[object]:
        turn = self._turns[self.questions % len(self._turns)]
        self.questions += 1
        if turn == 0:
            raise NameNotFoundError
        if turn == 1:
            raise TemporaryResolverError
        return Answer(records[turn % (len(records) + 1) :])

    async def txt(self, name: str) -> Answer[bytes]:
        return self._next(list(self._texts))  # type: ignore[return-value]  # of the list's type

    async def a(self, name: str) -> Answer[IpAddress]:
        return self._next([one for one in self._addresses if one.version == 4])  # type: ignore[return-value]  # as above

    async def aaaa(self, name: str) -> Answer[IpAddress]:
        return self._next([one for one in self._addresses if one.version == 6])  # type: ignore[return-value]  # as above

    async def mx(self, name: str) -> Answer[str]:
        return self._next(list(self._names))  # type: ignore[return-value]  # as above

    async def ptr(self, address: IpAddress) -> Answer[str]:
        return self._next(list(self._names))  # type: ignore[return-value]  # as above


@pytest.mark.covers("RFC 7208 §4.6.4", "RFC 7208 §11.1")
@settings(deadline=None)
@given(
    sender=ANYTHING | st.builds("{}@x.com".format, ANYTHING),
    helo=ANYTHING,
    ip=st.ip_addresses(),
    texts=st.lists(TEXTS, min_size=1, max_size=4),
    names=st.lists(ANYTHING, max_size=12),
    addresses=st.lists(st.ip_addresses(), max_size=3),
    turns=st.lists(st.integers(0, 20), min_size=1, max_size=12),
)
def test_whatever_strangers_say_there_is_a_result_within_the_limits(
    sender: str,
    helo: str,
    ip: IpAddress,
    texts: list[bytes],
    names: list[str],
    addresses: list[IpAddress],
    turns: list[int],
) -> None:
    resolver = Whatever(texts, names, [*addresses, ip], turns)
    result = finish(check_mail_from(resolver, Session(ip, helo), sender))  # type: ignore[arg-type]  # wider answers
    sound(result)
    assert resolver.questions <= MOST_QUESTIONS
