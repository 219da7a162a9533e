"""What both clients do alike, without any I/O: requests, what is made of answers, whether to send again."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from random import SystemRandom
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import httpx

from ._decode import Model, timestamp
from ._retry import NEVER, Attempts, Retry, Unusable
from ._version import __version__
from .errors import ApiError, ConfigError, DecodeError, RequestTimeout, TransportError, class_of

T = TypeVar("T")

CONNECT_TIMEOUT: Final = 10.0
REQUEST_TIMEOUT: Final = 30.0
WAIT_EXTRA: Final = 15.0
"""Seconds that the answer of a long poll may take beyond the poll itself."""
SILENCE: Final = 30.0
"""Seconds without a byte after which a download is given up."""
MAX_ANSWER: Final = 128 * 1024 * 1024
MAX_ERROR: Final = 1024 * 1024

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ODD_IN_URL: Final = re.compile(r"[\s\x00-\x1f\x7f?#]")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,512}", re.ASCII)
_IDEMPOTENCY_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}", re.ASCII)
_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})
_MAX_SECONDS: Final = 10**9


class Keyed(Enum):
    """Whether an operation takes an idempotency key (rest-api §2.5)."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """One operation of the API. `answers`: status → model; None where there is no body; `dict` for any JSON object."""

    name: str
    method: str
    path: str
    answers: Mapping[int, type[Model] | type[dict[str, Any]] | None]
    keyed: Keyed = Keyed.NONE

    @property
    def downloads(self) -> bool:
        """Whether a success is bytes and no JSON."""
        return not self.answers


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where clients get what is not a function of their arguments; tests give others.

    `clock`: seconds that only grow. `now`: the time of day. `random`: from 0 up to 1. `new_key`: a key nobody else has.
    """

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    random: Callable[[], float] = SystemRandom().random
    new_key: Callable[[], str] = lambda: f"client-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a client. Raises ConfigError, which never shows the key."""

    url: str
    key: str | None = field(repr=False)
    retry: Retry
    timeout: float
    max_answer: int
    surroundings: Surroundings

    @classmethod
    def of(
        cls,
        url: str,
        key: str | None,
        retry: Retry | None,
        timeout: float,
        max_answer: int,
        surroundings: Surroundings | None,
    ) -> Settings:
        check_key(key)
        if timeout <= 0:
            raise ConfigError("the timeout is a number of seconds above 0")
        return cls(_checked(url), key, retry or NEVER, timeout, max_answer, surroundings or Surroundings())

    def with_key(self, key: str | None) -> Settings:
        return replace(self, key=key)


def check_key(key: str | None) -> None:
    if key is not None and not _KEY.fullmatch(key):
        raise ConfigError("the API key is empty or has characters that no key has")


