"""Another IMAP server as a source (RFC 3501, RFC 9051), by imaplib of the standard library.

Folders are only looked at (EXAMINE, BODY.PEEK), so nothing changes there. Every wait has a timeout; what the server
sends is bounded before it is read.
"""

from __future__ import annotations

import contextlib
import imaplib
import ssl
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from postroom.mailbox.models import SpecialUse
from postroom.migration import imap_replies as replies
from postroom.migration.imap_replies import BadReply, Value
from postroom.migration.models import PAGE, Item, Letter, Problem, SourceError, SourceErrorKind, SourceFolder, Trouble
from postroom.migration.names import segment_words

T = TypeVar("T")

TIMEOUT: Final = 60.0
"""Seconds of any wait for the server."""
SLACK: Final = 64 * 1024
"""Octets of a literal beyond the largest message."""
FETCHED: Final = 20
FETCHED_BYTES: Final = 4 * 1024 * 1024
"""Messages, and octets of them, that are asked for at a time; one may be larger."""
ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Octets of all responses to one command, beyond twice the largest message."""
LISTED: Final = 5000
MAX_FOLDERS: Final = 20_000
ATTEMPTS: Final = 3
"""How often the same is tried over new connections, without getting further."""
PAUSE: Final = 1.0

_ROLES: Final = {
    b"\\sent": SpecialUse.SENT,
    b"\\drafts": SpecialUse.DRAFTS,
    b"\\trash": SpecialUse.TRASH,
    b"\\junk": SpecialUse.JUNK,
    b"\\archive": SpecialUse.ARCHIVE,
    b"\\all": SpecialUse.ALL,
    b"\\flagged": SpecialUse.FLAGGED,
    b"\\important": SpecialUse.FLAGGED,  # Gmail: like \Flagged it shows what other folders hold
}
_NO_FOLDER: Final = frozenset({b"\\noselect", b"\\nonexistent"})
_UNSPEAKABLE: Final = (b"\r", b"\n", b"\0")


class Tls(StrEnum):
    IMPLICIT = "implicit"
    STARTTLS = "starttls"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ImapAccount:
    """Where to sign in, and as whom."""

    host: str
    port: int
    tls: Tls
    user: str
    password: str = field(repr=False)
    context: ssl.SSLContext | None = None
    """None: the system's certificates, and the name is checked."""


