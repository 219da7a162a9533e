"""One's own account (decisions E; mail-server F): for people with a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Protocol, TypeVar

from fastapi import Query
from pydantic import BaseModel
from starlette.responses import Response

from postroom.accounts.models import PersonSession
from postroom.accounts.service.account import Account, Caller
from postroom.events.catalogue import timestamp
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.rest import passkey_schemas
from postroom.servers.http.rest import people_schemas as schemas
from postroom.servers.http.rest.auth import client_of
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule

PATH: Final = "/v1/account"


class Listed(Protocol):
    """Something that lists know the place of."""

    @property
    def created_at(self) -> datetime: ...


L = TypeVar("L", bound=Listed)
Listing = Annotated[schemas.ListPage, Query()]


async def listing(
    call: Call,
    query: schemas.ListPage,
    fetch: Callable[[int, tuple[datetime, str] | None], Awaitable[Sequence[L]]],
    identify: Callable[[L], str],
    shape: Callable[[L], Json],
) -> Response:
    """A page of things by the time they were made and their id, newest first."""
    position = call.position(query.cursor)
    after = None if position is None else (datetime.fromisoformat(str(position[0])), str(position[1]))
    found = await fetch(query.limit + 1, after)
    shown = found[: query.limit]
    following = None
    if len(found) > len(shown):
        following = call.cursor((timestamp(shown[-1].created_at), identify(shown[-1])))
    return page([shape(one) for one in shown], following)


class _Routes:
    def __init__(self, services: HttpServices, account: Account) -> None:
        self._services = services
        self._account = account

    def _caller(self, call: Call) -> Caller:
        request_id = exchange_of(call.request.scope).request_id
        return Caller(_session(call), client_of(self._services, call.request), request_id)

    async def _view(self, call: Call) -> Response:
        session = _session(call)
        person = await self._account.sessions.person(session)
        status = await self._account.two_step.status(session.person_id)
        return JsonAnswer(
            {
                "person": schemas.person(person),
                "totp": schemas.totp(status),
                "session": schemas.session(session, session.id),
            }
        )

    async def get(self, call: CurrentCall) -> Response:
        return await self._view(call)

    async def update(self, body: schemas.AccountUpdateRequest, call: CurrentCall) -> Response:
        await self._account.rename(self._caller(call), body.display_name)
        return await self._view(call)

    async def mailboxes(self, query: Listing, call: CurrentCall) -> Response:
        person_id = _session(call).person_id
        return await listing(
            call,
            query,
            lambda limit, after: self._account.mailboxes(person_id, limit=limit, after=after),
            lambda one: one.identity_id,
            schemas.mailbox,
        )

    async def change_password(self, body: schemas.PasswordChangeRequest, call: CurrentCall) -> Response:
        await self._account.change_password(self._caller(call), body.current_password, body.new_password)
        return Response(status_code=204)

    async def totp(self, call: CurrentCall) -> Response:
        return JsonAnswer(schemas.totp(await self._account.two_step.status(_session(call).person_id)))

    async def enrol(self, body: schemas.TotpEnrolRequest, call: CurrentCall) -> Response:
        made = await self._account.enrol(self._caller(call), body.current_password)
        return JsonAnswer({"secret": made.secret, "uri": made.uri}, 201)

    async def confirm(self, body: schemas.TotpConfirmRequest, call: CurrentCall) -> Response:
        return _codes(await self._account.confirm(self._caller(call), body.code))

    async def disable(self, body: schemas.BothStepsRequest, call: CurrentCall) -> Response:
        await self._account.disable(self._caller(call), body.password, body.totp)
        return Response(status_code=204)

    async def recovery_codes(self, body: schemas.BothStepsRequest, call: CurrentCall) -> Response:
        codes = await self._account.replace_recovery_codes(self._caller(call), body.password, body.totp)
        return _codes(codes)

    async def app_passwords(self, query: Listing, call: CurrentCall) -> Response:
        person_id = _session(call).person_id
        return await listing(
            call,
            query,
            lambda limit, after: self._account.app_passwords.page(person_id, limit=limit, after=after),
            lambda one: one.public_id,
            objects.app_password,
        )

    async def create_app_password(self, body: schemas.AppPasswordCreateRequest, call: CurrentCall) -> Response:
        made, text = await self._account.create_app_password(
            self._caller(call), body.label, body.current_password, body.totp
        )
        return JsonAnswer(objects.app_password(made) | {"password": text}, 201)

    async def revoke_app_password(self, app_password_id: fields.AppPasswordId, call: CurrentCall) -> Response:
        await self._account.revoke_app_password(self._caller(call), app_password_id)
        return Response(status_code=204)

    async def passkeys(self, query: Listing, call: CurrentCall) -> Response:
        person_id = _session(call).person_id
        return await listing(
            call,
            query,
            lambda limit, after: self._account.passkeys.page(person_id, limit=limit, after=after),
            lambda one: one.public_id,
            passkey_schemas.passkey,
        )

    async def passkey_options(self, body: passkey_schemas.PasskeyOptionsRequest, call: CurrentCall) -> Response:
        made = await self._account.ask_to_register_passkey(self._caller(call), body.current_password, body.totp)
        return JsonAnswer(passkey_schemas.options(made))

    async def create_passkey(self, body: passkey_schemas.PasskeyCreateRequest, call: CurrentCall) -> Response:
        answer = passkey_schemas.registration(body.credential)
        made = await self._account.register_passkey(self._caller(call), body.name, answer)
        return JsonAnswer(passkey_schemas.passkey(made), 201)

    async def update_passkey(
        self, passkey_id: fields.PasskeyId, body: passkey_schemas.PasskeyUpdateRequest, call: CurrentCall
    ) -> Response:
        renamed = await self._account.rename_passkey(self._caller(call), passkey_id, body.name)
        return JsonAnswer(passkey_schemas.passkey(renamed))

    async def delete_passkey(self, passkey_id: fields.PasskeyId, call: CurrentCall) -> Response:
        await self._account.remove_passkey(self._caller(call), passkey_id)
        return Response(status_code=204)

    async def sessions(self, query: Listing, call: CurrentCall) -> Response:
        session = _session(call)
        return await listing(
            call,
            query,
            lambda limit, after: self._account.sessions.page(session.person_id, limit=limit, after=after),
            lambda one: one.public_id,
            lambda one: schemas.session(one, session.id),
        )

    async def revoke_session(self, session_id: fields.SessionId, call: CurrentCall) -> Response:
        await self._account.revoke_session(self._caller(call), session_id)
        return Response(status_code=204)

    async def revoke_others(self, call: CurrentCall) -> Response:
        await self._account.revoke_other_sessions(self._caller(call))
        return Response(status_code=204)

    async def devices(self, query: Listing, call: CurrentCall) -> Response:
        person_id = _session(call).person_id
        return await listing(
            call,
            query,
            lambda limit, after: self._account.sessions.devices(person_id, limit=limit, after=after),
            lambda one: one.public_id,
            objects.device,
        )

    async def revoke_device(self, device_id: fields.DeviceId, call: CurrentCall) -> Response:
        await self._account.revoke_device(self._caller(call), device_id)
        return Response(status_code=204)


def _session(call: Call) -> PersonSession:
    session = call.principal.session
    assert session is not None, "the rules of these routes let nobody else in"
    return session


def _codes(codes: tuple[str, ...]) -> JsonAnswer:
    return JsonAnswer({"recovery_codes": list(codes)})


_AGAIN: Final[Mapping[int, tuple[str, ...]]] = {
    401: ("invalid_credentials",),
    409: ("totp_not_enabled",),
    429: ("too_many_attempts",),
}
_LIST: Final[Mapping[int, tuple[str, ...]]] = {400: ("invalid_request",), 410: ("cursor_expired",)}


_CONFIRM: Final[Mapping[int, tuple[str, ...]]] = {401: ("invalid_credentials",), 429: ("too_many_attempts",)}
_GONE: Final[Mapping[int, None]] = {204: None}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if people have sessions here."""
    if services.account is None:
        return
    routes = _Routes(services, services.account)

    def add(
        method: str,
        rest: str,
        operation: str,
        endpoint: Callable[..., Awaitable[Response]],
        summary: str,
        answers: Mapping[int, type[BaseModel] | None],
        errors: Mapping[int, tuple[str, ...]] | None = None,
        *,
        body: bool = False,
    ) -> None:
        options: dict[str, Any] = {"bucket": Bucket.SESSION, "idempotency": Idempotency.NONE}
        rule = Rule(
            *(method, f"{PATH}{rest}", operation, "Account", Reach.PERSON, frozenset(), frozenset()),
            body=body,
            errors=errors or {},
            **options,
        )
        table.add(rule, endpoint, summary=summary, answers=answers)

    _register_own(add, routes)
    _register_two_step(add, routes)
    _register_app_passwords(add, routes)
    _register_passkeys(add, routes)
    _register_sessions(add, routes)


