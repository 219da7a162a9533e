"""Live streams of events, whatever they are sent through: who may have one, what they are told, and how it ends
(events-webhooks-errors §1, decisions A7).

A stream costs no query while it is live: the feed of the process tells it. Where it resumes, it reads what it missed in
pages until it is where the feed is. No connection of the database is held across a write (B16).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NoReturn, Protocol

from postroom.accounts.models import Principal
from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.db.pool import Database
from postroom.events import reading
from postroom.events.feed import Feed, Listener
from postroom.events.reading import Told, Wanted
from postroom.servers.http import failures
from postroom.servers.http.positions import Sealer, reach_of
from postroom.servers.http.services import HttpServices
from postroom.servers.http.tally import Ended, Kind

log = base_log.get("servers.streams")

HEARTBEAT_SECONDS: Final = 15.0
SEND_SECONDS: Final = 30.0
"""For which a client may take nothing before it is given up."""
START_SECONDS: Final = 10.0
REKEY_SECONDS: Final = 600.0
MAX_PER_CALLER: Final = 10
MAX_STREAMS: Final = 1000
LARGEST_SHARE: Final = 4
"""The part of all streams that keys of one tenant, or of one partner, may have together: one in so many."""
RETRY_SECONDS: Final = 2.0
REPLAYING: Final = 4
"""Streams that read what they missed at the same time; the others wait for their turn at each page."""

SLOW: Final = "slow_consumer"
STOPPING: Final = "stopping"
DONE: Final = "done"


class Outlet(Protocol):
    """A client at the other end of a stream. Each raises ConnectionError when it is gone."""

    kind: Kind

    async def open(self, position: str) -> None: ...
    async def tell(self, told: Told, position: str) -> None: ...
    async def beat(self, position: str) -> None:
        """Say that all is well, and how far it is."""

    async def close(self, code: str, message: str) -> None:
        """The last word. `code` is one of this module's or of an error."""

    async def gone(self) -> None:
        """Returns when the client has hung up."""


