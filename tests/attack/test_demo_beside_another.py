"""A demo that finds another one on its data directory leaves that one's files as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.driver import clean_environment, free_base, run_program
from tests.demo.test_demo import demo


@pytest.mark.skipif(sys.platform != "linux", reason="the bundled PostgreSQL needs Linux")
def test_a_refused_demo_leaves_the_configuration_alone(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with demo(directory, free_base()):
        before = (directory / "postroom.toml").read_text()
        argv = ("demo", "--data-dir", str(directory), "--port-base", str(free_base()))
        refused = run_program(*argv, env=clean_environment())
        assert refused.code == 10
        assert (directory / "postroom.toml").read_text() == before
