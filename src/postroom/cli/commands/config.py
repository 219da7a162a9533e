"""`postroom config`: what the server would run with (mail-server H1, H4; secrets masked)."""

from __future__ import annotations

import typer

from postroom.cli.frame import command
from postroom.cli.invocation import Invocation

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The server's configuration.")


@command(app)
def show(call: Invocation) -> None:
    """Show every setting as it is in force; passwords are masked."""
    settings = call.settings()
    call.output.result(settings.masked(), essential="platform_domain")
    if call.config_path is not None:
        call.output.note(f"Read from {call.config_path}, the environment and the command line.")


@command(app)
def check(call: Invocation) -> None:
    """Check that the configuration can be used: exit 0, or 3 with everything that is wrong."""
    settings = call.settings()
    path = None if call.config_path is None else str(call.config_path)
    document = {"status": "ok", "file": path, "ignored_environment": list(settings.ignored_environment)}
    call.output.result(document, essential="status", human="The configuration is in order.")
    for name in settings.ignored_environment:
        call.output.note(f"warning: {name} is set in the environment, but means nothing to Postroom")
