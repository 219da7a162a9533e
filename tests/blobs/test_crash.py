"""A writer is killed at random points; what it acknowledged is whole, and nothing half-written is to be seen."""

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.blobs import MaildirStore

SCRIPT = Path(__file__).parent / "writer_process.py"
SOURCE = Path(__file__).parents[2] / "src"
ROUNDS = 12

_spec = importlib.util.spec_from_file_location("writer_process", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
writer_process = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(writer_process)


def write_and_kill(root: Path, seed: int) -> list[str]:
    """Keys the writer acknowledged before it was killed, at a random one of them."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), str(seed)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    ) as writer:
        assert writer.stdout is not None
        lines = []
        for _ in range(random.Random(seed).randrange(1, 250)):
            lines.append(writer.stdout.readline())
        writer.kill()
        lines += writer.stdout.readlines()
    # The last line may have been cut by the kill: then its group was not acknowledged.
    return [key for line in lines if line.endswith(b"\n") for key in line.decode().split()]


@pytest.mark.covers("mail-server:E2", "edge:J1", "decisions:B5")
async def test_kill_at_random_points(tmp_path: Path) -> None:
    root = tmp_path / "blobs"
    acknowledged: list[str] = []
    for seed in range(ROUNDS):
        acknowledged += write_and_kill(root, seed)
    assert len(acknowledged) > ROUNDS
    store = MaildirStore(root)
    await store.sweep(0)
    assert os.listdir(root / "tmp") == []
    visible: list[str] = []
    while page := await store.list("", visible[-1] if visible else "", 500):
        visible += page
    assert set(acknowledged) <= set(visible)
    done = 0
    async for batch in store.batches(visible):
        for key, data in zip(visible[done : done + len(batch)], batch, strict=True):
            assert data == writer_process.content(key.removesuffix(".twin")), key
        done += len(batch)
    assert done == len(visible)
    await store.close()
