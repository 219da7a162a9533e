"""What somebody asks to be sent, whichever interface they use (outbound §2.1). Its shape is checked by whoever made it;
what it means, and whether it may be done, by `policy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from postroom.outbound.models import Operation, SendKind


@dataclass(frozen=True, slots=True)
class Person:
    """A recipient as the caller wrote it."""

    address: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class File:
    """An attachment of the request; `content` is base64."""

    filename: str
    content_type: str
    content: str = field(repr=False)
    inline: bool = False
    content_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """How a recipient of marketing mail leaves: an https URL, and a `mailto:` beside it."""

    url: str
    mailto: str | None = None


@dataclass(frozen=True, slots=True)
class SendRequest:
    """One of the four operations. `message_id` is what is answered or forwarded; the recipients of an answer follow
    from it, so that `to`, `cc` and `bcc` are of `send` and `forward` only."""

    operation: Operation
    to: tuple[Person, ...] = ()
    cc: tuple[Person, ...] = ()
    bcc: tuple[Person, ...] = ()
    subject: str = ""
    text: str | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    files: tuple[File, ...] = ()
    kind: SendKind = SendKind.TRANSACTIONAL
    message_id: str | None = None
    thread_id: str | None = None
    from_address: str | None = None
    labels: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    unsubscribe: Unsubscribe | None = None
    has_consent: bool = False
    """Whether the caller says on what basis, and since when, the recipients want marketing mail."""
    include_attachments: bool = True
    """Of a forward: those of the original go along."""

    @property
    def is_answer(self) -> bool:
        return self.operation in (Operation.REPLY, Operation.REPLY_ALL)
