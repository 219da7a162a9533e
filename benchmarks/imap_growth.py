"""How IMAP grows: the same commands on a folder of 10,000 messages and on one of 200,000, on one server.

Run by name: `make bench ARGS="--only imap_growth"`; with `--quick` the folders hold 5,000 and 50,000. The peer of a row
is what the command would take if it grew with the folder: its time at the small size, times the ratio of sizes. So the
ratio in the table is that of the time per message. Beside each command another connection, of another mailbox, asks
NOOP again and again: the longest answer is how long the command keeps others waiting. Memory is that of the server's
process, the most that it grew while the command ran.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from .common import PASSWORD, Row, Server, row
from .imap import message
from .imap_client import Client
from .imap_fill import multiply

SEEDED: Final = 1000
"""Messages that are appended; the others are made of them."""
NOOP_TARGET: Final = 100.0
_MIB: Final = 1024 * 1024
_PAUSE: Final = 0.005

#: `%(half)d` is half the folder, `%(modseq)d` the modseq before the last 100 changes.
_COMMANDS: Final = (
    ("SELECT, cold", "SELECT INBOX"),
    ("SELECT, warm", "SELECT INBOX"),
    ("FETCH 1:* (UID FLAGS)", "FETCH 1:* (UID FLAGS)"),
    ("FETCH 1:* (UID ENVELOPE RFC822.SIZE), cold", "FETCH 1:* (UID ENVELOPE RFC822.SIZE)"),
    ("FETCH 1:* (UID ENVELOPE RFC822.SIZE)", "FETCH 1:* (UID ENVELOPE RFC822.SIZE)"),
    ("FETCH 1:* BODY[HEADER.FIELDS (…)]", "FETCH 1:* (BODY.PEEK[HEADER.FIELDS (FROM SUBJECT DATE)])"),
    ("FETCH 1:500 (BODY.PEEK[])", "FETCH 1:500 (BODY.PEEK[])"),
    ("SEARCH UNSEEN", "SEARCH UNSEEN"),
    ("SEARCH RETURN (COUNT) UNSEEN", "SEARCH RETURN (COUNT) UNSEEN"),
    ("UID SEARCH ALL", "UID SEARCH ALL"),
    ("UID SEARCH SINCE", "UID SEARCH SINCE 1-Jan-2024"),
    ("SEARCH SUBJECT", "SEARCH SUBJECT needle"),
    ("SEARCH TEXT, no hit", "SEARCH TEXT xylophone"),
    ("SEARCH TEXT, every message", "SEARCH TEXT garden"),
    ("SORT (DATE), cold", "SORT (DATE) UTF-8 ALL"),
    ("SORT (DATE)", "SORT (DATE) UTF-8 ALL"),
    ("SORT (SUBJECT), cold", "SORT (SUBJECT) UTF-8 ALL"),
    ("SORT (SUBJECT)", "SORT (SUBJECT) UTF-8 ALL"),
    ("UID SORT RETURN (PARTIAL 1:50) (REVERSE ARRIVAL)", "UID SORT RETURN (PARTIAL 1:50) (REVERSE ARRIVAL) UTF-8 ALL"),
    ("THREAD REFERENCES", "THREAD REFERENCES UTF-8 ALL"),
    ("THREAD ORDEREDSUBJECT", "THREAD ORDEREDSUBJECT UTF-8 ALL"),
    ("STORE of 100 +FLAGS", "STORE %(first)d:%(last)d +FLAGS (\\Answered)"),
    ("FETCH 1:* (FLAGS) (CHANGEDSINCE), 100 changed", "FETCH 1:* (FLAGS) (CHANGEDSINCE %(modseq)d)"),
    ("COPY of half the folder", "COPY 1:%(half)d Bulk"),
    ("SELECT of what was copied", "SELECT Bulk"),
    ("STORE 1:* +FLAGS of half the folder", "STORE 1:* +FLAGS (\\Flagged)"),
    ("RENAME of half the folder", "RENAME Bulk Renamed"),
    ("MOVE 1:* of half the folder", "MOVE 1:* Moved"),
    ("SELECT of what was moved", "SELECT Moved"),
    ("STORE 1:* +FLAGS.SILENT (\\Deleted)", "STORE 1:* +FLAGS.SILENT (\\Deleted)"),
    ("EXPUNGE of half the folder", "EXPUNGE"),
)


def threaded(number: int) -> bytes:
    """One of `SEEDED` messages: of their own days, in threads of four."""
    when = time.gmtime(1_600_000_000 + number * 7919 % SEEDED * 86_400)
    raw = re.sub(rb"Message-ID: [^\r]*", b"Message-ID: <m%d@example.com>" % number, message(number), count=1)
    raw = re.sub(rb"Date: [^\r]*", time.strftime("Date: %a, %d %b %Y %H:%M:%S +0000", when).encode(), raw, count=1)
    above = [b"<m%d@example.com>" % one for one in range(number - number % 4, number)]
    return (b"References: " + b" ".join(above) + b"\r\n" if above else b"") + raw


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds of the command, the longest that a NOOP took beside it, and by how many MiB the server grew."""

    taken: float
    waited: float
    grown: float


