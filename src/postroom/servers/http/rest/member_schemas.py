"""Schemas of members and invitations (rest-api §6.10)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, StrictStr, StringConstraints

from postroom.accounts.invitations import MAX_CODE
from postroom.accounts.invitations import Invitation as InvitationModel
from postroom.accounts.service.members import Joined as JoinedModel
from postroom.accounts.service.members import Roll
from postroom.accounts.store.invitations import Seen
from postroom.events.catalogue import timestamp
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.rest.people_schemas import DisplayName, Secret
from postroom.servers.http.rest.shapes import Json
from postroom.servers.objects import moment

MemberRoleName = Literal["owner", "admin", "member", "viewer"]
InvitationRoleName = Literal["admin", "member", "viewer"]
InvitationCode = Annotated[StrictStr, StringConstraints(max_length=MAX_CODE)]


class InvitationCreateRequest(fields.RequestBody):
    email: fields.EmailAddress
    role: InvitationRoleName


class InvitationAcceptRequest(fields.RequestBody):
    """`code`: that of the mail; `password`: a new one, for whoever's address nobody has proved yet (`403`
    `permission_denied`, reason `address_unproven`, says so). Nothing that signed in before does then, but the password.
    """

    code: InvitationCode
    password: Annotated[Secret | None, NotNull()] = None


class InvitationJoinRequest(fields.RequestBody):
    """`code`: that of the mail; `password`: what to sign in with from then on, with the address that was invited."""

    code: InvitationCode
    display_name: DisplayName
    password: Secret


class Member(Answer):
    user_id: fields.PersonId
    email: fields.EmailAddress
    name: str | None
    role: MemberRoleName
    last_login_at: datetime | None
    created_at: datetime


class Invitation(Answer):
    id: fields.InvitationId
    email: fields.EmailAddress
    role: InvitationRoleName
    invited_by: fields.PersonId | None
    expires_at: datetime


class Seats(Answer):
    granted: Annotated[int, Field(ge=0)] | None
    used: Annotated[int, Field(ge=0)]


class MemberList(Answer):
    data: list[Member]
    invitations: list[Invitation]
    seats: Seats


class JoinedTenant(Answer):
    user_id: fields.PersonId
    tenant_id: fields.TenantId
    tenant_name: str
    role: MemberRoleName


NOWHERE: Final = "person.invalid"
"""Where somebody is who has no address at all: the contract wants one, and under this name nobody can be (RFC 2606)."""


def roll(one: Roll) -> Json:
    """A MemberList."""
    return {
        "data": [member(each) for each in one.members],
        "invitations": [invitation(each) for each in one.invitations],
        "seats": {"granted": None, "used": one.seats_used},
    }


def member(one: Seen) -> Json:
    person = one.member.person
    return {
        "user_id": person.public_id,
        "email": person.contact_email or one.address or f"{person.public_id.lower()}@{NOWHERE}",
        "name": person.display_name,
        "role": one.member.role.value,
        "last_login_at": moment(one.last_login_at),
        "created_at": timestamp(one.member.created_at),
    }


def invitation(one: InvitationModel) -> Json:
    return {
        "id": one.public_id,
        "email": one.email,
        "role": one.role.value,
        "invited_by": one.invited_by,
        "expires_at": timestamp(one.expires_at),
    }


def joined(one: JoinedModel) -> Json:
    return {
        "user_id": one.person.public_id,
        "tenant_id": one.tenant.public_id,
        "tenant_name": one.tenant.name,
        "role": one.role.value,
    }
