"""JSON Schemas (draft 2020-12) of what events say: the envelope, and the data of each type (events-webhooks-errors
§2–4).

They are closed: a member that is not here is sent by nobody, so that no text of a message leaves by oversight
(FR-WH-4). Receivers tolerate members that they do not know, for the next version may have more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
MAX_TEXT_BYTES: Final = 65_536
"""The most of `extracted_text` that a policy can ask for."""
_ULID: Final = "[0-9A-HJKMNP-TV-Z]{26}"


def public_id(prefix: str) -> Schema:
    """An id of one kind."""
    return {"type": "string", "pattern": f"^{prefix}_{_ULID}$"}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def record(members: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these members, the optional ones in some cases only, and no other."""
    return {
        "type": "object",
        "properties": {**members, **(optional or {})},
        "required": list(members),
        "additionalProperties": False,
    }


TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
WORD: Final[Schema] = {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"}
"""A word of an open set."""
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
POSITIVE: Final[Schema] = {"type": "integer", "minimum": 1}
ADDRESS_TEXT: Final[Schema] = {"type": "string", "format": "email"}
SMTP_CODE: Final[Schema] = nullable({"type": "string", "pattern": "^[2-5][0-9]{2}$"})
SMTP_RESPONSE: Final[Schema] = nullable({"type": "string", "maxLength": 512})

MESSAGE_ID: Final = public_id("msg")
THREAD_ID: Final = public_id("thr")
IDENTITY_ID: Final = public_id("idn")
TENANT_ID: Final = public_id("ten")
USER_ID: Final = public_id("usr")
WEBHOOK_ID: Final = public_id("whk")

OUTBOUND_STATUS: Final = one_of(
    *("queued", "submitted", "delivered", "deferred", "bounced", "complained", "rejected", "failed", "uncertain"),
    *("suppressed", "canceled"),
)

MAILPOINT: Final = record({"address": ADDRESS_TEXT, "name": TEXT})

MESSAGE_SUMMARY: Final = record(
    {
        "id": MESSAGE_ID,
        "thread_id": THREAD_ID,
        "direction": one_of("inbound", "outbound"),
        "status": one_of("received", "quarantined", "throttled", "hidden", *OUTBOUND_STATUS["enum"]),
        "from": nullable(MAILPOINT),
        "to": listed(MAILPOINT),
        "cc": listed(MAILPOINT),
        "delivered_to": nullable(ADDRESS_TEXT),
        "is_primary_recipient": nullable(FLAG),
        "subject": nullable(TEXT),
        "sent_at": nullable(TIME),
        "received_at": TIME,
        "kind": one_of(
            *("normal", "automated", "dsn", "list", "calendar", "mdn", "transactional", "marketing", "auto_reply")
        ),
        "labels": listed({"type": "string", "pattern": "^[a-z0-9][a-z0-9_:-]{0,63}$"}),
        "in_reply_to": nullable(TEXT),
        "flags": listed(
            one_of(
                *("sent_via_fallback", "parse_degraded", "encrypted", "message_id_conflict", "reprocessed"),
                *("reconciled", "bcc", "loopback", "body_truncated", "sender_suppressed", "body_redacted"),
                "dsn_untrusted",
            )
        ),
    }
)

_METHOD: Final = one_of("pass", "fail", "softfail", "neutral", "none", "temperror", "permerror", "policy")
TRUST: Final = record(
    {
        "verdict": one_of("pass", "fail", "softfail", "none", "unaligned", "unverified"),
        "spf": _METHOD,
        "dkim": _METHOD,
        "dmarc": _METHOD,
        "arc": _METHOD,
        "known_sender": FLAG,
        "quarantined": FLAG,
        "spam_score": nullable({"type": "number", "minimum": 0, "maximum": 1}),
        "automated": FLAG,
        "flags": listed(
            one_of(
                *("hidden_text", "display_name_spoof", "lookalike_domain", "reply_to_mismatch"),
                *("thread_join_unverified", "shared_domain_sender"),
            )
        ),
    }
)

ATTACHMENT: Final = record({"id": public_id("att"), "filename": nullable(TEXT), "content_type": TEXT, "size": COUNT})

ADDRESS: Final = record(
    {
        "id": public_id("adr"),
        "identity_id": IDENTITY_ID,
        "address": ADDRESS_TEXT,
        "local_part": TEXT,
        "domain_id": public_id("dom"),
        "role": one_of("primary", "alias"),
        "status": one_of("pending", "active", "retiring", "retired"),
        "retire_at": nullable(TIME),
        "retired_at": nullable(TIME),
        "forwarding": nullable(one_of("unverified", "ok", "failed")),
        "forwarding_checked_at": nullable(TIME),
        "created_at": TIME,
    }
)

PAUSE_REASON: Final = one_of("manual", "abuse_threshold", "tenant_suspended")
IDENTITY: Final = record(
    {
        "id": IDENTITY_ID,
        "tenant_id": TENANT_ID,
        "username": TEXT,
        "display_name": TEXT,
        "purpose": nullable(TEXT),
        "status": one_of("active", "paused", "deleting", "deleted"),
        "pause_reason": nullable(PAUSE_REASON),
        "primary_address": ADDRESS_TEXT,
        "addresses": listed(ADDRESS),
        "owner": nullable(record({"name": TEXT, "email": ADDRESS_TEXT})),
        "signature": nullable(record({}, {"text": nullable(TEXT), "html": nullable(TEXT)})),
        "send_policy": {"type": "object"},
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "client_id": nullable(TEXT),
        "created_at": TIME,
        "updated_at": TIME,
    }
)

RECEIVED: Final = record(
    {
        "message": MESSAGE_SUMMARY,
        "thread_id": THREAD_ID,
        "trust": TRUST,
        "extracted_text": nullable({"type": "string", "maxLength": MAX_TEXT_BYTES}),
        "extracted_text_truncated": FLAG,
        "attachments": listed(ATTACHMENT),
    },
    {"reprocessed": {"const": True}},
)


def envelope(kind: str, data: Schema, *, has_identity: bool, is_numbered: bool, has_tenant: bool = True) -> Schema:
    """The schema of a whole event. `is_numbered`: its owner has a sequence."""
    return {
        "$schema": DIALECT,
        **record(
            {
                "id": public_id("evt"),
                "type": {"const": kind},
                "api_version": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
                "occurred_at": TIME,
                "tenant_id": TENANT_ID if has_tenant else nullable(TENANT_ID),
                "identity_id": IDENTITY_ID if has_identity else {"type": "null"},
                "sequence": POSITIVE if is_numbered else {"type": "null"},
                "data": data,
            }
        ),
    }


_EXAMPLE_ULID: Final = "01K8Z3NDEKTSV4RRFFQ69G5FAV"
_EXAMPLES: Final[Mapping[str, Any]] = {
    WORD["pattern"]: "other",
    r"^\d{4}-\d{2}-\d{2}$": "2026-10-01",
    "^[2-5][0-9]{2}$": "250",
    "^[a-z0-9][a-z0-9_:-]{0,63}$": "billing",
}


def example(schema: Schema) -> Any:
    """Something that the schema takes, with every member that is always there."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0])
    match schema["type"]:
        case "object":
            members = schema.get("properties", {})
            return {name: example(members[name]) for name in schema.get("required", ())}
        case "array":
            return [example(schema["items"])]
        case "string":
            return _example_text(schema)
        case kind:
            return {"boolean": False, "integer": 1, "number": 0.5, "null": None}[kind]


def _example_text(schema: Schema) -> Any:
    pattern = schema.get("pattern", "")
    if pattern.endswith(f"_{_ULID}$"):
        return pattern.removeprefix("^").removesuffix(f"{_ULID}$") + _EXAMPLE_ULID
    if pattern:
        return _EXAMPLES[pattern]
    return {"date-time": "2026-10-01T12:00:00.000Z", "email": "anna@example.com"}.get(schema.get("format", ""), "text")
