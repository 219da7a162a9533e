"""Schemas of identities, addresses and aliases, as the contract names them (rest-api §6). For the document only."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import StringConstraints

from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.rest.schemas import Address_, Count, Metadata


class IdentityStatus(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DELETING = "deleting"
    DELETED = "deleted"


PauseReason = Literal["manual", "abuse_threshold", "tenant_suspended"]
AddressRole = Literal["primary", "alias"]
AddressStatus = Literal["pending", "active", "retiring", "retired"]
AddressForwarding = Literal["unverified", "ok", "failed"]


class IdentityOwner(Answer):
    name: Annotated[str, StringConstraints(min_length=1)]
    email: Address_


class IdentitySignature(Answer):
    text: str | None = None
    html: str | None = None


class IdentitySendPolicy(Answer):
    daily_cap: Annotated[Count | None, NotNull()] = None
    auto_reply: Literal["allowed", "denied"] = "allowed"
    require_known_recipient: bool = True


class Address(Answer):
    id: fields.AddressId
    identity_id: fields.IdentityId
    address: Address_
    local_part: str
    domain_id: fields.DomainId
    role: AddressRole
    status: AddressStatus
    retire_at: datetime | None
    retired_at: datetime | None
    forwarding: AddressForwarding | None
    forwarding_checked_at: datetime | None
    created_at: datetime


class Identity(Answer):
    id: fields.IdentityId
    tenant_id: fields.TenantId
    username: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,23}$")]
    display_name: Annotated[str, StringConstraints(max_length=78)]
    purpose: str | None
    status: IdentityStatus
    pause_reason: PauseReason | None
    primary_address: Address_
    addresses: list[Address]
    owner: IdentityOwner | None
    signature: IdentitySignature | None
    send_policy: IdentitySendPolicy
    metadata: Metadata
    client_id: str | None
    created_at: datetime
    updated_at: datetime


class IdentityPage(Answer):
    data: list[Identity]
    next_cursor: str | None


class Alias(Answer):
    """An address without a mailbox, whose mail goes on to `target`."""

    id: fields.AliasId
    tenant_id: fields.TenantId
    address: Address_
    domain_id: fields.DomainId
    target: Address_
    created_at: datetime


class AliasPage(Answer):
    data: list[Alias]
    next_cursor: str | None
