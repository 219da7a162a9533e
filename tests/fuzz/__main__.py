"""`python -m tests.fuzz --seconds N [target …]`: coverage-guided fuzzing with atheris, a process a target.

Ends with 1 when a target broke; the bytes that broke it are then under `tests/fuzz/regressions/<target>/`, where the
suite takes them up. Without atheris it says so and ends with 2.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.fuzz.seeds import REGRESSIONS, seeds
from tests.fuzz.targets import TARGETS

MAX_BYTES: Final = 16 * 1024
SECONDS_AN_INPUT: Final = 10
"""Far above the second that an input may take, since counted code runs several times slower."""
_SHOWN: Final = 20
_CHILD: Final = """
import sys
import atheris
with atheris.instrument_imports(include=["postroom"]):
    from tests.fuzz.targets import TARGETS
target = TARGETS[sys.argv.pop(1)]
atheris.Setup(sys.argv, target)
atheris.Fuzz()
"""


def run(name: str, seconds: int, directory: Path) -> bool:
    """Fuzz one target; whether it held."""
    for number, seed in enumerate(seeds()):
        (directory / f"seed-{number}").write_bytes(seed[:MAX_BYTES])
    found = directory.parent / "found"
    found.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-c", _CHILD, name, str(directory)),
            *(f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", f"-timeout={SECONDS_AN_INPUT}"),
            *("-rss_limit_mb=2048", f"-artifact_prefix={found}/", "-print_final_stats=1"),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds + 120,
        check=False,
    )
    runs = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
    print(f"{name}: {runs[0].split()[-1] if runs else '?'} inputs", flush=True)
    if done.returncode == 0:
        return True
    for artefact in found.iterdir():
        data = artefact.read_bytes()
        kept = REGRESSIONS / name / hashlib.sha256(data).hexdigest()[:12]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(data)
        print(f"{name}: broken by {kept}")
    print("\n".join(done.stdout.splitlines()[-_SHOWN:]))  # where the exception is told of
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of: {', '.join(TARGETS)}; all without any")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: `make fuzz` installs it", file=sys.stderr)
        return 2
    held = True
    for name in given.targets or TARGETS:
        with tempfile.TemporaryDirectory(prefix="postroom-fuzz-") as directory:
            inputs = Path(directory) / "inputs"
            inputs.mkdir()
            held &= run(name, given.seconds, inputs)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
