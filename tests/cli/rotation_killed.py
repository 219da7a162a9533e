"""Runs the command line and kills it, with SIGKILL, at one step of a rotation of the master key.

`python -m tests.cli.rotation_killed STEP before|after NTH ARGUMENT…`
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from postroom.accounts.service.master_keys import MasterKeys
from postroom.base import secrets
from postroom.cli import master_rotation, program
from postroom.db import reseal

STEPS: Final[dict[str, tuple[Any, str]]] = {
    "store": (master_rotation, "store_master_key"),
    "rename": (Path, "replace"),
    "directory": (secrets, "_replace"),
    "select": (master_rotation, "select_master_key"),
    "activate": (MasterKeys, "activate"),
    "page": (reseal, "_reseal"),
    "settle": (MasterKeys, "settle"),
}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killing(real: Callable[..., Any], when: str, nth: int) -> Callable[..., Any]:
    calls = iter(range(1, 1_000_000))

    if inspect.iscoroutinefunction(real):

        async def later(*args: Any, **kwargs: Any) -> Any:
            mine = next(calls) == nth
            if mine and when == "before":
                _die()
            result = await real(*args, **kwargs)
            if mine:
                _die()
            return result

        return later

    def called(*args: Any, **kwargs: Any) -> Any:
        mine = next(calls) == nth
        if mine and when == "before":
            _die()
        result = real(*args, **kwargs)
        if mine:
            _die()
        return result

    return called


if __name__ == "__main__":
    _, step, when, nth, *arguments = sys.argv
    reseal.PAGE = 2  # type: ignore[misc] # small pages have more places to die at
    holder, name = STEPS[step]
    setattr(holder, name, killing(getattr(holder, name), when, int(nth)))
    sys.exit(program.run(arguments))
