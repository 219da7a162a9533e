"""What a failure of ours, or of a department, is to an IMAP client (RFC 5530, mail-server D1, D8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.blobs import StorageError
from postroom.db import is_lock_timeout, is_transient
from postroom.imap import Code, CommandError, ProtocolNo
from postroom.mailbox.expunge import MessagesInUse
from postroom.mailbox.ingest import Failure, IngestError
from postroom.mailbox.rules import LimitExceeded

_log = base_log.get("servers.imap")

_CODES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "folder_not_found": (Code.NONEXISTENT, "No such mailbox"),
        "folder_exists": (Code.ALREADYEXISTS, "Mailbox already exists"),
        "folder_not_empty": (Code.HASCHILDREN, "Mailbox has children"),
        "mailbox_full": (Code.OVERQUOTA, "Mailbox is full"),
        "invalid_request": (Code.CANNOT, "Not possible"),
        "identity_not_found": (Code.UNAVAILABLE, "The mailbox is gone"),
    }
)


class Disconnected(Exception):
    """The client is gone, or told to go: nothing more can be said."""


def as_answer(error: Exception) -> CommandError:
    """The answer to a command that `error` ended. What nobody foresaw is logged, without content."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, LimitExceeded):
        return ProtocolNo(Code.LIMIT, "Too many")
    if isinstance(error, MessagesInUse):
        return ProtocolNo(Code.INUSE, "Some messages are still to be sent; they stay until they are")
    if isinstance(error, PostroomError) and error.code in _CODES:
        return ProtocolNo(*_CODES[error.code])
    for applies, code, text in _TEMPORARY:
        if applies(error):
            _log.warning("imap_command_deferred", error=type(error).__name__, code=code)
            return ProtocolNo(code, text)
    _log.error("imap_command_failed", error=type(error).__name__, exc_info=error)
    return ProtocolNo(Code.SERVERBUG, "Internal error")


def _is_storage_full(error: Exception) -> bool:
    return isinstance(error, IngestError) and error.failure is Failure.STORAGE_FULL


def _is_busy(error: Exception) -> bool:
    return is_lock_timeout(error) or (isinstance(error, IngestError) and error.failure is Failure.BUSY)


def _is_passing(error: Exception) -> bool:
    if isinstance(error, PostroomError):
        return error.retryable
    return isinstance(error, IngestError | StorageError) or is_transient(error)


_TEMPORARY: Final[tuple[tuple[Callable[[Exception], bool], str, str], ...]] = (
    (_is_busy, Code.INUSE, "Mailbox is busy, try again"),
    (_is_storage_full, Code.UNAVAILABLE, "No room on the server"),
    (_is_passing, Code.UNAVAILABLE, "Temporarily unavailable"),
)
