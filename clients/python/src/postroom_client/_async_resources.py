"""One method for each operation, by resource, for event loops.

Made by scripts/sdk.py from the server's OpenAPI document; change the server, then run it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, overload

from . import _operations as operations
from . import bodies, models, values
from ._async import AsyncCaller
from .downloads import AsyncDownloading
from .pagination import AsyncPages


class AsyncMeta:
    """The operations of “Meta”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def get_health(self, *, request_timeout: float | None = None) -> models.Health:
        """Whether the process serves.

        `GET /health`. May say `method_not_allowed`.
        """
        return await self._caller.call(operations.GET_HEALTH, (), {}, None, None, request_timeout)

    async def get_readiness(self, *, request_timeout: float | None = None) -> models.Readiness:
        """Whether the database, the blob store and the schema can be used.

        `GET /health/ready`. May say `method_not_allowed`.
        """
        return await self._caller.call(operations.GET_READINESS, (), {}, None, None, request_timeout)

    async def get_open_api_document(self, *, request_timeout: float | None = None) -> dict[str, Any]:
        """This document.

        `GET /openapi.json`.
        """
        return await self._caller.call(operations.GET_OPEN_API_DOCUMENT, (), {}, None, None, request_timeout)

    async def get_me(self, *, request_timeout: float | None = None) -> models.Me:
        """The calling key.

        `GET /v1/me`.
        """
        return await self._caller.call(operations.GET_ME, (), {}, None, None, request_timeout)


