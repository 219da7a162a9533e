"""Where message bytes live: one `BlobStore` interface over a Maildir on disk or an object store.

Keys are logical and the same for every backend (data-model §15); rows of the database name keys, never paths. A write
has returned only when the bytes are durable, so that whoever commits a row after it never names bytes that are not
there (mail-server E2). Bytes without a row are harmless; `mailbox.sweep` removes them in the end.

`objects.ObjectStore` is imported from its module: the library behind it is large, and not every process needs it.
"""

from .maildir import MaildirStore
from .store import (
    BlobMissing,
    BlobStore,
    Discarded,
    InvalidKey,
    MarkerMismatch,
    PutGroup,
    Span,
    StorageError,
    StorageFull,
    check_key,
    put_durably,
)

__all__ = [
    "BlobMissing",
    "BlobStore",
    "Discarded",
    "InvalidKey",
    "MaildirStore",
    "MarkerMismatch",
    "PutGroup",
    "Span",
    "StorageError",
    "StorageFull",
    "check_key",
    "put_durably",
]
