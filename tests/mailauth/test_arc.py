"""ARC: chains made and judged, every reason for which one fails, and what others make of them."""

import re

import dkim  # type: ignore[import-untyped]  # it has no annotations
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailauth.arc_chain import MAX_SETS, ArcReason, ArcStatus, collect, failed_before, highest_instance
from postroom.mailauth.arc_seal import seal
from postroom.mailauth.arc_verify import MAX_KEYS, ArcVerifier
from postroom.mailauth.authres import parse_arc
from postroom.mailauth.canonical import BodyHashes, Canonicalisation, find_body, parse_fields
from postroom.mailauth.dkim_key import Algorithm
from postroom.mailauth.dkim_result import Reason, Status
from postroom.mailauth.dkim_sign import Signer, SigningError, SigningPolicy, sign_message
from postroom.mailauth.dkim_verify import Verifier
from postroom.mailauth.resolver import TemporaryResolverError
from tests.mailauth.arc_tools import FINDINGS, by_hand, chain, checked, sealed
from tests.mailauth.dkim_tools import DOMAIN, MAIL, NOW, Answers, done, ed_key, published, rsa_key, signer

NAME = f"ed25519._domainkey.{DOMAIN}"
TWO = chain(2)


def changed(old: bytes, new: bytes, raw: bytes = TWO, count: int = 1) -> bytes:
    assert old in raw
    return raw.replace(old, new, count)


@pytest.mark.covers("RFC 8617 §5.2", "FR-IN-4")
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_chains_pass(length: int) -> None:
    result = checked(chain(length))
    assert (result.status, result.reason, result.instances) == (ArcStatus.PASS, ArcReason.VERIFIED, length)
    assert (result.domain, result.oldest_pass) == (DOMAIN, 0)
    assert result.document() == {"result": "pass", "instances": length, "reason": "verified"}


@pytest.mark.covers("RFC 8617 §5.2")
def test_without_a_chain() -> None:
    for raw in (MAIL, b"", b"\r\n", b"x: y\r\n\r\n"):
        result = checked(raw)
        assert (result.status, result.reason, result.instances) == (ArcStatus.NONE, ArcReason.NO_CHAIN, 0)
    assert checked(b"no field\r\n" + MAIL).status is ArcStatus.NONE
    assert checked(b"no field\r\n" + TWO).reason is ArcReason.MALFORMED_MESSAGE


@pytest.mark.covers("RFC 8617 §5.2")
def test_changed_on_the_way() -> None:
    """A list changes the subject and adds a line: only its own message signature holds, and that is enough."""
    one = chain(1)
    relayed = sealed(one.replace(b"Invoice", b"[list] Invoice") + b"-- \r\nlist\r\n", status=ArcStatus.PASS)
    result = checked(relayed)
    assert (result.status, result.oldest_pass) == (ArcStatus.PASS, 2)
    again = sealed(sealed(relayed))
    assert (checked(again).status, checked(again).oldest_pass) == (ArcStatus.PASS, 2)
    after = checked(relayed.replace(b"[list]", b"[other]"))
    assert (after.reason, after.failed_instance, after.detail) == (ArcReason.MESSAGE_SIGNATURE, 2, Reason.SIGNATURE)
    assert checked(relayed + b"more\r\n").detail is Reason.BODY_HASH


