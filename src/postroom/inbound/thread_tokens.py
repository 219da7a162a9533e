"""Thread tokens with the deployment's keys: made for what goes out, read on what comes in (inbound §28.1 to §28.4;
FR-OUT-6, A2, D10)."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, Protocol, TypeVar

from postroom.accounts.signing_keys import Purpose, SigningKey
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db import is_transient
from postroom.mail import thread_token
from postroom.mail.thread_token import ThreadKey, TokenCheck, TokenState
from postroom.mailbox.ingest import Failure, IngestError
from postroom.mailbox.models import Filing

log = base_log.get("inbound")

KEYS_SECONDS: Final = 5.0
WINDOW_SECONDS: Final = 3600
SENDER_FAILURES: Final = 10
MAILBOX_FAILURES: Final = 100
MAX_COUNTED: Final = 50_000
"""Senders, and mailboxes, of whose failures an hour's count is kept."""

_SUSPECT: Final = Filing(is_suspect=True)

K = TypeVar("K", bound=Hashable)


class Keys(Protocol):
    """What is asked of `SigningKeys`."""

    async def current(self, purpose: Purpose, /) -> SigningKey: ...
    async def ring(self, purpose: Purpose, /, *, kid: str | None = None) -> tuple[SigningKey, ...]: ...


class ThreadTokens:
    """Makes and checks tokens. Raises what its keys raise, and TimeoutError."""

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    async def mint(self, identity_id: str, number: int) -> str:
        """The token, without the `+`, for thread `number` of the identity (`idn_…`)."""
        async with asyncio.timeout(KEYS_SECONDS):
            key = await self._keys.current(Purpose.THREAD)
        return thread_token.mint(_thread_key(key), identity_id, number)

    async def check(self, detail: str, identity_id: str) -> TokenCheck:
        """What a detail is that looks like a token."""
        async with asyncio.timeout(KEYS_SECONDS):
            ring = await self._keys.ring(Purpose.THREAD, kid=thread_token.kid_of(detail))
        return thread_token.verify(detail, identity_id, {key.kid: _thread_key(key) for key in ring}, self._clock.now())


class FailureCounts:
    """Tokens that did not verify, in fixed windows of an hour, by sender and in all for each mailbox (D10).

    In memory: a process knows its own, so that several let through that many times as much, of 2^40 possibilities.
    Senders are kept as MACs under `hash_key`.
    """

    def __init__(self, clock: Clock, hash_key: bytes, *, max_entries: int = MAX_COUNTED) -> None:
        self._clock = clock
        self._hash_key = hash_key
        self._max = max_entries
        self._window = 0
        self._senders: OrderedDict[bytes, int] = OrderedDict()
        self._mailboxes: OrderedDict[int, int] = OrderedDict()

    def are_used_up(self, mailbox_id: int, sender: str) -> bool:
        """Whether the mailbox's tokens are not checked for this sender, or for anybody, until the hour is over."""
        self._turn()
        return (
            self._mailboxes.get(mailbox_id, 0) >= MAILBOX_FAILURES
            or self._senders.get(self._key(mailbox_id, sender), 0) >= SENDER_FAILURES
        )

    def add(self, mailbox_id: int, sender: str) -> None:
        """A token did not verify."""
        self._turn()
        _count(self._mailboxes, mailbox_id, self._max)
        _count(self._senders, self._key(mailbox_id, sender), self._max)

    def __len__(self) -> int:
        return len(self._senders) + len(self._mailboxes)

    def _turn(self) -> None:
        window = int(self._clock.monotonic() // WINDOW_SECONDS)
        if window != self._window:
            self._window = window
            self._senders.clear()
            self._mailboxes.clear()

    def _key(self, mailbox_id: int, sender: str) -> bytes:
        return hmac.digest(self._hash_key, f"tok:{mailbox_id}:{sender}".encode("utf-8", "replace"), "sha256")[:16]


class TokenReader:
    """What the details of a message's recipients say of its thread. One per process."""

    def __init__(self, tokens: ThreadTokens, clock: Clock, hash_key: bytes) -> None:
        self._tokens = tokens
        self.failures = FailureCounts(clock, hash_key)
        self.counts: Counter[TokenState] = Counter()
        """Tokens by what they turned out to be, since the start; the unchecked ones are invalid
        (`thread_token_invalid_total`)."""
        self.of_previous_keys = 0
        """Valid ones that an earlier key made (`thread_token_previous_key_total`)."""

    async def filing(self, details: Sequence[str], identity_id: str, mailbox_id: int, sender: str) -> Filing | None:
        """Of one mailbox: `details` are those of the envelope recipients that are its, `sender` is From, or else the
        envelope's. None when there is no token among them. The first valid one counts.

        Raises IngestError while the keys cannot be read: the message has to come again, since it would be filed
        elsewhere for good.
        """
        filing = None
        for detail in filter(thread_token.looks_like_token, details):
            found = await self._checked(detail, identity_id, mailbox_id, sender)
            self.counts[found.state] += 1
            if found.state is TokenState.VALID:
                self.of_previous_keys += not found.current
                return Filing(joins=found.seq)
            filing = _SUSPECT
        return filing

    async def _checked(self, detail: str, identity_id: str, mailbox_id: int, sender: str) -> TokenCheck:
        if self.failures.are_used_up(mailbox_id, sender):
            return TokenCheck(TokenState.INVALID)
        try:
            found = await self._tokens.check(detail, identity_id)
        except PostroomError as error:
            # A stored key does not open. The mail is taken all the same, and threads by its headers.
            log.error("thread_token_not_checked", code=error.code)
            return TokenCheck(TokenState.INVALID)
        except Exception as error:
            if not is_transient(error):
                raise
            raise IngestError(Failure.DATABASE) from error
        if found.state is TokenState.INVALID:
            self.failures.add(mailbox_id, sender)
        return found


def _thread_key(key: SigningKey) -> ThreadKey:
    return ThreadKey(key.kid, key.secret, key.verify_until)


def _count(counts: OrderedDict[K, int], key: K, limit: int) -> None:
    counts[key] = counts.get(key, 0) + 1
    counts.move_to_end(key)
    if len(counts) > limit:
        counts.popitem(last=False)
