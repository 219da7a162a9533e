"""The DNS as the rest of the program sees it, against name servers on this machine (mail-server G4, D3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rrset
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.net import resolver as resolver_module
from postroom.net.dns_cache import AnswerCache, Found
from postroom.net.dns_types import (
    Bogus,
    Failure,
    InvalidName,
    Kind,
    MxRecord,
    NoAnswer,
    NoData,
    NoSuchName,
    TemporaryFailure,
    TlsaRecord,
    ascii_name,
)
from postroom.net.dns_wire import MAX_RECORDS, Options, Scheme, Server
from postroom.net.resolver import CachingResolver, ResolverLimits
from tests.net.name_server import NameServer

QUICK = ResolverLimits(timeout_secs=0.5)
PATIENT = ResolverLimits(timeout_secs=5.0)


@asynccontextmanager
async def resolving(
    clock: ManualClock, *servers: NameServer | Server, limits: ResolverLimits = PATIENT, options: Options | None = None
) -> AsyncIterator[CachingResolver]:
    where = [server.server if isinstance(server, NameServer) else server for server in servers]
    made = CachingResolver(clock, where, limits=limits, options=options)
    try:
        yield made
    finally:
        await made.aclose()


async def reason_of(made: CachingResolver, name: str) -> Failure:
    with pytest.raises(TemporaryFailure) as caught:
        await made.a(name)
    assert name not in str(caught.value)
    return caught.value.reason


def nobody_there() -> Server:
    """A port of this machine that nobody listens on."""
    return Server(Scheme.DNS, "127.0.0.1", 1)


async def test_every_type_of_record_is_read(clock: ManualClock) -> None:
    zone = NameServer()
    zone.add("example.com", "A", "192.0.2.1", "192.0.2.2").add("example.com", "AAAA", "2001:db8::1")
    zone.add("example.com", "MX", "20 B.example.com.", "10 a.example.com.").add("null.example", "MX", "0 .")
    zone.add("example.com", "TXT", '"v=spf1 " "-all"', '"other"')
    zone.add("1.2.0.192.in-addr.arpa", "PTR", "Mail.Example.com.")
    zone.add("_25._tcp.mx.example.com", "TLSA", "3 1 1 " + "ab" * 32)
    async with zone, resolving(clock, zone) as dns_of:
        assert set((await dns_of.a("example.com")).records) == {IPv4Address("192.0.2.1"), IPv4Address("192.0.2.2")}
        assert (await dns_of.aaaa("example.com")).records == (IPv6Address("2001:db8::1"),)
        found = await dns_of.mx("EXAMPLE.com.")
        assert set(found.records) == {MxRecord(10, "a.example.com"), MxRecord(20, "b.example.com")}
        assert (found.name, found.canonical) == ("example.com", "example.com")
        assert (await dns_of.mx("null.example")).records == (MxRecord(0, "."),)
        assert set((await dns_of.txt("example.com")).records) == {b"v=spf1 -all", b"other"}
        assert (await dns_of.ptr(ip_address("192.0.2.1"))).records == ("mail.example.com",)
        assert (await dns_of.tlsa("_25._tcp.mx.example.com")).records == (TlsaRecord(3, 1, 1, b"\xab" * 32),)
        with pytest.raises(NoSuchName):
            await dns_of.ptr(ip_address("2001:db8::1"))
    assert zone.asked[-1][0].endswith(".8.b.d.0.1.0.0.2.ip6.arpa")


@pytest.mark.covers("RFC 2308 §2.1", "RFC 2308 §2.2", "RFC 8914 §4.7", "mail-server:C5")
async def test_no_name_no_record_no_answer_and_a_forgery_are_four_things(clock: ManualClock) -> None:
    zone = NameServer().add("bare.example", "TXT", '"x"')
    zone.refuse("broken.example", dns.rcode.SERVFAIL).refuse("forged.example", dns.rcode.SERVFAIL, 6)
    zone.refuse("refused.example", dns.rcode.REFUSED).refuse("unknown.example", dns.rcode.SERVFAIL, 22)
    async with zone, resolving(clock, zone) as dns_of:
        with pytest.raises(NoSuchName) as no_name:
            await dns_of.a("gone.example")
        assert not isinstance(no_name.value, NoData)
        assert isinstance(no_name.value, NoAnswer)
        with pytest.raises(NoData) as no_data:
            await dns_of.a("bare.example")
        assert isinstance(no_data.value, NoAnswer)
        with pytest.raises(Bogus) as forged:
            await dns_of.a("forged.example")
        assert forged.value.reason is Failure.BOGUS
        assert await reason_of(dns_of, "broken.example") is Failure.SERVER_FAILURE
        assert await reason_of(dns_of, "unknown.example") is Failure.SERVER_FAILURE
        assert await reason_of(dns_of, "refused.example") is Failure.REFUSED


@pytest.mark.covers("RFC 1035 §2.3.4")
@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a..b", ".a", "a" * 64 + ".example", "é" * 60 + ".example", ".".join(["a" * 63] * 4)),
        *("a b.example", "a\n.example", "a\x00.example", "xn--\u00e9.\u2488.example", "\u00e9." * 200),
        *("\ud800.example", "\u200d.example"),
    ],
)
async def test_what_cannot_be_a_name_is_asked_of_nobody(clock: ManualClock, name: str) -> None:
    async with NameServer() as zone, resolving(clock, zone) as dns_of:
        with pytest.raises(InvalidName) as caught:
            await dns_of.txt(name)
    assert zone.asked == []
    assert len(caught.value.name) <= 254


@given(st.text("abcxyz0189-_.A", max_size=270) | st.lists(st.integers(1, 66), max_size=8))
def test_limits_of_names_are_those_of_dnspython(made: str | list[int]) -> None:
    name = made if isinstance(made, str) else ".".join("a" * length for length in made)
    try:
        expected = dns.name.from_text(name)
    except dns.exception.DNSException:
        assert ascii_name(name) is None
        return
    if expected == dns.name.root:
        assert ascii_name(name) is None
    else:
        assert ascii_name(name) == expected.to_text(omit_final_dot=True).lower()


async def test_international_names_are_asked_for_in_ascii(clock: ManualClock) -> None:
    zone = NameServer().add("xn--bcher-kva.example", "A", "192.0.2.7")
    zone.add("_dmarc.xn--bcher-kva.example", "TXT", '"v=DMARC1"')
    async with zone, resolving(clock, zone) as dns_of:
        assert (await dns_of.a("BÜCHER\u3002example")).records == (IPv4Address("192.0.2.7"),)
        assert (await dns_of.txt("_dmarc.bücher.example.")).records == (b"v=DMARC1",)
        assert zone.count() == 2
        assert (await dns_of.a("xn--bcher-kva.example")).name == "xn--bcher-kva.example"
    assert zone.count() == 2


@pytest.mark.covers("mail-server:G4")
@pytest.mark.parametrize(("ttl", "kept"), [(0, 5), (1, 5), (40, 40), (86_400, 300)])
async def test_answers_are_kept_for_their_time(clock: ManualClock, ttl: int, kept: int) -> None:
    zone = NameServer().add("example.com", "A", "192.0.2.1", ttl=ttl)
    async with zone, resolving(clock, zone) as dns_of:
        assert (await dns_of.a("example.com")).ttl == kept
        clock.advance(kept - 1)
        assert (await dns_of.a("Example.COM")).ttl == 1
        assert zone.count() == 1
        clock.advance(1)
        assert (await dns_of.a("example.com")).ttl == kept
        assert zone.count() == 2


@pytest.mark.covers("RFC 2308 §5", "mail-server:G4")
@pytest.mark.parametrize(("minimum", "soa_ttl", "kept"), [(30, 900, 30), (900, 20, 20), (900, 900, 60), (0, 900, 5)])
@pytest.mark.parametrize("kind", ["A", "TXT"])
async def test_denials_are_kept_by_the_zone(
    clock: ManualClock, minimum: int, soa_ttl: int, kept: int, kind: str
) -> None:
    zone = NameServer(minimum=minimum, soa_ttl=soa_ttl).add("example.com", "TXT", '"x"')
    name = "example.com" if kind == "A" else "gone.example"
    async with zone, resolving(clock, zone) as dns_of:
        ask = dns_of.a if kind == "A" else dns_of.txt
        for _ in range(3):
            with pytest.raises(NoAnswer):
                await ask(name)
        clock.advance(kept - 1)
        with pytest.raises(NoAnswer):
            await ask(name)
        assert zone.count() == 1
        clock.advance(1)
        with pytest.raises(NoAnswer):
            await ask(name)
        assert zone.count() == 2


@pytest.mark.covers("RFC 2308 §5")
async def test_a_denial_without_soa_is_not_kept(clock: ManualClock) -> None:
    async with NameServer(soa=False) as zone, resolving(clock, zone) as dns_of:
        for _ in range(2):
            with pytest.raises(NoSuchName):
                await dns_of.a("gone.example")
    assert zone.count() == 2


@pytest.mark.covers("RFC 9520 §3.2")
async def test_a_failure_is_the_answer_for_some_seconds(clock: ManualClock) -> None:
    zone = NameServer().refuse("broken.example", dns.rcode.SERVFAIL)
    async with zone, resolving(clock, zone) as dns_of:
        assert await reason_of(dns_of, "broken.example") is Failure.SERVER_FAILURE
        assert zone.count() == 2  # one retry
        assert await reason_of(dns_of, "broken.example") is Failure.SERVER_FAILURE
        assert zone.count() == 2
        clock.advance(5)
        zone.refuse("broken.example", dns.rcode.NOERROR)
        with pytest.raises(NoData):
            await dns_of.a("broken.example")


async def test_the_cache_is_bounded_and_keeps_what_is_used(clock: ManualClock) -> None:
    zone = NameServer()
    for number in range(4):
        zone.add(f"n{number}.example", "A", "192.0.2.1")
    async with zone, resolving(clock, zone, limits=replace(PATIENT, cache_entries=2)) as dns_of:
        for name in ("n0", "n1", "n0", "n2", "n0", "n1"):
            await dns_of.a(f"{name}.example")
        assert [name for name, _, _ in zone.asked] == ["n0.example", "n1.example", "n2.example", "n1.example"]
        dns_of.forget()
        await dns_of.a("n1.example")
    assert zone.count("n1.example") == 3


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 900), st.sampled_from([-1.0, 0.0, 5.0, 50.0])), max_size=60
    )
)
def test_the_cache_never_outgrows_its_bounds(steps: list[tuple[str, int, float]]) -> None:
    cache, now = AnswerCache(entries=4, size_bytes=3000), 0.0
    for name, size, seconds in steps:
        outcome = Found(name, (b"x" * size,), 60, False)
        cache.put((name, Kind.TXT), outcome, now, seconds)
        kept = cache.get((name, Kind.TXT), now)
        assert (kept == (outcome, seconds)) is (seconds > 0)
        assert len(cache) <= 4
        assert 0 <= cache.weight <= 3000
        now += 7
    now += 50
    assert all(cache.get((name, Kind.TXT), now) is None for name in "abcdef")
    assert (len(cache), cache.weight) == (0, 0)


async def test_an_answer_too_big_for_the_cache_is_still_told(clock: ManualClock) -> None:
    zone = NameServer().add("big.example", "TXT", f'"{"x" * 200}"')
    async with zone, resolving(clock, zone, limits=replace(PATIENT, cache_bytes=500)) as dns_of:
        for _ in range(2):
            assert len((await dns_of.txt("big.example")).records[0]) == 200
    assert zone.count() == 2


async def test_questions_that_are_the_same_are_one(clock: ManualClock) -> None:
    zone = NameServer().add("example.com", "A", "192.0.2.1").delay("example.com", 0.1)
    async with zone, resolving(clock, zone) as dns_of:
        answers = await asyncio.gather(*(dns_of.a("example.com") for _ in range(50)), dns_of.a("EXAMPLE.com."))
        assert {answer.records for answer in answers} == {(IPv4Address("192.0.2.1"),)}
    assert zone.count() == 1


async def test_who_gives_up_does_not_take_the_answer_from_others(clock: ManualClock) -> None:
    zone = NameServer().add("example.com", "A", "192.0.2.1").delay("example.com", 0.6)
    async with zone, resolving(clock, zone) as dns_of:
        first = asyncio.create_task(dns_of.a("example.com"))
        others = [asyncio.create_task(dns_of.a("example.com")) for _ in range(3)]
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(TemporaryFailure) as impatient:
            await dns_of.a("example.com", within=0.02)
        assert impatient.value.reason is Failure.TIMEOUT
        assert {answer.records for answer in await asyncio.gather(*others)} == {(IPv4Address("192.0.2.1"),)}
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await dns_of.a("example.com", within=0.001)).records  # from the cache
    assert zone.count() == 1


@pytest.mark.covers("mail-server:G4")
async def test_a_cut_answer_is_asked_for_again_over_tcp(clock: ManualClock) -> None:
    texts = [f'"{number} {"x" * 200}"' for number in range(100)]
    zone = NameServer().add("long.example", "TXT", *texts).cut("long.example")
    async with zone, resolving(clock, zone) as dns_of:
        assert len((await dns_of.txt("long.example")).records) == 100
        assert zone.ways() == {"udp": 1, "tcp": 1}
    async with zone, resolving(clock, zone, options=Options(tcp_fallback=False)) as dns_of:
        with pytest.raises(TemporaryFailure) as caught:
            await dns_of.txt("long.example")
        assert caught.value.reason is Failure.TRUNCATED


async def test_an_answer_of_thousands_of_records_is_not_read(clock: ManualClock) -> None:
    zone = NameServer().cut("many.example").cut("most.example")
    zone.add("many.example", "A", *(f"10.0.{number >> 8}.{number & 255}" for number in range(MAX_RECORDS)))
    zone.add("most.example", "A", *(f"10.0.{number >> 8}.{number & 255}" for number in range(MAX_RECORDS - 1)))
    async with zone, resolving(clock, zone) as dns_of:
        assert await reason_of(dns_of, "many.example") is Failure.MALFORMED  # one too many, with the record of EDNS
        assert len((await dns_of.a("most.example")).records) == MAX_RECORDS - 1


@pytest.mark.covers("decisions:D3", "mail-server:G4")
async def test_the_second_server_is_asked_when_the_first_is_silent(clock: ManualClock) -> None:
    silent, healthy = NameServer(), NameServer()
    for number in range(4):
        silent.delay(f"n{number}.example", 30)
        healthy.add(f"n{number}.example", "A", "192.0.2.1")
    async with silent, healthy, resolving(clock, silent, healthy, limits=QUICK) as dns_of:
        assert (await dns_of.a("n0.example")).records
        assert (silent.count(), healthy.count()) == (1, 1)
        await dns_of.a("n1.example")
        assert (silent.count(), healthy.count()) == (1, 2), "who was silent is asked last for a while"
        clock.advance(30)
        await dns_of.a("n2.example")
        assert (silent.count(), healthy.count()) == (2, 3)


@pytest.mark.covers("decisions:D3")
async def test_the_second_server_is_asked_when_the_first_fails(clock: ManualClock) -> None:
    broken = NameServer().refuse("example.com", dns.rcode.SERVFAIL).refuse("other.example", dns.rcode.REFUSED)
    healthy = NameServer().add("example.com", "A", "192.0.2.1")
    async with broken, healthy, resolving(clock, broken, healthy) as dns_of:
        assert (await dns_of.a("example.com")).records
        with pytest.raises(NoSuchName):
            await dns_of.a("other.example")
        assert broken.count() == 2, "an answer about a name is no reason to avoid the server"


async def test_no_other_server_is_asked_to_pass_a_forgery_on(clock: ManualClock) -> None:
    strict = NameServer().refuse("example.com", dns.rcode.SERVFAIL, 7)
    blind = NameServer().add("example.com", "A", "192.0.2.66")
    async with strict, blind, resolving(clock, strict, blind) as dns_of:
        with pytest.raises(Bogus):
            await dns_of.a("example.com")
    assert blind.asked == []


async def test_a_server_that_is_not_there_is_known_at_once(clock: ManualClock) -> None:
    zone = NameServer().add("example.com", "A", "192.0.2.1")
    async with zone, resolving(clock, nobody_there(), zone) as dns_of:
        assert (await dns_of.a("example.com")).records
    async with resolving(clock, nobody_there()) as dns_of:
        assert await reason_of(dns_of, "example.com") is Failure.NETWORK


async def test_silence_ends(clock: ManualClock) -> None:
    zone = NameServer().delay("slow.example", 30)
    async with zone, resolving(clock, zone, limits=QUICK) as dns_of:
        assert await reason_of(dns_of, "slow.example") is Failure.TIMEOUT
    assert zone.count() == 2


def _lie(query: dns.message.QueryMessage, change: Callable[[dns.message.Message], None]) -> bytes:
    made = dns.message.make_response(query)
    made.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", "192.0.2.66"))
    change(made)
    return made.to_wire()


def _other_id(made: dns.message.Message) -> None:
    made.id = (made.id + 1) % 65536


def _other_question(made: dns.message.Message) -> None:
    made.question[0] = dns.rrset.RRset(
        dns.name.from_text("evil.example."), made.question[0].rdclass, made.question[0].rdtype
    )


def _no_answer_bit(made: dns.message.Message) -> None:
    made.flags &= ~dns.flags.QR


@pytest.mark.covers("RFC 5452 §9.1")
async def test_what_does_not_answer_the_question_is_passed_over(clock: ManualClock) -> None:
    def lies(query: dns.message.QueryMessage) -> list[bytes]:
        return [_lie(query, change) for change in (_other_id, _other_question, _no_answer_bit)] + [b"", b"\xff" * 40]

    def lies_then_truth(query: dns.message.QueryMessage) -> list[bytes]:
        made = dns.message.make_response(query)
        made.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", "192.0.2.1"))
        return [*lies(query), made.to_wire()]

    zone = NameServer().script("liar.example", lies).script("half.example", lies_then_truth)
    async with zone, resolving(clock, zone, limits=QUICK) as dns_of:
        assert (await dns_of.a("half.example")).records == (IPv4Address("192.0.2.1"),)
        assert await reason_of(dns_of, "liar.example") is Failure.TIMEOUT


async def test_an_answer_that_denies_itself_is_malformed(clock: ManualClock) -> None:
    def both(query: dns.message.QueryMessage) -> list[bytes]:
        return [_lie(query, lambda made: made.set_rcode(dns.rcode.NXDOMAIN))]

    zone = NameServer().script("both.example", both)
    async with zone, resolving(clock, zone) as dns_of:
        assert await reason_of(dns_of, "both.example") is Failure.MALFORMED


async def test_a_referral_is_no_denial(clock: ManualClock) -> None:
    def refer(query: dns.message.QueryMessage) -> list[bytes]:
        made = dns.message.make_response(query)
        made.authority.append(dns.rrset.from_text("example.", 60, "IN", "NS", "ns.example."))
        return [made.to_wire()]

    zone = NameServer().script("refer.example", refer)
    async with zone, resolving(clock, zone) as dns_of:
        assert await reason_of(dns_of, "refer.example") is Failure.LAME


@pytest.mark.covers("RFC 1034 §3.6.2")
@pytest.mark.parametrize("recurses", [True, False])
async def test_aliases_are_followed(clock: ManualClock, recurses: bool) -> None:
    zone = NameServer().add("www.example", "CNAME", "Alias.example.", ttl=20)
    zone.add("alias.example", "CNAME", "host.example.", ttl=40).add("host.example", "A", "192.0.2.1", ttl=90)
    zone.add("dangling.example", "CNAME", "gone.example.", ttl=7)
    zone.recurses = recurses
    async with zone, resolving(clock, zone) as dns_of:
        found = await dns_of.a("www.example")
        assert (found.name, found.canonical, found.ttl) == ("www.example", "host.example", 20)
        assert found.records == (IPv4Address("192.0.2.1"),)
        with pytest.raises(NoSuchName) as dangling:
            await dns_of.a("dangling.example")
        assert dangling.value.canonical == "gone.example"
        with pytest.raises(NoData) as no_mx:
            await dns_of.mx("www.example")
        assert no_mx.value.canonical == "host.example"
        asked = zone.count()
        clock.advance(6)
        with pytest.raises(NoSuchName):
            await dns_of.a("dangling.example")
        assert zone.count() == asked
        clock.advance(1)
        with pytest.raises(NoSuchName):
            await dns_of.a("dangling.example")
        assert zone.count() > asked


@pytest.mark.parametrize("recurses", [True, False])
async def test_aliases_without_end_are_given_up(clock: ManualClock, recurses: bool) -> None:
    zone = NameServer(soa=False).add("a.example", "CNAME", "b.example.").add("b.example", "CNAME", "a.example.")
    for number in range(200):
        zone.add(f"n{number}.example", "CNAME", f"n{number + 1}.example.")
    zone.recurses = recurses
    async with zone, resolving(clock, zone) as dns_of:
        for name in ("a.example", "n0.example"):
            assert await reason_of(dns_of, name) is Failure.CHAIN
    assert zone.count() <= 2 * (resolver_module.MAX_FOLLOWED + 1)


@pytest.mark.covers("RFC 6891 §7")
async def test_a_server_without_edns_is_asked_without(clock: ManualClock) -> None:
    zone = NameServer().add("example.com", "A", "192.0.2.1")
    zone.knows_edns = False
    async with zone, resolving(clock, zone) as dns_of:
        assert (await dns_of.a("example.com")).records
    assert zone.count() == 2


@pytest.mark.covers("RFC 6761 §6.3", "RFC 6761 §6.4", "RFC 7686 §2")
async def test_names_that_are_nobodys_are_asked_of_nobody(clock: ManualClock) -> None:
    async with NameServer() as zone, resolving(clock, zone) as dns_of:
        assert (await dns_of.a("localhost")).records == (IPv4Address("127.0.0.1"),)
        assert (await dns_of.aaaa("mail.localhost.")).records == (IPv6Address("::1"),)
        with pytest.raises(NoData):
            await dns_of.mx("localhost")
        for name in ("mx.invalid", "abc.onion"):
            with pytest.raises(NoSuchName):
                await dns_of.mx(name)
        assert zone.asked == []


@pytest.mark.covers("RFC 4035 §3.2.3", "mail-server:C5")
@pytest.mark.parametrize(
    ("options", "believed"),
    [(Options(), False), (Options(trust_ad=True), True), (Options(trust_ad=True, check_disabled=True), False)],
)
async def test_authenticated_is_what_a_trusted_server_says(
    clock: ManualClock, options: Options, believed: bool
) -> None:
    zone = NameServer().add("example.com", "A", "192.0.2.1")
    zone.authenticates = True
    async with zone, resolving(clock, zone, options=options) as dns_of:
        assert (await dns_of.a("example.com")).authenticated is believed
        with pytest.raises(NoData) as none:
            await dns_of.tlsa("example.com")
        assert none.value.authenticated is believed
        assert not (await dns_of.a("localhost")).authenticated
        zone.authenticates = False
        zone.add("other.example", "A", "192.0.2.1")
        assert not (await dns_of.a("other.example")).authenticated


@pytest.mark.covers("edge:H7")
async def test_validation_can_be_switched_off_to_find_out_what_is_wrong(clock: ManualClock) -> None:
    def validate(query: dns.message.QueryMessage) -> list[bytes]:
        if query.flags & dns.flags.CD:
            return [_lie(query, lambda made: None)]
        made = dns.message.make_response(query)
        made.set_rcode(dns.rcode.SERVFAIL)
        return [made.to_wire()]

    zone = NameServer().script("bogus.example", validate)
    async with zone:
        async with resolving(clock, zone) as dns_of:
            assert await reason_of(dns_of, "bogus.example") is Failure.SERVER_FAILURE
        async with resolving(clock, zone, options=Options(check_disabled=True)) as dns_of:
            assert (await dns_of.a("bogus.example")).records


async def test_closing_ends_what_waits(clock: ManualClock) -> None:
    zone = NameServer().delay("slow.example", 30)
    async with zone, resolving(clock, zone) as dns_of:
        waiting = [asyncio.create_task(dns_of.a("slow.example")) for _ in range(2)]
        await asyncio.sleep(0.05)
        await dns_of.aclose()
        for task in waiting:
            with pytest.raises(TemporaryFailure) as caught:
                await task
            assert caught.value.reason is Failure.CLOSED
        assert await reason_of(dns_of, "another.example") is Failure.CLOSED


async def test_sockets_and_waiting_questions_are_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "MAX_WAITING", 3)
    zone = NameServer()
    for number in range(4):
        zone.add(f"n{number}.example", "A", "192.0.2.1").delay(f"n{number}.example", 0.3)
    async with zone, resolving(clock, zone, limits=replace(PATIENT, sockets=1)) as dns_of:
        waiting = [asyncio.create_task(dns_of.a(f"n{number}.example")) for number in range(3)]
        await asyncio.sleep(0.05)
        assert zone.count() == 1
        assert await reason_of(dns_of, "n3.example") is Failure.OVERLOADED
        await asyncio.gather(*waiting)
        assert zone.count() == 3
        assert (await dns_of.a("n3.example")).records, "an overload is not remembered"


def test_all_of_it_on_uvloop(clock: ManualClock) -> None:
    async def scenario() -> None:
        zone = NameServer().add("example.com", "A", "192.0.2.1").add("long.example", "TXT", '"x"').cut("long.example")
        async with zone, resolving(clock, nobody_there(), zone) as dns_of:
            assert (await dns_of.a("example.com")).records == (IPv4Address("192.0.2.1"),)
            assert (await dns_of.txt("long.example")).records == (b"x",)
        assert zone.ways() == {"udp": 2, "tcp": 1}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("number", [0, 9])
def test_too_few_and_too_many_name_servers(clock: ManualClock, number: int) -> None:
    with pytest.raises(ValueError):
        CachingResolver(clock, [nobody_there()] * number)
