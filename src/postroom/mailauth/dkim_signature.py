"""A DKIM-Signature field, read (RFC 6376 §3.5, §6.1.1; RFC 8616 §4 for names beyond ASCII)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.mail.domain import MAX_DOMAIN, to_ascii
from postroom.mailauth.canonical import Canonicalisation, HeaderField
from postroom.mailauth.dkim_key import Algorithm, record_name
from postroom.mailauth.dkim_result import DkimError, Reason, SignatureResult
from postroom.mailauth.tags import Tag, TagListError, decode_base64, parse_tags

FIELD_NAME: Final = "dkim-signature"
MAX_FIELD_BYTES: Final = 16 * 1024
MAX_SIGNED_NAMES: Final = 1000
MAX_SHOWN: Final = 320
"""Characters of a sender's text that a result repeats."""

_REQUIRED: Final = ("v", "a", "b", "bh", "d", "h", "s")
_FIELD_NAMES: Final = re.compile(rb"[!-9;-~]++(?:[ \t\r\n]*+:[ \t\r\n]*+[!-9;-~]++)*+")
_HEX: Final = re.compile(rb"=([0-9A-F]{2})")
_PREFIX: Final = 8  # RFC 6008 §4


@dataclass(frozen=True, slots=True)
class Signature:
    """What a signature claims, consistent in itself."""

    algorithm: Algorithm
    header: Canonicalisation
    body: Canonicalisation
    domain: str
    selector: str
    identity: str
    signed_fields: tuple[str, ...]
    signature: bytes
    signature_start: str
    """The first characters of `b=` (RFC 6008)."""
    body_hash: bytes
    body_length: int | None
    signed_at: int | None
    expires_at: int | None
    field: HeaderField
    unsigned: HeaderField
    """The field without the value of `b=`, as it is hashed (RFC 6376 §3.7)."""

    @property
    def record_name(self) -> str:
        """Where the key stands in DNS."""
        return record_name(self.selector, self.domain)

    @property
    def identity_domain(self) -> str:
        return self.identity.rpartition("@")[2].lower()


def read_tags(field: HeaderField) -> dict[str, Tag]:
    """The tags of the field. Raises `DkimError`."""
    if len(field.raw) > MAX_FIELD_BYTES:
        raise DkimError(Reason.SYNTAX)
    try:
        return parse_tags(field.value)
    except TagListError:
        raise DkimError(Reason.SYNTAX) from None


def describe(reason: Reason, tags: Mapping[str, Tag]) -> SignatureResult:
    """A result that repeats what can be read of a signature that is not sound."""
    domain = _shown(tags, "d").lower()
    return SignatureResult(
        reason=reason,
        domain=domain,
        selector=_shown(tags, "s").lower(),
        identity=_shown(tags, "i") or f"@{domain}",
        algorithm=_shown(tags, "a"),
        signature_start=tags["b"].compact[:_PREFIX].decode("ascii", "replace") if "b" in tags else "",
    )


def _shown(tags: Mapping[str, Tag], name: str) -> str:
    text = tags[name].compact.decode("utf-8", "replace")[:MAX_SHOWN] if name in tags else ""
    return text if text.isprintable() else ""


def read_signature(field: HeaderField, tags: Mapping[str, Tag]) -> Signature:
    """Check the form of a signature (RFC 6376 §6.1.1). Raises `DkimError`."""
    _check_present(tags, _REQUIRED)
    if tags["v"].value != b"1":
        raise DkimError(Reason.UNSUPPORTED)
    found = _read(field, tags, tags)
    if found.identity_domain != found.domain and not found.identity_domain.endswith(f".{found.domain}"):
        raise DkimError(Reason.DOMAIN_MISMATCH)
    if "from" not in found.signed_fields:
        raise DkimError(Reason.FROM_UNSIGNED)
    return found


def read_message_signature(field: HeaderField, tags: Mapping[str, Tag]) -> Signature:
    """Check the form of an ARC-Message-Signature (RFC 8617 §4.1.2): as DKIM's, without `v=`, and `i=` is another tag.

    Raises `DkimError`.
    """
    _check_present(tags, _REQUIRED[1:])
    found = _read(field, tags, {name: tag for name, tag in tags.items() if name != "i"})
    if "from" not in found.signed_fields:
        raise DkimError(Reason.FROM_UNSIGNED)
    return found


@dataclass(frozen=True, slots=True)
class Seal:
    """What an ARC-Seal claims (RFC 8617 §4.1.3)."""

    algorithm: Algorithm
    domain: str
    selector: str
    signature: bytes
    signed_at: int | None
    field: HeaderField
    unsigned: HeaderField
    """The field without the value of `b=`, as it is hashed."""

    @property
    def record_name(self) -> str:
        """Where the key stands in DNS."""
        return record_name(self.selector, self.domain)


