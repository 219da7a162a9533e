"""Wake-up hints between processes over LISTEN/NOTIFY (B13).

A hint says "mailbox 17 is at modseq 4711 now", nothing more; whoever receives it reads the log. Hints may be lost,
doubled or late, so every reader also polls now and then, and is told when hints may have been missed
(:meth:`Listener.on_gap`).

NOTIFY takes a database-wide lock until its transaction is flushed, so it never runs in a transaction that writes.
:class:`Notifier` collects the hints of its process after their commits and sends them, merged, on an autocommit
connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from postroom.base import log

from .errors import BROKEN, DatabaseUnavailable
from .pool import ConnectionTarget, Database

if TYPE_CHECKING:
    from .pool import _RawConnection

_log = log.get("db.notify")

# PostgreSQL refuses a payload of 8000 bytes or more.
MAX_PAYLOAD = 7999
MAX_KEY = 512
_CHANNEL = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
# In place of a payload: too many hints to name, look at everything.
_EVERYTHING = "*"
# Between two notifications of a process: the first hint goes at once, those of a flood together. Each costs sender and
# server together 0.3 ms.
_SPACING = 0.02
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_STATEMENT_TIMEOUT = 10.0

OnHint = Callable[[str, int], None]
OnGap = Callable[[], None]


def encode_hints(hints: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Payloads of at most :data:`MAX_PAYLOAD` bytes: ``key=value`` joined by spaces, keys percent-encoded."""
    parts: list[str] = []
    size = 0
    for key, value in hints:
        part = f"{quote(key, safe='@:+', errors='surrogatepass')}={value}"
        if parts and size + len(part) + len(parts) > MAX_PAYLOAD:
            yield " ".join(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield " ".join(parts)


def decode_hints(payload: str) -> Iterator[tuple[str, int]]:
    """The inverse of :func:`encode_hints`; parts that are not hints are passed over."""
    for part in payload.split(" "):
        key, equals, value = part.rpartition("=")
        if equals and len(value) <= 20 and value.isascii() and value.removeprefix("-").isdigit():
            yield unquote(key, errors="surrogatepass"), int(value)


class Notifier:
    """Sends this process's hints. :meth:`hint` never blocks and never fails; call it after the commit.

    Of several hints for one key the highest value is sent. A channel with more than *max_keys* waiting keys says
    "everything" instead, so memory stays bounded however long the database is away.
    """

    def __init__(self, source: ConnectionTarget | Database, *, max_keys: int = 10_000) -> None:
        self._target = source.target if isinstance(source, Database) else source
        self._max_keys = max_keys
        # None: everything.
        self._pending: dict[str, dict[str, int] | None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to send; what was hinted before is sent first."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="db-notifier")

    async def stop(self, *, patience: float = 2.0) -> None:
        """Send what is waiting, for at most *patience* seconds, then end."""
        task, self._task = self._task, None
        if task is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), patience)
        await _cancel(task)

    def hint(self, channel: str, key: int | str, value: int = 0) -> None:
        """Tell every listener of *channel* about *key* (at most :data:`MAX_KEY` characters). Raises ValueError for a
        bad name only.
        """
        if not _CHANNEL.fullmatch(channel):
            raise ValueError(f"not a channel name: {channel!r}")
        text = str(key)
        if not 0 < len(text) <= MAX_KEY:
            raise ValueError("a hint's key has between 1 and 512 characters")
        keys = self._pending.setdefault(channel, {})
        if keys is not None:
            known = keys.get(text)
            if known is None or value > known:
                keys[text] = value
            if len(keys) > self._max_keys:
                self._pending[channel] = None
        self._idle.clear()
        self._wake.set()

    async def flush(self, *, timeout: float = 5.0) -> None:
        """Wait until everything hinted so far was sent. Raises TimeoutError."""
        await asyncio.wait_for(self._idle.wait(), timeout)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        connection: _RawConnection | None = None
        try:
            while True:
                await self._wake.wait()
                batch = self._take()
                try:
                    if connection is None or connection.is_closed():
                        connection = await self._target.connect()
                    await self._send(connection, batch)
                except (DatabaseUnavailable, *BROKEN) as exc:
                    self._put_back(batch)
                    _log.warning(
                        "hints not sent, will try again", error_class=type(exc).__name__, retry_in_seconds=pause
                    )
                    if connection is not None:
                        connection.terminate()
                        connection = None
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    continue
                pause = _FIRST_PAUSE
                if not self._pending:
                    self._idle.set()
                await asyncio.sleep(_SPACING)
        finally:
            if connection is not None:
                connection.terminate()

    def _take(self) -> dict[str, dict[str, int] | None]:
        batch, self._pending = self._pending, {}
        self._wake.clear()
        return batch

    def _put_back(self, batch: dict[str, dict[str, int] | None]) -> None:
        newer, self._pending = self._pending, batch
        for channel, keys in newer.items():
            if keys is None:
                self._pending[channel] = None
            else:
                for key, value in keys.items():
                    self.hint(channel, key, value)
        self._wake.set()

    async def _send(self, connection: _RawConnection, batch: dict[str, dict[str, int] | None]) -> None:
        channels: list[str] = []
        payloads: list[str] = []
        for channel, keys in batch.items():
            for payload in [_EVERYTHING] if keys is None else encode_hints(keys.items()):
                channels.append(channel)
                payloads.append(payload)
        await connection.execute(
            "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS hint (channel, payload)",
            channels,
            payloads,
            timeout=_STATEMENT_TIMEOUT,
        )


