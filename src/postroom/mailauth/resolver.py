"""What mail authentication asks of DNS, and how a resolver says that it has no answer."""

from collections.abc import Sequence
from typing import Protocol


class ResolverError(Exception):
    """There is no answer."""


class NameNotFoundError(ResolverError):
    """The name does not exist (NXDOMAIN, RFC 1035 §4.1.1), or has no record of the type asked for."""


class TemporaryResolverError(ResolverError):
    """Time-out, SERVFAIL or the like: a later attempt may find the answer."""


class TxtResolver(Protocol):
    """Looks up TXT records."""

    async def txt(self, name: str) -> Sequence[bytes]:
        """The TXT records of `name`, an ASCII domain name without a final dot.

        The strings of one record come joined without anything between them (RFC 6376 §3.6.2.2). No record: empty, or
        `NameNotFoundError`. Raises `TemporaryResolverError` when the answer could not be had.
        """
        ...
