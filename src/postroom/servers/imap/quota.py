"""GETQUOTA and GETQUOTAROOT (RFC 9208): each mailbox has one quota root, of what its messages take."""

from __future__ import annotations

from typing import Final

from postroom.imap import Code, ProtocolNo, render
from postroom.imap import commands as c
from postroom.servers.imap.folders import STORAGE_UNIT, find, in_units
from postroom.servers.imap.session import Done, Session

ROOT: Final = ""
"""The name of the one root that there is."""


async def get_quota(session: Session, command: c.GetQuota) -> Done:
    if command.root != ROOT:
        raise ProtocolNo(Code.NONEXISTENT, "No such quota root")
    await _tell(session)
    return Done("GETQUOTA completed")


async def get_quota_root(session: Session, command: c.GetQuotaRoot) -> Done:
    folder = await find(session, command.mailbox)
    session.write(render.quota_root_line(folder.name, ROOT, utf8=session.utf8))
    await _tell(session)
    return Done("GETQUOTAROOT completed")


async def _tell(session: Session) -> None:
    usage = await session.services.mailboxes.reads.usage(session.ref)
    limit = usage.quota_bytes
    session.write(
        render.quota_line(
            ROOT, [] if limit is None else [("STORAGE", in_units(usage.used_bytes), limit // STORAGE_UNIT)]
        )
    )
