"""Extension parameters of MAIL and RCPT (RFC 5321 §4.1.1.11), read and written in this one place.

Unknown parameters are ignored (rule A2), and so are those of DSN where it is not offered. REQUIRETLS is the exception:
its sender insists, so a session that cannot promise it has to refuse (RFC 8689 §4.1).
"""

import enum
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

_KEYWORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_VALUE: Final = re.compile(r"[^\x00-\x20=\x7f]+")
_SIZE: Final = re.compile(r"[0-9]{1,20}")  # RFC 1870 §4: 1*20DIGIT
_MAX_PARAMETERS: Final = 20
# RFC 3461 §4: xtext, and the limits of ENVID (§4.4) and ORCPT (§4.2).
_XTEXT: Final = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})*")
_HEXCHAR: Final = re.compile(r"\+([0-9A-F]{2})")
_NOT_XCHAR: Final = re.compile(r"[^!-*,-<>-~]")
_ADDRESS_TYPE: Final = re.compile(r"[A-Za-z0-9-]{1,40}")
MAX_ENVID: Final = 100
MAX_ORCPT: Final = 500
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
# RFC 6533 §3: a character of a "utf-8" address, where only ASCII may be sent.
_EMBEDDED: Final = re.compile(r"\\x\{([0-9A-F]{1,6})\}")


class ParameterError(ValueError):
    """Ill-formed or duplicate parameter, or a value that its extension does not know."""


class Body(enum.Enum):
    """The BODY parameter: what octets the message may hold (RFC 6152 §3, RFC 3030 §3)."""

    SEVEN_BIT = "7BIT"
    EIGHT_BIT = "8BITMIME"
    BINARY = "BINARYMIME"


class Return(enum.Enum):
    """RET: how much of the message a failure notice shall carry (RFC 3461 §4.3)."""

    FULL = "FULL"
    HEADERS = "HDRS"


class Notify(enum.Enum):
    """A word of NOTIFY: what the sender wants to be told of (RFC 3461 §4.1)."""

    NEVER = "NEVER"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    DELAY = "DELAY"


class MailParameters(NamedTuple):
    """What MAIL declared.

    `size` is SIZE in octets (RFC 1870) or `None`, `body` and `smtputf8` are RFC 6152/3030 and RFC 6531, `ret` and
    `envid` RFC 3461 (only where DSN is offered), `requiretls` RFC 8689. `submitter` is AUTH= (RFC 4954 §5): a mailbox,
    empty for `<>`, `None` when not given; it is a claim, and no peer is trusted to vouch for one.
    """

    size: int | None = None
    body: Body = Body.SEVEN_BIT
    smtputf8: bool = False
    requiretls: bool = False
    ret: Return | None = None
    envid: str | None = None
    submitter: str | None = None

    @property
    def body_8bit(self) -> bool:
        """Whether octets over 127 were announced."""
        return self.body is not Body.SEVEN_BIT


class RcptParameters(NamedTuple):
    """What RCPT declared (RFC 3461 §4.1, §4.2).

    `notify` is empty when NOTIFY was not given, which means failures, and delays if we like. `orcpt` is the address
    type in lower case with the original recipient, decoded.
    """

    notify: frozenset[Notify] = frozenset()
    orcpt: tuple[str, str] | None = None


NO_MAIL_PARAMETERS: Final = MailParameters()
NO_RCPT_PARAMETERS: Final = RcptParameters()


def decode_xtext(text: str) -> str:
    """What `text` says (RFC 3461 §4): `+2B` is `+`. Raises `ParameterError`, also for what is not printable ASCII."""
    if _XTEXT.fullmatch(text) is None:
        raise ParameterError("xtext")
    decoded = _HEXCHAR.sub(lambda found: chr(int(found.group(1), 16)), text)
    if _PRINTABLE.fullmatch(decoded) is None:
        raise ParameterError("xtext stands for no printable character")
    return decoded


def encode_xtext(text: str) -> str:
    """`text`, which must be printable ASCII, as xtext. Raises `ParameterError`."""
    if _PRINTABLE.fullmatch(text) is None:
        raise ParameterError("not printable ASCII")
    return _NOT_XCHAR.sub(lambda found: f"+{ord(found.group()):02X}", text)


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


