"""APPEND and REPLACE (mail-server D8, RFC 8508): stored verbatim, by the batched writer of mail from outside.

Several APPENDs that a client sends without waiting are described one after the other and committed together; they are
answered in their order. The messages of one command are stored all or not at all (RFC 3502). The copy in Sent of a
message that was submitted a moment ago is there already (A3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from datetime import datetime
from typing import Final

from postroom.imap import Code, ProtocolNo, Status, render
from postroom.imap import commands as c
from postroom.imap.flags import DELETED
from postroom.inbound.receive import raw_key
from postroom.mailbox.ingest import Delivery
from postroom.mailbox.models import (
    Appended,
    Direction,
    GroupOutcome,
    NewMessage,
    Place,
    Refusal,
    Refused,
    Source,
    SpecialUse,
)
from postroom.mailbox.rules import FlagMode, Flags, change_flags, flag_words
from postroom.mailbox.sent_copy import stored_copy
from postroom.servers.imap.answers import Done
from postroom.servers.imap.bounds import require_few
from postroom.servers.imap.boxes import Found
from postroom.servers.imap.catenate import assembled
from postroom.servers.imap.folders import find
from postroom.servers.imap.session import Session
from postroom.servers.imap.store import GONE

_OWN: Final = (SpecialUse.SENT, SpecialUse.DRAFTS)
"""Folders whose messages we wrote, not received."""

_REFUSALS: Final = {
    Refusal.MAILBOX_FULL: (Code.OVERQUOTA, "Mailbox is full"),
    Refusal.FOLDER_GONE: (Code.TRYCREATE, "No such mailbox"),
    Refusal.MAILBOX_GONE: (Code.UNAVAILABLE, "The mailbox is gone"),
    Refusal.UID_EXHAUSTED: (Code.LIMIT, "The mailbox has no UIDs left"),
    Refusal.REPLACED_GONE: (Code.EXPUNGEISSUED, "The message to replace does not exist any more"),
    Refusal.REPLACED_IN_USE: (Code.INUSE, "The message to replace is still to be sent"),
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
        return Done("APPEND completed", _append_uid(self._work.result()))


async def append(session: Session, command: c.Append) -> Appending:
    if any(DELETED in message.flags for message in command.messages):
        session.forbid_keys()
    target = await _target(session, command.mailbox)
    require_few(session, len(command.messages))
    async with counted(session):
        deliveries = await _described(session, target, command.messages)
        stored = await _sent_already(session, target, deliveries)
    work = asyncio.get_running_loop().create_task(_store(session, deliveries) if stored is None else _known(stored))
    work.add_done_callback(lambda done: _finished(session, done))
    return Appending(session.tag, sum(delivery.size for delivery in deliveries), work)


@asynccontextmanager
async def counted(session: Session) -> AsyncIterator[None]:
    """What is gathered meanwhile counts as held by the session until the end."""
    try:
        yield
    finally:
        session.gathered = 0
        session.wire.account()


async def replace(session: Session, command: c.Replace) -> Done:
    """REPLACE: the new message comes and the old one goes for good in one transaction (RFC 8508 §3.4).

    What the client sent into Sent by submitting it is there already: then the old one goes, and that is all.
    """
    selected = session.writable_folder()
    session.forbid_keys()
    await session.refresh()
    places = [place for part in selected.resolve(command.target, uid=command.uid) for place in part]
    if not places:
        raise ProtocolNo(Code.NONEXISTENT, "No such message")
    old = Place(selected.view.id, selected.uids[places[0]], selected.ref)
    if selected.is_gone(old.uid):
        raise GONE
    target = await _target(session, command.mailbox)
    async with counted(session):
        (delivery,) = await _described(session, target, (command.message,))
        stored = await _sent_already(session, target, (delivery,))
        if stored is None or (stored.folder, stored.uid) == (old.folder, old.uid):
            copies = tuple(changed(copy, replaces=old) for copy in delivery.copies)
            outcome = await _store(session, (Delivery(delivery.pieces, copies),))
        elif await session.services.mailboxes.remove(selected.ref, old.folder, old.uid):
            outcome = (stored,)
        else:
            raise GONE
    # Before the EXPUNGE, so that the client knows what came for what went (RFC 8508 §4.3).
    session.write(render.untagged(Status.OK, "Replacement message ready", _append_uid(outcome)))
    return Done("REPLACE completed", went=True)


def _append_uid(outcome: GroupOutcome) -> str:
    """The code that says where the messages are. Raises `ProtocolNo` for a refusal."""
    if isinstance(outcome, Refused):
        raise refused(outcome)
    assert isinstance(outcome, tuple)
    return render.code_appenduid(outcome[0].uid_validity, (stored.uid for stored in outcome))


def refused(outcome: Refused) -> ProtocolNo:
    """The answer to a client whose messages were not stored."""
    return ProtocolNo(*_REFUSALS[outcome.reason])


async def _store(session: Session, deliveries: Sequence[Delivery]) -> GroupOutcome:
    if len(deliveries) == 1:
        return await session.services.ingest.deliver(deliveries[0])
    return await session.services.ingest.deliver_together(deliveries)


async def _known(stored: Appended) -> GroupOutcome:
    return (stored,)


async def _described(session: Session, target: Found, messages: Sequence[c.AppendMessage]) -> list[Delivery]:
    """What is to be stored. Raises `ProtocolNo` for an empty message, by which a client may call all off."""
    messages = await assembled(session, messages)
    if not all(message.data for message in messages):
        raise ProtocolNo(Code.CANNOT, "The message is empty")
    return [await _delivery(session, target, message) for message in messages]


async def _sent_already(session: Session, target: Found, deliveries: Sequence[Delivery]) -> Appended | None:
    """The copy that sending the message has put into Sent: what the client brings is the same once more.

    Mail programs bring it alone; who brings several at once moves house, and all of it is stored.
    """
    box, folder = target
    if folder.special_use is not SpecialUse.SENT or len(deliveries) > 1:
        return None
    services, (copy,) = session.services, deliveries[0].copies
    async with services.database.acquire() as conn:
        return await stored_copy(conn, box.ref, folder.id, copy.content.rfc_message_id, services.clock.now())


async def _target(session: Session, name: str) -> Found:
    """The folder meant; within a run of APPENDs that overlap it is looked up once."""
    known = session.append_target if session.has_pending else None
    if known is not None and known[0] == name:
        return known[1]
    found = await find(session, name, missing=Code.TRYCREATE, write=True)
    session.append_target = (name, found)
    return found


async def _delivery(session: Session, target: Found, message: c.AppendMessage) -> Delivery:
    flags = change_flags((), FlagMode.REPLACE, flag_words(message.flags))
    date = session.services.clock.now() if message.date is None else message.date
    return await new_message(session, target, message.data, flags, date)


async def new_message(
    session: Session, target: Found, data: bytes, flags: Flags, date: datetime, replaces: Place | None = None
) -> Delivery:
    """A message to be stored as it is; parts of a second are left out of its date."""
    services, (box, folder) = session.services, target
    now = services.clock.now()
    # Nobody is known to have sent it, so that it confirms nothing.
    content = await services.parser.describe(b"", data, now, with_codes=False)
    message_id = services.ids.new("msg")
    return Delivery(
        (data,),
        (
            NewMessage(
                id=message_id,
                mailbox=box.ref,
                source=Source.APPEND,
                direction=Direction.OUTBOUND if folder.special_use in _OWN else Direction.INBOUND,
                blob_key=raw_key(box.tenant_id, box.identity_id, message_id),
                content=content,
                thread_id=services.ids.new("thr"),
                event_id=services.ids.new("evt"),
                attachment_ids=tuple(services.ids.new("att") for _ in content.attachments),
                received_at=now,
                internal_date=date.replace(microsecond=0),
                folder=folder.id,
                flags=flags,
                replaces=replaces,
                takes_flags=replaces is not None,
            ),
        ),
    )


def _finished(session: Session, work: asyncio.Task[GroupOutcome]) -> None:
    if not work.cancelled():
        work.exception()  # if the client is gone, nobody else asks for it
    session.wire.notify()
