"""Delivery status notifications: writing and reading them, and to whom none may be sent (RFC 3461–3464, RFC 6533)."""

from postroom.mail.dsn.build import compose_dsn
from postroom.mail.dsn.model import (
    Action,
    Notify,
    RecipientReport,
    Report,
    Return,
    Withheld,
    read_orcpt,
    unicode_decode,
    unicode_encode,
    withheld,
    xtext_decode,
    xtext_encode,
)
from postroom.mail.dsn.parse import DeliveryReport, ReportedRecipient, parse_dsn

__all__ = [
    "Action",
    "DeliveryReport",
    "Notify",
    "RecipientReport",
    "Report",
    "ReportedRecipient",
    "Return",
    "Withheld",
    "compose_dsn",
    "parse_dsn",
    "read_orcpt",
    "unicode_decode",
    "unicode_encode",
    "withheld",
    "xtext_decode",
    "xtext_encode",
]
