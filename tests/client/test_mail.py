"""Clients on a real mailbox: sending once, lists, waiting, files."""

from __future__ import annotations

import asyncio
import io
from datetime import timedelta
from typing import Any, assert_type

import httpx
import pytest

from postroom.accounts.rates import Bucket
from postroom_client import (
    AsyncClient,
    Client,
    ConfigError,
    CursorExpired,
    DecodeError,
    IdempotencyConflict,
    NotFound,
    RateLimited,
    Retry,
    TransportError,
    attachment,
    bodies,
    models,
)
from tests.client.bridge import IDN, Script, Time, blocking, looping, raised
from tests.client.conftest import Desk
from tests.client.examples import example
from tests.rest.sender import ANNA, Sender
from tests.rest.test_links import PDF, urls
from tests.rest.world import simple_mail

pytestmark = pytest.mark.covers("FR-SDK-1")

HELLO: bodies.SendRequest = {"to": [ANNA], "subject": "Hello", "text": "Good morning."}


class Losing(httpx.AsyncBaseTransport):
    """The server does what it is asked, and so many answers are lost on the way back."""

    def __init__(self, inner: httpx.AsyncBaseTransport, times: int) -> None:
        self.inner = inner
        self.times = times

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self.inner.handle_async_request(request)
        self.times -= 1
        if self.times >= 0:
            await response.aread()
            raise httpx.ReadError("the connection went")
        return response


async def sent(desk: Desk) -> list[str]:
    return [one.id async for one in desk.client().messages.list_messages(desk.box, direction="outbound")]


@pytest.mark.parametrize("blocks", [False, True], ids=["async", "sync"])
@pytest.mark.covers("edge:G1", "FR-OUT-1")
async def test_a_send_whose_answer_is_lost_is_one_message(desk: Desk, blocks: bool) -> None:
    losing, clock = Losing(desk.app, 2), Time()
    if blocks:
        client = desk.blocking(losing, retry=Retry(), sleep=clock.sleep, surroundings=clock.surroundings)
        found = await asyncio.to_thread(
            lambda: client.sending.send_message(desk.box, HELLO, idempotency_key="order-17:confirm")
        )
    else:
        patient = desk.client(losing, retry=Retry(), sleep=clock.sleep_async, surroundings=clock.surroundings)
        found = await patient.sending.send_message(desk.box, HELLO, idempotency_key="order-17:confirm")
    assert found.deduplicated
    assert await sent(desk) == [found.id]
    assert clock.slept == [0.5, 1]


async def test_without_retries_the_loss_is_told_and_the_same_key_finds_the_message(desk: Desk) -> None:
    with pytest.raises(TransportError) as lost:
        await desk.client(Losing(desk.app, 1)).sending.send_message(desk.box, HELLO, idempotency_key="k")
    assert lost.value.sent
    client = desk.client()
    again = await client.sending.send_message(desk.box, HELLO, idempotency_key="k")
    assert_type(again, models.SendResponse)
    assert again.deduplicated
    with pytest.raises(IdempotencyConflict) as conflict:
        await client.sending.send_message(desk.box, {**HELLO, "subject": "Other"}, idempotency_key="k")
    assert conflict.value.details.get("original_message_id") in (None, again.id)
    assert await sent(desk) == [again.id]


async def test_a_key_that_was_made_up_is_kept_over_retries(desk: Desk) -> None:
    client = desk.client(Losing(desk.app, 1), retry=Retry(first_pause=0, jitter=0))
    made = await client.folders.create_folder(desk.box, {"name": "Bills"})
    folders = [one.name async for one in desk.client().folders.list_folders(desk.box)]
    assert folders.count(made.name) == 1


@pytest.mark.covers("FR-OUT-1")
async def test_sending_needs_a_key_and_trying_does_not(desk: Desk) -> None:
    client = desk.client()
    with pytest.raises(ConfigError):
        await client.sending.send_message(desk.box, HELLO)  # type: ignore[call-overload]  # what a checker refuses
    tried = await client.sending.send_message(desk.box, HELLO, dry_run=True)
    assert_type(tried, models.DryRunResult)
    assert tried.would_send
    assert await sent(desk) == []


async def test_many_at_once_over_one_client(desk: Desk) -> None:
    client = desk.client()
    wanted: list[bodies.SendRequest] = [
        {"to": [f"anna{number}@example.com"], "subject": f"No. {number}", "text": "Hello."} for number in range(20)
    ]
    made = await asyncio.gather(
        *(client.sending.send_message(desk.box, body, idempotency_key=body["subject"]) for body in wanted)
    )
    read = await asyncio.gather(*(client.messages.get_message(desk.box, one.id) for one in made))
    assert [one.subject for one in read] == [body["subject"] for body in wanted]


