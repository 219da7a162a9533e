"""The guarded HTTP client against servers and name servers that mean it ill (security-privacy A9, A14; SEC-9)."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, cast

import psutil
import pytest
import uvloop

from postroom import __version__
from postroom.base.clock import SystemClock
from postroom.net import guarded_http
from postroom.net.dns_types import Answer, IpAddress, Kind, NoData, NoSuchName, Resolver, TemporaryFailure
from postroom.net.dns_types import Failure as DnsFailure
from postroom.net.guard import Refusal
from postroom.net.guarded_http import Code, Failure, GuardedClient, Response
from postroom.net.public_address import is_public
from tests.net.web_server import Authority, Behaviour, Peer, Web, answering, serving

HOST: Final = "hooks.example.com"
HERE: Final = ip_address("127.0.0.1")
THERE: Final = ip_address("127.0.0.2")
OK: Final = b"HTTP/1.1 204 No Content\r\n\r\n"


class Zone:
    """A resolver: for each question the next of its answers, the last one for ever. An error is raised."""

    def __init__(self, *answers: Sequence[IpAddress] | Exception, v6: Sequence[IpAddress] | Exception = ()) -> None:
        self._answers, self._v6 = list(answers), v6
        self.asked = 0

    async def a(self, name: str, *, within: float | None = None) -> Answer[IPv4Address]:
        self.asked += 1
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return cast(Answer[IPv4Address], _answer(name, found, Kind.A))

    async def aaaa(self, name: str, *, within: float | None = None) -> Answer[IPv6Address]:
        return cast(Answer[IPv6Address], _answer(name, self._v6, Kind.AAAA))


def _answer(name: str, found: Sequence[IpAddress] | Exception, kind: Kind) -> Answer[IpAddress]:
    if isinstance(found, Exception):
        raise found
    if not found:
        raise NoData(name, kind, canonical=name)
    return Answer(name, name, tuple(found), 60.0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def trusted(authority: Authority) -> ssl.SSLContext:
    """Of a server with a good certificate."""
    return authority.server(HOST)


def _allowed(address: IpAddress) -> bool:
    return address == HERE or is_public(address)


@asynccontextmanager
async def client(
    authority: Authority,
    zone: Zone | None = None,
    *,
    own: Callable[[], frozenset[IpAddress]] = frozenset,
    allowed: Callable[[IpAddress], bool] = _allowed,
    test_hosts: tuple[str, ...] = (),
) -> AsyncIterator[GuardedClient]:
    made = GuardedClient(
        SystemClock(),
        cast(Resolver, zone or Zone([HERE])),
        own_hosts=["api.postroom.org"],
        platform_domain="mail.postroom.org",
        own_addresses=own,
        allowed_test_hosts=test_hosts,
        is_allowed=allowed,
        context=authority.client(),
    )
    try:
        yield made
    finally:
        await made.aclose()


def url(web: Web, path: str = "/hook") -> str:
    return f"https://{HOST}:{web.port}{path}"


async def post(
    made: GuardedClient, web: Web, body: bytes = b"{}", headers: Mapping[str, str] | None = None, deadline: float = 10.0
) -> Response | Failure:
    return await made.post(url(web), body, headers or {}, deadline=deadline)


async def status(made: GuardedClient, web: Web) -> int:
    found = await post(made, web)
    assert isinstance(found, Response), found
    return found.status


async def code(made: GuardedClient, web: Web, deadline: float = 10.0) -> Code:
    found = await post(made, web, deadline=deadline)
    assert isinstance(found, Failure), found
    return found.code


def sockets_to(port: int) -> int:
    """Sockets of this process with a connection to `port`, under way or open."""
    return sum(bool(one.raddr) and one.raddr.port == port for one in psutil.Process().net_connections("tcp"))


async def none_to(port: int) -> None:
    """No socket to `port` remains; it takes the loop a few turns."""
    for _ in range(500):
        if not sockets_to(port):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a socket was left")


# What goes out.


@pytest.mark.covers("security-privacy:A9", "FR-WH-5")
async def test_a_request_as_it_goes_out(
    authority: Authority, trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    body = b'{"a": 1}'
    answer = b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\nSet-Cookie: a=b\r\n\r\nyes"
    async with serving(answering(answer, OK, web=lambda: web), trusted) as web, client(authority) as made:
        found = await made.post(
            url(web, "/a/../b?c=%20"), body, {"Content-Type": "application/json", "webhook-id": "evt_1"}
        )
        assert isinstance(found, Response)
        assert (found.status, found.body, found.complete) == (201, b"yes", True)
        assert 0 <= found.duration_ms < 10_000
        await post(made, web)
        head, sent = web.requests[0]
        assert sent == body
        assert head.decode().lower().split("\r\n") == [
            "post /a/../b?c=%20 http/1.1",
            f"host: {HOST}:{web.port}",
            f"user-agent: postroom/{__version__}",
            "content-type: application/json",
            "webhook-id: evt_1",
            "content-length: 8",
            "",
            "",
        ]
        assert b"cookie" not in web.requests[1][0].lower()


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize(
    "headers",
    [
        *({name: "x"} for name in ("Host", "HOST", "Content-Length", "transfer-encoding", "Cookie", "Accept-Encoding")),
        *({name: "x"} for name in ("Forwarded", "Expect", "Connection", "User-Agent")),
        {"X-A": "a\r\nHost: b"},
        {"X-A": "a\nb"},
        {"X-A\r\nHost": "b"},
        {"X A": "b"},
        {"X-A": "ü\u20ac"},
    ],
)
async def test_headers_that_callers_may_not_set(authority: Authority, headers: dict[str, str]) -> None:
    async with client(authority) as made:
        with pytest.raises(ValueError):
            await made.post(f"https://{HOST}/", b"", headers)


async def test_a_large_body_arrives(authority: Authority, trusted: ssl.SSLContext) -> None:
    body = bytes(range(256)) * 8192
    async with serving(answering(OK, OK, web=lambda: web), trusted) as web, client(authority) as made:
        for _ in range(2):
            assert isinstance(await post(made, web, body), Response)
        assert [sent for _, sent in web.requests] == [body, body]
        assert web.connections == 1


async def test_an_answer_before_the_body_was_read(authority: Authority, trusted: ssl.SSLContext) -> None:
    async def behave(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await peer.gone()

    async with serving(behave, trusted) as web, client(authority) as made:
        found = await post(made, web, bytes(4_000_000))
        assert isinstance(found, Response)
        assert found.status == 413
        await none_to(web.port)


# Where it goes.


@pytest.mark.covers("security-privacy:A9", "security-privacy:A14", "SEC-9")
async def test_rebinding_between_check_and_connect(authority: Authority, trusted: ssl.SSLContext) -> None:
    """The name server says something else a moment later: the first request went where the check looked, in one
    question; the second is refused, and the connection that is still open is not used either.
    """
    zone = Zone([HERE], [THERE])
    async with (
        serving(answering(OK, OK), trusted) as web,
        serving(answering(OK), trusted, address=str(THERE), port=web.port) as inner,
        client(authority, zone) as made,
    ):
        assert await status(made, web) == 204
        assert zone.asked == 1
        assert await code(made, web) is Code.SSRF_BLOCKED
        assert zone.asked == 2
        assert (web.connections, inner.connections) == (1, 0)


@pytest.mark.covers("security-privacy:A9", "SEC-9")
async def test_a_kept_connection_is_used_only_for_an_address_that_was_checked(
    authority: Authority, trusted: ssl.SSLContext
) -> None:
    """The name moved; the connection to where it was is closed."""
    async with (
        serving(answering(OK, OK), trusted) as old,
        serving(answering(OK, OK), trusted, address=str(THERE), port=old.port) as new,
        client(authority, Zone([HERE], [HERE], [THERE], [THERE, HERE]), allowed=lambda _: True) as made,
    ):
        for _ in range(2):
            assert await status(made, old) == 204
        assert (old.connections, new.connections) == (1, 0)
        for _ in range(2):
            assert await status(made, old) == 204
        assert (old.connections, new.connections) == (1, 1)


@pytest.mark.covers("security-privacy:A9", "security-privacy:A14", "SEC-9")
@pytest.mark.parametrize(
    ("v4", "v6"),
    [
        ([THERE], ()),
        ([HERE, THERE], ()),
        ([HERE], [ip_address("::1")]),
        ([HERE], [ip_address("::ffff:10.0.0.1")]),
        ([HERE], [ip_address("fd00:ec2::254")]),
        ([HERE, ip_address("169.254.169.254")], [ip_address("2606:4700::1111")]),
    ],
)
async def test_one_bad_address_and_nobody_is_connected_to(
    authority: Authority, trusted: ssl.SSLContext, v4: Sequence[IpAddress], v6: Sequence[IpAddress]
) -> None:
    async with serving(answering(OK), trusted) as web, client(authority, Zone(v4, v6=v6)) as made:
        found = await post(made, web)
        assert isinstance(found, Failure)
        assert (found.code, found.refusal) == (Code.SSRF_BLOCKED, Refusal.ADDRESS)
        assert await made.check(url(web)) is Refusal.ADDRESS
        assert web.connections == 0


@pytest.mark.covers("security-privacy:A9")
async def test_addresses_of_our_nodes_as_they_are_now(authority: Authority, trusted: ssl.SSLContext) -> None:
    own: set[IpAddress] = set()
    async with (
        serving(answering(OK, OK), trusted) as web,
        client(authority, own=lambda: frozenset(own)) as made,
    ):
        assert await status(made, web) == 204
        own.add(HERE)
        assert await code(made, web) is Code.SSRF_BLOCKED


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("https://127.0.0.1/", Code.SSRF_BLOCKED),
        ("https://0x7f.1/", Code.SSRF_BLOCKED),
        ("https://[::1]/", Code.SSRF_BLOCKED),
        ("https://localhost/", Code.SSRF_BLOCKED),
        ("https://api.postroom.org/", Code.SSRF_BLOCKED),
        ("https://x.mail.postroom.org/", Code.SSRF_BLOCKED),
        ("https://a.com:22/", Code.SSRF_BLOCKED),
        ("http://a.com/", Code.INVALID_URL),
        ("https://u@a.com/", Code.INVALID_URL),
        ("https://a.com/#x", Code.INVALID_URL),
        ("https://a.com/\r\n", Code.INVALID_URL),
        ("https://com/", Code.INVALID_URL),
    ],
)
async def test_bad_urls_ask_nobody(authority: Authority, bad: str, expected: Code) -> None:
    zone = Zone([HERE])
    async with client(authority, zone) as made:
        found = await made.post(bad, b"", {})
        assert isinstance(found, Failure)
        assert found.code is expected
        assert await made.check(bad) is found.refusal
    assert zone.asked == 0


_TEMPORARY: Final = TemporaryFailure(HOST, Kind.A, DnsFailure.TIMEOUT)
_GONE: Final = NoSuchName(HOST, Kind.A, canonical=HOST)


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize(
    ("v4", "v6"), [((), ()), (_GONE, _GONE), (_TEMPORARY, _TEMPORARY), ((), _TEMPORARY), (_TEMPORARY, ())]
)
async def test_no_address(
    authority: Authority, v4: Sequence[IpAddress] | Exception, v6: Sequence[IpAddress] | Exception
) -> None:
    async with client(authority, Zone(v4, v6=v6)) as made:
        found = await made.post(f"https://{HOST}/", b"", {})
        assert isinstance(found, Failure)
        assert found.code is Code.DNS
        assert await made.check(f"https://{HOST}/") in (Code.DNS, Refusal.NO_ADDRESS)


async def test_one_family_is_enough(authority: Authority, trusted: ssl.SSLContext) -> None:
    async with serving(answering(OK), trusted) as web, client(authority, Zone([HERE], v6=_TEMPORARY)) as made:
        assert await status(made, web) == 204
        assert await made.check(url(web)) is None


async def test_the_next_address_is_tried(authority: Authority, trusted: ssl.SSLContext) -> None:
    async with (
        serving(answering(OK), trusted) as web,
        client(authority, Zone([THERE, HERE], v6=[ip_address("::1")]), allowed=lambda _: True) as made,
    ):
        assert await status(made, web) == 204


@pytest.mark.covers("RFC 8305 §5", "security-privacy:A9")
async def test_an_address_that_nobody_answers_at_holds_up_no_request(
    authority: Authority, trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is of the family that leads nowhere here; it is let go of when the other one answers."""
    silent, asked, let_go, tcp = ip_address("2606:4700::1111"), [], [], guarded_http._tcp

    async def connect(address: IpAddress, port: int) -> socket.socket:
        asked.append(address)
        if address == silent:
            try:
                await asyncio.Event().wait()
            finally:
                let_go.append(address)
        return await tcp(address, port)

    monkeypatch.setattr(guarded_http, "_tcp", connect)
    async with serving(answering(OK, OK), trusted) as web, client(authority, Zone([HERE], v6=[silent])) as made:
        assert await status(made, web) == 204
        await asyncio.sleep(0)
        assert asked == [silent, HERE]
        assert let_go == [silent]
        assert await status(made, web) == 204
        assert web.connections == 1
    assert len(asked) == 2


