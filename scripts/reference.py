"""Writes docs/reference/ from the code: settings, errors, REST, IMAP, libraries. `--check` says what is out of date."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import MagicMock

from pydantic import BaseModel

from postroom import __version__, mail, mailauth
from postroom.base.errors import ERRORS
from postroom.base.settings import environment_names
from postroom.base.settings_tree import SECTIONS, TOP_LEVEL, Environment, Settings
from postroom.events.registry import REGISTRY, Owner
from postroom.imap.append import MAX_MESSAGES
from postroom.imap.fetch import MAX_ITEMS
from postroom.imap.search import MAX_DEPTH, MAX_KEYS
from postroom.imap.sequence import MAX_ELEMENTS
from postroom.imap.wire import ReaderLimits
from postroom.mailbox.annotations import MAX_BYTES, MAX_ENTRIES, MAX_VALUE
from postroom.mailbox.rules import MAX_FOLDERS
from postroom.servers.http.app import create_http
from postroom.servers.http.openapi import document
from postroom.servers.http.services import About, HttpServices
from postroom.servers.imap.capabilities import SAID_OF

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference"
_METHODS: Final = ("get", "post", "put", "patch", "delete")
NOTE = "<!-- Made by scripts/reference.py; edit the code, then run it again. -->\n"


_EVERYWHERE: Final = {
    *("unauthenticated", "key_expired", "key_revoked", "invalid_request", "rate_limited", "internal_error"),
    *("unavailable", "payload_too_large", "tenant_suspended", "partner_suspended", "permission_denied"),
    *("scope_denied", "cursor_expired", "invalid_idempotency_key", "idempotency_conflict", "request_in_progress"),
}
"""Codes that are not repeated at each operation."""
Document = Mapping[str, Any]


def settings_page() -> Iterator[str]:
    """Every key with its default, its variable and the sentence beside it in the code."""
    yield "# Settings\n"
    yield NOTE
    yield (
        "Built-in defaults < `postroom.toml` < environment < command line. A malformed value stops the start and names "
        "the key. Secrets (`POSTROOM_MASTER_KEY`, `POSTROOM_KEY_PEPPER`, `POSTROOM_HASH_KEY`: 32 bytes, base64; see "
        "[secrets](../guide/secrets.md)) come "
        "from the environment, from the file that `<NAME>_FILE` names, or from `secrets.toml` in the data directory, "
        "where they are made at the first start.\n"
    )
    names: dict[str, list[str]] = {}
    for variable, key in environment_names().items():
        names.setdefault(key, []).append(variable)
    yield from _table("Top level", Settings, "", TOP_LEVEL, names)
    for section, model in SECTIONS.items():
        yield from _table(f"`[{section}]`", model, f"{section}.", tuple(model.model_fields), names)


def _table(
    title: str, model: type[BaseModel], prefix: str, keys: tuple[str, ...], names: dict[str, list[str]]
) -> Iterator[str]:
    yield f"\n## {title}\n"
    if prefix and model.__doc__:
        yield f"{inspect.cleandoc(model.__doc__)}\n"
    yield "| key | default | environment | meaning |"
    yield "| --- | --- | --- | --- |"
    said = _sentences(model)
    for key in keys:
        variables = ", ".join(f"`{name}`" for name in sorted(names.get(prefix + key, ()), key=len)[:2])
        yield f"| `{key}` | {_default(model, key)} | {variables} | {said.get(key, '')} |"


def _default(model: type[BaseModel], key: str) -> str:
    field = model.model_fields[key]
    if field.is_required():
        return "required"
    value: Any = field.default
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, frozenset):
        value = "all" if len(value) > 1 else ", ".join(sorted(value))
    return f"`{value}`" if value not in ("", None, ()) else ""


def _sentences(model: type[BaseModel]) -> dict[str, str]:
    """The docstring under a field, if it has one."""
    found = re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', inspect.getsource(model), re.MULTILINE | re.DOTALL)
    return {key: " ".join(text.split()) for key, text in found}


def errors_page() -> Iterator[str]:
    """The error table."""
    yield "# Error codes\n"
    yield NOTE
    yield 'Every answer that is not 2xx is `{"error": {code, message, retryable, fix, request_id, details}}`.\n'
    yield "| HTTP | code | retry | what to do |"
    yield "| --- | --- | --- | --- |"
    for spec in sorted(ERRORS.values(), key=lambda spec: (spec.status, spec.code)):
        yield f"| {spec.status} | `{spec.code}` | {'yes' if spec.retryable else 'no'} | {spec.fix} |"


def api_page() -> Iterator[str]:
    """The routes that exist, what each takes and answers."""
    yield "# REST interface\n"
    yield NOTE
    # The rules and the description are the application's own; no route runs here.
    services = MagicMock(about=About(__version__, "unknown", Environment.LOCAL))
    table = create_http(cast(HttpServices, services)).table
    asked = {rule.operation: sorted(one.value for one in rule.permissions) for rule in table.rules}
    yield from _api(document(table), asked)


def _api(described: Document, permissions: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """`permissions` are those an operation asks a key for, by the operation's name."""
    operations = [
        (path, method, item[method])
        for path, item in described["paths"].items()
        for method in _METHODS
        if method in item
    ]
    yield f"{len(operations)} operations. The whole description is served at `/openapi.json`, and shown at `/docs`.\n"
    yield (
        "Any operation may answer with one of these codes as well: "
        + ", ".join(f"`{code}`" for code in sorted(_EVERYWHERE))
        + " ([what each means](errors.md)). `*` stands behind what must be given.\n"
    )
    yield from _index(operations)
    tag = None
    for path, method, operation in operations:
        name = (operation.get("tags") or ["Other"])[0]
        if name != tag:
            yield f"## {name}\n"
            tag = name
        yield from _operation(path, method, operation, permissions.get(operation["operationId"], ()))
    yield "## Objects\n"
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield from _object(name, schema)