class Listener:
    """Receives hints on one connection of its own, and makes a new one when it is lost.

    Register everything, then :meth:`start`. Callbacks run in the event loop and must be quick and not raise; one that
    raises is logged and the others still run. *keepalive* seconds without word from the server and it is asked; no
    answer in *keepalive_timeout* is a loss.
    """

    def __init__(
        self, source: ConnectionTarget | Database, *, keepalive: float = 10.0, keepalive_timeout: float = 5.0
    ) -> None:
        self._target = source.target if isinstance(source, Database) else source
        self._keepalive = keepalive
        self._keepalive_timeout = keepalive_timeout
        self._callbacks: dict[str, list[OnHint]] = {}
        self._gap_callbacks: list[OnGap] = []
        self._listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def listening(self) -> bool:
        """Whether hints are being received at the moment."""
        return self._listening.is_set()

    def add(self, channel: str, callback: OnHint) -> None:
        """Call *callback(key, value)* for every hint on *channel*. Before :meth:`start` only."""
        if self._task is not None:
            raise RuntimeError("register callbacks before the listener starts")
        if not _CHANNEL.fullmatch(channel):
            raise ValueError(f"not a channel name: {channel!r}")
        self._callbacks.setdefault(channel, []).append(callback)

    def on_gap(self, callback: OnGap) -> None:
        """Call *callback* whenever hints may have been missed: after each re-connection, or when there were too many
        to name.
        """
        self._gap_callbacks.append(callback)

    async def start(self, *, timeout: float = 30.0) -> None:
        """Connect and listen; returns when hints arrive. Raises TimeoutError when the database stays away (trying
        ends then).
        """
        if self._task is not None:
            return
        self._task = asyncio.create_task(self._run(), name="db-listener")
        try:
            await asyncio.wait_for(self._listening.wait(), timeout)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening. Does nothing when not started."""
        task, self._task = self._task, None
        if task is not None:
            await _cancel(task)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        listened_before = False
        while True:
            try:
                connection = await self._target.connect()
                try:
                    lost = asyncio.Event()
                    connection.add_termination_listener(lambda _, lost=lost: lost.set())
                    for channel in self._callbacks:
                        await asyncio.wait_for(connection.add_listener(channel, self._received), _STATEMENT_TIMEOUT)
                    self._listening.set()
                    pause = _FIRST_PAUSE
                    if listened_before:
                        self._gap()
                    listened_before = True
                    await self._stay(connection, lost)
                finally:
                    self._listening.clear()
                    connection.terminate()
                _log.warning("connection for hints lost, making a new one")
            except (DatabaseUnavailable, *BROKEN) as exc:
                _log.warning("connection for hints failed", error_class=type(exc).__name__, retry_in_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _stay(self, connection: _RawConnection, lost: asyncio.Event) -> None:
        """Return, or raise, when the connection is gone."""
        while not connection.is_closed():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), self._keepalive)
                return
            # A peer that vanished without a word is only noticed by asking it.
            await connection.execute("SELECT 1", timeout=self._keepalive_timeout)

    def _received(self, _connection: Any, _pid: int, channel: str, payload: Any) -> None:
        if payload == _EVERYTHING:
            self._gap()
            return
        callbacks = self._callbacks.get(channel, ())
        for key, value in decode_hints(str(payload)):
            for callback in callbacks:
                _guarded(callback, key, value)

    def _gap(self) -> None:
        for callback in self._gap_callbacks:
            _guarded(callback)


def _guarded(callback: Callable[..., None], *arguments: Any) -> None:
    try:
        callback(*arguments)
    except Exception as exc:  # noqa: BLE001 - one reader's mistake must not cut the others off from their hints
        _log.error("a receiver of hints failed", exc_info=exc)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
