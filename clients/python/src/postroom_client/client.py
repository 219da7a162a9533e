"""The two clients, one for threads and one for event loops."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self

import httpx

from ._async import AsyncCaller
from ._async_resources import AsyncResources
from ._core import MAX_ANSWER, REQUEST_TIMEOUT, WAIT_EXTRA, Answer, Settings, Surroundings, check_key, server_time
from ._deadline import Transport
from ._operations import WAIT_FOR_MESSAGE
from ._resources import Resources
from ._retry import Retry
from ._sync import Caller
from .errors import ConfigError
from .models import WaitResponse
from .streams import StreamedEvent, follow, follow_async, query_of

LONGEST_POLL: Final = 60
"""Seconds that one request may wait for a message."""
_LEAST: Final = 1.0
"""Seconds from one poll to the next, should the server answer sooner."""


class Client(Resources):
    """A client that blocks. Use it in a `with`, or `close` it. Several threads may use one.

    `url` is the server's address: `https://`, or `http://` on this machine. `key`: an API key or the token of a
    session; None for what needs none. `retry`: nothing is sent again unless it says so. `timeout`: seconds for one
    attempt, up to the end of its answer, or to the beginning of a download; a blocking `transport` of your own may take
    them for each read. `verify`: a context that knows the server's certificate, where the usual authorities do not.
    `proxy`: the address of one; those of the environment are not looked at. Answers of more than `max_answer` bytes
    are refused. Redirections are not followed. Raises ConfigError.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        retry: Retry | None = None,
        timeout: float = REQUEST_TIMEOUT,
        verify: ssl.SSLContext | None = None,
        proxy: str | None = None,
        max_answer: int = MAX_ANSWER,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
        surroundings: Surroundings | None = None,
    ) -> None:
        settings = Settings.of(url, key, retry, timeout, max_answer, surroundings)
        # The transport is used without httpx.Client, which writes every address that it asks for to the log.
        made = Transport(_trust(url, verify), proxy) if transport is None else transport
        self._caller = Caller(settings, made, sleep)
        super().__init__(self._caller)

    def with_key(self, key: str | None) -> Client:
        """The same connections under another key or session. Close only one of the two."""
        check_key(key)
        made = object.__new__(Client)
        caller = self._caller
        made._caller = Caller(caller.settings.with_key(key), caller.transport, caller.sleep)
        Resources.__init__(made, made._caller)
        return made

    def wait(
        self,
        identity_id: str,
        seconds: float,
        *,
        from_: str | None = None,
        subject_contains: str | None = None,
        thread_id: str | None = None,
        kind: Literal["any", "reply", "verification"] | None = None,
        since: datetime | None = None,
    ) -> WaitResponse | None:
        """The first message that fits and comes after `since`, by default now; None when none does for `seconds`."""
        waiting = _Waiting(self._caller.settings, seconds, since)
        query = {"from": from_, "subject_contains": subject_contains, "thread_id": thread_id, "kind": kind}
        while poll := waiting.next(query):
            found = self._caller.answer(WAIT_FOR_MESSAGE, (identity_id,), poll, timeout=poll["timeout"] + WAIT_EXTRA)
            pause = waiting.pause(found)
            if pause is None:
                return found.value
            self._caller.sleep(pause)
        return None

    def stream(
        self,
        *,
        types: Sequence[str] | None = None,
        tenant_id: str | None = None,
        identity_id: str | None = None,
        after: str | None = None,
    ) -> Iterator[StreamedEvent]:
        """Events as they happen, or from the position `after` on, for ever: a connection that ends is made again.
        Raises ApiError where the server refuses.
        """
        return follow(self._caller, query_of(types, tenant_id, identity_id), after, self._caller.sleep)

    def close(self) -> None:
        """Hang up."""
        self._caller.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._caller.settings.url!r})"


