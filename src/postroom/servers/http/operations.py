"""Repeated operations on a mailbox: done once, and answered the same again (rest-api §2.5, sync-webmail-client A4).

What is kept is written in the transaction that does the work, under the lock of the mailbox. So of several that come at
once the others wait and find the answer, and a process that dies between the commit and the answer leaves it to be
found; none is ever half done, and nobody has to wait for a lease to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from postroom.accounts import idempotency
from postroom.db import Connection
from postroom.servers.http.call import Call

T = TypeVar("T")


class Kept(Generic[T]):
    """What is kept of an operation for the caller under a key, for 30 days; goes with the mailbox.

    `body` is what makes a request the same; `write` and `read` turn what was done into JSON and back.
    """

    def __init__(
        self, call: Call, key: str, body: Any, write: Callable[[T], dict[str, Any]], read: Callable[[Any], T]
    ) -> None:
        method, path = call.rule.method, call.request.url.path
        self._clock = call.services.clock
        self._request = idempotency.Request(
            slot=idempotency.Slot(call.the_identity.tenant_public_id, call.principal.public_id, key),
            method=method,
            path=path,
            fingerprint=idempotency.fingerprint(method, path, body),
            tenant_id=call.mailbox.tenant_id,
            identity_id=call.mailbox.mailbox_id,
        )
        self._write, self._read = write, read
        self._claim: idempotency.Claim | None = None

    async def begin(self, conn: Connection) -> T | None:
        """Raises `idempotency_conflict`, and `request_in_progress` while another kind of request runs under the key."""
        begun = await idempotency.begin(conn, self._clock, self._request)
        if isinstance(begun, idempotency.Replay):
            return self._read(begun.body)
        self._claim = begun
        return None

    async def complete(self, conn: Connection, done: T) -> None:
        assert self._claim is not None, "an operation begins first"
        await idempotency.complete(conn, self._claim, 200, self._write(done), reference=None)
