"""DKIM: signing and verifying a message of 10 KB, against dkimpy where it is installed; ARC and DMARC beside it."""

import base64
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from postroom.mailauth.answers import Answers
from postroom.mailauth.arc_chain import ArcStatus
from postroom.mailauth.arc_seal import seal
from postroom.mailauth.authres import AuthenticationResults, MethodResult, parse
from postroom.mailauth.canonical import BodyHasher, Canonicalisation, find_body
from postroom.mailauth.checks import Checks, Findings
from postroom.mailauth.dkim_key import Algorithm, PrivateKey
from postroom.mailauth.dkim_result import Status
from postroom.mailauth.dkim_sign import Signer, sign, sign_message
from postroom.mailauth.dkim_verify import verify
from postroom.mailauth.dmarc import UNCHECKED, DmarcStatus

from .common import best, finish
from .mime import sample

_NOW = 1_770_000_000
_DOMAIN = "example.com"
_POLICY = b"v=DMARC1; p=reject"


class _Records:
    """Every answer of DNS is at hand, as after a look-up beforehand."""

    def __init__(self, record: bytes) -> None:
        self._answer = (record,)

    async def txt(self, name: str) -> Sequence[bytes]:
        return self._answer


class _Nothing:
    """No other name has a record."""

    async def txt(self, name: str) -> Sequence[bytes]:
        return ()


def _peer(key: PrivateKey, signed: bytes, raw: bytes) -> Sequence[Callable[[], Any]]:
    """Signing and verifying with dkimpy; empty when it is not installed."""
    try:
        import dkim  # type: ignore[import-untyped]  # it has no annotations
    except ImportError:
        return ()
    record = key.public_record().encode()
    secret = key.to_pem() if key.algorithm is Algorithm.RSA_SHA256 else base64.b64encode(key.to_der()[-32:])

    def signing() -> Any:
        return dkim.sign(
            raw,
            b"s",
            _DOMAIN.encode(),
            secret,
            canonicalize=(b"relaxed", b"relaxed"),
            signature_algorithm=key.algorithm.value.encode(),
        )

    def verifying() -> Any:
        return dkim.verify(signed, dnsfunc=lambda name, timeout=0: record)

    if not verifying():
        raise RuntimeError("dkimpy does not accept the signature")
    return signing, verifying


def _hostile() -> dict[str, bytes]:
    mega = 1_000_000
    return {
        "empty lines": b"\r\n" * (mega // 2),
        "spaces": b" " * mega,
        "spaces and text": b"a  " * (mega // 3),
        "tabs before line ends": b"\t\r\n" * (mega // 3),
        "bare line feeds": b"a\n" * (mega // 2),
        "carriage returns": b"\r" * mega,
    }


def _body(data: bytes) -> None:
    hasher = BodyHasher(Canonicalisation.RELAXED)
    hasher.update(data)
    hasher.digest()


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows `name`, `value`, `unit`, and where there is one `target` and `peer` (dkimpy's figure)."""
    seconds = 0.2 if quick else 1.0
    # The sample's own signature field, which is none, would be judged too.
    message = re.sub(rb"(?m)^DKIM-Signature:.*\n(?:[ \t].*\n)*", b"", sample())
    rows: list[dict[str, Any]] = []
    # The targets are those of RSA, which all receivers verify.
    rows += _of_key("RSA 2048", PrivateKey.generate(Algorithm.RSA_SHA256), message, seconds, (0.5, 0.2))
    rows += _of_key("Ed25519", PrivateKey.generate(Algorithm.ED25519_SHA256), message, seconds, (None, None))
    rows.append(_row("body hash 10 KB, relaxed", best(lambda: _body(message), seconds) * 1e6, "µs"))
    for name, data in _hostile().items():
        spent = best(partial(_body, data), seconds / 10)
        rows.append(_row(f"hostile body: {name}", spent * 1e3 / (len(data) / 1e6), "ms/MB", 50))
    rows += _together(message, seconds)
    for name, data in _hostile_results().items():
        spent = best(partial(parse, data), seconds / 10)
        rows.append(_row(f"hostile Authentication-Results: {name}", spent * 1e3 / (len(data) / 1e6), "ms/MB", 500))
    return rows


def _hostile_results() -> dict[str, bytes]:
    return {
        "open comments": b"a; " + b"(" * 8_000,
        "comments": b"a; " + b"(x)" * 2_500,
        "quotes": b"a; x=y " + b'"\\' * 4_000,
        "results": b"a; " + b"x=y;" * 2_000,
        "properties": b"a; x=y " + b"a.b=c " * 1_300,
    }


def _together(message: bytes, seconds: float) -> list[dict[str, Any]]:
    """DKIM, ARC of one set and DMARC of one message."""
    key = PrivateKey.generate(Algorithm.RSA_SHA256)
    signers = [Signer(_DOMAIN, "s", key)]
    signed = sign_message(message, signers, signed_at=_NOW)
    found = AuthenticationResults("mx.example.com", (MethodResult("dkim", "pass"),))
    sealed = seal(signed, signers[0], found, ArcStatus.NONE, sealed_at=_NOW) + signed
    records = Answers(
        {"s._domainkey.example.com": [key.public_record().encode()], "_dmarc.example.com": [_POLICY]}, _Nothing()
    )
    at = find_body(sealed)

    def check() -> Findings:
        checks = Checks(sealed[:at], now=_NOW, author=_DOMAIN, sender=_DOMAIN)
        checks.update(sealed[at:])
        findings: Findings = finish(checks.results(records, UNCHECKED))
        return findings

    findings = check()
    if findings.dmarc.status is not DmarcStatus.PASS or findings.arc.status is not ArcStatus.PASS:
        raise RuntimeError(f"not verified: {findings}")
    work = partial(seal, signed, signers[0], found, ArcStatus.NONE, sealed_at=_NOW)
    return [
        _row("DKIM, ARC and DMARC of 10 KB", best(check, seconds) * 1e3, "ms"),
        _row("ARC seal 10 KB, RSA 2048", best(work, seconds) * 1e3, "ms"),
    ]


def _of_key(
    name: str, key: PrivateKey, message: bytes, seconds: float, targets: tuple[float | None, float | None]
) -> list[dict[str, Any]]:
    signers = [Signer(_DOMAIN, "s", key)]
    signed = sign_message(message, signers, signed_at=_NOW)
    records = _Records(key.public_record().encode())
    results = finish(verify(signed, records, now=_NOW))
    if [result.status for result in results] != [Status.PASS]:
        raise RuntimeError(f"not verified: {results}")
    signing = best(lambda: sign(message, signers, signed_at=_NOW), seconds) * 1e3
    verifying = best(lambda: finish(verify(signed, records, now=_NOW)), seconds) * 1e3
    theirs = [best(work, seconds) * 1e3 for work in _peer(key, signed, message)]
    return [
        _row(f"sign 10 KB, {name}", signing, "ms", targets[0], theirs[0] if theirs else None),
        _row(f"verify 10 KB, {name}", verifying, "ms", targets[1], theirs[1] if theirs else None),
    ]


def _row(name: str, value: float, unit: str, target: float | None = None, peer: float | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "value": round(value, 4), "unit": unit}
    if target is not None:
        row["target"] = target
    if peer is not None:
        row["peer"] = {"name": "dkimpy", "value": round(peer, 4)}
    return row


if __name__ == "__main__":
    import sys

    for line in run("--quick" in sys.argv):
        print(line)
