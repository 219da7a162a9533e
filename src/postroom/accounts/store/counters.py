"""SQL of counters per window: failed sign-ins and requests of the API. Both tables are unlogged: losing them only
resets windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from postroom.db import Connection

_FAILURES = """
SELECT subject, window_start, count FROM sign_in_failures WHERE subject = ANY ($1::text[]) AND window_start > $2
ORDER BY window_start DESC
"""
_ADD_FAILURES = """
INSERT INTO sign_in_failures (subject, window_start, count)
SELECT DISTINCT s, $2::timestamptz, 1 FROM unnest($1::text[]) AS s
ORDER BY s
ON CONFLICT (subject, window_start) DO UPDATE SET count = sign_in_failures.count + 1
"""
_RESET_FAILURES = "DELETE FROM sign_in_failures WHERE subject = $1"
_PRUNE_FAILURES = "DELETE FROM sign_in_failures WHERE window_start < $1"

# Ordered, so that two nodes that flush the same rows never wait for each other in a ring.
_ADD_REQUESTS = """
INSERT INTO api_rate_windows (bucket, subject, window_start, count)
SELECT b, s, w, c FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::integer[]) AS n (b, s, w, c)
ORDER BY b, s, w
ON CONFLICT (bucket, subject, window_start) DO UPDATE SET count = api_rate_windows.count + excluded.count
RETURNING bucket, subject, window_start, count
"""
_PRUNE_REQUESTS = "DELETE FROM api_rate_windows WHERE window_start < $1"


@dataclass(frozen=True, slots=True)
class Window:
    """Requests of a subject in one window of a bucket."""

    bucket: str
    subject: str
    start: datetime
    count: int


async def failures(conn: Connection, subjects: Sequence[str], since: datetime) -> dict[str, list[tuple[datetime, int]]]:
    """Failures of each subject by window, newest first. One statement, however many they are."""
    found: dict[str, list[tuple[datetime, int]]] = {subject: [] for subject in subjects}
    for row in await conn.fetch(_FAILURES, list(subjects), since):
        found[row["subject"]].append((row["window_start"], row["count"]))
    return found


async def add_failure(conn: Connection, subjects: Sequence[str], window_start: datetime) -> None:
    await conn.execute(_ADD_FAILURES, list(subjects), window_start)


async def reset_failures(conn: Connection, subject: str) -> None:
    await conn.execute(_RESET_FAILURES, subject)


async def add_requests(conn: Connection, windows: Sequence[Window]) -> list[Window]:
    """Add counts, and learn the totals of all nodes."""
    rows = await conn.fetch(
        _ADD_REQUESTS,
        [window.bucket for window in windows],
        [window.subject for window in windows],
        [window.start for window in windows],
        [window.count for window in windows],
    )
    return [Window(row["bucket"], row["subject"], row["window_start"], row["count"]) for row in rows]


async def prune(conn: Connection, failures_before: datetime, requests_before: datetime) -> None:
    """Delete windows that nobody looks at any more."""
    await conn.execute(_PRUNE_FAILURES, failures_before)
    await conn.execute(_PRUNE_REQUESTS, requests_before)