async def test_nobody_listens(authority: Authority) -> None:
    async with serving(answering(OK), None) as web:
        pass
    async with client(authority) as made:
        assert await code(made, web) is Code.CONNECT


@pytest.mark.covers("security-privacy:A9")
async def test_a_test_host_that_the_operator_names(authority: Authority) -> None:
    async with (
        serving(answering(OK), authority.server("localhost")) as web,
        client(authority, allowed=is_public, test_hosts=("localhost",)) as made,
    ):
        found = await made.post(f"https://localhost:{web.port}/", b"", {})
        assert isinstance(found, Response)
        assert await made.check(f"https://{HOST}/") is Refusal.ADDRESS


@pytest.mark.covers("security-privacy:A9", "security-privacy:A14")
@pytest.mark.parametrize("redirect", [300, 301, 302, 303, 304, 307, 308, 399])
async def test_redirects_are_not_followed(authority: Authority, trusted: ssl.SSLContext, redirect: int) -> None:
    async with serving(answering(OK), trusted) as inner:
        answer = f"HTTP/1.1 {redirect} x\r\nContent-Length: 0\r\nLocation: {url(inner)}\r\n\r\n".encode()
        async with serving(answering(answer), trusted) as web, client(authority) as made:
            found = await post(made, web)
            assert isinstance(found, Failure)
            assert (found.code, found.status) == (Code.REDIRECT, redirect)
        assert inner.connections == 0


