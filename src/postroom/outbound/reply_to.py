"""Where answers to a message are to go: the address that it is sent from, with a token that names its thread (outbound
§6.3; inbound §28.1; FR-OUT-6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from postroom.db.pool import Database
from postroom.directory.models import HostedAddress, Identity, IdentityKind
from postroom.mail.address import Address
from postroom.mail.thread_token import MAX_SEQ, with_token
from postroom.mailbox.models import Filing, MailboxRef
from postroom.mailbox.threads import take_number
from postroom.outbound.facts import ThreadFacts

Mint = Callable[[str, int], Awaitable[str]]
"""The token of a thread: of an identity's public id and the thread's number."""


class Answers(NamedTuple):
    """The thread that the message is filed in, if its headers are not to decide, and its Reply-To."""

    filing: Filing | None
    reply_to: Address | None


class ReplyTo:
    """Names threads before their first message is written."""

    def __init__(self, database: Database, mint: Mint) -> None:
        self._database = database
        self._mint = mint

    async def of(self, identity: Identity, sender: HostedAddress, thread: ThreadFacts | None, *, dry: bool) -> Answers:
        """For a message into `thread`, or that begins one. With `dry` nothing is taken, and the token is as long as
        they get, so that what fits then fits.

        Raises PostroomError as `threads.take_number` and the keys do.
        """
        if thread is not None:
            filing, number = Filing(joins=thread.number), thread.number
        elif not has_tokens(identity):
            return Answers(None, None)
        else:
            ref = MailboxRef(identity.tenant_id, identity.id)
            number = MAX_SEQ if dry else await take_number(self._database, ref)
            filing = Filing(begins=number)
        if not has_tokens(identity):
            return Answers(filing, None)
        token = await self._mint(identity.public_id, number)
        local, _, domain = sender.address.rpartition("@")
        try:
            return Answers(filing, with_token(Address(identity.display_name, local, domain), token))
        except ValueError:  # there is no room for it (A12): the bare From is as good as a Reply-To that says the same
            return Answers(filing, None)


def has_tokens(identity: Identity) -> bool:
    """Whether what it sends has a token: an agent's mail. People's answers are filed by their headers, so that no
    address book fills with tokens. Of domains nothing is asked: each that we host takes details (A2)."""
    return identity.kind is IdentityKind.AGENT
