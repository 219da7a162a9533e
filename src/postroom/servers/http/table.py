"""The deny-by-default route table (security-privacy A4.1).

A route is registered with its rule: permissions, how far the owner of what it touches is looked for, which rate bucket
counts it, what an `Idempotency-Key` means to it. What has no rule has no route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route

from postroom.accounts.permissions import Level, Permission
from postroom.base.errors import ERRORS

Endpoint = Callable[..., Awaitable[Response]]
Handler = Callable[[Request], Awaitable[Response]]
Guard = Callable[["Rule", Request, Handler], Awaitable[Response]]
Scope = Any


class Reach(StrEnum):
    """Whose things the route touches, and so how the caller's scope is applied (A4.1)."""

    PUBLIC = "public"
    ANY_KEY = "any_key"
    TENANT_PATH = "tenant_path"
    IDENTITY_PATH = "identity_path"
    TENANT_FILTER = "tenant_filter"
    RESOURCE = "resource"
    PERSON = "person"
    """The caller's own account: for sessions, never for keys."""


class Bucket(StrEnum):
    """Which requests are counted together (rest-api §2.8), beside the tenant's bucket, which counts all."""

    NONE = "none"
    API = "api"
    SESSION = "session"
    """Requests of a person."""
    SEND = "send"
    """The sends of an identity, beside the caller's own requests."""
    PARTNER = "partner"
    """What the keys of a partner make, beside the caller's own requests."""

    @property
    def names(self) -> list[str]:
        """As the published contract lists them."""
        match self:
            case Bucket.NONE:
                return []
            case Bucket.API:
                return ["api"]
            case Bucket.SESSION:
                return ["session"]
            case Bucket.SEND:
                return ["api", "send"]
            case Bucket.PARTNER:
                return ["api", "partner"]


class Idempotency(StrEnum):
    """What an `Idempotency-Key` header means (rest-api §2.5)."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"
    """But for a dry run."""


ALL_LEVELS: Final = frozenset(Level)
NOT_IDENTITY: Final = frozenset({Level.PLATFORM, Level.PARTNER, Level.TENANT})
_WITHOUT_PERMISSION: Final = frozenset({Reach.PUBLIC, Reach.ANY_KEY, Reach.PERSON})


@dataclass(frozen=True, slots=True)
class Rule:
    """One operation of the API and what it takes to be let in."""

    method: str
    path: str
    operation: str
    tag: str
    reach: Reach
    permissions: frozenset[Permission]
    levels: frozenset[Level]
    bucket: Bucket
    idempotency: Idempotency
    body: bool = False
    """Whether the request has a JSON body."""
    body_required: bool = True
    """Whether it has to be there; without one every member is what it is by default."""
    even_gone: bool = False
    """Whether the route also serves an identity that is being deleted or is deleted."""
    implicit_for: frozenset[Level] = frozenset()
    """Levels whose keys need no permission on their own tenant, which the path names."""
    with_slashes: frozenset[str] = frozenset()
    """Names in the path whose values may have slashes, as local parts of addresses do."""
    conditional: frozenset[Permission] = frozenset()
    """Permissions needed in some cases only; documentation, the route itself asks for them."""
    while_read_only: bool = False
    """Whether others than the platform may call it while the switch `read_only` is on, though it changes something."""
    reads_mail: bool = False
    """Whether a success shows what is in mail, so that a platform's or a partner's key is noted (A2, TB2)."""
    in_sdk: bool = True
    """Whether the Python client has a method for it."""
    errors: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Status → codes the operation may answer beside those that follow from the rest of the rule."""

    def __post_init__(self) -> None:
        public = self.reach is Reach.PUBLIC
        if not self.permissions and self.reach not in _WITHOUT_PERMISSION:
            raise ValueError(f"{self.operation}: only public routes and those for any key go without a permission")
        if public and (self.permissions or self.levels or self.bucket is not Bucket.NONE):
            raise ValueError(f"{self.operation}: a public route has no keys to ask for anything")
        if self.reach is Reach.PERSON and (self.permissions or self.levels):
            raise ValueError(f"{self.operation}: people need no permission for their own account, and keys have no way")
        if not public and (not (self.levels or self.reach is Reach.PERSON) or self.bucket is Bucket.NONE):
            raise ValueError(f"{self.operation}: a route with keys names their levels and a bucket")
        if self.implicit_for and self.reach is not Reach.TENANT_PATH:
            raise ValueError(f"{self.operation}: only a tenant in the path is one's own")
        if unknown := [code for codes in self.errors.values() for code in codes if code not in ERRORS]:
            raise ValueError(f"{self.operation}: unknown error codes {unknown}")

    @property
    def template(self) -> str:
        """The path as the router has it."""
        path = self.path
        for name in self.with_slashes:
            path = path.replace(f"{{{name}}}", f"{{{name}:path}}")
        return path

    @property
    def is_public(self) -> bool:
        return self.reach is Reach.PUBLIC

    @property
    def changes(self) -> bool:
        """Whether `read_only` refuses it to others than the platform."""
        return self.method not in ("GET", "HEAD") and not self.while_read_only

    def all_errors(self) -> dict[int, tuple[str, ...]]:
        """Status → codes, those that the checks before the route may answer included (rest-api §2.7)."""
        codes: dict[int, list[str]] = {}

        def add(*names: str) -> None:
            for name in names:
                codes.setdefault(ERRORS[name].status, []).append(name)

        if self.body:
            add("invalid_request", "payload_too_large")
        if self.idempotency is not Idempotency.NONE:
            add("invalid_request", "invalid_idempotency_key", "idempotency_conflict", "request_in_progress")
        if self.idempotency is Idempotency.REQUIRED:
            add("idempotency_key_required")
        if self.changes:
            add("unavailable")
        if not self.is_public:
            add("unauthenticated", "key_expired", "key_revoked", "rate_limited", "unavailable")
        if self.reach is Reach.PERSON:
            add("permission_denied")  # to keys
        elif self.reach is Reach.ANY_KEY:
            add("scope_denied", "partner_suspended")  # the former to sessions
        if self.permissions:
            add("permission_denied", "scope_denied", "tenant_suspended", "partner_suspended")
        add("internal_error")
        for names in self.errors.values():
            add(*names)
        return {status: tuple(dict.fromkeys(names)) for status, names in sorted(codes.items())}