# -- lists


async def _deliver(desk: Desk, number: int) -> list[str]:
    """Oldest first."""
    found = []
    for first in range(0, number, 50):
        part = range(first, min(first + 50, number))
        done = await asyncio.gather(
            *(desk.world.deliver(simple_mail(f"No. {n}", Message_ID=f"<{n}@x>"), to=desk.sender.box) for n in part)
        )
        found += [one.message_id for one in done]
    return found


@pytest.mark.covers("FR-API-1")
async def test_two_hundred_and_fifty_items(desk: Desk) -> None:
    wanted = await _deliver(desk, 250)
    listed = desk.client().messages.list_messages(desk.box, limit=100)
    found = []
    async for message in listed:
        assert_type(message, models.Message)
        found.append(message.id)
        if len(found) == 120:  # what comes meanwhile moves nothing
            await desk.world.deliver(simple_mail("late", Message_ID="<late@x>"), to=desk.sender.box)
    assert sorted(found) == sorted(wanted)
    assert [len(page.data) async for page in listed.pages()] == [100, 100, 51]
    client = desk.blocking()
    blocked = await asyncio.to_thread(lambda: list(client.messages.list_messages(desk.box, limit=100)))
    assert [one.id for one in blocked[1:]] == found
    first = await listed.first()
    rest = [one.id async for one in desk.client().messages.list_messages(desk.box, limit=100, cursor=first.next_cursor)]
    assert rest == found[99:]


@pytest.mark.covers("FR-API-1")
async def test_a_list_ends_with_the_error_of_its_cursor(desk: Desk) -> None:
    await _deliver(desk, 3)
    listed = aiter(desk.client().messages.list_messages(desk.box, limit=2))
    assert [(await anext(listed)).id for _ in range(2)]
    desk.world.clock.advance(timedelta(hours=25).total_seconds())
    with pytest.raises(CursorExpired):
        await anext(listed)


async def test_a_list_that_goes_in_a_circle() -> None:
    page = httpx.Response(200, json={"data": [], "next_cursor": "c_1"})
    script = Script(page)
    assert isinstance(raised(lambda: list(blocking(script).folders.list_folders(IDN))), DecodeError)
    assert len(script.requests) == 2
    with pytest.raises(DecodeError):
        [one async for one in looping(Script(page)).folders.list_folders(IDN)]


async def test_a_list_that_goes_in_a_wide_circle() -> None:
    pages = [httpx.Response(200, json={"data": [], "next_cursor": f"c_{at % 7}"}) for at in range(40)]
    script = Script(*pages)
    assert isinstance(raised(lambda: list(blocking(script).folders.list_folders(IDN))), DecodeError)
    assert len(script.requests) < 32


async def test_too_many_requests_wait_for_the_next_minute(desk: Desk) -> None:
    """Whose pause it is: the server's clock moves while the client sleeps."""
    clock = Time(on_sleep=desk.world.clock.advance)
    client = desk.client(retry=Retry(), sleep=clock.sleep_async, surroundings=clock.surroundings)
    me = await client.meta.get_me()
    rates = desk.world.app.services.rates
    while rates.hit(Bucket.API, me.key_id).allowed:
        pass
    with pytest.raises(RateLimited) as limited:
        await desk.client().meta.get_me()
    assert limited.value.retry_after is not None
    assert (await client.meta.get_me()).key_id == me.key_id
    assert clock.slept == [limited.value.retry_after]


# -- files


async def test_files_go_out_and_come_back(desk: Desk) -> None:
    content = bytes(range(256)) * 64
    client = desk.client()
    body: bodies.SendRequest = {**HELLO, "attachments": [attachment(content, "Rechnung März.pdf")]}
    made = await client.sending.send_message(desk.box, body, idempotency_key="k")
    (part,) = (await client.messages.get_message(desk.box, made.id)).attachments
    assert (part.filename, part.content_type) == ("Rechnung März.pdf", "application/pdf")
    async with client.messages.get_attachment(desk.box, made.id, part.id) as download:
        assert (download.filename, download.content_type) == (part.filename, part.content_type)
        assert await download.read() == content
    async with client.messages.get_message_raw(desk.box, made.id) as download:
        target = io.BytesIO()
        assert await download.write_to(target) == download.size == len(target.getvalue())
    blocking = desk.blocking()

    def again() -> tuple[bytes, int]:
        with blocking.messages.get_attachment(desk.box, made.id, part.id) as download:
            return download.read(), download.size or 0

    assert (await asyncio.to_thread(again))[0] == content


