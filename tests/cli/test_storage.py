"""`postroom storage gc`: what belongs to no message, shown and removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.driver import Cli

MESSAGE = "msg_01J9Z3K8V4QW7X2M5N6P8R000{}"
OLD = 1_600_000_000


def stray(cli: Cli, number: int, text: str, *, old: bool) -> Path:
    """Bytes in the Maildir of somebody who isn't here."""
    directory = cli.data_dir / "mail" / "ten_01J9Z3K8V4QW7X2M5N6P8R0T1A" / "idn_01J9Z3K8V4QW7X2M5N6P8R0T1A" / "cur"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{MESSAGE.format(number)}:2,"
    path.write_text(text)
    if old:
        os.utime(path, (OLD, OLD))
    return path


@pytest.mark.covers("mail-server:E7", "edge:I9")
def test_gc(cli: Cli) -> None:
    cli.json("tenant", "create", "acme")
    old, young = stray(cli, 1, "12345", old=True), stray(cli, 2, "1", old=False)
    scratch = cli.data_dir / "tmp" / "0123456789ab-1"
    scratch.write_text("half")
    os.utime(scratch, (OLD, OLD))
    seen = cli.json("storage", "gc", "--dry-run")
    assert seen.pop("duration_ms") >= 0
    assert seen == {
        "dry_run": True,
        "looked_at": 2,
        "removed_blobs": 1,
        "freed_bytes": 5,
        "removed_scratch": 1,
        "unknown": 0,
    }
    assert old.exists()
    assert scratch.exists()
    done = cli("storage", "gc")
    assert done.out == (
        "2 looked at: 1 that belong to no message removed (5 bytes), and 1 left by interrupted writes.\n"
    )
    assert not old.exists()
    assert not scratch.exists()
    assert young.exists()
    assert cli("storage", "gc", "--older-than", "0").code == 2
    assert cli("storage", "gc", "--quiet").out == "0\n"