class _Described(APIRoute):
    """The route as FastAPI knows it, its handler behind the guard."""

    def __init__(self, rule: Rule, guard: Guard, endpoint: Endpoint, **described: Any) -> None:
        self._rule, self._guard = rule, guard
        super().__init__(rule.template, endpoint, methods=[rule.method], **described)

    def get_route_handler(self) -> Any:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await self._guard(self._rule, request, inner)

        return handler


class GuardedRoute(Route):
    """A route whose handler runs behind the guard, which applies the rule.

    FastAPI looks at it when it is called for the first time, or described: about a millisecond, for each of 140 routes.
    A process that has just started need not answer late because of routes that nobody has asked for yet.
    """

    def __init__(self, rule: Rule, endpoint: Endpoint, describe: Callable[[], APIRoute]) -> None:
        super().__init__(rule.template, endpoint, name=rule.operation)
        self.methods = {rule.method}  # GET does not bring HEAD with it
        self.app = self._first
        self._describe = describe

    @cached_property
    def described(self) -> APIRoute:
        """What is known of its parameters, bodies and answers."""
        return self._describe()

    async def _first(self, scope: Scope, receive: Any, send: Any) -> None:
        self.app = self.described.app
        await self.app(scope, receive, send)


class RouteTable:
    """Registers routes, and knows them."""

    def __init__(self, app: FastAPI, guard: Guard) -> None:
        self._app = app
        self._guard = guard
        self._rules: dict[str, Rule] = {}

    def add(
        self,
        rule: Rule,
        endpoint: Endpoint,
        *,
        summary: str,
        answers: Mapping[int, type[BaseModel] | None],
        contents: Mapping[int, str] | None = None,
        headers: tuple[str, ...] = (),
    ) -> None:
        """Register a route. `answers`: status → schema; `contents`: status → media type that is not JSON.

        `headers` are those of a success beyond what every answer has.
        """
        if rule.operation in self._rules:
            raise ValueError(f"{rule.operation} is registered already")

        def describe() -> APIRoute:
            return _Described(
                *(rule, self._guard, endpoint),
                operation_id=rule.operation,
                summary=summary,
                tags=[rule.tag],
                response_model=None,
                # Bytes of any kind: their media type is said below, and JSON is none of it.
                response_class=Response if contents else JSONResponse,
                responses=_responses(rule, answers, contents or {}, headers),
                openapi_extra=_extensions(rule),
                strict_content_type=False,  # a body that does not say what it is, is JSON
            )

        self._rules[rule.operation] = rule
        self._app.router.routes.append(GuardedRoute(rule, endpoint, describe))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule, in order of registration."""
        return tuple(self._rules.values())

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes themselves, described."""
        return [route.described for route in self._app.routes if isinstance(route, GuardedRoute)]

    def seal(self) -> None:
        """Raises ValueError when the application has a route that did not come through `add`."""
        for route in self._app.routes:
            if not isinstance(route, GuardedRoute):
                raise ValueError(f"route without a rule: {getattr(route, 'path', route)!r}")

    def allowed(self, scope: Scope) -> Iterator[str]:
        """The methods that the path of a request has."""
        for route in self._app.routes:
            if isinstance(route, GuardedRoute) and _matches_path(route, scope):
                yield from route.methods or ()


def _matches_path(route: BaseRoute, scope: Scope) -> bool:
    return route.matches(scope)[0] is not Match.NONE


def _responses(
    rule: Rule, answers: Mapping[int, type[BaseModel] | None], contents: Mapping[int, str], headers: tuple[str, ...]
) -> dict[int | str, dict[str, Any]]:
    responses: dict[int | str, dict[str, Any]] = {}
    for status, model in answers.items():
        entry: dict[str, Any] = {"description": "Success"}
        if model is not None:
            entry["model"] = model
        elif status in contents:
            entry["content"] = {contents[status]: {"schema": {"type": "string", "format": "binary"}}}
        if headers:
            entry["headers"] = {name: {"schema": {"type": "string"}} for name in headers}
        responses[status] = entry
    for status, codes in rule.all_errors().items():
        responses[status] = {"description": ERRORS[codes[0]].message, "x-error-codes": list(codes)}
    return responses


def _extensions(rule: Rule) -> dict[str, Any]:
    """Vendor extensions of the published contract (rest-api §1)."""
    extensions: dict[str, Any] = {
        "x-key-levels": [level.value for level in sorted(rule.levels, key=lambda level: -level.rank)],
        "x-rate-limit-buckets": rule.bucket.names,
        "x-idempotency": rule.idempotency.value,
    }
    if not rule.in_sdk:
        extensions["x-sdk"] = False
    if rule.conditional:
        extensions["x-permission-notes"] = "Sometimes also: " + ", ".join(sorted(rule.conditional))
    return extensions