@pytest.mark.covers("RFC 8617 §4.1.3", "RFC 8617 §5.2")
@pytest.mark.parametrize(
    ("raw", "reason", "instance"),
    [
        (changed(b"spf=pass", b"spf=fail"), ArcReason.SEAL, 2),
        (TWO[::-1].replace(b"ssap=fps", b"liaf=fps", 1)[::-1], ArcReason.SEAL, 2),
        (changed(b"i=2; a=ed25519-sha256; t=17", b"i=2; a=ed25519-sha256; t=27"), ArcReason.SEAL, 2),
        (changed(b"ARC-Seal: i=2;", b"ARC-Seal: i=3;"), ArcReason.INCOMPLETE, 2),
        (changed(b"ARC-Seal: i=1;", b"ARC-Seal: i=2;"), ArcReason.INCOMPLETE, 2),
        (changed(b"ARC-Seal: i=1;", b"ARC-Seal: i=0;"), ArcReason.MALFORMED_FIELD, None),
        (changed(b"ARC-Seal: i=1;", b"ARC-Seal: i=x;"), ArcReason.MALFORMED_FIELD, None),
        (changed(b"ARC-Seal: i=1;", b"ARC-Seal: i=-1;"), ArcReason.MALFORMED_FIELD, None),
        (changed(b"ARC-Seal: i=1;", b"ARC-Seal:"), ArcReason.MALFORMED_FIELD, None),
        (changed(b"ARC-Seal: i=1;", b"ARC-Seal: i=1; i=1;"), ArcReason.MALFORMED_FIELD, None),
        (changed(b"ARC-Seal: i=1;", b"ARC-Seal: i=51;"), ArcReason.TOO_MANY_SETS, 51),
        (changed(b"ARC-Seal: i=1;", b"ARC-Seal: i=" + b"1" * 5000 + b";"), ArcReason.MALFORMED_FIELD, None),
        (changed(b"ARC-Authentication-Results: i=1;", b"ARC-Authentication-Results:"), ArcReason.MALFORMED_FIELD, None),
        (changed(b"ARC-Authentication-Results: i=1;", b"X-Gone: i=1;"), ArcReason.INCOMPLETE, 1),
        (changed(b"ARC-Message-Signature: i=1;", b"X-Gone: i=1;"), ArcReason.INCOMPLETE, 1),
        (changed(b"ARC-Seal: i=1;", b"X-Gone: i=1;"), ArcReason.INCOMPLETE, 1),
        (changed(b"ARC-Seal: i=2;", b"X-Gone: i=2;"), ArcReason.INCOMPLETE, 2),
        (changed(b"cv=pass", b"cv=fail"), ArcReason.FAILED_BEFORE, 2),
        (changed(b"cv=pass", b"cv=FAIL"), ArcReason.FAILED_BEFORE, 2),
        (changed(b"cv=pass", b"cv=none"), ArcReason.WRONG_STATUS, 2),
        (changed(b"cv=pass", b"cv=maybe"), ArcReason.WRONG_STATUS, 2),
        (changed(b"cv=pass;", b""), ArcReason.WRONG_STATUS, 2),
        (changed(b"cv=none", b"cv=pass"), ArcReason.WRONG_STATUS, 1),
        (changed(b"cv=none", b"cv=fail"), ArcReason.WRONG_STATUS, 1),
        (changed(b"cv=pass;", b"cv=pass; h=from;"), ArcReason.SEAL, 2),
        (changed(b"cv=pass;", b"cv=pass; x=y;"), ArcReason.SEAL, 2),
        (changed(b"ARC-Seal: i=2; a=ed25519-sha256", b"ARC-Seal: i=2; a=rsa-sha1"), ArcReason.SEAL, 2),
        (changed(b"ARC-Message-Signature: i=2; a=ed25519-sha256", b"ARC-Message-Signature: i=2; a=rsa-sha1"),
         ArcReason.MESSAGE_SIGNATURE, 2),
        (changed(b"From: Alice", b"From: Mallory"), ArcReason.MESSAGE_SIGNATURE, 2),
        (b"From: mallory@example.net\r\n" + TWO, ArcReason.MESSAGE_SIGNATURE, 2),
        (TWO[TWO.index(b"ARC-Authentication-Results: i=2") :], ArcReason.INCOMPLETE, 2),
        (TWO[TWO.index(b"ARC-Seal: i=1") :] , ArcReason.VERIFIED, None),
        (b"ARC-Seal: nothing\r\n" + TWO, ArcReason.MALFORMED_FIELD, None),
        (b"ARC-Seal: i=1;\r\n" * 151 + MAIL, ArcReason.TOO_MANY_SETS, None),
        (b"ARC-Seal: i=1; cv=none\r\n" + TWO, ArcReason.INCOMPLETE, 1),
    ],
)  # fmt: skip
def test_why_chains_fail(raw: bytes, reason: ArcReason, instance: int | None) -> None:
    result = checked(raw)
    assert (result.reason, result.failed_instance) == (reason, instance)
    assert (result.status is ArcStatus.PASS) == (reason is ArcReason.VERIFIED)


