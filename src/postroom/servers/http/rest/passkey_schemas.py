"""Schemas of passkeys, and how they are shown. What browsers write and read is in their words (WebAuthn Level 3 §5.1):
`PublicKeyCredential.toJSON()`, `parseCreationOptionsFromJSON()`, `parseRequestOptionsFromJSON()`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictStr, StringConstraints, model_validator

from postroom.accounts import passkeys as rules
from postroom.accounts.passkeys import Assertion, Registration
from postroom.accounts.passkeys import Passkey as PasskeyModel
from postroom.accounts.service.passkeys import Options
from postroom.events.catalogue import timestamp
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.rest.people_schemas import Code, DeviceBody, Secret, SessionKindName, ShortText
from postroom.servers.http.rest.shapes import Json
from postroom.servers.objects import moment


def _octets(text: str) -> str:
    rules.from_text(text)
    return text


def _base64(octets: int) -> StringConstraints:
    """Of base64url without padding of at most so many octets."""
    return StringConstraints(pattern="^[A-Za-z0-9_-]+$", max_length=-(-octets * 4 // 3))


_Octets = AfterValidator(_octets)
CredentialId = Annotated[StrictStr, _base64(rules.MAX_CREDENTIAL_ID), _Octets]
ClientData = Annotated[StrictStr, _base64(rules.MAX_CLIENT_DATA), _Octets]
Attestation = Annotated[StrictStr, _base64(rules.MAX_ATTESTATION), _Octets]
AuthenticatorData = Annotated[StrictStr, _base64(rules.MAX_AUTHENTICATOR_DATA), _Octets]
Signature = Annotated[StrictStr, _base64(rules.MAX_SIGNATURE), _Octets]
Handle = Annotated[StrictStr, _base64(rules.MAX_HANDLE), _Octets]
PublicKeyType = Literal["public-key"]


# -- requests


class PasskeyOptionsRequest(fields.RequestBody):
    """`totp`: a code of the app, or a recovery code; wanted where two-step verification is on."""

    current_password: Secret
    totp: Annotated[Code | None, NotNull()] = None


class AttestationResponse(fields.RequestBody):
    client_data: ClientData = Field(alias="clientDataJSON")
    attestation: Attestation = Field(alias="attestationObject")
    transports: Annotated[tuple[StrictStr, ...], Field(max_length=32)] = ()


class AssertionResponse(fields.RequestBody):
    client_data: ClientData = Field(alias="clientDataJSON")
    authenticator_data: AuthenticatorData = Field(alias="authenticatorData")
    signature: Signature
    user_handle: Handle | None = Field(default=None, alias="userHandle")


class _CredentialBody(fields.RequestBody):
    id: CredentialId
    raw_id: Annotated[CredentialId | None, NotNull()] = Field(default=None, alias="rawId")
    type: PublicKeyType

    @model_validator(mode="after")
    def _is_one(self) -> _CredentialBody:
        if self.raw_id not in (None, self.id):
            raise ValueError("must have one id")
        return self


class CreatedCredential(_CredentialBody):
    """What `navigator.credentials.create` gave."""

    response: AttestationResponse


class ShownCredential(_CredentialBody):
    """What `navigator.credentials.get` gave."""

    response: AssertionResponse


class PasskeyCreateRequest(fields.RequestBody):
    name: ShortText
    credential: CreatedCredential


class PasskeyUpdateRequest(fields.RequestBody):
    name: ShortText


class PasskeySessionCreateRequest(fields.RequestBody):
    credential: ShownCredential
    kind: SessionKindName = "web"
    device: Annotated[DeviceBody | None, NotNull()] = None


# -- answers


class Passkey(Answer):
    """`backup_eligible`: it can be on several devices; `backed_up`: it is, as far as it said when it was used last."""

    id: fields.PasskeyId
    name: str
    transports: list[str]
    backup_eligible: bool
    backed_up: bool
    created_at: datetime
    last_used_at: datetime | None


class PasskeyPage(Answer):
    data: list[Passkey]
    next_cursor: str | None


class RelyingPartyEntity(Answer):
    id: str
    name: str


class UserEntity(Answer):
    id: str
    name: str
    display_name: str = Field(alias="displayName")


class CredentialParameters(Answer):
    type: PublicKeyType
    alg: int


class CredentialDescriptor(Answer):
    type: PublicKeyType
    id: str
    transports: tuple[str, ...] = ()


class AuthenticatorSelection(Answer):
    resident_key: Literal["required"] = Field(alias="residentKey")
    require_resident_key: Literal[True] = Field(alias="requireResidentKey")
    user_verification: Literal["required"] = Field(alias="userVerification")


class CreationOptions(Answer):
    """For `PublicKeyCredential.parseCreationOptionsFromJSON`."""

    rp: RelyingPartyEntity
    user: UserEntity
    challenge: str
    pub_key_cred_params: list[CredentialParameters] = Field(alias="pubKeyCredParams")
    timeout: int
    exclude_credentials: list[CredentialDescriptor] = Field(alias="excludeCredentials")
    authenticator_selection: AuthenticatorSelection = Field(alias="authenticatorSelection")
    attestation: Literal["none"]


class RequestOptions(Answer):
    """For `PublicKeyCredential.parseRequestOptionsFromJSON`."""

    challenge: str
    timeout: int
    rp_id: str = Field(alias="rpId")
    user_verification: Literal["required"] = Field(alias="userVerification")


class PasskeyCreationOptions(Answer):
    """The answer counts once, until `expires_at`."""

    public_key: CreationOptions
    expires_at: datetime


class PasskeyRequestOptions(Answer):
    """The answer counts once, until `expires_at`."""

    public_key: RequestOptions
    expires_at: datetime


# -- shapes


def registration(one: CreatedCredential) -> Registration:
    answer = one.response
    return Registration(
        rules.from_text(one.id),
        rules.from_text(answer.client_data),
        rules.from_text(answer.attestation),
        answer.transports,
    )


def assertion(one: ShownCredential) -> Assertion:
    answer = one.response
    return Assertion(
        rules.from_text(one.id),
        rules.from_text(answer.client_data),
        rules.from_text(answer.authenticator_data),
        rules.from_text(answer.signature),
        None if answer.user_handle is None else rules.from_text(answer.user_handle),
    )


def passkey(one: PasskeyModel) -> Json:
    return {
        "id": one.public_id,
        "name": one.name,
        "transports": list(one.transports),
        "backup_eligible": one.backup_eligible,
        "backed_up": one.backed_up,
        "created_at": timestamp(one.created_at),
        "last_used_at": moment(one.last_used_at),
    }


def options(made: Options) -> Json:
    return {"public_key": made.public_key, "expires_at": timestamp(made.expires_at)}
