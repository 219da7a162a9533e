"""One question to one name server: over UDP, over TCP when the answer was cut off, over TLS, over HTTPS.

The bytes of messages are dnspython's; nothing of it leaves this module but names on their way to the next question.
Sockets are connected, so that a name server which is not there is known at once and strangers cannot answer for it.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype

from postroom.net.dns_cache import Absent, AnyRecord, Failed, Found, Outcome
from postroom.net.dns_types import Failure, IpAddress, Kind, MxRecord, TlsaRecord, ascii_name

MAX_MESSAGE_BYTES: Final = 65_535
"""RFC 1035 §4.2.2: what the length before a message on TCP can say; the bound for HTTPS, too."""
UDP_PAYLOAD_BYTES: Final = 1232
"""EDNS buffer size that no path to a name server fragments."""
MAX_RECORDS: Final = 300
"""Of all sections of an answer. Each takes some 50 µs of the event loop, and 64 KiB can hold thousands that a stranger
wrote."""
MAX_SYSTEM_SERVERS: Final = 3
MAX_RESOLV_CONF_BYTES: Final = 65_536

_HEADER: Final = struct.Struct("!6H")
"""RFC 1035 §4.1.1; the last three numbers are those of records."""
_BOGUS_CODES: Final = frozenset({6, 7, 8, 9, 10, 11, 12})
"""RFC 8914 §4.7–4.13: what a validator found wrong. 5 (indeterminate) is not one of them."""


class Scheme(StrEnum):
    DNS = "dns"
    TLS = "tls"
    HTTPS = "https"


@dataclass(frozen=True, slots=True)
class Server:
    """A name server that recurses for us. `where` is an address, for HTTPS a URL.

    `tls_name` is what the certificate of a `tls` server must be for; without it, the address.
    """

    scheme: Scheme
    where: str
    port: int = 53
    tls_name: str | None = None


@dataclass(frozen=True, slots=True)
class Follow:
    """The server left the rest of a chain of CNAMEs to us: what to ask for next, and how far the chain may be used."""

    name: dns.name.Name
    ttl: int
    authenticated: bool


class ExchangeFailed(Exception):
    """The server gave no answer that could be read. The text holds no name."""

    def __init__(self, reason: Failure) -> None:
        super().__init__(reason.value)
        self.reason = reason


class HttpsPost(Protocol):
    """Posts a DNS message to a URL (RFC 8484 §4.1) and returns the answer's body, at most `MAX_MESSAGE_BYTES`.

    Raises OSError for whatever goes wrong.
    """

    async def __call__(self, url: str, body: bytes) -> bytes: ...

    async def aclose(self) -> None: ...


def parse_server(text: str) -> Server:
    """A name server as settings have it.

    `192.0.2.1`, `192.0.2.1:5353`, `[2001:db8::1]:53`, the same after `dns://`; `tls://192.0.2.1[:853][#name]` (RFC
    7858); `https://host/path` (RFC 8484). Raises ValueError.
    """
    scheme, separator, rest = text.strip().rpartition("://")
    if not separator:
        scheme = Scheme.DNS
    if scheme == Scheme.HTTPS:
        return _https_server(text.strip())
    if scheme not in (Scheme.DNS, Scheme.TLS):
        raise ValueError("a name server is an address, or starts with dns://, tls:// or https://")
    rest, _, tls_name = rest.partition("#")
    if tls_name and (scheme == Scheme.DNS or ascii_name(tls_name) is None):
        raise ValueError("only a name server of tls:// has a name after #, which is a DNS name")
    address, port = _address_and_port(rest, 853 if scheme == Scheme.TLS else 53)
    return Server(Scheme(scheme), str(address), port, ascii_name(tls_name) if tls_name else None)


def _https_server(url: str) -> Server:
    parts = urlsplit(url)
    if not parts.hostname or parts.username or parts.fragment or len(url) > 2048 or not url.isascii():
        raise ValueError("a name server's URL has a host and neither user nor fragment")
    return Server(Scheme.HTTPS, url, parts.port or 443)


def _address_and_port(text: str, default: int) -> tuple[IpAddress, int]:
    host, port = text, str(default)
    if text.startswith("["):
        host, closed, after = text[1:].partition("]")
        if after:
            port = after[1:] if after[0] == ":" else ""
        if not closed:
            host = ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65535):
        raise ValueError("the port of a name server is a number from 1 to 65535")
    try:
        return ip_address(host), int(port)
    except ValueError:
        raise ValueError("a name server is given by its address") from None


def system_servers(path: Path = Path("/etc/resolv.conf")) -> tuple[Server, ...]:
    """The first three name servers of `resolv.conf(5)`; this machine when there are none. It blocks."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_RESOLV_CONF_BYTES).decode("utf-8", "replace")
    except OSError:
        text = ""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                found.append(Server(Scheme.DNS, str(ip_address(words[1]))))
            except ValueError:
                continue
    return tuple(found[:MAX_SYSTEM_SERVERS]) or (Server(Scheme.DNS, "127.0.0.1"),)