@pytest.mark.covers("RFC 8617 §4.1.2", "RFC 8617 §4.1.3")
def test_sets_by_hand() -> None:
    good = by_hand(MAIL, 1, "none") + MAIL
    assert checked(good).reason is ArcReason.VERIFIED
    assert checked(by_hand(good, 2, "Pass") + good).reason is ArcReason.VERIFIED
    # Older sealers signed their findings, too; no sealer may sign a seal.
    assert checked(by_hand(good, 2, "pass", names="from:arc-authentication-results") + good).status is ArcStatus.PASS
    assert checked(by_hand(good, 2, "pass", names="from:arc-seal") + good).detail is Reason.SYNTAX
    assert checked(by_hand(good, 2, "pass", names="to") + good).detail is Reason.FROM_UNSIGNED
    assert checked(by_hand(MAIL, 1, "none", seal_tags="h=from; ") + MAIL).reason is ArcReason.SEAL
    assert checked(by_hand(MAIL, 1, "none", seal_tags="x=1; z=2; ") + MAIL).reason is ArcReason.VERIFIED
    assert checked(by_hand(MAIL, 1, "none", more="t=5; x=6; ") + MAIL).detail is Reason.EXPIRED
    assert checked(by_hand(MAIL, 1, "none", more="l=0; ") + MAIL).detail is Reason.BODY_HASH
    older = by_hand(MAIL, 1, "none", more="t=5; x=6; ") + MAIL
    assert checked(by_hand(older, 2, "pass") + older).status is ArcStatus.PASS


@pytest.mark.covers("RFC 8617 §5.2.1", "decisions:D3")
@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (TemporaryResolverError(), Reason.DNS),
        ([], Reason.NO_KEY),
        ([b"v=DKIM1; k=ed25519; p="], Reason.KEY_REVOKED),
        ([rsa_key().public_record().encode()], Reason.KEY_MISMATCH),
    ],
)
def test_answers_of_dns(answer: list[bytes] | Exception, detail: Reason) -> None:
    result = checked(TWO, Answers({NAME: answer}))
    assert (result.status, result.detail) == (ArcStatus.FAIL, detail)


@pytest.mark.covers("RFC 8617 §5.2.1", "decisions:D3")
def test_one_key_that_is_not_there() -> None:
    raw = sealed(sealed(MAIL, key=rsa_key()))
    result = checked(raw, Answers({**published().records, f"rsa._domainkey.{DOMAIN}": TemporaryResolverError()}))
    assert (result.reason, result.failed_instance, result.detail) == (ArcReason.SEAL, 1, Reason.DNS)
    assert result.status is ArcStatus.FAIL


@pytest.mark.covers("FR-IN-4", "RFC 8617 §9.2")
def test_keys_have_a_limit() -> None:
    raw, records = MAIL, dict(published().records)
    for number in range(MAX_KEYS + 1):
        record = [ed_key().public_record().encode()]
        records[f"s{number}._domainkey.{DOMAIN}"] = record
        status = ArcStatus.PASS if number else ArcStatus.NONE
        raw = seal(raw, Signer(DOMAIN, f"s{number}", ed_key()), FINDINGS, status, sealed_at=NOW) + raw
        answers = Answers(records)
        result = checked(raw, answers)
        assert result.reason is (ArcReason.VERIFIED if number < MAX_KEYS else ArcReason.TOO_MANY_KEYS)
        assert len(answers.asked) == (number + 1 if number < MAX_KEYS else 0)


