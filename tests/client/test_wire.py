"""Over real connections that break, hang, or are not to be trusted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from postroom.servers.http import HttpListener
from postroom_client import AsyncClient, Client, RequestTimeout, Retry, TransportError
from tests.client.bridge import IDN, KEY
from tests.rest.test_listener import self_signed
from tests.rest.world import World

pytestmark = pytest.mark.covers("FR-SDK-1")

MESSAGE = "msg_01ARZ3NDEKTSV4RRFFQ69G5FAV"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
PAGE = b'{"data": [], "next_cursor": null}'
WHOLE = HEAD % len(PAGE) + PAGE
CUT = HEAD % 100 + PAGE


@dataclass
class Seen:
    """The heads of the requests that came; `some` as soon as there is one."""

    heads: list[bytes] = field(default_factory=list)
    some: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def server(*answers: bytes | None) -> AsyncIterator[tuple[str, Seen]]:
    """Gives one answer to each connection, and hangs up; None: it never answers."""
    left, seen, open_ = list(answers), Seen(), set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        answer = left.pop(0) if len(left) > 1 else left[0]
        seen.heads.append(await reader.readuntil(b"\r\n\r\n"))
        seen.some.set()
        if answer is not None:
            writer.write(answer)
            await writer.drain()
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", seen
    finally:
        for writer in open_:
            writer.close()
        listening.close()


async def both(
    url: str, use: Callable[[AsyncClient], Awaitable[Any]], use_blocking: Callable[[Client], Any], **options: Any
) -> list[Any]:
    """What the two clients give or raise."""

    def block() -> Any:
        with Client(url, KEY, **options) as client:
            return use_blocking(client)

    async def loop() -> Any:
        async with AsyncClient(url, KEY, **options) as client:
            return await use(client)

    return list(await asyncio.gather(loop(), asyncio.to_thread(block), return_exceptions=True))


async def folders(url: str, **options: Any) -> list[Any]:
    return await both(
        url,
        lambda client: client.folders.list_folders(IDN).first(),
        lambda client: client.folders.list_folders(IDN).first(),
        **options,
    )


@pytest.mark.parametrize("answer", [b"", CUT, b"HTTP/1.1 2", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_an_answer_that_breaks_off(answer: bytes) -> None:
    async with server(answer) as (url, seen):
        for failure in await folders(url):
            assert type(failure) is TransportError
            assert failure.sent
        assert len(seen.heads) == 2


async def test_the_next_attempt_may_succeed() -> None:
    async with server(CUT, CUT, WHOLE) as (url, seen):
        pages = await folders(url, retry=Retry(attempts=2, first_pause=0, jitter=0))
        assert [page.data for page in pages] == [(), ()]
        assert len(seen.heads) == 4


async def test_nobody_answers() -> None:
    async with server(None) as (url, _):
        for failure in await folders(url, timeout=0.3):
            assert type(failure) is RequestTimeout
            assert failure.sent


@asynccontextmanager
async def dripping(pieces: Iterable[bytes], pause: float) -> AsyncIterator[str]:
    """Says one piece after the other, never as late as a read may take."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        except ConnectionError:
            pass  # given up, as it should be
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


HINTS = [b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"] * 400
SLOW_HEAD = [b"HTTP/1.1 200 OK\r\nx: "] + [b"y"] * 400
SLOW_BODY = [HEAD % 400] + [b" "] * 400


@pytest.mark.parametrize("pieces", [HINTS, SLOW_HEAD, SLOW_BODY], ids=["hints", "head", "body"])
async def test_an_answer_that_takes_its_time(pieces: list[bytes]) -> None:
    """Every read gets something; the attempt is over all the same."""
    began = time.monotonic()
    async with dripping(pieces, 0.05) as url:
        for failure in await folders(url, timeout=0.6):
            assert type(failure) is RequestTimeout
            assert failure.sent
    assert 0.5 < time.monotonic() - began < 10


async def test_the_head_of_a_download_takes_its_time() -> None:
    async with dripping(HINTS, 0.05) as url:
        for failure in await both(url, read, read_blocking, timeout=0.6):
            assert type(failure) is RequestTimeout


async def test_a_download_may_take_longer_than_an_attempt() -> None:
    pieces = [HEAD % 20] + [b"z"] * 20
    async with dripping(pieces, 0.05) as url:
        assert await both(url, read, read_blocking, timeout=0.6) == [b"z" * 20] * 2


async def test_through_a_proxy() -> None:
    async with server(WHOLE) as (url, seen):
        for page in await folders("http://localhost:9", proxy=url):
            assert page.data == ()
        assert [head.split(b" ")[1].startswith(b"http://localhost:9/") for head in seen.heads] == [True, True]


async def test_time_begins_anew_with_every_attempt() -> None:
    """On the same connections: what one call was given is not left to the next."""
    async with server(WHOLE) as (url, _):

        def block() -> None:
            with Client(url, KEY, timeout=0.3) as client:
                for _ in range(3):
                    client.folders.list_folders(IDN).first()
                    time.sleep(0.25)

        await asyncio.to_thread(block)


async def read(client: AsyncClient) -> bytes:
    async with client.messages.get_message_raw(IDN, MESSAGE) as download:
        return await download.read()


def read_blocking(client: Client) -> bytes:
    with client.messages.get_message_raw(IDN, MESSAGE) as download:
        return download.read()


async def test_a_download_that_ends_too_early() -> None:
    async with server(CUT) as (url, _):
        for failure in await both(url, read, read_blocking, retry=Retry()):
            assert type(failure) is TransportError


async def test_a_call_that_is_given_up_leaves_nothing_open() -> None:
    async with server(None, WHOLE) as (url, seen), AsyncClient(url, KEY) as client:
        call = asyncio.create_task(client.folders.list_folders(IDN).first())
        await asyncio.wait_for(seen.some.wait(), 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await client.folders.list_folders(IDN).first()).data == ()


async def test_a_certificate_that_nobody_knows(world: World, tmp_path: Path) -> None:
    """Before a byte of the request, with its key, is sent."""
    server_context, trusting = self_signed(tmp_path)
    listener = HttpListener(world.app, ids=world.ids, ssl_context=server_context)
    await listener.start("127.0.0.1", 0)
    url = f"https://localhost:{listener.port}"
    try:
        for failure in await both(
            url, lambda client: client.meta.get_health(), lambda client: client.meta.get_health()
        ):
            assert type(failure) is TransportError
            assert not failure.sent
        for found in await both(
            url,
            lambda client: client.meta.get_health(),
            lambda client: client.meta.get_health(),
            verify=trusting,
        ):
            assert found.status == "ok"
    finally:
        await listener.drain(2)
