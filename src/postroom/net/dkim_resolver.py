"""The DNS as mail authentication asks it: TXT records by way of the process's resolver."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.mailauth.resolver import NameNotFoundError, TemporaryResolverError
from postroom.net.dns_types import InvalidName, NoAnswer, Resolver, TemporaryFailure


class TxtRecords:
    """A `mailauth.TxtResolver` over a `Resolver`; `within` is the longest that one question may take, in seconds."""

    def __init__(self, resolver: Resolver, *, within: float | None = None) -> None:
        self._resolver = resolver
        self._within = within

    async def txt(self, name: str) -> Sequence[bytes]:
        """Raises NameNotFoundError, TemporaryResolverError."""
        try:
            return (await self._resolver.txt(name, within=self._within)).records
        except (NoAnswer, InvalidName) as error:
            raise NameNotFoundError(type(error).__name__) from error
        except TemporaryFailure as error:
            raise TemporaryResolverError(error.reason.value) from error
