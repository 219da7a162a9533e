"""`postroom audit`: who did what (rest-api §5.19)."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from postroom.accounts.audit import Event, Filter
from postroom.accounts.models import PLATFORM_SCOPE
from postroom.app import Core
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, Fetch, LimitOption, find_tenant, read_time
from postroom.cli.failures import usage
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.servers import objects

PERSON: Final = "usr_"
_ACTORS: Final = ("key_", PERSON)

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The audit log: who did what.")


@app.callback()
def _noun() -> None:
    """The audit log: who did what."""  # with one command alone, typer would take the noun for it


@command(app, "list")
def list_(
    call: Invocation,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="ID|SLUG", help="Only this tenant's; all when not given.")
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option("--actor", "--key", metavar="ID", help="Only what this key (key_…) or person (usr_…) did."),
    ] = None,
    action: Annotated[str | None, typer.Option("--action", help="Only this, such as identity.delete.")] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="ID", help="Only what was done to this.")] = None,
    after: Annotated[str | None, typer.Option("--after", metavar="TIME", help="From this time on.")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="TIME", help="Before this time.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List what was done, newest first."""
    if actor is not None and not actor.startswith(_ACTORS):
        raise usage(f"--actor: {actor!r} is not the id of a key (key_…) or a person (usr_…)")
    is_person = actor is not None and actor.startswith(PERSON)
    wanted = Filter(
        actor_key=None if is_person else actor,
        actor_person=actor if is_person else None,
        action=action,
        target_id=target,
        after=None if after is None else read_time(after, "--after"),
        before=None if before is None else read_time(before, "--before"),
    )

    async def pages(core: Core) -> Fetch[Event]:
        room = None if tenant is None else (await find_tenant(core, tenant)).id
        return lambda size, position: core.audit.page(PLATFORM_SCOPE, room, wanted, limit=size, after=position)

    tell_list(
        call,
        pages,
        objects.audit_event,
        limit,
        cursor,
        columns=("created_at", "action", "target_id", "actor_key_id", "actor_user_id"),
        empty="Nothing of that kind was done.",
    )
