"""`postroom identity`: identities, each an address with a mailbox, of an agent or a person (decisions A3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from postroom.accounts.models import PLATFORM_SCOPE, tenant_scope
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    Fetch,
    LimitOption,
    TenantOption,
    find_domain,
    find_identity,
    find_tenant,
    read_choice,
)
from postroom.cli.failures import usage
from postroom.cli.frame import Yes, command, confirm, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.directory.erasures import Erasure
from postroom.directory.models import Identity, IdentityChanges, IdentityKind, IdentityStatus, NewIdentity
from postroom.mailbox.models import MailboxRef

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Identities: an address and a mailbox each.")

IdentityArgument = Annotated[str, typer.Argument(metavar="ID|ADDRESS", help="Its id (idn_…), or an address of it.")]


@command(app)
def create(
    call: Invocation,
    username: Annotated[str, typer.Argument(help="The part of the address before the @ (and the tenant's suffix).")],
    display_name: Annotated[
        str | None, typer.Option("--display-name", "--name", help="Its name; the username when not given.")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", metavar="agent|person", help="Whose mailbox it is.")] = "agent",
    purpose: Annotated[str | None, typer.Option("--purpose", help="What it is for.")] = None,
    owner_name: Annotated[str | None, typer.Option("--owner-name", help="Who answers for it.")] = None,
    owner_email: Annotated[str | None, typer.Option("--owner-email", help="How to reach them.")] = None,
    signature: Annotated[str | None, typer.Option("--signature-text", help="What its mail ends with.")] = None,
    domain: Annotated[
        str | None,
        typer.Option("--domain", metavar="ID|NAME", help="A domain of its tenant for the address that it writes from."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="Something of yours to keep with it; again for more."),
    ] = None,
    client_id: Annotated[
        str | None, typer.Option("--client-id", help="Your own id: the same request again finds the same identity.")
    ] = None,
    tenant: TenantOption = None,
) -> None:
    """Make an identity with its address and mailbox."""
    whose = read_choice("--kind", kind, IdentityKind)
    assert whose is not None
    new = NewIdentity(
        username=username,
        display_name=display_name or username,
        kind=whose,
        purpose=purpose,
        owner_name=owner_name,
        owner_email=owner_email,
        signature_text=signature,
        metadata=_metadata(metadata or []),
        client_id=client_id,
    )

    async def work(core: Core) -> shapes.Document:
        room = await find_tenant(core, tenant, create=True)
        wanted = new if domain is None else replace(new, domain=await find_domain(core, room.id, domain))
        made, _ = await core.identities.create(room.id, wanted)
        return shapes.identity(made)

    call.output.result(run(call, work, create=True))


@command(app, "list")
def list_(
    call: Invocation,
    tenant: TenantOption = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="active|paused|deleting|deleted", help="Only those that are so."),
    ] = None,
    purpose: Annotated[str | None, typer.Option("--purpose", help="Only those that are for this.")] = None,
    client_id: Annotated[
        str | None, typer.Option("--client-id", help="Only the one that has this id of yours.")
    ] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List the identities of a tenant, newest first."""
    wanted = read_choice("--status", status, IdentityStatus)
    statuses = None if wanted is None else [wanted]

    async def pages(core: Core) -> Fetch[Identity]:
        room = await find_tenant(core, tenant)
        return lambda size, after: core.identities.page(
            tenant_scope(room.id),
            room.id,
            statuses=statuses,
            purpose=purpose,
            client_id=client_id,
            limit=size,
            after=after,
        )

    narrowed = (status, purpose, client_id) != (None, None, None)

    tell_list(
        call,
        pages,
        shapes.identity,
        limit,
        cursor,
        columns=("id", "kind", "primary_address", "display_name", "purpose", "status", "created_at"),
        empty="No such identities." if narrowed else "No identities yet: make one with postroom identity create.",
    )


@command(app)
def get(call: Invocation, named: IdentityArgument) -> None:
    """Show an identity with its addresses."""

    async def work(core: Core) -> Identity:
        return await find_identity(core, named)

    call.output.result(shapes.identity(run(call, work)))


