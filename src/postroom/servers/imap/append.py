"""APPEND (mail-server D8): stored verbatim, through the same batched writer as mail from outside.

Several APPENDs that a client sends without waiting are described one after the other and committed together; they are
answered in their order. The copy in Sent of a message that was submitted a moment ago is there already (A3).
"""

from __future__ import annotations

import asyncio
from typing import Final

from postroom.imap import Code, ProtocolNo, render
from postroom.imap import commands as c
from postroom.imap.flags import DELETED
from postroom.inbound.receive import raw_key
from postroom.mailbox.ingest import Delivery
from postroom.mailbox.models import (
    Appended,
    Direction,
    Folder,
    GroupOutcome,
    NewMessage,
    Refusal,
    Refused,
    Source,
    SpecialUse,
)
from postroom.mailbox.rules import FlagMode, change_flags, flag_words
from postroom.mailbox.sent_copy import stored_copy
from postroom.servers.imap.folders import find
from postroom.servers.imap.session import Done, Session

_OWN: Final = (SpecialUse.SENT, SpecialUse.DRAFTS)
"""Folders whose messages we wrote, not received."""

_REFUSALS: Final = {
    Refusal.MAILBOX_FULL: (Code.OVERQUOTA, "Mailbox is full"),
    Refusal.FOLDER_GONE: (Code.TRYCREATE, "No such mailbox"),
    Refusal.MAILBOX_GONE: (Code.UNAVAILABLE, "The mailbox is gone"),
    Refusal.UID_EXHAUSTED: (Code.LIMIT, "The mailbox has no UIDs left"),
}


class Appending:
    """An APPEND whose commit is awaited (a `session.PendingAnswer`)."""

    __slots__ = ("_work", "size", "tag")

    def __init__(self, tag: bytes, size: int, work: asyncio.Task[GroupOutcome]) -> None:
        self.tag = tag
        self.size = size
        self._work = work

    @property
    def ready(self) -> bool:
        return self._work.done()

    def done(self) -> Done:
        outcome = self._work.result()
        if isinstance(outcome, Refused):
            raise ProtocolNo(*_REFUSALS[outcome.reason])
        assert isinstance(outcome, tuple)
        stored = outcome[0]
        return Done("APPEND completed", render.code_appenduid(stored.uid_validity, (stored.uid,)))


async def append(session: Session, command: c.Append) -> Appending:
    session.require_write()
    if any(DELETED in message.flags for message in command.messages):
        session.forbid_keys()
    (message,) = command.messages
    if not message.data:
        raise ProtocolNo(Code.CANNOT, "The message is empty")
    folder = await _target(session, command.mailbox)
    delivery = await _delivery(session, folder, message)
    stored = await _sent_already(session, folder, delivery)
    work = asyncio.get_running_loop().create_task(_store(session, delivery) if stored is None else _known(stored))
    work.add_done_callback(lambda done: _finished(session, done))
    return Appending(session.tag, len(message.data), work)


async def _store(session: Session, delivery: Delivery) -> GroupOutcome:
    return await session.services.ingest.deliver(delivery)


async def _known(stored: Appended) -> GroupOutcome:
    return (stored,)


async def _sent_already(session: Session, folder: Folder, delivery: Delivery) -> Appended | None:
    """The copy that sending the message has put into Sent: what the client brings is the same once more."""
    if folder.special_use is not SpecialUse.SENT:
        return None
    services, (copy,) = session.services, delivery.copies
    async with services.database.acquire() as conn:
        return await stored_copy(conn, session.ref, folder.id, copy.content.rfc_message_id, services.clock.now())


async def _target(session: Session, name: str) -> Folder:
    """The folder meant; within a run of APPENDs that overlap it is looked up once."""
    known = session.append_target if session.has_pending else None
    if known is not None and known[0] == name:
        return known[1]
    folder = await find(session, name, missing=Code.TRYCREATE)
    session.append_target = (name, folder)
    return folder


async def _delivery(session: Session, folder: Folder, message: c.AppendMessage) -> Delivery:
    services, principal = session.services, session.principal
    assert principal is not None
    now = services.clock.now()
    flags = change_flags((), FlagMode.REPLACE, flag_words(message.flags))
    content = await services.parser.describe(b"", message.data, now)
    message_id = services.ids.new("msg")
    date = now if message.date is None else message.date
    return Delivery(
        (message.data,),
        (
            NewMessage(
                id=message_id,
                mailbox=session.ref,
                source=Source.APPEND,
                direction=Direction.OUTBOUND if folder.special_use in _OWN else Direction.INBOUND,
                blob_key=raw_key(str(principal.tenant_public_id), str(principal.identity_public_id), message_id),
                content=content,
                thread_id=services.ids.new("thr"),
                event_id=services.ids.new("evt"),
                attachment_ids=tuple(services.ids.new("att") for _ in content.attachments),
                received_at=now,
                internal_date=date.replace(microsecond=0),
                folder=folder.id,
                flags=flags,
            ),
        ),
    )


def _finished(session: Session, work: asyncio.Task[GroupOutcome]) -> None:
    if not work.cancelled():
        work.exception()  # if the client is gone, nobody else asks for it
    session.wire.notify()
