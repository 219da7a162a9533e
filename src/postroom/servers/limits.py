"""What keeps one client, or many, from using up the listeners of a process (rule A7, D21)."""

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

_WINDOW: Final = 60.0
_MAX_TRACKED: Final = 10_000


def is_loopback(peer_ip: str) -> bool:
    """Whether `peer_ip` is the machine itself; an empty one is a local socket."""
    if not peer_ip:
        return True
    try:
        return ipaddress.ip_address(peer_ip).is_loopback
    except ValueError:
        return False


def normalise_ip(host: str) -> str:
    """The text of a socket's peer address: without a scope, and IPv4 when it is IPv4 mapped into IPv6."""
    host = host.partition("%")[0]
    if host.startswith("::ffff:") and "." in host:
        return host[len("::ffff:") :]
    return host


class ConnectionCounter:
    """Open connections, in all and by address. Loopback counts in the total only."""

    def __init__(self, limit: int, limit_per_ip: int) -> None:
        self._limit = limit
        self._limit_per_ip = limit_per_ip
        self._by_ip: dict[str, int] = {}
        self.total = 0

    def is_full(self) -> bool:
        """Whether the listener takes no further connection."""
        return self.total >= self._limit

    def is_full_for(self, peer_ip: str) -> bool:
        """Whether this address has as many connections as it may."""
        return self._by_ip.get(peer_ip, 0) >= self._limit_per_ip and not is_loopback(peer_ip)

    def add(self, peer_ip: str) -> None:
        """Count a connection."""
        self.total += 1
        self._by_ip[peer_ip] = self._by_ip.get(peer_ip, 0) + 1

    def remove(self, peer_ip: str) -> None:
        """Stop counting a connection."""
        self.total -= 1
        left = self._by_ip[peer_ip] - 1
        if left:
            self._by_ip[peer_ip] = left
        else:
            del self._by_ip[peer_ip]


class CommandRate:
    """Unproductive commands of an address in the last minute, all its connections together. Loopback is exempt."""

    def __init__(self, limit: int, monotonic: Callable[[], float]) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def exceeded(self, peer_ip: str) -> bool:
        """Count one command; `True` when the address had its `limit` within the last 60 s already."""
        now = self._monotonic()
        times = self._times.get(peer_ip)
        if times is None:
            if is_loopback(peer_ip):
                return False
            times = self._times[peer_ip] = deque(maxlen=self._limit)
            if len(self._times) > _MAX_TRACKED:
                self._times.popitem(last=False)
        else:
            self._times.move_to_end(peer_ip)
        over = len(times) == self._limit and now - times[0] < _WINDOW
        times.append(now)
        return over


class Holder(Protocol):
    """A connection that holds message bytes."""

    held: int
    """Octets counted for it; written by the budget alone."""

    def stop_reading(self) -> None:
        """Called when the budget is used up: take nothing more in."""

    def go_on_reading(self) -> None:
        """Called when there is room again."""

    def lead(self) -> None:
        """Called when this connection alone may read on; it must see to being done, or gone, in good time."""


class MemoryBudget:
    """Bounds the message bytes that all connections of a process hold together.

    Over `limit` octets, connections in the middle of a message stop reading; TCP makes their clients wait. So that they
    cannot all wait for each other, one — the leader — reads on to its end, then the next. What is held thus stays
    under `limit`, plus one message, plus what one read brings for each connection.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._leader: Holder | None = None
        self._waiting: OrderedDict[int, Holder] = OrderedDict()
        self.total = 0

    @property
    def waiting(self) -> int:
        """How many connections are stopped."""
        return len(self._waiting)

    def is_leader(self, holder: Holder) -> bool:
        """Whether the others wait for this one."""
        return self._leader is holder

    def hold(self, holder: Holder, held: int, *, wants_more: bool) -> None:
        """`holder` now holds `held` octets. `wants_more`: it is in the middle of a message."""
        self.total += held - holder.held
        holder.held = held
        if not wants_more:
            self._waiting.pop(id(holder), None)
        if wants_more and self.total > self._limit:
            if self._leader is None:
                self._appoint(holder)
            elif self._leader is not holder and id(holder) not in self._waiting:
                self._waiting[id(holder)] = holder
                holder.stop_reading()
            return
        if self._leader is None and not self._waiting:
            return
        if self._leader is holder and not wants_more:
            self._leader = None
        self._share()

    def leave(self, holder: Holder) -> None:
        """`holder` is gone."""
        self.hold(holder, 0, wants_more=False)

    def _appoint(self, holder: Holder) -> None:
        self._leader = holder
        holder.lead()

    def _share(self) -> None:
        if self.total <= self._limit:
            self._leader = None
            waiting = list(self._waiting.values())
            self._waiting.clear()
            for holder in waiting:
                holder.go_on_reading()
        elif self._leader is None and self._waiting:
            _, holder = self._waiting.popitem(last=False)
            self._appoint(holder)
            holder.go_on_reading()
