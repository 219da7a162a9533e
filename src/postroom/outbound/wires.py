"""Which stored bytes that go out are still named: those of messages of which something waits (data-model.md §15)."""

from __future__ import annotations

import re
from typing import Final

from postroom.mailbox.sweep import KeysOfMessages

_ULID: Final = "[0-7][0-9A-HJKMNP-TV-Z]{25}"

# Keys, and the tenants and messages that they are of.
_NAMED: Final = """
SELECT k.key FROM unnest($1::text[], $2::text[], $3::text[]) AS k (key, tenant, message)
CROSS JOIN LATERAL (SELECT t.id FROM tenants t WHERE t.public_id = k.tenant LIMIT 1) t
CROSS JOIN LATERAL (
  SELECT m.id FROM messages m WHERE m.tenant_id + 0 = t.id AND m.public_id = k.message LIMIT 1
) m
CROSS JOIN LATERAL (
  SELECT o.wire_key FROM outbound_messages o WHERE o.tenant_id = t.id AND o.message_id = m.id LIMIT 1
) o
WHERE o.wire_key = k.key
"""

WIRE_KEYS: Final = KeysOfMessages(
    # The second form is that of bytes which an operator's retry made anew.
    re.compile(rf"t/(?P<tenant>ten_{_ULID})/i/idn_{_ULID}/out/(?P<message>msg_{_ULID})(?:-{_ULID})?\.eml"),
    _NAMED,
)
