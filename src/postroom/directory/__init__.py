"""Who is this address, and may it send: identities, their addresses over time, usernames, and the answer to every RCPT.

It owns the tables identities, addresses, aliases and address_tombstones, and reads domains. A change of who receives
what is told to every process's `Directory`, which answers recipients from memory where that is safe.
"""

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
from postroom.directory.service.identities import Identities
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
    "DictionaryGuard",
    "Directory",
    "Fact",
    "Forward",
    "HostedAddress",
    "Identities",
    "Identity",
    "IdentityChanges",
    "IdentityKind",
    "IdentityStatus",
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
