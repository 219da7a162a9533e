"""The application and servers that are none behind both kinds of client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from postroom_client import AsyncClient, Client, Surroundings

URL = "http://localhost"
KEY = "pmk_test_0123456789ab_verysecret"
IDN = "idn_01ARZ3NDEKTSV4RRFFQ69G5FAV"
REQ = "req_01ARZ3NDEKTSV4RRFFQ69G5FAV"


class Bridge(httpx.BaseTransport):
    """A blocking transport over one of an event loop, for threads beside the loop."""

    def __init__(self, inner: httpx.AsyncBaseTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def ask() -> httpx.Response:
            response = await self._inner.handle_async_request(request)
            content = b"".join([piece async for piece in response.aiter_raw()])
            return httpx.Response(response.status_code, headers=response.headers, content=content)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(timeout=60)


@dataclass
class Time:
    """A clock that moves when somebody sleeps. `slept`: how long each time, in seconds."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)
    on_sleep: Callable[[float], None] = lambda seconds: None
    keys: int = 0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def new_key(self) -> str:
        self.keys += 1
        return f"key-{self.keys}"

    @property
    def surroundings(self) -> Surroundings:
        start = datetime(2030, 1, 1, tzinfo=UTC)
        return Surroundings(
            clock=lambda: self.now,
            now=lambda: start + timedelta(seconds=self.now - 1000),
            random=lambda: 0.0,
            new_key=self.new_key,
        )


Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Script:
    """A server that gives the answers of a list, one after the other, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return answer(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def blocking(script: Script, time: Time | None = None, **options: Any) -> Client:
    time = time or Time()
    made: dict[str, Any] = {"sleep": time.sleep, "surroundings": time.surroundings, **options}
    return Client(URL, KEY, transport=httpx.MockTransport(script), **made)


def looping(script: Script, time: Time | None = None, **options: Any) -> AsyncClient:
    time = time or Time()
    made: dict[str, Any] = {"sleep": time.sleep_async, "surroundings": time.surroundings, **options}
    return AsyncClient(URL, KEY, transport=httpx.MockTransport(script), **made)


def error(
    status: int, code: str, *, retryable: bool = False, headers: dict[str, str] | None = None, **details: Any
) -> httpx.Response:
    """The envelope of an error (events-webhooks-errors §16)."""
    said = {"code": code, "message": "No.", "retryable": retryable, "fix": "Do not.", "request_id": REQ}
    return httpx.Response(status, headers=headers, json={"error": said | ({"details": details} if details else {})})


def raised(call: Callable[[], object]) -> BaseException:
    """What a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return error
    raise AssertionError("nothing was raised")


def chain(error: BaseException | None) -> Iterable[BaseException]:
    """An exception with all that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
