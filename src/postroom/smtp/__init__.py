"""SMTP and LMTP without I/O: both sides of a session, addresses, the trace header, and what an outcome means.

`ServerSession` and `ClientSession` take bytes and give events and bytes (RFC 5321 and its extensions). They know
nothing of sockets, mailboxes or settings: a driver moves the bytes and answers the events that ask for a decision.
`classify` judges what came of a delivery attempt.
"""

from postroom.smtp.address import Address, AddressSyntaxError, domain_to_ascii, parse_path
from postroom.smtp.client import ClientSession
from postroom.smtp.client_events import (
    Authenticated,
    BodyWanted,
    ClientConfig,
    ClientEvent,
    CommandRefused,
    Extensions,
    GreetingReceived,
    HelloDone,
    MailRequest,
    RecipientRequest,
    RecipientResult,
    ResetDone,
    SessionEnded,
    TlsReady,
    TransactionEnded,
)
from postroom.smtp.envelope import Envelope, Refusal, SessionInfo
from postroom.smtp.events import (
    CredentialsOffered,
    Event,
    MessageReceived,
    ProofOffered,
    RecipientProposed,
    SenderProposed,
    Signal,
)
from postroom.smtp.evidence import Evidence, Fault, Stage
from postroom.smtp.machine import Profile, State
from postroom.smtp.outcome import (
    BounceType,
    DeliveryStatus,
    Issue,
    Outcome,
    Reason,
    Verdict,
    classify,
    expire,
)
from postroom.smtp.params import Body, MailParameters, Notify, RcptParameters, Return
from postroom.smtp.replies import Reply
from postroom.smtp.reply_reader import ServerReply
from postroom.smtp.sasl import Credentials, UnsupportedError
from postroom.smtp.schedule import Backoff, Route, backoff_delay, breaker_pause, reply_timeout, retry_delay
from postroom.smtp.server import ServerConfig, ServerSession, SessionStateError
from postroom.smtp.trace import trace_header, transmission_type

__all__ = [
    "Address",
    "AddressSyntaxError",
    "Authenticated",
    "Backoff",
    "Body",
    "BodyWanted",
    "BounceType",
    "ClientConfig",
    "ClientEvent",
    "ClientSession",
    "CommandRefused",
    "Credentials",
    "CredentialsOffered",
    "DeliveryStatus",
    "Envelope",
    "Event",
    "Evidence",
    "Extensions",
    "Fault",
    "GreetingReceived",
    "HelloDone",
    "Issue",
    "MailParameters",
    "MailRequest",
    "MessageReceived",
    "Notify",
    "Outcome",
    "Profile",
    "ProofOffered",
    "RcptParameters",
    "Reason",
    "RecipientProposed",
    "RecipientRequest",
    "RecipientResult",
    "Refusal",
    "Reply",
    "ResetDone",
    "Return",
    "Route",
    "SenderProposed",
    "ServerConfig",
    "ServerReply",
    "ServerSession",
    "SessionEnded",
    "SessionInfo",
    "SessionStateError",
    "Signal",
    "Stage",
    "State",
    "TlsReady",
    "TransactionEnded",
    "UnsupportedError",
    "Verdict",
    "backoff_delay",
    "breaker_pause",
    "classify",
    "domain_to_ascii",
    "expire",
    "parse_path",
    "reply_timeout",
    "retry_delay",
    "trace_header",
    "transmission_type",
]
