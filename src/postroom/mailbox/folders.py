"""Folders: the standard set, lists, and every change of the tree (D2).

Each change is told to the log once per folder (`folder_created`, `folder_renamed` …); UIDVALIDITY is drawn from the
mailbox's counter when a folder is made and never changes afterwards (B21, D4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg

from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.mailbox import rules
from postroom.mailbox.models import STANDARD_FOLDERS, ChangeKind, Folder, FolderKey, MailboxRef, SpecialUse
from postroom.mailbox.rules import invalid
from postroom.mailbox.writing import MailboxWrite

NewId = Callable[[str], str]
"""Makes a public id of a prefix (`base.ids.IdGenerator.new`)."""

_COLUMNS: Final = """
SELECT id, public_id, name, special_use, subscribed, uid_validity, uid_next, recent_uid, highest_modseq, message_count,
       unseen_count, deleted_count, total_bytes
FROM folders WHERE tenant_id = $1 AND mailbox_id = $2
"""
_LIST: Final = _COLUMNS
_BY_NAME: Final = _COLUMNS + "AND name = $3"
_BY_KEY: Final = _COLUMNS + "AND id = $3"
_BY_ID: Final = _COLUMNS + "AND public_id = $3"
_BY_USE: Final = _COLUMNS + "AND special_use = $3"

_MAILBOX: Final = """
INSERT INTO mailboxes (tenant_id, id, identity_public_id, tenant_public_id, quota_bytes, is_system, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant_id, id) DO NOTHING
"""

_QUOTA: Final = """
UPDATE mailboxes SET quota_bytes = $3 WHERE tenant_id = $1 AND id = $2 AND NOT erased RETURNING id
"""

_NAMES: Final = "SELECT name, special_use FROM folders WHERE tenant_id = $1 AND mailbox_id = $2"

_INSERT: Final = """
INSERT INTO folders (tenant_id, mailbox_id, public_id, name, special_use, uid_validity, highest_modseq, created_at)
SELECT $1, $2, n.public_id, n.name, n.special_use, n.uid_validity, $3, $4
FROM unnest($5::text[], $6::text[], $7::text[], $8::bigint[]) AS n (public_id, name, special_use, uid_validity)
RETURNING id, public_id, name
"""

_GIVE_ROLE: Final = "UPDATE folders SET special_use = $4 WHERE tenant_id = $1 AND mailbox_id = $2 AND name = $3"

_RENAME: Final = """
UPDATE folders SET name = $4 || substr(name, length($3) + 1)
WHERE tenant_id = $1 AND mailbox_id = $2 AND (name = $3 OR starts_with(name, $3 || '/'))
RETURNING id, public_id, name
"""

_LONGEST_CHILD: Final = """
SELECT max(octet_length(name)) FROM folders
WHERE tenant_id = $1 AND mailbox_id = $2 AND (name = $3 OR starts_with(name, $3 || '/'))
"""

_HAS_CHILDREN: Final = (
    "SELECT EXISTS (SELECT FROM folders WHERE tenant_id = $1 AND mailbox_id = $2 AND starts_with(name, $3 || '/'))"
)

_DELETE: Final = "DELETE FROM folders WHERE tenant_id = $1 AND mailbox_id = $2 AND id = $3"

_SUBSCRIBE: Final = """
UPDATE folders SET subscribed = $4 WHERE tenant_id = $1 AND mailbox_id = $2 AND id = $3 AND subscribed <> $4
"""

_RECENT: Final = """
WITH seen AS (
  SELECT id, recent_uid, uid_next FROM folders WHERE tenant_id = $1 AND mailbox_id = $2 AND id = $3 FOR NO KEY UPDATE
)
UPDATE folders f SET recent_uid = seen.uid_next - 1 FROM seen
WHERE f.tenant_id = $1 AND f.id = seen.id AND seen.recent_uid < seen.uid_next - 1
RETURNING seen.recent_uid + 1 AS first, seen.uid_next AS stop
"""

# A folder that was made, filled and deleted here may have had any UIDVALIDITY since the mailbox is there, or one that
# it had taken over. ($5, in Unix seconds.)
_ADOPT: Final = """
WITH fresh AS (
  SELECT b.tenant_id, b.id FROM mailboxes b
  WHERE b.tenant_id = $1 AND b.id = $2 AND $5 < extract(epoch FROM b.created_at)
), adopted AS (
  INSERT INTO adopted_uid_validities (tenant_id, mailbox_id, name, uid_validity)
  SELECT $1, $2, f.name, $5 FROM folders f, fresh WHERE f.tenant_id = $1 AND f.mailbox_id = $2 AND f.id = $3
  ON CONFLICT DO NOTHING RETURNING name
)
UPDATE folders f SET uid_validity = $5, uid_next = greatest(f.uid_next, $4)
WHERE f.tenant_id = $1 AND f.mailbox_id = $2 AND f.id = $3 AND (f.uid_validity = $5 OR EXISTS (SELECT FROM adopted))
"""

_RENEW: Final = """
WITH b AS (
  UPDATE mailboxes SET last_uid_validity = greatest(last_uid_validity + 1, $4)
  WHERE tenant_id = $1 AND id = $2 RETURNING last_uid_validity
)
UPDATE folders SET uid_validity = b.last_uid_validity FROM b
WHERE folders.tenant_id = $1 AND folders.mailbox_id = $2 AND folders.id = $3
"""


def _folder(row: asyncpg.Record) -> Folder:
    values: dict[str, Any] = dict(row)
    if values["special_use"] is not None:
        values["special_use"] = SpecialUse(values["special_use"])
    return Folder(**values)


# -- reading -----------------------------------------------------------------------------------------------------------


async def list_folders(conn: Connection, ref: MailboxRef) -> list[Folder]:
    """All folders: INBOX and its children first, then by the alphabet."""
    folders = [_folder(row) for row in await conn.fetch(_LIST, ref.tenant_id, ref.mailbox_id)]
    return sorted(folders, key=lambda folder: rules.folder_order(folder.name))


async def _one(conn: Connection, statement: str, ref: MailboxRef, value: str | int) -> Folder:
    row = await conn.fetchrow(statement, ref.tenant_id, ref.mailbox_id, value)
    if row is None:
        raise PostroomError("folder_not_found")
    return _folder(row)


async def by_name(conn: Connection, ref: MailboxRef, name: str) -> Folder:
    """The folder called `name`, in any spelling that D2 makes the same.

    Raises `folder_not_found`, also for an impossible name.
    """
    try:
        name = rules.folder_name(name)
    except PostroomError:
        raise PostroomError("folder_not_found") from None
    return await _one(conn, _BY_NAME, ref, name)


async def by_key(conn: Connection, ref: MailboxRef, folder_id: FolderKey) -> Folder:
    """Raises `folder_not_found`."""
    return await _one(conn, _BY_KEY, ref, folder_id)


async def by_id(conn: Connection, ref: MailboxRef, public_id: str) -> Folder:
    """The folder of a public id. Raises `folder_not_found`."""
    return await _one(conn, _BY_ID, ref, public_id)


async def by_use(conn: Connection, ref: MailboxRef, use: SpecialUse) -> Folder:
    """The folder with a special use. Raises `folder_not_found`."""
    return await _one(conn, _BY_USE, ref, use.value)


# -- making ------------------------------------------------------------------------------------------------------------


async def insert_mailbox(
    conn: Connection,
    ref: MailboxRef,
    *,
    identity_id: str,
    tenant_id: str,
    quota_bytes: int | None,
    is_system: bool,
    now: datetime,
) -> None:
    """The mailbox's own row, if it is not there."""
    await conn.execute(_MAILBOX, ref.tenant_id, ref.mailbox_id, identity_id, tenant_id, quota_bytes, is_system, now)


