"""`postroom ops`: what stops sending, for a tenant, a domain, or the whole deployment (edges G12, J33)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import find_tenant
from postroom.cli.failures import usage
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.directory.sending_controls import PauseReason, SendingControls, Switch
from postroom.servers import objects

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Stop sending, and let it go on.")

TenantChoice = Annotated[str | None, typer.Option("--tenant", metavar="ID|SLUG", help="The tenant.")]
DomainChoice = Annotated[str | None, typer.Option("--domain", metavar="NAME", help="The sending domain.")]


def controls(core: Core) -> SendingControls:
    return core.controls


@command(app)
def status(call: Invocation) -> None:
    """Show what stops sending now."""

    async def work(core: Core) -> shapes.Document:
        return shapes.standing(await controls(core).standing())

    call.output.result(run(call, work))


@command(app)
def switch(
    call: Invocation,
    name: Annotated[str, typer.Argument(metavar="SWITCH", help="read_only, free_sending or emergency_prune.")],
    state: Annotated[str, typer.Argument(metavar="on|off", help="What it is to be.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is shown beside the switch.")],
) -> None:
    """Turn a switch of the deployment, for every node within a second."""
    if name not in tuple(Switch):
        raise usage(f"{name!r} is no switch: there is {', '.join(Switch)}")
    if state not in ("on", "off"):
        raise usage(f"{state!r} is not on or off")

    async def work(core: Core) -> shapes.Document:
        return objects.switch(await controls(core).switch(Switch(name), on=state == "on", reason=reason))

    call.output.result(run(call, work))


@command(app)
def pause(
    call: Invocation,
    tenant: TenantChoice = None,
    domain: DomainChoice = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="abuse_threshold|abuse_burst", help="What a tenant's senders are told.")
    ] = PauseReason.ABUSE_THRESHOLD.value,
) -> None:
    """Send nothing for a tenant, or from a domain. What waits goes on waiting, for a day at the most."""
    if reason not in tuple(PauseReason):
        raise usage(f"--reason: {reason!r} is not {' or '.join(PauseReason)}")
    _set(call, tenant, domain, PauseReason(reason))


@command(app)
def resume(call: Invocation, tenant: TenantChoice = None, domain: DomainChoice = None) -> None:
    """Let a tenant, or a domain, send again."""
    _set(call, tenant, domain, None)


def _set(call: Invocation, tenant: str | None, domain: str | None, reason: PauseReason | None) -> None:
    if (tenant is None) == (domain is None):
        raise usage("name a tenant or a domain, with --tenant or --domain")

    async def work(core: Core) -> shapes.Document:
        held = controls(core)
        if tenant is not None:
            found = await find_tenant(core, tenant)
            await (held.resume_tenant(found.id) if reason is None else held.pause_tenant(found.id, reason))
        elif domain is not None:
            await (held.resume_domain(domain) if reason is None else held.pause_domain(domain))
        return shapes.standing(await held.standing())

    said = "sends again" if reason is None else "sends no more"
    call.output.result(run(call, work), human=f"{tenant or domain} {said}.")
