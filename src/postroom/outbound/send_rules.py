"""What a deployment lets its tenants send, and what a tenant's policy makes of that (outbound §21). Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from postroom.accounts.policy import (
    DEFAULT_POLICY,
    DISCLOSURE,
    Disclosure,
    LargeAttachments,
    StoredPolicy,
    TenantPolicy,
)

HEADER_RESERVE: Final = 8 * 1024
"""Octets of `max_message_bytes` that are kept for header fields added later."""


@dataclass(frozen=True, slots=True)
class SendRules:
    """What the deployment allows, and `under` a tenant's policy also the tenant (outbound §21).

    `link_ttl`: large attachments become links that open for so long; without it they are refused (G5). `disclosure`
    and `disclosure_text`: how a message says that an AI wrote it (E8).
    """

    max_recipients: int = 10
    auto_reply_allowed: bool = True
    max_automatic_exchanges: int = 2
    max_message_bytes: int = 5 * 1024 * 1024
    marketing_direct: bool = False
    """Whether a tenant's own domain may send marketing from this server's address (FR-OUT-15)."""
    link_ttl: timedelta | None = None
    disclosure: Disclosure = Disclosure.NONE
    disclosure_text: str = DISCLOSURE

    defaults: TenantPolicy = DEFAULT_POLICY
    """What holds of all else where nobody has set anything."""

    def by_default(self, defaults: TenantPolicy) -> SendRules:
        """As a tenant has them who has set nothing, where `defaults` are the deployment's."""
        return replace(self, defaults=defaults)._of(defaults)

    def under(self, stored: StoredPolicy) -> SendRules:
        """With what a tenant has set, and what was set above it."""
        if not stored:
            return self
        own = replace(
            self.defaults,
            max_recipients=self.max_recipients,
            auto_reply_allowed=self.auto_reply_allowed,
            max_automatic_exchanges=self.max_automatic_exchanges,
        )
        return self._of(stored.under(own))

    def _of(self, found: TenantPolicy) -> SendRules:
        links = found.large_attachments is LargeAttachments.LINK
        return replace(
            self,
            max_recipients=found.max_recipients,
            auto_reply_allowed=found.auto_reply_allowed,
            max_automatic_exchanges=found.max_automatic_exchanges,
            link_ttl=timedelta(hours=found.link_ttl_hours) if links else None,
            disclosure=found.disclosure,
            disclosure_text=found.disclosure_text,
        )

    @property
    def max_composed(self) -> int:
        """Octets that a composed message may have (G5)."""
        return self.max_message_bytes - HEADER_RESERVE