# TLS.


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize("case", ["another name", "expired", "self-signed", "no TLS"])
async def test_no_request_without_a_certificate_for_the_name(authority: Authority, case: str) -> None:
    contexts: dict[str, Callable[[], ssl.SSLContext | None]] = {
        "another name": lambda: authority.server("other.example.com"),
        "expired": lambda: authority.server(HOST, lasts=timedelta(days=-1)),
        "self-signed": lambda: authority.server(HOST, self_signed=True),
        "no TLS": lambda: None,
    }
    context = contexts[case]()
    seen = bytearray()

    async def behave(peer: Peer) -> None:
        if context is None:
            await peer.say(OK)
        seen.extend(await peer.reader.read(65536))

    async with serving(behave, context) as web, client(authority) as made:
        assert await code(made, web) is Code.TLS
        await none_to(web.port)
    assert b"POST" not in seen


# What comes back.

_HEAD: Final = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00" * 100,
        b"hello\r\n",
        b"<html>HTTP/0.9 has no head</html>\r\n\r\n",
        b"220 mx.example.com ESMTP\r\n",
        b"HTTP/1.1",
        _HEAD,
        _HEAD + b"X: y\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        _HEAD + b"Content-Length: -1\r\n\r\n",
        _HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        _HEAD + b"A B: c\r\n\r\n",
        _HEAD + b"A: \x00\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + OK,
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        _HEAD + b"A: " + b"b" * 40_000 + b"\r\n\r\n",
        _HEAD + b"A: b\r\n" * 10_000 + b"\r\n",
    ],
)
async def test_what_is_no_answer(authority: Authority, trusted: ssl.SSLContext, answer: bytes) -> None:
    async with serving(answering(answer), trusted) as web, client(authority) as made:
        assert await code(made, web) is Code.CONNECT
        await none_to(web.port)


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize(
    ("answer", "body", "complete"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, b"", True),
        (_HEAD + b"Content-Length: 10\r\n\r\nhalf", b"half", False),
        (_HEAD + b"\r\nuntil the end", b"until the end", True),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old", True),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde", True),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nz\r\n", b"abc", False),
        (_HEAD + b"Content-Length: 4096\r\n\r\n" + b"x" * 4096, b"x" * 4096, True),
        (_HEAD + b"Content-Length: 4097\r\n\r\n" + b"x" * 4097, b"x" * 4096, False),
        (b"HTTP/1.1 410\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 999 ?\r\nContent-Length: 0\r\n\r\n", b"", True),
    ],
)
async def test_what_is_one(
    authority: Authority, trusted: ssl.SSLContext, answer: bytes, body: bytes, complete: bool
) -> None:
    async with serving(answering(answer), trusted) as web, client(authority) as made:
        found = await post(made, web)
        assert isinstance(found, Response), found
        assert (found.body, found.complete) == (body, complete)


