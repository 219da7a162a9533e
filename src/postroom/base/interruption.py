"""Whether this process was asked to end before anybody was there who ends it in order.

A signal's exception may come up where exceptions are passed over, as in a finaliser, or where they are turned into
others, as in what builds a class; then nobody would know of it.
"""

from __future__ import annotations

import threading
from typing import Final

_asked: Final = threading.Event()


class Interrupted(KeyboardInterrupt):
    """What handlers of signals raise. A type of its own: of the built-in one, raised while a module is being imported,
    the interpreter remembers that it passed through there, and ends by SIGINT whatever became of it.
    """


def note() -> None:
    """For handlers of signals."""
    _asked.set()


def was_asked() -> bool:
    """For whoever takes over from them."""
    return _asked.is_set()


def is_behind(error: BaseException) -> bool:
    """Whether *error* came of an interruption, however it is wrapped by now: one that was noted is behind whatever
    comes up after it, and else it is a cause, a context or a member of a group somewhere below.
    """
    if was_asked():
        return True
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, Interrupted):
            return True
        seen.add(id(one))
        left += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
    return False
