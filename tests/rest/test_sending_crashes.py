"""One key, one e-mail, nothing left behind: races, deadlines, faults at every step, and processes that die (outbound
§3.4, §24.1, §24.2; G1, C4, I9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from postroom.accounts import Mode
from postroom.base.errors import PostroomError
from postroom.blobs import StorageError
from postroom.db import Database
from postroom.inbound.describe import describe
from postroom.inbound.parsing import Parser
from postroom.outbound import submit
from postroom.outbound.accept import Acceptance
from postroom.outbound.ledger import fingerprint
from postroom.outbound.models import Operation, RouteKind
from postroom.outbound.request import Person, SendRequest
from postroom.outbound.submit import Sending, Submitted
from postroom.outbound.thread_lock import ThreadLocks
from tests.rest.sender import ANNA, NOTHING, ONE, Sender, letter, make_sender
from tests.rest.world import World, sending_of

REQUEST = SendRequest(Operation.SEND, to=(Person(ANNA),), subject="Hello", text="Good morning.")


@pytest.fixture
async def sender(world: World) -> Sender:
    return await make_sender(world)


def service(sender: Sender, db: Database | None = None, **changes: Any) -> Sending:
    world = sender.world
    acceptance = Acceptance(
        db or world.db, world.blobs, world.clock, world.ids, changed=lambda stored: None, wake=lambda: None
    )
    changes = {"acceptance": acceptance, **changes}
    return sending_of(db or world.db, world.clock, world.ids, world.blobs, world.mailboxes, Parser(), **changes)


async def submitted(
    sender: Sender, sending: Sending, request: SendRequest = REQUEST, *, key: str = "k", body: Any = "body"
) -> Submitted:
    printed = fingerprint(body, request.operation, sender.box.public_id)
    return await sending.submit(sender.box, request, key=key, fingerprint=printed)


async def refused(sender: Sender, sending: Sending, request: SendRequest = REQUEST, **more: Any) -> PostroomError:
    with pytest.raises(PostroomError) as caught:
        await submitted(sender, sending, request, **more)
    return caught.value


# -- races


@pytest.mark.covers("edge:G1", "FR-OUT-1")
async def test_two_nodes_race_on_one_key(sender: Sender, database_url: str) -> None:
    async with Database(database_url, min_size=1, max_size=10) as other:
        nodes = [service(sender), service(sender, other)]
        found = await asyncio.gather(
            *(submitted(sender, node) for node in nodes for _ in range(6)), return_exceptions=True
        )
    fresh = [one for one in found if isinstance(one, Submitted) and not one.deduplicated]
    assert len(fresh) == 1
    for one in found:
        if isinstance(one, Submitted):
            assert one.message == fresh[0].message
        else:
            assert isinstance(one, PostroomError)
            assert one.code == "request_in_progress"
    assert await sender.traces() == ONE


@pytest.mark.covers("edge:G1")
async def test_parallel_requests(sender: Sender) -> None:
    answers = await asyncio.gather(*(sender.send() for _ in range(6)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    ids = {answer.json()["id"] for answer in answers if answer.status_code == 202}
    assert len(ids) == 1
    assert await sender.traces() == ONE


@pytest.mark.covers("edge:G1")
async def test_who_lost_the_key_stores_nothing(sender: Sender) -> None:
    """A process that slept through its lease finds another's message in its place."""
    quick = service(sender)
    won: list[Submitted] = []

    async def sleepy(wire: bytes, domain: str) -> bytes:
        sender.world.clock.advance(46)
        won.append(await submitted(sender, quick))
        return wire

    error = await refused(sender, service(sender, sign=sleepy))
    assert error.code == "request_in_progress"
    assert await sender.traces() == ONE
    assert (await submitted(sender, quick)).message == won[0].message


# -- faults


