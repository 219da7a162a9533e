"""Client of Postroom, a mail server for people and AI agents: `Client` blocks, `AsyncClient` is for event loops.

What the server answers are the models of `models`; what it takes are the dictionaries of `bodies`. Both, and every
method, are made from the server's own description. Text that came by mail is untrusted: give it to a language model
only inside a delimited block.
"""

from ._core import Surroundings
from ._decode import Model
from ._retry import Retry
from ._version import __version__
from .client import AsyncClient, Client
from .downloads import AsyncDownload, Download
from .errors import (
    ApiError,
    BadRequest,
    BillingLimit,
    ConfigError,
    Conflict,
    CursorExpired,
    DecodeError,
    Forbidden,
    Gone,
    IdempotencyConflict,
    NotFound,
    PostroomError,
    RateLimited,
    RequestInProgress,
    RequestTimeout,
    ServerError,
    TransportError,
    Unauthorized,
)
from .files import attachment
from .pagination import AsyncPages, Pages
from .streams import StreamedEvent

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncDownload",
    "AsyncPages",
    "BadRequest",
    "BillingLimit",
    "Client",
    "ConfigError",
    "Conflict",
    "CursorExpired",
    "DecodeError",
    "Download",
    "Forbidden",
    "Gone",
    "IdempotencyConflict",
    "Model",
    "NotFound",
    "Pages",
    "PostroomError",
    "RateLimited",
    "RequestInProgress",
    "RequestTimeout",
    "Retry",
    "ServerError",
    "StreamedEvent",
    "Surroundings",
    "TransportError",
    "Unauthorized",
    "__version__",
    "attachment",
]
