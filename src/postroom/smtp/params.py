"""Extension parameters of MAIL and RCPT (RFC 5321 §4.1.1.11), read in this one place.

Unknown parameters are ignored (rule A2), so a client that sends DSN parameters without the extension being offered is
served. An extension that is added later gets a field in `MailParameters` or `RcptParameters` and a reader in the table
of its command.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_KEYWORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_VALUE: Final = re.compile(r"[^\x00-\x20=\x7f]+")
_SIZE: Final = re.compile(r"[0-9]{1,20}")  # RFC 1870 §4: 1*20DIGIT
_MAX_PARAMETERS: Final = 20


class ParameterError(ValueError):
    """Ill-formed or duplicate parameter, or a value that its extension does not know."""


@dataclass(frozen=True, slots=True)
class MailParameters:
    """What MAIL declared: `size` in octets (RFC 1870) or `None`, `body_8bit` (RFC 6152), `smtputf8` (RFC 6531).

    `AUTH=` (RFC 4954 §5) is understood and dropped: no peer is trusted to vouch for a submitter.
    """

    size: int | None = None
    body_8bit: bool = False
    smtputf8: bool = False


_NO_PARAMETERS: Final = MailParameters()


def split_parameters(raw: bytes) -> dict[str, str | None]:
    """Keyword (upper case) to value, or to `None` where the keyword stands alone.

    Raises `ParameterError`. Values may hold UTF-8, as RFC 6531 §3.3 allows for some.
    """
    try:
        words = raw.decode("utf-8").split()
    except UnicodeDecodeError:
        raise ParameterError("not UTF-8") from None
    if len(words) > _MAX_PARAMETERS:
        raise ParameterError("too many parameters")
    found: dict[str, str | None] = {}
    for word in words:
        keyword, equals, value = word.partition("=")
        keyword = keyword.upper()
        if _KEYWORD.fullmatch(keyword) is None or keyword in found:
            raise ParameterError("keyword")
        if equals and _VALUE.fullmatch(value) is None:
            raise ParameterError("value")
        found[keyword] = value if equals else None
    return found


def _read_size(value: str | None) -> int:
    if value is None or _SIZE.fullmatch(value) is None:
        raise ParameterError("SIZE")
    return int(value)


def _read_body(value: str | None) -> bool:
    match (value or "").upper():
        case "7BIT":
            return False
        case "8BITMIME":
            return True
        case _:
            raise ParameterError("BODY")


def _read_smtputf8(value: str | None) -> bool:
    if value is not None:
        raise ParameterError("SMTPUTF8")
    return True


# keyword -> (field of MailParameters, reader of the value)
_MAIL_READERS: Final[Mapping[str, tuple[str, Callable[[str | None], int | bool]]]] = {
    "SIZE": ("size", _read_size),
    "BODY": ("body_8bit", _read_body),
    "SMTPUTF8": ("smtputf8", _read_smtputf8),
}


def mail_parameters(raw: bytes) -> MailParameters:
    """Read the parameters of MAIL. Raises `ParameterError`."""
    if not raw:
        return _NO_PARAMETERS
    read: dict[str, int | bool] = {}
    for keyword, value in split_parameters(raw).items():
        reader = _MAIL_READERS.get(keyword)
        if reader is not None:
            read[reader[0]] = reader[1](value)
    return MailParameters(
        size=int(read["size"]) if "size" in read else None,
        body_8bit=bool(read.get("body_8bit")),
        smtputf8=bool(read.get("smtputf8")),
    )


def check_rcpt_parameters(raw: bytes) -> None:
    """Read the parameters of RCPT, none of which has a meaning yet. Raises `ParameterError`."""
    if raw:
        split_parameters(raw)
