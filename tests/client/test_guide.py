"""The Python of the guide and of the README runs as it is printed, one block after the other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import pytest

import postroom_client
from tests.client.bridge import Bridge
from tests.client.conftest import Desk
from tests.rest.world import simple_mail

ROOT: Final = Path(__file__).resolve().parents[2]
GUIDE: Final = ROOT / "docs" / "guide" / "python-client.md"
README: Final = ROOT / "clients" / "python" / "README.md"


def blocks(page: Path) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found, page
    return found


async def play(desk: Desk, page: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the blocks of a page leave behind. Their clients reach the application."""
    loop = asyncio.get_running_loop()

    def blocking(url: str, key: str, **options: Any) -> postroom_client.Client:
        return real_client("https://mail.example", key, transport=Bridge(desk.app, loop), **options)

    def looping(url: str, key: str, **options: Any) -> postroom_client.AsyncClient:
        return real_async("https://mail.example", key, transport=desk.app, **options)

    real_client, real_async = postroom_client.Client, postroom_client.AsyncClient
    monkeypatch.setattr(postroom_client, "Client", blocking)
    monkeypatch.setattr(postroom_client, "AsyncClient", looping)
    names: dict[str, Any] = {"url": "https://mail.example", "key": desk.key, "identity": desk.box, "seconds": 1}

    def run() -> None:
        for number, block in enumerate(blocks(page), 1):
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)

    await asyncio.to_thread(run)
    return names


@pytest.mark.covers("FR-SDK-1")
async def test_the_guide(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    await desk.world.deliver(simple_mail("Hello"), to=desk.sender.box)
    names = await play(desk, GUIDE, monkeypatch)
    said = capsys.readouterr().out
    assert names["sent"].status == "queued"
    assert names["tried"].would_send
    assert names["full"].subject == "Hello"
    assert b"Hello there." in (tmp_path / "message.eml").read_bytes()
    assert "message_not_found" in said
    assert await names["unread"]() == 1


async def test_the_readme(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = postroom_client.Client.wait

    def wait(client: postroom_client.Client, identity: str, seconds: float, **more: Any) -> Any:
        return real(client, identity, 1, **more)

    monkeypatch.setattr(postroom_client.Client, "wait", wait)
    names = await play(desk, README, monkeypatch)
    assert names["sent"].status == "queued"
    assert names["answer"] is None


def test_the_guide_names_what_there_is() -> None:
    """Every class that it speaks of is exported, and every exported exception is in it."""
    text = GUIDE.read_text()
    errors = {
        name for name, one in vars(postroom_client).items() if isinstance(one, type) and issubclass(one, Exception)
    }
    missing = {name for name in errors - {"PostroomError"} if f"`{name}`" not in text}
    assert missing == set()
