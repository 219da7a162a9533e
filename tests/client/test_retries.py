"""What is sent again, when, and under which key; what is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import postroom_client
from postroom.base.errors import ERRORS
from postroom_client import ApiError, Client, RequestTimeout, Retry, TransportError
from postroom_client._retry import Attempts, Unusable
from postroom_client.errors import DecodeError, class_of
from tests.client.bridge import IDN, Answer, Script, Time, blocking, error, looping, raised
from tests.client.examples import example

pytestmark = pytest.mark.covers("FR-SDK-1", "cli-config-ops:A4")

OK = httpx.Response(200, json={"data": [], "next_cursor": None})
MADE = httpx.Response(201, json=example("Folder"))
LOST = httpx.ReadError("the connection went")
NEVER_OPENED = httpx.ConnectError("refused")
LATER = error(503, "unavailable", retryable=True)
BUSY = error(409, "request_in_progress", retryable=True)


def list_folders(client: Client) -> Any:
    return client.folders.list_folders(IDN).first()


def create_folder(client: Client) -> Any:
    return client.folders.create_folder(IDN, {"name": "Bills"})


def update_folder(client: Client) -> Any:
    return client.folders.update_folder(IDN, "fld_01ARZ3NDEKTSV4RRFFQ69G5FAV", {"name": "Bills"})


def sign_in(client: Client) -> Any:
    return client.sign_in.create_session({"email": "ada@example.com", "password": "correct horse"})


def dry_run(client: Client) -> Any:
    return client.sending.send_message(IDN, {"to": ["a@example.com"], "subject": "", "text": ""}, dry_run=True)


def count(call: Callable[[Client], Any], *answers: Answer, retry: Retry | None = None, **options: Any) -> int:
    """How often the request was sent."""
    script = Script(*answers)
    with contextlib.suppress(postroom_client.PostroomError):  # how it ends is another test's question
        call(blocking(script, retry=retry, **options))
    return len(script.requests)


def test_nothing_is_sent_again_unless_it_was_asked_for() -> None:
    assert count(list_folders, LATER) == 1
    assert count(create_folder, LOST) == 1


@pytest.mark.parametrize("answer", [LOST, LATER, httpx.Response(502, text="<html>"), httpx.ReadTimeout("")])
@pytest.mark.parametrize(
    ("call", "times"), [(list_folders, 4), (create_folder, 4), (dry_run, 4), (update_folder, 1), (sign_in, 1)]
)
def test_only_what_does_no_harm_twice_is_sent_again(call: Callable[[Client], Any], times: int, answer: Answer) -> None:
    """Reading, what has a key, and what changes nothing; a PATCH or a sign-in never after it may have arrived."""
    assert count(call, answer, retry=Retry()) == times


@pytest.mark.parametrize("call", [list_folders, create_folder, update_folder, sign_in])
def test_what_never_left_is_sent_again_whatever_it_is(call: Callable[[Client], Any]) -> None:
    assert count(call, NEVER_OPENED, retry=Retry()) == 4
    failure = raised(lambda: call(blocking(Script(NEVER_OPENED))))
    assert isinstance(failure, TransportError)
    assert not failure.sent


def test_the_key_is_the_same_each_time_and_another_for_the_next_call() -> None:
    script = Script(LOST, LATER, BUSY, MADE)
    client = blocking(script, retry=Retry())
    create_folder(client)
    keys = [one.headers["idempotency-key"] for one in script.requests]
    assert len(keys) == 4
    assert len(set(keys)) == 1
    create_folder(client)
    assert script.requests[-1].headers["idempotency-key"] not in keys


def test_a_key_of_ones_own_is_taken() -> None:
    script = Script(LATER)
    raised(lambda: blocking(script).folders.create_folder(IDN, {"name": "B"}, idempotency_key="task-7:folder"))
    assert script.requests[0].headers["idempotency-key"] == "task-7:folder"


def test_operations_without_a_key_send_none() -> None:
    for call in (list_folders, update_folder, sign_in, dry_run):
        script = Script(LATER)
        with pytest.raises(ApiError):
            call(blocking(script))
        assert "idempotency-key" not in script.requests[0].headers


def test_pauses_double_and_end() -> None:
    time = Time()
    failure = raised(lambda: list_folders(blocking(Script(LATER), time, retry=Retry())))
    assert isinstance(failure, postroom_client.ServerError)
    assert time.slept == [0.5, 1, 2]


def test_retry_after_moves_the_clock_as_far_as_it_says() -> None:
    time = Time()
    limited = error(429, "rate_limited", retryable=True, headers={"retry-after": "17"})
    assert list_folders(blocking(Script(limited, OK), time, retry=Retry())).data == ()
    assert time.slept == [17]


async def test_the_asynchronous_client_does_the_same() -> None:
    time = Time()
    limited = error(429, "rate_limited", retryable=True, headers={"retry-after": "17"})
    client = looping(Script(limited, LOST, OK), time, retry=Retry())
    assert (await client.folders.list_folders(IDN).first()).data == ()
    assert time.slept == [17, 1]


def test_a_date_in_retry_after_is_read_by_the_servers_clock() -> None:
    time = Time()
    headers = {"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    list_folders(blocking(Script(httpx.Response(503, headers=headers), OK), time, retry=Retry()))
    assert time.slept == [10]


@pytest.mark.parametrize("told", ["-1", "soon", "1e3", "٣", "9" * 400, "", "Wed, 21 Oct 2015 07:28:10 GMT", "Mon, 99"])
def test_nonsense_in_retry_after_is_none(told: str) -> None:
    time = Time()
    headers = [(b"retry-after", told.encode())]
    list_folders(blocking(Script(httpx.Response(503, headers=headers), OK), time, retry=Retry()))
    assert time.slept == [0.5]


def test_a_zone_that_is_none_in_retry_after() -> None:
    time, date = Time(), "Wed, 21 Oct 2015 07:28:00"
    headers = {"retry-after": f"{date} +99999999999999", "date": f"{date} GMT"}
    list_folders(blocking(Script(httpx.Response(503, headers=headers), OK), time, retry=Retry()))
    assert time.slept == [0.5]


def test_longer_than_the_cap_is_for_the_caller_to_wait() -> None:
    time = Time()
    frozen = error(503, "unavailable", retryable=True, headers={"retry-after": "300"}, reason="frozen")
    failure = raised(lambda: list_folders(blocking(Script(frozen), time, retry=Retry())))
    assert isinstance(failure, ApiError)
    assert (failure.retry_after, failure.details["reason"]) == (300, "frozen")
    assert time.slept == []


def test_no_attempt_begins_after_the_budget() -> None:
    time = Time()
    limited = error(429, "rate_limited", retryable=True, headers={"retry-after": "40"})
    script = Script(limited)
    raised(lambda: list_folders(blocking(script, time, retry=Retry(attempts=99, budget=100))))
    assert time.slept == [40, 40]
    assert len(script.requests) == 3


@pytest.mark.covers("edge:G1")
def test_a_conflict_of_keys_is_never_tried_again() -> None:
    assert count(create_folder, error(409, "idempotency_conflict"), retry=Retry()) == 1


def test_what_still_runs_is_asked_for_each_second() -> None:
    time = Time()
    script = Script(BUSY)
    failure = raised(lambda: create_folder(blocking(script, time, retry=Retry())))
    assert isinstance(failure, postroom_client.RequestInProgress)
    assert time.slept == [1] * 5


def test_a_busy_thread_is_waited_for_as_long_as_its_details_say() -> None:
    time = Time()
    busy = error(409, "thread_busy", retryable=True, retry_after=7)
    raised(lambda: create_folder(blocking(Script(busy), time, retry=Retry(attempts=1))))
    assert time.slept == [7]


@pytest.mark.parametrize("code", ["daily_cap_reached", "domain_not_ready", "agentic_budget_exhausted"])
def test_what_takes_hours_is_not_tried_within_seconds(code: str) -> None:
    assert count(create_folder, error(ERRORS[code].status, code, retryable=True), retry=Retry()) == 1


@pytest.mark.parametrize("status", [301, 307, 308, 400, 401, 404, 409, 500, 501])
def test_pages_of_something_in_between_are_an_end_unless_they_say_later(status: int) -> None:
    headers = {"location": "https://elsewhere.example/"}
    script = Script(httpx.Response(status, headers=headers, text="<html>"))
    failure = raised(lambda: list_folders(blocking(script, retry=Retry())))
    assert isinstance(failure, DecodeError)
    assert failure.status == status
    assert len(script.requests) == 1


def test_an_answer_that_drips_is_given_up() -> None:
    time = Time()

    def drip(request: httpx.Request) -> httpx.Response:
        def pieces() -> Any:
            while True:
                time.now += 10
                yield b" "

        return httpx.Response(200, content=pieces())

    script = Script(drip)
    failure = raised(lambda: list_folders(blocking(script, time, retry=Retry(attempts=1))))
    assert isinstance(failure, RequestTimeout)
    assert len(script.requests) == 2


@given(
    codes=st.lists(st.sampled_from(sorted(ERRORS)), min_size=1, max_size=12),
    told=st.lists(st.none() | st.floats(0, 400), min_size=12, max_size=12),
    draws=st.floats(0, 0.999),
    budget=st.floats(0, 200),
)
def test_pauses_keep_what_the_policy_promises(
    codes: list[str], told: list[float | None], draws: float, budget: float
) -> None:
    """Whatever comes: never sooner than told, never beyond the budget, never more often than said."""
    retry = Retry(budget=budget)
    attempts = Attempts(retry, repeatable=True, started=0, random=lambda: draws)
    now, done = 0.0, 0
    for code, seconds in zip(codes, told, strict=False):
        spec = ERRORS[code]
        made = class_of(spec.status, code)(spec.status, code, "", retryable=spec.retryable, retry_after=seconds)
        pause = attempts.pause(made, now)
        if pause is None:
            break
        assert spec.retryable
        assert pause >= (seconds or 0)
        assert pause <= 60.25
        now, done = now + pause, done + 1
        assert now <= budget
    assert done <= retry.attempts + retry.in_progress


@given(status=st.integers(300, 599))
def test_never_twice_what_may_not_be_repeated(status: int) -> None:
    attempts = Attempts(Retry(), repeatable=False, started=0, random=lambda: 0)
    assert attempts.pause(Unusable(DecodeError(""), status, 1), 0) is None
    assert attempts.pause(TransportError("", sent=True), 0) is None


def test_a_policy_has_no_negative_numbers() -> None:
    with pytest.raises(ValueError, match="negative"):
        Retry(attempts=-1)
