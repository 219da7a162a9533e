"""One transaction that changes deliveries, and everything that follows from it: the message's status, the change log,
events, the thread's lock, notices (mail-server C2, outbound §10 step 6, §13.3; B10, D24).

Whoever changes a delivery does it here: the dispatcher with results, an operator, a person who resolves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection
from postroom.events import catalogue, outbox
from postroom.events.outbox import MessageEvent
from postroom.events.outgoing import summary_of
from postroom.mailbox.models import Mailpoint
from postroom.mailbox.rules import labels
from postroom.mailbox.statuses import NewStatus, set_statuses
from postroom.mailbox.writing import MailboxWrite
from postroom.outbound import outcome_sql as sql
from postroom.outbound import rules
from postroom.outbound.models import Operation, QueueState, RouteKind, Status
from postroom.outbound.rules import Decided

RECONCILED: Final = "reconciled"
"""The fact that evidence decided what was uncertain."""
PROVIDERS: Final[Mapping[RouteKind, str]] = {
    RouteKind.DIRECT: "direct",
    RouteKind.SMARTHOST: "smtp",
    RouteKind.LOCAL: "local",
    RouteKind.SIMULATOR: "simulator",
}
_FAILED: Final = frozenset({Status.BOUNCED, Status.FAILED, Status.REJECTED})
_TAKEN: Final = frozenset({Status.SUBMITTED, Status.DELIVERED, Status.COMPLAINED})
_REACHED: Final = frozenset({Status.SUBMITTED, Status.DELIVERED})


@dataclass(frozen=True, slots=True)
class Made:
    """The attempt behind a change, for the log of attempts and the message's provider.

    `relayed`: the next host will not tell the sender of success (RFC 3461 §5.2.2).
    """

    remote_mx: str | None = None
    duration_ms: int = 0
    provider: str | None = None
    provider_message_id: str | None = None
    relayed: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of the delivery of a row that was locked (`sql.LOCK`), in the mailbox that is written. `restart`:
    its tries begin anew. `reported`: somebody who had taken the message says so, long after or before we know that it
    was taken.
    """

    write: MailboxWrite
    row: Any
    decided: Decided
    made: Made | None = None
    restart: bool = False
    reconciles: bool = False
    reported: bool = False


@dataclass(frozen=True, slots=True)
class Telling:
    """What senders are told by mail (C7): how it ended, unless not `outcomes`; and that their mail still waits, once it
    has done so for `delay` (None: never)."""

    outcomes: bool = True
    delay: timedelta | None = None


TELL_OUTCOMES: Final = Telling()


@dataclass(slots=True)
class Settled:
    """What is to be done after the commit."""

    wires: list[str] = field(default_factory=list)
    """Blobs that no row names any more."""
    notices: int = 0


class _Message:
    """A message, its deliveries that change, and the statuses that others have."""

    def __init__(self, row: Any, changes: list[Change], others: Collection[Status]) -> None:
        self.row = row
        self.changes = changes
        self.write = changes[0].write
        self.statuses = frozenset((*others, *(change.decided.status for change in changes)))
        self.is_reported = any(change.reported for change in changes)
        self.reached = bool(row["answered"] or self.statuses & _REACHED) or any(map(_answered, changes))
        """Whether somebody took it or a server answered."""
        self.reached |= self.is_reported
        rolled_up = rules.roll_up(self.statuses)
        self.status = rules.after_event(Status(row["status"]), rolled_up) if self.is_reported else rolled_up
        """From now on."""

    @property
    def provider_now(self) -> tuple[str | None, str | None]:
        """Provider and its id for the message, once it was reached."""
        made = next((c.made for c in self.changes if c.made is not None and c.made.provider_message_id), None)
        return (made.provider, made.provider_message_id) if made is not None and self.reached else (None, None)

    def forgets(self, tasks: Collection[tuple[int, int, str, str]]) -> bool:
        """Whether the bytes that go out are needed no more: nothing waits to be sent, nor a notice that quotes them to
        be written."""
        told = {task[1] for task in tasks}
        return (
            self.row["wire_key"] is not None
            and not self.row["waits"]
            and not self.row["notices_open"]
            and not any(_waits(change) or change.row["id"] in told for change in self.changes)
        )