def read_seal(field: HeaderField, tags: Mapping[str, Tag]) -> Seal:
    """Check the form of an ARC-Seal, but for `i=` and `cv=`. Raises `DkimError`."""
    _check_present(tags, ("a", "b", "d", "s"))
    if "h" in tags:
        raise DkimError(Reason.SYNTAX)  # what a seal covers is not the sealer's to choose (RFC 8617 §4.1.3)
    algorithm = _algorithm(tags["a"])
    domain, selector = _names(tags)
    signature, unsigned = _decoded(tags["b"]), _without_value(field, tags["b"])
    return Seal(algorithm, domain, selector, signature, _number(tags, "t", 12), field, unsigned)


def _check_present(tags: Mapping[str, Tag], names: Iterable[str]) -> None:
    for name in names:
        if name not in tags:
            raise DkimError(Reason.MISSING_TAG)


def _read(field: HeaderField, tags: Mapping[str, Tag], identified: Mapping[str, Tag]) -> Signature:
    """What both kinds of signatures have; `identified` holds the `i=` that names somebody, if there is one."""
    algorithm = _algorithm(tags["a"])
    header, body = _canonicalisations(tags)
    domain, selector = _names(tags)
    names = _signed_fields(tags["h"])
    if "q" in tags and b"dns/txt" not in tags["q"].compact.lower().split(b":"):
        raise DkimError(Reason.UNSUPPORTED)
    signed_at, expires_at = _number(tags, "t", 12), _number(tags, "x", 12)
    if signed_at is not None and expires_at is not None and expires_at <= signed_at:
        raise DkimError(Reason.SYNTAX)
    return Signature(
        algorithm=algorithm,
        header=header,
        body=body,
        domain=domain,
        selector=selector,
        identity=_identity(identified, domain),
        signed_fields=names,
        signature=_decoded(tags["b"]),
        signature_start=tags["b"].compact[:_PREFIX].decode("ascii"),
        body_hash=_decoded(tags["bh"]),
        body_length=_number(tags, "l", 76),
        signed_at=signed_at,
        expires_at=expires_at,
        field=field,
        unsigned=_without_value(field, tags["b"]),
    )


def _decoded(tag: Tag) -> bytes:
    try:
        return decode_base64(tag)
    except TagListError:
        raise DkimError(Reason.SYNTAX) from None


def _without_value(field: HeaderField, tag: Tag) -> HeaderField:
    raw, at = field.raw.rstrip(b"\r\n"), field.value_start
    return HeaderField(field.name, raw[: at + tag.start] + raw[at + tag.end :], at)


def _names(tags: Mapping[str, Tag]) -> tuple[str, str]:
    """Domain and selector."""
    domain, selector = _domain(tags["d"]), _domain(tags["s"])
    if "." not in domain or len(record_name(selector, domain)) > MAX_DOMAIN:
        raise DkimError(Reason.SYNTAX)
    return domain, selector


def _algorithm(tag: Tag) -> Algorithm:
    text = tag.value.decode("ascii", "replace").lower()
    if text == "rsa-sha1":
        raise DkimError(Reason.HISTORIC_ALGORITHM)
    try:
        return Algorithm(text)
    except ValueError:
        raise DkimError(Reason.UNSUPPORTED) from None


def _canonicalisations(tags: Mapping[str, Tag]) -> tuple[Canonicalisation, Canonicalisation]:
    """Of header and body; simple where they are not named."""
    header, _, body = (tags["c"].value if "c" in tags else b"simple").decode("ascii", "replace").lower().partition("/")
    try:
        return Canonicalisation(header), Canonicalisation(body or "simple")
    except ValueError:
        raise DkimError(Reason.UNSUPPORTED) from None


def _domain(tag: Tag) -> str:
    try:
        return to_ascii(tag.value.decode("utf-8"))
    except ValueError:  # idna's and decoding errors are such, too
        raise DkimError(Reason.SYNTAX) from None


def _signed_fields(tag: Tag) -> tuple[str, ...]:
    if _FIELD_NAMES.fullmatch(tag.value) is None or tag.value.count(b":") >= MAX_SIGNED_NAMES:
        raise DkimError(Reason.SYNTAX)
    return tuple(tag.compact.decode("ascii").lower().split(":"))


def _number(tags: Mapping[str, Tag], name: str, digits: int) -> int | None:
    if name not in tags:
        return None
    text = tags[name].value
    if not text.isdigit() or len(text) > digits:
        raise DkimError(Reason.SYNTAX)
    return int(text)


def _identity(tags: Mapping[str, Tag], domain: str) -> str:
    """`i=`: quoted-printable as RFC 6376 §2.11 has it, its domain in ASCII form."""
    if "i" not in tags:
        return f"@{domain}"
    octets = _HEX.sub(lambda found: bytes((int(found[1], 16),)), tags["i"].compact)
    try:
        local, at, identity_domain = octets.decode("utf-8").rpartition("@")
        if not at or not local.isprintable():
            raise DkimError(Reason.SYNTAX)
        return f"{local}@{to_ascii(identity_domain)}"
    except ValueError:
        raise DkimError(Reason.SYNTAX) from None
