"""Links in place of attachments that would make a message too large (outbound §6.8; edge G5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.mail import signed_link
from postroom.mail.body import sanitise_filename
from postroom.mail.compose import Attachment, ComposeError, Link, choose_links
from postroom.mail.safety import UNKNOWN, sniff
from postroom.mail.signed_link import FileLink
from postroom.mailbox.linked_files import LinkedFile

UNNAMED: Final = "attachment"
MAX_LINKS: Final = 500
"""Files of one message that can become links; what a forward holds beyond them stays in it."""

_LINE: Final = 78
"""A line of base64 (RFC 2045 §6.8) with its end, and below the octets that it holds."""
_OCTETS: Final = 57
_HEADER: Final = 200
"""About what a part's own header takes."""


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """What links of one message are made with; it goes to the process that composes."""

    base: str
    kid: str
    secret: bytes = field(repr=False)
    tenant: str
    identity: str
    message: str
    expires_at: datetime
    ids: tuple[str, ...]
    """Of the attachments, in their order; fewer where there are too many."""

    def link(self, at: int, file: Attachment) -> Link:
        """The link to the attachment at that place."""
        named = FileLink(self.tenant, self.identity, self.message, self.ids[at], int(self.expires_at.timestamp()))
        token = signed_link.mint(self.kid, self.secret, named)
        return Link(_name(file) or UNNAMED, file.octets, f"{self.base}{token}", self.expires_at)

    def file(self, at: int, file: Attachment) -> LinkedFile:
        """What is stored of it."""
        assert isinstance(file.content, bytes), "it was read to be composed"
        kind = sniff(file.content)
        return LinkedFile(self.ids[at], _name(file), file.content_type, file.content, None if kind == UNKNOWN else kind)

    def further(self, size: int, files: Sequence[Attachment], linked: Sequence[int], limit: int) -> tuple[int, ...]:
        """Which further attachments become links, the largest first, while a message of `size` octets is over
        `limit`; none when that doesn't help. What the HTML shows stays."""
        free = [at for at in range(min(len(files), len(self.ids))) if at not in linked and not files[at].inline]
        if not free:
            return ()
        # Once as text, once as HTML.
        cost = 2 * len(self.link(free[0], files[free[0]]).url)
        sizes = [_encoded(files[at].octets) for at in free]
        try:
            return tuple(free[n] for n in choose_links(size, sizes, limit, cost))
        except ComposeError:
            return ()


class FileLinks:
    """Makes the plans. `api_host` is where the links lead."""

    def __init__(self, keys: SigningKeys, ids: IdGenerator, clock: Clock, *, api_host: str) -> None:
        self._keys = keys
        self._ids = ids
        self._clock = clock
        self._base = f"https://{api_host}/v1/links/"

    async def plan(self, tenant: str, identity: str, message: str, *, files: int, ttl: timedelta) -> LinkPlan:
        """For a message of at most `files` attachments. Raises PostroomError as the keys do."""
        key = await self._keys.current(Purpose.LINK)
        expires = int((self._clock.now() + ttl).timestamp())
        ids = tuple(self._ids.new("att") for _ in range(min(files, MAX_LINKS)))
        until = datetime.fromtimestamp(expires, UTC)
        return LinkPlan(self._base, key.kid, key.secret, tenant, identity, message, until, ids)


async def opened(keys: SigningKeys, clock: Clock, token: str) -> FileLink | None:
    """What a token of ours opens now; None for everything else. Raises PostroomError as the keys do."""
    kid = signed_link.kid_of(token)
    if kid is None:
        return None
    ring = await keys.ring(Purpose.LINK, kid=kid)
    return signed_link.verify(token, {key.kid: key.secret for key in ring}, clock.now().timestamp())


def _name(file: Attachment) -> str | None:
    return sanitise_filename(file.filename) if file.filename else None


def _encoded(octets: int) -> int:
    return _HEADER + -(-octets // _OCTETS) * _LINE