def _waits(change: Change) -> bool:
    """Whether it needs the bytes again. What the simulator puts off has been sent."""
    status = change.decided.status
    return status is Status.QUEUED or (status is Status.DEFERRED and change.row["route"] != RouteKind.SIMULATOR)


def _answered(change: Change) -> bool:
    made = change.made
    return change.decided.code is not None and made is not None and made.remote_mx is not None


async def settle(changes: Sequence[Change], ids: IdGenerator, *, telling: Telling = TELL_OUTCOMES) -> Settled:
    """Apply `changes`, of which each delivery has one at most and each is allowed; their mailboxes are written by one
    transaction. The caller finishes the writes and commits, then does what is left. Nothing happens without changes.
    """
    if not changes:
        return Settled()
    conn, now = changes[0].write.conn, changes[0].write.now
    messages = await _read(conn, changes)
    # Whose message or mailbox lacks a row there is nothing to say of any more.
    changes = [change for change in changes if change.row["message_id"] in messages]
    if not changes:
        return Settled()
    tasks = _notices(messages, ids, telling, now)
    wires = [message.row["wire_key"] for message in messages.values() if message.forgets(tasks)]
    await _write_rows(conn, changes, messages, wires, now)
    events: list[MessageEvent] = []
    statuses: list[tuple[MailboxWrite, NewStatus]] = []
    for key, message in messages.items():
        status = message.status
        # A relay is nobody's, so there is nobody to tell of it.
        events += () if message.row["is_relay"] else _events(key, message, status)
        fact = RECONCILED if any(change.reconciles for change in message.changes) else None
        deliveries = tuple((change.row["id"], change.decided.status.value) for change in message.changes)
        news = NewStatus(key, message.row["public_id"], status.value, fact, deliveries)
        statuses.append((message.write, news))
    await outbox.put(events, occurred_at=now, new_id=ids.new)
    await set_statuses(statuses)
    await _release_threads(conn, messages, [new for _, new in statuses])
    if tasks:
        columns = map(list, zip(*tasks, strict=True))
        await conn.execute(sql.BOUNCE_TASKS, now, *columns)
    return Settled(wires, len(tasks))


async def _read(conn: Connection, changes: Sequence[Change]) -> dict[int, _Message]:
    mine: dict[int, list[Change]] = {}
    for change in changes:
        mine.setdefault(change.row["message_id"], []).append(change)
    # In the order in which claims lock the threads.
    keys = sorted((*_owner(some[0].write), key) for key, some in mine.items())
    changed = [change.row["id"] for change in changes]
    found: dict[int, _Message] = {}
    for row in await conn.fetch(sql.MESSAGES, *zip(*keys, strict=True), changed):
        found[row["id"]] = _Message(row, mine[row["id"]], [Status(word) for word in row["statuses"] or ()])
    return found


async def _write_rows(
    conn: Connection,
    changes: Sequence[Change],
    messages: Mapping[int, _Message],
    wires: Collection[str],
    now: datetime,
) -> None:
    rows = [_delivery_row(change) for change in changes]
    kept = [
        (message.write.ref.tenant_id, key, *message.provider_now, message.row["wire_key"] in wires)
        for key, message in messages.items()
    ]
    await conn.execute(sql.WRITE, now, *zip(*rows, strict=True), *zip(*kept, strict=True))


def _owner(write: MailboxWrite) -> tuple[int, int]:
    return write.ref.tenant_id, write.ref.mailbox_id


def _delivery_row(change: Change) -> tuple[Any, ...]:
    """As `sql.WRITE` wants it."""
    decided, made = change.decided, change.made
    return (
        *_owner(change.write),
        change.row["id"],
        decided.status.value,
        decided.reason,
        decided.code,
        decided.enhanced,
        decided.text,
        decided.bounce,
        made.remote_mx if made is not None else None,
        decided.counts and made is not None,
        decided.next_at,
        change.restart,
        made.duration_ms if made is not None else 0,
        None if decided.code is not None else decided.reason or decided.enhanced,
    )


