"""LIST and LSUB, over the session's own mailbox and those of others (RFC 5258, RFC 2342, mail-server D2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.imap import acl, render
from postroom.imap import commands as c
from postroom.imap.commands import ListReturn, ListSelection
from postroom.imap.names import SEPARATOR, ListPattern, any_match
from postroom.mailbox.models import Folder, SpecialUse
from postroom.servers.imap.answers import Done
from postroom.servers.imap.boxes import OTHERS, Box
from postroom.servers.imap.folders import USES, note_items, write_status
from postroom.servers.imap.session import Session

_LEVEL: Final = ("\\Noselect", "\\HasChildren")
"""Of names above folders that are none themselves."""
_DEEP: Final = 2
"""Separators in the name of every folder of somebody else."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A folder as a session sees it. Its special use is for the mailbox's own people: what a mail program files by
    itself belongs into the mailbox that it has opened.
    """

    box: Box
    folder: Folder
    name: str
    subscribed: bool

    @property
    def special_use(self) -> SpecialUse | None:
        return self.folder.special_use if self.box.is_own else None


async def folders_of(session: Session, box: Box) -> list[Listed]:
    """The folders of a mailbox that the session may know of, with its person's own subscriptions."""
    mailboxes = session.services.mailboxes
    folders = [folder for folder in await mailboxes.list_folders(box.ref) if not box.hides(folder.name)]
    person = session.boxes.person
    if box.is_own or person is None:
        # What stands for a granted mailbox hides the session's own folders of that name: they cannot be opened.
        return [
            Listed(box, folder, folder.name, folder.subscribed)
            for folder in folders
            if (await session.boxes.locate(folder.name))[0].is_own
        ]
    subscribed = await mailboxes.subscriptions.of(box.ref, person)
    return [Listed(box, folder, box.prefix + folder.name, folder.id in subscribed) for folder in folders]


def parents_of(folders: Iterable[Listed]) -> frozenset[str]:
    """Names below which there is something."""
    return frozenset(folder.name.rpartition(SEPARATOR)[0] for folder in folders)


def attributes_of(listed: Listed, parents: frozenset[str]) -> list[str]:
    """Those that LIST always tells."""
    attributes = ["\\HasChildren" if listed.name in parents else "\\HasNoChildren"]
    if listed.special_use in USES:
        attributes.append(USES[listed.special_use])
    return attributes


class _Patterns:
    """What LIST and LSUB ask for, and where that may be found."""

    def __init__(self, reference: str, patterns: Iterable[str]) -> None:
        texts = [text if text.startswith(SEPARATOR) else reference + text for text in patterns if text]
        self.compiled = [ListPattern(text) for text in texts]
        self._heads = [(text, _head(text)) for text in texts]

    def match(self, name: str) -> bool:
        return any_match(self.compiled, name)

    def leads_to(self, start: str, depth: int) -> bool:
        """Whether a name that begins with `start` and has at least so many separators may match."""
        return any(
            (start.startswith(head) or head.startswith(start)) and ("*" in text or text.count(SEPARATOR) >= depth)
            for text, head in self._heads
        )


def _head(text: str) -> str:
    """What stands before the first wildcard."""
    return text[: min((at for at in (text.find("*"), text.find("%")) if at >= 0), default=len(text))]


async def _others(session: Session, patterns: _Patterns) -> Sequence[Box]:
    """The mailboxes of others, unless no pattern leads to them: then nobody asks."""
    return tuple((await session.boxes.others()).values()) if patterns.leads_to(OTHERS, 0) else ()


async def list_(session: Session, command: c.List) -> Done:
    """LIST, plain or extended (RFC 5258); special uses and children are told in either (RFC 6154 §2, RFC 3348)."""
    if not command.extended and command.patterns == ("",):
        session.write(render.list_line(("\\Noselect",), ""))
        return Done("LIST completed")
    patterns = _Patterns(command.reference, command.patterns)
    listing = _Listing(session, command, patterns)
    await listing.show(await folders_of(session, session.boxes.own))
    others = await _others(session, patterns)
    if others:
        listing.level(OTHERS)
    for box in others:
        listing.level(box.prefix.removesuffix(SEPARATOR))
        if patterns.leads_to(box.prefix, _DEEP) or listing.looks_below:
            await listing.show(await folders_of(session, box))
    listing.finish()
    return Done("LIST completed")


