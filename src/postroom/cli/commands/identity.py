"""`postroom identity`: identities, each an address with a mailbox, of an agent or a person (decisions A3)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.models import tenant_scope
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    LimitOption,
    TenantOption,
    collect,
    find_tenant,
)
from postroom.cli.failures import usage
from postroom.cli.invocation import Config, DataDir, Json, Quiet, invocation
from postroom.cli.reach import run
from postroom.directory.models import IdentityKind, NewIdentity

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Identities: an address and a mailbox each.")


@app.command()
def create(
    username: Annotated[str, typer.Argument(help="The part of the address before the @ (and the tenant's suffix).")],
    display_name: Annotated[
        str | None, typer.Option("--display-name", "--name", help="Its name; the username when not given.")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", metavar="agent|person", help="Whose mailbox it is.")] = "agent",
    purpose: Annotated[str | None, typer.Option("--purpose", help="What it is for.")] = None,
    owner_name: Annotated[str | None, typer.Option("--owner-name", help="Who answers for it.")] = None,
    owner_email: Annotated[str | None, typer.Option("--owner-email", help="How to reach them.")] = None,
    client_id: Annotated[
        str | None, typer.Option("--client-id", help="Your own id: the same request again finds the same identity.")
    ] = None,
    tenant: TenantOption = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Make an identity with its address and mailbox."""
    call = invocation(json, quiet, config, data_dir)
    if kind not in tuple(IdentityKind):
        raise usage(f"--kind: {kind!r} is not agent or person")
    new = NewIdentity(
        username=username,
        display_name=display_name or username,
        kind=IdentityKind(kind),
        purpose=purpose,
        owner_name=owner_name,
        owner_email=owner_email,
        client_id=client_id,
    )

    async def work(core: Core) -> shapes.Document:
        made, _ = await core.identities.create((await find_tenant(core, tenant, create=True)).id, new)
        return shapes.identity(made)

    call.output.result(run(call, work, create=True))


@app.command("list")
def list_(
    tenant: TenantOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """List the identities of a tenant, newest first."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> tuple[list[shapes.Document], str | None]:
        room = await find_tenant(core, tenant)
        found, following = await collect(
            lambda size, after: core.identities.page(tenant_scope(room.id), room.id, limit=size, after=after),
            lambda one: (one.created_at, one.public_id),
            limit,
            cursor,
        )
        return [shapes.identity(one) for one in found], following

    rows, following = run(call, work)
    call.output.listing(
        rows,
        ("id", "kind", "primary_address", "display_name", "purpose", "status", "created_at"),
        next_cursor=following,
        empty="No identities yet: make one with postroom identity create.",
    )