def _events(key: int, message: _Message, status: Status) -> list[MessageEvent]:
    """What is told of the message, in order: that it was sent, then what became of recipients, then of the whole."""
    told: list[tuple[str, Mapping[str, Any]]] = []
    row, before = message.row, Status(message.row["status"])
    if status is not Status.QUEUED and not row["sent"] and message.reached and not _resolved(message):
        via = message.row["via_fallback"]
        told.append(catalogue.message_sent(_summary(message.row, status), *_provider(message), via_fallback=via))
    if any(change.reconciles for change in message.changes):
        told.append(catalogue.message_reconciled(row["public_id"], status.value))
    for change in message.changes:
        told.append(_updated(row["public_id"], change))
        told += _of_recipient(row["public_id"], change)
    told += _of_whole(message, before, status)
    return [
        MessageEvent(message.write, row["tenant_public_id"], row["identity_public_id"], key, kind, data)
        for kind, data in told
    ]


def _resolved(message: _Message) -> bool:
    """Whether these are the changes of somebody who resolves: who tells of it in their own words."""
    return all(change.made is None for change in message.changes)


def _provider(message: _Message) -> tuple[str, str | None]:
    """The provider as events name it, and the id by which it knows the message."""
    made = next((change.made for change in message.changes if change.made and change.made.provider), None)
    provider = message.row["provider"] or (made.provider if made is not None else None) or "direct"
    provider_id = message.row["provider_message_id"] or (made.provider_message_id if made is not None else None)
    if provider == "local":
        # Events know no hand-over within a deployment: for live mail it is delivery (G11), else loopback (L3).
        provider = "loopback" if message.row["is_test"] else "direct"
    return provider, provider_id


def _updated(message_id: str, change: Change) -> tuple[str, Mapping[str, Any]]:
    """That a row of the queue changed, whatever the message's events say of it (C2)."""
    decided, row = change.decided, change.row
    counted = decided.counts and change.made is not None
    return catalogue.delivery_updated(
        row["id"],
        message_id,
        row["recipient"],
        QueueState.of(decided.status).value,
        attempts=0 if change.restart else row["tries"] + counted,
        last_error=None if decided.status in _TAKEN else decided.text or decided.reason,
    )


def _of_recipient(message_id: str, change: Change) -> list[tuple[str, Mapping[str, Any]]]:
    decided, recipient = change.decided, change.row["recipient"]
    match decided.status:
        case Status.DELIVERED:
            return [catalogue.message_delivered(message_id, recipient, decided.code)]
        case Status.DEFERRED if decided.counts and change.made is not None:
            return [catalogue.message_deferred(message_id, recipient, decided.code, decided.text)]
        case Status.BOUNCED:
            return [
                catalogue.message_bounced(
                    message_id,
                    recipient,
                    bounce_type=decided.bounce or "soft",
                    smtp_code=decided.code,
                    smtp_response=decided.text,
                )
            ]
        case Status.COMPLAINED:
            return [catalogue.message_complained(message_id, recipient)]
        case _:
            return []


def _of_whole(message: _Message, before: Status, status: Status) -> list[tuple[str, Mapping[str, Any]]]:
    message_id = message.row["public_id"]
    told: list[tuple[str, Mapping[str, Any]]] = []
    unknown = [change for change in message.changes if change.decided.status is Status.UNCERTAIN]
    if unknown:
        everybody = message.statuses <= {Status.UNCERTAIN, Status.SUPPRESSED, Status.CANCELED}
        reason = unknown[0].decided.reason or "provider_outcome_unknown"
        named = None if everybody else [change.row["recipient"] for change in unknown]
        told.append(catalogue.message_uncertain(message_id, reason, named))
    if status is before:
        return told
    last = next((change.decided for change in message.changes if change.decided.status is status), None)
    if status is Status.REJECTED:
        reason = (last.reason if last is not None else None) or "provider_validation"
        told.append(catalogue.message_rejected(message_id, reason, last.text if last is not None else None))
    elif status is Status.FAILED:
        reason = (last.reason if last is not None else None) or rules.LOCAL_FAULT
        told.append(catalogue.message_failed(message_id, reason))
    elif status is Status.CANCELED:
        told.append(catalogue.message_canceled(message_id))
    return told


