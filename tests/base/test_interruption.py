"""A process that is asked to end before its server is there to hear of it ends all the same."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from postroom.base import interruption
from postroom.supervisor import stop_on_signals


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_asked", threading.Event())


@pytest.mark.covers("mail-server:H4")
@pytest.mark.usefixtures("fresh")
async def test_what_was_asked_before_is_not_forgotten() -> None:
    loop = asyncio.get_running_loop()
    interruption.note()
    stop = stop_on_signals()
    assert stop.is_set()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)


@pytest.mark.usefixtures("fresh")
async def test_a_signal_sets_it_later() -> None:
    loop = asyncio.get_running_loop()
    stop = stop_on_signals()
    assert not stop.is_set()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stop.wait(), 5)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
