"""`python -m tests.torture --rounds N`: exit 0 when every check of every round held, 1 otherwise."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.torture import deployment
from tests.torture.deployment import Broken, Server
from tests.torture.leaks import Leaks
from tests.torture.ledger import Ledger, Tally
from tests.torture.load import Load
from tests.torture.outgoing import Outgoing
from tests.torture.verify import Verifier

FIRST_ANSWERS: Final = 60.0
"""Seconds within which a loaded server must acknowledge, and acknowledge again after a kill."""
SHOWN: Final = 20
_BAD_LOG: Final = (
    "Traceback",
    "background_work_ended",
    "committed_hook_failed",
    "ingest_batch_failed",
    "ingest_refused_by_database",
    "ingest_degraded",
    "imap_command_failed",
    "was never retrieved",
    "was never awaited",
)
"""What the server's log never says, whatever is killed: none of it is an accident of the outside."""


class Mode(StrEnum):
    """What is done to the deployment in the middle of a round."""

    SERVER = "server"
    POSTGRES = "postgres"
    BOTH = "both"
    BACKEND = "backend"
    WORKER = "worker"
    TERM = "term"


ORDER: Final = (
    (1, Mode.POSTGRES),
    (1, Mode.SERVER),
    (2, Mode.BACKEND),
    (2, Mode.WORKER),
    (2, Mode.POSTGRES),
    (2, Mode.SERVER),
    (2, Mode.TERM),
    (1, Mode.BACKEND),
    (1, Mode.BOTH),
    (2, Mode.BOTH),
    (1, Mode.TERM),
)
"""Server processes, and what is done to them, round after round, and from the beginning again. A few rounds meet
most of it; the number of processes changes only behind a round in which the server is started again."""
TURN: Final = 3
"""Every so many rounds it is the turn of mail that leaves, which has a plan of its own (`outgoing.ORDER`)."""


def plan(rounds: int) -> list[tuple[int, Mode]]:
    """For each round of mail that comes in the number of server processes and what is to be killed."""
    return [ORDER[at % len(ORDER)] for at in range(rounds)]


