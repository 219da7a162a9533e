"""Application passwords, two-step verification, sessions: of one person, wherever they sign in (mail-server F)."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest

from postroom.accounts import GrantRole, Level, NewKey, NewPerson, Principal, SignInError, SignInFailure
from postroom.accounts.audit import HOST
from postroom.accounts.models import NewDevice, SessionKind
from postroom.accounts.service.account import Caller
from postroom.accounts.service.sessions import Origin
from postroom.base.errors import PostroomError
from postroom.db import DatabaseUnavailable
from postroom.directory import IdentityKind
from tests.accounts.home import ALICE, HERE, RIGHT, WRONG, Home
from tests.accounts.test_people import code_of

if TYPE_CHECKING:
    pass

INVALID = SignInError(SignInFailure.INVALID)


# -- application passwords


@pytest.mark.covers("mail-server:F5", "decisions:B11")
async def test_an_application_password_opens_the_mailboxes_of_its_person(home: Home) -> None:
    house = home.house
    public_id, text = await home.new()
    assert text.startswith("ap_")
    assert len(text) == 35
    found = await home.mail(text)
    assert isinstance(found, Principal)
    assert (found.public_id, found.identity_id, found.grant) == (home.person.public_id, home.box.id, GrantRole.OWNER)
    (listed,) = await house.app_passwords.page(home.person.id)
    assert (listed.public_id, listed.last_used_at) == (public_id, house.clock.now())
    # Somebody else's mailbox stays closed, and nothing of the secret is stored.
    other = await house.identity(await house.tenants.get(home.box.tenant_public_id), "bob", IdentityKind.PERSON)
    assert await home.mail(text, other.primary.address) == INVALID
    async with house.db.acquire() as conn:
        found_in = "SELECT count(*) FROM app_passwords WHERE position($1 in app_passwords::text) > 0"
        assert await conn.fetchval(found_in, text[3:]) == 0
    await house.people.set_enabled(home.person.public_id, False)
    assert await home.mail(text) == INVALID


async def test_a_look_up_hashes_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = await home.new()

    async def never(*_: object) -> None:
        raise AssertionError("hashed")

    monkeypatch.setattr(home.house.passwords, "verify", never)
    assert isinstance(await home.mail(text), Principal)


@pytest.mark.covers("mail-server:F5")
async def test_revoked_ones_stay_in_the_list_and_open_nothing(home: Home) -> None:
    house = home.house
    public_id, text = await home.new()
    _, session = await home.web(text)
    await house.app_passwords.revoke(home.person, public_id, HOST)
    assert house.hints == [home.person.public_id]
    assert await home.mail(text) == INVALID
    (listed,) = await house.app_passwords.page(home.person.id)
    assert listed.revoked_at == house.clock.now()
    assert await house.sessions.page(home.person.id) == []
    assert session.app_password_id is not None
    for named in (public_id, "apw_x", house.ids.new("apw_")):
        assert await code_of(house.app_passwords.revoke(home.person, named, HOST)) == "app_password_not_found"
    other = await house.people.create(NewPerson("Other"))
    mine, _ = await home.new()
    assert await code_of(house.app_passwords.revoke(other, mine, HOST)) == "app_password_not_found"


async def test_there_are_only_so_many(home: Home) -> None:
    house = home.house
    made = await asyncio.gather(*(code_of(home.new(str(number))) for number in range(52)))
    assert sorted(map(str, made)) == ["None"] * 50 + ["app_password_limit_reached"] * 2
    page = await house.app_passwords.page(home.person.id, limit=50)
    rest = await house.app_passwords.page(home.person.id, after=(page[19].created_at, page[19].public_id), limit=100)
    assert page[20:] == rest
    await house.app_passwords.revoke(home.person, page[0].public_id, HOST)
    await home.new()
    for label in ("", "a\nb", "x" * 129):
        assert await code_of(house.app_passwords.create(home.person, label, HOST)) == "invalid_request"


@pytest.mark.covers("mail-server:F3", "mail-server:F5")
async def test_wrong_ones_count_and_a_right_one_passes_the_accounts_lock(home: Home) -> None:
    _, text = await home.new()
    wrong = "ap_" + "x" * 32
    for attempt in range(10):
        assert await home.mail(wrong, remote=f"198.51.100.{attempt}") == INVALID
        # Mail programs that poll do not begin the count anew for whoever guesses.
        assert isinstance(await home.mail(text, remote="203.0.113.1"), Principal)
    for password in (RIGHT, wrong):
        locked = await home.mail(password, remote="203.0.113.2")
        assert isinstance(locked, SignInError)
        assert locked.kind is SignInFailure.THROTTLED
    assert isinstance(await home.mail(text, remote="203.0.113.1"), Principal)


# -- two-step verification


@pytest.mark.covers("mail-server:F4", "mail-server:A4", "decisions:A4")
async def test_the_password_alone_opens_no_mailbox_where_there_are_two_steps(home: Home) -> None:
    before = await home.mail(RIGHT)
    assert isinstance(before, Principal)
    await home.two_steps()
    assert await home.mail(RIGHT) == INVALID
    assert not await home.house.sign_in.stands(before)
    _, text = await home.new()
    assert isinstance(await home.mail(text), Principal)
    assert await code_of(home.web()) == "totp_required"
    assert await code_of(home.web(WRONG)) == "invalid_credentials"
    assert await code_of(home.web(WRONG, home.code())) == "invalid_credentials"
    _, session = await home.web(RIGHT, home.code())
    assert session.second_factor


@pytest.mark.covers("mail-server:F4")
async def test_nothing_is_asked_for_until_it_was_confirmed(home: Home) -> None:

    two_step, clock = home.house.two_step, home.house.clock
    assert (await two_step.status(home.person.id)).state == "disabled"
    assert await code_of(two_step.confirm(home.person, "123456", HOST)) == "totp_not_enabled"
    first = await two_step.enrol(home.person)
    enrolment = await two_step.enrol(home.person)
    assert first.secret != enrolment.secret
    assert repr(enrolment) == "Enrolment(…)"
    assert (await two_step.status(home.person.id)).state == "pending"
    assert isinstance(await home.mail(RIGHT), Principal)
    await home.web()
    home.secret = base64.b32decode(first.secret)
    assert await code_of(two_step.confirm(home.person, home.code(), HOST)) == "invalid_credentials"
    clock.advance(601)
    home.secret = base64.b32decode(enrolment.secret)
    assert await code_of(two_step.confirm(home.person, home.code(), HOST)) == "totp_not_enabled"
    codes = await home.two_steps()
    assert len(set(codes)) == 10
    status = await two_step.status(home.person.id)
    assert (status.state, status.recovery_codes_left) == ("enabled", 10)
    assert await code_of(two_step.enrol(home.person)) == "totp_enabled"
    assert await code_of(two_step.confirm(home.person, home.code(), HOST)) == "totp_enabled"
    async with home.house.db.acquire() as conn:
        (row,) = await conn.fetch("SELECT secret_sealed, pending_sealed FROM person_totp")
    assert home.secret not in row["secret_sealed"]
    assert row["pending_sealed"] is None


@pytest.mark.covers("mail-server:F4", "RFC 6238 §5.2")
async def test_a_code_counts_once(home: Home) -> None:
    codes = await home.two_steps()
    code = home.code()
    outcomes = await asyncio.gather(*(code_of(home.web(RIGHT, code)) for _ in range(3)))
    assert sorted(map(str, outcomes)) == ["None", "invalid_credentials", "invalid_credentials"]
    await home.web(RIGHT, home.code(1))
    # What is older than what was used is not taken either.
    assert await code_of(home.web(RIGHT, home.code(-1))) == "invalid_credentials"
    home.house.clock.advance(60)
    typed = f" {codes[3].lower().replace('-', ' ')}"
    outcomes = await asyncio.gather(*(code_of(home.web(RIGHT, typed)) for _ in range(3)))
    assert sorted(map(str, outcomes)) == ["None", "invalid_credentials", "invalid_credentials"]
    assert (await home.house.two_step.status(home.person.id)).recovery_codes_left == 9


@pytest.mark.covers("mail-server:F3", "security-privacy:A5")
async def test_codes_cannot_be_guessed(home: Home) -> None:
    await home.two_steps()
    _, text = await home.new()
    house = home.house
    for attempt in range(10):
        assert await code_of(home.web(RIGHT, "000000")) == "invalid_credentials"
        # Neither a mail program nor the right password begins the count anew.
        assert isinstance(await home.mail(text), Principal)
        if attempt % 5 == 4:
            assert await code_of(home.web(RIGHT, home.code())) == "too_many_attempts"
            house.clock.advance(60)
    assert await code_of(home.web(RIGHT, home.code())) == "too_many_attempts"
    house.clock.advance(820)
    assert await code_of(home.web(RIGHT, home.code())) == "too_many_attempts"
    house.clock.advance(120)
    await home.web(RIGHT, home.code())


@pytest.mark.covers("mail-server:F4", "security-privacy:A10")
async def test_disabling_wants_both_steps_and_the_host_wants_neither(home: Home) -> None:
    codes = await home.two_steps()
    account, clock = home.house.account, home.house.clock
    caller = await home.caller(RIGHT, home.code())
    assert await code_of(account.disable(caller, WRONG, codes[0])) == "invalid_credentials"
    assert await code_of(account.disable(caller, RIGHT, "123456")) == "invalid_credentials"
    fresh = await account.replace_recovery_codes(caller, RIGHT, codes[0])
    assert not set(fresh) & set(codes)
    assert await code_of(account.disable(caller, RIGHT, codes[1])) == "invalid_credentials"
    clock.advance(60)
    await account.disable(caller, RIGHT, fresh[0])
    assert isinstance(await home.mail(RIGHT), Principal)
    assert (await home.house.two_step.status(home.person.id)).recovery_codes_left == 0
    assert await code_of(account.disable(caller, RIGHT, fresh[1])) == "totp_not_enabled"
    await home.two_steps()
    await home.house.two_step.clear(home.person, HOST)
    assert await code_of(home.house.two_step.clear(home.person, HOST)) == "totp_not_enabled"
    assert isinstance(await home.mail(RIGHT), Principal)
    assert [name for name in await home.audited() if "totp" in name or "codes" in name] == [
        *("totp.enable", "recovery_codes.replace", "totp.disable", "totp.enable", "totp.disable"),
    ]


# -- sessions


@pytest.mark.covers("mail-server:F2", "decisions:D7")
async def test_a_session_lives_while_it_is_used_and_a_month_at_most(home: Home) -> None:
    sessions, clock = home.house.sessions, home.house.clock
    token, session = await home.web(user_agent="Browser " + "x" * 500)
    assert token.startswith("pms_")
    assert await sessions.verify(token) == session
    assert session.user_agent is not None
    assert (len(session.user_agent), session.ip) == (256, HERE)
    for _ in range(4):
        clock.advance(6 * 86400)
        assert (await sessions.verify(token)).public_id == session.public_id
    clock.advance(5 * 86400)
    await sessions.verify(token)
    clock.advance(86400 - 1)
    await sessions.verify(token)
    clock.advance(1)
    assert await code_of(sessions.verify(token)) == "unauthenticated"
    idle, _ = await home.web()
    clock.advance(7 * 86400)
    assert await code_of(sessions.verify(idle)) == "unauthenticated"
    for bad in ("", "pms_", "pms_" + "x" * 43, token[:-1], f"{token} "):
        assert await code_of(sessions.verify(bad)) == "unauthenticated"
    async with home.house.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM sessions") == 2
    clock.advance(31 * 86400)
    await sessions.prune()
    async with home.house.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM sessions") == 0


async def test_signing_in_by_mailbox_or_contact_address(home: Home) -> None:
    for address in (ALICE, "Alice@Example.COM", f" {ALICE.upper()} "):
        _, session = await home.web(address=address)
        assert session.person_public_id == home.person.public_id
    for address in ("nobody@agents.example", "", "a\0b@c", "\ud800@x.example"):
        assert await code_of(home.web(address=address)) == "invalid_credentials"
        home.house.clock.advance(1000)


@pytest.mark.covers("mail-server:F1")
async def test_changing_the_password_ends_every_other_session(home: Home) -> None:
    house = home.house
    token, session = await home.web()
    other, _ = await home.web()
    mail = await home.mail(RIGHT)
    _, text = await home.new()
    program = await home.mail(text)
    assert isinstance(mail, Principal)
    assert isinstance(program, Principal)
    caller = Caller(session, HERE)
    assert await code_of(house.account.change_password(caller, WRONG, "another horse")) == "invalid_credentials"
    assert await code_of(house.account.change_password(caller, RIGHT, "short")) == "invalid_request"
    assert await house.sign_in.stands(mail)
    house.hints.clear()
    await house.account.change_password(caller, RIGHT, "another horse")
    assert house.hints == [home.person.public_id]
    await house.sessions.verify(token)
    assert await code_of(house.sessions.verify(other)) == "unauthenticated"
    assert not await house.sign_in.stands(mail)
    assert not await house.sign_in.stands(program)
    assert isinstance(await home.mail(text), Principal)
    assert await home.mail(RIGHT) == INVALID
    # An administrator's reset ends all of them.
    await house.people.set_password(home.person.public_id, RIGHT)
    assert await code_of(house.sessions.verify(token)) == "unauthenticated"


async def test_a_session_is_not_opened_by_a_password_that_was_just_changed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = home.house
    real = house.passwords.verify

    async def slow(phc: str | None, password: str) -> Any:
        found = await real(phc, password)
        await house.people.set_password(home.person.public_id, "another horse")
        return found

    monkeypatch.setattr(house.passwords, "verify", slow)
    assert await code_of(home.web()) == "invalid_credentials"
    assert await house.sessions.page(home.person.id) == []


@pytest.mark.covers("mail-server:F5")
async def test_a_session_is_not_opened_by_an_application_password_that_was_just_revoked(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = home.house
    public_id, text = await home.new()
    real = house.sessions.open

    async def slow(*proved: Any) -> Any:
        await house.app_passwords.revoke(home.person, public_id, HOST)
        return await real(*proved)

    monkeypatch.setattr(house.sessions, "open", slow)
    assert await code_of(home.web(text)) == "invalid_credentials"
    assert await house.sessions.page(home.person.id) == []


@pytest.mark.covers("mail-server:F5")
async def test_an_application_password_changes_no_credential(home: Home) -> None:
    house = home.house
    public_id, text = await home.new()
    caller = await home.caller(text)
    account = house.account
    assert not caller.session.second_factor
    for work in (
        account.change_password(caller, RIGHT, "another horse"),
        account.enrol(caller, RIGHT),
        account.confirm(caller, "123456"),
        account.disable(caller, RIGHT, "123456"),
        account.replace_recovery_codes(caller, RIGHT, "123456"),
        account.create_app_password(caller, "x", RIGHT, None),
        account.revoke_app_password(caller, public_id),
        account.revoke_other_sessions(caller),
        account.revoke_session(caller, caller.session.public_id),
        account.revoke_device(caller, house.ids.new("dev_")),
    ):
        assert await code_of(work) == "permission_denied"


@pytest.mark.covers("mail-server:F6")
async def test_revoking_a_device_ends_its_sessions(home: Home) -> None:
    house = home.house
    device = NewDevice("uid-1", "Laptop", "linux", "1.0")
    one, session = await home.web(kind=SessionKind.CLIENT, device=device)
    two, _ = await home.web()
    (known,) = await house.sessions.devices(home.person.id)
    assert (known.public_id, known.device_uid, known.name) == (session.device_public_id, "uid-1", "Laptop")
    await house.sessions.close(session)
    assert await code_of(house.sessions.verify(one)) == "unauthenticated"
    (known,) = await house.sessions.devices(home.person.id)
    assert known.revoked_at is None
    three, _ = await home.web(kind=SessionKind.CLIENT, device=device)
    await house.sessions.revoke_device(home.person, known.public_id, HOST)
    assert await code_of(house.sessions.revoke_device(home.person, known.public_id, HOST)) == "device_not_found"
    assert await code_of(house.sessions.verify(three)) == "unauthenticated"
    await house.sessions.verify(two)
    # Who proves again who they are has the device again.
    await home.web(kind=SessionKind.CLIENT, device=device)
    (again,) = await house.sessions.devices(home.person.id)
    assert (again.public_id, again.revoked_at) == (known.public_id, None)
    for bad in (NewDevice("", "x"), NewDevice("x" * 129, "x"), NewDevice("x", "")):
        assert await code_of(home.web(device=bad)) == "invalid_request"


async def test_sessions_are_ended_one_by_one_or_all_but_ones_own(home: Home) -> None:
    house = home.house
    token, mine = await home.web()
    other, one = await home.web()
    mail = await home.mail(RIGHT)
    assert isinstance(mail, Principal)
    assert {found.public_id for found in await house.sessions.page(home.person.id)} == {
        *(mine.public_id, one.public_id),
    }
    caller = Caller(mine, HERE)
    await house.account.revoke_session(caller, one.public_id)
    assert await code_of(house.account.revoke_session(caller, one.public_id)) == "session_not_found"
    assert await code_of(house.sessions.verify(other)) == "unauthenticated"
    third, _ = await home.web()
    assert await house.sign_in.stands(mail)
    await house.account.revoke_other_sessions(caller)
    assert await code_of(house.sessions.verify(third)) == "unauthenticated"
    await house.sessions.verify(token)
    assert not await house.sign_in.stands(mail)
    stranger = await house.people.create(NewPerson("Stranger"))
    assert await code_of(house.sessions.revoke(stranger, mine.public_id, HOST)) == "session_not_found"


async def test_guesses_on_the_web_and_by_mail_count_together(home: Home) -> None:
    for attempt in range(5):
        assert await home.mail(WRONG, remote=f"198.51.100.{attempt}") == INVALID
        assert await code_of(home.web(WRONG)) == "invalid_credentials"
    assert await code_of(home.web()) == "too_many_attempts"
    locked = await home.mail(RIGHT, remote="203.0.113.9")
    assert isinstance(locked, SignInError)
    assert locked.kind is SignInFailure.THROTTLED


# -- connections


async def test_strangers_who_guess_keep_nobody_from_changing_the_password(home: Home) -> None:
    caller = await home.caller()
    for n in range(11):
        there = Origin(f"198.51.100.{n}")
        refused = "too_many_attempts" if n == 10 else "invalid_credentials"
        assert await code_of(home.house.entrance.sign_in("alice@example.com", WRONG, None, there)) == refused
    await home.house.account.change_password(caller, RIGHT, "another horse")


@pytest.mark.covers("mail-server:F2")
async def test_connections_are_told_when_what_they_were_opened_with_ends(home: Home) -> None:
    house = home.house
    tenant = await house.tenants.get(home.box.tenant_public_id)
    bot = await house.identity(tenant, "bot")
    new = NewKey("k", Level.IDENTITY, ("messages:read",), tenant.id, bot.id)
    key, key_text = await house.keys.create(None, new)
    rotated, rotated_text = await house.keys.create(None, new)
    expiring, expiring_text = await house.keys.create(None, new)
    public_id, text = await home.new()
    reader = await house.people.create(NewPerson("Reader", password="another horse"))
    await house.people.grant(tenant.id, home.box.public_id, reader.public_id, GrantRole.READ)
    ended: list[str] = []

    async def connect(name: str, password: str, address: str = ALICE) -> None:
        found = await home.mail(password, address)
        assert isinstance(found, Principal), name
        house.standing.watch(found, lambda: ended.append(name))

    bot_address = bot.primary.address
    await connect("key", key_text, bot_address)
    await connect("rotated", rotated_text, bot_address)
    await connect("old secret", expiring_text, bot_address)
    await connect("password", RIGHT)
    await connect("app", text)
    await connect("reader", "another horse")
    forgotten = await home.mail(RIGHT)
    assert isinstance(forgotten, Principal)
    house.standing.watch(forgotten, lambda: ended.append("forgotten"))()

    async def gone(*names: str) -> None:
        await house.standing.check()
        assert sorted(ended) == sorted(names)
        ended.clear()

    await gone()
    await house.keys.revoke(None, key.public_id)
    await house.keys.rotate(None, rotated.public_id, overlap_hours=1)
    await house.keys.rotate(None, expiring.public_id, overlap_hours=0)
    await gone("key", "old secret")
    house.clock.advance(3600)
    await gone("rotated")
    await house.app_passwords.revoke(home.person, public_id, HOST)
    await gone("app")
    await house.people.grant(tenant.id, home.box.public_id, reader.public_id, GrantRole.FULL)
    await gone("reader")
    await house.people.ungrant(tenant.id, home.box.public_id, home.person.public_id)
    await gone("password")
    assert house.hints.count(home.person.public_id) == 2
    assert await code_of(house.people.ungrant(tenant.id, home.box.public_id, reader.public_id)) is None
    assert not house.standing._watched


async def test_a_database_that_is_away_ends_nobody(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    house = home.house
    found = await home.mail(RIGHT)
    assert isinstance(found, Principal)
    ended = asyncio.Event()
    house.standing.watch(found, ended.set)
    asked = asyncio.Event()
    with monkeypatch.context() as patch:

        def away(*_: object, **__: object) -> None:
            asked.set()
            raise DatabaseUnavailable("away")

        patch.setattr(house.db, "acquire", away)
        running = asyncio.create_task(house.standing.run())
        house.standing.wake()
        await asyncio.wait_for(asked.wait(), 5)
        await asyncio.sleep(0)
    assert not ended.is_set()
    await house.people.set_password(home.person.public_id, "another horse")
    house.standing.wake()
    await asyncio.wait_for(ended.wait(), 5)
    running.cancel()


@pytest.mark.covers("decisions:A2")
async def test_people_go_with_the_last_thing_that_they_have(home: Home) -> None:
    house, people = home.house, home.house.people
    here, other = home.box.tenant_id, await house.tenant("other")
    second = await house.identity(other, "alice", IdentityKind.PERSON)
    await people.grant(other.id, second.public_id, home.person.public_id, GrantRole.READ, by_operator=True)
    await people.remove(here, home.person.public_id)
    assert (await people.get(home.person.public_id, tenant_id=other.id)).public_id == home.person.public_id
    assert await code_of(people.remove(here, home.person.public_id)) == "person_not_found"
    await home.web(address="alice@example.com")
    await people.remove(other.id, home.person.public_id)
    assert await code_of(people.get(home.person.public_id)) == "person_not_found"


async def test_errors_tell_nothing_of_secrets(home: Home) -> None:
    _, text = await home.new()
    token, session = await home.web(text)
    principal = await home.mail(RIGHT)
    shown = f"{session!r} {principal!r} {home.person!r}"
    for secret in (text, token, RIGHT):
        assert secret not in shown
    with pytest.raises(PostroomError) as raised:
        await home.web(WRONG)
    assert ALICE not in str(raised.value)
