"""Who is to own a tenant that is being made (rest-api §5.2, W45)."""

from __future__ import annotations

from typing import Final

from postroom.accounts.models import NewPerson
from postroom.accounts.service.people import People, Prepared
from postroom.accounts.service.tenants import Tenants
from postroom.accounts.text import invalid
from postroom.base.errors import PostroomError
from postroom.smtp import AddressSyntaxError, domain_to_ascii

MAX_DISPLAY_NAME: Final = 78


async def prepare_owner(tenants: Tenants, people: People, email: str, name: str | None) -> Prepared:
    """The owner, for `People.put_owner` in the transaction that makes the tenant; without a name called by what stands
    before the `@`. Raises `invalid_request` for what is no address, and for one of this deployment.
    """
    local, _, domain = email.rpartition("@")
    if not local:
        raise invalid("owner.email", "is no address")
    try:
        hosted = await tenants.is_hosted(domain_to_ascii(domain))
    except (AddressSyntaxError, UnicodeError):
        raise invalid("owner.email", "is no address") from None
    if hosted:
        raise invalid("owner.email", "must not be an address of this deployment")
    try:
        return await people.prepare(NewPerson((name or local)[:MAX_DISPLAY_NAME], email))
    except PostroomError as error:
        if error.code != "address_invalid":
            raise
        raise invalid("owner.email", "is no address") from None
