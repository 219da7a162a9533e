"""The `postroom` command (cli-config-ops A2, A3, A5; mail-server H4): noun then verb, on the machine of the server.

Commands work on a deployment's settings and database and need no API key. Each prints a table or indented JSON for
people, one document with ``--json``, or the essential value alone with ``--quiet``.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """The console script. Who is told to stop while the program is still being loaded ends in order, too."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    from postroom.cli import program

    program.main()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing was begun yet. A server that is stopped has done what it should; another command was interrupted."""
    os._exit(0 if sys.argv[1:2] == ["serve"] else 130)
