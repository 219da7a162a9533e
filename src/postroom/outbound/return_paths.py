"""The envelope sender of what leaves for elsewhere: a signed return path, so that a bounce says by its recipient which
delivery it is about, and that it is about one of ours (VERP; outbound §6.9, C5, D11).

One envelope serves a whole attempt, so it names one delivery of the group; which of them bounced the report says.
"""

from __future__ import annotations

from typing import Final

from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.mail.return_path import DeliveryRef, kid_of, mint, verify
from postroom.outbound.claiming import Group
from postroom.outbound.models import Operation, RouteKind

_ROUTES: Final = frozenset({RouteKind.DIRECT, RouteKind.SMARTHOST})
_OTHERS: Final = frozenset({Operation.BOUNCE, Operation.REDIRECT})
"""Whose envelope sender is already what it has to be: the null sender, and one that was rewritten for forwarding."""


class ReturnPaths:
    """Makes and reads them. `host` is `queue.return_path_host`: lower case, its MX record leads to us."""

    def __init__(self, keys: SigningKeys, host: str) -> None:
        self._keys = keys
        self.host = host

    async def of(self, group: Group) -> str:
        """The envelope sender for an attempt, empty for the null sender. Raises PostroomError `unavailable` when the
        key does not open, and what the database raises."""
        letter = group.letter
        if not letter.envelope_from or letter.operation in _OTHERS or group.route not in _ROUTES:
            return letter.envelope_from
        key = await self._keys.current(Purpose.BOUNCE)
        local = mint(key.kid, key.secret, DeliveryRef(letter.ref.tenant_id, min(group.ids)))
        return f"{local}@{self.host}"

    async def delivery(self, local: str) -> DeliveryRef | None:
        """The delivery that a local part names; None for what no key of ours made that is honoured now. Raises as
        `of`."""
        kid = kid_of(local)
        if kid is None:
            return None
        ring = await self._keys.ring(Purpose.BOUNCE, kid=kid)
        return verify(local, {key.kid: key.secret for key in ring})


async def own_sender(group: Group) -> str:
    """The envelope sender that the message was accepted with."""
    return group.letter.envelope_from