async def set_quota(conn: Connection, ref: MailboxRef, quota_bytes: int | None) -> bool:
    """Whether there is the mailbox, which may hold so much from now on."""
    return await conn.fetchval(_QUOTA, ref.tenant_id, ref.mailbox_id, quota_bytes) is not None


async def ensure_standard(write: MailboxWrite, new_id: NewId) -> None:
    """Make what is missing of the standard set; a folder of the name that has no role gets it (D2)."""
    rows = await write.conn.fetch(_NAMES, write.ref.tenant_id, write.ref.mailbox_id)
    names = {row["name"]: row["special_use"] for row in rows}
    roles = set(names.values())
    missing: list[tuple[str, SpecialUse | None]] = []
    for name, role in STANDARD_FOLDERS:
        if role.value in roles:
            continue
        if name not in names:
            missing.append((name, role))
        elif names[name] is None:
            await write.conn.execute(_GIVE_ROLE, write.ref.tenant_id, write.ref.mailbox_id, name, role.value)
    await _insert(write, missing, new_id)


async def create(write: MailboxWrite, name: str, special_use: SpecialUse | None, new_id: NewId) -> Folder:
    """Make a folder and the parents it lacks. Raises `folder_exists`, `invalid_request`, `LimitExceeded`."""
    name = rules.folder_name(name)
    rows = await write.conn.fetch(_NAMES, write.ref.tenant_id, write.ref.mailbox_id)
    names = {row["name"] for row in rows}
    if name in names:
        raise PostroomError("folder_exists")
    if special_use is not None and any(row["special_use"] == special_use.value for row in rows):
        raise invalid("special_use", "another folder has this special use")
    wanted: list[tuple[str, SpecialUse | None]] = [
        (parent, None) for parent in rules.ancestors(name) if parent not in names
    ]
    wanted.append((name, special_use))
    if len(names) + len(wanted) > rules.MAX_FOLDERS:
        raise rules.LimitExceeded("name", rules.MAX_FOLDERS)
    await _insert(write, wanted, new_id)
    return await by_name(write.conn, write.ref, name)


