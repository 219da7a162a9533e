"""SEARCH FUZZY: what is like what was looked for (RFC 6203).

Words are alike by the trigrams that they share, as PostgreSQL counts them; every word that was asked for has to be like
one that is there, in any order. In texts the word index says so, which knows header and body together; until a message
is indexed it is found by what it holds as it stands. Keys that are not about text are met or not, FUZZY or not.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, Iterable
from functools import lru_cache
from typing import Final

from postroom.imap.search import Contains, TextField
from postroom.mail.envelope_reading import read_envelope, read_people
from postroom.mailbox.folding import fold
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.words import LIKE_ENOUGH
from postroom.servers.imap.facts import Facts
from postroom.servers.imap.results import FULL_SCORE
from postroom.servers.imap.session import Session

_MAX_WORDS: Final = 16
"""Words of a question that are looked at."""
_MAX_TEXT: Final = 2_000
"""Characters of a field that are looked at."""
_PORTION: Final = 500
"""Words that are compared in one go, in a few milliseconds."""
_WORD: Final = re.compile(r"\w+")
_PEOPLE: Final = {TextField.FROM: 0, TextField.TO: 1, TextField.CC: 2, TextField.BCC: 3}


async def similar_texts(session: Session, ref: MailboxRef, folder: FolderKey, text: str) -> dict[int, int]:
    """Messages of a folder with words like all those of `text`, and how well they fit: 1 to 99."""
    found: dict[int, float] | None = None
    asked = _words(text)
    for word in asked:
        scores = await session.shared.search.similar(ref, folder, word)
        found = scores if found is None else {uid: found[uid] + score for uid, score in scores.items() if uid in found}
    return {uid: min(_score(total, len(asked)), FULL_SCORE - 1) for uid, total in (found or {}).items()}


async def similar_fields(rows: AsyncIterable[tuple[int, Facts]], key: Contains) -> dict[int, int]:
    """Messages whose field, as ENVELOPE has it, is like what was asked for, and how well: 1 to 100."""
    needle, asked = fold(key.text), _words(key.text)
    found: dict[int, int] = {}
    done = 0
    async for uid, facts in rows:
        text = fold(_field(facts.envelope or b"", key.field)[:_MAX_TEXT])
        if needle in text:
            found[uid] = FULL_SCORE
        elif asked:
            there = set(_WORD.findall(text))
            best: list[float] = []
            for word in asked:
                best.append(max((_likeness(word, one) for one in there), default=0.0))
                done += len(there)
                if done >= _PORTION:
                    done = 0
                    await asyncio.sleep(0)
            if min(best) >= LIKE_ENOUGH:
                found[uid] = min(_score(sum(best), len(best)), FULL_SCORE)
        done += _PORTION // 20
        if done >= _PORTION:
            done = 0
            await asyncio.sleep(0)
    return found


def _words(text: str) -> list[str]:
    return _WORD.findall(fold(text))[:_MAX_WORDS]


def _score(total: float, count: int) -> int:
    return max(1, round(FULL_SCORE * total / count))


def _field(envelope: bytes, field: TextField) -> str:
    if field is TextField.SUBJECT:
        return read_envelope(envelope).subject
    people = read_people(envelope)[_PEOPLE[field]]
    return " ".join(_joined((one.name, one.local, one.domain)) for one in people)


def _joined(parts: Iterable[str]) -> str:
    return " ".join(filter(None, parts))


def _likeness(left: str, right: str) -> float:
    """Trigrams in common by all of both, as `similarity` of pg_trgm does it for one word."""
    if left == right:
        return 1.0
    ours, theirs = _trigrams(left), _trigrams(right)
    common = len(ours & theirs)
    return common / (len(ours) + len(theirs) - common)


@lru_cache(maxsize=20_000)
def _trigrams(word: str) -> frozenset[str]:
    padded = f"  {word[:64]} "
    return frozenset(padded[at : at + 3] for at in range(len(padded) - 2))
