"""JSON into models and back, from the annotations of the models.

What is not known is passed over (members) or kept as it is (values of enumerations): a newer server may say more. What
is known and wrong is refused, with the place and never the value.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self, Union, get_args, get_origin, get_type_hints

from .errors import DecodeError

Decoder = Callable[[Any, str], Any]

_ID: Final = re.compile(r"[a-z]{2,4}_[0-9A-HJKMNP-TV-Z]{26}", re.ASCII)

_MADE: Final[dict[type[Any], Callable[[Any, str], Any]]] = {}


def named(name: str) -> dict[str, str]:
    """Metadata of a field whose member in JSON has another name."""
    return {"name": name}


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Model:
    """What the server answers. The text of a model shows ids alone: the rest is content, addresses or secrets."""

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """From parsed JSON. Raises DecodeError."""
        return _model(cls)(value, cls.__name__)  # type: ignore[no-any-return]  # decoders of all types are one

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it. Members that may be left out and are None are left out."""
        made: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is dataclasses.MISSING:
                made[field.metadata.get("name", field.name)] = _encode(value)
        return made

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if field.name == "id" or field.name.endswith("_id")
            if isinstance(value := getattr(self, field.name), str) and _ID.fullmatch(value)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _encode(value: Any) -> Any:
    if isinstance(value, Model):
        return value.to_dict()
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, (tuple, list)):
        return [_encode(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _encode(one) for name, one in value.items()}
    return value


def timestamp(value: datetime) -> str:
    """RFC 3339 in UTC. Raises ValueError for a time without a zone."""
    if value.tzinfo is None:
        raise ValueError("a time needs a zone: datetime.now(UTC), not datetime.now()")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _model(cls: type[Model]) -> Decoder:
    decoder = _MADE.get(cls)
    if decoder is None:
        decoder = _MADE[cls] = _make(cls)
    return decoder


def _make(cls: type[Model]) -> Decoder:
    hints = get_type_hints(cls)
    members = [
        (field.name, field.metadata.get("name", field.name), _decoder(hints[field.name]), field.default)
        for field in dataclasses.fields(cls)
    ]

    def decode(value: Any, path: str) -> Model:
        if not isinstance(value, dict):
            raise _wrong(path, "an object")
        made: dict[str, Any] = {}
        for name, member, decoder, default in members:
            if member in value:
                if value[member] is None and default is None:
                    continue
                made[name] = decoder(value[member], f"{path}.{member}")
            elif default is dataclasses.MISSING:
                raise DecodeError(f"the answer lacks {path}.{member}")
        return cls(**made)

    return decode


def _decoder(hint: Any) -> Decoder:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either([_decoder(one) for one in arguments])
    if origin is Literal:
        return _string  # values that are not known yet come as they are
    if origin is tuple:
        return _list(_decoder(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_decoder(arguments[1]))
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, type) and issubclass(hint, Model):
        # Looked up when it is needed: a model may hold others of its own kind.
        return lambda value, path: _model(hint)(value, path)
    raise TypeError(f"no decoder for {hint!r}")


def _either(options: list[Decoder]) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        failure: DecodeError | None = None
        for option in options:
            try:
                return option(value, path)
            except DecodeError as error:
                # Where the value is an object the model's own complaint says more than that it is not null.
                failure = failure or error
        raise failure or _wrong(path, "something else")

    return decode


def _list(item: Decoder) -> Decoder:
    def decode(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(path, "a list")
        return tuple(item(one, f"{path}[{index}]") for index, one in enumerate(value))

    return decode


def _mapping(item: Decoder) -> Decoder:
    def decode(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(path, "an object")
        return {name: item(one, f"{path}.*") for name, one in value.items()}

    return decode


def _wrong(path: str, wanted: str) -> DecodeError:
    return DecodeError(f"{path} of the answer is not {wanted}")


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, "text")
    return value


def _integer(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise _wrong(path, "a whole number")
    return int(value)


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(path, "a number")
    return value


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, "true or false")
    return value


def _time(value: Any, path: str) -> datetime:
    try:
        found = datetime.fromisoformat(_string(value, path))
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise _wrong(path, "a time with its zone")
    return found


def _nothing(value: Any, path: str) -> None:
    if value is not None:
        raise _wrong(path, "null")


_SIMPLE: Final[Mapping[Any, Decoder]] = {
    str: _string,
    int: _integer,
    float: _number,
    bool: _boolean,
    datetime: _time,
    type(None): _nothing,
    Any: lambda value, path: value,
}
