"""The word index (B20): made after the commit, in batches, so that a delivery never pays for it.

A *word* is a run of letters, digits and underscores of the folded text. Each message has the set of its words in
`message_words`; each word of the deployment stands once in `lexicon`, where trigrams find the words that hold a given
piece. So a substring becomes words, the words become messages, and the caller verifies on the text. What is not indexed
yet, and what could not be indexed completely, is always among the candidates: a message is findable from the moment it
is stored.

What else the text says, its language and references, is found with the words (`gleaned`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.blobs.store import Span, StorageError
from postroom.db import errors as db_errors
from postroom.db.claim import Claim, ClaimQueue, ClaimSpec, Finish
from postroom.db.pool import Connection, Database
from postroom.mail.header import Headers
from postroom.mailbox.folding import fold
from postroom.mailbox.gleaned import Gleaned, glean_aside
from postroom.mailbox.models import MailboxRef

log = base_log.get("words")

MAX_WORD: Final = 255
"""Characters of a word that is indexed; a longer run makes the message's words incomplete."""
MAX_WORDS: Final = 20_000
"""Distinct words of one message."""
MAX_WORDS_BYTES: Final = 900_000
"""Octets of them all: PostgreSQL refuses a tsvector of more than 1 MiB."""
MAX_EXPANSION: Final = 2_000
"""Words that a piece may stand for before asking the index costs more than reading the texts."""
MIN_PIECE: Final = 3
"""Characters below which trigrams select nothing."""
LIKE_ENOUGH: Final = 0.4
"""Share of trigrams that two words have in common when one is taken for the other: one letter more, less or another."""
MAX_SIMILAR: Final = 64
MAX_KNOWN: Final = 200_000
RETRY_AFTER: Final = timedelta(minutes=1)
MAX_LAG_SECONDS: Final = 8.0
"""How long the words of a burst wait for its end. Indexing takes a quarter of all the work for a message."""
QUIET_SECONDS: Final = 0.1
"""Without new mail for so long, a burst is over."""
_PORTION: Final = 256
"""Messages whose texts are held in memory, and whose words are written, at a time."""
MAX_HEADER: Final = 64 * 1024
"""Octets of a header that are indexed; a longer one makes the message's words incomplete."""
_SLICE: Final = 4
"""Messages whose texts are read in one go of the loop, about a millisecond."""

QUEUE: Final = ClaimQueue(
    ClaimSpec(
        table="word_tasks",
        keys={"id": "bigint"},
        values=("tenant_id", "mailbox_id", "first_id", "last_id"),
        lease=timedelta(seconds=60),
        max_attempts=5,
        finish=Finish.DELETE,
    )
)

_WORD: Final = re.compile(rf"\w{{{MIN_PIECE},}}")
_MACHINE_MADE: Final = frozenset(
    (
        *("received", "x-received", "return-path", "received-spf", "authentication-results", "content-type"),
        *(
            "message-id",
            "in-reply-to",
            "references",
            "dkim-signature",
            "domainkey-signature",
            "x-google-dkim-signature",
        ),
        *("arc-seal", "arc-message-signature", "arc-authentication-results", "x-gm-message-state"),
    )
)
_HEADER_END: Final = re.compile(rb"\n\r?\n|\A\r?\n")

ReadSpans = Callable[[Sequence[Span]], Awaitable[Sequence[bytes | StorageError]]]
"""Reads the beginnings of raw messages: `BlobStore.get_many`."""

# What a relay passes on is nobody's to search.
_MESSAGES: Final = """
SELECT m.tenant_id, m.mailbox_id, m.id, m.blob_key, m.subject, m.from_name, m.from_address, x.text,
       coalesce(x.extracted_text, x.text) AS new_text,
       (SELECT string_agg(r.address || ' ' || r.name, ' ') FROM recipients r
        WHERE r.tenant_id = m.tenant_id AND r.message_id = m.id) AS recipients,
       (SELECT string_agg(a.filename, ' ') FROM attachments a
        WHERE a.tenant_id = m.tenant_id AND a.message_id = m.id) AS filenames
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS k (tenant_id, mailbox_id, first_id, last_id)
JOIN LATERAL (
  SELECT * FROM messages m
  WHERE m.tenant_id = k.tenant_id AND m.id BETWEEN k.first_id AND k.last_id AND m.mailbox_id = k.mailbox_id
) m ON true
JOIN message_texts x ON x.tenant_id = m.tenant_id AND x.message_id = m.id
WHERE NOT EXISTS (
  SELECT FROM identities i WHERE i.tenant_id = k.tenant_id AND i.id = k.mailbox_id AND i.kind = 'relay')
"""

