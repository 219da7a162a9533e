"""What is to be written: a draft, as values. Blind recipients are no part of it, so they cannot be written (C7)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from postroom.mail.address import Address
from postroom.mail.compose.encodings import Source
from postroom.mail.compose.errors import ComposeError, Reason


class AutoSubmitted(StrEnum):
    """RFC 3834 §5."""

    GENERATED = "auto-generated"
    REPLIED = "auto-replied"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file. `content` is its octets, or a source of them that can be read again; then `size` must be given.

    `content_type` may carry parameters (`text/calendar; method=REPLY`). `content_id`, without angle brackets, makes an
    `inline` one part of the HTML body (RFC 2392).
    """

    filename: str | None
    content_type: str
    content: bytes | Source = field(repr=False)
    size: int | None = None
    inline: bool = False
    content_id: str | None = None

    @property
    def octets(self) -> int:
        """Octets of the content. ComposeError for a source without a size."""
        if isinstance(self.content, bytes):
            return len(self.content)
        if self.size is None or self.size < 0:
            raise ComposeError("attachments", Reason.MISSING)
        return self.size


@dataclass(frozen=True, slots=True)
class ListUnsubscribe:
    """RFC 2369 §3.2; with `one_click` the header of RFC 8058 §3.1 as well, which needs an https URL."""

    url: str | None = None
    mailto: str | None = None
    """A `mailto:` URL; the scheme may be left out."""
    one_click: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """Fields and bodies of one message (outbound §6). Ids are without angle brackets, `date` has a zone."""

    from_: Address
    date: datetime
    message_id: str
    to: Sequence[Address] = ()
    cc: Sequence[Address] = ()
    sender: Address | None = None
    reply_to: Sequence[Address] = ()
    subject: str = ""
    text: str | None = None
    html: str | None = None
    attachments: Sequence[Attachment] = ()
    in_reply_to: str | None = None
    references: Sequence[str] = ()
    auto_submitted: AutoSubmitted | None = None
    list_unsubscribe: ListUnsubscribe | None = None
    hop: int | None = None
    """Value of `X-Postroom-Hop` (outbound §6.6)."""
    role_hop: bool = False
    ai_generated: bool = False
    headers: Sequence[tuple[str, str]] = ()
    """Further fields, already admitted by policy (`custom_headers`); unstructured text."""
