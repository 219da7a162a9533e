"""Where answers to what an agent sends are to go, and where they come (outbound §6.3, inbound §28; FR-OUT-6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.base.errors import PostroomError
from postroom.directory import IdentityKind
from postroom.directory.models import Recipient
from postroom.directory.resolver import Directory
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import Receiver
from postroom.inbound.reception import Addressee, Reception
from postroom.inbound.thread_tokens import ThreadTokens, TokenReader
from postroom.mail.thread_token import MAX_SEQ
from postroom.mailauth.dkim_key import Algorithm
from postroom.outbound.dispatch import Dispatcher
from postroom.outbound.models import Operation, RouteKind
from postroom.outbound.outcomes import Outcomes
from postroom.outbound.request import SendRequest
from postroom.outbound.signing import DkimKeys
from postroom.outbound.transports.local import Local
from postroom.smtp.envelope import Envelope
from tests.inbound.fakes import FakeJudge
from tests.mailbox.letters import check_mailbox
from tests.outbound.mail_room import in_process, unsigned
from tests.rest.contract import check
from tests.rest.sender import ANNA, BODY, OWN, Sender, code, letter, make_sender
from tests.rest.test_sending_crashes import submitted
from tests.rest.world import DOMAIN, HASH_KEY, MASTER, World, sending_of


@dataclass
class Post:
    """A sender, and the way of mail to it."""

    sender: Sender
    keys: SigningKeys
    reader: TokenReader
    reception: Reception

    @classmethod
    def of(cls, sender: Sender) -> Post:
        world = sender.world
        keys = SigningKeys(world.db, MASTER, world.clock)
        reader = TokenReader(ThreadTokens(keys, world.clock), world.clock, HASH_KEY)
        directory = Directory(world.db, world.clock, DOMAIN, query_seconds=60)
        receiver = Receiver(
            world.ingest,
            Parser(),
            world.clock,
            world.ids,
            hostname="mx.agents.example",
            version="1",
            local_mailbox=directory.owner_of,
            tokens=reader,
            judge=FakeJudge(),
        )
        return cls(sender, keys, reader, Reception(directory.resolve, receiver))

    async def arrives(self, to: str, raw: bytes, mail_from: str = ANNA) -> dict[str, Any]:
        """A message from outside: what the API says of it."""
        world = self.sender.world
        found = await self.reception.resolve(to, mail_from)
        assert isinstance(found, Recipient), found
        envelope: Envelope[Addressee] = Envelope(
            connection_id="c0ffee",
            peer_ip="192.0.2.7",
            peer_name=None,
            helo="mx.example.com",
            esmtp=True,
            tls=True,
            mail_from=mail_from,
            recipients=((to, found),),
            smtputf8=False,
            body_8bit=False,
            declared_size=None,
            received_at=world.clock.now(),
        )
        reply = await self.reception.receive(envelope, raw)
        assert reply.code == 250, reply
        (row,) = await self.sender.rows(
            "SELECT m.public_id, i.public_id AS identity FROM messages m JOIN identities i ON i.id = m.mailbox_id "
            "ORDER BY m.id DESC LIMIT 1"
        )
        assert row["identity"] == found.identity_public_id
        response = await world.get(f"/v1/identities/{row['identity']}/messages/{row['public_id']}")
        check("Message", response.json())
        shown: dict[str, Any] = response.json()
        return shown

    async def answered(self, to: str, **changes: Any) -> dict[str, Any]:
        """An answer by a program that keeps neither headers nor the subject."""
        self.sender.world.clock.advance(1)
        fields = {"Message_ID": "", "Subject": f"Your note {self.sender.world.ids.ulid()}", **changes}
        return await self.arrives(to, letter("Fine with me.", to=to, **fields))

    async def sent(self, body: Any = None, *, key: str = "k") -> tuple[dict[str, Any], str]:
        """A message, and the address for answers to it."""
        response = await self.sender.send(body, key=key)
        assert response.status_code == 202, response.text
        return response.json(), await self.reply_to(response.json()["id"])

    async def reply_to(self, message_id: str) -> str:
        wire = await self.sender.wire(message_id)
        (found,) = wire["Reply-To"].addresses
        return str(found.addr_spec)


@pytest.fixture
async def sender(world: World) -> Sender:
    return await make_sender(world)


@pytest.fixture
async def post(sender: Sender) -> Post:
    return Post.of(sender)


def unverified(message: dict[str, Any]) -> bool:
    return "thread_join_unverified" in message["trust"]["flags"]


def other_bit(address: str) -> str:
    """The address with one bit of its token's MAC turned."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    local, _, domain = address.partition("@")
    return f"{local[:-1]}{alphabet[alphabet.index(local[-1]) ^ 1]}@{domain}"


