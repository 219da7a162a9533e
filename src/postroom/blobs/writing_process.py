"""Writing small messages in a process of its own.

A message costs about nine system calls. From threads of the server each of them gives up and takes back the
interpreter's lock: measured, 44 futex calls and half a millisecond of processor time a message, and each waits for
whatever Python runs meanwhile. A child process does the same work undisturbed; it gets batches over a socket and
answers each group of a batch. It holds no state that matters: when it dies, what was under way failed, and the next
batch starts another.

Frames, all numbers big-endian. Request: `u32` length of the rest, `u16` groups; a group is `u16` keys, each `u16`
length and UTF-8, then `u32` length and the bytes. Answer: `u16` groups, each `u8` 0 stored, 1 failed, 2 full, 3 no
valid key, `u8` length and the reason.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final, cast

from .durable import Directories, DurableWriter
from .store import Data, InvalidKey, PutGroup, StorageError, StorageFull

LARGEST_BATCH: Final = 1024 * 1024
"""Octets above which a batch is not worth copying to the child."""
STOP_SECONDS: Final = 5.0

_U8, _U16, _U32 = struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I")
_STORED, _FAILED, _FULL, _NO_KEY = range(4)
_ERRORS: Final = {_FULL: StorageFull, _NO_KEY: InvalidKey}
_MAX_REASON: Final = 255

Outcome = StorageError | None


def encode_request(groups: Sequence[PutGroup]) -> list[Data]:
    """The frame of a batch, in pieces that are not copied."""
    parts: list[Data] = [b"", _U16.pack(len(groups))]
    for group in groups:
        head = bytearray(_U16.pack(len(group.keys)))
        for key in group.keys:
            encoded = key.encode(errors="surrogatepass")
            head += _U16.pack(len(encoded))
            head += encoded
        head += _U32.pack(sum(map(len, group.pieces)))
        parts.append(head)
        parts.extend(group.pieces)
    parts[0] = _U32.pack(sum(map(len, parts)))
    return parts


def decode_request(frame: memoryview) -> list[PutGroup]:
    """The batch of a frame without its length. Raises struct.error, UnicodeError or ValueError for anything else."""
    (count,) = _U16.unpack_from(frame)
    at = _U16.size
    groups = []
    for _ in range(count):
        (keys_left,) = _U16.unpack_from(frame, at)
        at += _U16.size
        keys = []
        for _ in range(keys_left):
            (length,) = _U16.unpack_from(frame, at)
            at += _U16.size
            keys.append(str(frame[at : at + length], "utf-8", "surrogatepass"))
            at += length
        (length,) = _U32.unpack_from(frame, at)
        at += _U32.size
        groups.append(PutGroup((frame[at : at + length],), keys))
        at += length
    if at != len(frame):
        raise ValueError("a frame does not end where its batch does")
    return groups


def encode_answer(outcomes: Sequence[Outcome]) -> bytes:
    """The answer to a batch."""
    answer = bytearray(_U16.pack(len(outcomes)))
    for outcome in outcomes:
        if outcome is None:
            answer += bytes((_STORED, 0))
            continue
        reason = outcome.reason.encode("ascii", "replace")[:_MAX_REASON]
        kind = next((kind for kind, error in _ERRORS.items() if type(outcome) is error), _FAILED)
        answer += bytes((kind, len(reason))) + reason
    return bytes(answer)


def take_answer(buffer: bytearray) -> list[Outcome] | None:
    """The first whole answer, removed from `buffer`; None while it is incomplete."""
    if len(buffer) < _U16.size:
        return None
    (count,) = _U16.unpack_from(buffer)
    at = _U16.size
    outcomes: list[Outcome] = []
    for _ in range(count):
        if len(buffer) < at + 2 or len(buffer) < at + 2 + buffer[at + 1]:
            return None
        kind, length = buffer[at], buffer[at + 1]
        reason = buffer[at + 2 : at + 2 + length].decode("ascii", "replace")
        at += 2 + length
        if kind == _STORED:
            outcomes.append(None)
        elif kind == _NO_KEY:
            outcomes.append(InvalidKey())
        else:
            outcomes.append(StorageFull(reason) if kind == _FULL else StorageError(reason))
    del buffer[:at]
    return outcomes


class WritingProcess:
    """The server's side. Batches are answered in order; use it from one event loop."""

    def __init__(self, root: str, *, fsync: bool) -> None:
        start = f"import sys; from {__name__} import main; main(sys.argv[1], sys.argv[2] == 'fsync')"
        self._command = (sys.executable, "-c", start, root, "fsync" if fsync else "nofsync")
        self._child: _Child | None = None
        self._starting = asyncio.Lock()

    async def write(self, groups: Sequence[PutGroup]) -> list[Outcome]:
        """Store a batch; durable where the answer is None. When the child is lost, every answer is an error."""
        child = self._child
        if child is None or child.lost:
            async with self._starting:
                child = self._child
                if child is None or child.lost:
                    child = self._child = await self._start()
        return await child.ask(groups)

    async def _start(self) -> _Child:
        process, ours = await asyncio.to_thread(self._spawn)
        loop = asyncio.get_running_loop()
        _, child = await loop.create_connection(lambda: _Child(process), sock=ours)
        return child

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C at the terminal is the server's to answer, the child ends with its socket.
            process = subprocess.Popen(self._command, stdin=theirs.fileno(), start_new_session=True)
        ours.setblocking(False)
        return process, ours

    async def close(self) -> None:
        """End the child when it has answered what it was given."""
        child, self._child = self._child, None
        if child is not None:
            await child.stop()


