"""Which addresses may be connected to on a stranger's word: the address rule of the SSRF guard (security-privacy A9.5).

The ranges are those of the IANA special-purpose registries (RFC 6890) that are not the public internet. Addresses with
an IPv4 address inside are judged by that one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

_IPV4: Final = tuple(
    (int(network.network_address), int(network.netmask))
    for network in map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
_IPV6: Final = tuple(
    (int(network.network_address), int(network.netmask))
    for network in map(
        IPv6Network,
        (
            "::/128",
            "::1/128",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
            "5f00::/16",
            "fc00::/7",
            "fe80::/10",
            "fec0::/10",
            "ff00::/8",
        ),
    )
)
_IPV4_INSIDE: Final = tuple(
    (int(network.network_address), int(network.netmask), shift)
    for network, shift in (
        (IPv6Network("::/96"), 0),  # IPv4-compatible (RFC 4291 §2.5.5.1)
        (IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped (RFC 4291 §2.5.5.2)
        (IPv6Network("64:ff9b::/96"), 0),  # NAT64 (RFC 6052)
        (IPv6Network("2002::/16"), 80),  # 6to4 (RFC 3056)
    )
)
"""Network, mask, and how far the last bit of the IPv4 address is from the last bit of the address."""
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
"""NAT64 of a network's own (RFC 8215): only that network knows the length of its prefix."""
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""All that IANA gives out of (RFC 3513 §4); what is beside it and has no IPv4 address inside is nobody's."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address lies in none of the ranges that A9.5 refuses.

    That a node of this deployment is bound to it is a question to somebody who knows the nodes: `is_one_of`.
    """
    value = int(address)
    if isinstance(address, IPv4Address):
        return _is_public_ipv4(value)
    if any(value & mask == network for network, mask in _IPV6):
        return False
    inside = tuple(_ipv4_inside(value))
    return all(map(_is_public_ipv4, inside)) if inside else address in _GLOBAL_UNICAST


def is_one_of(address: IPv4Address | IPv6Address, known: Collection[IPv4Address | IPv6Address]) -> bool:
    """Whether the address, or an IPv4 address inside it, is among `known`: either way the same host is reached."""
    if address in known:
        return True
    return isinstance(address, IPv6Address) and any(
        IPv4Address(inside) in known for inside in _ipv4_inside(int(address))
    )


def _ipv4_inside(value: int) -> Iterator[int]:
    for network, mask, shift in _IPV4_INSIDE:
        if value & mask == network:
            yield (value >> shift) & 0xFFFFFFFF
    if IPv6Address(value) in _LOCAL_NAT64:
        yield value & 0xFFFFFFFF
        # RFC 6052 §2.2: with a prefix of 48, 56 or 64 bits the address is further up, around octet 8. Whoever makes up
        # an address chooses its end freely, so each reading counts; one of 0.0.0.0/8 is padding, and leads nowhere.
        octets = value.to_bytes(16, "big")
        for start in (6, 7, 8):
            read = (octets[start:8] + octets[9:])[:4]
            if read[0]:
                yield int.from_bytes(read, "big")


def _is_public_ipv4(value: int) -> bool:
    return all(value & mask != network for network, mask in _IPV4)
