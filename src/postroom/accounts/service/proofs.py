"""Whose contact address it is (decision 74).

A tenant may write any address beside a person whom it makes, and knows what that person signs in with. So an address
that nobody proved keeps nobody away from it: whoever shows the code that was mailed there has it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts import contacts
from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.accounts.models import Person
from postroom.accounts.store import credentials as credential_store
from postroom.accounts.store import passkeys as passkey_store
from postroom.accounts.store import proofs as store
from postroom.accounts.store import sessions as session_store
from postroom.base import log as base_log
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database

log = base_log.get("contacts")

_BATCH: Final = 200


async def release(conn: Connection, ids: IdGenerator, now: datetime, person: Person) -> None:
    """Inside the caller's transaction, who has locked the person: somebody else proved that the address is theirs. The
    person stays what they are in their tenants, with all they sign in with, but for the address.

    It is written down for their tenants without whose it is now.
    """
    tenants: list[int | None] = [*await store.release(conn, person.id, now)]
    for tenant_id in tenants or [None]:
        await record(conn, ids, now, HOST, Entry("person.contact_release", "person", person.public_id, tenant_id))


async def prove(
    conn: Connection,
    ids: IdGenerator,
    now: datetime,
    person: Person,
    password_hash: str,
    *,
    by: Actor,
    name: str | None = None,
) -> Person:
    """Inside the caller's transaction, who has locked the person: the address is theirs. What they signed in with
    before, whoever made them may know or have made: of that nothing is left but the new password, and every session
    ends.
    """
    proved = await store.prove(conn, person.id, password_hash, name, now)
    await session_store.revoke_all(conn, person.id, now)
    whose = {"person": person.public_id}
    for one in await passkey_store.remove(conn, person.id, None, now):
        await record(conn, ids, now, by, Entry("passkey.remove", "passkey", one, details=whose))
    for one in await store.revoke_app_passwords(conn, person.id, now):
        await record(conn, ids, now, by, Entry("app_password.revoke", "app_password", one, details=whose))
    if await credential_store.forget_totp(conn, person.id):
        await record(conn, ids, now, by, Entry("totp.disable", "person", person.public_id))
    await record(conn, ids, now, by, Entry("person.contact_prove", "person", person.public_id))
    return proved


async def respell(db: Database) -> None:
    """Bring contact addresses of older releases to their one spelling. It may run twice, and in several processes.
    What is somebody else's in that spelling, or no address, is left as it is and reported.
    """
    after = 0
    while True:
        async with db.acquire() as conn:
            found = await store.misspelt(conn, after, _BATCH)
        for one in found:
            await _respell(db, one)
        if len(found) < _BATCH:
            return
        after = found[-1].id


async def _respell(db: Database, one: store.Spelling) -> None:
    try:
        text = contacts.folded(one.text)
    except ValueError:
        log.warning("contact_address_is_none", person=one.public_id)
        return
    if text == one.text:
        return
    try:
        async with db.transaction() as conn:
            await store.respell(conn, one, text)
    except asyncpg.UniqueViolationError:
        log.warning("contact_address_twice", person=one.public_id)
