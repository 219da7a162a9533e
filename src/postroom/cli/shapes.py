"""Tenants, people, identities, aliases, folders, keys and queues as documents; names as in the REST API. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.accounts.invitations import Invitation
from postroom.accounts.models import ApiKey, Person, PersonSession, Tenant
from postroom.accounts.partners import Partner
from postroom.accounts.passkeys import Passkey
from postroom.accounts.permissions import Permission
from postroom.accounts.policy_rules import Access
from postroom.accounts.signing_keys import Purpose, SigningKey
from postroom.accounts.store.invitations import Seen
from postroom.db import ParkedRow, QueueCounts
from postroom.directory.erasures import Erasure
from postroom.directory.models import HostedAddress, Identity
from postroom.directory.sending_controls import Paused, Standing
from postroom.events.identities import address_object, identity_object
from postroom.mailbox.models import Folder
from postroom.outbound.queue import QueueItem
from postroom.outbound.signing import PublicKey
from postroom.servers import objects
from postroom.servers.objects import moment

Document = dict[str, Any]


def tenant(one: Tenant) -> Document:
    return {
        "id": one.public_id,
        "slug": one.slug,
        "name": one.name,
        "mode": one.mode.value,
        "status": one.status.value,
        "suspended_by": one.suspended_by,
        "partner_id": one.partner_public_id,
        "address_suffix": one.address_suffix,
        "timezone": one.timezone,
        "sending_paused_at": moment(one.sending_paused_at),
        "sending_pause_reason": one.sending_pause_reason,
        "created_at": moment(one.created_at),
    }


def partner(one: Partner) -> Document:
    return {
        "id": one.public_id,
        "name": one.name,
        "status": one.status.value,
        "default_billing_mode": one.default_billing_mode.value,
        "max_tenants": one.max_tenants,
        "ramp_exempt": one.ramp_exempt,
        "created_at": moment(one.created_at),
    }


def access(one: Access) -> Document:
    """What the writers of a tenant may do with a member of its policy."""
    return {
        "field": one.path,
        "class": one.kind.value,
        "writable": one.writable,
        "ceiling": one.ceiling,
        "ceiling_source": None if one.source is None else one.source.value,
    }


def standing(one: Standing) -> Document:
    """What stops sending; of tenants and domains the newest."""
    return {
        "switches": [objects.switch(each) for each in one.switches],
        "tenants": [{"id": each.public_id, "slug": each.name, **_pause(each)} for each in one.tenants],
        "domains": [{"id": each.public_id, "name": each.name, **_pause(each)} for each in one.domains],
    }


def _pause(one: Paused) -> Document:
    return {"sending_paused_at": moment(one.at), "reason": one.reason}


def member(one: Seen) -> Document:
    who = one.member.person
    return {
        "id": who.public_id,
        "status": "member",
        "role": one.member.role.value,
        "email": who.contact_email or one.address,
        "name": who.display_name,
        "last_login_at": moment(one.last_login_at),
        "created_at": moment(one.member.created_at),
        "expires_at": None,
    }


def invitation(one: Invitation) -> Document:
    """As `member`, of somebody who is not here yet."""
    return {
        "id": one.public_id,
        "status": "invited",
        "role": one.role.value,
        "email": one.email,
        "name": None,
        "last_login_at": None,
        "created_at": moment(one.created_at),
        "expires_at": moment(one.expires_at),
    }


def person(one: Person, mailboxes: Sequence[Identity] = ()) -> Document:
    """`mailboxes` are the identities that the person may open."""
    return {
        "id": one.public_id,
        "display_name": one.display_name,
        "contact_email": one.contact_email,
        "is_operator": one.is_operator,
        "enabled": one.enabled,
        "has_password": one.has_password,
        "addresses": [identity.primary.address for identity in mailboxes if identity.addresses],
        "identity_ids": [identity.public_id for identity in mailboxes],
        "created_at": moment(one.created_at),
    }


def passkey(one: Passkey) -> Document:
    return {
        "id": one.public_id,
        "name": one.name,
        "backed_up": one.backed_up,
        "created_at": moment(one.created_at),
        "last_used_at": moment(one.last_used_at),
    }


def session(one: PersonSession) -> Document:
    return {
        "id": one.public_id,
        "kind": one.kind.value,
        "second_factor": one.second_factor,
        "app_password": one.app_password_id is not None,
        "device_id": one.device_public_id,
        "ip": one.ip,
        "user_agent": one.user_agent,
        "last_seen_at": moment(one.last_seen_at),
        "expires_at": moment(one.expires_at),
        "created_at": moment(one.created_at),
    }


def address(owner: Identity, one: HostedAddress) -> Document:
    """As the API shows it."""
    return address_object(owner, one)


def erasure(one: Erasure) -> Document:
    """What asks for an identity to be erased."""
    return {
        "id": one.public_id,
        "tenant_id": one.tenant_public_id,
        "scope": "identity",
        "identity_id": one.identity_public_id,
        "status": one.status,
        "created_at": moment(one.created_at),
        "deadline_at": moment(one.deadline_at),
        "completed_at": moment(one.completed_at),
    }


def identity(one: Identity) -> Document:
    """As the API shows it, and its kind."""
    return {**identity_object(one), "kind": one.kind.value}


def folder(one: Folder) -> Document:
    return {
        "id": one.public_id,
        "name": one.name,
        "special_use": None if one.special_use is None else one.special_use.value,
        "subscribed": one.subscribed,
        "message_count": one.message_count,
        "unseen_count": one.unseen_count,
        "total_bytes": one.total_bytes,
        "uid_validity": one.uid_validity,
        "uid_next": one.uid_next,
    }


def key(one: ApiKey) -> Document:
    """Never the secret."""
    return {
        "id": one.public_id,
        "prefix": f"pmk_{one.mode.value}_{one.lookup}",
        "name": one.name,
        "level": one.level.value,
        "mode": one.mode.value,
        "partner_id": one.partner_public_id,
        "tenant_id": one.tenant_public_id,
        "identity_id": one.identity_public_id,
        "created_by_user_id": one.created_by_person,
        "permissions": [permission.value for permission in Permission if permission in one.permissions],
        "expires_at": moment(one.expires_at),
        "revoked_at": moment(one.revoked_at),
        "last_used_at": moment(one.last_used_at),
        "created_at": moment(one.created_at),
    }


def signing_key(purpose: Purpose, one: SigningKey) -> Document:
    """`state`: `signing`, or `retiring` as long as what it made is honoured. Never the secret."""
    return {
        "purpose": purpose.value,
        "kid": one.kid,
        "state": "signing" if one.verify_until is None else "retiring",
        "created_at": moment(one.created_at),
        "verify_until": moment(one.verify_until),
    }


def queue(name: str, counts: QueueCounts) -> Document:
    return {
        "queue": name,
        "due": counts.due,
        "waiting": counts.waiting,
        "claimed": counts.claimed,
        "parked": counts.parked,
        "oldest_due": moment(counts.oldest_due),
    }


def delivery(item: QueueItem) -> Document:
    """A delivery as operators see it (mail-server C1, C2)."""
    return {
        "id": item.id,
        "state": item.state.value,
        "status": item.status.value,
        "tenant_id": item.tenant_id,
        "identity_id": item.identity_id,
        "message_id": item.message_id,
        "sender": item.sender,
        "recipient": item.recipient,
        "route": item.route,
        "size": item.size,
        "tries": item.tries,
        "reason": item.reason,
        "smtp_code": item.smtp_code,
        "enhanced_code": item.enhanced_code,
        "smtp_response": item.smtp_response,
        "remote_mx": item.remote_mx,
        "next_attempt_at": moment(item.next_attempt_at),
        "last_attempt_at": moment(item.last_attempt_at),
        "created_at": moment(item.created_at),
        "updated_at": moment(item.updated_at),
    }


def dkim_key(key: PublicKey) -> Document:
    """`state`: `signing`, `pending` until its record is published, `retiring` as long as it has to stay published."""
    state = "signing" if key.signs else "pending" if key.retire_at is None else "retiring"
    return {
        "domain": key.domain,
        "selector": key.selector,
        "algorithm": key.algorithm,
        "state": state,
        "name": key.name,
        "record": key.record,
        "created_at": moment(key.created_at),
        "retire_at": moment(key.retire_at),
    }


def parked(row: ParkedRow) -> Document:
    return {
        "key": "/".join(str(part) for part in row.key),
        "parked_at": moment(row.parked_at),
        "attempts": row.attempts,
        "last_error": row.last_error,
    }
