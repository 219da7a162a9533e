"""The IMAP client of the benchmarks, against Dovecot: it holds the messages it was given, and flags and moves them."""

from __future__ import annotations

import pytest

from benchmarks import peers
from benchmarks.common import PASSWORD
from benchmarks.flags import ONE_MAILBOX_PORTIONS, PORTION, dovecot_thousand, measure_dovecot
from benchmarks.imap import message
from benchmarks.imap_client import Client
from benchmarks.peers import PostfixDovecot

pytestmark = pytest.mark.skipif(not peers.available(), reason="Postfix and Dovecot are not installed, or not root")


def test_dovecot_shows_what_it_was_given_and_is_measured() -> None:
    raws = [message(seed) for seed in range(1000)]
    with PostfixDovecot(users=1) as peer:
        assert peer.fill(0, raws[:30]) == 30
        client = Client(peer.imap_port, peer.address(0), PASSWORD)
        assert b"* 30 EXISTS" in client.ask(b"SELECT INBOX")
        assert b"RFC822.SIZE %d" % len(raws[2]) in client.ask(b"FETCH 3 (RFC822.SIZE)")
        assert raws[2] in client.ask(b"FETCH 3 (BODY.PEEK[])")
        client.ask(b"CREATE Archive")
        assert client.move(11, 20, "Archive") == (1, 10)
        assert client.append_rate("Archive", raws[:5], 20) > 0
        assert b"* 30 EXISTS" in client.ask(b"SELECT Archive")
        with pytest.raises(RuntimeError, match="BAD"):
            client.ask(b"NONSENSE")
        client.close()
        assert len(raws) >= PORTION * ONE_MAILBOX_PORTIONS
        for boxes in (1, 3):
            rates = measure_dovecot(peer, 10 * boxes, boxes, raws, 1)
            assert min(rates.store, rates.move) > 0
        assert min(dovecot_thousand(peer, 5, raws, 1)) > 0
