"""A new master key, step by step (security-privacy A6.3). Each step is durable before the next begins, and a rotation
that was interrupted anywhere goes on where it was: what was done is read from the secrets and from the database.

1. The new key goes into the slot that is not active.
2. Every server process that runs says that it has it.
3. The selector turns: the new key seals.
4. Every process says that it seals with it.
5. What is stored is sealed anew, until nothing is left under another key.

At no moment does a process seal with a key that another one lacks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Final

from postroom.accounts.service.master_keys import lacking
from postroom.app import Core
from postroom.base.sealing import kid_of
from postroom.base.secrets import (
    SECRET_BYTES,
    MasterSlots,
    Source,
    load_secrets,
    master_slots,
    select_master_key,
    store_master_key,
)
from postroom.base.settings import SettingsError
from postroom.cli.failures import CliError, Exit, infrastructure
from postroom.db.reseal import rounds

KEPT: Final = timedelta(days=30)
"""How long a backup may need the key before (A6.3)."""
PATIENCE: Final = 120.0
"""Seconds that the server processes may take to say that they have a key."""
MAX_SWEEPS: Final = 10
"""More are not needed: whoever seals under the old key then is a command that is about to end."""
_POLL: Final = 0.5
_LOCK: Final = "SELECT pg_try_advisory_lock(hashtextextended('master key rotation', 0))"


class Stage(Enum):
    """What is to be done next."""

    NEW_KEY = "new_key"
    SWITCH = "switch"
    """A key that never sealed is in the slot that is not active: of an interrupted rotation, or of the operator."""
    RESEAL = "reseal"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rotation would do. `kid` is of the active key, `new` of the next one, if there is one already."""

    stage: Stage
    slot: str
    """The slot of the new key."""
    kid: str
    new: str | None
    remaining: int


Tell = Callable[[str], None]
Done = Callable[[int, int], None]
"""How far sealing anew is: values done, values in all."""


