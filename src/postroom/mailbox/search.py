"""Questions about the messages of one folder, each answered by the UIDs that meet it (mail-server D7).

A query is a tree of such questions; whoever asks combines the answers. Statements are fixed and take parameters only.
Texts are compared folded (`folding.fold`): what the database cannot decide exactly it hands out, to be decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import date, datetime
from enum import Enum
from typing import Final

from postroom.db import Database
from postroom.mailbox import words
from postroom.mailbox.folding import fold
from postroom.mailbox.models import FolderKey, MailboxRef

PAGE: Final = 100
"""Texts read at a time, at the most."""
PAGE_BYTES: Final = 2 * 1024 * 1024
"""Octets of them; one text alone may have more (D5: half a MiB of characters)."""
_SIZES_PAGE: Final = 1_000
_LONG: Final = 16_384
"""Characters of a text that takes a millisecond to look through, so that others have their turn after it."""

# $1 tenant, $2 mailbox, $3 folder
_PLACEMENTS: Final = """
SELECT array_agg(p.uid) FROM placements p
WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND p.folder_id = $3 AND
"""
_MESSAGES: Final = """
SELECT array_agg(p.uid) FROM placements p JOIN messages m ON m.tenant_id = p.tenant_id AND m.id = p.message_id
WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND p.folder_id = $3 AND
"""
_INTERNAL_DAY: Final = "(p.internal_date AT TIME ZONE 'UTC')::date"
_SAVED_DAY: Final = "(p.saved_at AT TIME ZONE 'UTC')::date"
_IN_THREAD: Final = """
m.thread_seq = (SELECT t.seq FROM threads t WHERE t.tenant_id = $1 AND t.mailbox_id = $2 AND t.public_id = $4::text)
"""


class Question(Enum):
    """A question that the database answers alone: its value is the statement, `$4` the argument."""

    LARGER = _PLACEMENTS + "p.size > $4::bigint"
    SMALLER = _PLACEMENTS + "p.size < $4::bigint"
    INTERNAL_BEFORE = _PLACEMENTS + f"{_INTERNAL_DAY} < $4::date"
    INTERNAL_ON = _PLACEMENTS + f"{_INTERNAL_DAY} = $4::date"
    INTERNAL_SINCE = _PLACEMENTS + f"{_INTERNAL_DAY} >= $4::date"
    SAVED_BEFORE = _PLACEMENTS + f"{_SAVED_DAY} < $4::date"
    SAVED_ON = _PLACEMENTS + f"{_SAVED_DAY} = $4::date"
    SAVED_SINCE = _PLACEMENTS + f"{_SAVED_DAY} >= $4::date"
    OLDER = _PLACEMENTS + "p.internal_date <= $4::timestamptz"
    YOUNGER = _PLACEMENTS + "p.internal_date >= $4::timestamptz"
    EMAIL_ID = _MESSAGES + "m.public_id = $4::text"
    THREAD_ID = _MESSAGES + _IN_THREAD
    SUBJECT = _MESSAGES + "position($4::text in m.subject_fold) > 0"


_OF_CANDIDATES: Final = _PLACEMENTS + "p.message_id = ANY ($4::bigint[])"

MAX_CANDIDATES: Final = 100_000
"""Beyond this many reading the folder is no more work than naming them."""

# Similar words are few, and each is one look into the index.
_SIMILAR: Final = """
SELECT p.uid, max(s.score) AS score
FROM unnest($4::text[], $5::real[]) AS s (lexeme, score)
JOIN message_words w ON w.tenant_id = $1 AND w.mailbox_id = $2 AND w.words @@ s.lexeme::tsquery
JOIN placements p ON p.tenant_id = $1 AND p.message_id = w.message_id
WHERE p.mailbox_id = $2 AND p.folder_id = $3
GROUP BY p.uid
"""

# Without reading them: the size stands beside a value that is kept elsewhere.
_SIZES: Final = """
SELECT p.uid, t.size FROM placements p
JOIN LATERAL (
  SELECT octet_length(t.text) AS size FROM message_texts t
  WHERE t.tenant_id = $1 AND t.message_id = p.message_id OFFSET 0
) t ON t.size > 0
WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND p.folder_id = $3 AND p.uid = ANY ($4::bigint[])
ORDER BY p.uid
"""

_TEXTS: Final = """
SELECT p.uid, CASE WHEN t.plain THEN NULL ELSE t.text END AS text
FROM (
  SELECT p.uid, p.message_id FROM placements p
  WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND p.folder_id = $3 AND p.uid = ANY ($4::bigint[])
) p
JOIN LATERAL (
  SELECT t.text, octet_length(t.text) = char_length(t.text) AS plain FROM message_texts t
  WHERE t.tenant_id = $1 AND t.message_id = p.message_id OFFSET 0
) t ON CASE WHEN t.plain THEN $6 AND position($5::text in lower(t.text)) > 0 ELSE true END
ORDER BY p.uid
"""


class FolderSearch:
    """Answers about folders, each from one short statement or a few pages of one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def test(
        self, ref: MailboxRef, folder_id: FolderKey, question: Question, argument: int | str | date | datetime
    ) -> frozenset[int]:
        """The UIDs of a folder that meet `question`. A text argument is folded by the caller."""
        async with self._database.acquire() as conn:
            found = await conn.fetchval(question.value, ref.tenant_id, ref.mailbox_id, folder_id, argument)
        return frozenset(found or ())

    async def candidates(self, ref: MailboxRef, folder_id: FolderKey, needle: str) -> frozenset[int] | None:
        """The UIDs of a folder whose messages may hold `needle` in their header or text, none left out; None when the
        word index can't tell them from the rest. The caller verifies.
        """
        async with self._database.acquire() as conn:
            messages = await words.candidates(conn, ref, needle)
            if messages is None or len(messages) > MAX_CANDIDATES:
                return None
            found = await conn.fetchval(_OF_CANDIDATES, ref.tenant_id, ref.mailbox_id, folder_id, sorted(messages))
        return frozenset(found or ())

    async def similar(self, ref: MailboxRef, folder_id: FolderKey, word: str) -> dict[int, float]:
        """The UIDs of a folder whose indexed words have one like `word` (folded), and how like it is, from 0 to 1.

        What is not indexed yet is not among them.
        """
        async with self._database.acquire() as conn:
            near = await words.similar(conn, word)
            if not near:
                return {}
            lexemes, scores = [words.lexeme(one) for one in near], list(near.values())
            rows = await conn.fetch(_SIMILAR, ref.tenant_id, ref.mailbox_id, folder_id, lexemes, scores)
        return {row["uid"]: row["score"] for row in rows}

    async def in_text(
        self, ref: MailboxRef, folder_id: FolderKey, needle: str, uids: Sequence[int]
    ) -> AsyncIterator[list[int]]:
        """Those of `uids` (ascending) whose body text holds `needle`, a page at a time.

        ASCII texts are decided by the database, others here, for only here is folding complete.
        """
        folded = fold(needle)
        async for page in self._pages(ref, folder_id, uids):
            async with self._database.acquire() as conn:
                rows = await conn.fetch(
                    _TEXTS, ref.tenant_id, ref.mailbox_id, folder_id, page, folded, folded.isascii()
                )
            found: list[int] = []
            for row in rows:
                text = row["text"]
                if text is None or folded in fold(text):
                    found.append(row["uid"])
                if text is not None and len(text) > _LONG:
                    await asyncio.sleep(0)
            yield found

    async def _pages(self, ref: MailboxRef, folder_id: FolderKey, uids: Sequence[int]) -> AsyncIterator[list[int]]:
        """Those of `uids` that have a text, as many at a time as may be in memory together."""
        for start in range(0, len(uids), _SIZES_PAGE):
            async with self._database.acquire() as conn:
                rows = await conn.fetch(
                    _SIZES, ref.tenant_id, ref.mailbox_id, folder_id, uids[start : start + _SIZES_PAGE]
                )
            page: list[int] = []
            octets = 0
            for row in rows:
                if page and (len(page) >= PAGE or octets + row["size"] > PAGE_BYTES):
                    yield page
                    page, octets = [], 0
                page.append(row["uid"])
                octets += row["size"]
            if page:
                yield page
