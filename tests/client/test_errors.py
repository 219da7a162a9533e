"""Every code as its exception; no secret in anything that is shown."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import postroom_client
from postroom.base.errors import ERRORS, PostroomError
from postroom.servers.http import failures
from postroom_client import (
    ApiError,
    Client,
    ConfigError,
    DecodeError,
    RequestTimeout,
    Retry,
    Surroundings,
    TransportError,
    bodies,
)
from postroom_client.errors import (
    BadRequest,
    BillingLimit,
    Conflict,
    CursorExpired,
    Forbidden,
    Gone,
    IdempotencyConflict,
    NotFound,
    RateLimited,
    RequestInProgress,
    ServerError,
    Unauthorized,
)
from postroom_client.models import ApiKeyCreated
from tests.client.bridge import IDN, KEY, REQ, URL, Script, Time, blocking, chain, error, looping, raised
from tests.client.examples import example

pytestmark = pytest.mark.covers("FR-SDK-1", "FR-API-2")

CLASSES = {
    400: BadRequest,
    401: Unauthorized,
    402: BillingLimit,
    403: Forbidden,
    404: NotFound,
    405: BadRequest,
    409: Conflict,
    410: Gone,
    413: BadRequest,
    422: BadRequest,
    423: BadRequest,
    426: BadRequest,
    429: RateLimited,
    500: ServerError,
    502: ServerError,
    503: ServerError,
    504: ServerError,
}
OF_ITS_OWN = {
    "idempotency_conflict": IdempotencyConflict,
    "request_in_progress": RequestInProgress,
    "cursor_expired": CursorExpired,
}


@pytest.mark.parametrize("code", ERRORS)
async def test_each_code_of_the_table(code: str) -> None:
    spec = ERRORS[code]
    sent = postroom_error(code)
    one = raised(lambda: blocking(Script(sent)).meta.get_me())
    with pytest.raises(ApiError) as two:
        await looping(Script(sent)).meta.get_me()
    for failure in (one, two.value):
        assert type(failure) is OF_ITS_OWN.get(code, CLASSES[spec.status])
        assert isinstance(failure, ApiError)
        assert (failure.status, failure.code, failure.retryable) == (spec.status, code, spec.retryable)
        assert (failure.message, failure.fix, failure.request_id) == (spec.message, spec.fix, REQ)
        assert failure.retry_after == 5
        assert failure.details == {"reason": "r", "errors": [{"path": "to", "message": "m"}]}
        assert code in str(failure)
        assert REQ in str(failure)
        again = pickle.loads(pickle.dumps(failure))
        assert (type(again), again.__dict__) == (type(failure), failure.__dict__)


def postroom_error(code: str) -> httpx.Response:
    """As the server's own code makes it."""
    made = PostroomError(code, details={"reason": "r", "errors": [{"path": "to", "message": "m"}]}, retry_after=5)
    return httpx.Response(made.status, headers=failures.headers_of(made), content=failures.body_of(made, REQ))


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (418, BadRequest), (599, ServerError), (410, Gone)])
def test_a_code_that_is_new_goes_by_its_status(status: int, kind: type[ApiError]) -> None:
    failure = raised(lambda: blocking(Script(error(status, "never_heard_of"))).meta.get_me())
    assert type(failure) is kind
    assert isinstance(failure, ApiError)
    assert failure.code == "never_heard_of"


def test_a_code_under_another_status_goes_by_the_status() -> None:
    failure = raised(lambda: blocking(Script(error(503, "idempotency_conflict"))).meta.get_me())
    assert type(failure) is ServerError


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>not found</html>",
        b"null",
        b"[]",
        b'{"error": "not_found"}',
        b'{"error": {"code": 7}}',
        b'{"detail": "Not Found"}',
        b"[" * 100_000,
        b'{"error": {"code": "x", "message": NaN}}',
        b"\xff\xfe",
        b'{"error": ' + b"9" * 5000 + b"}",
        b" " * 2_000_000 + b'{"error": {"code": "identity_not_found"}}',
    ],
)
def test_a_404_of_somebody_else_does_not_say_that_a_thing_is_gone(body: bytes) -> None:
    failure = raised(lambda: blocking(Script(httpx.Response(404, content=body))).identities.get_identity(IDN))
    assert isinstance(failure, DecodeError)
    assert failure.status == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"kind": 7}', b"[" * 100_000, b"1e999", b"\xff", b"Infinity"])
def test_a_success_that_is_none_of_ours(body: bytes) -> None:
    failure = raised(lambda: blocking(Script(httpx.Response(200, content=body))).meta.get_me())
    assert isinstance(failure, DecodeError)


def test_an_answer_that_is_too_long_or_packed() -> None:
    long = Script(httpx.Response(200, content=b'{"data": [], "next_cursor": null}' + b" " * 1000))
    assert isinstance(raised(lambda: blocking(long, max_answer=900).folders.list_folders(IDN).first()), DecodeError)
    packed = Script(lambda request: httpx.Response(200, headers={"content-encoding": "br"}, stream=Zeros()))
    assert isinstance(raised(lambda: blocking(packed).meta.get_me()), DecodeError)


