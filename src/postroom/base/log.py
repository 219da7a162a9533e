"""Structured logging that cannot tell secrets (requirements §3 Logs, security-privacy §A11, cli-config-ops §C2).

Logs hold ids, codes, counts and durations. Content, addresses and secrets stay out by construction: a field whose
name says that it holds such a thing loses its value, text values must look like codes, not like prose, and an
exception logs its type and where it was raised, never its message.
"""

import contextlib
import hashlib
import hmac
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

REDACTED: Final = "[redacted]"

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

# A field is judged by the words of its name: `auth_token`, `rcpt_address` and `X-Subject` are caught too.
_SENSITIVE_WORDS: Final = frozenset(
    (
        *("address", "addresses", "email", "emails", "mailto", "sender", "senders", "recipient", "recipients", "rcpt"),
        *("cc", "bcc", "localpart", "subject", "body", "text", "html", "content", "snippet", "preview"),
        *("filename", "filenames", "header", "headers", "cookie", "cookies", "authorization", "auth"),
        *("credential", "credentials", "password", "passwd", "passphrase", "secret", "secrets", "token", "tokens"),
        *("key", "keys", "pepper", "otp", "totp", "url", "uri", "query", "ip", "ips", "peer", "helo", "ehlo"),
    )
)
# Words that are harmless in a longer name (`to_state`, `data_dir`) and telling when they stand alone.
_SENSITIVE_NAMES: Final = frozenset(
    (
        *("from", "to", "reply_to", "raw", "data", "payload", "reply", "line", "message", "title", "name", "pass"),
        *("display_name", "file_name", "local_part", "args", "kwargs", "locals", "seed", "code_verifier", "remote"),
    )
)
# Endings whose values are ids, pseudonyms, counts and the like, whatever they are of.
_HARMLESS_ENDINGS: Final = (
    *("_id", "_ids", "_hash", "_ph", "_count", "_counts", "_bytes", "_ms", "_seconds", "_secs"),
    *("_status", "_code", "_kind", "_len"),
)

_WORDS: Final = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
# What a value may look like: a code, an id, a version, a path, a time. Never prose, never an address.
_CODE: Final = re.compile(r"[A-Za-z0-9_.:/{}<>()\[\]=,+*-]{0,128}")
# The event is a constant of the program; still, an address put into it must not get out.
_EVENT: Final = re.compile(r"[A-Za-z0-9_.:/,;()' -]{1,128}")
# What the processors before `redact` have written, whatever a caller gave.
_WRITTEN_BY_US: Final = frozenset({"level", "ts"})


def configure(level: str = "info", format: Literal["text", "json"] = "text", stream: TextIO | None = None) -> None:
    """Set up logging for the process; called once, by the composition root or a command.

    `level` is one of debug, info, warning, error, critical; `stream` is standard error by default. The standard
    library's loggers (of the libraries in use) go the same way, warnings and worse only, by their logger's name and
    level but without their words, which may quote what a peer sent. Raises ValueError for an unknown level or format.
    """
    if level not in _LEVELS:
        raise ValueError(f"unknown log level {level!r}: one of {', '.join(_LEVELS)}")
    if format not in ("text", "json"):
        raise ValueError(f"unknown log format {format!r}: text or json")
    out = stream if stream is not None else sys.stderr
    render: Processor = structlog.processors.JSONRenderer(sort_keys=False) if format == "json" else _render_line
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            describe_exception,
            redact,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Unfailing(out))),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(_LEVELS[level], logging.WARNING))


class _Unfailing:
    """A stream that never raises OSError: a full disk, or a reader that is gone, costs lines of the log and no more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def get(name: str) -> FilteringBoundLogger:
    """The logger of a part of the program; `name` is its package, such as ``"servers.smtp"``."""
    return cast(FilteringBoundLogger, structlog.get_logger(part=name))


def address_hash(key: bytes, address: str) -> str:
    """The pseudonym of an address in logs: the first 16 hex digits of HMAC-SHA256 under the deployment's hash key.

    The address is lower-cased first, as it is stored; the caller's field for it is `address_ph`.
    """
    return hmac.new(key, address.lower().encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:16]


@lru_cache(maxsize=4096)
def is_sensitive(field: str) -> bool:
    """Whether a field of this name may hold content, an address or a secret, so that its value is never logged."""
    lower = field.lower()
    if lower.endswith(_HARMLESS_ENDINGS):
        return False
    return lower in _SENSITIVE_NAMES or any(word.lower() in _SENSITIVE_WORDS for word in _WORDS.split(field))


def _render_line(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """structlog processor: one line for people, `time level event field=value …`. Values are redacted already."""
    head = f"{event.pop('ts')} {event.pop('level'):<8} {event.pop('event')}"
    return " ".join((head, *(f"{field}={value}" for field, value in event.items())))


def redact(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor: replaces values of sensitive fields, and bytes, addresses and prose in any field."""
    for field, value in event.items():
        if field == "event":
            event[field] = value if isinstance(value, str) and _EVENT.fullmatch(value) else REDACTED
        elif field not in _WRITTEN_BY_US:
            event[field] = REDACTED if is_sensitive(field) else _safe(value)
    return event


def describe_exception(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor: `exc_info` becomes the exception's type and the places it passed, never its message.

    An exception's message often quotes its input.
    """
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()[1]
    elif isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        event["error"] = type(info).__qualname__
        event["where"] = _places(info.__traceback__)
        cause = info.__cause__ or info.__context__
        if cause is not None:
            event["cause"] = type(cause).__qualname__
            event["cause_where"] = _places(cause.__traceback__)
    return event


def _safe(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if _CODE.fullmatch(value) else REDACTED
    if isinstance(value, Mapping):
        return {str(k): REDACTED if is_sensitive(str(k)) else _safe(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return REDACTED
    return _safe(str(value))


_MAX_PLACES: Final = 12


def _places(traceback: TracebackType | None) -> list[str]:
    """``file.py:line`` of the innermost frames, outermost first."""
    places = []
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        places.append(f"{path.parent.name}/{path.name}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return places[-_MAX_PLACES:]


class _Forward(logging.Handler):
    """Passes what the standard library's loggers say to structlog: who, how bad, where; not the words."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(part=record.name)
        place = f"{record.module}:{record.lineno}"
        log.log(record.levelno, "library_log", place=place, exc_info=record.exc_info)
