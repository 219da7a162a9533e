"""Mail of a real server leaves with a return path that another of its processes takes the bounce at (C5, D11)."""

from __future__ import annotations

import asyncio
import smtplib
from typing import Any

import pytest

from tests.outbound.fake_mx import FakeMx
from tests.outbound.returning import recipient, report
from tests.reliability.conftest import Launch
from tests.reliability.helpers import eventually
from tests.torture.deployment import DOMAIN, Server

HOST = f"pm-bounce.{DOMAIN}"


def submit(server: Server, sender: str, secret: str, text: bytes) -> None:
    with smtplib.SMTP("127.0.0.1", server.deployment.ports["smtp"], timeout=30) as client:
        client.login(sender, secret)
        client.sendmail(sender, ["anna@example.com"], text)


def bounce(server: Server, to: str, raw: bytes, sender: str = "") -> tuple[int, bytes]:
    """The reply that decides."""
    with smtplib.SMTP("127.0.0.1", server.deployment.ports["smtp"], timeout=30) as client:
        client.ehlo()
        client.mail(sender)
        code, text = client.rcpt(to)
        return client.data(raw) if code == 250 else (code, text)


async def rows(server: Server, statement: str, *values: Any) -> list[Any]:
    conn = await server.deployment.postgres.connect()
    try:
        return list(await conn.fetch(statement, *values))
    finally:
        await conn.close()


@pytest.mark.covers("mail-server:C5", "mail-server:C7", "edge:D11", "NFR-REL-1")
async def test_there_and_back(launch: Launch) -> None:
    async with FakeMx() as relay:
        server = await launch(
            processes=2,
            extra={
                "POSTROOM_QUEUE_RELAY_HOST": "localhost",
                "POSTROOM_QUEUE_RELAY_PORT": str(relay.port),
                "POSTROOM_QUEUE_RELAY_TLS": "none",
                "POSTROOM_QUEUE_RETURN_PATH_HOST": HOST,
                "POSTROOM_SECURITY_CONTACT": f"agent1.acme@{DOMAIN}",
            },
        )
        person = next(box for box in server.deployment.boxes if box.is_person)
        text = f"From: {person.address}\r\nTo: anna@example.com\r\nSubject: There\r\n\r\nHello.\r\n".encode()
        await asyncio.to_thread(submit, server, person.address, person.secret, text)

        async def arrived() -> Any:
            return next(iter(relay.delivered), None)

        received = await eventually(arrived)
        assert received.sender.endswith(f"@{HOST}")

        async def submitted() -> Any:
            return await rows(server, "SELECT FROM deliveries WHERE status = 'submitted'") or None

        await eventually(submitted)
        raw = report(received, recipient("anna@example.com"))
        calls = [asyncio.to_thread(bounce, server, received.sender, raw) for _ in range(6)]
        assert {code for code, _ in await asyncio.gather(*calls)} == {250}
        assert [tuple(row) for row in await rows(server, "SELECT status, bounce_type FROM deliveries")] == [
            ("bounced", "hard")
        ]
        stored = await rows(server, "SELECT mailbox_id, kind FROM messages WHERE source = 'mx'")
        assert [tuple(row) for row in stored] == [(person.key, "dsn")]
        bounces = "SELECT FROM events WHERE type = 'message.bounced'"
        assert len(await rows(server, bounces)) == 1
        # All else on that host.
        for to, sender, code in (
            (received.sender, "eve@example.com", 550),
            (f"anybody@{HOST}", "", 550),
            (f"bounces+{received.sender[8:10]}.1.0000000000000000@{HOST}", "", 550),
            (f"abuse@{HOST}", "eve@example.com", 250),
        ):
            assert (await asyncio.to_thread(bounce, server, to, raw + b"more\r\n", sender))[0] == code, to
