"""Addresses of this machine (security-privacy A9.5)."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from postroom.base.clock import ManualClock
from postroom.net.dns_types import IpAddress
from postroom.net.own_addresses import OwnAddresses, bound

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     |-- 198.51.100.7
        /32 host LOCAL
"""
LIST = "20010db8000000000000000000000007 02 40 00 80     eth0\n00000000000000000000000000000001 01 80 10 80       lo\n"


def test_as_linux_lists_them(tmp_path: Path) -> None:
    (tmp_path / "trie").write_text(TRIE)
    (tmp_path / "list").write_text(LIST + "garbage\n")
    assert {str(one) for one in bound(tmp_path / "trie", tmp_path / "list")} == {
        *("127.0.0.1", "198.51.100.7", "2001:db8::7", "::1"),
    }


def test_where_nothing_is_listed(tmp_path: Path) -> None:
    found = bound(tmp_path / "none", tmp_path / "neither")
    for address in found:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.bind((str(address), 0))  # nobody else's


@pytest.mark.covers("SEC-9")
def test_what_is_found_is_kept_for_a_minute(clock: ManualClock) -> None:
    reads: list[frozenset[IpAddress]] = [
        frozenset({ip_address("198.51.100.7")}),
        frozenset({ip_address("198.51.100.8")}),
    ]
    own = OwnAddresses(clock, ["192.0.2.5", "localhost", "", "::"], lambda: reads.pop(0))
    fixed = {ip_address("192.0.2.5"), ip_address("::")}
    assert own() == own() == fixed | {ip_address("198.51.100.7")}
    clock.advance(60)
    assert own() == fixed | {ip_address("198.51.100.8")}
