"""Contact addresses in their one spelling, by which people are told apart. Pure."""

from __future__ import annotations

import unicodedata
from typing import Final

from postroom.accounts.text import is_storable
from postroom.smtp import AddressSyntaxError, parse_path

MAX_ADDRESS: Final = 320
"""Characters; what is longer is no address."""


def folded(address: str) -> str:
    """In lower case, the local part in NFC (RFC 6532 §3.1), the domain as A-labels (RFC 5890 §2.3.2.1).

    Raises ValueError for what is no address, local-part@domain: nothing after it, and no quoted local part.
    """
    if len(address) > MAX_ADDRESS or not is_storable(address):
        raise ValueError("no address")
    local = unicodedata.normalize("NFC", address.rpartition("@")[0])
    domain = address.rpartition("@")[2]
    try:
        path = parse_path(f"<{local}@{domain}>".encode())
    except AddressSyntaxError:
        raise ValueError("no address") from None
    if path.parameters or path.address is None or path.address.local != local or " " in local:
        raise ValueError("no address")
    # What is in lower case may be no NFC any more.
    return f"{unicodedata.normalize('NFC', local.lower())}@{path.address.domain}"


def sought(address: str) -> str:
    """As `folded`, of what somebody typed to sign in; what is no address is left in lower case, and is nobody's."""
    address = address.strip()
    try:
        return folded(address)
    except ValueError:
        return address.lower()
