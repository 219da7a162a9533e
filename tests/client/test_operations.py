"""One method for each operation that is served, in both clients; and each of them works against the application."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio

import postroom_client
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.servers.http.table import Idempotency, Reach, Rule
from postroom_client import AsyncClient, Client, Model
from tests.client.bridge import URL, Bridge
from tests.client.examples import DOCUMENT, TABLE
from tests.conftest import new_database
from tests.rest.filling import ODD, body_of
from tests.rest.houses import House, Street, Who
from tests.rest.standing import open_all

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.covers("FR-SDK-1", "decisions:D18")]

SERVED: Final = {rule.operation: rule for rule in TABLE.rules if rule.in_sdk}


def method_name(operation: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in operation)


def group_of(rule: Rule) -> str:
    return re.sub("[^a-z]+", "_", rule.tag.lower())


def methods(client: object) -> dict[str, Any]:
    """`group.method` → the method."""
    return {
        f"{group}.{name}": method
        for group, resource in vars(client).items()
        if not group.startswith("_")
        for name, method in inspect.getmembers(resource, inspect.ismethod)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_every_operation_has_its_method_and_no_method_is_without(kind: type[Client] | type[AsyncClient]) -> None:
    wanted = {f"{group_of(rule)}.{method_name(name)}" for name, rule in SERVED.items()}
    assert set(methods(kind(URL))) == wanted


@pytest.mark.parametrize("name", SERVED)
async def test_both_clients_take_the_same(name: str) -> None:
    rule = SERVED[name]
    place = f"{group_of(rule)}.{method_name(name)}"
    one, two = (inspect.signature(methods(client)[place]) for client in (Client(URL), AsyncClient(URL)))
    assert [(at.name, at.kind, at.default) for at in one.parameters.values()] == [
        (at.name, at.kind, at.default) for at in two.parameters.values()
    ]
    described = DOCUMENT["paths"][rule.path][rule.method.lower()]
    wanted = {at["name"].rstrip("_") for at in described.get("parameters", ()) if at["in"] in ("path", "query")}
    wanted |= {"body"} if "requestBody" in described else set()
    wanted |= {"idempotency_key"} if rule.idempotency is not Idempotency.NONE else set()
    assert {at.rstrip("_") for at in one.parameters} == wanted | {"request_timeout"}


# -- each of them against the application


@dataclass
class Site:
    street: Street
    transport: httpx.ASGITransport


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    postgres_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    async with (
        new_database(postgres_url, template_database) as url,
        Database(url, min_size=1, max_size=10, application_name="postroom-tests") as db,
        open_all(db, clock, IdGenerator(clock), tmp_path_factory.mktemp("client")) as lobby,
    ):
        street = Street(lobby)
        app = httpx.ASGITransport(app=lobby.app, raise_app_exceptions=False)
        yield Site(street, app)


MADE_BY_SENDING: Final = {"getSignedLink"}
"""Its link comes with a message that is too large: test_downloads has one."""


def caller(rule: Rule) -> Who:
    """Somebody who is let in."""
    if rule.is_public:
        return Who.NOBODY
    return Who.OWNER if rule.reach is Reach.PERSON else Who.TENANT if "tenant" in levels(rule) else Who.PLATFORM


def levels(rule: Rule) -> set[str]:
    return {level.value for level in rule.levels}


async def arguments(house: House, rule: Rule, who: Who) -> tuple[list[Any], dict[str, Any]]:
    place = await house.place(rule, who)
    inside = re.findall(r"\{(\w+)\}", rule.path)
    positional: list[Any] = [place[name] for name in inside]
    named: dict[str, Any] = {name: value for name, value in place.items() if name not in inside}
    if rule.body:
        positional.append(body_of(rule, DOCUMENT, house, place))
    if rule.idempotency is Idempotency.REQUIRED:
        named["idempotency_key"] = house.street.word()
    if rule.operation == "waitForMessage":
        named["timeout"] = 1
    return positional, named


def key_of(headers: dict[str, str]) -> str | None:
    return headers.get("authorization", "").removeprefix("Bearer ") or None


async def use(found: Any) -> Any:
    """What an asynchronous method gives, to its end."""
    if isinstance(found, postroom_client.AsyncPages):
        return [item async for item in found]
    if inspect.isawaitable(found):
        return await found
    async with found as download:
        return await download.read()


def use_blocking(found: Any) -> Any:
    if isinstance(found, postroom_client.Pages):
        return list(found)
    if not hasattr(found, "__enter__"):
        return found
    with found as download:
        return download.read()


@pytest.mark.parametrize("blocks", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("name", sorted(set(SERVED) - MADE_BY_SENDING))
async def test_it_works_against_the_application(site: Site, name: str, blocks: bool) -> None:
    rule = SERVED[name]
    who = caller(rule)
    house = await site.street.house()
    key = key_of(await house.headers(who, rule))
    positional, named = await arguments(house, rule, who)
    place = f"{group_of(rule)}.{method_name(name)}"
    try:
        if blocks:
            client = Client(URL, key, transport=Bridge(site.transport, asyncio.get_running_loop()))
            method = methods(client)[place]
            found = await asyncio.to_thread(lambda: use_blocking(method(*positional, **named)))
        else:
            found = await use(methods(AsyncClient(URL, key, transport=site.transport))[place](*positional, **named))
    except postroom_client.ApiError as error:
        if error.code not in ODD.get(name, frozenset()) or error.request_id is None:
            raise
        return
    described = DOCUMENT["paths"][rule.path][rule.method.lower()]["responses"]
    if isinstance(found, Model):
        schemas = {str(one) for status, one in described.items() if status.startswith("2")}
        assert any(f"/{type(found).__name__}'" in one for one in schemas)
    else:
        assert found is None or isinstance(found, (list, bytes, dict))
