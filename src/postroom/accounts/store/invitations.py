"""SQL of invitations, and of how much mail the deployment itself sent on a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Final

import asyncpg

from postroom.accounts.invitations import Invitation
from postroom.accounts.models import Member, MemberRole, TenantKey
from postroom.accounts.store.people import person_of
from postroom.base.ids import is_id
from postroom.db import Connection

_INSERT: Final = """
INSERT INTO invitations (tenant_id, public_id, email, role, may_own, invited_by, expires_at, created_at, mail_id,
  next_attempt_at)
VALUES ($1, $2, $3, $4, $5, (SELECT id FROM people WHERE public_id = $6), $7, $8, $9, $8)
RETURNING *, $6::text AS inviter
"""
# The code that was mailed before is worthless from here on; whoever is writing its mail finds the claim gone.
_AGAIN: Final = """
UPDATE invitations SET issue = issue + 1, role = $3, may_own = $4,
  invited_by = (SELECT id FROM people WHERE public_id = $5), expires_at = $6, mail_id = $7, next_attempt_at = $8,
  lease_until = NULL, claim_token = NULL, attempts = 0, parked_at = NULL, last_error = NULL
WHERE tenant_id = $1 AND email = $2 AND status = 'pending' RETURNING *, $5::text AS inviter
"""
_SELECT: Final = """
SELECT v.*, p.public_id AS inviter FROM invitations v LEFT JOIN people p ON p.id = v.invited_by
"""
_PENDING: Final = _SELECT + (
    "WHERE v.tenant_id = $1 AND v.status = 'pending' AND v.expires_at > $2 ORDER BY v.created_at DESC, v.public_id DESC"
)
_BY_ID: Final = _SELECT + "WHERE v.public_id = $1 AND v.status = 'pending' AND v.issue = $2 AND v.expires_at > $3"
_LOCK: Final = _SELECT + (
    "WHERE v.tenant_id = $1 AND v.id = $2 AND v.status = 'pending' AND v.issue = $3 AND v.expires_at > $4"
    " FOR NO KEY UPDATE OF v"
)
_TO_MAIL: Final = _SELECT + "WHERE v.tenant_id = $1 AND v.id = $2 AND v.status = 'pending' AND v.expires_at > $3"
_REVOKE: Final = """
UPDATE invitations SET status = 'revoked', lease_until = NULL, claim_token = NULL, next_attempt_at = NULL,
  parked_at = NULL
WHERE tenant_id = $1 AND public_id = $2 AND status = 'pending' AND expires_at > $3 RETURNING id
"""
_ACCEPT: Final = """
UPDATE invitations SET status = 'accepted', email = $3, lease_until = NULL, claim_token = NULL, next_attempt_at = NULL,
  parked_at = NULL
WHERE tenant_id = $1 AND id = $2
"""
_EXPIRE: Final = """
UPDATE invitations SET status = 'expired', lease_until = NULL, claim_token = NULL, next_attempt_at = NULL,
  parked_at = NULL
WHERE status = 'pending' AND expires_at <= $1
"""
_FORGET: Final = "DELETE FROM invitations WHERE status IN ('revoked', 'expired') AND expires_at <= $1"
_FORGET_DAYS: Final = "DELETE FROM system_mail_days WHERE day < $1"
_MEMBERS: Final = """
SELECT p.*, m.role, m.created_at AS member_since,
  (SELECT a.address FROM mailbox_grants g
   JOIN addresses a ON a.tenant_id = g.tenant_id AND a.identity_id = g.mailbox_id AND a.role = 'primary'
   WHERE g.tenant_id = m.tenant_id AND g.person_id = m.person_id AND g.role = 'owner'
   ORDER BY g.created_at, g.mailbox_id LIMIT 1) AS address
FROM members m JOIN people p ON p.id = m.person_id
WHERE m.tenant_id = $1 ORDER BY m.created_at DESC, p.public_id DESC
"""
# The platform domain, and every address that mail is taken in for, or will be (W45).
_IS_HOSTED: Final = """
SELECT EXISTS (SELECT FROM domains WHERE kind = 'platform' AND name = $2)
    OR EXISTS (SELECT FROM addresses WHERE address IN ($1, $3) AND status IN ('pending', 'active', 'retiring'))
"""
_HAS_OWNER: Final = "SELECT EXISTS (SELECT FROM members WHERE tenant_id = $1 AND role = 'owner')"
# Nothing when the day's are spent.
_COUNT: Final = """
INSERT INTO system_mail_days (day, subject, count) VALUES ($1, $2, 1)
ON CONFLICT (day, subject) DO UPDATE SET count = system_mail_days.count + 1 WHERE system_mail_days.count < $3
RETURNING count
"""


@dataclass(frozen=True, slots=True)
class NewInvitation:
    """An invitation to be made, or made anew; `mail_id` is that of the mail about it."""

    tenant_id: int
    public_id: str
    email: str
    role: MemberRole
    may_own: bool
    invited_by: str | None
    expires_at: datetime
    mail_id: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Somebody in the list of members."""

    member: Member
    last_login_at: datetime | None
    address: str | None = field(default=None, repr=False)
    """That of the first mailbox of the tenant that they own."""


