"""The SMTP and LMTP listeners of a process, as the settings want them (mail-server A1)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

from postroom.accounts.service.sign_in import SignIn
from postroom.app import Core
from postroom.base.settings_tree import Role
from postroom.directory.models import Refusal as DirectoryRefusal
from postroom.inbound.reception import Addressee, Reception
from postroom.outbound.submission import Submission
from postroom.servers.limits import ConnectionCounter, MemoryBudget
from postroom.servers.lmtp import LmtpListener
from postroom.servers.smtp import ListenerLimits, MxListener, SmtpListener
from postroom.servers.submission import AtMx, Door, SubmissionListener
from postroom.smtp.envelope import Refusal, SessionInfo
from postroom.smtp.replies import Reply
from postroom.smtp.server import ServerConfig


class SmtpDoors:
    """Makes them. `limits` are one process's share; `budget` is everybody's who holds messages in memory."""

    def __init__(
        self,
        core: Core,
        reception: Reception,
        submission: Submission,
        sign_in: SignIn,
        *,
        limits: ListenerLimits,
        budget: MemoryBudget,
        context: ssl.SSLContext,
    ) -> None:
        self._core = core
        self._reception = reception
        self._door = Door(sign_in, reception.resolve, submission)
        self._limits = limits
        self._budget = budget
        self._context = context
        settings = core.settings
        self._config = ServerConfig(
            hostname=settings.server.hostname,
            banner=settings.smtp.banner or "ESMTP Postroom",
            max_message_size=settings.limits.max_message_size,
            max_recipients=settings.limits.max_recipients,
            advertise_extensions=settings.smtp.advertise_extensions,
            advertise_size=settings.smtp.advertise_size,
            helo_required=settings.smtp.helo_required,
            postmaster_domain=settings.platform_domain,
            scram=core.scram.offer() if settings.offer_scram else None,
        )

    def listeners(self) -> Iterator[tuple[str, str, int, SmtpListener[Any]]]:
        """Name, host, port (0 beside a path) and listener of each that is on."""
        settings = self._core.settings
        roles, smtp = settings.server.roles, settings.smtp
        if Role.SMTP in roles and smtp.enabled:
            yield "smtp", smtp.host, smtp.port, self._mx()
        if Role.SUBMISSION in roles:
            counter = ConnectionCounter(self._limits.max_connections, self._limits.max_connections_per_ip)
            if smtp.submission_port:
                yield "submission", smtp.host, smtp.submission_port, self._submission(counter, implicit=False)
            if smtp.smtps_port:
                yield "smtps", smtp.host, smtp.smtps_port, self._submission(counter, implicit=True)
        endpoint = settings.lmtp.endpoint
        if Role.LMTP in roles and endpoint is not None:
            yield "lmtp", endpoint.host, endpoint.port, self._lmtp()

    async def resolve(self, address: str, session: SessionInfo) -> Addressee | Refusal:
        """The reception's answer, in the listener's words."""
        found = await self._reception.resolve(address, session.mail_from)
        if isinstance(found, DirectoryRefusal):
            return Refusal(Reply(found.code, found.enhanced, found.text))
        return found

    def _mx(self) -> SmtpListener[Any]:
        settings, now = self._core.settings, self._core.clock.now
        if not settings.smtp.auth_on_mx:
            return MxListener(
                self._config,
                resolve=self.resolve,
                receive=self._reception.receive,
                limits=self._limits,
                ssl_context=self._context,
                budget=self._budget,
                now=now,
            )
        both = AtMx(self._door, self.resolve, self._reception.receive)
        return MxListener(
            self._config,
            resolve=both.resolve,
            receive=both.receive,
            sign_in=self._door.sign_in,
            prove=self._door.prove,
            check_sender=self._door.check_sender,
            plaintext_auth=settings.allow_plaintext_auth,
            limits=self._limits,
            ssl_context=self._context,
            budget=self._budget,
            now=now,
        )

    def _submission(self, counter: ConnectionCounter, *, implicit: bool) -> SubmissionListener:
        return SubmissionListener(
            self._config,
            self._door,
            ssl_context=self._context,
            now=self._core.clock.now,
            implicit_tls=implicit,
            plaintext_auth=self._core.settings.allow_plaintext_auth,
            limits=self._limits,
            budget=self._budget,
            counter=counter,
        )

    def _lmtp(self) -> LmtpListener[Addressee]:
        return LmtpListener(
            self._config,
            resolve=self.resolve,
            receive=self._reception.receive_each,
            now=self._core.clock.now,
            allow=self._core.settings.lmtp.allow,
            limits=self._limits,
            ssl_context=self._context,
            budget=self._budget,
        )
