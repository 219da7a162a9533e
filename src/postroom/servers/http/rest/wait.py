"""The long poll for a message (rest-api §5.12, inbound §21). No database connection is held while it sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from postroom.accounts.permissions import Permission
from postroom.mailauth.organisational import organisational_domain
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.queries import Arrival, MessageView
from postroom.mailbox.verifications import Released
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.failures import invalid
from postroom.servers.http.guard import Guard
from postroom.servers.http.rest import message_schemas as schemas
from postroom.servers.http.rest import shapes
from postroom.servers.http.rest.messages import reading_rule
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import RouteTable, Rule
from postroom.servers.http.tally import Kind

MAX_SUBJECT: Final = 200
SENDER_PATTERN: Final = r"^([^@\s]+@[^@\s]+|@[^@\s]+)$"
"""An address, or a domain with an @ before it (`ListEntryValue`)."""


class WaitForMessage(fields.Query):
    sender: Annotated[
        Annotated[str, StringConstraints(max_length=254, pattern=SENDER_PATTERN), fields.Storable] | None,
        Field(alias="from"),
    ] = None
    subject_contains: Annotated[str, StringConstraints(max_length=MAX_SUBJECT), fields.Storable] | None = None
    thread_id: fields.ThreadId | None = None
    kind: Literal["any", "reply", "verification"] = "any"
    since: fields.Time | None = None
    timeout: Annotated[int, Field(ge=1, le=60)] = 30


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._guard = Guard(services)

    async def wait(
        self, identity_id: fields.IdentityId, query: Annotated[WaitForMessage, Query()], call: CurrentCall
    ) -> Response:
        if query.kind == "verification" and query.sender is None:
            raise invalid("from", "is required with kind=verification")
        since: datetime = query.since or self._services.clock.now()
        verifies = query.kind == "verification"
        arrival = Arrival(
            since,
            query.sender,
            query.subject_contains,
            query.thread_id,
            reply=query.kind == "reply",
            verifies_at=self._services.clock.now() if verifies else None,
        )
        view = await self._arrives(call.request, call.mailbox, arrival, query.timeout)
        if view is not None:
            # Mail may come long after the caller was let in: a key that is revoked or expired by now, a session that
            # has ended, a grant that was taken away are shown none.
            await self._guard.again(call)
        released = None if view is None else await self._release(call.mailbox, view, query.sender)
        return JsonAnswer(
            {
                "message": None if view is None else shapes.message(view),
                "verification": None if released is None else asdict(released),
                "timed_out": view is None,
            }
        )

    async def _release(self, mailbox: MailboxRef, view: MessageView, sender: str | None) -> Released | None:
        """The code or link, if the caller said from whom it comes and the mail authenticated as theirs (E4)."""
        domain = None if sender is None else organisational_domain(sender.rpartition("@")[2])
        if domain is None:
            return None
        services = self._services
        return await services.mailboxes.queries.release_verification(mailbox, view.id, domain, services.clock.now())

    async def _arrives(
        self, request: Request, mailbox: MailboxRef, arrival: Arrival, timeout: float
    ) -> MessageView | None:
        """The first message that fits; None at the timeout, when the client is gone, or when the server stops."""
        services, loop = self._services, asyncio.get_running_loop()
        deadline = loop.time() + timeout
        woken = asyncio.Event()
        ending = [asyncio.create_task(_gone(request)), asyncio.create_task(services.stopping.wait())]
        watch = services.live.watch(mailbox.mailbox_id, woken.set)
        services.tally.opened(Kind.WAIT)
        try:
            while True:
                woken.clear()
                view = await services.mailboxes.queries.next_message_after(mailbox, arrival)
                left = deadline - loop.time()
                if view is not None or left <= 0 or any(task.done() for task in ending):
                    return view
                await _first(woken, ending, left)
        finally:
            services.tally.closed(Kind.WAIT)
            watch.close()
            for task in ending:
                task.cancel()


async def _first(woken: asyncio.Event, ending: Iterable[asyncio.Task[Any]], timeout: float) -> None:
    """Until the mailbox changed, one of `ending` is done, or `timeout` seconds passed."""
    waking = asyncio.create_task(woken.wait())
    try:
        await asyncio.wait({waking, *ending}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waking.cancel()


async def _gone(request: Request) -> None:
    """Until the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operation."""
    table.add(
        Rule(
            "GET",
            "/v1/identities/{identity_id}/wait",
            "waitForMessage",
            reads_mail=True,
            errors={400: ("invalid_request",), 403: ("policy_denied",), 404: ("identity_not_found",)},
            **reading_rule("Search", Permission.SEARCH_READ),
        ),
        _Routes(services).wait,
        summary="Wait for a message",
        answers={200: schemas.WaitResponse},
    )
