"""Writing mail: a typed draft to the octets of a message, and what goes into it (outbound §6; RFC 5322, MIME).

Pure: the moment, the Message-ID and the boundaries are arguments. Header values with controls are refused, so a value
can never start a field; blind recipients are no part of a draft; attachments are streamed.
"""

from postroom.mail.compose.bodies import Body, Forwarded, Link, assemble, choose_links
from postroom.mail.compose.build import Composed, compose
from postroom.mail.compose.custom import CustomHeaderError, HeaderRefusal, custom_headers
from postroom.mail.compose.downgrade import DowngradeError, Obstacle, downgrade_to_7bit, is_7bit
from postroom.mail.compose.draft import Attachment, AutoSubmitted, Draft, ListUnsubscribe
from postroom.mail.compose.encodings import Source
from postroom.mail.compose.errors import ComposeError, Reason
from postroom.mail.compose.reply import (
    ReplyRecipients,
    ReplyTarget,
    address_key,
    build_references,
    forward_subject,
    message_id,
    quote_text,
    reply_all_recipients,
    reply_subject,
    reply_target,
)

__all__ = [
    "Attachment",
    "AutoSubmitted",
    "Body",
    "ComposeError",
    "Composed",
    "CustomHeaderError",
    "DowngradeError",
    "Draft",
    "Forwarded",
    "HeaderRefusal",
    "Link",
    "ListUnsubscribe",
    "Obstacle",
    "Reason",
    "ReplyRecipients",
    "ReplyTarget",
    "Source",
    "address_key",
    "assemble",
    "build_references",
    "choose_links",
    "compose",
    "custom_headers",
    "downgrade_to_7bit",
    "forward_subject",
    "is_7bit",
    "message_id",
    "quote_text",
    "reply_all_recipients",
    "reply_subject",
    "reply_target",
]
