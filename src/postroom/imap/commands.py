"""Typed commands (RFC 9051 §6, spec D1). `uid` tells the UID form of a command where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from types import MappingProxyType

from postroom.imap.fetch import FetchItem, FetchModifier
from postroom.imap.partial import Partial
from postroom.imap.search import ReturnOption, SearchKey
from postroom.imap.sequence import SequenceSet
from postroom.imap.sort import SortCriterion
from postroom.imap.threads import Algorithm


class Command:
    """Base of all commands."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Capability(Command):
    """CAPABILITY."""


@dataclass(frozen=True, slots=True)
class Noop(Command):
    """NOOP."""


@dataclass(frozen=True, slots=True)
class Logout(Command):
    """LOGOUT."""


@dataclass(frozen=True, slots=True)
class Id(Command):
    """ID (RFC 2971): what the client says of itself, or None for NIL. At most 30 fields."""

    fields: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True)
class Enable(Command):
    """ENABLE (RFC 5161): names in upper case, known or not."""

    capabilities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartTls(Command):
    """STARTTLS; call `CommandReader.discard_buffer` before the handshake."""


@dataclass(frozen=True, slots=True)
class Login(Command):
    """LOGIN."""

    username: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Authenticate(Command):
    """AUTHENTICATE: mechanism in upper case, decoded initial response or None (RFC 4959)."""

    mechanism: str
    initial: bytes | None = field(default=None, repr=False)


class SelectParameter:
    """Base of what SELECT and EXAMINE take in parentheses (RFC 4466 §2.1)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CondStore(SelectParameter):
    """``CONDSTORE`` (RFC 7162 §3.1.8)."""


@dataclass(frozen=True, slots=True)
class QResync(SelectParameter):
    """``QRESYNC`` (RFC 7162 §3.2.5): what the client has of the mailbox. `known` are its UIDs, None for all.

    The pairs of numbers and UIDs that may follow help servers without a log of what went; ours has one, so that they
    are read and not kept.
    """

    uid_validity: int
    modseq: int
    known: SequenceSet | None = None


@dataclass(frozen=True, slots=True)
class Select(Command):
    """SELECT, or EXAMINE when `read_only`."""

    mailbox: str
    read_only: bool = False
    parameters: tuple[SelectParameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Create(Command):
    """CREATE; a trailing separator is dropped (RFC 9051 §6.3.4). `special_use`: e.g. ``\\Sent`` (RFC 6154 §5.2)."""

    mailbox: str
    special_use: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete(Command):
    """DELETE."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class Rename(Command):
    """RENAME."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Subscribe(Command):
    """SUBSCRIBE."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class Unsubscribe(Command):
    """UNSUBSCRIBE."""

    mailbox: str


class StatusItem(StrEnum):
    """Items of STATUS; the value is the word on the wire."""

    MESSAGES = "MESSAGES"
    RECENT = "RECENT"
    UIDNEXT = "UIDNEXT"
    UIDVALIDITY = "UIDVALIDITY"
    UNSEEN = "UNSEEN"
    DELETED = "DELETED"
    SIZE = "SIZE"
    HIGHESTMODSEQ = "HIGHESTMODSEQ"
    MAILBOXID = "MAILBOXID"
    APPENDLIMIT = "APPENDLIMIT"
    DELETED_STORAGE = "DELETED-STORAGE"


class ListSelection(StrEnum):
    """Selection options of LIST (RFC 5258 §3.1, RFC 6154 §2)."""

    SUBSCRIBED = "SUBSCRIBED"
    REMOTE = "REMOTE"
    RECURSIVEMATCH = "RECURSIVEMATCH"
    SPECIAL_USE = "SPECIAL-USE"


class ListReturn(StrEnum):
    """Return options of LIST that take no argument (RFC 5258 §3.2, RFC 6154 §2, RFC 8440)."""

    SUBSCRIBED = "SUBSCRIBED"
    CHILDREN = "CHILDREN"
    SPECIAL_USE = "SPECIAL-USE"
    MY_RIGHTS = "MYRIGHTS"


@dataclass(frozen=True, slots=True)
class ListStatus:
    """``STATUS (…)`` among the return options of LIST (RFC 5819)."""

    items: tuple[StatusItem, ...]


