"""What is answered, in and out of models: nothing lost, nothing mixed up, nothing new minded."""

from __future__ import annotations

import dataclasses
import inspect
import json
from datetime import datetime
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom_client import DecodeError, Model, bodies, models
from postroom_client import values as enumerations
from tests.client.examples import SCHEMAS, example, values

pytestmark = pytest.mark.covers("FR-SDK-1")

MODELS: Final = {
    name: one
    for name, one in inspect.getmembers(models, inspect.isclass)
    if issubclass(one, Model) and one is not Model
}
ERRORS: Final = {"Error", "ErrorBody", "ErrorDetails", "Violation"}
"""These are exceptions instead."""


def test_every_schema_has_its_type() -> None:
    known = set(MODELS) | set(vars(bodies)) | set(vars(enumerations))
    short = {name: name.rpartition("__")[2] for name in SCHEMAS}
    assert {name for name, last in short.items() if not any(one.endswith(last) for one in known)} - ERRORS == {
        "SendHeaders"  # free names: a mapping
    }


def pruned(value: Any, model: type[Model] | None = None) -> Any:
    """Members that are null left out: whether one that may be left out is null or not there is the same to a client."""
    if isinstance(value, dict):
        return {name: pruned(one) for name, one in value.items() if one is not None}
    return [pruned(one) for one in value] if isinstance(value, list) else _time(value)


def _time(value: Any) -> Any:
    if isinstance(value, str) and "T" in value:
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            return value
    return value


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_all_that_the_schema_takes_goes_in_and_comes_out(name: str, data: st.DataObject) -> None:
    value = data.draw(values(SCHEMAS[name]))
    model = MODELS[name].from_dict(value)
    out = model.to_dict()
    assert pruned(out) == pruned(value)
    assert set(SCHEMAS[name].get("required", ())) <= set(out)
    assert MODELS[name].from_dict(json.loads(json.dumps(out))) == model


@pytest.mark.parametrize("name", MODELS)
def test_members_that_are_new_are_passed_over(name: str) -> None:
    value = example(name)
    more = {"added_in_2040": {"a": [1]}, "from_": 7, "__class__": "x", "to_dict": 1}
    assert MODELS[name].from_dict(value | more) == MODELS[name].from_dict(value)


@pytest.mark.parametrize("name", MODELS)
def test_values_of_enumerations_that_are_new_come_as_they_are(name: str) -> None:
    for member, schema in SCHEMAS[name]["properties"].items():
        found = SCHEMAS.get(schema.get("$ref", "").rpartition("/")[2], schema)
        if "enum" in found:
            made = MODELS[name].from_dict(example(name) | {member: "of_2040"})
            assert made.to_dict()[member] == "of_2040"


@pytest.mark.parametrize("name", MODELS)
def test_what_has_to_be_there_is_missed_by_name(name: str) -> None:
    for member in SCHEMAS[name].get("required", ()):
        less = {key: value for key, value in example(name).items() if key != member}
        with pytest.raises(DecodeError, match=rf"{name}\.{member}"):
            MODELS[name].from_dict(less)


@pytest.mark.parametrize(
    ("member", "wrong"),
    [
        ("id", 7),
        ("labels", "urgent"),
        ("labels", [None]),
        ("received_at", "yesterday"),
        ("received_at", "2030-01-01T00:00:00"),
        ("is_primary_recipient", "yes"),
        ("from", ["ada@example.com"]),
        ("metadata", {"a": 1}),
        ("to", [{"address": None}]),
    ],
)
def test_the_wrong_kind_is_refused_with_its_place_and_not_its_value(member: str, wrong: Any) -> None:
    with pytest.raises(DecodeError) as found:
        models.Message.from_dict(example("Message") | {member: wrong})
    assert f"Message.{member}" in str(found.value)
    assert str(wrong) not in str(found.value)


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_whatever_json_it_is_decoded_or_refused(value: Any) -> None:
    for model in (models.Message, models.QueueStatistics, models.TenantPolicyView):
        if not isinstance(value, dict):
            with pytest.raises(DecodeError):
                model.from_dict(value)


def test_models_do_not_change() -> None:
    made = models.MailboxAddress.from_dict(example("MailboxAddress"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.address = "other@example.com"  # type: ignore[misc]  # that is the point
