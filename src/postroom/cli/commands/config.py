"""`postroom config`: what the server would run with (mail-server H1, H4; secrets masked)."""

from __future__ import annotations

import typer

from postroom.cli.invocation import Config, DataDir, Json, Quiet, invocation

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The server's configuration.")


@app.command()
def show(json: Json = False, quiet: Quiet = False, config: Config = None, data_dir: DataDir = None) -> None:
    """Show every setting as it is in force; passwords are masked."""
    call = invocation(json, quiet, config, data_dir)
    settings = call.settings()
    call.output.result(settings.masked(), essential="platform_domain")
    if call.config_path is not None:
        call.output.note(f"Read from {call.config_path}, the environment and the command line.")


@app.command()
def check(json: Json = False, quiet: Quiet = False, config: Config = None, data_dir: DataDir = None) -> None:
    """Check that the configuration can be used: exit 0, or 3 with everything that is wrong."""
    call = invocation(json, quiet, config, data_dir)
    settings = call.settings()
    path = None if call.config_path is None else str(call.config_path)
    document = {"status": "ok", "file": path, "ignored_environment": list(settings.ignored_environment)}
    call.output.result(document, essential="status", human="The configuration is in order.")
    for name in settings.ignored_environment:
        call.output.note(f"warning: {name} is set in the environment, but means nothing to Postroom")
