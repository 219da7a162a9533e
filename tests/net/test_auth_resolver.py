"""The budget of one message: how much, how long, and each question once (inbound §9, §17; decisions D3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from ipaddress import IPv4Address, ip_address
from typing import Any

import dns.rcode
import pytest

from postroom.base.clock import ManualClock, SystemClock
from postroom.mailauth import spf
from postroom.mailauth.resolver import NameNotFoundError, NoRecordError, Resolver, ResolverError, TemporaryResolverError
from postroom.mailauth.spf_result import Status
from postroom.net.auth_resolver import MessageLimits, MessageResolver
from postroom.net.dns_types import Answer
from postroom.net.resolver import CachingResolver
from tests.net.name_server import NameServer
from tests.outbound.fake_mx import FakeDns


class Gate(FakeDns):
    """Answers TXT when it is told to; a name that begins with `stuck` never has an answer, and nothing hurries it."""

    def __init__(self) -> None:
        super().__init__(texts={"a.example": [b"a"], "b.example": [b"b"], "stuck.example": [b"s"]})
        self.open = asyncio.Event()
        self.within: list[float | None] = []

    async def txt(self, name: str, *, within: float | None = None) -> Answer[bytes]:
        self.within.append(within)
        if name.startswith("stuck"):
            await asyncio.sleep(3600)
        await self.open.wait()
        return await super().txt(name, within=within)


async def error_of(asking: Coroutine[Any, Any, Any]) -> type[ResolverError]:
    with pytest.raises(ResolverError) as caught:
        await asking
    return type(caught.value)


async def test_every_type_through_the_real_resolver(clock: ManualClock) -> None:
    zone = NameServer()
    zone.add("example.com", "A", "192.0.2.1").add("example.com", "AAAA", "2001:db8::1")
    zone.add("example.com", "MX", "20 B.example.com.", "10 a.example.com.").add("null.example", "MX", "0 .")
    zone.add("example.com", "TXT", '"v=spf1 " "-all"')
    zone.add("1.2.0.192.in-addr.arpa", "PTR", "Mail.Example.com.")
    zone.refuse("broken.example", dns.rcode.SERVFAIL).refuse("forged.example", dns.rcode.SERVFAIL, 6)
    zone.authenticates = True
    async with zone, aclosing(CachingResolver(clock, [zone.server])) as caching:
        resolver: Resolver = MessageResolver(caching, clock)
        assert await resolver.txt("Example.com") == (b"v=spf1 -all",)
        assert await resolver.a("example.com.") == (IPv4Address("192.0.2.1"),)
        assert await resolver.aaaa("example.com") == (ip_address("2001:db8::1"),)
        assert await resolver.mx("example.com") == ("a.example.com", "b.example.com")
        assert await resolver.mx("null.example") == (".",)
        assert await resolver.ptr(ip_address("192.0.2.1")) == ("mail.example.com",)
        assert await error_of(resolver.ptr(ip_address("2001:db8::1"))) is NameNotFoundError
        assert await error_of(resolver.a("gone.example")) is NameNotFoundError
        assert await error_of(resolver.a("null.example")) is NoRecordError
        assert await error_of(resolver.a("broken.example")) is TemporaryResolverError
        assert await error_of(resolver.txt("forged.example")) is TemporaryResolverError
        for name in ("", "a..example", "x" * 64 + ".example", "white space.example"):
            assert await error_of(resolver.a(name)) is NameNotFoundError


async def test_dnssec_status_comes_through(clock: ManualClock) -> None:
    class Signed(FakeDns):
        async def txt(self, name: str, *, within: float | None = None) -> Answer[bytes]:
            return Answer(name, name, (b"x",), 60.0, name == "signed.example")

    resolver = MessageResolver(Signed(), clock)
    assert (await resolver.txt("signed.example")).authenticated
    assert not (await resolver.txt("plain.example")).authenticated


async def test_a_question_is_asked_once(clock: ManualClock) -> None:
    gate = Gate()
    resolver = MessageResolver(gate, clock)
    waiting = [
        asyncio.create_task(resolver.txt(name)) for name in ("a.example", "A.EXAMPLE", "a.example.", "b.example")
    ]
    await asyncio.sleep(0)
    waiting[0].cancel()  # who gives up does not take the answer from the others
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert [list(await one) for one in waiting[1:]] == [[b"a"], [b"a"], [b"b"]]
    assert await resolver.txt("a.example") == (b"a",)
    for _ in range(3):
        assert await error_of(resolver.txt("gone.example")) is NameNotFoundError
    assert gate.asked == ["a.example", "b.example", "gone.example"]
    assert resolver.questions == 3


async def test_no_more_questions_than_allowed(clock: ManualClock) -> None:
    known = FakeDns(texts={f"{number}.example": [b"x"] for number in range(9)})
    resolver = MessageResolver(known, clock, limits=MessageLimits(questions=3))
    for number in (0, 1, 1, 2):
        await resolver.txt(f"{number}.example")
    assert await error_of(resolver.txt("3.example")) is TemporaryResolverError
    assert await resolver.txt("2.example") == (b"x",)  # what is known costs nothing
    assert len(known.asked) == 3


async def test_a_part_cannot_spend_what_is_left_to_others(clock: ManualClock) -> None:
    known = FakeDns(texts={f"{number}.example": [b"x"] for number in range(9)})
    resolver = MessageResolver(known, clock, limits=MessageLimits(questions=5))
    part = resolver.part(2)
    await resolver.txt("0.example")
    for number in (0, 1, 2):
        await part.txt(f"{number}.example")
    assert await error_of(part.txt("3.example")) is TemporaryResolverError
    await resolver.txt("3.example")
    await resolver.txt("4.example")
    assert await part.txt("4.example") == (b"x",)
    assert await error_of(resolver.txt("5.example")) is TemporaryResolverError
    assert await error_of(resolver.part(100).txt("5.example")) is TemporaryResolverError
    assert resolver.questions == len(known.asked) == 5


@pytest.mark.covers("decisions:D3")
async def test_after_the_deadline_nothing_is_asked_and_what_is_known_stays(clock: ManualClock) -> None:
    gate = Gate()
    gate.open.set()
    resolver = MessageResolver(gate, clock)
    await resolver.txt("a.example")
    clock.advance(3.5)
    assert await error_of(resolver.txt("gone.example")) is NameNotFoundError
    assert gate.within == [3.0, 0.5]
    clock.advance(0.5)
    questions: list[Callable[[str], Coroutine[Any, Any, Any]]] = [resolver.txt, resolver.a, resolver.aaaa, resolver.mx]
    for ask in questions:
        assert await error_of(ask("b.example")) is TemporaryResolverError
    assert await error_of(resolver.ptr(ip_address("192.0.2.1"))) is TemporaryResolverError
    assert await resolver.txt("a.example") == (b"a",)
    assert await error_of(resolver.txt("gone.example")) is NameNotFoundError
    assert len(gate.asked) == 2


async def test_a_resolver_that_never_answers_holds_nobody_up() -> None:
    resolver = MessageResolver(Gate(), SystemClock(), limits=MessageLimits(question_secs=0.05, total_secs=10.0))
    both = await asyncio.gather(resolver.txt("stuck.example"), resolver.txt("stuck.example"), return_exceptions=True)
    assert [type(one) for one in both] == [TemporaryResolverError] * 2
    many = await asyncio.gather(
        *(resolver.txt(f"stuck{number}.example") for number in range(50)), return_exceptions=True
    )
    assert {type(one) for one in many} == {TemporaryResolverError}


async def test_each_caller_gets_an_error_of_its_own(clock: ManualClock) -> None:
    resolver = MessageResolver(FakeDns(broken={"b.example"}), clock)
    errors = await asyncio.gather(*(resolver.a("b.example") for _ in range(2)), return_exceptions=True)
    assert errors[0] is not errors[1]


@pytest.mark.covers("mail-server:B4", "decisions:D3", "RFC 7208 §4.6.4")
async def test_spf_over_name_servers() -> None:
    zone = NameServer()
    zone.add("example.com", "TXT", '"v=spf1 include:_spf.example.net mx -all"').add(
        "example.com", "MX", "10 mx.example.com."
    )
    zone.add("mx.example.com", "A", "127.0.0.9").add("mx.example.com", "TXT", '"v=spf1 " "a -all"')
    zone.add("_spf.example.net", "TXT", '"v=spf1 ip4:192.0.2.0/24 ~all"')
    zone.add("slow.example", "TXT", '"v=spf1 exists:late.slow.example -all"').delay("late.slow.example", 3600)
    session = spf.Session(ip_address("127.0.0.9"), "mx.example.com")
    clock = SystemClock()
    async with zone, aclosing(CachingResolver(clock, [zone.server])) as caching:
        resolver = MessageResolver(caching, clock)
        mail_from, helo, again = await asyncio.gather(
            spf.check_mail_from(resolver, session, "a@example.com"),
            spf.check_helo(resolver, session),
            spf.check_mail_from(resolver, session, "b@example.com"),
        )
        assert [str(one.status) for one in (mail_from, helo, again)] == ["pass"] * 3
        assert (mail_from.mechanism, helo.mechanism, mail_from.lookups) == ("mx", "a", 2)
        assert resolver.questions == len(zone.asked) == 5
        hurried = MessageResolver(caching, clock, limits=MessageLimits(question_secs=0.1, total_secs=0.2))
        late = await spf.check_mail_from(hurried, session, "a@slow.example")
        assert (late.status, late.mechanism) == (Status.TEMPERROR, "exists:late.slow.example")
        few = MessageResolver(caching, clock).part(2)
        assert (await spf.check_mail_from(few, session, "a@example.com")).status is Status.PASS  # all is known
        caching.forget()
        few = MessageResolver(caching, clock).part(2)
        assert (await spf.check_mail_from(few, session, "a@example.com")).status is Status.TEMPERROR