def _index(operations: Sequence[tuple[str, str, Document]]) -> Iterator[str]:
    yield "| method | path | operation |"
    yield "| --- | --- | --- |"
    for path, method, operation in operations:
        name = operation["operationId"]
        yield f"| {method.upper()} | `{path}` | [{name}](#{name.lower()}) |"
    yield ""


def _operation(path: str, method: str, operation: Document, permissions: Sequence[str]) -> Iterator[str]:
    yield f"### {operation['operationId']}\n"
    yield f"`{method.upper()} {path}`: {_one_line(operation.get('summary', ''))}.\n"
    if said := _one_line(operation.get("description", "")):
        yield f"{said}\n"
    if permissions:
        yield f"- Permission: {', '.join(f'`{one}`' for one in permissions)}"
    if levels := operation.get("x-key-levels"):
        yield f"- Keys: {', '.join(levels)}"
    if (idempotency := operation.get("x-idempotency", "none")) != "none":
        yield f"- `Idempotency-Key`: {idempotency}"
    asked = [one for one in operation.get("parameters", ()) if one["in"] == "query"]
    if asked:
        yield "- Query: " + " · ".join(_parameter(one["name"], one["schema"], needed=one["required"]) for one in asked)
    body = operation.get("requestBody")
    if body is not None:
        yield "- Body: " + " or ".join(_content_of(kind, one) for kind, one in body["content"].items())
    yield "- Answers: " + "; ".join(_answers(operation["responses"]))
    codes = _codes(operation["responses"])
    if codes:
        yield "- Its own errors: " + ", ".join(codes)
    yield ""


def _answers(responses: Mapping[str, Document]) -> Iterator[str]:
    for status, response in responses.items():
        if status.startswith("2"):
            content = response.get("content", {})
            kinds = " or ".join(_content_of(kind, one) for kind, one in content.items())
            yield f"{status} {kinds}".rstrip()


def _codes(responses: Mapping[str, Document]) -> list[str]:
    return [
        f"{status} `{code}`"
        for status, response in sorted(responses.items())
        for code in response.get("x-error-codes", ())
        if code not in _EVERYWHERE
    ]


def _content_of(kind: str, content: Document) -> str:
    schema = content.get("schema", {})
    if kind == "application/json" and schema:
        return _type(schema)
    return f"`{kind}`"


