"""What a process counts of those who are told as it happens: streams, sockets, long polls (`http/tally.py`)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from postroom.servers.http.tally import STREAMS, Ended, Kind

PREFIX: Final = "postroom_"


class LiveMetrics:
    """A `Tally`. Everything is there at 0: what appears with its first count has no rate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        held = Gauge(f"{PREFIX}live_open", "Connections that wait to be told", ["kind"], registry=registry)
        told = Counter(f"{PREFIX}stream_events", "Events that were sent in streams", ["kind"], registry=registry)
        resumed = Counter(
            f"{PREFIX}stream_resumes", "Streams that went on at a client's position", ["kind"], registry=registry
        )
        ended = Counter(f"{PREFIX}stream_ends", "Streams that ended", ["kind", "reason"], registry=registry)
        self._open = {kind: held.labels(kind.value) for kind in Kind}
        self._told = {kind: told.labels(kind.value) for kind in STREAMS}
        self._resumed = {kind: resumed.labels(kind.value) for kind in STREAMS}
        self._ended = {(kind, why): ended.labels(kind.value, why.value) for kind in STREAMS for why in Ended}

    def opened(self, kind: Kind) -> None:
        self._open[kind].inc()

    def closed(self, kind: Kind) -> None:
        self._open[kind].dec()

    def resumed(self, kind: Kind) -> None:
        self._resumed[kind].inc()

    def told(self, kind: Kind) -> None:
        self._told[kind].inc()

    def ended(self, kind: Kind, why: Ended) -> None:
        self._ended[kind, why].inc()
