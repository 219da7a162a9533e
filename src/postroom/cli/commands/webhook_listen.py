"""`postroom webhooks listen`: what a stream of events tells, posted as webhooks are."""

from __future__ import annotations

import os
from itertools import islice
from typing import Annotated, Final

import typer

from postroom.cli.failures import usage
from postroom.cli.invocation import Json, Quiet, invocation
from postroom.cli.listening import Source, forward, server, split
from postroom.cli.listening import listen as events_of
from postroom.cli.output import Mode, dump
from postroom.events.webhooks import signing

DEFAULT_URL: Final = "http://127.0.0.1:8080"
KEY_VARIABLE: Final = "POSTROOM_KEY"
SECRET_VARIABLE: Final = "POSTROOM_WEBHOOK_SECRET"


def listen(
    forward_to: Annotated[str, typer.Option("--forward", metavar="URL", help="Where each event is posted.")],
    url: Annotated[str, typer.Option("--url", help="The server, without a path.")] = DEFAULT_URL,
    key: Annotated[
        str | None, typer.Option("--key", help=f"The API key; better given as {KEY_VARIABLE} in the environment.")
    ] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only events of this type; may be repeated.")
    ] = None,
    identity: Annotated[str | None, typer.Option("--identity", metavar="ID", help="Only of this identity.")] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many events.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Post each event of a server to a URL as it happens, signed as webhooks are: for development, where no webhook
    gets to. Nothing is posted twice or tried again.
    """
    call = invocation(json, quiet)
    split(forward_to, "--forward")
    server(url)
    token = key or os.environ.get(KEY_VARIABLE)
    if not token or not token.isascii() or not token.isprintable():
        raise usage("an API key is needed", f"Set {KEY_VARIABLE}.")
    filters = {"types": ",".join(types)} if types else {}
    if identity is not None:
        filters["identity_id"] = identity
    given = os.environ.get(SECRET_VARIABLE)
    try:
        secret = signing.secret_bytes(given) if given else os.urandom(signing.SECRET_BYTES)
    except ValueError:
        raise usage(f"{SECRET_VARIABLE} is not the secret of a webhook, whsec_…") from None
    shown = given or signing.secret_text(secret)
    output = call.output
    if output.mode is Mode.JSON:
        output.out.write(dump({"secret": shown}) + "\n")
        output.out.flush()
    else:
        until = "as always" if given else f"until this command ends; set {SECRET_VARIABLE} to keep one"
        output.result({"secret": shown}, essential="secret", human=f"The secret is good {until}:\n{shown}")
    for kind, body in islice(events_of(Source(url, token, filters), tell=output.note), count):
        passed = forward(forward_to, secret, kind, body)
        row = {
            "id": passed.event_id,
            "type": passed.type,
            "status": passed.status,
            "duration_ms": passed.duration_ms,
        }
        if output.mode is Mode.JSON:
            output.out.write(dump(row) + "\n")
            output.out.flush()
        else:
            output.line(f"{passed.event_id} {passed.type} → {passed.status or 'no answer'} ({passed.duration_ms} ms)")
