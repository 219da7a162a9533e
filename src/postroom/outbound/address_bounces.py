"""Bounces that come to an address instead of a signed return path (inbound §27, outbound §13.5; D4, D11, N19).

Anybody may write one. What is about nothing that the mailbox sent is backscatter: an agent, whose mail leaves by us
alone, never gets it, and a person finds it in Junk, for they may write from elsewhere, too. What is about something of
theirs joins its thread, and counts for its deliveries if it is vouched for by the verdict, by who wrote it, and by the
author that it returns. A transaction of its own writes that, before the report is stored; both bear being done again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from postroom.accounts.names import RELAYED_ROLES
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobStore
from postroom.db import errors as db_errors
from postroom.db.pool import Connection, Database
from postroom.inbound.parsing import Parser, ParserBusy, ParsingFailed
from postroom.inbound.receive import BouncesUnknown, Handling
from postroom.mail.domain import domain_of
from postroom.mail.dsn import DeliveryReport, ReportedRecipient, parse_dsn
from postroom.mail.dsn.informal import is_daemon
from postroom.mailbox.models import Content, MailboxRef
from postroom.outbound import reports
from postroom.outbound.applying import Applying
from postroom.outbound.models import RouteKind
from postroom.outbound.outcomes import Changed
from postroom.smtp.envelope import Envelope

log = base_log.get("returns")

UNTRUSTED: Final = "dsn_untrusted"
"""The fact that a report changed nothing (D11)."""
_REPORTABLE: Final = (RouteKind.DIRECT.value, RouteKind.SMARTHOST.value)

# $1 tenants, $2 mailboxes, $3 the Message-ID that came back, $4 addresses that the report names. "+ 0": as in
# `outcome_sql`.
_FIND: Final = """
SELECT k.tenant_id, k.mailbox_id, i.kind = 'person' AS is_person, f.id AS junk,
  m.id, m.public_id, m.from_address, m.is_sent,
  EXISTS (SELECT FROM deliveries d WHERE d.tenant_id = k.tenant_id AND d.mailbox_id = k.mailbox_id
          AND d.recipient = ANY ($4::text[])) AS knows
