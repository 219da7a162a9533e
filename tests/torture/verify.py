"""The check after a restart: the database, the blobs and IMAP against the ledger and against one another."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from postroom.blobs import layout
from postroom.db import Connection
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.words import candidates
from tests.torture.clients import Answer, Imap, Lost
from tests.torture.deployment import Deployment
from tests.torture.invariants import INVARIANTS
from tests.torture.ledger import Flags, Ledger, Place, Places
from tests.torture.letters import Letter

QUIET_SECONDS: Final = 60.0
INDEX_SECONDS: Final = 150.0
"""A killed indexer's claims are free again after their lease of 60 s."""
SAMPLE: Final = 60
_POLL: Final = 0.5
_UID: Final = re.compile(rb"UID (\d+)")
_FLAGS: Final = re.compile(rb"FLAGS \(([^)]*)\)")
_SIZE: Final = re.compile(rb"RFC822\.SIZE (\d+)")
_MESSAGE_ID: Final = re.compile(rb"(?im)^message-id:\s*<([^>\r\n]+)>")
_SYSTEM: Final = {"\\seen", "\\answered", "\\flagged", "\\deleted", "\\draft"}

_BUSY: Final = """
SELECT (SELECT sum(change_seq) FROM mailboxes) AS changes,
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_xid IS NOT NULL) AS writing
"""
_STANDING: Final = """
SELECT m.mailbox_id, m.rfc_message_id, m.public_id, m.id, m.source, m.blob_key, m.raw_size, m.raw_prefix_len,
       m.raw_sha256, f.id AS folder_id, f.name AS folder, f.uid_validity, p.uid, p.flags
FROM messages m
LEFT JOIN placements p ON p.tenant_id = m.tenant_id AND p.message_id = m.id
LEFT JOIN folders f ON f.tenant_id = p.tenant_id AND f.id = p.folder_id
ORDER BY m.id, f.id, p.uid
"""


@dataclass(slots=True)
class Stored:
    """A message row with its placements."""

    box: int
    message_id: str
    public_id: str
    key: int
    source: str
    blob_key: str
    size: int
    prefix_len: int
    sha256: bytes
    places: Places


@dataclass(slots=True)
class Counts:
    """For the line that is printed."""

    messages: int = 0
    blobs: int = 0
    waste: int = 0
    unindexed: int = 0


