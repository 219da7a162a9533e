"""Who is this address, and may it send: identities, their addresses over time, usernames, and the answer to every RCPT.

It owns the tables identities, addresses, aliases, address_tombstones, erasure_requests and sender_lists, and reads
domains. A change of who receives what is told to every process's `Directory`, which answers recipients from memory
where that is safe.
"""

from postroom.directory.erasures import Erasure
from postroom.directory.lists import ListDirection, ListEntry, ListKind
from postroom.directory.models import (
    AddressRole,
    AddressStatus,
    Alias,
    Announce,
    Announcement,
    Changed,
    Fact,
    Forward,
    HostedAddress,
    Identity,
    IdentityChanges,
    IdentityKind,
    IdentityStatus,
    MailboxClosing,
    MailboxFactory,
    NewIdentity,
    NewMailbox,
    PauseReason,
    Recipient,
    Refusal,
)
from postroom.directory.relays import Relay, Relays
from postroom.directory.resolver import DictionaryGuard, Directory
from postroom.directory.rules import send_refusal
from postroom.directory.service.addresses import Addresses
from postroom.directory.service.aliases import Aliases
from postroom.directory.service.deletion import Deletions
from postroom.directory.service.identities import Identities
from postroom.directory.service.lists import Lists
from postroom.directory.tombstones import bury_identity
from postroom.directory.usernames import validate_username

__all__ = [
    "AddressRole",
    "AddressStatus",
    "Addresses",
    "Alias",
    "Aliases",
    "Announce",
    "Announcement",
    "Changed",
    "Deletions",
    "DictionaryGuard",
    "Directory",
    "Erasure",
    "Fact",
    "Forward",
    "HostedAddress",
    "Identities",
    "Identity",
    "IdentityChanges",
    "IdentityKind",
    "IdentityStatus",
    "ListDirection",
    "ListEntry",
    "ListKind",
    "Lists",
    "MailboxClosing",
    "MailboxFactory",
    "NewIdentity",
    "NewMailbox",
    "PauseReason",
    "Recipient",
    "Refusal",
    "Relay",
    "Relays",
    "bury_identity",
    "send_refusal",
    "validate_username",
]