_BODIES: Final = {body.value: body for body in Body}
_RETURNS: Final = {ret.value: ret for ret in Return}
_NOTIFIES: Final = {notify.value: notify for notify in Notify}


def _read_body(value: str | None) -> Body:
    try:
        return _BODIES[(value or "").upper()]
    except KeyError:
        raise ParameterError("BODY") from None


def _read_flag(value: str | None) -> bool:
    if value is not None:
        raise ParameterError("a keyword without value")
    return True


def _read_submitter(value: str | None) -> str:
    decoded = decode_xtext(value or "")
    if not decoded:
        raise ParameterError("AUTH")
    return "" if decoded == "<>" else decoded


def _read_ret(value: str | None) -> Return:
    try:
        return _RETURNS[(value or "").upper()]
    except KeyError:
        raise ParameterError("RET") from None


def _read_envid(value: str | None) -> str:
    if not value or len(value) > MAX_ENVID:
        raise ParameterError("ENVID")
    return decode_xtext(value)


def _read_notify(value: str | None) -> frozenset[Notify]:
    words = (value or "").upper().split(",")
    try:
        read = frozenset(_NOTIFIES[word] for word in words)
    except KeyError:
        raise ParameterError("NOTIFY") from None
    # RFC 3461 §4.1: NEVER stands alone.
    if len(read) != len(words) or (Notify.NEVER in read and len(read) > 1):
        raise ParameterError("NOTIFY")
    return read


def _read_orcpt(value: str | None) -> tuple[str, str]:
    kind, semicolon, address = (value or "").partition(";")
    if not semicolon or not address or len(value or "") > MAX_ORCPT or _ADDRESS_TYPE.fullmatch(kind) is None:
        raise ParameterError("ORCPT")
    kind = kind.lower()
    return (kind, _utf8_address(address) if kind == "utf-8" else decode_xtext(address))


def _utf8_address(value: str) -> str:
    """RFC 6533 §3: xtext with `\\x{…}` for what is not ASCII, or the characters themselves under SMTPUTF8."""
    try:
        decoded = _EMBEDDED.sub(lambda found: chr(int(found.group(1), 16)), _HEXCHAR.sub(_hexchar, value))
    except (ValueError, OverflowError):
        raise ParameterError("ORCPT") from None
    if not decoded.isprintable():
        raise ParameterError("ORCPT")
    return decoded


def _hexchar(found: re.Match[str]) -> str:
    return chr(int(found.group(1), 16))


_Readers = Mapping[str, tuple[str, Callable[[str | None], Any]]]

# keyword -> (field of MailParameters or RcptParameters, reader of the value)
_MAIL_READERS: Final[_Readers] = {
    "SIZE": ("size", _read_size),
    "BODY": ("body", _read_body),
    "SMTPUTF8": ("smtputf8", _read_flag),
    "REQUIRETLS": ("requiretls", _read_flag),
    "AUTH": ("submitter", _read_submitter),
}
_MAIL_READERS_DSN: Final[_Readers] = {**_MAIL_READERS, "RET": ("ret", _read_ret), "ENVID": ("envid", _read_envid)}
_RCPT_READERS_DSN: Final[_Readers] = {"NOTIFY": ("notify", _read_notify), "ORCPT": ("orcpt", _read_orcpt)}


def _read(raw: bytes, readers: _Readers) -> dict[str, Any]:
    return {
        readers[keyword][0]: readers[keyword][1](value)
        for keyword, value in split_parameters(raw).items()
        if keyword in readers
    }


def mail_parameters(raw: bytes, *, dsn: bool = False) -> MailParameters:
    """Read the parameters of MAIL, those of DSN with `dsn`. Raises `ParameterError`."""
    if not raw:
        return NO_MAIL_PARAMETERS
    return MailParameters(**_read(raw, _MAIL_READERS_DSN if dsn else _MAIL_READERS))


def rcpt_parameters(raw: bytes, *, dsn: bool = False) -> RcptParameters:
    """Read the parameters of RCPT, all of which belong to DSN. Raises `ParameterError`."""
    if not raw:
        return NO_RCPT_PARAMETERS
    read = _read(raw, _RCPT_READERS_DSN if dsn else {})
    return RcptParameters(**read) if read else NO_RCPT_PARAMETERS