def _endless(head: bytes, piece: bytes, pause: float = 0.0) -> tuple[Behaviour, list[int]]:
    """A server that goes on until the client leaves, and how many bytes it sent."""
    sent = [0]

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.say(head)
        while True:
            await peer.say(piece)
            sent[0] += len(piece)
            await asyncio.sleep(pause)

    return behave, sent


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (_HEAD + b"Content-Length: 99999999999\r\n\r\n", b"x" * 65536),
        (_HEAD + b"\r\n", b"x" * 65536),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + b"x" * 32768 + b"\r\n"),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"e" * 8000 + b"\r\nx\r\n"),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n"),
    ],
)
async def test_a_body_without_end(authority: Authority, trusted: ssl.SSLContext, head: bytes, piece: bytes) -> None:
    behave, sent = _endless(head, piece)
    async with serving(behave, trusted) as web, client(authority) as made:
        found = await post(made, web)
        assert isinstance(found, Response)
        assert len(found.body) <= 4096
        assert not found.complete
        await none_to(web.port)
        await asyncio.wait_for(web.ended.wait(), 10)
        assert sent[0] < 8_000_000  # what the kernel and both ends of TLS hold


@pytest.mark.covers("security-privacy:A9")
async def test_headers_without_end(authority: Authority, trusted: ssl.SSLContext) -> None:
    behave, _ = _endless(_HEAD, b"A: " + b"b" * 1000 + b"\r\n")
    async with serving(behave, trusted) as web, client(authority) as made:
        assert await code(made, web) is Code.CONNECT
        await none_to(web.port)


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize("head", [b"", _HEAD, b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_headers_byte_by_byte_end_with_the_deadline(
    authority: Authority, trusted: ssl.SSLContext, head: bytes
) -> None:
    behave, _ = _endless(head, b"A", 0.01)
    async with serving(behave, trusted) as web, client(authority) as made:
        assert await code(made, web, deadline=0.5) is Code.TIMEOUT
        await none_to(web.port)


@pytest.mark.covers("security-privacy:A9")
async def test_an_answer_in_time_whose_body_is_not(authority: Authority, trusted: ssl.SSLContext) -> None:
    behave, _ = _endless(_HEAD + b"\r\n", b"A", 0.01)
    async with serving(behave, trusted) as web, client(authority) as made:
        found = await post(made, web, deadline=2.0)
        assert isinstance(found, Response)
        assert not found.complete
        assert found.body.startswith(b"AA")
        await none_to(web.port)


@pytest.mark.covers("security-privacy:A9")
async def test_a_compressed_bomb_stays_packed(authority: Authority, trusted: ssl.SSLContext) -> None:
    bomb = gzip.compress(bytes(10_000_000), mtime=0)
    head = _HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with serving(answering(head + bomb), trusted) as web, client(authority) as made:
        found = await post(made, web)
        assert isinstance(found, Response)
        assert found.body == bomb[:4096]


async def test_a_handshake_that_never_ends(authority: Authority) -> None:
    async with serving(Peer.gone, None) as web, client(authority) as made:
        assert await code(made, web, deadline=0.3) is Code.TIMEOUT
        await none_to(web.port)


# Connections that are kept.


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        _HEAD + b"Content-Length: 2\r\n\r\nok",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        _HEAD + b"Keep-Alive: timeout=5, max=100\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_connection_is_used_again(authority: Authority, trusted: ssl.SSLContext, answer: bytes) -> None:
    async with serving(answering(answer, answer, answer), trusted) as web, client(authority) as made:
        for _ in range(3):
            await post(made, web)
        assert web.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        _HEAD + b"Keep-Alive: timeout=1\r\nContent-Length: 0\r\n\r\n",
        _HEAD + b"Content-Length: 5000\r\n\r\n" + b"x" * 5000,
        OK + OK,
        OK + b"x",
        OK + b"\r\n",
    ],
)
async def test_a_connection_that_is_not_kept(authority: Authority, trusted: ssl.SSLContext, answer: bytes) -> None:
    """Among them: an answer to a request that is yet to come."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer)
        await peer.gone()

    async with serving(behave, trusted) as web, client(authority) as made:
        assert isinstance(await post(made, web), Response)
        await none_to(web.port)
        assert isinstance(await post(made, web), Response)
        assert web.connections == 2


@pytest.mark.parametrize("late", [b"", OK, b"x"])
async def test_a_kept_connection_on_which_something_happens(
    authority: Authority, trusted: ssl.SSLContext, late: bytes
) -> None:
    """It ends, or an answer comes that nobody asked for: the next request has a new one."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        await go_on.wait()
        await peer.say(late)
        if late:
            await peer.gone()

    go_on = asyncio.Event()
    async with serving(behave, trusted) as web, client(authority) as made:
        assert await status(made, web) == 204
        assert sockets_to(web.port) == 1
        go_on.set()
        await none_to(web.port)
        go_on.clear()
        assert await status(made, web) == 204
        assert web.connections == 2