class _Beside(threading.Thread):
    """Another client, who asks NOOP for as long as the command takes, and looks at the server's memory."""

    def __init__(self, client: Client, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.waited = 0.0
        self.top = process.memory_info().rss
        self._client = client
        self._process = process
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            self.waited = max(self.waited, self._client.timed(b"NOOP"))
            self.top = max(self.top, self._process.memory_info().rss)
            time.sleep(_PAUSE)

    def end(self) -> None:
        self._over.set()
        self.join()


class _Folder:
    """A mailbox with so many messages, and those who look on: two that idle in what is copied, one of them without
    ever reading.
    """

    def __init__(self, server: Server, number: int, size: int) -> None:
        self._server = server
        self._user = server.people[number].address
        self._client = self.connect()
        self._values = {"half": size // 2, "first": 501, "last": 600, "modseq": 0}
        for name in (b"Bulk", b"Moved"):
            self._client.ask(b"CREATE " + name)
        self._idle = [self.connect() for _ in range(2)]
        for client in self._idle:
            client.ask(b"SELECT Bulk")
            client.idle()
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._idle[0],), daemon=True)
        self._reader.start()

    def connect(self) -> Client:
        return Client(self._server.imap_port, self._user, PASSWORD)

    def measure(self, text: str, other: Client, process: psutil.Process) -> Measured:
        command = (text % self._values if "%(" in text else text).encode()
        beside = _Beside(other, process)
        before = beside.top
        beside.start()
        try:
            started = time.perf_counter()
            told = self._client.ask(command)
            taken = (time.perf_counter() - started) * 1e3
        finally:
            beside.end()
        found = re.search(rb"HIGHESTMODSEQ (\d+)", told)
        if found is not None:
            self._values["modseq"] = int(found[1])
        return Measured(taken, beside.waited, max(0.0, (beside.top - before) / _MIB))

    def close(self) -> None:
        self._over.set()
        self._reader.join()
        for client in (self._client, *self._idle):
            client.close()

    def _read(self, client: Client) -> None:
        client.sock.settimeout(0.2)
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                if not client.sock.recv(65_536):
                    return


def run(quick: bool) -> list[Row]:
    """The rows of the table."""
    sizes = (5_000, 50_000) if quick else (10_000, 200_000)
    with Server(people=3, agents=0, roles="imap,worker") as server:
        started = time.monotonic()
        _fill(server, sizes)
        filled = time.monotonic() - started
        # A process whose memory was not stretched by the filling.
        server.stop()
        server.start()
        measured = [_measure(server, number, size) for number, size in enumerate(sizes)]
    return [row(f"filling two folders, {sum(sizes):,} messages", filled, "s"), *_rows(measured, sizes)]


def _fill(server: Server, sizes: Sequence[int]) -> None:
    for number in range(len(sizes)):
        with contextlib.closing(Client(server.imap_port, server.people[number].address, PASSWORD)) as client:
            client.append_rate("INBOX", [threaded(one) for one in range(SEEDED)], SEEDED)
            client.ask(b"SELECT INBOX")
            client.ask(rb"STORE 1:700 +FLAGS.SILENT (\Seen)")
    server.wait_indexed()
    for number, size in enumerate(sizes):
        multiply(server.database_url, server.people[number].identity_id, size // SEEDED)


def _measure(server: Server, number: int, size: int) -> list[Measured]:
    process = server.process
    with (
        contextlib.closing(Client(server.imap_port, server.people[2].address, PASSWORD)) as other,
        contextlib.closing(_Folder(server, number, size)) as folder,
    ):
        return [folder.measure(text, other, process) for _, text in _COMMANDS]


def _rows(measured: Sequence[Sequence[Measured]], sizes: Sequence[int]) -> Iterator[Row]:
    ratio = sizes[1] / sizes[0]
    for (name, _), small, large in zip(_COMMANDS, *measured, strict=True):
        label = f"{ratio:.0f} × {sizes[0]:,}"
        yield row(f"{name}, {sizes[1]:,}", large.taken, "ms", peer=small.taken * ratio, peer_name=label)
        yield row("  NOOP of another, longest", large.waited, "ms", target=NOOP_TARGET)
        yield row("  memory, most", large.grown, "MiB", peer=small.grown, peer_name=f"{sizes[0]:,}")


if __name__ == "__main__":
    for made in run("--quick" in sys.argv):
        print(json.dumps(made))
