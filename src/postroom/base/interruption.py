"""Whether this process was asked to end before anybody was there who ends it in order.

A signal's exception may come up where exceptions are passed over, as in a finaliser, and then nobody would know of it.
"""

from __future__ import annotations

import threading
from typing import Final

_asked: Final = threading.Event()


def note() -> None:
    """For handlers of signals."""
    _asked.set()


def was_asked() -> bool:
    """For whoever takes over from them."""
    return _asked.is_set()
