"""How the statements of a delivery find their rows, while the planner knows nothing of the tables yet (B1)."""

from __future__ import annotations

import re

import pytest

from postroom.db import Database
from postroom.outbound import claiming, outcome_sql

BY_TENANT = ("deliveries_pkey", "outbound_messages_pkey", "outbound_messages_mailbox")
"""Through these a plan that was made when there was little goes on to read all that a tenant has."""


@pytest.mark.covers("decisions:B1")
@pytest.mark.parametrize(
    "statement",
    [claiming._CLAIM, claiming._MESSAGES, outcome_sql.MESSAGES, outcome_sql.WRITE],
    ids=["claim", "letters", "settle", "write"],
)
async def test_a_message_is_found_by_itself(db: Database, statement: str) -> None:
    arguments = ", ".join(["NULL"] * max(int(number) for number in re.findall(r"\$(\d+)", statement)))
    async with db.transaction() as conn:
        await conn.execute(claiming.PLANS)
        await conn.execute(f"PREPARE hot AS {statement}")
        plan = "\n".join(row[0] for row in await conn.fetch(f"EXPLAIN EXECUTE hot ({arguments})"))
        await conn.execute("DEALLOCATE hot")
    assert "outbound_messages_message" in plan or "deliveries_message_id_key" in plan or "deliveries_id_key" in plan
    assert [name for name in BY_TENANT if name in plan] == []
