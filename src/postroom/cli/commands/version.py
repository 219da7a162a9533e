"""`postroom version`."""

from __future__ import annotations

import typer

from postroom import __version__
from postroom.cli.invocation import Json, Quiet, invocation
from postroom.db.migrate import packaged_migrations

app = typer.Typer(add_completion=False)


@app.command()
def version(json: Json = False, quiet: Quiet = False) -> None:
    """Print the versions of the program and of its database schema."""
    call = invocation(json, quiet)
    schema = packaged_migrations()[-1].version
    human = f"postroom {__version__}, schema {schema:04}"
    call.output.result({"version": __version__, "schema": schema}, essential="version", human=human)
