"""Benchmarks are no part of the installed package: they are found beside it, however the tests are started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