@dataclass(frozen=True, slots=True)
class Options:
    """How to ask. `check_disabled` asks for data whose signatures do not hold (RFC 4035 §3.2.2); `trust_ad` believes
    a server's word that they do, which needs a way to it that nobody else can write to."""

    tcp_fallback: bool = True
    check_disabled: bool = False
    trust_ad: bool = False


def wire_name(name: str) -> dns.name.Name:
    """A name that `ascii_name` made, without the escapes that dnspython reads in text."""
    return dns.name.Name([*(label.encode("ascii") for label in name.split(".")), b""])


class Wire:
    """Ways to name servers. It lives on one event loop."""

    def __init__(self, options: Options, *, tls: ssl.SSLContext | None = None, https: HttpsPost | None = None) -> None:
        self._options, self._tls, self._https = options, tls, https

    async def ask(self, server: Server, name: dns.name.Name, kind: Kind, timeout_secs: float) -> Outcome | Follow:
        """The server's answer to one question.

        Never raises, and comes back after `timeout_secs` at the latest.
        """
        try:
            async with asyncio.timeout(timeout_secs):
                return await self._ask(server, name, kind)
        except TimeoutError:
            return Failed(Failure.TIMEOUT)
        except ExchangeFailed as error:
            return Failed(error.reason)
        except (OSError, EOFError):
            return Failed(Failure.NETWORK)

    async def aclose(self) -> None:
        if self._https is not None:
            await self._https.aclose()

    async def _ask(self, server: Server, name: dns.name.Name, kind: Kind) -> Outcome | Follow:
        message = await self._exchange(server, self._query(name, kind, edns=True))
        if message.rcode() in (dns.rcode.FORMERR, dns.rcode.NOTIMP, dns.rcode.BADVERS):
            # RFC 6891 §7: a server that does not know EDNS says so like this.
            message = await self._exchange(server, self._query(name, kind, edns=False))
        try:
            return interpret(message, kind, self._options)
        except dns.message.ChainTooLong:
            return Failed(Failure.CHAIN)
        except (dns.exception.DNSException, ValueError):
            return Failed(Failure.MALFORMED)

    def _query(self, name: dns.name.Name, kind: Kind, *, edns: bool) -> dns.message.QueryMessage:
        # AD in a question says that its meaning in the answer is understood (RFC 6840 §5.7).
        flags = dns.flags.RD | dns.flags.AD | (dns.flags.CD if self._options.check_disabled else 0)
        return dns.message.make_query(
            name, dns.rdatatype.RdataType(kind), use_edns=0 if edns else -1, payload=UDP_PAYLOAD_BYTES, flags=flags
        )

    async def _exchange(self, server: Server, query: dns.message.QueryMessage) -> dns.message.Message:
        if server.scheme is Scheme.HTTPS:
            return await self._over_https(server, query)
        if server.scheme is Scheme.TLS:
            return await self._over_tcp(server, query)
        message = await _over_udp(server, query)
        if not message.flags & dns.flags.TC:
            return message
        if not self._options.tcp_fallback:
            raise ExchangeFailed(Failure.TRUNCATED)
        return await self._over_tcp(server, query)

    async def _over_tcp(self, server: Server, query: dns.message.QueryMessage) -> dns.message.Message:
        context = self._tls if server.scheme is Scheme.TLS else None
        name_there = (server.tls_name or server.where) if context else None
        reader, writer = await asyncio.open_connection(
            server.where, server.port, ssl=context, server_hostname=name_there
        )
        try:
            wire = query.to_wire()
            writer.write(struct.pack("!H", len(wire)) + wire)
            await writer.drain()
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            body = await reader.readexactly(length)
        finally:
            writer.transport.abort()
        return _must_answer(query, body)

    async def _over_https(self, server: Server, query: dns.message.QueryMessage) -> dns.message.Message:
        assert self._https is not None, "the resolver gives a way to post when a server needs one"
        return _must_answer(query, await self._https(server.where, query.to_wire()))


