"""Fills a folder fast: what a mailbox holds is multiplied by plain SQL, words of the index included.

Copies are messages of their own, with numbers, Message-IDs, references and threads of their own; only the file with
the octets is that of the message they were made from. 200,000 take a minute or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import asyncpg

_CHUNK: Final = 20
"""Copies of the whole that one statement makes."""
_TIMEOUT: Final = 600.0

# $1 mailbox, $2 and $3 the first and last copy, counted from 1; in every row of the copied `o` g is its copy's number.
_COPY: Final = (
    "INSERT INTO {table} ({columns}) SELECT {values} FROM {table} o "
    "CROSS JOIN generate_series($2::bigint, $3::bigint) g"
)
_OWN_ID: Final = "'{prefix}_01' || lpad(((o.{key} * 1000 + g) * 100 + o.mailbox_id % 100)::text, 24, '0')"
_MARK: Final = "'@c' || g || '.'"

_TABLES: Final[tuple[tuple[str, str, Mapping[str, str]], ...]] = (
    (
        "threads",
        "o.mailbox_id = $1 AND o.seq <= {threads}",
        {"seq": "o.seq + g * {threads}", "public_id": _OWN_ID.format(prefix="thr", key="seq")},
    ),
    (
        "messages",
        "o.mailbox_id = $1 AND o.id <= {last}",
        {
            "id": "{id}",
            "public_id": _OWN_ID.format(prefix="msg", key="id"),
            "thread_seq": "o.thread_seq + g * {threads}",
            "rfc_message_id": f"replace(o.rfc_message_id, '@', {_MARK})",
            "in_reply_to": f"replace(o.in_reply_to, '@', {_MARK})",
            "reference_ids": f"string_to_array(replace(array_to_string(o.reference_ids, ' '), '@', {_MARK}), ' ')",
            "raw_sha256": "sha256(o.raw_sha256 || g::text::bytea)",
            "received_at": "o.received_at + g * interval '1 hour'",
        },
    ),
    ("message_texts", "o.message_id BETWEEN {first} AND {last}", {"message_id": "{id}"}),
    ("recipients", "o.message_id BETWEEN {first} AND {last}", {"message_id": "{id}"}),
    ("message_words", "o.message_id BETWEEN {first} AND {last}", {"message_id": "{id}"}),
    (
        "placements",
        "o.folder_id = {folder} AND o.uid <= {count}",
        {
            "message_id": "{id}",
            "uid": "o.uid + g * {count}",
            "internal_date": "o.internal_date + g * interval '1 hour'",
        },
    ),
)
_DONE: Final = """
WITH f AS (
  UPDATE folders SET message_count = message_count * $3, unseen_count = unseen_count * $3,
    total_bytes = total_bytes * $3, deleted_count = deleted_count * $3, uid_next = $4::bigint * $3 + 1
  WHERE id = $2
)
UPDATE mailboxes SET next_thread_seq = $5::bigint * ($3 + 1) + 1, used_bytes = used_bytes * $3 WHERE id = $1
"""


def multiply(url: str, identity_id: str, times: int) -> None:
    """Have the inbox of a mailbox hold `times` what it holds (at most 1,000 times).

    It must hold UIDs 1 to n, nothing may stand elsewhere, and nobody may be using it. Raises RuntimeError.
    """
    asyncio.run(_multiply(url, identity_id, times))


async def _multiply(url: str, identity_id: str, times: int) -> None:
    connection = await asyncpg.connect(url, timeout=30, server_settings={"search_path": "postroom, public"})
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL synchronous_commit = off")
            await _copy(connection, identity_id, times)
        await connection.execute("VACUUM ANALYZE", timeout=_TIMEOUT)
    finally:
        await connection.close(timeout=30)


async def _copy(connection: Any, identity_id: str, times: int) -> None:
    mailbox = await connection.fetchval("SELECT id FROM mailboxes WHERE identity_public_id = $1", identity_id)
    folder = await connection.fetchval("SELECT id FROM folders WHERE mailbox_id = $1 AND name = 'INBOX'", mailbox)
    found = await connection.fetchrow(
        "SELECT min(message_id) AS first, max(message_id) AS last, count(*) AS count, max(uid) AS uid "
        "FROM placements WHERE mailbox_id = $1",
        mailbox,
    )
    if not found["count"] or found["count"] != found["uid"]:
        raise RuntimeError("the inbox is to hold all that the mailbox holds, with UIDs from 1")
    threads = await connection.fetchval("SELECT max(seq) FROM threads WHERE mailbox_id = $1", mailbox)
    start = await connection.fetchval("SELECT max(id) FROM messages")
    span = found["last"] - found["first"] + 1
    key = "o.{} - {} + {} + (g - 1) * {}".format("{}", found["first"], start + 1, span)
    for first in range(1, times, _CHUNK):
        last = min(first + _CHUNK, times) - 1
        for table, condition, changed in _TABLES:
            names = {
                "folder": folder,
                "count": found["count"],
                "threads": threads,
                "first": found["first"],
                "last": found["last"],
                "id": key.format("id" if table == "messages" else "message_id"),
            }
            columns = await _columns(connection, table)
            values = [changed.get(column, f"o.{column}").format(**names) for column in columns]
            statement = _COPY.format(table=table, columns=", ".join(columns), values=", ".join(values))
            where = f" WHERE $1::bigint > 0 AND {condition.format(**names)} ORDER BY g, 1, 2"
            await connection.execute(statement + where, mailbox, first, last, timeout=_TIMEOUT)
    await connection.execute(_DONE, mailbox, folder, times, found["count"], threads)
    await connection.execute("SELECT setval('message_ids', $1)", start + 1 + span * times)


async def _columns(connection: Any, table: str) -> list[str]:
    rows = await connection.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        table,
    )
    return [row["attname"] for row in rows]