class AsyncClient(AsyncResources):
    """As `Client`, for asyncio; with `sleep=trio.sleep` for trio. Several tasks may use one."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        retry: Retry | None = None,
        timeout: float = REQUEST_TIMEOUT,
        verify: ssl.SSLContext | None = None,
        proxy: str | None = None,
        max_answer: int = MAX_ANSWER,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        surroundings: Surroundings | None = None,
    ) -> None:
        settings = Settings.of(url, key, retry, timeout, max_answer, surroundings)
        made = httpx.AsyncHTTPTransport(verify=_trust(url, verify), proxy=proxy) if transport is None else transport
        self._caller = AsyncCaller(settings, made, sleep)
        super().__init__(self._caller)

    def with_key(self, key: str | None) -> AsyncClient:
        """The same connections under another key or session. Close only one of the two."""
        check_key(key)
        made = object.__new__(AsyncClient)
        caller = self._caller
        made._caller = AsyncCaller(caller.settings.with_key(key), caller.transport, caller.sleep)
        AsyncResources.__init__(made, made._caller)
        return made

    async def wait(
        self,
        identity_id: str,
        seconds: float,
        *,
        from_: str | None = None,
        subject_contains: str | None = None,
        thread_id: str | None = None,
        kind: Literal["any", "reply", "verification"] | None = None,
        since: datetime | None = None,
    ) -> WaitResponse | None:
        """The first message that fits and comes after `since`, by default now; None when none does for `seconds`."""
        waiting = _Waiting(self._caller.settings, seconds, since)
        query = {"from": from_, "subject_contains": subject_contains, "thread_id": thread_id, "kind": kind}
        while poll := waiting.next(query):
            found = await self._caller.answer(
                WAIT_FOR_MESSAGE, (identity_id,), poll, timeout=poll["timeout"] + WAIT_EXTRA
            )
            pause = waiting.pause(found)
            if pause is None:
                return found.value
            await self._caller.sleep(pause)
        return None

    def stream(
        self,
        *,
        types: Sequence[str] | None = None,
        tenant_id: str | None = None,
        identity_id: str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[StreamedEvent]:
        """Events as they happen, or from the position `after` on, for ever: a connection that ends is made again.
        Raises ApiError where the server refuses.
        """
        return follow_async(self._caller, query_of(types, tenant_id, identity_id), after, self._caller.sleep)

    async def close(self) -> None:
        """Hang up."""
        await self._caller.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self._caller.settings.url!r})"


def _trust(url: str, verify: ssl.SSLContext | None) -> ssl.SSLContext | bool:
    """Without TLS nobody's certificate counts, and the list of all authorities is slow to read."""
    if verify is not None:
        return verify
    return True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class _Waiting:
    """From long poll to long poll, so that nothing that comes between two of them is missed."""

    def __init__(self, settings: Settings, seconds: float, since: datetime | None) -> None:
        if not seconds > 0:
            raise ConfigError("there is some time to wait")
        self._clock = settings.surroundings.clock
        self._now = settings.surroundings.now
        self._end = self._clock() + seconds
        self._since = since
        self._began: float | None = None

    def next(self, query: dict[str, Any]) -> dict[str, Any] | None:
        """The parameters of the next poll; None when the time is over."""
        left = self._end - self._clock()
        if self._began is not None and left < 1:
            return None
        self._began = self._clock()
        return {**query, "since": self._since, "timeout": max(1, min(LONGEST_POLL, int(left)))}

    def pause(self, answer: Answer[WaitResponse]) -> float | None:
        """Seconds until the next poll; None when this one found something.

        What counts as new is what came after the first poll began, by the server's clock, which says whole seconds.
        """
        if answer.value.message is not None:
            return None
        assert self._began is not None, "a poll comes before its answer"
        lasted = self._clock() - self._began
        if self._since is None:
            self._since = (server_time(answer.headers) or self._now()) - timedelta(seconds=lasted)
        return max(0.0, _LEAST - lasted)
