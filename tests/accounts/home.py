"""Alice, who has a mailbox, and what she signs in with."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.accounts import Person, Principal, SignInError, totp
from postroom.accounts.audit import HOST
from postroom.accounts.models import PersonSession
from postroom.accounts.service.account import Caller
from postroom.accounts.service.sessions import Origin
from postroom.directory import Identity

if TYPE_CHECKING:
    from tests.accounts.conftest import House

ALICE, RIGHT, WRONG = "alice@agents.example", "correct horse", "wrong horses"
HERE = "192.0.2.1"


@dataclass
class Home:
    """Alice and her mailbox."""

    house: House
    box: Identity
    person: Person
    secret: bytes = b""

    async def mail(self, password: str, address: str = ALICE, remote: str = HERE) -> Principal | SignInError:
        return await self.house.sign_in.sign_in(address, password, remote)

    async def web(
        self, password: str = RIGHT, code: str | None = None, *, address: str = ALICE, **origin: Any
    ) -> tuple[str, PersonSession]:
        return await self.house.entrance.sign_in(address, password, code, Origin(HERE, **origin))

    async def caller(self, password: str = RIGHT, code: str | None = None) -> Caller:
        _, session = await self.web(password, code)
        return Caller(session, HERE)

    async def new(self, label: str = "phone") -> tuple[str, str]:
        made, text = await self.house.app_passwords.create(self.person, label, HOST)
        return made.public_id, text

    def code(self, off: int = 0) -> str:
        return totp.code_at(self.secret, totp.step_of(self.house.clock.now()) + off)

    async def two_steps(self) -> tuple[str, ...]:
        """Turn two-step verification on; the recovery codes."""
        enrolment = await self.house.two_step.enrol(self.person)
        self.secret = base64.b32decode(enrolment.secret)
        codes = await self.house.two_step.confirm(self.person, self.code(), HOST)
        self.house.clock.advance(60)
        return codes

    async def audited(self) -> list[str]:
        async with self.house.db.acquire() as conn:
            return [row["action"] for row in await conn.fetch("SELECT action FROM audit_log ORDER BY id")]