@pytest.mark.covers("security-privacy:A9")
async def test_a_connection_that_ended_while_nobody_looked(authority: Authority, trusted: ssl.SSLContext) -> None:
    """The loop was busy and has not seen it: nothing was written, so that another connection is no repetition."""
    listening = socket.create_server((str(HERE), 0))
    port = listening.getsockname()[1]
    requests: list[bytes] = []
    closed = threading.Event()

    def serve() -> None:
        for _ in range(2):
            plain, _ = listening.accept()
            with trusted.wrap_socket(plain, server_side=True) as one:
                requests.append(one.recv(65536))
                one.sendall(OK)
                time.sleep(0.1)
            closed.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        async with client(authority) as made:
            web = Web(port)
            assert await status(made, web) == 204
            assert closed.wait(10)  # the loop stands still
            assert await status(made, web) == 204
    finally:
        thread.join(10)
        listening.close()
    assert len(requests) == 2


@pytest.mark.covers("security-privacy:A9")
async def test_a_request_is_never_repeated(authority: Authority, trusted: ssl.SSLContext) -> None:
    """The kept connection dies with the second request in it: that one may have been worked on."""

    async def behave(peer: Peer) -> None:
        for answer in (OK, b""):
            web.requests.append(await peer.request())
            await peer.say(answer)

    async with serving(behave, trusted) as web, client(authority) as made:
        assert await status(made, web) == 204
        assert await code(made, web) is Code.CONNECT
        assert (web.connections, len(web.requests)) == (1, 2)


