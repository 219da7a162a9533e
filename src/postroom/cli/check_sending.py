"""The doctor's look at sending: the way out, the queue, the keys that sign (cli-config-ops C9).

The relay is spoken to as deliveries are: TLS whose certificate holds, then the sign-in. Nothing else is connected to
unless its name is given.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from postroom.base.settings import RelayTls, Settings
from postroom.cli.queues import QUEUES
from postroom.cli.verdicts import Check, failed, passed, skipped, warned
from postroom.db import Connection
from postroom.outbound import bounces
from postroom.outbound.queue import standing
from postroom.outbound.signing import DkimKeys, DomainState
from postroom.outbound.transports.link import (
    Connect,
    Endpoint,
    Link,
    Timeouts,
    TlsUse,
    Unusable,
    any_certificate,
    connect_tcp,
    open_link,
)
from postroom.sending import RELAY_TLS
from postroom.smtp.client_events import ClientConfig, SessionEnded
from postroom.smtp.evidence import Evidence, Fault, Stage

SECONDS: Final = 15.0
"""For a conversation with a server out there."""
TIMEOUTS: Final = Timeouts(connect=8.0, command=8.0, final=8.0, attempt=SECONDS)
GOODBYE: Final = 1.0
LATE: Final = timedelta(minutes=15)
"""Mail that is due for longer is not being handed over."""
BOUNCES_LATE: Final = timedelta(hours=1)
NAMED: Final = 5
"""So many domains are named; the rest are counted."""
RELAY: Final = "sending.outbound.relay"
DIRECT: Final = "sending.outbound.direct"

_FAULTS: Final[Mapping[Fault, tuple[str, str]]] = MappingProxyType(
    {
        Fault.CONNECT_FAILED: ("it cannot be connected to", "Correct its name and port, or let a firewall pass it."),
        Fault.TIMEOUT: ("it does not answer", "Let a firewall pass it, or ask whoever runs it."),
        Fault.CONNECTION_LOST: ("it hangs up", "Ask whoever runs it; it may refuse this machine's address."),
        Fault.TLS_MISSING: ("it offers no STARTTLS", "Set queue.relay_tls = implicit and its port, if it wants that."),
        Fault.TLS_FAILED: (
            "TLS fails: no handshake, or a certificate that does not hold for this name",
            "Use the name that its certificate has; queue.relay_tls says which kind of TLS it gets.",
        ),
        Fault.AUTH_MISSING: ("it offers no way to sign in", "Try queue.relay_port = 587, or leave relay_username out."),
    }
)


async def outbound(
    settings: Settings,
    outgoing: tuple[str, int] | None = None,
    *,
    connect: Connect = connect_tcp,
    context: ssl.SSLContext | None = None,
) -> list[Check]:
    """The relay, if there is one; and whether port 25 is open outwards, tried with the host and port of *outgoing*."""
    queue = settings.queue
    found = []
    if queue.relay_host:
        found.append(await _relay(settings, connect, context))
    if not queue.relay_host or queue.relay_from_domains or outgoing is not None:
        found.append(await _direct(settings, outgoing, connect))
    return found


async def _relay(settings: Settings, connect: Connect, context: ssl.SSLContext | None) -> Check:
    queue = settings.queue
    clear = queue.relay_tls is RelayTls.NONE
    verified = None if clear else context or ssl.create_default_context()
    endpoint = Endpoint(
        queue.relay_host,
        queue.relay_host,
        queue.relay_port,
        RELAY_TLS[queue.relay_tls],
        verified,
        queue.relay_username,
        queue.relay_password,
    )
    where = f"{queue.relay_host}:{queue.relay_port}"
    try:
        link = await _open(endpoint, settings, connect)
    except Unusable as unusable:
        what, fix = _explained(unusable.evidence)
        return failed(RELAY, f"{where}: {what}", fix)
    signs_in = bool(link.session.extensions.auth_mechanisms)
    await _leave(link)
    if clear:
        return warned(RELAY, f"{where} answers, without TLS: mail can be read on the way", "Set queue.relay_tls.")
    if queue.relay_username:
        return passed(RELAY, f"{where}: TLS holds, signed in")
    offer = "it offers sign-in, and none is set" if signs_in else "without sign-in"
    return passed(RELAY, f"{where}: TLS holds, {offer}")


async def _direct(settings: Settings, outgoing: tuple[str, int] | None, connect: Connect) -> Check:
    if outgoing is None:
        return skipped(DIRECT, "port 25 outwards is tried with --outgoing and the name of an MX host that you may ask")
    host, port = outgoing
    endpoint = Endpoint(host, host, port, TlsUse.OPPORTUNISTIC, any_certificate())
    try:
        link = await _open(endpoint, settings, connect)
    except Unusable as unusable:
        evidence = unusable.evidence
        if evidence.stage <= Stage.CONNECT:
            fix = "Have your provider open port 25 outwards, or send by a relay (queue.relay_host)."
            return failed(DIRECT, f"{host}:{port} cannot be connected to", fix)
        what, fix = _explained(evidence)
        return failed(DIRECT, f"{host}:{port}: {what}", fix)
    secured = link.session.encrypted
    await _leave(link)
    return passed(DIRECT, f"{host}:{port} answers, {'with' if secured else 'without'} TLS")


async def _open(endpoint: Endpoint, settings: Settings, connect: Connect) -> Link:
    deadline = asyncio.get_running_loop().time() + SECONDS
    return await open_link(endpoint, ClientConfig(settings.server.hostname), TIMEOUTS, connect, deadline)


async def _leave(link: Link) -> None:
    """Say goodbye, and do not wait long for theirs."""
    link.quit()
    deadline = asyncio.get_running_loop().time() + GOODBYE
    while not isinstance(await link.event(deadline), SessionEnded):
        pass
    link.abort()


def _explained(evidence: Evidence) -> tuple[str, str]:
    """What is wrong, and what to do. A server's own words are not repeated: they may hold anything."""
    if evidence.reply is not None:
        code = evidence.reply.code
        if evidence.stage is Stage.AUTH:
            return f"it refuses the sign-in ({code})", "Correct queue.relay_username and queue.relay_password."
        word = {Stage.GREETING: "us at once", Stage.HELLO: "our name", Stage.TLS: "TLS"}.get(evidence.stage, "us")
        fix = "Ask whoever runs it; it looks at this machine's address, its PTR record, and server.hostname."
        return f"it refuses {word} ({code})", fix
    assert evidence.fault is not None
    known = _FAULTS.get(evidence.fault)
    return known or ("it does not speak SMTP", "Correct its name and port.")


