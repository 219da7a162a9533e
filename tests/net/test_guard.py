"""Which destinations a stranger may name (security-privacy A9, rules 1 to 5)."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.net.guard import Refusal, Target, check_addresses, check_host, check_url
from postroom.net.public_address import is_public

OWN: Final = ("api.postroom.org", "console.postroom.org")
PLATFORM: Final = "mail.postroom.org"


def _checked(url: str, *, test_hosts: tuple[str, ...] = ()) -> Target | Refusal:
    return check_url(url, own_hosts=OWN, platform_domain=PLATFORM, allowed_test_hosts=test_hosts)


def _why(url: str) -> Refusal:
    found = _checked(url)
    assert isinstance(found, Refusal), found
    return found


@pytest.mark.covers("security-privacy:A9", "FR-WH-5")
@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("https://hooks.example.com", "hooks.example.com", 443, "/", "hooks.example.com"),
        ("HTTPS://Hooks.Example.COM:443/a//b/../c?d=%2F&e=f?", "hooks.example.com", 443, "/a//b/../c?d=%2F&e=f?", None),
        ("https://hooks.example.com:1024?x", "hooks.example.com", 1024, "/?x", "hooks.example.com:1024"),
        ("https://hooks.example.com:65535/@:!$&'()*+,;=~", "hooks.example.com", 65535, "/@:!$&'()*+,;=~", None),
        ("https://my_app.tunnel-9.io/", "my_app.tunnel-9.io", 443, "/", None),
        ("https://bücher.de/", "xn--bcher-kva.de", 443, "/", None),
        ("https://BÜCHER.de/", "xn--bcher-kva.de", 443, "/", None),
        ("https://xn--BCHER-kva.de/", "xn--bcher-kva.de", 443, "/", None),
        ("https://straße.de/", "xn--strae-oqa.de", 443, "/", None),
        ("https://127.0.0.1.nip.io/", "127.0.0.1.nip.io", 443, "/", None),
        ("https://localhost.com/", "localhost.com", 443, "/", None),
        ("https://xpostroom.org/", "xpostroom.org", 443, "/", None),
        ("https://x.api.postroom.org/", "x.api.postroom.org", 443, "/", None),
    ],
)
def test_good_urls(url: str, host: str, port: int, path: str, authority: str | None) -> None:
    target = _checked(url)
    assert target == Target(host, port, path)
    assert isinstance(target, Target)
    assert authority is None or target.authority == authority


ODD_LITERALS: Final = """
    127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7f.1 0X7F.0.0.1 0x7f.0x0.0x0.0x1 017700000001 0177.0.0.1 0177.1
    127.0.0.0x1 0x 0x7f000001.0x 1.2.3.4.5 a.b.0x a.1 a.00 999.999.999.999 4294967296 8.8.8.8 0 0.0 169.254.169.254
