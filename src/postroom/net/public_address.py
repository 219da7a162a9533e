"""Which addresses may be connected to on a stranger's word: the address rule of the SSRF guard (security-privacy A9.5).

The ranges are those of the IANA special-purpose registries (RFC 6890) that are not the public internet. Addresses with
an IPv4 address inside are judged by that one.
"""

from __future__ import annotations

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
        (IPv6Network("64:ff9b:1::/48"), 0),  # NAT64 of a network's own (RFC 8215), in its usual /96 form
        (IPv6Network("2002::/16"), 80),  # 6to4 (RFC 3056)
    )
)
"""Network, mask, and how far the last bit of the IPv4 address is from the last bit of the address."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address lies in none of the ranges that A9.5 refuses.

    That a node of this deployment is bound to it is a question to somebody who knows the nodes.
    """
    value = int(address)
    if isinstance(address, IPv4Address):
        return _is_public_ipv4(value)
    if any(value & mask == network for network, mask in _IPV6):
        return False
    return all(
        _is_public_ipv4((value >> shift) & 0xFFFFFFFF)
        for network, mask, shift in _IPV4_INSIDE
        if value & mask == network
    )


def _is_public_ipv4(value: int) -> bool:
    return all(value & mask != network for network, mask in _IPV4)
