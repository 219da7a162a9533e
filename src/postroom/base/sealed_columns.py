"""The registry of sealed columns (security-privacy A6.3; decision D20): what is stored sealed stands in one of these.

Sealing and opening take a column of this list, and the sweep that seals anew after a new master key reads nothing else:
a column that is missing here would be lost with the old key. `tests/accounts/test_sealed_columns.py` holds it against
the schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Before:
    """How values of this column were sealed before 0.1 (see `sealing`). `place` is filled with the row."""

    purpose: str
    place: str


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of type bytea, and what names its row: columns, in the order of an index, with their types.

    Every string is a constant of the program: it becomes SQL. In a table of a tenant, `tenant_id` is among the columns
    that name the row.
    """

    table: str
    column: str
    row: tuple[tuple[str, str], ...]
    before: Before | None = None

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that name the row."""
        return tuple(name for name, _ in self.row)

    def place(self, row: tuple[object, ...]) -> bytes:
        """What a sealed value is bound to: `pm1|{table}|{column}|{row id}`. Raises ValueError for a row that does not
        fit."""
        texts = [str(part) for part in row]
        if len(texts) != len(self.row) or any(not text or "|" in text or ":" in text for text in texts):
            raise ValueError(f"no row of {self.name}")
        return f"pm1|{self.table}|{self.column}|{':'.join(texts)}".encode()


SIGNING_KEY: Final = SealedColumn(
    "signing_keys", "sealed", (("purpose", "text"), ("kid", "text")), Before("signing_keys", "signing_keys/{}:{}")
)
DKIM_KEY: Final = SealedColumn(
    "dkim_keys", "private_sealed", (("domain_id", "bigint"), ("selector", "text")), Before("dkim", "dkim_keys/{}/{}")
)
TOTP_SECRET: Final = SealedColumn(
    "person_totp", "secret_sealed", (("person_id", "bigint"),), Before("person_totp", "{}:secret")
)
TOTP_PENDING: Final = SealedColumn(
    "person_totp", "pending_sealed", (("person_id", "bigint"),), Before("person_totp", "{}:pending")
)
SCRAM_KEYS: Final = SealedColumn(
    "app_passwords", "scram_sealed", (("public_id", "text"),), Before("app_passwords.scram", "{}")
)
WEBHOOK_SECRET: Final = SealedColumn("webhook_secrets", "secret_enc", (("endpoint_id", "bigint"),))
WEBHOOK_PREVIOUS: Final = SealedColumn("webhook_secrets", "prev_secret_enc", (("endpoint_id", "bigint"),))

REGISTRY: Final = (*(SIGNING_KEY, DKIM_KEY, TOTP_SECRET, TOTP_PENDING, SCRAM_KEYS, WEBHOOK_SECRET, WEBHOOK_PREVIOUS),)
