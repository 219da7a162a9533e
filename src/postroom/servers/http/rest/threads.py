"""Threads: list, read, change (rest-api §5.9)."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from postroom.accounts.permissions import Permission
from postroom.mailbox.models import Direction
from postroom.mailbox.queries import ThreadFilter
from postroom.mailbox.rules import LimitExceeded
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.fields import NotNull
from postroom.servers.http.rest import message_schemas as schemas
from postroom.servers.http.rest import shapes
from postroom.servers.http.rest.messages import (
    IncludeList,
    LabelChanges,
    key_of,
    position_of,
    reading_rule,
    too_many_labels,
)
from postroom.servers.http.rest.texts import Texts, columns
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import RouteTable, Rule


class ListThreads(fields.Query):
    label: fields.Label | None = None
    category: fields.QueryText | None = None
    needs_reply_gte: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    is_unread: bool | None = None
    direction: Direction | None = None
    after: fields.Time | None = None
    before: fields.Time | None = None
    archived: bool = False
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class GetThread(fields.Query):
    messages_limit: fields.Limit = 20
    cursor: fields.Cursor | None = None
    include: IncludeList = None


class ThreadUpdateRequest(LabelChanges):
    archived: Annotated[fields.Flag | None, NotNull()] = None


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._mailboxes = services.mailboxes
        self._queries = services.mailboxes.queries
        self._texts = Texts(services.database, services.blobs, services.parser)

    async def list(
        self, identity_id: fields.IdentityId, query: Annotated[ListThreads, Query()], call: CurrentCall
    ) -> Response:
        filters = query.model_dump(exclude={"limit", "cursor"})
        before = key_of(call.position(query.cursor, **filters))
        if query.category is not None or query.needs_reply_gte is not None:
            # Nothing is triaged here, so no thread has a category or a need of a reply.
            return page([], None)
        where = ThreadFilter(
            label=query.label,
            is_unread=query.is_unread,
            direction=query.direction,
            archived=query.archived,
            after=query.after,
            before=query.before,
        )
        views = await self._queries.list_threads(call.mailbox, where, before=before, limit=query.limit + 1)
        more, views = len(views) > query.limit, views[: query.limit]
        next_cursor = call.cursor(position_of(views[-1].key), **filters) if more else None
        return page([shapes.thread(view) for view in views], next_cursor)

    async def get(
        self,
        identity_id: fields.IdentityId,
        thread_id: fields.ThreadId,
        query: Annotated[GetThread, Query()],
        call: CurrentCall,
    ) -> Response:
        include = list(query.include or ())
        filters = {"include": ",".join(sorted(include)) or None}
        after = key_of(call.position(query.cursor, **filters))
        thread = await self._queries.get_thread(call.mailbox, thread_id)
        limit = query.messages_limit
        views = await self._queries.thread_messages(
            call.mailbox, thread_id, after=after, limit=limit + 1, include=columns(include)
        )
        more, views = len(views) > limit, views[:limit]
        next_cursor = call.cursor(position_of(views[-1].key), **filters) if more else None
        shown = [view for view in views if view.status not in schemas.INVISIBLE or call.may_review]
        messages = await self._texts.shapes(call.mailbox, shown, include, sees_quarantine=call.may_review)
        return JsonAnswer({**shapes.thread(thread), "messages": messages, "next_cursor": next_cursor})

    async def update(
        self, identity_id: fields.IdentityId, thread_id: fields.ThreadId, body: ThreadUpdateRequest, call: CurrentCall
    ) -> Response:
        add, remove = body.flags()
        try:
            await self._mailboxes.change_thread(call.mailbox, thread_id, add=add, remove=remove, archived=body.archived)
        except LimitExceeded:
            raise too_many_labels() from None
        return JsonAnswer(shapes.thread(await self._queries.get_thread(call.mailbox, thread_id)))


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(services)
    reading = reading_rule("Threads", Permission.MESSAGES_READ)
    paged = {400: ("invalid_request",), 410: ("cursor_expired",)}
    table.add(
        Rule(
            "GET",
            "/v1/identities/{identity_id}/threads",
            "listThreads",
            reads_mail=True,
            errors={**paged, 404: ("identity_not_found",)},
            **reading,
        ),
        routes.list,
        summary="Threads, by their newest message",
        answers={200: schemas.ThreadPage},
    )
    table.add(
        Rule(
            "GET",
            "/v1/identities/{identity_id}/threads/{thread_id}",
            "getThread",
            reads_mail=True,
            errors={**paged, 404: ("identity_not_found", "thread_not_found")},
            **reading,
        ),
        routes.get,
        summary="A thread with a page of its messages, oldest first",
        answers={200: schemas.Thread},
    )
    table.add(
        Rule(
            "PATCH",
            "/v1/identities/{identity_id}/threads/{thread_id}",
            "updateThread",
            body=True,
            errors={404: ("identity_not_found", "thread_not_found")},
            **reading_rule("Threads", Permission.MESSAGES_WRITE),
        ),
        routes.update,
        summary="Change labels, read state and archiving of all its messages",
        answers={200: schemas.ThreadSummary},
    )