def _checked(url: str) -> str:
    """Without a slash at the end. Keys travel under TLS, or not at all beyond this machine."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise ConfigError("the address of the server is no URL") from None
    if _ODD_IN_URL.search(url):
        # A lone "?" is no query to a parser, and yet would make one of whatever path comes after it.
        raise ConfigError("the address of the server has no spaces, query or fragment")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError("the address of the server begins with https://")
    if parsed.userinfo:
        raise ConfigError("the address of the server has no user: the key is an argument of its own")
    if parsed.scheme == "http" and parsed.host not in _LOCAL:
        raise ConfigError("http:// is for localhost and 127.0.0.1; elsewhere use https://")
    return str(parsed).rstrip("/")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """An operation with its arguments, ready to be sent as often as needed. `timeout`: seconds for one attempt."""

    operation: Operation[T]
    settings: Settings = field(repr=False)
    url: str = field(repr=False)
    content: bytes | None = field(repr=False)
    key: str | None = field(repr=False)
    timeout: float
    repeatable: bool
    silence: float
    """Seconds that the next bytes may take to come."""

    def request(self) -> httpx.Request:
        headers = {
            "accept": "*/*" if self.operation.downloads else "application/json",
            # Nothing is unpacked here, so nothing small becomes something huge.
            "accept-encoding": "identity",
            "user-agent": f"postroom-client/{__version__}",
        }
        if self.settings.key is not None:
            headers["authorization"] = f"Bearer {self.settings.key}"
        if self.content is not None:
            headers["content-type"] = "application/json"
        if self.key is not None:
            headers["idempotency-key"] = self.key
        patience = {"connect": CONNECT_TIMEOUT, "read": self.silence, "write": self.timeout, "pool": self.timeout}
        return httpx.Request(
            self.operation.method, self.url, headers=headers, content=self.content, extensions={"timeout": patience}
        )

    def attempts(self) -> Attempts:
        surroundings = self.settings.surroundings
        return Attempts(
            self.settings.retry,
            repeatable=self.repeatable,
            started=surroundings.clock(),
            random=surroundings.random,
        )


def prepare(
    settings: Settings,
    operation: Operation[T],
    path: Sequence[str | int],
    query: Mapping[str, Any],
    body: Any,
    key: str | None,
    timeout: float | None,
) -> Call[T]:
    """Raises ConfigError for what cannot be sent."""
    allowed = settings.timeout if timeout is None else timeout
    silence = min(allowed, SILENCE) if operation.downloads else allowed
    dry = query.get("dry_run") is True
    if operation.keyed is Keyed.REQUIRED and key is None and not dry:
        raise ConfigError(
            f"{operation.name} needs an idempotency_key: choose it from the task, before the first attempt"
        )
    if operation.keyed is Keyed.OPTIONAL and key is None:
        key = settings.surroundings.new_key()
    if key is not None and (not _IDEMPOTENCY_KEY.fullmatch(key) or key != key.strip()):
        raise ConfigError("an idempotency key is 1 to 255 printable ASCII characters, with no space at either end")
    return Call(
        operation=operation,
        settings=settings,
        url=settings.url + _path(operation.path, path) + _query(query),
        content=None if body is None else _json(body),
        key=key,
        timeout=allowed,
        repeatable=operation.method in _IDEMPOTENT or key is not None or dry,
        silence=silence,
    )


def _path(template: str, values: Sequence[str | int]) -> str:
    pieces = re.split(r"\{\w+\}", template)
    made = pieces[0]
    for value, piece in zip(values, pieces[1:], strict=True):
        if not isinstance(value, (str, int)) or value in ("", ".", ".."):
            # Any of these would name another resource than the one that was meant.
            raise ConfigError(f"a part of {template} is empty or no name")
        made += _quoted(str(value)) + piece
    return made


def _query(values: Mapping[str, Any]) -> str:
    pairs = [f"{name}={_quoted(_word(name, value))}" for name, value in values.items() if value is not None]
    return "?" + "&".join(pairs) if pairs else ""


def _quoted(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise ConfigError("an argument has half a character") from None


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, datetime):
        try:
            return timestamp(value)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
    return ",".join(_word(name, one) for one in value)


def _json(body: Any) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # UnicodeEncodeError, which is a ValueError, would show the text.
        reason = "has half a character" if isinstance(error, UnicodeError) else "cannot be written as JSON"
        raise ConfigError(f"the body {reason}: {type(error).__name__}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, Model):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (bytes, bytearray)):
        return list(value)
    raise TypeError


# -- what comes back


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What an operation gave."""

    value: T
    status: int
    headers: httpx.Headers = field(repr=False)


def judge(call: Call[Any], status: int, headers: httpx.Headers, body: bytes | None) -> ApiError | Unusable | None:
    """What is wrong with an answer: None for a success. `body` is None where it was too long to be looked at."""
    if 200 <= status < 300:
        return None
    told = retry_after(headers)
    envelope = None if body is None else _envelope(body)
    if envelope is None:
        what = "a redirection, which is not followed" if 300 <= status < 400 else "an answer that is not Postroom's"
        return Unusable(DecodeError(f"{call.operation.name}: {what} ({status})", status=status), status, told)
    code, details = envelope["code"], envelope.get("details")
    details = details if isinstance(details, dict) else {}
    if told is None:
        told = _seconds(details.get("retry_after"))
    request_id = envelope.get("request_id")
    return class_of(status, code)(
        status,
        code,
        str(envelope.get("message", "")),
        retryable=envelope.get("retryable") is True,
        fix=str(envelope.get("fix", "")),
        request_id=request_id if isinstance(request_id, str) else headers.get("request-id"),
        retry_after=told,
        details=details,
    )