class Verifier:
    """Keeps what it saw in earlier rounds, so that later ones are compared with it."""

    def __init__(self, deployment: Deployment, ledger: Ledger) -> None:
        self._deployment = deployment
        self._ledger = ledger
        self._boxes = {box.key: at for at, box in enumerate(deployment.boxes)}
        self._blobs_seen: set[str] = set()
        self._tops: dict[tuple[int, str], int] = {}
        self._validities: dict[tuple[int, str], int] = {}
        self._imap_top: dict[tuple[int, str], int] = {}

    async def check(self, rng: random.Random, *, thorough: bool = False) -> tuple[list[str], Counts]:
        """Every fault found, in words, and what was counted. `thorough` reads every blob and every folder again."""
        counts = Counts()
        conn = await self._deployment.postgres.connect()
        try:
            await self._quiet(conn)
            async with conn.transaction(isolation="repeatable_read", readonly=True):
                faults = [fault async for fault in broken(conn)]
                standing = self._standing(await conn.fetch(_STANDING))
                counts.unindexed = await conn.fetchval("SELECT count(*) FROM word_tasks")
            counts.messages = len(standing)
            faults += self._letters(standing)
            faults += self._documents(standing)
            faults += self._marks(standing)
            faults += self._uids(standing)
            faults += await asyncio.to_thread(self._blobs, standing, thorough, counts)
            faults += await self._words(conn, standing, rng)
            faults += await self._over_imap(standing, thorough)
            faults += self._ledger.faults
            self._ledger.faults = []
        finally:
            await conn.close(timeout=10)
        return faults, counts

    async def indexed(self) -> list[str]:
        """Wait until the word index has caught up."""
        conn = await self._deployment.postgres.connect()
        try:
            for _ in range(round(INDEX_SECONDS / _POLL)):
                left = await conn.fetchval("SELECT count(*) FROM word_tasks")
                if not left:
                    break
                await asyncio.sleep(_POLL)
            else:
                rows = await conn.fetch("SELECT id, attempts, lease_until, parked_at FROM word_tasks LIMIT 3")
                return [f"word index: {left} tasks are left after {INDEX_SECONDS:.0f} s, such as {map_rows(rows)}"]
            missing = await conn.fetchval(
                "SELECT count(*) FROM messages m WHERE NOT EXISTS (SELECT FROM message_words w "
                "WHERE w.tenant_id = m.tenant_id AND w.message_id = m.id)"
            )
            return [f"word index: {missing} messages without words and without a task"] if missing else []
        finally:
            await conn.close(timeout=10)

    async def _quiet(self, conn: Connection) -> None:
        """Wait until what clients gave up on is decided, too."""
        deadline, same, before = time.monotonic() + QUIET_SECONDS, 0, None
        while same < 4 and time.monotonic() < deadline:
            row = await conn.fetchrow(_BUSY)
            assert row is not None
            same = same + 1 if before == row["changes"] and not row["writing"] else 0
            before = row["changes"]
            await asyncio.sleep(0.25)

    def _standing(self, rows: Sequence[asyncpg.Record]) -> list[Stored]:
        found: dict[int, Stored] = {}
        for row in rows:
            stored = found.get(row["id"])
            if stored is None:
                stored = found[row["id"]] = Stored(
                    self._boxes[row["mailbox_id"]],
                    row["rfc_message_id"].strip("<>"),
                    row["public_id"],
                    row["id"],
                    row["source"],
                    row["blob_key"],
                    row["raw_size"],
                    row["raw_prefix_len"],
                    row["raw_sha256"],
                    {},
                )
            if row["uid"] is not None:
                stored.places[(row["folder"], row["uid"])] = frozenset(row["flags"])
                known = self._validities.setdefault((stored.box, row["folder"]), row["uid_validity"])
                if known != row["uid_validity"]:
                    self._ledger.fault(f"UIDVALIDITY of {row['folder']} in #{stored.box} changed: {known} before")
        return list(found.values())

    # -- against the ledger

    def _letters(self, standing: Sequence[Stored]) -> Iterator[str]:
        """Stored letters are there once for each recipient, others once or not at all (B1)."""
        have = Counter((stored.box, stored.message_id) for stored in standing if stored.source == "mx")
        known = set()
        for box, message_id, letter in self._ledger.wanted():
            known.add((box, message_id))
            count = have[(box, message_id)]
            if count > 1 or (letter.stored and count != 1):
                yield (
                    f"letter {letter.number} ({'answered 250' if letter.stored else 'never answered'}, "
                    f"{letter.tries} tries) is there {count} times in {self._where(box)}"
                )
        for box, message_id in have.keys() - known:
            yield f"nobody sent {message_id}, yet it is in {self._where(box)}"
        for letter in self._ledger.letters:
            there = [have[(box, letter.message_id)] for box in letter.to]
            if not letter.stored and len(set(there)) > 1:
                yield f"letter {letter.number} was stored for some of its recipients only: {there} of {letter.to}"
        for stored in standing:
            if stored.source == "mx" and [place[0] for place in stored.places] != ["INBOX"]:
                yield f"{stored.message_id} in {self._where(stored.box)} stands in {list(stored.places)}"

    def _documents(self, standing: Sequence[Stored]) -> Iterator[str]:
        """Appended messages stand where they were put, with the flags they were given."""
        have: dict[tuple[int, str], list[Stored]] = defaultdict(list)
        for stored in standing:
            if stored.source == "append":
                have[(stored.box, stored.message_id)].append(stored)
        for key, document in self._ledger.documents.items():
            rows = have.pop(key, [])
            now: Places = {place: flags for row in rows for place, flags in row.places.items()}
            pending, document.pending = document.pending, None
            before, document.places = document.places, now
            if len(rows) > 1:
                yield f"{document.message_id} is {len(rows)} messages in {self._where(document.box)}"
            elif now != before and (pending is None or not pending.fits(before, now)):
                yield (
                    f"{document.message_id} in {self._where(document.box)} stands at {_shown(now)}; "
                    f"answered for was {_shown(before)}, and open {pending}"
                )
        for box, message_id in have:
            yield f"nobody appended {message_id}, yet it is in {self._where(box)}"

    def _marks(self, standing: Sequence[Stored]) -> Iterator[str]:
        flags = {stored.public_id: frozenset().union(*stored.places.values()) for stored in standing}
        for message, marks in self._ledger.marks.items():
            now = flags.get(message)
            if now is None:
                yield f"{message}, which was listed over REST, is gone from {self._where(marks.box)}"
                continue
            labels = {flag for flag in now if flag.startswith("r") and flag[1:2].isdigit()}
            if not marks.sure <= labels <= marks.perhaps:
                yield (
                    f"{message} in {self._where(marks.box)} has {sorted(labels)}; "
                    f"answered for were {sorted(marks.sure)}, asked for {sorted(marks.perhaps)}"
                )
            # What came through without an answer is there for good.
            marks.sure |= labels

    def _uids(self, standing: Sequence[Stored]) -> Iterator[str]:
        """New UIDs are above all that were seen before, and one that was seen stands for the same message for ever."""
        tops = dict(self._tops)
        for stored in standing:
            for folder, uid in stored.places:
                known = (stored.box, folder, uid) in self._ledger.uids
                if not known and uid <= self._tops.get((stored.box, folder), 0):
                    yield f"UID {uid} of {folder} in {self._where(stored.box)} is new, but below what was given before"
                self._ledger.saw_uid(stored.box, folder, uid, stored.message_id)
        for box, folder, uid in self._ledger.uids:
            tops[(box, folder)] = max(uid, tops.get((box, folder), 0))
        self._tops = tops

    # -- bytes

    def _blobs(self, standing: Sequence[Stored], thorough: bool, counts: Counts) -> list[str]:
        """Each row's bytes are there, whole, and what was sent."""
        faults, originals = [], _Originals(self._ledger)
        root = str(self._deployment.data_dir)
        for stored in standing:
            if stored.blob_key in self._blobs_seen and not thorough:
                continue
            try:
                data = Path(layout.path_under(root, stored.blob_key)[1]).read_bytes()
            except OSError as error:
                faults.append(f"the blob of {stored.public_id} in {self._where(stored.box)}: {error}")
                continue
            below = data[stored.prefix_len :]
            if len(data) != stored.size or hashlib.sha256(below).digest() != stored.sha256:
                faults.append(f"the blob of {stored.public_id} has {len(data)} octets ({stored.size} in its row)")
            elif below != originals(stored):
                faults.append(f"the blob of {stored.public_id} ({stored.message_id}) is not what was sent")
            self._blobs_seen.add(stored.blob_key)
            counts.blobs += 1
        named = {stored.blob_key for stored in standing}
        self._blobs_seen &= named
        counts.waste = len(set(self._keys_on_disk()) - named)
        return faults

    def _keys_on_disk(self) -> Iterator[str]:
        mail = self._deployment.data_dir / layout.MAIL
        for path in mail.glob("*/*/cur/*"):
            key = layout.mail_key(path.parts[-4], path.parts[-3], path.name)
            if key is not None:
                yield key

    # -- words

    async def _words(self, conn: Connection, standing: Sequence[Stored], rng: random.Random) -> list[str]:
        """A word that only one message holds finds that message, whatever the index has got to."""
        letters = {letter.message_id: letter for letter in self._ledger.letters[-5000:]}
        faults = []
        eligible = [stored for stored in standing if stored.message_id in letters]
        for stored in rng.sample(eligible, k=min(SAMPLE, len(eligible))):
            box = self._deployment.boxes[stored.box]
            found = await candidates(conn, MailboxRef(box.tenant, box.key), letters[stored.message_id].token)
            if found is not None and stored.key not in found:
                faults.append(f"{stored.public_id} in {self._where(stored.box)} is not found by its own word")
        return faults

    # -- IMAP

    async def _over_imap(self, standing: Sequence[Stored], thorough: bool) -> list[str]:
        by_folder: dict[tuple[int, str], dict[int, tuple[Stored, Flags]]] = defaultdict(dict)
        for stored in standing:
            for (folder, uid), flags in stored.places.items():
                by_folder[(stored.box, folder)][uid] = (stored, flags)
        lanes = asyncio.Semaphore(4)

        async def one(box: int) -> list[str]:
            folders = {folder: rows for (at, folder), rows in by_folder.items() if at == box}
            async with lanes:
                try:
                    return await self._mailbox(box, folders, thorough)
                except Lost as lost:
                    return [f"IMAP on {self._where(box)} ended: {lost}"]

        results = await asyncio.gather(*(one(box) for box in range(len(self._deployment.boxes))))
        return [fault for faults in results for fault in faults]

    async def _mailbox(
        self, box: int, folders: dict[str, dict[int, tuple[Stored, Flags]]], thorough: bool
    ) -> list[str]:
        faults: list[str] = []
        there = self._deployment.boxes[box]
        async with Imap(self._deployment.ports["imap"]) as client:
            await client.login(there.address, there.secret)
            for folder, rows in folders.items():
                answer = await client.command(f'EXAMINE "{folder}"')
                if answer.status != "OK":
                    faults.append(f"EXAMINE {folder} in {self._where(box)}: {answer.text}")
                    continue
                first = 1 if thorough else self._imap_top.get((box, folder), 0) + 1
                seen = await self._fetch(client, box, folder, rows, first, faults)
                expected = {uid for uid in rows if uid >= first}
                if seen != expected:
                    faults.append(
                        f"IMAP shows other UIDs of {folder} in {self._where(box)} than the database: "
                        f"missing {sorted(expected - seen)[:5]}, more {sorted(seen - expected)[:5]}"
                    )
                exists = next((line for line in answer.untagged if line.endswith(b"EXISTS\r\n")), b"* ? EXISTS")
                if exists.split()[1] != str(len(rows)).encode():
                    faults.append(f"{folder} in {self._where(box)}: {exists.decode()} for {len(rows)} placements")
                self._imap_top[(box, folder)] = max(rows, default=0)
        return faults

    async def _fetch(
        self,
        client: Imap,
        box: int,
        folder: str,
        rows: dict[int, tuple[Stored, Flags]],
        first: int,
        faults: list[str],
    ) -> set[int]:
        """The UIDs from `first` on; what IMAP says of each is compared with its row."""
        seen: set[int] = set()
        items = "(UID FLAGS RFC822.SIZE BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)])"
        answer = await client.command(f"UID FETCH {first}:* {items}")
        for uid, message_id, size, flags in _fetched(answer):
            if uid < first:
                continue  # `n:*` always names the last message
            if uid in seen:
                faults.append(f"UID {uid} of {folder} in {self._where(box)} was fetched twice")
            seen.add(uid)
            row = rows.get(uid)
            if row is not None and (message_id, size, flags) != (row[0].message_id, row[0].size, row[1]):
                faults.append(
                    f"IMAP says of UID {uid} of {folder} in {self._where(box)}: {message_id}, {size} octets, "
                    f"{sorted(flags)}; the database {row[0].message_id}, {row[0].size}, {sorted(row[1])}"
                )
        if answer.status != "OK":
            faults.append(f"FETCH in {folder} of {self._where(box)}: {answer.status} {answer.text}")
        return seen

    def _where(self, box: int) -> str:
        return f"mailbox #{box} (key {self._deployment.boxes[box].key})"


