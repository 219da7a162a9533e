"""What the tests of SPF share: a check without a loop, zones, and what holds of every result."""

from collections.abc import Coroutine, Mapping
from ipaddress import ip_address
from typing import Any, Final

from postroom.mailauth.spf import MAX_EXPLANATION, MAX_LOOKUPS, MAX_VOID_LOOKUPS, Session, check_helo, check_mail_from
from postroom.mailauth.spf_macro import ascii_domain
from postroom.mailauth.spf_result import MAX_SHOWN, Reason, SpfResult, Status
from postroom.mailauth.zone import Trouble, Written, Zone

IP: Final = "192.0.2.3"
SENDER: Final = "strong-bad@email.example.com"
DOMAIN: Final = "email.example.com"
HELO: Final = "mx.example.org"
NOW: Final = 1_750_000_000
REVERSE: Final = "3.2.0.192.in-addr.arpa"
"""Where the names of `IP` stand."""
MOST_QUESTIONS: Final = 1 + MAX_LOOKUPS * 11 + 12
"""One record, ten terms of a question and ten hosts each, and an explanation that wants a host name."""


OTHER: Final[dict[str, Written]] = {
    "yes.com": {"A": [IP], "AAAA": ["2001:db8::1"], "TXT": ["v=spf1 ip4:192.0.2.3 ip6:2001:db8::1 -all"]},
    "twin.com": {"A": ["192.0.2.2"], "AAAA": ["2001:db8::"]},
    "near.com": {"A": ["192.0.2.77"], "AAAA": ["2001:db8::77"]},
    "no.com": {"A": ["198.51.100.1"], "AAAA": ["2001:db8:1::1"], "TXT": ["v=spf1 -all"]},
    "soft.com": {"TXT": ["v=spf1 ~all"]},
    "neutral.com": {"TXT": ["v=spf1 ?all"]},
    "faulty.com": {"TXT": ["v=spf1 foo"]},
    "text.com": {"TXT": ["other"]},
    "slow.com": Trouble.TIMEOUT,
    "mail.com": {"MX": ["10 no.com", "20 gone.com", "30 yes.com"]},
    "slowmail.com": {"MX": ["10 yes.com", "20 slow.com"]},
    "latemail.com": {"MX": ["10 slow.com", "20 yes.com"]},
    "null.com": {"MX": ["0 ."]},
    "many.com": {"MX": [f"{number} host{number}.com" for number in range(11)]},
    "ten.com": {"MX": [f"{number} no.com" for number in range(1)] + [f"1{n} no{n}.com" for n in range(9)]},
    **{f"no{number}.com": {"A": ["198.51.100.1"], "AAAA": ["2001:db8:1::1"]} for number in range(9)},
    REVERSE: {"PTR": ["forged.yes.com", "yes.com", "mx.other.com"]},
    "forged.yes.com": {"A": ["198.51.100.1"]},
    "mx.other.com": {"A": [IP, "198.51.100.1"]},
    ip_address("2001:db8::1").reverse_pointer: {"PTR": ["yes.com"]},
}
"""Domains that records of tests speak of."""


def finish(work: Coroutine[Any, Any, SpfResult]) -> SpfResult:
    """Its result. The resolver of these tests waits for nothing, so that no loop is needed."""
    try:
        work.send(None)
    except StopIteration as end:
        result: SpfResult = end.value
        return result
    raise AssertionError("it waited for something else than the resolver")


def check(
    names: Mapping[str, Written] | Zone,
    sender: str = SENDER,
    ip: str = IP,
    helo: str = HELO,
    *,
    explain: bool = True,
) -> SpfResult:
    """The result for MAIL FROM, of which holds what must hold of each."""
    zone = names if isinstance(names, Zone) else Zone(names)
    before = zone.questions
    session = Session(ip_address(ip), helo, receiver="mx.postroom.example", now=NOW)
    result = finish(check_mail_from(zone, session, sender, explain=explain))
    assert zone.questions - before <= MOST_QUESTIONS
    sound(result)
    return result


def check_greeting(names: Mapping[str, Written], helo: str, ip: str = IP) -> SpfResult:
    result = finish(check_helo(Zone(names), Session(ip_address(ip), helo)))
    sound(result)
    return result


def record(*terms: str) -> dict[str, Written]:
    """A zone in which `DOMAIN` has a record of these terms."""
    return {DOMAIN: {"TXT": [" ".join(("v=spf1", *terms))]}}


def sound(result: SpfResult) -> None:
    """What holds of every result."""
    assert result.reason is Reason.MATCH or result.status is result.reason.status
    assert result.lookups <= MAX_LOOKUPS
    assert result.void_lookups <= MAX_VOID_LOOKUPS + (result.reason is Reason.VOID_LIMIT)
    assert (result.reason is Reason.INVALID_DOMAIN) is (ascii_domain(result.domain) is None)
    assert len(result.explanation) <= MAX_EXPLANATION
    assert not result.explanation or result.status is Status.FAIL
    for text in (result.domain, result.mechanism, result.record_domain, result.explanation):
        assert text.isascii()
        assert text == "" or text.isprintable()
    assert len(result.domain) <= 253
    assert len(result.mechanism) <= MAX_SHOWN
    made = result.as_dict()
    assert made["status"] == result.status.value
    assert all(type(value) in (str, int) for value in made.values())