@command(app)
def quota(
    call: Invocation,
    named: IdentityArgument,
    octets: Annotated[
        int | None, typer.Option("--bytes", metavar="OCTETS", min=1, max=2**53, help="What it may hold from now on.")
    ] = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="It may hold whatever comes.")] = False,
) -> None:
    """Show what a mailbox holds and may hold, or change the latter. Nothing is removed from one that is over it."""
    if octets is not None and unlimited:
        raise usage("--bytes and --unlimited: one of them, not both")

    async def work(core: Core) -> shapes.Document:
        identity = await find_identity(core, named)
        ref = MailboxRef(identity.tenant_id, identity.id)
        if octets is not None or unlimited:
            await core.mailboxes.set_quota(ref, octets)
        usage_ = await core.mailboxes.reads.usage(ref)
        return {"id": identity.public_id, "used_bytes": usage_.used_bytes, "quota_bytes": usage_.quota_bytes}

    call.output.result(run(call, work))


@command(app)
def update(
    call: Invocation,
    named: IdentityArgument,
    display_name: Annotated[str | None, typer.Option("--display-name", "--name", help="Its name.")] = None,
    purpose: Annotated[str | None, typer.Option("--purpose", help="What it is for; nothing clears it.")] = None,
    owner_name: Annotated[str | None, typer.Option("--owner-name", help="Who answers for it.")] = None,
    owner_email: Annotated[str | None, typer.Option("--owner-email", help="How to reach them.")] = None,
    signature: Annotated[
        str | None, typer.Option("--signature-text", help="What its mail ends with; nothing clears it.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="In place of all that it has."),
    ] = None,
    daily_cap: Annotated[int | None, typer.Option("--daily-cap", min=0, help="Recipients a day at most.")] = None,
    auto_reply: Annotated[
        str | None, typer.Option("--auto-reply", metavar="allowed|denied", help="Whether it may answer by itself.")
    ] = None,
    known: Annotated[
        bool | None,
        typer.Option(
            "--require-known-recipient/--any-recipient", help="Whether an agent writes only to people it knows."
        ),
    ] = None,
) -> None:
    """Change an identity. What is not named stays as it is."""
    if auto_reply not in (None, "allowed", "denied"):
        raise usage(f"--auto-reply: {auto_reply!r} is not allowed or denied")
    given = {"daily_cap": daily_cap, "auto_reply": auto_reply, "require_known_recipient": known}
    policy = {name: value for name, value in given.items() if value is not None}
    changes = IdentityChanges(
        display_name=display_name,
        purpose=purpose,
        owner_name=owner_name,
        owner_email=owner_email,
        signature_text=signature,
        metadata=None if metadata is None else _metadata(metadata),
        send_policy=policy or None,
    )
    if changes == IdentityChanges():
        raise usage("there is nothing to change")
    call.output.result(shapes.identity(_change(call, named, changes)))


@command(app)
def pause(call: Invocation, named: IdentityArgument) -> None:
    """Let an identity send no more. It still receives."""
    paused = _change(call, named, IdentityChanges(status=IdentityStatus.PAUSED))
    call.output.result(shapes.identity(paused), human=f"{paused.primary.address} sends no more.")


@command(app)
def resume(call: Invocation, named: IdentityArgument) -> None:
    """Let an identity send again."""
    resumed = _change(call, named, IdentityChanges(status=IdentityStatus.ACTIVE))
    call.output.result(shapes.identity(resumed), human=f"{resumed.primary.address} sends again.")


@command(app)
def delete(call: Invocation, named: IdentityArgument, yes: Yes = False) -> None:
    """Delete an identity: its addresses are gone for ever, and everything it has is to be erased."""
    confirm(call, yes, "Its addresses are nobody's ever again, and its mail is erased. Delete it?")

    async def work(core: Core) -> Erasure:
        request, _ = await core.deletions.delete(PLATFORM_SCOPE, (await find_identity(core, named)).public_id)
        return request

    call.output.result(shapes.erasure(run(call, work)), human="It receives nothing more; what it has is to be erased.")


def _change(call: Invocation, named: str, changes: IdentityChanges) -> Identity:
    async def work(core: Core) -> Identity:
        return await core.identities.update(PLATFORM_SCOPE, (await find_identity(core, named)).public_id, changes)

    return run(call, work)


def _metadata(given: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    for key, equals, value in pairs:
        if not key or not equals:
            raise usage(f"--metadata: {key + equals + value!r} is not KEY=VALUE")
    return {key: value for key, _, value in pairs}
