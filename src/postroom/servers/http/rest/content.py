"""Bytes of messages and attachments (rest-api §5.10)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from postroom.accounts.permissions import Permission
from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.blobs import BlobMissing, BlobStore
from postroom.inbound.describe import QUICK_BYTES
from postroom.inbound.packed import taken_out
from postroom.inbound.parsing import ParserBusy, ParsingFailed
from postroom.mail.mime import Part, find_part
from postroom.mail.transfer import decode
from postroom.mail.tree import unpack_tree
from postroom.mailbox.models import part_of, part_place
from postroom.mailbox.queries import AttachmentSource, Include
from postroom.servers.http import fields
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.rest.messages import check_visible, reading_rule
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import RouteTable, Rule

log = base_log.get("servers.http")

CHUNK: Final = 256 * 1024
INLINE_DECODE: Final = 64 * 1024
"""Encoded octets that are decoded on the event loop; more are in a thread."""

PARALLEL: Final = 4
"""Encoded attachments that are held in memory at once."""

_REVIEW: Final = frozenset({Permission.QUARANTINE_REVIEW})
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}", re.ASCII)
_MEDIA_TYPE: Final = re.compile(rf"{_TOKEN.pattern}/{_TOKEN.pattern}", re.ASCII)
_NOT_QUOTABLE: Final = re.compile(r"[^ -~]|[\"\\%]")
_UNENCODED: Final = frozenset({"", "7bit", "8bit", "binary"})
_FALLBACK_TYPE: Final = "application/octet-stream"


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._queries = services.mailboxes.queries
        self._blobs = services.blobs
        self._parser = services.parser
        self._slots = asyncio.Semaphore(PARALLEL)

    async def raw(self, identity_id: fields.IdentityId, message_id: fields.MessageId, call: CurrentCall) -> Response:
        view = await self._queries.get_message(call.mailbox, message_id, include=Include.NONE)
        check_visible(call, view)
        stream = await open_stream(self._blobs, view.blob_key, view.id, 0, None)
        headers = download(f"{view.id}.eml") | {"content-length": str(view.raw_size)}
        return StreamingResponse(stream, media_type="message/rfc822", headers=headers)

    async def attachment(
        self,
        identity_id: fields.IdentityId,
        message_id: fields.MessageId,
        attachment_id: fields.AttachmentId,
        call: CurrentCall,
    ) -> Response:
        view = await self._queries.get_message(call.mailbox, message_id, include=Include.NONE)
        check_visible(call, view)
        source = await self._queries.get_attachment(call.mailbox, message_id, attachment_id)
        if source.file_key is not None:
            stream = await open_stream(self._blobs, source.file_key, message_id, 0, None)
            linked = {"content-type": _FALLBACK_TYPE, "content-length": str(source.attachment.part.size)}
            return StreamingResponse(stream, headers=download(source.attachment.part.filename) | linked)
        part, info = _part(source), source.attachment.part
        headers = download(info.filename)
        if part_place(info.part_path) is not None:
            headers["content-type"] = info.content_type if _MEDIA_TYPE.fullmatch(info.content_type) else _FALLBACK_TYPE
            return Response(await self._packed(source, part), headers=headers)
        headers["content-type"] = _media_type(part)
        if part.children or part.encoding in _UNENCODED:
            stream = await open_stream(self._blobs, source.blob_key, message_id, part.body_start, part.body_end)
            headers["content-length"] = str(part.body_end - part.body_start)
            return StreamingResponse(stream, headers=headers)
        return Response(await self._decoded(source, part), headers=headers)

    async def _encoded(self, source: AttachmentSource, part: Part) -> bytes:
        try:
            return await self._blobs.get_range(source.blob_key, part.body_start, part.body_end)
        except BlobMissing:
            raise _gone(source.message_id) from None

    async def _packed(self, source: AttachmentSource, part: Part) -> bytes:
        """A file that the part holds, in TNEF (B6)."""
        async with self._slots:
            encoded = await self._encoded(source, part)
            arguments = encoded, part.encoding, source.attachment.part.part_path
            if len(encoded) <= QUICK_BYTES:
                found = await asyncio.to_thread(taken_out, *arguments)
            else:
                try:
                    found = await self._parser.run(len(encoded), taken_out, *arguments)
                except ParserBusy:
                    raise PostroomError("unavailable", retry_after=1) from None
                except ParsingFailed:
                    log.error("http_attachment_not_unpacked", message_id=source.message_id)
                    found = None
        if found is None:
            raise PostroomError("attachment_not_found")
        return found

    async def _decoded(self, source: AttachmentSource, part: Part) -> bytes:
        async with self._slots:
            encoded = await self._encoded(source, part)
            if len(encoded) <= INLINE_DECODE:
                return decode(encoded, part.encoding)
            return await asyncio.to_thread(decode, encoded, part.encoding)


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(services)
    table.add(
        Rule(
            "GET",
            "/v1/identities/{identity_id}/messages/{message_id}/raw",
            "getMessageRaw",
            reads_mail=True,
            conditional=_REVIEW,
            errors={404: ("identity_not_found", "message_not_found"), 410: ("raw_expired",)},
            **reading_rule("Messages", Permission.MESSAGES_READ),
        ),
        routes.raw,
        summary="The bytes of a message",
        answers={200: None},
        contents={200: "message/rfc822"},
    )
    table.add(
        Rule(
            "GET",
            "/v1/identities/{identity_id}/messages/{message_id}/attachments/{attachment_id}",
            "getAttachment",
            reads_mail=True,
            conditional=_REVIEW,
            errors={404: ("identity_not_found", "message_not_found", "attachment_not_found")},
            **reading_rule("Messages", Permission.ATTACHMENTS_READ),
        ),
        routes.attachment,
        summary="The bytes of an attachment",
        answers={200: None},
        contents={200: "*/*"},
        headers=("Content-Disposition", "X-Content-Type-Options", "Content-Security-Policy"),
    )


async def open_stream(blobs: BlobStore, key: str, message_id: str, start: int, end: int | None) -> AsyncIterator[bytes]:
    """A stream whose first piece is there already, so that a failure still becomes an answer. Raises `raw_expired`."""
    stream = blobs.stream(key, CHUNK, start=start, end=end)
    try:
        first = await anext(stream, b"")
    except BlobMissing:
        raise _gone(message_id) from None
    return _continued(first, stream)


async def _continued(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in rest:
        yield piece


def _part(source: AttachmentSource) -> Part:
    part = find_part(unpack_tree(source.part_tree), part_of(source.attachment.part.part_path))
    if part is None:
        raise PostroomError("attachment_not_found")
    return part


def _gone(message_id: str) -> PostroomError:
    log.error("http_raw_missing", message_id=message_id)
    return PostroomError("raw_expired")


def _media_type(part: Part) -> str:
    """The declared type, if it can stand in a header field."""
    if not (_TOKEN.fullmatch(part.type) and _TOKEN.fullmatch(part.subtype)):
        return _FALLBACK_TYPE
    charset = part.params.get("charset", "")
    suffix = f"; charset={charset}" if part.type == "text" and _TOKEN.fullmatch(charset) else ""
    return f"{part.type}/{part.subtype}{suffix}"


def download(filename: str | None) -> dict[str, str]:
    """Headers that keep a browser from doing anything with the bytes but saving them (RFC 6266, RFC 8187)."""
    disposition = "attachment"
    if filename:
        plain = _NOT_QUOTABLE.sub("_", filename)
        disposition += f'; filename="{plain}"'
        if plain != filename:
            disposition += f"; filename*=UTF-8''{quote(filename, safe='!#$&+-.^_`|~', errors='replace')}"
    return {
        "content-disposition": disposition,
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
    }
