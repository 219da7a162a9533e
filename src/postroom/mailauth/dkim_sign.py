"""Signing mail with DKIM (RFC 6376 §5, RFC 8301, RFC 8463; mail-server C8, decision D2)."""

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postroom.mail.domain import MAX_DOMAIN, to_ascii
from postroom.mailauth.canonical import (
    BodyHasher,
    Canonicalisation,
    HeaderField,
    MalformedHeaderError,
    find_body,
    header_digest,
    parse_fields,
    to_wire,
)
from postroom.mailauth.dkim_key import PrivateKey, record_name
from postroom.mailauth.dkim_signature import FIELD_NAME, MAX_FIELD_BYTES
from postroom.mailauth.folding import Lines

SIGNED_ALWAYS: Final = (
    "From",
    "To",
    "Cc",
    "Subject",
    "Date",
    "Message-ID",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
    "Reply-To",
    "In-Reply-To",
    "References",
)
"""Fields named once more than there are, so that none can be added to a signed message (RFC 6376 §5.4, §8.15)."""
SIGNED_IF_PRESENT: Final = ("List-Unsubscribe", "List-Unsubscribe-Post")

_FIELD_TITLE: Final = "DKIM-Signature"


class SigningError(ValueError):
    """The message or the parameters do not allow a signature; the text says why, without content of the message."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signs: `d=`, `s=` and the key that DNS publishes there."""

    domain: str
    selector: str
    key: PrivateKey

    def __post_init__(self) -> None:
        """Brings both names to lower-case ASCII form. Raises `SigningError` for what is no domain name."""
        try:
            domain, selector = to_ascii(self.domain), to_ascii(self.selector)
        except ValueError:
            raise SigningError("the domain or the selector is no domain name") from None
        if "." not in domain:
            raise SigningError("the signing domain has one label only (RFC 6376 §3.5, d=)")
        if len(record_name(selector, domain)) > MAX_DOMAIN:
            raise SigningError("selector and domain are too long together")
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "selector", selector)


@dataclass(frozen=True, slots=True)
class SigningPolicy:
    """How to sign. `always` fields are over-signed; `if_present` are named as often as they occur."""

    header: Canonicalisation = Canonicalisation.RELAXED
    body: Canonicalisation = Canonicalisation.RELAXED
    always: tuple[str, ...] = SIGNED_ALWAYS
    if_present: tuple[str, ...] = SIGNED_IF_PRESENT

    def __post_init__(self) -> None:
        """Raises `SigningError`: From is not over-signed, a name is none or comes twice."""
        names = [name.lower() for name in (*self.always, *self.if_present)]
        if "from" not in (name.lower() for name in self.always):
            raise SigningError("From has to be signed (RFC 6376 §5.4)")
        if len(set(names)) != len(names) or FIELD_NAME in names:
            raise SigningError("a field is named twice, or is the signature itself")
        # `;` would end the tag, `:` the name.
        if not all(name.isascii() and name.isprintable() and name and not set(name) & set(" :;") for name in names):
            raise SigningError("not the name of a field")


DEFAULT_POLICY: Final = SigningPolicy()


def sign(
    raw: bytes,
    signers: Sequence[Signer],
    *,
    signed_at: int,
    expires_at: int | None = None,
    policy: SigningPolicy = DEFAULT_POLICY,
) -> bytes:
    """The DKIM-Signature fields to stand directly before `raw`, in the order of `signers`, each ending in CRLF.

    What is signed is the message as SMTP carries it: a bare CR or LF counts as CRLF, and has to be sent as such
    (`canonical.to_wire`). Times are seconds since 1970. The signatures do not cover each other. Raises `SigningError`:
    the header is malformed or without From, the times contradict each other, a field would get too large.
    """
    if signed_at < 0 or (expires_at is not None and expires_at <= signed_at):
        raise SigningError("a signature expires after it was made")
    wire = to_wire(raw)
    at = find_body(wire)
    try:
        fields = parse_fields(wire[:at])
    except MalformedHeaderError as error:
        raise SigningError(str(error)) from None
    counts = Counter(field.name for field in fields)
    if not counts["from"]:
        raise SigningError("the message has no From field")
    hasher = BodyHasher(policy.body)
    hasher.update(wire[at:])
    body_hash = base64.b64encode(hasher.digest()).decode("ascii")
    times = f"t={signed_at};" if expires_at is None else f"t={signed_at}; x={expires_at};"
    names = signed_names(counts, policy)
    return b"".join(_field(signer, policy, times, names, body_hash, fields) for signer in signers)


def sign_message(
    raw: bytes,
    signers: Sequence[Signer],
    *,
    signed_at: int,
    expires_at: int | None = None,
    policy: SigningPolicy = DEFAULT_POLICY,
) -> bytes:
    """The whole message, signed, in the form that goes over the wire. Otherwise as `sign`."""
    wire = to_wire(raw)
    return sign(wire, signers, signed_at=signed_at, expires_at=expires_at, policy=policy) + wire


def signed_names(counts: Counter[str], policy: SigningPolicy) -> list[str]:
    """The names of `h=`, each as often as RFC 6376 §5.4.2 wants it."""
    names: list[str] = []
    for name in policy.always:
        names += [name] * (counts[name.lower()] + 1)
    for name in policy.if_present:
        names += [name] * counts[name.lower()]
    return names


def _field(
    signer: Signer,
    policy: SigningPolicy,
    times: str,
    names: Sequence[str],
    body_hash: str,
    fields: Sequence[HeaderField],
) -> bytes:
    lines = Lines(f"{_FIELD_TITLE}:")
    lines.add("v=1;")
    lines.add(f"a={signer.key.algorithm};")
    lines.add(f"c={policy.header}/{policy.body};")
    lines.add(f"d={signer.domain};")
    lines.add(f"s={signer.selector};")
    for tag in times.split():
        lines.add(tag)
    return finish_field(lines, names, body_hash, fields, signer.key, policy.header)


def finish_field(
    lines: Lines,
    names: Sequence[str],
    body_hash: str,
    fields: Sequence[HeaderField],
    key: PrivateKey,
    canonicalisation: Canonicalisation,
) -> bytes:
    """A signature field, of which `lines` has the beginning: `h=`, `bh=` and `b=` are added.

    Raises `SigningError` when it gets too large.
    """
    last = len(names) - 1
    for number, name in enumerate(names):
        text = f"{name};" if number == last else f"{name}:"
        if number:
            lines.append(text)
        else:
            lines.add(f"h={text}")
    lines.add(f"bh={body_hash};")
    lines.add("b=")
    unsigned = unsigned_field(lines)
    digest = header_digest(fields, [name.lower() for name in names], unsigned, canonicalisation)
    lines.fill(base64.b64encode(key.sign_digest(digest)).decode("ascii"))
    return lines.text().encode("ascii") + b"\r\n"


def unsigned_field(lines: Lines) -> HeaderField:
    """A field up to its empty `b=`, as it is hashed. Raises `SigningError` when it gets too large."""
    raw = lines.text().encode("ascii")
    if len(raw) > MAX_FIELD_BYTES // 2:
        raise SigningError("too many fields to be signed")
    title = raw.partition(b":")[0]
    return HeaderField(title.decode("ascii").lower(), raw, len(title) + 1)
