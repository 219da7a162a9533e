"""The OpenAPI 3.1 document, generated from the routes and their schemas (rest-api §1)."""

from __future__ import annotations

from typing import Any, Final

from fastapi.openapi.utils import get_openapi

from postroom.servers.http.rest.schemas import Error, untitled
from postroom.servers.http.table import RouteTable, Rule

VERSION: Final = "3.1.0"
TITLE: Final = "Postroom API"
API_VERSION: Final = "v1"

_SECURITY: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `pmk_…`, or the session of a person, `pms_…`.",
    }
}
_JSON: Final = "application/json"
_REF: Final = "#/components/schemas/"
_GENERAL_HEADERS: Final = ("Request-Id",)
_AUTHENTICATED_HEADERS: Final = ("RateLimit-Limit",)
_LIMITED_HEADERS: Final = ("Retry-After", "RateLimit-Reset")


def document(table: RouteTable) -> dict[str, Any]:
    """The document of the running code."""
    made = get_openapi(title=TITLE, version=API_VERSION, openapi_version=VERSION, routes=table.routes)
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    error = Error.model_json_schema(ref_template=f"{_REF}{{model}}")
    schemas.update(error.pop("$defs", {}))
    schemas["Error"] = error
    components["securitySchemes"] = _SECURITY
    rules = {(rule.path, rule.method.lower()): rule for rule in table.rules}
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            _complete(operation, rules[path, method])
    for schema in schemas.values():
        untitled(schema)
    return made


def _complete(operation: dict[str, Any], rule: Rule) -> None:
    # Not among the route's own extensions, where null would be left out.
    operation["x-required-permission"] = None if rule.is_public else sorted(rule.permissions)
    if not rule.is_public:
        operation["security"] = [{"bearer": []}]
    if "requestBody" in operation:
        operation["requestBody"]["required"] = rule.body_required
    responses = operation["responses"]
    errors = rule.all_errors()
    for status in list(responses):
        if status == "422" and 422 not in errors:
            del responses[status]
            continue
        response = responses[status]
        if int(status) in errors:
            response["content"] = {_JSON: {"schema": {"$ref": f"{_REF}Error"}}}
        response.setdefault("headers", {}).update(_headers(int(status), rule))
    for parameter in operation.get("parameters", ()):
        _parameter(parameter)


def _headers(status: int, rule: Rule) -> dict[str, Any]:
    names = list(_GENERAL_HEADERS)
    if not rule.is_public and status != 401:
        names += _AUTHENTICATED_HEADERS
    if status == 429:
        names += _LIMITED_HEADERS
    if status == 405:
        names.append("Allow")
    return {name: {"schema": {"type": "string"}} for name in names}


def _parameter(parameter: dict[str, Any]) -> None:
    schema = untitled(parameter["schema"])
    # A parameter that is not given is not null: what is optional here may only be left out.
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1 and len(options) < len(schema["anyOf"]):
        del schema["anyOf"]
        schema.update(options[0])
    if schema.get("type") == "array":
        parameter["style"], parameter["explode"] = "form", False
