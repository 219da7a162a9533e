"""What fills requests: the least that the schema of a body asks for, and what the schema cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from postroom.accounts.permissions import Permission
from postroom.servers.http.table import Rule
from tests.accounts.authenticator import Authenticator
from tests.rest.houses import MISSING_ULID, House
from tests.rest.lobby import RIGHT
from tests.rest.sender import ANNA
from tests.rest.world import DOMAIN

Fill = Callable[[House, Mapping[str, str]], dict[str, Any]]


NO_PASSKEY: Final = {"challenge": "x" * 43, "user": {"id": "x" * 40}}
"""What nobody was asked: ceremonies that succeed are in test_passkeys.py."""

HOOK: Final = {"url": "https://hooks.example.com/", "events": ["member.joined"]}
"""Of events that are not about mail, which takes a permission more."""

MEMBERS: Final[dict[str, Fill]] = {
    "createIdentity": lambda house, place: {"username": house.street.word()},
    "createAlias": lambda house, place: {
        "address": f"{house.street.word()}{house.tenant.address_suffix}@{DOMAIN}",
        "target": ANNA,
    },
    "updateIdentity": lambda house, place: {"purpose": "other"},
    "updateMessage": lambda house, place: {"read": True},
    "updateThread": lambda house, place: {"read": True},
    "createFolder": lambda house, place: {"name": house.street.word()},
    "updateFolder": lambda house, place: {"subscribed": False},
    "moveMessages": lambda house, place: {"ids": [house.letter], "special_use": "archive"},
    "copyMessages": lambda house, place: {"ids": [house.letter], "special_use": "archive"},
    "expungeMessages": lambda house, place: {"ids": [house.letter]},
    "flagMessages": lambda house, place: {"ids": [house.letter], "add": ["$seen"]},
    "sendMessage": lambda house, place: {"to": [ANNA], "text": "t"},
    "replyToMessage": lambda house, place: {"text": "t"},
    "replyAllToMessage": lambda house, place: {"text": "t"},
    "forwardMessage": lambda house, place: {"to": [ANNA]},
    "createPerson": lambda house, place: {"username": house.street.word()},
    # One that refuses nobody else.
    "setSwitch": lambda house, place: {"name": "emergency_prune"},
    "createInvitation": lambda house, place: {"email": f"{house.street.word()}@example.com", "role": "member"},
    "updatePerson": lambda house, place: {"display_name": "Bo"},
    "changePassword": lambda house, place: {"current_password": RIGHT, "new_password": "another correct horse"},
    "enrolTotp": lambda house, place: {"current_password": RIGHT},
    "createAppPassword": lambda house, place: {"current_password": RIGHT},
    "getPasskeyCreationOptions": lambda house, place: {"current_password": RIGHT},
    "createPasskey": lambda house, place: {"credential": Authenticator().create(NO_PASSKEY)},
    "createPasskeySession": lambda house, place: {"credential": Authenticator().get(NO_PASSKEY)},
    "createTenant": lambda house, place: {"slug": house.street.word()},
    "updateTenant": lambda house, place: {"name": "Other"},
    "updateTenantPolicy": lambda house, place: {"inbound": {"per_sender_per_hour": 30}},
    "updatePartner": lambda house, place: {"name": "Other"},
    "createKey": lambda house, place: {
        "level": "identity",
        "tenant_id": house.tenant.public_id,
        "identity_id": house.box.public_id,
        "permissions": [Permission.MESSAGES_READ.value],
    },
    "createPlatformWebhook": lambda house, place: HOOK,
    "createTenantWebhook": lambda house, place: HOOK,
    "updateWebhook": lambda house, place: {"description": "other"},
    "replayWebhookEvents": lambda house, place: {"event_ids": [f"evt_{MISSING_ULID}"]},
    "createAddress": lambda house, place: {
        "local_part": house.street.word(),
        "domain_id": house.domain,
    },
}
"""Members of a body beside those that the schema alone can give."""

BRIEFLY: Final[dict[str, dict[str, str]]] = {"waitForMessage": {"timeout": "1"}, "streamEvents": {"max_seconds": "1"}}
"""What has operations that wait do so for a moment."""

IN_BODY: Final[dict[str, str]] = {"createKey": "key_scope_exceeded"}
"""Operations whose body alone names whose thing it is, and what they answer about another's (A4.2 step 6)."""

ODD: Final[dict[str, frozenset[str]]] = {
    "createSession": frozenset({"invalid_credentials", "too_many_attempts"}),
    "recoverSession": frozenset({"invalid_credentials", "too_many_attempts"}),
    "acceptInvitation": frozenset({"invitation_not_found"}),
    "joinByInvitation": frozenset({"invitation_not_found"}),
    "getSignedLink": frozenset({"attachment_not_found"}),
    "cancelMessage": frozenset({"not_cancelable"}),
    "resolveMessage": frozenset({"not_uncertain"}),
    "deleteAddress": frozenset({"address_in_use"}),
    "createPasskey": frozenset({"invalid_request"}),
    "createPasskeySession": frozenset({"invalid_credentials", "too_many_attempts"}),
    "confirmTotp": frozenset({"totp_not_enabled"}),
    "disableTotp": frozenset({"invalid_credentials"}),
    "replaceRecoveryCodes": frozenset({"invalid_credentials"}),
}
"""What who is let in may be told as the thing is not in the state that the operation is for. Elsewhere they succeed."""


def body_of(rule: Rule, document: dict[str, Any], house: House, place: Mapping[str, str]) -> dict[str, Any] | None:
    """The body for a route that is pointed at `place`; None for a route without one."""
    if not rule.body:
        return None
    schema = document["paths"][rule.path][rule.method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    made: dict[str, Any] = least(document, schema)
    more = MEMBERS.get(rule.operation)
    return made if more is None else made | more(house, place)


def least(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """A value that the schema takes, with nothing that it does not ask for."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return least(document, schema[union][0])
    match schema.get("type"):
        case "object":
            members = schema.get("properties", {})
            return {name: least(document, members[name]) for name in schema.get("required", ())}
        case "array":
            return [least(document, schema["items"])] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return True
        case "string":
            return {"email": ANNA, "date-time": "2031-01-01T00:00:00Z"}.get(schema.get("format", ""), "x")
    raise AssertionError(f"no value for {schema}")
