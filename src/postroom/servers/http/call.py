"""A request that passed the checks: who calls, and whose things the call is about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, cast

from fastapi import Depends
from starlette.requests import Request

from postroom.accounts.audit import Actor, actor_of
from postroom.accounts.models import Principal, PrincipalKind, Tenant
from postroom.accounts.permissions import Permission
from postroom.base.errors import PostroomError
from postroom.directory.models import Identity
from postroom.mailbox.models import MailboxRef
from postroom.servers.http.cursors import CursorKeys, CursorScope, Position, scope_of, seal, unseal
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Rule

_KEY: Final = "postroom.call"


@dataclass(frozen=True, slots=True)
class Call:
    """What a route works with. `tenant` and `identity` are set when the path names them."""

    services: HttpServices
    rule: Rule
    request: Request
    principal: Principal
    tenant: Tenant | None = None
    identity: Identity | None = None
    cursor_keys: CursorKeys | None = None
    """None where they cannot be had, and where nothing is listed."""

    @property
    def mailbox(self) -> MailboxRef:
        """The mailbox of the identity in the path."""
        identity = self.the_identity
        return MailboxRef(identity.tenant_id, identity.id)

    @property
    def the_identity(self) -> Identity:
        assert self.identity is not None, "the rule of this route names no identity"
        return self.identity

    @property
    def the_tenant(self) -> Tenant:
        assert self.tenant is not None, "the rule of this route names no tenant"
        return self.tenant

    @property
    def person(self) -> Principal | None:
        """Whoever calls with a session; None for keys."""
        return self.principal if self.principal.kind is PrincipalKind.PERSON else None

    @property
    def may_review(self) -> bool:
        """Whether hidden mail may be shown (security-privacy A4.4)."""
        return self.principal.may(Permission.QUARANTINE_REVIEW)

    def require(self, *permissions: Permission) -> None:
        """Raises `permission_denied` unless all are held."""
        require(self.principal, frozenset(permissions))

    # -- cursors (rest-api §2.4)

    def position(self, cursor: str | None, **filters: object) -> Position | None:
        """Where the page begins; None at the start. Raises `invalid_request`, `cursor_expired`."""
        if cursor is None:
            return None
        return unseal(self._keys, self._cursor_scope(filters), cursor, self.services.clock.now())

    def cursor(self, position: Position, **filters: object) -> str:
        """The cursor of the page after `position`."""
        return seal(self._keys, self._cursor_scope(filters), position, self.services.clock.now())

    @property
    def _keys(self) -> CursorKeys:
        if self.cursor_keys is None:
            raise PostroomError("unavailable")
        return self.cursor_keys

    def _cursor_scope(self, filters: dict[str, object]) -> CursorScope:
        return scope_of(self.rule.operation, self.request.path_params, filters, self.principal.public_id)


def actor(call: Call) -> Actor:
    """Who calls, for the audit log."""
    return actor_of(call.principal, exchange_of(call.request.scope).request_id)


def moment_and_id(position: Position | None) -> tuple[datetime, str] | None:
    """The position in a list that is in the order of time and id."""
    return None if position is None else (datetime.fromisoformat(str(position[0])), str(position[1]))


def attach(request: Request, call: Call) -> None:
    request.scope[_KEY] = call


def attached(request: Request) -> Call:
    """The call that `attach` attached."""
    return cast(Call, request.scope[_KEY])


async def _call_of(request: Request) -> Call:
    # A coroutine, though it waits for nothing: for a plain function FastAPI goes to a thread and back at every request.
    return attached(request)


CurrentCall = Annotated[Call, Depends(_call_of)]
"""Parameter of a route: the call that the guard let in."""


def require(principal: Principal, permissions: frozenset[Permission]) -> None:
    """Raises `permission_denied`, naming those of `permissions` that are missing."""
    missing = permissions - principal.permissions
    if missing:
        raise PostroomError("permission_denied", details={"required": sorted(missing)})
