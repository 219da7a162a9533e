"""The DNS as mail authentication asks it for one message: by way of the process's resolver, within a budget.

Sender and strangers decide what is asked here, so that number and time are bounded (inbound §9, §17; decisions D3).
What is not known when the budget is spent is a temporary error.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeAlias, cast

from postroom.base.clock import Clock
from postroom.mailauth.resolver import Answer, NameNotFoundError, NoRecordError, ResolverError, TemporaryResolverError
from postroom.net import dns_cache, dns_types
from postroom.net.dns_types import IpAddress, Kind, MxRecord, NoAnswer, NoSuchName, TemporaryFailure, ascii_name

_Question: TypeAlias = tuple[str, Kind]
_Lookup: TypeAlias = Callable[[float], Awaitable[dns_types.Answer[Any]]]
_Known: TypeAlias = Callable[[str, Kind], dns_cache.Outcome | None]
_Outcome: TypeAlias = Answer[Any] | tuple[type[ResolverError], str]


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """What the authentication of one message may ask of the DNS: the times are inbound §9's, in seconds.

    SPF alone may lawfully ask 111 questions of an identity (RFC 7208 §4.6.4); nobody's honest record asks twenty.
    """

    questions: int = 120
    question_secs: float = 3.0
    total_secs: float = 4.0


class MessageResolver:
    """A `mailauth.Resolver` for one message; its time begins when it is made, and it lives on one event loop.

    A question that was asked already is not asked again, whatever came of it, and costs nothing; asked at the same time
    from two places it is one question. What is known stays known when the time is over.
    """

    def __init__(self, resolver: dns_types.Resolver, clock: Clock, *, limits: MessageLimits | None = None) -> None:
        limits = limits or MessageLimits()
        self._resolver, self._clock = resolver, clock
        self._longest = limits.question_secs
        self._until = clock.monotonic() + limits.total_secs
        self._left = limits.questions
        self._flights: dict[_Question, asyncio.Task[_Outcome]] = {}
        self._outcomes: dict[_Question, _Outcome] = {}
        # A task for each of a message's questions would cost more than all the rest of judging it.
        self._known: _Known | None = getattr(resolver, "known", None)

    @property
    def questions(self) -> int:
        """Different questions asked so far, of all parts."""
        return len(self._flights.keys() | self._outcomes.keys())

    def is_known(self, name: str) -> bool:
        """Whether the TXT records of a name can be had, or are known not to be, without waiting."""
        asked = ascii_name(name)
        return asked is None or (self._known is not None and self._known(asked, Kind.TXT) is not None)

    def part(self, questions: int) -> MessageResolver:
        """A resolver for the same message with the same answers and time, that can ask at most `questions`.

        They are taken from what is left, so that neither can spend the other's: one domain's SPF record is not to
        keep another domain's DMARC record from being read.
        """
        made = copy.copy(self)
        made._left = min(questions, self._left)
        self._left -= made._left
        return made

    async def txt(self, name: str) -> Answer[bytes]:
        return cast(Answer[bytes], await self._named(name, Kind.TXT, self._resolver.txt))

    async def a(self, name: str) -> Answer[IPv4Address]:
        return cast(Answer[IPv4Address], await self._named(name, Kind.A, self._resolver.a))

    async def aaaa(self, name: str) -> Answer[IPv6Address]:
        return cast(Answer[IPv6Address], await self._named(name, Kind.AAAA, self._resolver.aaaa))

    async def mx(self, name: str) -> Answer[str]:
        found = cast(Answer[MxRecord], await self._named(name, Kind.MX, self._resolver.mx))
        ordered = sorted(found, key=lambda record: record.preference)
        return Answer((record.exchange for record in ordered), authenticated=found.authenticated)

    async def ptr(self, address: IpAddress) -> Answer[str]:
        def lookup(within: float) -> Awaitable[dns_types.Answer[str]]:
            return self._resolver.ptr(address, within=within)

        return cast(Answer[str], await self._ask((address.reverse_pointer, Kind.PTR), lookup))

    async def _named(
        self, name: str, kind: Kind, method: Callable[..., Awaitable[dns_types.Answer[Any]]]
    ) -> Answer[Any]:
        asked = ascii_name(name)
        if asked is None:
            raise NameNotFoundError("no name of the DNS")
        return await self._ask((asked, kind), lambda within: method(asked, within=within))

    async def _ask(self, question: _Question, lookup: _Lookup) -> Answer[Any]:
        outcome = self._outcomes.get(question)
        if outcome is None:
            outcome = self._outcomes[question] = await self._outcome(question, lookup)
        if isinstance(outcome, Answer):
            return outcome
        error, reason = outcome
        raise error(reason)  # made anew each time: a traceback belongs to one caller

    async def _outcome(self, question: _Question, lookup: _Lookup) -> _Outcome:
        flight = self._flights.get(question)
        if flight is None:
            seconds = self._until - self._clock.monotonic()
            # What is known costs nothing, lest a message's other questions keep it from being read.
            known = None if self._known is None else self._known(*question)
            if known is not None:
                return _told(known)
            if seconds <= 0 or self._left <= 0:
                raise TemporaryResolverError("time is over" if seconds <= 0 else "too many questions")
            self._left -= 1
            flight = asyncio.create_task(_fetch(lookup, min(seconds, self._longest)))
            self._flights[question] = flight
        # `wait` does not cancel the question with who waits: others may wait, too. The question has its own end.
        await asyncio.wait((flight,))
        return (TemporaryResolverError, "closed") if flight.cancelled() else flight.result()


def _told(known: dns_cache.Outcome) -> _Outcome:
    match known:
        case dns_cache.Found():
            return Answer(known.records, authenticated=known.authenticated)
        case dns_cache.Absent():
            return NoRecordError if known.name_exists else NameNotFoundError, "absent"
        case dns_cache.Failed():
            return TemporaryResolverError, known.reason.value


async def _fetch(lookup: _Lookup, seconds: float) -> _Outcome:
    try:
        async with asyncio.timeout(seconds):
            found = await lookup(seconds)
    except NoAnswer as error:
        return NameNotFoundError if isinstance(error, NoSuchName) else NoRecordError, type(error).__name__
    except dns_types.InvalidName:
        return NameNotFoundError, "no name of the DNS"
    except TemporaryFailure as error:
        return TemporaryResolverError, error.reason.value
    except TimeoutError:
        return TemporaryResolverError, dns_types.Failure.TIMEOUT.value
    return Answer(found.records, authenticated=found.authenticated)
