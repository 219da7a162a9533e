"""Folders as clients of the API name them: by public id, below a parent (decisions E, mail-server D2).

A principal who may not review quarantine knows nothing of that folder, nor of what is below it (A6).
"""

from __future__ import annotations

from dataclasses import dataclass

from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.mailbox import folders, rules
from postroom.mailbox.folders import NewId
from postroom.mailbox.models import Folder, MailboxRef, SpecialUse
from postroom.mailbox.writing import MailboxWrite


@dataclass(frozen=True, slots=True)
class Below:
    """A place in the tree: below the folder of that public id, or (None) at the top."""

    parent: str | None


@dataclass(frozen=True, slots=True)
class FolderChange:
    """What a folder is to be. None leaves as it is.

    `name` is the last part of the path where a place is given, else the whole path.
    """

    name: str | None = None
    place: Below | None = None
    subscribed: bool | None = None


def is_known(folder: Folder, sees_quarantine: bool) -> bool:
    """Whether a principal may know of a folder."""
    return sees_quarantine or not rules.is_quarantine(folder.name)


async def find(conn: Connection, ref: MailboxRef, public_id: str, *, sees_quarantine: bool) -> Folder:
    """A folder that may be known of. Raises `folder_not_found`."""
    folder = await folders.by_id(conn, ref, public_id)
    if not is_known(folder, sees_quarantine):
        raise PostroomError("folder_not_found")
    return folder


async def create(
    write: MailboxWrite,
    name: str,
    place: Below | None,
    use: SpecialUse | None,
    new_id: NewId,
    *,
    subscribed: bool,
    sees_quarantine: bool,
) -> Folder:
    """Make a folder and the parents it lacks. Raises as `folders.create`, `folder_not_found` for the parent."""
    path = await _path(write, name, place, sees_quarantine=sees_quarantine)
    folder = await folders.create(write, path, use, new_id)
    if subscribed:
        return folder
    await folders.subscribe(write, folder.id, False)
    return await folders.by_key(write.conn, write.ref, folder.id)


async def change(
    write: MailboxWrite, public_id: str, wanted: FolderChange, new_id: NewId, *, sees_quarantine: bool
) -> Folder:
    """Rename, move and subscribe, all or nothing. Raises as `folders.rename`, `folder_not_found` also for the parent.

    A folder that has the name already keeps it, so that a repetition is no conflict.
    """
    folder = await find(write.conn, write.ref, public_id, sees_quarantine=sees_quarantine)
    if wanted.name is not None or wanted.place is not None:
        name = wanted.name
        if name is None:
            name = folder.name.rpartition(rules.SEPARATOR)[2]
        path = await _path(write, name, wanted.place, sees_quarantine=sees_quarantine)
        if path != folder.name:
            await folders.rename(write, folder.id, path, new_id)
    if wanted.subscribed is not None:
        await folders.subscribe(write, folder.id, wanted.subscribed)
    return await folders.by_key(write.conn, write.ref, folder.id)


async def _path(write: MailboxWrite, name: str, place: Below | None, *, sees_quarantine: bool) -> str:
    if place is not None and place.parent is not None:
        parent = await find(write.conn, write.ref, place.parent, sees_quarantine=sees_quarantine)
        name = f"{parent.name}{rules.SEPARATOR}{name}"
    path = rules.folder_name(name)
    if not sees_quarantine and rules.is_quarantine(path):
        raise PostroomError("permission_denied", details={"required": ["quarantine:review"]})
    return path
