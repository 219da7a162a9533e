"""Reading disposition notifications, the receipts of mail programs (RFC 8098, RFC 6533 §6). We send none (B8)."""

from dataclasses import dataclass
from typing import Final

from postroom.mail import mime, reports
from postroom.mail.ids import normalise_message_id
from postroom.mail.reports import cut, typed_address

_TYPES: Final = frozenset(("message/disposition-notification", "message/global-disposition-notification"))
_MAX_MODIFIERS: Final = 10


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a message at its reader's.

    `disposition` is the type in lower case (`displayed`, `deleted`, `dispatched`, `processed`, and of older programs
    `denied`, `failed`); `modifiers` what stands after the slash, such as `error`. `automatic` is whether the program
    acted by itself, None when it does not say. The id is normalised; addresses are well-formed.
    """

    original_message_id: str | None
    final_recipient: str | None
    original_recipient: str | None
    disposition: str | None
    modifiers: tuple[str, ...]
    automatic: bool | None
    reporting_ua: str | None


def parse_mdn(raw: bytes, message: mime.Message | None = None) -> Receipt | None:
    """The receipt that a message is, None when it is none. Never raises on content.

    The id is that of the notification; of one without, that of the returned message.
    """
    message = mime.parse(raw) if message is None else message
    parts = list(reports.leaves(message.root))
    part = next((part for part in parts if part.content_type in _TYPES), None)
    if part is None:
        return None
    found: dict[str, str] = {}
    for _, name, value in reports.read_fields(reports.part_text(raw, part)):
        found.setdefault(name, value)
    mode, kind, modifiers = _disposition(found.get("disposition", ""))
    message_id = normalise_message_id(found.get("original-message-id", ""))
    if message_id is None:
        came_back = reports.returned(raw, parts, part)
        message_id = None if came_back is None else came_back.message_id
    original = typed_address(found.get("original-recipient"))
    return Receipt(
        original_message_id=message_id,
        final_recipient=typed_address(found.get("final-recipient")) or original,
        original_recipient=original,
        disposition=kind,
        modifiers=modifiers,
        automatic=None if not mode else mode.startswith("automatic"),
        reporting_ua=cut(found.get("reporting-ua")),
    )


def _disposition(value: str) -> tuple[str, str | None, tuple[str, ...]]:
    """`manual-action/MDN-sent-manually; displayed/error,warning` (RFC 8098 §3.2.6): mode, type, modifiers."""
    mode, semicolon, rest = value.partition(";")
    if not semicolon:
        mode, rest = "", value
    kind, _, modifiers = rest.partition("/")
    words = [word for item in modifiers.split(",", _MAX_MODIFIERS) if (word := _word(item))]
    return mode.strip().lower(), _word(kind), tuple(words[:_MAX_MODIFIERS])


def _word(text: str) -> str | None:
    word = cut(text.lower())
    return None if word is None else word[:40]
