"""`postroom key`: API keys, whose secret is shown once, when it is made, and stored nowhere (B11); and the deployment's
own signing keys, which are never shown at all (security-privacy A6.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Final

import typer

from postroom.accounts.audit import HOST
from postroom.accounts.keys import KeyRequest
from postroom.accounts.models import ApiKey
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, Level
from postroom.accounts.service.keys import DEFAULT_OVERLAP_HOURS
from postroom.accounts.signing_keys import Purpose, Rotation, noted
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    Fetch,
    LimitOption,
    TenantOption,
    find_identity,
    find_person,
    find_tenant,
    read_duration,
    read_time,
)
from postroom.cli.failures import CliError, Exit, usage
from postroom.cli.frame import command, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.output import Mode
from postroom.cli.reach import run
from postroom.servers import objects
from postroom.servers.objects import moment

app = typer.Typer(no_args_is_help=True, add_completion=False, help="API keys, and the keys that sign tokens.")

ALL: Final = "all"
PURPOSES: Final = ", ".join(Purpose)
WHAT_ENDS: Final[Mapping[Purpose, str]] = MappingProxyType(
    {
        Purpose.THREAD: "Answers to all mail sent so far find their thread by their headers alone.",
        Purpose.BOUNCE: "Bounces of all mail sent so far are refused.",
        Purpose.FORWARD: "Bounces of all mail passed on so far are refused.",
        Purpose.LINK: "Links in all mail sent so far open no more.",
        Purpose.CURSOR: "Whoever is paging through a list over the API begins again.",
    }
)
"""What revoking the keys of a purpose means."""
_LEVELS: Final = tuple(level.value for level in sorted(Level, key=lambda level: -level.rank))


@command(app)
def create(
    call: Invocation,
    name: Annotated[str, typer.Option("--name", help="What it is for.")],
    permissions: Annotated[
        list[str] | None,
        typer.Option("--permissions", metavar="P[,P…]|all", help="What it may do; `all` is all its level can hold."),
    ] = None,
    level: Annotated[str, typer.Option("--level", metavar="|".join(_LEVELS), help="How far it reaches.")] = "tenant",
    tenant: TenantOption = None,
    identity: Annotated[
        str | None, typer.Option("--identity", metavar="ID|ADDRESS", help="The identity of a key of level identity.")
    ] = None,
    partner: Annotated[
        str | None, typer.Option("--partner", metavar="ID", help="The partner of a key of level partner.")
    ] = None,
    person: Annotated[
        str | None,
        typer.Option("--person", metavar="ID|ADDRESS", help="The member behind the key: it goes when they do."),
    ] = None,
    expires_in: Annotated[str | None, typer.Option("--expires-in", metavar="30d", help="How long it lives.")] = None,
    expires_at: Annotated[str | None, typer.Option("--expires-at", metavar="TIME", help="When it ends.")] = None,
) -> None:
    """Make a key and show its secret, this once."""
    reach = _level(level, tenant, identity, partner)
    wanted = _permissions(reach, permissions)
    ends = _expiry(expires_in, expires_at)

    async def work(core: Core) -> shapes.Document:
        room: str | None = None
        box: str | None = None
        if reach is Level.TENANT:
            room = (await find_tenant(core, tenant, create=True)).public_id
        elif reach is Level.IDENTITY and identity is not None:
            found = await find_identity(core, identity)
            room, box = found.tenant_public_id, found.public_id
        behind = None if person is None else await find_person(core, person)
        asked = KeyRequest(name, reach, wanted, room, box, partner, ends, behind)
        made, secret = await core.keys.mint(None, asked)
        return shapes.key(made) | {"key": secret}

    _show_secret(call, run(call, work, create=True))


@command(app, "list")
def list_(
    call: Invocation,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="ID|SLUG", help="Only keys of this tenant.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List keys, newest first, without their secrets."""

    async def pages(core: Core) -> Fetch[ApiKey]:
        tenant_id = None if tenant is None else (await find_tenant(core, tenant)).id
        return lambda size, after: core.keys.page(None, tenant_id=tenant_id, limit=size, after=after)

    tell_list(
        call,
        pages,
        shapes.key,
        limit,
        cursor,
        columns=("id", "name", "level", "prefix", "expires_at", "revoked_at", "last_used_at"),
        empty="No keys yet: make one with postroom key create.",
    )


@command(app)
def show(
    call: Invocation,
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="The key's id (key_…).")],
) -> None:
    """Show a key, without its secret."""
    call.output.result(run(call, lambda core: _shown(core, key_id)), essential="id")


@command(app)
def revoke(
    call: Invocation,
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="The key's id (key_…).")],
) -> None:
    """Refuse a key from its next request on. Doing it again changes nothing."""

    async def work(core: Core) -> shapes.Document:
        await core.keys.revoke(None, key_id)
        return shapes.key(await core.keys.get(None, key_id))

    revoked = run(call, work)
    call.output.result(revoked, human=f"{revoked['id']} was revoked.")