# -- what goes out


@pytest.mark.covers("FR-OUT-6", "edge:A2")
async def test_every_operation_names_its_thread(post: Post) -> None:
    sender = post.sender
    received = await sender.receive()
    await sender.receive(letter(Message_ID="<2@example.com>", Subject="Another"))
    for n, (operation, body) in enumerate(
        [
            ("", BODY),
            ("reply", {"text": "Yes."}),
            ("reply-all", {"text": "Yes."}),
            ("forward", {"to": ["bo@example.com"]}),
            ("", {**BODY, "thread_id": (await sender.get(received))["thread_id"]}),
        ]
    ):
        target = received if operation else ""
        response = await sender.world.post(sender.at(target, operation), body, key=f"{n}")
        assert response.status_code == 202, response.text
        sent = response.json()
        await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
        (row,) = await sender.rows("SELECT seq FROM threads WHERE public_id = $1", sent["thread_id"])
        token = await ThreadTokens(post.keys, sender.world.clock).mint(sender.box.public_id, row["seq"])
        local, _, domain = OWN.partition("@")
        wire = await sender.wire(sent["id"])
        assert wire["Reply-To"] == f"Robot <{local}+{token}@{domain}>"
        assert sent["reply_to"] == [{"address": f"{local}+{token}@{domain}", "name": "Robot"}]
        assert (await sender.get(sent["id"]))["reply_to"] == sent["reply_to"]
        (kept,) = await sender.rows(
            "SELECT reply_to FROM outbound_messages o JOIN messages m ON m.id = o.message_id WHERE m.public_id = $1",
            sent["id"],
        )
        assert kept["reply_to"] == sent["reply_to"][0]["address"]
    async with sender.world.db.acquire() as conn:
        await check_mailbox(conn, sender.world.ref)


async def test_a_replay_says_the_same(post: Post) -> None:
    first, _ = await post.sent()
    again, _ = await post.sent()
    assert again == {**first, "deduplicated": True}
    (row,) = await post.sender.rows("SELECT next_thread_seq FROM mailboxes WHERE id = $1", post.sender.box.id)
    assert row["next_thread_seq"] == 2


@pytest.mark.covers("FR-OUT-6", "RFC 6376 §5.4")
async def test_the_signature_covers_it(world: World) -> None:
    keys = DkimKeys(world.db, MASTER, world.clock, offload=in_process, algorithm=Algorithm.ED25519_SHA256)
    made = await make_sender(world)
    sending = sending_of(*(world.db, world.clock, world.ids, world.blobs, world.mailboxes, Parser()), sign=keys.sign)
    shown = (await submitted(made, sending)).message
    wire = await made.wire(shown["id"])
    signed = "".join(wire["DKIM-Signature"].split())
    (names,) = [tag[2:].lower().split(":") for tag in signed.split(";") if tag.startswith("h=")]
    assert names.count("reply-to") == 2
    assert "+t0" in wire["Reply-To"]


