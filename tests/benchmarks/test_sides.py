"""What is measured: the load and its client, a whole Postroom, and the peer where it is installed."""

import email
import imaplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from benchmarks import peers
from benchmarks.common import DOMAIN, PASSWORD, Server, free_ports, is_in_memory
from benchmarks.imap_client import Client
from benchmarks.imap_fill import multiply
from benchmarks.imap_growth import threaded
from benchmarks.smtp_in import Ours, Theirs
from benchmarks.smtp_load import BOXES, Corpus, Feeder


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


class _Handler:
    def __init__(self) -> None:
        self.kept: list[tuple[str, bytes]] = []
        self.answer = "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.kept.append((envelope.rcpt_tos[0], envelope.content))
        return self.answer


@pytest.fixture
def handler() -> _Handler:
    return _Handler()


@pytest.fixture
def port(handler: _Handler) -> Iterator[int]:
    (port,) = free_ports(1)
    controller = Controller(handler, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


def test_client_sends_each_message_once_to_its_box(corpus: Corpus, handler: _Handler, port: int) -> None:
    feeder = Feeder(corpus, port)
    assert feeder.send(250, 8).accepted == 250
    assert feeder.send(10, 1).accepted == 10
    assert feeder.total == len(handler.kept) == 260
    assert len({raw for _, raw in handler.kept}) == 260
    assert all(email.message_from_bytes(raw)["To"] == to for to, raw in handler.kept)
    to = [to for to, _ in handler.kept]
    assert {box: to.count(f"user{box}@{DOMAIN}") for box in range(BOXES)} == {
        box: feeder.in_box(box) for box in range(BOXES)
    }


def test_refused_messages_fail_the_run(corpus: Corpus, handler: _Handler, port: int) -> None:
    handler.answer = "451 later"
    with pytest.raises(RuntimeError, match="5 messages were refused"):
        Feeder(corpus, port).send(5, 2)


def test_file_system_that_forgets_is_told() -> None:
    assert is_in_memory(Path("/dev/shm/x")) or not Path("/dev/shm").is_mount()


def test_postroom_is_measured_and_removed(corpus: Corpus) -> None:
    with Server(people=BOXES, agents=1) as server, Ours(server, corpus) as ours:
        measured = ours.round(60, 4)
        assert measured.delivered > 0
        assert measured.server_cpu > 0
        server_memory, database_memory = server.memory()
        assert 0 < server_memory.pss <= server_memory.rss
        assert database_memory.pss > 0
        assert server.agents[0].address == f"agent0@{DOMAIN}"
        assert server.api_key.startswith("pmk_live_")
        directory = server.directory
    assert not directory.exists()
    with pytest.raises(OSError):
        imaplib.IMAP4("127.0.0.1", server.imap_port)


def test_an_inbox_is_multiplied() -> None:
    """Messages of their own, which SORT, THREAD and the word index know as any other."""
    with Server(people=1, agents=0, roles="imap,worker") as server:
        client = Client(server.imap_port, server.people[0].address, PASSWORD)
        client.append_rate("INBOX", [threaded(number) for number in range(8)], 8)
        server.wait_indexed()
        multiply(server.database_url, server.people[0].identity_id, 3)
        assert b"* 24 EXISTS" in client.ask(b"SELECT INBOX")
        assert client.ask(b"UID FETCH 17 (EMAILID)") != client.ask(b"UID FETCH 9 (EMAILID)")
        subject = threaded(0).split(b"Subject: ")[1].split(b"\r\n")[0]
        assert b"* SEARCH 1 9 17" in client.ask(b'SEARCH SUBJECT "%b"' % subject)
        found = client.ask(b"SEARCH BODY garden").split(b"\r\n")[0].split()[2:]
        assert len(found) % 3 == 0
        assert len(found) > 0
        threads = client.ask(b"THREAD REFERENCES UTF-8 ALL").split(b"\r\n")[0]
        # Two threads of four, three times: each copy has references of its own.
        assert b"(1 2 3 4)" in threads
        assert b"(17 18 19 20)" in threads
        client.close()


@pytest.mark.skipif(not peers.available(), reason="Postfix and Dovecot are not installed, or not root")
def test_peer_delivers_and_is_removed(corpus: Corpus) -> None:
    with peers.PostfixDovecot(BOXES) as peer:
        measured = Theirs(peer, corpus).round(40, 4)
        assert measured.delivered > 0
        assert measured.cpu > 0
        root = peer.root
    assert not root.exists()
