"""Reading feedback reports: what a receiver of our mail complains of (RFC 5965, RFC 6591, RFC 6650)."""

import ipaddress
from dataclasses import dataclass
from typing import Final

from postroom.mail import mime, reports
from postroom.mail.address import read_addresses
from postroom.mail.dsn.report import MAX_RECIPIENTS
from postroom.mail.reports import cut, typed_text, well_formed

_MAX_KIND: Final = 40
_MAX_DOMAINS: Final = 20


@dataclass(frozen=True, slots=True)
class AuthFailure:
    """What a receiver found wrong with the proof of where a message came from (RFC 6591 §3), in lower case."""

    kind: str | None
    """`adsp`, `bodyhash`, `revoked`, `signature`, `spf`, `dmarc`."""
    delivery_result: str | None
    identity_alignment: str | None
    dkim_domain: str | None
    dkim_selector: str | None


@dataclass(frozen=True, slots=True)
class Feedback:
    """One report. `kind` is the feedback type in lower case: `abuse`, `fraud`, `virus`, `not-spam`, `auth-failure`,
    `opt-out`, `other`, or a later one. Ids are those of the reported message; `original_recipients` those that the
    report names, which many receivers hide.
    """

    kind: str
    user_agent: str | None
    reporting_mta: str | None
    source_ip: str | None
    arrival_date: str | None
    incidents: int
    original_mail_from: str | None
    original_recipients: tuple[str, ...]
    original_envelope_id: str | None
    original_message_id: str | None
    original_from: str | None
    original_to: tuple[str, ...]
    reported_domains: tuple[str, ...]
    auth_failure: AuthFailure | None


def parse_arf(raw: bytes, message: mime.Message | None = None) -> Feedback | None:
    """The feedback report that a message is, None when it is none. Never raises on content.

    A `message/feedback-report` part makes it one; without a type in it, it is `other` (RFC 5965 §3.1 requires one).
    """
    message = mime.parse(raw) if message is None else message
    parts = list(reports.leaves(message.root))
    part = next((part for part in parts if part.content_type == "message/feedback-report"), None)
    if part is None:
        return None
    fields: dict[str, list[str]] = {}
    for _, name, value in reports.read_fields(reports.part_text(raw, part)):
        fields.setdefault(name, []).append(value)
    first = {name: values[0] for name, values in fields.items()}
    came_back = reports.returned(raw, parts, part)
    addressed = [] if came_back is None else read_addresses(came_back.headers.get_all_raw("to"), 10)[0]
    kind = _lower(first.get("feedback-type")) or "other"
    return Feedback(
        kind=kind,
        user_agent=cut(first.get("user-agent")),
        reporting_mta=typed_text(first.get("reporting-mta")),
        source_ip=_ip(first.get("source-ip")),
        arrival_date=cut(first.get("arrival-date") or first.get("received-date")),
        incidents=_number(first.get("incidents")),
        original_mail_from=_address(first.get("original-mail-from")),
        original_recipients=_addresses(fields.get("original-rcpt-to", [])),
        original_envelope_id=cut(first.get("original-envelope-id")),
        original_message_id=None if came_back is None else came_back.message_id,
        original_from=None if came_back is None else came_back.author,
        original_to=tuple(text for item in addressed if (text := well_formed(item.address)) is not None),
        reported_domains=tuple(
            dict.fromkeys(text for value in fields.get("reported-domain", [])[:_MAX_DOMAINS] if (text := _lower(value)))
        ),
        auth_failure=_auth_failure(first) if kind == "auth-failure" or "auth-failure" in first else None,
    )


def _auth_failure(first: dict[str, str]) -> AuthFailure:
    return AuthFailure(
        kind=_lower(first.get("auth-failure")),
        delivery_result=_lower(first.get("delivery-result")),
        identity_alignment=_lower(first.get("identity-alignment")),
        dkim_domain=_lower(first.get("dkim-domain")),
        dkim_selector=_lower(first.get("dkim-selector")),
    )


def _lower(value: str | None) -> str | None:
    text = cut(value)
    return None if text is None else text.lower()[: 255 if "." in text else _MAX_KIND]


def _address(value: str | None) -> str | None:
    """An address in angle brackets or bare; the null sender is none."""
    return None if value is None else well_formed(value)


def _addresses(values: list[str]) -> tuple[str, ...]:
    found = (_address(value) for value in values[:MAX_RECIPIENTS])
    return tuple(dict.fromkeys(address for address in found if address is not None))


def _ip(value: str | None) -> str | None:
    try:
        return str(ipaddress.ip_address((value or "").strip()[:64].removeprefix("IPv6:").strip("[]")))
    except ValueError:
        return None


def _number(value: str | None) -> int:
    text = (value or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 1
