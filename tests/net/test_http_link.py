"""A connection of the guarded client without a network, and the place where such connections wait."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.net.http_link import Broken, Exchange, HttpLink
from postroom.net.idle_links import IdleLinks, Key

HERE: Final = ip_address("192.0.2.1")
THERE: Final = ip_address("192.0.2.2")
KEY: Final[Key] = ("hooks.example.com", 443)
OK: Final = b"HTTP/1.1 204 No Content\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.aborted = self.paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False


def exchange(limit: int = 100) -> Exchange:
    return Exchange([("Host", KEY[0])], "/", b"{}", limit)


async def used(address: Any = HERE, answer: bytes = OK) -> tuple[HttpLink, Wire]:
    """A connection after one exchange."""
    link, wire = HttpLink(address), Wire()
    link.connection_made(wire)
    running = asyncio.create_task(link.run(exchange()))
    await asyncio.sleep(0)
    link.data_received(answer)
    await running
    return link, wire


_PIECE: Final = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            *(
                b"HTTP/1.1 200 OK\r\n",
                b"HTTP/1.1 100 Continue\r\n\r\n",
                b"HTTP/1.0 301 x\r\n",
                b"Content-Length: 3\r\n",
            ),
            *(
                b"Transfer-Encoding: chunked\r\n",
                b"\r\n",
                b"\n",
                b"3\r\nabc\r\n",
                b"0\r\n",
                b"abc",
                b"Keep-Alive: timeout=",
            ),
            *(b"Connection: close\r\n", b"A" * 20_000, b"9" * 30, b"Content-Length: 50000\r\n", b" folded\r\n"),
        ]
    ),
)


@pytest.mark.covers("security-privacy:A9")
@given(st.lists(_PIECE, max_size=12), st.booleans())
@example([b"HTTP/1.1 200 OK\r\n", b"Content-Length: 3\r\n", b"\r\n", b"abc"], True)
def test_whatever_is_received_is_an_answer_or_none(pieces: list[bytes], together: bool) -> None:
    async def run() -> None:
        link, wire, made = HttpLink(HERE), Wire(), exchange()
        link.connection_made(wire)
        running = asyncio.create_task(link.run(made))
        await asyncio.sleep(0)
        for piece in [b"".join(pieces)] if together else pieces:
            link.data_received(piece)
            await asyncio.sleep(0)
        link.eof_received()
        try:
            await asyncio.wait_for(running, 5)
        except Broken:
            assert not made.complete
            assert not link.reusable()
        else:
            assert 100 <= made.status <= 999
        assert len(made.body) <= 100
        assert not link.reusable()  # it has ended
        assert wire.written.startswith(b"POST / HTTP/1.1\r\n")

    asyncio.run(run())


@pytest.mark.covers("security-privacy:A9")
async def test_reading_stops_while_there_is_enough() -> None:
    link, wire, made = HttpLink(HERE), Wire(), exchange(1_000_000)
    link.connection_made(wire)
    running = asyncio.create_task(link.run(made))
    await asyncio.sleep(0)
    link.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
    assert wire.paused
    await asyncio.sleep(0)
    assert not wire.paused
    link.data_received(b"x" * 50_000)
    await running
    assert made.complete
    assert bytes(made.body) == b"x" * 100_000
    assert link.reusable()


async def test_they_wait_for_seconds_only() -> None:
    idle = IdleLinks(seconds=0.02)
    link, wire = await used()
    idle.give(KEY, link)
    assert not wire.aborted
    await asyncio.sleep(0.1)
    assert wire.aborted
    assert len(idle) == 0
    assert idle.take(KEY, [HERE]) is None


async def test_what_is_taken_has_no_timer() -> None:
    idle = IdleLinks(seconds=0.02)
    link, wire = await used()
    idle.give(KEY, link)
    assert idle.take(KEY, [HERE]) is link
    await asyncio.sleep(0.1)
    assert not wire.aborted


@pytest.mark.parametrize(("said", "seconds"), [(b"timeout=5", 4.0), (b"max=9, Timeout = 3", 2.0), (b"x", float("inf"))])
async def test_as_long_as_the_server_says(said: bytes, seconds: float) -> None:
    link, _ = await used(answer=b"HTTP/1.1 204 No\r\nKeep-Alive: " + said + b"\r\n\r\n")
    assert link.keep_seconds == seconds


@pytest.mark.covers("security-privacy:A9")
async def test_only_to_an_address_that_was_checked_now() -> None:
    idle = IdleLinks()
    (old, wire), (new, _) = await used(), await used(THERE)
    idle.give(KEY, new)
    idle.give(KEY, old)
    assert idle.take(("other.example.com", 443), [HERE, THERE]) is None
    assert idle.take((KEY[0], 8443), [HERE, THERE]) is None
    assert idle.take(KEY, [THERE]) is new
    assert wire.aborted
    assert len(idle) == 0


async def test_few_for_each_host_and_few_in_all() -> None:
    idle = IdleLinks(total=4, per_host=2)
    made = [(("a.com", 443), *await used()) for _ in range(3)]
    made += [((f"{number}.com", 443), *await used()) for number in range(3)]
    for key, link, _ in made:
        idle.give(key, link)
        assert len(idle) <= 4
    # The first of three to one host; then the one that had waited longest.
    assert [wire.aborted for _, _, wire in made] == [True, True, False, False, False, False]
    idle.close()
    assert all(wire.aborted for _, _, wire in made)
    link, wire = await used()
    idle.give(KEY, link)
    assert wire.aborted


async def test_one_for_each_host() -> None:
    """The list of a host empties and fills in one step."""
    idle = IdleLinks(per_host=1)
    (first, wire), (second, _) = await used(), await used()
    idle.give(KEY, first)
    idle.give(KEY, second)
    assert wire.aborted
    assert idle.take(KEY, [HERE]) is second
