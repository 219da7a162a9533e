"""THREAD over the wire (RFC 5256 §3)."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroom.servers.imap import thread
from tests.imap_server.dovecot import ask_dovecot, needs_dovecot

_FIRST = datetime(2020, 5, 1, tzinfo=UTC)


def _mails(seed: int, count: int) -> list[bytes]:
    """Letters that answer one another, in random order, some of them missing."""
    rng = random.Random(seed)
    above: list[list[int]] = []
    for number in range(count):
        parent = rng.randrange(number) if number and rng.random() < 0.7 else None
        above.append([] if parent is None else [*above[parent], parent])
    made = []
    for number in range(count):
        fields = {
            "Subject": rng.choice(("", "Re: ", "Fwd: ")) + rng.choice(("apples", "pears", "", f"number {number}")),
            "Date": (datetime(2021, 1, 1, tzinfo=UTC) + timedelta(minutes=rng.randrange(3000))).strftime(
                "%a, %d %b %Y %H:%M:%S +0000"
            ),
            "Message-ID": f"<{number}@x.example>" if rng.random() < 0.9 else "",
        }
        named = " ".join(f"<{one}@x.example>" for one in above[number])
        fields["References" if rng.random() < 0.7 else "In-Reply-To"] = named
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        made.append(f"{head}\r\n{number}\r\n".encode())
    rng.shuffle(made)
    return made[: count * 3 // 4]


async def _filled(office: Any, mails: list[bytes]) -> Any:
    client = await office.client(None)
    for number, raw in enumerate(mails):
        when = _FIRST + timedelta(seconds=number)
        await client.append(raw, extra=when.strftime('"%d-%b-%Y %H:%M:%S +0000" ').encode())
    await client.ok(b"SELECT INBOX")
    return client


async def _threads(client: Any, arguments: bytes, command: bytes = b"THREAD") -> bytes:
    (line,) = [one for one in await client.ok(command + b" " + arguments) if one.startswith(b"* THREAD")]
    return bytes(line.removeprefix(b"* THREAD").strip())


@needs_dovecot
@pytest.mark.covers("RFC 5256 §3")
@pytest.mark.parametrize("algorithm", [b"REFERENCES", b"ORDEREDSUBJECT"])
@pytest.mark.parametrize("seed", range(3))
async def test_threads_are_those_of_another_server(office: Any, algorithm: bytes, seed: int) -> None:
    mails = _mails(seed, 40)
    client = await _filled(office, mails)
    commands = [b"THREAD %b US-ASCII %b" % (algorithm, keys) for keys in (b"ALL", b"1:20", b"SUBJECT apples")]
    answers = ask_dovecot(mails, commands, first_date=int(_FIRST.timestamp()))
    for command, line in zip(commands, answers, strict=True):
        assert await _threads(client, command[7:]) == line.removeprefix(b"* THREAD").strip(), command


@pytest.mark.covers("RFC 5256 §3", "RFC 5256 §4")
async def test_forms(office: Any) -> None:
    client = await _filled(
        office,
        [
            b"Subject: a\r\nMessage-ID: <1@x.example>\r\n\r\n",
            b"Subject: b\r\n\r\n",
            b"Subject: Re: a\r\nMessage-ID: <3@x.example>\r\nReferences: <1@X.example>\r\n\r\n",
            b"Subject: c\r\nIn-Reply-To: <3@x.example>\r\n\r\n",
        ],
    )
    await client.ok(rb"STORE 2 +FLAGS (\Deleted)")
    await client.ok(b"EXPUNGE")
    assert await _threads(client, b"REFERENCES UTF-8 ALL") == b"(1 2 3)"
    assert await _threads(client, b"REFERENCES UTF-8 ALL", b"UID THREAD") == b"(1 3 4)"
    assert await _threads(client, b"ORDEREDSUBJECT UTF-8 ALL", b"UID THREAD") == b"(1 3)(4)"
    assert await client.ok(b"THREAD REFERENCES UTF-8 FLAGGED") == [b"* THREAD"]
    assert (await client.ask(b"THREAD REFS UTF-8 ALL"))[-1].startswith(b"BAD")
    assert (await client.ask(b"THREAD REFERENCES X ALL"))[-1].startswith(b"NO [BADCHARSET (UTF-8)]")


@pytest.mark.covers("decisions:C1")
async def test_no_bytes_of_messages_are_read(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await _filled(office, _mails(9, 8))

    async def refuse(*_: object) -> None:
        raise AssertionError("bytes were read")

    monkeypatch.setattr(office.blobs, "get_many", refuse)
    for algorithm in (b"REFERENCES", b"ORDEREDSUBJECT"):
        found = await _threads(client, algorithm + b" UTF-8 ALL")
        assert sorted(map(int, re.findall(rb"\d+", found))) == [1, 2, 3, 4, 5, 6]


async def test_of_very_many_ancestors_the_nearest_count(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "MANY", 0)
    monkeypatch.setattr(thread, "NEAREST", 2)
    for number in range(6):
        named = " ".join(f"<{one}@x.example>" for one in range(number))
        head = f"Message-ID: <{number}@x.example>\r\nSubject: {number}\r\n"
        head += f"References: {named}\r\n" if named else ""
        await office.deliver(f"{head}\r\n".encode())
    client = await office.client()
    assert (await client.ok(b"THREAD REFERENCES UTF-8 ALL"))[0] == b"* THREAD (1 2 3 4 5 6)"
