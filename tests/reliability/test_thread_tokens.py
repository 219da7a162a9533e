"""A token that one process writes, all read (FR-OUT-6)."""

from __future__ import annotations

import httpx
import pytest

from tests.reliability.conftest import Launch
from tests.reliability.helpers import eventually, letter
from tests.torture.clients import Smtp

ALLOW = """
UPDATE identities SET owner_name = 'Ola', owner_email = 'ola@example.com',
  send_policy_json = '{"require_known_recipient": false}'
"""


@pytest.mark.covers("FR-OUT-6", "FR-THR-1", "edge:C1", "edge:G11")
async def test_answers_find_their_thread_whoever_takes_them(launch: Launch) -> None:
    server = await launch(processes=2)
    one, two = server.deployment.boxes[:2]
    conn = await server.deployment.postgres.connect()
    try:
        await conn.execute(ALLOW)
        headers = {"authorization": f"Bearer {server.deployment.api_keys[0]}", "idempotency-key": "k"}
        body = {"to": [two.address], "subject": "Hello", "text": "Good morning."}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.deployment.ports['http']}") as client:
            path = f"/v1/identities/{one.identity_id}/messages"
            sent = await client.post(path, json=body, headers=headers)
            assert sent.status_code == 202, sent.text
            address = sent.json()["reply_to"][0]["address"]
            local, _, domain = one.address.partition("@")
            assert address.startswith(f"{local}+t01.")
            assert address.endswith(f"@{domain}")
            for _ in range(8):  # connections of their own, so that each process has some
                async with Smtp(server.deployment.ports["smtp"]) as smtp:
                    assert (await smtp.deliver([address], letter()[1])).code == 250

            async def received() -> dict[str, object] | None:
                """The copy of the other agent, which came without a network."""
                row = await conn.fetchrow("SELECT public_id FROM messages WHERE mailbox_id = $1", two.key)
                return None if row is None else dict(row)

            asked = await eventually(received)
            answer = await client.post(
                f"/v1/identities/{two.identity_id}/messages/{asked['public_id']}/reply",
                json={"text": "Gladly."},
                headers={**headers, "idempotency-key": "2"},
            )
            assert answer.status_code == 202, answer.text
            assert answer.json()["deliveries"][0]["address"] == address

        async def filed() -> list[int] | None:
            rows = await conn.fetch(
                "SELECT thread_seq FROM messages WHERE mailbox_id = $1 AND direction = 'inbound'", one.key
            )
            return [row["thread_seq"] for row in rows] if len(rows) == 9 else None

        assert await eventually(filed) == [1] * 9
    finally:
        await conn.close()
