"""Answers still to come: their order, and who may be handled beside them (RFC 3501 §5.5, mail-server D1)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap import RawCommand
from postroom.servers.imap.answers import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, Done, InFlight, PendingAnswer


@dataclass
class Pending:
    tag: bytes
    size: int = 1
    ready: bool = False

    def done(self) -> Done:
        return Done(self.tag.decode())


def command(text: bytes) -> RawCommand:
    return RawCommand(b"a", text, ())


def holding(*pending: Pending) -> InFlight:
    made = InFlight()
    for one in pending:
        made.add(one)
    return made


@pytest.mark.covers("RFC 3501 §5.5", "mail-server:D1")
@given(st.lists(st.lists(st.integers(0, 7), max_size=8), max_size=8))
def test_answers_come_in_the_order_of_the_commands(became_ready: list[list[int]]) -> None:
    pending = [Pending(b"%d" % number) for number in range(8)]
    in_flight = holding(*pending)
    answered: list[PendingAnswer] = []
    for numbers in became_ready:
        for number in numbers:
            pending[number].ready = True
        answered += in_flight.take_ready()
        assert len(answered) + len(in_flight) == len(pending)
        assert answered == pending[: len(answered)]
        assert len(answered) == len(pending) or not pending[len(answered)].ready
        assert in_flight.size == len(pending) - len(answered)


def test_only_another_append_is_handled_beside_them() -> None:
    in_flight = holding(Pending(b"a"))
    assert in_flight.room_for(command(b"append x (\\Seen)"))()
    assert in_flight.room_for(None)()
    other = in_flight.room_for(command(b"NOOP"))
    assert not other()
    in_flight.take_ready()
    assert not other()
    assert holding().room_for(command(b"NOOP"))()


def test_there_are_so_many_of_them_and_so_many_octets() -> None:
    text = b"APPEND x"
    assert not holding(*[Pending(b"a") for _ in range(MAX_IN_FLIGHT)]).room_for(command(text))()
    assert holding(*[Pending(b"a") for _ in range(MAX_IN_FLIGHT - 1)]).room_for(command(text))()
    assert not holding(Pending(b"a", MAX_IN_FLIGHT_BYTES)).room_for(command(text))()
    assert holding(Pending(b"a", MAX_IN_FLIGHT_BYTES - 1)).room_for(command(text))()
