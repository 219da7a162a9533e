"""Types of request fields: the scalars of the published contract (rest-api §6.1), strict, and safe to store.

Text from outside never holds U+0000, which the database cannot store, nor lone surrogates, which UTF-8 cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictStr,
    StringConstraints,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function

MAX_ADDRESS: Final = 254
ULID_CLASS: Final = "[0-9A-HJKMNP-TV-Z]{26}"
LABEL_PATTERN: Final = r"^[a-z0-9][a-z0-9_:-]{0,63}$"
MAX_TEXT: Final = 64 * 1024

_NAME: Final = re.compile(r"[a-z_]{1,32}(?:\.[a-z_]{1,32}){0,3}", re.ASCII)
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-]\d\d:\d\d))", re.ASCII)
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain U+0000")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("must not contain lone surrogates")
    return text


def _rfc3339(value: object) -> datetime:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be an RFC 3339 time with a time zone, such as 2026-10-01T12:00:00Z")
    day, time, fraction, _, offset = match.groups()
    micros = (fraction or "0")[:6].ljust(6, "0")
    try:
        moment = datetime.fromisoformat(f"{day}T{time}.{micros}{offset or '+00:00'}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError("is not a time that exists") from error
    # Times outside are no mail's: bounds that the database can hold mean the same.
    return min(max(moment, _EARLIEST), _LATEST)


def _address(value: str) -> str:
    local, at, domain = value.rpartition("@")
    if not (at and local and domain) or any(char.isspace() or char < " " for char in value):
        raise ValueError("must be an address, local-part@domain")
    return value


def _listed(value: object) -> object:
    """`a,b` as one query value, as the contract writes lists (form style, not exploded)."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        return [word for item in value for word in (item.split(",") if isinstance(item, str) else [item])]
    return value


def _unique(value: list[Any]) -> list[Any]:
    if len(set(value)) != len(value):
        raise ValueError("must not name anything twice")
    return value


class NotNull:
    """Makes `T | None` a field that may be left out but not be null: its default None stands for "not given"."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        inner: CoreSchema = schema["schema"] if schema["type"] == "nullable" else schema
        return inner


Storable = AfterValidator(_storable)
Text = Annotated[StrictStr, StringConstraints(max_length=MAX_TEXT), Storable]
QueryText = Annotated[str, StringConstraints(max_length=998), Storable]
Time = Annotated[datetime, BeforeValidator(_rfc3339)]
EmailAddress = Annotated[
    str,
    StringConstraints(max_length=MAX_ADDRESS),
    Storable,
    AfterValidator(_address),
    Field(json_schema_extra={"format": "email"}),
]
Label = Annotated[str, StringConstraints(pattern=LABEL_PATTERN)]
StrictLabel = Annotated[StrictStr, StringConstraints(pattern=LABEL_PATTERN)]
Cursor = Annotated[str, StringConstraints(min_length=1)]
Limit = Annotated[int, Field(ge=1, le=100)]
CommaList = BeforeValidator(_listed)
Unique = AfterValidator(_unique)
Flag = StrictBool


class OneOf:
    """Says of a name that is none of many which one it was, in place of all that there are. What is not written as
    such names are is not repeated: it may be anything.
    """

    def __init__(self, names: Iterable[str], what: str) -> None:
        self._names, self._what = frozenset(names), what

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if not isinstance(value, str) or value in self._names:
            return value
        given = f"{value} is" if _NAME.fullmatch(value) else "is"
        raise ValueError(f"{given} no {self._what}")


def id_pattern(prefix: str) -> StringConstraints:
    """The constraint of an id of one kind; `prefix` with its underscore."""
    return StringConstraints(pattern=f"^{prefix}{ULID_CLASS}$")


TenantId = Annotated[str, id_pattern("ten_")]
IdentityId = Annotated[str, id_pattern("idn_")]
AliasId = Annotated[str, id_pattern("als_")]
AddressId = Annotated[str, id_pattern("adr_")]
DomainId = Annotated[str, id_pattern("dom_")]
ThreadId = Annotated[str, id_pattern("thr_")]
MessageId = Annotated[str, id_pattern("msg_")]
FolderId = Annotated[str, id_pattern("fld_")]
AttachmentId = Annotated[str, id_pattern("att_")]
KeyId = Annotated[str, id_pattern("key_")]
PartnerId = Annotated[str, id_pattern("ptn_")]
PersonId = Annotated[str, id_pattern("usr_")]
InvitationId = Annotated[str, id_pattern("inv_")]
DlqItemId = Annotated[str, id_pattern("dlq_")]
SessionId = Annotated[str, id_pattern("ses_")]
DeviceId = Annotated[str, id_pattern("dev_")]
PasskeyId = Annotated[str, id_pattern("pky_")]
AppPasswordId = Annotated[str, id_pattern("apw_")]
WebhookId = Annotated[str, id_pattern("whk_")]
DeliveryId = Annotated[str, id_pattern("dlv_")]
EventId = Annotated[str, id_pattern("evt_")]
RequestId = Annotated[str, id_pattern("req_")]


class RequestBody(BaseModel):
    """A JSON object from outside. Members nobody knows are ignored, so that clients may be newer than the server."""

    model_config = ConfigDict(extra="ignore", frozen=True, regex_engine="rust-regex")


class Query(BaseModel):
    """Query parameters. Unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Answer(BaseModel):
    """A resource as it is documented. Answers are written without passing through it."""

    model_config = ConfigDict(frozen=True)
