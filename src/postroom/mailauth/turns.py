"""A turn for others between pieces of long work, whatever loop runs it: the library knows of none."""

import types
from collections.abc import Generator


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Awaited, it lets whoever runs this coroutine run something else first: a bare `yield`, as loops understand it."""
    yield
