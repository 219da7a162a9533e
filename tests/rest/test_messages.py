"""Messages and threads: what they show, and what PATCH changes."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.accounts import Level
from postroom.mailbox.models import Direction
from tests.rest.world import TRACE, World, simple_mail

HTML = (
    "<p onclick='x()'>Hello <b>you</b><script>alert(1)</script><img src='http://tracker.example/x.gif' alt='dot'>"
    "<img src='cid:pic@example.com'><a href='javascript:alert(1)'>bad</a> <a href='https://example.com/'>good</a></p>"
)


def html_mail(markup: str = HTML) -> bytes:
    return (
        "From: Anna <anna@example.com>\r\nTo: box@agents.example\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"
        "MIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n"
        "--b\r\nContent-Type: text/plain\r\n\r\nHello you\r\n"
        f"--b\r\nContent-Type: text/html\r\n\r\n{markup}\r\n--b--\r\n"
    ).encode()


async def message(world: World, message_id: str, **params: Any) -> dict[str, Any]:
    response = await world.get(world.at(f"/messages/{message_id}"), **params)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_the_default_form(world: World) -> None:
    one = await world.deliver(simple_mail("Hi", "Text.", Message_ID="<m1@example.com>", In_Reply_To="<m0@example.com>"))
    found = await message(world, one.message_id)
    assert found["extracted_text"].strip() == "Text."
    assert (found["text"], found["html"]) == (None, None)
    assert "headers" not in found
    assert found["from"] == {"address": "anna@example.com", "name": "Anna Example"}
    assert found["to"] == [{"address": "box@agents.example", "name": ""}]
    assert (found["rfc_message_id"], found["in_reply_to"]) == ("m1@example.com", "m0@example.com")
    assert found["trust"]["verdict"] == "unverified"
    assert {found["trust"][method] for method in ("spf", "dkim", "dmarc", "arc")} == {"none"}
    assert (found["deliveries"], found["refs"], found["metadata"], found["read"]) == (None, [], {}, False)
    listed = (await world.get(world.at("/messages"))).json()["data"]
    assert listed == [found]


async def test_an_id_that_was_made_up_is_not_shown(world: World) -> None:
    found = await message(world, (await world.deliver(simple_mail())).message_id)
    assert found["rfc_message_id"] is None
    assert found["flags"] == []


async def test_an_outbound_message(world: World) -> None:
    stored = await world.deliver(simple_mail(Bcc="c@example.com"), direction=Direction.OUTBOUND)
    found = await message(world, stored.message_id)
    assert (found["trust"], found["triage"], found["delivered_to"], found["is_primary_recipient"]) == (None,) * 4
    assert (found["direction"], found["status"], found["deliveries"]) == ("outbound", "submitted", [])


@pytest.mark.covers("edge:B7", "security-privacy:A8")
async def test_included_texts(world: World) -> None:
    one = await world.deliver(html_mail())
    everything = await message(world, one.message_id, include="quoted,html,headers")
    assert everything["text"].strip() == "Hello you"
    html = everything["html"]
    assert "<b>you</b>" in html
    assert "cid:pic@example.com" in html
    assert 'href="https://example.com/"' in html
    assert "nofollow" in html
    for bad in ("script", "alert", "onclick", "tracker", "javascript"):
        assert bad not in html
    fields = {field["name"]: field["value"] for field in everything["headers"]}
    assert fields["Subject"] == "Grüße"
    assert "Received" not in fields
    only_html = await message(world, one.message_id, include="html")
    assert (only_html["text"], only_html["html"]) == (None, html)
    assert "headers" not in only_html
    in_thread = (await world.get(world.at(f"/threads/{one.thread_id}"), include="headers,html")).json()["messages"][0]
    assert (in_thread["html"], in_thread["headers"]) == (html, everything["headers"])
    plain = await world.deliver(simple_mail())
    assert (await message(world, plain.message_id, include="html"))["html"] is None


@pytest.mark.parametrize("include", ["", "everything", "quoted,", "quoted,quoted", "quoted, html", "QUOTED"])
async def test_wrong_includes(world: World, include: str) -> None:
    one = await world.deliver(simple_mail())
    response = await world.get(world.at(f"/messages/{one.message_id}"), include=include)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["details"]["errors"][0]["path"].startswith("include")


async def test_headers_have_limits(world: World) -> None:
    many = "".join(f"X-Field-{n}: {'v' * 100}\r\n" for n in range(400))
    one = await world.deliver(f"From: a@example.com\r\n{many}X-Long: {'w' * 5000}\r\n\r\nText\r\n".encode())
    fields = (await message(world, one.message_id, include="headers"))["headers"]
    assert len(fields) == 200
    long = await world.deliver(f"From: a@example.com\r\nX-Long: {'ü' * 5000}\r\n\r\nText\r\n".encode())
    fields = (await message(world, long.message_id, include="headers"))["headers"]
    assert len(fields[-1]["value"].encode()) <= 2048


async def test_without_raw_bytes(world: World) -> None:
    one = await world.deliver(html_mail())
    for key in await world.blobs.list("t"):
        await world.blobs.delete([key])
    found = await message(world, one.message_id, include="html,headers,quoted")
    assert (found["html"], found["headers"]) == (None, None)
    assert found["text"].strip() == "Hello you"
    response = await world.get(world.at(f"/messages/{one.message_id}/raw"))
    assert (response.status_code, response.json()["error"]["code"]) == (410, "raw_expired")


# -- PATCH


@pytest.mark.covers("FR-IN-10", "decisions:A5")
async def test_labels_and_read_state(world: World) -> None:
    one = await world.deliver(simple_mail())
    path = world.at(f"/messages/{one.message_id}")
    for body, labels, read in (
        ({"labels_add": ["b", "a"]}, ["a", "b"], False),
        ({"labels_add": ["a"], "read": True}, ["a", "b"], True),
        ({"labels_remove": ["a", "absent"]}, ["b"], True),
        ({"labels_add": ["x"], "labels_remove": ["x", "b"], "read": False}, ["x"], False),
        ({"labels_add": [], "labels_remove": []}, ["x"], False),
    ):
        response = await world.patch(path, body)
        assert response.status_code == 200, response.text
        changed = response.json()
        assert (changed["labels"], changed["read"]) == (labels, read)
        assert await message(world, one.message_id) == changed
    thread = (await world.get(world.at(f"/threads/{one.thread_id}"))).json()
    assert (thread["labels"], thread["unread_count"]) == (["x"], 1)


@pytest.mark.covers("FR-IN-10")
async def test_at_most_64_labels(world: World) -> None:
    one = await world.deliver(simple_mail())
    path = world.at(f"/messages/{one.message_id}")
    assert (await world.patch(path, {"labels_add": [f"l{n}" for n in range(64)]})).status_code == 200
    response = await world.patch(path, {"labels_add": ["one-more"]})
    assert response.status_code == 400
    assert response.json()["error"]["details"]["errors"][0]["path"] == "labels_add"
    assert (await world.patch(path, {"labels_add": ["l0"]})).status_code == 200
    assert len((await message(world, one.message_id))["labels"]) == 64


@pytest.mark.covers("decisions:A5")
async def test_system_flags_are_no_labels(world: World) -> None:
    one = await world.deliver(simple_mail())
    for label in ("$seen", "$deleted", "\\seen", "A", "", "a b", "a" * 65, "a/b", "é"):
        response = await world.patch(world.at(f"/messages/{one.message_id}"), {"labels_add": [label]})
        assert response.status_code == 400, label


async def test_thread_changes(world: World) -> None:
    first = await world.deliver(simple_mail("Topic", "1", Message_ID="<t1@example.com>"))
    second = await world.deliver(simple_mail("Re: Topic", "2", In_Reply_To="<t1@example.com>"))
    assert first.thread_id == second.thread_id
    path = world.at(f"/threads/{first.thread_id}")
    changed = (await world.patch(path, {"labels_add": ["work"], "read": True, "archived": True})).json()
    assert (changed["labels"], changed["unread_count"], changed["archived"]) == (["work"], 0, True)
    for one in (first, second):
        found = await message(world, one.message_id)
        assert (found["labels"], found["read"]) == (["work"], True)
    changed = (await world.patch(path, {"labels_remove": ["work"], "read": False, "archived": False})).json()
    assert (changed["labels"], changed["unread_count"], changed["archived"]) == ([], 2, False)
    thread = (await world.get(path)).json()
    assert [item["id"] for item in thread["messages"]] == [first.message_id, second.message_id]
    assert {key: thread[key] for key in changed} == changed


async def test_pages_of_a_thread(world: World) -> None:
    stored = [await world.deliver(simple_mail("Topic", "0", Message_ID="<t0@example.com>"))]
    for n in range(1, 5):
        stored.append(await world.deliver(simple_mail("Re: Topic", f"{n}", In_Reply_To="<t0@example.com>")))
    path = world.at(f"/threads/{stored[0].thread_id}")
    found: list[str] = []
    more: dict[str, str] = {}
    while True:
        body = (await world.get(path, messages_limit=2, **more)).json()
        found += [item["id"] for item in body["messages"]]
        if body["next_cursor"] is None:
            break
        more = {"cursor": body["next_cursor"]}
    assert found == [one.message_id for one in stored]
    assert (await world.get(path, cursor=more["cursor"], include="html")).status_code == 400


async def test_reading_needs_no_right_to_write(world: World) -> None:
    one = await world.deliver(simple_mail())
    reader = await world.new_key(Level.IDENTITY, ["messages:read"], identity=world.box)
    assert (await world.get(world.at(f"/messages/{one.message_id}"), reader)).status_code == 200
    response = await world.patch(world.at(f"/messages/{one.message_id}"), {"read": True}, reader)
    assert response.json()["error"]["details"]["required"] == ["messages:write"]
    writer = await world.new_key(Level.IDENTITY, ["messages:write"], identity=world.box)
    assert (await world.patch(world.at(f"/messages/{one.message_id}"), {"read": True}, writer)).status_code == 200


def test_the_trace_is_ours() -> None:
    assert TRACE.startswith(b"Return-Path:")


@pytest.mark.covers("decisions:B18")
async def test_html_of_large_messages_is_made_in_another_process(world: World) -> None:
    small = await world.deliver(html_mail())
    assert (await message(world, small.message_id, include="html"))["html"] is not None
    parser = world.app.services.parser
    assert parser.process_ids == []
    large = await world.deliver(html_mail("<p>Hello <b>you</b></p>" * 10_000))
    assert "<b>you</b>" in (await message(world, large.message_id, include="html"))["html"]
    assert len(parser.process_ids) == 1
