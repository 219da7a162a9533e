"""One reader of the outbox for all live streams of a process (events-webhooks-errors §1, sync-webmail-client D2).

It follows the events of the whole deployment in the order of their keys and hands each to the listeners who may hear
it. A key is handed out before its transaction commits, so below an event that can be seen others may still come. The
feed therefore passes nothing until it is *settled*: until every transaction that may hold a smaller key has ended. So a
position, which is a key, says all about what was passed: whoever resumes there misses nothing and hears nothing twice.

What was passed last is kept, so much and no more, for listeners who are behind. Listeners hold references into it and
nothing else: a thousand of them cost what one costs. Who is so far behind that something goes unheard is cut off, and
comes back with their position, from where the database tells the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from postroom.accounts.permissions import Level
from postroom.base import log as base_log
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.events import reading
from postroom.events.reading import Told, Wanted, hears
from postroom.events.settled import writers

log = base_log.get("events.feed")

POLL_SECONDS: Final = 1.0
"""After which it is looked without a hint: hints get lost, and some events have none."""
LINGER_SECONDS: Final = 5.0
"""For which it is followed after the last listener left: they come back, or are still reading what they missed."""
SPACING_SECONDS: Final = 0.02
"""Between two looks, so that those of a flood are made together."""
READ_ROWS: Final = 500
KEPT_EVENTS: Final = 4096
KEPT_BYTES: Final = 16 * 1024 * 1024
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.25
_STUCK_SECONDS: Final = 30.0


class Listener:
    """Somebody who is told. `woken` is set when there is something to take, or when they are `cut`."""

    __slots__ = ("_feed", "cut", "identity_key", "pending", "position", "wanted", "woken")

    def __init__(self, feed: Feed, wanted: Wanted, identity_key: int | None, position: int) -> None:
        self._feed = feed
        self.wanted = wanted
        self.identity_key = identity_key
        self.position = position
        """All up to here was taken."""
        self.pending: deque[Told] = deque()
        self.woken = asyncio.Event()
        self.cut = False
        """Whether something is lost to them here, since they were too slow."""

    def take(self) -> Told | None:
        """The next thing to be told; None when there is none by now, and once they are cut. One at a time: what is
        taken is held by nobody else.
        """
        if self.pending:
            told = self.pending.popleft()
            self.position = told.key
            return told
        self.woken.clear()
        if not self.cut:
            self.position = max(self.position, self._feed.settled)
        return None

    def close(self) -> None:
        """Hear no more. Closing twice does nothing."""
        self._feed.forget(self)


class Feed:
    """The reader and its listeners. Lives on the event loop; `run` is to run beside."""

    def __init__(
        self,
        database: Database,
        *,
        poll: float = POLL_SECONDS,
        kept_events: int = KEPT_EVENTS,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._database = database
        self._poll, self._kept_events, self._kept_bytes = poll, kept_events, kept_bytes
        self._kept: deque[Told] = deque()
        self._bytes = 0
        self._places: dict[object, set[Listener]] = {}
        self._count = 0
        self._woken = asyncio.Event()
        self._looked: list[asyncio.Future[None]] = []
        self._begun = False
        self._asked = 0.0
        self.settled = 0
        """Up to which key everything is decided, and was passed."""
        self.floor = 0
        """After which key everything is kept."""

    # -- listeners

    @property
    def count(self) -> int:
        return self._count

    def wake(self) -> None:
        """Something was committed somewhere: look."""
        self._woken.set()

    async def caught_up(self) -> int:
        """Everything that was committed before the call is settled, and passed; its last key. Raises TimeoutError when
        the database or a transaction takes too long: the caller says how long that is.
        """
        looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looked.append(looked)
        self._asked = asyncio.get_running_loop().time()
        self.wake()
        await looked
        return self.settled

    def listen(self, wanted: Wanted, position: int, identity_key: int | None = None) -> Listener | None:
        """Be told of what comes after `position`; None when not all of that is kept, or nothing is: ask `caught_up`,
        and read the rest from the table.
        """
        if not self._begun or position < self.floor:
            return None
        made = Listener(self, wanted, identity_key, position)
        self._places.setdefault(_place(wanted), set()).add(made)
        self._count += 1
        # From the newest back: whoever comes is near the end.
        later = list(takewhile(lambda told: told.key > position, reversed(self._kept)))
        for told in reversed(later):
            self._tell(made, told)
        return made

    def forget(self, listener: Listener) -> None:
        """Undo `listen`."""
        place = _place(listener.wanted)
        there = self._places.get(place, set())
        if listener not in there:
            return
        there.discard(listener)
        if not there:
            del self._places[place]
        self._count -= 1
        self._asked = asyncio.get_running_loop().time()
        listener.pending.clear()

    # -- the reader

    async def run(self) -> None:
        """Follow the table until cancelled, at rest while nobody listens. Raises what is no fault of the database's."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._poll if self._begun else None)
            self._woken.clear()
            asking, self._looked = self._looked, []
            if not asking and not self._count and self._is_left():
                await asyncio.sleep(SPACING_SECONDS)
                continue
            try:
                await self._look()
            except BaseException as error:
                # Not those who asked and have given up meanwhile: they would pile up while the database is away.
                self._looked = [one for one in (*asking, *self._looked) if not one.done()]
                if not isinstance(error, Exception) or not db_errors.is_transient(error):
                    raise
                log.warning("events_not_read", error=type(error).__name__)
                self.wake()
                await asyncio.sleep(self._poll)
                continue
            for looked in asking:
                if not looked.done():
                    looked.set_result(None)
            await asyncio.sleep(SPACING_SECONDS)

    def _is_left(self) -> bool:
        """Whether nobody has listened for a while: then nothing is read or kept, and the next begins anew."""
        if self._begun and asyncio.get_running_loop().time() > self._asked + LINGER_SECONDS:
            self._kept.clear()
            self._bytes = 0
            self._begun = False
        return not self._begun

    async def _look(self) -> None:
        """Pass everything that was committed before the call."""
        if not self._begun:
            last = await self._decided()
            self.settled = self.floor = last
            self._begun = True
            return
        while True:
            async with self._database.acquire() as conn:
                found = await reading.following(conn, self.settled, reading.EVERYTHING, READ_ROWS)
            # What follows without a gap is settled by itself; beyond a gap somebody may hold the key that is missing.
            whole = 0
            while whole < len(found) and found[whole].key == self.settled + whole + 1:
                whole += 1
            self._pass(found[:whole])
            if whole < len(found):
                last = found[-1].key
                await self._ended(await self._writers())
                async with self._database.acquire() as conn:
                    # Not more than before lie between, but for those that were missing.
                    while again := await reading.following(conn, self.settled, last, READ_ROWS):
                        self._pass(again)
                self.settled = last
            if len(found) < READ_ROWS:
                return
            await asyncio.sleep(0)

    async def _decided(self) -> int:
        """The greatest key that could be seen, once nobody holds a smaller one any more."""
        async with self._database.acquire() as conn:
            last = await reading.newest(conn)
        await self._ended(await self._writers())
        return last

    async def _writers(self) -> frozenset[str]:
        async with self._database.acquire() as conn:
            return await writers(conn)

    async def _ended(self, writing: frozenset[str]) -> None:
        """Until all these transactions have ended; those that begin meanwhile have greater keys."""
        wait, waited = _FIRST_WAIT, 0.0
        while writing:
            await asyncio.sleep(wait)
            waited += wait
            wait = min(wait * 2, _LONGEST_WAIT)
            writing &= await self._writers()
            if writing and waited >= _STUCK_SECONDS:
                waited = 0.0
                log.warning("events_held_up", transactions=len(writing))

    def _pass(self, found: Iterable[Told]) -> None:
        for told in found:
            self._kept.append(told)
            self._bytes += len(told.payload)
            self.settled = told.key
            for place in _places(told):
                for listener in self._places.get(place, ()):
                    self._tell(listener, told)
            while len(self._kept) > self._kept_events or self._bytes > self._kept_bytes:
                self._drop()

    def _tell(self, listener: Listener, told: Told) -> None:
        if listener.cut or told.key <= listener.position or not hears(listener.wanted, told, listener.identity_key):
            return
        listener.pending.append(told)
        listener.woken.set()

    def _drop(self) -> None:
        """Keep the oldest no more; who has not taken it is cut."""
        oldest = self._kept.popleft()
        self._bytes -= len(oldest.payload)
        self.floor = oldest.key
        for place in _places(oldest):
            for listener in self._places.get(place, ()):
                if listener.pending and listener.pending[0] is oldest:
                    listener.cut = True
                    listener.pending.clear()
                    listener.woken.set()


def _place(wanted: Wanted) -> object:
    """Under what a listener is found: the narrowest of what their scope names."""
    scope = wanted.scope
    match scope.level:
        case Level.PLATFORM:
            return Level.PLATFORM
        case Level.PARTNER:
            return (Level.PARTNER, scope.partner_id)
        case Level.TENANT:
            return (Level.TENANT, scope.tenant_id)
    return (Level.IDENTITY, scope.identity_id)


def _places(told: Told) -> tuple[object, ...]:
    """Where those are found who may hear an event."""
    return (
        Level.PLATFORM,
        (Level.PARTNER, told.partner_id),
        (Level.TENANT, told.tenant_id),
        (Level.IDENTITY, told.identity_id),
    )
