"""What SPF makes of names and texts: macros, names beyond ASCII, explanations, results."""

import json
from ipaddress import ip_address
from typing import Final

import pytest

from postroom.mailauth.spf import MAX_EXPLANATION, Session, check_host
from postroom.mailauth.spf_result import Reason, Status
from postroom.mailauth.zone import Trouble, Written, Zone
from tests.mailauth.spf_tools import DOMAIN, HELO, IP, OTHER, REVERSE, SENDER, check, finish, record


@pytest.mark.covers("RFC 7208 §7.3")
@pytest.mark.parametrize(
    ("reverse", "name"),
    [
        ({"PTR": ["mx.other.com", "sub.email.example.com", "email.example.com"]}, "email.example.com"),
        ({"PTR": ["mx.other.com", "sub.email.example.com"]}, "sub.email.example.com"),
        ({"PTR": ["forged.yes.com", "mx.other.com"]}, "mx.other.com"),
        ({"PTR": ["forged.yes.com"]}, "unknown"),
        ({"PTR": ["slow.com", "gone.com"]}, "unknown"),
        (Trouble.SERVFAIL, "unknown"),
        ({"A": [IP]}, "unknown"),
    ],
)
def test_the_validated_name_of_the_client(reverse: Written, name: str) -> None:
    here: dict[str, list[str]] = {"TXT": ["v=spf1 exists:%{p}.x.com -all"], "A": [IP]}
    zone = Zone({**OTHER, REVERSE: reverse, DOMAIN: here, "sub.email.example.com": {"A": [IP]}})
    check(zone)
    assert zone.asked[-1] == (f"{name}.x.com", "A")


@pytest.mark.covers("RFC 7208 §7")
@pytest.mark.parametrize(
    ("spec", "ip", "helo", "asked"),
    [
        ("%{ir}.%{v}._spf.%{d2}", IP, HELO, "3.2.0.192.in-addr._spf.example.com"),
        ("%{ir}.%{v}.x.com", "::ffff:192.0.2.3", HELO, "3.2.0.192.in-addr.x.com"),
        ("%{i3}.x.com", "2001:db8::cb01", HELO, "b.0.1.x.com"),
        ("%{h}.x.com", IP, "Mail.Example.ORG.", "mail.example.org.x.com"),
        ("%{h}.x.com", IP, "[192.0.2.3]", "[192.0.2.3].x.com"),
        ("%{h}.x.com", IP, "bücher.example", "xn--bcher-kva.example.x.com"),
        ("%{s}.x.com", IP, HELO, "strong-bad@email.example.com.x.com"),
        ("%{S}.x.com", IP, HELO, "strong-bad%40email.example.com.x.com"),
        ("%{lr-}.%%.x.com", IP, HELO, "bad.strong.%.x.com"),
    ],
)
def test_macros_in_names(spec: str, ip: str, helo: str, asked: str) -> None:
    zone = Zone(record(f"exists:{spec}", "-all"))
    assert check(zone, ip=ip, helo=helo).status is Status.FAIL
    assert zone.asked[-1] == (asked, "A")


def test_macros_of_domains_within_domains() -> None:
    names: dict[str, Written] = {
        **record("include:inner.com"),
        "inner.com": {"TXT": ["v=spf1 redirect=last.com"]},
        "last.com": {"TXT": ["v=spf1 exists:%{d}.%{o}.x.com"]},
    }
    zone = Zone(names)
    check(zone)
    assert zone.asked[-1] == (f"last.com.{DOMAIN}.x.com", "A")


@pytest.mark.covers("RFC 8616 §4")
def test_names_beyond_ascii() -> None:
    names: dict[str, Written] = {
        "xn--bcher-kva.example": {"TXT": ["v=spf1 a:%{d} exists:%{l}.x.com include:%{S}.gone.com redirect=%{l}.%{o}"]},
        "x.com": {"TXT": ["any"]},
    }
    zone = Zone(names)
    result = check(zone, "jörg@bücher.example")
    assert (result.domain, result.reason) == ("xn--bcher-kva.example", Reason.NO_MATCH)
    assert [name for name, _ in zone.asked] == ["xn--bcher-kva.example"] * 2  # terms with its local part ask nothing
    assert check(Zone(names), "joe@bücher.example").reason is Reason.INCLUDE_WITHOUT_RECORD
    endless = Zone(record("exists:%{l}.x.com", "-all"))
    assert check(endless, "x" * 257 + "@" + DOMAIN).status is Status.FAIL
    assert endless.questions == 1


EXPLAINED: Final = record("-all", "exp=why.%{d}")


