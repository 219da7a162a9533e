import json
import pickle
from pathlib import Path

import pytest

from postroom.base.error_table import ENTRIES
from postroom.base.errors import ERRORS, PostroomError

ORACLE = json.loads((Path(__file__).parent / "contract_error_codes.json").read_text())
EXPECTED = ORACLE["contract"] | ORACLE["decisions"]


def test_the_table_is_the_contract_and_the_decisions_and_nothing_else() -> None:
    assert len(ORACLE["contract"]) == 111
    assert {code: [spec.status, spec.retryable] for code, spec in ERRORS.items()} == EXPECTED
    assert len(ENTRIES) == len(ERRORS)


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_words_are_sentences(code: str) -> None:
    spec = ERRORS[code]
    for text in (spec.message, spec.fix):
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith(".")
        assert len(text) <= 160
    assert spec.message != spec.fix


def test_envelope() -> None:
    error = PostroomError("rate_limited", details={"bucket": "key"}, retry_after=12.5)
    assert error.envelope("req_x") == {
        "error": {
            "code": "rate_limited",
            "message": "Too many requests.",
            "retryable": True,
            "fix": error.fix,
            "request_id": "req_x",
            "details": {"bucket": "key"},
        }
    }
    assert (error.status, error.retryable, error.retry_after) == (429, True, 12.5)
    assert "details" not in PostroomError("tenant_not_found").envelope("r")["error"]


def test_words_may_be_replaced_and_repr_tells_only_the_code() -> None:
    error = PostroomError("invalid_request", message="The date is in the past.", details={"path": "x"})
    assert str(error) == "The date is in the past."
    assert repr(error) == "PostroomError('invalid_request')"


def test_unknown_code_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        PostroomError("no_such_code")


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        ERRORS["new"] = ENTRIES[0]  # type: ignore[index] # that it cannot be changed is the test
    with pytest.raises(AttributeError):
        ENTRIES[0].status = 200  # type: ignore[misc] # the same


def test_errors_survive_being_pickled() -> None:
    error = PostroomError("rate_limited", details={"bucket": "key"}, retry_after=3, message="Slowly.")
    copy = pickle.loads(pickle.dumps(error))
    assert copy.envelope("r") == error.envelope("r")
    assert copy.retry_after == 3