class Watching(Protocol):
    """Who tells that a principal would not be let in any more."""

    def watch(self, principal: Principal, ended: Callable[[], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; tests have others."""

    heartbeat: float = HEARTBEAT_SECONDS
    send: float = SEND_SECONDS
    start: float = START_SECONDS


class Streams:
    """The streams of one process. `standing` may be None where nobody's key is ever revoked: in tests."""

    def __init__(
        self,
        database: Database,
        feed: Feed,
        standing: Watching | None = None,
        *,
        timing: Timing | None = None,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self.database, self.feed, self.standing = database, feed, standing
        self.timing = timing or Timing()
        self.replaying = asyncio.Semaphore(REPLAYING)
        self._max = max_streams
        self._open: Counter[str] = Counter()
        self._owned: Counter[str] = Counter()

    @contextmanager
    def admitted(self, principal: Principal) -> Iterator[None]:
        """Raises `rate_limited` beyond ten streams of a caller and beyond its owner's share, `unavailable` beyond those
        that a process has.
        """
        who, owner = principal.public_id, principal.tenant_public_id or principal.partner_public_id
        share = max(MAX_PER_CALLER, self._max // LARGEST_SHARE)
        if self._open[who] >= MAX_PER_CALLER or (owner is not None and self._owned[owner] >= share):
            details = {"bucket": "streams", "retry_after": RETRY_SECONDS}
            raise PostroomError("rate_limited", details=details, retry_after=RETRY_SECONDS)
        if self._open.total() >= self._max:
            raise PostroomError("unavailable", retry_after=RETRY_SECONDS)
        self._open[who] += 1
        if owner is not None:
            self._owned[owner] += 1
        try:
            yield
        finally:
            if owner is not None:
                self._owned[owner] -= 1
                if not self._owned[owner]:
                    del self._owned[owner]
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    async def settled(self) -> int:
        """The newest event that is settled, with all that was committed before. Raises `unavailable`."""
        try:
            async with asyncio.timeout(self.timing.start):
                return await self.feed.caught_up()
        except TimeoutError as error:
            raise PostroomError("unavailable", retry_after=RETRY_SECONDS) from error


@dataclass(frozen=True, slots=True)
class Asked:
    """A stream as somebody asked for it. `start` is the key after which it begins, None: now. `seconds`: after which
    it ends by itself. `again` raises when the caller would not be let in any more.
    """

    principal: Principal
    wanted: Wanted
    identity_key: int | None
    start: int | None
    seconds: float | None
    again: Callable[[], Awaitable[None]]


class _Over(Exception):
    """The stream ends, with a code and words for the client, and the reason that is counted."""

    def __init__(self, why: Ended, code: str, message: str) -> None:
        super().__init__(code)
        self.why, self.code, self.message = why, code, message


class Stream:
    """One client's. `run` returns when it is over, whatever ended it."""

    def __init__(self, services: HttpServices, streams: Streams, asked: Asked, outlet: Outlet) -> None:
        self._services, self._streams, self._asked, self._outlet = services, streams, asked, outlet
        self._woken = asyncio.Event()
        self._doubted = False
        self._gone = False
        self._sealer: Sealer | None = None
        self._rekey_at = 0.0
        self._deadline: float | None = None
        self._forget: Callable[[], None] = lambda: None
        self._why = Ended.FAILED

    async def run(self) -> None:
        """Raises what opening raises, nothing after that."""
        loop = asyncio.get_running_loop()
        start = await self._streams.settled()
        if self._asked.start is not None:
            start = self._asked.start
        await self._rekey()
        if self._asked.seconds is not None:
            self._deadline = loop.time() + self._asked.seconds
        with self._watched(), self._counted():
            leaving = [
                asyncio.create_task(self._leave(self._outlet.gone())),
                asyncio.create_task(self._wake_after(self._services.stopping.wait())),
            ]
            try:
                self._why = await self._serve(start)
            except asyncio.CancelledError:
                self._why = Ended.STOPPING
                raise
            finally:
                for task in leaving:
                    task.cancel()

    async def _serve(self, start: int) -> Ended:
        """Tell until it is over; why it is. Raises what nobody foresaw."""
        try:
            await self._send(self._outlet.open(self._seal(start)))
            if self._asked.start is not None:
                self._services.tally.resumed(self._outlet.kind)
            await self._tell_all(start)
        except _Over as over:
            await self._say_goodbye(over)
            return over.why
        except ConnectionError:
            log.debug("stream_broken")
            return Ended.GONE
        except TimeoutError:
            log.debug("stream_stalled")
            return Ended.STALLED
        except Exception as error:
            told = failures.describe(error)
            if told is None:
                raise
            why = Ended.UNAVAILABLE if told.code == "unavailable" else Ended.FAILED
            await self._say_goodbye(_Over(why, told.code, told.message))
            return why

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """While the client is one of those that are connected."""
        tally, kind = self._services.tally, self._outlet.kind
        tally.opened(kind)
        try:
            yield
        finally:
            tally.closed(kind)
            tally.ended(kind, self._why)

    # -- what ends it

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While the caller's standing is looked at."""
        self._watch()
        key = self._asked.principal.key
        timer = None
        if key is not None and key.expires_at is not None:
            left = (key.expires_at - self._now()).total_seconds()
            timer = asyncio.get_running_loop().call_later(max(left, 0), self._doubt)
        try:
            yield
        finally:
            self._forget()
            if timer is not None:
                timer.cancel()

    def _watch(self) -> None:
        standing = self._streams.standing
        if standing is not None:
            self._forget = standing.watch(self._asked.principal, self._doubt)

    def _doubt(self) -> None:
        self._doubted = True
        self._woken.set()

    async def _leave(self, gone: Awaitable[None]) -> None:
        await gone
        self._gone = True
        self._woken.set()

    async def _wake_after(self, stopping: Awaitable[object]) -> None:
        await stopping
        self._woken.set()

    async def _check(self) -> None:
        """Raises what ends the stream."""
        if self._gone:
            raise ConnectionError
        if self._services.stopping.is_set():
            raise _Over(Ended.STOPPING, STOPPING, "The server is stopping. Connect again and go on.")
        if self._doubted:
            await self._ask_again()
        if self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline:
            raise _Over(Ended.DONE, DONE, "It was asked for so long. Connect again and go on.")

    async def _ask_again(self) -> None:
        self._doubted = False
        try:
            await self._asked.again()
        except PostroomError as error:
            raise _Over(Ended.REFUSED, error.code, error.message) from error
        # They were let in once more, and are looked at again: who was doubted is watched no longer.
        self._watch()

    async def _say_goodbye(self, over: _Over) -> None:
        try:
            await self._send(self._outlet.close(over.code, over.message))
        except (ConnectionError, TimeoutError):
            return  # so they learn it from the end of the connection

    # -- what is told

    async def _tell_all(self, position: int) -> NoReturn:
        feed = self._streams.feed
        while True:
            listener = feed.listen(self._asked.wanted, position, self._asked.identity_key)
            if listener is not None:
                try:
                    await self._tell_live(listener)
                finally:
                    listener.close()
            settled = await self._streams.settled()
            async for told in self._missed(position, settled):
                await self._tell(told)
            position = max(position, settled)

    async def _tell_live(self, listener: Listener) -> NoReturn:
        """Until it is over, which it raises."""
        listener.woken = self._woken
        self._woken.set()
        while True:
            while (told := listener.take()) is not None:
                await self._tell(told)
            if listener.cut:
                raise _Over(Ended.SLOW, SLOW, "What happens is not taken fast enough. Connect again and go on.")
            await self._check()
            if not await self._wait():
                await self._check()
                await self._rekey()
                if not listener.pending:
                    await self._send(self._outlet.beat(self._seal(listener.position)))

    async def _tell(self, told: Told) -> None:
        await self._check()
        await self._send(self._outlet.tell(told, self._seal(told.key)))
        self._services.tally.told(self._outlet.kind)

    async def _wait(self) -> bool:
        """Until something happens, True; or until it is time to say that all is well."""
        left = self._streams.timing.heartbeat
        if self._deadline is not None:
            left = min(left, max(self._deadline - asyncio.get_running_loop().time(), 0))
        try:
            async with asyncio.timeout(left):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    async def _missed(self, position: int, settled: int) -> AsyncIterator[Told]:
        """What came after the position and is settled, page by page."""
        while position < settled:
            async with self._streams.replaying, self._streams.database.acquire() as conn:
                found = await reading.after(conn, self._asked.wanted, position, settled, reading.MAX_PAGE)
            for told in found:
                yield told
            position = found[-1].key if len(found) == reading.MAX_PAGE else settled

    async def _send(self, sending: Awaitable[None]) -> None:
        async with asyncio.timeout(self._streams.timing.send):
            await sending

    # -- positions

    def _now(self) -> datetime:
        return self._services.clock.now()

    def _seal(self, key: int) -> str:
        assert self._sealer is not None
        return self._sealer.seal(key, self._now())

    async def _rekey(self) -> None:
        """A stream may outlast the key that its positions are sealed with."""
        now = asyncio.get_running_loop().time()
        if self._sealer is None or now >= self._rekey_at:
            keys = await self._services.cursor_keys.keys_for(None)
            self._sealer = Sealer(keys, reach_of(self._asked.principal))
            self._rekey_at = now + REKEY_SECONDS