@pytest.mark.covers("RFC 7208 §6.2")
@pytest.mark.parametrize(
    ("texts", "explanation"),
    [
        (
            ["Not %{i}, %{h} (%{c}), says %{r} at %{t}."],
            f"Not {IP}, {HELO} ({IP}), says mx.postroom.example at 1750000000.",
        ),
        (
            ["%{d} %{o} %{v} %{p} %{s} %{l} 100%%%_%-"],
            f"{DOMAIN} {DOMAIN} in-addr unknown {SENDER} strong-bad 100% %20",
        ),
        (["See http://%{D}/%{L}?ip=%{I}"], f"See http://{DOMAIN}/strong-bad?ip={IP}"),
        (["x" * 600], "x" * MAX_EXPLANATION),
        (["%{s}" * 1000], (SENDER * 30)[:MAX_EXPLANATION]),
        *(
            (["one", "two"], ""),
            ([b"\xff"], ""),
            ([""], ""),
            (["%{x}"], ""),
            (["100%"], ""),
            (["a\nb"], ""),
            (["\x1b[31m"], ""),
        ),
        *((None, ""), (["x" * 4097], ""), (["tab\t"], ""), (["Grüße"], "")),
    ],
)
def test_explanations(texts: list[str | bytes] | None, explanation: str) -> None:
    zone = Zone(EXPLAINED if texts is None else {**EXPLAINED, f"why.{DOMAIN}": {"TXT": texts}})
    result = check(zone)
    assert (result.status, result.explanation) == (Status.FAIL, explanation)
    assert zone.asked[1][0] == f"why.{DOMAIN}"
    quiet = Zone(EXPLAINED)
    assert check(quiet, explain=False).status is Status.FAIL
    assert quiet.questions == 1


@pytest.mark.covers("RFC 7208 §6.2", "RFC 7208 §5.2", "RFC 7208 §6.1")
@pytest.mark.parametrize(
    ("terms", "status", "explanation"),
    [
        ("exp=ours.com redirect=theirs.com", "fail", "theirs"),
        ("exp=ours.com redirect=silent.com", "fail", ""),
        ("exp=ours.com include:theirs.com -all", "fail", "ours"),
        ("exp=ours.com -include:all.com", "fail", "ours"),
        ("include:theirs.com -all", "fail", ""),
        ("exp=ours.com ~all", "softfail", ""),
        ("exp=slow.com -all", "fail", ""),
        ("exp=gone.com -all", "fail", ""),
        ("exp=a..b.com -all", "fail", ""),
        ("exp=%{l}.%{p}.com -all", "fail", ""),
    ],
)
def test_whose_explanation(terms: str, status: str, explanation: str) -> None:
    names: dict[str, Written] = {
        **record(*terms.split()),
        "ours.com": {"TXT": ["ours"]},
        "theirs.com": {"TXT": ["v=spf1 exp=why.theirs.com -all"]},
        "why.theirs.com": {"TXT": ["theirs"]},
        "silent.com": {"TXT": ["v=spf1 -all"]},
        "all.com": {"TXT": ["v=spf1 +all"]},
        "slow.com": Trouble.TIMEOUT,
    }
    result = check(names)
    assert (result.status.value, result.explanation) == (status, explanation)


def test_explanations_of_clients_that_say_strange_things() -> None:
    why: dict[str, Written] = {**EXPLAINED, f"why.{DOMAIN}": {"TXT": ["%{h} may not"]}}
    assert check(why, helo="a\x1b[1m").explanation == ""
    assert check(why, helo="a b").explanation == "a b may not"


def test_explanations_of_senders_beyond_ascii() -> None:
    why: dict[str, Written] = {**EXPLAINED, f"why.{DOMAIN}": {"TXT": ["%{L} may not"]}}
    assert check(why, f"jörg@{DOMAIN}").explanation == "j%C3%B6rg may not"
    why[f"why.{DOMAIN}"] = {"TXT": ["%{l} may not"]}
    assert check(why, f"jörg@{DOMAIN}").explanation == ""


def test_what_a_result_tells() -> None:
    result = check({**OTHER, **record("a:no.com", "include:text.com", "-all")})
    assert result.as_dict() == {
        "status": "permerror",
        "reason": "include_without_record",
        "identity": "mailfrom",
        "domain": DOMAIN,
        "record_domain": DOMAIN,
        "mechanism": "include:text.com",
        "explanation": "",
        "lookups": 2,
        "void_lookups": 0,
    }
    json.dumps(result.as_dict())
    inner = check({**OTHER, **record("include:deep.com"), "deep.com": {"TXT": ["v=spf1 a mx/99"]}})
    assert (inner.reason, inner.record_domain, inner.mechanism) == (Reason.SYNTAX, "deep.com", "mx/99")
    long = check(record("a:" + "x." * 1000 + "com", "foo:" + "y" * 500))
    assert (long.reason, long.mechanism) == (Reason.SYNTAX, "foo:" + "y" * 196)
    assert hash(result) == hash(check({**OTHER, **record("a:no.com", "include:text.com", "-all")}))


def test_another_domain_than_the_senders() -> None:
    """As `include` and `redirect` ask, `check_host` can be asked (§4.1)."""
    zone = Zone({"x.com": {"TXT": ["v=spf1 exists:%{d}.%{o}.%{l}.y.com -all"]}})
    result = finish(check_host(zone, Session(ip_address(IP), HELO), "x.com", SENDER))
    assert (result.status, result.domain) == (Status.FAIL, "x.com")
    assert zone.asked[-1][0] == f"x.com.{DOMAIN}.strong-bad.y.com"