async def test_requests_at_a_time_have_a_connection_each(authority: Authority, trusted: ssl.SSLContext) -> None:
    together = asyncio.Barrier(3)

    async def behave(peer: Peer) -> None:
        while True:
            _, body = await peer.request()
            await together.wait()
            await peer.say(_HEAD + b"Content-Length: 1\r\n\r\n" + body)

    async with serving(behave, trusted) as web, client(authority) as made:
        for _ in range(2):
            found = await asyncio.gather(*(post(made, web, body) for body in (b"a", b"b", b"c")))
            assert [isinstance(one, Response) and one.body for one in found] == [b"a", b"b", b"c"]
        assert web.connections == 3
        await made.aclose()
        await none_to(web.port)


# Nothing is left behind.


async def _cancelled_leaves_nothing(authority: Authority, context: ssl.SSLContext) -> None:
    """Cancelled at every turn of the loop that a request takes, to a server that answers and to one that is silent."""

    async def silent(peer: Peer) -> None:
        await peer.gone()

    for behave, tls in ((answering(OK), context), (silent, context), (silent, None)):
        async with serving(behave, tls) as web, client(authority) as made:
            for turns in range(40):
                task = asyncio.create_task(post(made, web))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            for pause in (0.001, 0.005, 0.02, 0.05):
                task = asyncio.create_task(post(made, web))
                await asyncio.sleep(pause)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await made.aclose()
            await none_to(web.port)


async def test_cancellation_leaves_no_socket(authority: Authority, trusted: ssl.SSLContext) -> None:
    await _cancelled_leaves_nothing(authority, trusted)


def test_the_server_s_own_event_loop(authority: Authority, trusted: ssl.SSLContext) -> None:
    """uvloop: requests one after another, ends, deadlines, and cancellation."""

    async def all_of_it() -> None:
        await _cancelled_leaves_nothing(authority, trusted)
        async with serving(answering(OK, OK, b""), trusted) as web, client(authority) as made:
            for _ in range(2):
                assert await status(made, web) == 204
            assert web.connections == 1
            assert await code(made, web) is Code.CONNECT
        async with serving(Peer.gone, None) as web, client(authority) as made:
            assert await code(made, web, deadline=0.3) is Code.TIMEOUT
            await none_to(web.port)
        async with serving(answering(OK), authority.server("other.example.com")) as web, client(authority) as made:
            assert await code(made, web) is Code.TLS
            await none_to(web.port)

    uvloop.run(all_of_it())
