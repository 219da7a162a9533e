"""Whom a mailbox has written to, and whom its tenant lets be written to (outbound §5.4, §5.5; E2), with a thread token
in the address or without.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from postroom.db.pool import Connection
from postroom.directory import lists
from postroom.directory.lists import ListDirection, Matches
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.rules import without_token

# Each address itself, the person's, and the person's with any token; the prefix is what the index finds the last by.
_WRITTEN_TO: Final = """
SELECT k.address FROM unnest($3::text[], $4::text[], $5::text[]) AS k (address, local, domain)
WHERE EXISTS (
  SELECT FROM deliveries d
  WHERE d.tenant_id = $1 AND d.mailbox_id = $2 AND d.recipient IN (k.address, k.local || '@' || k.domain)
    AND d.status <> 'suppressed'
) OR EXISTS (
  SELECT FROM deliveries d
  WHERE d.tenant_id = $1 AND d.mailbox_id = $2 AND d.recipient > k.local || '+t' AND d.recipient < k.local || '+u'
    AND substr(d.recipient, length(k.local) + 1) ~ '^[+]t[0-9a-hjkmnp-tv-z]{2,13}[.][0-9a-hjkmnp-tv-z]{8}@'
    AND right(d.recipient, length(k.domain) + 1) = '@' || k.domain AND d.status <> 'suppressed'
)
"""


async def written_to(conn: Connection, ref: MailboxRef, addresses: Collection[str]) -> frozenset[str]:
    """Those of the addresses, lower case with A-labels, that the mailbox has sent something to that was not
    suppressed. What it received counts for nothing."""
    people = [without_token(address).rpartition("@") for address in addresses]
    locals_, domains = [local for local, _, _ in people], [domain for _, _, domain in people]
    rows = await conn.fetch(_WRITTEN_TO, ref.tenant_id, ref.mailbox_id, list(addresses), locals_, domains)
    return frozenset(row["address"] for row in rows)


async def on_send_lists(conn: Connection, tenant_id: int, addresses: Collection[str]) -> Matches:
    """Those of the addresses, lower case with A-labels, that are on the tenant's lists of whom it writes to. With a
    thread token it is still the same person.
    """
    found = await lists.matches(
        conn, tenant_id, ListDirection.SEND, {*addresses, *(without_token(one) for one in addresses)}
    )
    return Matches(
        frozenset(one for one in addresses if one in found.allowed or without_token(one) in found.allowed),
        frozenset(one for one in addresses if one in found.blocked or without_token(one) in found.blocked),
    )
