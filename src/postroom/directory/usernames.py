"""Which usernames and local parts may be taken (inbound §3; A1, A3, A4, A12, FR-ADR-6, FR-ADR-7). Pure."""

from __future__ import annotations

import re
from typing import Final

from postroom.accounts.names import MAX_LOCAL_PART, NameClass, is_reserved, looks_reserved
from postroom.base.errors import PostroomError
from postroom.mail.confusables import MAX_LENGTH, fold, has_right_to_left, is_mixed_script

MAX_USERNAME: Final = 24
MAX_ALIAS: Final = 40

_FORM: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")


def validate_username(
    name: str, name_class: NameClass, *, max_length: int = MAX_USERNAME, suffix: str = ""
) -> tuple[str, str]:
    """The username in lower case, and its fold.

    The first rule that fails names the error: `address_reserved` for what looks like a reserved name or mixes scripts,
    `address_unsupported` for other text that is not ASCII, `address_invalid` for the wrong form, `address_reserved` for
    reserved names and patterns, `local_part_too_long` with the suffix. That nobody else of the tenant has the same name
    or one that folds the same is the database's to refuse.
    """
    if len(name) > MAX_LENGTH:
        raise PostroomError("address_invalid")
    if looks_reserved(name, name_class):
        raise PostroomError("address_reserved")
    if not name.isascii():
        if is_mixed_script(name) or has_right_to_left(name):
            raise PostroomError("address_reserved")
        raise PostroomError("address_unsupported")
    lower = name.lower()
    if not _FORM.fullmatch(lower) or len(lower) > max_length or ".." in lower or lower.endswith("."):
        raise PostroomError("address_invalid")
    if is_reserved(lower, name_class):
        raise PostroomError("address_reserved")
    if len(lower) + len(suffix) > MAX_LOCAL_PART:
        raise PostroomError("local_part_too_long", details={"limit": MAX_LOCAL_PART})
    return lower, fold(lower)


def class_of(suffix: str) -> NameClass:
    """The class of usernames in a tenant: alone on the platform domain when its suffix is empty."""
    return NameClass.PLATFORM if not suffix else NameClass.TENANT
