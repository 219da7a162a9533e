"""Schemas of people, their accounts and what they sign in with (decisions E)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictStr, StringConstraints, model_validator

from postroom.accounts.models import (
    Person as PersonModel,
)
from postroom.accounts.models import (
    PersonSession,
)
from postroom.accounts.passwords import MAX_LENGTH
from postroom.accounts.service.two_step import TwoStepStatus
from postroom.accounts.store.reach import MailboxOf
from postroom.events.catalogue import timestamp
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.rest.shapes import Json

Secret = Annotated[StrictStr, StringConstraints(max_length=2 * MAX_LENGTH)]
"""Longer than any password may be, so that the rule's own words are told."""
Code = Annotated[StrictStr, StringConstraints(max_length=64)]
DisplayName = Annotated[StrictStr, StringConstraints(min_length=1, max_length=78), fields.Storable]
ShortText = Annotated[StrictStr, StringConstraints(min_length=1, max_length=128), fields.Storable]
GrantRoleName = Literal["owner", "full", "read"]
SessionKindName = Literal["web", "client", "console"]


# -- requests


class DeviceBody(fields.RequestBody):
    device_uid: ShortText
    name: ShortText
    platform: Annotated[ShortText | None, NotNull()] = None
    client_version: Annotated[ShortText | None, NotNull()] = None


class SessionCreateRequest(fields.RequestBody):
    """`email`: the address of a mailbox that they may open, or their contact address. `totp`: a code of the app, or a
    recovery code.
    """

    email: Annotated[StrictStr, StringConstraints(max_length=320)]
    password: Secret
    totp: Annotated[Code | None, NotNull()] = None
    kind: SessionKindName = "web"
    device: Annotated[DeviceBody | None, NotNull()] = None


class RecoverRequest(fields.RequestBody):
    email: Annotated[StrictStr, StringConstraints(max_length=320)]
    password: Secret
    recovery_code: Code


class AccountUpdateRequest(fields.RequestBody):
    display_name: DisplayName


class PasswordChangeRequest(fields.RequestBody):
    current_password: Secret
    new_password: Secret


class TotpEnrolRequest(fields.RequestBody):
    current_password: Secret


class TotpConfirmRequest(fields.RequestBody):
    code: Code


class BothStepsRequest(fields.RequestBody):
    """`totp`: a code of the app, or a recovery code."""

    password: Secret
    totp: Code


class AppPasswordCreateRequest(fields.RequestBody):
    """`totp`: a code of the app, or a recovery code; wanted where two-step verification is on."""

    label: ShortText
    current_password: Secret
    totp: Annotated[Code | None, NotNull()] = None


class PersonCreateRequest(fields.RequestBody):
    """With `username` they get a mailbox that is theirs, with `role` they are a member of the tenant: one is needed."""

    display_name: DisplayName
    username: Annotated[fields.Text | None, NotNull()] = None
    role: Annotated[Literal["admin", "member", "viewer"] | None, NotNull()] = None
    contact_email: Annotated[fields.EmailAddress | None, NotNull()] = None
    password: Annotated[Secret | None, NotNull()] = None

    @model_validator(mode="after")
    def _belongs(self) -> PersonCreateRequest:
        if self.username is None and self.role is None:
            raise ValueError("must have a username, a role, or both")
        return self


class PersonUpdateRequest(fields.RequestBody):
    """What is left out stays as it is. A new `password`, and `enabled: false`, end whatever they are signed in to."""

    display_name: Annotated[DisplayName | None, NotNull()] = None
    enabled: Annotated[fields.Flag | None, NotNull()] = None
    password: Annotated[Secret | None, NotNull()] = None

    @model_validator(mode="after")
    def _not_empty(self) -> PersonUpdateRequest:
        if not self.model_fields_set:
            raise ValueError("must change something")
        return self


class GrantPutRequest(fields.RequestBody):
    role: GrantRoleName


class ListPage(fields.Query):
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


# -- answers


class Person(Answer):
    id: fields.PersonId
    display_name: str
    contact_email: str | None
    is_operator: bool
    enabled: bool
    has_password: bool
    created_at: datetime


class PersonPage(Answer):
    data: list[Person]
    next_cursor: str | None


class TotpStatus(Answer):
    status: Literal["disabled", "pending", "enabled"]
    recovery_codes_left: Annotated[int, Field(ge=0)]


class TotpEnrolment(Answer):
    """Shown once. `uri` is what apps read from a picture."""

    secret: str
    uri: str


class RecoveryCodes(Answer):
    """Shown once."""

    recovery_codes: list[str]


class Session(Answer):
    id: fields.SessionId
    kind: SessionKindName
    current: bool
    second_factor: bool
    app_password: bool
    passkey: bool
    device_id: fields.DeviceId | None
    ip: str | None
    user_agent: str | None
    authenticated_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    ends_at: datetime
    created_at: datetime


class SessionPage(Answer):
    data: list[Session]
    next_cursor: str | None


class SignedIn(Answer):
    """`token` is the bearer of what follows; it is shown once."""

    token: str
    session: Session
    person: Person


class AccountView(Answer):
    person: Person
    totp: TotpStatus
    session: Session


class AccountMailbox(Answer):
    identity_id: fields.IdentityId
    tenant_id: fields.TenantId
    address: str | None
    display_name: str
    kind: Literal["agent", "person"]
    role: GrantRoleName


class AccountMailboxPage(Answer):
    data: list[AccountMailbox]
    next_cursor: str | None


class AppPassword(Answer):
    id: fields.AppPasswordId
    label: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class AppPasswordCreated(AppPassword):
    """`password` is shown once."""

    password: str


class AppPasswordPage(Answer):
    data: list[AppPassword]
    next_cursor: str | None


class Device(Answer):
    id: fields.DeviceId
    device_uid: str
    name: str
    platform: str | None
    client_version: str | None
    last_seen_at: datetime
    created_at: datetime
    revoked_at: datetime | None


class DevicePage(Answer):
    data: list[Device]
    next_cursor: str | None


class Grant(Answer):
    identity_id: fields.IdentityId
    person_id: fields.PersonId
    role: GrantRoleName
    created_at: datetime


class GrantPage(Answer):
    data: list[Grant]
    next_cursor: str | None


# -- shapes


def person(one: PersonModel) -> Json:
    return {
        "id": one.public_id,
        "display_name": one.display_name,
        "contact_email": one.contact_email,
        "is_operator": one.is_operator,
        "enabled": one.enabled,
        "has_password": one.has_password,
        "created_at": timestamp(one.created_at),
    }


def totp(status: TwoStepStatus) -> Json:
    return {"status": status.state.value, "recovery_codes_left": status.recovery_codes_left}


def session(one: PersonSession, current: int) -> Json:
    """`current` is the key of the session that asks."""
    return {
        "id": one.public_id,
        "kind": one.kind.value,
        "current": one.id == current,
        "second_factor": one.second_factor,
        "app_password": one.app_password_id is not None,
        "passkey": one.passkey_id is not None,
        "device_id": one.device_public_id,
        "ip": one.ip,
        "user_agent": one.user_agent,
        "authenticated_at": timestamp(one.authenticated_at),
        "last_seen_at": timestamp(one.last_seen_at),
        "expires_at": timestamp(one.expires_at),
        "ends_at": timestamp(one.ends_at),
        "created_at": timestamp(one.created_at),
    }


def mailbox(one: MailboxOf) -> Json:
    return {
        "identity_id": one.identity_id,
        "tenant_id": one.tenant_id,
        "address": one.address,
        "display_name": one.display_name,
        "kind": one.kind,
        "role": one.role.value,
    }
