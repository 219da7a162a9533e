"""NOTIFY (RFC 5465): what happens is told as it happens, of any mailbox, also while no command is under way.

The live hub says that something changed. The folder list is read once then, at most five times a second for a session,
and compared with what the client was told; the selected folder is told of as in IDLE.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from postroom.base import log as base_log
from postroom.events.live import Watch
from postroom.imap import Status, render
from postroom.imap import commands as c
from postroom.imap.commands import EventGroup, NotifyEvent, NotifyFilter, StatusItem
from postroom.imap.fetch import FetchAtt
from postroom.mailbox.annotations import Marks
from postroom.mailbox.models import Folder, FolderKey
from postroom.mailbox.rules import ancestors
from postroom.servers.imap.failures import Disconnected, as_answer
from postroom.servers.imap.fetch import Fetcher, Plan
from postroom.servers.imap.folders import attributes_of, parents_of, status_items, visible_folders
from postroom.servers.imap.notes import Notes, TooManyNotes
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Done, Session

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

    __slots__ = ("_all", "_exact", "_subscribed", "_subtrees", "any")

    def __init__(self, groups: Iterable[EventGroup]) -> None:
        self._all = self._subscribed = self.any = _NOTHING
        self._exact: dict[str, frozenset[NotifyEvent]] = {}
        self._subtrees: dict[str, frozenset[NotifyEvent]] = {}
        for group in groups:
            self.any |= group.events
            if group.filter is NotifyFilter.SUBSCRIBED:
                self._subscribed |= group.events
            elif group.filter in (NotifyFilter.SUBTREE, NotifyFilter.MAILBOXES):
                named = self._subtrees if group.filter is NotifyFilter.SUBTREE else self._exact
                for name in group.names:
                    named[name] = named.get(name, _NOTHING) | group.events
            else:
                # Filters may deliver anywhere, so that INBOXES are all that are PERSONAL (§6.3).
                self._all |= group.events

    def __bool__(self) -> bool:
        return bool(self._all or self._subscribed or self._exact or self._subtrees)

    @property
    def of_notes(self) -> bool:
        """Whether changed entries of METADATA are wanted of any."""
        return not self.any.isdisjoint(_OF_NOTES)

    def of(self, folder: Folder) -> frozenset[NotifyEvent]:
        """All that is wanted of a folder in this state."""
        found = self._all | self._exact.get(folder.name, _NOTHING)
        if folder.subscribed:
            found |= self._subscribed
        if self._subtrees:
            for name in (folder.name, *ancestors(folder.name)):
                found |= self._subtrees.get(name, _NOTHING)
        return found


class Notifier:
    """What one session is to be told of, and what it was told. It costs nothing but a watch until the mailbox changes.

    A `session.Notices`.
    """

    __slots__ = (
        *("_due", "_looked", "_notes", "_others", "_own", "_plan"),
        *("_selected", "_session", "_timer", "_told", "_watch"),
    )

    def __init__(self, session: Session) -> None:
        self._session = session
        self._selected: EventGroup | None = None
        self._others = Interests(())
        self._plan: Plan | None = None
        self._told: dict[FolderKey, Folder] = {}
        self._own: set[tuple[type[c.Command], str]] = set()
        self._notes: Notes | None = None
        self._watch: Watch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._looked = 0.0

    # -- what is wanted

    async def begin(self, groups: Sequence[EventGroup]) -> None:
        """From now on tell of these. What the database raises leaves it as it was."""
        selected = next((group for group in groups if group.filter in _OF_SELECTED and group.events), None)
        others = Interests(group for group in groups if group.filter not in _OF_SELECTED and group.events)
        watch: Watch | None = None
        told: dict[FolderKey, Folder] = {}
        notes: Notes | None = None
        if selected is not None or others:
            watch = self._session.services.live.watch(self._session.ref.mailbox_id, self._woken)
        if others:
            try:
                told = {folder.id: folder for folder in await visible_folders(self._session)}
                if others.of_notes:
                    notes = await Notes.begin(self._session)
            except BaseException:
                if watch is not None:
                    watch.close()
                raise
        self._end_watch()
        self._watch, self._selected, self._others, self._told = watch, selected, others, told
        self._notes = notes
        self._own.clear()
        self._plan = None
        if selected is not None and selected.items:
            # What the client did not ask to see it has not seen (§5.2 asks it not to want otherwise).
            items = tuple(replace(item, peek=True) for item in selected.items)
            self._plan = Plan.of(items, uid=True)

    def close(self) -> None:
        """Tell of nothing any more."""
        self._end_watch()
        self._selected, self._others, self._plan = None, Interests(()), None
        self._told = {}
        self._notes = None
        self._own.clear()
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

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
            self._own.add((type(command), command.mailbox))
        elif isinstance(command, c.Rename):
            self._own.add((c.Rename, command.target))

    # -- when

    def _woken(self) -> None:
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
        if self._watch is not None and self._timer is None:
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
        for folder in self._told.values():
            events = self._others.of(folder) & _OF_MESSAGES
            if events and not self._is_selected(folder):
                self._session.write(await self._status(folder, events))
                await self._session.drain()

    async def _look(self) -> None:
        """Nothing counts as told before all of it could be read."""
        session = self._session
        now = {folder.id: folder for folder in await visible_folders(session)}
        try:
            marks = None if self._notes is None else await self._notes.read()
        except TooManyNotes:
            self._overflow()
            return
        lines = [*self._names(now, self._own)]
        for key, folder in now.items():
            old = self._told.get(key)
            if old is None or old == folder or self._is_selected(folder):
                continue
            events = self._others.of(folder) & _OF_MESSAGES
            if events and _has_changed(old, folder, events):
                lines.append(await self._status(folder, events))
        if self._notes is not None and marks is not None:
            lines += self._changed_notes(self._notes, marks, now)
        self._told, self._own = now, set()
        if len(lines) > MAX_TOLD:
            self._overflow()
            return
        session.write(*lines)
        await session.drain()

    def _names(self, now: Mapping[FolderKey, Folder], own: set[tuple[type[c.Command], str]]) -> Iterator[bytes]:
        """LIST for what became of folders (§5.4, §5.5); what the client did itself it knows."""
        parents = parents_of(now.values())
        utf8 = self._session.utf8
        there = {folder.name for folder in now.values()}
        for key, old in self._told.items():
            is_gone = key not in now and old.name not in there
            if is_gone and self._wants(NotifyEvent.MAILBOX_NAME, old) and (c.Delete, old.name) not in own:
                yield render.list_line(("\\NonExistent",), old.name, utf8=utf8)
        for key, folder in now.items():
            before = self._told.get(key)
            if before == folder:
                continue
            extended = b""
            if before is None:
                is_news = self._wants(NotifyEvent.MAILBOX_NAME, folder) and (c.Create, folder.name) not in own
            elif before.name != folder.name:
                is_news = self._wants(NotifyEvent.MAILBOX_NAME, before, folder) and not any(
                    (c.Rename, name) in own for name in (folder.name, *ancestors(folder.name))
                )
                extended = b'("OLDNAME" (%b))' % render.mailbox(before.name, utf8=utf8)
            else:
                mine = (c.Subscribe if folder.subscribed else c.Unsubscribe, folder.name)
                is_news = (
                    before.subscribed != folder.subscribed
                    and self._wants(NotifyEvent.SUBSCRIPTION_CHANGE, before, folder)
                    and mine not in own
                )
            if is_news:
                attributes = attributes_of(folder, parents)
                if folder.subscribed:
                    attributes.insert(0, "\\Subscribed")
                yield render.list_line(attributes, folder.name, utf8=utf8, extended=extended)

    def _changed_notes(self, notes: Notes, marks: Marks, now: Mapping[FolderKey, Folder]) -> Iterator[bytes]:
        """METADATA for entries that others changed (§5.6, §5.7), the selected mailbox's too."""
        for key, entries in notes.changes(marks, {key: folder.name for key, folder in now.items()}):
            if key is None:
                name, is_wanted = "", NotifyEvent.SERVER_METADATA_CHANGE in self._others.any
            else:
                name = now[key].name
                is_wanted = self._wants(NotifyEvent.MAILBOX_METADATA_CHANGE, now[key])
            if is_wanted:
                yield render.metadata_changed_line(name, entries, utf8=self._session.utf8)

    def _wants(self, event: NotifyEvent, *states: Folder) -> bool:
        """Whether the event is wanted of a folder as it was or as it is."""
        return any(event in self._others.of(state) for state in states)

    def _is_selected(self, folder: Folder) -> bool:
        selected = self._session.selected
        return selected is not None and selected.view.id == folder.id

    async def _status(self, folder: Folder, events: frozenset[NotifyEvent]) -> bytes:
        items: tuple[StatusItem, ...] = _STATUS
        if self._session.follows_modseq or NotifyEvent.FLAG_CHANGE in events:
            items = (*items, StatusItem.HIGHESTMODSEQ)
        shown = await status_items(self._session, folder, items)
        return render.status_line(folder.name, shown, utf8=self._session.utf8)


def _has_changed(old: Folder, now: Folder, events: frozenset[NotifyEvent]) -> bool:
    if NotifyEvent.FLAG_CHANGE in events and old.highest_modseq != now.highest_modseq:
        return True
    return (old.message_count, old.uid_next, old.uid_validity) != (now.message_count, now.uid_next, now.uid_validity)
