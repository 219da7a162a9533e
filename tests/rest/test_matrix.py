"""Every route, whoever calls, whatever they point at: made from the route table (security-privacy A3.2, A4).

A new route is in here by being registered. It fails, by name, when what it names has no maker in `houses.py` or when
who may call it does not succeed with the least body that its schema asks for (`filling.py` has the others).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from unittest.mock import MagicMock
from urllib.parse import quote

import asyncpg
import httpx
import pytest
import pytest_asyncio

from postroom.accounts import Level
from postroom.base.clock import ManualClock
from postroom.base.errors import ERRORS
from postroom.base.ids import IdGenerator
from postroom.base.settings_tree import Environment
from postroom.db import Database
from postroom.servers.http import About, create_http, openapi
from postroom.servers.http.table import Idempotency, Reach, Rule
from tests.conftest import new_database
from tests.rest.agreement import agree
from tests.rest.filling import BRIEFLY, IN_BODY, ODD, body_of
from tests.rest.houses import BARE, GRANT, HERE, LEVEL, MAKERS, MISSING, VALUES, House, Street, Who, held, names
from tests.rest.standing import open_all

pytestmark = pytest.mark.asyncio(loop_scope="module")

TABLE: Final = create_http(MagicMock(about=About("0", "unknown", Environment.LOCAL))).table
RULES: Final = {rule.operation: rule for rule in TABLE.rules}
DOCUMENT: Final = openapi.document(TABLE)
UNNAMED: Final = {rule.operation for rule in TABLE.rules if not names(rule, DOCUMENT)}
"""Operations that are pointed at nothing: lists, and what makes something new."""
EVERYWHERE: Final = frozenset({Who.PLATFORM, Who.OPERATOR})
CALLERS: Final = list(Who)
KEYLESS: Final = frozenset({"unauthenticated", "key_expired", "key_revoked", "permission_denied", "scope_denied"})
SEEN_AND_USED: Final = frozenset({"sessions", "devices", "api_keys"})
"""Tables where being asked something is noted; of these only the number of rows is looked at."""


_COUNT: Final[ContextVar[list[int] | None]] = ContextVar("count", default=None)
"""Where the statements of a request are counted."""
TRIES: Final = 4


@dataclass
class Site:
    """Two houses on a street: `here`, and a foreign one."""

    street: Street
    here: House
    far: House
    partner: dict[str, str] | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        return self.street.lobby.client

    async def headers(self, who: Who, rule: Rule, here: House | None = None) -> dict[str, str]:
        match who:
            case Who.OTHER_TENANT:
                return await self.far.headers(Who.TENANT, rule)
            case Who.OTHER_IDENTITY:
                return await self.far.headers(Who.IDENTITY, rule)
            case Who.OTHER_PARTNER:
                assert self.partner is not None
                return self.partner
        return await (here or self.here).headers(who, rule)

    async def call(self, rule: Rule, headers: dict[str, str], place: dict[str, str], house: House) -> httpx.Response:
        path, query = rule.path, {}
        for name, value in place.items():
            if f"{{{name}}}" in path:
                path = path.replace(f"{{{name}}}", quote(value, safe=""))
            else:
                query[name] = value
        if rule.idempotency is Idempotency.REQUIRED:
            headers = {**headers, "idempotency-key": self.street.word()}
        query |= BRIEFLY.get(rule.operation, {})
        body = body_of(rule, self.street.document, house, place)
        answer = await self.client.request(rule.method, path, headers=headers, params=query or None, json=body)
        agree(self.street.document, rule, answer)
        return answer

    async def counted(
        self, rule: Rule, headers: dict[str, str], place: dict[str, str], house: House
    ) -> tuple[httpx.Response, int]:
        """The answer, and how many statements it took: of this request, whatever else goes on."""
        count = [0]
        mine = _COUNT.set(count)
        try:
            return await self.call(rule, headers, place, house), count[0]
        finally:
            _COUNT.reset(mine)

    async def print(self) -> dict[str, tuple[int, int]]:
        """Table → how many rows, and what they are."""
        async with self.street.lobby.world.db.acquire() as conn:
            tables = await conn.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            parts = [
                f"SELECT '{name}' AS name, count(*) AS rows, "
                + ("0" if name in SEEN_AND_USED else "coalesce(sum(hashtextextended(t::text, 0)), 0)")
                + f" AS content FROM {name} t"
                for (name,) in tables
            ]
            return {row["name"]: (row["rows"], row["content"]) for row in await conn.fetch(" UNION ALL ".join(parts))}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    postgres_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    async with (
        new_database(postgres_url, template_database) as url,
        Database(url, min_size=1, max_size=10, application_name="postroom-tests") as db,
        open_all(db, clock, IdGenerator(clock), tmp_path_factory.mktemp("matrix")) as lobby,
    ):
        street = Street(lobby)
        made = Site(street, await street.house(), await street.house())
        made.partner = await _partner(street)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("_do_execute", "execute"):
                patch.setattr(asyncpg.Connection, name, _counting(getattr(asyncpg.Connection, name)))
            yield made


def _counting(method: Any) -> Any:
    async def counting(*arguments: Any, **more: Any) -> Any:
        if (count := _COUNT.get()) is not None:
            count[0] += 1
        return await method(*arguments, **more)

    return counting


async def _partner(street: Street) -> dict[str, str]:
    """A key, with all that it can hold, of a partner that has no tenant."""
    world, client = street.lobby.world, street.lobby.client
    partner = await client.post("/v1/partners", json={"name": "Other"}, headers=world.platform)
    assert partner.status_code == 201, partner.text
    body = {
        "name": "a key",
        "level": "partner",
        "partner_id": partner.json()["id"],
        "permissions": sorted(held(Who.OTHER_PARTNER, RULES["getMe"]) - {"identities:sign"}),
    }
    key = await client.post("/v1/keys", json=body, headers=world.platform)
    assert key.status_code == 201, key.text
    secret = next(value for value in key.json().values() if isinstance(value, str) and value.startswith("pmk_"))
    return {"authorization": f"Bearer {secret}"}


# -- what the rule says


OF_WHOLE_TENANT: Final = frozenset({"getWebhook", "listWebhookDeliveries"})
"""Operations on what is a tenant's, which keys of each of its identities may see (rest-api §2.3)."""
NOT_FOUND: Final = "…_not_found"
"""Whichever code the resource has: a 404 that is not about routes."""
OF_OWNER: Final = {Reach.TENANT_PATH: "tenant_not_found", Reach.IDENTITY_PATH: "identity_not_found"}