def _summary(row: Any, status: Status) -> Mapping[str, Any]:
    people = row["people"] or ()
    return summary_of(
        message_id=row["public_id"],
        thread_id=row["thread_id"],
        direction=row["direction"],
        status=status.value,
        sender=Mailpoint(row["from_address"], row["from_name"] or "") if row["from_address"] else None,
        to=[Mailpoint(address, name) for kind, address, name in people if kind == "to"],
        cc=[Mailpoint(address, name) for kind, address, name in people if kind == "cc"],
        subject=row["subject"],
        sent_at=row["sent_at"],
        received_at=row["received_at"],
        kind=row["kind"],
        labels=labels(tuple(row["flags"] or ())),
        in_reply_to=row["in_reply_to"],
        facts=row["facts"],
    )


async def _release_threads(conn: Connection, messages: Mapping[int, _Message], statuses: Sequence[NewStatus]) -> None:
    """The next message of a thread may go once this one has left `queued`, or waits (outbound §7)."""
    left = {one.id for one in statuses if one.status != Status.QUEUED}
    freed = [
        (*_owner(message.write), message.row["thread_seq"], message.row["public_id"])
        for key, message in messages.items()
        if message.row["holds_thread"] and (key in left or any(change.decided.next_at for change in message.changes))
    ]
    if freed:
        await conn.execute(sql.RELEASE_THREADS, *zip(*freed, strict=True))


def _notices(
    messages: Mapping[int, _Message], ids: IdGenerator, telling: Telling, now: datetime
) -> list[tuple[int, int, str, str]]:
    """What senders are to be told by mail (C7): tenant, delivery, action, and the notice's id."""
    tasks = []
    for message in messages.values():
        operation = Operation(message.row["operation"])
        silent = message.row["is_system"] and not message.row["is_relay"]
        if silent or not rules.is_notified(operation, message.row["envelope_from"]):
            continue
        is_late = telling.delay is not None and now >= message.row["accepted_at"] + telling.delay
        named: dict[str, str] = {}
        for change in message.changes:
            action = _notice(change, operation) if telling.outcomes else None
            if is_late and _wants_to_know_of_delay(change, operation, is_person=message.row["is_person"]):
                action = "delayed"
            if action is not None:
                # What happens to several recipients at once is told in one notice.
                if action not in named:
                    named[action] = ids.new("msg")
                tasks.append((change.write.ref.tenant_id, change.row["id"], action, named[action]))
    return tasks


def _wants_to_know_of_delay(change: Change, operation: Operation, *, is_person: bool) -> bool:
    """Whether it still waits and somebody asked to be told; without NOTIFY our own people are (RFC 3461 §4.1 leaves it
    to us): programs have events, and what is passed on has a server of its own behind it."""
    notify = change.row["dsn_notify"]
    if not _waits(change) or change.decided.next_at is None:
        return False
    return is_person and operation is not Operation.REDIRECT if notify is None else "DELAY" in notify


def _notice(change: Change, operation: Operation) -> str | None:
    """`action` of the notice about a change, None without one; NOTIFY is honoured (RFC 3461 §4.1)."""
    notify = change.row["dsn_notify"]
    if change.decided.reason == rules.RESOLVED_NOT_SENT:
        return None  # whoever said so knows
    if change.decided.status in _FAILED:
        return "failed" if notify is None or "FAILURE" in notify else None
    if change.decided.status is Status.UNCERTAIN:
        return "uncertain" if operation is Operation.SUBMISSION and (notify is None or "NEVER" not in notify) else None
    if notify is None or "SUCCESS" not in notify or change.made is None:
        return None
    if change.decided.status is Status.DELIVERED and change.row["route"] == RouteKind.LOCAL:
        return "delivered"
    taken = change.decided.status in (Status.DELIVERED, Status.SUBMITTED)
    return "relayed" if taken and change.made.relayed else None