def tls_context() -> ssl.SSLContext:
    """For `tls` servers: certificates are checked (RFC 7858 §8.2, strict). It blocks: it reads files."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["dot"])
    return context


class _Datagrams(asyncio.DatagramProtocol):
    """Waits for the datagram that answers; others are passed over (RFC 5452 §9.1)."""

    def __init__(self, read: Callable[[bytes], dns.message.Message | None]) -> None:
        self._read = read
        self.answered: asyncio.Future[dns.message.Message] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self.answered.done():
            return
        message = self._read(data)
        if message is not None:
            self.answered.set_result(message)

    def error_received(self, exc: Exception) -> None:
        self._failed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._failed()

    def _failed(self) -> None:
        if not self.answered.done():
            self.answered.set_exception(ExchangeFailed(Failure.NETWORK))


async def _over_udp(server: Server, query: dns.message.QueryMessage) -> dns.message.Message:
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(lambda data: _answer_to(query, data)), remote_addr=(server.where, server.port)
    )
    try:
        transport.sendto(query.to_wire())
        return await protocol.answered
    finally:
        protocol.answered.cancel()
        transport.close()


def _must_answer(query: dns.message.QueryMessage, body: bytes) -> dns.message.Message:
    message = _answer_to(query, body)
    if message is None or message.flags & dns.flags.TC:
        raise ExchangeFailed(Failure.MALFORMED)
    return message


def _answer_to(query: dns.message.QueryMessage, body: bytes) -> dns.message.Message | None:
    """The message, when it can be read and answers `query` (RFC 5452 §9.1): id, question, opcode."""
    if len(body) < _HEADER.size or sum(_HEADER.unpack_from(body)[3:]) > MAX_RECORDS:
        return None
    try:
        message = dns.message.from_wire(body, ignore_trailing=True, raise_on_truncation=True)
    except dns.message.Truncated as cut:
        message = cut.message()  # type: ignore[no-untyped-call] # dnspython leaves this one method untyped
    except Exception:  # noqa: BLE001 - whatever a parser makes of hostile bytes, they are no answer
        return None
    return message if query.is_response(message) else None


def interpret(message: dns.message.Message, kind: Kind, options: Options) -> Outcome | Follow:
    """What an answer means (RFC 1034 §4.3.1, RFC 2308 §2).

    Raises `DNSException` or ValueError for what is none.
    """
    code = message.rcode()
    if code not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        return Failed(_refusal(message))
    chain = message.resolve_chaining()  # type: ignore[attr-defined] # a QueryMessage, since it answers one
    authenticated = options.trust_ad and not options.check_disabled and bool(message.flags & dns.flags.AD)
    canonical = name_text(chain.canonical_name)
    if chain.answer is not None:
        records = tuple(dict.fromkeys(_record(item, kind) for item in chain.answer))
        return Found(canonical, records, chain.minimum_ttl, authenticated)
    types = {rrset.rdtype for rrset in message.authority}
    final = dns.rdatatype.SOA in types
    if code == dns.rcode.NXDOMAIN:
        return Absent(canonical, False, chain.minimum_ttl if final else None, authenticated)
    if chain.cnames and not final:
        return Follow(chain.canonical_name, min(item.ttl for item in chain.cnames), authenticated)
    if dns.rdatatype.NS in types and not final:
        return Failed(Failure.LAME)
    return Absent(canonical, True, chain.minimum_ttl if final else None, authenticated)


def _refusal(message: dns.message.Message) -> Failure:
    if message.rcode() == dns.rcode.REFUSED:
        return Failure.REFUSED
    if any(error.code in _BOGUS_CODES for error in message.extended_errors()):
        return Failure.BOGUS
    return Failure.SERVER_FAILURE


def name_text(name: dns.name.Name) -> str:
    """Lower-case without the last dot; the root is `.`."""
    return name.to_text(omit_final_dot=True).lower()


def _record(item: Any, kind: Kind) -> AnyRecord:
    """`item` is a dnspython record of that type, with the attributes of its class."""
    match kind:
        case Kind.A:
            return IPv4Address(item.address)
        case Kind.AAAA:
            return IPv6Address(item.address)
        case Kind.MX:
            return MxRecord(item.preference, name_text(item.exchange))
        case Kind.TXT:
            return b"".join(item.strings)
        case Kind.PTR:
            return name_text(item.target)
        case Kind.TLSA:
            return TlsaRecord(item.usage, item.selector, item.mtype, bytes(item.cert))
