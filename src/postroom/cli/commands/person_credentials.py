"""`postroom person app-password|totp|sessions`: what people sign in with, at the host (mail-server H4)."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.audit import HOST
from postroom.accounts.models import AppPassword, Person, PersonSession
from postroom.accounts.passkeys import Passkey
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, Fetch, LimitOption, find_person
from postroom.cli.frame import Yes, command, confirm, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.output import Mode
from postroom.cli.reach import run
from postroom.servers import objects

app_password = typer.Typer(no_args_is_help=True, add_completion=False, help="Passwords of single mail programs.")
totp = typer.Typer(no_args_is_help=True, add_completion=False, help="Two-step verification.")
passkey = typer.Typer(no_args_is_help=True, add_completion=False, help="Passkeys, which people make in a browser.")
sessions = typer.Typer(no_args_is_help=True, add_completion=False, help="Where people are signed in.")

PersonArgument = Annotated[str, typer.Argument(help="Their id (usr_…), or the address of their mailbox.")]


async def the_person(core: Core, named: str) -> Person:
    """The person who is named. Raises `person_not_found`."""
    return await core.people.get(await find_person(core, named))


@command(app_password, "create")
def create_app_password(
    call: Invocation,
    person: PersonArgument,
    label: Annotated[str, typer.Option("--label", help="Which program it is for.")],
) -> None:
    """Make an application password and show it, this once."""

    async def work(core: Core) -> shapes.Document:
        made, text = await core.app_passwords.create(await the_person(core, person), label, HOST)
        return objects.app_password(made) | {"password": text}

    made = run(call, work)
    if call.output.mode is Mode.HUMAN:
        call.output.line(f"{made['password']}")
        call.output.note("It is shown this once. Give it to one mail program, in place of the password.")
        return
    call.output.result(made, essential="password")


@command(app_password, "list")
def list_app_passwords(
    call: Invocation, person: PersonArgument, limit: LimitOption = DEFAULT_LIMIT, cursor: CursorOption = None
) -> None:
    """List a person's application passwords, newest first, revoked ones too."""

    async def pages(core: Core) -> Fetch[AppPassword]:
        found = await the_person(core, person)
        return lambda size, after: core.app_passwords.page(found.id, limit=size, after=after)

    tell_list(
        call,
        pages,
        objects.app_password,
        limit,
        cursor,
        columns=("id", "label", "created_at", "last_used_at", "revoked_at"),
        empty="No application passwords yet.",
    )


@command(app_password, "revoke")
def revoke_app_password(
    call: Invocation,
    person: PersonArgument,
    app_password_id: Annotated[str, typer.Argument(metavar="ID", help="The application password's id (apw_…).")],
) -> None:
    """Refuse an application password from now on; whatever it opened ends."""

    async def work(core: Core) -> shapes.Document:
        await core.app_passwords.revoke(await the_person(core, person), app_password_id, HOST)
        return {"id": app_password_id}

    call.output.result(run(call, work), human=f"{app_password_id} was revoked.")


@command(totp, "show")
def show_totp(call: Invocation, person: PersonArgument) -> None:
    """Whether a person has two-step verification, and how many recovery codes are left."""

    async def work(core: Core) -> shapes.Document:
        found = await the_person(core, person)
        status = await core.two_step.status(found.id)
        return {"id": found.public_id, "status": status.state.value, "recovery_codes_left": status.recovery_codes_left}

    call.output.result(run(call, work), essential="status")


