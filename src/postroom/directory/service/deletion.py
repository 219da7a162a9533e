"""An identity is deleted: its addresses are gone for ever, its mailbox takes nothing more, and its erasure is asked for
(inbound §2.3; A5, A13, FR-IDN-4). All in one transaction, once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from postroom.accounts import audit
from postroom.accounts.audit import HOST, Actor
from postroom.accounts.models import Scope
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.directory import erasures, store
from postroom.directory.erasures import Erasure
from postroom.directory.models import Changed, IdentityStatus, MailboxClosing
from postroom.directory.tombstones import bury_identity

DEADLINE: Final = timedelta(hours=24)
"""Within which an erasure is to be done (data-model §7)."""

_GONE: Final = frozenset((IdentityStatus.DELETING, IdentityStatus.DELETED))


class Deletions:
    """`close_mailbox` shuts the mailbox inside the transaction; `changed` is told of the identity after the commit."""

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        hash_key: bytes,
        close_mailbox: MailboxClosing,
        changed: Changed,
    ) -> None:
        self._db, self._ids, self._clock, self._hash_key = db, ids, clock, hash_key
        self._close_mailbox, self._changed = close_mailbox, changed

    async def delete(self, scope: Scope, public_id: str, *, by: Actor = HOST) -> tuple[Erasure, bool]:
        """The request to erase it, and whether it was made now: whoever asks again gets the same.

        Raises `identity_not_found`, also out of scope; `scope_denied` for the system's own.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            identity = await store.get(conn, scope, public_id, lock=True)
            if identity is None:
                raise PostroomError("identity_not_found")
            if identity.is_system:
                raise PostroomError("scope_denied", details={"reason": "system_identity"})
            if identity.status in _GONE:
                known = await erasures.of_identity(conn, identity)
                if known is not None:
                    return known, False
            else:
                # Whatever is being stored at the moment is stored before; what comes later finds the mailbox closed.
                await self._close_mailbox(conn, identity.tenant_id, identity.id)
                await bury_identity(conn, self._hash_key, identity, "deleted", now)
                entry = audit.Entry("identity.delete", "identity", identity.public_id, identity.tenant_id)
                await audit.record(conn, self._ids, now, by, entry)
            erasure_id = self._ids.new("era_")
            await erasures.insert(conn, identity, erasure_id, by.key, now, now + DEADLINE)
            details = {"scope": "identity", "identity_id": identity.public_id}
            entry = audit.Entry("erasure.create", "erasure", erasure_id, identity.tenant_id, details)
            await audit.record(conn, self._ids, now, by, entry)
            made = await erasures.of_identity(conn, identity)
            assert made is not None
        self._changed(public_id)
        return made, True
