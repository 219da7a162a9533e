"""Schemas of addresses, deletions, allow and block lists and the audit log (rest-api §6.11, §6.18, §6.20, §6.22)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr, StringConstraints

from postroom.directory import ListDirection, ListKind
from postroom.directory.lists import MAX_NOTE
from postroom.directory.rules import DEFAULT_RETIRE_DAYS, MAX_RETIRE_DAYS
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer
from postroom.servers.http.rest.identity_schemas import Address
from postroom.servers.http.rest.schemas import Count

Days = Annotated[StrictInt, Field(ge=0, le=MAX_RETIRE_DAYS)]
ErasureId = Annotated[str, fields.id_pattern("era_")]
AuditEventId = Annotated[str, fields.id_pattern("aud_")]
EntryInPath = Annotated[
    str,
    StringConstraints(max_length=fields.MAX_ADDRESS),
    Field(json_schema_extra={"pattern": r"^([^@\s]+@[^@\s]+|@[^@\s]+)$"}),
]
"""What is none of these is refused by the list itself."""


class AddressCreateRequest(fields.RequestBody):
    """`local_part` has no form here: the rules of local parts answer with codes of their own."""

    local_part: fields.Text
    domain_id: fields.DomainId


class PromoteAddressRequest(fields.RequestBody):
    retire_previous_after_days: Days = DEFAULT_RETIRE_DAYS


class RetireAddressRequest(fields.RequestBody):
    after_days: Days = DEFAULT_RETIRE_DAYS


class ListEntryPutRequest(fields.RequestBody):
    note: Annotated[StrictStr, StringConstraints(max_length=MAX_NOTE), fields.Storable] | None = None


class AuditEventsQuery(fields.Query):
    tenant_id: fields.TenantId | None = None
    actor_key_id: fields.KeyId | None = None
    action: fields.QueryText | None = None
    target_id: fields.QueryText | None = None
    after: fields.Time | None = None
    before: fields.Time | None = None
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


# -- answers


class AddressPage(Answer):
    data: list[Address]
    next_cursor: str | None


class ErasureHeldItem(Answer):
    thread_id: fields.ThreadId
    reason: str


class ErasureProbe(Answer):
    keyword_hits: Count
    semantic_hits: Count


class ErasureReceipt(Answer):
    messages_deleted: Count
    attachments_deleted: Count
    blobs_deleted: Count
    fts_rows_deleted: Count
    refs_deleted: Count
    vectors_deleted: Count
    events_deleted: Count
    identities_affected: list[fields.IdentityId]
    held: list[ErasureHeldItem]
    probe: ErasureProbe


class ErasureRequest(Answer):
    id: ErasureId
    tenant_id: fields.TenantId
    scope: Literal["message", "thread", "counterparty", "identity", "tenant"]
    status: Literal["queued", "running", "completed", "completed_with_holds", "failed", "canceled"]
    identity_id: fields.IdentityId | None
    target_id: str | None
    resumes_id: ErasureId | None
    created_at: datetime
    deadline_at: datetime
    completed_at: datetime | None
    receipt: ErasureReceipt | None
    created_by_key_id: str | None = None


class ListEntry(Answer):
    direction: ListDirection
    kind: ListKind
    entry: EntryInPath
    note: str | None
    created_at: datetime


class ListEntryPage(Answer):
    data: list[ListEntry]
    next_cursor: str | None


class AuditEvent(Answer):
    id: AuditEventId
    tenant_id: fields.TenantId | None
    actor_key_id: fields.KeyId | None
    actor_user_id: fields.PersonId | None
    action: str
    target_type: str | None
    target_id: str | None
    details: dict[str, Any] | None
    request_id: fields.RequestId | None
    created_at: datetime


class AuditEventPage(Answer):
    data: list[AuditEvent]
    next_cursor: str | None
