"""Mail in over SMTP: durable and visible to IMAP, beside Postfix + Dovecot on the same messages in the same run.

Distinct messages of the reference load (`benchmarks.messages`) go to 200 mailboxes. A connection sends MAIL, RCPT and
DATA together, waits, sends the message, waits. Rounds of both sides alternate, since machines drift; figures are
medians. Ours are delivered when they are accepted; Postfix's when its queue is empty. What either side still does
after a round (our word index) is over before the other's begins, and its CPU is counted to the round.
"""

from __future__ import annotations

import asyncio
import contextlib
import imaplib
import secrets
import smtplib
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from . import peers
from .common import DOMAIN, PASSWORD, STATISTICS_SECONDS, Row, Server, median, row, work_directory
from .smtp_load import BOXES, SEND_SECONDS, SENDER, Corpus, Feeder

CONNECTIONS: Final = 20
PEER: Final = "Postfix+Dovecot"
RECORDED_DELIVERED: Final = 497.0
"""Postfix + Dovecot on the reference machine, per second: what targets are multiples of where no peer is installed."""
RECORDED_SINGLE: Final = 414.0
_DRAIN_SECONDS: Final = 300.0
_PROBE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is sent: messages of a round, and how many rounds; seconds of the sustained run."""

    rounds: int
    messages: int
    single_rounds: int
    single_messages: int
    sustained: float
    warm_up: int = 500


QUICK: Final = Plan(rounds=3, messages=1500, single_rounds=3, single_messages=250, sustained=10)
FULL: Final = Plan(rounds=5, messages=5000, single_rounds=3, single_messages=1000, sustained=60)


# -- the two sides ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """Messages per second accepted and delivered; CPU in ms per message of all the side's processes together, of its
    server and database where it has them, and of the load client. `settled` is the rate with all later work done,
    which took `after_load` seconds longer.
    """

    accepted: float
    delivered: float
    settled: float
    after_load: float
    cpu: float
    server_cpu: float
    database_cpu: float
    client_cpu: float
    p95_latency: float


class Side(Protocol):
    def round(self, count: int, connections: int, seconds: float = SEND_SECONDS) -> Round: ...


def _check(box: int, client: imaplib.IMAP4, expected: int) -> None:
    """Over IMAP, the inbox holds what was sent to it. Raises RuntimeError."""
    _, (answer,) = client.status("INBOX", "(MESSAGES)")
    seen = int(answer.rpartition(b" ")[2].rstrip(b")"))
    if seen != expected:
        raise RuntimeError(f"IMAP shows {seen} messages of mailbox {box}, {expected} were accepted")


class Ours:
    """A running Postroom. A context manager: it holds connections to some mailboxes, since signing in costs CPU on
    purpose.
    """

    def __init__(self, server: Server, corpus: Corpus) -> None:
        self.server = server
        self.feeder = Feeder(corpus, server.smtp_port)
        self._stack = contextlib.ExitStack()
        self._readers: Mapping[int, imaplib.IMAP4] = {}

    def __enter__(self) -> Self:
        self._readers = {box: self._stack.enter_context(self.imap(box)) for box in (1, BOXES - 1)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def imap(self, box: int) -> imaplib.IMAP4:
        """A connection, signed in."""
        client = imaplib.IMAP4(self.server.host, self.server.imap_port, timeout=60)
        client.login(f"user{box}@{DOMAIN}", PASSWORD)
        return client

    def warm_up(self, count: int) -> None:
        """Let the planner have statistics of tables that hold something, and the pool its connections."""
        self.round(count, CONNECTIONS)
        self.server.keep_niceness()
        time.sleep(STATISTICS_SECONDS)
        self.round(count, CONNECTIONS)

    def round(self, count: int, connections: int, seconds: float = SEND_SECONDS) -> Round:
        before = self.server.cost()
        sent = self.feeder.send(count, connections, seconds)
        for box, client in self._readers.items():
            _check(box, client, self.feeder.in_box(box))
        after_load = max(self.wait_indexed() - sent.ended, 0.0)
        spent = self.server.cost().since(before)
        per_message = 1e3 / sent.accepted
        return Round(
            accepted=sent.rate,
            delivered=sent.rate,
            settled=sent.accepted / (sent.ended - sent.began + after_load),
            after_load=after_load,
            cpu=spent.total * per_message,
            server_cpu=spent.server * per_message,
            database_cpu=spent.database * per_message,
            client_cpu=sent.cpu * per_message,
            p95_latency=sent.p95_latency,
        )

    def wait_indexed(self) -> float:
        """Until the word index has every message; the monotonic time of that. Raises TimeoutError."""
        return self.server.wait_indexed(_DRAIN_SECONDS)


class Theirs:
    """A running Postfix with Dovecot."""

    def __init__(self, peer: peers.PostfixDovecot, corpus: Corpus) -> None:
        self._peer = peer
        self._feeder = Feeder(corpus, peer.smtp_port)

    def round(self, count: int, connections: int, seconds: float = SEND_SECONDS) -> Round:
        before = self._peer.cpu()
        sent = self._feeder.send(count, connections, seconds)
        after_load = max(self._peer.wait_delivered(_DRAIN_SECONDS) - sent.ended, 0.0)
        spent = (self._peer.cpu() - before) * 1e3 / sent.accepted
        if (there := self._peer.delivered()) != self._feeder.total:
            raise RuntimeError(f"Dovecot has {there} messages of {self._feeder.total}")
        with self._peer.imap(1) as client:
            _check(1, client, self._feeder.in_box(1))
        delivered = sent.accepted / (sent.ended - sent.began + after_load)
        return Round(
            accepted=sent.rate,
            delivered=delivered,
            settled=delivered,
            after_load=after_load,
            cpu=spent,
            server_cpu=spent,
            database_cpu=0.0,
            client_cpu=sent.cpu * 1e3 / sent.accepted,
            p95_latency=sent.p95_latency,
        )


# -- looking at the word index ----------------------------------------------------------------------------------------

_LAG: Final = """
SELECT extract(epoch FROM clock_timestamp() - m.received_at)::float8
FROM (SELECT tenant_id, first_id FROM word_tasks ORDER BY id LIMIT 1) t
JOIN messages m ON m.tenant_id = t.tenant_id AND m.id = t.first_id
"""


class _Watch:
    """Beside the load, each in a thread: the age in seconds of the oldest message that the word index lacks; and the
    seconds from a probe's 250 until IMAP SEARCH finds it by a word that no other message has.
    """

    def __init__(self, ours: Ours) -> None:
        self._ours = ours
        self._stop = threading.Event()
        self.lags = [0.0]
        self.searches: list[float] = []
        self._threads = ThreadPoolExecutor(2)

    def __enter__(self) -> Self:
        self._running = [
            self._threads.submit(lambda: asyncio.run(self._watch_lag())),
            self._threads.submit(self._probe),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._threads.shutdown()
        if error is None:
            for running in self._running:
                running.result()

    async def _watch_lag(self) -> None:
        import asyncpg

        connection = await asyncpg.connect(self._ours.server.database_url, timeout=30)
        try:
            while not self._stop.is_set():
                self.lags.append(await connection.fetchval(_LAG, timeout=30) or 0.0)
                await asyncio.sleep(0.2)
        finally:
            await connection.close(timeout=30)

    def _probe(self) -> None:
        server = self._ours.server
        with self._ours.imap(0) as client, smtplib.SMTP(server.host, server.smtp_port, timeout=60) as sender:
            client.select("INBOX")
            while not self._stop.wait(1.0):
                word = f"zq{secrets.token_hex(8)}"
                text = f"Subject: probe\r\nMessage-ID: <{word}.id@example.com>\r\n\r\nLook for {word} here.\r\n"
                sender.sendmail(SENDER, f"user0@{DOMAIN}", text.encode())
                began = time.monotonic()
                while time.monotonic() - began < _PROBE_SECONDS:
                    client.noop()
                    if client.search(None, "TEXT", f'"{word}"')[1][0]:
                        break
                self.searches.append(time.monotonic() - began)


# -- the figures ------------------------------------------------------------------------------------------------------


def _alternate(ours: Side, theirs: Side | None, rounds: int, count: int, connections: int) -> list[list[Round]]:
    """Rounds of both, in turn: ours, and theirs (none without a peer)."""
    found: list[list[Round]] = [[], []]
    for _ in range(rounds):
        found[0].append(ours.round(count, connections))
        if theirs is not None:
            found[1].append(theirs.round(count, connections))
    return found


def _of(rounds: Sequence[Round], name: str) -> float | None:
    """The median of one figure; None without rounds."""
    return median(getattr(one, name) for one in rounds) if rounds else None


def _figures(label: str, ours: Sequence[Round], theirs: Sequence[Round], target: float) -> list[Row]:
    """The rows of rounds at some number of connections. *target*: delivered messages per second."""

    def one(name: str, figure: str, unit: str, goal: float | None = None) -> Row:
        mine = _of(ours, figure)
        assert mine is not None
        return row(f"{label}, {name}", mine, unit, target=goal, peer=_of(theirs, figure), peer_name=PEER)

    rows = [
        one("delivered", "delivered", "messages/s", target),
        one("accepted", "accepted", "messages/s"),
        one("p95 to the 250", "p95_latency", "ms"),
        one("CPU in all", "cpu", "ms/message"),
    ]
    for name, figure in (("CPU, server", "server_cpu"), ("CPU, database", "database_cpu")):
        rows.append(row(f"{label}, {name}", _of(ours, figure) or 0.0, "ms/message"))
    return rows


def _sustained(ours: Ours, theirs: Side | None, known: Sequence[Round], guess: float, plan: Plan) -> list[Row]:
    """A flood for some time, the word index made meanwhile; *guess* is the rate to have messages for."""
    count = int(guess * plan.sustained * 1.3)
    ours.feeder.prepare(count)
    with _Watch(ours) as watch:
        flood = ours.round(count, CONNECTIONS, plan.sustained)
    after = [theirs.round(plan.messages, CONNECTIONS)] if theirs is not None else []
    peer = _of([*known, *after], "delivered")
    label = f"{plan.sustained:.0f} s"
    worst = max(watch.searches, default=_PROBE_SECONDS)
    return [
        row(
            f"{label}, word index included",
            flood.settled,
            "messages/s",
            target=1.5 * (peer or RECORDED_DELIVERED),
            peer=peer,
            peer_name=PEER,
        ),
        row(f"{label}, accepted", flood.accepted, "messages/s"),
        row(f"{label}, CPU, server", flood.server_cpu, "ms/message"),
        row(f"{label}, CPU, database", flood.database_cpu, "ms/message"),
        row(f"{label}, word index behind, at most", max(watch.lags), "s"),
        row(f"{label}, word index done after the load", flood.after_load, "s"),
        row(f"{label}, 250 to SEARCH TEXT hit, worst of {len(watch.searches)}", worst, "s", target=2),
    ]


def run(quick: bool) -> list[Row]:
    """All rows. Raises RuntimeError when a message is refused or not where it should be."""
    plan = QUICK if quick else FULL
    with contextlib.ExitStack() as stack:
        corpus = Corpus(stack.enter_context(work_directory("corpus-")))
        corpus.extend(plan.rounds * plan.messages + plan.single_rounds * plan.single_messages + 2 * plan.warm_up)
        theirs: Theirs | None = None
        if peers.available():
            theirs = Theirs(stack.enter_context(peers.PostfixDovecot(BOXES)), corpus)
            theirs.round(plan.warm_up, CONNECTIONS)
            theirs.round(plan.warm_up, CONNECTIONS)
        with Server(people=BOXES, agents=0) as server, Ours(server, corpus) as ours:
            rows = _one_process(ours, theirs, plan)
        with Server(people=BOXES, agents=0, processes=2) as server, Ours(server, corpus) as ours:
            ours.warm_up(plan.warm_up)
            mine, peer = _alternate(ours, theirs, plan.rounds, plan.messages, CONNECTIONS)
            target = 2 * (_of(peer, "delivered") or RECORDED_DELIVERED)
            rows += _figures(f"{CONNECTIONS} connections, 2 processes", mine, peer, target)
        return rows


def _one_process(ours: Ours, theirs: Theirs | None, plan: Plan) -> list[Row]:
    ours.warm_up(plan.warm_up)
    mine, peer = _alternate(ours, theirs, plan.rounds, plan.messages, CONNECTIONS)
    target = 2 * (_of(peer, "delivered") or RECORDED_DELIVERED)
    rows = _figures(f"{CONNECTIONS} connections", mine, peer, target)
    rows.append(row("load client CPU", _of(mine, "client_cpu") or 0.0, "ms/message", target=0.08))
    mine_single, peer_single = _alternate(ours, theirs, plan.single_rounds, plan.single_messages, 1)
    target = _of(peer_single, "delivered") or RECORDED_SINGLE
    rows += _figures("1 connection", mine_single, peer_single, target)
    return rows + _sustained(ours, theirs, peer, _of(mine, "accepted") or 0.0, plan)
