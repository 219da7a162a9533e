"""From MX records to hosts in order (RFC 5321 §5.1; mail-server C5; outbound §9.2)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.net.dns_types import Failure, IpAddress, MxRecord
from postroom.net.mx import (
    Family,
    Host,
    Lookup,
    LoopsToSelf,
    NoSuchDomain,
    NoUsableAddress,
    NullMx,
    Route,
    RouteError,
    RoutePolicy,
    Skipped,
    TemporaryDnsFailure,
    Unusable,
    Via,
    in_order,
    literal,
    plan,
    settle,
)

ANYWHERE = RoutePolicy()
OWN = RoutePolicy(own_names=frozenset({"us.example"}), own_addresses=frozenset({ip_address("1.1.1.1")}))
PUBLIC = [ip_address(text) for text in ("8.8.8.8", "8.8.4.4", "9.9.9.9", "2606:4700::1", "2606:4700::2", "2a00::3")]


def fixed() -> float:
    return 0.5


def mx(*pairs: tuple[int, str]) -> list[MxRecord]:
    return [MxRecord(preference, name) for preference, name in pairs]


def names(pairs: Iterable[tuple[int, str]], policy: RoutePolicy = ANYWHERE) -> list[str]:
    return [candidate.name for candidate in plan("d.example", mx(*pairs), policy, fixed).candidates]


def at(*texts: str, failure: Failure | None = None, via: str = "x") -> Lookup:
    return Lookup(tuple(map(ip_address, texts)), frozenset({via}), failure)


def settled(pairs: Iterable[tuple[int, str]], lookups: dict[str, Lookup], policy: RoutePolicy = ANYWHERE) -> Route:
    return settle(plan("d.example", mx(*pairs), policy, fixed), lookups, policy, fixed)


_RECORDS = st.lists(
    st.builds(MxRecord, st.integers(0, 4), st.sampled_from([f"m{n}.example" for n in range(8)])),
    min_size=1,
    max_size=30,
)


@pytest.mark.covers("mail-server:C5", "RFC 5321 §5.1")
@given(_RECORDS, st.randoms(use_true_random=False), st.integers(1, 12))
def test_hosts_come_by_preference_each_once(records: list[MxRecord], chance: random.Random, most: int) -> None:
    made = plan("d.example", records, RoutePolicy(max_hosts=most), chance.random)
    best = {name: min(r.preference for r in records if r.exchange == name) for name in {r.exchange for r in records}}
    got = [(candidate.preference, candidate.name) for candidate in made.candidates]
    assert [preference for preference, _ in got] == sorted(best.values())[:most]
    assert len({name for _, name in got}) == len(got) == min(len(best), most)
    assert all(best[name] == preference for preference, name in got)


@pytest.mark.covers("mail-server:C5", "RFC 5321 §5.1")
def test_equal_hosts_come_in_every_order_and_equally_often() -> None:
    chance = random.Random(7)
    records = mx((10, "a.example"), (10, "b.example"), (10, "c.example"), (5, "first.example"), (20, "last.example"))
    seen: dict[tuple[str, ...], int] = {}
    for _ in range(3000):
        order = tuple(candidate.name for candidate in plan("d.example", records, ANYWHERE, chance.random).candidates)
        assert (order[0], order[-1]) == ("first.example", "last.example")
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert all(400 < times < 600 for times in seen.values())


@pytest.mark.covers("RFC 7505 §3", "mail-server:C5")
@pytest.mark.parametrize("preference", [0, 10])
def test_a_null_mx_takes_no_mail(preference: int) -> None:
    with pytest.raises(NullMx) as caught:
        plan("d.example", mx((preference, ".")), ANYWHERE, fixed)
    assert (caught.value.permanent, caught.value.code, caught.value.status) == (True, 556, "5.1.10")


@pytest.mark.covers("RFC 7505 §3")
def test_a_null_mx_beside_others_is_no_null_mx() -> None:
    made = plan("d.example", mx((0, "."), (10, "a.example")), ANYWHERE, fixed)
    assert [candidate.name for candidate in made.candidates] == ["a.example"]
    assert made.skipped == (Skipped(".", Unusable.NOT_A_HOST_NAME),)


@pytest.mark.covers("RFC 5321 §5.1", "mail-server:C5")
def test_without_mx_the_domain_is_its_own_host() -> None:
    made = plan("d.example", [], ANYWHERE, fixed)
    route = settle(made, {"d.example": at("8.8.8.8")}, ANYWHERE, fixed)
    assert (route.via, route.hosts) == (Via.IMPLICIT, (Host("d.example", 0, (ip_address("8.8.8.8"),)),))
    with pytest.raises(LoopsToSelf):
        plan("us.example", [], OWN, fixed)


@pytest.mark.covers("RFC 5321 §5.1", "RFC 1123 §2.1")
@pytest.mark.parametrize(
    "name", ["192.0.2.1", "2001:db8::1", "[8.8.8.8]", "a..example", "-a.example", "a-.example", "a\\032b.example", "1"]
)
def test_an_mx_that_names_no_host_is_passed_over(name: str) -> None:
    assert names([(0, name), (10, "a.example"), (10, "_b.7.x-1")]) == ["a.example", "_b.7.x-1"]
    with pytest.raises(NoUsableAddress) as caught:
        names([(0, name)])
    assert not caught.value.permanent
    assert caught.value.skipped == (Skipped(name, Unusable.NOT_A_HOST_NAME),)


@pytest.mark.covers("RFC 5321 §5.1")
def test_we_and_what_is_no_better_than_we_are_left_out() -> None:
    pairs = [(10, "a.example"), (20, "us.example"), (20, "b.example"), (30, "c.example")]
    made = plan("d.example", mx(*pairs), OWN, fixed)
    assert [candidate.name for candidate in made.candidates] == ["a.example"]
    assert {skip.name for skip in made.skipped} == {"us.example", "b.example", "c.example"}
    assert {skip.why for skip in made.skipped} == {Unusable.LOOP}
    with pytest.raises(LoopsToSelf) as caught:
        names([(20, "us.example"), (20, "b.example"), (30, "c.example")], OWN)
    assert (caught.value.permanent, caught.value.code, caught.value.status) == (True, 554, "5.4.6")


@pytest.mark.covers("RFC 5321 §5.1", "mail-server:C5")
@pytest.mark.parametrize("ours", [at("1.1.1.1"), at("8.8.4.4", "1.1.1.1"), at("8.8.4.4", via="us.example")])
def test_we_are_known_by_address_and_by_alias(ours: Lookup) -> None:
    pairs = [(10, "a.example"), (20, "alias.example"), (30, "c.example")]
    lookups = {"a.example": at("8.8.8.8"), "alias.example": ours, "c.example": at("9.9.9.9")}
    route = settled(pairs, lookups, OWN)
    assert [host.name for host in route.hosts] == ["a.example"]
    assert route.skipped == (Skipped("alias.example", Unusable.LOOP), Skipped("c.example", Unusable.LOOP))
    assert route.names == ("a.example", "alias.example", "c.example")
    with pytest.raises(LoopsToSelf):
        settled(pairs[1:], lookups, OWN)


def test_a_better_host_without_address_is_no_loop_yet() -> None:
    with pytest.raises(NoUsableAddress) as caught:
        settled([(10, "a.example"), (20, "us.example")], {"a.example": at()}, OWN)
    assert not caught.value.permanent


@pytest.mark.covers("security-privacy:A9", "mail-server:C5")
@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["10.0.0.1"], ["::1"], ["8.8.8.8", "192.168.0.1"], ["::ffff:127.0.0.1", "8.8.8.8"]]
)
def test_a_host_with_a_private_address_is_refused_for_good(addresses: list[str]) -> None:
    lookups = {"bad.example": at(*addresses), "good.example": at("9.9.9.9")}
    route = settled([(0, "bad.example"), (10, "good.example")], lookups)
    assert [host.name for host in route.hosts] == ["good.example"]
    assert route.skipped == (Skipped("bad.example", Unusable.REFUSED_ADDRESS),)
    with pytest.raises(NoUsableAddress) as caught:
        settled([(0, "bad.example")], lookups)
    assert (caught.value.permanent, caught.value.code, caught.value.status) == (True, 554, "5.4.4")
    allowed = settled([(0, "bad.example")], lookups, RoutePolicy(allow_private=True))
    assert set(allowed.hosts[0].addresses) == set(map(ip_address, addresses))


@pytest.mark.covers("mail-server:C5")
def test_our_own_address_is_allowed_with_the_private_ones() -> None:
    allowing = RoutePolicy(own_addresses=frozenset({ip_address("127.0.0.1")}), allow_private=True)
    assert settled([(0, "a.example")], {"a.example": at("127.0.0.1")}, allowing).hosts


@pytest.mark.covers("mail-server:C5")
def test_hosts_without_address_are_tried_again_later() -> None:
    pairs = [(0, "gone.example"), (0, "private.example"), (5, "late.example")]
    lookups = {"gone.example": at(), "private.example": at("10.0.0.1"), "late.example": at(failure=Failure.TIMEOUT)}
    with pytest.raises(TemporaryDnsFailure) as late:
        settled(pairs, lookups)
    assert (late.value.permanent, late.value.reason, late.value.status) == (False, Failure.TIMEOUT, "4.4.3")
    assert {skip.why for skip in late.value.skipped} == {
        *(Unusable.NO_ADDRESS, Unusable.REFUSED_ADDRESS, Unusable.TEMPORARY)
    }
    with pytest.raises(NoUsableAddress) as none:
        settled(pairs[:2], lookups)
    assert (none.value.permanent, none.value.code, none.value.status) == (False, 451, "4.4.4")
    assert [
        host.name for host in settled([*pairs, (9, "up.example")], {**lookups, "up.example": at("9.9.9.9")}).hosts
    ] == ["up.example"]


_ADDRESSES = st.lists(st.sampled_from(PUBLIC), max_size=12)


@pytest.mark.covers("RFC 5321 §5.1", "mail-server:C5")
@given(_ADDRESSES, st.sampled_from(Family), st.integers(1, 8), st.randoms(use_true_random=False))
def test_addresses_by_turns(addresses: list[IpAddress], family: Family, most: int, chance: random.Random) -> None:
    got = in_order(addresses, RoutePolicy(family=family, max_addresses=most), chance.random)
    v4 = {item for item in addresses if isinstance(item, IPv4Address)} if family.ipv4 else set()
    v6 = {item for item in addresses if isinstance(item, IPv6Address)} if family.ipv6 else set()
    assert len(set(got)) == len(got) == min(most, len(v4) + len(v6))
    assert set(got) <= v4 | v6
    first, second = (v4, v6) if family is Family.IPV4_FIRST else (v6, v4)
    if first and second:
        pairs = min(len(first), len(second))
        for position, item in enumerate(got[: 2 * pairs]):
            assert item in (first if position % 2 == 0 else second)


def test_the_frozen_order_of_the_cache_is_shuffled() -> None:
    chance = random.Random(3)
    policy = RoutePolicy(family=Family.IPV4_ONLY)
    assert len({in_order(PUBLIC, policy, chance.random) for _ in range(200)}) == 6


@pytest.mark.covers("RFC 5321 §4.1.3")
def test_address_literals() -> None:
    assert literal("d.example", ANYWHERE) is None
    found = literal("[8.8.8.8]", ANYWHERE)
    assert found is not None
    assert (found.via, found.hosts[0].addresses) == (Via.LITERAL, (ip_address("8.8.8.8"),))
    found = literal("[IPV6:2606:4700::1]", ANYWHERE)
    assert found is not None
    assert found.hosts[0].addresses == (ip_address("2606:4700::1"),)
    with pytest.raises(LoopsToSelf):
        literal("[1.1.1.1]", OWN)
    with pytest.raises(NoUsableAddress) as private:
        literal("[127.0.0.1]", OWN)
    assert private.value.permanent
    assert literal("[127.0.0.1]", RoutePolicy(allow_private=True)) is not None
    with pytest.raises(NoUsableAddress) as family:
        literal("[IPv6:2606:4700::1]", RoutePolicy(family=Family.IPV4_ONLY))
    assert not family.value.permanent


@pytest.mark.covers("RFC 5321 §4.1.3")
@pytest.mark.parametrize(
    "text",
    [
        *("[", "[]", "[8.8.8.8", "[8.8.8]", "[8.8.8.8]x", "[08.8.8.8]", "[0x8.8.8.8]", "[134744072]", "[2606:4700::1]"),
        *(
            "[IPv6:8.8.8.8]",
            "[IPv6:fe80::1%eth0]",
            "[x-tag:1]",
            "[8.8.8.8/8]",
            "[IPv6:" + ":" * 5000 + "]",
            "[٨.8.8.8]",
        ),
    ],
)
def test_what_is_no_address_literal(text: str) -> None:
    with pytest.raises(NoSuchDomain):
        literal(text, RoutePolicy(allow_private=True))


_OUTSIDE = st.text(st.characters(codec="utf-8"), max_size=300) | st.sampled_from(["a.example", "us.example", "."])


@given(
    st.lists(st.builds(MxRecord, st.integers(0, 65535), _OUTSIDE), max_size=12),
    st.lists(st.lists(st.ip_addresses(), max_size=4), min_size=12, max_size=12),
    st.booleans(),
)
def test_whatever_a_zone_says_there_is_a_route_or_a_reason(
    records: list[MxRecord], addresses: list[list[IpAddress]], private: bool
) -> None:
    policy = RoutePolicy(own_names=OWN.own_names, own_addresses=OWN.own_addresses, allow_private=private)
    route, refused = _route_or_reason(records, addresses, policy)
    if refused is not None:
        assert refused.status[0] == str(refused.code)[0] == ("5" if refused.permanent else "4")
        assert all(len(skip.name) <= 253 for skip in refused.skipped)
    if route is not None:
        assert route.hosts
        assert all(0 < len(host.addresses) <= policy.max_addresses for host in route.hosts)
        assert "us.example" not in {host.name for host in route.hosts}


def _route_or_reason(
    records: list[MxRecord], addresses: list[list[IpAddress]], policy: RoutePolicy
) -> tuple[Route | None, RouteError | None]:
    try:
        made = plan("d.example", records, policy, fixed)
        lookups = {c.name: Lookup(tuple(found)) for c, found in zip(made.candidates, addresses, strict=False)}
        return settle(made, lookups, policy, fixed), None
    except RouteError as error:
        return None, error


@pytest.mark.covers("security-privacy:A9", "RFC 5321 §5.1")
@pytest.mark.parametrize("inside", ["::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"])
def test_an_address_of_ours_inside_another_is_ours(inside: str) -> None:
    with pytest.raises(LoopsToSelf):
        literal(f"[IPv6:{inside}]", OWN)
    planned = plan("a.example", [MxRecord(10, "mx.a.example")], OWN, fixed)
    with pytest.raises(LoopsToSelf):
        settle(planned, {"mx.a.example": Lookup((ip_address(inside),))}, OWN, fixed)
