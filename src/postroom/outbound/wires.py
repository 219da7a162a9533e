"""Which objects beside messages that leave are still named: the bytes that go out, while something waits, and the
ledger's part, as long as there is the message (data-model.md §15, outbound §3.4)."""

from __future__ import annotations

import re
from typing import Final

from postroom.mailbox.linked_files import FILE_KEYS
from postroom.mailbox.sweep import MESSAGE_KEYS, KeysOfMessages
from postroom.outbound.ledger import LIFE

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

# As `ledger_key` makes them of the key of the message's bytes.
_LEDGER: Final = """
SELECT k.key FROM unnest($1::text[], $2::text[], $3::text[]) AS k (key, tenant, message)
CROSS JOIN LATERAL (SELECT t.id FROM tenants t WHERE t.public_id = k.tenant LIMIT 1) t
CROSS JOIN LATERAL (
  SELECT m.blob_key, m.source FROM messages m WHERE m.tenant_id + 0 = t.id AND m.public_id = k.message LIMIT 1
) m
WHERE m.source = 'send' AND replace(replace(m.blob_key, '/m/', '/out/'), '/raw.eml', '.json') = k.key
"""

WIRE_KEYS: Final = KeysOfMessages(
    # The second form is that of bytes which an operator's retry made anew.
    re.compile(rf"t/(?P<tenant>ten_{_ULID})/i/idn_{_ULID}/out/(?P<message>msg_{_ULID})(?:-{_ULID})?\.eml"),
    _NAMED,
)
LEDGER_KEYS: Final = KeysOfMessages(
    # Without its message it says what was sent, should the database be one of before that, while the key is remembered.
    re.compile(rf"t/(?P<tenant>ten_{_ULID})/i/idn_{_ULID}/out/(?P<message>msg_{_ULID})\.json"),
    _LEDGER,
    kept=LIFE,
)

STORED: Final = (MESSAGE_KEYS, WIRE_KEYS, LEDGER_KEYS, FILE_KEYS)
"""All forms of keys that there are."""