def refusal(rule: Rule, who: Who, *, own: bool, there: bool) -> str | None:
    """The code of the answer about something, None for who is let in: key → permission → level → scope.

    `own`: it is of the caller's tenant. `there`: whether it exists at all, which only who reaches everything is told.
    """
    if rule.is_public:
        return None
    if before := _before_scope(rule, who, own):
        return before
    if rule.reach in (Reach.TENANT_FILTER, Reach.ANY_KEY, Reach.PERSON):
        return None if there else NOT_FOUND
    if rule.operation in UNNAMED and rule.operation not in IN_BODY:
        return None
    reached = there and (who in EVERYWHERE or own)
    if who is Who.SIBLING:
        reached = there and own and (rule.reach is Reach.TENANT_PATH or rule.operation in OF_WHOLE_TENANT)
    if who in GRANT and rule.reach is Reach.TENANT_PATH:
        reached = False
    return None if reached else IN_BODY.get(rule.operation) or OF_OWNER.get(rule.reach, NOT_FOUND)


def _before_scope(rule: Rule, who: Who, own: bool) -> str | None:
    if who is Who.NOBODY:
        return "unauthenticated"
    if who is Who.EXPIRED:
        return "key_expired"
    if who is Who.REVOKED:
        return "key_revoked"
    if who in GRANT:
        return _of_session(rule, who, own)
    if rule.reach is Reach.PERSON:
        return None if who is Who.OPERATOR else "permission_denied"
    if who is Who.OPERATOR:
        # Other people's mail is none of theirs; their own lists and the routes for keys alone are as for anybody.
        if rule.reach is Reach.IDENTITY_PATH:
            return "identity_not_found"
        if rule.reach is Reach.TENANT_FILTER and rule.permissions <= {"identities:read"}:
            return None
        if rule.reach is Reach.ANY_KEY and not rule.permissions:
            return "scope_denied"
    level = LEVEL[who]
    implicit = level in getattr(rule, "implicit_for", ()) and own
    if not implicit and not rule.permissions <= held(who, rule):
        return "permission_denied"
    if level in rule.levels:
        return None
    return "tenant_not_found" if rule.reach is Reach.TENANT_PATH and not own else "scope_denied"