async def _insert(write: MailboxWrite, wanted: Sequence[tuple[str, SpecialUse | None]], new_id: NewId) -> None:
    if not wanted:
        return
    rows = await write.conn.fetch(
        _INSERT,
        write.ref.tenant_id,
        write.ref.mailbox_id,
        write.modseq,
        write.now,
        [new_id("fld_") for _ in wanted],
        [name for name, _ in wanted],
        [role.value if role else None for _, role in wanted],
        [write.next_uid_validity() for _ in wanted],
    )
    keys = {row["name"]: (FolderKey(row["id"]), row["public_id"]) for row in rows}
    for name, _ in wanted:
        key, public_id = keys[name]
        write.log(ChangeKind.FOLDER_CREATED, folder_id=key, folder=public_id)


# -- changing ----------------------------------------------------------------------------------------------------------


async def rename(write: MailboxWrite, folder_id: FolderKey, new_name: str, new_id: NewId) -> Folder:
    """Give a folder, with all below it, another path; makes the parents that the new path lacks.

    UIDVALIDITY and special use stay. Raises `folder_not_found`, `folder_exists`, and `invalid_request` for INBOX, a
    path under the folder itself, or one too long for what is below it.
    """
    folder = await by_key(write.conn, write.ref, folder_id)
    name = rules.folder_name(new_name)
    if folder.special_use is SpecialUse.INBOX:
        raise invalid("name", "INBOX keeps its name")
    rows = await write.conn.fetch(_NAMES, write.ref.tenant_id, write.ref.mailbox_id)
    names = {row["name"] for row in rows}
    if name in names:
        raise PostroomError("folder_exists")
    if rules.is_within(name, folder.name):
        raise invalid("name", "a folder cannot go under itself")
    longest = await write.conn.fetchval(_LONGEST_CHILD, write.ref.tenant_id, write.ref.mailbox_id, folder.name)
    if longest - len(folder.name.encode()) + len(name.encode()) > rules.MAX_PATH_BYTES:
        raise invalid("name", f"a path has at most {rules.MAX_PATH_BYTES} bytes")
    parents = [(parent, None) for parent in rules.ancestors(name) if parent not in names]
    if len(names) + len(parents) > rules.MAX_FOLDERS:
        raise rules.LimitExceeded("name", rules.MAX_FOLDERS)
    await _insert(write, parents, new_id)
    moved = await write.conn.fetch(_RENAME, write.ref.tenant_id, write.ref.mailbox_id, folder.name, name)
    for row in sorted(moved, key=lambda row: rules.folder_order(row["name"])):
        write.log(ChangeKind.FOLDER_RENAMED, folder_id=FolderKey(row["id"]), folder=row["public_id"])
    return await by_key(write.conn, write.ref, folder_id)


