"""The mailboxes of a session: its own, which was opened, and those of others that are granted to the person.

The latter stand below ``Other Users/<address>/`` (RFC 2342 §5). Nobody asks about them before a name, or a pattern,
leads there; from then on they are known, and what becomes of the grants is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from postroom.accounts.models import MailboxKey, PersonKey, Principal, PrincipalKind, SharedMailbox, TenantKey
from postroom.accounts.permissions import OF_GRANT, GrantRole, Permission
from postroom.accounts.service.sharing import Sharing
from postroom.imap.acl import RIGHTS
from postroom.imap.names import SEPARATOR, canonical_name
from postroom.mailbox.models import Folder, MailboxRef
from postroom.mailbox.rules import is_quarantine

OTHERS: Final = "Other Users"
_PREFIX: Final = OTHERS + SEPARATOR

Rights = frozenset[str]

OF_ROLE: Final[Mapping[GrantRole, Rights]] = {
    GrantRole.READ: frozenset("lr"),
    GrantRole.FULL: frozenset(RIGHTS) - {"a"},
    GrantRole.OWNER: frozenset(RIGHTS),
}
"""What each grant is in rights of RFC 4314. Who only reads marks nothing as seen: flags are the mailbox's."""
_OF_KEY: Final = {False: frozenset("lr"), True: frozenset("lrswik")}
"""Those of an API key, by whether it may write: it removes nothing for good (D1)."""

_NONE: Final[Mapping[str, Box]] = {}


@dataclass(frozen=True, slots=True)
class Box:
    """A mailbox as a session reaches it. `prefix` stands before the names of its folders, nothing before those of the
    session's own. `reviews`: quarantine is shown (A6).
    """

    ref: MailboxRef
    tenant_id: str
    identity_id: str
    may_write: bool
    rights: Rights = field(repr=False)
    prefix: str = ""
    reviews: bool = True

    @property
    def is_own(self) -> bool:
        """Whether it is the one that was opened."""
        return not self.prefix

    @property
    def key(self) -> MailboxKey:
        """How the accounts department names it."""
        return MailboxKey(TenantKey(self.ref.tenant_id), self.ref.mailbox_id)

    def hides(self, name: str) -> bool:
        """Whether a folder of this name is not for the session to know of."""
        return not self.reviews and is_quarantine(name)


NOWHERE: Final = Box(MailboxRef(0, 0), "", "", may_write=False, rights=frozenset())
"""Before sign-in."""


class Found(NamedTuple):
    """A folder and the mailbox that it is in."""

    box: Box
    folder: Folder

    @property
    def name(self) -> str:
        """As the session calls it."""
        return self.box.prefix + self.folder.name


def is_reserved(name: str) -> bool:
    """Whether the name is kept for other people's mailboxes: none is given to a folder."""
    return name == OTHERS or name.startswith(_PREFIX)


class Boxes:
    """What one session reaches. `changed` is called when somebody else has changed it."""

    __slots__ = ("_changed", "_end", "_known", "_others", "_person", "_sharing", "own")

    def __init__(self, sharing: Sharing, changed: Callable[[], None]) -> None:
        self._sharing = sharing
        self._changed = changed
        self._person: PersonKey | None = None
        self._known: tuple[SharedMailbox, ...] | None = None
        self._others = _NONE
        self._end: Callable[[], None] | None = None
        self.own = NOWHERE

    def open(self, principal: Principal) -> None:
        """The principal's, from now on."""
        assert principal.tenant_id is not None
        assert principal.identity_id is not None
        is_key = principal.kind is PrincipalKind.KEY
        may_write = principal.may(Permission.MESSAGES_WRITE)
        self.own = Box(
            ref=MailboxRef(principal.tenant_id, principal.identity_id),
            tenant_id=str(principal.tenant_public_id),
            identity_id=str(principal.identity_public_id),
            may_write=may_write,
            rights=_OF_KEY[may_write] if principal.grant is None else OF_ROLE[principal.grant],
            reviews=principal.may(Permission.QUARANTINE_REVIEW),
        )
        if not is_key:
            self._person = PersonKey(principal.row_id)

    def close(self) -> None:
        """The session is over."""
        self._person, self._known, self._others = None, None, _NONE
        if self._end is not None:
            self._end()
            self._end = None

    @property
    def person(self) -> PersonKey | None:
        """Whose session it is; None for keys, which reach one mailbox."""
        return self._person

    async def others(self) -> Mapping[str, Box]:
        """The mailboxes of others, by what stands for them below `OTHERS`. Raises what the database raises."""
        if self._person is None:
            return _NONE
        if self._end is None:
            self._end = self._sharing.watch(self._person, self._take)
        found = await self._sharing.mailboxes(self._person)
        if found is not self._known and self._person is not None:
            self._set(found)
        return self._others

    def now(self, box: Box) -> Box | None:
        """The box as it is reached now, as far as that is known; None when it is so no more."""
        if box.is_own:
            return self.own
        return next((other for other in self._others.values() if other.ref == box.ref), None)

    async def locate(self, name: str) -> tuple[Box, str]:
        """The mailbox that a name leads into, and the folder's name there. What leads into none that is granted is a
        name of the session's own mailbox, whether there is such a mailbox or not.
        """
        if name.startswith(_PREFIX):
            await self.others()
        return self.known(name)

    def known(self, name: str) -> tuple[Box, str]:
        """As `locate`, by what is known already."""
        if name.startswith(_PREFIX):
            which, _, rest = name.removeprefix(_PREFIX).partition(SEPARATOR)
            box = self._others.get(which)
            if box is not None:
                return box, canonical_name(rest)
        return self.own, name

    def _take(self, found: tuple[SharedMailbox, ...]) -> None:
        self._set(found)
        self._changed()

    def _set(self, found: tuple[SharedMailbox, ...]) -> None:
        self._known = found
        self._others = dict(_boxes(found, self.own.ref))


def _boxes(found: Iterable[SharedMailbox], own: MailboxRef) -> Iterable[tuple[str, Box]]:
    for one in found:
        ref = MailboxRef(one.key.tenant_id, one.key.mailbox_id)
        if ref == own:
            continue
        # Addresses of ours have nothing that means something in a name; whoever has none goes by the id.
        which = one.address or one.identity_public_id
        permissions = OF_GRANT[one.role]
        yield (
            which,
            Box(
                ref=ref,
                tenant_id=one.tenant_public_id,
                identity_id=one.identity_public_id,
                may_write=Permission.MESSAGES_WRITE in permissions,
                rights=OF_ROLE[one.role],
                prefix=f"{_PREFIX}{which}{SEPARATOR}",
                reviews=Permission.QUARANTINE_REVIEW in permissions,
            ),
        )
