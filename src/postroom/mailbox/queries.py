"""What the API reads: messages, threads and attachments as their resources show them (rest-api §5.9, §5.10, inbound.md
§31).

Lists are keyset pages, newest first: a page costs the same wherever it is, and a fixed number of statements. Labels and
read state are those of the oldest placement (A5). Message texts are read only where asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Flag, auto
from typing import Any, Final

import asyncpg
import orjson

from postroom.base.errors import PostroomError
from postroom.db import Connection, Database
from postroom.mailbox import query_sql as sql
from postroom.mailbox.gleaned import MAX_CHARS, Gleaned, glean_aside
from postroom.mailbox.models import Direction, FolderKey, MailboxRef, Mailpoint, PartInfo, RecipientKind, RefInfo
from postroom.mailbox.rules import is_read, labels
from postroom.mailbox.verifications import Released, release

Key = tuple[datetime, int]
"""Place in a list: the time it is sorted by and the row's number. Opaque to callers."""

# Stand for "no bound", so that one plan, with an index condition, serves all pages.
_LAST: Final[Key] = (datetime(9999, 1, 1, tzinfo=UTC), 2**62)
_EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Include(Flag):
    """Which texts of a message are read."""

    NONE = 0
    EXTRACTED = auto()
    """New content only."""
    QUOTED = auto()
    """The whole plain text."""
    HTML = auto()


@dataclass(frozen=True, slots=True)
class AttachmentView:
    id: str
    part: PartInfo


@dataclass(frozen=True, slots=True)
class AttachmentSource:
    """An attachment and where its bytes are: a part, by path, of the part tree of the message's raw bytes; or all of
    `file_key`, where the message only links to it."""

    attachment: AttachmentView
    message_id: str
    blob_key: str
    raw_size: int
    prefix_len: int
    part_tree: bytes
    file_key: str | None = None


@dataclass(frozen=True, slots=True)
class PlaceView:
    """Where a message stands, by public id and name of the folder, and its flags there."""

    folder_id: str
    folder: str
    uid: int
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as the API shows it. Texts that were not asked for are None."""

    key: Key
    id: str
    thread_id: str
    identity_id: str
    direction: Direction
    status: str
    sender: Mailpoint | None
    to: tuple[Mailpoint, ...]
    cc: tuple[Mailpoint, ...]
    bcc: tuple[Mailpoint, ...]
    reply_to: tuple[Mailpoint, ...]
    delivered_to: str | None
    is_bcc: bool
    is_primary_recipient: bool
    subject: str
    snippet: str
    sent_at: datetime
    received_at: datetime
    extracted_text: str | None
    text: str | None
    html: str | None
    attachments: tuple[AttachmentView, ...]
    labels: tuple[str, ...]
    read: bool
    kind: str
    verdict: str
    facts: tuple[str, ...]
    rfc_message_id: str
    in_reply_to: str | None
    reference_ids: tuple[str, ...]
    blob_key: str
    raw_size: int
    prefix_len: int
    language: str | None
    auth: Mapping[str, Any] | None
    refs: tuple[RefInfo, ...]


@dataclass(frozen=True, slots=True)
class ThreadView:
    """A thread as the API shows it; `snippet` and `last_direction` are of its newest message, `labels` of all of
    them.
    """

    key: Key
    id: str
    subject: str
    participants: tuple[Mailpoint, ...]
    message_count: int
    unread_count: int
    first_at: datetime
    last_at: datetime
    last_inbound_at: datetime | None
    last_outbound_at: datetime | None
    last_direction: Direction
    snippet: str
    labels: tuple[str, ...]
    reply_from_address: str | None
    archived: bool

    @property
    def number(self) -> int:
        """In its mailbox; only tokens show it to anybody."""
        return self.key[1]


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """None does not filter. `after` and `before` are exclusive bounds of the time received."""

    thread_id: str | None = None
    direction: Direction | None = None
    status: str | None = None
    label: str | None = None
    folder: FolderKey | None = None
    """Where it stands, wherever else."""
    after: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class ThreadFilter:
    """None does not filter.

    `direction` is that of the newest message; `after` and `before` are exclusive bounds of `last_at`.
    """

    label: str | None = None
    is_unread: bool | None = None
    direction: Direction | None = None
    archived: bool | None = False
    after: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a `wait` waits for (inbound.md §21).

    `sender` is an address or `@domain`; `reply`: an answer in a thread we wrote to; `verifies_at`: with a code or link
    that is not expired then.
    """

    since: datetime
    sender: str | None = None
    subject_contains: str | None = None
    thread_id: str | None = None
    reply: bool = False
    verifies_at: datetime | None = None


