"""TNEF, the `winmail.dat` of Outlook and Exchange: what it carries, unpacked (MS-OXTNEF; edge row B6)."""

from postroom.mail.tnef.unpack import (
    FRAME_BYTES,
    MAX_ATTACHMENTS,
    MAX_NESTING,
    Unpacked,
    UnpackedAttachment,
    is_tnef,
    says_tnef,
    unpack,
)

__all__ = [
    "FRAME_BYTES",
    "MAX_ATTACHMENTS",
    "MAX_NESTING",
    "Unpacked",
    "UnpackedAttachment",
    "is_tnef",
    "says_tnef",
    "unpack",
]
