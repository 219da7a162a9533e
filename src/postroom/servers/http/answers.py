"""Answers in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

_MEDIA = "application/json; charset=utf-8"


class JsonAnswer(Response):
    """A JSON body, serialised once."""

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else orjson.dumps(content)
        super().__init__(body, status_code=status, headers=headers, media_type=_MEDIA)


def page(items: list[dict[str, Any]], next_cursor: str | None) -> JsonAnswer:
    """A page of a list (rest-api §2.4)."""
    return JsonAnswer({"data": items, "next_cursor": next_cursor})
