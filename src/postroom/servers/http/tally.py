"""What is counted of connections that wait for something to happen. Who counts is told; nobody waits for it."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
    """How somebody is connected: a stream of lines, a socket, or the long poll for a message."""

    SSE = "sse"
    WEBSOCKET = "websocket"
    WAIT = "wait"


STREAMS = (Kind.SSE, Kind.WEBSOCKET)


class Ended(StrEnum):
    """Why a stream ended. All but the first three are for monitoring to look at."""

    DONE = "done"
    """It was asked for so long."""
    GONE = "gone"
    """The client hung up, or its connection broke."""
    STOPPING = "stopping"
    """The node stops."""
    SLOW = "slow_consumer"
    """More happened than the client took, and what it had not taken is not kept."""
    STALLED = "stalled"
    """The client took nothing for as long as is waited."""
    REFUSED = "refused"
    """The key does not count any more."""
    UNAVAILABLE = "unavailable"
    """The database is away."""
    FAILED = "failed"
    """A fault of ours."""


class Tally(Protocol):
    """Each call is quick and never fails. Every `opened` has its `closed`, every stream's its `ended`."""

    def opened(self, kind: Kind) -> None: ...
    def closed(self, kind: Kind) -> None: ...
    def resumed(self, kind: Kind) -> None:
        """A stream goes on at a position that the client gave."""

    def told(self, kind: Kind) -> None:
        """An event was written to a client's connection."""

    def ended(self, kind: Kind, why: Ended) -> None: ...


class NoTally:
    """Counts nothing."""

    def opened(self, kind: Kind) -> None: ...
    def closed(self, kind: Kind) -> None: ...
    def resumed(self, kind: Kind) -> None: ...
    def told(self, kind: Kind) -> None: ...
    def ended(self, kind: Kind, why: Ended) -> None: ...
