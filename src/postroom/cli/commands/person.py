"""`postroom person`: people who sign in (decisions A2). A person is made with a mailbox of their own."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from postroom.accounts.models import PLATFORM_SCOPE, MemberRole, NewPerson, Tenant
from postroom.accounts.passwords import MAX_LENGTH, check_policy
from postroom.accounts.permissions import GrantRole
from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    LimitOption,
    TenantOption,
    collect,
    find_person,
    find_tenant,
    mailboxes_of,
)
from postroom.cli.commands import person_credentials, person_rights
from postroom.cli.commands.person_credentials import PersonArgument, the_person
from postroom.cli.failures import usage
from postroom.cli.frame import Yes, command, confirm
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.directory.models import IdentityKind, NewIdentity
from postroom.directory.usernames import class_of, validate_username

app = typer.Typer(no_args_is_help=True, add_completion=False, help="People, who sign in with a password.")

app.add_typer(person_credentials.app_password, name="app-password")
app.add_typer(person_credentials.totp, name="totp")
app.add_typer(person_credentials.passkey, name="passkey")
app.add_typer(person_credentials.sessions, name="sessions")
app.add_typer(person_rights.device, name="device")
app.add_typer(person_rights.grant, name="grant")

PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
]

_LINE_BYTES: Final = 4 * MAX_LENGTH + 2


@command(app)
def create(
    call: Invocation,
    username: Annotated[str, typer.Argument(help="The part of their address before the @ (and the tenant's suffix).")],
    display_name: Annotated[
        str | None, typer.Option("--display-name", "--name", help="Their name; the username when not given.")
    ] = None,
    contact_email: Annotated[
        str | None, typer.Option("--contact-email", help="Where to reach them outside this deployment.")
    ] = None,
    operator: Annotated[bool, typer.Option("--operator", help="They run the deployment.")] = False,
    password_stdin: PasswordStdin = False,
    tenant: TenantOption = None,
) -> None:
    """Make a person with a mailbox that is theirs. Asks for the password twice."""
    password = _password(call, from_stdin=password_stdin)
    person = NewPerson(display_name or username, contact_email, password, operator)

    async def work(core: Core) -> shapes.Document:
        room = await find_tenant(core, tenant, create=True)
        # Everything that can be refused is refused before the first row is written.
        local, _ = validate_username(username, class_of(room.address_suffix), suffix=room.address_suffix)
        if await _is_taken(core, room, local):
            raise PostroomError("username_taken")
        made = await core.people.create(person)
        new = NewIdentity(local, person.display_name, IdentityKind.PERSON)
        identity, _ = await core.identities.create(room.id, new)
        await core.people.grant(room.id, identity.public_id, made.public_id, GrantRole.OWNER, by_operator=True)
        return shapes.person(made, [identity]) | {"tenant_id": room.public_id}

    call.output.result(run(call, work, create=True))


async def _is_taken(core: Core, tenant: Tenant, local: str) -> bool:
    address = f"{local}{tenant.address_suffix}@{core.settings.platform_domain}"
    try:
        await core.identities.by_address(PLATFORM_SCOPE, address)
    except PostroomError as error:
        if error.code != "address_not_found":
            raise
        return False
    return True


@command(app, "set-password")
def set_password(
    call: Invocation,
    person: Annotated[str, typer.Argument(help="Their id (usr_…), or the address of their mailbox.")],
    password_stdin: PasswordStdin = False,
) -> None:
    """Give a person a new password, in force at once. Asks for it twice."""
    password = _password(call, from_stdin=password_stdin)

    async def work(core: Core) -> shapes.Document:
        return shapes.person(await core.people.set_password(await find_person(core, person), password))

    changed = run(call, work)
    call.output.result(changed, human=f"The password of {changed['id']} was changed.")


@command(app)
def show(call: Invocation, person: PersonArgument) -> None:
    """Show a person and whether they have two-step verification."""

    async def work(core: Core) -> shapes.Document:
        found = await the_person(core, person)
        status = await core.two_step.status(found.id)
        return shapes.person(found) | {"totp": status.state.value, "recovery_codes_left": status.recovery_codes_left}

    call.output.result(run(call, work))


@command(app)
def disable(call: Invocation, person: PersonArgument) -> None:
    """Let a person sign in no more; whatever they are signed in to ends."""
    _set_enabled(call, person, False)


@command(app)
def enable(call: Invocation, person: PersonArgument) -> None:
    """Let a person sign in again."""
    _set_enabled(call, person, True)


def _set_enabled(call: Invocation, person: str, enabled: bool) -> None:
    async def work(core: Core) -> shapes.Document:
        return shapes.person(await core.people.set_enabled(await find_person(core, person), enabled))

    changed = run(call, work)
    call.output.result(changed, human=f"{changed['id']} is {'enabled' if enabled else 'disabled'}.")


@command(app)
def role(
    call: Invocation,
    person: PersonArgument,
    named: Annotated[str, typer.Argument(metavar="viewer|member|admin|owner", help="What they are in the tenant.")],
    tenant: TenantOption = None,
) -> None:
    """Make a person a member of a tenant, or change their role there."""
    if named not in tuple(MemberRole):
        raise usage(f"{named!r} is not viewer, member, admin or owner")

    async def work(core: Core) -> shapes.Document:
        room, who = await find_tenant(core, tenant), await find_person(core, person)
        await core.people.put_member(room.id, who, MemberRole(named), by_operator=True)
        return {"id": who, "tenant_id": room.public_id, "role": named}

    done = run(call, work)
    call.output.result(done, human=f"{done['id']} is {named} of {done['tenant_id']}.")


@command(app)
def remove(call: Invocation, person: PersonArgument, tenant: TenantOption = None, yes: Yes = False) -> None:
    """Take a tenant's membership and mailboxes from a person, who goes away with the last of either. Mail stays."""
    confirm(call, yes, "They will open no mailbox of this tenant any more. Remove them?")

    async def work(core: Core) -> shapes.Document:
        room, who = await find_tenant(core, tenant), await find_person(core, person)
        await core.people.remove(room.id, who)
        return {"id": who, "tenant_id": room.public_id}

    gone = run(call, work)
    call.output.result(gone, human=f"{gone['id']} was removed from {gone['tenant_id']}.")


@command(app, "list")
def list_(
    call: Invocation,
    tenant: TenantOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List the people of a tenant and the mailboxes they may open, newest first."""

    async def work(core: Core) -> tuple[list[shapes.Document], str | None]:
        room = await find_tenant(core, tenant)
        found, following = await collect(
            lambda size, after: core.people.page(tenant_id=room.id, limit=size, after=after),
            lambda one: (one.created_at, one.public_id),
            limit,
            cursor,
        )
        return [shapes.person(one, await mailboxes_of(core, room, one.id)) for one in found], following

    rows, following = run(call, work)
    call.output.listing(
        rows,
        ("id", "display_name", "addresses", "contact_email", "enabled", "is_operator", "created_at"),
        next_cursor=following,
        empty="No people yet: make one with postroom person create.",
    )


def _password(call: Invocation, *, from_stdin: bool) -> str:
    """The password: from standard input, or asked for twice. Raises `invalid_request` when it may not be one."""
    if from_stdin:
        line = sys.stdin.buffer.readline(_LINE_BYTES)
        try:
            password = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise usage("--password-stdin: the password is not UTF-8 text") from None
    elif call.output.interactive:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise usage("there is nobody to ask for the password", "Give it on standard input with --password-stdin.")
    check_policy(password)
    return password