async def test_people_have_none(world: World) -> None:
    """Nobody keeps a token as a person's address."""
    person = await make_sender(world, "carol", kind=IdentityKind.PERSON, owner_name=None, owner_email=None)
    sent = (await person.send()).json()
    assert sent["reply_to"] == []
    assert "Reply-To" not in await person.wire(sent["id"])
    # Its threads are kept apart from whoever claims their Message-IDs all the same.
    received = await person.receive(letter(to="carol.acme@agents.example"))
    answer = (await person.post(received, "reply", key="2")).json()
    assert (answer["reply_to"], answer["thread_id"]) == ([], (await person.get(received))["thread_id"])


@pytest.mark.covers("edge:A12")
async def test_an_address_without_room_has_none(post: Post) -> None:
    await post.sender.execute(
        "UPDATE addresses SET local_part = $1, address = $1 || '@agents.example' WHERE identity_id = $2",
        *("a" * 52, post.sender.box.id),
    )
    sent = (await post.sender.send()).json()
    assert sent["reply_to"] == []
    assert "Reply-To" not in await post.sender.wire(sent["id"])


@pytest.mark.covers("FR-OUT-3")
async def test_a_dry_run_takes_no_number(post: Post) -> None:
    for _ in range(3):
        assert (await post.sender.send(dry_run="true", key=None)).status_code == 200
    refused = await post.sender.send({**BODY, "to": ["nobody"]})
    assert code(refused) == "address_invalid"
    (row,) = await post.sender.rows("SELECT next_thread_seq FROM mailboxes WHERE id = $1", post.sender.box.id)
    assert row["next_thread_seq"] == 1


@pytest.mark.covers("edge:C1")
async def test_a_number_of_what_was_not_sent_is_never_used(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any) -> None:
        raise PostroomError("mailbox_full")

    with monkeypatch.context() as patched:
        patched.setattr("postroom.outbound.accept.Acceptance.accept", full)
        assert (await post.sender.send()).status_code == 413
    lost = await ThreadTokens(post.keys, post.sender.world.clock).mint(post.sender.box.public_id, 1)
    local, _, domain = OWN.partition("@")
    sent, _ = await post.sent()
    answer = await post.answered(f"{local}+{lost}@{domain}")
    assert answer["thread_id"] != sent["thread_id"]
    assert not unverified(answer)
    rows = await post.sender.rows("SELECT seq FROM threads ORDER BY seq")
    assert [row["seq"] for row in rows] == [2, 3]


@pytest.mark.covers("edge:C1")
async def test_sends_at_once_share_no_number(post: Post) -> None:
    sent = await asyncio.gather(*(post.sent(key=f"{n}") for n in range(12)))
    assert len({address for _, address in sent}) == len({message["thread_id"] for message, _ in sent}) == 12
    for message, address in sent:
        assert (await post.answered(address))["thread_id"] == message["thread_id"]


# -- what comes back


@pytest.mark.covers("FR-OUT-6", "FR-THR-1", "edge:C1", "edge:C8", "edge:A2")
async def test_an_answer_without_headers_is_in_the_thread(post: Post) -> None:
    sent, address = await post.sent()
    since = post.sender.world.clock.now().isoformat().replace("+00:00", "Z")
    answer = await post.answered(address)
    assert (answer["thread_id"], answer["delivered_to"]) == (sent["thread_id"], OWN)
    assert answer["to"][0]["address"] == address
    assert not unverified(answer)
    assert "bcc" not in answer["flags"]
    waited = await post.sender.world.get(
        f"/v1/identities/{post.sender.box.public_id}/wait", None, kind="reply", since=since, timeout=1
    )
    assert waited.json()["message"]["id"] == answer["id"]
    # We answer from the address that was written to, with the same thread's token.
    post.sender.world.clock.advance(1)
    await post.sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
    again = (await post.sender.post(answer["id"], "reply", key="2")).json()
    assert (again["thread_id"], again["from"]["address"]) == (sent["thread_id"], OWN)
    assert again["reply_to"][0]["address"] == address
    # Who answers all does not write to itself.
    await post.sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
    everybody = (await post.sender.post(answer["id"], "reply-all", key="3")).json()
    assert [one["address"] for one in everybody["deliveries"]] == [ANNA]
    thread = await post.sender.world.get(f"/v1/identities/{post.sender.box.public_id}/threads/{sent['thread_id']}")
    assert [one["address"] for one in thread.json()["participants"]] == [ANNA]


