"""Ways to name servers, and what they are called in settings (mail-server G4, domains §2)."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.net.dns_types import DnsError, Failure, Kind, TemporaryFailure
from postroom.net.dns_wire import MAX_MESSAGE_BYTES, HttpsPost, Scheme, Server, parse_server, system_servers
from postroom.net.doh import HttpxPost
from postroom.net.resolver import CachingResolver, ResolverLimits
from tests.net.name_server import NameServer

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ONCE = ResolverLimits(timeout_secs=5.0, attempts=0)


@asynccontextmanager
async def resolving(server: Server, https: HttpsPost | None = None) -> AsyncIterator[CachingResolver]:
    made = CachingResolver(ManualClock(NOW), [server], limits=ONCE, https=https)
    try:
        yield made
    finally:
        await made.aclose()


async def reason_of(made: CachingResolver, name: str) -> Failure:
    with pytest.raises(TemporaryFailure) as caught:
        await made.a(name)
    return caught.value.reason


class Posted:
    """Stands where HTTPS does: what was asked is answered by a function."""

    def __init__(self, reply: Callable[[bytes], bytes]) -> None:
        self._reply = reply

    async def __call__(self, url: str, body: bytes) -> bytes:
        return self._reply(body)

    async def aclose(self) -> None:
        return


_ZONE = NameServer().add("example.com", "A", "192.0.2.1", "192.0.2.2").add("example.com", "MX", "5 mx.example.com.")
_ZONE.add("example.com", "TXT", '"v=spf1" "-all"').add("example.com", "TLSA", "3 1 0 aabb")
_ZONE.add("www.example.com", "CNAME", "example.com.")


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["example.com", "www.example.com", "gone.example"]),
    st.sampled_from(list(Kind)),
    st.lists(st.tuples(st.integers(2, 200), st.integers(0, 255)), max_size=6),
    st.none() | st.integers(0, 200),
    st.binary(max_size=30),
)
def test_no_bytes_make_anything_but_a_dns_error(
    name: str, kind: Kind, changes: Sequence[tuple[int, int]], end: int | None, tail: bytes
) -> None:
    """Answers with some bytes changed, cut off or added (the id stays, so that they are looked at)."""

    def reply(body: bytes) -> bytes:
        message = bytearray(_ZONE.respond(body, "test")[1][0])
        for at, value in changes:
            if at < len(message):
                message[at] = value
        return bytes(message[:end]) + tail

    async def scenario() -> None:
        async with resolving(Server(Scheme.HTTPS, "https://dns.example/dns-query"), Posted(reply)) as made:
            asks = {Kind.A: made.a, Kind.AAAA: made.aaaa, Kind.MX: made.mx, Kind.TXT: made.txt, Kind.TLSA: made.tlsa}
            try:
                if kind is Kind.PTR:
                    await made.ptr(IPv4Address("192.0.2.1"))
                else:
                    assert (await asks[kind](name)).records
            except DnsError:
                return

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "message", [b"", b"\x00", struct.pack("!H", 500) + b"x" * 20, struct.pack("!H", 20) + b"x" * 20]
)
async def test_no_whole_answer_over_tcp_is_a_failure(message: bytes) -> None:
    async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(message)
        writer.close()

    zone = NameServer(stream=breaks_off).cut("cut.example")
    async with zone, resolving(zone.server) as dns_of:
        assert await reason_of(dns_of, "cut.example") in (Failure.NETWORK, Failure.MALFORMED)
    assert zone.ways() == {"udp": 1}


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("192.0.2.1", Server(Scheme.DNS, "192.0.2.1", 53)),
        (" 192.0.2.1:5353 ", Server(Scheme.DNS, "192.0.2.1", 5353)),
        ("dns://2001:db8::1", Server(Scheme.DNS, "2001:db8::1", 53)),
        ("dns://[2001:DB8::1]:5353", Server(Scheme.DNS, "2001:db8::1", 5353)),
        ("tls://192.0.2.1", Server(Scheme.TLS, "192.0.2.1", 853)),
        ("tls://[2001:db8::1]#Dns.Example", Server(Scheme.TLS, "2001:db8::1", 853, "dns.example")),
        ("https://dns.example/dns-query", Server(Scheme.HTTPS, "https://dns.example/dns-query", 443)),
    ],
)
@pytest.mark.covers("mail-server:G4")
def test_name_servers_of_the_settings(text: str, server: Server) -> None:
    assert parse_server(text) == server


@pytest.mark.parametrize(
    "text",
    [
        *("", "dns.example", "dns://dns.example", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:x", "[::1", "[::1]x53"),
        *("http://dns.example/", "https://", "https://user@dns.example/", "192.0.2.1#name", "tls://192.0.2.1#a..b"),
        *("https://dns.example/#x", "https://dns.example:99999/", "https://[::1/", "udp://192.0.2.1", "192.0.2.1:٣"),
    ],
)
def test_what_is_no_name_server(text: str) -> None:
    with pytest.raises(ValueError):
        parse_server(text)


@pytest.mark.covers("mail-server:G4")
def test_the_system_says_which_name_servers(tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    assert system_servers(conf) == (Server(Scheme.DNS, "127.0.0.1"),)
    conf.write_bytes(
        b"# nameserver 192.0.2.9\nsearch x\nnameserver nonsense\nnameserver\nnameserver 192.0.2.1 # ours\n"
    )
    assert system_servers(conf) == (Server(Scheme.DNS, "192.0.2.1"),)
    conf.write_bytes(b"".join(b"nameserver 2001:db8::%d\n" % number for number in range(1, 6)))
    assert [server.where for server in system_servers(conf)] == ["2001:db8::1", "2001:db8::2", "2001:db8::3"]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Key and certificate of 127.0.0.1 and dns.example, in one file, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dns.example")])
    names = [x509.DNSName("dns.example"), x509.IPAddress(ip_address("127.0.0.1"))]
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "dns.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


def _serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.covers("RFC 7858 §3.1", "mail-server:G4")
@pytest.mark.parametrize(
    ("trusted", "name", "answers"),
    [(True, None, True), (True, "dns.example", True), (True, "other.example", False), (False, None, False)],
)
async def test_over_tls_with_the_right_certificate_only(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, name: str | None, answers: bool
) -> None:
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    zone = NameServer().add("example.com", "A", "192.0.2.1")
    listener = await asyncio.start_server(zone.serve_stream, "127.0.0.1", 0, ssl=_serving(certificate))
    port = listener.sockets[0].getsockname()[1]
    async with listener, resolving(Server(Scheme.TLS, "127.0.0.1", port, name)) as dns_of:
        if answers:
            assert (await dns_of.a("example.com")).records == (IPv4Address("192.0.2.1"),)
            assert zone.ways() == {"tls": 1}
        else:
            assert await reason_of(dns_of, "example.com") is Failure.NETWORK
            assert zone.asked == []


class Web:
    """Just enough of an HTTP/1.1 server: answers each POST with what a function makes of its body."""

    def __init__(self, reply: Callable[[bytes], tuple[str, str, bytes]]) -> None:
        self._reply = reply
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                self.requests.append(head)
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                status, media_type, body = self._reply(await reader.readexactly(length))
                top = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n"
                writer.write(f"{top}Location: /elsewhere\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, EOFError):
            return  # the client has gone
        finally:
            writer.close()


@asynccontextmanager
async def over_https(
    certificate: Path, reply: Callable[[bytes], tuple[str, str, bytes]]
) -> AsyncIterator[tuple[Web, CachingResolver]]:
    web = Web(reply)
    listener = await asyncio.start_server(web.serve, "127.0.0.1", 0, ssl=_serving(certificate))
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/dns-query"
    async with resolving(parse_server(url), HttpxPost(verify=ssl.create_default_context(cafile=certificate))) as dns_of:
        yield web, dns_of
    listener.close()


@pytest.mark.covers("RFC 8484 §4.1", "mail-server:G4")
async def test_over_https(certificate: Path) -> None:
    zone = NameServer().add("example.com", "A", "192.0.2.1").add("example.com", "TXT", '"x"')

    def reply(body: bytes) -> tuple[str, str, bytes]:
        return "200 OK", "Application/DNS-message; x=y", zone.respond(body, "https")[1][0]

    async with over_https(certificate, reply) as (web, dns_of):
        assert (await dns_of.a("example.com")).records == (IPv4Address("192.0.2.1"),)
        assert (await dns_of.txt("example.com")).records == (b"x",)
        assert web.connections == 1, "the connection is kept"
        assert all(request.startswith(b"post /dns-query http/1.1\r\n") for request in web.requests)
        assert all(b"content-type: application/dns-message\r\n" in request for request in web.requests)
    async with resolving(parse_server("https://127.0.0.1:1/dns-query")) as dns_of:
        assert await reason_of(dns_of, "example.com") is Failure.NETWORK


@pytest.mark.covers("RFC 8484 §4.2.1")
@pytest.mark.parametrize(
    ("status", "media_type", "extra"),
    [
        ("302 Found", "application/dns-message", 0),
        ("500 No", "application/dns-message", 0),
        ("200 OK", "text/html", 0),
        ("200 OK", "application/dns-message", MAX_MESSAGE_BYTES),
    ],
)
async def test_what_is_no_answer_over_https(certificate: Path, status: str, media_type: str, extra: int) -> None:
    def reply(body: bytes) -> tuple[str, str, bytes]:
        return status, media_type, _ZONE.respond(body, "https")[1][0] + b"\x00" * extra

    async with over_https(certificate, reply) as (web, dns_of):
        assert await reason_of(dns_of, "example.com") is Failure.NETWORK
        assert len(web.requests) == 1