class Torture:
    """Rounds on one data directory."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._seed = seed
        self._kills = 0
        self._helpers_left = 0
        self._log_read = 0
        self._out_log_read = 0
        self._leaks: Leaks
        self._outgoing = Outgoing(directory / "out", seed)

    async def run(self, rounds: int, minutes: float, *, only_outgoing: bool = False) -> bool:
        """Whether everything held."""
        try:
            if only_outgoing:
                return await self._only_outgoing(rounds, minutes)
            return await self._all(rounds, minutes)
        finally:
            await self._outgoing.end()

    async def _only_outgoing(self, rounds: int, minutes: float) -> bool:
        deadline = time.monotonic() + minutes * 60
        for number in range(1, rounds + 1):
            if faults := await self._out(number):
                self._tell(number, faults)
                return False
            if time.monotonic() > deadline:
                break
        return True

    async def _out(self, number: int) -> Sequence[str]:
        """A round of mail that leaves; the faults found."""
        outgoing, faults = self._outgoing, list[str]()
        try:
            faults, line = await outgoing.round()
            print(f"round {number:3} out {line}", flush=True)
        except Broken as broken:
            faults = [str(broken)]
        if outgoing.server is not None:
            logged, self._out_log_read = _logged(outgoing.server, self._out_log_read)
            faults += logged
        if outgoing.helpers_left:
            faults.append(f"{outgoing.helpers_left} helper processes outlived the server that was killed")
        return faults

    async def _all(self, rounds: int, minutes: float) -> bool:
        rng = random.Random(f"{self._seed}/setup")
        made = await deployment.create(self._directory / "data", rng)
        ledger = Ledger(self._seed, len(made.boxes))
        verifier = Verifier(made, ledger)
        self._leaks = Leaks(made)
        server = Server(made, self._directory / "server.log")
        deadline = time.monotonic() + minutes * 60
        try:
            ahead, at = plan(rounds + 1), 0
            for number in range(1, rounds + 1):
                late = time.monotonic() > deadline
                if number % TURN == 0 and not late:
                    last, faults = number == rounds, await self._out(number)
                else:
                    # The last one of its kind looks at everything.
                    last = late or number == rounds
                    is_last = last or (number + 1 == rounds and rounds % TURN == 0)
                    faults = await self._round(server, ledger, verifier, number, ahead[at : at + 2], last=is_last)
                    at += 1
                if faults:
                    self._tell(number, faults)
                    return False
                if last:
                    break
            if self._helpers_left:
                self._tell(number, [f"{self._helpers_left} helper processes outlived the server that was killed"])
            return not self._helpers_left
        finally:
            await server.end()

    async def _round(
        self,
        server: Server,
        ledger: Ledger,
        verifier: Verifier,
        number: int,
        ahead: Sequence[tuple[int, Mode]],
        *,
        last: bool,
    ) -> Sequence[str]:
        """One round, the first that is `ahead`; the faults found."""
        rng = random.Random(f"{self._seed}/{number}")
        (processes, mode), (following, _) = ahead
        began = time.monotonic()
        ledger.tally = Tally()
        try:
            if not server.is_running:
                server.processes = processes
                await server.start()
            # A server that is started within the round is the next round's, too.
            server.processes = following
            load = Load(server.deployment, ledger, number, rng)
            load.start()
            note = ""
            try:
                if not await load.answered(rng.randint(1, 600), FIRST_ANSWERS):
                    raise Broken(f"{load.answers} acknowledgements in {FIRST_ANSWERS:.0f} s under load")
                await asyncio.sleep(rng.uniform(0, 0.5))
                note = await self._strike(server, mode, rng)
                if not await load.answered(rng.randint(100, 900), FIRST_ANSWERS):
                    raise Broken(f"no acknowledgements came after the kill\n{server.tail()}")
            finally:
                await load.finish()
            loaded = time.monotonic() - began
            faults, counts = await verifier.check(rng, thorough=last)
            if last:
                faults += await verifier.indexed()
            leaks, figures = await self._leaks.check(server)
            faults += leaks
            faults += self._logged(server)
        except Broken as broken:
            return [str(broken), *self._logged(server)]
        tally = ledger.tally
        print(
            f"round {number:3} {processes}×{mode:8} {time.strftime('%H:%M:%S')} load {loaded:4.1f} s, "
            f"check {time.monotonic() - began - loaded:4.1f} s; "
            f"250s {tally.stored}, 4xx {tally.deferred.total()}, lost {tally.lost}, retried {tally.retried}, "
            f"imap {tally.imap}, rest {tally.rest}; kills {self._kills}; "
            f"messages {counts.messages}, blobs read {counts.blobs}, without a row {counts.waste}, "
            f"word tasks left {counts.unindexed}; {figures}{note}",
            flush=True,
        )
        for text, count in tally.deferred.most_common(4):
            print(f"          {count} × {text}", flush=True)
        return faults

    async def _strike(self, server: Server, mode: Mode, rng: random.Random) -> str:
        """Do it, and have the server back; what is worth saying of it."""
        if mode is Mode.TERM:
            code = await server.terminate()
            if code != 0:
                raise Broken(f"the server ended with status {code} on SIGTERM\n{server.tail()}")
            return f"; back in {await server.start():.1f} s"
        self._kills += 1
        if mode is Mode.POSTGRES:
            server.kill_postmaster()
        elif mode is Mode.WORKER:
            server.kill_worker(rng)
        elif mode is Mode.BACKEND:
            await server.kill_backend(rng)
        else:
            if mode is Mode.BOTH:
                server.kill_postmaster()
                await asyncio.sleep(rng.choice((0.0, 0.0, rng.uniform(0, 0.3))))
            self._helpers_left += await server.kill()
            return f"; back in {await server.start():.1f} s"
        began = time.monotonic()
        while not await server.is_ready():
            if not server.is_running:
                raise Broken(f"the server ended when its {mode} was killed\n{server.tail()}")
            if time.monotonic() - began > FIRST_ANSWERS:
                raise Broken(f"the server was not ready {FIRST_ANSWERS:.0f} s after its {mode} was killed")
            await asyncio.sleep(0.05)
        return f"; ready again in {time.monotonic() - began:.1f} s"

    def _logged(self, server: Server) -> list[str]:
        faults, self._log_read = _logged(server, self._log_read)
        return faults

    def _tell(self, number: int, faults: Sequence[str]) -> None:
        print(f"\nround {number} of seed {self._seed} FAILED: {len(faults)} faults", file=sys.stderr)
        for fault in faults[:SHOWN]:
            print(f"  - {fault}", file=sys.stderr)
        if len(faults) > SHOWN:
            print(f"  … and {len(faults) - SHOWN} more", file=sys.stderr)
        print(
            f"again: python -m tests.torture --rounds {number} --seed {self._seed} --keep\n"
            f"data directory and server.log: {self._directory} (kept with --keep)",
            file=sys.stderr,
        )


def _logged(server: Server, read: int) -> tuple[list[str], int]:
    """Lines of the log behind `read` octets that say something went wrong inside the program, and its length."""
    with server.log.open("rb") as log:
        log.seek(read)
        text = log.read().decode("utf-8", "replace")
        read = log.tell()
    lines = text.splitlines()
    bad = [at for at, line in enumerate(lines) if any(word in line for word in _BAD_LOG)]
    return ["the server's log: " + "\n    ".join(lines[max(0, at - 2) : at + 40]) for at in bad[:2]], read


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many kills")
    parser.add_argument("--seed", type=int, default=None, help="repeats the kills and messages of an earlier run")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further round after this time")
    parser.add_argument("--outgoing", action="store_true", help="only mail that leaves")
    parser.add_argument("--keep", action="store_true", help="leave the data directory")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    directory = Path(tempfile.mkdtemp(prefix="postroom-torture-"))
    print(f"seed {seed}, {options.rounds} rounds in {directory}", flush=True)
    held = False
    try:
        with contextlib.suppress(KeyboardInterrupt):
            held = asyncio.run(
                Torture(directory, seed).run(options.rounds, options.minutes, only_outgoing=options.outgoing)
            )
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    print("everything held" if held else "NOT everything held", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