class AsyncTenants:
    """The operations of “Tenants”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def create_tenant(
        self,
        body: bodies.TenantCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Tenant:
        """Create a tenant.

        `POST /v1/tenants`; wants `tenants:manage`. May say `address_reserved`, `partner_tenant_limit`,
        `slug_taken`, `suffix_taken`.
        """
        return await self._caller.call(operations.CREATE_TENANT, (), {}, body, idempotency_key, request_timeout)

    def list_tenants(
        self,
        *,
        status: Literal["active", "suspended", "erasing", "erased"] | None = None,
        partner_id: str | None = None,
        mode: Literal["live", "test"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.TenantPage, models.Tenant]:
        """Tenants that the key reaches, newest first.

        `GET /v1/tenants`; wants `tenants:manage`. May say `cursor_expired`, `partner_not_found`.
        """
        return self._caller.pages(
            operations.LIST_TENANTS,
            (),
            {"status": status, "partner_id": partner_id, "mode": mode, "limit": limit},
            cursor,
            request_timeout,
        )

    async def get_tenant(self, tenant_id: str, *, request_timeout: float | None = None) -> models.Tenant:
        """A tenant.

        `GET /v1/tenants/{tenant_id}`; wants `tenants:manage`. May say `tenant_not_found`.
        """
        return await self._caller.call(operations.GET_TENANT, (tenant_id,), {}, None, None, request_timeout)

    async def update_tenant(
        self, tenant_id: str, body: bodies.TenantUpdateRequest, *, request_timeout: float | None = None
    ) -> models.Tenant:
        """Change, suspend or resume a tenant.

        `PATCH /v1/tenants/{tenant_id}`; wants `tenants:manage`. May say `domain_in_use`, `tenant_erased`,
        `tenant_not_found`.
        """
        return await self._caller.call(operations.UPDATE_TENANT, (tenant_id,), {}, body, None, request_timeout)

    async def get_tenant_policy(
        self, tenant_id: str, *, request_timeout: float | None = None
    ) -> models.TenantPolicyView:
        """What holds for a tenant, and what the caller may change of it.

        `GET /v1/tenants/{tenant_id}/policy`; wants `policy:write`. May say `tenant_not_found`.
        """
        return await self._caller.call(operations.GET_TENANT_POLICY, (tenant_id,), {}, None, None, request_timeout)

    async def update_tenant_policy(
        self, tenant_id: str, body: bodies.TenantPolicyPatch, *, request_timeout: float | None = None
    ) -> models.TenantPolicyView:
        """Write members of a tenant's policy.

        `PATCH /v1/tenants/{tenant_id}/policy`; wants `policy:write`. May say `domain_in_use`, `tenant_erased`,
        `tenant_not_found`.
        """
        return await self._caller.call(operations.UPDATE_TENANT_POLICY, (tenant_id,), {}, body, None, request_timeout)


class AsyncPartners:
    """The operations of “Partners”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def create_partner(
        self,
        body: bodies.PartnerCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Partner:
        """Create a partner.

        `POST /v1/partners`; wants `partners:manage`.
        """
        return await self._caller.call(operations.CREATE_PARTNER, (), {}, body, idempotency_key, request_timeout)

    def list_partners(
        self,
        *,
        status: Literal["active", "suspended", "deleted"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.PartnerPage, models.Partner]:
        """Partners, newest first.

        `GET /v1/partners`; wants `partners:manage`. May say `cursor_expired`.
        """
        return self._caller.pages(
            operations.LIST_PARTNERS, (), {"status": status, "limit": limit}, cursor, request_timeout
        )

    async def get_partner(self, partner_id: str, *, request_timeout: float | None = None) -> models.Partner:
        """A partner, also one that is deleted.

        `GET /v1/partners/{partner_id}`; wants `partners:manage`. May say `partner_not_found`.
        """
        return await self._caller.call(operations.GET_PARTNER, (partner_id,), {}, None, None, request_timeout)

    async def update_partner(
        self, partner_id: str, body: bodies.PartnerUpdateRequest, *, request_timeout: float | None = None
    ) -> models.Partner:
        """Change, suspend or reactivate a partner.

        `PATCH /v1/partners/{partner_id}`; wants `partners:manage`. May say `partner_not_found`.
        """
        return await self._caller.call(operations.UPDATE_PARTNER, (partner_id,), {}, body, None, request_timeout)

    async def delete_partner(self, partner_id: str, *, request_timeout: float | None = None) -> None:
        """Delete a partner whose tenants are erased.

        `DELETE /v1/partners/{partner_id}`; wants `partners:manage`. May say `partner_has_tenants`,
        `partner_not_found`.
        """
        await self._caller.call(operations.DELETE_PARTNER, (partner_id,), {}, None, None, request_timeout)


class AsyncIdentities:
    """The operations of “Identities”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def create_identity(
        self,
        tenant_id: str,
        body: bodies.IdentityCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Identity:
        """Create an identity with its mailbox.

        `POST /v1/tenants/{tenant_id}/identities`; wants `identities:write`. May say `address_invalid`,
        `address_reserved`, `address_taken`, `address_unsupported`, `billing_limit`, `client_id_conflict`,
        `domain_not_found`, `domain_not_ready`, `local_part_too_long`, `tenant_not_found`, `username_taken`.
        """
        return await self._caller.call(
            operations.CREATE_IDENTITY, (tenant_id,), {}, body, idempotency_key, request_timeout
        )

    def list_tenant_identities(
        self,
        tenant_id: str,
        *,
        status: values.IdentityStatus | None = None,
        purpose: str | None = None,
        client_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.IdentityPage, models.Identity]:
        """Identities of a tenant.

        `GET /v1/tenants/{tenant_id}/identities`; wants `identities:read`. May say `cursor_expired`,
        `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_TENANT_IDENTITIES,
            (tenant_id,),
            {"status": status, "purpose": purpose, "client_id": client_id, "limit": limit},
            cursor,
            request_timeout,
        )

    def list_identities(
        self,
        *,
        tenant_id: str | None = None,
        status: values.IdentityStatus | None = None,
        purpose: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.IdentityPage, models.Identity]:
        """Identities that the key reaches.

        `GET /v1/identities`; wants `identities:read`. May say `cursor_expired`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_IDENTITIES,
            (),
            {"tenant_id": tenant_id, "status": status, "purpose": purpose, "limit": limit},
            cursor,
            request_timeout,
        )

    async def lookup_identity(self, *, address: str, request_timeout: float | None = None) -> models.Identity:
        """The identity that an address belongs to.

        `GET /v1/identities/lookup`; wants `identities:read`. May say `identity_not_found`.
        """
        return await self._caller.call(
            operations.LOOKUP_IDENTITY, (), {"address": address}, None, None, request_timeout
        )

    async def get_identity(self, identity_id: str, *, request_timeout: float | None = None) -> models.Identity:
        """An identity.

        `GET /v1/identities/{identity_id}`; wants `identities:read`. May say `identity_not_found`.
        """
        return await self._caller.call(operations.GET_IDENTITY, (identity_id,), {}, None, None, request_timeout)

    async def update_identity(
        self, identity_id: str, body: bodies.IdentityUpdateRequest, *, request_timeout: float | None = None
    ) -> models.Identity:
        """Change an identity, pause or resume it.

        `PATCH /v1/identities/{identity_id}`; wants `identities:write`. May say `address_invalid`,
        `identity_not_found`, `identity_paused`.
        """
        return await self._caller.call(operations.UPDATE_IDENTITY, (identity_id,), {}, body, None, request_timeout)

    async def delete_identity(self, identity_id: str, *, request_timeout: float | None = None) -> models.ErasureRequest:
        """Delete an identity, its addresses for ever, and ask for its erasure.

        `DELETE /v1/identities/{identity_id}`; wants `erasure:manage` and `identities:write`. May say
        `identity_not_found`.
        """
        return await self._caller.call(operations.DELETE_IDENTITY, (identity_id,), {}, None, None, request_timeout)


class AsyncAddresses:
    """The operations of “Addresses”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_addresses(
        self,
        identity_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.AddressPage, models.Address]:
        """Addresses of an identity in every state, newest first.

        `GET /v1/identities/{identity_id}/addresses`; wants `identities:read`. May say `cursor_expired`,
        `identity_not_found`.
        """
        return self._caller.pages(operations.LIST_ADDRESSES, (identity_id,), {"limit": limit}, cursor, request_timeout)

    async def create_address(
        self,
        identity_id: str,
        body: bodies.AddressCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Address:
        """Add an address on a domain of the tenant.

        `POST /v1/identities/{identity_id}/addresses`; wants `identities:write`. May say `address_invalid`,
        `address_limit_reached`, `address_reserved`, `address_taken`, `address_unsupported`, `domain_not_found`,
        `domain_not_ready`, `identity_not_found`, `local_part_too_long`.
        """
        return await self._caller.call(
            operations.CREATE_ADDRESS, (identity_id,), {}, body, idempotency_key, request_timeout
        )

    async def promote_address(
        self,
        identity_id: str,
        address_id: str,
        body: bodies.PromoteAddressRequest | None = None,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Identity:
        """Make an address the primary, or take a promotion back.

        `POST /v1/identities/{identity_id}/addresses/{address_id}/promote`; wants `identities:write`. May say
        `address_is_primary`, `address_not_found`, `domain_not_ready`, `identity_not_found`.
        """
        return await self._caller.call(
            operations.PROMOTE_ADDRESS, (identity_id, address_id), {}, body, idempotency_key, request_timeout
        )

    async def retire_address(
        self,
        identity_id: str,
        address_id: str,
        body: bodies.RetireAddressRequest | None = None,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Address:
        """Let an address receive for a while, then never again.

        `POST /v1/identities/{identity_id}/addresses/{address_id}/retire`; wants `identities:write`. May say
        `address_in_use`, `address_is_primary`, `address_not_found`, `identity_not_found`.
        """
        return await self._caller.call(
            operations.RETIRE_ADDRESS, (identity_id, address_id), {}, body, idempotency_key, request_timeout
        )

    async def delete_address(self, identity_id: str, address_id: str, *, request_timeout: float | None = None) -> None:
        """Remove an address that still waits for its domain.

        `DELETE /v1/identities/{identity_id}/addresses/{address_id}`; wants `identities:write`. May say
        `address_in_use`, `address_is_primary`, `address_not_found`, `identity_not_found`.
        """
        await self._caller.call(operations.DELETE_ADDRESS, (identity_id, address_id), {}, None, None, request_timeout)


class AsyncLists:
    """The operations of “Lists”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_list_entries(
        self,
        tenant_id: str,
        direction: values.ListDirection,
        kind: values.ListKind,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.ListEntryPage, models.ListEntry]:
        """Entries of an allow or block list, newest first.

        `GET /v1/tenants/{tenant_id}/lists/{direction}/{kind}`; wants `suppressions:manage`. May say
        `cursor_expired`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_LIST_ENTRIES, (tenant_id, direction, kind), {"limit": limit}, cursor, request_timeout
        )

    async def get_list_entry(
        self,
        tenant_id: str,
        direction: values.ListDirection,
        kind: values.ListKind,
        entry: str,
        *,
        request_timeout: float | None = None,
    ) -> models.ListEntry:
        """An entry of a list.

        `GET /v1/tenants/{tenant_id}/lists/{direction}/{kind}/{entry}`; wants `suppressions:manage`. May say
        `list_entry_not_found`, `tenant_not_found`.
        """
        return await self._caller.call(
            operations.GET_LIST_ENTRY, (tenant_id, direction, kind, entry), {}, None, None, request_timeout
        )

    async def put_list_entry(
        self,
        tenant_id: str,
        direction: values.ListDirection,
        kind: values.ListKind,
        entry: str,
        body: bodies.ListEntryPutRequest | None = None,
        *,
        request_timeout: float | None = None,
    ) -> models.ListEntry:
        """Add an entry, or change its note.

        `PUT /v1/tenants/{tenant_id}/lists/{direction}/{kind}/{entry}`; wants `suppressions:manage`. May say
        `list_entry_not_found`, `tenant_not_found`.
        """
        return await self._caller.call(
            operations.PUT_LIST_ENTRY, (tenant_id, direction, kind, entry), {}, body, None, request_timeout
        )

    async def delete_list_entry(
        self,
        tenant_id: str,
        direction: values.ListDirection,
        kind: values.ListKind,
        entry: str,
        *,
        request_timeout: float | None = None,
    ) -> None:
        """Remove an entry.

        `DELETE /v1/tenants/{tenant_id}/lists/{direction}/{kind}/{entry}`; wants `suppressions:manage`. May say
        `list_entry_not_found`, `tenant_not_found`.
        """
        await self._caller.call(
            operations.DELETE_LIST_ENTRY, (tenant_id, direction, kind, entry), {}, None, None, request_timeout
        )


class AsyncAudit:
    """The operations of “Audit”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_audit_events(
        self,
        *,
        tenant_id: str | None = None,
        actor_key_id: str | None = None,
        action: str | None = None,
        target_id: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.AuditEventPage, models.AuditEvent]:
        """What was done, newest first.

        `GET /v1/audit-events`; wants `audit:read`. May say `cursor_expired`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_AUDIT_EVENTS,
            (),
            {
                "tenant_id": tenant_id,
                "actor_key_id": actor_key_id,
                "action": action,
                "target_id": target_id,
                "after": after,
                "before": before,
                "limit": limit,
            },
            cursor,
            request_timeout,
        )


class AsyncAliases:
    """The operations of “Aliases”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def create_alias(
        self,
        tenant_id: str,
        body: bodies.AliasCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Alias:
        """Let mail to an address go on to another.

        `POST /v1/tenants/{tenant_id}/aliases`; wants `identities:write`. May say `address_invalid`,
        `address_limit_reached`, `address_reserved`, `address_taken`, `address_unsupported`, `domain_not_found`,
        `domain_not_ready`, `local_part_too_long`, `tenant_not_found`.
        """
        return await self._caller.call(
            operations.CREATE_ALIAS, (tenant_id,), {}, body, idempotency_key, request_timeout
        )

    def list_aliases(
        self,
        tenant_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.AliasPage, models.Alias]:
        """Aliases of a tenant, newest first.

        `GET /v1/tenants/{tenant_id}/aliases`; wants `identities:read`. May say `cursor_expired`,
        `tenant_not_found`.
        """
        return self._caller.pages(operations.LIST_ALIASES, (tenant_id,), {"limit": limit}, cursor, request_timeout)

    async def get_alias(self, tenant_id: str, alias_id: str, *, request_timeout: float | None = None) -> models.Alias:
        """An alias.

        `GET /v1/tenants/{tenant_id}/aliases/{alias_id}`; wants `identities:read`. May say `address_not_found`,
        `tenant_not_found`.
        """
        return await self._caller.call(operations.GET_ALIAS, (tenant_id, alias_id), {}, None, None, request_timeout)

    async def delete_alias(self, tenant_id: str, alias_id: str, *, request_timeout: float | None = None) -> None:
        """Take no more mail for an alias.

        `DELETE /v1/tenants/{tenant_id}/aliases/{alias_id}`; wants `identities:write`. May say `address_not_found`,
        `tenant_not_found`.
        """
        await self._caller.call(operations.DELETE_ALIAS, (tenant_id, alias_id), {}, None, None, request_timeout)


class AsyncMessages:
    """The operations of “Messages”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_messages(
        self,
        identity_id: str,
        *,
        thread_id: str | None = None,
        direction: values.Direction | None = None,
        status: values.MessageStatus | None = None,
        label: str | None = None,
        folder: str | None = None,
        include: Sequence[Literal["placements"]] | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.MessagePage, models.Message]:
        """Messages, newest first.

        `GET /v1/identities/{identity_id}/messages`; wants `messages:read`. May say `cursor_expired`,
        `folder_not_found`, `identity_not_found`.
        """
        return self._caller.pages(
            operations.LIST_MESSAGES,
            (identity_id,),
            {
                "thread_id": thread_id,
                "direction": direction,
                "status": status,
                "label": label,
                "folder": folder,
                "include": include,
                "after": after,
                "before": before,
                "limit": limit,
            },
            cursor,
            request_timeout,
        )

    async def get_message(
        self,
        identity_id: str,
        message_id: str,
        *,
        include: Sequence[Literal["quoted", "html", "headers", "placements"]] | None = None,
        request_timeout: float | None = None,
    ) -> models.Message:
        """A message.

        `GET /v1/identities/{identity_id}/messages/{message_id}`; wants `messages:read`. May say
        `identity_not_found`, `message_not_found`.
        """
        return await self._caller.call(
            operations.GET_MESSAGE, (identity_id, message_id), {"include": include}, None, None, request_timeout
        )

    async def update_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.MessageUpdateRequest,
        *,
        request_timeout: float | None = None,
    ) -> models.Message:
        """Change labels and read state.

        `PATCH /v1/identities/{identity_id}/messages/{message_id}`; wants `messages:write`. May say
        `identity_not_found`, `message_not_found`.
        """
        return await self._caller.call(
            operations.UPDATE_MESSAGE, (identity_id, message_id), {}, body, None, request_timeout
        )

    async def move_messages(
        self,
        identity_id: str,
        body: bodies.TransferMessagesRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.MessageResults:
        """Have messages stand in a folder and nowhere else.

        `POST /v1/identities/{identity_id}/messages/move`; wants `messages:write`. May say `folder_not_found`,
        `identity_not_found`, `mailbox_full`.
        """
        return await self._caller.call(
            operations.MOVE_MESSAGES, (identity_id,), {}, body, idempotency_key, request_timeout
        )

    async def copy_messages(
        self,
        identity_id: str,
        body: bodies.TransferMessagesRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.MessageResults:
        """Have messages stand in a folder also.

        `POST /v1/identities/{identity_id}/messages/copy`; wants `messages:write`. May say `folder_not_found`,
        `identity_not_found`, `mailbox_full`.
        """
        return await self._caller.call(
            operations.COPY_MESSAGES, (identity_id,), {}, body, idempotency_key, request_timeout
        )

    async def expunge_messages(
        self,
        identity_id: str,
        body: bodies.ExpungeMessagesRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.MessageResults:
        """Remove messages for good.

        `POST /v1/identities/{identity_id}/messages/expunge`; wants `messages:write`. May say `identity_not_found`.
        """
        return await self._caller.call(
            operations.EXPUNGE_MESSAGES, (identity_id,), {}, body, idempotency_key, request_timeout
        )

    async def flag_messages(
        self,
        identity_id: str,
        body: bodies.FlagMessagesRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.MessageResults:
        """Change flags and keywords.

        `POST /v1/identities/{identity_id}/messages/flags`; wants `messages:write`. May say `identity_not_found`.
        """
        return await self._caller.call(
            operations.FLAG_MESSAGES, (identity_id,), {}, body, idempotency_key, request_timeout
        )

    def get_message_raw(
        self, identity_id: str, message_id: str, *, request_timeout: float | None = None
    ) -> AsyncDownloading:
        """The bytes of a message.

        `GET /v1/identities/{identity_id}/messages/{message_id}/raw`; wants `messages:read`. May say
        `identity_not_found`, `message_not_found`, `raw_expired`.
        """
        return self._caller.download(operations.GET_MESSAGE_RAW, (identity_id, message_id), {}, request_timeout)

    def get_attachment(
        self, identity_id: str, message_id: str, attachment_id: str, *, request_timeout: float | None = None
    ) -> AsyncDownloading:
        """The bytes of an attachment.

        `GET /v1/identities/{identity_id}/messages/{message_id}/attachments/{attachment_id}`; wants
        `attachments:read`. May say `attachment_not_found`, `identity_not_found`, `message_not_found`.
        """
        return self._caller.download(
            operations.GET_ATTACHMENT, (identity_id, message_id, attachment_id), {}, request_timeout
        )


class AsyncSending:
    """The operations of “Sending”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    @overload
    async def send_message(
        self,
        identity_id: str,
        body: bodies.SendRequest,
        *,
        idempotency_key: str,
        dry_run: Literal[False] = False,
        request_timeout: float | None = None,
    ) -> models.SendResponse: ...
    @overload
    async def send_message(
        self,
        identity_id: str,
        body: bodies.SendRequest,
        *,
        dry_run: Literal[True],
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.DryRunResult: ...
    async def send_message(
        self,
        identity_id: str,
        body: bodies.SendRequest,
        *,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        request_timeout: float | None = None,
    ) -> models.SendResponse | models.DryRunResult:
        """Send a message.

        `POST /v1/identities/{identity_id}/messages`; wants `messages:send`. May say `address_invalid`,
        `address_unsupported`, `all_recipients_suppressed`, `auto_reply_not_allowed`, `billing_limit`,
        `daily_cap_reached`, `domain_not_ready`, `header_not_allowed`, `identity_not_found`,
        `identity_owner_required`, `identity_paused`, `loop_detected`, `mailbox_full`,
        `marketing_requirements_missing`, `message_too_large`, `policy_denied`, `recipient_blocked`,
        `sending_paused`, `test_mode_recipient`, `thread_busy`, `thread_not_found`, `too_many_recipients`,
        `transport_unavailable`.
        """
        return await self._caller.call(
            operations.SEND_MESSAGE, (identity_id,), {"dry_run": dry_run}, body, idempotency_key, request_timeout
        )

    @overload
    async def reply_to_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ReplyRequest,
        *,
        idempotency_key: str,
        dry_run: Literal[False] = False,
        request_timeout: float | None = None,
    ) -> models.SendResponse: ...
    @overload
    async def reply_to_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ReplyRequest,
        *,
        dry_run: Literal[True],
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.DryRunResult: ...
    async def reply_to_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ReplyRequest,
        *,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        request_timeout: float | None = None,
    ) -> models.SendResponse | models.DryRunResult:
        """Answer the sender.

        `POST /v1/identities/{identity_id}/messages/{message_id}/reply`; wants `messages:send`. May say
        `address_invalid`, `address_unsupported`, `all_recipients_suppressed`, `auto_reply_not_allowed`,
        `billing_limit`, `daily_cap_reached`, `domain_not_ready`, `header_not_allowed`, `identity_not_found`,
        `identity_owner_required`, `identity_paused`, `loop_detected`, `mailbox_full`,
        `marketing_requirements_missing`, `message_not_found`, `message_too_large`, `policy_denied`,
        `recipient_blocked`, `sending_paused`, `test_mode_recipient`, `thread_busy`, `too_many_recipients`,
        `transport_unavailable`.
        """
        return await self._caller.call(
            operations.REPLY_TO_MESSAGE,
            (identity_id, message_id),
            {"dry_run": dry_run},
            body,
            idempotency_key,
            request_timeout,
        )

    @overload
    async def reply_all_to_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ReplyRequest,
        *,
        idempotency_key: str,
        dry_run: Literal[False] = False,
        request_timeout: float | None = None,
    ) -> models.SendResponse: ...
    @overload
    async def reply_all_to_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ReplyRequest,
        *,
        dry_run: Literal[True],
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.DryRunResult: ...
    async def reply_all_to_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ReplyRequest,
        *,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        request_timeout: float | None = None,
    ) -> models.SendResponse | models.DryRunResult:
        """Answer everybody.

        `POST /v1/identities/{identity_id}/messages/{message_id}/reply-all`; wants `messages:send`. May say
        `address_invalid`, `address_unsupported`, `all_recipients_suppressed`, `auto_reply_not_allowed`,
        `billing_limit`, `daily_cap_reached`, `domain_not_ready`, `header_not_allowed`, `identity_not_found`,
        `identity_owner_required`, `identity_paused`, `loop_detected`, `mailbox_full`,
        `marketing_requirements_missing`, `message_not_found`, `message_too_large`, `policy_denied`,
        `recipient_blocked`, `sending_paused`, `test_mode_recipient`, `thread_busy`, `too_many_recipients`,
        `transport_unavailable`.
        """
        return await self._caller.call(
            operations.REPLY_ALL_TO_MESSAGE,
            (identity_id, message_id),
            {"dry_run": dry_run},
            body,
            idempotency_key,
            request_timeout,
        )

    @overload
    async def forward_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ForwardRequest,
        *,
        idempotency_key: str,
        dry_run: Literal[False] = False,
        request_timeout: float | None = None,
    ) -> models.SendResponse: ...
    @overload
    async def forward_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ForwardRequest,
        *,
        dry_run: Literal[True],
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.DryRunResult: ...
    async def forward_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ForwardRequest,
        *,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        request_timeout: float | None = None,
    ) -> models.SendResponse | models.DryRunResult:
        """Hand a message on.

        `POST /v1/identities/{identity_id}/messages/{message_id}/forward`; wants `messages:send`. May say
        `address_invalid`, `address_unsupported`, `all_recipients_suppressed`, `auto_reply_not_allowed`,
        `billing_limit`, `daily_cap_reached`, `domain_not_ready`, `header_not_allowed`, `identity_not_found`,
        `identity_owner_required`, `identity_paused`, `loop_detected`, `mailbox_full`,
        `marketing_requirements_missing`, `message_not_found`, `message_too_large`, `policy_denied`, `raw_expired`,
        `recipient_blocked`, `sending_paused`, `test_mode_recipient`, `thread_busy`, `too_many_recipients`,
        `transport_unavailable`.
        """
        return await self._caller.call(
            operations.FORWARD_MESSAGE,
            (identity_id, message_id),
            {"dry_run": dry_run},
            body,
            idempotency_key,
            request_timeout,
        )

    async def cancel_message(
        self,
        identity_id: str,
        message_id: str,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Message:
        """Cancel a message that waits.

        `POST /v1/identities/{identity_id}/messages/{message_id}/cancel`; wants `messages:send`. May say
        `identity_not_found`, `message_not_found`, `not_cancelable`.
        """
        return await self._caller.call(
            operations.CANCEL_MESSAGE, (identity_id, message_id), {}, None, idempotency_key, request_timeout
        )

    async def resolve_message(
        self,
        identity_id: str,
        message_id: str,
        body: bodies.ResolveRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Message:
        """Say what became of an uncertain message.

        `POST /v1/identities/{identity_id}/messages/{message_id}/resolve`; wants `messages:write`. May say
        `identity_not_found`, `message_not_found`, `not_uncertain`.
        """
        return await self._caller.call(
            operations.RESOLVE_MESSAGE, (identity_id, message_id), {}, body, idempotency_key, request_timeout
        )


class AsyncFolders:
    """The operations of “Folders”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_folders(
        self,
        identity_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.FolderPage, models.Folder]:
        """Folders, INBOX first, then by the alphabet.

        `GET /v1/identities/{identity_id}/folders`; wants `messages:read`. May say `cursor_expired`,
        `identity_not_found`.
        """
        return self._caller.pages(operations.LIST_FOLDERS, (identity_id,), {"limit": limit}, cursor, request_timeout)

    async def create_folder(
        self,
        identity_id: str,
        body: bodies.FolderCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Folder:
        """Make a folder.

        `POST /v1/identities/{identity_id}/folders`; wants `messages:write`. May say `folder_exists`,
        `folder_not_found`, `identity_not_found`.
        """
        return await self._caller.call(
            operations.CREATE_FOLDER, (identity_id,), {}, body, idempotency_key, request_timeout
        )

    async def get_folder(
        self, identity_id: str, folder_id: str, *, request_timeout: float | None = None
    ) -> models.Folder:
        """A folder.

        `GET /v1/identities/{identity_id}/folders/{folder_id}`; wants `messages:read`. May say `folder_not_found`,
        `identity_not_found`.
        """
        return await self._caller.call(operations.GET_FOLDER, (identity_id, folder_id), {}, None, None, request_timeout)

    async def update_folder(
        self,
        identity_id: str,
        folder_id: str,
        body: bodies.FolderUpdateRequest,
        *,
        request_timeout: float | None = None,
    ) -> models.Folder:
        """Rename, move or subscribe a folder.

        `PATCH /v1/identities/{identity_id}/folders/{folder_id}`; wants `messages:write`. May say `folder_exists`,
        `folder_not_found`, `identity_not_found`.
        """
        return await self._caller.call(
            operations.UPDATE_FOLDER, (identity_id, folder_id), {}, body, None, request_timeout
        )

    async def delete_folder(
        self, identity_id: str, folder_id: str, *, expunge: bool | None = None, request_timeout: float | None = None
    ) -> None:
        """Remove a folder; with `expunge=true` what is in it, too, for good.

        `DELETE /v1/identities/{identity_id}/folders/{folder_id}`; wants `messages:write`. May say
        `folder_not_empty`, `folder_not_found`, `identity_not_found`.
        """
        await self._caller.call(
            operations.DELETE_FOLDER, (identity_id, folder_id), {"expunge": expunge}, None, None, request_timeout
        )


class AsyncThreads:
    """The operations of “Threads”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_threads(
        self,
        identity_id: str,
        *,
        label: str | None = None,
        category: str | None = None,
        needs_reply_gte: float | None = None,
        is_unread: bool | None = None,
        direction: values.Direction | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        archived: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.ThreadPage, models.ThreadSummary]:
        """Threads, by their newest message.

        `GET /v1/identities/{identity_id}/threads`; wants `messages:read`. May say `cursor_expired`,
        `identity_not_found`.
        """
        return self._caller.pages(
            operations.LIST_THREADS,
            (identity_id,),
            {
                "label": label,
                "category": category,
                "needs_reply_gte": needs_reply_gte,
                "is_unread": is_unread,
                "direction": direction,
                "after": after,
                "before": before,
                "archived": archived,
                "limit": limit,
            },
            cursor,
            request_timeout,
        )

    async def get_thread(
        self,
        identity_id: str,
        thread_id: str,
        *,
        messages_limit: int | None = None,
        cursor: str | None = None,
        include: Sequence[Literal["quoted", "html", "headers", "placements"]] | None = None,
        request_timeout: float | None = None,
    ) -> models.Thread:
        """A thread with a page of its messages, oldest first.

        `GET /v1/identities/{identity_id}/threads/{thread_id}`; wants `messages:read`. May say `cursor_expired`,
        `identity_not_found`, `thread_not_found`.
        """
        return await self._caller.call(
            operations.GET_THREAD,
            (identity_id, thread_id),
            {"messages_limit": messages_limit, "cursor": cursor, "include": include},
            None,
            None,
            request_timeout,
        )

    async def update_thread(
        self,
        identity_id: str,
        thread_id: str,
        body: bodies.ThreadUpdateRequest,
        *,
        request_timeout: float | None = None,
    ) -> models.ThreadSummary:
        """Change labels, read state and archiving of all its messages.

        `PATCH /v1/identities/{identity_id}/threads/{thread_id}`; wants `messages:write`. May say
        `identity_not_found`, `thread_not_found`.
        """
        return await self._caller.call(
            operations.UPDATE_THREAD, (identity_id, thread_id), {}, body, None, request_timeout
        )


class AsyncSearch:
    """The operations of “Search”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def wait_for_message(
        self,
        identity_id: str,
        *,
        from_: str | None = None,
        subject_contains: str | None = None,
        thread_id: str | None = None,
        kind: Literal["any", "reply", "verification"] | None = None,
        since: datetime | None = None,
        timeout: int | None = None,
        request_timeout: float | None = None,
    ) -> models.WaitResponse:
        """Wait for a message.

        `GET /v1/identities/{identity_id}/wait`; wants `search:read`. May say `identity_not_found`, `policy_denied`.
        """
        return await self._caller.call(
            operations.WAIT_FOR_MESSAGE,
            (identity_id,),
            {
                "from": from_,
                "subject_contains": subject_contains,
                "thread_id": thread_id,
                "kind": kind,
                "since": since,
                "timeout": timeout,
            },
            None,
            None,
            request_timeout,
        )


class AsyncEvents:
    """The operations of “Events”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_events(
        self,
        *,
        types: Sequence[
            Literal[
                "message.received",
                "message.sent",
                "message.delivered",
                "message.deferred",
                "message.bounced",
                "message.complained",
                "message.rejected",
                "message.failed",
                "message.uncertain",
                "message.reconciled",
                "message.suppressed",
                "message.canceled",
                "verification.received",
                "identity.created",
                "identity.updated",
                "identity.paused",
                "identity.resumed",
                "identity.address_added",
                "identity.address_activated",
                "identity.address_promoted",
                "identity.address_retired",
                "member.invited",
                "member.joined",
                "member.role_changed",
                "member.removed",
                "tenant.policy_updated",
                "quota.warning",
                "webhook.disabled",
                "webhook.test",
            ]
        ]
        | None = None,
        tenant_id: str | None = None,
        identity_id: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.EventPage, models.Event]:
        """What happened, newest first.

        `GET /v1/events`; wants `webhooks:read`. May say `cursor_expired`, `identity_not_found`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_EVENTS,
            (),
            {"types": types, "tenant_id": tenant_id, "identity_id": identity_id, "since": since, "limit": limit},
            cursor,
            request_timeout,
        )


class AsyncPlatform:
    """The operations of “Platform”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_queue(
        self,
        *,
        state: Sequence[values.QueueState] | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.QueueDeliveryPage, models.QueueDelivery]:
        """Deliveries of all tenants, oldest first.

        `GET /v1/platform/queue`; wants `platform:ops`. May say `cursor_expired`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_QUEUE, (), {"state": state, "tenant_id": tenant_id, "limit": limit}, cursor, request_timeout
        )

    async def get_queue_statistics(self, *, request_timeout: float | None = None) -> models.QueueStatistics:
        """Deliveries by state, notices to be written, mail of today.

        `GET /v1/platform/queue/stats`; wants `platform:ops`.
        """
        return await self._caller.call(operations.GET_QUEUE_STATISTICS, (), {}, None, None, request_timeout)

    async def get_queue_item(
        self, queue_id: int, *, request_timeout: float | None = None
    ) -> models.QueueDeliveryDetail:
        """A delivery and its attempts.

        `GET /v1/platform/queue/{queue_id}`; wants `platform:ops`. May say `message_not_found`.
        """
        return await self._caller.call(operations.GET_QUEUE_ITEM, (queue_id,), {}, None, None, request_timeout)

    async def retry_queue_item(
        self, queue_id: int, *, idempotency_key: str | None = None, request_timeout: float | None = None
    ) -> models.QueueDeliveryDetail:
        """Try at once, or send anew what failed or was canceled.

        `POST /v1/platform/queue/{queue_id}/retry`; wants `platform:ops`. May say `message_not_found`,
        `not_cancelable`, `raw_expired`.
        """
        return await self._caller.call(
            operations.RETRY_QUEUE_ITEM, (queue_id,), {}, None, idempotency_key, request_timeout
        )

    async def cancel_queue_item(
        self, queue_id: int, *, idempotency_key: str | None = None, request_timeout: float | None = None
    ) -> models.QueueDeliveryDetail:
        """Stop a delivery that waits.

        `POST /v1/platform/queue/{queue_id}/cancel`; wants `platform:ops`. May say `message_not_found`,
        `not_cancelable`.
        """
        return await self._caller.call(
            operations.CANCEL_QUEUE_ITEM, (queue_id,), {}, None, idempotency_key, request_timeout
        )

    async def hold_queue_item(
        self, queue_id: int, *, idempotency_key: str | None = None, request_timeout: float | None = None
    ) -> models.QueueDeliveryDetail:
        """Keep a delivery from being tried.

        `POST /v1/platform/queue/{queue_id}/hold`; wants `platform:ops`. May say `message_not_found`,
        `not_cancelable`.
        """
        return await self._caller.call(
            operations.HOLD_QUEUE_ITEM, (queue_id,), {}, None, idempotency_key, request_timeout
        )

    async def release_queue_item(
        self, queue_id: int, *, idempotency_key: str | None = None, request_timeout: float | None = None
    ) -> models.QueueDeliveryDetail:
        """Let a held delivery go.

        `POST /v1/platform/queue/{queue_id}/release`; wants `platform:ops`. May say `message_not_found`,
        `not_cancelable`.
        """
        return await self._caller.call(
            operations.RELEASE_QUEUE_ITEM, (queue_id,), {}, None, idempotency_key, request_timeout
        )

    def list_dlq_items(
        self,
        *,
        queue: Literal["inbound", "outbound", "delivery-events", "webhooks", "index"] | None = None,
        status: Literal["open", "redriven"] | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.DlqItemPage, models.DlqItem]:
        """Work that was given up, oldest first.

        `GET /v1/platform/dlq`; wants `platform:ops`. May say `cursor_expired`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_DLQ_ITEMS,
            (),
            {"queue": queue, "status": status, "tenant_id": tenant_id, "limit": limit},
            cursor,
            request_timeout,
        )

    async def redrive_dlq_item(
        self, dlq_id: str, *, idempotency_key: str | None = None, request_timeout: float | None = None
    ) -> models.DlqItem:
        """Begin work anew that was given up.

        `POST /v1/platform/dlq/{dlq_id}/redrive`; wants `platform:ops`. May say `dlq_item_not_found`.
        """
        return await self._caller.call(
            operations.REDRIVE_DLQ_ITEM, (dlq_id,), {}, None, idempotency_key, request_timeout
        )

    async def get_platform_status(self, *, request_timeout: float | None = None) -> models.PlatformStatus:
        """How the deployment stands.

        `GET /v1/platform/status`; wants `audit:read`.
        """
        return await self._caller.call(operations.GET_PLATFORM_STATUS, (), {}, None, None, request_timeout)

    async def set_switch(
        self, body: bodies.SwitchUpdate, *, idempotency_key: str | None = None, request_timeout: float | None = None
    ) -> models.Switch:
        """Turn a switch of the deployment.

        `PUT /v1/platform/switches`; wants `platform:ops`.
        """
        return await self._caller.call(operations.SET_SWITCH, (), {}, body, idempotency_key, request_timeout)

    async def rotate_signing_key(
        self,
        purpose: Literal["thread", "bounce", "forward", "link", "cursor", "web_bot_auth"],
        *,
        idempotency_key: str | None = None,
        revoke_previous: bool | None = None,
        request_timeout: float | None = None,
    ) -> models.SigningKeyRotation:
        """Make the next signing key of a purpose.

        `POST /v1/platform/keys/{purpose}/rotate`; wants `platform:ops`. May say `web_bot_auth_disabled`.
        """
        return await self._caller.call(
            operations.ROTATE_SIGNING_KEY,
            (purpose,),
            {"revoke_previous": revoke_previous},
            None,
            idempotency_key,
            request_timeout,
        )


class AsyncKeys:
    """The operations of “Keys”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def create_key(
        self,
        body: bodies.ApiKeyCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.ApiKeyCreated:
        """Make a key, whose secret is shown this once.

        `POST /v1/keys`; wants `keys:manage`. May say `identity_not_found`, `key_limit_reached`,
        `key_scope_exceeded`, `partner_not_found`, `tenant_not_found`.
        """
        return await self._caller.call(operations.CREATE_KEY, (), {}, body, idempotency_key, request_timeout)

    def list_keys(
        self, *, limit: int | None = None, cursor: str | None = None, request_timeout: float | None = None
    ) -> AsyncPages[models.ApiKeyPage, models.ApiKey]:
        """Keys that the key may manage, newest first.

        `GET /v1/keys`; wants `keys:manage`. May say `cursor_expired`.
        """
        return self._caller.pages(operations.LIST_KEYS, (), {"limit": limit}, cursor, request_timeout)

    async def get_key(self, key_id: str, *, request_timeout: float | None = None) -> models.ApiKey:
        """A key, without its secret.

        `GET /v1/keys/{key_id}`; wants `keys:manage`. May say `key_not_found`, `key_scope_exceeded`.
        """
        return await self._caller.call(operations.GET_KEY, (key_id,), {}, None, None, request_timeout)

    async def revoke_key(self, key_id: str, *, request_timeout: float | None = None) -> None:
        """Refuse a key from now on.

        `DELETE /v1/keys/{key_id}`; wants `keys:manage`. May say `key_not_found`, `key_scope_exceeded`.
        """
        await self._caller.call(operations.REVOKE_KEY, (key_id,), {}, None, None, request_timeout)

    async def rotate_key(
        self,
        key_id: str,
        body: bodies.RotateRequest | None = None,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.ApiKeyCreated:
        """Give a key a new secret, shown this once; the old one works for the overlap.

        `POST /v1/keys/{key_id}/rotate`; wants `keys:manage`. May say `key_not_found`, `key_scope_exceeded`.
        """
        return await self._caller.call(operations.ROTATE_KEY, (key_id,), {}, body, idempotency_key, request_timeout)


class AsyncLinksAndHooks:
    """The operations of “Links and hooks”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def get_signed_link(self, token: str, *, request_timeout: float | None = None) -> AsyncDownloading:
        """A file that was too large for its message.

        `GET /v1/links/{token}`. May say `attachment_not_found`, `export_not_found`.
        """
        return self._caller.download(operations.GET_SIGNED_LINK, (token,), {}, request_timeout)


class AsyncSignIn:
    """The operations of “Sign-in”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def create_session(
        self, body: bodies.SessionCreateRequest, *, request_timeout: float | None = None
    ) -> models.SignedIn:
        """Sign in with a password, and a code where two-step verification is on.

        `POST /v1/auth/session`. May say `invalid_credentials`, `too_many_attempts`, `totp_required`.
        """
        return await self._caller.call(operations.CREATE_SESSION, (), {}, body, None, request_timeout)

    async def delete_session(self, *, request_timeout: float | None = None) -> None:
        """Sign out.

        `DELETE /v1/auth/session`.
        """
        await self._caller.call(operations.DELETE_SESSION, (), {}, None, None, request_timeout)

    async def recover_session(
        self, body: bodies.RecoverRequest, *, request_timeout: float | None = None
    ) -> models.SignedIn:
        """Sign in with a password and a recovery code.

        `POST /v1/auth/recover`. May say `invalid_credentials`, `too_many_attempts`, `totp_required`.
        """
        return await self._caller.call(operations.RECOVER_SESSION, (), {}, body, None, request_timeout)

    async def get_passkey_request_options(
        self, *, request_timeout: float | None = None
    ) -> models.PasskeyRequestOptions:
        """What a browser signs in with a passkey by; the same for everybody.

        `POST /v1/auth/passkeys/options`.
        """
        return await self._caller.call(operations.GET_PASSKEY_REQUEST_OPTIONS, (), {}, None, None, request_timeout)

    async def create_passkey_session(
        self, body: bodies.PasskeySessionCreateRequest, *, request_timeout: float | None = None
    ) -> models.SignedIn:
        """Sign in with a passkey, which counts as both steps.

        `POST /v1/auth/passkeys`. May say `invalid_credentials`, `too_many_attempts`.
        """
        return await self._caller.call(operations.CREATE_PASSKEY_SESSION, (), {}, body, None, request_timeout)


class AsyncAccount:
    """The operations of “Account”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def get_account(self, *, request_timeout: float | None = None) -> models.AccountView:
        """Who is signed in, and how.

        `GET /v1/account`.
        """
        return await self._caller.call(operations.GET_ACCOUNT, (), {}, None, None, request_timeout)

    async def update_account(
        self, body: bodies.AccountUpdateRequest, *, request_timeout: float | None = None
    ) -> models.AccountView:
        """Change one's name.

        `PATCH /v1/account`.
        """
        return await self._caller.call(operations.UPDATE_ACCOUNT, (), {}, body, None, request_timeout)

    def list_account_mailboxes(
        self, *, limit: int | None = None, cursor: str | None = None, request_timeout: float | None = None
    ) -> AsyncPages[models.AccountMailboxPage, models.AccountMailbox]:
        """Mailboxes that one may open, the newest grant first.

        `GET /v1/account/mailboxes`. May say `cursor_expired`.
        """
        return self._caller.pages(operations.LIST_ACCOUNT_MAILBOXES, (), {"limit": limit}, cursor, request_timeout)

    async def change_password(
        self, body: bodies.PasswordChangeRequest, *, request_timeout: float | None = None
    ) -> None:
        """Change one's password; every other session ends.

        `POST /v1/account/password`. May say `invalid_credentials`, `too_many_attempts`.
        """
        await self._caller.call(operations.CHANGE_PASSWORD, (), {}, body, None, request_timeout)

    async def get_totp(self, *, request_timeout: float | None = None) -> models.TotpStatus:
        """Whether two-step verification is on.

        `GET /v1/account/totp`.
        """
        return await self._caller.call(operations.GET_TOTP, (), {}, None, None, request_timeout)

    async def enrol_totp(
        self, body: bodies.TotpEnrolRequest, *, request_timeout: float | None = None
    ) -> models.TotpEnrolment:
        """Begin two-step verification.

        `POST /v1/account/totp`. May say `invalid_credentials`, `too_many_attempts`, `totp_enabled`.
        """
        return await self._caller.call(operations.ENROL_TOTP, (), {}, body, None, request_timeout)

    async def confirm_totp(
        self, body: bodies.TotpConfirmRequest, *, request_timeout: float | None = None
    ) -> models.RecoveryCodes:
        """Turn two-step verification on.

        `POST /v1/account/totp/confirm`. May say `invalid_credentials`, `too_many_attempts`, `totp_enabled`,
        `totp_not_enabled`.
        """
        return await self._caller.call(operations.CONFIRM_TOTP, (), {}, body, None, request_timeout)

    async def disable_totp(self, body: bodies.BothStepsRequest, *, request_timeout: float | None = None) -> None:
        """Turn two-step verification off.

        `POST /v1/account/totp/disable`. May say `invalid_credentials`, `too_many_attempts`, `totp_not_enabled`.
        """
        await self._caller.call(operations.DISABLE_TOTP, (), {}, body, None, request_timeout)

    async def replace_recovery_codes(
        self, body: bodies.BothStepsRequest, *, request_timeout: float | None = None
    ) -> models.RecoveryCodes:
        """Ten new recovery codes; the old ones stop.

        `POST /v1/account/recovery-codes`. May say `invalid_credentials`, `too_many_attempts`, `totp_not_enabled`.
        """
        return await self._caller.call(operations.REPLACE_RECOVERY_CODES, (), {}, body, None, request_timeout)

    def list_app_passwords(
        self, *, limit: int | None = None, cursor: str | None = None, request_timeout: float | None = None
    ) -> AsyncPages[models.AppPasswordPage, models.AppPassword]:
        """Application passwords, newest first.

        `GET /v1/account/app-passwords`. May say `cursor_expired`.
        """
        return self._caller.pages(operations.LIST_APP_PASSWORDS, (), {"limit": limit}, cursor, request_timeout)

    async def create_app_password(
        self, body: bodies.AppPasswordCreateRequest, *, request_timeout: float | None = None
    ) -> models.AppPasswordCreated:
        """A password for one mail program, shown once.

        `POST /v1/account/app-passwords`. May say `app_password_limit_reached`, `invalid_credentials`,
        `too_many_attempts`, `totp_required`.
        """
        return await self._caller.call(operations.CREATE_APP_PASSWORD, (), {}, body, None, request_timeout)

    async def revoke_app_password(self, app_password_id: str, *, request_timeout: float | None = None) -> None:
        """Refuse an application password from now on.

        `DELETE /v1/account/app-passwords/{app_password_id}`. May say `app_password_not_found`.
        """
        await self._caller.call(operations.REVOKE_APP_PASSWORD, (app_password_id,), {}, None, None, request_timeout)

    def list_passkeys(
        self, *, limit: int | None = None, cursor: str | None = None, request_timeout: float | None = None
    ) -> AsyncPages[models.PasskeyPage, models.Passkey]:
        """Passkeys, newest first.

        `GET /v1/account/passkeys`. May say `cursor_expired`.
        """
        return self._caller.pages(operations.LIST_PASSKEYS, (), {"limit": limit}, cursor, request_timeout)

    async def create_passkey(
        self, body: bodies.PasskeyCreateRequest, *, request_timeout: float | None = None
    ) -> models.Passkey:
        """Keep the passkey that was made.

        `POST /v1/account/passkeys`. May say `invalid_credentials`, `passkey_limit_reached`, `passkey_registered`.
        """
        return await self._caller.call(operations.CREATE_PASSKEY, (), {}, body, None, request_timeout)

    async def get_passkey_creation_options(
        self, body: bodies.PasskeyOptionsRequest, *, request_timeout: float | None = None
    ) -> models.PasskeyCreationOptions:
        """What a browser makes a passkey from.

        `POST /v1/account/passkeys/options`. May say `invalid_credentials`, `passkey_limit_reached`,
        `too_many_attempts`, `totp_required`.
        """
        return await self._caller.call(operations.GET_PASSKEY_CREATION_OPTIONS, (), {}, body, None, request_timeout)

    async def update_passkey(
        self, passkey_id: str, body: bodies.PasskeyUpdateRequest, *, request_timeout: float | None = None
    ) -> models.Passkey:
        """Call a passkey something else.

        `PATCH /v1/account/passkeys/{passkey_id}`. May say `passkey_not_found`.
        """
        return await self._caller.call(operations.UPDATE_PASSKEY, (passkey_id,), {}, body, None, request_timeout)

    async def delete_passkey(self, passkey_id: str, *, request_timeout: float | None = None) -> None:
        """Remove a passkey; what it opened ends.

        `DELETE /v1/account/passkeys/{passkey_id}`. May say `passkey_not_found`.
        """
        await self._caller.call(operations.DELETE_PASSKEY, (passkey_id,), {}, None, None, request_timeout)

    def list_sessions(
        self, *, limit: int | None = None, cursor: str | None = None, request_timeout: float | None = None
    ) -> AsyncPages[models.SessionPage, models.Session]:
        """Live sessions, newest first.

        `GET /v1/account/sessions`. May say `cursor_expired`.
        """
        return self._caller.pages(operations.LIST_SESSIONS, (), {"limit": limit}, cursor, request_timeout)

    async def revoke_other_sessions(self, *, request_timeout: float | None = None) -> None:
        """Sign out everywhere else.

        `DELETE /v1/account/sessions`.
        """
        await self._caller.call(operations.REVOKE_OTHER_SESSIONS, (), {}, None, None, request_timeout)

    async def revoke_session(self, session_id: str, *, request_timeout: float | None = None) -> None:
        """End a session.

        `DELETE /v1/account/sessions/{session_id}`. May say `session_not_found`.
        """
        await self._caller.call(operations.REVOKE_SESSION, (session_id,), {}, None, None, request_timeout)

    def list_devices(
        self, *, limit: int | None = None, cursor: str | None = None, request_timeout: float | None = None
    ) -> AsyncPages[models.DevicePage, models.Device]:
        """Devices, newest first.

        `GET /v1/account/devices`. May say `cursor_expired`.
        """
        return self._caller.pages(operations.LIST_DEVICES, (), {"limit": limit}, cursor, request_timeout)

    async def revoke_device(self, device_id: str, *, request_timeout: float | None = None) -> None:
        """Revoke a device and end its sessions.

        `DELETE /v1/account/devices/{device_id}`. May say `device_not_found`.
        """
        await self._caller.call(operations.REVOKE_DEVICE, (device_id,), {}, None, None, request_timeout)


class AsyncPeople:
    """The operations of “People”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def list_people(
        self,
        tenant_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.PersonPage, models.Person]:
        """People of a tenant, newest first.

        `GET /v1/tenants/{tenant_id}/people`; wants `members:read`. May say `cursor_expired`, `person_not_found`,
        `tenant_not_found`.
        """
        return self._caller.pages(operations.LIST_PEOPLE, (tenant_id,), {"limit": limit}, cursor, request_timeout)

    async def create_person(
        self, tenant_id: str, body: bodies.PersonCreateRequest, *, request_timeout: float | None = None
    ) -> models.Person:
        """Make a person, with a mailbox of their own or as a member.

        `POST /v1/tenants/{tenant_id}/people`; wants `members:manage`. May say `address_invalid`,
        `address_reserved`, `address_taken`, `address_unsupported`, `local_part_too_long`, `tenant_not_found`,
        `username_taken`.
        """
        return await self._caller.call(operations.CREATE_PERSON, (tenant_id,), {}, body, None, request_timeout)

    async def get_person(
        self, tenant_id: str, person_id: str, *, request_timeout: float | None = None
    ) -> models.Person:
        """A person.

        `GET /v1/tenants/{tenant_id}/people/{person_id}`; wants `members:read`. May say `person_not_found`,
        `tenant_not_found`.
        """
        return await self._caller.call(operations.GET_PERSON, (tenant_id, person_id), {}, None, None, request_timeout)

    async def update_person(
        self, tenant_id: str, person_id: str, body: bodies.PersonUpdateRequest, *, request_timeout: float | None = None
    ) -> models.Person:
        """Rename, enable, disable, or give a new password.

        `PATCH /v1/tenants/{tenant_id}/people/{person_id}`; wants `members:manage`. May say `owner_required`,
        `person_not_found`, `tenant_not_found`.
        """
        return await self._caller.call(
            operations.UPDATE_PERSON, (tenant_id, person_id), {}, body, None, request_timeout
        )

    async def remove_person(self, tenant_id: str, person_id: str, *, request_timeout: float | None = None) -> None:
        """Take a person from the tenant; mail stays.

        `DELETE /v1/tenants/{tenant_id}/people/{person_id}`; wants `members:manage`. May say `owner_required`,
        `person_not_found`, `tenant_not_found`.
        """
        await self._caller.call(operations.REMOVE_PERSON, (tenant_id, person_id), {}, None, None, request_timeout)

    def list_grants(
        self,
        tenant_id: str,
        person_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.GrantPage, models.Grant]:
        """Mailboxes that a person may open, newest first.

        `GET /v1/tenants/{tenant_id}/people/{person_id}/grants`; wants `members:read`. May say `cursor_expired`,
        `person_not_found`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_GRANTS, (tenant_id, person_id), {"limit": limit}, cursor, request_timeout
        )

    async def put_grant(
        self,
        tenant_id: str,
        person_id: str,
        identity_id: str,
        body: bodies.GrantPutRequest,
        *,
        request_timeout: float | None = None,
    ) -> None:
        """Let a person open a mailbox.

        `PUT /v1/tenants/{tenant_id}/people/{person_id}/grants/{identity_id}`; wants `members:manage`. May say
        `identity_not_found`, `person_not_found`, `tenant_not_found`.
        """
        await self._caller.call(
            operations.PUT_GRANT, (tenant_id, person_id, identity_id), {}, body, None, request_timeout
        )

    async def remove_grant(
        self, tenant_id: str, person_id: str, identity_id: str, *, request_timeout: float | None = None
    ) -> None:
        """Let a person open a mailbox no more.

        `DELETE /v1/tenants/{tenant_id}/people/{person_id}/grants/{identity_id}`; wants `members:manage`. May say
        `grant_not_found`, `person_not_found`, `tenant_not_found`.
        """
        await self._caller.call(
            operations.REMOVE_GRANT, (tenant_id, person_id, identity_id), {}, None, None, request_timeout
        )

    async def get_person_totp(
        self, tenant_id: str, person_id: str, *, request_timeout: float | None = None
    ) -> models.TotpStatus:
        """Whether a person has two-step verification.

        `GET /v1/tenants/{tenant_id}/people/{person_id}/totp`; wants `members:read`. May say `person_not_found`,
        `tenant_not_found`.
        """
        return await self._caller.call(
            operations.GET_PERSON_TOTP, (tenant_id, person_id), {}, None, None, request_timeout
        )

    def list_person_app_passwords(
        self,
        tenant_id: str,
        person_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.AppPasswordPage, models.AppPassword]:
        """A person's application passwords, newest first.

        `GET /v1/tenants/{tenant_id}/people/{person_id}/app-passwords`; wants `members:read`. May say
        `cursor_expired`, `owner_required`, `person_not_found`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_PERSON_APP_PASSWORDS, (tenant_id, person_id), {"limit": limit}, cursor, request_timeout
        )

    async def revoke_person_app_password(
        self, tenant_id: str, person_id: str, app_password_id: str, *, request_timeout: float | None = None
    ) -> None:
        """Refuse an application password from now on.

        `DELETE /v1/tenants/{tenant_id}/people/{person_id}/app-passwords/{app_password_id}`; wants `members:manage`.
        May say `app_password_not_found`, `owner_required`, `person_not_found`, `tenant_not_found`.
        """
        await self._caller.call(
            operations.REVOKE_PERSON_APP_PASSWORD,
            (tenant_id, person_id, app_password_id),
            {},
            None,
            None,
            request_timeout,
        )

    async def revoke_person_sessions(
        self, tenant_id: str, person_id: str, *, request_timeout: float | None = None
    ) -> None:
        """Sign a person out everywhere.

        `DELETE /v1/tenants/{tenant_id}/people/{person_id}/sessions`; wants `members:manage`. May say
        `owner_required`, `person_not_found`, `tenant_not_found`.
        """
        await self._caller.call(
            operations.REVOKE_PERSON_SESSIONS, (tenant_id, person_id), {}, None, None, request_timeout
        )


class AsyncMembers:
    """The operations of “Members”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def list_members(self, tenant_id: str, *, request_timeout: float | None = None) -> models.MemberList:
        """Members of a tenant, and who is invited.

        `GET /v1/tenants/{tenant_id}/members`; wants `members:read`. May say `tenant_not_found`.
        """
        return await self._caller.call(operations.LIST_MEMBERS, (tenant_id,), {}, None, None, request_timeout)

    async def create_invitation(
        self,
        tenant_id: str,
        body: bodies.InvitationCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.Invitation:
        """Invite somebody by mail, or once more.

        `POST /v1/tenants/{tenant_id}/invitations`; wants `members:manage`. May say `billing_limit`,
        `daily_cap_reached`, `tenant_not_found`.
        """
        return await self._caller.call(
            operations.CREATE_INVITATION, (tenant_id,), {}, body, idempotency_key, request_timeout
        )

    async def revoke_invitation(
        self, tenant_id: str, invitation_id: str, *, request_timeout: float | None = None
    ) -> None:
        """Take an invitation back.

        `DELETE /v1/tenants/{tenant_id}/invitations/{invitation_id}`; wants `members:manage`. May say
        `invitation_not_found`, `tenant_not_found`.
        """
        await self._caller.call(
            operations.REVOKE_INVITATION, (tenant_id, invitation_id), {}, None, None, request_timeout
        )

    async def remove_member(self, tenant_id: str, user_id: str, *, request_timeout: float | None = None) -> None:
        """Take a member out of the tenant; mail stays.

        `DELETE /v1/tenants/{tenant_id}/members/{user_id}`; wants `members:manage`. May say `member_not_found`,
        `owner_required`, `tenant_not_found`.
        """
        await self._caller.call(operations.REMOVE_MEMBER, (tenant_id, user_id), {}, None, None, request_timeout)

    async def accept_invitation(
        self, body: bodies.InvitationAcceptRequest, *, request_timeout: float | None = None
    ) -> models.JoinedTenant:
        """Accept an invitation that was sent to one's own address.

        `POST /v1/account/invitations/accept`. May say `invitation_not_found`.
        """
        return await self._caller.call(operations.ACCEPT_INVITATION, (), {}, body, None, request_timeout)

    async def join_by_invitation(
        self, body: bodies.InvitationJoinRequest, *, request_timeout: float | None = None
    ) -> models.JoinedTenant:
        """Accept an invitation, and choose a password to sign in with.

        `POST /v1/auth/invitation`. May say `address_taken`, `invitation_not_found`.
        """
        return await self._caller.call(operations.JOIN_BY_INVITATION, (), {}, body, None, request_timeout)


class AsyncWebhooks:
    """The operations of “Webhooks”."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def create_platform_webhook(
        self,
        body: bodies.WebhookCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.WebhookCreated:
        """Have events sent somewhere: of every tenant, or of a partner's; the secret is shown this once.

        `POST /v1/webhooks`; wants `webhooks:manage`. May say `webhook_limit_reached`.
        """
        return await self._caller.call(
            operations.CREATE_PLATFORM_WEBHOOK, (), {}, body, idempotency_key, request_timeout
        )

    def list_webhooks(
        self, *, limit: int | None = None, cursor: str | None = None, request_timeout: float | None = None
    ) -> AsyncPages[models.WebhookPage, models.Webhook]:
        """The platform's webhooks, a partner's, or a tenant's, whoever asks, newest first.

        `GET /v1/webhooks`; wants `webhooks:read`. May say `cursor_expired`.
        """
        return self._caller.pages(operations.LIST_WEBHOOKS, (), {"limit": limit}, cursor, request_timeout)

    async def create_tenant_webhook(
        self,
        tenant_id: str,
        body: bodies.WebhookCreateRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.WebhookCreated:
        """Have events of a tenant sent somewhere; the secret is shown this once.

        `POST /v1/tenants/{tenant_id}/webhooks`; wants `webhooks:manage`. May say `tenant_not_found`,
        `webhook_limit_reached`.
        """
        return await self._caller.call(
            operations.CREATE_TENANT_WEBHOOK, (tenant_id,), {}, body, idempotency_key, request_timeout
        )

    def list_tenant_webhooks(
        self,
        tenant_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.WebhookPage, models.Webhook]:
        """Webhooks of a tenant, newest first.

        `GET /v1/tenants/{tenant_id}/webhooks`; wants `webhooks:read`. May say `cursor_expired`, `tenant_not_found`.
        """
        return self._caller.pages(
            operations.LIST_TENANT_WEBHOOKS, (tenant_id,), {"limit": limit}, cursor, request_timeout
        )

    async def get_webhook(self, webhook_id: str, *, request_timeout: float | None = None) -> models.Webhook:
        """A webhook, without its secret.

        `GET /v1/webhooks/{webhook_id}`; wants `webhooks:read`. May say `webhook_not_found`.
        """
        return await self._caller.call(operations.GET_WEBHOOK, (webhook_id,), {}, None, None, request_timeout)

    async def update_webhook(
        self, webhook_id: str, body: bodies.WebhookUpdateRequest, *, request_timeout: float | None = None
    ) -> models.Webhook:
        """Change a webhook; another URL gets nothing until a test of it succeeds.

        `PATCH /v1/webhooks/{webhook_id}`; wants `webhooks:manage`. May say `webhook_not_found`.
        """
        return await self._caller.call(operations.UPDATE_WEBHOOK, (webhook_id,), {}, body, None, request_timeout)

    async def delete_webhook(self, webhook_id: str, *, request_timeout: float | None = None) -> None:
        """Delete a webhook, with what it was and was still to be sent.

        `DELETE /v1/webhooks/{webhook_id}`; wants `webhooks:manage`. May say `webhook_not_found`.
        """
        await self._caller.call(operations.DELETE_WEBHOOK, (webhook_id,), {}, None, None, request_timeout)

    async def rotate_webhook_secret(
        self,
        webhook_id: str,
        body: bodies.RotateRequest | None = None,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.WebhookCreated:
        """Give a webhook a new secret, shown this once; for the overlap both sign.

        `POST /v1/webhooks/{webhook_id}/rotate-secret`; wants `webhooks:manage`. May say `webhook_not_found`.
        """
        return await self._caller.call(
            operations.ROTATE_WEBHOOK_SECRET, (webhook_id,), {}, body, idempotency_key, request_timeout
        )

    async def test_webhook(
        self, webhook_id: str, *, idempotency_key: str | None = None, request_timeout: float | None = None
    ) -> models.WebhookDelivery:
        """Send a test event now, once.

        `POST /v1/webhooks/{webhook_id}/test`; wants `webhooks:manage`. May say `webhook_not_found`.
        """
        return await self._caller.call(
            operations.TEST_WEBHOOK, (webhook_id,), {}, None, idempotency_key, request_timeout
        )

    def list_webhook_deliveries(
        self,
        webhook_id: str,
        *,
        status: Literal["succeeded", "failed", "dead"] | None = None,
        event_type: values.EventType | None = None,
        after: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        request_timeout: float | None = None,
    ) -> AsyncPages[models.WebhookDeliveryPage, models.WebhookDelivery]:
        """Attempts to send to a webhook, newest first.

        `GET /v1/webhooks/{webhook_id}/deliveries`; wants `webhooks:read`. May say `cursor_expired`,
        `webhook_not_found`.
        """
        return self._caller.pages(
            operations.LIST_WEBHOOK_DELIVERIES,
            (webhook_id,),
            {"status": status, "event_type": event_type, "after": after, "limit": limit},
            cursor,
            request_timeout,
        )

    async def replay_webhook_events(
        self,
        webhook_id: str,
        body: bodies.ReplayRequest,
        *,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
    ) -> models.ReplayResponse:
        """Send events again, by their ids or all of a window.

        `POST /v1/webhooks/{webhook_id}/replay`; wants `webhooks:manage`. May say `webhook_not_found`.
        """
        return await self._caller.call(
            operations.REPLAY_WEBHOOK_EVENTS, (webhook_id,), {}, body, idempotency_key, request_timeout
        )


class AsyncResources:
    """All of them, as a client has them."""

    def __init__(self, caller: AsyncCaller) -> None:
        self.meta = AsyncMeta(caller)
        self.tenants = AsyncTenants(caller)
        self.partners = AsyncPartners(caller)
        self.identities = AsyncIdentities(caller)
        self.addresses = AsyncAddresses(caller)
        self.lists = AsyncLists(caller)
        self.audit = AsyncAudit(caller)
        self.aliases = AsyncAliases(caller)
        self.messages = AsyncMessages(caller)
        self.sending = AsyncSending(caller)
        self.folders = AsyncFolders(caller)
        self.threads = AsyncThreads(caller)
        self.search = AsyncSearch(caller)
        self.events = AsyncEvents(caller)
        self.platform = AsyncPlatform(caller)
        self.keys = AsyncKeys(caller)
        self.links_and_hooks = AsyncLinksAndHooks(caller)
        self.sign_in = AsyncSignIn(caller)
        self.account = AsyncAccount(caller)
        self.people = AsyncPeople(caller)
        self.members = AsyncMembers(caller)
        self.webhooks = AsyncWebhooks(caller)
