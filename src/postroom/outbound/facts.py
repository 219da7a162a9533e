"""What a send depends on, read in one go before anything is decided (outbound §2.2 step 6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from postroom.accounts.models import Mode, TenantStatus
from postroom.accounts.policy import StoredPolicy
from postroom.base.errors import PostroomError
from postroom.blobs import BlobMissing, BlobStore
from postroom.db.pool import Database
from postroom.directory.lists import NOBODY, Matches
from postroom.directory.models import AddressStatus, Identity
from postroom.mail import mime
from postroom.mail.automation import classify
from postroom.mail.compose.reply import without_detail
from postroom.mailbox.models import Direction, MailboxRef, Mailpoint
from postroom.mailbox.queries import Include, MessageFilter, MessageQueries, MessageView
from postroom.mailbox.rules import without_token
from postroom.outbound.known import on_send_lists, written_to
from postroom.outbound.models import Operation, SendKind
from postroom.outbound.request import SendRequest
from postroom.smtp.address import Address, AddressSyntaxError, parse_path

HEADER_BYTES: Final = 64 * 1024
NEWEST: Final = 10
"""Messages of a thread among which one with a Message-ID of its own is looked for."""
MAX_CANDIDATES: Final = 500
"""Addresses about which facts are read; more recipients than that are refused anyway."""
REVIEWABLE: Final = frozenset({"quarantined"})
INVISIBLE: Final = frozenset({"hidden", "throttled"})

Suppressions = Callable[[int, Sequence[str]], Awaitable[Mapping[str, str]]]
"""Of a tenant's addresses, those that nothing is sent to, with the reason (`hard_bounce`, `complaint`, …)."""

_TENANT: Final = """
SELECT status, mode, sending_paused_at IS NOT NULL AS is_paused, sending_pause_reason, policy_json,
  policy_ceilings_json, partner_ceilings_json
FROM tenants
WHERE id = $1
"""
_DOMAINS: Final = """
SELECT id, status, sending_paused_at IS NOT NULL AS is_paused FROM domains
WHERE id = ANY ($2::bigint[]) AND (tenant_id = $1 OR tenant_id IS NULL)
"""
_HOSTED: Final = """
SELECT a.address FROM addresses a JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
WHERE a.tenant_id = $1 AND a.address = ANY ($2::text[]) AND a.status IN ('active', 'retiring')
  AND i.status IN ('active', 'paused')
"""
_HOP: Final = """
SELECT o.hop FROM outbound_messages o JOIN messages m ON m.tenant_id = o.tenant_id AND m.id = o.message_id
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.public_id = $3
"""
# Automatic answers since somebody last wrote by themselves (outbound §5.6).
_AUTOMATIC: Final = """
WITH t AS (SELECT seq FROM threads WHERE tenant_id = $1 AND mailbox_id = $2 AND public_id = $3), ours AS (
  SELECT m.id, m.status, coalesce(o.kind = 'auto_reply', false) AS automatic
  FROM t JOIN messages m ON m.tenant_id = $1 AND m.mailbox_id = $2 AND m.thread_seq = t.seq
  LEFT JOIN outbound_messages o ON o.tenant_id = m.tenant_id AND o.message_id = m.id
  WHERE m.direction = 'outbound'
)
SELECT count(*) FROM ours
WHERE automatic AND status NOT IN ('canceled', 'rejected', 'failed', 'suppressed')
  AND id > coalesce((SELECT max(id) FROM ours WHERE NOT automatic), 0)
"""
_PINNED: Final = "SELECT fallback_pinned FROM threads WHERE tenant_id = $1 AND mailbox_id = $2 AND public_id = $3"
_WRITTEN_FROM: Final = """
SELECT a.address FROM unnest($4::text[]) AS a (address)
WHERE EXISTS (
  SELECT FROM messages m JOIN threads t ON t.tenant_id = m.tenant_id AND t.mailbox_id = m.mailbox_id
    AND t.seq = m.thread_seq
  WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND t.public_id = $3 AND m.direction = 'outbound'
    AND m.from_address = a.address)
"""


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """The thread that a send goes into, as of now."""

    id: str
    number: int
    reply_from: str | None
    """The address of ours that was last written to."""
    newest_id: str | None
    newest_hop: int
    parent: MessageView | None
    """Its newest message with a Message-ID that others know, else its newest."""
    automatic: int
    """Automatic answers since the last message that was none; counted for automatic answers only."""
    written_from: frozenset[str]
    """Retiring addresses of ours that wrote into it."""
    is_pinned: bool = False
    """Written from the platform address, since the usual one failed (FR-DOM-6)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the policy looks at beside the request."""

    now: datetime
    identity: Identity
    tenant_status: TenantStatus
    mode: Mode
    domains: Mapping[int, str]
    """Status of the domains of the identity's addresses."""
    target: MessageView | None
    target_hop: int
    target_automated: bool
    """The message answered says of itself that a machine wrote it, or a list sent it (RFC 3834)."""
    thread: ThreadFacts | None
    written_to: frozenset[str]
    hosted: frozenset[str]
    """Of the candidates, addresses of the tenant that take mail; read for test tenants only."""
    suppressed: Mapping[str, str]
    pause: str | None = None
    """Why the tenant sends nothing (G12)."""
    paused_domains: frozenset[int] = frozenset()
    policy: StoredPolicy = field(default_factory=StoredPolicy)
    """What the tenant has set, and what is set above it."""
    listed: Matches = NOBODY
    """Of the candidates, those on the tenant's lists of whom it writes to."""


