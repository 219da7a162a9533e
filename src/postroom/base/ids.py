"""Public ids: a kind's prefix and a ULID, as in ``msg_01J9Z3K8V4QW7X2M5N6P8R0T1Y`` (data-model §0, §0.1).

A ULID is 48 bits of Unix time in milliseconds and 80 random bits, written as 26 upper-case characters of Crockford's
base 32, so that ids of one process sort by the order in which they were made. Rows inside the database have `bigint`
keys beside them (decisions B4); these are what the world sees.
"""

import os
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NewType

from .clock import Clock

TenantId = NewType("TenantId", str)
PartnerId = NewType("PartnerId", str)
IdentityId = NewType("IdentityId", str)
AddressId = NewType("AddressId", str)
DomainId = NewType("DomainId", str)
ThreadId = NewType("ThreadId", str)
MessageId = NewType("MessageId", str)
AttachmentId = NewType("AttachmentId", str)
FolderId = NewType("FolderId", str)
DraftId = NewType("DraftId", str)
UploadId = NewType("UploadId", str)
ContactId = NewType("ContactId", str)
FilterId = NewType("FilterId", str)
EventId = NewType("EventId", str)
WebhookId = NewType("WebhookId", str)
DeliveryId = NewType("DeliveryId", str)
KeyId = NewType("KeyId", str)
PersonId = NewType("PersonId", str)
InvitationId = NewType("InvitationId", str)
SessionId = NewType("SessionId", str)
AppPasswordId = NewType("AppPasswordId", str)
PasskeyId = NewType("PasskeyId", str)
GrantId = NewType("GrantId", str)
DeviceId = NewType("DeviceId", str)
ErasureId = NewType("ErasureId", str)
ExportId = NewType("ExportId", str)
JobId = NewType("JobId", str)
DeadLetterId = NewType("DeadLetterId", str)
HoldId = NewType("HoldId", str)
ProbeId = NewType("ProbeId", str)
ServiceAccountId = NewType("ServiceAccountId", str)
AuditId = NewType("AuditId", str)
RequestId = NewType("RequestId", str)

PREFIXES: Final = frozenset(
    {
        # data-model §0.1
        "ten_",  # tenant
        "idn_",  # identity
        "adr_",  # address
        "dom_",  # domain
        "thr_",  # thread
        "msg_",  # message
        "att_",  # attachment
        "aud_",  # audit entry
        "whk_",  # webhook endpoint
        "dlv_",  # delivery: of a message to a recipient, of an event to a webhook
        "evt_",  # event
        "key_",  # API key
        "era_",  # erasure request
        "exp_",  # export
        "job_",  # long-running job
        "req_",  # request
        "usr_",  # person (decisions A2)
        "inv_",  # invitation
        "dlq_",  # dead-letter item
        "hld_",  # quota hold
        "prb_",  # alignment probe
        "ptn_",  # partner
        "sac_",  # service-ledger entry
        # decisions A2, A5 and section E
        "apw_",  # application password
        "als_",  # alias
        "cnt_",  # contact
        "dev_",  # device
        "drf_",  # draft
        "flt_",  # filter
        "fld_",  # folder
        "grt_",  # mailbox grant
        "pky_",  # passkey
        "ses_",  # session
        "upl_",  # upload
    }
)

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Two characters at a time: 13 look-ups and shifts in place of 26.
_PAIRS: Final = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
# The first character holds three bits of a 128-bit number, so it never exceeds 7.
_ULID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_CANONICAL: Final = {spelling: prefix for prefix in PREFIXES for spelling in (prefix, prefix[:-1])}
_RANDOM_BITS: Final = 80
_RANDOM_PAIRS: Final = 8
_ALL_PAIRS: Final = 13
_RANDOM_MASK: Final = (1 << _RANDOM_BITS) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class IdGenerator:
    """Makes ids that are strictly increasing within the process, whatever the clock does. Thread-safe.

    In one millisecond, and while the clock stands behind the last id, the random part of the last id is raised by
    one; should it overflow, the next millisecond is taken.
    """

    __slots__ = ("_clock", "_last", "_lock", "_random", "_time", "_time_text")

    def __init__(self, clock: Clock, random: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._random = random
        self._last = -1
        self._lock = threading.Lock()
        self._time, self._time_text = 0, _encode(0, _RANDOM_PAIRS, _ALL_PAIRS)

    def new(self, prefix: str) -> str:
        """A new id of the kind `prefix` names, one of PREFIXES (its underscore may be left out); else ValueError."""
        canonical = _CANONICAL.get(prefix)
        if canonical is None:
            raise ValueError(f"unknown id prefix {prefix!r}")
        return canonical + self.ulid()

    def ulid(self) -> str:
        """A bare ULID, from the same ordered sequence."""
        now = milliseconds(self._clock.now())
        with self._lock:
            if now > self._last >> _RANDOM_BITS:
                value = now << _RANDOM_BITS | int.from_bytes(self._random(10), "big")
            else:
                # Adding one carries from the random part into the time, which is the overflow rule itself.
                value = self._last + 1
            self._last = value
            # One text of the time serves all ids of a millisecond.
            if value >> _RANDOM_BITS != self._time:
                self._time = value >> _RANDOM_BITS
                self._time_text = _encode(value, _RANDOM_PAIRS, _ALL_PAIRS)
            return self._time_text + _encode(value, 0, _RANDOM_PAIRS)


def milliseconds(moment: datetime) -> int:
    """Whole milliseconds from the Unix epoch to `moment`."""
    return (moment - _EPOCH) // _MILLISECOND


def ulid_of(moment: datetime, drawn: bytes) -> str:
    """The ULID of a moment and ten octets: for ids that the same cause must have again."""
    if len(drawn) != _RANDOM_BITS // 8:
        raise ValueError("a ULID has ten octets beside its time")
    return _encode(milliseconds(moment) << _RANDOM_BITS | int.from_bytes(drawn, "big"), 0, _ALL_PAIRS)


def is_id(prefix: str, text: str) -> bool:
    """Whether `text` is a well-formed id of the kind `prefix` names (with or without its underscore)."""
    canonical = _CANONICAL.get(prefix)
    return canonical is not None and text.startswith(canonical) and _ULID.fullmatch(text, len(canonical)) is not None


def is_ulid(text: str) -> bool:
    """Whether `text` is a bare, upper-case ULID."""
    return _ULID.fullmatch(text) is not None


def _encode(value: int, first: int, end: int) -> str:
    """The pairs of characters of `value` from `first` until `end`, counted from its end."""
    pairs = _PAIRS
    return "".join([pairs[value >> shift & 1023] for shift in range(10 * (end - 1), 10 * (first - 1), -10)])
