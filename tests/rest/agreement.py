"""Whether an answer is one of those that the OpenAPI document describes."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator, FormatChecker

from postroom.servers.http.table import Rule
from tests.rest.contract import check

_formats = FormatChecker(["email"])


def _is_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


_formats.checks("date-time")(_is_time)


_documents: dict[int, dict[str, Any]] = {}


def agree(document: dict[str, Any], rule: Rule, response: httpx.Response) -> None:
    """Raises when the status is not described, the body is none of its schema, or a fault is ours; every refusal is
    the envelope with a code that the operation names, and every answer has its id.
    """
    what = (rule.operation, response.status_code, response.text[:1000])
    assert response.status_code != 500, what
    assert response.headers["request-id"].startswith("req_"), what
    described = document["paths"][rule.path][rule.method.lower()]["responses"].get(str(response.status_code))
    assert described is not None, what
    if response.status_code >= 400:
        check("Error", response.json())
        assert response.json()["error"]["code"] in described["x-error-codes"], what
        assert response.json()["error"]["request_id"] == response.headers["request-id"], what
    content = described.get("content", {})
    if not content:
        assert response.content == b"", what
        return
    media = response.headers["content-type"].partition(";")[0]
    assert media in content or "*/*" in content, what
    if "$ref" in (schema := content.get(media, {}).get("schema", {})):
        _documents[id(document)] = document
        name = schema["$ref"].rpartition("/")[2]
        errors = [
            f"{'/'.join(map(str, one.path))}: {one.message}"
            for one in _validator(id(document), name).iter_errors(response.json())
        ]
        assert errors == [], (rule.operation, errors)


@lru_cache(maxsize=1000)
def _validator(document: int, name: str) -> Draft202012Validator:
    """Of a schema of the document; a member more than it has is an error, too."""
    schemas = {
        one: {**schema, "additionalProperties": schema.get("additionalProperties", False)}
        if "properties" in schema
        else schema
        for one, schema in _documents[document]["components"]["schemas"].items()
    }
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}, format_checker=_formats
    )