async def check_deletable(write: MailboxWrite, folder_id: FolderKey) -> Folder:
    """The folder, if it may go.

    Raises `folder_not_found`, `folder_not_empty` (children), `invalid_request` (special use).
    """
    folder = await by_key(write.conn, write.ref, folder_id)
    if folder.special_use is not None:
        raise invalid("folder", "a folder with a special use cannot be deleted")
    if await write.conn.fetchval(_HAS_CHILDREN, write.ref.tenant_id, write.ref.mailbox_id, folder.name):
        raise PostroomError("folder_not_empty")
    return folder


async def delete_row(write: MailboxWrite, folder: Folder) -> None:
    """The row of a folder that holds nothing any more."""
    await write.conn.execute(_DELETE, write.ref.tenant_id, write.ref.mailbox_id, folder.id)
    write.log(ChangeKind.FOLDER_REMOVED, folder_id=folder.id, folder=folder.public_id)


async def subscribe(write: MailboxWrite, folder_id: FolderKey, subscribed: bool) -> None:
    """Nothing is logged when it is so already. Raises `folder_not_found`."""
    folder = await by_key(write.conn, write.ref, folder_id)
    done = await write.conn.execute(_SUBSCRIBE, write.ref.tenant_id, write.ref.mailbox_id, folder_id, subscribed)
    if done.endswith(" 1"):
        write.log(ChangeKind.FOLDER_SUBSCRIBED, folder_id=folder.id, folder=folder.public_id)


async def adopt_uid_validity(
    conn: Connection, ref: MailboxRef, folder_id: FolderKey, uid_validity: int, uid_next: int
) -> bool:
    """Take over UIDVALIDITY and UIDNEXT of a folder of another server, whose UIDs the messages have; in a transaction
    that holds the mailbox. False, and nothing is done, when a folder of the name may have had that UIDVALIDITY before,
    with other messages (D4).
    """
    done = await conn.execute(_ADOPT, ref.tenant_id, ref.mailbox_id, folder_id, uid_next, uid_validity)
    return done.endswith(" 1")


async def renew_uid_validity(conn: Connection, ref: MailboxRef, folder_id: FolderKey, now: datetime) -> None:
    """Give a folder a new UIDVALIDITY: its UIDs may mean other messages to a client than here (D4, B21). In a
    transaction that holds the mailbox.
    """
    await conn.execute(_RENEW, ref.tenant_id, ref.mailbox_id, folder_id, int(now.timestamp()))


async def mark_recent(conn: Connection, ref: MailboxRef, folder_id: FolderKey) -> range:
    """Claim what nobody has seen as \\Recent: the UIDs delivered since the last claim (D5, RFC 3501 §2.3.2).

    Neither modseq nor log: \\Recent is a matter of one session. Touches one row, so it needs no mailbox lock.
    """
    row = await conn.fetchrow(_RECENT, ref.tenant_id, ref.mailbox_id, folder_id)
    return range(0) if row is None else range(row["first"], row["stop"])
