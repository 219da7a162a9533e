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
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
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
MAX_TOLD: Final = 5
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


def server(url: str) -> SplitResult:
    """The parts of the URL of a server that is told a key. Raises a usage error for one that is none, or where whoever
    is between could read the key.
    """
    parts = split(url, "--url")
    if parts.username is not None or parts.password is not None:
        raise usage("--url: the address of the server has no user: the key is an option of its own")
    if parts.query or parts.fragment:
        raise usage("--url: the address of the server has no query or fragment")
    if parts.scheme == "http" and not _is_here(parts.hostname or ""):
        raise usage("--url: http:// is for localhost and 127.0.0.1; elsewhere use https://")
    return parts


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(
    source: Source, *, tell: Callable[[str], None], pause: Callable[[float], None] = time.sleep
) -> Iterator[tuple[str, bytes]]:
    """Type and bytes of each event, for ever: a connection that ends is made again, and goes on where it was.

    `tell` is told in words when it is connected, and once when it is not any more or not yet. Raises CliError for what
    trying again does not mend.
    """
    position, wait, is_told = "", _FIRST_PAUSE, False
    while True:
        try:
            is_new = True
            for sent in _connected(source, position):
                if is_new:
                    tell("Connected: what happens from now on is passed on." if not position else "Connected again.")
                    is_new = is_told = False
                wait = _FIRST_PAUSE
                position = sent.id or position
                if sent.kind == "error" and not _is_passing(sent.data):
                    raise _refused(403, sent.data)
                if "." in sent.kind:
                    yield sent.kind, sent.data
        except (OSError, http.client.HTTPException) as error:
            if not is_told:
                tell(f"{source.url} cannot be listened to now ({_why(error)}); it is tried again.")
                is_told = True
            pause(wait)
            wait = min(wait * 2, _LONGEST_PAUSE)


def _connected(source: Source, position: str) -> Iterator[Sent]:
    parts = server(source.url)
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
            raise ConnectionError(f"it answers {answer.status}")
        if answer.status != http.client.OK:
            raise _refused(answer.status, answer.read(MAX_LINE))
        yield from parse(io.BufferedReader(answer, 1).readline)
    finally:
        connection.close()


def _is_passing(data: bytes) -> bool:
    return _code(data) in ("slow_consumer", "unavailable", "internal_error")


def _code(data: bytes) -> str:
    return _member(data, "code")


def _member(data: bytes, name: str) -> str:
    """Of an error as the server writes it; "" where there is none."""
    try:
        document = json.loads(data)
    except ValueError:
        return ""
    found = document.get("error", document) if isinstance(document, dict) else {}
    return str(found.get(name, "")) if isinstance(found, dict) else ""


def _details(data: bytes) -> str:
    """What is wrong with what was asked, one thing after the other; "" where the server names none."""
    try:
        errors = json.loads(data)["error"]["details"]["errors"]
        return "; ".join(f"{one['path']} {one['message']}" for one in errors[:MAX_TOLD])
    except (ValueError, TypeError, LookupError):
        return ""


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno) if error.errno > 0 else "no such host"
    return str(error) or type(error).__name__


_FIXES: Final = {
    "unauthenticated": "The key is not one of this server, or is not good any more.",
    "permission_denied": "The key needs webhooks:read, and messages:read for events of mail.",
    "cli_refused": "No Postroom answers there: --url is the server alone, as https://mail.example.com.",
}


def _refused(status: int, body: bytes) -> CliError:
    code = _code(body) or "cli_refused"
    said = _member(body, "message") or f"it answers {status}"
    if told := _details(body):
        said = f"{said} {told}"
    return CliError(
        code, f"the server refuses the stream: {said}", exit=exit_of_status(status), fix=_FIXES.get(code, "")
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
