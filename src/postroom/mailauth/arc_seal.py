"""Sealing: adding a set to the Authenticated Received Chain of mail that is sent on (RFC 8617 §5.1)."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from postroom.mailauth.arc_chain import (
    FIELD_NAMES,
    MAX_SETS,
    ArcError,
    ArcSet,
    ArcStatus,
    collect,
    failed_before,
    highest_instance,
)
from postroom.mailauth.authres import AuthenticationResults, render
from postroom.mailauth.canonical import (
    BodyHasher,
    Canonicalisation,
    HeaderField,
    MalformedHeaderError,
    canonical_field,
    find_body,
    parse_fields,
    to_wire,
)
from postroom.mailauth.dkim_sign import (
    DEFAULT_POLICY,
    Signer,
    SigningError,
    SigningPolicy,
    finish_field,
    signed_names,
    unsigned_field,
)
from postroom.mailauth.folding import Lines

_RESULTS_TITLE: Final = "ARC-Authentication-Results"
_SIGNATURE_TITLE: Final = "ARC-Message-Signature"
_SEAL_TITLE: Final = "ARC-Seal"
_NEVER_SIGNED: Final = frozenset((*FIELD_NAMES, "authentication-results"))


def seal(
    raw: bytes,
    sealer: Signer,
    results: AuthenticationResults,
    status: ArcStatus,
    *,
    sealed_at: int,
    policy: SigningPolicy = DEFAULT_POLICY,
) -> bytes:
    """The three fields of a new set, to stand directly before `raw`, each ending in CRLF; none when none may be added.

    `raw` is the message as it is sent on, DKIM signatures included; `results` what was found out when it came in, and
    `status` what its chain was worth then: when that is `fail`, the seal covers the new set alone (RFC 8617 §5.1.2).
    Nothing is added to a chain that says itself that it failed, nor to one of 50 sets. `sealed_at`: seconds since 1970.
    Raises `SigningError`: the header is malformed or without From, `status` does not fit the chain, or the policy signs
    a field that must not be signed (§4.1.2).
    """
    if _NEVER_SIGNED & {name.lower() for name in (*policy.always, *policy.if_present)}:
        raise SigningError("ARC fields and Authentication-Results are not signed (RFC 8617 §4.1.2)")
    if sealed_at < 0:
        raise SigningError("sealed before 1970")
    wire = to_wire(raw)
    at = find_body(wire)
    try:
        fields = parse_fields(wire[:at])
    except MalformedHeaderError as error:
        raise SigningError(str(error)) from None
    if not any(field.name == "from" for field in fields):
        raise SigningError("the message has no From field")
    instance = highest_instance(fields) + 1
    if instance > MAX_SETS or failed_before(fields):
        return b""
    earlier = _earlier(fields, status)
    head = f"i={instance};"
    findings = render(replace(results, instance=instance), title=_RESULTS_TITLE)
    hasher = BodyHasher(policy.body)
    hasher.update(wire[at:])
    body_hash = base64.b64encode(hasher.digest()).decode("ascii")
    signature = _message_signature(head, sealer, policy, sealed_at, body_hash, fields)
    return _seal(head, sealer, status, sealed_at, earlier, findings, signature) + signature + findings


def _earlier(fields: Sequence[HeaderField], status: ArcStatus) -> tuple[ArcSet, ...]:
    """The sets that the new seal covers, too."""
    present = any(field.name in FIELD_NAMES for field in fields)
    if present is (status is ArcStatus.NONE):
        raise SigningError("a chain has status none just when there is none")
    if status is not ArcStatus.PASS:
        return ()
    try:
        return collect(fields)
    except ArcError:
        raise SigningError("the chain is not one that can have passed") from None


def _message_signature(
    head: str, sealer: Signer, policy: SigningPolicy, sealed_at: int, body_hash: str, fields: Sequence[HeaderField]
) -> bytes:
    lines = Lines(f"{_SIGNATURE_TITLE}: {head}")
    for tag in (
        f"a={sealer.key.algorithm};",
        f"c={policy.header}/{policy.body};",
        f"d={sealer.domain};",
        f"s={sealer.selector};",
        f"t={sealed_at};",
    ):
        lines.add(tag)
    counts = Counter(field.name for field in fields)
    # The DKIM signatures that there are, so that they can be verified together with it (RFC 8617 §4.1.2).
    names = signed_names(counts, policy) + ["DKIM-Signature"] * counts["dkim-signature"]
    return finish_field(lines, names, body_hash, fields, sealer.key, policy.header)


def _seal(
    head: str,
    sealer: Signer,
    status: ArcStatus,
    sealed_at: int,
    earlier: Sequence[ArcSet],
    findings: bytes,
    signature: bytes,
) -> bytes:
    lines = Lines(f"{_SEAL_TITLE}: {head}")
    for tag in (
        f"a={sealer.key.algorithm};",
        f"t={sealed_at};",
        f"cv={status};",
        f"d={sealer.domain};",
        f"s={sealer.selector};",
        "b=",
    ):
        lines.add(tag)
    hashed = hashlib.sha256()
    covered = [field for found in earlier for field in found.fields]
    covered += parse_fields(findings + signature)
    for field in covered:
        hashed.update(canonical_field(field, Canonicalisation.RELAXED))
    hashed.update(canonical_field(unsigned_field(lines), Canonicalisation.RELAXED)[:-2])
    lines.fill(base64.b64encode(sealer.key.sign_digest(hashed.digest())).decode("ascii"))
    return lines.text().encode("ascii") + b"\r\n"
