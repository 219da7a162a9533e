"""An identity that may send, and what its mailbox, its queue and its events hold, for tests of sending."""

from __future__ import annotations

import base64
import email
import email.policy
import json
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, cast

import httpx

from postroom.directory import Identity
from postroom.mailbox.models import Direction
from tests.rest.contract import check
from tests.rest.world import World

ANNA = "anna@example.com"
OWN = "robot.acme@agents.example"
"""The address of `make_sender`'s identity."""
BODY: dict[str, Any] = {"to": [ANNA], "subject": "Hello", "text": "Good morning."}


def letter(text: str = "Can we meet?", *, sender: str = f"Anna Example <{ANNA}>", to: str = OWN, **more: str) -> bytes:
    """A message to the identity."""
    fields = {"From": sender, "To": to, "Subject": "Meeting", "Message-ID": "<m1@example.com>"}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"{head}\r\n{text}\r\n".encode()


@dataclass
class Sender:
    """`box` is the identity."""

    world: World
    box: Identity

    def at(self, message: str = "", operation: str = "") -> str:
        path = f"/v1/identities/{self.box.public_id}/messages"
        return path + (f"/{message}" if message else "") + (f"/{operation}" if operation else "")

    async def receive(self, raw: bytes | None = None, **changes: Any) -> str:
        """The id of a message that the identity got."""
        stored = await self.world.deliver(letter() if raw is None else raw, to=self.box, **changes)
        return stored.message_id

    async def wrote(self, raw: bytes) -> str:
        """The id of a message that the identity put into its mailbox as its own."""
        return await self.receive(raw, direction=Direction.OUTBOUND)

    async def send(self, body: Any = None, *, key: str | None = "k", **params: Any) -> httpx.Response:
        return await self.world.post(self.at(), BODY if body is None else body, key=key, **params)

    async def post(
        self, message: str, operation: str, body: Any = None, *, key: str | None = "k", **params: Any
    ) -> httpx.Response:
        body = {"text": "Yes."} if body is None else body
        return await self.world.post(self.at(message, operation), body, key=key, **params)

    async def get(self, message: str) -> dict[str, Any]:
        response = await self.world.get(self.at(message))
        assert response.status_code == 200, response.text
        check("Message", response.json())
        return cast(dict[str, Any], response.json())

    # -- what there is

    async def rows(self, statement: str, *values: Any) -> list[Any]:
        async with self.world.db.acquire() as conn:
            return list(await conn.fetch(statement, *values))

    async def execute(self, statement: str, *values: Any) -> None:
        async with self.world.db.acquire() as conn:
            await conn.execute(statement, *values)

    async def wire(self, message: str) -> EmailMessage:
        """What goes out, as the standard library reads it."""
        (row,) = await self.rows(
            "SELECT o.wire_key FROM outbound_messages o JOIN messages m ON m.tenant_id = o.tenant_id "
            "AND m.id = o.message_id WHERE m.public_id = $1",
            message,
        )
        raw = await self.world.blobs.get(row["wire_key"])
        return email.message_from_bytes(raw, policy=email.policy.default)

    async def events(self, kind: str) -> list[dict[str, Any]]:
        """The data of the events of a type."""
        found = await self.rows("SELECT payload FROM events WHERE type = $1 ORDER BY id", kind)
        return [json.loads(row["payload"])["data"] for row in found]

    async def traces(self) -> dict[str, int]:
        """What a send leaves: all of it nought when nothing was sent, and nothing is held."""
        names = ("outbound_messages", "deliveries", "send_ledger")
        found = {name: (await self.rows(f"SELECT count(*) FROM {name}"))[0][0] for name in names}
        (row,) = await self.rows("SELECT count(*) FROM messages WHERE direction = 'outbound'")
        (held,) = await self.rows("SELECT count(*) FROM threads WHERE lock_owner IS NOT NULL")
        keys = [key for key in await self.world.blobs.list("t") if "/out/" in key]
        wires = [key for key in keys if key.endswith(".eml")]
        return {**found, "messages": row[0], "locks": held[0], "wires": len(wires), "beside": len(keys) - len(wires)}


NOTHING = {
    "outbound_messages": 0,
    "deliveries": 0,
    "send_ledger": 0,
    "messages": 0,
    "locks": 0,
    "wires": 0,
    "beside": 0,
}
ONE = {"outbound_messages": 1, "deliveries": 1, "send_ledger": 1, "messages": 1, "locks": 0, "wires": 1, "beside": 1}


async def make_sender(world: World, username: str = "robot", **more: Any) -> Sender:
    """An identity that has an owner and may write to anybody."""
    given: dict[str, Any] = {
        "owner_name": "Ola Owner",
        "owner_email": "ola@example.com",
        "send_policy": {"require_known_recipient": False},
        **more,
    }
    return Sender(world, await world.new_identity(given.pop("tenant", world.tenant), username, **given))


def parts(*names: str, size: int = 10) -> list[dict[str, Any]]:
    content = base64.b64encode(b"x" * size).decode()
    return [{"filename": name, "content_type": "text/csv", "content_base64": content} for name in names]


def code(response: httpx.Response) -> str:
    """The code of a refusal, which is as the contract says."""
    check("Error", response.json())
    return str(response.json()["error"]["code"])


def details(response: httpx.Response) -> dict[str, Any]:
    return cast(dict[str, Any], response.json()["error"].get("details", {}))
