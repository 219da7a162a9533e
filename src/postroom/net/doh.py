"""DNS over HTTPS (RFC 8484): how a message is posted. Needed only when a name server is given by a URL."""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from typing import Final

import httpx

from postroom.net.dns_wire import MAX_MESSAGE_BYTES

MEDIA_TYPE: Final = "application/dns-message"
MAX_CONNECTIONS: Final = 4
"""Questions share them: a connection of HTTP/2 carries many."""
MAX_SECONDS: Final = 10.0
"""For each step of a request; the resolver's own limits are shorter."""


class HttpxPost:
    """Connections to the servers, kept between questions. Redirects and the environment's proxies are not followed."""

    def __init__(self, *, verify: ssl.SSLContext | bool = True) -> None:
        self._client = httpx.AsyncClient(
            # RFC 8484 §5.2 recommends HTTP/2; a server that only speaks it cannot be asked without the h2 package.
            http2=find_spec("h2") is not None,
            verify=verify,
            trust_env=False,
            follow_redirects=False,
            timeout=MAX_SECONDS,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS),
        )

    async def __call__(self, url: str, body: bytes) -> bytes:
        headers = {"accept": MEDIA_TYPE, "content-type": MEDIA_TYPE, "accept-encoding": "identity"}
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as response:
                if response.status_code != 200 or _media_type(response) != MEDIA_TYPE:
                    raise ConnectionError("the server's answer is no DNS message")
                return await _read(response)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConnectionError("no answer over HTTPS") from error

    async def aclose(self) -> None:
        await self._client.aclose()


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            raise ConnectionError("the server's answer is too long")
    return bytes(body)


def _media_type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
