"""Where a request is wrong is said in the client's words, not in those of the validator."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from postroom.servers.http.failures import violations
from postroom.servers.http.rest.sending import SendRequest


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"to": [1], "subject": "s", "text": "t"}, "to.0"),
        ({"to": [{"name": "A"}], "subject": "s", "text": "t"}, "to.0"),
        ({"to": "a@example.com", "subject": "s", "text": "t"}, "to"),
    ],
)
def test_no_branch_of_a_union_is_named(body: object, path: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(SendRequest).validate_python(body)
    details = violations(caught.value.errors()).details
    assert details is not None
    assert {one["path"] for one in details["errors"]} <= {path, f"{path}.address"}
