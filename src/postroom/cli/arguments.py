"""Arguments that name things: tenants by id or slug, identities and people by id or address, places in lists (A2)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, TypeVar
from urllib.parse import quote, unquote

import typer

from postroom.accounts.models import PLATFORM_SCOPE, NewTenant, Tenant, tenant_scope
from postroom.accounts.permissions import GrantRole
from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.cli.failures import usage
from postroom.directory.models import Identity

T = TypeVar("T")
C = TypeVar("C", bound=StrEnum)

TenantOption = Annotated[
    str | None, typer.Option("--tenant", metavar="ID|SLUG", help="The tenant; the default tenant when not given.")
]
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 10_000
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=MAX_LIMIT, help="How many at most.")]
CursorOption = Annotated[str | None, typer.Option("--cursor", help="Where the last list ended.")]

_PAGE: Final = 100
_DURATION: Final = re.compile(r"(\d{1,5})([hdw])", re.ASCII)
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}

Position = tuple[datetime, str]
Fetch = Callable[[int, Position | None], Awaitable[Sequence[T]]]
"""Gives a page: how many at most, and after what position."""


async def find_tenant(core: Core, named: str | None, *, create: bool = False) -> Tenant:
    """The tenant of that id or slug; without one the default tenant, or the only one.

    With *create* the default tenant is made where there is no tenant at all. Raises `tenant_not_found`, or a usage
    error where none is meant clearly.
    """
    if named is not None:
        return await (core.tenants.get(named) if named.startswith("ten_") else core.tenants.get_by_slug(named))
    after: Position | None = None
    seen: list[Tenant] = []
    while page := await core.tenants.page(limit=_PAGE, after=after):
        for tenant in page:
            if tenant.address_suffix == "":
                return tenant
        seen += page
        after = (page[-1].created_at, page[-1].public_id)
    if len(seen) == 1:
        return seen[0]
    if seen:
        raise usage("there are several tenants and none is the default one", "Name one with --tenant.")
    if not create:
        raise usage("there is no tenant yet", "Make one with postroom tenant create.")
    return await core.tenants.create(NewTenant(slug="default", name="Default", is_default=True))


async def find_identity(core: Core, named: str) -> Identity:
    """The identity of that id (`idn_…`) or address. Raises `identity_not_found`, `address_not_found`."""
    if "@" in named:
        return await core.identities.by_address(PLATFORM_SCOPE, named)
    return await core.identities.get(PLATFORM_SCOPE, named)


async def find_domain(core: Core, tenant_id: int, named: str) -> str:
    """The public id of a domain of the tenant, named by it (`dom_…`) or by its name. Raises `domain_not_found`."""
    return named if named.startswith("dom_") and "." not in named else await core.addresses.domain_id(tenant_id, named)


async def find_person(core: Core, named: str) -> str:
    """The id of a person, named by it (`usr_…`) or by the address of a mailbox that is theirs alone.

    Raises `person_not_found`, `address_not_found`; a usage error when several people own the mailbox.
    """
    if "@" not in named:
        return (await core.people.get(named)).public_id
    identity = await find_identity(core, named)
    grants = await core.people.grants(identity.tenant_id, mailbox_id=identity.id)
    owners = [grant.person_public_id for grant in grants if grant.role is GrantRole.OWNER]
    if not owners:
        raise PostroomError("person_not_found")
    if len(owners) > 1:
        raise usage("several people own this mailbox", f"Name one of them: {', '.join(owners)}.")
    return owners[0]


async def mailboxes_of(core: Core, tenant: Tenant, person_key: int) -> list[Identity]:
    """The identities of the tenant that the person may open."""
    grants = await core.people.grants(tenant.id, person_id=person_key)
    return [await core.identities.get(tenant_scope(tenant.id), grant.identity_public_id) for grant in grants]


async def collect(
    fetch: Fetch[T],
    position: Callable[[T], Position],
    limit: int,
    cursor: str | None,
) -> tuple[list[T], str | None]:
    """Up to *limit* things, newest first, by pages of *fetch*; and the cursor of what follows, or None.

    Raises a usage error for a cursor that none of our lists gave.
    """
    after = None if cursor is None else read_cursor(cursor)
    found: list[T] = []
    while len(found) <= limit:
        page = await fetch(min(_PAGE, limit + 1 - len(found)), after)
        if not page:
            break
        found += page
        after = position(page[-1])
    if len(found) <= limit:
        return found, None
    at, public_id = position(found[limit - 1])
    return found[:limit], f"{at.isoformat()}/{quote(public_id, safe='@')}"


def read_cursor(cursor: str) -> Position:
    """The place that a cursor stands for."""
    at, slash, public_id = cursor.partition("/")
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        moment = None
    try:
        # What places an entry of a sender list is an address, which may have any characters.
        place = unquote(public_id, errors="strict")
    except UnicodeDecodeError:
        place = "\0"
    if moment is None or moment.tzinfo is None or not slash or not public_id.isascii() or "\0" in place:
        raise usage("--cursor: this is not a cursor of this list")
    return moment, place


def read_choice(option: str, text: str | None, choices: type[C]) -> C | None:
    """The choice of that name; None when none was given. Raises a usage error for what is none of them."""
    if text is None:
        return None
    try:
        return choices(text)
    except ValueError:
        raise usage(f"{option}: {text!r} is not {' or '.join(choices)}") from None


def read_duration(text: str) -> timedelta:
    """A number and a unit, such as ``12h``, ``30d``, ``4w``. Raises a usage error for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise usage(f"--expires-in: {text!r} is not a time such as 12h, 30d or 4w")
    return int(match[1]) * _UNITS[match[2]]


def read_time(text: str, option: str = "--expires-at") -> datetime:
    """RFC 3339, or a date, which is its midnight in UTC. Raises a usage error for anything else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise usage(f"{option}: {text!r} is not a time such as 2030-01-31 or 2030-01-31T12:00:00Z") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
