"""Events about identities and addresses, written in the transaction that makes them true (events §4.2)."""

from __future__ import annotations

from typing import Any, Final

from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection
from postroom.directory.models import Announcement, Fact, HostedAddress, Identity
from postroom.events.catalogue import envelope, timestamp
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.writing import next_event_sequence

_INSERT: Final = """
INSERT INTO events (public_id, type, tenant_id, identity_id, owner_kind, owner_id, sequence, payload, occurred_at)
VALUES ($1, $2, $3, $4, 'mailbox', $5, $6, $7, $8)
"""


class IdentityAnnouncer:
    """The directory's `announce`: turns a fact into an event of the identity's own sequence."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids

    async def __call__(self, conn: Connection, told: Announcement) -> None:
        identity = told.identity
        sequence = await next_event_sequence(conn, MailboxRef(identity.tenant_id, identity.id))
        keys = list({address.domain_id for address in identity.addresses})
        rows = await conn.fetch("SELECT id, public_id FROM domains WHERE id = ANY ($1::bigint[])", keys)
        domains = {row["id"]: row["public_id"] for row in rows}
        event_id = self._ids.new("evt")
        payload = envelope(
            event_id=event_id,
            kind=told.fact.value,
            occurred_at=told.at,
            tenant_id=identity.tenant_public_id,
            identity_id=identity.public_id,
            sequence=sequence,
            data=_data(told, domains),
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


def _data(told: Announcement, domains: dict[int, str]) -> dict[str, Any]:
    identity = told.identity
    match told.fact:
        case Fact.IDENTITY_CREATED:
            return {"identity": identity_object(identity, domains)}
        case Fact.IDENTITY_UPDATED:
            return {"identity": identity_object(identity, domains), "changed": list(told.changed)}
        case Fact.IDENTITY_PAUSED:
            reason = identity.pause_reason.value if identity.pause_reason else None
            return {"identity_id": identity.public_id, "reason": reason, "metrics": None}
        case Fact.IDENTITY_RESUMED:
            return {"identity_id": identity.public_id}
        case _:
            assert told.address is not None
            data: dict[str, Any] = {"address": address_object(identity, told.address, domains)}
            if told.fact is Fact.ADDRESS_PROMOTED and told.previous_primary is not None:
                data["previous_primary"] = address_object(identity, told.previous_primary, domains)
            return data


def identity_object(identity: Identity, domains: dict[int, str]) -> dict[str, Any]:
    """The API's Identity; `domains` maps keys of domains to their public ids."""
    return {
        "id": identity.public_id,
        "tenant_id": identity.tenant_public_id,
        "username": identity.username,
        "display_name": identity.display_name,
        "purpose": identity.purpose,
        "status": identity.status.value,
        "pause_reason": identity.pause_reason.value if identity.pause_reason else None,
        "primary_address": identity.primary.address,
        "addresses": [address_object(identity, address, domains) for address in identity.addresses],
        "owner": {"name": identity.owner_name, "email": identity.owner_email} if identity.owner_email else None,
        "signature": (
            {"text": identity.signature_text, "html": identity.signature_html}
            if identity.signature_text or identity.signature_html
            else None
        ),
        "send_policy": dict(identity.send_policy),
        "metadata": dict(identity.metadata),
        "client_id": identity.client_id,
        "created_at": timestamp(identity.created_at),
        "updated_at": timestamp(identity.updated_at),
    }


def address_object(identity: Identity, address: HostedAddress, domains: dict[int, str]) -> dict[str, Any]:
    """The API's Address."""
    return {
        "id": address.public_id,
        "identity_id": identity.public_id,
        "address": address.address,
        "local_part": address.address.rpartition("@")[0],
        "domain_id": domains[address.domain_id],
        "role": address.role.value,
        "status": address.status.value,
        "retire_at": timestamp(address.retire_at) if address.retire_at else None,
        "retired_at": timestamp(address.retired_at) if address.retired_at else None,
        "forwarding": None,
        "forwarding_checked_at": None,
        "created_at": timestamp(address.created_at),
    }
