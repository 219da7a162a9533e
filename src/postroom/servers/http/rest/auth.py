"""Signing in and out over HTTP (decisions E; mail-server F). Answers are the same whether the account exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.accounts.models import NewDevice, PersonSession, SessionKind
from postroom.accounts.rates import Bucket as RateBucket
from postroom.accounts.service.account import Account
from postroom.accounts.service.sessions import Origin
from postroom.accounts.service.throttle import client_network
from postroom.base.errors import PostroomError
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.rest import passkey_schemas
from postroom.servers.http.rest import people_schemas as schemas
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule

PATH: Final = "/v1/auth/session"
PASSKEYS: Final = "/v1/auth/passkeys"
_UNKEPT: Final = {"cache-control": "no-store"}


class _Routes:
    def __init__(self, services: HttpServices, account: Account) -> None:
        self._services = services
        self._account = account

    async def sign_in(self, body: schemas.SessionCreateRequest, request: Request) -> Response:
        origin = self._origin(request, SessionKind(body.kind), body.device)
        entrance = self._account.entrance
        return await self._entered(*await entrance.sign_in(body.email, body.password, body.totp, origin))

    async def recover(self, body: schemas.RecoverRequest, request: Request) -> Response:
        origin = self._origin(request, SessionKind.WEB, None)
        entrance = self._account.entrance
        return await self._entered(*await entrance.sign_in(body.email, body.password, body.recovery_code, origin))

    async def passkey_options(self, request: Request) -> Response:
        self._limited(request)
        made = await self._account.passkeys.ask_to_sign_in()
        return JsonAnswer(passkey_schemas.options(made), headers=_UNKEPT)

    async def by_passkey(self, body: passkey_schemas.PasskeySessionCreateRequest, request: Request) -> Response:
        origin = self._origin(request, SessionKind(body.kind), body.device)
        answer = passkey_schemas.assertion(body.credential)
        return await self._entered(*await self._account.entrance.sign_in_by_passkey(answer, origin))

    def _limited(self, request: Request) -> str:
        """The client's address. Raises `rate_limited` when its network asks too often."""
        remote = client_of(self._services, request)
        limit = self._services.rates.hit(RateBucket.SIGN_INS, client_network(remote))
        if not limit.allowed:
            raise PostroomError("rate_limited", retry_after=limit.reset_after)
        return remote

    def _origin(self, request: Request, kind: SessionKind, device: schemas.DeviceBody | None) -> Origin:
        remote = self._limited(request)
        known = None
        if device is not None:
            known = NewDevice(device.device_uid, device.name, device.platform, device.client_version)
            kind = SessionKind.CLIENT
        return Origin(remote, printable(request.headers.get("user-agent")), kind, known)

    async def _entered(self, token: str, session: PersonSession) -> Response:
        person = await self._account.sessions.person(session)
        shown = {
            "token": token,
            "session": schemas.session(session, session.id),
            "person": schemas.person(person),
        }
        return JsonAnswer(shown, 201, _UNKEPT)

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


_ERRORS: Final[Mapping[int, tuple[str, ...]]] = {
    401: ("invalid_credentials", "totp_required"),
    429: ("too_many_attempts", "rate_limited"),
    503: ("unavailable",),
}


def _public(path: str, operation: str, *, body: bool = True, errors: Mapping[int, tuple[str, ...]] = _ERRORS) -> Rule:
    """The rule of an operation for who is not signed in yet."""
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
        body=body,
        while_read_only=True,
        errors=errors,
    )


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if people have sessions here."""
    if services.account is None:
        return
    routes = _Routes(services, services.account)
    table.add(
        _public(PATH, "createSession"),
        routes.sign_in,
        summary="Sign in with a password, and a code where two-step verification is on",
        answers={201: schemas.SignedIn},
    )
    table.add(
        _public("/v1/auth/recover", "recoverSession"),
        routes.recover,
        summary="Sign in with a password and a recovery code",
        answers={201: schemas.SignedIn},
    )
    table.add(
        _public(
            f"{PASSKEYS}/options",
            "getPasskeyRequestOptions",
            body=False,
            errors={429: ("rate_limited",)},
        ),
        routes.passkey_options,
        summary="What a browser signs in with a passkey by; the same for everybody",
        answers={200: passkey_schemas.PasskeyRequestOptions},
    )
    table.add(
        _public(PASSKEYS, "createPasskeySession", errors={**_ERRORS, 401: ("invalid_credentials",)}),
        routes.by_passkey,
        summary="Sign in with a passkey, which counts as both steps",
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
