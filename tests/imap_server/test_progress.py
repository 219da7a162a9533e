"""INPROGRESS over the wire (RFC 9585)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.servers.imap import progress
from postroom.servers.imap.facts import FactCache

STILL = b'* OK [INPROGRESS ("x" NIL NIL)] Still at it'


@pytest.mark.covers("RFC 9585 §4")
async def test_who_waits_long_is_told_so(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await office.fill(2)
    client = await office.client()
    monkeypatch.setattr(progress, "INTERVAL", 0.05)
    move, gate = office.boxes.move, asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        await gate.wait()
        return await move(*arguments)

    monkeypatch.setattr(office.boxes, "move", slow)
    client.send(b"x UID MOVE 1 Archive\r\n")
    assert [await client.line(), await client.line()] == [STILL, STILL]
    gate.set()
    lines = [line for line in await client.until(b"x") if line != STILL]
    assert lines[0].startswith(b"* OK [COPYUID ")
    assert lines[1:] == [b"* 1 EXPUNGE", b"x OK MOVE completed"]
    # Nothing follows, and whoever is quick hears nothing.
    await asyncio.sleep(0.15)
    assert await client.ok(b"SEARCH ALL") == [b"* SEARCH 1"]


@pytest.mark.covers("RFC 9585 §4")
async def test_nothing_stands_within_an_answer(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FETCH may write half a response and wait: it is told of by what it writes."""
    await office.fill(1)
    client = await office.client()
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    load = FactCache.load

    async def slow(*arguments: Any) -> Any:
        await asyncio.sleep(0.1)
        return await load(*arguments)

    monkeypatch.setattr(FactCache, "load", slow)
    assert len(await client.ok(b"FETCH 1 (ENVELOPE BODY.PEEK[])")) == 1


@pytest.mark.covers("RFC 9585 §4")
async def test_a_command_that_fails_ends_it_too(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await office.fill(1)
    client = await office.client()
    monkeypatch.setattr(progress, "INTERVAL", 0.05)

    async def slow(*arguments: Any) -> Any:
        await asyncio.sleep(0.07)
        raise ConnectionError

    monkeypatch.setattr(office.boxes, "copy", slow)
    client.send(b"x COPY 1 Archive\r\n")
    lines = await client.until(b"x")
    assert lines[0] == STILL
    assert lines[-1].startswith(b"x NO [")
    await asyncio.sleep(0.15)
    assert await client.ok(b"NOOP") == []
    client.send(b"a] COPY 1 Archive\r\n")
    assert await client.line() == b"* OK [INPROGRESS (NIL NIL NIL)] Still at it"
    assert (await client.line()).startswith(b"a] NO ")