class ImapSource:
    """All folders of an account, but for those of other people."""

    def __init__(self, account: ImapAccount, *, max_bytes: int, timeout: float = TIMEOUT) -> None:
        self._account, self._max_bytes, self._timeout = account, max_bytes, timeout
        self._conn: imaplib.IMAP4 | None = None
        self._selected: bytes | None = None
        self._closed = False

    @property
    def label(self) -> bytes:
        return f"imap:{self._account.host.lower()}:{self._account.user}".encode()

    def folders(self) -> Sequence[SourceFolder]:
        return self._patiently(self._folders)

    def pages(self, folder: SourceFolder) -> Iterator[Sequence[Item]]:
        uids, sizes = self._patiently(lambda: self._listed(folder))
        for start in range(0, len(uids), PAGE):
            numbered = zip(uids[start : start + PAGE], sizes[start : start + PAGE], strict=True)
            yield [Item(b"%d.%d" % (folder.uid_validity, uid), uid, size) for uid, size in numbered]

    def read(self, folder: SourceFolder, items: Sequence[Item]) -> Iterator[Letter | Problem]:
        for batch in self._batches(items):
            if isinstance(batch, Problem):
                yield batch
                continue
            found = self._patiently(lambda batch=batch: self._fetched(folder, batch))  # type: ignore[misc] # the batch of this turn
            for item in batch:
                yield found.get(item.uid) or Problem(item, Trouble.GONE)

    def close(self) -> None:
        """Ends what waits in another thread, too."""
        self._closed = True
        self._drop()

    # -- connection ----------------------------------------------------------------------------------------------------

    def _patiently(self, work: Callable[[], T]) -> T:
        """`work`, again over a new connection when that breaks. Raises SourceError."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return work()
            except (imaplib.IMAP4.abort, OSError, EOFError) as error:
                self._drop()
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise SourceError(
                        SourceErrorKind.REMOTE,
                        f"the server's certificate is not to be trusted: {error.verify_message}",
                        "Name the host as its certificate does, or a file of certificates to trust with --ca-file.",
                    ) from None
                if attempt == ATTEMPTS or self._closed:
                    reason = getattr(error, "strerror", None) or type(error).__name__
                    raise SourceError(
                        SourceErrorKind.REMOTE,
                        f"the server cannot be reached, or broke off: {reason}",
                        "Run the same command again: it goes on where it was.",
                    ) from None
                time.sleep(PAUSE)
            except (imaplib.IMAP4.error, BadReply, ValueError):
                self._drop()
                raise SourceError(SourceErrorKind.REMOTE, "the server answers what makes no sense") from None
        raise AssertionError

    def _drop(self) -> None:
        conn, self._conn, self._selected = self._conn, None, None
        if conn is not None:
            with contextlib.suppress(OSError, imaplib.IMAP4.error):
                conn.shutdown()

    def _connected(self) -> imaplib.IMAP4:
        if self._conn is None:
            if self._closed:
                raise OSError("closed")
            self._conn = self._connect()
            self._sign_in(self._conn)
        return self._conn

    def _connect(self) -> imaplib.IMAP4:
        account = self._account
        limit = self._max_bytes + SLACK
        context = account.context or ssl.create_default_context()
        if account.tls is Tls.IMPLICIT:
            return _BoundedTls(limit, account.host, account.port, context, self._timeout)
        conn = _Bounded(limit, account.host, account.port, self._timeout)
        if account.tls is Tls.STARTTLS:
            try:
                conn.starttls(context)
            except imaplib.IMAP4.abort:
                raise
            except imaplib.IMAP4.error:
                conn.shutdown()
                raise SourceError(
                    SourceErrorKind.REMOTE, "the server does not do STARTTLS", "Try --tls implicit."
                ) from None
        return conn

    def _sign_in(self, conn: imaplib.IMAP4) -> None:
        user, password = self._account.user.encode(), self._account.password.encode()
        try:
            if "AUTH=PLAIN" in conn.capabilities:
                conn.authenticate("PLAIN", lambda _: b"\0" + user + b"\0" + password)
            else:
                _ok(conn._simple_command("LOGIN", _quoted(user), _quoted(password)))  # login() sends the user as it is
                conn.state = "AUTH"
        except imaplib.IMAP4.abort:
            raise
        except (imaplib.IMAP4.error, BadReply):
            self._drop()
            raise SourceError(
                SourceErrorKind.ACCESS, "the server refused the sign-in", "Check user and password."
            ) from None
        # What a server offers may depend on who asks.
        with contextlib.suppress(imaplib.IMAP4.error):
            conn._get_capabilities()

    # -- folders -------------------------------------------------------------------------------------------------------

    def _folders(self) -> Sequence[SourceFolder]:
        conn = self._connected()
        own, others = self._namespaces(conn)
        subscribed = self._subscribed(conn)
        extended = {"SPECIAL-USE", "LIST-EXTENDED"} <= set(conn.capabilities)
        listed = _asked(conn, "LIST", '""', "*", *(["RETURN (SPECIAL-USE)"] if extended else []))
        found: list[SourceFolder] = []
        for response in listed[:MAX_FOLDERS]:
            attributes, separator, name = _list_response(response)
            if _NO_FOLDER & attributes or any(c in name for c in _UNSPEAKABLE):
                continue
            if any(name.startswith(prefix) for prefix in others if prefix):
                continue
            status = self._status(conn, name)
            if status is None:
                continue  # it went meanwhile, or is not for us
            bare = name.removeprefix(own) if name.upper() != b"INBOX" else name
            segments = bare.split(separator) if separator else [bare]
            found.append(
                SourceFolder(
                    key=name,
                    path=tuple(map(segment_words, segments)),
                    role=next((_ROLES[one] for one in sorted(attributes) if one in _ROLES), None),
                    uid_validity=replies.number(status.get(b"UIDVALIDITY", b"0")),
                    uid_next=replies.number(status.get(b"UIDNEXT", b"0")),
                    count=replies.number(status.get(b"MESSAGES", b"0")),
                    subscribed=None if subscribed is None else name in subscribed,
                )
            )
        return sorted(found, key=lambda folder: folder.path)

    def _namespaces(self, conn: imaplib.IMAP4) -> tuple[bytes, list[bytes]]:
        """The prefix of the account's own names, and those of other people's (RFC 2342)."""
        if "NAMESPACE" not in conn.capabilities:
            return b"", []
        spaces = next(iter(_asked(conn, "NAMESPACE")), [])
        prefixes = [
            [one[0] for one in space or () if isinstance(one, list) and one and isinstance(one[0], bytes)]
            for space in spaces
            if space is None or isinstance(space, list)
        ]
        own = prefixes[0][0] if prefixes and prefixes[0] else b""
        return own, [prefix for space in prefixes[1:] for prefix in space]

    def _subscribed(self, conn: imaplib.IMAP4) -> frozenset[bytes] | None:
        try:
            return frozenset(_list_response(one)[2] for one in _asked(conn, "LSUB", '""', "*"))
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error:
            return None

    def _status(self, conn: imaplib.IMAP4, name: bytes) -> dict[bytes, Value] | None:
        try:
            (response,) = _asked(conn, "STATUS", _quoted(name), "(MESSAGES UIDNEXT UIDVALIDITY)")[-1:]
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error:
            return None
        return replies.pairs(response[-1])

    # -- messages ------------------------------------------------------------------------------------------------------

    def _examine(self, folder: SourceFolder) -> imaplib.IMAP4:
        conn = self._connected()
        if self._selected != folder.key:
            self._selected = None
            _ok(conn.select(_quoted(folder.key), readonly=True))  # type: ignore[arg-type] # bytes are sent as they are
            validity = conn.response("UIDVALIDITY")[1]
            if validity and validity[0] is not None and replies.number(validity[0]) != folder.uid_validity:
                raise SourceError(SourceErrorKind.REMOTE, "a folder was made anew meanwhile", "Run it again.")
            self._selected = folder.key
        return conn

    def _listed(self, folder: SourceFolder) -> tuple[array[int], array[int]]:
        """UIDs, ascending, and sizes. Between FETCHes of sequence numbers these do not change (RFC 3501 §7.4.1)."""
        self._selected = None
        conn = self._examine(folder)
        exists = conn.response("EXISTS")[1]
        count = replies.number(exists[-1]) if exists and isinstance(exists[-1], bytes) else folder.count or 0
        found: dict[int, int] = {}
        for first in range(1, count + 1, LISTED):
            asked = f"{first}:{min(count, first + LISTED - 1)}"
            for response in _asked(conn, "FETCH", asked, "(UID RFC822.SIZE)"):
                values = replies.pairs(response[-1])
                if b"UID" in values and b"RFC822.SIZE" in values:
                    found[replies.number(values[b"UID"])] = replies.number(values[b"RFC822.SIZE"])
        uids = sorted(found)
        return array("L", uids), array("L", [found[uid] for uid in uids])

    def _batches(self, items: Sequence[Item]) -> Iterator[list[Item] | Problem]:
        batch: list[Item] = []
        size = 0
        for item in items:
            octets = item.place if isinstance(item.place, int) else 0
            if octets > self._max_bytes:
                if batch:
                    yield batch
                    batch, size = [], 0
                yield Problem(item, Trouble.TOO_LARGE)
                continue
            if batch and (len(batch) == FETCHED or size + octets > FETCHED_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += octets
        if batch:
            yield batch

    def _fetched(self, folder: SourceFolder, batch: Sequence[Item]) -> dict[int, Letter | Problem]:
        conn = self._examine(folder)
        uids = ",".join(str(item.uid) for item in batch)
        try:
            found = _asked(conn, "UID", "FETCH", uids, "(UID FLAGS INTERNALDATE BODY.PEEK[])", answers="FETCH")
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error:
            if len(batch) == 1:
                return {batch[0].uid: Problem(batch[0], Trouble.UNREADABLE)}
            apart: dict[int, Letter | Problem] = {}
            for item in batch:
                apart |= self._fetched(folder, [item])
            return apart
        by_uid = {item.uid: item for item in batch}
        letters: dict[int, Letter | Problem] = {}
        for response in found:
            values = replies.pairs(response[-1])
            if b"BODY[]" not in values or b"UID" not in values:
                continue  # flags that somebody changed meanwhile
            asked = by_uid.get(replies.number(values[b"UID"]))
            if asked is not None:
                letters[asked.uid] = self._letter(asked, values)
        return letters

    def _letter(self, item: Item, values: dict[bytes, Value]) -> Letter | Problem:
        raw = values[b"BODY[]"]
        if raw is None:
            return Problem(item, Trouble.UNREADABLE)
        if not isinstance(raw, bytes) or not raw:
            return Problem(item, Trouble.EMPTY)
        if len(raw) > self._max_bytes:
            return Problem(item, Trouble.TOO_LARGE)
        return Letter(item, raw, replies.words(values.get(b"FLAGS")), replies.moment(values.get(b"INTERNALDATE")))


def _list_response(values: list[Value]) -> tuple[frozenset[bytes], bytes, bytes]:
    """Attributes in lower case, separator (empty: none), name as it is sent."""
    if len(values) < 3 or not isinstance(values[0], list) or not isinstance(values[2], bytes):
        raise BadReply
    separator = values[1]
    if isinstance(separator, list):
        raise BadReply
    attributes = frozenset(one.lower() for one in values[0] if isinstance(one, bytes))
    return attributes, separator or b"", values[2]


def _asked(conn: imaplib.IMAP4, command: str, *arguments: str | bytes, answers: str = "") -> list[list[Value]]:
    """The values of the untagged responses to a command. Raises imaplib's errors, BadReply."""
    named = answers or command
    conn.untagged_responses.pop(named, None)  # what came unasked before
    _ok(conn._simple_command(command, *arguments))  # imaplib has no public way to send bytes
    _, data = conn._untagged_response("OK", [None], named)
    return list(replies.responses(one for one in data if one is not None))


