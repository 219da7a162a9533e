"""The base subject by which SORT and THREAD compare (RFC 5256 §2.1).

Its rules are the RFC's own, so that all servers and offline clients agree; `postroom.mail.subject` knows more languages
and is for display.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_WHITE: Final = re.compile(r"[\t\r\n ]+")
_FORWARDED: Final = "(fwd)"
_WRAPPED: Final = "[fwd:"
# Possessive: what a run left behind can begin no other match.
_BLOB: Final = r"\[[^\[\]]*+\] *+"
_BLOBS: Final = re.compile(rf"(?:{_BLOB})*+").match
_REPLY: Final = re.compile(rf"(?:re|fwd?) *+(?:{_BLOB})?:", re.IGNORECASE).match


class BaseSubject(NamedTuple):
    """What is left of a subject, and whether what went says that the message is a reply or was forwarded."""

    text: str
    is_reply: bool


def base_subject(subject: str) -> BaseSubject:
    """The base subject of `subject`, whose encoded words are decoded already (step 1 of the RFC's seven).

    Takes time in proportion to its length.
    """
    text = _WHITE.sub(" ", subject)
    start, end = 0, len(text)
    is_reply = False
    while True:
        trimmed = _without_trailers(text, start, end)
        is_reply = is_reply or "(" in text[trimmed:end]
        end = trimmed
        start, replied = _without_leaders(text, start, end)
        is_reply = is_reply or replied
        if not (text[end - 1 : end] == "]" and text[start : min(start + 5, end - 1)].lower() == _WRAPPED):
            return BaseSubject(text[start:end], is_reply)
        start, end, is_reply = start + 5, end - 1, True


def _without_trailers(text: str, start: int, end: int) -> int:
    """Where the text ends without blanks and ``(fwd)`` (step 2)."""
    while end > start:
        if text[end - 1] == " ":
            end -= 1
        elif text[end - 1] == ")" and text[max(start, end - 5) : end].lower() == _FORWARDED:
            end -= 5
        else:
            break
    return end


def _without_leaders(text: str, start: int, end: int) -> tuple[int, bool]:
    """Where the text begins without blanks, ``re:`` and its like, and ``[blobs]`` unless one is all there is; whether
    there was a ``re:`` (steps 3 to 5).
    """
    replied = False
    while start < end:
        if text[start] == " ":
            start += 1
            continue
        blobs = _BLOBS(text, start, end)
        after = start if blobs is None else blobs.end()
        reply = _REPLY(text, after, end)
        if reply is None:
            return (after if after < end else text.rfind("[", start, end)), replied
        start, replied = reply.end(), True
    return start, replied