async def test_a_download_that_is_refused_or_too_long(desk: Desk) -> None:
    (message,) = await _deliver(desk, 1)
    client = desk.client()
    with pytest.raises(NotFound):
        async with client.messages.get_message_raw(desk.box, "msg_01ARZ3NDEKTSV4RRFFQ69G5FAV"):
            pass
    async with client.messages.get_message_raw(desk.box, message) as download:
        with pytest.raises(DecodeError):
            await download.read(max_bytes=10)
    opened = client.messages.get_message_raw(desk.box, message)
    async with opened:
        pass
    with pytest.raises(ConfigError):
        await opened.__aenter__()


async def test_a_signed_link(linking: Sender) -> None:
    desk = Desk(linking.world, linking)
    body: bodies.SendRequest = {**HELLO, "attachments": [attachment(PDF, "report.pdf")]}
    made = await desk.client().sending.send_message(desk.box, body, idempotency_key="k")
    text = (await desk.client().messages.get_message(desk.box, made.id, include=["quoted"])).text or ""
    (url,) = urls(text)
    stranger = AsyncClient("http://localhost", transport=desk.app)
    async with stranger.links_and_hooks.get_signed_link(url.rpartition("/")[2]) as download:
        assert (await download.read(), download.filename) == (PDF, "report.pdf")


# -- over a socket, and waiting


@pytest.mark.covers("FR-SDK-1")
async def test_a_blocking_client_over_a_socket_waits_for_an_answer(desk: Desk, port: int) -> None:
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> tuple[models.SendResponse, models.WaitResponse | None]:
        with Client(f"http://127.0.0.1:{port}", desk.key) as client:
            made = client.sending.send_message(desk.box, HELLO, idempotency_key="k")
            loop.call_soon_threadsafe(begun.set)
            return made, client.wait(desk.box, 20, from_=ANNA)

    waiting = asyncio.create_task(asyncio.to_thread(wait))
    await asyncio.wait_for(begun.wait(), 30)
    await asyncio.sleep(0.3)
    desk.world.clock.advance(1)
    delivered = await desk.world.deliver(simple_mail("Re: Hello"), to=desk.sender.box)
    made, found = await asyncio.wait_for(waiting, 60)
    assert made.status == "queued"
    assert found is not None
    assert found.message is not None
    assert found.message.id == delivered.message_id


async def test_an_asynchronous_client_over_a_socket(desk: Desk, port: int) -> None:
    (message,) = await _deliver(desk, 1)
    async with AsyncClient(f"http://127.0.0.1:{port}", desk.key) as client:
        found = await asyncio.gather(*(client.messages.get_message(desk.box, message) for _ in range(10)))
        assert {one.id for one in found} == {message}
        async with client.messages.get_message_raw(desk.box, message) as download:
            assert (await download.read()).endswith(b"Hello there.\r\n")


def test_nobody_listens() -> None:
    failure = raised(lambda: Client("http://127.0.0.1:9").meta.get_health())
    assert isinstance(failure, TransportError)
    assert not failure.sent


NOTHING = {"message": None, "verification": None, "timed_out": True}


def _after(clock: Time, seconds: float, date: str | None = "Tue, 01 Jan 2030 12:00:00 GMT", **said: Any) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        clock.now += seconds
        return httpx.Response(200, headers={"date": date} if date else {}, json={**NOTHING, **said})

    return answer


def test_waiting_longer_than_one_request_can_misses_nothing() -> None:
    clock = Time()
    message = example("Message")
    script = Script(_after(clock, 60), _after(clock, 60), _after(clock, 5, message=message, timed_out=False))
    found = blocking(script, clock).wait(IDN, 150, from_="ada@example.com", kind="reply")
    assert found is not None
    assert found.message is not None
    asked = [dict(one.url.params) for one in script.requests]
    assert [one["timeout"] for one in asked] == ["60", "60", "30"]
    assert [one.get("since") for one in asked] == [None, "2030-01-01T11:59:00Z", "2030-01-01T11:59:00Z"]
    assert {one["from"] for one in asked} == {"ada@example.com"}
    assert [one.extensions["timeout"]["read"] for one in script.requests] == [75, 75, 45]


async def test_waiting_ends_and_does_not_hurry() -> None:
    clock = Time()
    script = Script(_after(clock, 0.25, date=None))
    assert await looping(script, clock).wait(IDN, 5) is None
    assert len(script.requests) == 5
    assert set(clock.slept) == {0.75}
    assert isinstance(raised(lambda: blocking(script).wait(IDN, 0)), ConfigError)
