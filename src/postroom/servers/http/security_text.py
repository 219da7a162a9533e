"""What `/.well-known/security.txt` says (RFC 9116; security-privacy A13)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final
from urllib.parse import quote

from postroom import BUILT

PATH: Final = "/.well-known/security.txt"
LIFE: Final = timedelta(days=365)
"""How long a build's file is good; RFC 9116 §2.5.5 recommends less than a year or so."""


@dataclass(frozen=True, slots=True)
class SecurityText:
    """What the file says. `contact` is a mailbox; `api_host` is where the file is; `built` is the day of the build.

    There is no `Policy` (RFC 9116 §2.5.7, optional): no page says one.
    """

    contact: str
    api_host: str
    built: date

    @classmethod
    def of(cls, contact: str, api_host: str) -> SecurityText | None:
        """That of this build; None without a contact."""
        return cls(contact, api_host, date.fromisoformat(BUILT)) if contact else None

    @property
    def expires(self) -> date:
        """The first day on which the file is too old to be trusted."""
        return self.built + LIFE

    def render(self) -> str:
        """The file (RFC 9116 §2.3: lines may end with LF alone). The contact is a URI (§2.5.3, RFC 6068 §2)."""
        return (
            f"Contact: mailto:{quote(self.contact, safe='@')}\n"
            f"Expires: {self.expires.isoformat()}T00:00:00Z\n"
            "Preferred-Languages: en\n"
            f"Canonical: https://{self.api_host}{PATH}\n"
        )