class MessageQueries:
    """Reads of one deployment's messages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_messages(
        self,
        ref: MailboxRef,
        where: MessageFilter,
        *,
        before: Key | None = None,
        limit: int,
        include: Include = Include.EXTRACTED,
    ) -> list[MessageView]:
        """At most `limit` messages, newest first, older than `before`."""
        query = sql.Query(ref, *_upper(before, where.before), where.after or _EVER)
        query.text(sql.MESSAGES_BEFORE)
        query.where(sql.MESSAGE_THREAD, where.thread_id)
        query.where(sql.MESSAGE_DIRECTION, where.direction)
        query.where(sql.MESSAGE_STATUS, where.status)
        query.where(sql.MESSAGE_LABEL, where.label)
        query.where(sql.MESSAGE_FOLDER, where.folder)
        return await self._messages(ref, query, sql.NEWEST_FIRST, limit, include)

    async def thread_messages(
        self,
        ref: MailboxRef,
        thread_id: str,
        *,
        after: Key | None = None,
        limit: int,
        include: Include = Include.EXTRACTED,
    ) -> list[MessageView]:
        """At most `limit` messages of a thread, oldest first, newer than `after`."""
        query = sql.Query(ref, *(after or (_EVER, 0)))
        query.text(sql.MESSAGES_AFTER)
        query.where(sql.MESSAGE_THREAD, thread_id)
        return await self._messages(ref, query, sql.OLDEST_FIRST, limit, include)

    async def get_message(
        self, ref: MailboxRef, message_id: str, *, include: Include = Include.EXTRACTED
    ) -> MessageView:
        """Raises `message_not_found`."""
        query = sql.Query(ref)
        query.text(sql.MESSAGES_ALL)
        query.where(sql.MESSAGE_ID, message_id)
        found = await self._messages(ref, query, sql.NEWEST_FIRST, 1, include)
        if not found:
            raise PostroomError("message_not_found")
        return found[0]

    async def places(self, ref: MailboxRef, views: Sequence[MessageView]) -> Mapping[str, list[PlaceView]]:
        """Where each of the messages stands, the oldest placement first."""
        names = {view.key[1]: view.id for view in views}
        found: dict[str, list[PlaceView]] = {}
        async with self._database.acquire() as conn:
            for row in await _children(conn, sql.PLACES, ref, list(names)):
                place = PlaceView(row["folder_id"], row["folder"], row["uid"], tuple(row["flags"]))
                found.setdefault(names[row["message_id"]], []).append(place)
        return found

    async def next_message_after(
        self, ref: MailboxRef, arrival: Arrival, *, include: Include = Include.EXTRACTED
    ) -> MessageView | None:
        """The oldest message received after `since` that fits, if there is one (inbound.md §21, step 3)."""
        query = sql.Query(ref, arrival.since, 2**62)
        query.text(sql.MESSAGES_AFTER)
        query.text(sql.MESSAGE_RECEIVED)
        if arrival.sender is not None:
            is_domain = arrival.sender.startswith("@")
            query.where(sql.MESSAGE_FROM_DOMAIN if is_domain else sql.MESSAGE_FROM, arrival.sender.lower())
        query.where(sql.MESSAGE_SUBJECT, arrival.subject_contains)
        query.where(sql.MESSAGE_THREAD, arrival.thread_id)
        if arrival.reply:
            query.text(sql.MESSAGE_IS_REPLY)
        query.where(sql.MESSAGE_VERIFIES, arrival.verifies_at)
        found = await self._messages(ref, query, sql.OLDEST_FIRST, 1, include)
        return found[0] if found else None

    async def release_verification(
        self, ref: MailboxRef, message_id: str, sender_domain: str, now: datetime
    ) -> Released | None:
        """The code or link in a message, for whoever waited for mail of that organisational domain (E4)."""
        return await release(self._database, ref, message_id, sender_domain, now)

    async def list_threads(
        self, ref: MailboxRef, where: ThreadFilter, *, before: Key | None = None, limit: int
    ) -> list[ThreadView]:
        """At most `limit` threads that have messages, by `last_at` from the newest, older than `before`."""
        query = sql.Query(ref, *_upper(before, where.before), where.after or _EVER)
        query.text(sql.THREADS_BEFORE)
        query.where(sql.THREAD_ARCHIVED, where.archived)
        if where.is_unread is not None:
            query.text(sql.THREAD_UNREAD if where.is_unread else sql.THREAD_READ)
        query.where(sql.THREAD_DIRECTION, where.direction)
        query.where(sql.THREAD_LABEL, where.label)
        return await self._threads(query, limit)

    async def get_thread(self, ref: MailboxRef, thread_id: str) -> ThreadView:
        """Raises `thread_not_found`, also for a thread whose messages are all gone."""
        query = sql.Query(ref)
        query.text(sql.THREADS_ALL)
        query.where(sql.THREAD_ID, thread_id)
        found = await self._threads(query, 1)
        if not found:
            raise PostroomError("thread_not_found")
        return found[0]

    async def get_attachment(self, ref: MailboxRef, message_id: str, attachment_id: str) -> AttachmentSource:
        """Raises `message_not_found`, `attachment_not_found`."""
        async with self._database.acquire() as conn:
            row = await conn.fetchrow(sql.ATTACHMENT, ref.tenant_id, ref.mailbox_id, message_id, attachment_id)
        if row is None:
            raise PostroomError("message_not_found")
        if row["public_id"] is None:
            raise PostroomError("attachment_not_found")
        return AttachmentSource(
            _attachment(row),
            message_id,
            row["blob_key"],
            row["raw_size"],
            row["raw_prefix_len"],
            row["part_tree"],
            row["file_key"],
        )

    async def _messages(
        self, ref: MailboxRef, query: sql.Query, order: sql.Order, limit: int, include: Include
    ) -> list[MessageView]:
        statement = query.messages(order, limit, [flag in include for flag in Include])
        async with self._database.acquire() as conn:
            rows = await conn.fetch(statement, *query.values)
            keys = [row["id"] for row in rows]
            people = _by_message(await _children(conn, sql.RECIPIENTS, ref, keys))
            files = _by_message(await _children(conn, sql.ATTACHMENTS, ref, keys))
            refs = _by_message(await _children(conn, sql.REFS, ref, keys))
            unread = {row["id"]: row["subject"] for row in rows if not row["gleaned"]}
            texts = await conn.fetch(sql.NEW_TEXTS, ref.tenant_id, list(unread), MAX_CHARS) if unread else ()
        found = {
            row["id"]: Gleaned(row["language"], tuple(_ref(one) for one in refs.get(row["id"], ()))) for row in rows
        }
        for text in texts:
            # The indexer comes by later.
            found[text["message_id"]] = await glean_aside(unread[text["message_id"]], text["text"])
            await asyncio.sleep(0)
        return [_message(row, people.get(row["id"], ()), files.get(row["id"], ()), found[row["id"]]) for row in rows]

    async def _threads(self, query: sql.Query, limit: int) -> list[ThreadView]:
        statement = query.threads(limit)
        async with self._database.acquire() as conn:
            return [_thread(row) for row in await conn.fetch(statement, *query.values)]


def _upper(cursor: Key | None, before: datetime | None) -> Key:
    # Row numbers start at 1: (before, 0) excludes everything at `before` itself.
    return min(cursor or _LAST, (before, 0) if before is not None else _LAST)


async def _children(conn: Connection, statement: str, ref: MailboxRef, keys: Sequence[int]) -> list[asyncpg.Record]:
    return await conn.fetch(statement, ref.tenant_id, keys) if keys else []


def _by_message(rows: Iterable[asyncpg.Record]) -> dict[int, list[asyncpg.Record]]:
    groups: dict[int, list[asyncpg.Record]] = {}
    for row in rows:
        groups.setdefault(row["message_id"], []).append(row)
    return groups


def _message(
    row: asyncpg.Record,
    people: Sequence[asyncpg.Record],
    files: Sequence[asyncpg.Record],
    gleaned: Gleaned,
) -> MessageView:
    values: dict[str, Any] = dict(row)
    del values["gleaned"], values["language"]
    flags = values.pop("flags") or ()
    address, name = values.pop("from_address"), values.pop("from_name")
    recipients: dict[str, list[Mailpoint]] = {kind.value: [] for kind in RecipientKind}
    for person in people:
        recipients[person["kind"]].append(Mailpoint(person["address"], person["name"]))
    return MessageView(
        key=(values["received_at"], values.pop("id")),
        id=values.pop("public_id"),
        direction=Direction(values.pop("direction")),
        sender=None if address is None else Mailpoint(address, name or ""),
        to=tuple(recipients[RecipientKind.TO]),
        cc=tuple(recipients[RecipientKind.CC]),
        bcc=tuple(recipients[RecipientKind.BCC]),
        reply_to=tuple(recipients[RecipientKind.REPLY_TO]),
        attachments=tuple(map(_attachment, files)),
        labels=labels(flags),
        read=is_read(flags),
        facts=tuple(values.pop("facts")),
        reference_ids=tuple(values.pop("reference_ids")),
        prefix_len=values.pop("raw_prefix_len"),
        auth=_json(values.pop("auth")),
        language=gleaned.language,
        refs=gleaned.refs,
        **values,
    )


def _ref(row: asyncpg.Record) -> RefInfo:
    return RefInfo(row["kind"], row["value"], row["source"])


def _json(text: str | None) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = None if text is None else orjson.loads(text)
    return found


def _attachment(row: asyncpg.Record) -> AttachmentView:
    part = PartInfo(
        row["part_path"],
        row["filename"],
        row["content_type"],
        row["size"],
        row["disposition"],
        row["content_id"],
        row["sniffed_type"],
        row["risk"],
    )
    return AttachmentView(row["public_id"], part)


def _thread(row: asyncpg.Record) -> ThreadView:
    values: dict[str, Any] = dict(row)
    people = values.pop("participants_json")
    return ThreadView(
        key=(values["last_at"], values.pop("seq")),
        id=values.pop("public_id"),
        participants=tuple(Mailpoint(person["address"], person["name"]) for person in people),
        last_direction=Direction(values.pop("last_direction")),
        labels=labels(values.pop("flags") or ()),
        **values,
    )
