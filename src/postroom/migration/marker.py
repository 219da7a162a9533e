"""The note that our own exports hold: names and roles of folders, which files and directories cannot all say."""

from __future__ import annotations

import json
import os
from typing import Final

from postroom.mailbox.models import SpecialUse
from postroom.mailbox.rules import SEPARATOR
from postroom.migration.files import read_small

MARKER: Final = "postroom-export.json"
MAX_MARKER: Final = 8 * 1024 * 1024

Marks = dict[str, tuple[tuple[str, ...], SpecialUse | None]]
"""Directory or file below the export → path and role of the folder."""


def read_marker(root: bytes) -> Marks:
    """What the note in a directory says; nothing when there is none, or it is not as we write it."""
    text = read_small(root, os.fsencode(MARKER), MAX_MARKER)
    try:
        return {
            one["directory"]: (
                tuple(one["name"].split(SEPARATOR)),
                None if one["special_use"] is None else SpecialUse(one["special_use"]),
            )
            for one in json.loads(text or b"{}")["folders"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
