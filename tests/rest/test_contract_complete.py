"""Nothing of the published contract is forgotten: each operation is served, or listed as not built yet.

`contract_operations.json` has the names of all operations, error codes and permissions of the contract; the operations
that are served are in `contract.json` in full, which test_contract.py compares. The list `unbuilt` may only shrink.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

import pytest

from postroom.accounts.permissions import MAY_HOLD, Level, Permission
from postroom.base.errors import ERRORS
from postroom.base.settings_tree import Environment
from postroom.servers.http import About, create_http, openapi
from tests.rest.contract import OPERATIONS

ALL: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "contract_operations.json").read_text())
NAMED: Final[dict[str, str]] = ALL["operations"]
UNBUILT: Final[list[str]] = ALL["unbuilt"]
MOST_UNBUILT: Final = 59
"""How many may be listed: fewer with every change that builds some."""
TABLE: Final = create_http(MagicMock(about=About("0", "unknown", Environment.LOCAL))).table
SERVED: Final = {rule.operation: f"{rule.method} {rule.path}" for rule in TABLE.rules}
BEYOND: Final = (
    "/health/ready",
    "/docs",
    "/v1/auth/",
    "/v1/account",
    "/v1/tenants/{tenant_id}/people",
    "/v1/tenants/{tenant_id}/aliases",
    "/v1/identities/{identity_id}/folders",
    *(f"/v1/identities/{{identity_id}}/messages/{one}" for one in ("move", "copy", "expunge", "flags")),
    "/v1/platform/queue",
    "/v1/events",
)
"""Where the paths of operations begin that the contract does not have (decisions D8, E)."""


@pytest.mark.covers("FR-API-1", "decisions:B23")
def test_each_operation_is_served_or_listed() -> None:
    assert len(NAMED) == 132
    assert len(UNBUILT) == len(set(UNBUILT))
    assert [name for name in UNBUILT if name not in NAMED] == []
    assert [name for name in UNBUILT if name in SERVED] == [], "served: take them from the list of what is not built"
    assert [name for name in NAMED if name not in SERVED and name not in UNBUILT] == [], "neither served nor listed"


def test_the_list_only_shrinks() -> None:
    assert len(UNBUILT) <= MOST_UNBUILT


@pytest.mark.covers("FR-API-1")
def test_what_is_served_is_where_the_contract_says() -> None:
    assert {name: where for name, where in SERVED.items() if name in NAMED} == {
        name: where for name, where in NAMED.items() if name in SERVED
    }
    taken = {where: name for name, where in NAMED.items()}
    assert {name: where for name, where in SERVED.items() if taken.get(where, name) != name} == {}


def test_what_is_served_is_compared_in_full() -> None:
    """What test_contract.py does not have it does not compare."""
    assert {name for name in SERVED if name in NAMED} == set(OPERATIONS)


def test_what_is_beyond_the_contract_is_meant() -> None:
    beyond = [where for name, where in SERVED.items() if name not in NAMED]
    assert [where for where in beyond if not where.partition(" ")[2].startswith(BEYOND)] == []


def test_what_the_client_leaves_out() -> None:
    document = openapi.document(TABLE)
    left_out = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if operation.get("x-sdk") is False
    }
    assert left_out & set(NAMED) == {name for name, one in OPERATIONS.items() if not one["sdk_method"]}


@pytest.mark.covers("FR-API-2")
def test_the_error_codes() -> None:
    assert len(ALL["error_codes"]) == 111
    statuses = {code: ERRORS[code].status if code in ERRORS else None for code in ALL["error_codes"]}
    assert {code: status for code, status in statuses.items() if status not in ALL["error_codes"][code]} == {}


@pytest.mark.covers("security-privacy:A3.4")
def test_the_permissions_and_their_levels() -> None:
    ours = {
        permission.value: sorted(level.value for level in Level if permission in MAY_HOLD[level])
        for permission in Permission
    }
    assert ours == {name: sorted(levels) for name, levels in ALL["permission_levels"].items()}
