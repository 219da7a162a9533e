"""Schemas of API keys and signing keys, as the published contract names them (rest-api §6). For the document only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from postroom.accounts.models import Mode
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.signing_keys import Purpose
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull


class Me(Answer):
    key_id: fields.KeyId
    name: str
    level: Level
    mode: Mode
    partner_id: fields.PartnerId | None
    tenant_id: fields.TenantId | None
    identity_id: fields.IdentityId | None
    permissions: Annotated[list[Permission], Field(json_schema_extra={"uniqueItems": True})]
    expires_at: datetime | None


class ApiKey(Answer):
    id: fields.KeyId
    name: str
    level: Level
    mode: Mode
    partner_id: fields.PartnerId | None
    tenant_id: fields.TenantId | None
    identity_id: fields.IdentityId | None
    permissions: Annotated[list[Permission], Field(json_schema_extra={"uniqueItems": True})]
    created_by_user_id: fields.PersonId | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime


class ApiKeyCreated(ApiKey):
    """Exactly one of `secret` and `secret_replayed`: the secret is shown once."""

    secret: Annotated[Annotated[str, StringConstraints(pattern=r"^pmk_(live|test)_.{12}_.+$")] | None, NotNull()] = None
    secret_replayed: Annotated[Literal[False] | None, NotNull()] = None


class ApiKeyPage(Answer):
    data: list[ApiKey]
    next_cursor: str | None


class PreviousSigningKey(Answer):
    kid: str
    verify_until: datetime
    revoked: bool


class SigningKeyRotation(Answer):
    """Key material is never returned."""

    purpose: Purpose
    kid: str
    created_at: datetime
    previous: PreviousSigningKey | None
