"""The queues of the command line: what is claimed row by row, by name (decisions B1)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from postroom.db import ClaimQueue
from postroom.mailbox import words
from postroom.outbound import bounces, claiming, invitation_mail
from postroom.worker import SCHEDULES

QUEUES: Final[Mapping[str, ClaimQueue]] = MappingProxyType(
    {
        "deliveries": claiming.QUEUE,
        "bounces": bounces.QUEUE,
        "invitations": invitation_mail.QUEUE,
        "words": words.QUEUE,
        "schedules": SCHEDULES,
    }
)
"""Name → the claimed rows. `deliveries` is mail that leaves, `bounces` notices to senders, `invitations` the
mail about them, `words` the text index,
`schedules` the periodic work."""
DELIVERIES: Final = "deliveries"
