"""The resolver of tests and of records that are not published yet."""

from ipaddress import ip_address
from typing import Any

import pytest

from postroom.mailauth.resolver import Answer, NameNotFoundError, NoRecordError, Resolver, TemporaryResolverError
from postroom.mailauth.zone import Trouble, Written, Zone

NAMES: dict[str, Written] = {
    "Example.com": {
        "TXT": ["v=spf1 -all", b"\xff", "v=spf1 -all"],
        "A": ["192.0.2.1"],
        "AAAA": ["2001:db8::1"],
        "MX": ["20 b.example.com.", "10 A.example.com"],
    },
    "null.example": {"MX": ["0 ."]},
    "www.example.com": {"CNAME": ["example.com."]},
    "round.example": {"CNAME": ["round.example"]},
    "lost.example": {"CNAME": ["gone.example"]},
    "half.example": {"TXT": Trouble.SERVFAIL, "A": ["192.0.2.9"]},
    "slow.example": Trouble.TIMEOUT,
    "1.2.0.192.in-addr.arpa": {"PTR": ["Mail.Example.com."]},
}


@pytest.mark.covers("RFC 7208 §4.6.4", "RFC 8020")
async def test_answers_voids_and_trouble() -> None:
    zone = Zone(NAMES, authenticated=["null.example"])
    resolver: Resolver = zone
    assert await resolver.txt("example.COM") == (b"v=spf1 -all", b"\xff")
    assert await resolver.a("www.example.com.") == (ip_address("192.0.2.1"),)
    assert await resolver.aaaa("example.com") == (ip_address("2001:db8::1"),)
    assert await resolver.mx("example.com") == ("a.example.com", "b.example.com")
    assert await resolver.mx("null.example") == (".",)
    assert await resolver.ptr(ip_address("192.0.2.1")) == ("mail.example.com",)
    for name, error in (("gone.example", NameNotFoundError), ("lost.example", NameNotFoundError)):
        with pytest.raises(error) as caught:
            await resolver.a(name)
        assert not isinstance(caught.value, NoRecordError)
    for name in ("null.example", "example", "half.example", "2.0.192.in-addr.arpa"):
        with pytest.raises(NoRecordError):
            await resolver.aaaa(name)
    for name in ("slow.example", "half.example", "round.example"):
        with pytest.raises(TemporaryResolverError):
            await resolver.txt(name)
    assert zone.questions == len(zone.asked) == 15
    assert zone.count()["half.example", "TXT"] == 1


async def test_what_dnssec_vouches_for() -> None:
    some = Zone(NAMES, authenticated=["NULL.example", "www.example.com"])
    assert (await some.mx("null.example")).authenticated
    assert not (await some.a("www.example.com")).authenticated  # the end of its chain is not vouched for
    assert (await Zone(NAMES, authenticated=True).a("www.example.com")).authenticated
    assert not (await Zone(NAMES).a("www.example.com")).authenticated
    assert Answer([1], authenticated=True) == Answer([1]) == (1,)


@pytest.mark.parametrize(
    "written", [{"A": ["192.0.2"]}, {"MX": ["mx.example"]}, {"SRV": ["x"]}, {"TXT": "v=spf1"}, {"AAAA": ["192.0.2.1"]}]
)
def test_what_cannot_be_read(written: Any) -> None:
    with pytest.raises(ValueError):
        Zone({"example.com": written})
