"""Partners: integrators whose keys make tenants, and reach those alone (FR-KEY-4; security-privacy A3.8). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from postroom.accounts.models import BillingMode, PartnerKey
from postroom.accounts.text import check_name, invalid

MAX_NAME: Final = 128
MAX_TENANTS: Final = 2**31 - 1
DEFAULT_TENANTS: Final = 25
CREATIONS_PER_MINUTE: Final = 10
"""Tenants that the keys of one partner make together (J18)."""


class PartnerStatus(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETED = "deleted"
    """For good. The row stays, without its name."""


@dataclass(frozen=True, slots=True)
class Partner:
    """`max_tenants`: how many tenants that are not erased its keys may have made. `ramp_exempt`: these need not begin
    with few messages a day. `default_billing_mode` is given to each.
    """

    id: PartnerKey
    public_id: str
    name: str
    status: PartnerStatus
    default_billing_mode: BillingMode
    max_tenants: int
    ramp_exempt: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class NewPartner:
    """A partner to be made."""

    name: str
    default_billing_mode: BillingMode = BillingMode.METERED
    max_tenants: int = DEFAULT_TENANTS
    ramp_exempt: bool = False


@dataclass(frozen=True, slots=True)
class PartnerChanges:
    """What is to be changed; None is left as it is."""

    name: str | None = None
    status: PartnerStatus | None = None
    """Active or suspended."""
    default_billing_mode: BillingMode | None = None
    max_tenants: int | None = None
    ramp_exempt: bool | None = None

    @property
    def names(self) -> list[str]:
        """Of the members that are given."""
        return [name for name in self.__slots__ if getattr(self, name) is not None]


def check(one: NewPartner | PartnerChanges) -> None:
    """Raises `invalid_request` for what no partner can have."""
    if one.name is not None:
        check_name("name", one.name, MAX_NAME)
    if one.max_tenants is not None and not 0 <= one.max_tenants <= MAX_TENANTS:
        raise invalid("max_tenants", f"must be a whole number from 0 to {MAX_TENANTS}")
    if one.default_billing_mode is BillingMode.DISABLED:
        raise invalid("default_billing_mode", "must be exempt or metered")
    if isinstance(one, PartnerChanges) and one.status is PartnerStatus.DELETED:
        raise invalid("status", "must be active or suspended")
