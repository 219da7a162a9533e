"""The registry of types, held against the published contract and against what this program emits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from postroom.accounts.permissions import Permission
from postroom.directory.models import Fact
from postroom.events.registry import NEVER_FANNED_OUT, PUBLIC, REGISTRY, EventType, seen_by
from tests.events.checking import check_payload

CONTRACT: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "contract.json").read_text())
OPTIONAL_MORE: Final = {"message.uncertain": {"recipients"}}
"""What we add beside the published list, by the prose of §4."""


def members(schema: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    return set(schema["properties"]), set(schema["required"])


def resolved(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """A property of the contract, with what it refers to."""
    if "ref" in entry and entry["ref"] in CONTRACT["schemas"]:
        found: Mapping[str, Any] = CONTRACT["schemas"][entry["ref"]]
        return found
    return entry


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str, more: set[str]) -> None:
    nullable = "anyOf" in ours
    if nullable:
        ours = next(one for one in ours["anyOf"] if one != {"type": "null"})
    if "properties" in ours:
        properties, required = members(ours)
        wanted = resolved(theirs)
        assert properties - more == set(wanted["properties"]), path
        assert required == set(wanted["required"]), path
        assert ours["additionalProperties"] is False, path
        for name in properties - more:
            compare(ours["properties"][name], wanted["properties"][name], f"{path}.{name}", set())
    elif "items" in ours:
        compare(ours["items"], resolved(theirs)["items"], f"{path}[]", set())
    elif "enum" in ours and "ref" in theirs:
        known = CONTRACT["enums"].get(theirs["ref"])
        if known is not None:
            assert set(ours["enum"]) == set(known), path
    elif "pattern" in ours and theirs.get("ref") in CONTRACT["scalars"]:
        assert ours["pattern"] == CONTRACT["scalars"][theirs["ref"]]["pattern"], path


@pytest.mark.covers("FR-WH-4")
@pytest.mark.parametrize("kind", PUBLIC)
def test_is_what_the_contract_publishes(kind: str) -> None:
    data = CONTRACT["schemas"][CONTRACT["events"][kind]["data"]]
    compare(REGISTRY[kind].data, data, kind, OPTIONAL_MORE.get(kind, set()))


@pytest.mark.covers("FR-WH-4")
def test_the_envelope_is_the_published_one() -> None:
    published = CONTRACT["schemas"]["MessageReceivedEvent"]
    for one in REGISTRY.values():
        assert members(one.schema) == (set(published["properties"]), set(published["required"]))


def test_every_fact_of_the_directory_is_a_type() -> None:
    assert {fact.value for fact in Fact} <= set(REGISTRY)


@pytest.mark.covers("edge:J29")
def test_mail_is_told_to_those_who_may_read_it() -> None:
    without = seen_by(set(Permission) - {Permission.MESSAGES_READ})
    assert not [kind for kind in without if kind.startswith(("message.", "verification."))]
    assert "identity.created" in without
    assert seen_by(set(Permission)) == set(PUBLIC)
    assert "delivery.updated" not in PUBLIC


def test_examples_are_what_the_schemas_take() -> None:
    for one in REGISTRY.values():
        check_payload(json.dumps(one.example).encode())


def test_what_is_not_in_a_schema_is_refused() -> None:
    told = REGISTRY["message.received"].example
    told["data"]["html"] = "<p>"
    with pytest.raises(AssertionError, match="html"):
        check_payload(json.dumps(told).encode())
    with pytest.raises(AssertionError, match=r"message\.read"):
        check_payload(json.dumps(told | {"type": "message.read"}).encode())


@pytest.mark.covers("FR-WH-1")
def test_what_happens_is_what_can_be_asked_for() -> None:
    assert set(PUBLIC) <= set(EventType)
    assert {one for one in REGISTRY if one not in PUBLIC or one == "webhook.test"} == NEVER_FANNED_OUT
