"""Which addresses may be connected to (security-privacy A9.5)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.net.public_address import is_one_of, is_public

REFUSED = """
    0/8 10/8 100.64/10 127/8 169.254/16 172.16/12 192.0.0/24 192.0.2/24 192.88.99/24 192.168/16 198.18/15 198.51.100/24
    203.0.113/24 224/4 240/4 ::/128 ::1/128 100::/64 2001::/23 2001:db8::/32 3fff::/20 5f00::/16 fc00::/7 fe80::/10
    fec0::/10 ff00::/8
"""


def _network(text: str) -> tuple[int, int, int]:
    """Version, first and last address of a range as the rule writes it."""
    base, _, length = text.partition("/")
    if ":" not in base:
        base = ".".join([*base.split("."), "0", "0", "0"][:4])
    network = ip_network(f"{base}/{length}")
    return network.version, int(network.network_address), int(network.broadcast_address)


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize("text", REFUSED.split())
def test_every_range_is_refused_to_its_edges(text: str) -> None:
    version, first, last = _network(text)
    kind = IPv4Address if version == 4 else IPv6Address
    for value in (first, (first + last) // 2, last):
        assert not is_public(kind(value))


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize(
    "text",
    [
        *("1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0"),
        *("169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.0.3.0", "192.88.98.255"),
        *("192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "203.0.114.0", "223.255.255.255"),
        *("2001:200::", "2001:db7:ffff::", "2001:db9::", "2606:4700::1111", "3ffe:ffff::", "3fff:1000::", "2a00::1"),
    ],
)
def test_what_is_beside_the_ranges_passes(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.covers("security-privacy:A9")
@given(st.ip_addresses(v=4))
def test_addresses_inside_addresses_count(inside: IPv4Address) -> None:
    value, expected = int(inside), is_public(inside)
    for wrapped in (
        int(IPv6Address("::ffff:0:0")) | value,
        int(IPv6Address("64:ff9b::")) | value,
        int(IPv6Address("64:ff9b:1::")) | value,
        int(IPv6Address("2002::")) | value << 80 | 1,
    ):
        assert is_public(IPv6Address(wrapped)) is expected


@pytest.mark.covers("security-privacy:A9")
@given(st.ip_addresses())
def test_nothing_passes_that_python_calls_not_global(address: IPv4Address | IPv6Address) -> None:
    inside = isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour or address.teredo)
    if not inside and (not address.is_global or address.is_multicast or (address.is_reserved and address.version == 4)):
        # NAT64 of a network's own is judged by the address inside; Python calls all of it private.
        assert not is_public(address) or address in ip_network("64:ff9b:1::/48")


@pytest.mark.covers("security-privacy:A9", "RFC 6052 §2.2")
@given(st.ip_addresses(v=4), st.sampled_from([48, 56, 64]), st.integers(0, 0xFFFFFFFF))
def test_a_network_s_own_nat64_is_read_with_every_length_of_prefix(inside: IPv4Address, length: int, end: int) -> None:
    """Whatever the end of the address says: a translator with the shorter prefix does not look at it."""
    octets = bytearray(IPv6Address("64:ff9b:1::").packed)
    octets[12:] = end.to_bytes(4, "big")
    places = [place for place in range(length // 8, 13) if place != 8][:4]
    for place, octet in zip(places, inside.packed, strict=True):
        octets[place] = octet
    if inside.packed[0] and not is_public(inside):
        assert not is_public(IPv6Address(bytes(octets)))


@pytest.mark.covers("security-privacy:A9")
@pytest.mark.parametrize(
    "text", ["::ffff:0:7f00:1", "::ffff:0:808:808", "1::1", "200::", "400::1", "1fff::1", "4000::1", "e000::1"]
)
def test_what_iana_gives_to_nobody_is_refused(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.covers("security-privacy:A9")
@given(st.ip_addresses(v=4))
def test_an_address_of_ours_is_found_inside_others(own: IPv4Address) -> None:
    value = int(own)
    for wrapped in (
        own,
        IPv6Address(int(IPv6Address("::ffff:0:0")) | value),
        IPv6Address(int(IPv6Address("64:ff9b::")) | value),
        IPv6Address(int(IPv6Address("2002::")) | value << 80 | 1),
    ):
        assert is_one_of(wrapped, {own})
        assert not is_one_of(wrapped, {IPv4Address(value ^ 1)})
    assert not is_one_of(IPv6Address(int(IPv6Address("2606:4700::")) | value), {own})
