"""Aliases in a server as it is run, of several processes: what goes on leaves, what comes back finds its author."""

from __future__ import annotations

import asyncio
import smtplib

import pytest

from tests.outbound.fake_mx import FakeMx
from tests.reliability.conftest import Launch
from tests.reliability.helpers import copies, eventually, letter
from tests.torture.clients import Http
from tests.torture.deployment import DOMAIN, Server


def deliver(server: Server, raw: bytes, to: str, sender: str = "Ann.Lee@example.com") -> int:
    """The last reply's code, over a connection of its own."""
    with smtplib.SMTP("127.0.0.1", server.deployment.ports["smtp"], "sender.example", timeout=60) as client:
        client.ehlo()
        client.mail(sender)
        code, _ = client.rcpt(to)
        return client.data(raw)[0] if code == 250 else code


@pytest.mark.covers("mail-server:A6", "decisions:C4", "decisions:D22")
async def test_on_and_back(launch: Launch) -> None:
    async with FakeMx() as mx:
        relay = {"HOST": "127.0.0.1", "PORT": str(mx.port), "TLS": "none"}
        server = await launch(
            processes=2, extra={f"POSTROOM_QUEUE_RELAY_{name}": value for name, value in relay.items()}
        )
        box = server.deployment.boxes[0]
        path = f"/v1/tenants/{box.tenant_id}/aliases"
        out, inside = f"out.acme@{DOMAIN}", f"in.acme@{DOMAIN}"
        message_id, raw = letter()
        assert await asyncio.to_thread(deliver, server, raw, out) == 550
        async with Http(server.deployment.ports["http"], server.deployment.api_keys[0]) as client:
            made = []
            for address, target in ((out, "bob@target.example"), (inside, box.address)):
                status, alias = await client.request("POST", path, {"address": address, "target": target})
                assert status == 201, alias
                made.append(alias["id"])
            # It counts at once, whatever process is asked.
            for address in (out, inside) * 3:
                assert await asyncio.to_thread(deliver, server, raw, address) == 250
            assert await copies(server, message_id) == 2  # the mailbox's, and the relay's until it is gone

            async def arrived(count: int) -> bool | None:
                return True if len(mx.delivered) >= count else None

            await eventually(lambda: arrived(1))
            sender = mx.delivered[0].sender
            assert mx.delivered[0].recipients == ["bob@target.example"]
            assert sender.startswith("SRS0=")
            assert sender.endswith(f"@{DOMAIN}")
            assert mx.delivered[0].data.endswith(raw)
            bounce = b"Subject: Undelivered\r\n\r\nNo.\r\n"
            assert await asyncio.to_thread(deliver, server, bounce, sender, "") == 250
            assert await asyncio.to_thread(deliver, server, bounce, sender) == 550
            await eventually(lambda: arrived(2))
            assert mx.delivered[1].recipients == ["Ann.Lee@example.com"]
            assert mx.delivered[1].sender == ""
            for one in made:
                status, _ = await client.request("DELETE", f"{path}/{one}")
                assert status == 204

        async def unknown() -> bool | None:
            codes = [await asyncio.to_thread(deliver, server, letter()[1], to) for to in (out, inside) * 3]
            return True if codes == [550] * 6 else None

        await eventually(unknown)
