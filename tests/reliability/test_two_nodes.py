"""The control plane on two nodes at once: whatever both are asked for at the same instant, the database holds what one
after the other would have left, and everybody is told what became of theirs (decisions B10; J18, J27, W36).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from tests.conftest import new_database
from tests.reliability.helpers import eventually
from tests.reliability.nodes import NODES, Answer, Ask, Nodes, two_nodes
from tests.torture.clients import Http, Imap, Lost
from tests.torture.deployment import PASSWORD

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),  # the first test waits for both nodes
]

ROUNDS = 6
"""Of each race: what two processes do in the same millisecond is another thing each time."""
FEW = ("messages:read", "messages:write", "keys:manage")
LESS_THAN_WITHOUT_A_HINT = 20.0
"""Seconds. What a node is not told of it finds by itself, 30 s later."""
MAX_KEYS = 100
MAX_ADDRESSES = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(postgres_url: str, template_database: str) -> AsyncIterator[Nodes]:
    async with new_database(postgres_url, template_database) as url, two_nodes(url) as made:
        yield made
        # Nobody waited for somebody who waited for them, in any of the races.
        assert await made.count("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


@pytest.fixture
def nodes(both: Nodes) -> Nodes:
    both.turn()
    return both


def on_all(method: str, path: str, body: Any = None, *, times: int = 1, **more: str) -> list[Ask]:
    """The same request, `times` for each node, in turns."""
    return [Ask(at, method, path, body, **more) for _ in range(times) for at in range(NODES)]


def told(answers: Sequence[Answer]) -> Counter[str]:
    """How many were told what: statuses of successes, codes of errors."""
    return Counter(answer.code or str(answer.status) for answer in answers)


# -- made twice


@pytest.mark.covers("FR-IDN-1")
async def test_the_same_client_id(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    for _ in range(ROUNDS):
        client_id = nodes.word("client")
        body = {"username": nodes.word("bot"), "display_name": "Bot", "client_id": client_id}
        answers = await nodes.ask(*on_all("POST", f"/v1/tenants/{tenant}/identities", body, times=3))
        assert told(answers) == {"201": 1, "200": 5}
        assert len({answer.body["id"] for answer in answers}) == 1
        assert await nodes.count("SELECT count(*) FROM identities WHERE client_id = $1", client_id) == 1
        (made,) = {answer.body["id"] for answer in answers}
        tellings = "SELECT count(*) FROM {} WHERE {} = $1"
        assert await nodes.count(tellings.format("audit_log", "target_id"), made) == 1


@pytest.mark.covers("FR-IDN-1")
async def test_the_same_client_id_for_another_identity(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    for same_name in (True, False) * (ROUNDS // 2):
        client_id, name = nodes.word("client"), nodes.word("bot")
        asked = [
            Ask(
                at,
                "POST",
                f"/v1/tenants/{tenant}/identities",
                {
                    "username": name if same_name else f"{name}x{at}",
                    "display_name": f"Number {at}",
                    "client_id": client_id,
                },
            )
            for at in range(NODES)
        ]
        answers = await nodes.ask(*asked)
        assert told(answers) == {"201": 1, "client_id_conflict": 1}
        winner = next(answer.body for answer in answers if answer.status == 201)
        again = await nodes.ask(*asked)
        assert told(again) == {"200": 1, "client_id_conflict": 1}
        assert {answer.body["id"] for answer in again if answer.status == 200} == {winner["id"]}


@pytest.mark.covers("FR-IDN-1", "edge:D12", "FR-TEN-1")
async def test_one_name_for_two(nodes: Nodes) -> None:
    """Usernames within a tenant, slugs and suffixes of tenants, and addresses."""
    tenant = await nodes.tenant()
    domain, pair = await nodes.domain(tenant), [await nodes.identity(tenant) for _ in range(NODES)]
    for _ in range(ROUNDS):
        name = nodes.word("name")
        body: dict[str, Any] = {"username": name, "display_name": "Bot"}
        answers = await nodes.ask(*on_all("POST", f"/v1/tenants/{tenant}/identities", body, times=2))
        assert told(answers) == {"201": 1, "username_taken": 3}
        assert await nodes.count("SELECT count(*) FROM addresses WHERE local_part LIKE $1 || '.%'", name) == 1
        answers = await nodes.ask(*on_all("POST", "/v1/tenants", {"slug": name, "name": name, "mode": "live"}, times=2))
        assert told(answers) in ({"201": 1, "slug_taken": 3}, {"201": 1, "suffix_taken": 3})
        assert await nodes.count("SELECT count(*) FROM tenants WHERE slug = $1", name) == 1
        body = {"local_part": name, "domain_id": domain}
        answers = await nodes.ask(*(Ask(at, "POST", f"/v1/identities/{pair[at]}/addresses", body) for at in (0, 1)))
        assert told(answers) == {"201": 1, "address_taken": 1}


# -- the last one


async def partner_of(nodes: Nodes, max_tenants: int) -> tuple[str, str]:
    """A partner and the secret of a key of it."""
    made = await nodes.do("POST", "/v1/partners", {"name": nodes.word("Partner"), "max_tenants": max_tenants})
    permissions = ["tenants:manage", "keys:manage"]
    return made["id"], (await nodes.key(level="partner", partner_id=made["id"], permissions=permissions))[1]


@pytest.mark.covers("edge:J18", "FR-KEY-4")
async def test_the_last_tenant_of_a_partner(nodes: Nodes) -> None:
    for _ in range(ROUNDS):
        partner, key = await partner_of(nodes, 3)
        slugs = [nodes.word("of") for _ in range(6)]
        asked = [
            Ask(at % NODES, "POST", "/v1/tenants", {"slug": slug, "name": slug, "mode": "live"}, key)
            for at, slug in enumerate(slugs)
        ]
        assert told(await nodes.ask(*asked)) == {"201": 3, "partner_tenant_limit": 3}
        statement = (
            "SELECT count(*) FROM partner_tenants o JOIN partners p ON p.id = o.partner_id WHERE p.public_id = $1"
        )
        assert await nodes.count(statement, partner) == 3


@pytest.mark.covers("edge:J12", "edge:J18")
async def test_a_partner_goes_while_its_key_makes_a_tenant(nodes: Nodes) -> None:
    for first in range(ROUNDS):
        partner, key = await partner_of(nodes, 5)
        slug = nodes.word("of")
        make = Ask(first % 2, "POST", "/v1/tenants", {"slug": slug, "name": slug, "mode": "live"}, key)
        made, gone = await nodes.ask(make, Ask(1 - first % 2, "DELETE", f"/v1/partners/{partner}"))
        if made.status == 201:
            assert gone.code == "partner_has_tenants"
        else:
            # When it was let in before, it is told that its key is; else nobody knows the key.
            assert made.code in ("key_revoked", "unauthenticated")
            assert gone.status == 204
        assert await nodes.count("SELECT count(*) FROM tenants WHERE slug = $1", slug) == (made.status == 201)


@pytest.mark.covers("FR-ADR-1", "edge:A11")
async def test_the_last_address_of_an_identity(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    domain, box = await nodes.domain(tenant), await nodes.identity(tenant)
    path = f"/v1/identities/{box}/addresses"
    for _ in range(MAX_ADDRESSES - 3):
        await nodes.do("POST", path, {"local_part": nodes.word("a"), "domain_id": domain})
    bodies = [{"local_part": nodes.word("last"), "domain_id": domain} for _ in range(6)]
    answers = await nodes.ask(*(Ask(at % NODES, "POST", path, body) for at, body in enumerate(bodies)))
    assert told(answers) == {"201": 2, "address_limit_reached": 4}
    statement = "SELECT count(*) FROM addresses a JOIN identities i ON i.id = a.identity_id WHERE i.public_id = $1"
    assert await nodes.count(statement, box) == MAX_ADDRESSES


@pytest.mark.covers("security-privacy:A3.5")
async def test_the_last_key_of_a_tenant(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    body = {"name": "a key", "level": "tenant", "tenant_id": tenant, "permissions": ["messages:read"]}
    for _ in range(MAX_KEYS // 10 - 1):
        assert told(await nodes.ask(*on_all("POST", "/v1/keys", body, times=5))) == {"201": 10}
    assert told(await nodes.ask(*on_all("POST", "/v1/keys", body, times=8))) == {"201": 10, "key_limit_reached": 6}
    statement = "SELECT count(*) FROM api_keys k JOIN tenants t ON t.id = k.tenant_id WHERE t.public_id = $1"
    assert await nodes.count(statement, tenant) == MAX_KEYS


# -- one against the other


@pytest.mark.covers("FR-ADR-2", "FR-ADR-4", "decisions:B10")
async def test_promote_against_retire(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    domain = await nodes.domain(tenant)
    seen: Counter[tuple[str, str]] = Counter()
    for number in range(ROUNDS):
        box = await nodes.identity(tenant)
        path = f"/v1/identities/{box}/addresses"
        one, two = [
            (await nodes.do("POST", path, {"local_part": nodes.word("a"), "domain_id": domain}))["id"] for _ in range(2)
        ]
        await nodes.do("POST", f"{path}/{one}/promote")
        at = number % 2
        answers = await nodes.ask(
            Ask(at, "POST", f"{path}/{two}/promote", {"retire_previous_after_days": 0}),
            Ask(1 - at, "POST", f"{path}/{two}/retire", {"after_days": 0}),
            Ask(1 - at, "POST", f"{path}/{one}/promote", {"retire_previous_after_days": 0}),
        )
        promoted, retired, _ = answers
        assert all(answer.status < 500 for answer in answers), told(answers)
        rows = await nodes.database.fetch(
            "SELECT a.public_id, a.role, a.status FROM addresses a JOIN identities i ON i.id = a.identity_id"
            " WHERE i.public_id = $1",
            box,
        )
        now = {row["public_id"]: (row["role"], row["status"]) for row in rows}
        primaries = [state for role, state in now.values() if role == "primary"]
        assert primaries == ["active"]
        # The promotion and the retirement of the same address exclude each other, whichever came first.
        assert (promoted.status, retired.status) != (200, 200)
        if retired.status == 200:
            assert now[two] == ("alias", "retired")
        shown = (await nodes.do("GET", f"/v1/identities/{box}", at=at))["addresses"]
        assert {item["id"]: (item["role"], item["status"]) for item in shown} == now
        seen[str(promoted.code), str(retired.code)] += 1
    assert sum(seen.values()) == ROUNDS


@pytest.mark.covers("FR-IDN-1", "FR-IDN-4")
async def test_what_is_read_of_an_identity_while_it_is_deleted(nodes: Nodes) -> None:
    """It is shown as it was at one moment: with its address, or as one that is going."""
    tenant = await nodes.tenant()
    for number in range(ROUNDS):
        box = await nodes.identity(tenant)
        path, at = f"/v1/identities/{box}", number % 2
        listed = f"/v1/tenants/{tenant}/identities?limit=1"
        *answers, gone = await nodes.ask(
            *on_all("GET", path, times=6), *on_all("GET", listed, times=3), Ask(at, "DELETE", path)
        )
        assert gone.status == 202
        assert told(answers) == {"200": 18}
        seen = [answer.body for answer in answers[:12]]
        seen += [one for answer in answers[12:] for one in answer.body["data"] if one["id"] == box]
        for one in seen:
            roles = [address["role"] for address in one["addresses"]]
            assert (one["status"], roles) in (("active", ["primary"]), ("deleting", []))


@pytest.mark.covers("FR-KEY-2", "security-privacy:A3.6")
async def test_rotate_against_revoke(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    for number in range(ROUNDS):
        key, secret = await nodes.key(level="tenant", tenant_id=tenant, permissions=["messages:read"])
        at = number % 2
        rotated, revoked = await nodes.ask(
            Ask(at, "POST", f"/v1/keys/{key}/rotate", {"overlap_hours": 1}), Ask(1 - at, "DELETE", f"/v1/keys/{key}")
        )
        assert revoked.status == 204
        secrets = [secret]
        if rotated.status == 200:
            secrets.append(rotated.body["secret"])
        else:
            assert rotated.code == "invalid_request"
            assert rotated.body["error"]["details"]["reason"] == "key_revoked"
        answers = await nodes.ask(*(ask for text in secrets for ask in on_all("GET", "/v1/me", key=text)))
        # The old secret went with the revocation; whoever has the newest is told that the key is revoked.
        assert all(answer.status == 401 for answer in answers)
        assert {answer.code for answer in answers[-NODES:]} <= {"key_revoked"}


@pytest.mark.covers("FR-KEY-2", "security-privacy:A3.6", "decisions:B10")
async def test_keys_that_rotate_each_other(nodes: Nodes) -> None:
    """One of two at the same time gets a secret after the other; nobody waits for somebody who waits for them."""
    tenant = await nodes.tenant()
    for _ in range(ROUNDS):
        pair = [await nodes.key(level="tenant", tenant_id=tenant, permissions=list(FEW)) for _ in range(NODES)]
        answers = await nodes.ask(
            *(
                Ask(at, "POST", f"/v1/keys/{pair[1 - at][0]}/rotate", {"overlap_hours": 1}, key=pair[at][1])
                for at in range(NODES)
            )
        )
        assert told(answers) == {"200": 2}
        works = await nodes.ask(*(Ask(at, "GET", "/v1/me", key=answers[at].body["secret"]) for at in range(NODES)))
        assert told(works) == {"200": 2}


@pytest.mark.covers("FR-KEY-2", "security-privacy:A3.6")
async def test_one_key_rotated_twice(nodes: Nodes) -> None:
    """Both get a secret, and of three two open: the newest, and the one before."""
    tenant = await nodes.tenant()
    for _ in range(ROUNDS):
        key, secret = await nodes.key(level="tenant", tenant_id=tenant, permissions=["messages:read"])
        answers = await nodes.ask(*on_all("POST", f"/v1/keys/{key}/rotate", {"overlap_hours": 1}))
        assert told(answers) == {"200": 2}
        new = [answer.body["secret"] for answer in answers]
        assert told(await nodes.ask(*(Ask(0, "GET", "/v1/me", key=text) for text in new))) == {"200": 2}
        assert told(await nodes.ask(Ask(1, "GET", "/v1/me", key=secret))) == {"unauthenticated": 1}


@pytest.mark.covers("security-privacy:A3.5", "edge:W36")
async def test_what_a_key_makes_while_it_is_revoked(nodes: Nodes) -> None:
    """Nobody has a key of a parent that was revoked before it was made."""
    tenant = await nodes.tenant()
    body = {"name": "a child", "level": "tenant", "tenant_id": tenant, "permissions": ["messages:read"]}
    for number in range(ROUNDS):
        key, secret = await nodes.key(level="tenant", tenant_id=tenant, permissions=list(FEW))
        at = number % 2
        made, revoked = await nodes.ask(
            Ask(at, "POST", "/v1/keys", body, secret), Ask(1 - at, "DELETE", f"/v1/keys/{key}")
        )
        assert revoked.status == 204
        assert made.status == 201 or made.code == "key_revoked"
        children = await nodes.count("SELECT count(*) FROM api_keys WHERE created_by_key = $1", key)
        assert children == (made.status == 201)


@pytest.mark.covers("FR-TEN-3", "FR-IDN-1")
async def test_an_identity_of_a_tenant_that_is_being_suspended(nodes: Nodes) -> None:
    """None of a suspended tenant is active, and all that the suspension paused are, once it is lifted."""
    for number in range(2 * ROUNDS):
        tenant = await nodes.tenant()
        path, at = f"/v1/tenants/{tenant}", number % 2
        bodies = [{"username": nodes.word("bot"), "display_name": "Bot"} for _ in range(4)]
        *made, suspended = await nodes.ask(
            *(Ask(at, "POST", f"{path}/identities", body) for body in bodies),
            Ask(1 - at, "PATCH", path, {"status": "suspended"}),
        )
        assert suspended.status == 200
        assert set(told(made)) <= {"201", "tenant_suspended"}
        statement = (
            "SELECT count(*) FROM identities i JOIN tenants t ON t.id = i.tenant_id"
            " WHERE t.public_id = $1 AND i.status = $2"
        )
        assert await nodes.count(statement, tenant, "active") == 0
        assert await nodes.count(statement, tenant, "paused") == told(made)["201"]
        await nodes.do("PATCH", path, {"status": "active"})
        assert await nodes.count(statement, tenant, "active") == told(made)["201"]


# -- the same request twice


@pytest.mark.covers("FR-API-2", "security-privacy:A3.5")
async def test_an_idempotency_key_at_two_nodes(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    for _ in range(ROUNDS):
        name, once = nodes.word("once"), nodes.word("key")
        body = {"name": name, "level": "tenant", "tenant_id": tenant, "permissions": ["messages:read"]}
        asked = on_all("POST", "/v1/keys", body, times=2, once=once)
        answers = [*await nodes.ask(*asked), *await nodes.ask(*asked)]
        assert set(told(answers)) <= {"201", "request_in_progress"}
        assert told(answers[-4:]) == {"201": 4}
        made = [answer.body for answer in answers if answer.status == 201]
        assert len({one["id"] for one in made}) == 1
        assert len([one for one in made if "secret" in one]) == 1
        assert await nodes.count("SELECT count(*) FROM api_keys WHERE name = $1", name) == 1
        statement = "SELECT count(*) FROM idempotency_records WHERE response_body::text LIKE '%pmk_%'"
        assert await nodes.count(statement) == 0
        other = {**body, "name": nodes.word("other")}
        assert told(await nodes.ask(*on_all("POST", "/v1/keys", other, once=once))) == {"idempotency_conflict": 2}


@pytest.mark.covers("FR-API-2")
async def test_two_requests_with_one_idempotency_key(nodes: Nodes) -> None:
    """One is done; the other is never done."""
    for _ in range(ROUNDS):
        once, slugs = nodes.word("key"), [nodes.word("either") for _ in range(NODES)]
        asked = [
            Ask(at, "POST", "/v1/tenants", {"slug": slug, "name": slug, "mode": "live"}, once=once)
            for at, slug in enumerate(slugs)
        ]
        answers = await nodes.ask(*asked)
        assert told(answers)["201"] == 1
        assert set(told(answers)) <= {"201", "request_in_progress", "idempotency_conflict"}
        assert told(await nodes.ask(*asked)) == {"201": 1, "idempotency_conflict": 1}
        assert await nodes.count("SELECT count(*) FROM tenants WHERE slug = ANY ($1)", slugs) == 1


# -- policies


@pytest.mark.covers("edge:J27", "FR-TEN-4")
async def test_no_policy_is_lost(nodes: Nodes) -> None:
    tenant = await nodes.tenant()
    path = f"/v1/tenants/{tenant}/policy"
    members = ("max_recipients", "identity_daily_send_cap", "tenant_daily_send_cap")
    version = 0
    for number in range(ROUNDS):
        asked = [Ask(at % NODES, "PATCH", path, {name: 9 - number}) for at, name in enumerate(members)]
        answers = await nodes.ask(*asked)
        assert set(told(answers)) <= {"200", "unavailable"}
        written = [name for name, answer in zip(members, answers, strict=True) if answer.status == 200]
        assert written
        # Each wrote on top of the others: versions are all different, and the last shows what all wrote.
        version += len(written)
        versions = [answer.body["policy_version"] for answer in answers if answer.status == 200]
        assert sorted(versions) == list(range(version - len(written) + 1, version + 1))
        for at in range(NODES):
            view = await nodes.do("GET", path, at=at)
            assert view["policy_version"] == version
            assert {name: view["policy"][name] for name in written} == dict.fromkeys(written, 9 - number)
    action = (
        "SELECT count(*) FROM audit_log a JOIN tenants t ON t.id = a.tenant_id WHERE t.public_id = $1 AND action = $2"
    )
    assert await nodes.count(action, tenant, "tenant.policy_update") == version
    events = "SELECT count(*) FROM events e JOIN tenants t ON t.id = e.tenant_id WHERE t.public_id = $1 AND e.type = $2"
    assert await nodes.count(events, tenant, "tenant.policy_updated") == version


@pytest.mark.covers("edge:J27", "FR-TEN-4")
async def test_a_policy_of_the_other_node_is_heard_of(nodes: Nodes) -> None:
    """What a node remembers of a policy goes when another node writes it."""
    tenant = await nodes.tenant()
    key = (await nodes.key(level="tenant", tenant_id=tenant, permissions=["identities:write"]))[1]

    async def admitted(at: int, cap: int) -> bool:
        body = {"username": nodes.word("bot"), "display_name": "Bot", "send_policy": {"daily_cap": cap}}
        (answer,) = await nodes.ask(Ask(at, "POST", f"/v1/tenants/{tenant}/identities", body, key))
        assert answer.status == 201 or answer.code == "scope_denied"
        return answer.status == 201

    async def refused(at: int, cap: int) -> bool | None:
        return None if await admitted(at, cap) else True

    assert await admitted(1, 7)
    for cap in (6, 5, 4):
        await nodes.do("PATCH", f"/v1/tenants/{tenant}/policy", {"identity_daily_send_cap": cap})
        await eventually(partial(refused, 1, cap + 1), LESS_THAN_WITHOUT_A_HINT)
        assert not await admitted(0, cap + 1)
        assert await admitted(1, cap)


# -- revoked while in use


@dataclass
class Use:
    """Somebody who asks again and again with a key or a session, at one node."""

    nodes: Nodes
    at: int
    secret: str
    path: str
    accepted: int = 0
    refused: int = 0
    accepted_late: int = 0
    """Requests that were sent after the answer to the revocation, and answered as if there had been none."""
    is_over: bool = False

    async def run(self, after: int) -> None:
        """Until `after` refusals since the revocation."""
        async with Http(self.nodes.servers[self.at].deployment.ports["http"], self.secret) as client:
            late = 0
            while late < after:
                was_over = self.is_over
                status, _ = await client.request("GET", self.path)
                late += was_over
                self.accepted += status == 200
                self.refused += status == 401
                self.accepted_late += was_over and status == 200
                assert status in (200, 401)


async def used_and_ended(nodes: Nodes, secret: str, path: str, end: Ask) -> list[Use]:
    """Six clients, three at each node, use the secret; in the middle of it `end` is asked. How they fared."""
    uses = [Use(nodes, at % NODES, secret, path) for at in range(3 * NODES)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for use in uses:
            group.create_task(use.run(10))
        while not all(use.accepted > 2 for use in uses):  # noqa: ASYNC110 - nothing tells of a request of theirs
            await asyncio.sleep(0.01)
        (answer,) = await nodes.ask(end)
        assert answer.status < 300, answer
        for use in uses:
            use.is_over = True
    return uses


@pytest.mark.covers("security-privacy:A3.2", "edge:J6", "FR-KEY-2")
@pytest.mark.parametrize("how", ["revoked", "rotated", "identity deleted"])
async def test_a_key_that_is_revoked_in_use(nodes: Nodes, how: str) -> None:
    """There is no moment in which the other node still lets it in: a request that is sent after the answer to the
    revocation is refused, at every node."""
    tenant = await nodes.tenant()
    for at in range(NODES):
        box = await nodes.identity(tenant)
        key, secret = await nodes.key(level="identity", tenant_id=tenant, identity_id=box, permissions=list(FEW))
        end = {
            "revoked": Ask(at, "DELETE", f"/v1/keys/{key}"),
            "rotated": Ask(at, "POST", f"/v1/keys/{key}/rotate", {"overlap_hours": 0}),
            "identity deleted": Ask(at, "DELETE", f"/v1/identities/{box}"),
        }[how]
        for use in await used_and_ended(nodes, secret, "/v1/me", end):
            assert use.accepted > 2
            assert use.accepted_late == 0
            assert use.refused >= 10


async def session_of(nodes: Nodes) -> str:
    box = nodes.person
    body = {"email": box.address, "password": PASSWORD}
    return str((await nodes.do("POST", "/v1/auth/session", body, key="-"))["token"])


@pytest.mark.covers("mail-server:F2", "decisions:D7")
async def test_a_session_that_is_ended_in_use(nodes: Nodes) -> None:
    for at in range(NODES):
        token = await session_of(nodes)
        end = Ask(at, "DELETE", "/v1/auth/session", key=token)
        for use in await used_and_ended(nodes, token, "/v1/account", end):
            assert use.accepted_late == 0
            assert use.refused >= 10


@pytest.mark.covers("mail-server:F1", "edge:J6")
async def test_connections_end_at_both_nodes(nodes: Nodes) -> None:
    """IMAP connections that were opened with the key before: nobody asks again who they are, so they are told."""
    tenant = await nodes.tenant()
    for at in range(NODES):
        box = await nodes.do(
            "POST", f"/v1/tenants/{tenant}/identities", {"username": nodes.word("bot"), "display_name": "Bot"}
        )
        address = next(one["address"] for one in box["addresses"] if one["role"] == "primary")
        key, secret = await nodes.key(level="identity", tenant_id=tenant, identity_id=box["id"], permissions=list(FEW))
        clients = [Imap(server.deployment.ports["imap"]) for server in nodes.servers]
        async with clients[0], clients[1]:
            for client in clients:
                await client.login(address, secret)
                assert (await client.command("SELECT INBOX")).status == "OK"
            await nodes.do("DELETE", f"/v1/keys/{key}", at=at)
            async with asyncio.timeout(LESS_THAN_WITHOUT_A_HINT):
                for client in clients:
                    with pytest.raises(Lost):
                        await _forever(client)


async def _forever(client: Imap) -> None:
    while True:
        await client.line()
