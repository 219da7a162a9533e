"""Names that nobody may take, tenants' slugs and address suffixes (inbound §3; A4, D12, FR-ADR-6). Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from postroom.accounts.text import invalid
from postroom.base.errors import PostroomError
from postroom.mail.confusables import fold


class NameClass(StrEnum):
    """Where a local part stands: alone on the platform domain, or in a tenant's own room."""

    PLATFORM = "platform"
    """A username of the default tenant, whose suffix is empty."""
    TENANT = "tenant"
    """Every other username, and local parts on tenants' domains."""


ROLE_NAMES: Final = frozenset(
    (
        *("info", "marketing", "sales", "support", "noc", "security", "hostmaster", "usenet", "news", "webmaster"),
        *("www", "uucp", "ftp"),
    )
)
"""RFC 2142 role names; reserved on the platform domain only."""

PERSON_NAMES: Final = frozenset(("postmaster", "abuse"))
"""Names that must reach a person (RFC 5321 §4.5.1, RFC 2142); reserved everywhere."""

SERVICE_NAMES: Final = frozenset(
    (
        *("noreply", "no-reply", "donotreply", "do-not-reply", "mailer-daemon", "mailerdaemon", "mail-daemon"),
        *("bounce", "bounces", "root", "admin", "administrator", "sysadmin", "system", "daemon", "nobody", "null"),
        *("devnull", "listserv", "majordomo", "unsubscribe", "dmarc", "journal"),
    )
)
"""Names of mail systems and services; reserved everywhere."""

PROTECTED_NAMES: Final = frozenset(
    (
        *("postroom", "stripe", "paypal", "google", "gmail", "microsoft", "outlook", "apple", "icloud", "amazon"),
        *("aws", "cloudflare", "github", "hmrc", "gov", "govuk", "dvla", "police", "bank", "visa", "mastercard"),
        *("amex", "billing", "payments", "admin"),
    )
)
"""Whom a tenant could pass itself off as; no suffix is one of them, nor looks like it (D12, rest-api §5.2)."""

RELAYED_ROLES: Final = frozenset(("postmaster", "abuse", "security", "hostmaster", "webmaster", "noc"))
"""Role names of the platform domain whose mail goes to the security contact (A4)."""

MAX_LOCAL_PART: Final = 40
"""Octets of username and suffix together, so that a thread token still fits beside them (A12)."""

_PREFIXES: Final = ("owner-", "pm-")
_SUFFIXES: Final = ("-request",)
_EVERYWHERE: Final = PERSON_NAMES | SERVICE_NAMES
_NAMES: Final = {NameClass.PLATFORM: _EVERYWHERE | ROLE_NAMES, NameClass.TENANT: _EVERYWHERE}
_FOLDS: Final = {kind: frozenset(map(fold, names)) for kind, names in _NAMES.items()}

_PROTECTED_FOLDS: Final = frozenset(map(fold, PROTECTED_NAMES))

_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,31}")
_SUFFIX: Final = re.compile(r"\.[a-z0-9][a-z0-9-]{1,31}")


def is_reserved(name: str, name_class: NameClass) -> bool:
    """Whether a lower-case ASCII name is reserved, by itself or by its pattern."""
    return name in _NAMES[name_class] or name.startswith(_PREFIXES) or name.endswith(_SUFFIXES)


def looks_reserved(name: str, name_class: NameClass) -> bool:
    """Whether `name`, in any script, may be taken for a reserved name."""
    return fold(name) in _FOLDS[name_class]


def check_slug(slug: str) -> None:
    """Raises `invalid_request` unless `slug` is 2 to 32 of `a-z0-9-` and starts with a letter or digit."""
    if not _SLUG.fullmatch(slug):
        raise invalid("slug", "must be 2 to 32 of a-z, 0-9 and hyphen, a hyphen not first")


def suffix_of(slug: str, wanted: str | None, *, default_tenant: bool) -> tuple[str, str]:
    """A tenant's address suffix and its fold: `('', '')` for the default tenant, else `wanted` or `.` + slug.

    Raises `invalid_request` for a suffix that is not a dot and a slug, `address_reserved` for one that looks like a
    reserved or a protected name (D12). That no other tenant's suffix folds the same is the database's to refuse.
    """
    if default_tenant:
        if wanted:
            raise invalid("address_suffix", "must be a dot and a slug; the default tenant has none")
        return "", ""
    suffix = f".{slug}" if wanted is None else wanted
    if not _SUFFIX.fullmatch(suffix):
        raise invalid("address_suffix", "must be a dot and a slug; the default tenant has none")
    bare = suffix[1:]
    is_taken = looks_reserved(bare, NameClass.PLATFORM) or is_reserved(bare, NameClass.PLATFORM)
    if is_taken or fold(bare) in _PROTECTED_FOLDS:
        raise PostroomError("address_reserved", details={"field": "address_suffix"})
    return suffix, fold(bare)
