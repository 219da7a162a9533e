"""Values that schemas of the OpenAPI document take: the least of each, and any as hypothesis strategies."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final
from unittest.mock import MagicMock

from hypothesis import strategies as st

from postroom.base.settings_tree import Environment
from postroom.servers.http import About, create_http, openapi

TABLE: Final = create_http(MagicMock(about=About("0", "unknown", Environment.LOCAL))).table
DOCUMENT: Final = openapi.document(TABLE)
SCHEMAS: Final[dict[str, dict[str, Any]]] = DOCUMENT["components"]["schemas"]
TIMES: Final = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.isoformat().replace("+00:00", "Z"))


def example(name: str) -> dict[str, Any]:
    """An object of the schema with the members that it has to have."""
    made: dict[str, Any] = _least(SCHEMAS[name])
    return made


def _least(schema: dict[str, Any]) -> Any:
    schema = _resolved(schema)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "anyOf" in schema:
        return _least(schema["anyOf"][0])
    match schema.get("type"):
        case "object":
            return {name: _least(schema["properties"][name]) for name in schema.get("required", ())}
        case "array":
            return [_least(schema["items"])] * schema.get("minItems", 0)
        case "integer" | "number":
            return int(schema.get("minimum", 0))
        case "boolean":
            return True
        case "string":
            return "2031-01-01T00:00:00Z" if schema.get("format") == "date-time" else "x"
    return None


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    return schema


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Whatever the schema takes. Lengths and patterns are left out: what is written like that is text to a client."""
    schema = _resolved(schema)
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([values(one) for one in schema["anyOf"]])
    match schema.get("type"):
        case "object":
            return _objects(schema)
        case "array":
            return st.lists(values(schema["items"]), max_size=2)
        case "integer":
            return st.integers()
        case "number":
            return st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "string":
            return TIMES if schema.get("format") == "date-time" else st.text(max_size=8)
    return st.none() | st.booleans() | st.text(max_size=8)


def _objects(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        free = schema.get("additionalProperties", True)
        return st.dictionaries(st.text(max_size=8), values({} if free is True else free), max_size=2)
    required = schema.get("required", ())
    members = schema["properties"].items()
    return st.fixed_dictionaries(
        {name: values(one) for name, one in members if name in required},
        optional={name: values(one) for name, one in members if name not in required},
    )
