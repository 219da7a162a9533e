"""`postroom partner`: integrators whose keys make tenants, and reach those alone."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.models import BillingMode
from postroom.accounts.partners import DEFAULT_TENANTS, NewPartner, Partner, PartnerChanges, PartnerStatus
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, Fetch, LimitOption
from postroom.cli.failures import usage
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Partners: integrators who make tenants by API.")

NamedPartner = Annotated[str, typer.Argument(metavar="ID", help="The partner, ptn_….")]
BillingOption = Annotated[
    str | None, typer.Option("--default-billing-mode", metavar="exempt|metered", help="Given to its tenants.")
]
TenantsOption = Annotated[int | None, typer.Option("--max-tenants", min=0, help="How many tenants it may have.")]
RampOption = Annotated[
    bool | None, typer.Option("--ramp-exempt/--no-ramp-exempt", help="Whether its new tenants send without a ramp.")
]


@command(app)
def create(
    call: Invocation,
    name: Annotated[str, typer.Argument(help="Its name.")],
    billing: BillingOption = None,
    max_tenants: TenantsOption = None,
    ramp_exempt: RampOption = None,
) -> None:
    """Make a partner."""
    new = NewPartner(
        name,
        _billing(billing) or BillingMode.METERED,
        DEFAULT_TENANTS if max_tenants is None else max_tenants,
        bool(ramp_exempt),
    )
    call.output.result(shapes.partner(run(call, lambda core: core.partners.create(new), create=True)))


@command(app, "list")
def list_(call: Invocation, limit: LimitOption = DEFAULT_LIMIT, cursor: CursorOption = None) -> None:
    """List partners, newest first."""

    async def pages(core: Core) -> Fetch[Partner]:
        return lambda size, after: core.partners.page(limit=size, after=after)

    tell_list(
        call,
        pages,
        shapes.partner,
        limit,
        cursor,
        columns=("id", "name", "status", "max_tenants", "created_at"),
        empty="No partners.",
    )


@command(app)
def show(call: Invocation, named: NamedPartner) -> None:
    """Show a partner."""
    call.output.result(shapes.partner(run(call, lambda core: core.partners.get(named))))


@command(app, "set")
def set_(
    call: Invocation,
    named: NamedPartner,
    name: Annotated[str | None, typer.Option("--name", help="Its name.")] = None,
    billing: BillingOption = None,
    max_tenants: TenantsOption = None,
    ramp_exempt: RampOption = None,
) -> None:
    """Change a partner. Tenants that it has stay as they are."""
    changes = PartnerChanges(name, None, _billing(billing), max_tenants, ramp_exempt)
    if not changes.names:
        raise usage("nothing to change", "Name what is to be changed; see --help.")
    _change(call, named, changes)


@command(app)
def suspend(call: Invocation, named: NamedPartner) -> None:
    """Refuse its keys and those of its tenants; what its tenants have queued is canceled. Mail to them is stored."""
    _change(call, named, PartnerChanges(status=PartnerStatus.SUSPENDED))


@command(app)
def resume(call: Invocation, named: NamedPartner) -> None:
    """Let its keys and those of its tenants in again."""
    _change(call, named, PartnerChanges(status=PartnerStatus.ACTIVE))


@command(app)
def delete(
    call: Invocation,
    named: NamedPartner,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a partner all of whose tenants are erased, for good."""
    if not yes:
        if not call.output.interactive:
            raise usage("delete wants to be confirmed", "Add --yes.")
        typer.confirm("The partner and its keys go for good. Go on?", abort=True, err=True)
    run(call, lambda core: core.partners.delete(named))
    call.output.result({"id": named, "status": PartnerStatus.DELETED.value})


def _change(call: Invocation, named: str, changes: PartnerChanges) -> None:
    call.output.result(shapes.partner(run(call, lambda core: core.partners.update(named, changes))))


def _billing(text: str | None) -> BillingMode | None:
    if text is None:
        return None
    if text not in ("exempt", "metered"):
        raise usage(f"--default-billing-mode: {text!r} is not exempt or metered")
    return BillingMode(text)
