"""What the sessions of one listener share: its words and limits, the departments, and what is known already."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.mailbox.search import FolderSearch
from postroom.servers.imap.binary import BinaryReader
from postroom.servers.imap.config import ImapConfig, ImapServices
from postroom.servers.imap.facts import FactCache
from postroom.servers.imap.values import ValueCache
from postroom.servers.imap.views import ViewCache


@dataclass(slots=True)
class SharedState:
    """What the sessions of one listener share."""

    config: ImapConfig
    services: ImapServices
    views: ViewCache
    facts: FactCache
    values: ValueCache
    search: FolderSearch
    binary: BinaryReader
    tls_available: bool