@command(app)
def rotate(
    call: Invocation,
    which: Annotated[
        str, typer.Argument(metavar="KEY|PURPOSE", help=f"An API key's id (key_…), or one of {PURPOSES}.")
    ],
    overlap_hours: Annotated[
        int | None,
        typer.Option("--overlap-hours", help="How long an API key's old secret works. [default: 24]"),
    ] = None,
    revoke_previous: Annotated[
        bool, typer.Option("--revoke-previous", help="Honour nothing that earlier signing keys made: after a leak.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Revoke without asking.")] = False,
) -> None:
    """Give an API key a new secret, shown this once; or make the next signing key of a purpose. What its predecessor
    made is honoured for 90 days (thread) or 30 (bounce, forward). Servers that run follow within five minutes.
    """
    if which.startswith("key_"):
        if revoke_previous or yes:
            raise usage("--revoke-previous and --yes are for signing keys")
        _renew(call, which, overlap_hours)
        return
    purpose = _purpose(which)
    if overlap_hours is not None:
        raise usage("--overlap-hours is for API keys")
    if revoke_previous and not yes:
        if not call.output.interactive:
            raise usage("--revoke-previous wants to be confirmed", "Add --yes.")
        typer.confirm(f"{WHAT_ENDS[purpose]} Go on?", abort=True, err=True)

    async def work(core: Core) -> Rotation:
        note = noted(core.ids, core.clock, HOST)
        return await core.signing_keys.rotate(purpose, revoke_previous=revoke_previous, also=note)

    done = run(call, work)
    kept = "is honoured no more" if done.revoked else f"is honoured until {moment(done.verify_until)}"
    human = f"Key {done.key.kid} makes new ones of {purpose.value}; key {done.previous} {kept}."
    call.output.result(objects.signing_key_rotation(done), essential="kid", human=human)


@command(app)
def ring(
    call: Invocation,
    purpose: Annotated[str | None, typer.Argument(metavar="[PURPOSE]", help=f"One of {PURPOSES}; all if none.")] = None,
) -> None:
    """List the deployment's signing keys: which makes new ones, and until when others are honoured. The first of a
    purpose is made if there is none.
    """
    wanted = list(Purpose) if purpose is None else [_purpose(purpose)]

    async def work(core: Core) -> list[shapes.Document]:
        return [shapes.signing_key(one, key) for one in wanted for key in await core.signing_keys.ring(one)]

    columns = ("purpose", "kid", "state", "created_at", "verify_until")
    call.output.listing(run(call, work), columns, essential="kid")


@command(app)
def retire(
    call: Invocation,
    purpose: Annotated[str, typer.Argument(metavar="PURPOSE", help=f"One of {PURPOSES}.")],
    kid: Annotated[str, typer.Argument(metavar="KID", help="The key, as `ring` lists it; not the one that signs.")],
) -> None:
    """Honour an old signing key no more, before its time. Servers that run follow within five minutes."""
    wanted = _purpose(purpose)

    async def work(core: Core) -> bool:
        if (await core.signing_keys.current(wanted)).kid == kid:
            raise CliError(
                "cli_conflict",
                "this key makes new ones",
                exit=Exit.CONFLICT,
                fix=f"postroom key rotate {wanted.value} --revoke-previous puts another in its place.",
            )
        return await core.signing_keys.retire(wanted, kid)

    if not run(call, work):
        raise CliError("cli_not_found", f"there is no such key of {wanted.value}", exit=Exit.NOT_FOUND)
    document = {"purpose": wanted.value, "kid": kid, "retired": True}
    call.output.result(document, essential="kid", human=f"Key {kid} of {wanted.value} is honoured no more.")


async def _shown(core: Core, key_id: str) -> shapes.Document:
    return shapes.key(await core.keys.get(None, key_id))


def _renew(call: Invocation, key_id: str, overlap_hours: int | None) -> None:
    hours = DEFAULT_OVERLAP_HOURS if overlap_hours is None else overlap_hours

    async def work(core: Core) -> shapes.Document:
        made, secret = await core.keys.rotate(None, key_id, hours)
        return shapes.key(made) | {"key": secret}

    _show_secret(call, run(call, work))


def _show_secret(call: Invocation, made: shapes.Document) -> None:
    call.output.result(made, essential="key")
    if call.output.mode is Mode.HUMAN:
        call.output.note("Keep `key` now: it is shown this once and cannot be had again.")


def _purpose(text: str) -> Purpose:
    if text not in tuple(Purpose):
        raise usage(f"{text!r} is neither an API key's id nor a purpose", f"Purposes are {PURPOSES}.")
    return Purpose(text)


def _level(text: str, tenant: str | None, identity: str | None, partner: str | None) -> Level:
    if text not in _LEVELS:
        raise usage(f"--level: {text!r} is not one of {', '.join(_LEVELS)}")
    level = Level(text)
    if (identity is not None) != (level is Level.IDENTITY):
        raise usage("--identity and --level identity go together")
    if (partner is not None) != (level is Level.PARTNER):
        raise usage("--partner and --level partner go together")
    if tenant is not None and level is not Level.TENANT:
        raise usage(f"--tenant: a key of level {level.value} takes none")
    return level


def _permissions(level: Level, given: list[str] | None) -> tuple[str, ...]:
    """The permissions, separated by commas or each with the option of its own. Nothing is given by default (A7); what
    only an owner's key may hold, not by `all` either.
    """
    names = [name.strip() for part in given or () for name in part.split(",") if name.strip()]
    if not names:
        raise usage("--permissions: name what the key may do, or all")
    if names != [ALL]:
        return tuple(names)
    room = MAY_HOLD[level] - OWNER_ONLY if level is Level.TENANT else MAY_HOLD[level]
    return tuple(sorted(permission.value for permission in room))


def _expiry(expires_in: str | None, expires_at: str | None) -> datetime | None:
    if expires_in is not None and expires_at is not None:
        raise usage("--expires-in and --expires-at exclude each other")
    if expires_in is not None:
        return datetime.now(UTC) + read_duration(expires_in)
    return None if expires_at is None else read_time(expires_at)
