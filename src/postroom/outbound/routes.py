"""How mail to an address leaves (outbound §9, §19; mail-server C5, C6; G11, L2, FR-TEN-2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from postroom.accounts.models import Mode
from postroom.base.errors import PostroomError
from postroom.outbound.models import RouteKind
from postroom.outbound.transports.simulator import DOMAIN as SIMULATOR_DOMAIN

IsLocal = Callable[[str], Awaitable[bool]]
"""Whether a domain (lower-case A-labels) is one of ours: `LocalDomains.has`."""


@dataclass(frozen=True, slots=True)
class RelayUse:
    """`queue.relay_host` and `queue.relay_from_domains`: whether there is a relay, and mail from where uses it (empty:
    all)."""

    exists: bool = False
    from_domains: frozenset[str] = frozenset()

    def is_for(self, from_domain: str) -> bool:
        return self.exists and (not self.from_domains or from_domain in self.from_domains)


NO_RELAY: Final = RelayUse()


class Routes:
    """Decides for each recipient. What is ours never leaves (G11); test tenants never reach anybody else (FR-TEN-2)."""

    def __init__(self, is_local: IsLocal, relay: RelayUse = NO_RELAY) -> None:
        self._is_local = is_local
        self._relay = relay

    async def route(self, address: str, *, from_domain: str, mode: Mode) -> RouteKind:
        """The route to an address (lower case, the domain as A-label) of mail from a domain.

        Raises `test_mode_recipient` for a test tenant and an address that is neither the simulator's nor of this
        deployment; whether one of the deployment may be written to is for policy to say (L3).
        """
        domain = address.rpartition("@")[2]
        if mode is Mode.TEST and domain == SIMULATOR_DOMAIN:
            return RouteKind.SIMULATOR
        if await self._is_local(domain):
            return RouteKind.LOCAL
        if mode is Mode.TEST:
            raise PostroomError("test_mode_recipient")
        return RouteKind.SMARTHOST if self._relay.is_for(from_domain) else RouteKind.DIRECT
