"""Whatever the OpenAPI document allows, and what it does not: the answer is one that it describes.

The cases are schemathesis', made from the document that is served; what is answered is checked by `agreement.py`. It
calls the application in process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.servers.http.table import Reach
from tests.conftest import new_database
from tests.rest.agreement import agree
from tests.rest.filling import BRIEFLY
from tests.rest.houses import Street, Who
from tests.rest.standing import open_all
from tests.rest.test_fuzz import run
from tests.rest.test_matrix import RULES

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLES: Final = 10
SLOW: Final = {"waitForMessage": 6, "streamEvents": 6, "createSession": 8, "recoverSession": 8}
"""Fewer examples where each one waits, or hashes a password."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def street(
    postgres_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Street]:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    async with (
        new_database(postgres_url, template_database) as url,
        Database(url, min_size=1, max_size=10, application_name="postroom-tests") as db,
        open_all(db, clock, IdGenerator(clock), tmp_path_factory.mktemp("schemathesis")) as lobby,
    ):
        yield Street(lobby)


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    """Those of the document, filled in when it is known."""
    return {}


def _operation(street: Street, operations: dict[str, Any], name: str) -> Any:
    if not operations:
        schema = schemathesis.openapi.from_dict(street.document)
        for one in schema.get_all_operations():
            assert isinstance(one, Ok), one
            operations[one.ok().definition.raw["operationId"]] = one.ok()
    return operations[name]


def _cases(operation: Any, place: dict[str, str]) -> st.SearchStrategy[Any]:
    """Right and wrong ones, of what is there and of anything."""
    known = {name: value for name, value in place.items() if f"{{{name}}}" in operation.path}
    modes = [schemathesis.GenerationMode.POSITIVE]
    if operation.body or operation.query:
        modes.append(schemathesis.GenerationMode.NEGATIVE)
    fixed: list[dict[str, Any]] = [*([{"path_parameters": known}] * 3), {}] if known else [{}]
    made: list[st.SearchStrategy[Any]] = [
        operation.as_strategy(generation_mode=mode, **more) for mode, more in itertools.product(modes, fixed)
    ]
    return st.one_of(made)


@pytest.mark.covers("FR-API-1", "FR-API-2", "NFR-SEC-1")
@pytest.mark.parametrize("name", RULES)
async def test_every_answer_is_described(street: Street, operations: dict[str, Any], name: str) -> None:
    rule = RULES[name]
    operation = _operation(street, operations, name)
    house = await street.house()
    place = await house.place(rule, Who.OWNER)
    clock = street.lobby.world.clock

    async def sent(case: Any) -> httpx.Response:
        asked = case.as_transport_kwargs(base_url="http://api.example")
        headers = {key: value for key, value in asked.pop("headers").items() if key.lower() != "authorization"}
        if not rule.is_public:
            # A session of its own for each: what it does may end all that there are.
            token = await street.session(await house.person(Who.OWNER)) if rule.reach is Reach.PERSON else None
            headers |= street.lobby.world.platform if token is None else {"authorization": f"Bearer {token}"}
        if name in BRIEFLY:
            asked["params"] = {**(asked.get("params") or {}), **BRIEFLY[name]}
        asked.pop("cookies", None)
        clock.advance(61)  # a new window for the rate limits
        return await street.lobby.client.request(**asked, headers=headers)

    @settings(
        max_examples=SLOW.get(name, EXAMPLES),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_cases(operation, place))
    async def inner(case: Any) -> None:
        try:
            response = await sent(case)
        except (httpx.InvalidURL, UnicodeEncodeError):
            return  # no client can send it
        agree(street.document, rule, response)

    await asyncio.wait_for(run(inner), 110)
    if name == "setSwitch":  # what follows is to be let in
        await street.value("DELETE FROM ops_switches RETURNING name")
        switches = street.lobby.app.services.switches
        assert switches is not None
        switches.forget()
