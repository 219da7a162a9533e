"""A draft to the octets of a message (RFC 5322, RFC 2045 ff.), as a pure function of its arguments (outbound §6)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from postroom.mail.body import sanitise_filename
from postroom.mail.compose import fields
from postroom.mail.compose.draft import Attachment, Draft, ListUnsubscribe
from postroom.mail.compose.entities import Boundaries, Entity, attachment_leaf, multipart, text_leaf
from postroom.mail.compose.errors import ComposeError, Reason

MAX_SUBJECT_CHARS: Final = 998
MAX_ATTACHMENTS: Final = 500
MAX_REFERENCES: Final = 200

OWN_FIELDS: Final = frozenset(
    (
        *("from", "sender", "reply-to", "to", "cc", "bcc", "subject", "date", "message-id", "in-reply-to"),
        *("references", "mime-version", "auto-submitted", "list-unsubscribe", "list-unsubscribe-post"),
        *("x-postroom-hop", "x-postroom-role-hop", "x-ai-generated", "return-path", "received", "dkim-signature"),
        *("resent-from", "resent-sender", "resent-to", "resent-cc", "resent-bcc", "resent-date", "resent-message-id"),
    )
)
"""Fields, in lower case, that no further header may name; nor `Content-*`."""

_URL: Final = re.compile(r"[!#-;=?-~]{1,900}")  # visible ASCII without quotes and angle brackets


@dataclass(frozen=True, slots=True)
class Composed:
    """A message ready to be written: `header` up to and including the blank line, then the body's chunks."""

    header: bytes
    body: Entity
    smtputf8: bool
    """The header holds UTF-8, because an address has a local part beyond ASCII: SMTPUTF8 is needed (RFC 6531)."""

    @property
    def eight_bit(self) -> bool:
        """The body holds octets beyond ASCII: BODY=8BITMIME is needed, or `downgrade_to_7bit`."""
        return self.body.eight_bit

    @property
    def size(self) -> int:
        """Octets of the whole, known without reading any attachment."""
        return len(self.header) + self.body.size + (0 if self.body.ends_line else 2)

    def chunks(self) -> Iterator[bytes]:
        """The octets in order; attachments are read as they are reached, and anew by every call.

        ComposeError when a source gives another number of octets than announced.
        """
        yield self.header
        yield from self.body.chunks()
        if not self.body.ends_line:
            yield b"\r\n"

    def to_bytes(self) -> bytes:
        return b"".join(self.chunks())


def compose(draft: Draft, boundary: str, *, eight_bit: bool = False) -> Composed:
    """Write `draft`. `boundary` (1 to 60 of ``A-Za-z0-9._-``) must be new for each message.

    Text is sent in 7 bits, because signatures are made before it is known what the next hop can (RFC 6376 §5.3), unless
    `eight_bit` is set. An attached message keeps its octets and may still need 8 bits. Raises ComposeError for whatever
    cannot be written, above all controls in a header value.
    """
    boundaries = Boundaries(boundary)
    body = _body(draft, boundaries, eight_bit)
    header = [*_originator(draft), *_identification(draft), *_service_fields(draft), *_further(draft)]
    header += [b"MIME-Version: 1.0\r\n", body.header, b"\r\n"]
    addresses = (draft.from_, *draft.to, *draft.cc, *draft.reply_to, *((draft.sender,) if draft.sender else ()))
    return Composed(b"".join(header), body, any(not address.local.isascii() for address in addresses))


def _originator(draft: Draft) -> Iterator[bytes]:
    yield fields.address_list("From", (draft.from_,))
    if draft.sender is not None:
        yield fields.address_list("Sender", (draft.sender,))
    for name, addresses in (("Reply-To", draft.reply_to), ("To", draft.to), ("Cc", draft.cc)):
        if addresses:
            yield fields.address_list(name, addresses)
    if not draft.to and not draft.cc:
        yield b"To: undisclosed-recipients:;\r\n"  # an empty group, RFC 5322 §3.4
    if len(draft.subject) > MAX_SUBJECT_CHARS:
        raise ComposeError("Subject", Reason.TOO_LONG)
    yield fields.unstructured("Subject", draft.subject)


