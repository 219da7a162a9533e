"""Allow and block lists over HTTP, and what becomes of mail to those on them (rest-api §5.16; outbound §5.4)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from postroom.accounts import Level
from tests.rest.contract import check
from tests.rest.sender import ANNA, BODY, code, make_sender
from tests.rest.world import World


def at(world: World, list_: str, entry: str | None = None) -> str:
    path = f"/v1/tenants/{world.tenant.public_id}/lists/{list_}"
    return path if entry is None else f"{path}/{quote(entry, safe='')}"


async def ask(world: World, method: str, path: str, body: Any = None, key: Any = None) -> httpx.Response:
    return await world.client.request(method, path, headers=key or world.key, json=body)


@pytest.mark.covers("FR-OUT-16")
async def test_the_lists(world: World) -> None:
    made = await ask(world, "PUT", at(world, "send/block", "Anna@BÜCHER.example"), {"note": "asked us to"})
    assert made.status_code == 200
    check("ListEntry", made.json())
    assert (made.json()["entry"], made.json()["note"]) == ("anna@xn--bcher-kva.example", "asked us to")
    # However it is written it is the same entry, whose note changes and whose time does not.
    world.clock.advance(5)
    again = await ask(world, "PUT", at(world, "send/block", "anna@bücher.example"))
    assert again.json() == {**made.json(), "note": None}
    for entry in ("@example.com", "bo@example.com"):
        world.clock.advance(1)
        await ask(world, "PUT", at(world, "send/block", entry))
    page = await world.get(at(world, "send/block"), limit=2)
    check("ListEntryPage", page.json())
    assert [one["entry"] for one in page.json()["data"]] == ["bo@example.com", "@example.com"]
    rest = await world.get(at(world, "send/block"), limit=2, cursor=page.json()["next_cursor"])
    assert [one["entry"] for one in rest.json()["data"]] == ["anna@xn--bcher-kva.example"]
    # Four lists, and each tenant's own.
    assert code(await world.get(at(world, "send/allow", "bo@example.com"))) == "list_entry_not_found"
    assert code(await world.get(at(world, "receive/block", "bo@example.com"))) == "list_entry_not_found"
    assert (await world.get(at(world, "send/block", "BO@example.com"))).status_code == 200
    assert (await ask(world, "DELETE", at(world, "send/block", "bo@example.com"))).status_code == 204
    assert code(await ask(world, "DELETE", at(world, "send/block", "bo@example.com"))) == "list_entry_not_found"
    foreign = await ask(world, "GET", at(world, "send/block", "@example.com"), key=world.other_key)
    assert code(foreign) == "tenant_not_found"
    # The audit log says which list, and nobody's address.
    rows = (await world.get("/v1/audit-events", target_id="send/block")).json()
    check("AuditEventPage", rows)
    assert [one["action"] for one in rows["data"]] == ["list.delete", *["list.put"] * 4]
    assert "example.com" not in str(rows)


@pytest.mark.parametrize(
    "entry",
    [
        *("example.com", "a@b@c.example", "a b@example.com", "a@", "@", "a@-x-.example", "x" * 250 + "@a.example"),
        *("..@example.com", "\x01@example.com", "/"),
    ],
)
async def test_what_is_no_entry(world: World, entry: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert code(await ask(world, method, at(world, "send/block", entry))) == "invalid_request"


@pytest.mark.covers("FR-OUT-16")
@pytest.mark.parametrize(
    ("written", "entry"),
    [
        ("dept/Sales@example.com", "dept/sales@example.com"),
        ('"Bob"@example.com', "bob@example.com"),
        ("a?b#c%d+e@example.com", "a?b#c%d+e@example.com"),
    ],
)
async def test_entries_that_look_odd(world: World, written: str, entry: str) -> None:
    """What may stand before the @ of an address may stand in a path; needless quotes are of no address."""
    path = at(world, "send/block", written)
    assert (await ask(world, "PUT", path)).json()["entry"] == entry
    assert (await ask(world, "GET", path)).json()["entry"] == entry
    assert (await ask(world, "DELETE", path)).status_code == 204


async def test_what_is_no_list(world: World) -> None:
    for list_ in ("send/deny", "both/allow"):
        assert code(await world.get(at(world, list_))) == "invalid_request"
    key = await world.new_key(Level.IDENTITY, identity=world.box)
    assert code(await world.get(at(world, "send/block"), key)) == "permission_denied"
    long = {"note": "x" * 513}
    assert code(await ask(world, "PUT", at(world, "send/block", "a@example.com"), long)) == "invalid_request"


@pytest.mark.covers("FR-OUT-16", "FR-OUT-4", "FR-OUT-13", "edge:E2")
async def test_whom_mail_goes_to(world: World) -> None:
    sender = await make_sender(world, send_policy={})

    async def policies(key: str, **body: Any) -> list[str | None]:
        sent = await sender.send({**BODY, **body}, key=key)
        assert sent.status_code == 202
        check("SendResponse", sent.json())
        return [one["policy"] for one in sent.json()["deliveries"]]

    both: dict[str, Any] = {"to": [ANNA, "bo@example.org"]}
    assert await policies("1", **both) == ["unknown_recipient", "unknown_recipient"]
    # Whom the list allows is known, a whole domain at a time; whom it blocks is not written to, allowed or not.
    await ask(world, "PUT", at(world, "send/allow", "@example.org"))
    assert await policies("2", **both) == ["unknown_recipient", None]
    await ask(world, "PUT", at(world, "send/allow", ANNA))
    await ask(world, "PUT", at(world, "send/block", "bo@example.org"))
    assert await policies("3", **both) == [None, "send_block"]
    # A dry run says so, before it says anything else.
    dry = await sender.send({**BODY, **both}, key=None, dry_run=True)
    assert (dry.status_code, code(dry)) == (422, "recipient_blocked")
    # With a thread token it is the same person.
    assert await policies("4", to=["bo+t03k.9f2mq7xa@example.org"]) == ["send_block"]
    # Only the list.
    await sender.execute("""UPDATE tenants SET policy_json = '{"send_allowlist_only": true}'""")
    assert await policies("5", to=[ANNA, "cy@example.net"]) == [None, "not_on_allowlist"]
    # Another tenant's lists say nothing here.
    await sender.execute("UPDATE tenants SET policy_json = '{}'")
    await sender.execute("UPDATE sender_lists SET tenant_id = $1", world.other_tenant.id)
    assert await policies("6", to=["eve@example.org"]) == ["unknown_recipient"]
