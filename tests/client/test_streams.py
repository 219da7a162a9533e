"""The client's stream of events: whatever the pieces are, and whatever becomes of the connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom_client import ApiError, AsyncClient, Client, DecodeError, TransportError
from postroom_client.streams import MAX_LINE, Lines

Answering = Callable[[httpx.Request], httpx.Response]


def event(number: int) -> dict[str, Any]:
    return {
        "id": f"evt_{number:026d}",
        "type": "identity.resumed",
        "api_version": "2026-10-01",
        "occurred_at": "2030-01-01T00:00:00.000Z",
        "tenant_id": None,
        "identity_id": None,
        "sequence": None,
        "data": {"identity_id": "é"},
    }


def block(number: int) -> bytes:
    data = json.dumps(event(number), ensure_ascii=False)
    return f"id: p{number}\nevent: identity.resumed\ndata: {data}\n\n".encode()


HELLO: Final = b"retry: 2000\n: hello\nid: p0\n\n"
REFUSED: Final = {"error": {"code": "key_revoked", "message": "m", "retryable": False, "fix": "f", "request_id": "r"}}
BUSY: Final = {"error": {"code": "unavailable", "message": "m", "retryable": True, "fix": "f", "request_id": "r"}}


class Script(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers one after the other; notes where each request goes on."""

    def __init__(self, *answers: bytes | dict[str, Any] | Exception) -> None:
        self._answers: Iterator[bytes | dict[str, Any] | Exception] = iter(answers)
        self.asked: list[str | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer k"
        self.asked.append(request.url.params.get("last_event_id"))
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, dict):
            return httpx.Response(503 if answer is BUSY else 401, json=answer)
        return httpx.Response(200, content=answer, headers={"content-type": "text/event-stream"})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


STORY: Final = (
    HELLO + block(1) + block(2),
    httpx.ConnectError("away"),
    BUSY,
    HELLO.replace(b"p0", b"p2") + b": heartbeat\nid: p5\n\n" + b'event: error\ndata: {"code":"slow_consumer"}\n\n',
    HELLO.replace(b"p0", b"p5") + block(6) + block(7)[:-9],
    REFUSED,
)
ASKED: Final = [None, "p2", "p2", "p2", "p5", "p6"]


def test_it_is_taken_up_again_where_it_was() -> None:
    script, slept = Script(*STORY), list[float]()
    client = Client("http://localhost", "k", transport=script, sleep=slept.append)
    told = client.stream()
    assert [next(told).position for _ in range(3)] == ["p1", "p2", "p6"]
    with pytest.raises(ApiError, match="key_revoked"):
        next(told)
    assert script.asked == ASKED, "an event that broke off is asked for again"
    assert slept == [1, 2, 4, 1, 1]


async def test_for_event_loops_too() -> None:
    script = Script(*STORY)

    async def sleep(seconds: float) -> None:
        pass

    client = AsyncClient("http://localhost", "k", transport=script, sleep=sleep)
    told = client.stream(types=["identity.resumed"], after=None)
    assert [(await anext(told)).position for _ in range(3)] == ["p1", "p2", "p6"]
    with pytest.raises(ApiError, match="key_revoked"):
        await anext(told)
    assert script.asked == ASKED


def test_the_first_connection_is_the_callers_to_know_of() -> None:
    client = Client("http://localhost", "k", transport=Script(httpx.ConnectError("away")))
    with pytest.raises(TransportError):
        next(client.stream())


@given(st.lists(st.integers(1, 40)))
def test_whatever_the_pieces_are(sizes: list[int]) -> None:
    whole = HELLO + block(1) + b": heartbeat\nid: p5\n\n" + block(6).replace(b"\n", b"\r\n")
    lines, told = Lines(None), []
    for size in [*sizes, len(whole)]:
        piece, whole = whole[:size], whole[size:]
        told += [(one.event.id, one.position) for one in lines.feed(piece)]
    assert told == [(event(1)["id"], "p1"), (event(6)["id"], "p6")]


def test_a_line_has_a_limit() -> None:
    with pytest.raises(DecodeError):
        list(Lines(None).feed(b"x" * (MAX_LINE + 1)))
