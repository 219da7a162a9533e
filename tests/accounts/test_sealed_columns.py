"""The registry of sealed columns is complete: against the schema, and against the program (security-privacy A6.3)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from postroom.base import sealed_columns
from postroom.base.sealed_columns import REGISTRY, SealedColumn
from postroom.db import Database

SOURCE = Path(sealed_columns.__file__).resolve().parents[1]


@pytest.mark.covers("security-privacy:A6.3", "decisions:D20")
async def test_every_column_that_is_called_sealed_is_registered(db: Database) -> None:
    async with db.acquire() as conn:
        rows = await conn.fetch(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'postroom'"
            " AND (column_name ~ '(^|_)(sealed|enc|encrypted|ciphertext)$')"
        )
    assert {(row["table_name"], row["column_name"]) for row in rows} == {(one.table, one.column) for one in REGISTRY}
    assert {row["data_type"] for row in rows} == {"bytea"}


async def test_what_names_a_row_is_unique_and_has_an_index(db: Database) -> None:
    """So the walk misses no row and reads none twice. What belongs to a tenant is named with it (B12)."""
    async with db.acquire() as conn:
        for column in REGISTRY:
            indexes = await conn.fetch(
                "SELECT array_agg(a.attname::text ORDER BY k.n) AS columns FROM pg_index i"
                " CROSS JOIN LATERAL unnest(i.indkey::int[]) WITH ORDINALITY AS k (attnum, n)"
                " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
                " WHERE i.indrelid = ('postroom.' || $1)::regclass AND i.indisunique AND i.indpred IS NULL"
                " GROUP BY i.indexrelid",
                column.table,
            )
            assert list(column.keys) in [row["columns"] for row in indexes], column.name
            types = {
                row["column_name"]: row["data_type"]
                for row in await conn.fetch(
                    "SELECT column_name, data_type FROM information_schema.columns"
                    " WHERE table_schema = 'postroom' AND table_name = $1",
                    column.table,
                )
            }
            assert {name: types[name] for name in column.keys} == dict(column.row)
            assert ("tenant_id" in types) <= ("tenant_id" in column.keys), column.name


def test_every_column_of_the_program_is_in_the_list() -> None:
    """None is made elsewhere, and none that was made is missing."""
    own = {one for one in vars(sealed_columns).values() if isinstance(one, SealedColumn)}
    assert own == set(REGISTRY)
    assert len({one.name for one in REGISTRY}) == len(REGISTRY)
    for path in SOURCE.rglob("*.py"):
        if path.name != "sealed_columns.py":
            assert "SealedColumn(" not in path.read_text("utf-8"), path


def test_nothing_else_encrypts_what_is_stored() -> None:
    """The cipher is used in one module, and there is one place where a value is sealed for a column."""
    names = {name for name, one in vars(sealed_columns).items() if isinstance(one, SealedColumn)}
    used = set()
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        if path.name != "sealing.py":
            assert "primitives.ciphers" not in text, f"{path} encrypts by itself"
        for node in ast.walk(ast.parse(text)):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "seal"
            if called and "keyring" in ast.unparse(node.func):  # type: ignore[attr-defined] # a call, see above
                first = ast.unparse(node.args[0])  # type: ignore[attr-defined] # a call, see above
                used.add(first)
    assert used - {"column"} == names, "each column is sealed somewhere, and only registered ones are"
