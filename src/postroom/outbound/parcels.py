"""A group's message as its attempt gets it. What is small was read beforehand, for all groups of a claim at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

from postroom.blobs.store import BlobStore, StorageError
from postroom.mail.compose.downgrade import DowngradeError, Obstacle
from postroom.outbound import wire
from postroom.outbound.beginnings import Beginnings
from postroom.outbound.claiming import Group
from postroom.outbound.models import RouteKind
from postroom.outbound.outcomes import Report
from postroom.outbound.transports.base import OFFLOAD_BYTES, Offload, local_trouble, unknown
from postroom.smtp.outcome import Reason

READ_AHEAD_BYTES: Final = 64 * 1024
"""Messages up to this size are held in memory whole."""
AHEAD_BYTES: Final = 8 * 1024 * 1024
"""So much is read beforehand at the most; what is claimed beyond that is read when it goes out."""
AHEAD_SECONDS: Final = 1.0
"""After which a message does not wait any longer for those that are read with it."""

Sign = Callable[[bytes, str], Awaitable[bytes]]
"""Signs a message for a From domain; what is not ours to sign comes back as it is."""


class ReadAhead:
    """The small messages of the groups in hand. One call of the store reads those that were claimed together: in
    threads or over the network, each call costs as much as what it does."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._reading: dict[UUID, asyncio.Task[None]] = {}
        self._found: dict[UUID, bytes] = {}
        self._octets = 0
        self._sizes: dict[UUID, int] = {}

    def expect(self, groups: Sequence[Group]) -> None:
        """These are going to be asked for, all or most of them."""
        wanted: dict[str, list[UUID]] = {}
        for group in groups:
            key, size = group.letter.wire_key, group.letter.wire_size
            if key is None or group.route is RouteKind.SIMULATOR or size > READ_AHEAD_BYTES:
                continue
            if self._octets + size <= AHEAD_BYTES:
                wanted.setdefault(key, []).append(group.token)
                self._sizes[group.token] = size
                self._octets += size
        if wanted:
            task = asyncio.create_task(self._read(wanted))
            self._reading.update((token, task) for tokens in wanted.values() for token in tokens)

    async def _read(self, wanted: dict[str, list[UUID]]) -> None:
        try:
            results = await self._blobs.get_many(list(wanted))
        except StorageError:
            return  # each meets it again by itself
        for tokens, found in zip(wanted.values(), results, strict=True):
            for token in tokens:
                if token in self._sizes and isinstance(found, bytes):
                    self._found[token] = found

    async def take(self, token: UUID) -> bytes | None:
        """The message of a group; None when it is still to be read."""
        task = self._reading.get(token)
        if task is not None and not task.done():
            await asyncio.wait((task,), timeout=AHEAD_SECONDS)
        return self._found.get(token)

    def forget(self, token: UUID) -> None:
        """The group is out of hand."""
        self._reading.pop(token, None)
        self._found.pop(token, None)
        self._octets -= self._sizes.pop(token, 0)


class GroupParcel:
    """A group's message for one attempt."""

    def __init__(
        self,
        group: Group,
        return_path: str,
        blobs: BlobStore,
        ahead: ReadAhead,
        beginnings: Beginnings,
        sign: Sign,
        offload: Offload,
    ) -> None:
        self.group = group
        self.return_path = return_path
        self._key = group.letter.wire_key or ""
        self._blobs = blobs
        self._ahead = ahead
        self._beginnings = beginnings
        self._sign = sign
        self._offload = offload
        self._begun: set[int] = set()

    async def content(self) -> bytes | AsyncIterator[bytes]:
        if self.group.letter.wire_size <= READ_AHEAD_BYTES:
            return await self.whole()
        return self._blobs.stream(self._key)

    async def whole(self) -> bytes:
        found = await self._ahead.take(self.group.token)
        return await self._blobs.get(self._key) if found is None else found

    async def seven_bit(self) -> bytes:
        raw = await self.whole()
        domain = (self.group.letter.from_address or "").rpartition("@")[2]
        if len(raw) < OFFLOAD_BYTES:
            changed = wire.seven_bit(raw, (domain,))
        else:
            changed = await self._offload(len(raw), wire.seven_bit, raw, (domain,))
        if changed is None:
            raise DowngradeError(Obstacle.STRUCTURE)
        return raw if changed is raw else await self._sign(changed, domain)

    async def begin(self, ids: Sequence[int]) -> bool:
        may = await self._beginnings.begin(self.group, ids)
        if may:
            self._begun.update(ids)
        return may

    def after_fault(self) -> tuple[Report, ...]:
        """What is known when a transport broke down: nothing of those who were being sent to (§9.1)."""
        lost = unknown(Reason.PROVIDER_OUTCOME_UNKNOWN, "It is not known whether the message was sent")
        return tuple(
            Report(one.id, lost if one.id in self._begun else local_trouble()) for one in self.group.recipients
        )
