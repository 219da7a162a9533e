"""Whether what is in the outbox is what the registry says: nothing of a type that it has not, nothing that the schema
of its type has not, and the columns beside the bytes say the same as the bytes."""

from __future__ import annotations

import json
from functools import cache

from jsonschema import Draft202012Validator

from postroom.db import Database
from postroom.events.registry import REGISTRY, Owner

_ROWS = """
SELECT e.public_id, e.type, e.owner_kind::text, e.owner_id, e.sequence, e.payload, t.public_id AS tenant,
  b.identity_public_id AS identity
FROM events e
LEFT JOIN tenants t ON t.id = e.tenant_id
LEFT JOIN mailboxes b ON b.tenant_id = e.tenant_id AND b.id = e.identity_id
WHERE starts_with(e.type, $1)
ORDER BY e.id
"""


@cache
def _validator(kind: str) -> Draft202012Validator:
    Draft202012Validator.check_schema(REGISTRY[kind].schema)
    return Draft202012Validator(REGISTRY[kind].schema)


def check_payload(payload: bytes) -> None:
    """Raises unless the bytes are an event of the registry."""
    told = json.loads(payload)
    assert told["type"] in REGISTRY, f"{told['type']} is emitted and not in events/registry.py"
    errors = [f"{'/'.join(map(str, e.path))}: {e.message}" for e in _validator(told["type"]).iter_errors(told)]
    assert errors == [], (told["type"], errors)


async def check_events(db: Database, *, of: str = "") -> int:
    """Check every event of the database whose type begins with `of`; how many there are."""
    async with db.acquire() as conn:
        rows = await conn.fetch(_ROWS, of)
    for row in rows:
        check_payload(row["payload"])
        told = json.loads(row["payload"])
        assert (told["id"], told["type"], told["sequence"]) == (row["public_id"], row["type"], row["sequence"])
        assert row["tenant"] in (told["tenant_id"], None)
        assert row["identity"] in (told["identity_id"], None)
        assert Owner(row["owner_kind"]) is REGISTRY[row["type"]].owner
        if row["owner_kind"] == "mailbox":
            assert row["owner_id"] == told["identity_id"]
    return len(rows)
