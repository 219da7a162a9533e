"""The same deployment as the tests of accounts have, and what was announced."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from postroom.db import Connection
from postroom.directory import Addresses, Announcement, Identities

if TYPE_CHECKING:
    from tests.accounts.conftest import House


def _accounts() -> object:
    name = "postroom_tests_accounts"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "accounts" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


_shared = _accounts()
house = _shared.house  # type: ignore[attr-defined] # a module loaded by path


@pytest.fixture
def announced(house: House) -> list[Announcement]:
    """Everything that `house.identities` and `addresses` announce."""
    found: list[Announcement] = []

    async def announce(conn: Connection, announcement: Announcement) -> None:
        assert conn.is_in_transaction()
        found.append(announcement)

    house.identities = Identities(
        house.db,
        house.ids,
        house.clock,
        _shared.HASH_KEY,  # type: ignore[attr-defined] # a module loaded by path
        _shared.mailbox_rows,  # type: ignore[attr-defined] # a module loaded by path
        announce,
        house.changed.append,
    )
    return found


@pytest.fixture
def addresses(house: House, announced: list[Announcement]) -> Addresses:
    async def announce(conn: Connection, announcement: Announcement) -> None:
        assert conn.is_in_transaction()
        announced.append(announcement)

    # A module loaded by path.
    return Addresses(house.db, house.ids, house.clock, _shared.HASH_KEY, announce, house.changed.append)  # type: ignore[attr-defined]


async def _domain(house: House, tenant_id: int, name: str, status: str = "healthy") -> str:
    public_id = house.ids.new("dom_")
    async with house.db.acquire() as conn:
        await conn.execute(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)"
            " VALUES ($1, $2, $3, 'external', $4, $5, $5)",
            *(public_id, tenant_id, name, status, house.clock.now()),
        )
    return public_id


@pytest.fixture
def make_domain(house: House):  # type: ignore[no-untyped-def] # its type is in the docstring
    """Makes a tenant's domain: `await make_domain(tenant_id, name, status)` is its public id."""

    async def make(tenant_id: int, name: str, status: str = "healthy") -> str:
        return await _domain(house, tenant_id, name, status)

    return make
