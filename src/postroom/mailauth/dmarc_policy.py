"""Which DMARC record applies to a domain, and which organisation it belongs to (RFC 7489 §6.6.3, RFC 9989 §4.10).

Organisations are bounded by the public suffix list, unless a record on the way says otherwise with `psd=`: that is the
owner's word, where the list is an onlooker's. Never is a `psd=y` allowed to join what the list keeps apart. See
decision 37.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.mail.domain import MAX_DOMAIN
from postroom.mailauth.dmarc_record import Policy, Record, SuffixFlag, choose_record
from postroom.mailauth.organisational import is_below, organisational_domain, walk_names
from postroom.mailauth.resolver import NameNotFoundError, ResolverError, TxtResolver

PREFIX: Final = "_dmarc."
MAX_QUERIES: Final = 32
"""Names asked for one message; any others are as if DNS did not answer."""
MAX_TEXTS: Final = 20
"""TXT records of one name that are looked at."""


class Lookup(StrEnum):
    """What stands at a name."""

    FOUND = "found"
    NONE = "none"
    SEVERAL = "several"
    """More than one record: no policy (RFC 7489 §6.6.3)."""
    UNUSABLE = "unusable"
    """A record whose policy cannot be read and that wants no reports."""
    DNS = "dns"


@dataclass(frozen=True, slots=True)
class Answer:
    """A record, or why there is none."""

    lookup: Lookup
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Organisation:
    """The organisational domain of a name; not `certain` when DNS failed where another boundary might have stood."""

    domain: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Discovery:
    """The record that applies to an author's domain, and where it stands."""

    lookup: Lookup
    organisation: Organisation
    record: Record | None = None
    domain: str | None = None
    inherited: bool = False
    """The record is that of a domain above the author's."""

    def policy(self, *, author_exists: bool | None) -> Policy | None:
        """The policy in force (inbound §17 step 6); `author_exists` decides about `np=` and may be unknown."""
        if self.record is None:
            return None
        return self.record.policy_for_subdomain(exists=author_exists) if self.inherited else self.record.policy


class Records:
    """The records of names, each asked for once."""

    __slots__ = ("_known", "_resolver")

    def __init__(self, resolver: TxtResolver) -> None:
        self._resolver = resolver
        self._known: dict[str, Answer] = {}

    async def at(self, domain: str) -> Answer:
        """What stands at `_dmarc.` of a domain in A-labels."""
        known = self._known.get(domain)
        if known is None:
            known = self._known[domain] = await self._ask(domain)
        return known

    async def _ask(self, domain: str) -> Answer:
        if len(domain) + len(PREFIX) > MAX_DOMAIN:
            return Answer(Lookup.NONE)
        if len(self._known) >= MAX_QUERIES:
            return Answer(Lookup.DNS)
        try:
            texts = await self._resolver.txt(f"{PREFIX}{domain}")
        except NameNotFoundError:
            return Answer(Lookup.NONE)
        except ResolverError:
            return Answer(Lookup.DNS)
        count, record = choose_record(texts[:MAX_TEXTS])
        if count == 0:
            return Answer(Lookup.NONE)
        if count > 1:
            return Answer(Lookup.SEVERAL)
        return Answer(Lookup.UNUSABLE) if record is None else Answer(Lookup.FOUND, record)


async def find_organisation(records: Records, domain: str) -> Organisation:
    """The organisational domain of a name in A-labels, by the walk of RFC 9989 §4.10 over the public suffix list.

    `psd=n` ends it at that name, as does `psd=y` at the very name. `psd=y` above the name ends it one label below, or
    at what the list says, whichever is longer. Otherwise it is what the list says.
    """
    listed = organisational_domain(domain) or domain
    certain = True
    for name in walk_names(domain):
        answer = await records.at(name)
        if answer.lookup is Lookup.DNS and len(name) >= len(listed):
            certain = False  # above the listed domain, a record could not make the organisation smaller
        if answer.record is None:
            continue
        if answer.record.suffix is SuffixFlag.NO or (answer.record.suffix is SuffixFlag.YES and name == domain):
            return Organisation(name, certain)
        if answer.record.suffix is SuffixFlag.YES:
            below = domain[: -len(name) - 1].rpartition(".")[2] + domain[-len(name) - 1 :]
            return Organisation(max(below, listed, key=len), certain)
    return Organisation(listed, certain)


async def discover(records: Records, domain: str) -> Discovery:
    """The record that applies to mail from `domain`, a name in A-labels.

    Its own, else the organisational domain's, else that of a public suffix above which says `psd=y`. Records that are
    several or unusable end the search, as RFC 7489 §6.6.3 has it.
    """
    organisation = await find_organisation(records, domain)
    for name in dict.fromkeys((domain, organisation.domain)):
        answer = await records.at(name)
        if answer.lookup is Lookup.FOUND:
            return Discovery(answer.lookup, organisation, answer.record, name, inherited=name != domain)
        if answer.lookup is not Lookup.NONE:
            return Discovery(answer.lookup, organisation)
    for name in walk_names(domain):
        record = (await records.at(name)).record
        if record is not None and record.suffix is SuffixFlag.YES and is_below(organisation.domain, name):
            return Discovery(Lookup.FOUND, organisation, record, name, inherited=True)
    return Discovery(Lookup.NONE, organisation)


def queries_for(author: str, others: tuple[str, ...]) -> tuple[str, ...]:
    """The TXT names to ask for at once, for mail from `author` that `others` answer for; all are in A-labels.

    Those below the author's listed organisation that are neither the author nor the organisation can be its partners
    in relaxed alignment only if nothing on their way up says otherwise.
    """
    names = dict.fromkeys(walk_names(author))
    listed = organisational_domain(author)
    for domain in others:
        if organisational_domain(domain) == listed:
            names |= dict.fromkeys(walk_names(domain))
    asked = [f"{PREFIX}{name}" for name in names if len(name) + len(PREFIX) <= MAX_DOMAIN]
    return tuple(asked[:MAX_QUERIES])