@pytest.mark.covers("edge:A2")
@pytest.mark.parametrize("change", [str.upper, str.title])
async def test_capitals_on_the_way(post: Post, change: Callable[[str], str]) -> None:
    sent, address = await post.sent()
    assert (await post.answered(change(address)))["thread_id"] == sent["thread_id"]


@pytest.mark.covers("edge:D10")
async def test_rotation(post: Post) -> None:
    sent, address = await post.sent()
    await post.keys.rotate(Purpose.THREAD)
    assert (await post.answered(address))["thread_id"] == sent["thread_id"]
    assert post.reader.of_previous_keys == 1
    post.sender.world.clock.advance(timedelta(days=90).total_seconds())
    late = await post.answered(address)
    assert late["thread_id"] != sent["thread_id"]
    assert unverified(late)


@pytest.mark.covers("edge:D10")
async def test_after_a_revocation_headers_thread(post: Post) -> None:
    sent, address = await post.sent()
    await post.keys.rotate(Purpose.THREAD, revoke_previous=True)
    answer = await post.answered(address, In_Reply_To=f"<{sent['rfc_message_id']}>")
    assert answer["thread_id"] == sent["thread_id"]
    assert unverified(answer)
    assert (await post.answered(address))["thread_id"] != sent["thread_id"]


@pytest.mark.covers("edge:A2", "edge:D10")
async def test_a_forged_token(post: Post) -> None:
    sent, address = await post.sent()
    forged = await post.answered(other_bit(address))
    assert forged["thread_id"] != sent["thread_id"]
    assert (forged["delivered_to"], unverified(forged)) == (OWN, True)
    assert (await post.answered(address))["thread_id"] == sent["thread_id"]


@pytest.mark.covers("edge:D10")
async def test_who_guesses_is_not_listened_to_for_an_hour(post: Post) -> None:
    sent, address = await post.sent()
    for _ in range(10):
        assert unverified(await post.answered(other_bit(address)))
    unchecked = await post.answered(address)
    assert unverified(unchecked)
    assert unchecked["thread_id"] != sent["thread_id"]
    by_header = await post.answered(address, In_Reply_To=f"<{sent['rfc_message_id']}>")
    assert (by_header["thread_id"], unverified(by_header)) == (sent["thread_id"], True)
    post.sender.world.clock.advance(3600)
    assert (await post.answered(address))["thread_id"] == sent["thread_id"]


@pytest.mark.covers("edge:A2")
async def test_a_token_of_somebody_else(post: Post) -> None:
    sent, _ = await post.sent()
    other = Post.of(await make_sender(post.sender.world, "other"))
    _, address = await other.sent()
    token = address.partition("+")[2].partition("@")[0]
    local, _, domain = OWN.partition("@")
    answer = await post.answered(f"{local}+{token}@{domain}")
    assert answer["identity_id"] == post.sender.box.public_id
    assert answer["thread_id"] != sent["thread_id"]
    assert unverified(answer)


@pytest.mark.covers("edge:C1")
async def test_a_token_of_what_was_erased(post: Post) -> None:
    _, address = await post.sent()
    # As erasure will: nothing of the thread is left.
    await post.sender.execute("UPDATE deliveries SET status = 'delivered', next_attempt_at = NULL")
    await post.sender.execute("UPDATE messages SET status = 'delivered'")
    for table in ("placements", "messages", "threads"):
        await post.sender.execute(f"DELETE FROM {table}")
    late = await post.answered(address)
    assert not unverified(late)
    (row,) = await post.sender.rows("SELECT seq FROM threads WHERE public_id = $1", late["thread_id"])
    assert row["seq"] == 2
    assert (await post.answered(address))["thread_id"] != late["thread_id"]


