"""`postroom healthcheck`: whether a server answers, for the probes of containers (A5)."""

from __future__ import annotations

import http.client
import json as json_module
from typing import Annotated, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import typer

from postroom.cli.failures import CliError, Exit, usage
from postroom.cli.invocation import Json, Quiet, invocation

app = typer.Typer(add_completion=False)

DEFAULT_URL: Final = "http://127.0.0.1:8080"
MAX_ANSWER: Final = 64 * 1024


@app.command()
def healthcheck(
    url: Annotated[str, typer.Option("--url", help="The server, without a path.")] = DEFAULT_URL,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, max=60, help="Seconds to wait.")] = 5.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask a server for its health: exit 0 only when /health answers 200."""
    call = invocation(json, quiet)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise usage(f"--url: {url!r} is not a URL such as {DEFAULT_URL}")
    answer = _ask(f"{url.rstrip('/')}/health", timeout)
    call.output.result(answer, essential="status", human=f"{answer.get('status', 'ok')}: {url} answers")


def _ask(url: str, timeout: float) -> dict[str, Any]:
    # Never through a proxy: it is this machine's server that is asked for.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(Request(url, headers={"Accept": "application/json"}), timeout=timeout) as answer:
            status, body = answer.status, answer.read(MAX_ANSWER)
    except HTTPError as error:
        raise _unwell(f"{url} answers {error.code}") from None
    except (URLError, OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise _unwell(f"{url} does not answer: {reason}") from None
    if status != http.client.OK:
        raise _unwell(f"{url} answers {status}")
    try:
        document = json_module.loads(body)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"status": "ok"}


def _unwell(message: str) -> CliError:
    return CliError("upstream_unavailable", message, exit=Exit.REMOTE, fix="See whether postroom serve runs there.")
