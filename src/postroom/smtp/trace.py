"""The trace header put before an accepted message (RFC 5321 §4.4, RFC 3848, RFC 6531 §4.3; rule A8)."""

import re
from datetime import UTC, datetime
from typing import Final

from postroom.mail.compose.fields import format_date

# Characters of a host name or address literal. A claimed name may hold anything else, which becomes "?".
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9._:\[\]-]")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")

# (TLS, authenticated) -> name in the IANA "Mail Transmission Types" registry
_TRANSMISSION: Final = {
    (False, False): "ESMTP",
    (True, False): "ESMTPS",
    (False, True): "ESMTPA",
    (True, True): "ESMTPSA",
}


def transmission_type(
    *, esmtp: bool, tls: bool = False, authenticated: bool = False, smtputf8: bool = False, lmtp: bool = False
) -> str:
    """The `with` word: `SMTP`, `ESMTP[S][A]` and `LMTP[S]` (RFC 3848), with `UTF8` before it (RFC 6531 §4.3)."""
    if lmtp:
        return ("UTF8" if smtputf8 else "") + ("LMTPS" if tls else "LMTP")
    if not esmtp and not tls and not authenticated:
        return "SMTP"
    name = _TRANSMISSION[tls, authenticated]
    return "UTF8SMTP" + name[len("ESMTP") :] if smtputf8 else name


def trace_header(
    *,
    return_path: str,
    helo: str,
    peer_ip: str,
    peer_name: str | None,
    hostname: str,
    version: str,
    transmission: str,
    connection_id: str,
    recipient: str | None,
    received_at: datetime,
    results: bytes = b"",
) -> bytes:
    """`Return-Path` and `Received`, folded, ending in CRLF, to stand directly before the message as received.

    `results`, of authentication, stand above the `Received` of the server that evaluated them (RFC 8601 §4.1): a whole
    field, or nothing.

    `return_path` is empty for the null sender. `recipient` is given only when the message has exactly one (rule A8).
    `peer_ip` comes from the socket, empty for a local one; `peer_name` is its confirmed host name, or `None`.
    `transmission` is `transmission_type(…)` or `LMTP`. Control characters never get through.
    """
    received = relay_header(
        helo=helo,
        peer_ip=peer_ip,
        peer_name=peer_name,
        hostname=hostname,
        version=version,
        transmission=transmission,
        connection_id=connection_id,
        recipient=recipient,
        received_at=received_at,
    )
    return f"Return-Path: <{_CONTROLS.sub('?', return_path)}>\r\n".encode() + results + received


def relay_header(
    *,
    helo: str,
    peer_ip: str,
    peer_name: str | None,
    hostname: str,
    version: str,
    transmission: str,
    connection_id: str,
    recipient: str | None,
    received_at: datetime,
) -> bytes:
    """`Received` alone, for mail that goes on: `Return-Path` is for whoever delivers at last (RFC 5321 §4.4).

    The arguments are those of `trace_header`.
    """
    return _received(
        f"from {_NOT_A_NAME.sub('?', helo) or 'unknown'} ({_peer(peer_ip, peer_name)})\r\n\t",
        hostname,
        version,
        transmission,
        connection_id,
        f"\r\n\tfor <{_CONTROLS.sub('?', recipient)}>" if recipient else "",
        received_at,
    ).encode()


def submission_header(
    *,
    client: tuple[str, str] | None,
    hostname: str,
    version: str,
    transmission: str,
    connection_id: str,
    received_at: datetime,
) -> bytes:
    """`Received` for mail that its author submitted (RFC 6409 §8.3), folded, ending in CRLF, to stand first.

    `client` is the name it claimed and its address; with `None` there is no `from` clause, since both say where the
    author is (RFC 5322 §3.6.7 does not ask for one). No `for` clause: a submitter's recipients are not everybody's.
    """
    origin = ""
    if client is not None:
        helo, peer_ip = client
        origin = f"from {_NOT_A_NAME.sub('?', helo) or 'unknown'} ({_peer(peer_ip, None)})\r\n\t"
    return _received(origin, hostname, version, transmission, connection_id, "", received_at).encode()


def _received(
    origin: str, hostname: str, version: str, transmission: str, connection_id: str, target: str, moment: datetime
) -> str:
    return (
        f"Received: {origin}by {hostname} (Postroom {version})\r\n"
        f"\twith {transmission} id {connection_id}{target};\r\n"
        f"\t{format_date(moment.astimezone(UTC))}\r\n"
    )


def _peer(peer_ip: str, peer_name: str | None) -> str:
    if not peer_ip:
        return "local"
    literal = f"[IPv6:{peer_ip}]" if ":" in peer_ip else f"[{peer_ip}]"
    return f"{_NOT_A_NAME.sub('?', peer_name)} {literal}" if peer_name else literal