@pytest.mark.covers("RFC 8617 §4.2.1", "RFC 8617 §5.1")
def test_fifty_sets_and_no_more() -> None:
    raw = chain(MAX_SETS)
    assert (checked(raw).status, checked(raw).instances) == (ArcStatus.PASS, MAX_SETS)
    assert seal(raw, signer(ed_key()), FINDINGS, ArcStatus.PASS, sealed_at=NOW) == b""
    more = by_hand(raw, MAX_SETS + 1, "pass") + raw
    assert checked(more).reason is ArcReason.TOO_MANY_SETS


@pytest.mark.covers("RFC 8617 §5.1.2")
def test_sealing_what_failed() -> None:
    broken = changed(b"From: Alice", b"From: Mallory")
    added = seal(broken, signer(ed_key()), FINDINGS, ArcStatus.FAIL, sealed_at=NOW)
    assert re.search(rb"ARC-Seal: i=3;.*cv=fail", added) is not None
    assert checked(added + broken).reason is ArcReason.FAILED_BEFORE
    assert failed_before(parse_fields(added))
    # As if the newest set was the only one.
    alone = added.replace(b"i=3;", b"i=1;")
    assert highest_instance(parse_fields(alone)) == 1
    assert seal(added + broken, signer(ed_key()), FINDINGS, ArcStatus.FAIL, sealed_at=NOW) == b""
    unreadable = changed(b"ARC-Seal: i=1;", b"ARC-Seal: i=x;")
    assert b"ARC-Seal: i=3;" in seal(unreadable, signer(ed_key()), FINDINGS, ArcStatus.FAIL, sealed_at=NOW)


@pytest.mark.covers("RFC 8617 §5.1")
def test_what_a_seal_looks_like() -> None:
    signed = sign_message(MAIL, [signer(rsa_key()), signer(ed_key())], signed_at=NOW, expires_at=NOW + 600)
    raw = sealed(signed)
    fields = parse_fields(raw[: find_body(raw)])
    assert [field.name for field in fields[:3]] == ["arc-seal", "arc-message-signature", "arc-authentication-results"]
    assert all(len(line) <= 78 for field in fields[:3] for line in field.raw.split(b"\r\n"))
    (found,) = collect(fields)
    assert found.results == parse_arc(fields[2].value) is not None
    names = found.signature_tags["h"].compact.lower().split(b":")
    assert names.count(b"dkim-signature") == 2
    assert names.count(b"from") == 2
    assert not any(name.startswith(b"arc-") or name == b"authentication-results" for name in names)
    assert raw.endswith(signed)


@pytest.mark.covers("RFC 8617 §5.1")
def test_what_cannot_be_sealed() -> None:
    def attempt(raw: bytes, status: ArcStatus, **more: object) -> bytes:
        return seal(raw, signer(ed_key()), FINDINGS, status, **{"sealed_at": NOW, **more})  # type: ignore[arg-type]  # any

    for raw, status in (
        (MAIL, ArcStatus.PASS),
        (MAIL, ArcStatus.FAIL),
        (TWO, ArcStatus.NONE),
        (changed(b"cv=pass", b"cv=none"), ArcStatus.PASS),
        (b"no field\r\n" + MAIL, ArcStatus.NONE),
        (b"To: x\r\n\r\n", ArcStatus.NONE),
    ):
        with pytest.raises(SigningError):
            attempt(raw, status)
    with pytest.raises(SigningError):
        attempt(MAIL, ArcStatus.NONE, sealed_at=-1)
    for name in ("ARC-Seal", "Authentication-Results", "arc-message-signature"):
        with pytest.raises(SigningError):
            attempt(MAIL, ArcStatus.NONE, policy=SigningPolicy(always=("From", name)))


@pytest.mark.covers("mail-server:B4")
def test_body_and_header_are_read_once_for_all() -> None:
    raw = sealed(sign_message(MAIL, [signer(rsa_key()), signer(ed_key())], signed_at=NOW))
    at = find_body(raw)
    body, fields = BodyHashes(), parse_fields(raw[:at])
    one = Verifier(raw[:at], now=NOW, body=body, fields=fields)
    two = ArcVerifier(raw[:at], now=NOW, body=body, fields=fields)
    body.update(raw[at:])
    assert [r.status for r in done(one.results(published()))] == [Status.PASS, Status.PASS]
    assert done(two.result(published())).status is ArcStatus.PASS


