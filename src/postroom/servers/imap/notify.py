"""NOTIFY (RFC 5465): what happens is told as it happens, of any mailbox, also while no command is under way.

The live hub says that something changed. The folder list of that mailbox is read once then, at most five times a second
for a session, and compared with what the client was told; the selected folder is told of as in IDLE. Folders of others
are watched only for who asks for them by name, by what is above them, or by subscription.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from postroom.base import log as base_log
from postroom.events.live import Watch
from postroom.imap import Status, render
from postroom.imap import commands as c
from postroom.imap.commands import EventGroup, NotifyEvent, NotifyFilter, StatusItem
from postroom.imap.fetch import FetchAtt
from postroom.mailbox.annotations import Marks
from postroom.mailbox.models import Folder, FolderKey, MailboxRef
from postroom.mailbox.rules import ancestors
from postroom.servers.imap.answers import Done
from postroom.servers.imap.boxes import Box, is_reserved
from postroom.servers.imap.failures import Disconnected, as_answer
from postroom.servers.imap.fetch import Fetcher, Plan
from postroom.servers.imap.folders import status_line
from postroom.servers.imap.listing import Listed, attributes_of, folders_of, parents_of
from postroom.servers.imap.notes import Notes, TooManyNotes
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session

_log = base_log.get("servers.imap")

PAUSE: Final = 0.2
"""Seconds between two looks of one session."""
RETRY: Final = 5.0
"""Seconds after which a look that failed is repeated."""
MAX_OWN: Final = 1_000
"""What a client did itself since the last look; beyond it, it is told of it."""
MAX_TOLD: Final = 1_000
"""Folders that are told of at once, or new messages that are shown; beyond it there are no notices any more (§5.8)."""

_OF_SELECTED: Final = frozenset({NotifyFilter.SELECTED, NotifyFilter.SELECTED_DELAYED})
_OF_MESSAGES: Final = frozenset({NotifyEvent.MESSAGE_NEW, NotifyEvent.MESSAGE_EXPUNGE, NotifyEvent.FLAG_CHANGE})
_OF_NOTES: Final = frozenset({NotifyEvent.MAILBOX_METADATA_CHANGE, NotifyEvent.SERVER_METADATA_CHANGE})
_STATUS: Final = (StatusItem.MESSAGES, StatusItem.UIDNEXT, StatusItem.UIDVALIDITY, StatusItem.UNSEEN)
_NOTHING: Final[frozenset[NotifyEvent]] = frozenset()
_OVERFLOW: Final = "NOTIFICATIONOVERFLOW"


async def notify(session: Session, command: c.Notify) -> Done:
    """NOTIFY SET and NONE. What has gathered in the selected mailbox is told first, as by NOOP (§3.1)."""
    await session.tell_updates(expunge=True, force=True)
    notifier = session.notices if isinstance(session.notices, Notifier) else Notifier(session)
    await notifier.begin(command.groups)
    session.notices = notifier
    if any(item.att is FetchAtt.MODSEQ for group in command.groups for item in group.items):
        session.enable("CONDSTORE")
    if command.status:
        await notifier.tell_status()
    return Done("NOTIFY completed")


class Interests:
    """Which events are wanted of which mailboxes, but for the selected one (§6); groups add up.

    Found by name, so that a thousand names cost no more than one.
    """

    __slots__ = ("_exact", "_named", "_personal", "_subscribed", "_subtrees", "any")

    def __init__(self, groups: Iterable[EventGroup]) -> None:
        self._personal = self._subscribed = self._named = self.any = _NOTHING
        self._exact: dict[str, frozenset[NotifyEvent]] = {}
        self._subtrees: dict[str, frozenset[NotifyEvent]] = {}
        for group in groups:
            self.any |= group.events
            if group.filter is NotifyFilter.SUBSCRIBED:
                self._subscribed |= group.events
            elif group.filter in (NotifyFilter.SUBTREE, NotifyFilter.MAILBOXES):
                named = self._subtrees if group.filter is NotifyFilter.SUBTREE else self._exact
                self._named |= group.events
                for name in group.names:
                    named[name] = named.get(name, _NOTHING) | group.events
            else:
                # Filters may deliver anywhere, so that INBOXES are all that are PERSONAL (§6.3).
                self._personal |= group.events

    def __bool__(self) -> bool:
        return bool(self._personal or self._subscribed or self._exact or self._subtrees)

    @property
    def reach_others(self) -> bool:
        """Whether folders of other people may be meant."""
        return bool(self._subscribed) or any(map(is_reserved, (*self._exact, *self._subtrees)))

    def of_notes(self, box: Box) -> bool:
        """Whether changed entries of METADATA may be wanted of this mailbox."""
        if box.is_own:
            return not self.any.isdisjoint(_OF_NOTES)
        return NotifyEvent.MAILBOX_METADATA_CHANGE in self._named | self._subscribed

    def of(self, folder: Listed) -> frozenset[NotifyEvent]:
        """All that is wanted of a folder in this state."""
        found = self._exact.get(folder.name, _NOTHING)
        if folder.box.is_own:
            found |= self._personal
        if folder.subscribed:
            found |= self._subscribed
        if self._subtrees:
            for name in (folder.name, *ancestors(folder.name)):
                found |= self._subtrees.get(name, _NOTHING)
        return found


class Notifier:
    """What one session is to be told of, and what it was told. It costs nothing but a watch until the mailbox changes.

    A `notices.Notices`.
    """

    __slots__ = (
        *("_dirty", "_due", "_looked", "_notes", "_others", "_own", "_plan", "_regranted"),
        *("_selected", "_session", "_timer", "_told", "_watches"),
    )

    def __init__(self, session: Session) -> None:
        self._session = session
        self._selected: EventGroup | None = None
        self._others = Interests(())
        self._plan: Plan | None = None
        self._told: dict[MailboxRef, dict[FolderKey, Listed]] = {}
        self._own: set[tuple[type[c.Command], str]] = set()
        self._notes: Notes | None = None
        self._watches: dict[MailboxRef, Watch] = {}
        self._dirty: set[MailboxRef] = set()
        self._regranted = False
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._looked = 0.0

    # -- what is wanted

    async def begin(self, groups: Sequence[EventGroup]) -> None:
        """From now on tell of these. What the database raises leaves it as it was."""
        selected = next((group for group in groups if group.filter in _OF_SELECTED and group.events), None)
        others = Interests(group for group in groups if group.filter not in _OF_SELECTED and group.events)
        watches: dict[MailboxRef, Watch] = {}
        told: dict[MailboxRef, dict[FolderKey, Listed]] = {}
        notes: Notes | None = None
        try:
            boxes = await self._boxes(others)
            for box in boxes:
                watches[box.ref] = self._watch(box.ref)
                told[box.ref] = {one.folder.id: one for one in await folders_of(self._session, box)}
            if not others.any.isdisjoint(_OF_NOTES):
                notes = await Notes.begin(self._session, [box for box in boxes if others.of_notes(box)])
        except BaseException:
            for watch in watches.values():
                watch.close()
            raise
        self._end_watches()
        self._watches, self._selected, self._others, self._told = watches, selected, others, told
        self._notes = notes
        # What is marked to be looked at stays so: it may have come after that mailbox was read.
        if self._session.selected is not None:
            self.follow(self._session.selected)
        self._own.clear()
        self._plan = None
        if selected is not None and selected.items:
            # What the client did not ask to see it has not seen (§5.2 asks it not to want otherwise).
            items = tuple(replace(item, peek=True) for item in selected.items)
            self._plan = Plan.of(items, uid=True)

    async def _boxes(self, others: Interests) -> Sequence[Box]:
        """The mailboxes whose folders are told of."""
        if not others:
            return ()
        boxes = self._session.boxes
        return (boxes.own, *(await boxes.others()).values()) if others.reach_others else (boxes.own,)

    def _watch(self, ref: MailboxRef) -> Watch:
        return self._session.services.live.watch(ref.mailbox_id, self._waker(ref))

    def _waker(self, ref: MailboxRef) -> Callable[[], None]:
        def woken() -> None:
            self._dirty.add(ref)
            self._wake()

        return woken

    def follow(self, selected: Selected) -> None:
        """What happens in this folder is told, if that is wanted of the selected one."""
        if self._selected is not None and selected.ref not in self._watches:
            self._watches[selected.ref] = self._watch(selected.ref)

    def grants_changed(self) -> None:
        """The mailboxes of others are not what they were: look which there are."""
        if self._others and self._others.reach_others:
            self._regranted = True
            self._wake()

    def close(self) -> None:
        """Tell of nothing any more."""
        self._end_watches()
        self._selected, self._others, self._plan = None, Interests(()), None
        self._told = {}
        self._notes = None
        self._own.clear()
        self._dirty.clear()
        self._regranted = False
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_watches(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches = {}

    def _overflow(self) -> None:
        """Too much: from now on it is as after NOTIFY NONE (§5.8)."""
        _log.info("imap_notify_overflow")
        self.close()
        self._session.write(render.untagged(Status.OK, "Too much happens; no more notices", _OVERFLOW))

    def caused(self, command: c.Command) -> None:
        """What the client did to a folder itself need not be told (§5)."""
        if not self._others:
            return
        if isinstance(command, c.SetMetadata):
            if self._notes is not None:
                self._notes.caused(command)
            return
        if len(self._own) >= MAX_OWN:
            self._own.clear()
        if isinstance(command, c.Create | c.Delete | c.Subscribe | c.Unsubscribe):
            self._own.add((type(command), self._called(command.mailbox)))
            if isinstance(command, c.Subscribe | c.Unsubscribe) and is_reserved(command.mailbox):
                # Subscriptions to folders of others are no change that anybody is woken for.
                self._dirty |= self._told.keys()
                self._wake()
        elif isinstance(command, c.Rename):
            self._own.add((c.Rename, self._called(command.target)))

    def _called(self, name: str) -> str:
        """How LIST calls what a command named: INBOX of somebody else may have been written in any case."""
        box, local = self._session.boxes.known(name)
        return box.prefix + local

    # -- when

    def _wake(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._looked + PAUSE), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._due = True
        self._session.wire.attend()

    def _failed(self, error: Exception) -> None:
        """It stays to be told."""
        as_answer(error)
        if self._watches and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RETRY, self._ring)

    async def tell(self) -> bool:
        """Tell what is due, between commands. False when nothing was. Raises `Disconnected`."""
        if not self._due:
            return False
        await self._tell_all(expunge=self._selected is not None and self._selected.filter is NotifyFilter.SELECTED)
        self._session.flush()
        return True

    async def tell_idle(self, *, force: bool) -> None:
        """Tell what is due, during IDLE, which lets messages go (§6.1.2). Raises `Disconnected`."""
        await self._tell_all(expunge=True, force=force)

    async def _tell_all(self, *, expunge: bool, force: bool = False) -> None:
        due, self._due = self._due, False
        try:
            if self._selected is not None:
                flags = NotifyEvent.FLAG_CHANGE in self._selected.events
                await self._session.tell_updates(expunge=expunge, flags=flags, force=force)
            if due and self._others:
                self._looked = asyncio.get_running_loop().time()
                await self._look()
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - it is tried again; the cause is in the log
            self._failed(error)

    # -- the selected mailbox

    async def tell_arrived(self, selected: Selected, known: int) -> None:
        """Show messages beyond the UID `known`, of which EXISTS just told (§5.2). Raises `Disconnected`."""
        if self._plan is None:
            return
        places = range(bisect_right(selected.uids, known, 0, selected.count), selected.count)
        if len(places) > MAX_TOLD:
            self._overflow()
            return
        if not places:
            return
        try:
            await Fetcher(self._session, selected, self._plan).run((places,))
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - the client knows that they are there; the cause is in the log
            as_answer(error)

    # -- the others

    async def tell_status(self) -> None:
        """STATUS of all mailboxes whose messages are wanted, but for the selected one (§3.1)."""
        for folders in self._told.values():
            for listed in folders.values():
                events = self._others.of(listed) & _OF_MESSAGES
                if events and not self._is_selected(listed):
                    self._session.write(await self._status(listed, events))
                    await self._session.drain()

    async def _look(self) -> None:
        """Nothing counts as told before all of it could be read."""
        session = self._session
        notes, marks = self._notes, {}
        dirty, self._dirty = self._dirty, set()
        regranted, self._regranted = self._regranted, False
        lines: list[bytes] = []
        told = dict(self._told)
        try:
            boxes = {box.ref: box for box in await self._boxes(self._others)}
            if regranted:
                lines += self._lost(told, boxes)
                dirty |= boxes.keys() - told.keys()
            fresh = {ref: folders for ref in dirty & boxes.keys() if (folders := await self._folders(boxes[ref]))}
            if notes is not None:
                marks = await notes.read([boxes[ref] for ref in fresh if self._others.of_notes(boxes[ref])])
            for ref, now in fresh.items():
                lines += self._names(told.get(ref, {}), now)
                lines += await self._statuses(told.get(ref, {}), now)
                told[ref] = now
        except TooManyNotes:
            self._overflow()
            return
        except BaseException:
            self._dirty |= dirty
            self._regranted = self._regranted or regranted
            raise
        if notes is not None:
            for ref, found in marks.items():
                lines += self._changed_notes(notes, boxes[ref], found, fresh[ref])
            notes.keep(told.keys())
        self._forget(self._told.keys() - told.keys())
        self._told = told
        self._own.clear()
        if len(lines) > MAX_TOLD:
            self._overflow()
            return
        session.write(*lines)
        await session.drain()

    async def _folders(self, box: Box) -> dict[FolderKey, Listed]:
        if box.ref not in self._watches:
            self._watches[box.ref] = self._watch(box.ref)
        return {one.folder.id: one for one in await folders_of(self._session, box)}

    def _lost(
        self, told: dict[MailboxRef, dict[FolderKey, Listed]], boxes: Mapping[MailboxRef, Box]
    ) -> Iterator[bytes]:
        """LIST with \\NoAccess for folders of mailboxes that are granted no more; they are taken out of `told`."""
        for ref in told.keys() - boxes.keys():
            for listed in told.pop(ref).values():
                if self._wants(NotifyEvent.MAILBOX_NAME, listed):
                    yield render.list_line(("\\NoAccess",), listed.name, utf8=self._session.utf8)

    def _forget(self, refs: Iterable[MailboxRef]) -> None:
        """Nobody watches them from now on. Not before they were told of: they may be granted again until then."""
        for ref in refs:
            watch = self._watches.pop(ref, None)
            if watch is not None:
                watch.close()

    async def _statuses(self, before: Mapping[FolderKey, Listed], now: Mapping[FolderKey, Listed]) -> list[bytes]:
        lines = []
        for key, listed in now.items():
            old = before.get(key)
            if old is None or old == listed or self._is_selected(listed):
                continue
            events = self._others.of(listed) & _OF_MESSAGES
            if events and _has_changed(old.folder, listed.folder, events):
                lines.append(await self._status(listed, events))
        return lines

    def _names(self, told: Mapping[FolderKey, Listed], now: Mapping[FolderKey, Listed]) -> Iterator[bytes]:
        """LIST for what became of folders (§5.4, §5.5); what the client did itself it knows."""
        own, utf8 = self._own, self._session.utf8
        parents = parents_of(now.values())
        there = {listed.name for listed in now.values()}
        for key, old in told.items():
            is_gone = key not in now and old.name not in there
            if is_gone and self._wants(NotifyEvent.MAILBOX_NAME, old) and (c.Delete, old.name) not in own:
                yield render.list_line(("\\NonExistent",), old.name, utf8=utf8)
        for key, listed in now.items():
            before = told.get(key)
            if before == listed:
                continue
            extended = b""
            if before is None:
                is_news = self._wants(NotifyEvent.MAILBOX_NAME, listed) and (c.Create, listed.name) not in own
            elif before.name != listed.name:
                is_news = self._wants(NotifyEvent.MAILBOX_NAME, before, listed) and not any(
                    (c.Rename, name) in own for name in (listed.name, *ancestors(listed.name))
                )
                extended = b'("OLDNAME" (%b))' % render.mailbox(before.name, utf8=utf8)
            else:
                mine = (c.Subscribe if listed.subscribed else c.Unsubscribe, listed.name)
                is_news = (
                    before.subscribed != listed.subscribed
                    and self._wants(NotifyEvent.SUBSCRIPTION_CHANGE, before, listed)
                    and mine not in own
                )
            if is_news:
                attributes = attributes_of(listed, parents)
                if listed.subscribed:
                    attributes.insert(0, "\\Subscribed")
                yield render.list_line(attributes, listed.name, utf8=utf8, extended=extended)

    def _changed_notes(self, notes: Notes, box: Box, marks: Marks, now: Mapping[FolderKey, Listed]) -> Iterator[bytes]:
        """METADATA for entries that others changed (§5.6, §5.7), the selected mailbox's too."""
        for key, entries in notes.changes(box, marks, {key: listed.name for key, listed in now.items()}):
            if key is None:
                name, is_wanted = "", NotifyEvent.SERVER_METADATA_CHANGE in self._others.any
            else:
                name = now[key].name
                is_wanted = self._wants(NotifyEvent.MAILBOX_METADATA_CHANGE, now[key])
            if is_wanted:
                yield render.metadata_changed_line(name, entries, utf8=self._session.utf8)

    def _wants(self, event: NotifyEvent, *states: Listed) -> bool:
        """Whether the event is wanted of a folder as it was or as it is."""
        return any(event in self._others.of(state) for state in states)

    def _is_selected(self, listed: Listed) -> bool:
        selected = self._session.selected
        return selected is not None and selected.view.id == listed.folder.id

    async def _status(self, listed: Listed, events: frozenset[NotifyEvent]) -> bytes:
        items: tuple[StatusItem, ...] = _STATUS
        if self._session.follows_modseq or NotifyEvent.FLAG_CHANGE in events:
            items = (*items, StatusItem.HIGHESTMODSEQ)
        return await status_line(self._session, listed.box, listed.folder, items)


def _has_changed(old: Folder, now: Folder, events: frozenset[NotifyEvent]) -> bool:
    if NotifyEvent.FLAG_CHANGE in events and old.highest_modseq != now.highest_modseq:
        return True
    return (old.message_count, old.uid_next, old.uid_validity) != (now.message_count, now.uid_next, now.uid_validity)
