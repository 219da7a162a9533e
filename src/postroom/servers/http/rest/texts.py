"""What of a message is read from its raw bytes when asked for: sanitised HTML and the original header fields
(rest-api §2.6, inbound §31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.blobs import BlobMissing, BlobStore, Span, StorageError
from postroom.db import Database
from postroom.events.catalogue import cut_utf8
from postroom.inbound.describe import QUICK_BYTES
from postroom.inbound.parsing import Parser, ParserBusy, ParsingFailed
from postroom.mail import mime
from postroom.mail.content import safe_html
from postroom.mail.header import Headers
from postroom.mailbox.models import Direction, MailboxRef
from postroom.mailbox.queries import Include, MessageQueries, MessageView
from postroom.mailbox.rules import is_quarantine
from postroom.outbound.models import OutboundState
from postroom.outbound.store import states
from postroom.servers.http.rest import shapes
from postroom.servers.http.rest.shapes import Json

log = base_log.get("servers.http")

IncludeName = Literal["quoted", "html", "headers", "placements"]

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_HEADER_FIELDS: Final = 200
MAX_FIELD_BYTES: Final = 2048
PARALLEL: Final = 2
"""Messages whose HTML is worked on at once, in all requests: each is held in memory whole."""


def columns(include: Iterable[IncludeName]) -> Include:
    """What the database is asked for."""
    return Include.EXTRACTED | (Include.QUOTED if "quoted" in include else Include.NONE)


class Texts:
    """Completes messages with what became of them, and with what their raw bytes hold."""

    def __init__(self, database: Database, blobs: BlobStore, parser: Parser) -> None:
        self._database = database
        self._queries = MessageQueries(database)
        self._blobs = blobs
        self._parser = parser
        self._slots = asyncio.Semaphore(PARALLEL)

    async def shapes(
        self,
        ref: MailboxRef,
        views: Sequence[MessageView],
        include: Sequence[IncludeName] = (),
        *,
        sees_quarantine: bool = False,
    ) -> list[Json]:
        """The mailbox's messages as resources, with the members that `include` names. Without `sees_quarantine` nothing
        is said of placements there (A6).
        """
        made = await self._shapes(ref, views, include)
        if "placements" in include:
            places = await self._queries.places(ref, views)
            for shape in made:
                found = places.get(shape["id"], ())
                shape["placements"] = [
                    shapes.place(one) for one in found if sees_quarantine or not is_quarantine(one.folder)
                ]
        return made

    async def _shapes(
        self, ref: MailboxRef, views: Sequence[MessageView], include: Sequence[IncludeName]
    ) -> list[Json]:
        states = await self._states(ref, views)
        if "html" in include:
            views = [replace(view, html=await self._html(view)) for view in views]
        if "headers" not in include:
            return [shapes.message(view, states.get(view.id)) for view in views]
        fields = await self._headers(views)
        return [
            shapes.message(view, states.get(view.id), headers=found, with_headers=True)
            for view, found in zip(views, fields, strict=True)
        ]

    async def _states(self, ref: MailboxRef, views: Sequence[MessageView]) -> Mapping[str, OutboundState]:
        """What became of those that were sent."""
        ours = [view.id for view in views if view.direction is Direction.OUTBOUND]
        if not ours:
            return {}
        async with self._database.acquire() as conn:
            return await states(conn, ref, ours)

    async def _headers(self, views: Sequence[MessageView]) -> list[list[Json] | None]:
        """The fields of each message as it came, without our trace lines; None when its raw bytes are gone."""
        spans = [Span(view.blob_key, view.prefix_len, view.prefix_len + MAX_HEADER_BYTES) for view in views]
        found: list[list[Json] | None] = []
        for view, piece in zip(views, await self._blobs.get_many(spans), strict=True):
            if isinstance(piece, BlobMissing):
                found.append(None)
            elif isinstance(piece, StorageError):
                raise piece
            else:
                found.append(_fields(piece, view.raw_size - view.prefix_len > len(piece)))
        return found

    async def _html(self, view: MessageView) -> str | None:
        async with self._slots:
            try:
                raw = (await self._blobs.get(view.blob_key))[view.prefix_len :]
            except BlobMissing:
                log.error("http_raw_missing", message_id=view.id)
                return None
            if len(raw) <= QUICK_BYTES:
                return await asyncio.to_thread(safe_html, raw)
            try:
                return await self._parser.run(len(raw), safe_html, raw)
            except ParserBusy:
                raise PostroomError("unavailable", retry_after=1) from None
            except ParsingFailed:
                log.error("http_html_not_made", message_id=view.id)
                return None


def _fields(piece: bytes, more_follows: bool) -> list[Json]:
    part = mime.parse(piece, max_depth=1, max_parts=1).root
    block = piece[: part.body_start]
    if more_follows and part.body_start >= len(piece):
        # The header is longer than what was read: its last field may be cut.
        block = block[: block.rfind(b"\n") + 1]
    listed: list[Json] = []
    for name, value in Headers.parse(block):
        if len(listed) == MAX_HEADER_FIELDS:
            break
        text = value.encode("utf-8", "replace").decode()
        listed.append({"name": name, "value": cut_utf8(text, MAX_FIELD_BYTES)[0]})
    return listed