class _Originals:
    """What was sent, by the row it became."""

    def __init__(self, ledger: Ledger) -> None:
        self._letters: dict[str, Letter] = {letter.message_id: letter for letter in ledger.letters}
        self._documents = ledger.documents

    def __call__(self, stored: Stored) -> bytes | None:
        if stored.source == "mx":
            letter = self._letters.get(stored.message_id)
            return None if letter is None else letter.octets()
        document = self._documents.get((stored.box, stored.message_id))
        return None if document is None else document.text


async def broken(conn: Connection) -> AsyncIterator[str]:
    """The invariants that do not hold, each with the first rows at fault."""
    for name, statement in INVARIANTS.items():
        rows = await conn.fetch(statement, timeout=120)
        if rows:
            yield f"{name}: {len(rows)} rows say otherwise, such as {map_rows(rows[:3])}"


def map_rows(rows: Sequence[asyncpg.Record]) -> list[dict[str, object]]:
    return [dict(row) for row in rows]


def _fetched(answer: Answer) -> Iterator[tuple[int, str, int, Flags]]:
    """UID, Message-ID, size and flags of each FETCH response; flags as the database has them."""
    for line in answer.untagged:
        uid, flags, size = _UID.search(line), _FLAGS.search(line), _SIZE.search(line)
        if uid is None or flags is None or size is None:
            continue
        found = _MESSAGE_ID.search(line)
        words = [word for word in flags[1].decode("utf-8", "replace").lower().split() if word != "\\recent"]
        yield (
            int(uid[1]),
            found[1].decode() if found else "",
            int(size[1]),
            frozenset("$" + word[1:] if word in _SYSTEM else word for word in words),
        )


def _shown(places: dict[Place, Flags]) -> str:
    return "; ".join(f"{folder}/{uid} {sorted(flags)}" for (folder, uid), flags in sorted(places.items())) or "nowhere"