_TEXT_COLUMNS: Final = ("subject", "from_name", "from_address", "recipients", "filenames", "text")

_INSERT: Final = """
INSERT INTO message_words (tenant_id, mailbox_id, message_id, words, complete, language, gleaned)
SELECT u.tenant_id, u.mailbox_id, u.message_id, array_to_tsvector(string_to_array(u.words, ' ')), u.complete,
       u.language, true
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bool[], $6::text[])
     AS u (tenant_id, mailbox_id, message_id, words, complete, language)
WHERE EXISTS (SELECT FROM messages m WHERE m.tenant_id = u.tenant_id AND m.id = u.message_id FOR KEY SHARE)
ON CONFLICT (tenant_id, message_id) DO NOTHING
"""

_INSERT_REFS: Final = """
INSERT INTO refs (tenant_id, mailbox_id, message_id, kind, value, source)
SELECT u.tenant_id, u.mailbox_id, u.message_id, u.kind, u.value, u.source
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[])
     AS u (tenant_id, mailbox_id, message_id, kind, value, source)
WHERE EXISTS (SELECT FROM messages m WHERE m.tenant_id = u.tenant_id AND m.id = u.message_id FOR KEY SHARE)
ON CONFLICT DO NOTHING
"""

_LEARN: Final = "INSERT INTO lexicon (word) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"

_SETTLE: Final = "SELECT gin_clean_pending_list('message_words_words'), gin_clean_pending_list('lexicon_trigrams')"

_EXPAND: Final = "SELECT word FROM lexicon WHERE word LIKE $1 LIMIT $2"

_NEAR: Final = """
SELECT word, similarity(word, $1) AS score FROM lexicon WHERE word % $1 ORDER BY score DESC, word LIMIT $2
"""

_FIND: Final = """
SELECT message_id FROM message_words WHERE tenant_id = $1 AND mailbox_id = $2 AND words @@ $3::tsquery
"""

