"""Schemas that all resources share: errors, and how the service is (rest-api §6). For the document only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from postroom.accounts.permissions import Permission
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull

Address_ = Annotated[str, StringConstraints(max_length=254), Field(json_schema_extra={"format": "email"})]
Metadata = Annotated[dict[str, Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Violation(Answer):
    path: str
    message: str


class ErrorDetails(Answer):
    """Optional and per code; others may appear."""

    model_config = ConfigDict(extra="allow", frozen=True)

    required: Annotated[list[Permission] | None, NotNull()] = None
    errors: Annotated[list[Violation] | None, NotNull()] = None
    reason: Annotated[str | None, NotNull()] = None
    field: Annotated[str | None, NotNull()] = None
    limit: Annotated[Annotated[int, Field(ge=1)] | None, NotNull()] = None
    retry_after: Annotated[Count | None, NotNull()] = None
    bucket: Annotated[
        Literal["key", "session", "tenant", "partner", "search", "agentic", "send", "sign", "partner_create"] | None,
        NotNull(),
    ] = None


class ErrorBody(Answer):
    code: str
    message: str
    retryable: bool
    fix: str
    request_id: fields.RequestId
    details: Annotated[ErrorDetails | None, NotNull()] = None


class Error(Answer):
    """The envelope of everything that is no success."""

    error: ErrorBody


class Health(Answer):
    status: Literal["ok", "degraded"]
    version: str
    commit: str
    env: Literal["production", "staging", "local"]


class Readiness(Answer):
    """Whether what a request needs can be reached."""

    status: Literal["ok"]
    database: Literal["ok"]
    blobs: Literal["ok"]
    migrations: Literal["ok"]


def untitled(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the titles that pydantic makes of names, and without defaults that only say "not given"."""
    if isinstance(schema.get("title"), str):
        schema.pop("title")
    if schema.get("default", ...) is None:
        schema.pop("default")
    for value in schema.values():
        for inner in value if isinstance(value, list) else (value,):
            if isinstance(inner, dict):
                untitled(inner)
    return schema
