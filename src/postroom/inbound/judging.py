"""Who sent a message, as far as can be known: SPF, DKIM, ARC, DMARC, asked all at a time (inbound §17; mail-server B4).

Evaluated on the message as received, between the final dot and the reply. Nothing is refused for what comes of it; it
is recorded, told in `Authentication-Results`, and everything later trusts the verdict and nothing else. A name server
that does not answer makes the result temporary: never a pass, and never a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Protocol

from postroom.base.clock import Clock
from postroom.db.errors import is_transient
from postroom.mail.address import read_domains
from postroom.mail.domain import domain_of
from postroom.mailauth import dmarc, spf
from postroom.mailauth.authres import render
from postroom.mailauth.authres_trust import without_claims
from postroom.mailauth.canonical import HeaderField, MalformedHeaderError, find_body, parse_fields
from postroom.mailauth.checks import Checks
from postroom.mailauth.dkim_key import record_name
from postroom.mailauth.dkim_result import Status
from postroom.mailauth.dmarc import UNCHECKED, DmarcResult, SpfOutcome, SpfStatus
from postroom.mailauth.findings import authentication_results
from postroom.mailauth.resolver import NoRecordError, Resolver, ResolverError, TemporaryResolverError, TxtResolver
from postroom.mailauth.verdict import Client, Evidence, Verdict, document, judge, spf_of, summary
from postroom.net import dns_types
from postroom.net.auth_resolver import MessageResolver
from postroom.smtp.envelope import Envelope

SPF_QUESTIONS: Final = 80
"""Of the questions that a message may ask, those that its SPF record may: the others are not to suffer for it."""
MAX_AUTHORS: Final = 10
PIECE: Final = 64 * 1024
"""Octets of a body that are hashed at a time: about half a millisecond."""
QUICK_HEADER: Final = 16 * 1024
"""Octets of a header that may be looked through for claims while others wait: two milliseconds' worth."""
UNJUDGED: Final = "unverified"
"""The verdict where nothing was evaluated."""


Published = Callable[[str], Awaitable[bytes | None]]
"""The TXT record at a name, if it is of a key of ours. May raise what the database raises."""


@dataclass(frozen=True, slots=True)
class JudgingRules:
    """What is evaluated, and what is believed (settings `policy`, `dkim.verify_inbound`)."""

    spf: bool = True
    spf_max_lookups: int = 10
    dkim: bool = True
    dmarc: bool = True
    tell: bool = True
    """Whether the results are written before the message, as `Authentication-Results`."""
    trusted_id: str = ""
    """Of the server whose results are believed on mail that it handed over by LMTP; empty: nobody's."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, the evidence as JSON has it, and the field that tells of it, empty or ending in CRLF."""

    verdict: str
    auth: Mapping[str, Any] | None
    field: bytes = b""
    author: str | None = None
    """The domain that the verdict is about, in A-labels; None where it is not about one."""

    @property
    def is_to_be_rejected(self) -> bool:
        """Whether the author's domain asks for that, and nothing speaks for the message."""
        return self.verdict == "fail" and self.auth is not None and self.auth["dmarc"]["policy"] == "reject"


NOT_JUDGED: Final = Judgement(UNJUDGED, None)
LOOPED_BACK: Final = Judgement("pass", {"source": "loopback"})
"""Between mailboxes of one test tenant (inbound §30)."""


class Judging(Protocol):
    """`Judge`, as the receiver asks it."""

    async def judge(self, envelope: Envelope[Any], raw: bytes, /) -> Judgement: ...

    async def purge(self, raw: bytes, /) -> bytes: ...


