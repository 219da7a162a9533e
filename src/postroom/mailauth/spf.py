"""Whether a host may send mail in a domain's name: SPF (RFC 7208; RFC 8616 for names beyond ASCII; rule B4).

`check_helo` and `check_mail_from` judge an SMTP session over a `Resolver`. Nothing a stranger publishes or says makes
them raise, or ask more than the limits of RFC 7208 §4.6.4 allow. Look-ups follow one another, as each depends on what
came before; the resolver bounds their time.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeVar

from postroom.mailauth.resolver import IpAddress, NameNotFoundError, Resolver, ResolverError
from postroom.mailauth.spf_macro import (
    MAX_NAME,
    MacroError,
    MacroString,
    ascii_domain,
    expand_name,
    expand_text,
    parse_explanation,
    target_name,
    uses,
)
from postroom.mailauth.spf_record import MAX_RECORD_BYTES, Directive, Mechanism, SpfRecord, choose_record, parse_record
from postroom.mailauth.spf_result import Identity, Reason, SpfError, SpfResult, Status, shown

MAX_LOOKUPS: Final = 10
MAX_VOID_LOOKUPS: Final = 2
MAX_MX: Final = 10
MAX_PTR: Final = 10
"""RFC 7208 §4.6.4."""
MAX_EXPLANATION: Final = 500
"""Characters of an explanation that are kept."""
MAX_LOCAL_PART: Final = 256
"""Characters of a local part, as long as an SMTP path may be (RFC 5321 §4.5.3.1.3); a longer one fits no name."""

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Session:
    """What is known of an SMTP session before MAIL FROM. `helo` is what the client said, whatever it said."""

    ip: IpAddress
    helo: str
    receiver: str = "unknown"
    """Our own name: `%{r}` in explanations."""
    now: int = 0
    """Seconds since 1970: `%{t}` in explanations."""


async def check_mail_from(
    resolver: Resolver, session: Session, sender: str, *, explain: bool = True, max_lookups: int = MAX_LOOKUPS
) -> SpfResult:
    """The result for the MAIL FROM identity (RFC 7208 §2.4).

    `sender` is the reverse-path without angle brackets; of an empty one the HELO identity is checked in its place.
    """
    if not sender:
        return await check_helo(resolver, session, explain=explain, max_lookups=max_lookups)
    domain = sender.rpartition("@")[2]
    return await check_host(resolver, session, domain, sender, explain=explain, max_lookups=max_lookups)


async def check_helo(
    resolver: Resolver, session: Session, *, explain: bool = True, max_lookups: int = MAX_LOOKUPS
) -> SpfResult:
    """The result for the HELO identity: `postmaster` at what the client calls itself (RFC 7208 §2.3)."""
    return await check_host(
        resolver,
        session,
        session.helo,
        f"postmaster@{session.helo}",
        identity=Identity.HELO,
        explain=explain,
        max_lookups=max_lookups,
    )


async def check_host(
    resolver: Resolver,
    session: Session,
    domain: str,
    sender: str,
    *,
    identity: Identity = Identity.MAIL_FROM,
    explain: bool = True,
    max_lookups: int = MAX_LOOKUPS,
) -> SpfResult:
    """`check_host()` of RFC 7208 §4: whether the client may send for `domain`, of whose mailboxes `sender` is one.

    `explain`: the domain's explanation of a `fail` is looked up, too. `identity` is only told on.
    """
    return await _Check(resolver, session, sender, max_lookups).run(identity, domain, explain=explain)


@dataclass(frozen=True, slots=True)
class _Decision:
    """What a record says: the directive that matched, None when none did, and where it stands."""

    domain: str
    record: SpfRecord
    directive: Directive | None

    @property
    def status(self) -> Status:
        return Status.NEUTRAL if self.directive is None else self.directive.status


class _Check:
    """One check: counts what is asked, remembers where it is."""

    __slots__ = (
        "_at",
        "_client",
        "_has_plain_local",
        "_lookups",
        "_max_lookups",
        "_names",
        "_resolver",
        "_term",
        "_validated",
        "_values",
        "_void",
        "_voids",
    )

    def __init__(self, resolver: Resolver, session: Session, sender: str, max_lookups: int) -> None:
        self._resolver, self._client, self._max_lookups = resolver, _plain(session.ip), max_lookups
        local, _, domain = sender.rpartition("@")
        local = local or "postmaster"  # RFC 7208 §4.3
        self._has_plain_local = local.isascii() and len(local) <= MAX_LOCAL_PART
        local, domain = local[: MAX_LOCAL_PART + 1], ascii_domain(domain) or ""
        self._values = {
            "s": f"{local}@{domain}",
            "l": local,
            "o": domain,
            "h": (ascii_domain(session.helo) or session.helo)[:MAX_NAME],
            "i": _dotted(self._client),
            "c": str(self._client),
            "v": "in-addr" if self._client.version == 4 else "ip6",
            "r": session.receiver,
            "t": str(session.now),
        }
        self._lookups = self._voids = 0
        self._void = False
        """Whether a question of the present term had no answer."""
        self._at = self._term = ""
        """The domain whose record is evaluated, and the term."""
        self._names: tuple[str, ...] | None = None
        self._validated: dict[str, bool] = {}

    async def run(self, identity: Identity, given: str, *, explain: bool) -> SpfResult:
        domain = ascii_domain(given)
        if domain is None:
            return SpfResult(Reason.INVALID_DOMAIN.status, Reason.INVALID_DOMAIN, identity, shown(given))
        explanation = ""
        try:
            decision = await self._evaluate(domain)
        except SpfError as error:
            status, reason, term, where = error.reason.status, error.reason, error.term or self._term, self._at
        else:
            if decision is None:
                return SpfResult(Reason.NO_RECORD.status, Reason.NO_RECORD, identity, domain)
            directive, status, where = decision.directive, decision.status, decision.domain
            reason, term = (Reason.NO_MATCH, "") if directive is None else (Reason.MATCH, directive.text)
            if explain and status is Status.FAIL:
                explanation = await self._explain(decision)
        return SpfResult(status, reason, identity, domain, where, shown(term), explanation, self._lookups, self._voids)

    async def _evaluate(self, domain: str) -> _Decision | None:
        """What the record of `domain` says (RFC 7208 §4.6); None when the domain has no record. Raises `SpfError`."""
        self._at, self._term = domain, ""
        record = await self._record(domain)
        if record is None:
            return None
        for directive in record.directives:
            self._at, self._term = domain, directive.text
            if await self._matches(directive, domain):
                return _Decision(domain, record, directive)
        if record.redirect is None or not self._is_usable(record.redirect):
            return _Decision(domain, record, None)
        self._at, self._term = domain, "redirect"
        self._count_lookup()
        target = await self._target(record.redirect, domain)
        # Its explanation takes the place of ours, or the lack of one does (RFC 7208 §6.2).
        decision = None if target is None else await self._evaluate(target)
        if decision is None:
            raise SpfError(Reason.REDIRECT_WITHOUT_RECORD, "redirect")
        return decision

    async def _record(self, domain: str) -> SpfRecord | None:
        """RFC 7208 §4.4, §4.5. A name of one label has no record (RFC 7208 §4.3)."""
        if "." not in domain:
            return None
        text = choose_record(await self._ask(self._resolver.txt(domain)))
        return None if text is None else parse_record(text)

    async def _matches(self, directive: Directive, domain: str) -> bool:
        match directive.mechanism:
            case Mechanism.ALL:
                return True
            case Mechanism.IP4:
                return self._client.version == 4 and directive.spans(directive.network, self._client)
            case Mechanism.IP6:
                return self._client.version == 6 and directive.spans(directive.network, self._client)
        self._count_lookup()
        if directive.target is not None and not self._is_usable(directive.target):
            return False
        self._void = False
        target = await self._target(directive.target, domain)
        if directive.mechanism is Mechanism.INCLUDE:
            self._count_void()
            return await self._includes(target, directive, domain)
        # A name that cannot be asked for has no records (RFC 7208 §4.8 leaves this open).
        matched = target is not None and await self._finds(directive, target)
        if not matched:
            self._count_void()
        return matched

    async def _includes(self, target: str | None, directive: Directive, domain: str) -> bool:
        """RFC 7208 §5.2."""
        decision = None if target is None else await self._evaluate(target)
        self._at, self._term = domain, directive.text
        if decision is None:
            raise SpfError(Reason.INCLUDE_WITHOUT_RECORD, directive.text)
        return decision.status is Status.PASS

    async def _finds(self, directive: Directive, target: str) -> bool:
        """Mechanisms that look at addresses: RFC 7208 §5.3, §5.4, §5.5, §5.7."""
        match directive.mechanism:
            case Mechanism.EXISTS:
                return bool(await self._ask(self._resolver.a(target)))  # whatever the client's family is
            case Mechanism.PTR:
                for name in await self._reverse_names():
                    if (name == target or name.endswith("." + target)) and await self._is_validated(name):
                        return True
                return False
            case Mechanism.MX:
                hosts = await self._ask(self._resolver.mx(target))
                if len(hosts) > MAX_MX:
                    raise SpfError(Reason.MX_LIMIT, directive.text)
            case _:
                hosts = (target,)
        for host in hosts:
            known = target_name(host)  # None: the root, of a null MX
            if known is not None and any(
                directive.spans(int(one), self._client) for one in await self._addresses(known)
            ):
                return True
        return False

    async def _addresses(self, name: str) -> tuple[IpAddress, ...]:
        """Those of the client's family."""
        if self._client.version == 4:
            return await self._ask(self._resolver.a(name))
        return await self._ask(self._resolver.aaaa(name))

    async def _reverse_names(self) -> tuple[str, ...]:
        """The first names of the client's address. An answer that cannot be had is none (RFC 7208 §5.5)."""
        if self._names is None:
            try:
                names = await self._ask(self._resolver.ptr(self._client))
            except SpfError:
                names = ()
            self._names = tuple(filter(None, map(target_name, names[:MAX_PTR])))
        return self._names

    async def _is_validated(self, name: str) -> bool:
        """Whether the client's address is one of `name`'s (RFC 7208 §5.5)."""
        if name not in self._validated:
            try:
                self._validated[name] = self._client in await self._addresses(name)
            except SpfError:
                self._validated[name] = False
        return self._validated[name]

    async def _host_name(self, domain: str) -> str:
        """`%{p}`: the domain itself, else a name below it, else any validated name (RFC 7208 §7.3)."""
        names = await self._reverse_names()
        for name in sorted(names, key=lambda name: (name != domain, not name.endswith("." + domain))):
            if await self._is_validated(name):
                return name
        return "unknown"

    async def _ask(self, answer: Awaitable[tuple[Record, ...]]) -> tuple[Record, ...]:
        try:
            found = await answer
        except NameNotFoundError:
            found = ()
        except ResolverError:
            raise SpfError(Reason.DNS) from None
        self._void = self._void or not found
        return found

    def _count_lookup(self) -> None:
        if self._lookups >= self._max_lookups:
            raise SpfError(Reason.LOOKUP_LIMIT)
        self._lookups += 1

    def _count_void(self) -> None:
        """Terms are counted, not questions: hosts behind one `mx` that lack one address family are no fault."""
        self._voids += self._void
        self._void = False
        if self._voids > MAX_VOID_LOOKUPS:
            raise SpfError(Reason.VOID_LIMIT)

    def _is_usable(self, tokens: MacroString) -> bool:
        """Terms with a local part beyond ASCII do not match anything (RFC 8616 §4); nor with an endless one."""
        return self._has_plain_local or not uses(tokens, "sl")

    async def _target(self, tokens: MacroString | None, domain: str) -> str | None:
        """The `target-name` of a term; None when it is none (RFC 7208 §4.8, §7.3)."""
        if tokens is None:
            return domain
        if uses(tokens, "p") and self._names is None:
            self._count_lookup()  # the PTR question counts as a term (RFC 7208 §4.6.4)
        return expand_name(tokens, await self._values_for(tokens, domain))

    async def _values_for(self, tokens: MacroString, domain: str) -> dict[str, str]:
        host = await self._host_name(domain) if uses(tokens, "p") else ""
        return self._values | {"d": domain, "p": host}

    async def _explain(self, decision: _Decision) -> str:
        """RFC 7208 §6.2: whatever goes wrong, there is no explanation; the result stands."""
        tokens = decision.record.explanation
        if tokens is None or not self._is_usable(tokens):
            return ""
        try:
            name = expand_name(tokens, await self._values_for(tokens, decision.domain))
            texts = () if name is None else await self._resolver.txt(name)
            if len(texts) != 1 or len(texts[0]) > MAX_RECORD_BYTES:
                return ""
            parsed = parse_explanation(texts[0].decode("ascii"))
            text = expand_text(parsed, await self._values_for(parsed, decision.domain), MAX_EXPLANATION)
        except (ResolverError, SpfError, MacroError, UnicodeDecodeError):
            return ""
        return text if text.isascii() and text.isprintable() else ""


def _plain(address: IpAddress) -> IpAddress:
    """RFC 7208 §5: an IPv4 address inside of an IPv6 one is that address. A zone index says nothing to others."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))


def _dotted(address: IpAddress) -> str:
    """`%{i}`: IPv4 as ever, IPv6 as hexadecimal digits with dots (RFC 7208 §7.3)."""
    return str(address) if address.version == 4 else ".".join(f"{int(address):032x}")