def _ok(answer: tuple[str, Any]) -> None:
    if answer[0] != "OK":
        raise imaplib.IMAP4.error


def _quoted(text: bytes) -> bytes:
    """A quoted string (RFC 3501 §9). Raises BadReply for what none can hold."""
    if any(c in text for c in _UNSPEAKABLE):
        raise BadReply
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


class _Limited(imaplib.IMAP4):
    """Reads no literal that is larger than any message that would be taken, and no answer without an end."""

    limit = 0
    _taken = 0

    def read(self, size: int) -> bytes:
        if size > self.limit:
            raise imaplib.IMAP4.abort("too much")
        return self._counted(super().read(size))

    def readline(self) -> bytes:
        return self._counted(super().readline())

    def _command(self, name: str, *args: Any) -> Any:
        self._taken = 0
        return super()._command(name, *args)  # type: ignore[misc] # imaplib's own

    def _counted(self, data: bytes) -> bytes:
        self._taken += len(data)
        if self._taken > ANSWER_BYTES + 2 * self.limit:
            raise imaplib.IMAP4.abort("too much")
        return data


class _Bounded(_Limited):
    def __init__(self, limit: int, host: str, port: int, timeout: float) -> None:
        self.limit = limit
        super().__init__(host, port, timeout)


class _BoundedTls(_Limited, imaplib.IMAP4_SSL):
    def __init__(self, limit: int, host: str, port: int, context: ssl.SSLContext, timeout: float) -> None:
        self.limit = limit
        imaplib.IMAP4_SSL.__init__(self, host, port, ssl_context=context, timeout=timeout)
