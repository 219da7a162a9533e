"""Writes the generated half of clients/python from the served OpenAPI document. `--check` says what is out of date.

values.py            what enumerations may be
models.py            what is answered: frozen dataclasses
bodies.py            what is sent: typed dictionaries
_operations.py       one constant for each operation
_resources.py        one method for each operation, grouped by tag
_async_resources.py  the same with await
"""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

from postroom.base.settings_tree import Environment
from postroom.servers.http import About, create_http, openapi

TARGET: Final = Path(__file__).resolve().parent.parent / "clients" / "python" / "src" / "postroom_client"
NOTE: Final = "Made by scripts/sdk.py from the server's OpenAPI document; change the server, then run it again."
JSON: Final = "application/json"
ANY_OBJECT: Final = "dict[str, Any]"
EVERYWHERE: Final = {
    *("unauthenticated", "key_expired", "key_revoked", "permission_denied", "scope_denied", "tenant_suspended"),
    *("partner_suspended", "rate_limited", "internal_error", "unavailable", "timeout", "upstream_error"),
    *("invalid_request", "invalid_idempotency_key", "idempotency_key_required", "idempotency_conflict"),
    *("request_in_progress", "payload_too_large"),
}
"""Codes that go without saying."""


def served() -> dict[str, Any]:
    """The document of the running code; no route runs here."""
    return openapi.document(create_http(MagicMock(about=About("0", "unknown", Environment.LOCAL))).table)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def identifier(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def doc(text: str, indent: str = "") -> str:
    """A docstring; every paragraph of `text` wrapped."""
    wrapped = [textwrap.fill(part, 116 - len(indent), break_on_hyphens=False) for part in text.split("\n\n")]
    body = "\n\n".join(wrapped).replace("\\", "\\\\")
    if "\n" not in body and len(body) < 112 - len(indent):
        return textwrap.indent(f'"""{body}"""', indent)
    return textwrap.indent(f'"""{body}\n"""', indent)


def literal(options: Iterable[Any]) -> str:
    return f"Literal[{', '.join(repr(one) for one in options)}]"


@dataclass(frozen=True)
class Parameter:
    """Of a path or a query."""

    name: str
    required: bool
    schema: dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """One of the document."""

    name: str
    method: str
    path: str
    data: dict[str, Any]

    @property
    def python(self) -> str:
        return snake(self.name)

    @property
    def constant(self) -> str:
        return self.python.upper()

    @property
    def group(self) -> str:
        """The name of its resource: the tag in snake case."""
        return re.sub(r"\W+", "_", str(self.data["tags"][0]).lower())

    @property
    def keyed(self) -> str:
        return str(self.data["x-idempotency"])

    def parameters(self, place: str) -> list[Parameter]:
        return [
            Parameter(one["name"], one["required"], one["schema"])
            for one in self.data.get("parameters", ())
            if one["in"] == place
        ]

    @cached_property
    def body(self) -> tuple[str, bool] | None:
        """The schema of the body and whether there has to be one."""
        if "requestBody" not in self.data:
            return None
        content = self.data["requestBody"]["content"]
        assert list(content) == [JSON], f"{self.name}: only JSON is sent yet"
        return content[JSON]["schema"]["$ref"].rsplit("/", 1)[1], bool(self.data["requestBody"]["required"])

    @cached_property
    def answers(self) -> dict[int, str | None]:
        """Status → schema; None without a body, and `ANY_OBJECT` for JSON of any kind. Empty: bytes."""
        found: dict[int, str | None] = {}
        successes = {int(status): one for status, one in self.data["responses"].items() if status.startswith("2")}
        for status, response in successes.items():
            content = response.get("content", {})
            if content == {JSON: {"schema": {}}} and len(successes) > 1:
                continue  # FastAPI says 200 of everything
            if not content:
                found[status] = None
            elif JSON not in content:
                return {}
            else:
                reference = content[JSON]["schema"].get("$ref")
                found[status] = ANY_OBJECT if reference is None else reference.rsplit("/", 1)[1]
        assert found, f"{self.name}: succeeds with nothing"
        return found

    @property
    def codes(self) -> list[str]:
        said = {code for one in self.data["responses"].values() for code in one.get("x-error-codes", ())}
        return sorted(said - EVERYWHERE)


class Api:
    """The document as it is needed here."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.schemas: dict[str, dict[str, Any]] = document["components"]["schemas"]
        self.operations = [
            Operation(one["operationId"], method.upper(), path, one)
            for path, methods in document["paths"].items()
            for method, one in methods.items()
            if one.get("x-sdk", True)
        ]
        self.sent = self._reached(one.data.get("requestBody") for one in self.operations)
        self.answered = self._reached(
            response
            for one in self.operations
            for status, response in one.data["responses"].items()
            if status.startswith("2")
        )
        used = self._reached(one.data.get("parameters") for one in self.operations) | self.sent | self.answered
        self.enumerations = sorted(name for name in used if "enum" in self.schemas[name])

    def _reached(self, places: Iterable[Any]) -> set[str]:
        found: set[str] = set()
        waiting = list(places)
        while waiting:
            place = waiting.pop()
            if isinstance(place, dict):
                if isinstance(reference := place.get("$ref"), str):
                    name = reference.rsplit("/", 1)[1]
                    if name not in found:
                        found.add(name)
                        waiting.append(self.schemas[name])
                waiting += place.values()
            elif isinstance(place, list):
                waiting += place
        return found

    def python(self, name: str) -> str:
        """A schema's class. Those that pydantic tells apart by their module keep a word of it."""
        *module, last = name.split("__")
        return "".join(word.title() for word in module[-1].split("_")) + last if module else last

    def body_name(self, name: str) -> str:
        return self.python(name) + ("Input" if name in self.answered else "")

    def kind(self, schema: dict[str, Any], *, sent: bool, bodies: str = "", models: str = "") -> str:
        """The annotation for a schema; `bodies` and `models` are what stands before the names of such."""
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            if name in self.enumerations:
                return f"values.{name}" if sent else f"values.{name} | str"
            if sent and not self._closed(name):
                return "Mapping[str, str]"
            return bodies + self.body_name(name) if sent else models + self.python(name)
        if "anyOf" in schema:
            kinds = [self.kind(one, sent=sent, bodies=bodies, models=models) for one in schema["anyOf"]]
            return " | ".join(dict.fromkeys(kinds))
        if "enum" in schema:
            return literal(schema["enum"]) if sent else f"{literal(schema['enum'])} | str"
        if "const" in schema and sent:
            return literal([schema["const"]])
        return self._plain(schema, sent=sent, bodies=bodies, models=models)

    def _plain(self, schema: dict[str, Any], *, sent: bool, bodies: str, models: str) -> str:
        match schema.get("type"):
            case "string":
                if schema.get("format") == "date-time":
                    return "datetime | str" if sent else "datetime"
                return "str"
            case "integer":
                return "int"
            case "number":
                return "float"
            case "boolean":
                return "bool"
            case "null":
                return "None"
            case "array":
                item = self.kind(schema["items"], sent=sent, bodies=bodies, models=models)
                return f"Sequence[{item}]" if sent else f"tuple[{item}, ...]"
            case "object" if "properties" not in schema:
                free = schema.get("additionalProperties", True)
                value = "Any" if free is True else self.kind(free, sent=sent, bodies=bodies, models=models)
                return f"Mapping[str, {value}]"
            case None if not set(schema) - {"description", "title", "default"}:
                return "Any"
        raise AssertionError(f"no annotation for {schema}")

    def _closed(self, name: str) -> bool:
        """Whether a schema names its members; a typed dictionary cannot have others beside them."""
        return not isinstance(self.schemas[name].get("additionalProperties"), dict)


# -- the files


def header(about: str, *imports: str) -> str:
    return "\n".join((f'"""{about}\n\n{NOTE}\n"""\n', "from __future__ import annotations\n", *imports, ""))


def values_file(api: Api) -> Iterator[str]:
    yield header("What enumerations may be today; a newer server may know more.", "from typing import Literal\n")
    for name in api.enumerations:
        yield f"{name} = {literal(api.schemas[name]['enum'])}"


def models_file(api: Api) -> Iterator[str]:
    yield header(
        "What the server answers.",
        "import dataclasses",
        "from collections.abc import Mapping",
        "from datetime import datetime",
        "from typing import Any, Literal\n",
        "from . import values",
        "from ._decode import Model, named",
    )
    for name in sorted(api.answered - set(api.enumerations)):
        schema = api.schemas[name]
        yield "\n@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)"
        yield f"class {api.python(name)}(Model):"
        yield doc(schema.get("description", f"`{api.python(name)}` of the API."), "    ") + "\n"
        required = schema.get("required", ())
        for member, one in schema["properties"].items():
            kind = api.kind(one, sent=False)
            options = []
            if member not in required:
                kind = kind if "None" in kind.split(" | ") else f"{kind} | None"
                options.append("default=None")
            if identifier(member) != member:
                options.append(f"metadata=named({member!r})")
            value = f" = dataclasses.field({', '.join(options)})" if options else ""
            if options == ["default=None"]:
                value = " = None"
            yield f"    {identifier(member)}: {kind}{value}"


def bodies_file(api: Api) -> Iterator[str]:
    yield header(
        "What the server is sent.",
        "from collections.abc import Mapping, Sequence",
        "from datetime import datetime",
        "from typing import Literal, NotRequired, TypedDict\n",
        "from . import values",
    )
    unions = []
    for name in sorted(api.sent - set(api.enumerations)):
        schema = api.schemas[name]
        if isinstance(schema.get("additionalProperties"), dict):
            continue
        if "anyOf" in schema:
            unions.append(f"\n{api.body_name(name)} = {api.kind(schema, sent=True)}")
            continue
        required = schema.get("required", ())
        members = []
        for member, one in schema["properties"].items():
            kind = api.kind(one, sent=True)
            members.append((member, kind if member in required else f"NotRequired[{kind}]"))
        about = doc(schema.get("description", f"`{api.body_name(name)}` of the API."), "    ")
        if all(identifier(member) == member for member, _ in members):
            yield f"\nclass {api.body_name(name)}(TypedDict):\n{about}\n"
            yield from (f"    {member}: {kind}" for member, kind in members)
        else:
            # A member has the name of a keyword.
            inner = ", ".join(f'"{member}": "{kind}"' for member, kind in members)
            yield f'\n{api.body_name(name)} = TypedDict("{api.body_name(name)}", {{{inner}}})'
    yield from unions


def returned(api: Api, operation: Operation, status: int | None = None, prefix: str = "models.") -> str:
    """The annotation of what an operation gives, under one status or any."""
    kinds = [
        "None" if one is None else one if one == ANY_OBJECT else prefix + api.python(one)
        for at, one in operation.answers.items()
        if status in (None, at)
    ]
    return " | ".join(dict.fromkeys(kinds)) or "None"


def item_of(api: Api, operation: Operation) -> str | None:
    """The kind of the items, of a list."""
    if list(operation.answers) != [200] or operation.answers[200] not in api.schemas:
        return None
    properties = api.schemas[operation.answers[200] or ""].get("properties", {})
    if set(properties) != {"data", "next_cursor"}:
        return None
    return api.kind(properties["data"]["items"], sent=False, models="models.")


def operations_file(api: Api) -> Iterator[str]:
    yield header(
        "Every operation: how it is asked and what it answers.",
        "from typing import Any, Final\n",
        "from . import models",
        "from ._core import Keyed, Operation",
    )
    for one in api.operations:
        answers = ", ".join(
            f"{status}: {'None' if name is None else 'dict' if name == ANY_OBJECT else 'models.' + api.python(name)}"
            for status, name in one.answers.items()
        )
        keyed = "" if one.keyed == "none" else f", Keyed.{one.keyed.upper()}"
        arguments = f'"{one.name}", "{one.method}", "{one.path}", {{{answers}}}{keyed}'
        yield f"{one.constant}: Final[Operation[{returned(api, one)}]] = Operation({arguments})"


class Methods:
    """The methods of one kind of client."""

    def __init__(self, api: Api, *, awaits: bool) -> None:
        self.api = api
        self.prefix = "Async" if awaits else ""
        self.define = "async def" if awaits else "def"
        self.awaits = "await " if awaits else ""

    def file(self) -> Iterator[str]:
        kinds = "One method for each operation, by resource"
        caller = "._async" if self.prefix else "._sync"
        yield header(
            f"{kinds}{', for event loops' if self.prefix else ''}.",
            "from collections.abc import Sequence",
            "from datetime import datetime",
            "from typing import Any, Literal, overload\n",
            "from . import _operations as operations",
            "from . import bodies, models, values",
            f"from {caller} import {self.prefix}Caller",
            f"from .downloads import {self.prefix}Downloading",
            f"from .pagination import {self.prefix}Pages",
        )
        groups: dict[str, list[Operation]] = {}
        for one in self.api.operations:
            groups.setdefault(one.group, []).append(one)
        for group, members in groups.items():
            yield f"\nclass {self._class(group)}:\n"
            yield doc(f"The operations of “{members[0].data['tags'][0]}”.", "    ") + "\n"
            yield f"    def __init__(self, caller: {self.prefix}Caller) -> None:\n        self._caller = caller\n"
            for one in members:
                yield from self._method(one)
        yield f"\nclass {self.prefix}Resources:\n"
        yield doc("All of them, as a client has them.", "    ") + "\n"
        yield f"    def __init__(self, caller: {self.prefix}Caller) -> None:"
        yield from (f"        self.{group} = {self._class(group)}(caller)" for group in groups)

    def _class(self, group: str) -> str:
        return self.prefix + "".join(word.title() for word in group.split("_"))

    def _method(self, one: Operation) -> Iterator[str]:
        item = item_of(self.api, one)
        if not one.answers:
            yield from self._simple(one, "download", f"{self.prefix}Downloading")
        elif item is not None:
            page = returned(self.api, one)
            yield from self._simple(one, "pages", f"{self.prefix}Pages[{page}, {item}]")
        elif one.keyed == "required":
            yield from self._sending(one)
        else:
            yield from self._calling(one, returned(self.api, one), self._key(one))

    def _key(self, one: Operation) -> str:
        return "idempotency_key: str | None = None, " if one.keyed == "optional" else ""

    def _sending(self, one: Operation) -> Iterator[str]:
        """What sends mail has to be told its key; a dry run, which sends none, does not."""
        real, dry = (returned(self.api, one, status) for status in (202, 200))
        assert {parameter.name for parameter in one.parameters("query")} == {"dry_run"}, one.name
        sends = self._signature(one, "idempotency_key: str, dry_run: Literal[False] = False, ", named=False)
        tries = self._signature(one, "dry_run: Literal[True], idempotency_key: str | None = None, ", named=False)
        yield f"    @overload\n    {self.define} {sends} -> {real}: ..."
        yield f"    @overload\n    {self.define} {tries} -> {dry}: ..."
        both = "idempotency_key: str | None = None, dry_run: bool = False, "
        yield from self._calling(one, f"{real} | {dry}", both, named=False)

    def _calling(self, one: Operation, result: str, key: str, *, named: bool = True) -> Iterator[str]:
        yield f"    {self.define} {self._signature(one, key, named=named)} -> {result}:"
        yield self._about(one)
        body = "body" if one.body else "None"
        arguments = [f"operations.{one.constant}", self._path(one), self._query(one), body]
        arguments += ["idempotency_key" if key else "None", "request_timeout"]
        back = "" if result == "None" else "return "
        yield f"        {back}{self.awaits}self._caller.call({', '.join(arguments)})\n"

    def _simple(self, one: Operation, method: str, result: str) -> Iterator[str]:
        """Lists and downloads: what they give asks for itself."""
        yield f"    def {self._signature(one, '')} -> {result}:"
        yield self._about(one)
        arguments = [f"operations.{one.constant}", self._path(one), self._query(one, without="cursor")]
        arguments += ["cursor"] if method == "pages" else []
        yield f"        return self._caller.{method}({', '.join([*arguments, 'request_timeout'])})\n"

    def _signature(self, one: Operation, key: str, *, named: bool = True) -> str:
        positional = [f"{parameter.name}: {self._kind(parameter)}" for parameter in one.parameters("path")]
        if one.body:
            name, required = one.body
            kind = f"bodies.{self.api.body_name(name)}"
            positional.append(f"body: {kind}" if required else f"body: {kind} | None = None")
        keywords = []
        for parameter in sorted(one.parameters("query"), key=lambda parameter: not parameter.required):
            kind = self._kind(parameter)
            optional = "" if parameter.required else " | None = None"
            keywords.append(f"{identifier(parameter.name)}: {kind}{optional}")
        asked = f"{', '.join(keywords)}, " if named and keywords else ""
        places = "".join(f"{place}, " for place in positional)
        return f"{one.python}(self, {places}*, {key}{asked}request_timeout: float | None = None)"

    def _kind(self, parameter: Parameter) -> str:
        kind = self.api.kind(parameter.schema, sent=True)
        return "datetime" if kind == "datetime | str" else kind

    def _path(self, one: Operation) -> str:
        names = re.findall(r"\{(\w+)\}", one.path)
        assert sorted(names) == sorted(parameter.name for parameter in one.parameters("path")), one.name
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"

    def _query(self, one: Operation, without: str = "") -> str:
        names = [parameter.name for parameter in one.parameters("query") if parameter.name != without]
        return "{" + ", ".join(f'"{name}": {identifier(name)}' for name in names) + "}"

    def _about(self, one: Operation) -> str:
        permissions = one.data.get("x-required-permission")
        wants = f"; wants {' and '.join(f'`{name}`' for name in permissions)}" if permissions else ""
        codes = f" May say {', '.join(f'`{code}`' for code in one.codes)}." if one.codes else ""
        return doc(f"{one.data['summary'].rstrip('.')}.\n\n`{one.method} {one.path}`{wants}.{codes}", "        ")


BLOCKING: Final = {
    "async def ": "def ",
    "async for ": "for ",
    "await ": "",
    "Awaitable, ": "",
    "Awaitable[object]": "object",
    "handle_async_request": "handle_request",
    "aiter_bytes": "iter_bytes",
    "aclose": "close",
    "Async": "",
    "until_async": "until",
    "the transport of an event loop": "a blocking transport",
    "Several tasks": "Several threads",
}


def blocking(text: str) -> str:
    """The module of calls for threads, from the one for event loops: there is one way to send, not two."""
    about, _, rest = text.partition("\n")
    made = f'{about[:-3]}\n\nMade by scripts/sdk.py from _async.py; change that, then run it again.\n"""\n{rest}'
    for awaiting, plain in BLOCKING.items():
        made = made.replace(awaiting, plain)
    return made


# -- writing


def files(document: dict[str, Any]) -> dict[str, str]:
    """Name → text, as ruff formats it and without the imports that nobody needs."""
    api = Api(document)
    made = {
        "values.py": values_file(api),
        "models.py": models_file(api),
        "bodies.py": bodies_file(api),
        "_operations.py": operations_file(api),
        "_resources.py": Methods(api, awaits=False).file(),
        "_async_resources.py": Methods(api, awaits=True).file(),
    }
    texts = {name: "\n".join(lines) + "\n" for name, lines in made.items()}
    texts["_sync.py"] = blocking((TARGET / "_async.py").read_text())
    return {name: _tidy(text, name) for name, text in texts.items()}


def _tidy(text: str, name: str) -> str:
    path = str(TARGET / name)
    for command in (["check", "--quiet", "--fix", "--select", "F401,I"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        text = done.stdout
    return text


def main() -> int:
    """Write the files, or compare them."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, text in files(served()).items():
        path = TARGET / name
        if check and (not path.is_file() or path.read_text() != text):
            stale.append(name)
        elif not check:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run python scripts/sdk.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
