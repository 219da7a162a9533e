"""The stream of a server's events, taken and passed on to a URL as webhooks are (events-webhooks-errors §7).

For development: no tunnel is needed to have webhooks on one's own machine. Blocking, with the standard library alone:
it is for one person in front of a terminal.
"""

from __future__ import annotations

import base64
import hmac
import http.client
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from postroom import __version__
from postroom.cli.failures import CliError, exit_of_status, usage

STREAM_PATH: Final = "/v1/events/stream"
SILENCE_SECONDS: Final = 45.0
"""Without a word for so long, three heartbeats, the connection is taken for broken."""
FORWARD_SECONDS: Final = 15.0
"""As long as a webhook may take."""
MAX_LINE: Final = 1024 * 1024
MAX_ANSWER: Final = 4096
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_PASSING: Final = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Sent:
    """A server-sent event. `data` is an event's own bytes."""

    kind: str
    id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Source:
    """A server, the key it is asked with, and what is asked for."""

    url: str
    key: str
    filters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Passed:
    """What became of an event at the other end; `status` None: nobody answered."""

    event_id: str
    type: str
    status: int | None
    duration_ms: int


def parse(read_line: Callable[[int], bytes]) -> Iterator[Sent]:
    """The events of a stream of lines, each as soon as its empty line is there (HTML, section 9.2.6), until its end.
    Raises ConnectionError for a line beyond all measure.
    """
    kind, position = "message", ""
    data: list[bytes] = []
    while line := read_line(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise ConnectionError("a line of the stream is too long")
        text = line.rstrip(b"\r\n")
        if not text:
            # An event without data only moves the position.
            yield Sent(kind if data else "", position, b"\n".join(data))
            kind, data = "message", []
            continue
        name, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            position = value.decode("ascii", "replace")


def split(url: str, option: str) -> SplitResult:
    """The parts of a URL. Raises a usage error for one that is none of HTTP's."""
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018  it is read when it is asked for
    except ValueError:
        parts = parts._replace(netloc="")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise usage(f"{option}: {url!r} is not a URL such as http://127.0.0.1:3000/hooks")
    return parts


def listen(source: Source, *, pause: Callable[[float], None] = time.sleep) -> Iterator[tuple[str, bytes]]:
    """Type and bytes of each event, for ever: a connection that ends is made again, and goes on where it was.

    Raises CliError for what trying again does not mend.
    """
    position, wait = "", _FIRST_PAUSE
    while True:
        try:
            for sent in _connected(source, position):
                wait = _FIRST_PAUSE
                position = sent.id or position
                if sent.kind == "error" and not _is_passing(sent.data):
                    raise _refused(403, sent.data)
                if "." in sent.kind:
                    yield sent.kind, sent.data
        except (OSError, http.client.HTTPException):
            pause(wait)
            wait = min(wait * 2, _LONGEST_PAUSE)


def _connected(source: Source, position: str) -> Iterator[Sent]:
    parts = split(source.url, "--url")
    headers = {"Authorization": f"Bearer {source.key}", "Accept": "text/event-stream"}
    if position:
        headers["Last-Event-ID"] = position
    query = urlencode(source.filters)
    connection = _connection(parts, SILENCE_SECONDS)
    try:
        connection.request(
            "GET", f"{parts.path.rstrip('/')}{STREAM_PATH}{'?' if query else ''}{query}", headers=headers
        )
        answer = connection.getresponse()
        if answer.status in _PASSING:
            raise ConnectionError
        if answer.status != http.client.OK:
            raise _refused(answer.status, answer.read(MAX_LINE))
        yield from parse(io.BufferedReader(answer, 1).readline)
    finally:
        connection.close()


def _is_passing(data: bytes) -> bool:
    return _code(data) in ("slow_consumer", "unavailable", "internal_error")


def _code(data: bytes) -> str:
    try:
        document = json.loads(data)
    except ValueError:
        return ""
    found = document.get("error", document) if isinstance(document, dict) else {}
    return str(found.get("code", "")) if isinstance(found, dict) else ""


def _refused(status: int, body: bytes) -> CliError:
    code = _code(body) or "cli_refused"
    return CliError(
        code,
        f"the server refuses the stream: {code}",
        exit=exit_of_status(status),
        fix="The key needs webhooks:read, and messages:read for events of mail.",
    )


def _connection(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    assert parts.hostname is not None
    return made(parts.hostname, parts.port, timeout=timeout)


def sign(secret: bytes, event_id: str, at: int, body: bytes) -> str:
    """The signature of Standard Webhooks, version 1."""
    text = f"{event_id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, text, "sha256")).decode("ascii")


def forward(url: str, secret: bytes, kind: str, body: bytes) -> Passed:
    """Post an event once, with the headers of a webhook. Redirects are not followed."""
    parts = split(url, "--forward")
    document: dict[str, Any] = json.loads(body)
    event_id, at = str(document["id"]), int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"Postroom/{__version__}",
        "webhook-id": event_id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secret, event_id, at, body),
    }
    begun, status = time.monotonic(), None
    connection = _connection(parts, FORWARD_SECONDS)
    try:
        connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
        answer = connection.getresponse()
        status = answer.status
        answer.read(MAX_ANSWER)
    except (OSError, http.client.HTTPException):
        pass  # a status in time is an answer; without one nobody is there
    finally:
        connection.close()
    return Passed(event_id, kind, status, round((time.monotonic() - begun) * 1000))
