"""What the tests of ARC share: chains made by our sealer, and by hand as no sealer would."""

import base64
import hashlib

from postroom.mailauth.arc_chain import ArcResult, ArcStatus
from postroom.mailauth.arc_seal import seal
from postroom.mailauth.arc_verify import verify_chain
from postroom.mailauth.authres import AuthenticationResults, MethodResult
from postroom.mailauth.canonical import Canonicalisation, HeaderField, canonical_field, find_body, parse_fields
from postroom.mailauth.dkim_key import PrivateKey
from tests.mailauth.dkim_tools import DOMAIN, MAIL, NOW, Answers, done, ed_key, published, reference_body, signer

FINDINGS = AuthenticationResults("mx.example.com", (MethodResult("spf", "pass"),))


def checked(raw: bytes, resolver: Answers | None = None, *, now: int = NOW) -> ArcResult:
    return done(verify_chain(raw, resolver if resolver is not None else published(), now=now))


def sealed(raw: bytes = MAIL, *, key: PrivateKey | None = None, status: ArcStatus | None = None) -> bytes:
    """The message with one more set; its chain's status is looked at, unless given."""
    found = checked(raw).status if status is None else status
    return seal(raw, signer(key or ed_key()), FINDINGS, found, sealed_at=NOW) + raw


def chain(length: int, raw: bytes = MAIL) -> bytes:
    for _ in range(length):
        raw = sealed(raw)
    return raw


def by_hand(raw: bytes, instance: int, cv: str, *, names: str = "from", seal_tags: str = "", more: str = "") -> bytes:
    """A set as its arguments say, signed with the Ed25519 key over the sets that `raw` has, as RFC 8617 §5.1 tells."""
    at = find_body(raw)
    body_hash = base64.b64encode(hashlib.sha256(reference_body(raw[at:], True)).digest()).decode()
    findings = f"ARC-Authentication-Results: i={instance}; mx.example.com; none\r\n".encode()
    start = f"ARC-Message-Signature: i={instance}; a=ed25519-sha256; c=relaxed/relaxed; d={DOMAIN}; s=ed25519; {more}"
    text = f"{start}h={names}; bh={body_hash}; b="
    fields = parse_fields(raw[:at])
    chosen = [next(f for f in reversed(fields) if f.name == name) for name in names.split(":") if name != "arc-seal"]
    signature = _signed(text, chosen)
    earlier = [field for field in fields if field.name.startswith("arc-")]
    rank = {"arc-authentication-results": 0, "arc-message-signature": 1, "arc-seal": 2}
    earlier.sort(key=lambda f: (int(f.value.partition(b"i=")[2].partition(b";")[0]), rank[f.name]))
    text = f"ARC-Seal: i={instance}; a=ed25519-sha256; cv={cv}; d={DOMAIN}; s=ed25519; {seal_tags}b="
    return _signed(text, earlier + parse_fields(findings + signature)) + signature + findings


def _signed(text: str, fields: list[HeaderField]) -> bytes:
    own = parse_fields(text.encode() + b"\r\n")[0]
    hashed = b"".join(canonical_field(field, Canonicalisation.RELAXED) for field in [*fields, own])[:-2]
    value = base64.b64encode(ed_key().sign_digest(hashlib.sha256(hashed).digest()))
    return text.encode() + value + b"\r\n"
