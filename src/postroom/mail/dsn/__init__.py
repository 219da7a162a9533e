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
    unicode_encode,
    withheld,
    xtext_encode,
)
from postroom.mail.dsn.parse import parse_dsn
from postroom.mail.dsn.report import DeliveryReport, Evidence, ReportClass, ReportedRecipient
from postroom.mail.reports import unicode_decode, xtext_decode

__all__ = [
    "Action",
    "DeliveryReport",
    "Evidence",
    "Notify",
    "RecipientReport",
    "Report",
    "ReportClass",
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
