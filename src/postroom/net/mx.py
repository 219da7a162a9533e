"""From what the DNS says about a domain to the hosts its mail goes to, in order (RFC 5321 §5.1; mail-server C5).

Nothing here asks: `literal` and `plan` say which hosts' addresses are wanted, `settle` makes a `Route` of
what was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeAlias

from postroom.net.dns_types import MAX_NAME_CHARS, Failure, IpAddress, MxRecord
from postroom.net.public_address import is_one_of, is_public

MAX_HOSTS: Final = 10
"""Hosts of a domain that are tried in one attempt. Each is a connection that a stranger's zone makes us open."""
MAX_ADDRESSES: Final = 4
"""Addresses of one host that are tried; RFC 5321 §5.1 asks for at least two."""
MAX_LITERAL_CHARS: Final = 60

Random: TypeAlias = Callable[[], float]
"""As `random.random`: from 0 up to 1."""

_HOST_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME: Final = re.compile(rf"(?:{_HOST_LABEL}\.)*(?![0-9]+\Z){_HOST_LABEL}")
"""RFC 1123 §2.1, with the underscore that some zones have. The last label is no number: that would be an address."""


class Family(StrEnum):
    """Which addresses of a host are tried, and of which family the first one is."""

    IPV6_FIRST = "ipv6_first"
    IPV4_FIRST = "ipv4_first"
    IPV6_ONLY = "ipv6_only"
    IPV4_ONLY = "ipv4_only"

    @property
    def ipv4(self) -> bool:
        return self is not Family.IPV6_ONLY

    @property
    def ipv6(self) -> bool:
        return self is not Family.IPV4_ONLY


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """What this deployment allows.

    `own_names` (lower-case A-labels) are the names of its nodes, `own_addresses` what they are bound to and reached by.
    `allow_private` is `queue.allow_private_targets`: addresses that are private or our own are then as good as others.
    """

    own_names: frozenset[str] = frozenset()
    own_addresses: frozenset[IpAddress] = frozenset()
    allow_private: bool = False
    family: Family = Family.IPV6_FIRST
    max_hosts: int = MAX_HOSTS
    max_addresses: int = MAX_ADDRESSES


class Unusable(StrEnum):
    """Why a host is not in the route."""

    NOT_A_HOST_NAME = "not_a_host_name"
    """An IP address or another thing that RFC 5321 §5.1 does not allow in an MX record."""
    NO_ADDRESS = "no_address"
    TEMPORARY = "temporary"
    """Its addresses could not be found out at the moment."""
    REFUSED_ADDRESS = "refused_address"
    """Private, loopback or otherwise not of the public internet: a permanent failure of that host (outbound §9.2)."""
    LOOP = "loop"
    """It is this deployment, or no better than it (RFC 5321 §5.1)."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A host that is not tried. `name` is outside text: at most 253 characters, maybe with escapes."""

    name: str
    why: Unusable


@dataclass(frozen=True, slots=True)
class Host:
    """A host to try, with its addresses in the order to try them; at least one. `name` is as the MX record has it.

    `authenticated`: its addresses were validated with DNSSEC, as DANE wants (RFC 7672 §2.2.2).
    """

    name: str
    preference: int
    addresses: tuple[IpAddress, ...]
    authenticated: bool = False


class Via(StrEnum):
    MX = "mx"
    IMPLICIT = "implicit"
    """No MX record: the domain's own addresses, as if it were its MX with preference 0 (RFC 5321 §5.1)."""
    LITERAL = "literal"
    """The domain is an address (RFC 5321 §4.1.3)."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a domain's mail goes: hosts in the order to try them, at least one.

    `authenticated`: the answer that named the hosts was validated with DNSSEC (RFC 7672 §2.2.1). `names` are the hosts
    that the domain named and that were worth looking at, sorted: they identify the destination whatever the order.
    """

    domain: str
    via: Via
    hosts: tuple[Host, ...]
    names: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()
    authenticated: bool = False


class RouteError(Exception):
    """A domain that no mail can be sent to, now or ever. The text holds no name.

    `permanent` says whether to try again; `code` and `status` are the reply that says the same (RFC 3463, RFC 5321).
    """

    permanent: bool
    code: int
    status: str

    def __init__(self, text: str, *, skipped: Sequence[Skipped] = ()) -> None:
        super().__init__(text)
        self.skipped = tuple(skipped)


class NoSuchDomain(RouteError):
    """NXDOMAIN, or no domain at all (`5.1.2`)."""

    permanent = True
    code = 550
    status = "5.1.2"


