"""SETACL, DELETEACL, GETACL, LISTRIGHTS, MYRIGHTS (RFC 4314): the grants of a mailbox, as rights.

There are three sets of rights, and they are of a mailbox as a whole (A2). So they are changed on its INBOX alone:
whoever would share one folder is not to share everything unawares. All else that cannot be said is refused.
"""

from __future__ import annotations

from typing import Final

from postroom.accounts.audit import actor_of
from postroom.accounts.permissions import GrantRole
from postroom.accounts.service.sharing import Decide
from postroom.base.errors import PostroomError
from postroom.imap import Code, ProtocolNo, acl, render
from postroom.imap import commands as c
from postroom.mailbox.models import SpecialUse
from postroom.servers.imap.answers import Done
from postroom.servers.imap.boxes import OF_ROLE, Found, Rights
from postroom.servers.imap.folders import find
from postroom.servers.imap.session import Session

_ROLES: Final = {rights: role for role, rights in OF_ROLE.items()}
_STEPS: Final = ("lr", "swipkxtecd", "a")
"""What is granted with what, for LISTRIGHTS (§3.7); each step needs those before it."""
_ADMINISTER: Final = "a"
_SPECIAL: Final = frozenset({"anyone", "anonymous", "authuser", "owner"})
"""Identifiers that mean nobody in particular (§2; RFC 5257 §3.2 and habit)."""


async def set_acl(session: Session, command: c.SetAcl) -> Done:
    found = await _administered(session, command.mailbox)

    def decide(before: GrantRole | None) -> GrantRole | None:
        now = OF_ROLE[before] if before is not None else frozenset[str]()
        return _role_of(acl.changed(now, command.mode, command.rights))

    await _change(session, found, command.identifier, decide)
    return Done("SETACL completed")


async def delete_acl(session: Session, command: c.DeleteAcl) -> Done:
    """Who may do nothing is not in the list, so that nothing is to be done then."""
    found = await _administered(session, command.mailbox)
    await _change(session, found, command.identifier, lambda before: None)
    return Done("DELETEACL completed")


async def get_acl(session: Session, command: c.GetAcl) -> Done:
    found = await _administered(session, command.mailbox, changes=False)
    holders = await session.services.sharing.holders(found.box.key)
    pairs = [(one.identifier, acl.shown(OF_ROLE[one.role])) for one in holders]
    session.write(render.acl_line(found.name, pairs, utf8=session.utf8))
    return Done("GETACL completed")


async def list_rights(session: Session, command: c.ListRights) -> Done:
    """The same of everybody: whether there is somebody of that name is not told."""
    found = await _administered(session, command.mailbox, changes=False)
    _check_identifier(command.identifier)
    session.write(render.list_rights_line(found.name, command.identifier, "", _STEPS, utf8=session.utf8))
    return Done("LISTRIGHTS completed")


async def my_rights(session: Session, command: c.MyRights) -> Done:
    found = await find(session, command.mailbox)
    session.write(render.my_rights_line(found.name, acl.shown(found.box.rights), utf8=session.utf8))
    return Done("MYRIGHTS completed")


async def _administered(session: Session, name: str, *, changes: bool = True) -> Found:
    """A folder of a mailbox whose rights are the session's to know and, for `changes`, to change."""
    found = await find(session, name)
    if _ADMINISTER not in found.box.rights or session.boxes.person is None:
        raise ProtocolNo(Code.NOPERM, "Not permitted")
    if changes and found.folder.special_use is not SpecialUse.INBOX:
        raise ProtocolNo(Code.CANNOT, "Rights are of the whole mailbox; change them on its INBOX")
    return found


def _role_of(rights: Rights) -> GrantRole | None:
    if not rights:
        return None
    role = _ROLES.get(rights)
    if role is None:
        can = ", ".join(acl.shown(OF_ROLE[role]) for role in (GrantRole.READ, GrantRole.FULL, GrantRole.OWNER))
        raise ProtocolNo(Code.CANNOT, f"These rights cannot be granted; what can be: {can}, or none")
    return role


def _check_identifier(identifier: str) -> None:
    if identifier.startswith("-"):
        raise ProtocolNo(Code.CANNOT, "There are no negative rights here")
    if identifier.lower() in _SPECIAL or identifier.startswith(("$", "#")):
        raise ProtocolNo(Code.CANNOT, "Rights are given to people, one by one")


async def _change(session: Session, found: Found, identifier: str, decide: Decide) -> None:
    _check_identifier(identifier)
    principal, person, box = session.principal, session.boxes.person, found.box
    assert principal is not None
    assert person is not None
    try:
        await session.services.sharing.change(
            box.key, box.identity_id, identifier, decide, owner=person, by=actor_of(principal)
        )
    except PostroomError as error:
        answer = _ANSWERS.get(error.code)
        if answer is None:
            raise
        raise ProtocolNo(*answer) from None


_ANSWERS: Final = {
    "person_not_found": (Code.CANNOT, "No such person; name one by the address of their own mailbox here"),
    "owner_required": (Code.CANNOT, "A mailbox keeps an owner; give it another one first"),
    "scope_denied": (Code.NOPERM, "Not permitted"),
}
