"""MESSAGELIMIT (RFC 9738): one command works on so many messages at the most, those with the highest UIDs.

It says in its answer where it stopped, and the client goes on below. What has to be done whole or not at all (COPY,
APPEND) is refused beyond it. EXPUNGE and CLOSE name no messages, SORT and THREAD would mean nothing in parts: they have
no limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.imap import ProtocolNo, render
from postroom.imap.partial import window
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session


@dataclass(frozen=True, slots=True)
class Bounded:
    """Places of messages to work on; with a code they are not all that were meant (§3.1)."""

    parts: tuple[range, ...]
    code: str | None = None

    @property
    def suffix(self) -> str:
        """For people who read the answer."""
        return "" if self.code is None else " for the last messages only"

    def all_or_none(self) -> tuple[range, ...]:
        """The places. Raises `ProtocolNo` [MESSAGELIMIT] where they are not all (§3.1: COPY)."""
        if self.code is not None:
            raise ProtocolNo(self.code, "Too many messages at once; try fewer")
        return self.parts


def bounded(session: Session, selected: Selected, parts: tuple[range, ...]) -> Bounded:
    """The last of `parts`, which are disjoint and ascend."""
    limit = session.shared.config.message_limit
    count = sum(map(len, parts))
    if count <= limit:
        return Bounded(parts)
    kept = window(parts, range(count - limit, count))
    return Bounded(kept, render.code_message_limit(limit, selected.uids[kept[0].start]))


def last_of(session: Session, uids: Sequence[int]) -> tuple[Sequence[int], str | None]:
    """The last of UIDs that ascend, and the code, if they are not all."""
    limit = session.shared.config.message_limit
    if len(uids) <= limit:
        return uids, None
    kept = uids[-limit:]
    return kept, render.code_message_limit(limit, kept[0])


def require_few(session: Session, count: int) -> None:
    """Raises `ProtocolNo` [MESSAGELIMIT] for more messages in one APPEND than a command may work on."""
    limit = session.shared.config.message_limit
    if count > limit:
        raise ProtocolNo(render.code_message_limit(limit), "Too many messages at once; try fewer")
