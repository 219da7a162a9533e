"""TNEF, the `winmail.dat` of Outlook and Exchange: what it carries, unpacked (MS-OXTNEF; edge row B6)."""

from postroom.mail.tnef.unpack import (
    MAX_ATTACHMENTS,
    MAX_NESTING,
    Unpacked,
    UnpackedAttachment,
    is_tnef,
    tnef_parts,
    unpack,
)

__all__ = [
    "MAX_ATTACHMENTS",
    "MAX_NESTING",
    "Unpacked",
    "UnpackedAttachment",
    "is_tnef",
    "tnef_parts",
    "unpack",
]
