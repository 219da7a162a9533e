"""Mailboxes that several people may open: what somebody reaches, kept in memory while they are connected, and what an
owner does to the rights of others (decisions A2; decision 0052).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.models import Holder, MailboxKey, PersonKey, SharedMailbox
from postroom.accounts.permissions import GrantRole
from postroom.accounts.store import people as people_store
from postroom.accounts.store import sharing as store
from postroom.accounts.store import tenants as tenant_store
from postroom.accounts.text import is_storable
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database

MAX_MAILBOXES: Final = 200
"""Mailboxes that somebody reaches beside the one they opened."""
MAX_HOLDERS: Final = 1000
"""People of one mailbox who are listed."""
MAX_IDENTIFIER: Final = 320
_BATCH: Final = 1000
_ATTEMPTS: Final = 4

Mailboxes = tuple[SharedMailbox, ...]
Changed = Callable[[Mailboxes], None]
"""Told what somebody reaches from now on. Must not block."""
Decide = Callable[[GrantRole | None], GrantRole | None]
"""What becomes of somebody's right to a mailbox; None is none. What it raises leaves all as it was."""


@dataclass(slots=True, eq=False)
class _Reach:
    """What one person reaches, as far as it is known. `reading` counts the looks that were begun."""

    known: Mailboxes | None = None
    reading: int = 0
    watchers: dict[object, Changed] = field(default_factory=dict)


class Sharing:
    """One per process; lives on the event loop. `changed` is told the id of a person whose connections are to be looked
    at again, on all nodes.
    """

    def __init__(
        self, db: Database, ids: IdGenerator, clock: Clock, changed: Callable[[str], None] = lambda person: None
    ) -> None:
        self._db, self._ids, self._clock, self._changed = db, ids, clock, changed
        self._reaches: dict[int, _Reach] = {}

    # -- what somebody reaches

    def watch(self, person_id: int, changed: Changed) -> Callable[[], None]:
        """Remember what the person reaches, and call `changed` when it is not what `mailboxes` said last. Returns what
        ends the watch.
        """
        reach = self._reaches.setdefault(person_id, _Reach())
        token = object()
        reach.watchers[token] = changed

        def end() -> None:
            reach.watchers.pop(token, None)
            if not reach.watchers and self._reaches.get(person_id) is reach:
                del self._reaches[person_id]

        return end

    async def mailboxes(self, person_id: int) -> Mailboxes:
        """The mailboxes that the person may open. Costs nothing while it is known, which it is for whoever is watched.
        Raises what the database raises.
        """
        reach = self._reaches.get(person_id)
        if reach is not None and reach.known is not None:
            return reach.known
        for _ in range(_ATTEMPTS):
            if reach is not None:
                reach.reading += 1
            mine = 0 if reach is None else reach.reading
            async with self._db.acquire() as conn:
                found = (await store.reached(conn, (person_id,), MAX_MAILBOXES))[person_id]
            if reach is None or reach.reading == mine:
                break
            # Another look was begun after this one, and may have seen more.
            if reach.known is not None:
                return reach.known
        else:
            return found  # those who looked later remember
        if reach is not None:
            reach.known = found
        return found

    async def check(self) -> None:
        """Look whether those who are watched still reach what they did. Raises what the database raises."""
        people = [person for person, reach in self._reaches.items() if reach.known is not None or reach.reading]
        for at in range(0, len(people), _BATCH):
            await self._check(people[at : at + _BATCH])

    async def _check(self, people: Sequence[int]) -> None:
        begun: dict[int, tuple[_Reach, int]] = {}
        for person in people:
            reach = self._reaches.get(person)
            if reach is not None:
                reach.reading += 1
                begun[person] = reach, reach.reading
        async with self._db.acquire() as conn:
            found = await store.reached(conn, list(begun), MAX_MAILBOXES)
        for person, (reach, mine) in begun.items():
            if reach.reading != mine:
                continue  # somebody looked later
            before = reach.known
            if before == found[person]:
                continue
            reach.known = found[person]
            if before is not None:
                for changed in tuple(reach.watchers.values()):
                    changed(reach.known)

    # -- who may open a mailbox

    async def holders(self, mailbox: MailboxKey) -> list[Holder]:
        """Who may open the mailbox, owners first, at most `MAX_HOLDERS`. Callers have checked that they may know."""
        async with self._db.acquire() as conn:
            return await store.holders(conn, mailbox, MAX_HOLDERS)

    async def change(
        self, mailbox: MailboxKey, identity: str, identifier: str, decide: Decide, *, owner: PersonKey, by: Actor
    ) -> None:
        """Have an `owner` of the mailbox (`identity` is its public id) change what somebody of the tenant may do.

        `identifier` is the address of a person's mailbox which nobody else owns, or a public id. Raises
        `person_not_found` for whoever is not of the tenant, whether there is such an address or not; `scope_denied`
        when the caller owns the mailbox no more; `owner_required` when the last owner would go who can sign in; what
        `decide` raises.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            # Before anything else, as whoever takes a person out of the tenant locks it: they wait, or were before us.
            await tenant_store.share(conn, mailbox.tenant_id)
            roles = await store.lock_grants(conn, mailbox)
            if roles.get(owner) is not GrantRole.OWNER:
                raise PostroomError("scope_denied")
            found = None
            if len(identifier) <= MAX_IDENTIFIER and is_storable(identifier):
                found = await store.person_of_tenant(conn, mailbox.tenant_id, _folded(identifier))
            if found is None:
                raise PostroomError("person_not_found")
            person, public_id = found
            before = roles.get(person)
            after = decide(before)
            if after is before:
                return
            if before is GrantRole.OWNER and not await store.is_owned_by_another(conn, mailbox, person):
                raise PostroomError("owner_required")
            details: dict[str, str | int | bool | None] = {"person": public_id}
            if after is None:
                await people_store.remove_grant(conn, mailbox.tenant_id, identity, person)
                entry = Entry("grant.remove", "identity", identity, mailbox.tenant_id, details)
            else:
                if await people_store.put_grant(conn, mailbox.tenant_id, identity, person, after, now) is None:
                    raise PostroomError("identity_not_found")
                details["role"] = after.value
                entry = Entry("grant.put", "identity", identity, mailbox.tenant_id, details)
            await record(conn, self._ids, now, by, entry)
        self._changed(public_id)


def _folded(identifier: str) -> str:
    """Addresses are in lower case; public ids are what they are."""
    return identifier.lower() if "@" in identifier else identifier