class FactReader:
    """Reads them. What is not there is None: it is the policy that says so, when its turn has come."""

    def __init__(
        self, database: Database, blobs: BlobStore, queries: MessageQueries, suppressions: Suppressions
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._queries = queries
        self._suppressions = suppressions

    async def read(self, identity: Identity, request: SendRequest, now: datetime, *, may_review: bool) -> Facts:
        """The facts for one request; `may_review` shows quarantined mail."""
        ref = MailboxRef(identity.tenant_id, identity.id)
        target = await self._target(ref, request, may_review)
        hop, automated = (0, False) if target is None else await self._nature(ref, target)
        thread_id = request.thread_id if target is None else target.thread_id
        thread = None if thread_id is None else await self.thread(identity, thread_id, request.kind)
        wanted = candidates(request, target)
        suppressed = await self._suppressed(identity.tenant_id, wanted) if wanted else {}
        async with self._database.acquire() as conn:
            tenant = await conn.fetchrow(_TENANT, identity.tenant_id)
            if tenant is None:
                raise PostroomError("identity_not_found")
            domains = await conn.fetch(_DOMAINS, identity.tenant_id, [item.domain_id for item in identity.addresses])
            written = await written_to(conn, ref, wanted)
            listed = await on_send_lists(conn, identity.tenant_id, wanted)
            mode = Mode(tenant["mode"])
            bases = sorted({without_detail(key) for key in wanted} | set(wanted))
            hosted = await conn.fetch(_HOSTED, ref.tenant_id, bases) if mode is Mode.TEST else []
        return Facts(
            now=now,
            identity=identity,
            tenant_status=TenantStatus(tenant["status"]),
            mode=mode,
            domains={row["id"]: row["status"] for row in domains},
            target=target,
            target_hop=hop,
            target_automated=automated,
            thread=thread,
            written_to=written,
            hosted=frozenset(row["address"] for row in hosted),
            suppressed=suppressed,
            pause=tenant["sending_pause_reason"] if tenant["is_paused"] else None,
            paused_domains=frozenset(row["id"] for row in domains if row["is_paused"]),
            policy=StoredPolicy.of(tenant),
            listed=listed,
        )

    async def thread(self, identity: Identity, thread_id: str, kind: SendKind) -> ThreadFacts | None:
        """The thread as it is now, for a send of that kind."""
        ref = MailboxRef(identity.tenant_id, identity.id)
        try:
            view = await self._queries.get_thread(ref, thread_id)
        except PostroomError:
            return None
        found = await self._queries.list_messages(
            ref, MessageFilter(thread_id=thread_id), limit=NEWEST, include=Include.NONE
        )
        newest = [item for item in found if item.status not in INVISIBLE | REVIEWABLE]
        hop = (await self._nature(ref, newest[0]))[0] if newest else 0
        retiring = [item.address for item in identity.addresses if item.status is AddressStatus.RETIRING]
        where = (ref.tenant_id, ref.mailbox_id, thread_id)
        async with self._database.acquire() as conn:
            automatic = await conn.fetchval(_AUTOMATIC, *where) if kind is SendKind.AUTO_REPLY else 0
            wrote = await conn.fetch(_WRITTEN_FROM, *where, retiring) if retiring else []
            pinned = await conn.fetchval(_PINNED, *where)
        return ThreadFacts(
            id=thread_id,
            number=view.number,
            reply_from=view.reply_from_address,
            newest_id=newest[0].id if newest else None,
            newest_hop=hop,
            parent=next((item for item in newest if has_own_id(item)), newest[0] if newest else None),
            automatic=int(automatic or 0),
            written_from=frozenset(row["address"] for row in wrote),
            is_pinned=bool(pinned),
        )

    async def _suppressed(self, tenant_id: int, addresses: Sequence[str]) -> Mapping[str, str]:
        """With a thread token it is still the same person."""
        found = await self._suppressions(tenant_id, list(dict.fromkeys((*addresses, *map(without_token, addresses)))))
        reasons = {one: found.get(one) or found.get(without_token(one)) for one in addresses}
        return {one: reason for one, reason in reasons.items() if reason is not None}

    async def _target(self, ref: MailboxRef, request: SendRequest, may_review: bool) -> MessageView | None:
        if request.message_id is None:
            return None
        forward = request.operation is Operation.FORWARD
        include = Include.EXTRACTED | Include.QUOTED if forward else Include.NONE
        try:
            view = await self._queries.get_message(ref, request.message_id, include=include)
        except PostroomError:
            return None
        hidden = view.status in INVISIBLE or (view.status in REVIEWABLE and not may_review)
        return None if hidden else view

    async def _nature(self, ref: MailboxRef, view: MessageView) -> tuple[int, bool]:
        """Its hop, and whether it is automatic."""
        if view.direction is Direction.OUTBOUND:
            async with self._database.acquire() as conn:
                hop = await conn.fetchval(_HOP, ref.tenant_id, ref.mailbox_id, view.id)
            if hop is not None:
                return int(hop), False
        try:
            piece = await self._blobs.get_range(view.blob_key, 0, min(view.raw_size, HEADER_BYTES))
        except BlobMissing:  # past its retention: what is known is in its row
            return 0, False
        return nature(piece)


def nature(raw: bytes) -> tuple[int, bool]:
    """The hop in the beginning of a message, and whether it is automatic, as far as its header tells.

    Our own trace lines stand before the header, and are header fields themselves: a null return path is one.
    """
    message = mime.parse(raw, max_depth=1, max_parts=1)
    null_sender = (message.headers.get("Return-Path") or "").strip() == "<>"
    found = classify(raw, message, null_sender=null_sender)
    return found.hop or 0, found.automated


def has_own_id(view: MessageView) -> bool:
    """Whether the message came with a Message-ID; one of ours in its place says nothing to anybody else."""
    return "message_id_synthetic" not in view.facts


def normalised(address: str) -> Address:
    """An address in the form that is compared and sent to: lower case, A-labels (outbound §5.3). Raises
    AddressSyntaxError."""
    path = parse_path(f"<{address.strip()}>".encode("utf-8", "surrogatepass"))
    if path.address is None or path.parameters:
        raise AddressSyntaxError("no address")
    return Address(path.address.local.lower(), path.address.domain)


def candidates(request: SendRequest, target: MessageView | None) -> list[str]:
    """Every address that may become a recipient; what is none is left out, and refused later."""
    named = [person.address for person in (*request.to, *request.cc, *request.bcc)]
    if target is not None and request.is_answer:
        points: Iterable[Mailpoint] = (*target.reply_to[:1], *target.to, *target.cc)
        named += [point.address for point in points]
        if target.sender is not None:
            named.append(target.sender.address)
    keys: dict[str, None] = {}
    for address in named[:MAX_CANDIDATES]:
        try:
            keys[normalised(address).key] = None
        except AddressSyntaxError:
            continue
    return list(keys)
