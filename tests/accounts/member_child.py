"""A process that does one thing to a tenant's members as soon as it is told to, and says how it went."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime

from postroom.accounts import MemberRole, Passwords, People
from postroom.accounts.service.members import Members
from postroom.accounts.signing_keys import SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db import Database


async def main(url: str, now: str, what: str, tenant: str, *rest: str) -> None:
    clock = ManualClock(datetime.fromisoformat(now))
    ids = IdGenerator(clock)
    passwords = Passwords(threads=1, queue=2, memory_kib=64, time_cost=1)
    async with Database(url, min_size=1, max_size=2) as db:
        people = People(db, ids, clock, passwords)
        members = Members(db, ids, clock, people, SigningKeys(db, Keyring(b"m" * 32), clock), b"h" * 32)
        async with db.acquire() as conn:
            await conn.fetchval("SELECT 1")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            match what:
                case "remove":
                    await members.remove(int(tenant), rest[0])
                case "own":
                    await people.put_member(int(tenant), rest[0], MemberRole.OWNER)
                case "join":
                    print((await members.join(rest[0], "Bo", "correct horse")).role.value, flush=True)
                    return
                case "invite":
                    await members.invite(int(tenant), rest[0], MemberRole.MEMBER)
        except PostroomError as error:
            print(error.code, flush=True)
            return
        print("done", flush=True)
    passwords.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