def _register_own(add: Callable[..., None], routes: _Routes) -> None:
    add("GET", "", "getAccount", routes.get, "Who is signed in, and how", {200: schemas.AccountView})
    add(
        *("PATCH", "", "updateAccount", routes.update, "Change one's name", {200: schemas.AccountView}),
        body=True,
    )
    add(
        *("GET", "/mailboxes", "listAccountMailboxes", routes.mailboxes),
        *("Mailboxes that one may open, the newest grant first", {200: schemas.AccountMailboxPage}, _LIST),
    )
    add(
        *("POST", "/password", "changePassword", routes.change_password),
        *("Change one's password; every other session ends", _GONE, _CONFIRM),
        body=True,
    )


def _register_two_step(add: Callable[..., None], routes: _Routes) -> None:
    add("GET", "/totp", "getTotp", routes.totp, "Whether two-step verification is on", {200: schemas.TotpStatus})
    add(
        *("POST", "/totp", "enrolTotp", routes.enrol, "Begin two-step verification"),
        *({201: schemas.TotpEnrolment}, {**_CONFIRM, 409: ("totp_enabled",)}),
        body=True,
    )
    add(
        *("POST", "/totp/confirm", "confirmTotp", routes.confirm, "Turn two-step verification on"),
        *({200: schemas.RecoveryCodes}, {**_CONFIRM, 409: ("totp_enabled", "totp_not_enabled")}),
        body=True,
    )
    add(
        *("POST", "/totp/disable", "disableTotp", routes.disable, "Turn two-step verification off", _GONE, _AGAIN),
        body=True,
    )
    add(
        *("POST", "/recovery-codes", "replaceRecoveryCodes", routes.recovery_codes),
        *("Ten new recovery codes; the old ones stop", {200: schemas.RecoveryCodes}, _AGAIN),
        body=True,
    )


