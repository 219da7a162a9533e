"""The guarded HTTP client: every request to a URL that somebody outside the operator chose goes through here (SEC-9).

Before each request the name is resolved and every address checked; the connection is made to a checked address and to
nothing else, with the name kept for TLS and `Host`: what the DNS says a moment later (rebinding) changes nothing
(security-privacy A9.6). Redirects are answers, not ways. No proxy, no cookie, no second try.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address
from typing import Final, Protocol, TypeVar

from postroom import __version__
from postroom.base.clock import Clock
from postroom.net.dns_types import Answer, DnsError, IpAddress, Resolver
from postroom.net.guard import Refusal, Target, check_addresses, check_url
from postroom.net.http_link import Broken, Exchange, HttpLink
from postroom.net.idle_links import IdleLinks
from postroom.net.public_address import is_public
from postroom.net.racing import first_connected, interleaved

DEADLINE_SECONDS: Final = 15.0
"""events-webhooks-errors §13: from the question to the DNS to the last byte that is read."""
READ_LIMIT: Final = 4096
"""Bytes of a response's body that are read."""
DNS_SECONDS: Final = 5.0
MAX_ADDRESSES: Final = 4
"""Addresses that are tried in one request, as for hosts of mail (`mx.MAX_ADDRESSES`); all of them are checked."""
USER_AGENT: Final = f"Postroom/{__version__}"
_OURS: Final = frozenset(
    (
        *("host", "user-agent", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade"),
        *("expect", "accept-encoding", "cookie", "forwarded", "via", "proxy-authorization"),
    )
)
"""Headers that callers have no say in."""

_Record = TypeVar("_Record", covariant=True)


class Code(StrEnum):
    """Why there is no answer that counts (events-webhooks-errors §8)."""

    TIMEOUT = "timeout"
    DNS = "dns"
    """No such name, no address, or nobody could say."""
    TLS = "tls"
    """The handshake failed, or the certificate is not one for that name that we trust."""
    CONNECT = "connect"
    """No connection, or one that ended or turned to nonsense before the whole head of a response was there."""
    REDIRECT = "redirect"
    SSRF_BLOCKED = "ssrf_blocked"
    INVALID_URL = "invalid_url"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer other than a redirect. `body` is its beginning as it was sent, undecoded; `complete` if it is all of
    it. Whoever sent it chose the `status`: three digits, of which those from 600 on count as 500 (RFC 9110 §15).
    """

    status: int
    duration_ms: int
    body: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer that counts. `status` is a redirect's, `refusal` says more about `ssrf_blocked` and `invalid_url`.

    With `timeout`, `connect` and `redirect` the other side may have the request; with the others it has not.
    """

    code: Code
    duration_ms: int
    status: int | None = None
    refusal: Refusal | None = None


class GuardedClient:
    """Posts to strangers. It lives on one event loop; `aclose` it there. May be used by any number of tasks at once.

    `own_hosts`, `platform_domain` and `allowed_test_hosts` as in `guard.check_url`; the last also stands for "whatever
    its addresses are". `own_addresses` tells which addresses nodes of this deployment are bound to now. Without
    `context` the constructor reads the system's authorities, which blocks. Connections are kept for further requests
    (`idle_links`), and are used again only if their address is among those that were checked for that request.
    """

    def __init__(
        self,
        clock: Clock,
        resolver: Resolver,
        *,
        own_hosts: Collection[str],
        platform_domain: str | None,
        own_addresses: Callable[[], Collection[IpAddress]],
        allowed_test_hosts: Collection[str] = (),
        is_allowed: Callable[[IpAddress], bool] = is_public,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._clock, self._resolver = clock, resolver
        self._check_url = partial(
            check_url,
            own_hosts=frozenset(own_hosts),
            platform_domain=platform_domain,
            allowed_test_hosts=frozenset(allowed_test_hosts),
        )
        self._own_addresses, self._is_allowed = own_addresses, is_allowed
        self._context = context or _verifying()
        self._idle = IdleLinks()

    async def check(self, url: str, *, within: float = DNS_SECONDS) -> Refusal | Code | None:
        """Whether a request to `url` would be made now, for who stores it: None if so, else why not.

        `Code.DNS` is none of the guard's: the name has no address, or nobody could say within `within` seconds.
        """
        target = self._check_url(url)
        if isinstance(target, Refusal):
            return target
        try:
            await self._addresses(target, within)
        except _Failed as failed:
            return failed.refusal or failed.code
        return None

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        deadline: float = DEADLINE_SECONDS,
        read_limit: int = READ_LIMIT,
    ) -> Response | Failure:
        """One POST, at most once: nothing is repeated of which a byte may have left.

        `deadline` is in seconds, for all of it; `read_limit` in bytes of the body. A response whose head came in time
        is one, even if its body did not. Raises ValueError for headers that are ours to set or malformed; never for
        what the network does.
        """
        if not _OURS.isdisjoint(map(str.lower, headers)):
            raise ValueError("a header that the client sets itself")
        began = self._clock.monotonic()
        try:
            exchange = await self._post(url, body, headers, deadline, read_limit)
        except _Failed as failed:
            return Failure(failed.code, self._since(began), refusal=failed.refusal)
        if 300 <= exchange.status < 400:
            return Failure(Code.REDIRECT, self._since(began), status=exchange.status)
        return Response(exchange.status, self._since(began), bytes(exchange.body), exchange.complete)

    async def aclose(self) -> None:
        """Close connections that wait for work; those at work are closed as they end."""
        self._idle.close()

    def _since(self, began: float) -> int:
        return round((self._clock.monotonic() - began) * 1000)

    async def _post(
        self, url: str, body: bytes, headers: Mapping[str, str], deadline: float, read_limit: int
    ) -> Exchange:
        target = self._check_url(url)
        if isinstance(target, Refusal):
            raise _Failed(_CODES.get(target, Code.INVALID_URL), target)
        exchange = Exchange(
            (("Host", target.authority), ("User-Agent", USER_AGENT), *headers.items()), target.path, body, read_limit
        )
        link: HttpLink | None = None
        try:
            async with asyncio.timeout(deadline):
                addresses = await self._addresses(target, min(DNS_SECONDS, deadline))
                link = self._idle.take((target.host, target.port), addresses)
                if link is None:
                    link = await self._connect(target, addresses)
                await link.run(exchange)
        except TimeoutError:
            if not exchange.status:
                raise _Failed(Code.TIMEOUT) from None
        except Broken:
            if not exchange.status:
                raise _Failed(Code.CONNECT) from None
        finally:
            if link is not None:
                self._idle.give((target.host, target.port), link)
        return exchange

    async def _addresses(self, target: Target, within: float) -> Sequence[IpAddress]:
        """The addresses of the name, all of them checked, in the order to try them; at least one."""
        v4, v6 = await asyncio.gather(
            _known(self._resolver.a, target.host, within), _known(self._resolver.aaaa, target.host, within)
        )
        found: list[IpAddress] = [*v6, *v4]
        if target.test_host:
            refusal = None if found else Refusal.NO_ADDRESS
        else:
            refusal = check_addresses(found, own_addresses=self._own_addresses(), is_allowed=self._is_allowed)
        if refusal is not None:
            raise _Failed(Code.DNS if refusal is Refusal.NO_ADDRESS else Code.SSRF_BLOCKED, refusal)
        return interleaved(v6, v4)

    async def _connect(self, target: Target, addresses: Sequence[IpAddress]) -> HttpLink:
        """To whichever of `addresses` answers first. TLS is not part of that: a host whose certificate is wrong at one
        address is wrong."""
        try:
            address, connected = await first_connected(addresses[:MAX_ADDRESSES], partial(_tcp, port=target.port))
        except OSError:
            raise _Failed(Code.CONNECT) from None
        return await self._secure(target, address, connected)

    async def _secure(self, target: Target, address: IpAddress, connected: socket.socket) -> HttpLink:
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_connection(
                partial(HttpLink, address), sock=connected, ssl=self._context, server_hostname=target.host
            )
        except (OSError, ValueError):  # ssl.SSLError is an OSError; ValueError is what `ssl` says of some names
            raise _Failed(Code.TLS) from None
        return link


class _Failed(Exception):
    def __init__(self, code: Code, refusal: Refusal | None = None) -> None:
        super().__init__(code.value)
        self.code, self.refusal = code, refusal


_CODES: Final = dict.fromkeys(
    (Refusal.IP_LITERAL, Refusal.NAME, Refusal.OWN_NAME, Refusal.PORT, Refusal.ADDRESS), Code.SSRF_BLOCKED
)
"""What is well-formed and forbidden; all else is an invalid URL."""


class _Ask(Protocol[_Record]):
    async def __call__(self, name: str, *, within: float | None) -> Answer[_Record]: ...


async def _known(ask: _Ask[_Record], name: str, within: float) -> tuple[_Record, ...]:
    """No answer counts as no address, as in `net.route`: what is not known is not connected to either."""
    try:
        return (await ask(name, within=within)).records
    except DnsError:
        return ()


async def _tcp(address: IpAddress, port: int) -> socket.socket:
    """A connected socket. Raises OSError. An address as a string is looked up nowhere."""
    made = socket.socket(socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (str(address), port))
    except BaseException:
        made.close()
        raise
    return made


def _verifying() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
