"""Answering and forwarding over HTTP: to whom, from where, under which headers (outbound §5, §6)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rest.contract import check
from tests.rest.sender import ANNA, BODY, Sender, code, details, letter, make_sender, parts
from tests.rest.world import World


@pytest.fixture
async def sender(world: World) -> Sender:
    return await make_sender(world)


# -- answering


@pytest.mark.covers("edge:C2", "FR-OUT-5")
async def test_a_reply(sender: Sender) -> None:
    old = " ".join(f"<r{n}@example.com>" for n in range(120))
    received = await sender.receive(letter(References=old, Subject="AW: Re: Meeting", Cc="bo@example.com"))
    answer = await sender.post(received, "reply")
    assert answer.status_code == 202, answer.text
    check("SendResponse", answer.json())
    found = answer.json()
    assert (found["subject"], found["in_reply_to"]) == ("Re: Meeting", "m1@example.com")
    assert (found["to"], found["cc"]) == ([{"address": ANNA, "name": "Anna Example"}], [])
    assert found["thread_id"] == (await sender.get(received))["thread_id"]
    wire = await sender.wire(found["id"])
    assert wire["In-Reply-To"] == "<m1@example.com>"
    references = wire["References"].split()
    assert references == ["<r0@example.com>", *(f"<r{n}@example.com>" for n in range(102, 120)), "<m1@example.com>"]


@pytest.mark.covers("FR-OUT-5")
async def test_a_reply_to_a_message_without_an_id(sender: Sender) -> None:
    received = await sender.receive(letter(Message_ID=""))
    found = (await sender.post(received, "reply")).json()
    assert found["thread_id"] == (await sender.get(received))["thread_id"]
    assert found["in_reply_to"] is None
    await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
    later = (await sender.send({**BODY, "thread_id": found["thread_id"]}, key="2")).json()
    assert later["thread_id"] == found["thread_id"]
    assert later["in_reply_to"] == found["rfc_message_id"]
    for message in (found, later):
        assert "synthetic" not in (await sender.wire(message["id"])).as_string()


@pytest.mark.covers("edge:A10")
async def test_a_reply_to_all_of_a_blind_copy(sender: Sender) -> None:
    own = sender.box.primary.address
    raw = letter(to="Di <di@example.com>, anna@example.com", Cc=f"bo@example.com, DI@example.com, {own.upper()}")
    received = await sender.receive(raw)
    found = (await sender.post(received, "reply-all")).json()
    assert [one["address"] for one in found["to"]] == [ANNA, "di@example.com"]
    assert [one["address"] for one in found["cc"]] == ["bo@example.com"]
    blind = await sender.receive(letter(to="Di <di@example.com>", Message_ID="<m2@example.com>", Bcc=own))
    wire = await sender.wire((await sender.post(blind, "reply-all", key="2")).json()["id"])
    assert [str(wire[name]) for name in ("To", "Cc", "Bcc")] == [
        "Anna Example <anna@example.com>, Di <di@example.com>",
        "None",
        "None",
    ]


@pytest.mark.covers("edge:A10", "FR-OUT-5")
async def test_a_reply_to_ones_own(sender: Sender) -> None:
    own = {**BODY, "to": [ANNA], "cc": ["bo@example.com"], "bcc": ["cy@example.com"]}
    sent = (await sender.send(own, key="1")).json()["id"]
    await sender.execute("UPDATE threads SET lock_until = now() - interval '1 hour' WHERE lock_owner IS NOT NULL")
    for operation in ("reply", "reply-all"):
        found = (await sender.post(sent, operation, key=operation)).json()
        assert ([one["address"] for one in found["to"]], [one["address"] for one in found["cc"]], found["bcc"]) == (
            [ANNA],
            ["bo@example.com"],
            [],
        )
        await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")


@pytest.mark.covers("edge:D3")
async def test_reply_to(sender: Sender) -> None:
    async def answered(reply_to: str, key: str) -> str:
        received = await sender.receive(letter(Reply_To=reply_to, Message_ID=f"<{key}@example.com>"))
        found = (await sender.post(received, "reply", key=key)).json()
        return str(found["to"][0]["address"])

    assert await answered("elsewhere@example.net", "1") == ANNA
    assert await answered("Team <team@EXAMPLE.com>, other@example.com", "2") == "team@example.com"
    await sender.send({**BODY, "to": ["elsewhere@example.net"]}, key="3")
    assert await answered("elsewhere@example.net", "4") == "elsewhere@example.net"


@pytest.mark.parametrize("extra", [{"to": [ANNA]}, {"cc": []}, {"bcc": [ANNA]}])
async def test_an_answer_names_no_recipients(sender: Sender, extra: dict[str, Any]) -> None:
    received = await sender.receive()
    for operation in ("reply", "reply-all"):
        assert code(await sender.post(received, operation, {"text": "Yes.", **extra})) == "invalid_request"


async def test_what_cannot_be_seen_is_not_answered(sender: Sender) -> None:
    received = await sender.receive()
    missing = await sender.post("msg_" + "0" * 26, "reply")
    assert (missing.status_code, code(missing)) == (404, "message_not_found")
    assert code(await sender.post("nonsense", "forward", {"to": [ANNA]})) == "message_not_found"
    elsewhere = await make_sender(sender.world, "robot2")
    assert code(await elsewhere.post(received, "reply")) == "message_not_found"


@pytest.mark.covers("FR-OUT-5", "edge:G7")
async def test_from_where(world: World, sender: Sender) -> None:
    box = sender.box
    await sender.execute(
        "INSERT INTO addresses (tenant_id, public_id, address, local_part, domain_id, identity_id, role, status, "
        "created_at, updated_at) SELECT tenant_id, $1, 'sales@agents.example', 'sales', domain_id, identity_id, "
        "'alias', 'retiring', now(), now() FROM addresses WHERE identity_id = $2 LIMIT 1",
        *(world.ids.new("adr"), box.id),
    )
    assert details(await sender.send({**BODY, "from_address": "sales@agents.example"}))["errors"][0]["path"] == (
        "from_address"
    )
    received = await sender.receive(letter())
    await sender.execute("UPDATE threads SET reply_from_address = 'sales@agents.example'")
    found = (await sender.post(received, "reply", key="1")).json()
    assert found["from"]["address"] == "sales@agents.example"
    await sender.execute("UPDATE threads SET reply_from_address = NULL, lock_owner = NULL, lock_until = NULL")
    threaded = {**BODY, "thread_id": found["thread_id"], "from_address": "Sales@agents.example"}
    assert (await sender.send(threaded, key="2")).json()["from"]["address"] == "sales@agents.example"
    await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
    await sender.execute("UPDATE addresses SET status = 'retired' WHERE local_part = 'sales'")
    assert code(await sender.send(threaded, key="3")) == "invalid_request"
    again = (await sender.post(received, "reply", key="4")).json()
    assert again["from"]["address"] == box.primary.address


@pytest.mark.covers("edge:D6", "FR-OUT-7")
@pytest.mark.parametrize(
    "header",
    [
        {"Auto-Submitted": "auto-replied"},
        {"Auto-Submitted": "auto-generated; x=1"},
        {"List-Id": "<l.example.com>"},
        {"Precedence": "bulk"},
        {"Content-Type": "multipart/report; report-type=delivery-status; boundary=b"},
    ],
)
async def test_no_automatic_answer_to_a_machine(sender: Sender, header: dict[str, str]) -> None:
    received = await sender.receive(letter(**header))
    refused = await sender.post(received, "reply", {"text": "Away.", "kind": "auto_reply"})
    assert (refused.status_code, code(refused)) == (409, "auto_reply_not_allowed")
    assert (await sender.post(received, "reply")).status_code == 202


@pytest.mark.covers("edge:D6", "FR-OUT-7")
async def test_automatic_answers_end(sender: Sender) -> None:
    received = await sender.receive(letter(Auto_Submitted="no"))
    auto = {"text": "Away.", "kind": "auto_reply"}

    async def answer(key: str, body: dict[str, Any]) -> Any:
        await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
        return await sender.post(received, "reply", body, key=key)

    for key in ("1", "2"):
        sent = await answer(key, auto)
        assert (sent.status_code, sent.json()["kind"]) == (202, "auto_reply")
        assert (await sender.wire(sent.json()["id"]))["Auto-Submitted"] == "auto-replied"
    assert code(await answer("3", auto)) == "auto_reply_not_allowed"
    # One that failed does not count, and a person's or an agent's own words begin anew.
    await sender.execute("UPDATE messages SET status = 'failed' WHERE public_id = $1", sent.json()["id"])
    assert (await answer("4", auto)).status_code == 202
    assert code(await answer("5", auto)) == "auto_reply_not_allowed"
    assert (await answer("6", {"text": "Yes."})).status_code == 202
    assert (await answer("7", auto)).status_code == 202
    await sender.execute('UPDATE identities SET send_policy_json = send_policy_json || \'{"auto_reply": "denied"}\'')
    assert code(await answer("8", auto)) == "auto_reply_not_allowed"


@pytest.mark.covers("edge:N13", "FR-OUT-14", "edge:D6")
async def test_loops_end(sender: Sender) -> None:
    nine = await sender.receive(letter(X_Postroom_Hop="9"))
    for operation, body in (("reply", None), ("reply-all", None), ("forward", {"to": [ANNA]})):
        refused = await sender.post(nine, operation, body)
        assert (refused.status_code, code(refused), details(refused)) == (409, "loop_detected", {"hop": 10})
    thread = (await sender.get(nine))["thread_id"]
    assert code(await sender.send({**BODY, "thread_id": thread})) == "loop_detected"
    eight = await sender.receive(letter(X_Postroom_Hop="8", Message_ID="<m2@example.com>"))
    sent = (await sender.post(eight, "reply")).json()
    assert (await sender.wire(sent["id"]))["X-Postroom-Hop"] == "9"
    await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
    assert code(await sender.post(sent["id"], "forward", {"to": [ANNA]}, key="2")) == "loop_detected"


# -- forwarding


FILES = (
    b"From: Anna <anna@example.com>\r\nTo: robot.acme@agents.example\r\nSubject: Files\r\n"
    b"Message-ID: <f@example.com>\r\n"
    b"References: <e@example.com>\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=m\r\n\r\n"
    b"--m\r\nContent-Type: multipart/alternative; boundary=a\r\n\r\n"
    b"--a\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nSee <the> files.\r\n"
    b"--a\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p onclick='x()'>See the <b>files</b>.</p>\r\n--a--\r\n"
    b"--m\r\nContent-Type: text/csv; charset=iso-8859-1\r\nContent-Disposition: attachment; filename=a.csv\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\n/2E7Yg0K\r\n--m--\r\n"
)


@pytest.mark.covers("edge:C6")
async def test_a_forward(sender: Sender) -> None:
    received = await sender.receive(FILES)
    body = {"to": ["bo@example.com"], "text": "FYI", "html": "<p>FYI</p>", "attachments": parts("mine.csv")}
    response = await sender.post(received, "forward", body)
    assert response.status_code == 202, response.text
    check("SendResponse", response.json())
    found = response.json()
    assert (found["subject"], found["in_reply_to"]) == ("Fwd: Files", None)
    assert found["thread_id"] == (await sender.get(received))["thread_id"]
    wire = await sender.wire(found["id"])
    assert (wire["In-Reply-To"], wire["References"]) == (None, "<e@example.com> <f@example.com>")
    plain = wire.get_body(("plain",))
    html = wire.get_body(("html",))
    assert plain is not None
    assert html is not None
    text = plain.get_content()
    assert text.index("FYI") < text.index("---------- Forwarded message") < text.index("See <the> files.")
    markup = html.get_content()
    assert markup.index("FYI") < markup.index("<blockquote>") < markup.index("<b>files</b>")
    assert "onclick" not in markup
    names = [(part.get_filename(), part.get_payload(decode=True)) for part in wire.iter_attachments()]
    assert names == [("mine.csv", b"x" * 10), ("a.csv", b"\xffa;b\r\n")]
    assert [part.get_content_charset() for part in wire.iter_attachments()][1] == "iso-8859-1"


@pytest.mark.covers("edge:C6")
async def test_a_forward_without_a_word(sender: Sender) -> None:
    received = await sender.receive(FILES)
    found = (await sender.post(received, "forward", {"to": [ANNA], "include_attachments": False})).json()
    wire = await sender.wire(found["id"])
    assert [part.get_content_type() for part in wire.walk()] == ["multipart/alternative", "text/plain", "text/html"]
    plain = await sender.receive(letter(Message_ID="<p@example.com>"))
    found = (await sender.post(plain, "forward", {"to": [ANNA]}, key="2")).json()
    assert (await sender.wire(found["id"])).get_content_type() == "text/plain"
    # A forward that is words alone needs nothing but what is in the database.
    for key in await sender.world.blobs.list("t"):
        await sender.world.blobs.delete([key])
    await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
    words = {"to": [ANNA], "text": "FYI", "include_attachments": False}
    assert (await sender.post(received, "forward", words, key="3")).status_code == 202
    await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
    assert code(await sender.post(received, "forward", {"to": [ANNA]}, key="4")) == "raw_expired"


async def test_the_signature(world: World) -> None:
    sender = await make_sender(world, signature_text="Robot\nAcme", signature_html="<b>Robot</b>")
    found = (await sender.send({**BODY, "html": "<p>Hi</p>"})).json()
    wire = await sender.wire(found["id"])
    plain, html = wire.get_body(("plain",)), wire.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert plain.get_content() == "Good morning.\r\n\r\n-- \r\nRobot\r\nAcme\r\n"
    assert "<b>Robot</b>" in html.get_content()
