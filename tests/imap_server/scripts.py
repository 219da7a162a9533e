"""Reads and runs the sessions of mail programs in `clients/`.

They are reconstructed from documentation, public source and protocol logs that people published, not captured: the
order and the form of commands are those of the programs, names and messages are ours.

A file is a transcript that people can read:

    # a comment
    message NAME            a message; its lines follow, four blanks before each
    @ deliver NAME [FOLDER] it comes in from outside
    @ other COMMAND         another program, which has INBOX selected, does this
    @ minutes N             so much time passes
    @ reconnect             the connection breaks; there is a new one
    @ compress              from here on both sides compress
    C: TEXT                 the client says a line, having waited for its last command's OK
    C& TEXT                 the same without waiting
    C+ NAME                 the client sends a message's octets; the next `C:` goes on behind them
    S: PATTERN              the server says this now or after more
    S! PATTERN              the server does not say this before the command ends

Every command ends with OK, unless `S:` has its tag with something else. The items of a FETCH may stand in any order,
and others beside them. In patterns `…` is any text, and `«name»` what was found at that place when the name first came
up. Known from the start: `«address»`, `«password»`, `«plain»` (both in SASL PLAIN), each message by its name, and
`«size of NAME»`, its octets. ``@fill N`` in a message is N octets of base64.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parent / "clients"
PROGRAMS: Final = tuple(sorted(path.stem for path in DIRECTORY.glob("*.txt") if path.stem != "letters"))

_NAME: Final = re.compile("«([^»]+)»".encode())
_ANY: Final = "…".encode()
_GOES_ON: Final = re.compile(rb"\{[0-9]+\+\}\Z")
_FETCH: Final = re.compile(rb"(\* [^ ]+ FETCH )\((.*)\)\Z")
_ITEM: Final = re.compile(
    rb" (?=(?:UID|FLAGS|INTERNALDATE|RFC822\.[A-Z]+|MODSEQ|BODYSTRUCTURE|ENVELOPE|PREVIEW|BODY\[|BINARY(?:\.SIZE)?\[))"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a transcript."""

    where: str
    kind: str
    text: bytes


def _fill(size: int) -> str:
    text = base64.b64encode(bytes(n * 7 % 251 for n in range(size))).decode()[:size]
    return "\n".join(text[at : at + 76] for at in range(0, size, 76))


