import asyncio
from typing import Any

import pytest

from postroom.servers.limits import CommandRate, ConnectionCounter, MemoryBudget, is_loopback, normalise_ip
from postroom.servers.smtp import ListenerLimits, MxListener
from postroom.servers.smtp_connection import SmtpConnection
from postroom.smtp import ServerConfig

pytestmark = pytest.mark.covers("mail-server:A7", "decisions:D21")


@pytest.mark.parametrize(
    ("raw", "text", "loopback"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.2", "127.0.0.2", True),
        ("::ffff:192.0.2.1", "192.0.2.1", False),
        ("fe80::1%eth0", "fe80::1", False),
        ("2001:db8::1", "2001:db8::1", False),
        ("", "", True),
        ("what", "what", False),
    ],
)
def test_peer_addresses(raw: str, text: str, loopback: bool) -> None:
    assert normalise_ip(raw) == text
    assert is_loopback(text) is loopback


def test_connection_counter() -> None:
    counter = ConnectionCounter(5, 2)
    for ip in ("192.0.2.1", "192.0.2.1", "127.0.0.1", "127.0.0.1"):
        assert not counter.is_full_for(ip)
        counter.add(ip)
    assert counter.is_full_for("192.0.2.1")
    assert not counter.is_full_for("127.0.0.1")
    assert not counter.is_full_for("192.0.2.2")
    assert not counter.is_full()
    counter.add("192.0.2.2")
    assert counter.is_full()
    counter.remove("192.0.2.1")
    assert not counter.is_full_for("192.0.2.1")
    assert counter.total == 4


def test_command_rate_slides() -> None:
    now = 0.0
    rate = CommandRate(3, lambda: now)
    assert [rate.exceeded("192.0.2.1") for _ in range(4)] == [False, False, False, True]
    assert not rate.exceeded("192.0.2.2")
    assert not any(rate.exceeded("127.0.0.1") for _ in range(10))
    now = 59.9
    assert rate.exceeded("192.0.2.1")
    now = 120.0
    assert [rate.exceeded("192.0.2.1") for _ in range(4)] == [False, False, False, True]


def test_command_rate_is_bounded() -> None:
    rate = CommandRate(3, lambda: 0.0)
    for number in range(10_500):
        rate.exceeded(f"2001:db8::{number:x}")
    assert len(rate._times) == 10_000


class _Holder:
    def __init__(self) -> None:
        self.held = 0
        self.calls: list[str] = []

    def stop_reading(self) -> None:
        self.calls.append("stop")

    def go_on_reading(self) -> None:
        self.calls.append("go")

    def lead(self) -> None:
        self.calls.append("lead")


def test_budget_lets_one_finish() -> None:
    budget = MemoryBudget(100)
    a, b, c = _Holder(), _Holder(), _Holder()
    budget.hold(a, 60, wants_more=True)
    budget.hold(b, 60, wants_more=True)
    budget.hold(a, 80, wants_more=True)
    budget.hold(c, 10, wants_more=True)
    assert (a.calls, b.calls, c.calls) == (["stop"], ["lead"], ["stop"])
    assert budget.is_leader(b)
    budget.hold(b, 500, wants_more=True)
    budget.hold(b, 500, wants_more=False)
    assert a.calls == ["stop", "lead", "go"]
    budget.hold(b, 0, wants_more=False)
    assert (budget.total, budget.waiting) == (90, 0)
    assert c.calls == ["stop", "go"]
    assert not budget.is_leader(a)
    budget.leave(a)
    budget.leave(c)
    assert budget.total == 0


def test_budget_when_the_leader_goes() -> None:
    budget = MemoryBudget(10)
    a, b, c = _Holder(), _Holder(), _Holder()
    for holder in (a, b, c):
        budget.hold(holder, 20, wants_more=True)
    budget.leave(a)
    assert b.calls == ["stop", "lead", "go"]
    budget.leave(c)
    assert budget.is_leader(b)
    budget.leave(b)
    assert (budget.total, budget.waiting) == (0, 0)


class _Transport(asyncio.Transport):
    def __init__(self, peer: str) -> None:
        super().__init__({"peername": (peer, 1000)})
        self.sent = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def test_limits_per_address_on_connections() -> None:
    async def never(*arguments: Any) -> Any:
        raise AssertionError

    limits = ListenerLimits(max_connections_per_ip=2, command_rate=3)
    listener: MxListener[str] = MxListener(ServerConfig("mx.example.com"), resolve=never, receive=never, limits=limits)

    def connect(peer: str) -> tuple[SmtpConnection[str], _Transport]:
        connection, transport = SmtpConnection(listener._context), _Transport(peer)
        connection.connection_made(transport)
        return connection, transport

    first, second, third = [connect("192.0.2.1") for _ in range(3)]
    assert first[1].sent.startswith(b"220 ")
    assert third[1].sent == b"421 4.3.2 Too many connections from your address\r\n"
    assert third[1].closed
    first[0].data_received(b"NOOP\r\nEHLO c\r\nNOOP\r\n")
    assert not first[1].closed
    second[0].data_received(b"EHLO c\r\nRSET\r\nNOOP\r\nNOOP\r\n")
    assert second[1].sent.endswith(b"250 2.0.0 Ok\r\n250 2.0.0 Ok\r\n421 4.7.0 Too many commands, slow down\r\n")
    assert second[1].sent.count(b"Ok\r\n") == 2
    assert second[1].closed
    others = [connect("127.0.0.1") for _ in range(5)]
    others[0][0].data_received(b"NOOP\r\n" * 50)
    assert others[0][1].sent.count(b"Ok") == 50
    for connection, _ in (first, second, third, *others):
        connection.connection_lost(None)
    assert listener.connection_count == 0