def _envelope(body: bytes) -> dict[str, Any] | None:
    try:
        error = parse(body)["error"]
        return error if isinstance(error, dict) and isinstance(error["code"], str) else None
    except (DecodeError, KeyError, TypeError):
        return None


def parse(body: bytes) -> Any:
    """JSON. Raises DecodeError, which shows nothing of it."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        pass
    raise DecodeError("the answer is no JSON")


def read_answer(call: Call[T], status: int, headers: httpx.Headers, body: bytes) -> Answer[T]:
    """Raises DecodeError."""
    answers = call.operation.answers
    # A success that a newer server tells apart is read as the ones that are known.
    model = answers[status] if status in answers else next(iter(answers.values()))
    value: Any = None
    if model is not None:
        parsed = parse(body)
        if issubclass(model, Model):
            value = model.from_dict(parsed)
        elif isinstance(parsed, dict):
            value = parsed
        else:
            raise DecodeError(f"{call.operation.name}: the answer is no object", status=status)
    return Answer(value, status, headers)


class Collected:
    """The body of an answer as it comes, up to a limit and within the time of the call."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._clock = call.settings.surroundings.clock
        self._began = self._clock()
        self._limit = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._too_long = False

    def begin(self, status: int, headers: httpx.Headers) -> bool:
        """Whether the body is for the caller to read. Raises DecodeError for one that is compressed, unasked."""
        if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise DecodeError(f"{self._call.operation.name}: the answer is compressed", status=status)
        success = 200 <= status < 300
        self._limit = self._call.settings.max_answer if success else MAX_ERROR
        return success and self._call.operation.downloads

    def add(self, piece: bytes) -> bool:
        """Whether there is room for more. Raises RequestTimeout."""
        self._size += len(piece)
        if self._size > self._limit:
            self._too_long = True
            return False
        self._pieces.append(piece)
        if self._clock() - self._began > self._call.timeout:
            raise too_late(self._call.operation.name)
        return True

    @property
    def body(self) -> bytes | None:
        """None: it is longer than the limit."""
        return None if self._too_long else b"".join(self._pieces)


def finish(call: Call[Any], status: int, headers: httpx.Headers, body: bytes | None) -> bytes | ApiError | Unusable:
    """The body of a success, or what is wrong. Raises DecodeError for a success that is too long."""
    failure = judge(call, status, headers, body)
    if failure is not None:
        return failure
    if body is None:
        raise DecodeError(f"{call.operation.name}: the answer is too long", status=status)
    return body


def too_late(operation: str) -> RequestTimeout:
    """The time of an attempt was over while its answer was still coming."""
    return RequestTimeout(f"{operation}: the answer took too long", sent=True)


def transport_error(operation: str, error: httpx.TransportError) -> TransportError:
    """What an exception of httpx means. It holds neither that nor the request, which knows the key."""
    sent = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError))
    if isinstance(error, httpx.TimeoutException):
        return RequestTimeout(f"{operation}: no answer in time ({type(error).__name__})", sent=sent)
    # What the system says of a connection that could not be made helps, and is of the connection alone.
    said = f": {error}" if isinstance(error, httpx.ConnectError) else ""
    return TransportError(f"{operation}: {type(error).__name__}{said}", sent=sent)


def retry_after(headers: httpx.Headers) -> float | None:
    """Seconds of `Retry-After`, or to the time that it names, by the server's own clock (RFC 9110 §10.2.3)."""
    told = headers.get("retry-after")
    if told is None:
        return None
    if told.isascii() and told.isdigit() and len(told) < 10:
        return float(told)
    then, now = _date(told), _date(headers.get("date"))
    return None if then is None or now is None else max(0.0, (then - now).total_seconds())


def server_time(headers: httpx.Headers) -> datetime | None:
    """The time of an answer, in whole seconds."""
    return _date(headers.get("date"))


def _date(text: str | None) -> datetime | None:
    try:
        found = None if text is None else parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return None if found is None else found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MAX_SECONDS:
        return None
    return float(value)
