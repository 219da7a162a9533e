"""What tests of late bounces share: names of events, recipients, how a message stands."""

from __future__ import annotations

from postroom.outbound.models import NewRecipient, RecipientField, RouteKind
from tests.outbound.returning import Returning

SENT, DELIVERED, BOUNCED = "message.sent", "message.delivered", "message.bounced"
RECEIVED, RECONCILED, UNCERTAIN = "message.received", "message.reconciled", "message.uncertain"


def envelope_recipient(address: str, *notify: str) -> NewRecipient:
    return NewRecipient(address, RecipientField.ENVELOPE, RouteKind.DIRECT, dsn_notify=notify or None)


async def statuses(post: Returning, message: str) -> tuple[str, dict[str, str]]:
    return await post.room.status(message), await post.room.deliveries(message)
