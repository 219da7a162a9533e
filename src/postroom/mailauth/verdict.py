"""What all checks of a message come to: verdict, evidence to keep, and the summary for people (inbound §17 steps 7–9).

Pure functions of the results; nothing here asks anybody.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from postroom.mail.domain import domain_of
from postroom.mailauth.arc_chain import NO_CHAIN, ArcResult
from postroom.mailauth.authres import AuthenticationResults, MethodResult
from postroom.mailauth.dkim_result import SignatureResult, Status
from postroom.mailauth.dmarc import UNCHECKED, DmarcResult, DmarcStatus, SpfOutcome, SpfStatus
from postroom.mailauth.dmarc_record import Policy

MAX_DOCUMENT_BYTES: Final = 16 * 1024
"""Of the evidence as JSON in ASCII, its longest form."""
MAX_SIGNATURES: Final = 10
MAX_TEXT: Final = 253
"""Characters of a text that is kept."""
FEW_SIGNATURES: Final = 1
"""With so many the document cannot be too large."""


class Verdict(StrEnum):
    """How far the author that a message names is to be believed."""

    PASS = "pass"
    FAIL = "fail"
    UNALIGNED = "unaligned"
    UNVERIFIED = "unverified"
    SOFTFAIL = "softfail"
    NONE = "none"

    @property
    def quarantines(self) -> bool:
        """Whether it may put mail into quarantine; no other may."""
        return self in (Verdict.FAIL, Verdict.UNVERIFIED)


@dataclass(frozen=True, slots=True)
class Client:
    """Who handed over mail on the MX; `tls` names the version, None without encryption."""

    ip: str
    helo: str
    tls: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a message's authenticity."""

    dmarc: DmarcResult
    spf: SpfOutcome = UNCHECKED
    dkim: tuple[SignatureResult, ...] = ()
    arc: ArcResult = NO_CHAIN
    trusted: AuthenticationResults | None = None
    """The topmost field of the trusted server, on relayed mail only (`authres_trust.trusted_results`)."""
    multiple_from: bool = False
    loopback: bool = False
    """Mail between mailboxes of one deployment that was accepted as such (inbound §30)."""
    signature: Mapping[str, str] | None = None
    """S/MIME or PGP as found, not verified (edge case B9)."""
    client: Client | None = None
    ses: Mapping[str, Any] | None = None


def spf_of(trusted: AuthenticationResults | None) -> SpfOutcome:
    """SPF as a trusted server found it (inbound §17 step 5); unchecked when it says nothing that can be read."""
    if trusted is not None:
        for found in trusted.of("spf"):
            try:
                result = SpfStatus(found.result)
            except ValueError:
                continue
            sender = found.value("smtp", "mailfrom") or found.value("smtp", "helo") or ""
            return SpfOutcome(result, domain_of(sender), "header")
    return UNCHECKED


def settled_dmarc(evidence: Evidence) -> tuple[DmarcStatus, Policy | None]:
    """DMARC's result and the policy in force; a trusted server's word replaces our `temperror` (step 6).

    It has to be about the same author, where it names one. Without a policy of ours its policy is taken, if it says so.
    """
    dmarc = evidence.dmarc
    if dmarc.status is not DmarcStatus.TEMPERROR or evidence.trusted is None:
        return dmarc.status, dmarc.policy
    for found in evidence.trusted.of("dmarc"):
        author = found.value("header", "from")
        if author is not None and domain_of(author) != dmarc.author_domain:
            continue
        if found.result in (DmarcStatus.PASS.value, DmarcStatus.FAIL.value):
            return DmarcStatus(found.result), dmarc.policy or _policy_of(found)
    return dmarc.status, dmarc.policy


def _policy_of(found: MethodResult) -> Policy | None:
    try:
        return Policy((found.value("policy", "dmarc") or "").lower())
    except ValueError:
        return None


