"""Envelopes, recipients and a stand-in for ingest."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from postroom.accounts.signing_keys import Purpose, SigningKey
from postroom.base.clock import Clock
from postroom.inbound.judging import Judgement
from postroom.inbound.thread_tokens import ThreadTokens, TokenReader
from postroom.mailbox.ingest import Delivery, Failure, IngestError
from postroom.mailbox.models import Appended, FolderKey, GroupOutcome, NewMessage, Refusal, Refused
from postroom.smtp.envelope import Envelope


@dataclass(frozen=True, slots=True)
class To:
    """A recipient as the directory resolves it."""

    base: str
    mailbox_id: int = 1
    tenant_id: int = 1
    tenant_public_id: str = "ten_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    identity_public_id: str = "idn_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    via: tuple[str, ...] = ()
    detail: str = ""


@dataclass(slots=True)
class FakeKeys:
    """A ring of one key, or of those given. `asked` is how often it was looked at."""

    keys: tuple[SigningKey, ...] = (SigningKey("0", bytes(range(32)), datetime(2030, 1, 1, tzinfo=UTC)),)
    error: Exception | None = None
    asked: int = 0

    async def current(self, purpose: Purpose, /) -> SigningKey:
        return (await self.ring(purpose))[0]

    async def ring(self, purpose: Purpose, /, *, kid: str | None = None) -> tuple[SigningKey, ...]:
        assert purpose is Purpose.THREAD
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.keys


def reader(clock: Clock, keys: FakeKeys | None = None) -> TokenReader:
    """What reads tokens of those keys."""
    return TokenReader(ThreadTokens(keys or FakeKeys(), clock), clock, b"h" * 32)


@dataclass(slots=True)
class FakeJudge:
    """Says the same of every message."""

    judgement: Judgement = field(default_factory=lambda: Judgement("pass", None))

    async def judge(self, envelope: Envelope[Any], raw: bytes, /) -> Judgement:
        return self.judgement

    async def purge(self, raw: bytes, /) -> bytes:
        return raw


@dataclass(slots=True)
class FakeIngest:
    """Takes everything, or answers what it was told to."""

    answer: Refused | Failure | None = None
    full: frozenset[int] = frozenset()
    """Mailboxes that take nothing."""
    taken: list[Delivery] = field(default_factory=list)

    def begin(self, pieces: tuple[bytes, ...], keys: Sequence[str]) -> FakeTicket:
        return FakeTicket(self, pieces, tuple(keys))

    async def deliver(self, delivery: Delivery) -> GroupOutcome:
        self.taken.append(delivery)
        if isinstance(self.answer, Failure):
            raise IngestError(self.answer)
        if self.answer is not None:
            return self.answer
        if any(copy.mailbox.mailbox_id in self.full for copy in delivery.copies):
            return Refused(Refusal.MAILBOX_FULL)
        return tuple(
            Appended(copy.id, copy.mailbox, copy.thread_id, FolderKey(1), n + 1, 1, 2)
            for n, copy in enumerate(delivery.copies)
        )


class FakeTicket(contextlib.AbstractContextManager[Any]):
    """Of `FakeIngest`; checks that the copies have the keys their bytes were begun with."""

    def __init__(self, ingest: FakeIngest, pieces: tuple[bytes, ...], keys: tuple[str, ...]) -> None:
        self._ingest, self._pieces, self._keys = ingest, pieces, keys

    def __exit__(self, *_: object) -> None:
        pass

    async def commit(self, copies: tuple[NewMessage, ...]) -> GroupOutcome:
        assert tuple(copy.blob_key for copy in copies) == self._keys
        return await self._ingest.deliver(Delivery(self._pieces, copies))


def envelope(*recipients: To, mail_from: str = "anna@example.com", tls: bool = True) -> Envelope[To]:
    return Envelope(
        connection_id="c0ffee",
        peer_ip="192.0.2.7",
        peer_name="mx.example.com",
        helo="mx.example.com",
        esmtp=True,
        tls=tls,
        mail_from=mail_from,
        recipients=tuple((to.base.replace("@", f"+{to.detail}@") if to.detail else to.base, to) for to in recipients),
        smtputf8=False,
        body_8bit=True,
        declared_size=None,
        received_at=datetime(2030, 1, 1, tzinfo=UTC),
    )
