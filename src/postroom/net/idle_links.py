"""Connections of the guarded client that wait for another request: few, for seconds, and checked again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Final, TypeAlias

from postroom.net.dns_types import IpAddress
from postroom.net.http_link import HttpLink

IDLE_SECONDS: Final = 15.0
MAX_IDLE: Final = 512
MAX_IDLE_PER_HOST: Final = 8

Key: TypeAlias = tuple[str, int]
"""Host and port."""


class IdleLinks:
    """It lives on one event loop. Of more than `total` connections the one that has waited longest goes."""

    def __init__(self, *, seconds: float = IDLE_SECONDS, total: int = MAX_IDLE, per_host: int = MAX_IDLE_PER_HOST):
        self._seconds, self._total, self._per_host = seconds, total, per_host
        self._closed = False
        self._by_key: dict[Key, list[HttpLink]] = {}
        self._waiting: dict[HttpLink, tuple[Key, asyncio.TimerHandle]] = {}
        """From the longest to the shortest wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, key: Key, addresses: Collection[IpAddress]) -> HttpLink | None:
        """A connection to one of `addresses`, which were checked just now. Those that lead elsewhere are closed.

        One that ends is none of these, once the loop has seen it: give it a turn before, as asking the DNS does.
        """
        for link in self._by_key.get(key, ())[::-1]:
            if link.address in addresses:
                self._forget(link)
                return link
            self._drop(link)
        return None

    def give(self, key: Key, link: HttpLink) -> None:
        """Keep a connection after an exchange if it is good for another, else close it."""
        seconds = min(self._seconds, link.keep_seconds)
        if self._closed or seconds <= 0 or not link.reusable():
            link.abort()
            return
        link.rest()
        same = self._by_key.setdefault(key, [])
        if len(same) >= self._per_host:
            self._drop(same[0])
        elif len(self._waiting) >= self._total:
            self._drop(next(iter(self._waiting)))
        drop = partial(self._drop, link)
        link.on_end = drop
        self._by_key.setdefault(key, []).append(link)
        self._waiting[link] = key, asyncio.get_running_loop().call_later(seconds, drop)

    def close(self) -> None:
        self._closed = True
        for link in list(self._waiting):
            self._drop(link)

    def _drop(self, link: HttpLink) -> None:
        self._forget(link)
        link.abort()

    def _forget(self, link: HttpLink) -> None:
        link.on_end = None
        key, timer = self._waiting.pop(link)
        timer.cancel()
        same = self._by_key[key]
        same.remove(link)
        if not same:
            del self._by_key[key]
