"""Application passwords: one for each mail program, shown once, revoked alone (mail-server F5; decisions B11)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import datetime
from typing import Final

from postroom.accounts import tokens
from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.keys import mac
from postroom.accounts.models import AppPassword, Person
from postroom.accounts.scram import ScramKeys
from postroom.accounts.service.sessions import First
from postroom.accounts.store import credentials as store
from postroom.accounts.store import people as people_store
from postroom.accounts.store import sessions as session_store
from postroom.accounts.text import check_name
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database

MAX_LABEL: Final = 128
MAX_LIVE: Final = 50
"""Of one person, revoked ones aside."""
MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""


class AppPasswords:
    """Use cases; callers have made sure whose they are. `changed` is told the id of a person whose sign-ins are to be
    looked at again. Without `scram` what is made signs in by PLAIN alone.
    """

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        pepper: bytes,
        random: Callable[[int], bytes] = os.urandom,
        changed: Callable[[str], None] = lambda person: None,
        *,
        scram: ScramKeys | None = None,
    ) -> None:
        self._db, self._ids, self._clock, self._pepper, self._random = db, ids, clock, pepper, random
        self._changed, self._scram = changed, scram

    async def create(
        self, person: Person, label: str, by: Actor, *, epoch: int | None = None
    ) -> tuple[AppPassword, str]:
        """A new one and its text, which nobody can be shown again. `epoch` is the person's when they proved who they
        are. Raises `invalid_request`, `app_password_limit_reached`; `invalid_credentials` when what was proved was
        undone meanwhile.
        """
        check_label(label)
        text, public_id = tokens.draw_app_password(self._random), self._ids.new("apw_")
        sealed = None if self._scram is None else await asyncio.to_thread(self._scram.sealed_keys_of, text, public_id)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            # The lock makes the count exact.
            if not await people_store.lock(conn, person.id, epoch):
                raise PostroomError("person_not_found" if epoch is None else "invalid_credentials")
            if await store.count_live(conn, person.id) >= MAX_LIVE:
                raise PostroomError("app_password_limit_reached", details={"limit": MAX_LIVE})
            made = await store.insert_app_password(
                conn, public_id, person.id, label, mac(self._pepper, text), sealed, now
            )
            entry = Entry("app_password.create", "app_password", made.public_id, details={"person": person.public_id})
            await record(conn, self._ids, now, by, entry)
        return made, text

    async def page(
        self, person_id: int, *, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[AppPassword]:
        """Newest first; revoked ones stay in the list."""
        async with self._db.acquire() as conn:
            return await store.app_passwords(conn, person_id, min(max(limit, 1), MAX_PAGE), after)

    async def revoke(self, person: Person, public_id: str, by: Actor, *, first: First | None = None) -> None:
        """Refused from now on; what it opened ends. `first` is done first in the transaction. Raises
        `app_password_not_found`, the second time too, and what `first` raises.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            if first is not None:
                await first(conn)
            revoked = await store.revoke_app_password(conn, person.id, public_id, now)
            if revoked is None:
                raise PostroomError("app_password_not_found")
            await session_store.revoke_of_app_password(conn, revoked, now)
            entry = Entry("app_password.revoke", "app_password", public_id, details={"person": person.public_id})
            await record(conn, self._ids, now, by, entry)
        self._changed(person.public_id)


def check_label(label: str) -> None:
    """Raises `invalid_request`."""
    check_name("label", label, MAX_LABEL)