def _object(name: str, schema: Document) -> Iterator[str]:
    yield f"### {name}\n"
    if said := _one_line(schema.get("description", "")):
        yield f"{said}\n"
    needed = set(schema.get("required", ()))
    fields = schema.get("properties", {})
    if not fields:
        yield f"{_type({**schema, 'description': ''})}\n"
        return
    yield "| field | type | |"
    yield "| --- | --- | --- |"
    for field, one in fields.items():
        star = "*" if field in needed else ""
        yield f"| `{field}`{star} | {_type(one)} | {_one_line(one.get('description', ''))} |"
    yield ""


def _parameter(name: str, schema: Document, *, needed: bool) -> str:
    default = schema.get("default")
    known = f" (default `{default}`)" if default is not None else ""
    return f"`{name}`{'*' if needed else ''} {_type(schema)}{known}"


def _type(schema: Document) -> str:
    """In a few words: `string (≤ 100)`, `IdentityStatus or null`, `list of Address`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{str(name).lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[key]))
    if "enum" in schema:
        return " ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}{_between(schema, 'minItems', 'maxItems')}"
    if kind == "object":
        of = schema.get("additionalProperties")
        return f"object of {_type(of)}" if isinstance(of, dict) and of else "object"
    if kind in ("integer", "number"):
        return str(kind) + _between(schema, "minimum", "maximum")
    if kind == "string":
        return f"{schema.get('format', 'string')}{_between(schema, 'minLength', 'maxLength')}"
    return str(kind)


def _between(schema: Document, least: str, most: str) -> str:
    low, high = schema.get(least), schema.get(most)
    if low is not None and high is not None:
        return f" ({low} to {high})"
    if high is not None:
        return f" (≤ {high})"
    return f" (≥ {low})" if low else ""


def _one_line(text: str) -> str:
    text = text.replace("|", "\\|")
    return " ".join(text.split()).rstrip(".") if "\n" not in text.strip() else " ".join(text.split())


def events_page() -> Iterator[str]:
    """The registry of events."""
    yield "# Events\n"
    yield NOTE
    yield (
        "What the program says of what happened, in [streams, lists and webhooks](../guide/events.md). Whoever is told "
        "needs `webhooks:read`, and for a type what stands beside it. Every event has these members:\n"
    )
    some = next(iter(REGISTRY.values())).schema["properties"]
    yield "| member | type |"
    yield "| --- | --- |"
    for name, schema in some.items():
        kind = {"type": "string", "data": "object", "sequence": "integer or null", "identity_id": "string or null"}
        yield f"| `{name}` | {kind.get(name) or _said(schema)} |"
    yield "\n| type | when | also needs | in the sequence of |"
    yield "| --- | --- | --- | --- |"
    public = [one for one in REGISTRY.values() if one.is_public]
    for one in public:
        needs = ", ".join(f"`{each}`" for each in sorted(one.permissions)) or "–"
        owner = "the identity" if one.owner is Owner.MAILBOX else "none"
        yield f"| [`{one.name}`](#{one.name.replace('.', '')}) | {one.said} | {needs} | {owner} |"
    yield "\nThe schemas are closed: what is not in them is not sent. Tolerate what you do not know all the same.\n"
    for one in public:
        yield f"## `{one.name}`\n"
        yield f"{one.said[0].upper()}{one.said[1:]}.\n"
        yield f"```json\n{json.dumps(one.example, indent=2)}\n```\n"
        yield "The schema of `data`:\n"
        yield f"```json\n{json.dumps(one.data)}\n```\n"


def _said(schema: Document) -> str:
    if "anyOf" in schema:
        return " or ".join(_said(one) for one in schema["anyOf"])
    text = str(schema.get("type", ""))
    return (
        f"{text}, `{schema['pattern']}`" if "pattern" in schema else text + (", RFC 3339" if "format" in schema else "")
    )


def mail_page() -> Iterator[str]:
    """Every public function and class of the two libraries of mail, by module, with what it says of itself."""
    yield "# The libraries of mail\n"
    yield NOTE
    yield (
        "`postroom.mail` reads and writes messages, `postroom.mailauth` judges who sent them. Neither knows of a "
        "database, a setting or a clock; only `mailauth` asks somebody, the resolver that it is given. What they do "
        "where real mail breaks the RFCs is on [a page of its own](../guide/odd-mail.md).\n"
    )
    for package in (mail, mailauth):
        for info in sorted(pkgutil.walk_packages(package.__path__, f"{package.__name__}."), key=lambda one: one.name):
            module = importlib.import_module(info.name)
            members = [
                member
                for name, member in vars(module).items()
                if not name.startswith("_") and getattr(member, "__module__", None) == info.name
                if inspect.isclass(member) or inspect.isfunction(inspect.unwrap(member))
            ]
            if members:
                yield f"## `{info.name}`\n"
                yield f"{inspect.getdoc(module) or ''}\n"
                yield from map(_member, members)
                yield ""


def imap_page() -> Iterator[str]:
    """What the IMAP server offers, and its limits."""
    yield "# IMAP\n"
    yield NOTE
    yield "How to set up a program is in the [guide](../guide/mail-clients.md).\n"
    yield "## Extensions\n"
    yield "| capability | described in | of ours |"
    yield "| --- | --- | --- |"
    for name, (described, remark) in SAID_OF.items():
        yield f"| `{name}` | {described} | {remark} |"
    yield "\n## Limits\n"
    yield "| of | limit | beyond it |"
    yield "| --- | --- | --- |"
    reader = ReaderLimits()
    for what, limit, beyond in (
        ("a command without literals", _octets(reader.max_line), "`BAD`"),
        ("a literal that is no message", _octets(reader.max_literal), "`NO [TOOBIG]` or `BAD`"),
        ("all such literals of a command", _octets(reader.max_literal_total), "`NO [LIMIT]`"),
        ("a message of APPEND", "`imap.max_append_size`", "`NO [TOOBIG]`"),
        ("messages of one APPEND", f"{MAX_MESSAGES:,}", "`NO [LIMIT]`"),
        ("messages that one command works on", "`imap.message_limit`", "the last of them, `OK [MESSAGELIMIT]`"),
        ("the same of COPY", "`imap.message_limit`", "`NO [MESSAGELIMIT]`"),
        ("elements of a sequence set", f"{MAX_ELEMENTS:,}", "`NO [LIMIT]`"),
        ("keys of a search", f"{MAX_KEYS:,}, {MAX_DEPTH} deep", "`NO [LIMIT]`"),
        ("items of a FETCH", f"{MAX_ITEMS:,}", "`NO [LIMIT]`"),
        ("keywords of a message", "64", "`NO [LIMIT]`"),
        ("folders of a mailbox", f"{MAX_FOLDERS:,}", "`NO [LIMIT]`"),
        ("entries of METADATA", f"{MAX_ENTRIES} of a folder and owner", "`NO [METADATA TOOMANY]`"),
        ("a value of METADATA", _octets(MAX_VALUE), "`NO [METADATA MAXSIZE n]`"),
        ("all values of a mailbox", _octets(MAX_BYTES), "`NO [METADATA TOOMANY]`"),
    ):
        yield f"| {what} | {limit} | {beyond} |"


def _octets(number: int) -> str:
    return f"{number // 1024 // 1024} MiB" if number % (1024 * 1024) == 0 else f"{number // 1024} KiB"


def _member(member: Any) -> str:
    """A function with its arguments, or a class, and the first paragraph of its docstring."""
    kind = "class" if inspect.isclass(member) else "function"
    arguments = "" if inspect.isclass(member) else _arguments(inspect.unwrap(member))
    said = (inspect.getdoc(member) or "").partition("\n\n")[0].replace("\n", " ")
    if inspect.isclass(member) and said.startswith(f"{member.__name__}("):
        said = ""  # made by dataclass
    return f"- {kind} **`{member.__name__}{arguments}`**{': ' if said else ''}{said}"


def _arguments(function: Any) -> str:
    """As they are written in the code: types by name, defaults that are long left out."""
    signature = inspect.signature(function)
    shown = []
    starred = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        shown.append(name if parameter.default is parameter.empty else f"{name}=…")
    return f"({', '.join(shown)})"


PAGES = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "api.md": api_page,
    "events.md": events_page,
    "mail.md": mail_page,
    "imap.md": imap_page,
}


def main() -> int:
    """Write the pages, or compare them."""
    check = "--check" in sys.argv[1:]
    TARGET.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, page in PAGES.items():
        text = "\n".join(page()) + "\n"
        path = TARGET / name
        if check and (not path.is_file() or path.read_text() != text):
            stale.append(name)
        elif not check:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run python scripts/reference.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
