"""All checks of a message together, and what authheaders says of the same mail."""

import re

import pytest
from authheaders import check_arc, check_dkim  # type: ignore[import-untyped]  # it has no annotations
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailauth.answers import Answers as KnownAnswers
from postroom.mailauth.arc_chain import ArcReason, ArcStatus
from postroom.mailauth.canonical import find_body
from postroom.mailauth.checks import Checks, Findings
from postroom.mailauth.dkim_result import Status
from postroom.mailauth.dkim_sign import sign_message
from postroom.mailauth.dmarc import UNCHECKED, DmarcReason, SpfOutcome
from postroom.mailauth.findings import authentication_results
from postroom.mailauth.resolver import TemporaryResolverError
from postroom.mailauth.verdict import Evidence, Verdict, judge
from tests.mailauth.arc_tools import sealed
from tests.mailauth.dkim_tools import DOMAIN, MAIL, NOW, Answers, done, published, rsa_key, signer
from tests.mailauth.dmarc_tools import spf

SIGNED = sign_message(MAIL, [signer(rsa_key())], signed_at=NOW)
SEALED = sealed(SIGNED, key=rsa_key())
POLICY = {f"_dmarc.{DOMAIN}": [b"v=DMARC1; p=reject"]}


def zone() -> Answers:
    return Answers({**published().records, **POLICY})


def found(raw: bytes, by: SpfOutcome = UNCHECKED, resolver: Answers | KnownAnswers | None = None) -> Findings:
    at = find_body(raw)
    checks = Checks(raw[:at], now=NOW, author=DOMAIN, sender=by.domain)
    if checks.needs_body:
        checks.update(raw[at:])
    return done(checks.results(zone() if resolver is None else resolver, by))


def verdict(raw: bytes, by: SpfOutcome = UNCHECKED) -> Verdict:
    made = found(raw, by)
    return judge(Evidence(made.dmarc, by, made.dkim, made.arc))


@pytest.mark.covers("FR-IN-4", "mail-server:B4")
def test_all_at_once() -> None:
    made = found(SEALED)
    assert [result.status for result in made.dkim] == [Status.PASS]
    assert (made.arc.status, made.dmarc.reason) == (ArcStatus.PASS, DmarcReason.ALIGNED)
    assert verdict(SEALED) is Verdict.PASS
    assert verdict(MAIL, spf(DOMAIN)) is Verdict.PASS
    assert verdict(MAIL) is Verdict.UNVERIFIED
    assert verdict(SIGNED.replace(b"please", b"do not")) is Verdict.FAIL
    assert verdict(b"no field\r\n" + SEALED) is Verdict.UNVERIFIED
    assert found(b"no field\r\n" + SEALED).arc.reason is ArcReason.MALFORMED_MESSAGE
    evidence = Evidence(made.dmarc, UNCHECKED, made.dkim, made.arc)
    assert [r.result for r in authentication_results(evidence, "mx").results] == ["pass", "pass", "pass"]


@pytest.mark.covers("decisions:D3")
def test_all_of_dns_is_known_beforehand() -> None:
    at = find_body(SEALED)
    checks = Checks(SEALED[:at], now=NOW, author=DOMAIN, sender=f"bounce.{DOMAIN}")
    names = checks.queries
    assert names == (
        f"_dmarc.{DOMAIN}", "_dmarc.com", f"_dmarc.bounce.{DOMAIN}", f"rsa._domainkey.{DOMAIN}",
    )  # fmt: skip
    answers = zone()
    found(SEALED, spf(f"bounce.{DOMAIN}"), answers)
    assert set(answers.asked) == set(names)
    down = KnownAnswers(dict.fromkeys(names, TemporaryResolverError()))
    silent = found(SEALED, spf(f"bounce.{DOMAIN}"), down)
    assert [result.status for result in silent.dkim] == [Status.TEMPERROR]
    assert (silent.arc.status, silent.dmarc.reason) == (ArcStatus.FAIL, DmarcReason.DNS_POLICY)


@pytest.mark.covers("decisions:D3", "edge:D1")
def test_domains_of_signatures_that_cannot_pass_are_known_beforehand() -> None:
    raw = b"DKIM-Signature: v=1; d=a.b.example.com; s=x\r\nDKIM-Signature: v=2; d=c.b.Example.com\r\n" + SIGNED
    at = find_body(raw)
    checks = Checks(raw[:at], now=NOW, author=DOMAIN, sender=None)
    assert {f"_dmarc.{name}.example.com" for name in ("a.b", "b", "c.b")} <= set(checks.queries)
    known = KnownAnswers({name: zone().records.get(name, []) for name in checks.queries})  # type: ignore[misc]  # no errors
    assert found(raw, resolver=known).dmarc.dkim_aligned == (True, True, True)


@pytest.mark.covers("edge:D9")
def test_the_trusted_field() -> None:
    raw = b"Authentication-Results: mx.example.net; spf=pass smtp.mailfrom=a@example.com\r\n" + SIGNED
    checks = Checks(raw[: find_body(raw)], now=NOW, author=DOMAIN, sender=None)
    trusted = checks.trusted("MX.example.net")
    assert trusted is not None
    assert trusted.results[0].result == "pass"
    assert checks.trusted("mx.example.org") is None
    assert Checks(b"no field\r\n" + raw, now=NOW, author=None, sender=None).trusted("mx.example.net") is None


def txt(name: bytes | str, timeout: float = 0) -> bytes:
    text = name.decode() if isinstance(name, bytes) else name
    answer = zone().records[text.rstrip(".")]
    assert not isinstance(answer, Exception)
    return answer[0]


PUT = st.sampled_from([b"", b" ", b"x", b"\r\n", b"X-A: b\r\n"])


@pytest.mark.covers("FR-IN-4", "mail-server:B4")
@settings(max_examples=150, deadline=None)
@given(st.sampled_from([SIGNED, SEALED]), st.integers(1, len(MAIL) - 2), st.integers(0, 1), PUT)
def test_authheaders_finds_the_same(good: bytes, where: int, removed: int, put: bytes) -> None:
    """Of mail that is changed below its signatures, and whose header is still one."""
    at = len(good) - len(MAIL) + where
    raw = good[:at] + put + good[at + removed :]
    made = found(raw)
    if made.arc.reason is ArcReason.MALFORMED_MESSAGE or any(r.status is Status.NEUTRAL for r in made.dkim):
        return
    # What a CR of its own means, and space before a colon, is told in test_dkim_peer.
    if b"\r" in raw.replace(b"\r\n", b"") or re.search(rb"(?m)^[!-9;-~]+[ \t]+:", raw) is not None:
        return
    theirs = check_dkim(raw, dnsfunc=txt)
    assert (theirs.result == "pass") == (made.dkim[0].status is Status.PASS)
    chain = check_arc(raw, dnsfunc=txt)
    assert chain.result == made.arc.status.value


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.text(max_size=30), st.text(max_size=30))
def test_any_bytes(raw: bytes, author: str, sender: str) -> None:
    at = find_body(raw)
    checks = Checks(raw[:at], now=NOW, author=author, sender=sender)
    checks.update(raw[at:])
    assert len(checks.queries) < 100
    made = done(checks.results(zone(), spf(sender, "fail")))
    assert judge(Evidence(made.dmarc, spf(sender, "fail"), made.dkim, made.arc)) is not Verdict.PASS