async def _raise(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a fault")


async def _cancel(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


def _raise_now(*_: Any) -> Any:
    raise RuntimeError("a fault")


class _Broken(Acceptance):
    """Fails at one of its steps."""

    def __init__(self, step: str, fault: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        setattr(self, step, fault)


def _broken(sender: Sender, step: str, fault: Callable[..., Any]) -> Acceptance:
    world = sender.world
    return _Broken(
        step, fault, world.db, world.blobs, world.clock, world.ids, changed=lambda stored: None, wake=lambda: None
    )


@pytest.mark.covers("edge:G1", "edge:I9", "edge:C4")
@pytest.mark.parametrize("answering", [False, True])
@pytest.mark.parametrize("fault", [_raise, _cancel])
@pytest.mark.parametrize("step", ["suppressions", "route", "sign", "resource", "_sent", "_write", "accept"])
async def test_a_fault_at_each_step(
    sender: Sender, step: str, fault: Callable[..., Awaitable[Any]], answering: bool
) -> None:
    request = REQUEST
    if answering:
        request = SendRequest(Operation.REPLY, message_id=await sender.receive(), text="Yes.")
    if step == "resource":
        changes: dict[str, Any] = {"resource": _raise_now}
    elif step in ("_sent", "_write", "accept"):
        changes = {"acceptance": _broken(sender, step, fault)}
    else:
        changes = {step: fault}
    with pytest.raises((RuntimeError, asyncio.CancelledError)):
        await submitted(sender, service(sender, **changes), request)
    assert await sender.traces() == NOTHING
    done = await submitted(sender, service(sender), request)
    assert not done.deduplicated
    assert await sender.traces() == {**ONE, "locks": int(answering)}


@pytest.mark.covers("edge:I9")
@pytest.mark.parametrize("refused_keys", ["/m/", "/out/", ""])
async def test_a_store_that_is_full(sender: Sender, monkeypatch: pytest.MonkeyPatch, refused_keys: str) -> None:
    """Of the two objects of a message one or none is written."""
    real = sender.world.blobs.put_many

    async def failing(groups: Sequence[Any]) -> list[StorageError | None]:
        taken = [group for group in groups if not any(refused_keys in key for key in group.keys)]
        done = dict(zip([group.keys[0] for group in taken], await real(taken), strict=True)) if taken else {}
        return [done.get(group.keys[0], StorageError("ENOSPC")) for group in groups]

    monkeypatch.setattr(sender.world.blobs, "put_many", failing)
    assert (await refused(sender, service(sender))).code == "unavailable"
    monkeypatch.undo()
    assert await sender.traces() == NOTHING
    assert await sender.world.blobs.list("t") == []
    await submitted(sender, service(sender))
    assert await sender.traces() == ONE


@pytest.mark.covers("edge:G1")
async def test_the_deadlines(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(*_: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(submit, "SUBMIT_SECONDS", 0.2)
    error = await refused(sender, service(sender, sign=stuck))
    assert (error.code, error.status, error.retryable) == ("timeout", 504, True)
    monkeypatch.setattr(submit, "SUBMIT_SECONDS", 30)
    monkeypatch.setattr(submit, "FACTS_SECONDS", 0.2)
    assert (await refused(sender, service(sender, suppressions=stuck))).code == "unavailable"
    assert await sender.traces() == NOTHING


@pytest.mark.covers("edge:G1", "edge:C4")
@pytest.mark.parametrize("step", ["sign", "_sent", "_write"])
async def test_a_process_that_dies(sender: Sender, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """It gives nothing back: its leases end."""
    received = await sender.receive()
    request = SendRequest(Operation.REPLY, message_id=received, text="Yes.")
    changes: dict[str, Any] = {"sign": _raise} if step == "sign" else {"acceptance": _broken(sender, step, _raise)}
    dying = service(sender, **changes)

    async def dead(attempt: Any) -> None:
        pass

    monkeypatch.setattr(dying, "_give_up", dead)
    with pytest.raises(RuntimeError):
        await submitted(sender, dying, request)
    heir = service(sender, locks=ThreadLocks(sender.world.db, sender.world.clock, wait=0.05, poll=0.01))
    assert (await refused(sender, heir, request)).code == "request_in_progress"
    sender.world.clock.advance(45)
    busy = await refused(sender, heir, request)
    assert (busy.code, busy.details) == ("thread_busy", {"retry_after": 60})
    sender.world.clock.advance(75)
    assert not (await submitted(sender, heir, request)).deduplicated
    assert await sender.traces() == {**ONE, "locks": 1}


@pytest.mark.covers("edge:G1")
async def test_an_answer_that_was_lost(sender: Sender) -> None:
    """The commit went through and nobody heard of it: the repetition answers as the first would have."""
    world = sender.world
    acceptance = Acceptance(world.db, world.blobs, world.clock, world.ids, changed=_raise_now, wake=lambda: None)
    received = await sender.receive()
    request = SendRequest(Operation.REPLY, message_id=received, text="Yes.")
    with pytest.raises(RuntimeError):
        await submitted(sender, service(sender, acceptance=acceptance), request)
    assert await sender.traces() == {**ONE, "locks": 1}
    again = await submitted(sender, service(sender), request)
    assert again.deduplicated
    assert again.message["deliveries"][0]["status"] == "queued"


# -- what stands beside


@pytest.mark.covers("FR-OUT-4")
async def test_suppressions(sender: Sender) -> None:
    async def listed(tenant_id: int, addresses: Sequence[str]) -> Mapping[str, str]:
        assert tenant_id == sender.box.tenant_id
        return {one: "hard_bounce" for one in addresses if one == ANNA}

    sending = service(sender, suppressions=listed)
    request = SendRequest(
        Operation.SEND,
        to=(Person("ANNA@example.com"), Person("bo@example.com")),
        cc=(Person("anna+t01.0123abcd@example.com"),),  # with a thread token it is still her
        subject="Hi",
        text="Hi.",
    )
    foreseen = await sending.dry_run(sender.box, request)
    assert [(one.address, one.status, one.reason) for one in foreseen] == [
        (ANNA, "suppressed", "hard_bounce"),
        ("bo@example.com", "queued", None),
        ("anna+t01.0123abcd@example.com", "suppressed", "hard_bounce"),
    ]
    done = await submitted(sender, sending, request)
    assert [(one["status"], one["policy"]) for one in done.message["deliveries"]] == [
        ("suppressed", None),
        ("queued", None),
        ("suppressed", None),
    ]
    (row,) = await sender.rows("SELECT smtp_response FROM deliveries WHERE recipient = $1", ANNA)
    assert row["smtp_response"] == "policy: suppression (hard_bounce)"


@pytest.mark.covers("mail-server:C5")
async def test_signing_and_routes(sender: Sender) -> None:
    signed: list[tuple[bytes, str]] = []

    async def sign(wire: bytes, domain: str) -> bytes:
        signed.append((wire, domain))
        return b"DKIM-Signature: v=1\r\n" + wire

    async def route(address: str, /, *, from_domain: str, mode: Mode) -> RouteKind:
        assert (address, from_domain, mode) == (ANNA, "agents.example", Mode.LIVE)
        return RouteKind.SMARTHOST

    done = await submitted(sender, service(sender, sign=sign, route=route))
    ((octets, domain),) = signed
    assert domain == "agents.example"
    (row,) = await sender.rows(
        "SELECT m.blob_key, o.wire_key, d.route, d.domain, o.envelope_from FROM messages m "
        "JOIN outbound_messages o ON o.message_id = m.id JOIN deliveries d ON d.message_id = m.id"
    )
    # The Sent copy is what goes out, and described as such: signed once, kept once.
    wire = b"DKIM-Signature: v=1\r\n" + octets
    assert await sender.world.blobs.get(row["blob_key"]) == await sender.world.blobs.get(row["wire_key"]) == wire
    (kept,) = await sender.rows("SELECT raw_size, raw_prefix_len, part_tree, raw_sha256 FROM messages")
    whole = describe(wire[: len(wire) - len(octets)], octets, sender.world.clock.now())
    assert tuple(kept) == (len(wire), len(wire) - len(octets), whole.part_tree, whole.raw_sha256)
    await sender.world.blobs.delete([row["wire_key"]])
    assert await sender.world.blobs.get(row["blob_key"]) == wire
    assert (row["route"], row["domain"], row["envelope_from"]) == ("smarthost", "", sender.box.primary.address)
    assert done.message["id"].startswith("msg_")


@pytest.mark.covers("edge:C4", "FR-OUT-9")
async def test_the_second_into_a_thread(sender: Sender) -> None:
    """It waits, and then names the first in its References."""
    received = await sender.receive(letter(Message_ID="<m1@example.com>"))
    thread = (await sender.get(received))["thread_id"]
    request = SendRequest(Operation.SEND, to=(Person(ANNA),), subject="Hello", text="One.", thread_id=thread)
    locks = ThreadLocks(sender.world.db, sender.world.clock, wait=5, poll=0.01)
    sending = service(sender, locks=locks)
    reached = asyncio.Event()

    async def first_sign(wire: bytes, domain: str) -> bytes:
        reached.set()
        await asyncio.sleep(0.2)  # the second has read the thread by then
        return wire

    first = asyncio.create_task(submitted(sender, service(sender, locks=locks, sign=first_sign), request, key="1"))
    await reached.wait()
    second = asyncio.create_task(submitted(sender, sending, request, key="2"))
    sent = (await first).message
    await asyncio.sleep(0.05)
    assert not second.done()
    await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL WHERE lock_owner = $1", sent["id"])
    later = (await second).message
    assert later["in_reply_to"] == sent["rfc_message_id"]
    wire = await sender.wire(later["id"])
    assert wire["References"].split() == ["<m1@example.com>", f"<{sent['rfc_message_id']}>"]
    assert (await sender.rows("SELECT lock_owner FROM threads"))[0][0] == later["id"]


@pytest.mark.covers("edge:C4", "FR-OUT-9")
async def test_a_busy_thread(sender: Sender) -> None:
    received = await sender.receive()
    request = SendRequest(Operation.REPLY, message_id=received, text="Yes.")
    sending = service(sender, locks=ThreadLocks(sender.world.db, sender.world.clock, wait=0.05, poll=0.01))
    await submitted(sender, sending, request, key="1")
    before = await sender.traces()
    error = await refused(sender, sending, request, key="2")
    assert (error.code, error.status, error.retryable) == ("thread_busy", 409, True)
    assert await sender.traces() == before
    # What it could not take it did not give back.
    assert (await refused(sender, sending, request, key="2")).code == "thread_busy"
