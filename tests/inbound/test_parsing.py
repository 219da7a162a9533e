"""Parsing apart from the loop: a process that dies or dawdles costs the description, never the message (B2, B18)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroom.inbound import parsing
from postroom.inbound.describe import MAX_ATTACHMENTS, describe
from postroom.inbound.parsing import INLINE_BYTES, Parser
from postroom.mailbox.models import Content

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TRACE = b"Return-Path: <>\r\n"
HEAD = b"From: a@example.com\r\nSubject: Large\r\nMessage-ID: <1@example.com>\r\n"
LARGE = HEAD + b"\r\n" + b"Hello there, how are you?\r\n" * 10_000
DEADLINE = 60.0


@pytest.fixture
async def parser() -> AsyncIterator[Parser]:
    made = Parser()
    yield made
    made.close()


def children(parser: Parser) -> list[int]:
    return list(parser._pool._processes) if parser._pool is not None and parser._pool._processes else []


async def child(parser: Parser, *, other_than: int = 0) -> int:
    """The parser's process, once there is one."""
    async with asyncio.timeout(DEADLINE):
        while not (found := [pid for pid in children(parser) if pid != other_than]):  # noqa: ASYNC110
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


@pytest.mark.covers("B2", "B18")
async def test_large_messages_are_parsed_in_a_process_of_their_own(parser: Parser) -> None:
    assert len(LARGE) > INLINE_BYTES
    small = LARGE[:INLINE_BYTES]
    assert await parser.describe(TRACE, small, NOW) == describe(TRACE, small, NOW)
    assert children(parser) == []
    assert await parser.describe(TRACE, LARGE, NOW) == describe(TRACE, LARGE, NOW)
    (pid,) = children(parser)
    assert pid != os.getpid()
    # The process is kept for the next one.
    results = await asyncio.gather(*(parser.describe(TRACE, LARGE, NOW) for _ in range(4)))
    assert results == [describe(TRACE, LARGE, NOW)] * 4
    assert children(parser) == [pid]
    parser.close()
    await gone(pid)


@pytest.mark.covers("B2", "J2")
async def test_a_process_that_dies_is_replaced_once(parser: Parser) -> None:
    await parser.describe(TRACE, LARGE, NOW)
    pid = await child(parser)
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(parser.describe(TRACE, LARGE, NOW))
    behind = asyncio.ensure_future(parser.describe(TRACE, LARGE, NOW))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert await waiting == await behind == describe(TRACE, LARGE, NOW)


@pytest.mark.covers("B2")
async def test_a_process_that_dies_again_costs_the_description(parser: Parser) -> None:
    waiting = asyncio.ensure_future(parser.describe(TRACE, LARGE, NOW))
    first = await child(parser)
    os.kill(first, signal.SIGKILL)
    os.kill(await child(parser, other_than=first), signal.SIGKILL)
    assert is_headers_only(await waiting)
    assert await parser.describe(TRACE, LARGE, NOW) == describe(TRACE, LARGE, NOW)


@pytest.mark.covers("B2")
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


@pytest.mark.covers("B2")
async def test_whatever_parsing_raises_costs_the_description(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, headers_only: bool = False) -> Content:
        if not headers_only:
            raise AssertionError("a bug")
        return describe(*arguments, headers_only=True)

    monkeypatch.setattr(parsing, "describe", broken)
    assert is_headers_only(await parser.describe(TRACE, HEAD + b"\r\nHello\r\n", NOW))


@pytest.mark.covers("B2")
async def test_a_million_parts(parser: Parser) -> None:
    raw = HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\n\r\n" * 1_000_000
    content = await parser.describe(TRACE, raw, NOW)
    assert "parse_degraded" in content.facts
    # It was parsed, as far as the limit of parts goes.
    assert 400 < content.body_structure.lower().count(b'"plain"') <= 500
    assert len(content.attachments) <= MAX_ATTACHMENTS
    assert len(content.part_tree) < 100_000
