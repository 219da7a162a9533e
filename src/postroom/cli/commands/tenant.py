"""`postroom tenant`: the tenants of the deployment."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.models import Mode, NewTenant, Tenant
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, LimitOption, collect
from postroom.cli.failures import usage
from postroom.cli.invocation import Config, DataDir, Json, Quiet, invocation
from postroom.cli.reach import run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tenants: the workspaces that identities belong to.")


@app.command()
def create(
    slug: Annotated[str, typer.Argument(help="Its short name: 2 to 32 of a-z, 0-9 and -.")],
    name: Annotated[str | None, typer.Option("--name", help="Its full name; the slug when not given.")] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="live|test", help="Whether mail may leave.")] = "live",
    suffix: Annotated[
        str | None, typer.Option("--address-suffix", help="Ends its local parts; .SLUG when not given.")
    ] = None,
    timezone: Annotated[str, typer.Option("--timezone", help="Its time zone.")] = "UTC",
    default: Annotated[bool, typer.Option("--default", help="The one tenant without an address suffix.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Make a tenant."""
    call = invocation(json, quiet, config, data_dir)
    if mode not in tuple(Mode):
        raise usage(f"--mode: {mode!r} is not live or test")
    new = NewTenant(
        slug=slug,
        name=slug if name is None else name,
        mode=Mode(mode),
        address_suffix=suffix,
        is_default=default,
        timezone=timezone,
    )
    made = run(call, lambda core: core.tenants.create(new), create=True)
    call.output.result(shapes.tenant(made))


@app.command("list")
def list_(
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """List tenants, newest first."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> tuple[list[Tenant], str | None]:
        return await collect(
            lambda size, after: core.tenants.page(limit=size, after=after),
            lambda one: (one.created_at, one.public_id),
            limit,
            cursor,
        )

    found, following = run(call, work)
    call.output.listing(
        [shapes.tenant(one) for one in found],
        ("id", "slug", "name", "mode", "status", "address_suffix", "created_at"),
        next_cursor=following,
        empty="No tenants yet: make one with postroom tenant create.",
    )
