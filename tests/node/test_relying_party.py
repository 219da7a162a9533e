"""For which domain passkeys are made, and which pages may ask for them."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.app import relying_party
from postroom.base.settings import load

BASE = {"POSTROOM_PLATFORM_DOMAIN": "agents.example", "POSTROOM_API_HOST": "api.example.com"}


@pytest.mark.covers("decisions:C5")
@pytest.mark.parametrize(
    ("given", "domain", "origins"),
    [
        ({}, "api.example.com", {"https://api.example.com"}),
        ({"api.tls_port": 443}, "api.example.com", {"https://api.example.com"}),
        ({"api.tls_port": 4430}, "api.example.com", {"https://api.example.com", "https://api.example.com:4430"}),
        ({"passkeys.rp_id": "example.com"}, "example.com", {"https://api.example.com"}),
        (
            {"passkeys.rp_id": "example.com", "passkeys.origins": "https://mail.example.com"},
            "example.com",
            {"https://mail.example.com"},
        ),
        ({"api_host": "localhost"}, "localhost", {"https://localhost", "http://localhost:8080"}),
        ({"api_host": "localhost", "api.port": 80}, "localhost", {"https://localhost", "http://localhost"}),
    ],
)
def test_whom_passkeys_are_made_for(given: dict[str, Any], domain: str, origins: set[str]) -> None:
    party = relying_party(load(given, BASE))
    assert (party.id, set(party.origins), party.name) == (domain, origins, "Postroom (agents.example)")
