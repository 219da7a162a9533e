"""What a mailbox says of messages that were sent: `messages.status` (outbound §20), under the mailbox lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postroom.mailbox.models import ChangeKind
from postroom.mailbox.writing import MailboxWrite

# An array for each: tenants, mailboxes, messages, statuses, facts.
_UPDATE: Final = """
UPDATE messages m SET status = n.status,
  facts = CASE WHEN n.fact IS NULL OR n.fact = ANY (m.facts) THEN m.facts ELSE m.facts || n.fact END
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])
  AS n (tenant_id, mailbox_id, id, status, fact)
WHERE m.tenant_id = n.tenant_id AND m.mailbox_id + 0 = n.mailbox_id AND m.id = n.id
  AND (m.status <> n.status OR n.fact IS NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class NewStatus:
    """The status that a message (`id` its row's key, `message` the public id) has from now on, and a fact to add.

    `deliveries` are those of its deliveries that have changed, each by its key and with the status that it has now.
    """

    id: int
    message: str
    status: str
    fact: str | None = None
    deliveries: tuple[tuple[int, str], ...] = ()


async def set_statuses(news: Sequence[tuple[MailboxWrite, NewStatus]]) -> None:
    """Set them, and log each delivery that has changed, in mailboxes that one transaction writes (mail-server C2)."""
    if not news:
        return
    rows = [(write.ref.tenant_id, write.ref.mailbox_id, new.id, new.status, new.fact) for write, new in news]
    await news[0][0].conn.execute(_UPDATE, *zip(*rows, strict=True))
    for write, new in news:
        for delivery, status in new.deliveries:
            write.log(ChangeKind.DELIVERY, message=new.message, delivery=delivery, delivery_status=status)
