"""IMAP: the commands that clients wait for, on a folder of 10,000 messages, and the memory of idle connections.

The server is `postroom serve` as it is; the client is a blocking socket in this process. Dovecot, where it is
installed, holds the same messages and is asked the same in turn; else its figures are those recorded on the reference
machine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from . import peers
from .common import PASSWORD, STATISTICS_SECONDS, Row, Server, row
from .imap_client import Client

MESSAGES: Final = 10_000
DOVECOT: Final = "Dovecot"
RECORDED: Final = "Dovecot (recorded)"
IDLE_CONNECTIONS_DOVECOT: Final = 100
WARM_CONNECTIONS: Final = 20
_SETTINGS: Final = {
    "POSTROOM__LIMITS__MAX_CONNECTIONS": "2000",
    "POSTROOM__LIMITS__MAX_CONNECTIONS_PER_IP": "2000",
}
_WORDS = [
    *("the", "a", "of", "and", "to", "in", "we", "you", "they", "report", "meeting", "invoice", "delivery", "garden"),
    *("harbour", "window", "tomorrow", "yesterday", "please", "attached", "schedule", "budget", "review", "music"),
    *("station", "morning", "evening", "letter", "answer", "question", "because", "although"),
]
_ENVELOPES: Final = b"FETCH 1:* (UID ENVELOPE RFC822.SIZE)"


def message(seed: int, size: int = 3000) -> bytes:
    """About `size` octets of mail; every second one has an HTML alternative. One subject in the lot is special."""
    rng = random.Random(seed)

    def text(octets: int) -> str:
        lines, length = [], 0
        while length < octets:
            line = " ".join(rng.choices(_WORDS, k=11))
            lines.append(line)
            length += len(line) + 2
        return "\r\n".join(lines) + "\r\n"

    subject = "The needle in the haystack" if seed == 7777 else " ".join(rng.choices(_WORDS, k=6))
    head = (
        f"Return-Path: <sender{seed % 97}@example.com>\r\n"
        f"Received: from relay{seed}.example.com ([192.0.2.7]) by mx.example.com with ESMTPS id {seed};\r\n"
        f"\tMon, 01 Jan 2024 10:00:00 +0000\r\nMessage-ID: <{rng.getrandbits(64):x}@example.com>\r\n"
        f"Date: Mon, 01 Jan 2024 10:00:{seed % 60:02d} +0000\r\n"
        f"From: Sender {seed % 97} <sender{seed % 97}@example.com>\r\n"
        f"To: Reader <reader@agents.example>, Other <other@example.com>\r\nSubject: {subject}\r\nMIME-Version: 1.0\r\n"
    )
    if seed % 2:
        return (head + "Content-Type: text/plain; charset=utf-8\r\n\r\n" + text(size - len(head) - 50)).encode()
    half = (size - len(head) - 400) // 2
    return (
        f'{head}Content-Type: multipart/alternative; boundary="b{seed}"\r\n\r\n'
        f"--b{seed}\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text(half)}\r\n"
        f"--b{seed}\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<html><p>{text(half)}</p></html>\r\n"
        f"--b{seed}--\r\n"
    ).encode()


# -- the figures


@dataclass(frozen=True, slots=True)
class _Command:
    """What is timed. `recorded` is the peer's figure on the reference machine, `factor` times its figure the target."""

    name: str
    text: bytes
    recorded: float | None = None
    factor: float | None = None


_TIMED: Final = (
    _Command("SELECT, 10,000, warm", b"SELECT INBOX"),
    _Command("FETCH 1:* (UID FLAGS), 10,000", b"FETCH 1:* (UID FLAGS)", 4.6, 2),
    _Command("FETCH 1:* (UID ENVELOPE RFC822.SIZE), 10,000", _ENVELOPES, 50, 1.5),
    _Command("FETCH 1:* (UID BODYSTRUCTURE), 10,000", b"FETCH 1:* (UID BODYSTRUCTURE)", 12, 3),
    _Command("FETCH 1:500 (BODY.PEEK[]), 1.5 MB", b"FETCH 1:500 (BODY.PEEK[])", 5.4, 3),
    _Command("SEARCH SUBJECT, one hit in 10,000", b"SEARCH SUBJECT needle", 15.7, 1),
    _Command("SEARCH UNSEEN, 10,000", b"SEARCH UNSEEN"),
    _Command("SEARCH FLAGGED, 10,000", b"SEARCH FLAGGED"),
    _Command("SEARCH RETURN (COUNT) ALL, 10,000", b"SEARCH RETURN (COUNT) ALL"),
    _Command("UID SEARCH SINCE, all of 10,000", b"UID SEARCH SINCE 1-Jan-2024"),
    _Command("SEARCH BODY, no hit in 10,000", b"SEARCH BODY xylophone"),
    _Command("SEARCH TEXT, one hit in 10,000", b"SEARCH TEXT needle", 313, 1 / 20),
)
_SORTED: Final = (
    _Command("SORT (DATE), 10,000", b"SORT (DATE) UTF-8 ALL"),
    _Command("SORT (SUBJECT), 10,000", b"SORT (SUBJECT) UTF-8 ALL"),
    _Command("SORT (ARRIVAL), 10,000", b"SORT (ARRIVAL) UTF-8 ALL"),
    _Command("UID SORT RETURN (PARTIAL 1:50) (DATE), 10,000", b"UID SORT RETURN (PARTIAL 1:50) (DATE) UTF-8 ALL"),
    _Command("THREAD REFERENCES, 10,000", b"THREAD REFERENCES UTF-8 ALL"),
    _Command("THREAD ORDEREDSUBJECT, 10,000", b"THREAD ORDEREDSUBJECT UTF-8 ALL"),
    _Command("FETCH 1:* BODY[HEADER.FIELDS (…)], 10,000", b"FETCH 1:* (BODY.PEEK[HEADER.FIELDS (FROM SUBJECT DATE)])"),
)
_FOLDERS: Final = 50
_LIST_STATUS: Final = b'LIST "" "F%" RETURN (STATUS (MESSAGES UNSEEN UIDNEXT))'
_CHANGED: Final = 100
_MOVED: Final = 1000
_STORE: Final = _Command("STORE 1:1000 +FLAGS.SILENT", rb"STORE 1:1000 %bFLAGS.SILENT (\Flagged)", 23, 3)


