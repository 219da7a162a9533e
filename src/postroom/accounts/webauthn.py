"""The two ceremonies of WebAuthn (Level 3 §7.1, §7.2), checked by Yubico's `fido2`. Pure.

Import it where it is used, not at the top of a module: the library takes 10 MiB with its list of public suffixes, which
a process without passkeys is spared. CBOR and COSE are the library's; what it leaves to the relying party is here: the
algorithms, the sizes of keys, the flags of backups, pages within pages of others, and how deep what it takes apart may
be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from fido2 import cbor
from fido2.cose import ES256, RS256, CoseKey, EdDSA
from fido2.server import Fido2Server
from fido2.webauthn import (
    Aaguid,
    AttestationConveyancePreference,
    AttestationObject,
    AttestedCredentialData,
    AuthenticationResponse,
    AuthenticatorAssertionResponse,
    AuthenticatorAttestationResponse,
    AuthenticatorData,
    AuthenticatorTransport,
    CollectedClientData,
    PublicKeyCredentialDescriptor,
    PublicKeyCredentialParameters,
    PublicKeyCredentialRpEntity,
    PublicKeyCredentialType,
    PublicKeyCredentialUserEntity,
    RegistrationResponse,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from postroom.accounts.cbor_bounds import is_bounded
from postroom.accounts.passkeys import (
    MAX_CREDENTIAL_ID,
    MAX_PUBLIC_KEY,
    Assertion,
    CeremonyError,
    Credential,
    Registration,
    RelyingParty,
    Shown,
    to_text,
)

_KEY_TYPES: Final[dict[type[CoseKey], int]] = {ES256: 2, EdDSA: 1, RS256: 3}
"""The algorithms that are taken, the one that is wanted most first, each with its COSE key type (RFC 9053 §7)."""
_RSA_OCTETS: Final = range(256, 513)
_RSA_EXPONENT_OCTETS: Final = 4
_FLAGS: Final = 32
_DATA: Final = 37
"""Where what follows flags and counter begins, in authenticator data (§6.1); where something was made that is its
aaguid, and its id with the length (§6.5.1)."""
_ID_LENGTH: Final = slice(_DATA + 16, _DATA + 18)
_TRANSPORTS: Final = frozenset(one.value for one in AuthenticatorTransport)


class Ceremonies:
    """One per process. Whoever is signed in with a passkey was verified by its authenticator: nothing less is taken."""

    def __init__(self, party: RelyingParty, *, timeout_ms: int) -> None:
        self._origins = party.origins
        self._server = Fido2Server(
            PublicKeyCredentialRpEntity(name=party.name, id=party.id),
            attestation=AttestationConveyancePreference.NONE,
            verify_origin=self._is_ours,
        )
        self._server.allowed_algorithms = [
            PublicKeyCredentialParameters(type=PublicKeyCredentialType.PUBLIC_KEY, alg=key.ALGORITHM)
            for key in _KEY_TYPES
        ]
        self._server.timeout = timeout_ms  # type: ignore[assignment] # the library infers that it is always None

    def creation_options(
        self,
        challenge: bytes,
        handle: bytes,
        name: str,
        display_name: str,
        known: Sequence[tuple[bytes, Sequence[str]]],
    ) -> dict[str, Any]:
        """`PublicKeyCredentialCreationOptionsJSON` (§5.1.8); `known` are passkeys of the person, each with how it is
        reached, which their authenticators do not make again.
        """
        options, _ = self._server.register_begin(
            PublicKeyCredentialUserEntity(id=handle, name=name, display_name=display_name),
            [_descriptor(*one) for one in known],
            ResidentKeyRequirement.REQUIRED,
            UserVerificationRequirement.REQUIRED,
            challenge=challenge,
        )
        return _members(options.public_key)

    def request_options(self, challenge: bytes) -> dict[str, Any]:
        """`PublicKeyCredentialRequestOptionsJSON` (§5.1.9), of any passkey that the authenticator has for us."""
        options, _ = self._server.authenticate_begin(
            user_verification=UserVerificationRequirement.REQUIRED, challenge=challenge
        )
        return _members(options.public_key)

    def challenge_of(self, client_data: bytes) -> bytes:
        """Which challenge is answered. Raises CeremonyError."""
        with _refusing():
            return CollectedClientData(client_data).challenge

    def register(self, challenge: bytes, answer: Registration) -> Credential:
        """What was made, if all that §7.1 asks for holds. Attestation statements are not looked at. Raises
        CeremonyError.
        """
        with _refusing():
            client_data = CollectedClientData(answer.client_data)
            attestation = _attestation(answer.attestation)
            _refuse_frames(client_data)
            made = attestation.auth_data.credential_data
            if made is None:
                raise CeremonyError("nothing was made")
            response = AuthenticatorAttestationResponse(client_data=client_data, attestation_object=attestation)
            data = self._server.register_complete(
                _state(challenge), RegistrationResponse(raw_id=answer.credential_id, response=response)
            )
            if not 1 <= len(made.credential_id) <= MAX_CREDENTIAL_ID or made.credential_id != answer.credential_id:
                raise CeremonyError("the id is another")
            _check_backup(data)
            _check_key(made.public_key)
            public_key = cbor.encode(made.public_key)
            if len(public_key) > MAX_PUBLIC_KEY:
                raise CeremonyError("the key is too long")
            return Credential(
                made.credential_id, public_key, data.counter, data.is_backup_eligible(), data.is_backed_up()
            )

    def authenticate(self, challenge: bytes, answer: Assertion, known: Credential) -> Shown:
        """What the authenticator says, if all that §7.2 asks for holds but for the counter, and the owner's handle,
        which are the caller's to look at. Raises CeremonyError.
        """
        with _refusing():
            client_data = CollectedClientData(answer.client_data)
            data = _authenticator_data(answer.authenticator_data)
            _refuse_frames(client_data)
            key = CoseKey.parse(cbor.decode(known.public_key))  # type: ignore[arg-type] # a map: we encoded it
            response = AuthenticatorAssertionResponse(
                client_data=client_data, authenticator_data=data, signature=answer.signature
            )
            self._server.authenticate_complete(
                _state(challenge),
                [AttestedCredentialData.create(Aaguid.NONE, known.credential_id, key)],
                AuthenticationResponse(raw_id=answer.credential_id, response=response),
            )
            _check_backup(data)
            if data.is_backup_eligible() is not known.backup_eligible:
                raise CeremonyError("it cannot have become another kind of passkey")
            return Shown(data.counter, data.is_backed_up())

    def _is_ours(self, origin: object) -> bool:
        return isinstance(origin, str) and origin in self._origins


@contextmanager
def _refusing() -> Iterator[None]:
    """What the library raises for bytes from outside is whatever they led it to: of deep nesting, of wrong types."""
    try:
        yield
    except CeremonyError:
        raise
    except Exception as error:
        raise CeremonyError("the answer does not hold") from error


def _refuse_frames(client_data: CollectedClientData) -> None:
    """Not from within a page of somebody else (§7.1 steps 10 and 11, §7.2 steps 14 and 15). What names a page around it
    was within one, whatever else it says.
    """
    if client_data.cross_origin is not False or "topOrigin" in json.loads(client_data):
        raise CeremonyError("it was asked for within another page")


def _attestation(data: bytes) -> AttestationObject:
    """The library goes down into whatever is nested: nothing is handed to it that was not measured."""
    _measure(data)
    whole = cbor.decode(data)
    inner = whole["authData"] if isinstance(whole, dict) else None
    if not isinstance(inner, bytes):
        raise CeremonyError("there is no authenticator data")
    _authenticator_data(inner)
    return AttestationObject(data)


def _authenticator_data(data: bytes) -> AuthenticatorData:
    """Its end is CBOR: the key that was made, and what extensions say."""
    begins = _DATA
    if len(data) > _FLAGS and data[_FLAGS] & AuthenticatorData.FLAG.AT:
        begins = _ID_LENGTH.stop + int.from_bytes(data[_ID_LENGTH], "big")
    _measure(data[begins:])
    return AuthenticatorData(data)


def _measure(data: bytes) -> None:
    if not is_bounded(data):
        raise CeremonyError("it is nested too deep, too much, or no CBOR")


def _check_backup(data: AuthenticatorData) -> None:
    """What cannot be backed up is not backed up (§6.1.3)."""
    if data.is_backed_up() and not data.is_backup_eligible():
        raise CeremonyError("its flags contradict one another")


def _check_key(key: CoseKey) -> None:
    """One of the kinds that we asked for, of a usual size, that signatures can be checked by."""
    if _KEY_TYPES.get(type(key)) != key.get(1):
        raise CeremonyError("the key is of another kind")
    if isinstance(key, RS256):
        modulus, exponent = key[-1], key[-2]
        if len(modulus) not in _RSA_OCTETS or not modulus[0] or len(exponent) > _RSA_EXPONENT_OCTETS:
            raise CeremonyError("the key has an unusual size")
    try:
        key.verify(b"", b"")
    except InvalidSignature:
        return  # as it has to be
    raise CeremonyError("the key takes anything")


def _descriptor(credential_id: bytes, transports: Sequence[str]) -> PublicKeyCredentialDescriptor:
    return PublicKeyCredentialDescriptor(
        type=PublicKeyCredentialType.PUBLIC_KEY,
        id=credential_id,
        transports=[AuthenticatorTransport(one) for one in transports if one in _TRANSPORTS] or None,
    )


def _state(challenge: bytes) -> dict[str, Any]:
    """What the library has a ceremony remember between its halves."""
    return {"challenge": to_text(challenge), "user_verification": UserVerificationRequirement.REQUIRED}


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    """An object of the library as JSON has it."""
    return {str(name): _plain(value[name]) for name in value}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return to_text(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return _members(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
