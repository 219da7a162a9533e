"""Parsing apart from the loop: a process that dies or dawdles costs the description, never the message (B2, B18)."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroom.inbound import parsing
from postroom.inbound.describe import MAX_ATTACHMENTS, QUICK_BYTES, describe, describe_quickly, looks_quick
from postroom.inbound.parsing import LARGE_BYTES, Parser, ParserBusy, ParsingFailed
from postroom.mailbox.models import Content
from tests.mail.containers import zipped

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TRACE = b"Return-Path: <a@example.com>\r\n"
HEAD = b"From: a@example.com\r\nSubject: Large\r\nMessage-ID: <1@example.com>\r\n"
LARGE = HEAD + b"\r\n" + b"Hello there, how are you?\r\n" * 10_000
HTML = HEAD + b"Content-Type: text/html\r\n"
DEADLINE = 60.0

HOSTILE = {
    "comments": HEAD + b"To: " + b"(" * 8000 + b"\r\n\r\n",
    "quotes": HEAD + b'To: "' + b'\\"' * 4000 + b"\r\n\r\n",
    "brackets": HEAD + b"To: " + b"<" * 8000 + b"\r\n\r\n",
    "groups": HEAD + b"To: " + b"g:a@b;" * 1200 + b"\r\n\r\n",
    "fields": HEAD + b"To:a@b\r\n" * 900 + b"\r\n",
    "group in a message in it": HEAD + b"Content-Type: message/rfc822\r\n\r\nTo: " + b"g:a@b;" * 2000 + b"\r\n\r\n",
    "long header": HEAD + b"X: " + b"a" * 9000 + b"\r\n\r\n",
    "header without end": HEAD + b"X: " + b"a" * 9000,
    "tags": HTML + b"\r\n" + b"<td><br>" * 300,
    "nested tags": HTML + b"\r\n" + b"<div>" * 1000,
    "attributes": HTML + b"\r\n<a " + b"a=b " * 5000 + b">",
    "one tag's attributes": HTML + b"\r\n<a " + b"a=b " * 1000 + b">",
    "styles": HTML + b"\r\n" + b"<p style='color:red'>x</p>" * 80,
    "styles in an alternative": HEAD
    + b"Content-Type: multipart/alternative; boundary=b\r\n\r\n--b\r\n\r\ntext\r\n"
    + b"--b\r\nContent-Type: text/html\r\n\r\n"
    + b"<p style='color:red'>x</p>" * 80,
    "lines that look like headers": HEAD + b"\r\n" + b"From: x\r\n" * 1000,
    "flowed lines": HEAD + b"Content-Type: text/plain; format=flowed\r\n\r\n" + b"> a \r\n" * 4000,
    "hidden tags": HTML + b"Content-Transfer-Encoding: quoted-printable\r\n\r\n" + b"=3Cbr=3E" * 500,
    "parts": HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\n\r\n" * 200,
    "archive": HEAD
    + b"Content-Type: application/zip\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    + b64encode(zipped({"a.txt": b"a"})),
    "report": HEAD + b"Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\n\r\nHi\r\n",
    "invitation": HEAD + b"Content-Type: text/calendar\r\n\r\nBEGIN:VCALENDAR\r\n",
    "size": HEAD + b"\r\n" + b"a" * QUICK_BYTES,
}
ORDINARY = {
    "text": HEAD + b"\r\n" + b"Hello there, how are you?\r\n" * 165,
    "html": HTML + b"\r\n<html>" + b"<p>Hello, how are <b>you</b> today?</p>\r\n" * 90,
    "list": HEAD
    + b"To: "
    + b", ".join(b'"Box %d" <box%d@agents.example>' % (n, n) for n in range(60))
    + b"\r\n\r\nHi\r\n",
    "traced": HEAD
    + b"Received: from mx.example.com (mx.example.com [192.0.2.1])\r\n\tby mx (x);\r\n" * 12
    + b"\r\nHi\r\n",
}


@pytest.fixture
async def parser() -> AsyncIterator[Parser]:
    made = Parser()
    yield made
    made.close()


async def child(parser: Parser, *, other_than: int = 0) -> int:
    """The parser's process, once there is one."""
    async with asyncio.timeout(DEADLINE):
        while not (found := [pid for pid in parser.process_ids if pid != other_than]):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.002)
    return found[0]


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while is_alive(pid):  # noqa: ASYNC110 - what is polled has no event
            await asyncio.sleep(0.005)


