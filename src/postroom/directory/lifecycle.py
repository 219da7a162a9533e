"""What may become of an address, and of the primary beside it (inbound §4; A11, A14, FR-ADR-1 to FR-ADR-4). Pure.

    -         add       active where its domain receives, else pending
    pending   ready     active                              its domain receives now
    pending   remove    -
    active    promote   active, primary                     the old primary: retiring, retired, or an active alias
    retiring  promote   active, primary                     takes a promotion back: the old primary is an active alias
    active    retire    retiring, or retired at once
    retiring  retire    retiring with another time, or retired at once
    retiring  its time  retired
    retired                                                 for ever

The platform address stands in when others fail, so it is never anything but active. That an identity is deleted ends
all of its addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from postroom.accounts.text import invalid
from postroom.base.errors import PostroomError
from postroom.directory.models import AddressRole, AddressStatus, HostedAddress, Identity
from postroom.directory.rules import MAX_ADDRESSES, MAX_RETIRE_DAYS


@dataclass(frozen=True, slots=True)
class Transition:
    """What an address is from now on."""

    address: HostedAddress
    role: AddressRole
    status: AddressStatus
    retire_at: datetime | None = None
    retired_at: datetime | None = None


def find(identity: Identity, public_id: str) -> HostedAddress:
    """One of the identity's addresses. Raises `address_not_found`."""
    for address in identity.addresses:
        if address.public_id == public_id:
            return address
    raise PostroomError("address_not_found")


def check_room(identity: Identity, domain_id: int) -> None:
    """Raises `address_limit_reached` beyond 20 in any state; what waits for the same domain makes room (A11)."""
    kept = [
        one for one in identity.addresses if not (one.status is AddressStatus.PENDING and one.domain_id == domain_id)
    ]
    if len(kept) >= MAX_ADDRESSES:
        raise PostroomError("address_limit_reached", details={"limit": MAX_ADDRESSES})


def promote(
    identity: Identity, address: HostedAddress, *, ready: bool, days: int, now: datetime
) -> tuple[Transition, Transition]:
    """The address as the primary, and what was the primary until now. `ready`: its domain receives. `days`: how long
    the old one goes on receiving, 0 to 365.

    The old one stays an active alias when it is the platform's, or when this takes a promotion back: of a retiring
    address, or of the platform's. Raises `address_is_primary`, `domain_not_ready`, `invalid_request`.
    """
    check_days("retire_previous_after_days", days)
    if address.role is AddressRole.PRIMARY:
        raise PostroomError("address_is_primary", message="The address is the primary one already.")
    if not address.status.receives or not ready:
        raise PostroomError("domain_not_ready")
    previous = identity.primary
    back = address.is_platform or address.status is AddressStatus.RETIRING
    if previous.is_platform or back:
        left = Transition(previous, AddressRole.ALIAS, AddressStatus.ACTIVE)
    else:
        left = _retiring(previous, days, now)
    return Transition(address, AddressRole.PRIMARY, AddressStatus.ACTIVE), left


def retire(address: HostedAddress, *, days: int, now: datetime) -> Transition:
    """The address with an end in `days` (0 to 365; 0: now). Raises `address_is_primary`, `address_in_use` for the
    platform's, `address_not_found` for one that receives nothing, `invalid_request`.
    """
    check_days("after_days", days)
    if address.role is AddressRole.PRIMARY:
        raise PostroomError("address_is_primary")
    if address.is_platform:
        raise PostroomError("address_in_use")
    if not address.status.receives:
        raise PostroomError("address_not_found")
    return _retiring(address, days, now)


def expire(address: HostedAddress, now: datetime) -> Transition | None:
    """The end of an address whose time has come; None while it has not."""
    if address.status is not AddressStatus.RETIRING or address.retire_at is None or address.retire_at > now:
        return None
    return Transition(address, AddressRole.ALIAS, AddressStatus.RETIRED, retired_at=now)


def check_removal(address: HostedAddress) -> None:
    """Only what waits for its domain has never received anything. Raises `address_is_primary`, `address_in_use`."""
    if address.role is AddressRole.PRIMARY:
        raise PostroomError("address_is_primary")
    if address.status is not AddressStatus.PENDING:
        raise PostroomError("address_in_use")


def check_days(path: str, days: int) -> None:
    """Raises `invalid_request` outside of 0 to 365."""
    if not 0 <= days <= MAX_RETIRE_DAYS:
        raise invalid(path, f"must be from 0 to {MAX_RETIRE_DAYS}")


def _retiring(address: HostedAddress, days: int, now: datetime) -> Transition:
    if days == 0:
        return Transition(address, AddressRole.ALIAS, AddressStatus.RETIRED, retired_at=now)
    return Transition(address, AddressRole.ALIAS, AddressStatus.RETIRING, retire_at=now + timedelta(days=days))
