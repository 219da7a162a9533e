"""Mail to the roles of the platform domain reaches the mailbox that the operator named (A4, D28)."""

from __future__ import annotations

import pytest

from tests.reliability.conftest import Launch
from tests.reliability.helpers import letter
from tests.torture.clients import Smtp
from tests.torture.deployment import DOMAIN, Server


async def mailboxes(server: Server, message_id: str) -> list[int]:
    """The mailboxes that hold a message of that Message-ID."""
    conn = await server.deployment.postgres.connect()
    try:
        rows = await conn.fetch("SELECT mailbox_id FROM messages WHERE rfc_message_id = $1", message_id)
        return [row["mailbox_id"] for row in rows]
    finally:
        await conn.close()


@pytest.mark.covers("edge:A4", "decisions:D28")
async def test_role_mail_reaches_the_security_contact(launch: Launch) -> None:
    server = await launch(extra={"POSTROOM_SECURITY_CONTACT": f"agent1.acme@{DOMAIN}"})
    contact = server.deployment.boxes[1]
    assert contact.address == f"agent1.acme@{DOMAIN}"
    for recipient in ("postmaster", f"Postmaster@{DOMAIN}", f"abuse@{DOMAIN}.", f"security@{DOMAIN}"):
        message_id, text = letter()
        async with Smtp(server.deployment.ports["smtp"]) as client:
            sent = await client.deliver([recipient], text)
        assert sent.code == 250, (recipient, sent)
        assert await mailboxes(server, message_id) == [contact.key]
    async with Smtp(server.deployment.ports["smtp"]) as client:
        assert (await client.deliver([f"sales@{DOMAIN}"], letter()[1])).code == 550


@pytest.mark.covers("edge:A4")
async def test_without_a_contact_role_mail_is_refused(launch: Launch) -> None:
    server = await launch()
    async with Smtp(server.deployment.ports["smtp"]) as client:
        assert (await client.deliver(["postmaster"], letter()[1])).code == 550