def judge(evidence: Evidence) -> Verdict:
    """The verdict: the first that matches (inbound §17 step 7)."""
    if evidence.loopback:
        return Verdict.PASS
    status, policy = settled_dmarc(evidence)
    if status is DmarcStatus.PASS:
        # With several authors, none of them is known to be who wrote it (edge case B13).
        return Verdict.UNALIGNED if evidence.multiple_from else Verdict.PASS
    if status is DmarcStatus.FAIL:
        if policy in (None, Policy.NONE):
            return Verdict.UNALIGNED  # a policy that nobody knows quarantines nothing
        unknown = not evidence.spf.checked and not any(evidence.dmarc.dkim_aligned)
        return Verdict.UNVERIFIED if unknown else Verdict.FAIL
    return Verdict.SOFTFAIL if status is DmarcStatus.TEMPERROR else Verdict.NONE


def document(evidence: Evidence) -> dict[str, Any]:
    """`auth_json` (step 8): at most 16 KiB as JSON, ten signatures, texts of 253 characters."""
    if evidence.loopback:
        return {"source": "loopback"}
    made: dict[str, Any] = {
        "authserv": None if evidence.trusted is None else {"id": _cut(evidence.trusted.authserv_id), "trusted": True},
        "spf": {
            "result": evidence.spf.result.value,
            "domain": None if evidence.spf.domain is None else _cut(evidence.spf.domain),
            "source": evidence.spf.source,
            "identity": evidence.spf.identity,
            "reason": evidence.spf.reason,
        },
        "dkim": [
            _signature(result, aligned) for result, aligned in zip(evidence.dkim, _aligned(evidence), strict=False)
        ][:MAX_SIGNATURES],
        "dmarc": evidence.dmarc.document() | {"result": settled_dmarc(evidence)[0].value},
        "arc": evidence.arc.document(),
        "multiple_from": evidence.multiple_from,
        "signature": None if evidence.signature is None else _texts(evidence.signature),
    }
    if evidence.client is not None:
        client = evidence.client
        made["client"] = {"ip": _cut(client.ip), "helo": _cut(client.helo), "tls": client.tls}
    if evidence.ses is not None:
        made["ses"] = _texts(evidence.ses)
    if evidence.ses is None and evidence.signature is None and len(made["dkim"]) <= FEW_SIGNATURES:
        return made  # however long its texts are
    while made["dkim"] and _size(made) > MAX_DOCUMENT_BYTES:
        made["dkim"].pop()
    if _size(made) > MAX_DOCUMENT_BYTES:
        made["ses"] = made["signature"] = None
    return made


def summary(evidence: Evidence) -> dict[str, str]:
    """`trust.spf`, `dkim`, `dmarc` and `arc` of the API (step 9)."""
    passing = any(
        aligned and result.status is Status.PASS
        for result, aligned in zip(evidence.dkim, _aligned(evidence), strict=False)
    )
    first = evidence.dkim[0].status.value if evidence.dkim else "none"
    return {
        "spf": evidence.spf.result.value,
        "dkim": "pass" if passing else first,
        "dmarc": settled_dmarc(evidence)[0].value,
        "arc": evidence.arc.status.value,
    }


def _aligned(evidence: Evidence) -> Sequence[bool]:
    missing = len(evidence.dkim) - len(evidence.dmarc.dkim_aligned)
    return (*evidence.dmarc.dkim_aligned, *(False,) * max(0, missing))


def _signature(result: SignatureResult, aligned: bool) -> dict[str, Any]:
    return {
        "d": _cut(result.domain),
        "s": _cut(result.selector),
        "result": result.status.value,
        "aligned": aligned,
        "reason": result.reason.value,
    }


def _cut(text: str) -> str:
    """Short, and without what JSON in a database cannot hold."""
    text = text[:MAX_TEXT]
    return text if text.isprintable() else "".join(filter(str.isprintable, text))


def _texts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_cut(key): _cut(value) if isinstance(value, str) else value for key, value in values.items()}


def _size(made: Mapping[str, Any]) -> int:
    return len(json.dumps(made))
