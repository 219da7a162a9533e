"""Events about identities and addresses, written in the transaction that makes them true (events §4.2)."""

from __future__ import annotations

from typing import Any, Final

from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection
from postroom.directory.models import AddressRole, Announcement, Fact, HostedAddress, Identity, IdentityStatus
from postroom.events.catalogue import envelope, timestamp
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.writing import next_event_sequence

_INSERT: Final = """
INSERT INTO events (public_id, type, tenant_id, identity_id, owner_kind, owner_id, sequence, payload, occurred_at)
VALUES ($1, $2, $3, $4, 'mailbox', $5, $6, $7, $8)
"""

NO_ADDRESS: Final = "deleted@postroom.invalid"
"""What stands for the primary address of an identity that has none any more: nobody's, ever (RFC 6761 §6.4)."""


class IdentityAnnouncer:
    """The directory's `announce`: turns a fact into an event of the identity's own sequence."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids

    async def __call__(self, conn: Connection, told: Announcement) -> None:
        identity = told.identity
        sequence = await next_event_sequence(conn, MailboxRef(identity.tenant_id, identity.id))
        event_id = self._ids.new("evt")
        payload = envelope(
            event_id=event_id,
            kind=told.fact.value,
            occurred_at=told.at,
            tenant_id=identity.tenant_public_id,
            identity_id=identity.public_id,
            sequence=sequence,
            data=_data(told),
        )
        await conn.execute(
            _INSERT,
            event_id,
            told.fact.value,
            identity.tenant_id,
            identity.id,
            identity.public_id,
            sequence,
            payload,
            told.at,
        )


def _data(told: Announcement) -> dict[str, Any]:
    identity = told.identity
    match told.fact:
        case Fact.IDENTITY_CREATED:
            return {"identity": identity_object(identity)}
        case Fact.IDENTITY_UPDATED:
            return {"identity": identity_object(identity), "changed": list(told.changed)}
        case Fact.IDENTITY_PAUSED:
            reason = identity.pause_reason.value if identity.pause_reason else None
            return {"identity_id": identity.public_id, "reason": reason, "metrics": None}
        case Fact.IDENTITY_RESUMED:
            return {"identity_id": identity.public_id}
        case _:
            assert told.address is not None
            data: dict[str, Any] = {"address": address_object(identity, told.address)}
            if told.fact is Fact.ADDRESS_PROMOTED and told.previous_primary is not None:
                data["previous_primary"] = address_object(identity, told.previous_primary)
            return data


def identity_object(identity: Identity) -> dict[str, Any]:
    """The Identity of events and of the API (rest-api.md §6.10)."""
    erased = identity.status is IdentityStatus.DELETED
    owned = identity.owner_name and identity.owner_email
    return {
        "id": identity.public_id,
        "tenant_id": identity.tenant_public_id,
        "username": identity.username,
        "display_name": identity.display_name,
        "purpose": identity.purpose,
        "status": identity.status.value,
        "pause_reason": identity.pause_reason.value if identity.pause_reason else None,
        "primary_address": next(
            (item.address for item in identity.addresses if item.role is AddressRole.PRIMARY), NO_ADDRESS
        ),
        "addresses": [address_object(identity, address) for address in identity.addresses],
        "owner": {"name": identity.owner_name, "email": identity.owner_email} if owned else None,
        "signature": None if erased else {"text": identity.signature_text, "html": identity.signature_html},
        "send_policy": {"auto_reply": "allowed", "require_known_recipient": True, **identity.send_policy},
        "metadata": dict(identity.metadata),
        "client_id": identity.client_id,
        "created_at": timestamp(identity.created_at),
        "updated_at": timestamp(identity.updated_at),
    }


def address_object(identity: Identity, address: HostedAddress) -> dict[str, Any]:
    """The Address of events and of the API (rest-api.md §6.11)."""
    return {
        "id": address.public_id,
        "identity_id": identity.public_id,
        "address": address.address,
        "local_part": address.address.rpartition("@")[0],
        "domain_id": address.domain_public_id,
        "role": address.role.value,
        "status": address.status.value,
        "retire_at": timestamp(address.retire_at) if address.retire_at else None,
        "retired_at": timestamp(address.retired_at) if address.retired_at else None,
        "forwarding": None,
        "forwarding_checked_at": None,
        "created_at": timestamp(address.created_at),
    }
