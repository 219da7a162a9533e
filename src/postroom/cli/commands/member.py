"""`postroom member`: who is in a tenant, and who is invited to it (cli-config-ops A5)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.models import MemberRole
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import TenantOption, find_person, find_tenant
from postroom.cli.failures import usage
from postroom.cli.frame import Yes, command, confirm
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Members of a tenant, and invitations to it.")

_ROLES = tuple(role.value for role in MemberRole if role is not MemberRole.OWNER)


@command(app, "list")
def list_(call: Invocation, tenant: TenantOption = None) -> None:
    """List members and pending invitations, newest first."""

    async def work(core: Core) -> list[shapes.Document]:
        roll = await core.members.roll((await find_tenant(core, tenant)).id)
        return [*map(shapes.invitation, roll.invitations), *map(shapes.member, roll.members)]

    call.output.listing(run(call, work), ("id", "status", "role", "email", "name", "expires_at"), empty="No members.")


@command(app)
def invite(
    call: Invocation,
    email: Annotated[str, typer.Option("--email", help="Where to send the invitation.")],
    role: Annotated[str, typer.Option("--role", metavar="admin|member|viewer", help="What they are to be.")],
    tenant: TenantOption = None,
) -> None:
    """Invite somebody by mail, or send the mail once more. A server writes it; the code in it counts for seven days."""
    if role not in _ROLES:
        raise usage(f"--role: {role!r} is not {', '.join(_ROLES)}")

    async def work(core: Core) -> shapes.Document:
        room = await find_tenant(core, tenant)
        return shapes.invitation(await core.members.invite(room.id, email, MemberRole(role)))

    call.output.result(run(call, work))


@command(app)
def revoke(
    call: Invocation,
    invitation: Annotated[str, typer.Argument(metavar="ID", help="The invitation, inv_….")],
    tenant: TenantOption = None,
) -> None:
    """Take an invitation back; its code is worthless from then on."""

    async def work(core: Core) -> shapes.Document:
        await core.members.revoke((await find_tenant(core, tenant)).id, invitation)
        return {"id": invitation, "status": "revoked"}

    call.output.result(run(call, work), human=f"{invitation} was revoked.")


@command(app)
def remove(
    call: Invocation,
    person: Annotated[str, typer.Argument(help="Their id (usr_…), or the address of their mailbox.")],
    tenant: TenantOption = None,
    yes: Yes = False,
) -> None:
    """Take a member out of a tenant, with their mailboxes there, sessions and keys. Mail stays."""
    confirm(call, yes, "They will reach nothing of this tenant any more. Remove them?")

    async def work(core: Core) -> shapes.Document:
        room, who = await find_tenant(core, tenant), await find_person(core, person)
        await core.members.remove(room.id, who)
        return {"id": who, "tenant_id": room.public_id}

    gone = run(call, work)
    call.output.result(gone, human=f"{gone['id']} was removed from {gone['tenant_id']}.")
