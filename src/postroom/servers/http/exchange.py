"""One request and its answer: what the outer gate, the guard of the route and the route itself share."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, cast

from postroom.accounts.models import Principal

Scope = MutableMapping[str, Any]

_KEY: Final = "postroom.exchange"


@dataclass(slots=True)
class Exchange:
    """Filled as the request passes the checks; read when the answer's headers are written."""

    request_id: str
    operation: str | None = None
    principal: Principal | None = None
    rate_limit: int | None = None
    """The limit that `RateLimit-Limit` tells: the route's bucket, or the one that refused."""
    started: bool = False
    """Whether the answer's head is on its way, so that no other can be sent."""


def attach(scope: Scope, exchange: Exchange) -> None:
    scope[_KEY] = exchange


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that the gate attached."""
    return cast(Exchange, scope[_KEY])
