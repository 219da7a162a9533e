"""Whatever is asked to be sent, the answer is a defined one, and a dry run says the same as a send."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rest.contract import check
from tests.rest.sender import ANNA, letter, make_sender
from tests.rest.test_fuzz import run
from tests.rest.world import World

_settings = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_text = st.text(st.characters(codec="utf-8"), max_size=40)
_any = st.none() | st.booleans() | st.integers() | _text | st.lists(_text, max_size=2)
_address = (
    st.sampled_from([ANNA, "bo@example.com", '"a b"@example.com', "x@[192.0.2.1]", "ü@example.com", "a@b"]) | _text
)
_person = _address | st.fixed_dictionaries({"address": _address}, optional={"name": _text})
_people = st.lists(_person, max_size=4)
_file = st.fixed_dictionaries(
    {
        "filename": _text,
        "content_type": st.sampled_from(["text/plain", "message/rfc822", "image/png; x=y", "multipart/mixed"]) | _text,
        "content_base64": st.binary(max_size=200).map(lambda raw: base64.b64encode(raw).decode()) | _text,
    },
    optional={"disposition": st.sampled_from(["inline", "attachment"]), "content_id": _text},
)
_members = {
    "cc": _people,
    "bcc": _people,
    "html": st.none() | _text,
    "attachments": st.lists(_file, max_size=2),
    "labels": st.lists(st.sampled_from(["a", "b:c", "A"]), max_size=3),
    "headers": st.dictionaries(st.sampled_from(["X-A", "x-a", "Keywords", "To"]) | _text, _text, max_size=2),
    "metadata": st.dictionaries(_text, _text, max_size=2),
    "from_address": _address,
    "kind": st.sampled_from(["transactional", "marketing", "auto_reply"]),
}
_bodies = st.fixed_dictionaries({"to": _people, "subject": _text, "text": _text}, optional=_members)
_wild = st.dictionaries(
    st.sampled_from(["to", "text", "subject", "consent", "unsubscribe", *_members]), _any, max_size=6
)


@pytest.mark.covers("FR-API-2", "FR-OUT-3")
async def test_bodies(world: World) -> None:
    sender = await make_sender(world)
    received = await sender.receive(letter())
    numbers = iter(range(10_000))
    accepted = set()
    targets = ("send", "reply", "reply-all", "forward")

    @_settings
    @given(st.sampled_from(targets), _bodies | _wild)
    async def inner(operation: str, body: dict[str, Any]) -> None:
        path = sender.at() if operation == "send" else sender.at(received, operation)
        if operation.startswith("reply"):
            body = {name: value for name, value in body.items() if name not in ("to", "cc", "bcc")}
        dry = await world.post(path, body, dry_run=True)
        sent = await world.post(path, body, key=str(next(numbers)))
        assert sent.status_code < 500, sent.text
        if sent.status_code == 202:
            check("SendResponse", sent.json())
            check("DryRunResult", dry.json())
            accepted.add(operation)
            found = [(one["address"], one["field"], one["status"]) for one in sent.json()["deliveries"]]
            assert [(one["address"], one["field"], one["status"]) for one in dry.json()["recipients"]] == found
            raw = await sender.wire(sent.json()["id"])
            assert raw["Bcc"] is None
            check("Message", await sender.get(sent.json()["id"]))
        else:
            check("Error", sent.json())
            assert dry.json()["error"]["code"] == sent.json()["error"]["code"]
        async with world.db.acquire() as conn:
            await conn.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
        world.clock.advance(61)

    await run(inner)
    assert accepted, "nothing that was made up could be sent"
