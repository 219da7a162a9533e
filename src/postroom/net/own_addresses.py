"""Which addresses this machine is bound to: what strangers name must not lead back to it (security-privacy A9.5).

What is not of the public internet is refused anyway (`public_address`); this is about public addresses of our own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from postroom.base.clock import Clock
from postroom.net.dns_types import IpAddress

FRESH_SECONDS: Final = 60.0
_IPV4: Final = Path("/proc/net/fib_trie")
_IPV6: Final = Path("/proc/net/if_inet6")
_OUTSIDE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


class OwnAddresses:
    """Called, the addresses as they were at most a minute ago. `hosts` are where listeners listen."""

    def __init__(
        self, clock: Clock, hosts: Iterable[str], read: Callable[[], frozenset[IpAddress]] | None = None
    ) -> None:
        self._clock, self._read = clock, read or bound
        self._hosts = frozenset(address for host in hosts if (address := _address(host)) is not None)
        self._found: frozenset[IpAddress] = frozenset()
        self._until = float("-inf")

    def __call__(self) -> frozenset[IpAddress]:
        now = self._clock.monotonic()
        if now >= self._until:
            self._found, self._until = self._hosts | self._read(), now + FRESH_SECONDS
        return self._found


def bound(ipv4: Path = _IPV4, ipv6: Path = _IPV6) -> frozenset[IpAddress]:
    """Addresses of this machine's interfaces, as Linux lists them; elsewhere those that it would send from."""
    found = {*_of_trie(_text(ipv4)), *_of_list(_text(ipv6))}
    return frozenset(found or _sending())


def _of_trie(text: str) -> Iterator[IpAddress]:
    """`|-- 10.0.0.5` is an address of ours where the next line says `/32 host LOCAL`."""
    last = ""
    for line in text.splitlines():
        if line.strip() == "/32 host LOCAL" and (address := _address(last.rpartition("-- ")[2])) is not None:
            yield address
        last = line


def _of_list(text: str) -> Iterator[IpAddress]:
    """An address in 32 hexadecimal digits begins each line."""
    for line in text.splitlines():
        digits = line[:32]
        if (address := _address(":".join(digits[at : at + 4] for at in range(0, 32, 4)))) is not None:
            yield address


def _sending() -> Iterator[IpAddress]:
    for family, outside in _OUTSIDE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as made:
                made.connect((outside, 9))  # of a datagram socket: nothing is sent
                yield ip_address(made.getsockname()[0])
        except OSError:
            continue


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace")
    except OSError:
        return ""


def _address(text: str) -> IpAddress | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
