"""The one error table, and the exception that carries a code of it (architecture §6; events-webhooks-errors §16).

A code, once published, is stable; its words may change. Servers translate a `PostroomError` into what their protocol
says (HTTP status and envelope, SMTP reply, IMAP response code); nobody else invents codes.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from .error_table import ENTRIES, ErrorSpec

__all__ = ["ERRORS", "ErrorSpec", "PostroomError"]

ERRORS: Final[Mapping[str, ErrorSpec]] = MappingProxyType({spec.code: spec for spec in ENTRIES})


class PostroomError(Exception):
    """A refusal or failure that the caller is told about, by its code.

    `details` holds the values of events-webhooks-errors §16, never content or addresses of third parties;
    `retry_after` is in seconds and becomes the `Retry-After` header; `message` replaces the default words.
    An unknown code is a programming error and raises KeyError here, not at the edge.
    """

    def __init__(
        self,
        code: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
        message: str | None = None,
    ) -> None:
        self.spec = ERRORS[code]
        self.details = details
        self.retry_after = retry_after
        self.message = message if message is not None else self.spec.message
        super().__init__(self.message)

    @property
    def code(self) -> str:
        return self.spec.code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.spec.status

    @property
    def retryable(self) -> bool:
        """Whether the same request, unchanged, may succeed later."""
        return self.spec.retryable

    @property
    def fix(self) -> str:
        """One sentence that says what the caller can do."""
        return self.spec.fix

    def envelope(self, request_id: str) -> dict[str, Any]:
        """The body of every non-2xx HTTP answer (FR-API-2)."""
        error: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "fix": self.fix,
            "request_id": request_id,
        }
        if self.details:
            error["details"] = dict(self.details)
        return {"error": error}

    def __reduce__(self) -> tuple[Callable[..., "PostroomError"], tuple[Any, ...]]:
        """Errors cross from worker processes to their parent by pickling."""
        return _remake, (self.code, self.details, self.retry_after, self.message)

    def __repr__(self) -> str:
        # Details may name objects of a tenant: a traceback in a log shows the code alone.
        return f"PostroomError({self.code!r})"


def _remake(code: str, details: Mapping[str, Any] | None, retry_after: float | None, message: str) -> PostroomError:
    return PostroomError(code, details=details, retry_after=retry_after, message=message)
