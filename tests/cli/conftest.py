"""Commands in this process, against a database of the test's own."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from postroom.base import log as base_log
from tests.cli.driver import DOMAIN, Cli


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Commands without a database, in an empty working directory."""
    for name in list(os.environ):
        if name.startswith("POSTROOM_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("POSTROOM_ENV", "local")
    monkeypatch.setenv("POSTROOM_PLATFORM_DOMAIN", DOMAIN)
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    base_log.configure("critical", "text", io.StringIO())
    return Cli(monkeypatch, capfd, tmp_path / "data")


@pytest.fixture
def cli(bare: Cli, monkeypatch: pytest.MonkeyPatch, database_url: str) -> Cli:
    """Commands on a migrated, empty database of the test's own."""
    monkeypatch.setenv("POSTROOM_DATABASE_URL", database_url)
    return bare
