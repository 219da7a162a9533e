"""Targets of fuzzing: functions of bytes that return when all is well, and raise when an invariant does not hold.

Tests call them with what hypothesis makes; a fuzzer may call them with what it likes.
"""

from ipaddress import ip_address
from typing import Final

from postroom.mailauth.spf import MAX_LOOKUPS, Session, check_mail_from
from postroom.mailauth.spf_record import MAX_RECORD_BYTES, Mechanism, is_record, parse_record
from postroom.mailauth.spf_result import Reason, SpfError, Status
from postroom.mailauth.zone import Zone
from tests.mailauth.spf_tools import MOST_QUESTIONS, finish, sound

_CLIENTS: Final = ("192.0.2.3", "2001:db8::1")
_OTHER: Final = "target.example.com"


def spf_record(data: bytes) -> None:
    """A record (requirements §7, `dns_records`): read or refused; published, it is judged within the limits."""
    record, refused = None, None
    try:
        record = parse_record(data)
    except SpfError as error:
        refused = error
    if record is not None:
        assert is_record(data)
        assert len(data) <= MAX_RECORD_BYTES
        for directive in record.directives:
            assert directive.text.encode() in data
            assert directive.target is None or directive.mechanism not in (Mechanism.IP4, Mechanism.IP6, Mechanism.ALL)
    if refused is not None:
        assert refused.reason in (Reason.SYNTAX, Reason.RECORD_TOO_LARGE)
        assert refused.term.encode() in data
    for client in _CLIENTS:
        zone = Zone({"example.com": {"TXT": [data]}, _OTHER: {"TXT": [data], "A": [_CLIENTS[0]]}})
        result = finish(check_mail_from(zone, Session(ip_address(client), _OTHER), "user-x@example.com"))
        sound(result)
        assert zone.questions <= MOST_QUESTIONS
        if record is None:
            assert result.status is (Status.PERMERROR if is_record(data) else Status.NONE)
        assert result.lookups <= MAX_LOOKUPS