def _register_app_passwords(add: Callable[..., None], routes: _Routes) -> None:
    add(
        *("GET", "/app-passwords", "listAppPasswords", routes.app_passwords),
        *("Application passwords, newest first", {200: schemas.AppPasswordPage}, _LIST),
    )
    add(
        *("POST", "/app-passwords", "createAppPassword", routes.create_app_password),
        *("A password for one mail program, shown once", {201: schemas.AppPasswordCreated}),
        {**_CONFIRM, 401: ("invalid_credentials", "totp_required"), 422: ("app_password_limit_reached",)},
        body=True,
    )
    add(
        *("DELETE", "/app-passwords/{app_password_id}", "revokeAppPassword", routes.revoke_app_password),
        *("Refuse an application password from now on", _GONE, {404: ("app_password_not_found",)}),
    )


def _register_sessions(add: Callable[..., None], routes: _Routes) -> None:
    add(
        *("GET", "/sessions", "listSessions", routes.sessions),
        *("Live sessions, newest first", {200: schemas.SessionPage}, _LIST),
    )
    add("DELETE", "/sessions", "revokeOtherSessions", routes.revoke_others, "Sign out everywhere else", _GONE)
    add(
        *("DELETE", "/sessions/{session_id}", "revokeSession", routes.revoke_session),
        *("End a session", _GONE, {404: ("session_not_found",)}),
    )
    add(
        *("GET", "/devices", "listDevices", routes.devices),
        *("Devices, newest first", {200: schemas.DevicePage}, _LIST),
    )
    add(
        *("DELETE", "/devices/{device_id}", "revokeDevice", routes.revoke_device),
        *("Revoke a device and end its sessions", _GONE, {404: ("device_not_found",)}),
    )


def _register_passkeys(add: Callable[..., None], routes: _Routes) -> None:
    confirm, missing = {401: ("invalid_credentials",)}, {404: ("passkey_not_found",)}
    full = {422: ("passkey_limit_reached",)}
    add(
        *("GET", "/passkeys", "listPasskeys", routes.passkeys),
        *("Passkeys, newest first", {200: passkey_schemas.PasskeyPage}, _LIST),
    )
    add(
        *("POST", "/passkeys/options", "getPasskeyCreationOptions", routes.passkey_options),
        *("What a browser makes a passkey from", {200: passkey_schemas.PasskeyCreationOptions}),
        {401: ("invalid_credentials", "totp_required"), 429: ("too_many_attempts",), **full},
        body=True,
    )
    add(
        *("POST", "/passkeys", "createPasskey", routes.create_passkey),
        *("Keep the passkey that was made", {201: passkey_schemas.Passkey}),
        {**confirm, 409: ("passkey_registered",), **full},
        body=True,
    )
    add(
        *("PATCH", "/passkeys/{passkey_id}", "updatePasskey", routes.update_passkey),
        *("Call a passkey something else", {200: passkey_schemas.Passkey}, missing),
        body=True,
    )
    add(
        *("DELETE", "/passkeys/{passkey_id}", "deletePasskey", routes.delete_passkey),
        *("Remove a passkey; what it opened ends", _GONE, missing),
    )