def _of_session(rule: Rule, who: Who, own: bool) -> str | None:
    """A person is somebody in a mailbox that is granted to them, and looks for the rest in vain."""
    match rule.reach:
        case Reach.PERSON:
            return None
        case Reach.IDENTITY_PATH if own and GRANT[who] is not None:
            return None if rule.permissions <= held(who, rule) else "permission_denied"
        case Reach.IDENTITY_PATH | Reach.TENANT_PATH:
            return OF_OWNER[rule.reach]
        case Reach.TENANT_FILTER:
            if not rule.permissions <= {"identities:read"}:
                return "permission_denied"
            return None if Level.IDENTITY in rule.levels else "scope_denied"
    return "scope_denied"


# -- the matrix


def code(response: httpx.Response) -> str | None:
    return None if response.status_code < 400 else str(response.json()["error"]["code"])


def plain(response: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    """An answer without the request's id."""
    request = response.headers["request-id"]
    headers = [(name, value) for name, value in response.headers.multi_items() if name != "request-id"]
    return response.status_code, response.content.replace(request.encode(), b""), sorted(headers)


def check(response: httpx.Response, expected: str | None, what: str) -> None:
    found = code(response)
    if expected is None:
        assert found not in KEYLESS | set(OF_OWNER.values()), (what, response.text)
    elif expected is NOT_FOUND:
        assert response.status_code == 404, (what, response.text)
        assert found != "route_not_found", what
    else:
        assert found == expected, (what, response.text)
        assert response.status_code == ERRORS[expected].status, what


def owners(rule: Rule, site: Site) -> list[str]:
    """The names of what the route is pointed at, outermost first."""
    found = [name for name in names(rule, site.street.document) if name not in VALUES or rule.method == "GET"]
    unknown = [name for name in found if name not in MAKERS or name not in MISSING]
    assert not unknown, f"{rule.operation}: give MAKERS and MISSING in tests/rest/houses.py rows for {unknown}"
    return found


async def test_every_route_is_here() -> None:
    """The table that the cases are made from is the one that a whole deployment serves."""
    assert len(RULES) > 70
    assert {name for name, rule in RULES.items() if rule.reach is Reach.PUBLIC} >= {"getHealth", "createSession"}


async def test_the_table_is_that_of_the_deployment(site: Site) -> None:
    assert {rule.operation: rule for rule in site.street.lobby.app.table.rules} == RULES


async def test_other_partners_are_among_the_callers(site: Site) -> None:
    assert Who.OTHER_PARTNER in CALLERS
    headers = await site.headers(Who.OTHER_PARTNER, RULES["getMe"])
    answer = await site.client.get("/v1/me", headers=headers)
    assert answer.json()["level"] == "partner", answer.text


@pytest.mark.covers(
    "SEC-1", "NFR-SEC-1", "FR-KEY-3", "security-privacy:A3.2", "security-privacy:A4.1", "security-privacy:A4.2"
)
@pytest.mark.parametrize("operation", RULES)
async def test_nobody_sees_what_is_not_theirs(site: Site, operation: str) -> None:
    rule = RULES[operation]
    site.street.lobby.world.clock.advance(61)  # a new window for the rate limits
    found = owners(rule, site)
    callers = [who for who in CALLERS if who not in BARE or rule.permissions]
    headers = {who: await site.headers(who, rule) for who in callers}
    own = {who: await site.here.place(rule, who) for who in callers}
    far = {
        who: await site.far.place(rule, Who.STRANGER if who in GRANT or who is Who.OPERATOR else who) for who in callers
    }
    before = await site.print()
    for who in callers:
        await _refusals(site, rule, who, headers[who], own[who], far[who], found)
    if not rule.is_public:
        assert await site.print() == before, f"{operation}: who is refused changes something"
    for who in callers:
        if refusal(rule, who, own=who in HERE | {Who.SIBLING}, there=True) is None:
            await _may(site, rule, who)


async def _refusals(
    site: Site,
    rule: Rule,
    who: Who,
    headers: dict[str, str],
    own: dict[str, str],
    far: dict[str, str],
    found: list[str],
) -> None:
    """All that the caller must not be given, whose ever it is, is refused as what is not there."""
    what = f"{rule.operation}, {who.value}"
    nowhere = {name: MISSING.get(name, value) for name, value in own.items()}
    # The thing itself, and the same below an owner that is the caller's.
    for depth in range(len(found)):
        outer = {name: own[name] for name in found[:depth]}
        is_owner = depth == 0 and rule.reach not in (Reach.PERSON, Reach.ANY_KEY, Reach.TENANT_FILTER)
        if depth and refusal(rule, who, own=who in HERE | {Who.SIBLING}, there=True) is not None:
            continue
        if not depth:
            # What is noted at the first request of a minute is not counted.
            await site.call(rule, headers, nowhere, site.here)
        missing, took = await site.counted(rule, headers, nowhere | outer, site.here)
        expected = refusal(rule, who, own=depth > 0 and who in HERE | {Who.SIBLING}, there=False) if is_owner else None
        if not rule.is_public:
            check(missing, expected or (NOT_FOUND if _passes(rule, who) else _before_scope(rule, who, False)), what)
        for thing, theirs, mine in _things(who, own, far, is_owner):
            if is_owner and refusal(rule, who, own=mine, there=True) is None:
                continue
            answer, takes = await site.counted(rule, headers, theirs | outer, site.here)
            if is_owner:
                check(answer, refusal(rule, who, own=mine, there=True), f"{what}, {thing}")
            elif who in EVERYWHERE and _passes(rule, who):
                # It reaches the other's too, and may be told what of it does not fit here.
                check(answer, NOT_FOUND, f"{what}, {thing}")
                continue
            if _same(rule, who, mine):
                assert plain(answer) == plain(missing), f"{what}, {thing} and missing"
                for _ in range(TRIES):
                    if takes == took:
                        break
                    # Now and then a request does what is due once a second or a minute: it is the same again only if
                    # it tells.
                    _, took = await site.counted(rule, headers, nowhere | outer, site.here)
                    _, takes = await site.counted(rule, headers, theirs | outer, site.here)
                else:
                    raise AssertionError(f"{what}, {thing} and missing: {takes} statements, and {took}")
    if not found and not rule.is_public:
        expected = refusal(rule, who, own=who in HERE | {Who.SIBLING}, there=True)
        if expected is not None:
            check(await site.call(rule, headers, own, site.here), expected, what)


def _passes(rule: Rule, who: Who) -> bool:
    return _before_scope(rule, who, True) is None


def _same(rule: Rule, who: Who, mine: bool) -> bool:
    """Whether the refusal is about what exists: on their own tenant and mailbox callers learn why."""
    return refusal(rule, who, own=mine, there=True) == refusal(rule, who, own=False, there=False) or not mine


def _things(
    who: Who, own: dict[str, str], far: dict[str, str], is_owner: bool
) -> Iterator[tuple[str, dict[str, str], bool]]:
    at_home = who in HERE | {Who.SIBLING}
    far_is_home = who in (Who.OTHER_TENANT, Who.OTHER_IDENTITY)
    if is_owner:
        yield "own", own, at_home
    yield "foreign", far, far_is_home


async def _may(site: Site, rule: Rule, who: Who) -> None:
    """Who is let in gets what they ask for. What changes something does so in a house of its own."""
    house = site.here if rule.method == "GET" else await site.street.house()
    if rule.is_public:
        site.street.lobby.world.clock.advance(60)
    place = await house.place(rule, who)
    if who in (Who.OTHER_TENANT, Who.OTHER_IDENTITY):
        if owners(rule, site):
            return  # pointed at their own tenant they are who `TENANT` and `IDENTITY` are here
        house = site.far
    answer = await site.call(rule, await site.headers(who, rule, house), place, house)
    odd = ODD.get(rule.operation, frozenset())
    assert answer.status_code < 400 or code(answer) in odd, f"{rule.operation}, {who.value}: {answer.text}"
