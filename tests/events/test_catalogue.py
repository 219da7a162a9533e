"""`message.received` is what the contract says, byte for byte what was stored, and never more (events §1–4, B3)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.events.catalogue import cut_utf8, message_received, timestamp, trust
from postroom.mailbox.models import Appended
from tests.mailbox.letters import Box, Pen, make_boxes, raw_mail

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parent / "message_received.schema.json").read_text())
CONTRACT = Draft202012Validator(SCHEMA)

ATTACHED = (
    b"From: Anna <anna@example.com>\r\nTo: box@agents.example, undisclosed:;\r\nCc: Cora <cora@example.com>\r\n"
    b"Subject: With a file\r\nMessage-ID: <file@example.com>\r\nMIME-Version: 1.0\r\n"
    b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n\r\nSee the file.\r\n'
    b"--b\r\nContent-Type: application/pdf\r\nContent-Disposition: attachment; filename=a.pdf\r\n\r\nPDF\r\n--b--\r\n"
)
ODD = (
    b"From: not an address\r\nTo: ,,;\r\nSubject: \r\n\r\n\xff\xfe\r\n",
    b"\r\n",
    b"From: a@example.com, b@example.com\r\nMessage-ID: nonsense\r\n\r\nHello\r\n",
    b"From: =?utf-8?q?=00=01?= <a@example.com>\r\nSubject: =?utf-8?q?a=00b?=\r\n\r\nHello\r\n",
)


async def events(db: Database, box: Box) -> list[Any]:
    async with db.acquire() as conn:
        return await conn.fetch("SELECT * FROM events WHERE owner_id = $1 ORDER BY sequence", box.identity_id)


async def stored(db: Database, pen: Pen, box: Box, raw: bytes, **changes: Any) -> Appended:
    async with db.acquire() as conn:
        (outcome,) = await pen.store(conn, [pen.copy(box, raw, **changes)])
    assert isinstance(outcome, tuple)
    return outcome[0]


@pytest.mark.covers("FR-WH-4", "edge:A9", "edge:A10", "edge:C9")
async def test_payloads_are_as_the_contract_says(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    raws = [
        ATTACHED,
        *ODD,
        raw_mail(message_id="re@example.com", in_reply_to="file@example.com", sender="x@example.com"),
    ]
    kept = [await stored(db, pen, box, raw, is_bcc=n == 0) for n, raw in enumerate(raws)]
    found = await events(db, box)
    assert [row["sequence"] for row in found] == list(range(1, len(raws) + 1))
    for row, one in zip(found, kept, strict=True):
        payload = json.loads(row["payload"])
        CONTRACT.validate(payload)
        assert (payload["id"], payload["sequence"], payload["type"]) == (row["public_id"], row["sequence"], row["type"])
        assert (payload["tenant_id"], payload["identity_id"]) == (box.tenant_id, box.identity_id)
        assert payload["occurred_at"] == timestamp(row["occurred_at"])
        assert payload["data"]["message"]["id"] == one.message_id
        assert payload["data"]["thread_id"] == payload["data"]["message"]["thread_id"] == one.thread_id
    first, last = json.loads(found[0]["payload"])["data"], json.loads(found[-1]["payload"])["data"]
    assert first["message"]["flags"] == ["bcc"]
    assert first["extracted_text"] == "See the file."
    assert [part["filename"] for part in first["attachments"]] == ["a.pdf"]
    assert first["message"]["from"] == {"address": "anna@example.com", "name": "Anna"}
    assert last["trust"]["flags"] == ["thread_join_unverified"]
    assert last["message"]["in_reply_to"] == "file@example.com"
    # Nothing of the body travels but `extracted_text`.
    assert set(first) == {"message", "thread_id", "trust", "extracted_text", "extracted_text_truncated", "attachments"}


@pytest.mark.covers("FR-WH-4", "edge:B9")
async def test_encrypted_mail_has_no_text(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    raw = (
        b"From: a@example.com\r\nMessage-ID: <1@example.com>\r\nContent-Type: multipart/encrypted; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: application/pgp-encrypted\r\n\r\nVersion: 1\r\n--b--\r\n"
    )
    await stored(db, Pen(ids, clock), box, raw)
    ((event,),) = [await events(db, box)]
    found = json.loads(event["payload"])
    CONTRACT.validate(found)
    assert (found["data"]["extracted_text"], found["data"]["extracted_text_truncated"]) == (None, False)


@pytest.mark.covers("FR-WH-4")
async def test_text_is_cut_at_a_character(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    body = "ä" * 20_000
    raw = raw_mail(body=body).replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n", 1)
    await stored(db, Pen(ids, clock), box, raw)
    (row,) = await events(db, box)
    payload = json.loads(row["payload"])
    CONTRACT.validate(payload)
    assert payload["data"]["extracted_text_truncated"] is True
    assert payload["data"]["extracted_text"] == "ä" * 8192


@pytest.mark.covers("FR-WH-4")
@pytest.mark.parametrize(("most", "kept"), [(0, ""), (5, "Hello"), (65_536, "Hello world")])
async def test_how_much_text_is_the_tenants_to_say(
    db: Database, clock: ManualClock, ids: IdGenerator, most: int, kept: str
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    announce = partial(message_received, most=most)
    await stored(db, Pen(ids, clock), box, raw_mail(body="Hello world"), announce=announce)
    (row,) = await events(db, box)
    payload = json.loads(row["payload"])
    CONTRACT.validate(payload)
    assert payload["data"]["extracted_text"] == kept
    assert payload["data"]["extracted_text_truncated"] is (kept != "Hello world")


@pytest.mark.covers("edge:B14")
async def test_a_duplicate_and_an_unannounced_message_make_no_event(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen, raw = Pen(ids, clock), raw_mail(message_id="1@example.com")
    await stored(db, pen, box, raw)
    assert (await stored(db, pen, box, raw)).duplicate
    await stored(db, pen, box, raw_mail(body="quiet"), announce=None)
    assert len(await events(db, box)) == 1


@settings(max_examples=200)
@given(text=st.text(max_size=200), limit=st.integers(1, 300))
def test_cut_utf8(text: str, limit: int) -> None:
    kept, cut = cut_utf8(text, limit)
    assert text.startswith(kept)
    assert cut == (len(text.encode()) > limit)
    assert len(kept.encode()) <= limit
    assert not cut or len(text[: len(kept) + 1].encode()) > limit


def test_trust_shows_its_own_flags_only() -> None:
    shown = trust("unverified", None, "list", ("parse_degraded", "hidden_text", "thread_join_unverified"))
    assert shown["flags"] == ["hidden_text", "thread_join_unverified"]
    assert shown["automated"] is True
