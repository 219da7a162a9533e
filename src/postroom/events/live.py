"""Wake-ups: whoever waits for a mailbox (IDLE, `wait`) is woken after a commit, on this node and on the others.

Hints say "mailbox X has reached modseq N" and carry nothing else: the woken read the log. They are sent after the
commit by the notifier (B13) and may be lost; a gap wakes everybody, and a slow poll of `mailboxes (id, modseq)`
covers the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from postroom.base import log as base_log
from postroom.db import errors as db_errors
from postroom.db.pool import Database

log = base_log.get("live")

CHANNEL: Final = "postroom_mailbox"
POLL_SECONDS: Final = 5.0
_POLL_PAGE: Final = 1000

_MODSEQS: Final = "SELECT id, modseq FROM mailboxes WHERE id = ANY ($1::bigint[])"


class Hinter(Protocol):
    """Sends a hint to the other nodes; never blocks."""

    def hint(self, channel: str, key: int | str, value: int = 0) -> None: ...


class Watch:
    """One waiter's interest in one mailbox. `wake` is called in the loop, at least once for every commit after
    `LiveHub.watch`."""

    __slots__ = ("_hub", "mailbox_id", "wake")

    def __init__(self, hub: LiveHub, mailbox_id: int, wake: Callable[[], None]) -> None:
        self._hub = hub
        self.mailbox_id = mailbox_id
        self.wake = wake

    def close(self) -> None:
        """Stop being woken. Closing twice does nothing."""
        self._hub.forget(self)


class LiveHub:
    """The watches of one process."""

    def __init__(self, hinter: Hinter) -> None:
        self._hinter = hinter
        self._watches: dict[int, list[Watch]] = {}
        self._modseqs: dict[int, int] = {}

    def watch(self, mailbox_id: int, wake: Callable[[], None]) -> Watch:
        """Be woken whenever the mailbox changes. The caller reads the log once after this call, so that nothing
        falls between."""
        watch = Watch(self, mailbox_id, wake)
        self._watches.setdefault(mailbox_id, []).append(watch)
        return watch

    def forget(self, watch: Watch) -> None:
        """Undo `watch`."""
        watches = self._watches.get(watch.mailbox_id, [])
        if watch in watches:
            watches.remove(watch)
        if not watches:
            self._watches.pop(watch.mailbox_id, None)
            self._modseqs.pop(watch.mailbox_id, None)

    def changed(self, mailbox_id: int, modseq: int) -> None:
        """This process committed a change: wake its own waiters and hint the other nodes."""
        self.wake(mailbox_id, modseq)
        self._hinter.hint(CHANNEL, mailbox_id, modseq)

    def hinted(self, key: str, modseq: int) -> None:
        """A hint came in from the database; a malformed one is ignored, for anybody with the role can send it."""
        if key.isdecimal():
            self.wake(int(key), modseq)

    def wake(self, mailbox_id: int, modseq: int) -> None:
        """Wake the mailbox's watches unless they were woken for this modseq already."""
        watches = self._watches.get(mailbox_id)
        if not watches or self._modseqs.get(mailbox_id, 0) >= modseq:
            return
        self._modseqs[mailbox_id] = modseq
        for watch in tuple(watches):
            watch.wake()

    def wake_all(self) -> None:
        """Hints may have been missed: everybody looks."""
        for watches in tuple(self._watches.values()):
            for watch in tuple(watches):
                watch.wake()

    async def poll(self, database: Database, *, every: float = POLL_SECONDS) -> None:
        """Until cancelled: compare the watched mailboxes with the database, which covers hints that were lost."""
        while True:
            await asyncio.sleep(every)
            try:
                await self._look(database, list(self._watches))
            except Exception as error:
                if not db_errors.is_transient(error):
                    raise
                log.warning("live_poll_failed", error=type(error).__name__)

    async def _look(self, database: Database, watched: list[int]) -> None:
        for start in range(0, len(watched), _POLL_PAGE):
            async with database.acquire() as conn:
                rows = await conn.fetch(_MODSEQS, watched[start : start + _POLL_PAGE])
            for row in rows:
                self.wake(row["id"], row["modseq"])
