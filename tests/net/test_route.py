"""Routes by way of a real resolver and a name server on this machine (mail-server C5, outbound §9.2)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import dns.message
import dns.rcode
import dns.rdatatype
import pytest

from postroom.base.clock import ManualClock
from postroom.net.dns_types import Failure
from postroom.net.dns_wire import Options
from postroom.net.mx import (
    Family,
    LoopsToSelf,
    NoSuchDomain,
    NoUsableAddress,
    NullMx,
    Route,
    RoutePolicy,
    Skipped,
    TemporaryDnsFailure,
    Unusable,
    Via,
)
from postroom.net.resolver import CachingResolver, ResolverLimits
from postroom.net.route import route
from tests.net.name_server import NameServer

CHANCE = random.Random(1)


class Place:
    """A zone, and the way to it."""

    def __init__(self, zone: NameServer, resolver: CachingResolver) -> None:
        self.zone, self._resolver = zone, resolver

    async def to(self, domain: str, *, within: float = 20.0, **policy: object) -> Route:
        allowed = RoutePolicy(**policy)  # type: ignore[arg-type] # the test names the fields
        return await route(self._resolver, domain, policy=allowed, random=CHANCE.random, within=within)


@asynccontextmanager
async def place(clock: ManualClock) -> AsyncIterator[Place]:
    async with NameServer() as zone:
        resolver = CachingResolver(clock, [zone.server], limits=ResolverLimits(timeout_secs=5.0))
        try:
            yield Place(zone, resolver)
        finally:
            await resolver.aclose()


@pytest.mark.covers("mail-server:C5", "RFC 5321 §5.1")
async def test_hosts_with_their_addresses(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("d.example", "MX", "20 b.example.", "10 A.example.", "30 alias.example.")
        here.zone.add("a.example", "A", "8.8.8.8").add("a.example", "AAAA", "2606:4700::1")
        here.zone.add("b.example", "A", "9.9.9.9").add("alias.example", "CNAME", "real.example.")
        here.zone.add("real.example", "A", "8.8.4.4")
        found = await here.to("D.example.")
        assert (found.domain, found.via) == ("d.example", Via.MX)
        assert [(host.name, host.preference) for host in found.hosts] == [
            *(("a.example", 10), ("b.example", 20), ("alias.example", 30))
        ]
        assert found.hosts[0].addresses == (ip_address("2606:4700::1"), ip_address("8.8.8.8"))
        assert found.hosts[2].addresses == (ip_address("8.8.4.4"),)
        assert found.names == ("a.example", "alias.example", "b.example")
        assert not found.authenticated
        asked = here.zone.count()
        await here.to("d.example")
        assert here.zone.count() == asked, "the second message to a domain asks nothing"


@pytest.mark.covers("RFC 5321 §5.1", "RFC 7505 §3", "mail-server:C5")
async def test_domains_without_hosts(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("null.example", "MX", "0 .").add("implicit.example", "A", "8.8.8.8")
        here.zone.add("alias.example", "CNAME", "implicit.example.").add("bare.example", "TXT", '"x"')
        here.zone.add("nowhere.example", "MX", "0 gone.example.").refuse("broken.example", dns.rcode.SERVFAIL)
        here.zone.add("unsure.example", "MX", "0 broken.example.")
        for domain in ("implicit.example", "alias.example"):
            found = await here.to(domain)
            assert (found.via, found.hosts[0].name) == (Via.IMPLICIT, domain)
            assert found.hosts[0].addresses == (ip_address("8.8.8.8"),)
        with pytest.raises(NullMx):
            await here.to("null.example")
        with pytest.raises(NoSuchDomain):
            await here.to("gone.example")
        for domain in ("bare.example", "nowhere.example"):
            with pytest.raises(NoUsableAddress) as none:
                await here.to(domain)
            assert not none.value.permanent
        for domain in ("broken.example", "unsure.example"):
            with pytest.raises(TemporaryDnsFailure) as failed:
                await here.to(domain)
            assert failed.value.reason is Failure.SERVER_FAILURE


async def test_what_is_no_domain_is_asked_of_nobody(clock: ManualClock) -> None:
    async with place(clock) as here:
        for domain in ("", "a..example", "x" * 64 + ".example", "[8.8.8]", "a b", "x." * 5000):
            with pytest.raises(NoSuchDomain):
                await here.to(domain)
        assert (await here.to("[8.8.8.8]")).via is Via.LITERAL
        assert here.zone.asked == []


async def test_an_international_domain(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("xn--bcher-kva.example", "MX", "0 a.example.").add("a.example", "A", "8.8.8.8")
        assert (await here.to("Bücher.example")).domain == "xn--bcher-kva.example"


@pytest.mark.covers("security-privacy:A9", "mail-server:C5")
async def test_mail_for_this_machine_goes_nowhere(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("trap.example", "MX", "0 localhost.").add("inside.example", "MX", "0 a.example.")
        here.zone.add("a.example", "A", "8.8.8.8").add("a.example", "AAAA", "fd00::1")
        for domain in ("trap.example", "inside.example", "localhost", "[127.0.0.1]", "[IPv6:::1]"):
            with pytest.raises(NoUsableAddress) as caught:
                await here.to(domain)
            assert caught.value.permanent
        assert (await here.to("trap.example", allow_private=True)).hosts[0].name == "localhost"


@pytest.mark.covers("RFC 5321 §5.1")
async def test_we_do_not_send_to_ourselves(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("loop.example", "MX", "0 other.example.").add("other.example", "CNAME", "us.example.")
        here.zone.add("us.example", "A", "8.8.8.8").add("direct.example", "MX", "0 us.example.")
        for domain in ("loop.example", "direct.example", "us.example"):
            with pytest.raises(LoopsToSelf):
                await here.to(domain, own_names=frozenset({"us.example"}))
        with pytest.raises(LoopsToSelf):
            await here.to("loop.example", own_addresses=frozenset({ip_address("8.8.8.8")}))


async def test_only_the_family_that_is_wanted_is_asked_for(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("d.example", "MX", "0 a.example.").add("a.example", "A", "8.8.8.8")
        here.zone.add("a.example", "AAAA", "2606:4700::1")
        found = await here.to("d.example", family=Family.IPV4_ONLY)
        assert found.hosts[0].addresses == (ip_address("8.8.8.8"),)
        assert [kind for _, kind, _ in here.zone.asked] == ["MX", "A"]
        found = await here.to("d.example", family=Family.IPV6_ONLY)
        assert found.hosts[0].addresses == (ip_address("2606:4700::1"),)


async def test_a_broken_family_does_not_hide_the_other(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("d.example", "MX", "0 a.example.").add("a.example", "A", "8.8.8.8")
        here.zone.script("a.example", lambda query: _only_ipv4(here.zone, query))
        assert (await here.to("d.example")).hosts[0].addresses == (ip_address("8.8.8.8"),)


def _only_ipv4(zone: NameServer, query: dns.message.QueryMessage) -> list[bytes]:
    if query.question[0].rdtype == dns.rdatatype.A:
        return [zone.answer(query, "a.example").to_wire()]
    made = dns.message.make_response(query)
    made.set_rcode(dns.rcode.SERVFAIL)
    return [made.to_wire()]


async def test_a_host_that_nobody_can_say_about_holds_nothing_up(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("d.example", "MX", "0 slow.example.", "10 a.example.").add("a.example", "A", "8.8.8.8")
        here.zone.delay("slow.example", 30).delay("slow.mx.example", 30)
        found = await here.to("d.example", within=1.6)
        assert [host.name for host in found.hosts] == ["a.example"]
        assert found.skipped == (Skipped("slow.example", Unusable.TEMPORARY),)
        with pytest.raises(TemporaryDnsFailure) as caught:
            await here.to("slow.mx.example", within=1.6)
        assert caught.value.reason is Failure.TIMEOUT


@pytest.mark.covers("mail-server:C5")
async def test_a_zone_cannot_make_us_ask_without_end(clock: ManualClock) -> None:
    async with place(clock) as here:
        here.zone.add("d.example", "MX", *(f"0 m{number}.example." for number in range(200)))
        for number in range(200):
            here.zone.add(f"m{number}.example", "A", *(f"8.8.{number}.{last}" for last in range(20)))
        found = await here.to("d.example", max_hosts=3, max_addresses=2)
        assert [len(host.addresses) for host in found.hosts] == [2, 2, 2]
        assert here.zone.count() <= 1 + 1 + 3 * 2  # the MX records come over TCP


@pytest.mark.covers("RFC 4035 §3.2.3")
async def test_what_was_validated_is_told(clock: ManualClock) -> None:
    async with NameServer() as zone:
        zone.add("d.example", "MX", "0 a.example.").add("a.example", "A", "8.8.8.8")
        zone.authenticates = True
        resolver = CachingResolver(clock, [zone.server], options=Options(trust_ad=True))
        found = await Place(zone, resolver).to("d.example")
        assert found.authenticated
        assert found.hosts[0].authenticated
        await resolver.aclose()