class Judge:
    """Judges what the listeners take. One per process; `resolver` is the process's. `published` knows the records of
    our own keys, by which our own mail is verified."""

    def __init__(
        self,
        resolver: dns_types.Resolver,
        clock: Clock,
        rules: JudgingRules,
        *,
        hostname: str,
        published: Published | None = None,
    ) -> None:
        self._resolver = resolver
        self._clock = clock
        self._rules = rules
        self._hostname = hostname
        self._published = published

    async def purge(self, raw: bytes) -> bytes:
        """The message without fields that claim to be our results, which anybody may write (edge D9)."""
        start = find_body(raw)
        if b"authentication-results" not in raw[:start].lower():
            return raw
        if start <= QUICK_HEADER:
            return without_claims(raw, (self._hostname,), body_start=start)
        # A header is as large as its sender likes: a million fields take a second.
        return await asyncio.to_thread(without_claims, raw, (self._hostname,), body_start=start)

    async def judge(self, envelope: Envelope[Any], raw: bytes) -> Judgement:
        """What is known of the message `raw`, as received. Never raises on its content, nor for want of the DNS."""
        rules = self._rules
        if not (rules.spf or rules.dkim or rules.dmarc):
            return NOT_JUDGED
        head = raw[: find_body(raw)]
        try:
            fields: Sequence[HeaderField] = parse_fields(head, mbox=True)
        except MalformedHeaderError:
            fields = ()
        authors, are_all = read_domains([field.value for field in fields if field.name == "from"], MAX_AUTHORS)
        author = dmarc.author_domain(authors) if rules.dmarc else None
        sender = domain_of(envelope.mail_from) or domain_of(f"@{envelope.helo}") if self._has_peer(envelope) else None
        checks = Checks(
            head if rules.dkim else b"",
            now=int(self._clock.now().timestamp()),
            author=author,
            sender=sender,
            fields=fields if rules.dkim else (),
        )
        whole = MessageResolver(self._resolver, self._clock)
        spf_resolver = whole.part(SPF_QUESTIONS)
        own = None if self._published is None or not _is_from_queue(envelope) else _OwnFirst(self._published, whole)
        resolver: TxtResolver = own or whole
        # Whatever has to be asked is asked now, all at a time.
        asked = asyncio.gather(*(_warm(resolver, name) for name in checks.queries if not whole.is_known(name)))
        try:
            if checks.needs_body:
                await _hash_body(checks, raw, len(head))
            trusted = checks.trusted(rules.trusted_id) if envelope.lmtp and rules.trusted_id else None
            found = await self._spf(envelope, spf_resolver) if self._has_peer(envelope) else spf_of(trusted)
        except BaseException:
            asked.cancel()  # nobody waits for the answers any more
            await asyncio.gather(asked, return_exceptions=True)
            raise
        await asked
        findings = await checks.results(resolver, found)
        evidence = Evidence(
            dmarc=await _existing(findings.dmarc, whole),
            spf=found,
            dkim=findings.dkim,
            arc=findings.arc,
            trusted=trusted,
            multiple_from=len(authors) > 1 or not are_all,
            client=Client(envelope.peer_ip, envelope.helo, "TLS" if envelope.tls else None)
            if self._has_peer(envelope)
            else None,
        )
        return self._told(envelope, evidence, frozenset() if own is None else own.names)

    def _told(self, envelope: Envelope[Any], evidence: Evidence, own: Collection[str]) -> Judgement:
        field = b""
        if self._rules.tell:
            results = authentication_results(
                evidence, self._hostname, mail_from=envelope.mail_from or None, helo=envelope.helo or None
            )
            field = render(results, utf8=envelope.smtputf8)
        verdict = judge(evidence).value if self._rules.dmarc else UNJUDGED
        if _is_ours(evidence, own):
            verdict = Verdict.PASS.value
        found = {**document(evidence), "summary": summary(evidence)}
        return Judgement(verdict, found, field, evidence.dmarc.author_domain)

    def _has_peer(self, envelope: Envelope[Any]) -> bool:
        """Whether the sender's own host handed it over: not what a mail server before us did, nor our own queue."""
        return bool(envelope.peer_ip) and not envelope.lmtp

    async def _spf(self, envelope: Envelope[Any], resolver: Resolver) -> SpfOutcome:
        if not self._rules.spf:
            return UNCHECKED
        session = spf.Session(
            ip_address(envelope.peer_ip), envelope.helo, self._hostname, int(self._clock.now().timestamp())
        )
        found = await spf.check_mail_from(
            resolver, session, envelope.mail_from, explain=False, max_lookups=self._rules.spf_max_lookups
        )
        return SpfOutcome(
            SpfStatus(found.status.value), found.domain or None, "smtp", found.identity.value, found.reason.value
        )


def _is_from_queue(envelope: Envelope[Any]) -> bool:
    """Whether it came from our own queue: who hands over by LMTP on a local socket has no address either."""
    return not envelope.peer_ip and not envelope.lmtp


def _is_ours(evidence: Evidence, own: Collection[str]) -> bool:
    """Whether the author's domain signed it with a key of ours, which stand at `own`: we know who wrote it, whatever
    policy that domain has published. The queue has mail of others, too, that is passed on."""
    aligned = zip(evidence.dkim, evidence.dmarc.dkim_aligned, strict=False)
    return not evidence.multiple_from and any(
        is_aligned and found.status is Status.PASS and record_name(found.selector, found.domain) in own
        for found, is_aligned in aligned
    )


class _OwnFirst:
    """A `TxtResolver` that asks the DNS only for what is not ours."""

    def __init__(self, published: Published, otherwise: TxtResolver) -> None:
        self._published = published
        self._otherwise = otherwise
        self.names: set[str] = set()
        """Where keys of ours were found."""

    async def txt(self, name: str) -> Sequence[bytes]:
        try:
            record = await self._published(name)
        except Exception as error:
            if not is_transient(error):
                raise
            raise TemporaryResolverError("our own keys cannot be read") from error
        if record is None:
            return await self._otherwise.txt(name)
        self.names.add(name)
        return (record,)


async def _warm(resolver: TxtResolver, name: str) -> None:
    """Ask, so that the answer is there, whatever it is, when a check asks for it."""
    try:
        await resolver.txt(name)
    except ResolverError:
        return


async def _hash_body(checks: Checks, raw: bytes, start: int) -> None:
    """In pieces, between which others have their turn: a large body takes a quarter of a second."""
    for at in range(start, len(raw), PIECE):
        if at > start:
            await asyncio.sleep(0)
        checks.update(raw[at : at + PIECE])


async def _existing(found: DmarcResult, resolver: Resolver) -> DmarcResult:
    """The result with the policy for names that do not exist, where there is one and the author's does not (`np=`)."""
    if not found.existence_matters or found.author_domain is None:
        return found
    name = found.author_domain
    known = await asyncio.gather(*(_exists(ask, name) for ask in (resolver.a, resolver.aaaa, resolver.mx)))
    return found.with_existence(any(known))


async def _exists(ask: Callable[[str], Awaitable[Sequence[object]]], name: str) -> bool:
    try:
        return bool(await ask(name))
    except (NoRecordError, TemporaryResolverError):
        return True  # what nobody could say is not held against the name
    except ResolverError:
        return False