@command(totp, "enable")
def enable_totp(
    call: Invocation,
    person: PersonArgument,
    code: Annotated[
        str | None, typer.Option("--code", help="A code of the app, which confirms what an earlier call enrolled.")
    ] = None,
) -> None:
    """Turn two-step verification on: the first call shows the secret for the app, the second, with --code, the recovery
    codes. Each is shown once.
    """

    async def work(core: Core) -> shapes.Document:
        found = await the_person(core, person)
        if code is None:
            enrolment = await core.two_step.enrol(found)
            return {"id": found.public_id, "status": "pending", "secret": enrolment.secret, "uri": enrolment.uri}
        codes = await core.two_step.confirm(found, code, HOST)
        return {"id": found.public_id, "status": "enabled", "recovery_codes": list(codes)}

    done = run(call, work)
    call.output.result(done, essential="secret" if code is None else "status")
    if code is None:
        call.output.note("Within ten minutes: postroom person totp enable PERSON --code CODE.")


@command(totp, "disable")
def disable_totp(call: Invocation, person: PersonArgument, yes: Yes = False) -> None:
    """Turn a person's two-step verification off, without a code: for who lost the phone and the recovery codes."""
    confirm(call, yes, "Without it their password alone opens everything that is theirs. Turn it off?")

    async def work(core: Core) -> shapes.Document:
        found = await the_person(core, person)
        await core.two_step.clear(found, HOST)
        return {"id": found.public_id, "status": "disabled"}

    done = run(call, work)
    call.output.result(done, human=f"Two-step verification of {done['id']} is off.")


@command(passkey, "list")
def list_passkeys(
    call: Invocation, person: PersonArgument, limit: LimitOption = DEFAULT_LIMIT, cursor: CursorOption = None
) -> None:
    """List a person's passkeys, newest first."""

    async def pages(core: Core) -> Fetch[Passkey]:
        found = await the_person(core, person)
        return lambda size, after: core.passkeys.page(found.id, limit=size, after=after)

    tell_list(
        call,
        pages,
        shapes.passkey,
        limit,
        cursor,
        columns=("id", "name", "backed_up", "created_at", "last_used_at"),
        empty="No passkeys yet.",
    )


@command(passkey, "remove")
def remove_passkeys(
    call: Invocation,
    person: PersonArgument,
    passkey_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The passkey's id (pky_…); all of them when not given.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove a passkey, or all that a person has; sessions that they opened end."""
    if passkey_id is None:
        confirm(call, yes, "They will need their password to sign in. Remove all their passkeys?")

    async def work(core: Core) -> shapes.Document:
        found = await the_person(core, person)
        if passkey_id is None:
            return {"id": found.public_id, "removed": await core.passkeys.remove_all(found, HOST)}
        await core.passkeys.remove(found, passkey_id, HOST)
        return {"id": passkey_id, "removed": 1}

    done = run(call, work)
    told = f"{done['removed']} passkeys were removed." if passkey_id is None else f"{passkey_id} was removed."
    call.output.result(done, human=told)


@command(sessions, "list")
def list_sessions(
    call: Invocation, person: PersonArgument, limit: LimitOption = DEFAULT_LIMIT, cursor: CursorOption = None
) -> None:
    """List a person's live sessions, newest first. Connections of mail programs are not among them."""

    async def pages(core: Core) -> Fetch[PersonSession]:
        found = await the_person(core, person)
        return lambda size, after: core.sessions.page(found.id, limit=size, after=after)

    tell_list(
        call,
        pages,
        shapes.session,
        limit,
        cursor,
        columns=("id", "kind", "second_factor", "ip", "last_seen_at", "expires_at"),
        empty="Not signed in anywhere.",
    )


@command(sessions, "revoke")
def revoke_sessions(
    call: Invocation,
    person: PersonArgument,
    session_id: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="The session's id (ses_…); all of them when not given.")
    ] = None,
) -> None:
    """End a session, or everything that a person is signed in to, mail programs too."""

    async def work(core: Core) -> shapes.Document:
        found = await the_person(core, person)
        if session_id is None:
            await core.sessions.revoke_all(found, HOST)
            return {"id": found.public_id}
        await core.sessions.revoke(found, session_id, HOST)
        return {"id": session_id}

    done = run(call, work)
    told = f"{done['id']} is signed out everywhere." if session_id is None else f"{done['id']} was ended."
    call.output.result(done, human=told)
