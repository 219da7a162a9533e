"""What one process may take of the limits that hold for all processes of a machine together (B19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postroom.base.settings_tree import LimitSettings

LEAST_CONNECTIONS_PER_IP: Final = 4


@dataclass(frozen=True, slots=True)
class Shares:
    """One process's part of `limits`."""

    max_connections: int
    max_connections_per_ip: int
    command_rate: int


def divided(limits: LimitSettings, processes: int) -> Shares:
    """The limits of one process of several. Connections are not spread evenly: one address may always have a few, and
    never more than there may be at all.
    """
    per_ip = max(limits.max_connections_per_ip // processes, LEAST_CONNECTIONS_PER_IP)
    return Shares(
        max_connections=max(limits.max_connections // processes, 1),
        max_connections_per_ip=min(per_ip, limits.max_connections_per_ip),
        command_rate=max(limits.smtp_rate_limit // processes, 1),
    )