@dataclass(frozen=True, slots=True)
class List(Command):
    """LIST. `extended` tells whether the client used any form of RFC 5258 (options, or patterns in parentheses)."""

    reference: str
    patterns: tuple[str, ...]
    selection: frozenset[ListSelection] = frozenset()
    returns: tuple[ListReturn | ListStatus, ...] = ()
    extended: bool = False


@dataclass(frozen=True, slots=True)
class Lsub(Command):
    """LSUB (RFC 3501 §6.3.9)."""

    reference: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Namespace(Command):
    """NAMESPACE."""


@dataclass(frozen=True, slots=True)
class StatusCommand(Command):
    """STATUS."""

    mailbox: str
    items: tuple[StatusItem, ...]


@dataclass(frozen=True, slots=True)
class UrlPart:
    """``URL`` of CATENATE, as sent."""

    url: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AppendMessage:
    """One message of APPEND: stored words of flags, date as given or None, the octets verbatim.

    `binary` tells a ``literal8`` (RFC 3516), `utf8` the form ``UTF8 (~{n}…)`` of RFC 6855 §4. With `parts` (CATENATE,
    RFC 4469) the message is made of them, and `data` is empty.
    """

    flags: tuple[str, ...]
    date: datetime | None
    data: bytes = field(repr=False)
    binary: bool = False
    utf8: bool = False
    parts: tuple[bytes | UrlPart, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Append(Command):
    """APPEND; several messages only where MULTIAPPEND (RFC 3502) is on offer."""

    mailbox: str
    messages: tuple[AppendMessage, ...]


@dataclass(frozen=True, slots=True)
class GetQuota(Command):
    """GETQUOTA (RFC 9208 §4.1.1)."""

    root: str


@dataclass(frozen=True, slots=True)
class GetQuotaRoot(Command):
    """GETQUOTAROOT (RFC 9208 §4.1.2)."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class GetMetadata(Command):
    """GETMETADATA (RFC 5464 §4.2): names in lower case; an empty `mailbox` is the server, `depth` None is all."""

    mailbox: str
    entries: tuple[str, ...]
    max_size: int | None = None
    depth: int | None = 0


@dataclass(frozen=True, slots=True)
class SetMetadata(Command):
    """SETMETADATA (RFC 5464 §4.3): names in lower case with their values, None to remove them."""

    mailbox: str
    values: tuple[tuple[str, bytes | None], ...] = field(repr=False)


class StoreMode(Enum):
    """What STORE does with the flags it names, SETACL with the rights."""

    REPLACE = ""
    ADD = "+"
    REMOVE = "-"


@dataclass(frozen=True, slots=True)
class SetAcl(Command):
    """SETACL (RFC 4314 §3.1): rights of RFC 2086 are replaced by what they stand for."""

    mailbox: str
    identifier: str = field(repr=False)
    mode: StoreMode
    rights: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeleteAcl(Command):
    """DELETEACL (RFC 4314 §3.2)."""

    mailbox: str
    identifier: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GetAcl(Command):
    """GETACL (RFC 4314 §3.3)."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class ListRights(Command):
    """LISTRIGHTS (RFC 4314 §3.4)."""

    mailbox: str
    identifier: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class MyRights(Command):
    """MYRIGHTS (RFC 4314 §3.5)."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class Compress(Command):
    """COMPRESS (RFC 4978): the mechanism in upper case."""

    mechanism: str


@dataclass(frozen=True, slots=True)
class Replace(Command):
    """REPLACE (RFC 8508): the set names one message."""

    target: SequenceSet
    mailbox: str
    message: AppendMessage
    uid: bool = False


@dataclass(frozen=True, slots=True)
class Check(Command):
    """CHECK (RFC 3501 §6.4.1)."""


@dataclass(frozen=True, slots=True)
class Close(Command):
    """CLOSE."""


@dataclass(frozen=True, slots=True)
class Unselect(Command):
    """UNSELECT (RFC 3691)."""


@dataclass(frozen=True, slots=True)
class Expunge(Command):
    """EXPUNGE, or UID EXPUNGE of `uids` (RFC 4315 §2.1)."""

    uids: SequenceSet | None = None

    @property
    def uid(self) -> bool:
        """Whether it is the UID form."""
        return self.uids is not None


@dataclass(frozen=True, slots=True)
class Search(Command):
    """SEARCH. `returns` is None without RETURN (answer ``* SEARCH``), else what ``* ESEARCH`` shall hold."""

    key: SearchKey
    charset: str | None = None
    returns: tuple[ReturnOption | Partial, ...] | None = None
    uid: bool = False


@dataclass(frozen=True, slots=True)
class Sort(Command):
    """SORT (RFC 5256). `returns` is None without RETURN (answer ``* SORT``), else as in `Search` (RFC 5267 §3)."""

    criteria: tuple[SortCriterion, ...]
    key: SearchKey
    charset: str
    returns: tuple[ReturnOption | Partial, ...] | None = None
    uid: bool = False


@dataclass(frozen=True, slots=True)
class Thread(Command):
    """THREAD (RFC 5256)."""

    algorithm: Algorithm
    key: SearchKey
    charset: str
    uid: bool = False


@dataclass(frozen=True, slots=True)
class CancelUpdate(Command):
    """CANCELUPDATE (RFC 5267 §4.3.5): tags of searches that were to be kept up to date."""

    tags: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Fetch(Command):
    """FETCH; the UID form answers with UID whether asked for or not."""

    messages: SequenceSet
    items: tuple[FetchItem, ...]
    modifiers: tuple[FetchModifier, ...] = ()
    uid: bool = False


class StoreModifier:
    """Base of what STORE takes in parentheses before its item (RFC 4466 §2.5)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class UnchangedSince(StoreModifier):
    """``UNCHANGEDSINCE`` (RFC 7162 §3.1.3)."""

    modseq: int


@dataclass(frozen=True, slots=True)
class Store(Command):
    """STORE of stored words of flags."""

    messages: SequenceSet
    mode: StoreMode
    flags: tuple[str, ...]
    silent: bool = False
    modifiers: tuple[StoreModifier, ...] = ()
    uid: bool = False


@dataclass(frozen=True, slots=True)
class Copy(Command):
    """COPY."""

    messages: SequenceSet
    mailbox: str
    uid: bool = False


@dataclass(frozen=True, slots=True)
class Move(Command):
    """MOVE (RFC 6851)."""

    messages: SequenceSet
    mailbox: str
    uid: bool = False


@dataclass(frozen=True, slots=True)
class Idle(Command):
    """IDLE (RFC 2177): answer ``+ idling`` and call `CommandReader.expect_line`."""


class NotifyEvent(Enum):
    """What a client may want to be told of (RFC 5465 §5), as far as we have it."""

    MESSAGE_NEW = "MessageNew"
    MESSAGE_EXPUNGE = "MessageExpunge"
    FLAG_CHANGE = "FlagChange"
    MAILBOX_NAME = "MailboxName"
    SUBSCRIPTION_CHANGE = "SubscriptionChange"
    MAILBOX_METADATA_CHANGE = "MailboxMetadataChange"
    SERVER_METADATA_CHANGE = "ServerMetadataChange"


class NotifyFilter(Enum):
    """Of which mailboxes (RFC 5465 §6)."""

    SELECTED = "selected"
    SELECTED_DELAYED = "selected-delayed"
    INBOXES = "inboxes"
    PERSONAL = "personal"
    SUBSCRIBED = "subscribed"
    SUBTREE = "subtree"
    MAILBOXES = "mailboxes"


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Which events of which mailboxes; none with NONE. `names` of SUBTREE and MAILBOXES, `items` of MessageNew."""

    filter: NotifyFilter
    events: frozenset[NotifyEvent]
    names: tuple[str, ...] = ()
    items: tuple[FetchItem, ...] = ()


@dataclass(frozen=True, slots=True)
class Notify(Command):
    """NOTIFY (RFC 5465 §3.1); without groups it is NOTIFY NONE. `status`: how the mailboxes are is told first."""

    groups: tuple[EventGroup, ...] = ()
    status: bool = False


@dataclass(frozen=True, slots=True)
class Done(Command):
    """The line that ends IDLE; it has no tag."""


def id_fields(pairs: dict[str, str | None]) -> Mapping[str, str | None]:
    """A read-only view of ID fields."""
    return MappingProxyType(pairs)
