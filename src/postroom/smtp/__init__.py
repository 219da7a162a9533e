"""SMTP without I/O: the receiving session, its replies, addresses, and the trace header (RFC 5321 and its extensions).

`ServerSession` takes bytes and gives events and bytes. It knows nothing of sockets, mailboxes or settings: a driver
moves the bytes and answers the events that ask for a decision.
"""

from postroom.smtp.address import Address, AddressSyntaxError, domain_to_ascii, parse_path
from postroom.smtp.envelope import Envelope, Refusal, SessionInfo
from postroom.smtp.events import Event, MessageReceived, RecipientProposed, Signal
from postroom.smtp.machine import Profile, State
from postroom.smtp.params import MailParameters
from postroom.smtp.replies import Reply
from postroom.smtp.server import ServerConfig, ServerSession, SessionStateError
from postroom.smtp.trace import format_date, trace_header, transmission_type

__all__ = [
    "Address",
    "AddressSyntaxError",
    "Envelope",
    "Event",
    "MailParameters",
    "MessageReceived",
    "Profile",
    "RecipientProposed",
    "Refusal",
    "Reply",
    "ServerConfig",
    "ServerSession",
    "SessionInfo",
    "SessionStateError",
    "Signal",
    "State",
    "domain_to_ascii",
    "format_date",
    "parse_path",
    "trace_header",
    "transmission_type",
]