class _Child(asyncio.Protocol):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.lost = False
        self._process = process
        self._transport: asyncio.Transport | None = None
        self._asked: deque[tuple[int, asyncio.Future[list[Outcome]]]] = deque()
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._asked and (outcomes := take_answer(self._buffer)) is not None:
            _, answer = self._asked.popleft()
            if not answer.done():
                answer.set_result(outcomes)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._process.poll()
        while self._asked:
            count, answer = self._asked.popleft()
            if not answer.done():
                answer.set_result([StorageError("writer_lost") for _ in range(count)])

    async def ask(self, groups: Sequence[PutGroup]) -> list[Outcome]:
        if self.lost or self._transport is None:
            return [StorageError("writer_lost") for _ in groups]
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._asked.append((len(groups), answer))
        self._transport.writelines(encode_request(groups))
        # The child goes on when the caller is cancelled, and its answer has to be waited for by somebody.
        return await asyncio.shield(answer)

    async def stop(self) -> None:
        if self._asked:
            await asyncio.wait([answer for _, answer in self._asked], timeout=STOP_SECONDS)
        if self._transport is not None:
            self._transport.close()
        try:
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


def serve(stream: BinaryIO, answer_to: socket.socket, writer: DurableWriter) -> None:
    """The child's side: store batches until the server is gone, with its last batch stored whole."""
    try:
        while len(head := stream.read(_U32.size)) == _U32.size:
            (length,) = _U32.unpack(head)
            frame = stream.read(length)
            if len(frame) < length:
                return
            outcomes = [*_store(writer, decode_request(memoryview(frame)))]
            answer_to.sendall(encode_answer(outcomes))
    except ConnectionError:
        return


def _store(writer: DurableWriter, groups: list[PutGroup]) -> Iterator[Outcome]:
    try:
        yield from writer.write(groups)
    except OSError as error:
        yield from (StorageError(f"errno_{error.errno}") for _ in groups)


def main(root: str, fsync: bool) -> None:
    """Run until the server goes away."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=0) as sock, ThreadPoolExecutor(1) as spread, sock.makefile("rb") as stream:
        serve(stream, sock, DurableWriter(root, Directories(root), spread, 1, fsync))