@pytest.mark.covers("edge:C9")
async def test_a_stranger_with_a_token(post: Post) -> None:
    sent, address = await post.sent()
    stranger = await post.answered(address, sender="eve@example.net")
    assert (stranger["thread_id"], unverified(stranger)) == (sent["thread_id"], True)
    waited = await post.sender.world.get(
        f"/v1/identities/{post.sender.box.public_id}/wait", None, kind="reply", since="2029-12-31T00:00:00Z", timeout=1
    )
    assert waited.json()["timed_out"]
    known = await post.answered(address, sender="zoe@example.net", In_Reply_To=f"<{sent['rfc_message_id']}>")
    assert (known["thread_id"], unverified(known)) == (sent["thread_id"], False)


@pytest.mark.covers("edge:C1", "FR-OUT-9")
async def test_a_thread_that_is_erased_while_an_answer_is_written(world: World) -> None:
    """The answer begins another, and its token names nothing, now and later."""
    made = await make_sender(world)
    received = await made.receive()

    async def slow(wire: bytes, domain: str) -> bytes:
        for table in ("placements", "messages", "threads"):
            await made.execute(f"DELETE FROM {table}")
        return wire

    sending = sending_of(*(world.db, world.clock, world.ids, world.blobs, world.mailboxes, Parser()), sign=slow)
    request = SendRequest(Operation.REPLY, message_id=received, text="Yes.")
    shown = (await submitted(made, sending, request)).message
    (row,) = await made.rows("SELECT seq FROM threads WHERE public_id = $1", shown["thread_id"])
    assert row["seq"] == 2
    post = Post.of(made)
    answer = await post.answered(shown["reply_to"][0]["address"])
    assert answer["thread_id"] != shown["thread_id"]
    by_header = await post.answered(
        shown["reply_to"][0]["address"], In_Reply_To=f"<{shown['rfc_message_id']}>", sender="eve@example.net"
    )
    assert by_header["thread_id"] == shown["thread_id"]


@pytest.mark.covers("edge:C1", "edge:B3")
async def test_an_answer_stays_where_it_was_asked_for(post: Post) -> None:
    """Whoever repeats a Message-ID elsewhere draws nothing there."""
    sender = post.sender
    received = await sender.receive()
    await sender.receive(letter("Something else.", Message_ID="<m1@example.com>", Subject="Else"))
    thread = (await sender.get(received))["thread_id"]
    answer = (await sender.post(received, "reply")).json()
    assert answer["thread_id"] == thread
    assert (await post.answered(answer["reply_to"][0]["address"]))["thread_id"] == thread


# -- between two mailboxes here


@pytest.mark.covers("edge:G11", "edge:C1")
async def test_mail_that_stays_here_is_filed_by_its_token(post: Post) -> None:
    world = post.sender.world
    other = await make_sender(world, "helper")
    sent, address = await post.sent({**BODY, "to": ["helper.acme@agents.example"]})
    world.clock.advance(1)
    # Neither headers nor subject say where it belongs.
    fresh = await other.send({"to": [address], "subject": "Quite another", "text": "Done."})
    assert fresh.json()["deliveries"][0]["address"] == address
    await _hand_over(post)
    (back,) = await other.rows(
        "SELECT m.facts, t.public_id FROM messages m JOIN threads t ON t.mailbox_id = m.mailbox_id "
        "AND t.seq = m.thread_seq WHERE m.mailbox_id = $1 AND m.direction = 'inbound'",
        post.sender.box.id,
    )
    assert (back["public_id"], back["facts"]) == (sent["thread_id"], [])


