"""Allow and block lists of a tenant, for mail that comes and mail that goes (rest-api §5.16)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Body
from starlette.responses import Response

from postroom.accounts.permissions import Permission
from postroom.directory import ListDirection, ListKind, Lists
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import CurrentCall, actor
from postroom.servers.http.rest import directory_schemas
from postroom.servers.http.rest.account import Listing, listing
from postroom.servers.http.rest.directory_schemas import EntryInPath
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import NOT_IDENTITY, Bucket, Idempotency, Reach, RouteTable, Rule

Note = Annotated[directory_schemas.ListEntryPutRequest, Body()]


class _Routes:
    def __init__(self, lists: Lists) -> None:
        self._lists = lists

    async def list(
        self,
        tenant_id: fields.TenantId,
        direction: ListDirection,
        kind: ListKind,
        query: Listing,
        call: CurrentCall,
    ) -> Response:
        tenant = call.the_tenant
        return await listing(
            call,
            query,
            lambda limit, after: self._lists.page(tenant.id, direction, kind, limit=limit, after=after),
            lambda one: one.entry,
            objects.list_entry,
        )

    async def get(
        self,
        tenant_id: fields.TenantId,
        direction: ListDirection,
        kind: ListKind,
        entry: EntryInPath,
        call: CurrentCall,
    ) -> Response:
        return JsonAnswer(objects.list_entry(await self._lists.get(call.the_tenant.id, direction, kind, entry)))

    async def put(
        self,
        tenant_id: fields.TenantId,
        direction: ListDirection,
        kind: ListKind,
        entry: EntryInPath,
        call: CurrentCall,
        body: Note = directory_schemas.ListEntryPutRequest(),  # noqa: B008 - frozen, and what FastAPI asks for
    ) -> Response:
        made = await self._lists.put(call.the_tenant.id, direction, kind, entry, body.note, by=actor(call))
        return JsonAnswer(objects.list_entry(made))

    async def delete(
        self,
        tenant_id: fields.TenantId,
        direction: ListDirection,
        kind: ListKind,
        entry: EntryInPath,
        call: CurrentCall,
    ) -> Response:
        await self._lists.delete(call.the_tenant.id, direction, kind, entry, by=actor(call))
        return Response(status_code=204)


_COMMON: Final[dict[str, Any]] = {
    "tag": "Lists",
    "bucket": Bucket.API,
    "reach": Reach.TENANT_PATH,
    "levels": NOT_IDENTITY,
    "permissions": frozenset({Permission.SUPPRESSIONS_MANAGE}),
    "idempotency": Idempotency.NONE,
}
_LIST: Final = "/v1/tenants/{tenant_id}/lists/{direction}/{kind}"
_ENTRY: Final = f"{_LIST}/{{entry}}"
_ONE: Final[dict[str, Any]] = {
    **_COMMON,
    "with_slashes": frozenset({"entry"}),
    "errors": {400: ("invalid_request",), 404: ("tenant_not_found", "list_entry_not_found")},
}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if this deployment has lists."""
    if services.lists is None:
        return
    routes = _Routes(services.lists)
    table.add(
        Rule(
            "GET",
            _LIST,
            "listListEntries",
            errors={400: ("invalid_request",), 404: ("tenant_not_found",), 410: ("cursor_expired",)},
            **_COMMON,
        ),
        routes.list,
        summary="Entries of an allow or block list, newest first",
        answers={200: directory_schemas.ListEntryPage},
    )
    table.add(
        Rule("GET", _ENTRY, "getListEntry", **_ONE),
        routes.get,
        summary="An entry of a list",
        answers={200: directory_schemas.ListEntry},
    )
    table.add(
        Rule("PUT", _ENTRY, "putListEntry", body=True, body_required=False, **_ONE),
        routes.put,
        summary="Add an entry, or change its note",
        answers={200: directory_schemas.ListEntry},
    )
    table.add(
        Rule("DELETE", _ENTRY, "deleteListEntry", **_ONE),
        routes.delete,
        summary="Remove an entry",
        answers={204: None},
    )
