"""SQL that says which of those who are signed in still may be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from postroom.accounts.models import Principal
from postroom.accounts.store.reach import partner_status
from postroom.db import Connection

_KEYS: Final = """
SELECT c.at FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS c (id, mac, at)
WHERE NOT EXISTS (
  SELECT FROM api_keys k
  LEFT JOIN tenants t ON t.id = k.tenant_id
  LEFT JOIN identities i ON i.tenant_id = k.tenant_id AND i.id = k.identity_id
  WHERE k.id = c.id AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > $3)
    AND (k.hash = c.mac OR k.prev_hash = c.mac AND k.prev_expires_at > $3)
    AND (t.id IS NULL OR t.status NOT IN ('erasing', 'erased'))
    AND (i.id IS NULL OR i.status NOT IN ('deleting', 'deleted'))
    AND coalesce({partner_status}, 'active') = 'active')
""".replace("{partner_status}", partner_status("k.tenant_id", "k.partner_id"))
_PEOPLE: Final = """
SELECT c.at
FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[])
  WITH ORDINALITY AS c (person_id, epoch, tenant_id, mailbox_id, role, app_password_id, at)
WHERE NOT EXISTS (
  SELECT FROM people p
  JOIN mailbox_grants g
    ON g.tenant_id = c.tenant_id AND g.mailbox_id = c.mailbox_id AND g.person_id = p.id AND g.role = c.role
  JOIN identities i ON i.tenant_id = c.tenant_id AND i.id = c.mailbox_id AND i.status NOT IN ('deleting', 'deleted')
  JOIN tenants t ON t.id = c.tenant_id AND t.status NOT IN ('erasing', 'erased')
  WHERE p.id = c.person_id AND p.enabled AND p.sign_in_epoch = c.epoch
    AND (c.app_password_id IS NULL OR EXISTS (
      SELECT FROM app_passwords a WHERE a.id = c.app_password_id AND a.person_id = p.id AND a.revoked_at IS NULL)))
"""


async def fallen(conn: Connection, principals: Sequence[Principal], now: datetime) -> set[int]:
    """The places in `principals` of those who would not be let in any more with what they gave."""
    keys = [at for at, one in enumerate(principals) if one.credential is not None and one.credential.mac is not None]
    people = [at for at, one in enumerate(principals) if one.credential is not None and one.credential.mac is None]
    gone = {at for at, one in enumerate(principals) if one.credential is None}
    if keys:
        macs = [one.mac for at in keys if (one := principals[at].credential) is not None]
        rows = await conn.fetch(_KEYS, [principals[at].row_id for at in keys], macs, now)
        gone.update(keys[row["at"] - 1] for row in rows)
    if people:
        shown = [(principals[at], one) for at in people if (one := principals[at].credential) is not None]
        rows = await conn.fetch(
            _PEOPLE,
            [principal.row_id for principal, _ in shown],
            [one.epoch for _, one in shown],
            [principal.tenant_id for principal, _ in shown],
            [principal.identity_id for principal, _ in shown],
            [None if principal.grant is None else principal.grant.value for principal, _ in shown],
            [one.app_password_id for _, one in shown],
        )
        gone.update(people[row["at"] - 1] for row in rows)
    return gone