# -- the queue


async def queue(conn: Connection, now: datetime) -> list[Check]:
    """Mail and notices that nobody hands over, mail whose fate is unknown, work that was given up."""
    stand = await standing(conn, now)
    telling = await bounces.QUEUE.counts(conn, now=now)
    counts = {name: await one.counts(conn, now=now) for name, one in QUEUES.items()}
    return [
        _late(stand.oldest_due, stand.held, now),
        _uncertain(stand.uncertain, stand.uncertain_since),
        _notices(telling.due + telling.waiting + telling.claimed, telling.oldest_due, now),
        _given_up({name: one.parked for name, one in counts.items() if one.parked}),
    ]


def _late(oldest: datetime | None, held: int, now: datetime) -> Check:
    name = "queue.deliveries"
    kept = f"; {held} held by an operator" if held else ""
    if oldest is not None and now - oldest > LATE:
        fix = "See that a server with the role worker runs, and what its log says; postroom queue list deliveries."
        return failed(name, f"the oldest mail that is due waits for {_span(now - oldest)}{kept}", fix)
    return passed(name, ("nothing waits longer than it should" if oldest else "nothing is due") + kept)


def _uncertain(count: int, since: datetime | None) -> Check:
    name = "queue.uncertain"
    if not count or since is None:
        return passed(name, "the fate of all mail is known")
    fix = "postroom queue list deliveries --state uncertain; who sent it says what became of it (…/resolve)."
    return warned(name, f"{count} may or may not have arrived, the oldest since {since:%Y-%m-%d %H:%M} UTC", fix)


def _notices(pending: int, oldest: datetime | None, now: datetime) -> Check:
    name = "queue.bounces"
    if oldest is not None and now - oldest > BOUNCES_LATE:
        fix = "See that a server with the role worker runs, and what its log says."
        return warned(name, f"{pending} senders wait to be told, the first for {_span(now - oldest)}", fix)
    return passed(name, f"{pending} notices are on their way" if pending else "nobody waits to be told of a failure")


def _given_up(parked: Mapping[str, int]) -> Check:
    if not parked:
        return passed("dlq", "nothing was given up")
    told = ", ".join(f"{count} of {name}" for name, count in parked.items())
    fix = f"postroom queue show {next(iter(parked))} says why; postroom queue retry makes it due again."
    return failed("dlq", f"given up: {told}", fix)


def _span(time: timedelta) -> str:
    minutes = int(time.total_seconds() // 60)
    return f"{minutes} minutes" if minutes < 120 else f"{minutes // 60} hours"


# -- the keys


async def domains(keys: DkimKeys) -> Check:
    """Each domain that we send for has a key that signs and opens; no key that was made waits to be used."""
    name = "sending.domains"
    found: dict[DomainState, list[str]] = {state: [] for state in DomainState}
    async for domain, state in keys.states():
        found[state].append(domain)
    if unusable := found[DomainState.UNUSABLE]:
        fix = "Put back the master key of this deployment: nothing from there is sent unsigned."
        return failed(name, f"the DKIM key cannot be opened: {_named(unusable)}", fix)
    if none := found[DomainState.NONE]:
        fix = f"postroom dkim show {none[0]} makes it and prints the record to publish before anything is sent."
        return warned(name, f"no DKIM key yet: {_named(none)}", fix)
    if pending := found[DomainState.PENDING]:
        fix = f"When its record is published: postroom dkim rotate {pending[0]} --switch."
        return warned(name, f"a new DKIM key waits to be used: {_named(pending)}", fix)
    signing = len(found[DomainState.SIGNING])
    return passed(name, "a DKIM key signs" if signing == 1 else f"a DKIM key signs for each of {signing} domains")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