class _Listing:
    """Writes the answers of one LIST."""

    def __init__(self, session: Session, command: c.List, patterns: _Patterns) -> None:
        self._session, self._command, self._patterns = session, command, patterns
        self._levels: dict[str, bool] = {}
        self._shown: set[str] = set()
        selection = command.selection
        self._by_subscription = ListSelection.SUBSCRIBED in selection
        self._tells_subscribed = self._by_subscription or ListReturn.SUBSCRIBED in command.returns
        self.looks_below = self._by_subscription and ListSelection.RECURSIVEMATCH in selection

    def level(self, name: str) -> None:
        """A name above other people's folders, which may be asked for; `finish` tells of it."""
        if self._patterns.match(name):
            self._levels[name] = False

    async def show(self, folders: Sequence[Listed]) -> None:
        """Those of one mailbox that are asked for."""
        session, utf8 = self._session, self._session.utf8
        parents = parents_of(folders)
        for listed in folders:
            if self.looks_below and listed.subscribed:
                for name in self._levels:
                    self._levels[name] |= listed.name.startswith(name + SEPARATOR)
            if not self._patterns.match(listed.name):
                continue
            chosen, inside = self._chosen(listed, folders)
            if not chosen and not inside:
                continue
            attributes = attributes_of(listed, parents)
            if listed.subscribed and self._tells_subscribed:
                attributes.insert(0, "\\Subscribed")
            self._shown.add(listed.name)
            session.write(render.list_line(attributes, listed.name, utf8=utf8, extended=_below(inside)))
            for wanted in self._command.returns:
                if isinstance(wanted, c.ListStatus):
                    note_items(session, wanted.items)
                    await write_status(session, listed.box, listed.folder, wanted.items)
                elif wanted is ListReturn.MY_RIGHTS:
                    rights = acl.shown(listed.box.rights)
                    session.write(render.my_rights_line(listed.name, rights, utf8=utf8))
            await session.drain()

    def finish(self) -> None:
        """Tell of levels: where nothing is selected by what only folders have, or for the sake of what is below."""
        for name, inside in self._levels.items():
            if (inside or not self._command.selection - {ListSelection.REMOTE}) and name not in self._shown:
                self._session.write(render.list_line(_LEVEL, name, utf8=self._session.utf8, extended=_below(inside)))

    def _chosen(self, listed: Listed, folders: Sequence[Listed]) -> tuple[bool, bool]:
        """Whether the selection options pick the folder, and whether it is shown for the sake of what is below it."""
        chosen = not (self._by_subscription and not listed.subscribed) and not (
            ListSelection.SPECIAL_USE in self._command.selection and listed.special_use not in USES
        )
        inside = self.looks_below and any(
            other.subscribed and other.name.startswith(listed.name + SEPARATOR) for other in folders
        )
        return chosen, inside


def _below(inside: bool) -> bytes:
    return b'("CHILDINFO" ("SUBSCRIBED"))' if inside else b""


async def lsub(session: Session, command: c.Lsub) -> Done:
    """LSUB: also, for `%`, the levels above a subscribed folder, as \\Noselect (RFC 3501 §6.3.9)."""
    patterns = _Patterns(command.reference, (command.pattern,))
    shown = dict(_subscribed(await folders_of(session, session.boxes.own), patterns, command.pattern))
    for box in await _others(session, patterns):
        for name, attributes in _subscribed(await folders_of(session, box), patterns, command.pattern):
            shown.setdefault(name, attributes)
    for name, attributes in shown.items():
        session.write(render.list_line(attributes, name, utf8=session.utf8, command="LSUB"))
    return Done("LSUB completed")


def _subscribed(folders: Sequence[Listed], patterns: _Patterns, pattern: str) -> Iterator[tuple[str, list[str]]]:
    """Names to be shown, and what is said of them; of those that come twice the folder is meant."""
    parents = parents_of(folders)
    found: dict[str, list[str]] = {}
    for listed in folders:
        if not listed.subscribed:
            continue
        if patterns.match(listed.name):
            found[listed.name] = attributes_of(listed, parents)
        elif "%" in pattern:
            above = listed.name
            while SEPARATOR in above:
                above = above.rpartition(SEPARATOR)[0]
                if patterns.match(above):
                    found.setdefault(above, ["\\Noselect"])
    yield from found.items()
