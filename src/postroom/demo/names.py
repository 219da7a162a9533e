"""What the DNS of the demo's correspondents says: their domains are examples, of which the real one says nothing."""

from __future__ import annotations

from typing import Final

from postroom.demo.place import DOMAIN
from postroom.mailauth.zone import Zone

FORGED: Final = "bank.example"
"""A domain that sends no mail at all, and says so."""
_SENDERS: Final = ("example.com", "example.net", "example.org", "shop.example.org", "letters.example.net")


def zone() -> Zone:
    """This machine sends for the correspondents; whoever else writes in their name is to be rejected."""
    names = {name: {"TXT": ["v=spf1 ip4:127.0.0.0/8 ip6:::1 -all"]} for name in _SENDERS}
    names[FORGED] = {"TXT": ["v=spf1 -all"]}
    policies = {f"_dmarc.{name}": {"TXT": ["v=DMARC1; p=reject"]} for name in (*_SENDERS, FORGED, DOMAIN)}
    return Zone({**names, **policies})