_ALWAYS: Final = """
SELECT message_id FROM message_words WHERE tenant_id = $1 AND mailbox_id = $2 AND NOT complete
UNION ALL
SELECT m.id AS message_id FROM word_tasks t JOIN messages m
  ON m.tenant_id = t.tenant_id AND m.mailbox_id = t.mailbox_id AND m.id BETWEEN t.first_id AND t.last_id
WHERE t.tenant_id = $1 AND t.mailbox_id = $2
"""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text; `complete` is False when some had to be left out."""

    words: frozenset[str]
    complete: bool


def words_of(texts: Iterable[str | None]) -> Words:
    """The distinct words of the folded texts that queries can ask for: shorter ones than `MIN_PIECE` they cannot."""
    found = set(_WORD.findall(fold("\n".join(filter(None, texts)))))
    kept = found
    if max(map(len, found), default=0) > MAX_WORD:
        kept = {word for word in found if len(word) <= MAX_WORD}
    if len(kept) > MAX_WORDS:
        kept = set(sorted(kept)[:MAX_WORDS])
    if len(kept) * MAX_WORD * 4 > MAX_WORDS_BYTES:
        kept = set(_fitting(kept, MAX_WORDS_BYTES))
    return Words(frozenset(kept), len(kept) == len(found))


def _fitting(words: Iterable[str], limit: int) -> Iterator[str]:
    """As many of the words, in order, as have `limit` octets together."""
    for word in sorted(words):
        limit -= len(word.encode())
        if limit < 0:
            return
        yield word


def pieces_of(needle: str) -> list[str]:
    """The runs of word characters in a folded needle that are long enough for the lexicon."""
    return [piece for piece in _WORD.findall(fold(needle)) if len(piece) <= MAX_WORD]


async def candidates(conn: Connection, ref: MailboxRef, needle: str) -> frozenset[int] | None:
    """Keys of the messages that may hold `needle` in a header field, a file name or the text, no matter the case.

    None: the index can't narrow it (too short, or too common a piece), so every message is a candidate. Every message
    that does hold it is among the candidates; the caller verifies.
    """
    pieces = pieces_of(needle)
    if not pieces:
        return None
    # First of all, so that a message which is indexed meanwhile is found here or by its words, and never falls between.
    found = {row["message_id"] for row in await conn.fetch(_ALWAYS, ref.tenant_id, ref.mailbox_id)}
    clauses: list[str] = []
    for piece in pieces:
        like = "%" + piece.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = await conn.fetch(_EXPAND, like, MAX_EXPANSION + 1)
        if len(rows) > MAX_EXPANSION:
            continue
        if not rows:
            # A piece in no word at all: only what is not or not wholly indexed can hold it.
            return frozenset(found)
        clauses.append("(" + " | ".join(lexeme(row["word"]) for row in rows) + ")")
    if not clauses:
        return None
    rows = await conn.fetch(_FIND, ref.tenant_id, ref.mailbox_id, " & ".join(clauses))
    return frozenset(found.union(row["message_id"] for row in rows))


async def similar(conn: Connection, word: str) -> dict[str, float]:
    """Words of the lexicon that are like `word` (folded) by their trigrams, at least as much as `LIKE_ENOUGH`.

    The lexicon is everybody's: what it says is for finding messages by, never to be shown.
    """
    if len(word) < MIN_PIECE or len(word) > MAX_WORD:
        return {}
    rows = await conn.fetch(_NEAR, word, MAX_SIMILAR)
    return {row["word"]: row["score"] for row in rows if row["score"] >= LIKE_ENOUGH}


def lexeme(word: str) -> str:
    """A quoted lexeme of a tsquery: raw text never reaches its parser (F1)."""
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


class WordIndexer:
    """Claims word tasks and does them. Any number may run on any number of nodes.

    `quiet_for` says for how many seconds no mail has come in: a burst has the machine to itself for `MAX_LAG_SECONDS`,
    while queries read its texts; then all of the backlog is done, burst or not.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        read_spans: ReadSpans,
        *,
        batch: int = 256,
        idle_seconds: float = 1.0,
        quiet_for: Callable[[], float] = lambda: QUIET_SECONDS,
    ) -> None:
        self._database = database
        self._clock = clock
        self._read_spans = read_spans
        self._batch = batch
        self._idle_seconds = idle_seconds
        self._quiet_for = quiet_for
        self._wanted = asyncio.Event()
        self._dirty = True
        self._known: set[str] = set()

    def wake(self) -> None:
        """There is work: called after a commit."""
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled. Waits a moment after being woken, so that a flood is indexed in batches."""
        while True:
            try:
                done = await self.run_once()
                if done:
                    self._dirty = True
                elif self._dirty:
                    await self._settle()
            except Exception as error:
                if not db_errors.is_transient(error):
                    raise
                log.warning("indexing_interrupted", error=type(error).__name__)
                done = 0
            if done >= self._batch:
                continue
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._idle_seconds if done else self._idle_seconds * 10)
                await asyncio.sleep(self._idle_seconds / 4)
            await self._give_way()

    async def _give_way(self) -> None:
        """Wait for the end of a burst, for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_LAG_SECONDS
        quiet = self._quiet_for()
        while quiet < QUIET_SECONDS and loop.time() < until:
            await asyncio.sleep(QUIET_SECONDS - quiet)
            quiet = self._quiet_for()

    async def _settle(self) -> None:
        """Merge what the indexes still hold as lists, now that nothing else is to be done: queries would read them."""
        async with self._database.acquire() as conn:
            await conn.execute(_SETTLE)
        self._dirty = False

    async def run_once(self) -> int:
        """Claim and do one batch; the number of tasks claimed."""
        now = self._clock.now()
        async with self._database.acquire() as conn:
            batch = await QUEUE.claim(conn, now=now, limit=self._batch)
        if not batch.claims:
            return 0
        for portion in _portions(batch.claims):
            try:
                await self._index(portion)
            except Exception as error:
                if db_errors.is_transient(error):
                    raise
                for claim in portion:
                    await self._index_alone(claim)
        return len(batch.claims)

    async def _index_alone(self, claim: Claim) -> None:
        """One task apart from its neighbours, which need not suffer for it: later again, parked in the end."""
        try:
            await self._index([claim])
        except Exception as error:
            if db_errors.is_transient(error):
                raise
            log.error("indexing_failed", task=claim.key[0], error=type(error).__name__)
            now = self._clock.now()
            async with self._database.acquire() as conn:
                await QUEUE.retry(conn, claim, now=now, at=now + RETRY_AFTER, error=type(error).__name__)

    async def _index(self, claims: Sequence[Claim]) -> None:
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_MESSAGES, *_columns(claims))
        indexed: list[tuple[int, int, int, str, bool, str | None]] = []
        refs: list[tuple[int, int, int, str, str, str]] = []
        fresh: set[str] = set()
        headers = await self._read_spans([Span(row["blob_key"], 0, MAX_HEADER) for row in rows])
        for start in range(0, len(rows), _SLICE):
            for row, head in zip(rows[start : start + _SLICE], headers[start : start + _SLICE], strict=True):
                fields, whole = header_texts(head)
                words = words_of((*fields, *(row[column] for column in _TEXT_COLUMNS)))
                fresh |= words.words - self._known
                key = (row["tenant_id"], row["mailbox_id"], row["id"])
                gleaned = await _gleaned(row["subject"], row["new_text"])
                found = " ".join(words.words)
                indexed.append((*key, found, words.complete and whole, gleaned.language))
                refs += ((*key, ref.kind, ref.value, ref.source) for ref in gleaned.refs)
            await asyncio.sleep(0)
        async with self._database.transaction() as conn:
            if fresh:
                # In order, so that two indexers never wait for each other in a circle.
                await conn.execute(_LEARN, sorted(fresh))
            if indexed:
                await conn.execute(_INSERT, *zip(*indexed, strict=True))
            if refs:
                await conn.execute(_INSERT_REFS, *zip(*refs, strict=True))
            await QUEUE.finish(conn, claims)
        self._learn(fresh)

    def _learn(self, words: set[str]) -> None:
        if len(self._known) + len(words) > MAX_KNOWN:
            self._known.clear()
        self._known |= words