class NullMx(RouteError):
    """The domain says that it takes no mail (RFC 7505 §3; `556 5.1.10`)."""

    permanent = True
    code = 556
    status = "5.1.10"


class LoopsToSelf(RouteError):
    """We are the best host of the domain, and it is none of ours (RFC 5321 §5.1)."""

    permanent = True
    code = 554
    status = "5.4.6"


class TemporaryDnsFailure(RouteError):
    """The DNS did not answer."""

    permanent = False
    code = 451
    status = "4.4.3"

    def __init__(self, text: str, reason: Failure, *, skipped: Sequence[Skipped] = ()) -> None:
        super().__init__(text, skipped=skipped)
        self.reason = reason


class NoUsableAddress(RouteError):
    """No host has an address that we may connect to: permanent when all are refused, else temporary (outbound §9.2)."""

    def __init__(self, text: str, *, permanent: bool, skipped: Sequence[Skipped] = ()) -> None:
        super().__init__(text, skipped=skipped)
        self.permanent = permanent
        self.code, self.status = (554, "5.4.4") if self.permanent else (451, "4.4.4")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host whose addresses are wanted."""

    name: str
    preference: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The hosts to look up, in the order to try them: never more than the policy's `max_hosts`."""

    domain: str
    via: Via
    candidates: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...] = ()
    authenticated: bool = False


@dataclass(frozen=True, slots=True)
class Lookup:
    """What was found out about a host: its addresses, and the ends of its CNAME chains.

    `failure` is why one family or both could not be asked about; it counts only when there is no address.
    """

    addresses: tuple[IpAddress, ...] = ()
    names: frozenset[str] = field(default_factory=frozenset)
    failure: Failure | None = None
    authenticated: bool = False


def literal(domain: str, policy: RoutePolicy) -> Route | None:
    """The route to an address literal, `[192.0.2.1]` or `[IPv6:2001:db8::1]` (RFC 5321 §4.1.3); `None` for a name.

    Raises `NoSuchDomain` when it is no address that is known, `LoopsToSelf`, `NoUsableAddress`.
    """
    if not domain.startswith("["):
        return None
    address = _literal_address(domain)
    if address is None:
        raise NoSuchDomain("not an address literal that is known")
    name = domain.lower()
    if not policy.allow_private:
        if is_one_of(address, policy.own_addresses):
            raise LoopsToSelf("the address is our own", skipped=[Skipped(name, Unusable.LOOP)])
        if not is_public(address):
            refused = Skipped(name, Unusable.REFUSED_ADDRESS)
            raise NoUsableAddress("the address is not public", permanent=True, skipped=[refused])
    if not (policy.family.ipv4 if isinstance(address, IPv4Address) else policy.family.ipv6):
        raise NoUsableAddress("no way to this family", permanent=False, skipped=[Skipped(name, Unusable.NO_ADDRESS)])
    return Route(name, Via.LITERAL, (Host(name, 0, (address,)),), (name,))


def _literal_address(domain: str) -> IpAddress | None:
    inside = domain[1:-1]
    if not domain.endswith("]") or len(domain) > MAX_LITERAL_CHARS or not domain.isascii() or "%" in domain:
        return None
    try:
        return IPv6Address(inside[5:]) if inside[:5].lower() == "ipv6:" else IPv4Address(inside)
    except ValueError:
        return None


def plan(
    domain: str, records: Sequence[MxRecord], policy: RoutePolicy, random: Random, *, authenticated: bool = False
) -> Plan:
    """The hosts of `records` by preference, equal ones in random order (RFC 5321 §5.1).

    Our own names and what is not better than they are dropped, names that are none of a host are. Without any record,
    the domain is its own host. Raises `NullMx`, `LoopsToSelf`, `NoUsableAddress`.
    """
    if not records:
        if domain in policy.own_names:
            raise LoopsToSelf("the domain is our own host", skipped=[Skipped(domain, Unusable.LOOP)])
        return Plan(domain, Via.IMPLICIT, (Candidate(domain, 0),), (), authenticated)
    if all(record.exchange == "." for record in records):
        raise NullMx("the domain takes no mail")
    best: dict[str, int] = {}
    for record in records:
        best[record.exchange] = min(record.preference, best.get(record.exchange, record.preference))
    own = min((preference for name, preference in best.items() if name in policy.own_names), default=None)
    candidates: list[Candidate] = []
    skipped: list[Skipped] = []
    for name, preference in sorted(best.items(), key=lambda item: (item[1], random())):
        if own is not None and preference >= own:
            skipped.append(Skipped(name, Unusable.LOOP))
        elif len(name) > MAX_NAME_CHARS or _HOST_NAME.fullmatch(name) is None:
            skipped.append(Skipped(name[:MAX_NAME_CHARS], Unusable.NOT_A_HOST_NAME))
        else:
            candidates.append(Candidate(name, preference))
    if not candidates:
        raise _no_host(skipped)
    kept = tuple(skipped[: policy.max_hosts])
    return Plan(domain, Via.MX, tuple(candidates[: policy.max_hosts]), kept, authenticated)


