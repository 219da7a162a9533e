"""Agreement with the published contract: the OpenAPI document, and what is really answered."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.mailbox.models import Direction
from tests.rest.contract import CONTRACT, OPERATIONS, check
from tests.rest.world import World, simple_mail

# Served beside the contract (decisions D8, E).
BESIDE = {
    *("getReadiness", "getDocumentation"),
    *("listFolders", "createFolder", "getFolder", "updateFolder", "deleteFolder"),
    *("moveMessages", "copyMessages", "expungeMessages", "flagMessages"),
    *("listEvents", "streamEvents"),
}
# What operations and schemas of the contract have beyond it, for the folders of a mailbox (decisions E).
MORE_PARAMETERS = {"listMessages": {("query", "folder"), ("query", "include")}}
MORE_MEMBERS = {"Message": {"placements"}, "SendResponse": {"placements"}}


@pytest.fixture
async def document(world: World) -> dict[str, Any]:
    response = await world.client.get("/openapi.json")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def operations(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    return {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


@pytest.mark.covers("decisions:B23", "FR-API-1")
async def test_the_same_operations(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    served = operations(document)
    assert {name: served[name][:2] for name in served if name not in BESIDE} == {
        name: (item["method"], item["path"]) for name, item in OPERATIONS.items()
    }


async def test_parameters_and_bodies(document: dict[str, Any]) -> None:
    for name, (_, _, operation) in operations(document).items():
        if name in BESIDE:
            continue
        wanted = OPERATIONS[name]
        found = {(p["in"], p["name"]): p for p in operation.get("parameters", ())}
        expected = {(place, key) for place, keys in wanted["parameters"].items() for key in keys}
        assert set(found) == expected | MORE_PARAMETERS.get(name, set()), name
        for place, keys in wanted["parameters"].items():
            for key, entry in keys.items():
                _same_parameter(document, found[place, key], entry, f"{name}.{key}")
        body = operation.get("requestBody")
        assert (body is not None) == (wanted["request_schema"] is not None), name
        if body is not None:
            reference = body["content"]["application/json"]["schema"]["$ref"]
            assert reference.rpartition("/")[2] == wanted["request_schema"]
            assert body.get("required", False) is wanted["request_required"]


def _same_parameter(document: dict[str, Any], found: dict[str, Any], entry: dict[str, Any], where: str) -> None:
    schema = resolve(document, found["schema"])
    assert found.get("required", False) is entry["required"], where
    assert schema["type"] == entry["type"], where
    target = entry
    if "ref" in entry:
        target = CONTRACT["scalars"].get(entry["ref"], {})
        values = CONTRACT["enums"].get(entry["ref"])
        if values is not None:
            assert set(schema["enum"]) >= set(values), where
    for key in ("pattern", "format", "minimum", "maximum", "minLength", "default", "maxLength", "uniqueItems", "enum"):
        if key in target and key != "enum":
            assert schema.get(key) == target[key], f"{where}.{key}"
    if "items" in entry:
        assert set(schema["items"]["enum"]) >= set(entry["items"]["enum"]), where
        assert (found["style"], found["explode"]) == ("form", False), where


async def test_answers(document: dict[str, Any]) -> None:
    for name, (_, _, operation) in operations(document).items():
        if name in BESIDE:
            continue
        wanted = OPERATIONS[name]
        responses = operation["responses"]
        assert set(responses) >= set(wanted["responses"]), name
        # FastAPI's own answer to a body that it cannot read is not ours.
        assert ("422" in responses) is ("422" in wanted["responses"]), name
        for status, schema in wanted["responses"].items():
            content = responses[status].get("content", {})
            if schema in (None, "object"):
                usual = [] if status == "204" else ["application/json"]
                types = wanted.get("response_content_types", {}).get(status, usual)
                assert list(content) == types, name
            else:
                assert content["application/json"]["schema"]["$ref"].rpartition("/")[2] == schema, (name, status)
        for status, codes in wanted["errors"].items():
            assert set(responses[status]["x-error-codes"]) >= set(codes), (name, status)
        for status, headers in wanted.get("response_headers", {}).items():
            assert set(responses[status]["headers"]) >= set(headers), (name, status)


async def test_extensions(document: dict[str, Any]) -> None:
    for name, (_, _, operation) in operations(document).items():
        if name in BESIDE:
            continue
        wanted = OPERATIONS[name]
        needed = wanted["permission"]
        assert operation["x-required-permission"] == (needed and sorted(needed)), name
        assert operation["x-key-levels"] == wanted["key_levels"], name
        assert operation["x-rate-limit-buckets"] == wanted["rate_limit_buckets"], name
        assert operation["x-idempotency"] == wanted["idempotency"], name
        assert ("security" in operation) == (wanted["auth"] == "bearer"), name
        assert bool(operation.get("x-permission-notes")) == bool(wanted.get("conditional_permissions")), name


async def test_schemas(document: dict[str, Any]) -> None:
    ours = document["components"]["schemas"]
    # Error details are documented as far as they are answered; other members may appear.
    for name, wanted in CONTRACT["schemas"].items():
        if name in ("ErrorDetails", "Health"):
            continue
        assert name in ours, name
        _same_object(document, ours[name], wanted, name)


def _same_object(document: dict[str, Any], found: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    found = resolve(document, found)
    assert set(found.get("required", ())) == set(wanted.get("required", ())), where
    assert set(found["properties"]) == set(wanted["properties"]) | MORE_MEMBERS.get(where, set()), where
    for name, entry in wanted["properties"].items():
        _same_property(document, found["properties"][name], entry, f"{where}.{name}")


def _same_property(document: dict[str, Any], found: dict[str, Any], entry: dict[str, Any], where: str) -> None:
    options = found.get("anyOf", [found])
    union = CONTRACT["unions"].get(entry.get("ref", ""))
    if union is not None:
        for option, one in zip(options, union["one_of"], strict=True):
            compare = _same_object if "properties" in one else _same_property
            compare(document, option, one, where)
        return
    nullable = {"type": "null"} in options
    assert nullable is bool(entry.get("nullable")), where
    kinds = {option["type"] for option in entry.get("one_of", ()) if "type" in option}
    if len(kinds) > 1:
        assert {option["type"] for option in options if option != {"type": "null"}} == kinds, where
        return
    (schema,) = [resolve(document, option) for option in options if option != {"type": "null"}]
    if "one_of" in entry:
        assert schema["type"] == "string", where
        return
    kind = entry.get("type", "object")
    assert schema["type"] == kind, where
    target = CONTRACT["scalars"].get(entry.get("ref", ""), entry)
    for key in ("format", "pattern", "maxLength", "minimum", "maximum", "maxItems"):
        if key in target and target is not CONTRACT["scalars"].get("EmailAddress"):
            assert schema.get(key) == target[key], f"{where}.{key}"
    values = CONTRACT["enums"].get(entry.get("ref", ""), entry.get("enum"))
    if values is not None and entry.get("ref") != "ErrorCode":
        assert set(schema["enum"]) >= set(values), where
    if kind == "array":
        _same_property(document, schema["items"], entry["items"], f"{where}[]")


@pytest.mark.covers("FR-API-2")
async def test_what_is_answered(world: World) -> None:
    """Every operation's real answer holds against the contract's schema, without a member too many."""
    original = simple_mail(Message_ID="<1@example.com>", Cc="Bo <bo@example.com>, undisclosed:;")
    one = await world.deliver(original)
    await world.deliver(simple_mail("Re: Hello", In_Reply_To="<1@example.com>"), direction=Direction.OUTBOUND)
    await world.patch(world.at(f"/messages/{one.message_id}"), {"labels_add": ["a", "b:c"], "read": True})
    answers = {
        "Health": await world.client.get("/health"),
        "Me": await world.get("/v1/me"),
        "IdentityPage": await world.get("/v1/identities"),
        "Identity": await world.get(world.at()),
        "MessagePage": await world.get(world.at("/messages")),
        "Message": await world.get(world.at(f"/messages/{one.message_id}"), include="quoted,html,headers"),
        "ThreadPage": await world.get(world.at("/threads")),
        "Thread": await world.get(world.at(f"/threads/{one.thread_id}")),
        "ThreadSummary": await world.patch(world.at(f"/threads/{one.thread_id}"), {"archived": False}),
        "WaitResponse": await world.get(world.at("/wait"), since="2029-01-01T00:00:00Z"),
    }
    for name, response in answers.items():
        assert response.status_code == 200, (name, response.text)
        check(name, response.json())
    assert len(answers["MessagePage"].json()["data"]) == 2
    for response in (
        await world.get("/v1/me", {}),
        await world.get("/nowhere"),
        await world.get("/v1/identities", limit=0),
    ):
        check("Error", response.json())
