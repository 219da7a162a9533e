"""Plain clients out of the standard library, as the story's players use them. Blocking: call them from a thread."""

from __future__ import annotations

import imaplib
import json
import re
import smtplib
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from postroom.demo.place import HOST, Cast, Ports
from postroom.demo.samples import Sample

TIMEOUT: Final = 20.0
"""Seconds after which anything that does not answer is broken."""
MAX_LINE: Final = 1024 * 1024
MAX_ANSWER: Final = 64 * 1024 * 1024

_EXISTS: Final = re.compile(rb"\* (\d+) EXISTS\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of an error envelope."""
        try:
            code = self.document["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return None
        return code if isinstance(code, str) else None


class Rest:
    """The REST API with one key."""

    def __init__(self, ports: Ports, key: str) -> None:
        self._url, self._key = ports.url, key
        # Proxies of the environment are for the world outside.
        self._opener = build_opener(ProxyHandler({}))

    def get(self, path: str, query: Mapping[str, str] | None = None, *, timeout: float = TIMEOUT) -> Answer:
        return self._call("GET", f"{path}?{urlencode(query)}" if query else path, None, timeout)

    def patch(self, path: str, body: object) -> Answer:
        return self._call("PATCH", path, json.dumps(body).encode(), TIMEOUT)

    def post(self, path: str, body: object, *, key: str) -> Answer:
        """With an `Idempotency-Key`."""
        return self._call("POST", path, json.dumps(body).encode(), TIMEOUT, {"Idempotency-Key": key})

    def _call(
        self, method: str, path: str, body: bytes | None, timeout: float, more: Mapping[str, str] | None = None
    ) -> Answer:
        headers = {"Authorization": f"Bearer {self._key}", "Accept": "application/json", **(more or {})}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = Request(f"{self._url}{path}", data=body, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.read(MAX_ANSWER))
        except HTTPError as error:
            with error:
                return Answer(error.code, error.read(MAX_ANSWER))


def deliver(ports: Ports, sample: Sample) -> None:
    """Send *sample* over SMTP, as another server would. Raises smtplib.SMTPException, OSError."""
    with smtplib.SMTP(HOST, ports.smtp, local_hostname="mail.example.com", timeout=TIMEOUT) as client:
        client.sendmail(sample.sender, sample.recipients, sample.raw)


def submit(ports: Ports, cast: Cast, message: EmailMessage) -> None:
    """Send *message* as the person's mail program does, under TLS. Raises smtplib.SMTPException, OSError."""
    # The demo's certificate is its own.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with smtplib.SMTP(HOST, ports.submission, local_hostname="laptop.example.com", timeout=TIMEOUT) as client:
        client.starttls(context=context)
        client.login(cast.person.address, cast.person.password)
        client.send_message(message)


@contextmanager
def imap(ports: Ports, cast: Cast) -> Iterator[imaplib.IMAP4]:
    """A session of the demo's person."""
    client = imaplib.IMAP4(HOST, ports.imap, timeout=TIMEOUT)
    try:
        client.login(cast.person.address, cast.person.password)
        yield client
    finally:
        with suppress(imaplib.IMAP4.error, OSError):
            client.logout()


class Wire:
    """A raw connection, for what no client library says."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=TIMEOUT)
        self._buffer = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def line(self) -> bytes:
        """The next line with its end; empty when the server closed the connection."""
        while b"\n" not in self._buffer and len(self._buffer) < MAX_LINE:
            more = self._receive()
            if not more:
                break
            self._buffer += more
        line, newline, self._buffer = self._buffer.partition(b"\n")
        return line + newline

    def reply(self) -> bytes:
        """The last line of the next SMTP reply."""
        while (line := self.line())[3:4] == b"-":
            pass
        return line

    def until(self, start: bytes) -> bytes:
        """The next line that starts with *start*, or the empty one at the end of the connection."""
        while (line := self.line()) and not line.startswith(start):
            pass
        return line

    def exists(self) -> int | None:
        """The number of the next EXISTS response; None at the end of the connection."""
        while line := self.line():
            if match := _EXISTS.fullmatch(line):
                return int(match[1])
        return None

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except ConnectionResetError:
            return b""


@contextmanager
def idling(ports: Ports, cast: Cast) -> Iterator[Wire]:
    """A raw IMAP connection of the demo's person that is in IDLE on INBOX (RFC 2177)."""
    with Wire(ports.imap) as wire:
        wire.line()
        wire.send(f'a LOGIN "{cast.person.address}" "{cast.person.password}"\r\n'.encode())
        wire.until(b"a ")
        wire.send(b"b SELECT INBOX\r\n")
        wire.until(b"b ")
        wire.send(b"c IDLE\r\n")
        wire.until(b"+")
        yield wire
        wire.send(b"DONE\r\nd LOGOUT\r\n")
        wire.until(b"d ")
