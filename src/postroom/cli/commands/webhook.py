"""`postroom webhooks`: where events are sent, how that goes, and whether a request is one of ours."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from postroom.accounts.audit import HOST
from postroom.app import Core
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, Fetch, LimitOption, find_tenant, read_choice
from postroom.cli.commands.webhook_listen import listen
from postroom.cli.failures import CliError, Exit, usage
from postroom.cli.frame import command, following, tell_list
from postroom.cli.invocation import Invocation
from postroom.cli.replaying import (
    NAMED_HELP,
    SinceOption,
    StatusOption,
    UntilOption,
    read_moment,
    with_webhooks,
)
from postroom.cli.replaying import replay as replay_to
from postroom.cli.shapes import Document
from postroom.events.registry import EventType
from postroom.events.webhooks import signing
from postroom.events.webhooks.attempts import Filter
from postroom.events.webhooks.endpoints import DEFAULT_OVERLAP_HOURS, Changes, NewEndpoint, attempts_of, endpoints_of
from postroom.events.webhooks.models import Attempt, AttemptStatus, Endpoint
from postroom.events.webhooks.service import Webhooks
from postroom.events.webhooks.store import Owner
from postroom.servers import objects

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Webhooks: events as signed HTTPS requests.")
app.command()(following()(listen))

Named = Annotated[str, typer.Argument(metavar="ID", help="The webhook, whk_….")]
EventsOption = Annotated[str | None, typer.Option("--events", metavar="T[,T…]|*", help="Types of events; `*` is all.")]
IdentitiesOption = Annotated[
    str | None, typer.Option("--identity-ids", metavar="ID[,ID…]|all", help="Only events of these identities.")
]
DescriptionOption = Annotated[str | None, typer.Option("--description", help="What it is for.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", metavar="ID|SLUG", help="Events of this tenant.")]
PartnerOption = Annotated[str | None, typer.Option("--partner", metavar="ID", help="Events of this partner's tenants.")]
PlatformOption = Annotated[bool, typer.Option("--platform", help="Events of every tenant.")]
_WORDS: Final = {
    signing.Mismatch.SIGNATURE: "none of the signatures was made with this secret over these bytes",
    signing.Mismatch.TIMESTAMP: "the request is too old, or from the future",
    signing.Mismatch.SECRET: "not a webhook secret",
    signing.Mismatch.HEADER: "a header is missing or malformed",
}


@command(app)
def create(
    call: Invocation,
    url: Annotated[str, typer.Option("--url", help="Where to: https://….")],
    events: Annotated[str, typer.Option("--events", metavar="T[,T…]|*", help="Types of events; `*` is all.")],
    tenant: TenantOption = None,
    partner: PartnerOption = None,
    platform: PlatformOption = False,
    identity_ids: IdentitiesOption = None,
    description: DescriptionOption = None,
) -> None:
    """Have events sent to a URL, and show the secret that signs them, this once."""
    new = NewEndpoint(url, _events(events), _identities(identity_ids), description)

    async def work(core: Core, webhooks: Webhooks) -> Document:
        owner = await _owner(core, tenant, partner, platform)
        made, secret = await webhooks.endpoints.create(None, owner, new, by=HOST)
        return objects.webhook(made) | {"secret": secret}

    _show_secret(call, with_webhooks(call, work))


@command(app, "list")
def list_(
    call: Invocation,
    tenant: TenantOption = None,
    partner: PartnerOption = None,
    platform: PlatformOption = False,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List webhooks of a tenant, of a partner, or of the platform, newest first."""

    async def pages(core: Core) -> Fetch[Endpoint]:
        owner = await _owner(core, tenant, partner, platform)
        return lambda size, after: endpoints_of(core.database, owner, limit=size, after=after)

    tell_list(
        *(call, pages, objects.webhook, limit, cursor),
        columns=("id", "url", "events", "enabled", "disabled_reason", "created_at"),
        empty="No webhooks.",
    )


@command(app, "show", hidden=True)
@command(app)
def get(call: Invocation, named: Named) -> None:
    """Show a webhook, without its secret."""

    async def work(core: Core, webhooks: Webhooks) -> Document:
        return objects.webhook(await webhooks.endpoints.get(None, named))

    call.output.result(with_webhooks(call, work))


@command(app)
def update(
    call: Invocation,
    named: Named,
    url: Annotated[str | None, typer.Option("--url", help="Another URL; nothing is sent before a test of it.")] = None,
    events: EventsOption = None,
    identity_ids: IdentitiesOption = None,
    description: DescriptionOption = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Whether anything is sent.")] = None,
) -> None:
    """Change a webhook."""
    given = {
        "url": url,
        "events": events,
        "identity_ids": identity_ids,
        "description": description,
        "enabled": enabled,
    }
    names = frozenset(name for name, value in given.items() if value is not None)
    if not names:
        raise usage("nothing to change", "Name what is to be changed; see --help.")
    changes = Changes(
        names, url or "", _events(events or "*"), _identities(identity_ids), description, enabled is not False
    )

    async def work(core: Core, webhooks: Webhooks) -> Document:
        return objects.webhook(await webhooks.endpoints.update(None, named, changes, by=HOST))

    call.output.result(with_webhooks(call, work))


