"""Calls over a blocking transport.

Made by scripts/sdk.py from _async.py; change that, then run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from ._core import Answer, Call, Collected, Operation, Settings, finish, prepare, read_answer, too_late, transport_error
from ._deadline import until
from ._retry import Failure, Unusable
from .downloads import Downloading
from .errors import TransportError
from .pagination import Page, Pages

T = TypeVar("T")
P = TypeVar("P", bound=Page)


class Caller:
    """Sends calls, as often as the settings say. Several threads may use one."""

    def __init__(self, settings: Settings, transport: httpx.BaseTransport, sleep: Callable[[float], object]) -> None:
        self.settings = settings
        self.transport = transport
        self.sleep = sleep

    def call(
        self,
        operation: Operation[T],
        path: Sequence[str | int],
        query: Mapping[str, Any],
        body: Any = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> T:
        return (self.answer(operation, path, query, body, key, timeout)).value

    def answer(
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
        response, content = self._send(call)
        return read_answer(call, response.status_code, response.headers, content)

    def pages(
        self,
        operation: Operation[P],
        path: Sequence[str | int],
        query: Mapping[str, Any],
        cursor: str | None,
        timeout: float | None,
    ) -> Pages[P, Any]:
        def fetch(at: str | None) -> P:
            return self.call(operation, path, {**query, "cursor": at}, timeout=timeout)

        return Pages(fetch, cursor)

    def download(
        self, operation: Operation[None], path: Sequence[str | int], query: Mapping[str, Any], timeout: float | None
    ) -> Downloading:
        call = prepare(self.settings, operation, path, query, None, None, timeout)

        def begin() -> httpx.Response:
            return (self._send(call))[0]

        return Downloading(operation.name, begin)

    def _send(self, call: Call[Any]) -> tuple[httpx.Response, bytes]:
        """A success with its body; that of a download is still to come."""
        attempts, clock = call.attempts(), self.settings.surroundings.clock
        while True:
            outcome = self._once(call)
            if isinstance(outcome, tuple):
                return outcome
            pause = attempts.pause(outcome, clock())
            if pause is None:
                # Raised here, where no exception of httpx is being handled: those know the request, and so the key.
                raise outcome.error if isinstance(outcome, Unusable) else outcome
            self.sleep(pause)

    def _once(self, call: Call[Any]) -> tuple[httpx.Response, bytes] | Failure:
        try:
            collected = Collected(call)
            with until(call.timeout):
                response = self.transport.handle_request(call.request())
                keep = False
                try:
                    keep = collected.begin(response.status_code, response.headers)
                    if keep:
                        return response, b""
                    for piece in response.iter_bytes():
                        if not collected.add(piece):
                            break
                finally:
                    if not keep:
                        response.close()
        except TransportError as error:
            return error
        except TimeoutError:
            return too_late(call.operation.name)
        except httpx.TransportError as error:
            return transport_error(call.operation.name, error)
        done = finish(call, response.status_code, response.headers, collected.body)
        return (response, done) if isinstance(done, bytes) else done
