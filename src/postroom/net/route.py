"""The route to a domain: asks the DNS what `mx` wants to know, all hosts at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from postroom.net import mx
from postroom.net.dns_types import (
    Answer,
    Failure,
    InvalidName,
    IpAddress,
    NoAnswer,
    NoData,
    NoSuchName,
    Resolver,
    TemporaryFailure,
    ascii_name,
)
from postroom.net.mx import Lookup, NoSuchDomain, Random, Route, RoutePolicy, TemporaryDnsFailure

ROUTE_SECONDS: Final = 20.0


async def route(
    resolver: Resolver, domain: str, *, policy: RoutePolicy, random: Random, within: float = ROUTE_SECONDS
) -> Route:
    """Where the mail of `domain` goes now: a name, maybe international, or an address literal (RFC 5321 §5.1, C5).

    Takes `within` seconds at most: half of it for the MX records, half for the addresses; a host whose addresses are
    not known by then is left out. Raises the `RouteError`s of `mx`. The addresses are checked: connect to them, and do
    not resolve the names again.
    """
    to_address = mx.literal(domain, policy)
    if to_address is not None:
        return to_address
    name = ascii_name(domain)
    if name is None:
        raise NoSuchDomain("not a name of the DNS")
    try:
        answer = await resolver.mx(name, within=within / 2)
        plan = mx.plan(name, answer.records, policy, random, authenticated=answer.authenticated)
    except (NoSuchName, InvalidName):
        raise NoSuchDomain("there is no such domain") from None
    except NoData as none:
        plan = mx.plan(name, (), policy, random, authenticated=none.authenticated)
    except TemporaryFailure as failure:
        raise TemporaryDnsFailure("the MX records are not known", failure.reason) from None
    names = [candidate.name for candidate in plan.candidates]
    found = await asyncio.gather(*(_look_up(resolver, host, policy, within / 2) for host in names))
    return mx.settle(plan, dict(zip(names, found, strict=True)), policy, random)


async def _look_up(resolver: Resolver, name: str, policy: RoutePolicy, within: float) -> Lookup:
    asked = []
    if policy.family.ipv4:
        asked.append(_addresses(partial(resolver.a, within=within), name))
    if policy.family.ipv6:
        asked.append(_addresses(partial(resolver.aaaa, within=within), name))
    return _together(await asyncio.gather(*asked))


async def _addresses(ask: Callable[[str], Awaitable[Answer[IpAddress]]], name: str) -> Lookup:
    try:
        answer = await ask(name)
    except InvalidName:
        return Lookup()
    except NoAnswer as none:
        return Lookup(names=frozenset((none.canonical,)), authenticated=none.authenticated)
    except TemporaryFailure as failure:
        return Lookup(failure=failure.reason)
    return Lookup(answer.records, frozenset((answer.canonical,)), None, answer.authenticated)


def _together(parts: list[Lookup]) -> Lookup:
    """One look-up of both families."""
    addresses = tuple(address for part in parts for address in part.addresses)
    failures: list[Failure] = [part.failure for part in parts if part.failure is not None]
    return Lookup(
        addresses,
        frozenset().union(*(part.names for part in parts)),
        failures[0] if failures else None,
        all(part.authenticated for part in parts),
    )
