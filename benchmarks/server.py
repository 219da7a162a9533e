"""The server as a whole: what it takes while nobody asks anything of it, and how fast it starts.

It is measured after it has taken some mail, with its database. Memory is PSS: a page that several processes share
counts once in their sum, where a sum of RSS counts PostgreSQL's shared buffers once for each of its processes; both
are shown.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

from . import peers
from .common import STATISTICS_SECONDS, Row, Server, median, row, work_directory
from .smtp_in import PEER, Ours, Theirs
from .smtp_load import BOXES, Corpus

MEMORY_TARGET: Final = 512.0
CPU_TARGET: Final = 2.0
START_TARGET: Final = 3.0
_MIB: Final = 1024 * 1024
_MESSAGES: Final = 1000
_CONNECTIONS: Final = 20


def run(quick: bool) -> list[Row]:
    """Idle memory, idle CPU, cold start; Postfix + Dovecot beside it after the same mail."""
    seconds, starts = (8.0, 3) if quick else (20.0, 5)
    with contextlib.ExitStack() as stack:
        corpus = Corpus(stack.enter_context(work_directory("corpus-")))
        server = stack.enter_context(Server(people=BOXES, agents=0))
        with Ours(server, corpus) as ours:
            ours.round(_MESSAGES, _CONNECTIONS)
        peer_memory = peer_cpu = None
        peer = None
        if peers.available():
            peer = stack.enter_context(peers.PostfixDovecot(BOXES))
            Theirs(peer, corpus).round(_MESSAGES, _CONNECTIONS)
        # What follows the mail (statistics, the end of the indexing) is work, not idling.
        time.sleep(STATISTICS_SECONDS)
        before, peer_before, began = server.cost(), peer.cpu() if peer else 0.0, time.monotonic()
        time.sleep(seconds)
        idle = server.cost().since(before)
        passed = (time.monotonic() - began) / 100
        if peer is not None:
            peer_cpu = (peer.cpu() - peer_before) / passed
            peer_memory = peer.memory().pss / _MIB
        program, database = server.memory()
        rows = [
            row(
                "idle memory with database, PSS",
                (program.pss + database.pss) / _MIB,
                "MiB",
                target=MEMORY_TARGET,
                peer=peer_memory,
                peer_name=PEER,
            ),
            row("  of the server", program.pss / _MIB, "MiB"),
            row("  of the database", database.pss / _MIB, "MiB"),
            row("idle memory with database, sum of RSS", (program.rss + database.rss) / _MIB, "MiB"),
            row(
                f"idle CPU with database, {seconds:.0f} s",
                idle.total / passed,
                "% of a core",
                target=CPU_TARGET,
                peer=peer_cpu,
                peer_name=PEER,
            ),
            row("  of the server", idle.server / passed, "% of a core"),
            row("  of the database", idle.database / passed, "% of a core"),
        ]
        taken = [_restart(server) for _ in range(starts)]
        return [
            *rows,
            row(
                "cold start until all ports listen",
                median(seconds for seconds, _ in taken),
                "s",
                target=START_TARGET,
            ),
            row("  CPU of it, with database", median(cpu for _, cpu in taken), "s"),
        ]


def _restart(server: Server) -> tuple[float, float]:
    """Seconds of a start, and CPU seconds."""
    server.stop()
    taken = server.start()
    return taken, server.cost().total
