"""Encrypted and signed mail: what it is, and never whether a signature is good (inbound §10, B9).

S/MIME (RFC 8551), OpenPGP/MIME (RFC 3156), and OpenPGP armour within plain text (RFC 9580 §6.2, §7).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.mail import cms, mime, transfer

_PKCS7: Final = frozenset(("application/pkcs7-mime", "application/x-pkcs7-mime"))
_PKCS7_SIGNATURE: Final = frozenset(("application/pkcs7-signature", "application/x-pkcs7-signature"))
_SIGNED_TYPES: Final = frozenset(("signed-data", "signed-receipt"))
_ENVELOPED_TYPES: Final = frozenset(("enveloped-data", "authenveloped-data"))
_ARMOUR_BYTES: Final = 256 * 1024
_PEEK_BYTES: Final = 4096
_ARMOUR: Final = re.compile(
    rb"(?m)^-----BEGIN PGP (SIGNED MESSAGE|MESSAGE(?:, PART \d+(?:/\d+)?)?|SIGNATURE)-----[ \t\r]*$"
)
_MAX_DESCENT: Final = 8


class Scheme(StrEnum):
    SMIME = "smime"
    PGP = "pgp"


class Form(StrEnum):
    """How a message is protected: in parts of its own, in one opaque part, or within its text."""

    DETACHED = "detached"
    OPAQUE = "opaque"
    INLINE = "inline"


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature that is there; nobody has looked whether it is good."""

    type: Scheme
    form: Form

    @property
    def status(self) -> str:
        """`auth_json.signature.status`."""
        return "present_unverified"


@dataclass(frozen=True, slots=True)
class Protection:
    """`encryption` None: what there is to read can be read. `part` is the entity that is encrypted, or is signed
    opaquely, so that its content must be taken out of it (`cms.signed_content`) to be read."""

    encryption: Scheme | None = None
    signature: Signature | None = None
    part: mime.Part | None = None

    @property
    def encrypted(self) -> bool:
        """The flag `encrypted`: there is no body, and the part is kept as an attachment."""
        return self.encryption is not None


def protection(raw: bytes, message: mime.Message | mime.Part) -> Protection:
    """How a message is protected, as far as its form says. Never raises on content; linear time.

    The entity that counts is the message's own, or the first part of what wraps it: a list's footer, a gateway's
    notice, a detached signature. An encrypted file among the attachments of readable mail encrypts nothing.
    """
    part = message if isinstance(message, mime.Part) else message.root
    signature: Signature | None = None
    for _ in range(_MAX_DESCENT):
        kind = part.content_type
        if kind == "multipart/encrypted":
            return Protection(_scheme(part, Scheme.PGP), signature, part)
        if kind in _PKCS7 or (kind == "application/octet-stream" and _is_p7m(part)):
            return _pkcs7(raw, part, signature)
        if kind == "multipart/signed":
            signature = signature or Signature(_scheme(part, _signature_scheme(part)), Form.DETACHED)
        elif not part.is_multipart:
            return _inline(raw, part, signature)
        if not part.children:
            break
        part = _wrapped(part)
    return Protection(None, signature)


def _wrapped(part: mime.Part) -> mime.Part:
    """The child that is the message, of a multipart that wraps one."""
    if part.subtype in ("mixed", "related"):
        protected = (
            child for child in part.children if child.content_type in ("multipart/encrypted", "multipart/signed")
        )
        return next(protected, part.children[0])
    return part.children[0]


def _scheme(part: mime.Part, otherwise: Scheme) -> Scheme:
    protocol = part.params.get("protocol", "").strip().lower()
    if "pgp" in protocol:
        return Scheme.PGP
    return Scheme.SMIME if "pkcs7" in protocol else otherwise


def _signature_scheme(part: mime.Part) -> Scheme:
    """Of a multipart/signed that does not name its protocol."""
    last = part.children[-1].content_type if part.children else ""
    return Scheme.SMIME if last in _PKCS7_SIGNATURE else Scheme.PGP


def _is_p7m(part: mime.Part) -> bool:
    """RFC 8551 §3.9: gateways that do not know the type leave it by the name."""
    name = part.disposition_params.get("filename") or part.params.get("name") or ""
    return name.lower().endswith(".p7m")


def _pkcs7(raw: bytes, part: mime.Part, signature: Signature | None) -> Protection:
    said = part.params.get("smime-type", "").strip().lower()
    content = cms.content_kind(transfer.decoded(raw, part, _PEEK_BYTES))
    # What the octets say goes before the label, which may be missing or wrong.
    if content is cms.ContentKind.SIGNED or (content is None and said in _SIGNED_TYPES):
        return Protection(None, signature or Signature(Scheme.SMIME, Form.OPAQUE), part)
    if content in (cms.ContentKind.ENVELOPED, cms.ContentKind.AUTH_ENVELOPED) or said in _ENVELOPED_TYPES:
        return Protection(Scheme.SMIME, signature, part)
    if content is not None or said in ("certs-only", "compressed-data") or part.content_type not in _PKCS7:
        return Protection(None, signature)
    return Protection(Scheme.SMIME, signature, part)


def _inline(raw: bytes, part: mime.Part, signature: Signature | None) -> Protection:
    """Armour in the text: encrypted when nothing readable comes before it, signed when a signed text is anywhere."""
    if part.type != "text" or part.disposition == "attachment":
        return Protection(None, signature)
    start = raw.find(b"-----BEGIN PGP ", part.body_start, part.body_end)
    if start < 0 and part.encoding not in ("base64", "quoted-printable"):
        return Protection(None, signature)
    data = transfer.decoded(raw, part, _ARMOUR_BYTES)
    found = _ARMOUR.search(data)
    if found is None:
        return Protection(None, signature)
    if found[1].startswith(b"MESSAGE"):
        if data[: found.start()].strip():
            return Protection(None, signature)
        return Protection(Scheme.PGP, signature, part)
    if found[1] == b"SIGNED MESSAGE":
        signature = signature or Signature(Scheme.PGP, Form.INLINE)
    return Protection(None, signature)
