"""The IMAP server: RFC 3501 over the mailboxes, one handler file for each concern (mail-server D1–D9)."""

from postroom.servers.imap.config import ImapConfig, ImapServices
from postroom.servers.imap.listener import ImapListener, ImapShared

__all__ = ["ImapConfig", "ImapListener", "ImapServices", "ImapShared"]