async def put(conn: Connection, new: NewInvitation, now: datetime) -> tuple[Invitation, bool]:
    """The invitation, and whether the address had none. The caller holds the tenant's row, so nobody else makes one."""
    row = await conn.fetchrow(
        _AGAIN,
        *(new.tenant_id, new.email, new.role.value, new.may_own, new.invited_by, new.expires_at, new.mail_id, now),
    )
    if row is not None:
        return _invitation(row), False
    row = await conn.fetchrow(
        _INSERT,
        *(new.tenant_id, new.public_id, new.email, new.role.value, new.may_own, new.invited_by),
        *(new.expires_at, now, new.mail_id),
    )
    assert row is not None
    return _invitation(row), True


async def pending(conn: Connection, tenant_id: int, now: datetime) -> list[Invitation]:
    """Those of a tenant that can still be accepted, newest first."""
    return [_invitation(row) for row in await conn.fetch(_PENDING, tenant_id, now)]


async def find(conn: Connection, public_id: str, issue: int, now: datetime) -> Invitation | None:
    """What a code of that issue opens now. Whose it is the code alone says, so no tenant is asked for."""
    row = await conn.fetchrow(_BY_ID, public_id, issue, now)
    return None if row is None else _invitation(row)


async def lock(conn: Connection, invitation: Invitation, now: datetime) -> bool:
    """Nobody else accepts, revokes or renews it in this transaction. Whether it can still be accepted."""
    where = (invitation.tenant_id, invitation.id, invitation.issue, now)
    return await conn.fetchrow(_LOCK, *where) is not None


async def to_mail(conn: Connection, tenant_id: int, key: int, now: datetime) -> tuple[Invitation, str] | None:
    """One whose mail is to be written, and the mail's id; None if it ended meanwhile."""
    row = await conn.fetchrow(_TO_MAIL, tenant_id, key, now)
    return None if row is None else (_invitation(row), row["mail_id"])


async def revoke(conn: Connection, tenant_id: int, public_id: str, now: datetime) -> bool:
    """Whether there was one that could still be accepted."""
    if not is_id("inv_", public_id):
        return False
    return await conn.fetchval(_REVOKE, tenant_id, public_id, now) is not None


async def accept(conn: Connection, invitation: Invitation, person: str) -> None:
    """Once and for all; the row keeps the person's id in place of the address."""
    await conn.execute(_ACCEPT, invitation.tenant_id, invitation.id, person)


async def expire(conn: Connection, now: datetime, forget_before: datetime) -> None:
    """End what nobody accepted, and delete what ended long ago. It may run twice."""
    await conn.execute(_EXPIRE, now)
    await conn.execute(_FORGET, forget_before)
    await conn.execute(_FORGET_DAYS, now.date())


async def members(conn: Connection, tenant_id: int) -> list[Seen]:
    """Everybody, who came last first."""
    return [
        Seen(
            Member(TenantKey(tenant_id), person_of(row), MemberRole(row["role"]), row["member_since"]),
            row["last_login_at"],
            row["address"],
        )
        for row in await conn.fetch(_MEMBERS, tenant_id)
    ]


async def is_hosted(conn: Connection, address: str) -> bool:
    """Whether the mail of an address, in lower case, comes here, with or without a detail after `+`."""
    local, _, domain = address.rpartition("@")
    found: bool = await conn.fetchval(_IS_HOSTED, address, domain, f"{local.partition('+')[0]}@{domain}")
    return found


async def has_owner(conn: Connection, tenant_id: int) -> bool:
    found: bool = await conn.fetchval(_HAS_OWNER, tenant_id)
    return found


async def count_mail(conn: Connection, day: date, limits: Sequence[tuple[str, int]]) -> bool:
    """Count one more for each subject, unless one of them has had its number already: then the caller undoes it."""
    for subject, most in sorted(limits):
        if await conn.fetchval(_COUNT, day, subject, most) is None:
            return False
    return True


def _invitation(row: asyncpg.Record) -> Invitation:
    return Invitation(
        tenant_id=TenantKey(row["tenant_id"]),
        id=row["id"],
        public_id=row["public_id"],
        email=row["email"],
        role=MemberRole(row["role"]),
        may_own=row["may_own"],
        invited_by=row["inviter"],
        issue=row["issue"],
        expires_at=row["expires_at"],
        created_at=row["created_at"],
    )