class _Figures:
    """Rows, with the peer's figure from this run, or else the recorded one."""

    def __init__(self, mine: Client, peer: Client | None, rounds: int) -> None:
        self.rows: list[Row] = []
        self._mine = mine
        self._peer = peer
        self._rounds = rounds

    def add(
        self, name: str, value: float, unit: str, peer: float | None, recorded: float | None, factor: float | None
    ) -> None:
        """*factor* times the peer's figure is the target."""
        known = recorded if peer is None else peer
        label = RECORDED if peer is None else DOVECOT
        target = known * factor if known is not None and factor is not None else None
        self.rows.append(row(name, value, unit, target=target, peer=known, peer_name=label if known else ""))

    def command(self, command: _Command) -> None:
        """The best of some rounds, for both sides in turn."""
        mine, peer = self._best([command.text])
        self.add(command.name, mine, "ms", peer, command.recorded, command.factor)

    def flags(self) -> None:
        mine, peer = self._best([_STORE.text % sign for sign in (b"+", b"-")])
        self.add(_STORE.name, mine, "ms", peer, _STORE.recorded, _STORE.factor)

    def once(self, name: str, text: bytes) -> None:
        """A command that is slower the first time."""
        self.add(name, self._mine.timed(text), "ms", _of_peer(self._peer, text), None, None)

    def transfers(self) -> None:
        """COPY and MOVE of a thousand, three times each, into folders that are new."""
        for name in ("COPY", "MOVE"):
            figures: list[float | None] = []
            for client in (self._mine, self._peer):
                figures.append(None if client is None else min(_transfers(client, name)))
            mine, peer = figures
            assert mine is not None
            self.add(f"{name} 1:{_MOVED}", mine, "ms", peer, None, None)

    def resync(self, mine: Client, peer: Client | None) -> None:
        """What a client that was away asks: by QRESYNC as it selects, and by CONDSTORE. These two are its own."""
        for name, work in (("SELECT (QRESYNC)", _resync), ("FETCH 1:* (FLAGS) (CHANGEDSINCE)", _fetch_changed)):
            found = [min(work(mine) for _ in range(3))]
            theirs = None if peer is None else min(work(peer) for _ in range(3))
            self.add(f"{name}, {_CHANGED} of 10,000 changed", found[0], "ms", theirs, None, None)

    def _best(self, texts: Sequence[bytes]) -> tuple[float, float | None]:
        mine: list[float] = []
        peer: list[float] = []
        for _ in range(self._rounds):
            for text in texts:
                mine.append(self._mine.timed(text))
                theirs = _of_peer(self._peer, text)
                if theirs is not None:
                    peer.append(theirs)
        return min(mine), min(peer, default=None)


def _of_peer(peer: Client | None, text: bytes) -> float | None:
    """None where it refuses the command: it does not have all of them."""
    if peer is None:
        return None
    try:
        return peer.timed(text)
    except RuntimeError:
        return None


def _transfers(client: Client, name: str) -> list[float]:
    """The folder that is selected is left as it was: what is moved are copies."""
    for number in range(3):
        client.ask(b"CREATE %b%d" % (name.encode(), number))
    if name == "COPY":
        return [client.timed(b"COPY 1:%d COPY%d" % (_MOVED, number)) for number in range(3)]
    taken = []
    for number in range(3):
        client.ask(b"SELECT COPY%d" % number)
        taken.append(client.timed(b"MOVE 1:%d MOVE%d" % (_MOVED, number)))
    client.ask(b"SELECT INBOX")
    return taken


def _change_some(client: Client) -> tuple[bytes, bytes]:
    """UIDVALIDITY and HIGHESTMODSEQ of the inbox, before a hundred flags of it change."""
    told = client.ask(b"SELECT INBOX")
    found = [re.search(code + rb" (\d+)", told) for code in (b"UIDVALIDITY", b"HIGHESTMODSEQ")]
    validity, modseq = (one[1] if one else b"1" for one in found)
    client.ask(rb"STORE 5001:%d -FLAGS.SILENT (\Answered)" % (5000 + _CHANGED))
    client.ask(rb"STORE 5001:%d +FLAGS.SILENT (\Answered)" % (5000 + _CHANGED))
    return validity, modseq


