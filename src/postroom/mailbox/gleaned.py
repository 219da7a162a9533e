"""What a message's text says beside its words: its language and the references in it (inbound.md §15, FR-SRCH-4).

Nothing that happens to a message on its way in depends on it, so it is made with the words, after the commit (B20), and
by whoever asks before that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from postroom.mail.language import language
from postroom.mail.refs import RefRules, extract
from postroom.mailbox.models import RefInfo

QUICK_CHARS: Final = 8 * 1024
"""A text up to which `glean` takes about a millisecond at most."""
MAX_CHARS: Final = 256 * 1024
"""Of a text that are looked at; whoever reads it for `glean` need not read more."""
_RULES: Final = RefRules()


@dataclass(frozen=True, slots=True)
class Gleaned:
    """`language` is a BCP 47 primary tag; None where it can't be told."""

    language: str | None
    refs: tuple[RefInfo, ...]


def glean(subject: str, text: str) -> Gleaned:
    """Read the text that is new in a message (`extracted_text`), and its subject."""
    found = extract((("subject", subject), ("body", text[:MAX_CHARS])), _RULES)
    return Gleaned(language(text), tuple(RefInfo(*ref) for ref in found))


async def glean_aside(subject: str, text: str) -> Gleaned:
    """`glean`, in a thread where the text is long."""
    return glean(subject, text) if len(text) <= QUICK_CHARS else await asyncio.to_thread(glean, subject, text)
