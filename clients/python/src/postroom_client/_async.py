"""Calls over the transport of an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from ._core import Answer, Call, Collected, Operation, Settings, finish, prepare, read_answer, too_late, transport_error
from ._deadline import until_async
from ._retry import Failure, Unusable
from .downloads import AsyncDownloading
from .errors import TransportError
from .pagination import AsyncPages, Page

T = TypeVar("T")
P = TypeVar("P", bound=Page)


class AsyncCaller:
    """Sends calls, as often as the settings say. Several tasks may use one."""

    def __init__(
        self, settings: Settings, transport: httpx.AsyncBaseTransport, sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        self.settings = settings
        self.transport = transport
        self.sleep = sleep

    async def call(
        self,
        operation: Operation[T],
        path: Sequence[str | int],
        query: Mapping[str, Any],
        body: Any = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> T:
        return (await self.answer(operation, path, query, body, key, timeout)).value

    async def answer(
        self,
        operation: Operation[T],
        path: Sequence[str | int],
        query: Mapping[str, Any],
        body: Any = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer[T]:
        """With the headers of the answer."""
        call = prepare(self.settings, operation, path, query, body, key, timeout)
        response, content = await self._send(call)
        return read_answer(call, response.status_code, response.headers, content)

    def pages(
        self,
        operation: Operation[P],
        path: Sequence[str | int],
        query: Mapping[str, Any],
        cursor: str | None,
        timeout: float | None,
    ) -> AsyncPages[P, Any]:
        async def fetch(at: str | None) -> P:
            return await self.call(operation, path, {**query, "cursor": at}, timeout=timeout)

        return AsyncPages(fetch, cursor)

    def download(
        self, operation: Operation[None], path: Sequence[str | int], query: Mapping[str, Any], timeout: float | None
    ) -> AsyncDownloading:
        call = prepare(self.settings, operation, path, query, None, None, timeout)

        async def begin() -> httpx.Response:
            return (await self._send(call))[0]

        return AsyncDownloading(operation.name, begin)

    async def _send(self, call: Call[Any]) -> tuple[httpx.Response, bytes]:
        """A success with its body; that of a download is still to come."""
        attempts, clock = call.attempts(), self.settings.surroundings.clock
        while True:
            outcome = await self._once(call)
            if isinstance(outcome, tuple):
                return outcome
            pause = attempts.pause(outcome, clock())
            if pause is None:
                # Raised here, where no exception of httpx is being handled: those know the request, and so the key.
                raise outcome.error if isinstance(outcome, Unusable) else outcome
            await self.sleep(pause)

    async def _once(self, call: Call[Any]) -> tuple[httpx.Response, bytes] | Failure:
        try:
            collected = Collected(call)
            with until_async(call.timeout):
                response = await self.transport.handle_async_request(call.request())
                keep = False
                try:
                    keep = collected.begin(response.status_code, response.headers)
                    if keep:
                        return response, b""
                    async for piece in response.aiter_bytes():
                        if not collected.add(piece):
                            break
                finally:
                    if not keep:
                        await response.aclose()
        except TransportError as error:
            return error
        except TimeoutError:
            return too_late(call.operation.name)
        except httpx.TransportError as error:
            return transport_error(call.operation.name, error)
        done = finish(call, response.status_code, response.headers, collected.body)
        return (response, done) if isinstance(done, bytes) else done
