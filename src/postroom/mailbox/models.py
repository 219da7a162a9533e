"""What other departments see of a mailbox: references, folders, new messages and what became of them.

A mailbox belongs to one identity and shares its bigint key. A *message* is what was received or written; a *placement*
is where it stands (folder, UID, flags). See decisions A5 and A7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NewType

FolderKey = NewType("FolderKey", int)
"""Database key of a folder; never leaves the program."""

FLAG_SEEN: Final = "$seen"
FLAG_ANSWERED: Final = "$answered"
FLAG_FLAGGED: Final = "$flagged"
FLAG_DELETED: Final = "$deleted"
FLAG_DRAFT: Final = "$draft"
SYSTEM_FLAGS: Final = frozenset({FLAG_SEEN, FLAG_ANSWERED, FLAG_FLAGGED, FLAG_DELETED, FLAG_DRAFT})

MAX_FLAGS: Final = 64
"""Keywords a message may carry beside the system flags (D5)."""


class SpecialUse(StrEnum):
    """Role of a folder; at most one folder of each per mailbox (D2, RFC 6154)."""

    INBOX = "inbox"
    SENT = "sent"
    DRAFTS = "drafts"
    TRASH = "trash"
    JUNK = "junk"
    ARCHIVE = "archive"
    ALL = "all"
    FLAGGED = "flagged"


STANDARD_FOLDERS: Final[tuple[tuple[str, SpecialUse], ...]] = (
    ("INBOX", SpecialUse.INBOX),
    ("Sent", SpecialUse.SENT),
    ("Drafts", SpecialUse.DRAFTS),
    ("Trash", SpecialUse.TRASH),
    ("Junk", SpecialUse.JUNK),
    ("Archive", SpecialUse.ARCHIVE),
)


class ChangeKind(StrEnum):
    """What a row of the change log says happened (A7)."""

    PLACED = "placed"
    FLAGS = "flags"
    REMOVED = "removed"
    FOLDER_CREATED = "folder_created"
    FOLDER_RENAMED = "folder_renamed"
    FOLDER_SUBSCRIBED = "folder_subscribed"
    FOLDER_REMOVED = "folder_removed"
    DELIVERY = "delivery"
    """What became of a message that was sent for one recipient (`delivery_updated` for clients; mail-server C2)."""


class Source(StrEnum):
    """How a message came into the mailbox."""

    MX = "mx"
    APPEND = "append"
    SEND = "send"
    """Accepted for sending."""


class Direction(StrEnum):
    INBOUND = "inbound"
    OUTBOUND = "outbound"


class RecipientKind(StrEnum):
    TO = "to"
    CC = "cc"
    BCC = "bcc"
    REPLY_TO = "reply-to"


@dataclass(frozen=True, slots=True)
class MailboxRef:
    """Names a mailbox; every statement on mailbox data takes both keys (B12)."""

    tenant_id: int
    mailbox_id: int


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder row. Counters are maintained in the transaction that changes rows (D2, D21)."""

    id: FolderKey
    public_id: str
    name: str
    special_use: SpecialUse | None
    subscribed: bool
    uid_validity: int
    uid_next: int
    recent_uid: int
    highest_modseq: int
    message_count: int
    unseen_count: int
    deleted_count: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Mailpoint:
    """A mailbox of a header: address (lower case, may be empty) and display name."""

    address: str
    name: str


@dataclass(frozen=True, slots=True)
class PartInfo:
    """An attachment of a message: where it is in the part tree and what it calls itself."""

    part_path: str
    """Of its part (`2.1`), or of the part that it is packed in and its place there, from one (`2.1/3`)."""
    filename: str | None
    content_type: str
    size: int
    disposition: str | None
    content_id: str | None
    sniffed_type: str | None = None
    """The media type that its first bytes speak of, where they speak of one."""
    risk: str | None = None
    """What makes it dangerous (inbound.md §25)."""


def part_of(part_path: str) -> tuple[int, ...]:
    """The numbers of the part that an attachment is, or is packed in."""
    return tuple(int(number) for number in part_path.partition("/")[0].split("."))


def part_place(part_path: str) -> int | None:
    """The place of an attachment in the part that it is packed in, from one; None for one that is a part itself."""
    _, packed, place = part_path.partition("/")
    return int(place) if packed else None


@dataclass(frozen=True, slots=True)
class RefInfo:
    """A typed value found in the text, in the one form in which it is looked for (inbound.md §15).

    `source` is `subject`, `body`, or the attachment and page.
    """

    kind: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Verification:
    """A code, or a link, that confirms a sign-up (inbound.md §20); `kind` is which."""

    kind: str
    value: str = field(repr=False)
    sender_domain: str


