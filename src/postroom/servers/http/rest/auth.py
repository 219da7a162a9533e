"""Signing in and out over HTTP (decisions E; mail-server F). Answers are the same whether the account exists."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.accounts.models import NewDevice, SessionKind
from postroom.accounts.rates import Bucket as RateBucket
from postroom.accounts.service.account import Account
from postroom.accounts.service.sessions import Origin
from postroom.accounts.service.throttle import client_network
from postroom.base.errors import PostroomError
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.rest import people_schemas as schemas
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule

PATH: Final = "/v1/auth/session"


class _Routes:
    def __init__(self, services: HttpServices, account: Account) -> None:
        self._services = services
        self._account = account

    async def sign_in(self, body: schemas.SessionCreateRequest, request: Request) -> Response:
        device = body.device
        known = None
        if device is not None:
            known = NewDevice(device.device_uid, device.name, device.platform, device.client_version)
        kind = SessionKind.CLIENT if known is not None else SessionKind(body.kind)
        return await self._enter(request, body.email, body.password, body.totp, kind, known)

    async def recover(self, body: schemas.RecoverRequest, request: Request) -> Response:
        return await self._enter(request, body.email, body.password, body.recovery_code, SessionKind.WEB, None)

    async def _enter(
        self,
        request: Request,
        address: str,
        password: str,
        code: str | None,
        kind: SessionKind,
        device: NewDevice | None,
    ) -> Response:
        remote = client_of(self._services, request)
        limit = self._services.rates.hit(RateBucket.SIGN_INS, client_network(remote))
        if not limit.allowed:
            raise PostroomError("rate_limited", retry_after=limit.reset_after)
        origin = Origin(remote, printable(request.headers.get("user-agent")), kind, device)
        token, session = await self._account.entrance.sign_in(address, password, code, origin)
        person = await self._account.sessions.person(session)
        shown = {
            "token": token,
            "session": schemas.session(session, session.id),
            "person": schemas.person(person),
        }
        return JsonAnswer(shown, 201, {"cache-control": "no-store"})

    async def sign_out(self, call: CurrentCall) -> Response:
        session = call.principal.session
        assert session is not None, "the rule lets nobody else in"
        await self._account.sessions.close(session)
        return Response(status_code=204)


def client_of(services: HttpServices, request: Request) -> str:
    """The client's IP address, behind the proxies that are trusted; empty where there is none."""
    if request.client is None:
        return ""
    return services.client(request.client.host, request.headers.get("x-forwarded-for"))


def printable(text: str | None) -> str | None:
    """What a client says of itself, without what could not be stored or shown."""
    return None if text is None else "".join(char for char in text if char.isprintable())


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if people have sessions here."""
    if services.account is None:
        return
    routes = _Routes(services, services.account)
    errors = {
        401: ("invalid_credentials", "totp_required"),
        429: ("too_many_attempts", "rate_limited"),
        503: ("unavailable",),
    }

    def public(path: str, operation: str) -> Rule:
        return Rule(
            "POST",
            path,
            operation,
            tag="Sign-in",
            reach=Reach.PUBLIC,
            permissions=frozenset(),
            levels=frozenset(),
            bucket=Bucket.NONE,
            idempotency=Idempotency.NONE,
            body=True,
            while_read_only=True,
            errors=errors,
        )

    table.add(
        public(PATH, "createSession"),
        routes.sign_in,
        summary="Sign in with a password, and a code where two-step verification is on",
        answers={201: schemas.SignedIn},
    )
    table.add(
        public("/v1/auth/recover", "recoverSession"),
        routes.recover,
        summary="Sign in with a password and a recovery code",
        answers={201: schemas.SignedIn},
    )
    table.add(
        Rule(
            "DELETE",
            PATH,
            "deleteSession",
            tag="Sign-in",
            reach=Reach.PERSON,
            permissions=frozenset(),
            levels=frozenset(),
            bucket=Bucket.SESSION,
            idempotency=Idempotency.NONE,
            while_read_only=True,
        ),
        routes.sign_out,
        summary="Sign out",
        answers={204: None},
    )
