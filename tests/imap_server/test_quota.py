"""What a mailbox may hold, asked over IMAP (RFC 9208, mail-server E4)."""

from __future__ import annotations

from typing import Any

import pytest

NOTE = b"Subject: x\r\n\r\n" + b"y" * 2034 + b"\r\n"


@pytest.mark.covers("RFC 9208 §4.1.1", "RFC 9208 §4.1.2", "mail-server:E4")
async def test_a_root_for_the_mailbox(office: Any) -> None:
    client = await office.client()
    assert await client.ok(b"GETQUOTAROOT inbox") == [b'* QUOTAROOT INBOX ""', b'* QUOTA "" ()']
    async with office.db.acquire() as conn:
        await conn.execute(
            "UPDATE mailboxes SET quota_bytes = 10240 WHERE tenant_id = $1 AND id = $2",
            office.ref.tenant_id,
            office.ref.mailbox_id,
        )
    assert (await client.append(NOTE)).startswith(b"OK")
    assert await client.ok(b'GETQUOTA ""') == [b'* QUOTA "" (STORAGE 3 10)']
    for _ in range(3):
        assert (await client.append(NOTE)).startswith(b"OK")
    assert (await client.append(NOTE * 2)).startswith(b"NO [OVERQUOTA]")


@pytest.mark.covers("RFC 9208 §4.1.2")
async def test_no_other_roots_nor_folders_that_are_not_there(office: Any) -> None:
    client = await office.client()
    assert (await client.ask(b"GETQUOTA other"))[-1].startswith(b"NO [NONEXISTENT]")
    assert (await client.ask(b"GETQUOTAROOT Nowhere"))[-1].startswith(b"NO [NONEXISTENT]")
    assert (await client.ask(b"GETQUOTA"))[-1].startswith(b"BAD")
    assert (await client.ask(b'SETQUOTA "" (STORAGE 10)'))[-1].startswith(b"BAD")


@pytest.mark.covers("RFC 9208 §4.1.4")
async def test_what_an_expunge_would_free(office: Any) -> None:
    client = await office.client()
    for _ in range(3):
        await client.append(NOTE)
    assert await client.ok(b"STATUS INBOX (DELETED-STORAGE)") == [b"* STATUS INBOX (DELETED-STORAGE 0)"]
    await client.ok(b"STORE 1:2 +FLAGS.SILENT (\\Deleted)")
    assert await client.ok(b"STATUS INBOX (MESSAGES DELETED-STORAGE)") == [
        b"* STATUS INBOX (MESSAGES 3 DELETED-STORAGE 5)"
    ]
