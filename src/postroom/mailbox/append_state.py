"""What the writer holds in hand for one batch: mailboxes, folders, threads and known messages, and the rows made of
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson

from postroom.mailbox.models import (
    FLAG_SEEN,
    Direction,
    FolderKey,
    Mailpoint,
    NewMessage,
    RecipientKind,
)
from postroom.mailbox.rules import is_own, without_token

MAX_PARTICIPANTS: Final = 50


@dataclass(slots=True)
class Box:
    row: Mapping[str, Any]
    modseq: int
    change_seq: int
    event_seq: int
    next_thread_seq: int
    used_bytes: int
    own: frozenset[str] = frozenset()
    dirty: bool = False


@dataclass(slots=True)
class FolderState:
    tenant_id: int
    id: FolderKey
    uid_validity: int
    uid_next: int
    message_count: int
    unseen_count: int
    deleted_count: int
    total_bytes: int
    modseq: int
    dirty: bool = False


@dataclass(slots=True)
class Thread:
    seq: int
    public_id: str
    subject: str
    first_at: datetime
    last_at: datetime
    last_inbound_at: datetime | None = None
    last_outbound_at: datetime | None = None
    message_count: int = 0
    unread_count: int = 0
    participants: list[dict[str, str]] = field(default_factory=list)
    beyond: set[str] = field(default_factory=set)
    """Senders that are participants though the list is full."""
    reply_from_address: str | None = None
    archived: bool = False
    dirty: bool = False


@dataclass(slots=True)
class Known:
    """A message that is stored (`row_id`), or was decided earlier in this batch (`position` in its new rows)."""

    row_id: int | None
    position: int | None
    public_id: str
    raw_sha256: bytes
    body_sha256: bytes
    source: str
    subject: str
    sender: str | None
    verdict: str
    thread: Thread


def thread_of(row: Mapping[str, Any]) -> Thread:
    """The thread of a stored message; moments come as RFC 3339."""
    return Thread(
        seq=row["seq"],
        public_id=row["thread_id"],
        subject=row["thread_subject"],
        first_at=datetime.fromisoformat(row["first_at"]),
        last_at=datetime.fromisoformat(row["last_at"]),
        last_inbound_at=_moment(row["last_inbound_at"]),
        last_outbound_at=_moment(row["last_outbound_at"]),
        message_count=row["message_count"],
        unread_count=row["unread_count"],
        participants=list(row["participants_json"]),
        reply_from_address=row["reply_from_address"],
        archived=row["archived"],
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def join(thread: Thread, m: NewMessage, box: Box) -> None:
    """What a visible message does to its thread (inbound.md §28.7, §28.9, §28.10)."""
    content = m.content
    thread.dirty = True
    thread.message_count += 1
    thread.last_at = max(thread.last_at, m.received_at)
    thread.subject = thread.subject or content.thread_subject
    header = [p for kind, p in content.recipients if kind in (RecipientKind.TO, RecipientKind.CC)]
    if m.direction is Direction.INBOUND:
        thread.unread_count += FLAG_SEEN not in m.flags
        thread.last_inbound_at = max(thread.last_inbound_at or m.received_at, m.received_at)
        thread.archived = False
        if m.delivered_to and not m.is_bcc:
            thread.reply_from_address = m.delivered_to
        if content.sender:
            header.insert(0, content.sender)
            thread.beyond.add(content.sender.address)
    else:
        thread.last_outbound_at = max(thread.last_outbound_at or m.received_at, m.received_at)
    _add_participants(thread.participants, header, box.own)


def _add_participants(participants: list[dict[str, str]], seen: Iterable[Mailpoint], own: frozenset[str]) -> None:
    for person in seen:
        address = without_token(person.address)
        if not address or is_own(address, own):
            continue
        for known in participants:
            if known["address"] == address:
                known["name"] = person.name[:78] or known["name"]
                break
        else:
            if len(participants) < MAX_PARTICIPANTS:
                participants.append({"address": address, "name": person.name[:78]})


def message_row(
    m: NewMessage, thread: Thread, facts: tuple[str, ...], folder: FolderState, uid: int, box: Box
) -> tuple[object, ...]:
    c = m.content
    return (
        m.mailbox.tenant_id,
        m.mailbox.mailbox_id,
        m.id,
        thread.seq,
        m.source.value,
        m.direction.value,
        m.status or ("received" if m.direction is Direction.INBOUND else "submitted"),
        c.rfc_message_id,
        c.in_reply_to,
        " ".join(c.reference_ids),
        c.raw_sha256,
        c.body_sha256,
        m.blob_key,
        c.raw_size,
        c.prefix_len,
        c.sender.address if c.sender else None,
        c.sender.name if c.sender else None,
        m.delivered_to,
        m.is_bcc,
        m.is_primary_recipient,
        c.subject,
        c.subject_fold,
        c.snippet,
        c.sent_at,
        m.received_at,
        c.kind,
        c.verdict,
        " ".join(facts),
        c.parser_version,
        c.envelope,
        c.body_structure,
        c.part_tree,
        c.text,
        c.html,
        None if c.extracted_text == c.text else c.extracted_text,
        folder.id,
        uid,
        box.modseq,
        m.internal_date,
        " ".join(m.flags),
        box.change_seq,
        None,  # the language, which is found later (`gleaned`)
        None if c.auth is None else orjson.dumps(c.auth).decode(),
        None if c.automated is None else orjson.dumps(c.automated).decode(),
    )


def thread_row(box: Box, t: Thread) -> tuple[Any, ...]:
    return (
        box.row["tenant_id"],
        box.row["id"],
        t.seq,
        t.public_id,
        t.subject,
        t.first_at,
        t.last_at,
        t.last_inbound_at,
        t.last_outbound_at,
        t.message_count,
        t.unread_count,
        orjson.dumps(t.participants).decode(),
        t.reply_from_address,
        t.archived,
    )


def folder_row(f: FolderState) -> tuple[object, ...]:
    return (
        f.tenant_id,
        f.id,
        f.uid_next,
        f.message_count,
        f.unseen_count,
        f.deleted_count,
        f.total_bytes,
        f.modseq,
    )


def box_row(box: Box) -> tuple[object, ...]:
    return (
        box.row["tenant_id"],
        box.row["id"],
        box.modseq,
        box.change_seq,
        box.event_seq,
        box.next_thread_seq,
        box.used_bytes,
    )
