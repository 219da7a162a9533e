"""A session alone, which may be stolen, makes nothing to sign in with (mail-server F4, F5; security-privacy A10)."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from postroom.accounts import Principal
from postroom.accounts.service.account import Caller
from tests.accounts.home import RIGHT, WRONG, Home
from tests.accounts.test_people import code_of

if TYPE_CHECKING:
    pass


async def begun(home: Home, caller: Caller) -> None:
    """Two-step verification, as far as the secret."""
    home.secret = base64.b32decode((await home.house.account.enrol(caller, RIGHT)).secret)


async def both_steps(home: Home) -> dict[str, bool]:
    """Which sessions count as opened with a second factor."""
    return {one.public_id: one.second_factor for one in await home.house.sessions.page(home.person.id)}


@pytest.mark.covers("mail-server:F4", "decisions:A4", "security-privacy:A10")
async def test_an_old_session_gains_a_second_factor_by_the_password_alone(home: Home) -> None:
    account, clock = home.house.account, home.house.clock
    old, other = await home.caller(), await home.caller()
    clock.advance(86400)
    assert await code_of(account.enrol(old, WRONG)) == "invalid_credentials"
    assert (await home.house.two_step.status(home.person.id)).state == "disabled"
    await begun(home, old)
    clock.advance(599)
    await account.confirm(old, home.code())
    assert await both_steps(home) == {old.session.public_id: True, other.session.public_id: False}


@pytest.mark.covers("mail-server:F4", "decisions:A4", "security-privacy:A10")
@pytest.mark.parametrize(("age", "counts"), [(600, True), (601, False)])
async def test_whoever_confirms_what_another_session_began(home: Home, age: int, counts: bool) -> None:
    account, clock = home.house.account, home.house.clock
    stolen = await home.caller()
    clock.advance(age)
    mine = await home.caller()
    await begun(home, mine)
    await account.confirm(stolen, home.code())
    assert await both_steps(home) == {stolen.session.public_id: counts, mine.session.public_id: False}
    assert (await home.house.two_step.status(home.person.id)).state == "enabled"


@pytest.mark.covers("mail-server:F1", "mail-server:F4", "mail-server:F5")
@pytest.mark.parametrize("what", ["enrol", "create"])
async def test_a_password_that_was_reset_meanwhile_makes_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    house = home.house
    caller = await home.caller()
    confirmed = house.entrance.confirm_password

    async def slow(*given: Any) -> Any:
        known = await confirmed(*given)
        await house.people.set_password(home.person.public_id, "another horse")
        return known

    monkeypatch.setattr(house.entrance, "confirm_password", slow)
    account = house.account
    work = account.enrol(caller, RIGHT) if what == "enrol" else account.create_app_password(caller, "x", RIGHT, None)
    assert await code_of(work) == "invalid_credentials"
    assert (await house.two_step.status(home.person.id)).state == "disabled"
    assert await house.app_passwords.page(home.person.id) == []


@pytest.mark.covers("mail-server:F3")
async def test_guesses_in_a_session_have_the_count_of_a_password_change(home: Home) -> None:
    account, caller = home.house.account, await home.caller()
    for attempt in range(10):
        work = account.enrol(caller, WRONG) if attempt % 2 else account.create_app_password(caller, "x", WRONG, None)
        assert await code_of(work) == "invalid_credentials"
    assert await code_of(account.enrol(caller, RIGHT)) == "too_many_attempts"
    assert await code_of(account.change_password(caller, RIGHT, "another horse")) == "too_many_attempts"
    assert await code_of(account.create_app_password(caller, "x", RIGHT, None)) == "too_many_attempts"
    assert isinstance(await home.mail(RIGHT), Principal)
