"""STORE and MOVE, in one mailbox and over many, by one process and by two; Dovecot does the same over IMAP.

Work comes in portions of `PORTION` messages, each of which is one command, with `IN_FLIGHT` commands at a time in all.
In one mailbox they are side by side in one folder, so that the commands wait for each other; over many each is a
mailbox of its own. Ours is the writer without the protocol in front, as in the rest of `benchmarks.mailbox`; what the
protocol adds is in `benchmarks.imap`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final

import uvloop

from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Database
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.service import Mailboxes

from .common import PASSWORD, median
from .imap_client import Client
from .peers import PostfixDovecot

PORTION: Final = 20
IN_FLIGHT: Final = 10
ONE_MAILBOX_PORTIONS: Final = 50
PHASES: Final = ("+", "-", "there", "back")
"""A round: flags on, flags off, moved away, moved back."""
_SELECTED: Final = {"+": b"INBOX", "back": b"Archive"}
"""What a connection selects before a phase."""
CLOCK: Final = SystemClock()


@dataclass(slots=True)
class Portion:
    """Messages with consecutive UIDs in a folder of a mailbox of ours."""

    ref: MailboxRef
    folder: FolderKey
    other: FolderKey
    uids: range


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second."""

    store: float
    move: float


def _rates(seconds: Sequence[float], messages: int) -> Rates:
    """Of the seconds of each phase, in order."""
    stores = [taken for n, taken in enumerate(seconds) if n % 4 < 2]
    moves = [taken for n, taken in enumerate(seconds) if n % 4 >= 2]
    return Rates(messages / median(stores), messages / median(moves))


# -- ours


def measure(url: str, root: str, portions: Sequence[Portion], processes: int, rounds: int) -> Rates:
    """Processes share the portions; the first round, which opens connections, is not counted."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes + 1)
    children = [
        context.Process(
            target=_process,
            args=(url, root, list(portions[n::processes]), IN_FLIGHT // processes, rounds, barrier),
        )
        for n in range(processes)
    ]
    for child in children:
        child.start()
    seconds = []
    for _ in range((rounds + 1) * len(PHASES)):
        barrier.wait(120)
        started = time.perf_counter()
        barrier.wait(120)
        seconds.append(time.perf_counter() - started)
    for child in children:
        child.join()
    return _rates(seconds[len(PHASES) :], sum(len(portion.uids) for portion in portions))


def _process(url: str, root: str, portions: list[Portion], in_flight: int, rounds: int, barrier: Barrier) -> None:
    async def main() -> None:
        blobs = MaildirStore(Path(root))
        async with Database(url, max_size=in_flight) as db:
            mailboxes = Mailboxes(db, blobs, CLOCK, IdGenerator(CLOCK), lambda _ref, _modseq: None)
            for _ in range(rounds + 1):
                for phase in PHASES:
                    barrier.wait(120)
                    queue = iter(portions)
                    await asyncio.gather(*(_sender(mailboxes, queue, phase) for _ in range(in_flight)))
                    barrier.wait(120)
        await blobs.close()

    uvloop.run(main())


async def _sender(mailboxes: Mailboxes, queue: Iterable[Portion], phase: str) -> None:
    for one in queue:
        if phase in ("+", "-"):
            mode = FlagMode.ADD if phase == "+" else FlagMode.REMOVE
            await mailboxes.set_flags(one.ref, one.folder, one.uids, mode, {"$flagged"})
        else:
            moved = await mailboxes.move(one.ref, one.folder, one.uids, one.other)
            new = [uid for _, uid in moved.pairs]
            one.folder, one.other, one.uids = one.other, one.folder, range(new[0], new[-1] + 1)


# -- Dovecot


class _Theirs:
    """A portion in Dovecot, with the connection that works on it."""

    def __init__(self, client: Client, first: int) -> None:
        self.client = client
        self.first, self.last = first, first + PORTION - 1

    def work(self, phase: str) -> None:
        if phase in ("+", "-"):
            self.client.ask(rb"UID STORE %d:%d %bFLAGS.SILENT (\Flagged)" % (self.first, self.last, phase.encode()))
        else:
            target = "Archive" if phase == "there" else "INBOX"
            self.first, self.last = self.client.move(self.first, self.last, target)


def measure_dovecot(peer: PostfixDovecot, user: int, boxes: int, raws: Sequence[bytes], rounds: int) -> Rates:
    """The same in `boxes` new mailboxes of users from `user` on."""
    each = PORTION * (ONE_MAILBOX_PORTIONS if boxes == 1 else 1)
    for number in range(user, user + boxes):
        peer.fill(number, raws[:each])
    # It allows ten connections to a mailbox from one place.
    users = [user] * IN_FLIGHT if boxes == 1 else range(user, user + boxes)
    clients = [Client(peer.imap_port, peer.address(number), PASSWORD) for number in users]
    clients[0].ask(b"CREATE Archive")
    for client in clients[1:] if boxes > 1 else ():
        client.ask(b"CREATE Archive")
    count = ONE_MAILBOX_PORTIONS if boxes == 1 else boxes
    portions = [_Theirs(clients[n % len(clients)], 1 + (n * PORTION if boxes == 1 else 0)) for n in range(count)]
    shares = [portions[n::IN_FLIGHT] for n in range(IN_FLIGHT)]
    seconds = []
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        for _ in range(rounds + 1):
            for phase in PHASES:
                if folder := _SELECTED.get(phase):
                    for client in clients:
                        client.ask(b"SELECT " + folder)
                started = time.perf_counter()
                for share in [threads.submit(_all, share, phase) for share in shares]:
                    share.result()
                seconds.append(time.perf_counter() - started)
    for client in clients:
        client.close()
    return _rates(seconds[len(PHASES) :], count * PORTION)


def _all(portions: Sequence[_Theirs], phase: str) -> None:
    for portion in portions:
        portion.work(phase)


def dovecot_thousand(peer: PostfixDovecot, user: int, raws: Sequence[bytes], rounds: int) -> tuple[float, float]:
    """Milliseconds of one STORE and one MOVE of 1,000 messages, the best of some rounds."""
    peer.fill(user, raws[:1000])
    client = Client(peer.imap_port, peer.address(user), PASSWORD)
    client.ask(b"CREATE Archive")
    client.ask(b"SELECT INBOX")
    stores, moves = [], []
    for _ in range(rounds):
        stores += [client.timed(rb"STORE 1:1000 %bFLAGS.SILENT (\Flagged)" % sign) for sign in (b"+", b"-")]
        for here, there in ((b"INBOX", b"Archive"), (b"Archive", b"INBOX")):
            client.ask(b"SELECT " + here)
            moves.append(client.timed(b"MOVE 1:1000 " + there))
        client.ask(b"SELECT INBOX")
    client.close()
    return min(stores), min(moves)
