"""`postroom person grant|device`: mailboxes that people may open, and the devices that they use (decisions A2, F6)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.audit import HOST
from postroom.accounts.models import Device
from postroom.accounts.permissions import GrantRole
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    Fetch,
    LimitOption,
    TenantOption,
    collect,
    find_identity,
    find_person,
    find_tenant,
)
from postroom.cli.commands.person_credentials import PersonArgument, the_person
from postroom.cli.failures import usage
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.servers import objects

grant = typer.Typer(no_args_is_help=True, add_completion=False, help="Mailboxes that a person may open.")
device = typer.Typer(no_args_is_help=True, add_completion=False, help="Devices that a person signs in with.")

MailboxArgument = Annotated[
    str, typer.Argument(metavar="MAILBOX", help="An address of the mailbox, or the id of its identity (idn_…).")
]


@command(grant, "list")
def list_grants(
    call: Invocation,
    person: PersonArgument,
    tenant: TenantOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List the mailboxes of a tenant that a person may open, newest grant first."""

    async def work(core: Core) -> tuple[list[shapes.Document], str | None]:
        room, found = await find_tenant(core, tenant), await the_person(core, person)

        grants, following = await collect(
            lambda size, after: core.people.grant_page(room.id, found.id, limit=size, after=after),
            lambda one: (one.created_at, one.identity_public_id),
            limit,
            cursor,
        )
        return [objects.grant(one) for one in grants], following

    rows, following = run(call, work)
    call.output.listing(
        rows, ("identity_id", "role", "created_at"), next_cursor=following, empty="No mailboxes of this tenant."
    )


@command(grant, "put")
def put_grant(
    call: Invocation,
    person: PersonArgument,
    mailbox: MailboxArgument,
    role: Annotated[str, typer.Argument(metavar="read|full|owner", help="What they may do there.")],
) -> None:
    """Let a person open a mailbox, or change what they may do there."""
    if role not in tuple(GrantRole):
        raise usage(f"{role!r} is not read, full or owner")

    async def work(core: Core) -> shapes.Document:
        identity, who = await find_identity(core, mailbox), await find_person(core, person)
        await core.people.grant(identity.tenant_id, identity.public_id, who, GrantRole(role), by_operator=True)
        return {"identity_id": identity.public_id, "person_id": who, "role": role}

    done = run(call, work)
    call.output.result(done, human=f"{done['person_id']} may open {done['identity_id']}: {role}.")


@command(grant, "remove")
def remove_grant(call: Invocation, person: PersonArgument, mailbox: MailboxArgument) -> None:
    """Let a person open a mailbox no more. Connections that have it open end; its mail stays."""

    async def work(core: Core) -> shapes.Document:
        identity, who = await find_identity(core, mailbox), await find_person(core, person)
        await core.people.ungrant(identity.tenant_id, identity.public_id, who)
        return {"identity_id": identity.public_id, "person_id": who}

    done = run(call, work)
    call.output.result(done, human=f"{done['person_id']} may open {done['identity_id']} no more.")


@command(device, "list")
def list_devices(
    call: Invocation, person: PersonArgument, limit: LimitOption = DEFAULT_LIMIT, cursor: CursorOption = None
) -> None:
    """List a person's devices, newest first, revoked ones too."""

    async def pages(core: Core) -> Fetch[Device]:
        found = await the_person(core, person)
        return lambda size, after: core.sessions.devices(found.id, limit=size, after=after)

    tell_list(
        call,
        pages,
        objects.device,
        limit,
        cursor,
        columns=("id", "name", "platform", "last_seen_at", "revoked_at"),
        empty="No devices yet.",
    )


@command(device, "revoke")
def revoke_device(
    call: Invocation,
    person: PersonArgument,
    device_id: Annotated[str, typer.Argument(metavar="ID", help="The device's id, as the list shows it.")],
) -> None:
    """Refuse a device from now on and end its sessions."""

    async def work(core: Core) -> shapes.Document:
        await core.sessions.revoke_device(await the_person(core, person), device_id, HOST)
        return {"id": device_id}

    call.output.result(run(call, work), human=f"{device_id} was revoked.")
