"""Objects that the REST API and the command line show alike, by the names of rest-api §6. Pure.

What either shows more or less of stands with it: `http/rest`, `cli/shapes`. Secrets are in none.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from postroom.accounts.audit import Event
from postroom.accounts.models import AppPassword, Device, Grant
from postroom.accounts.signing_keys import Rotation
from postroom.directory.lists import ListEntry
from postroom.directory.models import Alias
from postroom.directory.sending_controls import SwitchState
from postroom.events.catalogue import timestamp
from postroom.events.webhooks.models import Attempt, Endpoint
from postroom.outbound.dead_letters import DeadLetter
from postroom.outbound.queue import AttemptLog, QueueStatistics

Object = dict[str, Any]


def moment(at: datetime | None) -> str | None:
    """RFC 3339 in UTC with milliseconds."""
    return None if at is None else timestamp(at)


# -- people


def app_password(one: AppPassword) -> Object:
    """An application password; never what it is."""
    return {
        "id": one.public_id,
        "label": one.label,
        "created_at": timestamp(one.created_at),
        "last_used_at": moment(one.last_used_at),
        "revoked_at": moment(one.revoked_at),
    }


def device(one: Device) -> Object:
    """What somebody signs in from."""
    return {
        "id": one.public_id,
        "device_uid": one.device_uid,
        "name": one.name,
        "platform": one.platform,
        "client_version": one.client_version,
        "last_seen_at": timestamp(one.last_seen_at),
        "created_at": timestamp(one.created_at),
        "revoked_at": moment(one.revoked_at),
    }


def grant(one: Grant) -> Object:
    """That a person may open a mailbox."""
    return {
        "identity_id": one.identity_public_id,
        "person_id": one.person_public_id,
        "role": one.role.value,
        "created_at": timestamp(one.created_at),
    }


# -- tenants


def alias(one: Alias) -> Object:
    """An address without a mailbox."""
    return {
        "id": one.public_id,
        "tenant_id": one.tenant_public_id,
        "address": one.address,
        "domain_id": one.domain_public_id,
        "target": one.target,
        "created_at": timestamp(one.created_at),
    }


def list_entry(one: ListEntry) -> Object:
    """An address or domain that a tenant lets through, or does not."""
    return {
        "direction": one.direction.value,
        "kind": one.kind.value,
        "entry": one.entry,
        "note": one.note,
        "created_at": timestamp(one.created_at),
    }


def audit_event(one: Event) -> Object:
    """What somebody did."""
    return {
        "id": one.public_id,
        "tenant_id": one.tenant_id,
        "actor_key_id": one.actor_key,
        "actor_user_id": one.actor_person,
        "action": one.action,
        "target_type": one.target_type,
        "target_id": one.target_id,
        "details": dict(one.details),
        "request_id": one.request_id,
        "created_at": timestamp(one.created_at),
    }


# -- the platform


def signing_key_rotation(done: Rotation) -> Object:
    """That a key is another now; never the key."""
    return {
        "purpose": done.purpose.value,
        "kid": done.key.kid,
        "created_at": timestamp(done.key.created_at),
        "previous": {"kid": done.previous, "verify_until": timestamp(done.verify_until), "revoked": done.revoked},
    }


def switch(one: SwitchState) -> Object:
    """A switch, and who turned it."""
    return {
        "name": one.name.value,
        "state": "on" if one.on else "off",
        "set_by": one.set_by,
        "reason": one.reason,
        "set_at": moment(one.set_at),
    }


def dead_letter(one: DeadLetter) -> Object:
    """Work that was given up; never what it is about."""
    return {
        "id": one.public_id,
        "queue": one.queue.value,
        "kind": one.kind,
        "tenant_id": one.tenant_public_id,
        "first_seen_at": timestamp(one.first_seen_at),
        "redriven_at": moment(one.redriven_at),
        "redrive_count": one.redrive_count,
    }


def queue_statistics(one: QueueStatistics) -> Object:
    """The figures of mail-server C9."""
    return {
        **{state.value: count for state, count in one.counts.items()},
        "bounce_pending": one.bounce_pending,
        "bounce_processing": one.bounce_processing,
        "received_today": one.received_today,
        "sent_today": one.sent_today,
        "next_due_at": moment(one.next_due_at),
    }


def queue_attempt(one: AttemptLog) -> Object:
    """What came of an attempt to deliver."""
    return {
        "attempt": one.attempt,
        "remote_mx": one.remote_mx,
        "status_code": one.status_code,
        "status_text": one.status_text,
        "error": one.error,
        "duration_ms": one.duration_ms,
        "created_at": timestamp(one.created_at),
    }


# -- webhooks


def webhook(one: Endpoint) -> Object:
    """A Webhook; never the secret."""
    return {
        "id": one.public_id,
        "scope": one.scope.value,
        "partner_id": one.partner_public_id,
        "tenant_id": one.tenant_public_id,
        "url": one.url,
        "events": list(one.events),
        "identity_ids": None if one.identity_ids is None else list(one.identity_ids),
        "description": one.description,
        "enabled": one.enabled,
        "disabled_reason": None if one.disabled_reason is None else one.disabled_reason.value,
        "created_at": timestamp(one.created_at),
        "updated_at": timestamp(one.updated_at),
    }


def delivery(one: Attempt) -> Object:
    """A WebhookDelivery."""
    return {
        "id": one.public_id,
        "webhook_id": one.endpoint,
        "event_id": one.event_id,
        "event_type": one.event_type,
        "attempt": one.attempt,
        "status": one.status.value,
        "http_status": one.http_status,
        "error": one.error,
        "duration_ms": one.duration_ms,
        "next_attempt_at": moment(one.next_attempt_at),
        "created_at": timestamp(one.created_at),
    }