FORMS = st.sampled_from(list(Canonicalisation))


def txt(name: bytes, timeout: float = 0) -> bytes:
    found = published().records[name.decode().rstrip(".")]
    assert not isinstance(found, Exception)
    return found[0]


def they_judge(raw: bytes) -> str:
    """dkimpy has None for a chain that says itself that it failed."""
    cv, _, _ = dkim.arc_verify(raw, dnsfunc=txt)
    return (cv or b"fail").decode()


@pytest.mark.covers("RFC 8617 §5.1", "RFC 8617 §5.2")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=4), FORMS, FORMS)
def test_dkimpy_verifies_our_chains(changes: list[bool], header: Canonicalisation, body: Canonicalisation) -> None:
    """Changes between the hops included. It knows RSA only."""
    raw, key = MAIL, rsa_key()
    policy = SigningPolicy(header=header, body=body)
    for change in changes:
        status = checked(raw).status
        raw = raw + b"more\r\n" if change else raw
        raw = seal(raw, signer(key), FINDINGS, status, sealed_at=NOW, policy=policy) + raw
    assert checked(raw).status is ArcStatus.PASS
    assert they_judge(raw) == "pass"


@pytest.mark.covers("RFC 8617 §5.1", "RFC 8617 §5.2")
def test_we_verify_dkimpys_chains() -> None:
    raw = MAIL
    for number in range(1, 4):
        arc = "none" if number == 1 else "pass"
        found = f"Authentication-Results: mx.example.com; arc={arc}; spf=pass smtp.mailfrom=a@example.com\r\n".encode()
        added = dkim.arc_sign(
            found + raw, b"rsa", DOMAIN.encode(), rsa_key().to_pem(), b"mx.example.com", timestamp=NOW
        )
        raw = b"".join(added) + raw
        result = checked(raw)
        assert (result.status, result.instances, they_judge(raw)) == (ArcStatus.PASS, number, "pass")
    mixed = sealed(raw, key=rsa_key())
    assert (checked(mixed).status, they_judge(mixed)) == (ArcStatus.PASS, "pass")


OCTETS = st.sampled_from([b"", b" ", b"x", b"1", b"=", b";", b"\r\n ", b"\r\n"])
TWO_RSA = sealed(sealed(MAIL, key=rsa_key()), key=rsa_key())
HEAD = len(TWO_RSA) - len(MAIL)


@pytest.mark.covers("RFC 8617 §5.2")
@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(TWO_RSA) - 3), st.integers(0, 2), OCTETS)
def test_dkimpy_agrees_about_changes(where: int, removed: int, put: bytes) -> None:
    """dkimpy forgives more, or less, where we follow the RFC: so only what we pass is compared, and what it passes
    differs from ours by known kinds."""
    raw = TWO_RSA[:where] + put + TWO_RSA[where + removed :]
    ours = checked(raw)
    try:
        theirs = they_judge(raw)
    except Exception:  # noqa: BLE001  # it raises all sorts of errors for what cannot be parsed
        theirs = "raises"
    if ours.status is ArcStatus.PASS:
        # It searches its own raw field by the text ` i=2;`, so that other spacing makes it raise or fail.
        assert theirs == "pass" or where < HEAD
    elif theirs == "pass":
        # It takes lines that are no fields, instances of one field among other text, and unknown fields without i=; and
        # a CR alone for white space, which RFC 5322 §2.2 has nowhere in a field.
        known = ours.reason in (ArcReason.MALFORMED_MESSAGE, ArcReason.MALFORMED_FIELD, ArcReason.NO_CHAIN)
        assert known or re.search(rb"\r(?!\n)", raw.partition(b"\r\n\r\n")[0])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    for text in (
        raw,
        b"ARC-Seal: " + raw,
        b"ARC-Message-Signature: i=1;" + raw,
        b"ARC-Authentication-Results: i=1;" + raw,
    ):
        result = checked(text)
        assert result.status is not ArcStatus.PASS
        assert result.reason.status is result.status


