"""The periodic work of a node: what is done again and again, and how often (B1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from postroom.accounts.alerts import Alerts
from postroom.app import Core
from postroom.base import log as base_log
from postroom.blobs.store import StorageError
from postroom.db.statistics import analyze_grown
from postroom.directory.links import changed_since
from postroom.directory.sending_controls import Switch
from postroom.events.retention import Retention
from postroom.events.webhooks.service import Webhooks
from postroom.inbound.parsing import Parser
from postroom.mailbox.pins import lift_pins
from postroom.mailbox.prune import prune_changes
from postroom.mailbox.rerender import Rerender
from postroom.mailbox.sweep import BlobSweep
from postroom.mailbox.verifications import prune_verifications
from postroom.outbound.dead_letters import DeadLetters
from postroom.outbound.queue import prune_attempts
from postroom.outbound.relaying import clear_relays
from postroom.outbound.wires import STORED
from postroom.sending import MailOut, invitation_mail_of
from postroom.worker import Periodic

log = base_log.get("node")

LINKS_WINDOW: Final = timedelta(hours=1)
KEPT: Final = timedelta(days=30)
"""How long the change log is kept."""


@dataclass(frozen=True, slots=True)
class Chores:
    """All of it. Any may run twice."""

    core: Core
    parser: Parser
    mail_out: MailOut
    dead_letters: DeadLetters
    rerender: Rerender
    webhooks: Webhooks
    alerts: Alerts

    def periodic(self) -> list[Periodic]:
        """For a `Worker`."""
        core = self.core
        blobs = BlobSweep(core.database, core.blobs, core.clock, STORED)
        retention = Retention(core.database, core.clock, core.policies.stance)
        invitations = invitation_mail_of(core, self.mail_out.outlet, self.parser)

        async def events() -> None:
            await retention.run(is_scarce=await core.switches.is_on(Switch.EMERGENCY_PRUNE))

        return [
            Periodic("address_links", timedelta(seconds=30), self._address_links),
            Periodic("activate_addresses", timedelta(minutes=1), core.addresses.activate_ready),
            Periodic("retire_addresses", timedelta(minutes=1), core.addresses.retire_due),
            Periodic("invitation_mail", timedelta(seconds=5), invitations.run_due),
            Periodic("expire_invitations", timedelta(hours=1), core.members.expire),
            Periodic("dead_letters", timedelta(minutes=1), self.dead_letters.collect),
            Periodic("alerts", timedelta(minutes=1), self.alerts.run),
            Periodic("rerender", timedelta(seconds=10), self.rerender.run_once),
            Periodic("statistics", timedelta(seconds=5), self._statistics),
            Periodic("prune_changes", timedelta(minutes=10), self._prune_changes),
            Periodic("prune_events", timedelta(minutes=1), events),
            Periodic("resume_webhooks", timedelta(minutes=1), self.webhooks.upkeep.resume),
            Periodic("prune_verifications", timedelta(minutes=10), self._prune_verifications),
            Periodic("prune_sends", timedelta(minutes=10), self.mail_out.sending.ledger.prune),
            Periodic("lift_pins", timedelta(minutes=10), self._lift_pins),
            Periodic("prune_attempts", timedelta(minutes=10), self._prune_attempts),
            Periodic("prune_sessions", timedelta(minutes=10), self._prune_sessions),
            Periodic("clear_relays", timedelta(minutes=10), self._clear_relays),
            Periodic("sweep_staging", timedelta(hours=1), self._sweep_staging),
            Periodic("reseal_secrets", timedelta(minutes=1), core.master_keys.run_once),
            Periodic("sweep_blobs", timedelta(minutes=1), blobs.run_once),
        ]

    async def _address_links(self) -> None:
        """Let `mail/by-address` follow what the directory changed within the last hour (B5)."""
        core = self.core
        async for link in changed_since(core.database, core.clock.now() - LINKS_WINDOW):
            try:
                if link.receives:
                    await core.blobs.link_address(link.domain, link.local, link.tenant, link.identity)
                else:
                    await core.blobs.unlink_address(link.domain, link.local)
            except StorageError as error:
                log.warning("address_link_failed", reason=error.reason)

    async def _statistics(self) -> None:
        async with self.core.database.acquire() as conn:
            await analyze_grown(conn)

    async def _prune_changes(self) -> None:
        await prune_changes(self.core.database, self.core.clock.now() - KEPT)

    async def _prune_verifications(self) -> None:
        await prune_verifications(self.core.database, self.core.clock.now())

    async def _lift_pins(self) -> None:
        await lift_pins(self.core.database, self.core.clock.now())

    async def _prune_attempts(self) -> None:
        kept = timedelta(days=self.core.settings.queue.retention_days)
        await prune_attempts(self.core.database, self.core.clock, kept)

    async def _prune_sessions(self) -> None:
        await self.core.sessions.prune()
        await self.core.two_step.prune()
        await self.core.passkeys.prune()

    async def _clear_relays(self) -> None:
        await clear_relays(self.core.database, self.core.blobs, self.core.clock)

    async def _sweep_staging(self) -> None:
        try:
            await self.core.blobs.sweep()
        except StorageError as error:
            log.warning("staging_not_swept", reason=error.reason)
