"""Where mail goes to: a relay in a process of its own, which writes down what it gets and may be killed at any time.

`python -m tests.torture.sink FD RECORD DELAY REFUSED` serves the listening socket FD. What it takes is in RECORD before
it is answered for, so what is written there is what it has, however it ends. It answers after up to DELAY seconds, and
refuses the share REFUSED of messages for now.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.torture.deployment import HOST

END: Final = "That is all of "
"""What a whole message ends with, before its subject."""
_BACKLOG: Final = 256
_STOP_SECONDS: Final = 5.0


@dataclass(slots=True)
class Seen:
    """What the record says: messages by subject and recipient, those that were not whole, those not answered yet."""

    copies: Counter[tuple[str, str]] = field(default_factory=Counter)
    torn: list[str] = field(default_factory=list)
    open: int = 0

    def read(self, line: Mapping[str, object]) -> None:
        if "said" in line:
            self.open -= 1
            return
        subject, to = str(line["got"]), line["to"]
        assert isinstance(to, list)
        self.open += 1
        self.copies.update((subject, one) for one in to)
        if not line["whole"]:
            self.torn.append(subject)


class Sink:
    """The process. Its listening socket is ours: while it is dead, who connects waits for the next one."""

    def __init__(self, record: Path, *, delay: float, refused: float) -> None:
        self.seen = Seen()
        self._record = record
        self._options = (str(delay), str(refused))
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._process: asyncio.subprocess.Process | None = None
        self._read = 0

    def listen(self, port: int) -> None:
        self._socket.bind((HOST, port))
        self._socket.listen(_BACKLOG)

    async def start(self) -> None:
        fd = self._socket.fileno()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.torture.sink", str(fd), str(self._record), *self._options),
            pass_fds=(fd,),
            cwd=Path(__file__).parents[2],
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def kill(self) -> None:
        """SIGKILL; all its connections end."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        self.look()
        # What it had not answered it never will.
        self.seen.open = 0

    def look(self) -> Seen:
        """What it has taken up to now."""
        with contextlib.suppress(FileNotFoundError), self._record.open("rb") as record:
            record.seek(self._read)
            for line in record:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self.seen.read(json.loads(line))
        return self.seen

    async def end(self) -> None:
        await self.kill()
        self._socket.close()


# -- the process's side -----------------------------------------------------------------------------------------------


class _Session:
    def __init__(self, record: int, delay: float, refused: float) -> None:
        self._record, self._delay, self._refused = record, delay, refused

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(b"220 sink ESMTP\r\n")
            to: list[str] = []
            while line := await reader.readline():
                verb = line[:4].upper()
                if verb == b"EHLO":
                    writer.write(b"250-sink\r\n250-8BITMIME\r\n250 ENHANCEDSTATUSCODES\r\n")
                elif verb == b"DATA":
                    writer.write(b"354 Go on\r\n")
                    writer.write(await self._take(await reader.readuntil(b"\r\n.\r\n"), to))
                elif verb == b"QUIT":
                    writer.write(b"221 2.0.0 Bye\r\n")
                    break
                else:
                    to = [*to, line.decode().partition("<")[2].partition(">")[0]] if verb == b"RCPT" else []
                    writer.write(b"250 2.0.0 Ok\r\n")
                await writer.drain()
        writer.close()

    async def _take(self, data: bytes, to: list[str]) -> bytes:
        if random.random() < self._refused:
            return b"451 4.3.0 Later\r\n"
        text = data.decode("utf-8", "replace")
        subject = text.partition("\r\nSubject: ")[2].partition("\r\n")[0]
        self._write({"got": subject, "to": to, "whole": f"{END}{subject}" in text})
        await asyncio.sleep(random.uniform(0, self._delay))
        self._write({"said": subject})
        return b"250 2.0.0 Ok\r\n"

    def _write(self, line: Mapping[str, object]) -> None:
        os.write(self._record, json.dumps(line).encode() + b"\n")


async def _serve(fd: int, record: Path, delay: float, refused: float) -> None:
    out = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    session = _Session(out, delay, refused)
    server = await asyncio.start_server(session.serve, sock=socket.socket(fileno=fd), limit=2**24)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