@pytest.mark.covers("edge:G11", "edge:E2", "edge:D3")
async def test_an_agent_knows_whom_it_answered_with_and_without_a_token(post: Post) -> None:
    world = post.sender.world
    other = await make_sender(world, "helper", send_policy={})  # it writes only to whom it knows
    sent, address = await post.sent({**BODY, "to": ["helper.acme@agents.example"]})
    stranger = await other.send({**BODY, "to": [OWN]}, key="1")
    assert stranger.json()["status"] == "suppressed"
    await _hand_over(post)
    (asked,) = await other.rows(
        "SELECT public_id FROM messages WHERE mailbox_id = $1 AND direction = 'inbound'", other.box.id
    )
    answer = (await other.post(asked["public_id"], "reply", key="2")).json()
    assert [(one["address"], one["status"]) for one in answer["deliveries"]] == [(address, "queued")]
    assert answer["reply_to"][0]["address"].startswith("helper.acme+t0")
    for n, known in enumerate((OWN, address, other_bit(address))):
        assert (await other.send({**BODY, "to": [known]}, key=f"k{n}")).json()["status"] == "queued"
    for n, unknown in enumerate(("robot.acme+news@agents.example", "robot.acm@agents.example", f"x{OWN}")):
        assert (await other.send({**BODY, "to": [unknown]}, key=f"u{n}")).json()["status"] == "suppressed"
    await _hand_over(post)
    rows = await other.rows(
        "SELECT t.public_id FROM messages m JOIN threads t ON t.mailbox_id = m.mailbox_id AND t.seq = m.thread_seq "
        "WHERE m.mailbox_id = $1 AND m.direction = 'inbound' ORDER BY m.id",
        post.sender.box.id,
    )
    # The answer, and what bore the token; the others begin threads of their own.
    assert sorted(row["public_id"] == sent["thread_id"] for row in rows) == [False, False, True, True]


async def _hand_over(post: Post) -> None:
    """What is due goes to the mailboxes here."""
    world = post.sender.world
    outcomes = Outcomes(
        *(world.db, world.blobs, world.clock, world.ids),
        random=random.Random(7).random,
        changed=lambda ref, modseq: None,
        noticed=lambda: None,
    )
    local: Local[Any] = Local(
        post.reception.resolve,
        post.reception.receive,
        world.clock,
        hostname="mx.agents.example",
        new_id=lambda group: f"local:{world.ids.ulid()}",
    )
    dispatcher = Dispatcher(
        *(world.db, world.blobs, world.clock, outcomes, {RouteKind.LOCAL: local}), sign=unsigned, offload=in_process
    )
    await dispatcher.run_due()


# -- for all numbers


@pytest.mark.covers("FR-OUT-6", "FR-THR-1", "edge:A12")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(1, MAX_SEQ - 1) | st.integers(1, 2000), length=st.integers(1, 40), case=st.booleans())
async def test_what_goes_out_is_found_again(world: World, number: int, length: int, case: bool) -> None:
    """Of any identity, of any thread."""
    made = await make_sender(world, f"a{world.ids.ulid()[-20:]}".lower())
    local = "".join(random.Random(number).choices("abcdefghijklmnop", k=length))
    domain = f"d{world.ids.ulid()}.agents.example".lower()
    await made.execute("UPDATE domains SET name = $1", domain)
    await made.execute(
        "UPDATE addresses SET local_part = $1, address = $1 || '@' || $2 WHERE identity_id = $3",
        *(local, domain, made.box.id),
    )
    await made.execute("UPDATE mailboxes SET next_thread_seq = $1 WHERE id = $2", number, made.box.id)
    post = Post.of(made)
    sent, address = await post.sent()
    assert len(address.partition("@")[0]) <= 64
    (row,) = await made.rows("SELECT seq FROM threads WHERE public_id = $1", sent["thread_id"])
    assert row["seq"] == number
    answer = await post.answered(address.upper() if case else address)
    assert (answer["thread_id"], unverified(answer)) == (sent["thread_id"], False)
