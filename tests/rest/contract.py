"""The published contract of the operations that are served, and JSON Schemas made of it."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

CONTRACT: dict[str, Any] = json.loads((Path(__file__).parent / "contract.json").read_text())
OPERATIONS: dict[str, dict[str, Any]] = {item["operation_id"]: item for item in CONTRACT["operations"]}

_KEPT = (
    *("type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"),
    *("uniqueItems", "minProperties", "maxProperties", "required", "const"),
)


def json_schema(entry: dict[str, Any]) -> dict[str, Any]:
    """A property or a type of the contract as JSON Schema 2020-12."""
    if "ref" in entry:
        schema: dict[str, Any] = {"$ref": f"#/$defs/{entry['ref']}"}
        nullable = entry.get("nullable")
    else:
        schema = {key: entry[key] for key in _KEPT if key in entry}
        if "properties" in entry:
            schema["properties"] = {name: json_schema(value) for name, value in entry["properties"].items()}
            # Evolution is additive; what we add beside the contract should be meant, so tests forbid it.
            schema["additionalProperties"] = entry.get("additionalProperties", False)
        elif isinstance(entry.get("additionalProperties"), dict):
            schema["additionalProperties"] = json_schema(entry["additionalProperties"])
        if "items" in entry:
            schema["items"] = json_schema(entry["items"])
        if "one_of" in entry:
            schema["anyOf"] = [json_schema(option) for option in entry["one_of"]]
        nullable = entry.get("nullable")
    return {"anyOf": [schema, {"type": "null"}]} if nullable else schema


@cache
def _definitions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("scalars", "schemas", "unions", "arrays", "maps"):
        for name, entry in CONTRACT[kind].items():
            found[name] = json_schema({**entry, "type": "object"} if kind in ("schemas", "maps") else entry)
    for name, values in CONTRACT["enums"].items():
        values = values if isinstance(values, list) else values["values"]
        found[name] = {"type": "string", "enum": values}
    # The catalogue grew beyond the published list, which is open (decisions, section E).
    found["ErrorCode"] = {"type": "string", "pattern": "^[a-z_]+$"}
    return found


def _is_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


_formats = FormatChecker(["email"])
_formats.checks("date-time")(_is_time)


@cache
def validator(name: str) -> Draft202012Validator:
    """The validator of a named schema of the contract."""
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _definitions()}, format_checker=_formats)


def check(name: str, value: Any) -> None:
    """Raises when `value` is not what the contract says of `name`."""
    errors = [f"{'/'.join(map(str, error.path))}: {error.message}" for error in validator(name).iter_errors(value)]
    assert not errors, errors
