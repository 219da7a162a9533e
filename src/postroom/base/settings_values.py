"""What values of settings may look like: types with their checks, each of which says what is wanted.

A check takes what the file or the environment has and raises ValueError with words for a person.
"""

import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

MASK: Final = "********"

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
MAX_DNS_NAME_CHARS: Final = 253
MAX_LOCAL_CHARS: Final = 64
MAX_PORT: Final = 65535
MAX_SOCKET_PATH: Final = 100


def dns_name(text: str) -> str:
    name = text.lower().removesuffix(".")
    if len(name) > MAX_DNS_NAME_CHARS or _DNS_NAME.fullmatch(name) is None:
        raise ValueError("a DNS name in its ASCII form, such as mail.example.com, is needed")
    return name


def database_url(text: str) -> str:
    if text and re.fullmatch(r"postgres(ql)?://\S+", text) is None:
        raise ValueError("a URL that starts with postgresql:// is needed, or nothing for the bundled server")
    return text


def mailbox_address(text: str) -> str:
    """Whether there is such a mailbox is known when mail comes; nothing is as good as none."""
    local, at, domain = text.strip().rpartition("@")
    if not text.strip():
        return ""
    if not at or not local or len(local) > MAX_LOCAL_CHARS or not local.isascii() or not local.isprintable():
        raise ValueError("the address of a mailbox here is needed, such as operator@agents.example.com, or nothing")
    return f"{local}@{dns_name(domain)}"


def mask_or_empty(text: str) -> str:
    return MASK if text else ""


def network(value: object) -> object:
    """An address, or a network whose host bits are all zero."""
    if isinstance(value, str):
        try:
            return ip_network(value.strip())
        except ValueError:
            raise ValueError("networks are needed, such as 192.0.2.0/24 or 2001:db8::1") from None
    return value


def address(value: object) -> object:
    """An IP address; a name would be whatever the DNS says today."""
    if isinstance(value, str):
        try:
            return ip_address(value.strip())
        except ValueError:
            raise ValueError("IP addresses are needed, such as 203.0.113.7 or 2001:db8::7") from None
    return value


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen: a host and its port, or a socket in the file system with `port` 0."""

    host: str
    port: int = 0

    @property
    def is_path(self) -> bool:
        return self.host.startswith("/")


def parse_endpoint(text: str) -> Endpoint | None:
    """What `lmtp.listen` means; None for nothing. Raises ValueError."""
    text = text.strip()
    if not text:
        return None
    path = text.removeprefix("unix:")
    if path.startswith("/"):
        # The kernel has room for no more (sockaddr_un).
        if len(path.encode()) > MAX_SOCKET_PATH or "\0" in path or path.endswith("/"):
            raise ValueError(f"a socket's path has at most {MAX_SOCKET_PATH} bytes")
        return Endpoint(path)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= MAX_PORT:
        raise ValueError("a path such as /run/postroom/lmtp, or an address and a port such as 127.0.0.1:24, is needed")
    return Endpoint(host, int(port))


def endpoint(text: str) -> str:
    parse_endpoint(text)
    return text.strip()


_INSIDE: Final = tuple(
    ip_network(one)
    for one in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    )
)
"""Of this machine, and private (RFC 1918, RFC 3927, RFC 6598, RFC 4193, RFC 4291 §2.5.6)."""


def inside_endpoint(text: str) -> str:
    """An address that is not on the Internet, and a port. A name would be whatever the DNS says today, and all
    addresses of a machine may be public ones."""
    found = parse_endpoint(text)
    if found is None:
        return ""
    try:
        address = ip_address(found.host)
        is_inside = any(address in network for network in _INSIDE)
    except ValueError:
        is_inside = False
    if not is_inside:
        raise ValueError("an address of this machine or a private one is needed, with a port: 127.0.0.1:9464")
    return text.strip()


def name_server(text: str) -> str:
    """What exactly it is the resolver reads; here only what cannot be one is told apart."""
    if re.fullmatch(r"(?:(?:dns|tls|https)://)?[!-~]{2,2048}", text) is None:
        raise ValueError("name servers are needed, such as 192.0.2.1, tls://192.0.2.1#dns.example.com or https://…")
    return text


def origin(text: str) -> str:
    """Scheme, host and port of a page, as browsers write them (RFC 6454 §6.2)."""
    lower = text.lower()
    scheme, separator, rest = lower.partition("://")
    host, colon, port = rest.partition(":")
    usual = {"https": "443", "http": "80"}.get(scheme)
    if not separator or usual is None or (scheme == "http" and host != "localhost") or (colon and not port):
        raise ValueError("origins are needed, such as https://mail.example.com or https://mail.example.com:8443")
    if port and not (re.fullmatch(r"[1-9][0-9]{0,4}", port, re.ASCII) and int(port) <= MAX_PORT):
        raise ValueError("the port of an origin is 1 to 65535")
    return f"{scheme}://{dns_name(host)}" + (f":{port}" if port and port != usual else "")


def split(value: object) -> object:
    """A list written in one string, as the environment has it: separated by commas."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def document(value: object) -> object:
    """An object, which the environment has as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError:
            raise ValueError("a JSON object is needed") from None
    if not isinstance(value, dict):
        raise ValueError("a JSON object is needed, or a table of TOML")
    return value


def level(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def dns_name_or_nothing(text: str) -> str:
    return dns_name(text) if text.strip() else ""


def delays(value: object) -> object:
    """The schedule of retries; an empty one is a minute each time (C4)."""
    parts = split(value)
    return [60] if isinstance(parts, list | tuple) and not parts else parts


DnsName = Annotated[str, AfterValidator(dns_name)]
Port = Annotated[int, Field(ge=0, le=MAX_PORT)]
Seconds = Annotated[float, Field(gt=0, le=86400 * 366)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Field(ge=1, le=2**53)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(network)]
Addresses = Annotated[
    tuple[Annotated[IPv4Address | IPv6Address, BeforeValidator(address)], ...],
    BeforeValidator(split),
    Field(max_length=1000),
]
Password = Annotated[str, Field(max_length=1024, repr=False), PlainSerializer(mask_or_empty, when_used="json")]
Schedule = Annotated[
    tuple[Annotated[int, Field(ge=1, le=86400 * 30)], ...], BeforeValidator(delays), Field(max_length=100)
]
Origins = Annotated[tuple[Annotated[str, AfterValidator(origin)], ...], BeforeValidator(split), Field(max_length=16)]
NameServers = Annotated[
    tuple[Annotated[str, AfterValidator(name_server)], ...], BeforeValidator(split), Field(max_length=8)
]