async def _gleaned(subject: str, text: str) -> Gleaned:
    try:
        return await glean_aside(subject, text)
    except Exception as error:  # noqa: BLE001 - what fails in reading a text costs what it says, never its words
        log.error("gleaning_failed", error=type(error).__name__)
        return Gleaned(None, ())


def is_machine_made(field: str) -> bool:
    """Whether a header field is machines talking to machines: nearly every word of it is new, and nobody looks for it.

    Such fields are not indexed, and a search of the whole text passes them over; asked for by name they are read.
    """
    return field.lower() in _MACHINE_MADE


def header_texts(start: bytes | StorageError) -> tuple[list[str], bool]:
    """The fields of the header that a raw message starts with, decoded; False when it is not all there."""
    if isinstance(start, StorageError):
        return [], False
    end = _HEADER_END.search(start)
    if end is None and len(start) >= MAX_HEADER:
        return [], False
    headers = Headers.parse(start[: end.end()] if end else start)
    return [f"{name}: {value}" for name, value in headers if not is_machine_made(name)], True


def _portions(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    """The claims by as many as cover no more than `_PORTION` messages, or one that covers more."""
    portion: list[Claim] = []
    covered = 0
    for claim in claims:
        span = claim.values["last_id"] - claim.values["first_id"] + 1
        if portion and covered + span > _PORTION:
            yield portion
            portion, covered = [], 0
        portion.append(claim)
        covered += span
    if portion:
        yield portion


def _columns(claims: Sequence[Claim]) -> list[list[int]]:
    return [[claim.values[name] for claim in claims] for name in ("tenant_id", "mailbox_id", "first_id", "last_id")]
