"""Attachments that are too large for their message become links, and the links open (outbound §6.8; edge G5)."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.inbound.parsing import Parser
from postroom.mailbox.expunge import expunge
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.writing import begin_write
from postroom.outbound.file_links import FileLinks
from postroom.outbound.send_rules import SendRules
from postroom.outbound.wires import STORED
from postroom.servers.http import HttpApp
from tests.mailbox.letters import check_mailbox
from tests.rest.contract import check
from tests.rest.sender import ANNA, BODY, NOTHING, Sender, code, letter, make_sender
from tests.rest.world import MASTER, World, sending_of

LIMIT = 128 * 1024
"""Octets of a message, of which 8 KiB are kept free."""


@pytest.fixture
async def sender(world: World) -> Sender:
    """Of a tenant that wants links, behind an application with a low limit."""
    links = FileLinks(SigningKeys(world.db, MASTER, world.clock), world.ids, world.clock, api_host="api.example")
    sending = sending_of(
        *(world.db, world.clock, world.ids, world.blobs, world.mailboxes, Parser()),
        rules=SendRules(max_message_bytes=LIMIT),
        links=links,
    )
    world.app = HttpApp(replace(world.app.services, sending=sending))
    world.client = httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://api.example")
    made = await make_sender(world)
    await world.tenants.change_policy(made.box.tenant_id, {"large_attachments": "link"})
    return made


def file(name: str, content: bytes, kind: str = "application/pdf", **more: Any) -> dict[str, Any]:
    return {
        "filename": name,
        "content_type": kind,
        "content_base64": base64.b64encode(content).decode(),
        **more,
    }


PDF = b"%PDF-1.7\n" + bytes(range(256)) * 400
"""About 100 KB, which are 140 KB as base64."""
SMALL = b"a,b\n" * 2000


def body_of(wire: Any, kind: str) -> str:
    part = wire.get_body((kind,))
    assert part is not None
    return str(part.get_content())


def urls(text: str) -> list[str]:
    return re.findall(r"https://api\.example/v1/links/[A-Za-z0-9_-]+", text)


async def opened(world: World, url: str) -> httpx.Response:
    """As anybody opens it, without a key."""
    return await world.client.get(url.removeprefix("https://api.example"))


async def linked(sender: Sender) -> tuple[dict[str, Any], str]:
    """A message with a link in it, and its URL."""
    response = await sender.send({**BODY, "attachments": [file("report.pdf", PDF)]})
    assert response.status_code == 202, response.text
    (url,) = urls(body_of(await sender.wire(response.json()["id"]), "plain"))
    return response.json(), url


# -- what is sent


@pytest.mark.covers("edge:G5", "FR-OUT-10")
async def test_the_largest_become_links_until_it_fits(sender: Sender) -> None:
    attached = [file("table.csv", SMALL, "text/csv"), file('re"p<o>rt.pdf', PDF), file("more.csv", SMALL, "text/csv")]
    response = await sender.send({**BODY, "html": "<p>Good morning.</p>", "attachments": attached})
    assert response.status_code == 202, response.text
    sent = response.json()
    check("SendResponse", sent)
    wire = await sender.wire(sent["id"])
    assert [part.get_filename() for part in wire.iter_attachments()] == ["table.csv", "more.csv"]
    text, html = body_of(wire, "plain"), body_of(wire, "html")
    (url,) = urls(text)
    assert urls(html) == [url]
    until = (sender.world.clock.now() + timedelta(hours=72)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert f're"p<o>rt.pdf ({len(PDF)} bytes, until {until}): {url}' in text
    assert f'<a href="{url}">re&quot;p&lt;o&gt;rt.pdf</a>' in html
    names = [(one["filename"], one["size"]) for one in sent["attachments"]]
    assert names == [("table.csv", 8000), ("more.csv", 8000), ('re"p<o>rt.pdf', len(PDF))]
    assert (await sender.get(sent["id"]))["attachments"] == sent["attachments"]
    opens = await opened(sender.world, url)
    assert opens.content == PDF


async def test_what_fits_is_attached(sender: Sender) -> None:
    sent = (await sender.send({**BODY, "attachments": [file("table.csv", SMALL, "text/csv")]})).json()
    wire = await sender.wire(sent["id"])
    assert [part.get_filename() for part in wire.iter_attachments()] == ["table.csv"]
    assert urls(body_of(wire, "plain")) == []


@pytest.mark.covers("edge:G5")
@pytest.mark.parametrize("why", ["refuse", "inline", "words"])
async def test_what_links_do_not_help_is_refused(sender: Sender, why: str) -> None:
    """What the HTML shows stays, and so do the words."""
    body = {**BODY, "attachments": [file("report.pdf", PDF)]}
    if why == "refuse":
        await sender.world.tenants.change_policy(sender.box.tenant_id, {"large_attachments": None})
    elif why == "inline":
        shown = file("logo.png", PDF, "image/png", disposition="inline", content_id="logo")
        body = {**BODY, "html": '<img src="cid:logo">', "attachments": [shown]}
    else:
        body["text"] = "word " * (LIMIT // 5)
    response = await sender.send(body)
    assert (response.status_code, code(response)) == (413, "message_too_large")
    assert await sender.traces() == NOTHING
    assert (await sender.send(body, dry_run="true", key=None)).status_code == 413


async def test_a_dry_run_stores_nothing(sender: Sender) -> None:
    body = {**BODY, "attachments": [file("report.pdf", PDF)]}
    assert (await sender.send(body, dry_run="true", key=None)).status_code == 200
    assert await sender.traces() == NOTHING


@pytest.mark.covers("edge:G5", "edge:C6")
async def test_what_is_handed_on_is_linked_as_well(sender: Sender) -> None:
    encoded = base64.encodebytes(PDF).replace(b"\n", b"\r\n").decode()
    raw = letter(
        f"--b\r\n\r\nSee there.\r\n--b\r\nContent-Type: application/pdf\r\nContent-Transfer-Encoding: base64\r\n"
        f'Content-Disposition: attachment; filename="old.pdf"\r\n\r\n{encoded}\r\n--b--',
        MIME_Version="1.0",
        Content_Type='multipart/mixed; boundary="b"',
    )
    received = await sender.receive(raw)
    response = await sender.post(received, "forward", {"to": [ANNA]})
    assert response.status_code == 202, response.text
    (url,) = urls(body_of(await sender.wire(response.json()["id"]), "plain"))
    assert (await opened(sender.world, url)).content == PDF


@pytest.mark.covers("FR-OUT-1")
async def test_a_replay_links_nothing_again(sender: Sender) -> None:
    first, _ = await linked(sender)
    again = await sender.send({**BODY, "attachments": [file("report.pdf", PDF)]})
    assert again.json() == {**first, "deduplicated": True}
    assert len([key for key in await sender.world.blobs.list("t") if "/a/" in key]) == 1


# -- what opens


@pytest.mark.covers("security-privacy:A7", "edge:G5")
async def test_it_is_always_a_download(sender: Sender) -> None:
    _, url = await linked(sender)
    response = await opened(sender.world, url)
    assert response.status_code == 200
    headers = response.headers
    assert headers["content-type"] == "application/pdf"
    assert headers["content-disposition"] == 'attachment; filename="report.pdf"'
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("sandbox")
    assert headers["cache-control"] == "private, no-store"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-length"] == str(len(PDF))


@pytest.mark.covers("security-privacy:A7")
async def test_its_type_is_what_it_is_and_not_what_it_says(sender: Sender) -> None:
    page = b"<!doctype html><script>alert(1)</script>" + PDF
    sent = (await sender.send({**BODY, "attachments": [file("report.pdf", page)]})).json()
    (url,) = urls(body_of(await sender.wire(sent["id"]), "plain"))
    response = await opened(sender.world, url)
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.content == page


@pytest.mark.covers("edge:G5")
async def test_it_ends_after_its_time(sender: Sender) -> None:
    await sender.world.tenants.change_policy(sender.box.tenant_id, {"link_ttl_hours": 1})
    _, url = await linked(sender)
    sender.world.clock.advance(3599)
    assert (await opened(sender.world, url)).status_code == 200
    sender.world.clock.advance(1)
    missing(await opened(sender.world, url))


def missing(response: httpx.Response) -> None:
    """The one answer to everything that opens nothing."""
    check("Error", response.json())
    error = response.json()["error"]
    assert (response.status_code, error["code"], error.get("details")) == (404, "attachment_not_found", None)


@pytest.mark.covers("security-privacy:A7")
async def test_whatever_is_wrong_is_told_alike(sender: Sender) -> None:
    _, url = await linked(sender)
    other = "A" if url[-1] != "A" else "B"
    for wrong in (url[:-1] + other, url[:-1], f"{url}x", "https://api.example/v1/links/x", f"{url}%00"):
        missing(await opened(sender.world, wrong))


@pytest.mark.covers("security-privacy:A7")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE identities SET status = 'deleting'",
        "UPDATE tenants SET status = 'erasing'",
        "DELETE FROM attachments",
        "UPDATE attachments SET blob_key = NULL",
    ],
)
async def test_it_opens_as_long_as_there_is_what_it_names(sender: Sender, statement: str) -> None:
    _, url = await linked(sender)
    await sender.execute(statement)
    missing(await opened(sender.world, url))


async def test_bytes_that_are_gone_are_missing(sender: Sender) -> None:
    _, url = await linked(sender)
    keys = [key for key in await sender.world.blobs.list("t") if "/a/" in key]
    await sender.world.blobs.delete(keys)
    missing(await opened(sender.world, url))


@pytest.mark.covers("security-privacy:A6.2")
async def test_a_rotated_key_opens_for_a_week_a_revoked_one_no_more(sender: Sender) -> None:
    world = sender.world
    await world.tenants.change_policy(sender.box.tenant_id, {"link_ttl_hours": 168})
    _, url = await linked(sender)
    keys = world.app.services.signing_keys
    assert keys is not None
    await keys.rotate(Purpose.LINK)
    world.clock.advance(6 * 86400)
    assert (await opened(world, url)).status_code == 200
    await keys.rotate(Purpose.LINK, revoke_previous=True)
    missing(await opened(world, url))


# -- and what becomes of it


async def test_the_api_serves_it_too(sender: Sender) -> None:
    sent, _ = await linked(sender)
    (shown,) = sent["attachments"]
    response = await sender.world.get(sender.at(sent["id"], f"attachments/{shown['id']}"))
    assert response.status_code == 200, response.text
    assert response.content == PDF
    assert response.headers["content-disposition"] == 'attachment; filename="report.pdf"'


@pytest.mark.covers("edge:I9")
async def test_the_sweep_keeps_it_with_its_message_and_removes_it_without(sender: Sender) -> None:
    world = sender.world
    sent, _ = await linked(sender)
    (key,) = [key for key in await world.blobs.list("t") if "/a/" in key]
    assert any(kind.form.fullmatch(key) for kind in STORED)
    async with world.db.acquire() as conn:
        await check_mailbox(conn, world.ref)
        (kind,) = [kind for kind in STORED if kind.form.fullmatch(key)]
        parts = kind.form.fullmatch(key)
        assert parts is not None
        asked = ([key], [parts["tenant"]], [parts["message"]])
        assert [row["key"] for row in await conn.fetch(kind.named, *asked)] == [key]
        await conn.execute("UPDATE attachments SET blob_key = NULL")
        assert await conn.fetch(kind.named, *asked) == []
    assert sent["id"] in key


async def test_it_goes_with_its_message(sender: Sender) -> None:
    world = sender.world
    _, url = await linked(sender)
    await sender.execute("UPDATE messages SET status = 'delivered'")
    await sender.execute("UPDATE deliveries SET status = 'delivered', next_attempt_at = NULL")
    await sender.execute("UPDATE placements SET flags = array_append(flags, '$deleted')")
    await sender.execute("UPDATE folders SET deleted_count = 1 WHERE message_count = 1")
    (row,) = await sender.rows("SELECT folder_id, uid, mailbox_id, tenant_id FROM placements")
    async with world.db.transaction() as conn:
        write = await begin_write(conn, MailboxRef(row["tenant_id"], row["mailbox_id"]), world.clock.now())
        removed = await expunge(write, row["folder_id"], [row["uid"]])
        await write.finish()
    assert [key for key in removed.blob_keys if "/a/" in key] != []
    missing(await opened(world, url))
