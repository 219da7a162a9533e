"""`postroom serve`: runs the roles of this node until it is told to stop (architecture §4)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer
import uvloop

from postroom.base import log as base_log
from postroom.base.secrets import Secrets, ensure_secrets, load_secrets
from postroom.base.settings import Role, Settings
from postroom.cli.failures import CliError, Exit
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.reach import take_commands_lock
from postroom.supervisor import CHILD_URL, IN_VAIN, Running, serve_child
from postroom.supervisor import serve as supervise

app = typer.Typer(add_completion=False)
log = base_log.get("serve")


@command(app)
def serve(
    call: Invocation,
    roles: Annotated[
        str | None, typer.Option("--roles", metavar="ROLE,…", help=f"Of {', '.join(Role)}; all by default.")
    ] = None,
    processes: Annotated[int | None, typer.Option("--processes", help="How many, on the same ports.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check the configuration: exit 0 or 3.")] = False,
) -> None:
    """Run the mail server. SIGTERM and Ctrl-C stop it in order."""
    settings = call.settings({"server.roles": roles, "server.processes": processes})
    if check:
        call.output.result({"status": "ok"}, essential="status", human="The configuration is in order.")
        return
    base_log.configure(settings.server.log_level.value, settings.server.log_format.value)
    for name in settings.ignored_environment:
        log.warning("variable_ignored", variable=name)
    url = os.environ.get(CHILD_URL)
    if url is not None:
        code = uvloop.run(serve_child(settings, _reload(call, settings)(), url, _reload(call, settings)))
    else:
        code = uvloop.run(_serve(call, settings))
    if code in IN_VAIN:
        # The process that could not start has told why.
        raise typer.Exit(code)
    if code:
        raise CliError(
            "cli_internal", "the server ended by itself", exit=Exit.BUG, fix="Its log, on standard error, says why."
        )


async def _serve(call: Invocation, settings: Settings) -> int:
    """Holds the lock of commands until the server is up, so that none is half done, or in the way of the start."""
    data_dir = settings.server.data_dir
    lock = await take_commands_lock(data_dir)

    def ready(running: Running) -> None:
        lock.release()
        log.info("ready", **running.ports)

    try:
        ensure_secrets(data_dir, environ=call.environ)
        return await supervise(settings, _reload(call, settings)(), ready=ready, reload=_reload(call, settings))
    finally:
        lock.release()


def _reload(call: Invocation, settings: Settings) -> Callable[[], Secrets]:
    return partial(load_secrets, settings.server.data_dir, call.environ)