FROM unnest($1::bigint[], $2::bigint[]) AS k (tenant_id, mailbox_id)
JOIN identities i ON i.tenant_id = k.tenant_id AND i.id = k.mailbox_id
LEFT JOIN folders f ON f.tenant_id = k.tenant_id AND f.mailbox_id = k.mailbox_id AND f.special_use = 'junk'
LEFT JOIN LATERAL (
  SELECT m.id, m.public_id, m.from_address,
    EXISTS (SELECT FROM outbound_messages o WHERE o.tenant_id = m.tenant_id AND o.message_id = m.id) AS is_sent
  FROM messages m
  WHERE m.tenant_id + 0 = k.tenant_id AND m.mailbox_id = k.mailbox_id AND m.rfc_message_id = $3
  ORDER BY m.direction DESC, m.id DESC LIMIT 1
) m ON true
"""
_DELIVERIES: Final = "SELECT id FROM deliveries WHERE tenant_id = $1 AND message_id = $2 AND route = ANY ($3::text[])"


@dataclass(frozen=True, slots=True)
class _Said:
    """What a report says, as it was described."""

    message_id: str | None
    author: str | None
    recipients: tuple[str, ...]

    @classmethod
    def by(cls, content: Content) -> _Said | None:
        told = (content.automated or {}).get("dsn")
        if told is None:
            return None
        entries = told["recipients"][: reports.MAX_RECIPIENTS]
        named = (entry.get(name) for entry in entries for name in ("final_recipient", "original_recipient"))
        kept = dict.fromkeys(one.lower() for one in named if one)
        return cls(told["original_message_id"], told["original_from"], tuple(kept))


class AddressBounces:
    """Sorts them. `relay` is the host that our mail leaves by, empty for none. `changed` is told of mailboxes after the
    commit."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        parser: Parser,
        clock: Clock,
        ids: IdGenerator,
        *,
        relay: str,
        changed: Changed,
    ) -> None:
        self._database = database
        self._parser = parser
        self._applying = Applying(database, blobs, clock, ids, changed=changed)
        self._relay = relay
        self.backscatter = 0
        """Reports that were not stored since the start, by mailbox (D4)."""
        self.untrusted: Counter[str] = Counter()
        """Those that are about our mail and changed nothing, by the reason (`dsn_untrusted_total`)."""

    async def sort(self, envelope: Envelope[Any], content: Content, raw: bytes) -> Mapping[int, Handling | None]:
        """As `Bounces.sort`. What did not come with the null sender is no bounce but somebody's mail (RFC 3464 §2);
        what our own queue hands over is our own notice."""
        said = _Said.by(content)
        if said is None or said.message_id is None or envelope.mail_from or not (envelope.peer_ip or envelope.lmtp):
            return {}
        try:
            return await self._sorted(envelope, content, said, raw)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            raise BouncesUnknown from error

    async def _sorted(
        self, envelope: Envelope[Any], content: Content, said: _Said, raw: bytes
    ) -> dict[int, Handling | None]:
        named = {target.mailbox_id: (address, target) for address, target in envelope.recipients}
        tenants = [target.tenant_id for _, target in named.values()]
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_FIND, tenants, list(named), said.message_id, list(said.recipients))
        found: dict[int, Handling | None] = {}
        for row in rows:
            is_person = row["is_person"]
            address, _ = named[row["mailbox_id"]]
            if row["id"] is not None:
                facts = () if await self._applied(row, content, said, raw) else (UNTRUSTED,)
                # Agents have the events; people's clients learn of new mail by this one, as in `returns`.
                handling = Handling(said.message_id, None, is_person, facts, is_unasked=False)
                found[row["mailbox_id"]] = handling
            elif row["knows"] or address.partition("@")[0] in RELAYED_ROLES:
                continue  # it may be about something that left under another id; or is for who looks after the server
            elif is_person:
                found[row["mailbox_id"]] = Handling(announced=False, folder=row["junk"], is_unasked=False)
            else:
                self.backscatter += 1
                found[row["mailbox_id"]] = None
        return found

    async def _applied(self, row: Any, content: Content, said: _Said, raw: bytes) -> bool:
        """Whether the report counted for a delivery; it is written."""
        if not row["is_sent"]:
            return False
        author = None if content.sender is None else domain_of(content.sender.address)
        if content.verdict != "pass" or author is None or content.sender is None:
            return self._distrust("verdict")
        if not is_daemon(content.sender.address.rpartition("@")[0]):
            # Whoever has a mailbox at the same provider is of the same domain, and may know the id of our message.
            return self._distrust("from")
        if said.author is None or said.author.lower() != row["from_address"]:
            return self._distrust("from")
        try:
            report = await self._parser.run(len(raw), parse_dsn, raw)
        except ParserBusy:
            raise BouncesUnknown from None
        except ParsingFailed:
            report = None
        entries = await self._write(row, report, author) if report is not None else {}
        return bool(entries) or self._distrust("domain")

    async def _write(self, row: Any, report: DeliveryReport, author: str) -> Mapping[int, ReportedRecipient]:
        async def find(conn: Connection) -> list[int]:
            ours = await conn.fetch(_DELIVERIES, row["tenant_id"], row["id"], _REPORTABLE)
            return [one["id"] for one in ours]

        def attribute(rows: Mapping[int, Any]) -> Mapping[int, ReportedRecipient]:
            relayed = {key for key, one in rows.items() if one["route"] == RouteKind.SMARTHOST.value}
            return reports.vouched(
                report, {key: one["recipient"] for key, one in rows.items()}, relayed, author, self._relay
            )

        ref = MailboxRef(row["tenant_id"], row["mailbox_id"])
        applied = await self._applying.apply(ref, row["public_id"], find, attribute)
        return {} if applied is None else applied.entries

    def _distrust(self, reason: str) -> bool:
        self.untrusted[reason] += 1
        log.info("report_untrusted", reason=reason)
        return False
