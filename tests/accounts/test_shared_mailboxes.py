"""Guesses at a mailbox of several people (mail-server F3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.accounts import GrantRole, Level, NewKey, NewPerson, Person, SignInError
from postroom.accounts.service.sessions import Origin
from postroom.base.errors import PostroomError
from tests.accounts.home import ALICE, RIGHT, WRONG, Home
from tests.accounts.test_people import code_of

if TYPE_CHECKING:
    from tests.accounts.conftest import House

HIS = "bobs own horse"


@pytest.fixture
async def bob(home: Home) -> Person:
    """He reads Alice's mail."""
    person = await home.house.people.create(NewPerson("Bob", "bob@example.com", password=HIS))
    await home.house.people.grant(home.box.tenant_id, home.box.public_id, person.public_id, GrantRole.READ)
    return person


async def tried(home: Home, where: str, password: str, at: str = ALICE) -> str:
    """What comes of a password by mail program or over HTTP."""
    # Failures of a network count apart.
    home.house.clock.advance(1)
    remote = f"2001:db8:0:{home.house.clock.now().timestamp() % 60000:.0f}::1"
    if where == "web":
        try:
            await home.house.entrance.sign_in(at, password, None, Origin(remote))
        except PostroomError as exc:
            return {"too_many_attempts": "throttled", "invalid_credentials": "invalid"}.get(exc.code, exc.code)
        return "in"
    answer = await home.mail(password, at, remote)
    return answer.kind.value if isinstance(answer, SignInError) else "in"


@pytest.mark.covers("mail-server:F3", "security-privacy:A5")
@pytest.mark.parametrize("where", ["mail", "web"])
async def test_whoever_signs_in_hides_no_guesses_at_somebody_else(home: Home, bob: Person, where: str) -> None:
    for _ in range(10):
        assert await tried(home, where, WRONG) == "invalid"
        assert await tried(home, where, HIS) == "in"
    assert await tried(home, where, WRONG) == "throttled"
    assert await tried(home, where, RIGHT) == "throttled"
    # By no other way either: it is Alice who is guessed at.
    assert await tried(home, "web" if where == "mail" else "mail", RIGHT) == "throttled"
    assert await tried(home, "web", RIGHT, "alice@example.com") == "throttled"
    assert await tried(home, where, HIS) == "in"
    home.house.clock.advance(960)
    assert await tried(home, where, RIGHT) == "in"
    assert await tried(home, where, WRONG) == "invalid"


@pytest.mark.covers("mail-server:F3")
@pytest.mark.parametrize("where", ["mail", "web"])
async def test_whoever_signs_in_begins_their_own_count_anew(home: Home, bob: Person, where: str) -> None:
    for _ in range(3):
        for _ in range(9):
            assert await tried(home, where, WRONG) == "invalid"
        assert await tried(home, where, RIGHT) == "in"
        assert await tried(home, where, HIS) == "in"
    for _ in range(10):
        assert await tried(home, where, WRONG) == "invalid"
    for password in (WRONG, RIGHT, HIS):
        assert await tried(home, where, password) == "throttled"


@pytest.mark.covers("mail-server:F3", "mail-server:F4")
async def test_wrong_codes_are_those_of_whose_password_it_was(home: Home, bob: Person) -> None:
    await home.two_steps()
    for _ in range(9):
        assert await tried(home, "web", WRONG) == "invalid"
    assert await tried(home, "web", HIS) == "in"
    assert await code_of(home.web(RIGHT, "000000")) == "invalid_credentials"
    assert await code_of(home.web(RIGHT, home.code())) == "too_many_attempts"
    assert await tried(home, "web", HIS) == "in"


@pytest.mark.covers("mail-server:F3", "mail-server:D1")
async def test_an_agents_key_hides_no_guesses_at_a_person(house: House) -> None:
    tenant = await house.tenant("main", is_default=True)
    box = await house.identity(tenant, "alice")
    person = await house.people.create(NewPerson("Alice", "alice@example.com", password=RIGHT))
    await house.people.grant(tenant.id, box.public_id, person.public_id, GrantRole.OWNER)
    _, key = await house.keys.create(None, NewKey("k", Level.IDENTITY, ("messages:read",), tenant.id, box.id))
    home = Home(house, box, person)
    for attempt in range(10):
        assert await tried(home, "mail", WRONG) == "invalid"
        assert await tried(home, "mail", key) == ("in" if attempt < 9 else "throttled")
    assert await tried(home, "mail", WRONG) == "throttled"
