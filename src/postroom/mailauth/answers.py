"""Answers of DNS that were asked for beforehand, all at a time, as the `queries` of the checks name them."""

from collections.abc import Mapping, Sequence

from postroom.mailauth.resolver import ResolverError, TemporaryResolverError, TxtResolver


class Answers:
    """A `TxtResolver` over what is known; an error among the answers is raised when its name is asked for.

    Any other name goes to `otherwise`; without one there is no answer for now, so that what was not asked for is never
    taken for absent (decisions D3).
    """

    __slots__ = ("_known", "_otherwise")

    def __init__(
        self, known: Mapping[str, Sequence[bytes] | ResolverError], otherwise: TxtResolver | None = None
    ) -> None:
        self._known = known
        self._otherwise = otherwise

    async def txt(self, name: str) -> Sequence[bytes]:
        """Raises `NameNotFoundError`, `TemporaryResolverError`."""
        found = self._known.get(name)
        if isinstance(found, ResolverError):
            raise found
        if found is not None:
            return found
        if self._otherwise is None:
            raise TemporaryResolverError("not asked for")
        return await self._otherwise.txt(name)
