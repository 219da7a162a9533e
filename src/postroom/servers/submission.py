"""The submission listeners: mail from our own people's mail programs and from agents (ports 587 and 465; A1–A4).

The same door can be opened on the MX's port (`at_mx`): who has signed in submits, everybody else is another server.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Generic, Protocol, TypeVar, cast

from postroom.accounts.models import Principal
from postroom.accounts.permissions import Permission
from postroom.accounts.service.sign_in import SignInError, SignInFailure
from postroom.base.settings_tree import PlaintextAuth
from postroom.directory.models import Recipient
from postroom.directory.models import Refusal as DirectoryRefusal
from postroom.directory.rules import FOREIGN
from postroom.inbound.reception import Addressee, Passage
from postroom.outbound.submission import Destination
from postroom.sasl import Proof, Proven
from postroom.servers.limits import ConnectionCounter, MemoryBudget
from postroom.servers.smtp import ListenerLimits, Receive, Resolve, SmtpListener
from postroom.smtp import replies
from postroom.smtp.envelope import Envelope, Refusal, SessionInfo
from postroom.smtp.machine import Profile
from postroom.smtp.replies import Reply
from postroom.smtp.sasl import Credentials
from postroom.smtp.server import ServerConfig

R = TypeVar("R")

_FAILURES: Final = {
    SignInFailure.INVALID: replies.AUTH_FAILED,
    SignInFailure.THROTTLED: replies.AUTH_UNAVAILABLE,
    SignInFailure.UNAVAILABLE: replies.AUTH_UNAVAILABLE,
}


class SignIn(Protocol):
    """Signs people and agents in (`accounts.SignIn`)."""

    async def sign_in(
        self, address: str, password: str, remote: str, needs: Permission = ..., /
    ) -> Principal | SignInError: ...
    async def prove(self, proof: Proof, remote: str, /) -> Proven[Principal] | SignInError: ...
    async def stands(self, principal: Principal, /) -> bool: ...


class Submits(Protocol):
    """Takes what is submitted (`outbound.submission.Submission`)."""

    async def check_sender(self, address: str, account: Principal, /) -> Reply | None: ...
    async def submit(self, envelope: Envelope[Destination], raw: bytes, account: Principal, /) -> Reply: ...


SIGNED_OUT: Final = Reply(421, "4.7.0", "Signed out, sign in again")
"""To whoever signed in with what counts no more; it ends the connection."""

Find = Callable[[str, str], Awaitable[Addressee | DirectoryRefusal]]
"""Who takes mail to an address from a sender (`inbound.reception.Reception.resolve`)."""


class Door:
    """The decisions of a submission listener, as it wants them."""

    def __init__(self, sign_in: SignIn, find: Find, submission: Submits) -> None:
        self._accounts = sign_in
        self._find = find
        self._submission = submission

    async def sign_in(self, credentials: Credentials, session: SessionInfo) -> Principal | Refusal:
        """A4: one answer for everything that is wrong with them."""
        found = await self._accounts.sign_in(
            credentials.username, credentials.password, session.peer_ip, Permission.MESSAGES_SEND
        )
        return Refusal(_FAILURES[found.kind]) if isinstance(found, SignInError) else found

    async def prove(self, proof: Proof, session: SessionInfo) -> Proven[Principal] | Refusal:
        """The same of a proof (SCRAM)."""
        found = await self._accounts.prove(proof, session.peer_ip)
        return Refusal(_FAILURES[found.kind]) if isinstance(found, SignInError) else found

    async def check_sender(self, address: str, session: SessionInfo) -> Refusal | None:
        account = _account(session.account)
        if not await self._accounts.stands(account):
            return Refusal(SIGNED_OUT)
        reply = await self._submission.check_sender(address, account)
        return None if reply is None else Refusal(reply)

    async def resolve(self, address: str, session: SessionInfo) -> Destination | Refusal:
        """Ours as the directory says; everybody else's is taken. An unknown address of ours is never relayed (A3)."""
        found = await self._find(address, session.mail_from)
        if isinstance(found, Recipient):
            return Destination(address, found)
        if isinstance(found, Passage) or found == FOREIGN:
            return Destination(address)
        return Refusal(Reply(found.code, found.enhanced, found.text))

    async def receive(self, envelope: Envelope[Destination], raw: bytes) -> Reply:
        account = _account(envelope.account)
        if not await self._accounts.stands(account):
            return SIGNED_OUT
        return await self._submission.submit(envelope, raw, account)


def _account(account: object) -> Principal:
    if not isinstance(account, Principal):
        raise TypeError("nobody has signed in")  # the session asks for AUTH before MAIL
    return account


class SubmissionListener(SmtpListener[Destination]):
    """Listens for submitted mail, with STARTTLS or, with `implicit_tls`, with TLS from the first byte (RFC 8314).

    `config` need not name the profile. `counter` and `budget` are shared by both listeners of a process.
    """

    def __init__(
        self,
        config: ServerConfig,
        door: Door,
        *,
        ssl_context: ssl.SSLContext | None,
        now: Callable[[], datetime],
        implicit_tls: bool = False,
        plaintext_auth: PlaintextAuth = PlaintextAuth.LOOPBACK,
        limits: ListenerLimits | None = None,
        budget: MemoryBudget | None = None,
        counter: ConnectionCounter | None = None,
    ) -> None:
        super().__init__(
            replace(config, profile=Profile.SUBMISSION, dsn=True),
            resolve=door.resolve,
            receive=door.receive,
            sign_in=door.sign_in,
            prove=door.prove,
            check_sender=door.check_sender,
            plaintext_auth=plaintext_auth,
            limits=limits,
            ssl_context=ssl_context,
            implicit_tls=implicit_tls,
            budget=budget,
            counter=counter,
            now=now,
        )


@dataclass(frozen=True, slots=True)
class AtMx(Generic[R]):
    """What an MX listener is given as `resolve` and `receive` when people can sign in there, beside the door's own
    `sign_in`, `prove` and `check_sender` (`smtp.auth_on_mx`).

    Nobody can sign in within a transaction (A2), so all recipients of a message are of one kind.
    """

    door: Door
    others_resolve: Resolve[R]
    others_receive: Receive[R]

    async def resolve(self, address: str, session: SessionInfo) -> R | Destination | Refusal:
        if session.account is None:
            return await self.others_resolve(address, session)
        return await self.door.resolve(address, session)

    async def receive(self, envelope: Envelope[R | Destination], raw: bytes) -> Reply | Sequence[Reply]:
        if envelope.account is None:
            return await self.others_receive(cast(Envelope[R], envelope), raw)
        return await self.door.receive(cast(Envelope[Destination], envelope), raw)