def is_headers_only(content: Content) -> bool:
    return content.text == "" and "parse_degraded" in content.facts and content.subject == "Large"


@pytest.mark.covers("decisions:B2", "decisions:B18")
@pytest.mark.parametrize("name", HOSTILE)
def test_what_takes_long_leaves_the_loop(name: str) -> None:
    raw = HOSTILE[name]
    assert not looks_quick(raw) or describe_quickly(TRACE, raw, NOW) is None


@pytest.mark.covers("decisions:B18")
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_mail_does_not(name: str) -> None:
    raw = ORDINARY[name]
    assert looks_quick(raw)
    assert describe_quickly(TRACE, raw, NOW) == describe(TRACE, raw, NOW)


@pytest.mark.covers("decisions:B2", "decisions:B18")
async def test_large_messages_are_parsed_in_a_process_of_their_own(parser: Parser) -> None:
    small = ORDINARY["text"]
    assert await parser.describe(TRACE, small, NOW) == describe(TRACE, small, NOW)
    assert parser.process_ids == []
    assert await parser.describe(TRACE, LARGE, NOW) == describe(TRACE, LARGE, NOW)
    (pid,) = parser.process_ids
    assert pid != os.getpid()
    # The process is kept for the next one, and a second one takes what comes meanwhile.
    results = await asyncio.gather(*(parser.describe(TRACE, LARGE, NOW) for _ in range(4)))
    assert results == [describe(TRACE, LARGE, NOW)] * 4
    assert pid in parser.process_ids
    assert len(parser.process_ids) == 2
    pids = parser.process_ids
    parser.close()
    for each in pids:
        await gone(each)


@pytest.mark.covers("decisions:B2", "edge:J2")
async def test_a_process_that_dies_is_replaced_once(parser: Parser) -> None:
    await parser.describe(TRACE, LARGE, NOW)
    pid = await child(parser)
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(parser.describe(TRACE, LARGE, NOW))
    behind = asyncio.ensure_future(parser.describe(TRACE, LARGE, NOW))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert await waiting == await behind == describe(TRACE, LARGE, NOW)


@pytest.mark.covers("decisions:B2")
async def test_a_process_that_dies_again_costs_the_description(parser: Parser) -> None:
    waiting = asyncio.ensure_future(parser.describe(TRACE, LARGE, NOW))
    first = await child(parser)
    os.kill(first, signal.SIGKILL)
    os.kill(await child(parser, other_than=first), signal.SIGKILL)
    assert is_headers_only(await waiting)
    assert await parser.describe(TRACE, LARGE, NOW) == describe(TRACE, LARGE, NOW)


@pytest.mark.covers("decisions:B2")
async def test_a_process_that_dawdles_is_ended() -> None:
    parser = Parser(timeout=DEADLINE)
    try:
        await parser.describe(TRACE, LARGE, NOW)
        parser._timeout = 0.1
        pid = await child(parser)
        os.kill(pid, signal.SIGSTOP)
        assert is_headers_only(await parser.describe(TRACE, LARGE, NOW))
        await gone(pid)
        parser._timeout = DEADLINE
        assert await parser.describe(TRACE, LARGE, NOW) == describe(TRACE, LARGE, NOW)
    finally:
        parser.close()