def settle(plan: Plan, lookups: Mapping[str, Lookup], policy: RoutePolicy, random: Random) -> Route:
    """The route, from the plan and what was found out about each of its hosts.

    A host with one address that is refused is refused whole (A9.5). A host that turns out to be this deployment, by
    address or alias, ends the list as its name would have. Raises `TemporaryDnsFailure` when no host is left and one
    could not be asked about, `LoopsToSelf`, `NoUsableAddress`.
    """
    own = min((host.preference for host in plan.candidates if _is_own(lookups[host.name], policy)), default=None)
    hosts: list[Host] = []
    skipped = list(plan.skipped)
    for candidate in plan.candidates:
        found = lookups[candidate.name]
        why = Unusable.LOOP if own is not None and candidate.preference >= own else _unusable(found, policy)
        if why is not None:
            skipped.append(Skipped(candidate.name, why))
            continue
        addresses = in_order(found.addresses, policy, random)
        hosts.append(Host(candidate.name, candidate.preference, addresses, found.authenticated))
    if hosts:
        names = tuple(sorted(candidate.name for candidate in plan.candidates))
        return Route(plan.domain, plan.via, tuple(hosts), names, tuple(skipped), plan.authenticated)
    temporary = {skip.name for skip in skipped if skip.why is Unusable.TEMPORARY}
    for candidate in plan.candidates:
        reason = lookups[candidate.name].failure
        if reason is not None and candidate.name in temporary:
            raise TemporaryDnsFailure("the addresses of no host are known", reason, skipped=skipped)
    raise _no_host(skipped)


def _no_host(skipped: Sequence[Skipped]) -> RouteError:
    """Why there is none. A better host than us without an address may have one tomorrow: that is no loop yet."""
    reasons = {skip.why for skip in skipped}
    kept = skipped[:MAX_HOSTS]
    if Unusable.LOOP in reasons and reasons <= {Unusable.LOOP, Unusable.REFUSED_ADDRESS}:
        return LoopsToSelf("we are the best host of the domain", skipped=kept)
    permanent = reasons == {Unusable.REFUSED_ADDRESS}
    return NoUsableAddress("no host has an address that is allowed", permanent=permanent, skipped=kept)


def _is_own(found: Lookup, policy: RoutePolicy) -> bool:
    if found.names & policy.own_names:
        return True
    return not policy.allow_private and any(is_one_of(address, policy.own_addresses) for address in found.addresses)


def _unusable(found: Lookup, policy: RoutePolicy) -> Unusable | None:
    if not found.addresses:
        return Unusable.TEMPORARY if found.failure else Unusable.NO_ADDRESS
    if not policy.allow_private and not all(map(is_public, found.addresses)):
        return Unusable.REFUSED_ADDRESS
    return None if _of_family(found.addresses, policy.family) else Unusable.NO_ADDRESS


def _of_family(addresses: Iterable[IpAddress], family: Family) -> list[IpAddress]:
    return [item for item in addresses if (family.ipv4 if isinstance(item, IPv4Address) else family.ipv6)]


def in_order(addresses: Iterable[IpAddress], policy: RoutePolicy, random: Random) -> tuple[IpAddress, ...]:
    """The addresses to try, at most `max_addresses`: each family in random order, the families by turns.

    By turns, so that a family that does not work costs one time-out and not all of them (as RFC 8305 §4 does); in
    random order, because the order of the name server's answer is frozen in the cache (RFC 5321 §5.1).
    """
    usable = sorted(dict.fromkeys(_of_family(addresses, policy.family)), key=lambda _: random())
    first = IPv4Address if policy.family is Family.IPV4_FIRST else IPv6Address
    ones = [item for item in usable if isinstance(item, first)]
    others = [item for item in usable if not isinstance(item, first)]
    turns = [
        *((turn, 0, item) for turn, item in enumerate(ones)),
        *((turn, 1, item) for turn, item in enumerate(others)),
    ]
    turns.sort(key=lambda one: one[:2])
    return tuple(item for _, _, item in turns)[: policy.max_addresses]
