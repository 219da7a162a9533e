"""What a mailbox says of messages that were sent: `messages.status` (outbound §20), under the mailbox lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postroom.mailbox.models import ChangeKind
from postroom.mailbox.writing import MailboxWrite

_UPDATE: Final = """
UPDATE messages m SET status = n.status,
  facts = CASE WHEN n.fact IS NULL OR n.fact = ANY (m.facts) THEN m.facts ELSE m.facts || n.fact END
FROM unnest($3::bigint[], $4::text[], $5::text[]) AS n (id, status, fact)
WHERE m.tenant_id = $1 AND m.mailbox_id + 0 = $2 AND m.id = n.id AND (m.status <> n.status OR n.fact IS NOT NULL)
"""

_EVENTS: Final = """
UPDATE mailboxes SET event_seq = event_seq + $3 WHERE tenant_id = $1 AND id = $2 RETURNING event_seq
"""


@dataclass(frozen=True, slots=True)
class NewStatus:
    """The status that a message (`id` its row's key, `message` the public id) has from now on, and a fact to add."""

    id: int
    message: str
    status: str
    fact: str | None = None


async def set_statuses(write: MailboxWrite, news: Sequence[NewStatus]) -> None:
    """Set and log them. A message whose status stays is logged as well: one of its deliveries has changed."""
    if not news:
        return
    await write.conn.execute(
        _UPDATE,
        write.ref.tenant_id,
        write.ref.mailbox_id,
        [new.id for new in news],
        [new.status for new in news],
        [new.fact for new in news],
    )
    for new in news:
        write.log(ChangeKind.DELIVERY, message=new.message)


async def take_event_sequences(write: MailboxWrite, count: int) -> range:
    """The next `count` numbers of the mailbox's events, in order."""
    last = await write.conn.fetchval(_EVENTS, write.ref.tenant_id, write.ref.mailbox_id, count)
    return range(last - count + 1, last + 1)
