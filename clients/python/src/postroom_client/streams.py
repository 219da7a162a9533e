"""The stream of events, taken as it comes and taken up again where it broke off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ._async import AsyncCaller
from ._core import Operation, parse
from ._sync import Caller
from .errors import ApiError, DecodeError, TransportError
from .models import Event

STREAM_EVENTS: Final[Operation[None]] = Operation("streamEvents", "GET", "/v1/events/stream", {})
SILENCE: Final = 45.0
"""Seconds without a byte after which the connection is given up; the server says something every 15."""
MAX_LINE: Final = 1024 * 1024
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event, and the position after it: what follows is told to whoever gives it as `after`."""

    event: Event
    position: str


class Lines:
    """Reads server-sent events (HTML, section 9.2.6) from pieces of any size. Raises DecodeError."""

    def __init__(self, position: str | None) -> None:
        self.position = position
        """After the last event that came whole: of one that broke off the id is not kept."""
        self._rest = b""
        self._id = position
        self._kind = ""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[StreamedEvent]:
        """The events that are whole by now. Heartbeats move the position."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise DecodeError("a line of the stream is too long")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                self._id = value.decode("ascii", "replace")
            elif name == b"event":
                self._kind = value.decode("utf-8", "replace")
            elif name == b"data":
                self._data.append(value)
            elif not line.strip():
                yield from self._whole()

    def _whole(self) -> Iterator[StreamedEvent]:
        self.position = self._id
        kind, data = self._kind, b"\n".join(self._data)
        self._kind, self._data = "", []
        # What has no dot is no type of event but how the stream ends: the next connection says why, if it is refused.
        if data and "." in kind:
            yield StreamedEvent(Event.from_dict(parse(data)), self.position or "")


@dataclass(slots=True)
class _Again:
    """When to connect again. The first connection is not made again: its failure is the caller's to know."""

    begun: bool = False
    wait: float = _FIRST_PAUSE

    def pause(self, error: ApiError | TransportError | None) -> float:
        """Seconds to wait; raises the error instead where trying again does not mend it."""
        if error is not None and (not self.begun or (isinstance(error, ApiError) and not error.retryable)):
            raise error
        wait, self.wait = self.wait, min(self.wait * 2, _LONGEST_PAUSE)
        return wait

    def heard(self) -> None:
        self.begun, self.wait = True, _FIRST_PAUSE


def query_of(types: Sequence[str] | None, tenant_id: str | None, identity_id: str | None) -> dict[str, Any]:
    return {"types": types, "tenant_id": tenant_id, "identity_id": identity_id}


def follow(
    caller: Caller, query: Mapping[str, Any], after: str | None, sleep: Callable[[float], object]
) -> Iterator[StreamedEvent]:
    """For ever. Raises ApiError where the server refuses, TransportError where it is not there at first."""
    lines, again = Lines(after), _Again()
    while True:
        failure: ApiError | TransportError | None = None
        lines = Lines(lines.position)
        try:
            asked = {**query, "last_event_id": lines.position}
            with caller.download(STREAM_EVENTS, (), asked, SILENCE) as download:
                for piece in download.chunks():
                    again.heard()
                    yield from lines.feed(piece)
        except (ApiError, TransportError) as error:
            failure = error
        sleep(again.pause(failure))


async def follow_async(
    caller: AsyncCaller, query: Mapping[str, Any], after: str | None, sleep: Callable[[float], Awaitable[object]]
) -> AsyncIterator[StreamedEvent]:
    """As `follow`."""
    lines, again = Lines(after), _Again()
    while True:
        failure: ApiError | TransportError | None = None
        lines = Lines(lines.position)
        try:
            asked = {**query, "last_event_id": lines.position}
            async with caller.download(STREAM_EVENTS, (), asked, SILENCE) as download:
                async for piece in download.chunks():
                    again.heard()
                    for streamed in lines.feed(piece):
                        yield streamed
        except (ApiError, TransportError) as error:
            failure = error
        await sleep(again.pause(failure))
