"""Webhooks of one process, put together: what people do with endpoints, and the work behind (architecture §3)."""

from __future__ import annotations

import os
import random as system_random
from collections.abc import Callable
from typing import Final

from postroom.accounts.policy_rules import Stance
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db.pool import Database
from postroom.events.webhooks.delivering import Deliverer, Observe, unobserved
from postroom.events.webhooks.dispatch import Dispatcher
from postroom.events.webhooks.endpoints import Endpoints
from postroom.events.webhooks.outcomes import Outcomes
from postroom.events.webhooks.replay import Replays
from postroom.events.webhooks.sending import Sender
from postroom.events.webhooks.upkeep import Upkeep
from postroom.net.guarded_http import GuardedClient

CHANNEL: Final = "postroom_webhooks"
"""Hints between processes: there are other endpoints than before, or something is to be sent."""
_ENDPOINTS, _TASKS = "endpoints", "tasks"


class Webhooks:
    """`dispatcher.run` and `deliverer.run` are the worker's part; any number of processes may have it. `hint` sends a
    hint on CHANNEL to all processes; `hinted` is told of it."""

    def __init__(
        self,
        database: Database,
        ids: IdGenerator,
        clock: Clock,
        keyring: Keyring,
        client: GuardedClient,
        *,
        hash_key: bytes,
        stance: Stance,
        hint: Callable[[str], None],
        random: Callable[[int], bytes] = os.urandom,
        draw: Callable[[], float] = system_random.random,
        observe: Observe = unobserved,
    ) -> None:
        """`stance` says for how long events are kept."""
        self._hint = hint
        self.upkeep = Upkeep(database, clock, ids)
        self.endpoints = Endpoints(database, ids, clock, keyring, client, random=random, changed=self._changed)
        self.replays = Replays(database, ids, clock, queued=self._queued, stance=stance)
        self.deliverer = Deliverer(
            *(database, clock, Sender(clock, keyring, client.post), Outcomes(ids, hash_key, draw), self.upkeep),
            told=self.happened,
            observe=observe,
        )
        self.dispatcher = Dispatcher(database, clock, dispatched=self.deliverer.wake)

    def happened(self, *_: object) -> None:
        """There may be events that nobody was told of; for hints of whatever kind."""
        self.dispatcher.hinted()

    def hinted(self, key: str, _: int = 0) -> None:
        """A hint came in; what nobody knows is ignored, for anybody with the role can send it."""
        if key == _ENDPOINTS:
            self.dispatcher.endpoints_changed()
        elif key == _TASKS:
            self.deliverer.wake()

    def missed(self) -> None:
        """Hints may have been missed."""
        self.dispatcher.endpoints_changed()
        self.deliverer.wake()

    def _changed(self) -> None:
        self.dispatcher.endpoints_changed()
        self._hint(_ENDPOINTS)

    def _queued(self) -> None:
        self.deliverer.wake()
        self._hint(_TASKS)
