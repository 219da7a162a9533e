"""One attempt: opened secrets, fresh signatures, and the request (events-webhooks-errors §7, §8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.sealed_columns import WEBHOOK_PREVIOUS, WEBHOOK_SECRET
from postroom.base.sealing import Keyring, UnsealError
from postroom.events.webhooks import signing
from postroom.events.webhooks.models import Answered, Trouble
from postroom.events.webhooks.rules import answered
from postroom.events.webhooks.store import Sealed
from postroom.net.guarded_http import Failure, Response

log = base_log.get("webhooks")

Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[Response | Failure]]
"""`GuardedClient.post`, whose deadline and limit are those of webhooks."""


class Sender:
    """Signs and sends. Every attempt is signed afresh; id and bytes are the same each time."""

    def __init__(self, clock: Clock, keyring: Keyring, post: Post) -> None:
        self._clock, self._keyring, self._post = clock, keyring, post

    async def send(self, endpoint_id: int, url: str, sealed: Sealed, event_id: str, payload: bytes) -> Answered:
        """One request, or none if the secret does not open. Raises for nothing that the network does."""
        try:
            secrets = self._secrets(endpoint_id, sealed)
        except UnsealError as error:
            log.error("webhook_secret_unavailable", endpoint=endpoint_id, kid=error.kid)
            return Answered(None, Trouble.SECRET_UNAVAILABLE.value, None)
        stamp = int(self._clock.now().timestamp())
        return answered(await self._post(url, payload, signing.headers(secrets, event_id, stamp, payload)))

    def _secrets(self, endpoint_id: int, sealed: Sealed) -> list[bytes]:
        found = [self._keyring.open(WEBHOOK_SECRET, sealed.current, endpoint_id)]
        until = sealed.previous_until
        if sealed.previous is not None and until is not None and self._clock.now() < until:
            try:
                found.append(self._keyring.open(WEBHOOK_PREVIOUS, sealed.previous, endpoint_id))
            except UnsealError as error:
                # Whoever has the new one is told all the same.
                log.error("webhook_secret_unavailable", endpoint=endpoint_id, kid=error.kid, previous=True)
        return found
