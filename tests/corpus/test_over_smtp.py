"""Every case over a real SMTP session, read back by REST and IMAP: the same is expected as of the libraries alone
(requirements §6; NFR-REL-1).

All of them go through one server, over few connections, before the first test; the tests look at what became of each.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path
from typing import Final

import pytest
import structlog

from tests.conftest import new_database
from tests.corpus.cases import EXPECTED, GENERATED, load
from tests.corpus.room import Served, is_backscatter, run_all
from tests.corpus.served import NOT_SERVED, SERVED

pytestmark = pytest.mark.timeout(600)  # the first test waits for all of it, maybe for another process that does it

TRACE: Final = {"Return-Path", "Authentication-Results", "Received"}


@pytest.fixture(scope="module")
def served(postgres_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Served]:
    """What became of each case. Of several processes that test, one finds out, and leaves it to the others."""
    place = tmp_path_factory.getbasetemp()
    shared = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place

    async def run() -> dict[str, Served]:
        async with new_database(postgres_url, template_database) as url:
            return await run_all(map(load, EXPECTED), url, tmp_path_factory.mktemp("corpus"))

    with (shared / "corpus.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = shared / "corpus.pickle"
        if not kept.exists():
            with _quiet():
                kept.write_bytes(pickle.dumps(asyncio.run(run())))
        found: dict[str, Served] = pickle.loads(kept.read_bytes())
        return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the several lines for each message, which nobody reads."""
    before = structlog.get_config()
    errors = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(**{**before, "wrapper_class": errors, "cache_logger_on_first_use": False})
    try:
        yield
    finally:
        structlog.configure(**before)


@pytest.mark.covers(
    "edge:A2",
    "edge:B1",
    "edge:B2",
    "edge:B13",
    "edge:C1",
    "edge:C2",
    "edge:C7",
    "edge:C8",
    "edge:C9",
    "edge:D1",
    "edge:D4",
    "edge:D9",
    "edge:D10",
    "edge:E4",
    "FR-IN-3",
    "FR-IN-4",
    "FR-THR-1",
    "FR-THR-2",
    "NFR-REL-1",
)
@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_as_expected(path: Path, served: dict[str, Served]) -> None:
    case = load(path)
    found = served[case.name]
    refused = case.session.get("refused")
    is_sent = case.session.get("place") == "sent"
    wanted = [reply for reply in (case.session.get("data"), refused or "250 2.0.0 Ok: queued") if reply]
    if is_backscatter(case):
        wanted.insert(0, "250 2.0.0 Ok")
    if not is_sent:
        assert [reply[: len(start)] for reply, start in zip(found.replies, wanted, strict=True)] == wanted
    assert found.is_stored is (refused is None)
    if refused is not None:
        return
    raw = case.raw
    for claim in case.session.get("removes", ()):
        assert raw.count(claim.encode()) == 1
        raw = raw.replace(claim.encode(), b"")
    # Octet for octet what was sent, behind what every server writes before it (RFC 5321 §4.4).
    assert found.raw.endswith(raw)
    trace = found.raw[: len(found.raw) - len(raw)]
    assert set(message_from_bytes(trace).keys()) == (set() if is_sent else TRACE)
    if not is_sent and not is_backscatter(case):
        assert b"BODY[] {%d}\r\n" % len(found.raw) + found.raw in found.fetched
        assert b"RFC822.SIZE %d " % len(found.raw) in found.fetched
    for table in ("expect", "read"):
        for name, value in case.known.get(table, {}).items():
            if name not in NOT_SERVED:
                SERVED[name](case, found, value)


def test_no_case_passes_unseen(served: dict[str, Served]) -> None:
    assert len(served) == len(EXPECTED)
    assert not SERVED.keys() & NOT_SERVED.keys()
    refused = {name for name, found in served.items() if not found.is_stored}
    assert refused == {path.stem for path in EXPECTED if "refused" in load(path).session}


def test_the_dns_was_that_of_the_corpus(served: dict[str, Served]) -> None:
    """A server that asked nobody would find no policy anywhere."""
    found = {served[path.stem].message["trust"]["verdict"] for path in EXPECTED if path.parent.name == "auth"}
    assert found == {"pass", "fail", "unaligned", "unverified", "softfail", "none"}


def test_generated_messages_are_not_kept() -> None:
    for path in EXPECTED:
        is_made = re.search(rf'^source = "{GENERATED}', path.read_text("utf-8"), re.MULTILINE) is not None
        assert path.with_suffix(".eml").exists() is not is_made