class Zeros(httpx.SyncByteStream):
    """Without end; whoever reads it has been taken in."""

    def __iter__(self):  # type: ignore[no-untyped-def]  # a stream of httpx
        raise AssertionError("nobody reads this")


# -- secrets


SECRETS = (KEY, "correct horse", "123456", "secret-idem", "lnk_t0ken", "ada@example.com")


def _all_that_is_shown(client: Client, failure: BaseException) -> str:
    shown = [repr(client), str(client), repr(vars(client)), repr(vars(client._caller)), repr(client._caller.settings)]
    for one in chain(failure):
        shown += [repr(one), str(one), repr(vars(one)), "".join(traceback.format_exception(one))]
    return "\n".join(shown)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout(""),
        httpx.RemoteProtocolError("cut"),
        httpx.Response(302, headers={"location": "https://elsewhere.example/"}),
        httpx.Response(200, content=b"{"),
        error(401, "invalid_credentials"),
        error(429, "too_many_attempts", retryable=True),
    ],
)
@pytest.mark.covers("security-privacy:A4")
def test_no_secret_is_shown(answer: httpx.Response | Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = blocking(Script(answer), retry=Retry(attempts=1))
    signing_in: bodies.SessionCreateRequest = {
        "email": "ada@example.com",
        "password": "correct horse",
        "totp": "123456",
    }
    calls: tuple[Callable[[], object], ...] = (
        lambda: client.sign_in.create_session(signing_in),
        lambda: client.identities.lookup_identity(address="ada@example.com"),
        lambda: client.folders.create_folder(IDN, {"name": "correct horse"}, idempotency_key="secret-idem"),
        lambda: client.links_and_hooks.get_signed_link("lnk_t0ken").__enter__(),
    )
    if isinstance(answer, httpx.Response) and answer.is_success:
        calls = calls[:3]  # any bytes are a download
    for call in calls:
        failure = raised(call)
        assert isinstance(failure, postroom_client.PostroomError)
        shown = _all_that_is_shown(client, failure) + caplog.text
        # A traceback quotes this file's own lines, too.
        own = Path(__file__).read_text().splitlines()
        lines = [line for line in shown.splitlines() if line.strip() not in {one.strip() for one in own}]
        assert [one for one in SECRETS if one in "\n".join(lines)] == []


def test_the_key_is_in_no_message_about_it() -> None:
    bad = "pmk" + "_live_bad\nkey"
    failure = raised(lambda: Client(URL, bad))
    assert isinstance(failure, ConfigError)
    assert "pmk_live" not in "".join(traceback.format_exception(failure))


def test_no_exception_of_httpx_stays_behind() -> None:
    """Those hold the request, and with it the key, for whoever collects exceptions."""
    failure = raised(lambda: blocking(Script(httpx.ReadError("x"))).meta.get_me())
    assert [type(one) for one in chain(failure)] == [TransportError]


async def test_nor_in_the_asynchronous_client() -> None:
    client = looping(Script(httpx.ReadError("x")))
    with pytest.raises(TransportError) as found:
        await client.meta.get_me()
    assert [type(one) for one in chain(found.value)] == [TransportError]


def test_models_show_ids_alone() -> None:
    given = {"id": "key_01ARZ3NDEKTSV4RRFFQ69G5FAV", "name": "bookings of Ada", "secret": "pmk_live_x"}
    model = ApiKeyCreated.from_dict(example("ApiKeyCreated") | given)
    assert model.secret == "pmk_live_x"
    assert "pmk_live_x" not in f"{model!r} {model} {[model]}"
    assert "Ada" not in repr(model)
    assert "key_01ARZ3NDEKTSV4RRFFQ69G5FAV" in repr(model)


def test_what_a_message_says_stays_on_its_line() -> None:
    failure = ApiError(400, "x", "a\r\nLevel: fake\x1b[31m" + "b" * 9000)
    assert "\n" not in str(failure)
    assert "\x1b" not in str(failure)
    assert len(str(failure)) < 600
    assert "\n" not in str(ApiError(400, "x\ny", "", request_id="a\r\nLevel: fake"))
    assert "\x1b" not in str(ApiError(400, "x\x1b[31m", "", request_id="a\x1b[31m"))


def test_time_does_not_come_from_tests_alone() -> None:
    usual = Surroundings()
    assert usual.new_key() != usual.new_key()
    assert 0 <= usual.random() < 1
    assert usual.clock() <= usual.clock()
    assert usual.now().tzinfo is not None
    assert Time().surroundings.new_key() == "key-1"


@pytest.mark.parametrize(
    "failure", [TransportError("cut", sent=True), RequestTimeout("late", sent=False), DecodeError("odd", status=404)]
)
def test_exceptions_cross_processes(failure: Exception) -> None:
    again = pickle.loads(pickle.dumps(failure))
    assert (type(again), str(again), vars(again)) == (type(failure), str(failure), vars(failure))
