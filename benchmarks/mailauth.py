"""SPF: a check of a realistic domain whose answers of the DNS are at hand, against pyspf where it is installed."""

from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

from postroom.mailauth.resolver import NameNotFoundError
from postroom.mailauth.spf import Session, check_mail_from
from postroom.mailauth.spf_record import MAX_RECORD_BYTES, parse_record
from postroom.mailauth.spf_result import SpfError, Status
from postroom.mailauth.zone import Written, Zone

from .common import Row, best, finish, row

_SENDER: Final = "billing@example.com"
_HELO: Final = "out.example.net"
_LAST: Final = "203.0.113.77"
"""A client that only the last network of the last include covers."""
_STRANGER: Final = "198.51.100.200"


def _networks(first: int, count: int) -> str:
    return " ".join(f"ip4:10.{first}.{number}.0/24" for number in range(count))


def names() -> dict[str, Written]:
    """A domain with a host of its own and three providers: one of many networks, one in two steps, one small."""
    return {
        "example.com": {
            "TXT": [
                "unrelated-verification=0123456789abcdef",
                "v=spf1 a mx include:_spf.mail.example include:spf.crm.example include:_spf.bulk.example ~all",
            ],
            "A": ["192.0.2.10"],
            "MX": ["10 mx1.example.com", "20 mx2.example.com"],
        },
        "mx1.example.com": {"A": ["192.0.2.11"]},
        "mx2.example.com": {"A": ["192.0.2.12"]},
        "_spf.mail.example": {"TXT": [f"v=spf1 {_networks(1, 14)} ip6:2001:db8:4000::/36 ip6:2001:db8:8000::/36 ~all"]},
        "spf.crm.example": {"TXT": ["v=spf1 include:_nets.crm.example ~all"]},
        "_nets.crm.example": {"TXT": [f"v=spf1 {_networks(2, 10)} ~all"]},
        "_spf.bulk.example": {"TXT": ["v=spf1 ip4:203.0.113.0/26 ip4:203.0.113.64/26 -all"]},
    }


def _hostile() -> dict[str, bytes]:
    return {
        "terms": b"v=spf1 " + b"a " * 400,
        "networks": b"v=spf1" + b" ip4:1.2.3.4/31" * 270,
        "macros": b"v=spf1 exists:" + b"%{S2r.-+}" * 450,
        "slashes": b"v=spf1 a:" + b"/1" * 2000,
        "unfinished macro": b"v=spf1 exists:" + b"%{d" * 1350,
        "dots": b"v=spf1 a:" + b"." * 4080,
    }


def _parse(data: bytes) -> None:
    try:
        parse_record(data)
    except SpfError:
        return


def _peer(client: str, wanted: Status) -> Callable[[], Any] | None:
    """The same check with pyspf; None when it is not installed."""
    try:
        import spf  # type: ignore[import-untyped]  # it has no annotations
    except ImportError:
        return None
    zone = Zone(names())
    asking = {"TXT": zone.txt, "A": zone.a, "AAAA": zone.aaaa, "MX": zone.mx}

    def lookup(name: str, kind: str, *_: Any) -> list[Any]:
        try:
            found: Sequence[Any] = finish(asking[kind](name))
        except NameNotFoundError:
            return []
        match kind:
            case "TXT":
                return [((name, kind), (text,)) for text in found]
            case "MX":
                return [((name, kind), (number, host)) for number, host in enumerate(found)]
            case _:
                return [((name, kind), str(one)) for one in found]

    spf.DNSLookup = lookup

    def checking() -> Any:
        return spf.query(i=client, s=_SENDER, h=_HELO).check()

    if checking()[0] != wanted.value:
        raise RuntimeError("pyspf thinks otherwise")
    return checking


def run(quick: bool) -> list[Row]:
    """Rows of the table; `peer` is pyspf's figure."""
    seconds = 0.2 if quick else 1.0
    rows: list[Row] = []
    for name, client, wanted in (
        ("last include passes", _LAST, Status.PASS),
        ("nothing matches", _STRANGER, Status.SOFTFAIL),
    ):
        rows.append(_check(name, client, wanted, seconds))
    for name, data in _hostile().items():
        assert len(data) <= MAX_RECORD_BYTES
        rows.append(row(f"hostile SPF record: {name}", best(partial(_parse, data), seconds / 10) * 1e3, "ms", target=2))
    return rows


def _check(name: str, client: str, wanted: Status, seconds: float) -> Row:
    zone, session = Zone(names()), Session(ip_address(client), _HELO)

    def checking() -> Any:
        zone.asked.clear()
        return finish(check_mail_from(zone, session, _SENDER))

    if checking().status is not wanted:
        raise RuntimeError(f"not {wanted}: {checking()}")
    peer = _peer(client, wanted)
    theirs = None if peer is None else best(peer, seconds) * 1e6
    ours = best(checking, seconds) * 1e6
    return row(f"SPF, three includes, {name}", ours, "µs", target=500, peer=theirs, peer_name="pyspf")