def read(program: str) -> tuple[list[Step], dict[str, bytes]]:
    """The steps of a program's session, and the messages there are."""
    steps: list[Step] = []
    messages: dict[str, list[str]] = {}
    for name in ("letters", program):
        current: list[str] | None = None
        for number, line in enumerate((DIRECTORY / f"{name}.txt").read_text("utf-8").splitlines(), 1):
            if line.startswith("    ") or (current and not line):
                assert current is not None, f"{name}:{number}"
                filled = re.fullmatch(r" *@fill (\d+)", line)
                current.extend(_fill(int(filled[1])).split("\n") if filled else [line[4:]])
            elif line.startswith("message "):
                current = messages.setdefault(line.removeprefix("message "), [])
            elif line and not line.startswith("#"):
                current = None
                assert line[:2] in ("C:", "C&", "C+", "S:", "S!", "@ "), f"{name}:{number}: {line}"
                steps.append(Step(f"{name}:{number}", line[:2].strip(), line[2:].strip(" ").encode()))
    return steps, {name: ("\r\n".join(lines).rstrip() + "\r\n").encode() for name, lines in messages.items()}


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a line looks like: how it begins, and what stands in it further on."""

    text: bytes
    head: re.Pattern[bytes]
    items: tuple[re.Pattern[bytes], ...] = ()

    def find(self, line: bytes) -> dict[str, bytes] | None:
        """What has a name in it; None when the line is another."""
        found = [self.head.match(line), *(item.search(line) for item in self.items)]
        values: dict[str, bytes] = {}
        for one in found:
            if one is None:
                return None
            values |= {bytes.fromhex(name[1:]).decode(): value for name, value in one.groupdict().items()}
        return values


@dataclass(slots=True)
class Run:
    """One session."""

    office: Any
    values: dict[str, bytes]
    client: Any = None
    other: Any = None
    where: str = ""
    said: bytes = b""
    pending: list[bytes] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    forbidden: list[Pattern] = field(default_factory=list)
    goes_on: bool = False
    shift: float = 0.0
    pumps: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    def of(cls, office: Any, messages: Mapping[str, bytes]) -> Run:
        address, password = office.address, "correct horse battery"
        plain = base64.b64encode(f"\0{address}\0{password}".encode())
        values = {"address": address.encode(), "password": password.encode(), "plain": plain, **messages}
        values |= {f"size of {name}": b"%d" % len(octets) for name, octets in messages.items()}
        return cls(office, values)

    async def take(self, step: Step) -> None:
        self.where = step.where
        match step.kind:
            case "C:":
                await self.finish()
                self.say(step.text)
            case "C&":
                self.say(step.text)
            case "C+":
                self.client.send(self.values[step.text.decode()])
                self.goes_on = True
            case "S:":
                await self.expect(self.pattern(step.text))
            case "S!":
                self.forbidden.append(self.pattern(step.text))
            case _:
                word, _, rest = step.text.decode().partition(" ")
                await _EVENTS[word](self, rest)

    # -- what the client says, and hears

    def say(self, text: bytes) -> None:
        text = _NAME.sub(lambda found: self.values[found[1].decode()], text)
        self.client.send(text + b"\r\n")
        if not self.goes_on:
            self.said = text
            self.pending.append(text.split(b" ")[0])
        self.goes_on = _GOES_ON.search(text) is not None

    async def expect(self, pattern: Pattern) -> None:
        """Read on to a line that fits. Raises AssertionError when the commands end without one."""
        while True:
            line = await self.line()
            found = pattern.find(line)
            if found is not None:
                self.values |= found
                return
            self.check(line)
            assert self.pending, f"{self.where}: {pattern.text.decode()} is not among {self.heard[-20:]}"

    async def line(self) -> bytes:
        line: bytes = await self.client.line()
        assert line, f"{self.where}: the connection ended"
        self.heard.append(line)
        assert all(pattern.find(line) is None for pattern in self.forbidden), f"{self.where}: {line!r}"
        tag = line.split(b" ")[0]
        if tag == b"+":
            self.goes_on = True
        elif tag in self.pending:
            self.pending.remove(tag)
        return line

    def check(self, line: bytes) -> None:
        """A line that nobody waited for: something told in passing, or a command's OK."""
        if line.startswith((b"* ", b"+ ")):
            assert not line.startswith(b"* BYE") or b" LOGOUT" in self.said.upper(), f"{self.where}: {line!r}"
        else:
            assert line.split(b" ")[1] == b"OK", f"{self.where}: {line!r}"

    async def finish(self) -> None:
        """Read on to the end of the commands that were said."""
        if self.goes_on:
            return
        while self.pending:
            self.check(await self.line())
        self.forbidden.clear()
        self.heard.clear()

    def pattern(self, text: bytes) -> Pattern:
        fetch = _FETCH.match(text)
        if fetch is None:
            return Pattern(text, re.compile(self.expression(text) + rb"\Z", re.DOTALL))
        items = [item for item in _ITEM.split(fetch[2]) if item != _ANY]
        compiled = (re.compile(rb"[( ]" + self.expression(item) + rb"[ )]", re.DOTALL) for item in items)
        return Pattern(text, re.compile(self.expression(fetch[1])), tuple(compiled))

    def expression(self, text: bytes) -> bytes:
        made = b""
        for number, piece in enumerate(_NAME.split(text)):
            if not number % 2:
                made += b".*".join(map(re.escape, piece.split(_ANY)))
            elif piece.decode() in self.values:
                made += re.escape(self.values[piece.decode()])
            else:
                made += rb"(?P<n%b>[^ ()\[\]\r\n]+)" % piece.hex().encode()
        return made

    # -- what else happens

    async def deliver(self, rest: str) -> None:
        name, _, folder = rest.partition(" ")
        await self.office.deliver(self.values[name], folder or None)

    async def elsewhere(self, rest: str) -> None:
        if self.other is None:
            self.other = await self.office.client()
        await self.other.ok(rest.encode())

    async def reconnect(self, _rest: str = "") -> None:
        if self.client is not None:
            await self.client.close()
        self.client = await self.office.connect()
        self.pending.clear()
        self.goes_on = False

    async def minutes(self, rest: str) -> None:
        """The loop's clock goes on by so much; whoever waits for a moment until then has its turn."""
        loop = asyncio.get_running_loop()
        real = type(loop).time
        self.shift += 60 * float(rest)
        loop.time = lambda: real(loop) + self.shift  # type: ignore[method-assign]  # that is the trick
        await asyncio.sleep(0.05)

    async def compress(self, _rest: str) -> None:
        await self.finish()
        packer, unpacker = zlib.compressobj(wbits=-15), zlib.decompressobj(-15)
        packed, self.client.reader = self.client.reader, asyncio.StreamReader(limit=1 << 26)
        client, plain, send = self.client, self.client.reader, self.client.send

        async def pump() -> None:
            while data := await packed.read(1 << 16):
                plain.feed_data(unpacker.decompress(data))
            plain.feed_eof()

        self.pumps.append(asyncio.create_task(pump()))
        client.send = lambda data: send(packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))

    async def close(self) -> None:
        for pump in self.pumps:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump


_EVENTS: Final[Mapping[str, Callable[[Run, str], Awaitable[None]]]] = {
    "deliver": Run.deliver,
    "other": Run.elsewhere,
    "minutes": Run.minutes,
    "reconnect": Run.reconnect,
    "compress": Run.compress,
}


async def run(office: Any, program: str) -> None:
    """Everything that a program's transcript says happens."""
    steps, messages = read(program)
    session = Run.of(office, messages)
    await session.reconnect()
    try:
        for step in steps:
            await session.take(step)
        await session.finish()
    finally:
        await session.close()
