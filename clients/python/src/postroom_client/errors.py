"""What can go wrong, as exceptions (events-webhooks-errors §16).

`ApiError` is an answer of the server; its subclasses go by status, a few by code. Whoever meets a code that they do not
know goes by the class, which the status decides. No exception holds a key, a body or a header that was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MAX_TEXT: Final = 500
"""Characters of a message that the text of an exception shows."""


class PostroomError(Exception):
    """Anything that this package raises of its own."""


class ConfigError(PostroomError, ValueError):
    """The call cannot be made as it was written: an address of the server, a key, an argument. Nothing was sent."""


class TransportError(PostroomError):
    """No answer came, or not all of it.

    `sent` is whether the server may have got the request and so may have done what it asks.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent

    def __reduce__(self) -> tuple[Any, ...]:
        return _transport_error, (type(self), str(self), self.sent)


class RequestTimeout(TransportError):
    """No answer in time."""


class DecodeError(PostroomError):
    """An answer that is not one of Postroom's: no JSON, another shape, a page of something in between, a redirection.

    A 404 of this kind says nothing about whether the thing exists. `status` is that of HTTP; None where the answer
    began well and the rest of it was wrong.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return _decode_error, (str(self), self.status)


class ApiError(PostroomError):
    """The server said no, and why.

    `retryable`: the same request can succeed later. `fix`: what to do about it. `retry_after`: seconds, where the
    server said any. `request_id` is what its operator asks for. `details` as the documentation of the code says.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        fix: str = "",
        request_id: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.retryable = retryable
        self.fix = fix
        self.request_id = request_id
        self.retry_after = retry_after
        self.details: Mapping[str, Any] = details or {}
        about = f"{status}, {_plain(request_id)}" if request_id else str(status)
        super().__init__(f"{_plain(code)} ({about}): {_plain(message)}")

    def __repr__(self) -> str:
        # Messages and details may name things of a tenant: what is shown in passing is the code.
        return f"{type(self).__name__}({self.status}, {self.code!r}, request_id={self.request_id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _api_error, (type(self), self.__dict__)


class BadRequest(ApiError):
    """400, 413, 422 and other 4xx: the request has to change. `details["errors"]` says where, if it is malformed."""


class Unauthorized(ApiError):
    """401: no key or session, or one that is no longer good."""


class BillingLimit(ApiError):
    """402: an allowance is spent. After an upgrade the same request, with the same idempotency key, goes on."""


class Forbidden(ApiError):
    """403: beyond the key's permissions, its level, or a policy."""


class NotFound(ApiError):
    """404: there is no such thing, or the key does not reach it."""


class Conflict(ApiError):
    """409: against the state that things are in."""


class IdempotencyConflict(Conflict):
    """Another request had this idempotency key. It is a mistake of the caller's; never tried again."""


class RequestInProgress(Conflict):
    """The first request with this idempotency key still runs."""


class Gone(ApiError):
    """410: it was there."""


class CursorExpired(Gone):
    """A cursor older than 24 hours: list again from the start."""


class RateLimited(ApiError):
    """429: too much, too often. `retry_after` says when again."""


class ServerError(ApiError):
    """5xx: not the caller's doing."""


_BY_CODE: Final[Mapping[str, type[ApiError]]] = {
    "idempotency_conflict": IdempotencyConflict,
    "request_in_progress": RequestInProgress,
    "cursor_expired": CursorExpired,
}
_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    401: Unauthorized,
    402: BillingLimit,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: RateLimited,
}


def class_of(status: int, code: str) -> type[ApiError]:
    """The class for an answer. A code counts only under the status that its class is of."""
    by_status = _BY_STATUS.get(status) or (ServerError if status >= 500 else BadRequest)
    by_code = _BY_CODE.get(code)
    return by_code if by_code is not None and issubclass(by_code, by_status) else by_status


def _plain(text: str) -> str:
    """On one line, and not for ever."""
    shown = "".join(character if character.isprintable() else " " for character in text[:_MAX_TEXT])
    return shown + ("…" if len(text) > _MAX_TEXT else "")


def _transport_error(cls: type[TransportError], message: str, sent: bool) -> TransportError:
    return cls(message, sent=sent)


def _decode_error(message: str, status: int | None) -> DecodeError:
    return DecodeError(message, status=status)


def _api_error(cls: type[ApiError], state: Mapping[str, Any]) -> ApiError:
    return cls(**state)
