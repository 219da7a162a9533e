"""Logging to a full disk or into a closed pipe loses lines and stops nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from postroom.base import log


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, before = root.handlers, root.level, structlog.get_config()
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.configure(**before)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk() -> None:
    stream = open("/dev/full", "w", encoding="utf-8", buffering=1)  # noqa: SIM115  closing raises, as writing does
    try:
        log.configure("info", "text", stream)
        for number in range(10_000):
            log.get("test").error("no room", number=number)
        logging.getLogger("library").error("no room either")
    finally:
        with pytest.raises(OSError, match="No space left"):
            stream.close()


def test_a_reader_that_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", encoding="utf-8", buffering=1)
    try:
        log.configure("info", "json", stream)
        log.get("test").error("nobody listens")
    finally:
        with pytest.raises(BrokenPipeError):
            stream.close()
