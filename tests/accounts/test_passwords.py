"""Argon2id on its own threads (F1)."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from collections.abc import Iterator

import pytest

from postroom.accounts import HashingOverloaded, Passwords
from postroom.base.errors import PostroomError


@pytest.fixture
def passwords() -> Iterator[Passwords]:
    pool = Passwords(threads=1, queue=2, memory_kib=64, time_cost=1)
    yield pool
    pool.close()


def test_the_parameters_are_those_of_the_policy() -> None:
    pool = Passwords(threads=1)
    phc = asyncio.run(pool.hash("correct horse"))
    pool.close()
    assert phc.startswith("$argon2id$v=19$m=19456,t=2,p=1$")


async def test_a_password_verifies_and_nothing_else_does(passwords: Passwords) -> None:
    phc = await passwords.hash("pässword-1")
    assert (await passwords.verify(phc, "pässword-1")).ok
    assert (await passwords.verify(phc, unicodedata.normalize("NFD", "pässword-1"))).ok
    for wrong in ("passwort-1", "", "pässword-1 ", "x" * 5000, "\ud800" * 9, "\0"):
        assert not (await passwords.verify(phc, wrong)).ok
    for broken in (None, "", "x", "$argon2id$v=19$m=64,t=1,p=1$", "$2b$12$abcdefghijklmnopqrstuv"):
        assert not (await passwords.verify(broken, "pässword-1")).ok


async def test_old_parameters_are_stale(passwords: Passwords) -> None:
    phc = await passwords.hash("correct horse")
    newer = Passwords(threads=1, memory_kib=128, time_cost=1)
    try:
        assert (await newer.verify(phc, "correct horse")).stale
        assert not (await newer.verify(phc, "wrong horses")).stale
    finally:
        newer.close()
    assert not (await passwords.verify(phc, "correct horse")).stale


@pytest.mark.parametrize("password", ["", "1234567", "x" * 1025, "\ud800" * 10])
async def test_the_policy(passwords: Passwords, password: str) -> None:
    with pytest.raises(PostroomError) as refused:
        await passwords.hash(password)
    assert refused.value.code == "invalid_request"


async def test_what_does_not_fit_is_refused_and_slots_come_back(passwords: Passwords) -> None:
    phc = await passwords.hash("correct horse")
    gate = threading.Event()
    blocked = asyncio.wrap_future(passwords._pool.submit(gate.wait))  # a hash that takes its time
    waiting = [asyncio.create_task(passwords.verify(phc, "correct horse")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(HashingOverloaded):
        await passwords.verify(phc, "correct horse")
    waiting.pop().cancel()
    gate.set()
    await blocked
    assert all(verified.ok for verified in await asyncio.gather(*waiting))
    for _ in range(20):
        assert (await passwords.verify(phc, "correct horse")).ok
