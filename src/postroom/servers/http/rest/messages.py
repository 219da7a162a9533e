"""Messages: list, read, change labels and read state (rest-api §5.10)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import Field, model_validator
from starlette.responses import Response

from postroom.accounts.permissions import Permission
from postroom.base.errors import PostroomError
from postroom.base.ids import milliseconds
from postroom.mailbox.models import FLAG_SEEN, Direction
from postroom.mailbox.queries import Include, Key, MessageFilter, MessageView
from postroom.mailbox.rules import LimitExceeded
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.cursors import Position
from postroom.servers.http.failures import invalid
from postroom.servers.http.fields import NotNull
from postroom.servers.http.rest import message_schemas as schemas
from postroom.servers.http.rest.texts import IncludeName, Texts, columns
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import ALL_LEVELS, Bucket, Idempotency, Reach, RouteTable, Rule

MAX_LABELS: Final = 64
"""Labels that one request names."""

IncludeList = Annotated[
    list[IncludeName] | None, fields.CommaList, fields.Unique, Field(json_schema_extra={"uniqueItems": True})
]
ListInclude = Annotated[
    list[Literal["placements"]] | None, fields.CommaList, fields.Unique, Field(json_schema_extra={"uniqueItems": True})
]
_REVIEW: Final = frozenset({Permission.QUARANTINE_REVIEW})


class ListMessages(fields.Query):
    thread_id: fields.ThreadId | None = None
    direction: Direction | None = None
    status: schemas.MessageStatus | None = None
    label: fields.Label | None = None
    folder: fields.FolderId | None = None
    include: ListInclude = None
    after: fields.Time | None = None
    before: fields.Time | None = None
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class GetMessage(fields.Query):
    include: IncludeList = None


class LabelChanges(fields.RequestBody):
    """What the changes of a message and of a thread have in common."""

    labels_add: Annotated[Annotated[list[fields.StrictLabel], Field(max_length=MAX_LABELS)] | None, NotNull()] = None
    labels_remove: Annotated[Annotated[list[fields.StrictLabel], Field(max_length=MAX_LABELS)] | None, NotNull()] = None
    read: Annotated[fields.Flag | None, NotNull()] = None

    @model_validator(mode="after")
    def _not_empty(self) -> LabelChanges:
        if not self.model_fields_set:
            raise ValueError("must change something")
        return self

    def flags(self) -> tuple[list[str], list[str]]:
        """Flags to add and to remove (A5: `read` is `$seen`)."""
        add, remove = list(self.labels_add or ()), list(self.labels_remove or ())
        if self.read is not None:
            (add if self.read else remove).append(FLAG_SEEN)
        return add, remove


class MessageUpdateRequest(LabelChanges):
    pass


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._mailboxes = services.mailboxes
        self._queries = services.mailboxes.queries
        self._texts = Texts(services.database, services.blobs, services.parser)

    async def list(
        self, identity_id: fields.IdentityId, query: Annotated[ListMessages, Query()], call: CurrentCall
    ) -> Response:
        filters = query.model_dump(exclude={"limit", "cursor", "include"})
        before = key_of(call.position(query.cursor, **filters))
        if query.status in schemas.INVISIBLE and not call.may_review:
            return page([], None)
        folder = None
        if query.folder is not None:
            found = await self._mailboxes.folder_by_id(call.mailbox, query.folder, sees_quarantine=call.may_review)
            folder = found.id
        where = MessageFilter(
            thread_id=query.thread_id,
            direction=query.direction,
            status=None if query.status is None else query.status.value,
            label=query.label,
            folder=folder,
            after=query.after,
            before=query.before,
        )
        views = await self._queries.list_messages(call.mailbox, where, before=before, limit=query.limit + 1)
        more, views = len(views) > query.limit, views[: query.limit]
        next_cursor = call.cursor(position_of(views[-1].key), **filters) if more else None
        shown = await self._texts.shapes(
            call.mailbox, views, list(query.include or ()), sees_quarantine=call.may_review
        )
        return page(shown, next_cursor)

    async def get(
        self,
        identity_id: fields.IdentityId,
        message_id: fields.MessageId,
        query: Annotated[GetMessage, Query()],
        call: CurrentCall,
    ) -> Response:
        include = query.include or ()
        view = await self._queries.get_message(call.mailbox, message_id, include=columns(include))
        check_visible(call, view)
        shown = await self._texts.shapes(call.mailbox, [view], list(include), sees_quarantine=call.may_review)
        return JsonAnswer(shown[0])

    async def update(
        self,
        identity_id: fields.IdentityId,
        message_id: fields.MessageId,
        body: MessageUpdateRequest,
        call: CurrentCall,
    ) -> Response:
        if not call.may_review:
            check_visible(call, await self._queries.get_message(call.mailbox, message_id, include=Include.NONE))
        add, remove = body.flags()
        try:
            await self._mailboxes.change_message(call.mailbox, message_id, add=add, remove=remove)
        except LimitExceeded:
            raise too_many_labels() from None
        view = await self._queries.get_message(call.mailbox, message_id)
        return JsonAnswer((await self._texts.shapes(call.mailbox, [view]))[0])


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(services)
    reading = reading_rule("Messages", Permission.MESSAGES_READ)
    table.add(
        Rule(
            "GET",
            "/v1/identities/{identity_id}/messages",
            "listMessages",
            reads_mail=True,
            conditional=_REVIEW,
            errors={
                400: ("invalid_request",),
                404: ("identity_not_found", "folder_not_found"),
                410: ("cursor_expired",),
            },
            **reading,
        ),
        routes.list,
        summary="Messages, newest first",
        answers={200: schemas.MessagePage},
    )
    table.add(
        Rule(
            "GET",
            "/v1/identities/{identity_id}/messages/{message_id}",
            "getMessage",
            reads_mail=True,
            conditional=_REVIEW,
            errors={400: ("invalid_request",), 404: ("identity_not_found", "message_not_found")},
            **reading,
        ),
        routes.get,
        summary="A message",
        answers={200: schemas.Message},
    )
    table.add(
        Rule(
            "PATCH",
            "/v1/identities/{identity_id}/messages/{message_id}",
            "updateMessage",
            body=True,
            errors={404: ("identity_not_found", "message_not_found")},
            **reading_rule("Messages", Permission.MESSAGES_WRITE),
        ),
        routes.update,
        summary="Change labels and read state",
        answers={200: schemas.Message},
    )


def reading_rule(tag: str, permission: Permission) -> dict[str, Any]:
    """What the rules of a mailbox's routes have in common."""
    return {
        "tag": tag,
        "reach": Reach.IDENTITY_PATH,
        "permissions": frozenset({permission}),
        "levels": ALL_LEVELS,
        "bucket": Bucket.API,
        "idempotency": Idempotency.NONE,
    }


def check_visible(call: Call, view: MessageView) -> None:
    """Raises `message_not_found` for hidden mail without `quarantine:review` (A4.4)."""
    if view.status in schemas.INVISIBLE and not call.may_review:
        raise PostroomError("message_not_found")


def too_many_labels() -> PostroomError:
    return invalid("labels_add", f"a message has at most {MAX_LABELS} labels")


def position_of(key: Key) -> Position:
    """A place in a list as a cursor holds it: milliseconds, the precision of the database, and the row's number."""
    return milliseconds(key[0]), key[1]


def key_of(position: Position | None) -> Key | None:
    """Inverse of `position_of`."""
    if position is None:
        return None
    return datetime.fromtimestamp(int(position[0]) / 1000, UTC), int(position[1])


__all__ = ["check_visible", "key_of", "position_of", "reading_rule", "register", "too_many_labels"]
