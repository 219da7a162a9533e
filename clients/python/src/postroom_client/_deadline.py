"""Until when an attempt may last. A server that says a little again and again keeps nobody for ever: what httpx bounds
is each read alone.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import anyio
import httpcore
import httpx

GRACE: Final = 0.1
"""Seconds after the timeout. What knows whether anything was sent, as waiting for a connection does, speaks first."""
MAX_CONNECTIONS: Final = 100
MAX_IDLE: Final = 20
IDLE_SECONDS: Final = 5.0

_now = threading.local()


@contextmanager
def until(seconds: float) -> Iterator[None]:
    """What the transport below waits for in this thread ends within `seconds`, with httpx.TimeoutException."""
    before: float | None = getattr(_now, "deadline", None)
    _now.deadline = time.monotonic() + seconds + GRACE
    try:
        yield
    finally:
        _now.deadline = before


def until_async(seconds: float) -> AbstractContextManager[object]:
    """Whatever is awaited in it ends within `seconds`, with TimeoutError."""
    return anyio.fail_after(seconds + GRACE)


def _left(timeout: float | None) -> float | None:
    """Seconds for the next step. 0 or less: there is no time for another."""
    deadline: float | None = getattr(_now, "deadline", None)
    if deadline is None:
        return timeout
    left = deadline - time.monotonic()
    return left if timeout is None else min(timeout, left)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = _left(timeout)
        if left is not None and left <= 0:
            raise httpcore.ReadTimeout
        return self._inner.read(max_bytes, left)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = _left(timeout)
        if left is not None and left <= 0:
            raise httpcore.WriteTimeout
        self._inner.write(buffer, left)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(timeout)
        if left is not None and left <= 0:
            raise httpcore.ConnectTimeout
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout)
        if left is not None and left <= 0:
            raise httpcore.ConnectTimeout
        return _Stream(self._inner.connect_tcp(host, port, left, local_address, socket_options))


class Transport(httpx.BaseTransport):
    """As httpx.HTTPTransport, and keeps to `until`."""

    def __init__(self, verify: ssl.SSLContext | bool, proxy: str | None) -> None:
        context = verify if isinstance(verify, ssl.SSLContext) else httpx.create_ssl_context(verify=verify)
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            proxy=None if proxy is None else _proxy(httpx.Proxy(proxy)),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_Backend(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream), "a request of a blocking client"
        made = httpcore.Request(
            request.method,
            _url(request.url),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _as_httpx():
            answer = self._pool.handle_request(made)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions)

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


def _url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _proxy(proxy: httpx.Proxy) -> httpcore.Proxy:
    return httpcore.Proxy(
        _url(proxy.url), auth=proxy.raw_auth, headers=proxy.headers.raw, ssl_context=proxy.ssl_context
    )


@contextmanager
def _as_httpx() -> Iterator[None]:
    """The exceptions of the two have the same names."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.ProxyError,
        httpcore.UnsupportedProtocol,
    ) as error:
        kind: type[httpx.TransportError] = getattr(httpx, type(error).__name__)
        raise kind(str(error)) from error
