"""Another process of the deployment stands still while it holds a mailbox."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.service import Mailboxes

from .letters import Pen, check_mailbox, inbox, make_boxes, raw_mail
from .stores import MemoryBlobs

ROOT = Path(__file__).parents[2]


@pytest.mark.covers("decisions:B14", "edge:J2")
async def test_all_other_mailboxes_keep_taking_mail_and_flags(
    db: Database, database_url: str, clock: ManualClock, ids: IdGenerator
) -> None:
    boxes = await make_boxes(db, ids, clock, 6)
    stuck, *others = boxes
    pen = Pen(ids, clock)
    mailboxes = Mailboxes(db, MemoryBlobs(), clock, ids, lambda _ref, _modseq: None)
    ingest = Ingest(db, MemoryBlobs(), clock, committed=lambda _: None)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.mailbox.stopping_child", database_url),
        *(str(stuck.ref.tenant_id), str(stuck.ref.mailbox_id), stuck.tenant_id, stuck.identity_id),
        cwd=ROOT,
    )
    try:
        await _until_stopped(child.pid)
        ingest.start()
        raw = raw_mail(body="for all")
        shared = asyncio.ensure_future(ingest.deliver(Delivery((raw,), tuple(pen.copy(box, raw) for box in boxes))))
        for n in range(10):
            raws = [raw_mail(body=f"{n} {box.address}") for box in others]
            outcomes = await asyncio.gather(
                *(
                    ingest.deliver(Delivery((raw,), (pen.copy(box, raw),)))
                    for raw, box in zip(raws, others, strict=True)
                )
            )
            for box, outcome in zip(others, outcomes, strict=True):
                assert isinstance(outcome, tuple)
                async with db.acquire() as conn:
                    folder = await inbox(conn, box.ref)
                (changed,) = await mailboxes.set_flags(
                    box.ref, folder, [outcome[0].uid], FlagMode.ADD, frozenset({"$seen"}), None
                )
                assert "$seen" in changed.flags
        assert not shared.done()
        os.kill(child.pid, signal.SIGCONT)
        assert await asyncio.wait_for(child.wait(), 60) == 0
        outcome = await shared
        assert isinstance(outcome, tuple)
        assert len(outcome) == 6
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        await ingest.stop()
    async with db.acquire() as conn:
        for box in boxes:
            await check_mailbox(conn, box.ref)
        count = await conn.fetchval("SELECT count(*) FROM messages WHERE mailbox_id = $1", stuck.ref.mailbox_id)
        assert count == 2


async def _until_stopped(pid: int) -> None:
    """Until the process is stopped by a signal, as its state in /proc says."""
    async with asyncio.timeout(60):
        # The kernel tells nobody.
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
