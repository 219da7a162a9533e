"""Folders of a mailbox (decisions E; mail-server D2; sync-webmail-client B4)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import Field, StrictStr, StringConstraints, model_validator
from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.accounts.models import PrincipalKind
from postroom.accounts.permissions import Permission
from postroom.base.errors import PostroomError
from postroom.mailbox.expunge import MessagesInUse
from postroom.mailbox.models import Folder as FolderRow
from postroom.mailbox.models import SpecialUse
from postroom.mailbox.rules import MAX_PATH_BYTES, SEPARATOR, folder_order
from postroom.mailbox.tree import Below, FolderChange, is_known
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.bodies import JsonRequest
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.operations import Kept
from postroom.servers.http.rest.messages import reading_rule
from postroom.servers.http.rest.once import IdempotencyKey
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Idempotency, RouteTable, Rule

PATH: Final = "/v1/identities/{identity_id}/folders"
ONE: Final = f"{PATH}/{{folder_id}}"

FolderName = Annotated[StrictStr, StringConstraints(min_length=1, max_length=MAX_PATH_BYTES), fields.Storable]


class FolderCreateRequest(fields.RequestBody):
    """`name` is the whole path, `/` between its parts; with `parent_id` it stands below that folder. Parents that are
    missing are made, too.
    """

    name: FolderName
    parent_id: fields.FolderId | None = None
    special_use: Annotated[SpecialUse | None, NotNull()] = None
    subscribed: fields.Flag = True


class FolderUpdateRequest(fields.RequestBody):
    """What is left out stays as it is. `parent_id` moves the folder below another one, or (null) to the top; `name` is
    then what it is called there, else its whole path. What is below it goes along.
    """

    name: Annotated[FolderName | None, NotNull()] = None
    parent_id: fields.FolderId | None = None
    subscribed: Annotated[fields.Flag | None, NotNull()] = None

    @model_validator(mode="after")
    def _not_empty(self) -> FolderUpdateRequest:
        if not self.model_fields_set:
            raise ValueError("must change something")
        return self

    def change(self) -> FolderChange:
        place = Below(self.parent_id) if "parent_id" in self.model_fields_set else None
        return FolderChange(self.name, place, self.subscribed)


class ListFolders(fields.Query):
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class DeleteFolder(fields.Query):
    expunge: bool = False


Count = Annotated[int, Field(ge=0)]


class Folder(Answer):
    """A folder. `name` is the whole path; `uid_validity` and `uid_next` are those of IMAP."""

    id: fields.FolderId
    identity_id: fields.IdentityId
    name: str
    parent_id: fields.FolderId | None
    special_use: SpecialUse | None
    subscribed: bool
    message_count: Count
    unseen_count: Count
    total_bytes: Count
    uid_validity: Annotated[int, Field(ge=1)]
    uid_next: Annotated[int, Field(ge=1)]


class FolderPage(Answer):
    data: list[Folder]
    next_cursor: str | None


def shape(folder: FolderRow, identity_id: str, parent_id: str | None) -> Json:
    """A Folder."""
    return {
        "id": folder.public_id,
        "identity_id": identity_id,
        "name": folder.name,
        "parent_id": parent_id,
        "special_use": None if folder.special_use is None else folder.special_use.value,
        "subscribed": folder.subscribed,
        "message_count": folder.message_count,
        "unseen_count": folder.unseen_count,
        "total_bytes": folder.total_bytes,
        "uid_validity": folder.uid_validity,
        "uid_next": folder.uid_next,
    }


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._mailboxes = services.mailboxes

    async def list(
        self, identity_id: fields.IdentityId, query: Annotated[ListFolders, Query()], call: CurrentCall
    ) -> Response:
        position = call.position(query.cursor)
        listed = await self._mailboxes.list_folders(call.mailbox)
        ids = {folder.name: folder.public_id for folder in listed}
        known = [folder for folder in listed if is_known(folder, call.may_review)]
        if position is not None:
            last = folder_order(str(position[0]))
            known = [folder for folder in known if folder_order(folder.name) > last]
        shown = known[: query.limit]
        following = call.cursor((shown[-1].name, shown[-1].public_id)) if len(known) > len(shown) else None
        identity = call.the_identity.public_id
        return page([shape(one, identity, ids.get(above(one.name))) for one in shown], following)

    async def create(
        self,
        identity_id: fields.IdentityId,
        body: FolderCreateRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        once: Kept[str] | None = None
        if idempotency_key is not None:
            assert isinstance(call.request, JsonRequest)
            once = Kept(
                call,
                idempotency.check_key(idempotency_key),
                body.model_dump(mode="json"),
                lambda made: {"$ref": {"folder_id": made}},
                lambda kept: str(kept["$ref"]["folder_id"]),
            )
        made, replayed = await self._mailboxes.make_folder(
            call.mailbox,
            body.name,
            None if body.parent_id is None else Below(body.parent_id),
            body.special_use,
            subscribed=body.subscribed,
            sees_quarantine=call.may_review,
            once=once,
        )
        headers = {"Idempotent-Replayed": "true"} if replayed else None
        return JsonAnswer(await self._shape(call, made), 201, headers)

    async def get(self, identity_id: fields.IdentityId, folder_id: fields.FolderId, call: CurrentCall) -> Response:
        return JsonAnswer(await self._shape(call, await self._find(call, folder_id)))

    async def update(
        self,
        identity_id: fields.IdentityId,
        folder_id: fields.FolderId,
        body: FolderUpdateRequest,
        call: CurrentCall,
    ) -> Response:
        changed = await self._mailboxes.change_folder(
            call.mailbox, folder_id, body.change(), sees_quarantine=call.may_review
        )
        return JsonAnswer(await self._shape(call, changed))

    async def delete(
        self,
        identity_id: fields.IdentityId,
        folder_id: fields.FolderId,
        query: Annotated[DeleteFolder, Query()],
        call: CurrentCall,
    ) -> Response:
        if query.expunge:
            check_may_remove(call)
        folder = await self._find(call, folder_id)
        try:
            await self._mailboxes.delete_folder(call.mailbox, folder.id, only_empty=not query.expunge)
        except MessagesInUse:
            raise PostroomError("folder_not_empty", details={"reason": "in_use"}) from None
        return Response(status_code=204)

    async def _find(self, call: Call, folder_id: str) -> FolderRow:
        return await self._mailboxes.folder_by_id(call.mailbox, folder_id, sees_quarantine=call.may_review)

    async def _shape(self, call: Call, folder: FolderRow) -> Json:
        parent: str | None = None
        if SEPARATOR in folder.name:
            try:
                parent = (await self._mailboxes.folder(call.mailbox, above(folder.name))).public_id
            except PostroomError:
                parent = None  # renamed since
        return shape(folder, call.the_identity.public_id, parent)


def above(name: str) -> str:
    """The path of the folder above; empty at the top."""
    return name.rpartition(SEPARATOR)[0]


def check_may_remove(call: Call) -> None:
    """Raises `permission_denied` for a key that may not erase: what it removed would be gone for good (mail-server
    D1). People who may change a mailbox may do so, as over IMAP.
    """
    if call.principal.kind is PrincipalKind.KEY:
        call.require(Permission.ERASURE_MANAGE)


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(services)
    reading = reading_rule("Folders", Permission.MESSAGES_READ)
    writing: dict[str, Any] = reading_rule("Folders", Permission.MESSAGES_WRITE)
    review = frozenset({Permission.QUARANTINE_REVIEW})
    missing = ("identity_not_found", "folder_not_found")
    table.add(
        Rule(
            *("GET", PATH, "listFolders"),
            conditional=review,
            errors={400: ("invalid_request",), 404: ("identity_not_found",), 410: ("cursor_expired",)},
            **reading,
        ),
        routes.list,
        summary="Folders, INBOX first, then by the alphabet",
        answers={200: FolderPage},
    )
    table.add(
        Rule(
            *("POST", PATH, "createFolder"),
            body=True,
            errors={404: missing, 409: ("folder_exists",)},
            **writing | {"idempotency": Idempotency.OPTIONAL},
        ),
        routes.create,
        summary="Make a folder",
        answers={201: Folder},
    )
    table.add(
        Rule(*("GET", ONE, "getFolder"), conditional=review, errors={404: missing}, **reading),
        routes.get,
        summary="A folder",
        answers={200: Folder},
    )
    table.add(
        Rule(
            *("PATCH", ONE, "updateFolder"),
            body=True,
            errors={404: missing, 409: ("folder_exists",)},
            **writing,
        ),
        routes.update,
        summary="Rename, move or subscribe a folder",
        answers={200: Folder},
    )
    table.add(
        Rule(
            *("DELETE", ONE, "deleteFolder"),
            conditional=frozenset({Permission.ERASURE_MANAGE}),
            errors={400: ("invalid_request",), 404: missing, 409: ("folder_not_empty",)},
            **writing,
        ),
        routes.delete,
        summary="Remove a folder; with `expunge=true` what is in it, too, for good",
        answers={204: None},
    )
