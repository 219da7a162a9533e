"""`postroom key`: API keys. A key's secret is shown once, when it is made, and stored nowhere (B11)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from postroom.accounts.keys import NewKey
from postroom.accounts.permissions import MAY_HOLD, OFFERED_LEVELS, OWNER_ONLY, Level
from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.arguments import (
    DEFAULT_LIMIT,
    CursorOption,
    LimitOption,
    TenantOption,
    collect,
    find_identity,
    find_tenant,
    read_duration,
    read_time,
)
from postroom.cli.failures import usage
from postroom.cli.invocation import Config, DataDir, Json, Quiet, invocation
from postroom.cli.output import Mode
from postroom.cli.reach import run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="API keys.")

ALL: Final = "all"
_LEVELS: Final = tuple(level.value for level in Level if level in OFFERED_LEVELS)


@app.command()
def create(
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
    expires_in: Annotated[str | None, typer.Option("--expires-in", metavar="30d", help="How long it lives.")] = None,
    expires_at: Annotated[str | None, typer.Option("--expires-at", metavar="TIME", help="When it ends.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Make a key and show its secret, this once."""
    call = invocation(json, quiet, config, data_dir)
    reach = _level(level, tenant, identity)
    wanted = _permissions(reach, permissions)
    ends = _expiry(expires_in, expires_at)

    async def work(core: Core) -> shapes.Document:
        tenant_id: int | None = None
        identity_id: int | None = None
        if reach is Level.TENANT:
            tenant_id = (await find_tenant(core, tenant, create=True)).id
        elif reach is Level.IDENTITY and identity is not None:
            found = await find_identity(core, identity)
            tenant_id, identity_id = found.tenant_id, found.id
        new = NewKey(name, reach, wanted, tenant_id, identity_id, ends)
        made, secret = await core.keys.create(None, new)
        return shapes.key(made) | {"key": secret}

    made = run(call, work, create=True)
    call.output.result(made, essential="key")
    if call.output.mode is Mode.HUMAN:
        call.output.note("Keep `key` now: it is shown this once and cannot be had again.")


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="ID|SLUG", help="Only keys of this tenant.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """List keys, newest first, without their secrets."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> tuple[list[shapes.Document], str | None]:
        tenant_id = None if tenant is None else (await find_tenant(core, tenant)).id
        found, following = await collect(
            lambda size, after: core.keys.page(None, tenant_id=tenant_id, limit=size, after=after),
            lambda one: (one.created_at, one.public_id),
            limit,
            cursor,
        )
        return [shapes.key(one) for one in found], following

    rows, following = run(call, work)
    call.output.listing(
        rows,
        ("id", "name", "level", "prefix", "expires_at", "revoked_at", "last_used_at"),
        next_cursor=following,
        empty="No keys yet: make one with postroom key create.",
    )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="The key's id (key_…).")],
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Refuse a key from its next request on. Doing it again changes nothing."""
    call = invocation(json, quiet, config, data_dir)

    async def work(core: Core) -> shapes.Document:
        await core.keys.revoke(None, key_id)
        return shapes.key(await core.keys.get(None, key_id))

    revoked = run(call, work)
    call.output.result(revoked, human=f"{revoked['id']} was revoked.")


def _level(text: str, tenant: str | None, identity: str | None) -> Level:
    if text not in _LEVELS:
        raise usage(f"--level: {text!r} is not one of {', '.join(_LEVELS)}")
    level = Level(text)
    if (identity is not None) != (level is Level.IDENTITY):
        raise usage("--identity and --level identity go together")
    if tenant is not None and level is not Level.TENANT:
        raise usage(f"--tenant: a key of level {level.value} takes none")
    return level


def _permissions(level: Level, given: list[str] | None) -> tuple[str, ...]:
    """The permissions, separated by commas or each with the option of its own. Nothing is given by default (A7)."""
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