@pytest.mark.covers("decisions:B2")
async def test_waiting_for_a_process_ends() -> None:
    parser = Parser(processes=1, wait=0.05)
    try:
        busy = asyncio.ensure_future(parser.run(0, time.sleep, 3600))
        await child(parser)
        assert is_headers_only(await parser.describe(TRACE, LARGE, NOW))
        with pytest.raises(ParserBusy):
            await parser.run(0, os.getpid)
        # What nobody waits for any more does not keep the process.
        busy.cancel()
        with pytest.raises(asyncio.CancelledError):
            await busy
        assert await parser.run(0, os.getpid) in parser.process_ids
    finally:
        parser.close()


@pytest.mark.covers("decisions:B2")
async def test_large_messages_leave_a_process_to_the_others() -> None:
    parser = Parser(wait=DEADLINE)
    large = [asyncio.ensure_future(parser.run(LARGE_BYTES, time.sleep, 3600)) for _ in range(3)]
    try:
        await child(parser)
        assert await parser.describe(TRACE, LARGE, NOW) == describe(TRACE, LARGE, NOW)
        assert not any(task.done() for task in large)
    finally:
        for task in large:
            task.cancel()
        await asyncio.gather(*large, return_exceptions=True)
        parser.close()


@pytest.mark.covers("decisions:B2")
async def test_processes_end_when_idle_and_after_a_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Parser(idle=0.05)
    try:
        pid = await parser.run(0, os.getpid)
        await gone(pid)
        assert parser.process_ids == []
    finally:
        parser.close()
    monkeypatch.setattr(parsing, "TASKS_PER_PROCESS", 2)
    parser = Parser()
    try:
        pids = [await parser.run(0, os.getpid) for _ in range(4)]
        assert pids[0] == pids[1] != pids[2] == pids[3]
        await gone(pids[0])
    finally:
        parser.close()


_SERVER = """
import asyncio, os, sys
from postroom.inbound.parsing import Parser

async def main():
    parser = Parser()
    print(await parser.run(0, os.getpid), flush=True)
    await asyncio.sleep(3600)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.covers("decisions:B2", "edge:J2")
async def test_processes_end_with_a_server_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(_SERVER)
    server = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    pid = int(await server.stdout.readline())
    assert is_alive(pid)
    server.kill()
    await server.wait()
    await gone(pid)


@pytest.mark.covers("decisions:B2")
async def test_whatever_parsing_raises_costs_the_description(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Content:
        raise AssertionError("a bug")

    with pytest.raises(ParsingFailed):
        await parser.run(0, math.sqrt, -1.0)
    monkeypatch.setattr(parsing, "describe_quickly", broken)
    assert is_headers_only(await parser.describe(TRACE, HEAD + b"\r\nHello\r\n", NOW))


@pytest.mark.covers("decisions:B2", "FR-IN-3")
async def test_a_million_parts(parser: Parser) -> None:
    raw = HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\n\r\n" * 1_000_000
    content = await parser.describe(TRACE, raw, NOW)
    assert "parse_degraded" in content.facts
    # It was parsed, as far as the limit of parts goes.
    assert 400 < content.body_structure.lower().count(b'"plain"') <= 500
    assert len(content.attachments) <= MAX_ATTACHMENTS
    assert len(content.part_tree) < 100_000


@pytest.mark.covers("decisions:B2")
@pytest.mark.parametrize("raw", [LARGE, HEAD + b"X: a\r\n" * 200_000 + b"\r\nHello\r\n"], ids=["body", "header"])
def test_headers_alone(raw: bytes) -> None:
    content = describe(TRACE, raw, NOW, headers_only=True)
    whole = describe(TRACE, raw, NOW)
    assert is_headers_only(content)
    assert (content.envelope, content.raw_size, content.raw_sha256) == (
        whole.envelope,
        whole.raw_size,
        whole.raw_sha256,
    )
    if raw is LARGE:
        assert (content.body_structure, content.part_tree, content.body_sha256) == (
            whole.body_structure,
            whole.part_tree,
            whole.body_sha256,
        )
