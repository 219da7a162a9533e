"""`postroom dkim`: the records of signing keys, and new keys (mail-server C8). Private parts are never shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from postroom.app import Core
from postroom.cli import shapes
from postroom.cli.failures import CliError, Exit
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.mailauth.dkim_key import zone_file_value
from postroom.outbound.signing import PublicKey, RotationError
from postroom.sending import dkim_keys_of
from postroom.servers.objects import moment

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Keys that sign the mail of a domain.")

DomainArgument = Annotated[str, typer.Argument(metavar="DOMAIN", help="A domain of this deployment.")]


@command(app)
def show(
    call: Invocation,
    domain: DomainArgument,
    second: Annotated[
        bool, typer.Option("--second", help="Make the Ed25519 key, too, before dkim.second_signature is switched on.")
    ] = False,
) -> None:
    """Show the records to publish; the first key is made if there is none."""

    async def work(core: Core) -> Sequence[PublicKey]:
        return await dkim_keys_of(core).show(domain, second=second)

    _tell(call, run(call, work))


@command(app)
def rotate(
    call: Invocation,
    domain: DomainArgument,
    switch: Annotated[
        bool, typer.Option("--switch", help="Sign with the new key, whose record is published by now.")
    ] = False,
) -> None:
    """Make the next key. Publish its record, then rotate again with --switch; keep the old record for 30 days."""

    async def work(core: Core) -> Sequence[PublicKey]:
        keys = dkim_keys_of(core)
        return await (keys.switch(domain) if switch else keys.rotate(domain))

    try:
        found = run(call, work)
    except RotationError as error:
        fix = f"Wait until {moment(error.until)}." if error.until else "Make one with postroom dkim rotate."
        raise CliError("cli_conflict", str(error), exit=Exit.CONFLICT, fix=fix) from error
    _tell(call, found)


def _tell(call: Invocation, keys: Sequence[PublicKey]) -> None:
    rows = [shapes.dkim_key(key) for key in keys]
    call.output.listing(rows, ("selector", "algorithm", "state", "name", "retire_at"), essential="record")
    for key in keys:
        call.output.line(f"{key.name} TXT {zone_file_value(key.record)}")