def _resync(client: Client) -> float:
    client.ask(b"ENABLE QRESYNC")
    known = _change_some(client)
    client.ask(b"UNSELECT")
    return client.timed(b"SELECT INBOX (QRESYNC (%b %b))" % known)


def _fetch_changed(client: Client) -> float:
    _, modseq = _change_some(client)
    return client.timed(b"FETCH 1:* (FLAGS) (CHANGEDSINCE %b)" % modseq)


def run(quick: bool) -> list[Row]:
    """Measure everything on one server, and on Dovecot where it is installed."""
    with contextlib.ExitStack() as stack:
        dovecot = stack.enter_context(peers.PostfixDovecot(users=1)) if peers.available() else None
        server = stack.enter_context(Server(people=1, agents=0, roles="imap,worker", settings=_SETTINGS))
        theirs = None
        if dovecot is not None:
            dovecot.fill(0, map(message, range(MESSAGES)))
            theirs = _theirs(dovecot)
            theirs.ask(b"CREATE Archive")
        mine = _mine(server)
        for start in range(0, MESSAGES, 1000):
            mine.append_rate("INBOX", [message(seed) for seed in range(start, start + 1000)], 1000)
        server.wait_indexed()
        time.sleep(STATISTICS_SECONDS)
        away = _mine(server), _theirs(dovecot) if dovecot is not None else None
        rows = _work(mine, theirs, away, quick)
        mine.close()
        # A new process, whose memory was not stretched by other work.
        server.stop()
        server.start()
        count = 200 if quick else 1000
        kib = _idle_memory(lambda: _mine(server), lambda: server.memory()[0].pss, count)
        peer = _dovecot_idle_memory(dovecot) if dovecot is not None else 524.0
        label = RECORDED if dovecot is None else DOVECOT
        return [*rows, row("idle connection, selected", kib, "KiB", target=40, peer=peer, peer_name=label)]


def _mine(server: Server) -> Client:
    return Client(server.imap_port, server.people[0].address, PASSWORD)


def _theirs(dovecot: peers.PostfixDovecot) -> Client:
    return Client(dovecot.imap_port, dovecot.address(0), PASSWORD)


def _work(mine: Client, theirs: Client | None, away: tuple[Client, Client | None], quick: bool) -> list[Row]:
    figures = _Figures(mine, theirs, 5 if quick else 20)
    figures.once("SELECT, 10,000, cold", b"SELECT INBOX")
    figures.once("FETCH 1:* (UID ENVELOPE RFC822.SIZE), cold", _ENVELOPES)
    figures.once("SORT (DATE), cold", _SORTED[0].text)
    for command in (*_TIMED, *_SORTED):
        figures.command(command)
    figures.flags()
    figures.transfers()
    for one in filter(None, (mine, theirs)):
        for number in range(_FOLDERS):
            one.ask(b"CREATE F%d" % number)
            one.ask(b"COPY 1:20 F%d" % number)
    figures.command(_Command(f"LIST with STATUS of {_FOLDERS} folders", _LIST_STATUS))
    figures.resync(*away)
    for one in filter(None, away):
        one.close()
    raws = [message(100_000 + seed, 2500) for seed in range(200)]
    count = 1000 if quick else 4000
    rates: list[float | None] = []
    for client in (mine, theirs):
        if client is None:
            rates.append(None)
            continue
        client.ask(b"UNSELECT")
        client.append_rate("Archive", raws, 200)
        rates.append(client.append_rate("Archive", raws, count))
    mine_rate, peer_rate = rates
    assert mine_rate is not None
    figures.add("APPEND, pipelined, 2.5 KB", mine_rate, "messages/s", peer_rate, 392, 2)
    return figures.rows


def _idle_memory(connect: Callable[[], Client], memory: Callable[[], int], count: int) -> float:
    """KiB of the server's memory for each of `count` connections that are selected and idle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
    clients = [connect() for _ in range(WARM_CONNECTIONS)]
    for client in clients:
        client.ask(b"SELECT INBOX")
    before = memory()
    for _ in range(count):
        client = connect()
        client.ask(b"SELECT INBOX")
        client.idle()
        clients.append(client)
    grown = memory() - before
    for client in clients:
        client.close()
    return grown / count / 1024


def _dovecot_idle_memory(dovecot: peers.PostfixDovecot) -> float:
    """As it has a process for each connection: its proportional share of what processes have in common is counted.

    Ten connections to each mailbox, which is how many it allows from one place.
    """
    numbers = itertools.count(10)
    return _idle_memory(
        lambda: Client(dovecot.imap_port, dovecot.address(next(numbers) // 10), PASSWORD),
        lambda: dovecot.memory().pss,
        IDLE_CONNECTIONS_DOVECOT,
    )


if __name__ == "__main__":
    for made in run("--quick" in sys.argv):
        print(json.dumps(made))