@pytest.mark.covers("RFC 8617 §5.2", "FR-IN-4")
@pytest.mark.parametrize("algorithm", list(Algorithm))
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_change_of_what_is_covered_passes(algorithm: Algorithm, data: st.DataObject) -> None:
    """Of the findings and seals every character counts, but for case and space where relaxed forms do not tell."""
    good = TWO if algorithm is Algorithm.ED25519_SHA256 else TWO_RSA
    start = good.index(b"ARC-Authentication-Results: i=1") + len(b"ARC-Authentication-Results:")
    at = data.draw(st.integers(start, good.index(b"Received:") - 3))
    new = data.draw(st.sampled_from([b"x", b"0", b"~"]))
    raw = good[:at] + new + good[at + 1 :]
    if raw != good:
        assert checked(raw).status is ArcStatus.FAIL


@pytest.mark.parametrize(
    "raw",
    [
        b"ARC-Seal: i=1;\r\n" * 10_000 + b"\r\n",
        b"ARC-Seal: " + b"i=1;" * 60_000 + b"\r\n\r\n",
        b"ARC-Authentication-Results: " + b"(" * 200_000 + b"\r\n\r\n",
        TWO + b"\r\n" * 500_000,
    ],
)
def test_hostile_messages_end(raw: bytes) -> None:
    assert checked(raw).reason in (ArcReason.TOO_MANY_SETS, ArcReason.MALFORMED_FIELD, ArcReason.VERIFIED)


@pytest.mark.covers("RFC 8617 §4.1")
def test_the_example_of_rfc_8617() -> None:
    """Appendix B, whose keys are not published: it can be read, and its structure is sound."""
    text = """ARC-Seal: i=3; a=rsa-sha256; cv=pass; d=clochette.example.org; s=
        clochette; t=12345; b=CU87XzXlNlk5X/yW4l73UvPUcP9ivwYWxyBWcVrRs7
        +HPx3K05nJhny2fvymbReAmOA9GTH/y+k9kEc59hAKVg==
ARC-Message-Signature: i=3; a=rsa-sha256; c=relaxed/relaxed; d=
        clochette.example.org; h=message-id:date:from:to:subject; s=
        clochette; t=12345; bh=KWSe46TZKCcDbH4klJPo+tjk5LWJnVRlP5pvjXFZY
        LQ=; b=o71vwyLsK+Wm4cOSlirXoRwzEvi0vqIjd/2/GkYFYlSd/GGfKzkAgPqxf
        K7ccBMP7Zjb/mpeggswHjEMS8x5NQ==
ARC-Authentication-Results: i=3; clochette.example.org; spf=fail
    smtp.from=jqd@d1.example; dkim=fail (512-bit key)
    header.i=@d1.example; dmarc=fail; arc=pass (as.2.gmail.example=pass,
    ams.2.gmail.example=pass, as.1.lists.example.org=pass,
    ams.1.lists.example.org=fail (message has been altered))
Authentication-Results: clochette.example.org; spf=fail
    smtp.from=jqd@d1.example; dkim=fail (512-bit key)
    header.i=@d1.example; dmarc=fail; arc=pass
From: John Q Doe <jqd@d1.example>

"""
    raw = text.replace("i=3;", "i=1;").replace("cv=pass", "cv=none").replace("\n", "\r\n").encode()
    (found,) = collect(parse_fields(raw[: find_body(raw)]))
    assert found.results is not None
    assert [(r.method, r.result) for r in found.results.results] == [
        ("spf", "fail"), ("dkim", "fail"), ("dmarc", "fail"), ("arc", "pass"),
    ]  # fmt: skip
    assert checked(raw).detail is Reason.NO_KEY