@command(app)
def delete(
    call: Invocation, named: Named, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> None:
    """Delete a webhook, with what was and was still to be sent."""
    if not yes:
        if not call.output.interactive:
            raise usage("delete wants to be confirmed", "Add --yes.")
        typer.confirm("What is still to be sent goes, too. Go on?", abort=True, err=True)

    async def work(core: Core, webhooks: Webhooks) -> None:
        await webhooks.endpoints.delete(None, named, by=HOST)

    with_webhooks(call, work)
    call.output.result({"id": named, "deleted": True})


@command(app)
def rotate(
    call: Invocation,
    named: Named,
    overlap_hours: Annotated[
        int, typer.Option("--overlap-hours", min=0, max=168, help="How long both secrets sign.")
    ] = DEFAULT_OVERLAP_HOURS,
) -> None:
    """Give a webhook a new secret and show it, this once."""

    async def work(core: Core, webhooks: Webhooks) -> Document:
        made, secret = await webhooks.endpoints.rotate(None, named, overlap_hours, by=HOST)
        return objects.webhook(made) | {"secret": secret}

    _show_secret(call, with_webhooks(call, work))


@command(app)
def test(call: Invocation, named: Named) -> None:
    """Send a test event now, once. A success lets a webhook go on whose URL was changed."""

    async def work(core: Core, webhooks: Webhooks) -> Document:
        return objects.delivery(await webhooks.endpoints.test(None, named, by=HOST))

    call.output.result(with_webhooks(call, work))


@command(app)
def deliveries(
    call: Invocation,
    named: Named,
    status: StatusOption = None,
    event_type: Annotated[str | None, typer.Option("--event-type", help="Only those of this type.")] = None,
    after: Annotated[str | None, typer.Option("--after", metavar="TIME", help="Only those since then.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    cursor: CursorOption = None,
) -> None:
    """List attempts, newest first."""
    filter_ = Filter(read_choice("--status", status, AttemptStatus), event_type, read_moment("--after", after))

    async def pages(core: Core) -> Fetch[Attempt]:
        return lambda size, at: attempts_of(core.database, None, named, filter_, limit=size, after=at)

    tell_list(
        *(call, pages, objects.delivery, limit, cursor),
        columns=("id", "event_type", "event_id", "attempt", "status", "error", "http_status", "created_at"),
        empty="No attempts.",
    )


@command(app)
def replay(
    call: Invocation,
    named: Named,
    event_ids: Annotated[list[str] | None, typer.Option("--event-id", metavar="ID", help=NAMED_HELP)] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    status: StatusOption = None,
) -> None:
    """Send events again: those that are named, or those of a window."""
    replay_to(call, named, event_ids, since, until, status)


@command(app)
def verify(
    call: Invocation,
    message_id: Annotated[str | None, typer.Option("--id", help="The header webhook-id.")] = None,
    timestamp: Annotated[str | None, typer.Option("--timestamp", help="The header webhook-timestamp.")] = None,
    signature: Annotated[str | None, typer.Option("--signature", help="The header webhook-signature.")] = None,
    headers: Annotated[
        Path | None, typer.Option("--headers", metavar="FILE", help="All headers, `name: value` on each line.")
    ] = None,
    body: Annotated[str, typer.Option("--body", metavar="FILE|-", help="The body, byte for byte.")] = "-",
    secret_env: Annotated[
        str, typer.Option("--secret-env", metavar="NAME", help="The variable that has the secret.")
    ] = "POSTROOM_WEBHOOK_SECRET",
    secret: Annotated[str | None, typer.Option("--secret", help="The secret, whsec_….")] = None,
    tolerance: Annotated[int, typer.Option("--tolerance", min=0, help="Seconds that clocks may differ by.")] = 300,
    now: Annotated[str | None, typer.Option("--now", metavar="TIME", help="When it came, if not now.")] = None,
) -> None:
    """Check a request that was received; asks nobody. Exits with 11 when it is none of ours."""
    found = {} if headers is None else _headers(_read("--headers", headers).decode("utf-8", errors="replace"))
    came = read_moment("--now", now)
    key = secret if secret is not None else os.environ.get(secret_env)
    if not key:
        raise usage("the secret of the webhook is needed", f"Set {secret_env}, or name a variable by --secret-env.")
    event = message_id or found.get("webhook-id")
    wrong = signing.verify(
        key,
        message_id=event,
        timestamp=timestamp or found.get("webhook-timestamp"),
        signatures=signature or found.get("webhook-signature"),
        body=sys.stdin.buffer.read() if body == "-" else _read("--body", Path(body)),
        now=time.time() if came is None else came.timestamp(),
        tolerance=tolerance,
    )
    if wrong is not None:
        raise CliError(wrong.value, _WORDS[wrong], exit=Exit.VERIFICATION)
    call.output.result({"valid": True, "id": event}, human=f"{event} is one of ours.")


async def _owner(core: Core, tenant: str | None, partner: str | None, platform: bool) -> Owner:
    if (tenant is not None) + (partner is not None) + platform > 1:
        raise usage("one of --tenant, --partner and --platform")
    if platform:
        return Owner()
    if partner is not None:
        return Owner(partner_id=(await core.partners.get(partner)).id)
    return Owner(tenant_id=(await find_tenant(core, tenant)).id)


def _show_secret(call: Invocation, made: Document) -> None:
    call.output.result(made, essential="secret")


def _events(text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(","))
    unknown = [word for word in found if word != "*" and word not in set(EventType)]
    if unknown or len(set(found)) != len(found):
        raise usage(f"--events: {', '.join(unknown) or 'one is named twice'}: no type of event")
    return found


def _identities(text: str | None) -> tuple[str, ...] | None:
    return None if text in (None, "all") else tuple(word.strip() for word in str(text).split(","))


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise usage(f"{option}: {path}: {error.strerror}") from error


def _headers(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip().lower(): value.strip() for name, value in pairs}