@dataclass(frozen=True, slots=True)
class Content:
    """What parsing said of the raw bytes; one object is shared by the copies of all recipients.

    Texts hold neither U+0000 nor lone surrogates. `raw_size` counts our own trace lines, `prefix_len` bytes of them;
    the hashes are of the original octets only (B14, B3).
    """

    rfc_message_id: str
    in_reply_to: str | None
    reference_ids: tuple[str, ...]
    raw_sha256: bytes
    body_sha256: bytes
    raw_size: int
    prefix_len: int
    sender: Mailpoint | None
    recipients: tuple[tuple[RecipientKind, Mailpoint], ...]
    subject: str
    thread_subject: str
    subject_fold: str
    snippet: str
    text: str
    html: str | None
    extracted_text: str
    sent_at: datetime
    kind: str
    verdict: str
    facts: tuple[str, ...]
    parser_version: int
    envelope: bytes
    body_structure: bytes
    part_tree: bytes
    attachments: tuple[PartInfo, ...]
    auth: Mapping[str, Any] | None = None
    """The results of SPF, DKIM, DMARC and ARC (inbound.md §17, step 8), as JSON has them."""
    automated: Mapping[str, Any] | None = None
    """Evidence of what `kind` says, and what reports and calendars hold (inbound.md §16), as JSON has them."""
    verifications: tuple[Verification, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """What the writing transaction decided for a new message; what an announcement is made of."""

    message_id: str
    thread_id: str
    tenant_id: str
    identity_id: str
    event_id: str
    sequence: int
    occurred_at: datetime
    facts: tuple[str, ...]
    attachment_ids: tuple[str, ...]


Announce = Callable[["NewMessage", Placed], tuple[str, bytes]]
"""Makes an event's type and exact payload bytes (B3). Pure; called inside the transaction."""

AnnounceFound = Callable[["Verification", Placed], tuple[str, bytes]]
"""The same, of a code or link that the message confirms something with."""


@dataclass(frozen=True, slots=True)
class Filing:
    """What is known of a message's thread beside its headers. Threads are named by their number in the mailbox.

    `joins`: the thread that a valid token names, or that was written into; nothing when it is gone, for numbers are not
    used again. `begins`: the number, taken by `threads.take_number`, of the thread that the message is the first of.
    `is_suspect`: it came with a token that is none, or was not checked (inbound.md §28.4).
    """

    joins: int | None = None
    begins: int | None = None
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A placement, named by what never changes of it. `mailbox` None: that of the message which it is said of."""

    folder: FolderKey
    uid: int
    mailbox: MailboxRef | None = None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One copy of a message for one mailbox. Every id is fixed before the transaction (B15)."""

    id: str
    mailbox: MailboxRef
    source: Source
    direction: Direction
    blob_key: str
    content: Content
    thread_id: str
    event_id: str
    attachment_ids: tuple[str, ...]
    received_at: datetime
    internal_date: datetime
    folder: FolderKey | None = None
    """Target folder; None means INBOX."""
    flags: tuple[str, ...] = ()
    delivered_to: str | None = None
    is_bcc: bool = False
    is_primary_recipient: bool = True
    announce: Announce | None = None
    announce_found: AnnounceFound | None = None
    """Tells of each of the content's `verifications` that is kept, after `announce`."""
    found_event_ids: tuple[str, ...] = ()
    """For these events, one for each."""
    status: str | None = None
    """`messages.status`; None: what the direction says."""
    filing: Filing | None = None
    """None: its headers alone say which thread it belongs to."""
    uid: int = 0
    """The UID that it had elsewhere and is to have here; it gets the next one above where that is not free any more."""
    replaces: Place | None = None
    """What goes for good in the same transaction; it is refused when that is not there (RFC 8508). It may stand in
    another mailbox, which is locked with the message's own."""
    takes_flags: bool = False
    """It has moved: its flags are those that what it replaces has when that goes."""

    @property
    def mailboxes(self) -> tuple[MailboxRef, ...]:
        """Those that storing the message changes."""
        if self.replaces is None or self.replaces.mailbox in (None, self.mailbox):
            return (self.mailbox,)
        return (self.mailbox, self.replaces.mailbox)


@dataclass(frozen=True, slots=True)
class Appended:
    """A stored message, or (`duplicate`) the one that was there already."""

    message_id: str
    mailbox: MailboxRef
    thread_id: str
    folder: FolderKey
    uid: int
    uid_validity: int
    modseq: int
    duplicate: bool = False
    replaced_keys: tuple[str, ...] = ()
    """Keys of bytes that went with what it replaced."""
    emptied: tuple[tuple[MailboxRef, int], ...] = ()
    """Other mailboxes from which something went in the same transaction, with their modseqs."""


class Refusal(StrEnum):
    """Why a message was not stored."""

    MAILBOX_FULL = "mailbox_full"
    MAILBOX_GONE = "mailbox_gone"
    FOLDER_GONE = "folder_gone"
    UID_EXHAUSTED = "uid_exhausted"
    REPLACED_GONE = "replaced_gone"
    """What was to be replaced is not there (any more)."""
    REPLACED_IN_USE = "replaced_in_use"
    """What was to be replaced is still to be sent (mail-server C3)."""


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Refusal


@dataclass(frozen=True, slots=True)
class Busy:
    """`mailbox`, one of the group's, was locked by somebody else; nothing of the group was written (B14)."""

    mailbox: MailboxRef


GroupOutcome = tuple[Appended, ...] | Refused | Busy
"""What became of one message for all its recipients: all copies, or none."""


def changed_mailboxes(stored: Iterable[Appended]) -> dict[int, int]:
    """The mailboxes that a commit has changed, each with its new modseq; whoever watches them is to be told."""
    newest: dict[int, int] = {}
    for one in stored:
        for ref, modseq in ((one.mailbox, one.modseq), *one.emptied):
            newest[ref.mailbox_id] = max(modseq, newest.get(ref.mailbox_id, 0))
    return newest
