"""What all results come to: the table of verdicts, the evidence and its limits, the summary."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailauth.arc_chain import ArcReason, ArcResult
from postroom.mailauth.authres import AuthenticationResults, parse, render
from postroom.mailauth.dkim_result import Reason, SignatureResult, Status
from postroom.mailauth.dmarc import UNCHECKED, DmarcReason, DmarcResult, DmarcStatus, SpfOutcome, SpfStatus
from postroom.mailauth.dmarc_record import Policy
from postroom.mailauth.findings import authentication_results
from postroom.mailauth.verdict import (
    MAX_DOCUMENT_BYTES,
    MAX_SIGNATURES,
    Client,
    Evidence,
    Verdict,
    document,
    judge,
    settled_dmarc,
    spf_of,
    summary,
)
from tests.mailauth.dmarc_tools import DOWN, dkim, judged, spf, zone

REJECT = "v=DMARC1; p=reject"


def trusted(text: str) -> AuthenticationResults:
    found = parse(text.encode())
    assert found is not None
    return found


def looked_at(record: str | None, *signatures: SignatureResult, by: SpfOutcome = UNCHECKED, **more: Any) -> Evidence:
    """Mail from example.com."""
    records = {} if record is None else {"example.com": record}
    return Evidence(judged("example.com", records, *signatures, by=by), by, signatures, **more)


@pytest.mark.covers("FR-IN-4", "edge:D1", "decisions:B9")
@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (looked_at(REJECT, dkim("example.com")), "pass"),
        (looked_at(REJECT, by=spf("example.com")), "pass"),
        (looked_at("v=DMARC1; p=none", dkim("example.com")), "pass"),
        # A policy, and nothing aligned.
        (looked_at(REJECT, by=spf("example.com", "fail")), "fail"),
        (looked_at(REJECT, by=spf("other.example")), "fail"),
        (looked_at("v=DMARC1; p=quarantine", by=spf("other.example")), "fail"),
        (looked_at(REJECT + "; pct=0; t=y", by=spf("other.example")), "fail"),
        (looked_at(REJECT, by=SpfOutcome(SpfStatus.NONE, None, "smtp")), "fail"),
        # Nobody checked SPF, and no signature of the author's domain is there.
        (looked_at(REJECT), "unverified"),
        (looked_at(REJECT, dkim("other.example")), "unverified"),
        (looked_at("v=DMARC1; p=quarantine", dkim("other.example", "fail")), "unverified"),
        (looked_at(REJECT, dkim("example.com", "fail")), "fail"),
        (looked_at("v=DMARC1; p=none"), "unaligned"),
        (looked_at("v=DMARC1; p=none", dkim("other.example"), by=spf("other.example")), "unaligned"),
        (looked_at(REJECT, dkim("example.com", "temperror"), by=spf("other.example")), "softfail"),
        (looked_at(None), "none"),
        (looked_at(None, dkim("example.com")), "none"),
        (Evidence(judged("example.com", {"example.com": DOWN}, dkim("example.com"))), "softfail"),
        (Evidence(judged(None, {})), "none"),
        # Several authors.
        (looked_at(REJECT, dkim("example.com"), multiple_from=True), "unaligned"),
        (looked_at(REJECT, by=spf("other.example"), multiple_from=True), "fail"),
        (looked_at(None, multiple_from=True), "none"),
        # An accepted loop-back outweighs all.
        (looked_at(REJECT, by=spf("example.com", "fail"), loopback=True, multiple_from=True), "pass"),
        # ARC never does.
        (looked_at(REJECT, by=spf("other.example"), arc=ArcResult(ArcReason.VERIFIED, 1, "example.com")), "fail"),
    ],
)
def test_the_table(evidence: Evidence, verdict: str) -> None:
    assert judge(evidence) is Verdict(verdict)


def test_only_two_verdicts_quarantine() -> None:
    assert {verdict.value for verdict in Verdict if verdict.quarantines} == {"fail", "unverified"}


@pytest.mark.covers("FR-IN-4", "edge:D9")
@pytest.mark.parametrize(
    ("header", "signature", "status", "verdict"),
    [
        ("mx; dmarc=pass header.from=example.com", "temperror", "pass", "pass"),
        ("mx; dmarc=fail header.from=example.com", "temperror", "fail", "fail"),
        ("mx; dmarc=pass", "temperror", "pass", "pass"),
        ("mx; dmarc=pass header.from=a@Example.com.", "temperror", "pass", "pass"),
        ("mx; dmarc=pass header.from=other.example", "temperror", "temperror", "softfail"),
        ("mx; dmarc=none header.from=example.com", "temperror", "temperror", "softfail"),
        ("mx; dmarc=temperror; dmarc=pass", "temperror", "pass", "pass"),
        ("mx; dmarc/2=pass", "temperror", "temperror", "softfail"),
        ("mx; none", "temperror", "temperror", "softfail"),
        # What we know ourselves decides.
        ("mx; dmarc=pass header.from=example.com", "fail", "fail", "fail"),
        ("mx; dmarc=fail header.from=example.com", "pass", "pass", "pass"),
    ],
)
def test_the_word_of_a_trusted_server(header: str, signature: str, status: str, verdict: str) -> None:
    evidence = looked_at(REJECT, dkim("example.com", signature), trusted=trusted(header))
    assert (settled_dmarc(evidence)[0].value, judge(evidence).value) == (status, verdict)
    assert document(evidence)["dmarc"]["result"] == summary(evidence)["dmarc"] == status
    assert document(evidence)["authserv"] == {"id": "mx", "trusted": True}


@pytest.mark.covers("FR-IN-4")
def test_a_policy_that_nobody_knows_quarantines_nothing() -> None:
    def verdict(header: str) -> Verdict:
        dmarc = judged("example.com", {"example.com": DOWN})
        return judge(Evidence(dmarc, spf("other.example"), trusted=trusted(header)))

    assert verdict("mx; dmarc=fail") is Verdict.UNALIGNED
    assert verdict("mx; dmarc=fail policy.dmarc=x") is Verdict.UNALIGNED
    assert verdict("mx; dmarc=fail policy.dmarc=REJECT") is Verdict.FAIL
    assert verdict("mx; dmarc=fail policy.dmarc=none") is Verdict.UNALIGNED


@pytest.mark.covers("FR-IN-4")
@pytest.mark.parametrize(
    ("header", "outcome"),
    [
        ("mx; spf=pass smtp.mailfrom=a@b@Example.com", SpfOutcome(SpfStatus.PASS, "example.com", "header")),
        ("mx; spf=fail smtp.mailfrom=example.com", SpfOutcome(SpfStatus.FAIL, "example.com", "header")),
        ("mx; spf=pass smtp.mailfrom= smtp.helo=h.example", SpfOutcome(SpfStatus.PASS, "h.example", "header")),
        ("mx; spf=hardfail; spf=neutral", SpfOutcome(SpfStatus.NEUTRAL, None, "header")),
        ("mx; dkim=pass", UNCHECKED),
    ],
)
def test_spf_of_a_trusted_server(header: str, outcome: SpfOutcome) -> None:
    assert spf_of(trusted(header)) == outcome
    assert spf_of(None) == UNCHECKED


@pytest.mark.covers("FR-IN-4")
def test_the_evidence_that_is_kept() -> None:
    by = spf("example.com", "softfail")
    evidence = looked_at(
        REJECT,
        dkim("example.com"),
        dkim("other.example", "fail", "t"),
        by=by,
        client=Client("192.0.2.1", "h.example", "TLSv1.3"),
        signature={"type": "pgp", "status": "present_unverified"},
    )
    assert document(evidence) == {
        "authserv": None,
        "spf": {"result": "softfail", "domain": "example.com", "source": "smtp", "identity": None, "reason": None},
        "dkim": [
            {"d": "example.com", "s": "s", "result": "pass", "aligned": True, "reason": "verified"},
            {"d": "other.example", "s": "t", "result": "fail", "aligned": False, "reason": "body_hash"},
        ],
        "dmarc": {
            "result": "pass",
            "policy": "reject",
            "record_domain": "example.com",
            "aligned_by": "dkim",
            "reason": "aligned",
        },
        "arc": {"result": "none", "instances": 0, "reason": "no_chain"},
        "multiple_from": False,
        "signature": {"type": "pgp", "status": "present_unverified"},
        "client": {"ip": "192.0.2.1", "helo": "h.example", "tls": "TLSv1.3"},
    }
    assert summary(evidence) == {"spf": "softfail", "dkim": "pass", "dmarc": "pass", "arc": "none"}
    assert document(looked_at(REJECT, loopback=True)) == {"source": "loopback"}
    assert document(looked_at(None, ses={"spf": "PASS"}))["ses"] == {"spf": "PASS"}


@pytest.mark.covers("FR-IN-4")
@pytest.mark.parametrize(
    ("signatures", "word"),
    [
        ((), "none"),
        ((dkim("other.example"),), "pass"),
        ((dkim("example.com", "fail"), dkim("other.example")), "fail"),
        ((dkim("other.example", "temperror"), dkim("example.com")), "pass"),
        ((dkim("other.example", "neutral"), dkim("example.com", "fail")), "neutral"),
    ],
)
def test_dkim_in_one_word(signatures: tuple[SignatureResult, ...], word: str) -> None:
    assert summary(looked_at(REJECT, *signatures))["dkim"] == word


TEXT = st.one_of(st.text(max_size=400), st.text(st.characters(min_codepoint=0x10000), min_size=300, max_size=320))
RESULTS = st.builds(SignatureResult, st.sampled_from(list(Reason)), TEXT, TEXT, TEXT, TEXT, TEXT)
EVIDENCE = st.builds(
    Evidence,
    st.builds(
        DmarcResult,
        st.sampled_from(list(DmarcReason)),
        st.one_of(st.none(), st.just("example.com")),
        policy=st.one_of(st.none(), st.sampled_from(list(Policy))),
        dkim_aligned=st.lists(st.booleans(), max_size=12).map(tuple),
    ),
    st.builds(SpfOutcome, st.sampled_from(list(SpfStatus)), TEXT, st.sampled_from([None, "smtp", "header"])),
    st.lists(RESULTS, max_size=12).map(tuple),
    st.builds(ArcResult, st.sampled_from(list(ArcReason)), st.integers(0, 50), oldest_pass=st.integers(0, 50)),
    st.one_of(st.none(), st.builds(AuthenticationResults, TEXT)),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.dictionaries(TEXT, TEXT, max_size=3)),
    st.one_of(st.none(), st.builds(Client, TEXT, TEXT)),
    st.one_of(st.none(), st.dictionaries(TEXT, TEXT, max_size=12)),
)


@pytest.mark.covers("FR-IN-4", "decisions:D3")
@settings(max_examples=150, deadline=None)
@given(EVIDENCE)
def test_any_evidence(evidence: Evidence) -> None:
    made = document(evidence)
    assert len(json.dumps(made)) <= MAX_DOCUMENT_BYTES
    assert "\\u0000" not in json.dumps(made)
    assert len(made.get("dkim", [])) <= MAX_SIGNATURES
    assert set(summary(evidence)) == {"spf", "dkim", "dmarc", "arc"}
    verdict = judge(evidence)
    assert verdict is not Verdict.PASS or evidence.loopback or evidence.dmarc.status is DmarcStatus.PASS
    if evidence.dmarc.status is DmarcStatus.TEMPERROR and not evidence.loopback:
        assert verdict is Verdict.SOFTFAIL
    raw = render(authentication_results(evidence, "mx.example.com", mail_from=evidence.spf.domain, helo="h"))
    assert raw.count(b"\r\n") == raw.count(b"\n")
    assert parse(raw.partition(b":")[2]) is not None


@pytest.mark.covers("mail-server:B4", "RFC 8601 §2.7", "RFC 8617 §6")
def test_our_own_field() -> None:
    by = spf("example.com")
    evidence = looked_at(
        REJECT,
        SignatureResult(Reason.VERIFIED, "example.com", "s1", algorithm="rsa-sha256", signature_start="abc/+="),
        by=by,
        client=Client("192.0.2.1", "h.example"),
        arc=ArcResult(ArcReason.VERIFIED, 2, "list.example", oldest_pass=0),
    )
    raw = render(authentication_results(evidence, "mx.example.com", mail_from="bounce@example.com", helo="h.example"))
    assert raw == (
        b"Authentication-Results: mx.example.com;\r\n"
        b" spf=pass smtp.mailfrom=bounce@example.com;\r\n"
        b" dkim=pass (verified) header.d=example.com header.s=s1 header.a=rsa-sha256\r\n"
        b' header.b="abc/+=";\r\n'
        b" dmarc=pass header.from=example.com policy.dmarc=reject;\r\n"
        b" arc=pass header.oldest-pass=0 smtp.remote-ip=192.0.2.1\r\n"
    )
    bounce = render(authentication_results(looked_at(None, by=by), "mx", mail_from="", helo="h.example"))
    assert b" spf=pass smtp.helo=h.example;" in bounce
    assert b" dkim=none;" in bounce
    relayed = looked_at(None, by=spf("example.com", source="header"))
    assert b"spf=" not in render(authentication_results(relayed, "mx", mail_from="a@example.com"))


def test_results_are_kept_apart_from_their_records() -> None:
    result = judged("example.com", zone({"example.com": REJECT}), dkim("example.com"))
    assert json.loads(json.dumps(result.document()))["policy"] == "reject"
    assert Status.PASS.value == result.status.value
