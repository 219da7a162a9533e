"""GETQUOTA and GETQUOTAROOT (RFC 9208): each mailbox has one quota root, of what its messages take.

That of the session's own has an empty name; those of others are called as what stands above their folders.
"""

from __future__ import annotations

from postroom.imap import Code, ProtocolNo, render
from postroom.imap import commands as c
from postroom.imap.names import SEPARATOR
from postroom.servers.imap.answers import Done
from postroom.servers.imap.boxes import Box
from postroom.servers.imap.folders import STORAGE_UNIT, find, in_units
from postroom.servers.imap.session import Session


async def get_quota(session: Session, command: c.GetQuota) -> Done:
    box = session.boxes.own
    if command.root != _root(box):
        box, rest = await session.boxes.locate(command.root)
        if box.is_own or rest:
            raise ProtocolNo(Code.NONEXISTENT, "No such quota root")
    await _tell(session, box)
    return Done("GETQUOTA completed")


async def get_quota_root(session: Session, command: c.GetQuotaRoot) -> Done:
    found = await find(session, command.mailbox)
    session.write(render.quota_root_line(found.name, _root(found.box), utf8=session.utf8))
    await _tell(session, found.box)
    return Done("GETQUOTAROOT completed")


def _root(box: Box) -> str:
    return box.prefix.removesuffix(SEPARATOR)


async def _tell(session: Session, box: Box) -> None:
    usage = await session.services.mailboxes.reads.usage(box.ref)
    limit = usage.quota_bytes
    session.write(
        render.quota_line(
            _root(box), [] if limit is None else [("STORAGE", in_units(usage.used_bytes), limit // STORAGE_UNIT)]
        )
    )
