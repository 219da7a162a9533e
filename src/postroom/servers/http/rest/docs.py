"""`/docs`: the OpenAPI document as one page to read, without a script and without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from typing import Any, Final

from starlette.responses import Response

from postroom.servers.http import openapi
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "code{font:14px ui-monospace,monospace}table{border-collapse:collapse;margin:.5rem 0}"
    "td,th{border:1px solid #8888;padding:.2rem .5rem;text-align:left;vertical-align:top}"
    "section{border-top:1px solid #8888}nav a{margin-right:.7rem}:root{color-scheme:light dark}"
)
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
}


class _Page:
    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._made: bytes | None = None

    async def answer(self) -> Response:
        if self._made is None:
            self._made = "".join(render(openapi.document(self._table))).encode()
        return Response(self._made, media_type="text/html; charset=utf-8", headers=HEADERS)


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operation."""
    table.add(
        Rule(
            *("GET", "/docs", "getDocumentation", "Meta", Reach.PUBLIC, frozenset(), frozenset(), Bucket.NONE),
            idempotency=Idempotency.NONE,
            in_sdk=False,
        ),
        _Page(table).answer,
        summary="The OpenAPI document as a page to read",
        answers={200: None},
        contents={200: "text/html"},
        headers=("Content-Security-Policy",),
    )


def render(document: dict[str, Any]) -> Iterator[str]:
    """The page of a document, in pieces."""
    title = escape(document["info"]["title"])
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    yield f'</head><body><h1>{title}</h1><p>Made from <a href="/openapi.json">/openapi.json</a>.</p>'
    tags: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tags.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    yield "<nav>" + "".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in tags)
    yield '<a href="#schemas">Schemas</a></nav>'
    for tag, operations in tags.items():
        yield f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>'
        for method, path, operation in operations:
            yield from _operation(method, path, operation)
    yield '<h2 id="schemas">Schemas</h2>'
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _schema(name, schema)
    yield "</body></html>\n"


def _anchor(tag: str) -> str:
    return escape("tag-" + tag.lower().replace(" ", "-"), quote=True)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    name = escape(operation["operationId"])
    yield f'<section id="{name}"><h3><code>{method} {escape(path)}</code></h3><p>{escape(operation["summary"])}. '
    yield f"<code>{name}</code>"
    if permissions := operation["x-required-permission"]:
        yield "; needs " + ", ".join(f"<code>{escape(one)}</code>" for one in permissions)
    if levels := operation["x-key-levels"]:
        yield "; keys: " + escape(", ".join(levels))
    yield "</p>"
    if parameters := operation.get("parameters"):
        yield "<table><tr><th>parameter</th><th>in</th><th>value</th></tr>"
        for one in parameters:
            needed = " (required)" if one.get("required") else ""
            yield f"<tr><td><code>{escape(one['name'])}</code>{needed}</td><td>{escape(one['in'])}</td>"
            yield f"<td>{_type(one['schema'])}</td></tr>"
        yield "</table>"
    if body := operation.get("requestBody"):
        yield f"<p>Body: {_type(next(iter(body['content'].values()))['schema'])}</p>"
    yield "<table><tr><th>answer</th><th>what</th></tr>"
    for status, response in sorted(operation["responses"].items()):
        codes = ", ".join(f"<code>{escape(code)}</code>" for code in response.get("x-error-codes", ()))
        kinds = [
            f"<code>{escape(media)}</code> {_type(entry.get('schema', {}))}"
            for media, entry in response.get("content", {}).items()
        ]
        yield f"<tr><td>{escape(status)}</td><td>{codes or ', '.join(kinds) or 'nothing'}</td></tr>"
    yield "</table></section>"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<section id="schema-{escape(name, quote=True)}"><h3><code>{escape(name)}</code></h3>'
    if "properties" not in schema:
        yield f"<p>{_type(schema)}</p></section>"
        return
    required = set(schema.get("required", ()))
    yield "<table><tr><th>member</th><th>value</th></tr>"
    for member, entry in schema["properties"].items():
        needed = " (required)" if member in required else ""
        yield f"<tr><td><code>{escape(member)}</code>{needed}</td><td>{_type(entry)}</td></tr>"
    yield "</table></section>"


_SAID: Final = ("format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "default")


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2], quote=True)
        return f'<a href="#schema-{name}">{name}</a>'
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(_type(one) for one in schema[union])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(f"<code>{escape(str(one))}</code>" for one in values)
    said = "; ".join(f"{key} {escape(str(schema[key]))}" for key in _SAID if key in schema)
    of = f" of {_type(schema['items'])}" if "items" in schema else ""
    return escape(str(schema.get("type", "any"))) + of + (f" ({said})" if said else "")