class Rotation:
    """One rotation, of a command that holds `core`. `patience` is in seconds."""

    def __init__(
        self,
        core: Core,
        environ: Mapping[str, str],
        tell: Tell,
        done: Done,
        *,
        patience: float = PATIENCE,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._core, self._environ, self._tell, self._done = core, environ, tell, done
        self._patience, self._random = patience, random
        self._data_dir = core.settings.server.data_dir

    async def plan(self, *, resume: bool = False, discard_previous: bool = False) -> Plan:
        """What is next. Raises `cli_precondition` for a rotation that is not finished, unless it is to be resumed, and
        for a key that backups may still need, unless it is to be discarded.
        """
        slots, keys = self._slots(), self._core.master_keys
        kid, spare = _kid(slots, slots.active), _kid(slots, slots.inactive)
        assert kid is not None, "the active slot holds a key"
        newest, left = await keys.newest(), await keys.remaining(kid)
        if left or (newest is not None and newest.kid != kid):
            if not resume:
                raise precondition(
                    f"the rotation to the master key {kid} is not finished: {left} values are under another one",
                    "postroom secrets rotate-master --resume goes on with it.",
                )
            return Plan(Stage.RESEAL, slots.active, kid, kid, left)
        if spare is not None and not await keys.has_sealed(spare):
            return Plan(Stage.SWITCH, slots.inactive, kid, spare, left)
        if resume:
            raise precondition("there is no rotation to go on with", "Leave --resume out to begin one.")
        at = None if newest is None else newest.resealed_at
        if spare is not None and at is not None and at > self._core.clock.now() - KEPT and not discard_previous:
            raise precondition(
                f"the last rotation ended less than {KEPT.days} days ago, and backups of before need the key {spare}",
                "Wait, or add --discard-previous if no such backup will be restored.",
            )
        return Plan(Stage.NEW_KEY, slots.inactive, kid, None, left)

    async def run(self, plan: Plan, *, resume: bool = False, discard_previous: bool = False) -> None:
        """Do it, to the end, if it is what `plan` says now that nobody else rotates: by another's slot the key that
        seals would be overwritten. Raises what `plan` raises, `cli_precondition` too for what is not as planned any
        more; `cli_timeout` while a process lacks a key, SettingsError when the next step is the operator's, because the
        key or the selector stands in the environment.
        """
        async with self._alone():
            now = await self.plan(resume=resume, discard_previous=discard_previous)
            if replace(now, remaining=plan.remaining) != plan:
                raise _changed()
            if plan.stage is Stage.NEW_KEY:
                await self._new_key(plan.slot)
            if plan.stage is not Stage.RESEAL:
                await self._switch(plan.slot)
            await self._reseal()

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _new_key(self, slot: str) -> None:
        variable = "POSTROOM_MASTER_KEY" if slot == "a" else "POSTROOM_MASTER_KEY_B"
        if self._slots().sources[slot] is Source.ENVIRONMENT:
            raise SettingsError(
                [
                    f"{variable}: stands in the environment: put a new key there (openssl rand -base64 32), restart "
                    "every server, then rotate again"
                ]
            )
        key = self._random(SECRET_BYTES)
        await asyncio.to_thread(store_master_key, self._data_dir, slot, key)
        self._tell(f"The new master key {kid_of(key)} is in slot {slot}.")

    async def _switch(self, slot: str) -> None:
        await self._read_again()
        slots = self._slots()
        kid = _kid(slots, slot)
        if kid is None or slots.active == slot:
            raise _changed()
        await self._until_all(kid, active=False)
        if slots.selector is Source.ENVIRONMENT:
            raise SettingsError(
                [
                    f"POSTROOM_MASTER_KEY_ACTIVE: stands in the environment: set it to {slot}, restart every server, "
                    "then postroom secrets rotate-master --resume"
                ]
            )
        await asyncio.to_thread(select_master_key, self._data_dir, slot)
        self._tell(f"The master key {kid} seals from now on.")

    async def _reseal(self) -> None:
        await self._read_again()
        core = self._core
        await self._until_all(core.keyring.active, active=True)
        await core.master_keys.activate()
        for _ in range(MAX_SWEEPS):
            total, done = await core.master_keys.remaining(), 0
            stuck = 0
            async for swept in rounds(core.database, core.keyring):
                done, stuck = done + swept.resealed, stuck + swept.unopened
                self._done(done, max(total, done))
            left = await core.master_keys.settle(stuck)
            if not left:
                return
            if left <= stuck:
                raise await self._cannot_open(left)
        raise infrastructure(
            "something still seals under another master key", "Stop commands that run, then rotate-master --resume."
        )

    async def _cannot_open(self, left: int) -> CliError:
        held = self._core.keyring.kids
        strange: set[str] = set()
        for kinds in (await self._core.master_keys.standing()).values():
            strange.update(kid or "before 0.1" for kid in kinds if kid not in held)
        named = f" ({', '.join(sorted(strange))})" if strange else ""
        return infrastructure(
            f"{left} values are sealed under a master key that is in neither slot{named}, or are broken",
            "Put the key that is named into the slot that is not active, then rotate-master --resume; "
            "postroom secrets status shows which columns they are in.",
        )

    # -- parts ---------------------------------------------------------------------------------------------------------

    async def _until_all(self, kid: str, *, active: bool) -> None:
        """Wait until every server process that runs has the key, or seals with it."""
        loop = asyncio.get_running_loop()
        deadline, told = loop.time() + self._patience, False
        while missing := lacking(await self._core.master_keys.holders(), kid, active=active):
            nodes = ", ".join(sorted({one.node for one in missing}))
            what = "seal with" if active else "have"
            if loop.time() >= deadline:
                raise CliError(
                    "cli_timeout",
                    f"server processes do not {what} the master key {kid} yet: {nodes}",
                    exit=Exit.TIMEOUT,
                    fix="Give these machines the same secrets; where they stand in the environment, restart the "
                    "servers. Then rotate-master again, with --resume once the new key seals.",
                )
            if not told:
                self._tell(f"Waiting until all server processes {what} the master key {kid} …")
                told = True
            await asyncio.sleep(_POLL)

    def _slots(self) -> MasterSlots:
        return master_slots(self._data_dir, self._environ)

    async def _read_again(self) -> None:
        secrets = await asyncio.to_thread(load_secrets, self._data_dir, self._environ)
        self._core.keyring.replace(secrets.master_key, secrets.other_master_key)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One rotation at a time, wherever: the lock goes with the session, however this command ends."""
        connection = await self._core.database.connect(command_timeout=60.0)
        try:
            if not await connection.fetchval(_LOCK):
                raise precondition("another command is rotating the master key", "Wait for it.")
            yield
        finally:
            await connection.close(timeout=5)


def _changed() -> CliError:
    return precondition("the secrets were changed meanwhile", "Look at postroom secrets status.")


def _kid(slots: MasterSlots, slot: str) -> str | None:
    key = slots.keys[slot]
    return None if key is None else kid_of(key)


def precondition(message: str, fix: str) -> CliError:
    """It is not the time for this."""
    return CliError("cli_precondition", message, exit=Exit.PRECONDITION, fix=fix)
