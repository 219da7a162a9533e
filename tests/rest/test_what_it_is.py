"""What is known of received mail, over REST: its kind, language, references, what its attachments are, and codes."""

from __future__ import annotations

import json
from datetime import timedelta
from email.message import EmailMessage
from typing import Any

import pytest

from postroom.mailbox.verifications import prune_verifications
from tests.inbound.fakes import FakeJudge
from tests.rest.contract import check
from tests.rest.sender import ANNA, OWN, Sender, make_sender
from tests.rest.test_reply_to import Post
from tests.rest.world import World

TEXT = (
    "Guten Tag, Ihre Rechnung 88213 über 412,80 € finden Sie im Anhang. Bitte überweisen Sie den Betrag bis zum Ende "
    "des Monats auf unser Konto, vielen Dank und freundliche Grüße.\n"
)


def message(text: str = TEXT, subject: str = "Rechnung", **fields: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = f"Anna <{ANNA}>", OWN, subject
    made["Message-ID"] = fields.pop("message_id", "<one@example.com>")
    for name, value in fields.items():
        made[name.replace("_", "-")] = value
    made.set_content(text)
    return made


@pytest.fixture
async def post(world: World) -> Post:
    return Post.of(await make_sender(world))


async def arrives(post: Post, made: EmailMessage) -> dict[str, Any]:
    return await post.arrives(OWN, bytes(made).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))


@pytest.mark.covers("FR-IN-4", "FR-IN-6", "FR-SRCH-4")
async def test_an_invoice(post: Post) -> None:
    made = message()
    made.add_attachment(b"MZ" + bytes(200), maintype="application", subtype="pdf", filename="invoice.pdf")
    found = await arrives(post, made)
    assert (found["kind"], found["trust"]["automated"], found["trust"]["verdict"]) == ("normal", False, "pass")
    assert found["triage"]["language"] == "de"
    assert {"kind": "invoice", "value": "88213"} in found["refs"]
    assert {"kind": "amount", "value": "EUR:412.80"} in found["refs"]
    (attachment,) = found["attachments"]
    assert (attachment["filename"], attachment["risk"]) == ("invoice.pdf", "executable")


@pytest.mark.covers("FR-IN-6", "edge:D6")
@pytest.mark.parametrize(
    ("fields", "kind", "automated"),
    [
        ({"List_Id": "<news.example.com>"}, "list", True),
        ({"Auto_Submitted": "auto-replied"}, "automated", True),
        ({}, "normal", False),
    ],
)
async def test_kinds(post: Post, fields: dict[str, str], kind: str, automated: bool) -> None:
    found = await arrives(post, message(**fields))
    assert (found["kind"], found["trust"]["automated"]) == (kind, automated)


@pytest.mark.covers("FR-IN-11", "edge:E4")
async def test_a_code_is_given_to_who_waits_for_its_sender_and_not_for_ever(post: Post) -> None:
    world = post.sender.world
    begun = world.clock.now()
    world.clock.advance(1)
    made = message("Your verification code is 481 207. It is good for ten minutes.\n", subject="Your code")
    found = await arrives(post, made)
    path = f"/v1/identities/{post.sender.box.public_id}/wait"

    async def wait(**params: str) -> Any:
        since = (begun - timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
        response = await world.get(path, timeout=1, since=since, **params)
        check("WaitResponse", response.json())
        return response.json()

    given = await wait(kind="verification", **{"from": "@example.com"})
    assert given["message"]["id"] == found["id"]
    assert given["verification"] == {"code": "481 207", "link": None, "sender_domain": "example.com"}
    # Whoever does not say from whom it comes, or waits for somebody else, has the message at most.
    assert (await wait())["verification"] is None
    assert (await wait(kind="verification", **{"from": "@example.net"}))["timed_out"] is True
    world.clock.advance(3000)
    assert (await wait(**{"from": ANNA}))["verification"] == given["verification"]
    world.clock.advance(3000)
    assert (await wait(**{"from": ANNA}))["verification"] is None
    # One that is spent stands in nobody's way.
    again = message("Your verification code is 555 111.\n", subject="Your code", message_id="<two@example.com>")
    newer = await arrives(post, again)
    assert (await wait(kind="verification", **{"from": "@example.com"}))["message"]["id"] == newer["id"]
    assert await prune_verifications(world.db, world.clock.now()) == 1
    assert await prune_verifications(world.db, world.clock.now()) == 0


@pytest.mark.covers("edge:E4", "FR-WH-4")
async def test_that_there_is_a_code_is_told_and_the_code_is_not(post: Post) -> None:
    made = message("Your verification code is 481 207. It is good for ten minutes.\n", subject="Your code")
    found = await arrives(post, made)
    rows = await post.sender.rows(
        "SELECT type, payload, sequence, message_id FROM events WHERE message_id IS NOT NULL ORDER BY id"
    )
    assert [row["type"] for row in rows] == ["message.received", "verification.received"]
    assert rows[1]["sequence"] == rows[0]["sequence"] + 1
    assert rows[1]["message_id"] == rows[0]["message_id"]
    payload = json.loads(rows[1]["payload"])
    assert payload["id"] != json.loads(rows[0]["payload"])["id"]
    assert payload["data"] == {
        "message_id": found["id"],
        "sender_domain": "example.com",
        "kind": "code",
        "account_id": None,
    }


@pytest.mark.covers("edge:E4")
async def test_no_code_of_mail_that_did_not_pass(world: World) -> None:
    sender: Sender = await make_sender(world)
    post = Post.of(sender)
    receiver = post.reception._receiver
    assert isinstance(receiver._judge, FakeJudge)
    receiver._judge.judgement = type(receiver._judge.judgement)("none", None)
    await arrives(post, message("Your verification code is 481207.\n", subject="Your code"))
    assert await sender.rows("SELECT 1 FROM verifications") == []
    assert await sender.rows("SELECT 1 FROM events WHERE type = 'verification.received'") == []


@pytest.mark.covers("edge:B9", "FR-IN-7")
async def test_encrypted_mail_has_no_text(post: Post) -> None:
    raw = (
        f"From: Anna <{ANNA}>\r\nTo: {OWN}\r\nMessage-ID: <secret@example.com>\r\nContent-Type: multipart/encrypted; "
        'protocol="application/pgp-encrypted"; boundary=b\r\n\r\n--b\r\nContent-Type: application/pgp-encrypted\r\n\r\n'
        "Version: 1\r\n--b\r\nContent-Type: application/octet-stream\r\n\r\nhello\r\n--b--\r\n"
    ).encode()
    found = await post.arrives(OWN, raw)
    assert (found["text"], found["html"], found["extracted_text"], found["flags"]) == (None, None, None, ["encrypted"])
    empty = await arrives(post, message("", message_id="<empty@example.com>"))
    assert empty["extracted_text"] == ""


@pytest.mark.covers("edge:D2", "edge:D3", "FR-IN-4")
async def test_whom_a_message_would_pass_for(post: Post) -> None:
    made = message(Reply_To="Anna <anna@example.org>")
    del made["From"]
    made["From"] = f'"boss@{OWN.partition("@")[2]}" <{ANNA}>'
    found = await arrives(post, made)
    assert {"display_name_spoof", "reply_to_mismatch"} <= set(found["trust"]["flags"])