def _identification(draft: Draft) -> Iterator[bytes]:
    yield fields.date("Date", draft.date)
    if "@" not in draft.message_id:
        raise ComposeError("Message-ID", Reason.SYNTAX)
    yield fields.message_ids("Message-ID", (draft.message_id,))
    if draft.in_reply_to is not None:
        yield fields.message_ids("In-Reply-To", (draft.in_reply_to,))
    if len(draft.references) > MAX_REFERENCES:
        raise ComposeError("References", Reason.TOO_MANY)
    if draft.references:
        yield fields.message_ids("References", draft.references)


def _service_fields(draft: Draft) -> Iterator[bytes]:
    if draft.auto_submitted is not None:
        yield f"Auto-Submitted: {draft.auto_submitted.value}\r\n".encode("ascii")
    if draft.list_unsubscribe is not None:
        yield from _unsubscribe(draft.list_unsubscribe)
    if draft.hop is not None:
        if not 0 <= draft.hop < 1000:
            raise ComposeError("X-Postroom-Hop", Reason.SYNTAX)
        yield f"X-Postroom-Hop: {draft.hop}\r\n".encode("ascii")
    if draft.role_hop:
        yield b"X-Postroom-Role-Hop: 1\r\n"
    if draft.ai_generated:
        yield b"X-AI-Generated: true\r\n"


def _unsubscribe(wanted: ListUnsubscribe) -> Iterator[bytes]:
    urls = []
    if wanted.url is not None:
        urls.append(wanted.url)
    if wanted.mailto is not None:
        urls.append("mailto:" + wanted.mailto.removeprefix("mailto:"))
    for url in urls:
        fields.refuse_controls(url, "List-Unsubscribe")
        if _URL.fullmatch(url) is None:
            raise ComposeError("List-Unsubscribe", Reason.SYNTAX if len(url) <= 900 else Reason.TOO_LONG)
    if not urls or (wanted.one_click and not (wanted.url or "").startswith("https://")):
        raise ComposeError("List-Unsubscribe", Reason.MISSING)
    # A comma inside an angle bracket belongs to the URL, but readers split at commas (RFC 2369 §2).
    tokens = [(" ", f"<{url.replace(',', '%2C')}>{',' if at + 1 < len(urls) else ''}") for at, url in enumerate(urls)]
    yield fields.fold("List-Unsubscribe", tokens)
    if wanted.one_click:
        yield b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"


def _further(draft: Draft) -> Iterator[bytes]:
    seen = set()
    for name, value in draft.headers:
        lower = name.lower()
        if not fields.is_field_name(name):
            raise ComposeError("headers", Reason.SYNTAX)
        if lower in OWN_FIELDS or lower.startswith("content-"):
            raise ComposeError("headers", Reason.RESERVED)
        if lower in seen:
            raise ComposeError("headers", Reason.DUPLICATE)
        seen.add(lower)
        yield fields.unstructured(name, value, machine=lower.startswith("x-"))


def _body(draft: Draft, boundaries: Boundaries, eight_bit: bool) -> Entity:
    """`mixed(alternative(text, related(html, inline…)), files…)`, each level only where it is needed."""
    if len(draft.attachments) > MAX_ATTACHMENTS:
        raise ComposeError("attachments", Reason.TOO_MANY)
    related = [item for item in draft.attachments if _is_related(draft, item)]
    files = [item for item in draft.attachments if not _is_related(draft, item)]
    bodies: list[Entity] = []
    if draft.text is not None or draft.html is None:
        bodies.append(text_leaf(draft.text or "", "plain", boundaries, eight_bit=eight_bit))
    if draft.html is not None:
        html: Entity = text_leaf(draft.html, "html", boundaries, eight_bit=eight_bit)
        if related:
            # RFC 2387 §3.1: the parameter names the type of the root.
            html = multipart("related", boundaries, [html, *_leaves(related, boundaries)], (("type", "text/html"),))
        bodies.append(html)
    body = multipart("alternative", boundaries, bodies) if len(bodies) > 1 else bodies[0]
    return multipart("mixed", boundaries, [body, *_leaves(files, boundaries)]) if files else body


def _is_related(draft: Draft, attachment: Attachment) -> bool:
    return draft.html is not None and attachment.inline and attachment.content_id is not None


def _leaves(attachments: list[Attachment], boundaries: Boundaries) -> Iterator[Entity]:
    for item in attachments:
        name = None if item.filename is None else fields.whole_characters(item.filename)
        yield attachment_leaf(item, None if name is None else sanitise_filename(name), boundaries)
