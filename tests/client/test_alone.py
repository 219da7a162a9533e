"""The client's distribution by itself: nothing of the server in it, and what is generated is current."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import httpx
import pytest

pytestmark = pytest.mark.covers("decisions:D18", "FR-SDK-1")

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ROOT / "clients" / "python"
ALLOWED: Final = "httpx"

PROGRAM: Final = """
import sys
sys.path[:] = [one for one in sys.path if one.startswith(sys.base_prefix)] + [{packages!r}, {client!r}]
refused = {{"postroom", "fastapi", "starlette", "pydantic", "asyncpg", "uvicorn", "uvloop", "typer", "pytest"}}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ImportError(f"{{name}} is of the server")
sys.meta_path.insert(0, Refuse())
import postroom_client
import postroom_client.models, postroom_client.bodies, postroom_client.values
client = postroom_client.Client("https://mail.example", "pmk_live_x")
client.close()
print(postroom_client.__version__, sorted(refused & set(sys.modules)))
"""


def test_it_is_imported_where_no_server_is() -> None:
    packages = str(Path(httpx.__file__).parents[1])
    program = PROGRAM.format(packages=packages, client=str(SOURCES / "src"))
    found = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout.split()[1:]) == (0, ["[]"]), found.stderr


def test_the_wheel_is_whole_and_asks_for_httpx_alone(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=SOURCES,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("postroom_client-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        said = archive.read(metadata).decode().splitlines()
    sources = {f"postroom_client/{path.name}" for path in (SOURCES / "src" / "postroom_client").glob("*.py*")}
    assert sources <= names
    assert "postroom_client/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    needed = [line.partition(": ")[2] for line in said if line.startswith("Requires-Dist")]
    assert [one.partition(">")[0] for one in needed] == [ALLOWED]


def test_what_is_generated_is_what_the_server_says() -> None:
    found = subprocess.run(
        [sys.executable, ROOT / "scripts" / "sdk.py", "--check"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