"""


@pytest.mark.covers("security-privacy:A9", "security-privacy:A14")
@pytest.mark.parametrize("host", ODD_LITERALS.split())
def test_addresses_are_no_names_in_any_notation(host: str) -> None:
    assert _why(f"https://{host}/") is Refusal.IP_LITERAL
    assert _why(f"https://{host}:8443/") is Refusal.IP_LITERAL
    assert not isinstance(_checked(f"https://{host}./"), Target)


@pytest.mark.covers("security-privacy:A9", "security-privacy:A14")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", Refusal.NOT_HTTPS),
        ("http://a.com/", Refusal.NOT_HTTPS),
        ("https:/a.com/", Refusal.NOT_HTTPS),
        ("https:a.com/", Refusal.NOT_HTTPS),
        ("//a.com/", Refusal.NOT_HTTPS),
        (" https://a.com/", Refusal.NOT_HTTPS),
        ("https:\\\\a.com/", Refusal.NOT_HTTPS),
        ("ht\ttps://a.com/", Refusal.NOT_HTTPS),
        ("gopher://a.com/", Refusal.NOT_HTTPS),
        ("https://a.com/" + "x" * 2035, Refusal.TOO_LONG),
        ("https://a.com/" + "é" * 1018, Refusal.TOO_LONG),
        ("https://a.com/#", Refusal.FRAGMENT),
        ("https://a.com#@b.com/", Refusal.FRAGMENT),
        ("https://u@a.com/", Refusal.USERINFO),
        ("https://u:p@a.com/", Refusal.USERINFO),
        ("https://@a.com/", Refusal.USERINFO),
        ("https://a.com@b.com@c.com/", Refusal.USERINFO),
        ("https://a.com\\@b.com/", Refusal.MALFORMED),
        ("https://a.com\\.b.com/", Refusal.MALFORMED),
        ("https://a.com /", Refusal.MALFORMED),
        ("https://a.com/ ", Refusal.MALFORMED),
        ("https://a.com/\n", Refusal.MALFORMED),
        ("https://a.com\n", Refusal.MALFORMED),
        ("https://a.\tcom/", Refusal.MALFORMED),
        ("https://a.com/\r\nHost:%20b", Refusal.MALFORMED),
        ("https://a.com/\x00", Refusal.MALFORMED),
        ("https://a.com/\x7f", Refusal.MALFORMED),
        ("https://a.com/é", Refusal.MALFORMED),
        ("https://a.com/?é", Refusal.MALFORMED),
        ("https://a.com/%", Refusal.MALFORMED),
        ("https://a.com/%4", Refusal.MALFORMED),
        ("https://a.com/?%zz", Refusal.MALFORMED),
        ("https://a.com/<>", Refusal.MALFORMED),
        ("https://a.com/[]", Refusal.MALFORMED),
        ("https://", Refusal.MALFORMED),
        ("https:///a.com/", Refusal.MALFORMED),
        ("https://:443/", Refusal.MALFORMED),
        ("https://?a.com", Refusal.MALFORMED),
        ("https://a.com:/", Refusal.MALFORMED),
        ("https://a.com:0443/", Refusal.MALFORMED),
        ("https://a.com:+443/", Refusal.MALFORMED),
        ("https://a.com:443:443/", Refusal.MALFORMED),
        ("https://a.com:４４３/", Refusal.MALFORMED),
        ("https://a.com:0/", Refusal.MALFORMED),
        ("https://a.com:22/", Refusal.PORT),
        ("https://a.com:80/", Refusal.PORT),
        ("https://a.com:444/", Refusal.PORT),
        ("https://a.com:1023/", Refusal.PORT),
        ("https://a.com:65536/", Refusal.PORT),
        ("https://a.com:99999/", Refusal.PORT),
        ("https://[::1]/", Refusal.IP_LITERAL),
        ("https://[::ffff:127.0.0.1]:8443/", Refusal.IP_LITERAL),
        ("https://[v1.x]/", Refusal.IP_LITERAL),
        ("https://[a.com]/", Refusal.IP_LITERAL),
        ("https://::1/", Refusal.MALFORMED),
        ("https://%31%32%37.0.0.%31/", Refusal.HOST),
        ("https://a%2ecom/", Refusal.HOST),
        ("https://a.com%00.b.com/", Refusal.HOST),
        ("https://１２７.0.0.1/", Refusal.HOST),
        ("https://①②⑦.0.0.①/", Refusal.HOST),
        ("https://127。0。0。1/", Refusal.HOST),
        ("https://a．com/", Refusal.HOST),
        ("https://ｌocalhost/", Refusal.HOST),
        ("https://ⓔxample.com/", Refusal.HOST),
        ("https://\u212a.com/", Refusal.HOST),
        ("https://\u212abü.com/", Refusal.HOST),
        ("https://a\u00ad.com/", Refusal.HOST),
        ("https://a\u200b.com/", Refusal.HOST),
        ("https://☕.com/", Refusal.HOST),
        ("https://xn--a.com/", Refusal.HOST),
        ("https://xn--.com/", Refusal.HOST),
        ("https://xn--127-.com/", Refusal.HOST),
        ("https://\ud800.com/", Refusal.HOST),
        ("https://intranet/", Refusal.HOST),
        ("https://a.com./", Refusal.HOST),
        ("https://a..com/", Refusal.HOST),
        ("https://.a.com/", Refusal.HOST),
        ("https://-a.com/", Refusal.HOST),
        ("https://a-.com/", Refusal.HOST),
        ("https://a!b.com/", Refusal.HOST),
        ("https://*.a.com/", Refusal.HOST),
        (f"https://{'a' * 64}.com/", Refusal.HOST),
        (f"https://{'.'.join(['a' * 60] * 5)}/", Refusal.HOST),
        ("https://localhost/", Refusal.NAME),
        ("https://LOCALHOST:8443/", Refusal.NAME),
        ("https://a.localhost/", Refusal.NAME),
        ("https://localhost./", Refusal.HOST),
        ("https://printer.local/", Refusal.NAME),
        ("https://metadata.google.internal/", Refusal.NAME),
        ("https://a.invalid/", Refusal.NAME),
        ("https://a.test/", Refusal.NAME),
        ("https://a.b.example/", Refusal.NAME),
        ("https://a.onion/", Refusal.NAME),
        ("https://router.home.arpa/", Refusal.NAME),
        ("https://home.arpa/", Refusal.NAME),
        ("https://1.0.0.127.in-addr.arpa/", Refusal.NAME),
        ("https://API.postroom.org/", Refusal.OWN_NAME),
        ("https://console.postroom.org:8443/", Refusal.OWN_NAME),
        ("https://mail.postroom.org/", Refusal.OWN_NAME),
        ("https://a.b.mail.postroom.org/", Refusal.OWN_NAME),
    ],
)
def test_bad_urls(url: str, why: Refusal) -> None:
    assert _why(url) is why


@pytest.mark.covers("security-privacy:A9")
def test_the_longest_url() -> None:
    assert isinstance(_checked("https://a.com/" + "x" * 2034), Target)


@pytest.mark.covers("security-privacy:A9")
def test_names_of_ours_may_be_international() -> None:
    def why(url: str) -> Target | Refusal:
        return check_url(url, own_hosts=["API.Bücher.de"], platform_domain="Straße.de.")

    assert why("https://api.xn--bcher-kva.de/") is Refusal.OWN_NAME
    assert why("https://x.straße.de/") is Refusal.OWN_NAME
    assert isinstance(why("https://bücher.de/"), Target)


@pytest.mark.covers("security-privacy:A9")
def test_named_test_hosts_pass_by_name_alone() -> None:
    target = _checked("https://localhost:8443/x", test_hosts=("localhost",))
    assert target == Target("localhost", 8443, "/x", test_host=True)
    assert _checked("https://localhost:22/", test_hosts=("localhost",)) is Refusal.PORT
    assert not isinstance(_checked("http://localhost/", test_hosts=("localhost",)), Target)
    assert _checked("https://a.localhost/", test_hosts=("localhost",)) is Refusal.NAME
    assert _checked("https://hooks.example.com/", test_hosts=("localhost",)) == Target("hooks.example.com", 443, "/")


@pytest.mark.covers("security-privacy:A9")
def test_a_host_alone() -> None:
    """As for the relay of a tenant, which has no URL."""
    assert check_host("Smtp.Example.com", own_hosts=OWN, platform_domain=PLATFORM) == "smtp.example.com"
    assert check_host("10.0.0.1", own_hosts=OWN, platform_domain=PLATFORM) is Refusal.IP_LITERAL
    assert check_host("x.mail.postroom.org", own_hosts=OWN, platform_domain=PLATFORM) is Refusal.OWN_NAME
    assert check_host("x.mail.postroom.org", own_hosts=OWN, platform_domain=None) == "x.mail.postroom.org"
    assert check_host("", own_hosts=OWN, platform_domain=PLATFORM) is Refusal.HOST


_PIECES: Final = st.sampled_from(
    [
        *(
            "a.com",
            "hooks",
            "b",
            ".",
            "..",
            "org",
            "127",
            "1",
            "0x7f",
            "0",
            "017",
            "localhost",
            "test",
            "xn--",
            "bcher-kva",
        ),
        *(
            "/",
            "//",
            "?",
            "#",
            "@",
            ":",
            "443",
            "8443",
            "80",
            "[",
            "]",
            "::1",
            "\\",
            "%",
            "%2e",
            "%40",
            "%00",
            "\t",
            "\n",
        ),
        *(
            " ",
            "\x00",
            "ü",
            "ß",
            "\uff0e",
            "\u3002",
            "\uff11",
            "\u212a",
            "\u200d",
            "é",
            "-",
            "_",
            "&",
            "=",
            ";",
            "https://",
        ),
    ]
)


@pytest.mark.covers("security-privacy:A9", "security-privacy:A14")
@given(
    st.sampled_from(["", "hooks.org", "a.b.com:8443", "bücher.de", "bücher.de/"]),
    st.one_of(st.lists(_PIECES, max_size=10).map("".join), st.text(max_size=20)),
    st.sampled_from(["/", "", "?", ":"]),
)
@example("", "hooks.org", "/")
def test_whatever_passes_is_read_alike_by_others(start: str, text: str, end: str) -> None:
    """Two independent parsers agree on host and port; what the C library takes for an address never passes."""
    url = f"https://{start}{text}{end}"
    target = _checked(url)
    if not isinstance(target, Target):
        return
    split = urlsplit(url)
    assert split.username is None
    assert split.password is None
    assert split.fragment == ""
    assert (split.port or 443) == target.port
    assert split.hostname is not None
    if split.hostname.isascii():
        assert split.hostname == target.host
    read = httpx.URL(url)
    assert (read.raw_host.decode(), read.port or 443) == (target.host, target.port)
    assert read.raw_path.decode().startswith("/")
    assert target.path.isascii()
    assert target.path.startswith("/")
    assert target.path.isprintable()
    assert " " not in target.path
    with pytest.raises(OSError):
        socket.inet_aton(target.host)
    # It is its own reading: nothing changes when it is read again.
    again = _checked(f"https://{target.authority}{target.path}")
    assert again == target


@pytest.mark.covers("security-privacy:A9", "security-privacy:A14")
@given(st.lists(st.ip_addresses(), max_size=5), st.frozensets(st.ip_addresses(), max_size=2))
def test_one_bad_address_spoils_all(addresses: list[IPv4Address | IPv6Address], own: frozenset[IPv4Address]) -> None:
    refusal = check_addresses(addresses, own_addresses=own)
    if not addresses:
        assert refusal is Refusal.NO_ADDRESS
    elif not all(map(is_public, addresses)) or own & set(addresses):
        assert refusal is Refusal.ADDRESS
    else:
        assert refusal is None


_BAD: Final = """
    127.0.0.1 10.1.2.3 169.254.169.254 100.64.0.1 ::1 fe80::1 fd00:ec2::254 ::ffff:10.0.0.1 64:ff9b::7f00:1
    2002:7f00:1:: 64:ff9b:1:a00:0:100:808:808 1.1.1.1 ::ffff:1.1.1.1
"""
"""The last two are a node's own, plain and inside another."""


@pytest.mark.covers("security-privacy:A9", "security-privacy:A14")
@pytest.mark.parametrize("text", _BAD.split())
def test_among_good_ones(text: str) -> None:
    good = [ip_address("8.8.8.8"), ip_address("2606:4700::1111")]
    own = {ip_address("1.1.1.1")}
    assert check_addresses(good, own_addresses=own) is None
    for addresses in ([ip_address(text)], [ip_address(text), *good], [*good, ip_address(text)]):
        assert check_addresses(addresses, own_addresses=own) is Refusal.ADDRESS
