"""Judging DKIM signatures: vectors of the RFCs, every result, what changes survive."""

import base64
import hashlib
import itertools
import re
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from postroom.mailauth.answers import Answers as KnownAnswers
from postroom.mailauth.canonical import (
    BodyHashes,
    Canonicalisation,
    HeaderField,
    find_body,
    header_digest,
    parse_fields,
)
from postroom.mailauth.dkim_key import PrivateKey
from postroom.mailauth.dkim_result import Reason, Status
from postroom.mailauth.dkim_sign import Signer, SigningPolicy, sign_message
from postroom.mailauth.dkim_verify import MAX_SIGNATURES, Verifier, verify
from postroom.mailauth.resolver import NameNotFoundError, TemporaryResolverError
from tests.mailauth.dkim_tools import (
    DOMAIN,
    MAIL,
    NOW,
    Answers,
    done,
    ed_key,
    one,
    published,
    reference_body,
    reference_header,
    rsa_key,
    run,
    signer,
)

RELAXED = SigningPolicy()
SIMPLE = SigningPolicy(header=Canonicalisation.SIMPLE, body=Canonicalisation.SIMPLE)
SIGNED = sign_message(MAIL, [signer(ed_key())], signed_at=NOW - 60)
RECORD = ed_key().public_record().encode()
NAME = f"ed25519._domainkey.{DOMAIN}"


def altered(old: bytes, new: bytes, raw: bytes = SIGNED) -> bytes:
    assert raw.count(old) == 1
    return raw.replace(old, new)


VECTOR = b"""DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;
 d=football.example.com; i=@football.example.com;
 q=dns/txt; s=brisbane; t=1528637909; h=from : to :
 subject : date : message-id : from : subject : date;
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;
 b=/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11Bus
 Fa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw==
DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed;
 d=football.example.com; i=@football.example.com;
 q=dns/txt; s=test; t=1528637909; h=from : to : subject :
 date : message-id : from : subject : date;
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;
 b=F45dVWDfMbQDGHJFlXUNB2HKfbCeLRyhDXgFpEL8GwpsRe0IeIixNTe3
 DhCVlUrSjV4BwcVcOF6+FF3Zo9Rpo1tFOeS9mPYQTnGdaSGsgeefOsk2Jz
 dA+L10TeYt9BgDfQNZtKdN1WO//KgIqXP7OdEFE4LjFYNcUxZQ4FADY+8=
From: Joe SixPack <joe@football.example.com>
To: Suzie Q <suzie@shopping.example.net>
Subject: Is dinner ready?
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)
Message-ID: <20030712040037.46341.5F8J@football.example.com>

Hi.

We lost the game.  Are you hungry yet?

Joe.
"""
# Secrets and records of RFC 8463 §A.1 and §A.2, and the record of RFC 6376 §C.
SEED = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="
VECTOR_RECORDS = {
    "brisbane._domainkey.football.example.com": [b"v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="],
    "test._domainkey.football.example.com": [
        b"v=DKIM1; k=rsa; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08a5qhdR6wy5bdOKb2jLQi"
        b"Y/J16JYi0Qvx/byYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqMKrM3rG4hstT5QjvHO9PzoxZyVYLzBfO2EeC3Ip3G"
        b"+2kryOTIKT+l/K4w3QIDAQAB"
    ],
    "brisbane._domainkey.example.com": [
        b"v=DKIM1; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDwIRP/UC3SBsEmGqZ9ZJW3/DkMoGeLnQg1fWn7/zYt"
        b"IxN2SnFCjxOCKG9v3b4jYfcTNh5ijSsq631uBItLa7od+v/RtdC2UzJ1lWT947qR+Rcac2gb"
        b"to/NMqJ0fzfVjH4OuKhitdY9tf6mcwGjaNBcWToIMmPSPDdQPNUYckcQ2QIDAQAB"
    ],
}
OLDER_VECTOR = b"""DKIM-Signature: v=1; a=rsa-sha256; s=brisbane; d=example.com;
      c=simple/simple; q=dns/txt; i=joe@football.example.com;
      h=Received : From : To : Subject : Date : Message-ID;
      bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;
      b=AuUoFEfDxTDkHlLXSZEpZj79LICEps6eda7W3deTVFOk4yAUoqOB
      4nujc7YopdG5dWLSdNg6xNAZpOPr+kHxt1IrE+NahM6L/LbvaHut
      KVdkLLkpVaVVQPzeRDI009SO2Il5Lu7rDNH6mZckBdrIx0orEtZV
      4bmp/YzhwvcubU4=;
Received: from client1.football.example.com  [192.0.2.1]
      by submitserver.example.com with SUBMISSION;
      Fri, 11 Jul 2003 21:01:54 -0700 (PDT)
From: Joe SixPack <joe@football.example.com>
To: Suzie Q <suzie@shopping.example.net>
Subject: Is dinner ready?
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)
Message-ID: <20030712040037.46341.5F8J@football.example.com>

Hi.

We lost the game. Are you hungry yet?

Joe.
"""


@pytest.mark.covers("RFC 8463", "mail-server:B4")
def test_the_message_of_rfc_8463() -> None:
    results = run(VECTOR, Answers(VECTOR_RECORDS))
    assert [(r.status, r.algorithm, r.selector, r.key_bits) for r in results] == [
        (Status.PASS, "ed25519-sha256", "brisbane", 256),
        (Status.PASS, "rsa-sha256", "test", 1024),
    ]
    assert results[0].identity == "@football.example.com"
    assert results[0].signature_start == "/gCrinpc"
    assert results[0].signed_at == 1528637909


@pytest.mark.covers("RFC 8463")
def test_the_key_of_rfc_8463() -> None:
    pkcs8 = bytes.fromhex("302e020100300506032b657004220420") + base64.b64decode(SEED)
    record = PrivateKey.from_der(pkcs8).public_record()
    assert [record.encode()] == VECTOR_RECORDS["brisbane._domainkey.football.example.com"]


@pytest.mark.covers("RFC 6376")
def test_the_message_of_rfc_6376() -> None:
    """In simple form, with the body that its erratum 3883 restores."""
    result = one(OLDER_VECTOR, Answers(VECTOR_RECORDS))
    assert (result.status, result.domain, result.identity) == (Status.PASS, "example.com", "joe@football.example.com")


def test_what_a_result_tells() -> None:
    raw = sign_message(MAIL, [signer(rsa_key())], signed_at=NOW, expires_at=NOW + 9)
    result = one(raw)
    assert (result.status, result.reason) == (Status.PASS, Reason.VERIFIED)
    assert (result.domain, result.selector, result.identity) == (DOMAIN, "rsa", f"@{DOMAIN}")
    assert (result.algorithm, result.key_bits, result.body_length) == ("rsa-sha256", 2048, None)
    assert (result.signed_at, result.expires_at, result.expired) == (NOW, NOW + 9, False)
    assert (result.testing, result.strict_identity, result.revoked) == (False, False, False)
    assert result.signed_fields[:3] == ("from", "from", "to")
    found = re.search(rb" b=([^ ]{8})", raw)
    assert found
    assert found[1].decode() == result.signature_start


@pytest.mark.covers("RFC 6376 §6.1.1", "RFC 8301 §3.1", "FR-IN-4")
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"v=1;", b"v=2;", Reason.UNSUPPORTED),
        (b"v=1;", b"", Reason.MISSING_TAG),
        (b"a=ed25519-sha256;", b"", Reason.MISSING_TAG),
        (b"d=example.com;", b"", Reason.MISSING_TAG),
        (b"s=ed25519;", b"", Reason.MISSING_TAG),
        (b"bh=", b"bx=", Reason.MISSING_TAG),
        (b" b=", b" bb=", Reason.MISSING_TAG),
        (b"h=From", b"hh=From", Reason.MISSING_TAG),
        (b"a=ed25519-sha256", b"a=rsa-sha1", Reason.HISTORIC_ALGORITHM),
        (b"a=ed25519-sha256", b"a=rsa-sha256", Reason.KEY_MISMATCH),
        (b"a=ed25519-sha256", b"a=sphincs-sha3", Reason.UNSUPPORTED),
        (b"c=relaxed/relaxed", b"c=relaxed/loose", Reason.UNSUPPORTED),
        (b"c=relaxed/relaxed", b"c=strict", Reason.UNSUPPORTED),
        (b"c=relaxed/relaxed", b"c=relaxed/simple", Reason.BODY_HASH),
        (b"c=relaxed/relaxed", b"c=relaxed", Reason.BODY_HASH),
        (b"c=relaxed/relaxed", b"c=simple/relaxed", Reason.SIGNATURE),
        (b"v=1;", b"v=1; q=http;", Reason.UNSUPPORTED),
        (b"v=1;", b"v=1; q=http : dns/txt;", Reason.SIGNATURE),
        (b"v=1;", b"v=1; v=1;", Reason.SYNTAX),
        (b"v=1;", b"v=1;;", Reason.SYNTAX),
        (b"v=1;", b"v=1; =;", Reason.SYNTAX),
        (b"v=1;", b"v=1; a word;", Reason.SYNTAX),
        (b"v=1;", b"v=1; n=\x00;", Reason.SYNTAX),
        (b"v=1;", b"v=1; n=" + b"a" * 17_000 + b";", Reason.SYNTAX),
        (b"v=1;", b"v=1;" + b"".join(b" a%d=;" % n for n in range(100)), Reason.SYNTAX),
        (b"v=1;", b"v=1; new=tag;", Reason.SIGNATURE),
        (b"d=example.com", b"d=com", Reason.SYNTAX),
        (b"d=example.com", b"d=exa mple.com", Reason.SYNTAX),
        (b"d=example.com", b"d=example.com.", Reason.SYNTAX),
        (b"d=example.com", b"d=" + b"a." * 120 + b"com", Reason.SYNTAX),
        (b"d=example.com", b"d=\xff.com", Reason.SYNTAX),
        (b"d=example.com", "d=xn--\u00e4.com".encode(), Reason.SYNTAX),
        (b"d=example.com", b"d=other.example", Reason.NO_KEY),
        (b"s=ed25519", b"s=a/b", Reason.SYNTAX),
        (b"s=ed25519", b"s=other", Reason.NO_KEY),
        (b"v=1;", b"v=1; i=@other.example;", Reason.DOMAIN_MISMATCH),
        (b"v=1;", b"v=1; i=@badexample.com;", Reason.DOMAIN_MISMATCH),
        (b"v=1;", b"v=1; i=@com;", Reason.DOMAIN_MISMATCH),
        (b"v=1;", b"v=1; i=example.com;", Reason.SYNTAX),
        (b"v=1;", b"v=1; i=a=00b@example.com;", Reason.SYNTAX),
        (b"v=1;", b"v=1; i==FF@example.com;", Reason.SYNTAX),
        (b"h=From:From:", b"h=", Reason.FROM_UNSIGNED),
        (b"h=From:", b"h=From::", Reason.SYNTAX),
        (b"h=From:", b"h=From:" + b"a:" * 1000, Reason.SYNTAX),
        (b"h=From:", b"h=From:a b:", Reason.SYNTAX),
        (b"t=%d" % (NOW - 60), b"t=soon", Reason.SYNTAX),
        (b"t=%d" % (NOW - 60), b"t=1234567890123", Reason.SYNTAX),
        (b"t=%d" % (NOW - 60), b"t=-1", Reason.SYNTAX),
        (b"t=%d;" % (NOW - 60), b"t=5; x=5;", Reason.SYNTAX),
        (b"t=%d;" % (NOW - 60), b"t=5; x=6;", Reason.EXPIRED),
        (b"t=%d;" % (NOW - 60), b"t=5; x=%d;" % (NOW - 301), Reason.EXPIRED),
        (b"t=%d;" % (NOW - 60), b"t=5; x=%d;" % (NOW - 300), Reason.SIGNATURE),
        (b"t=%d" % (NOW - 60), b"t=%d" % (NOW + 86_401), Reason.FUTURE),
        (b"t=%d" % (NOW - 60), b"t=%d" % (NOW + 86_400), Reason.SIGNATURE),
        (b"v=1;", b"v=1; l=x;", Reason.SYNTAX),
        (b"v=1;", b"v=1; l=" + b"9" * 77 + b";", Reason.SYNTAX),
        (b"v=1;", b"v=1; l=" + b"9" * 76 + b";", Reason.BODY_LENGTH),
        (b"v=1;", b"v=1; l=0;", Reason.BODY_HASH),
        (b" bh=", b" bh=*", Reason.SYNTAX),
        (b" bh=", b" bh=QUJD", Reason.BODY_HASH),
        (b" b=", b" b=*", Reason.SYNTAX),
        (b" b=", b" b=QUJD", Reason.SIGNATURE),
        (b"From: Alice", b"From: Mallory", Reason.SIGNATURE),
        (b"please", b"do not", Reason.BODY_HASH),
    ],
)  # fmt: skip
def test_signatures_that_do_not_pass(old: bytes, new: bytes, reason: Reason) -> None:
    result = one(altered(old, new))
    assert result.reason is reason
    assert result.status is not Status.PASS
    assert (reason is Reason.EXPIRED) == result.expired


@pytest.mark.covers("RFC 8601 §2.7.1", "FR-IN-4")
def test_reasons_and_results() -> None:
    assert {reason for reason in Reason if reason.status is Status.PASS} == {Reason.VERIFIED}
    assert {reason for reason in Reason if reason.status is Status.FAIL} == {Reason.BODY_HASH, Reason.SIGNATURE}
    assert {reason for reason in Reason if reason.status is Status.TEMPERROR} == {Reason.DNS}
    assert Reason.SYNTAX.status is Status.NEUTRAL
    assert Reason.WEAK_KEY.status is Status.POLICY
    assert Reason.HISTORIC_ALGORITHM.status is Status.PERMERROR


@pytest.mark.covers("RFC 6376 §3.6.1", "decisions:D3")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([], Reason.NO_KEY),
        (TemporaryResolverError(), Reason.DNS),
        ([b"v=DKIM1; k=ed25519; p="], Reason.KEY_REVOKED),
        ([RECORD, b"v=DKIM1; p="], Reason.KEY_AMBIGUOUS),
        ([RECORD + b"; s=tlsrpt"], Reason.KEY_MISMATCH),
        ([RECORD + b"; h=sha1"], Reason.KEY_MISMATCH),
        ([rsa_key().public_record().encode()], Reason.KEY_MISMATCH),
        ([b"v=DKIM1; k=ed25519; p=!"], Reason.KEY_SYNTAX),
        ([b"v=spf1 -all", RECORD], Reason.VERIFIED),
    ],
)
def test_answers_of_dns(answer: list[bytes] | Exception, reason: Reason) -> None:
    result = one(SIGNED, Answers({NAME: answer}))
    assert result.reason is reason
    assert result.revoked is (reason is Reason.KEY_REVOKED)
    assert (result.domain, result.selector) == (DOMAIN, "ed25519")


@pytest.mark.covers("RFC 6376 §3.6.1")
def test_flags_of_the_key() -> None:
    result = one(SIGNED, Answers({NAME: [RECORD + b"; t=y"]}))
    assert (result.status, result.testing, result.strict_identity) == (Status.PASS, True, False)
    strict = Answers({NAME: [RECORD + b"; t=s"]})
    assert (one(SIGNED, strict).status, one(SIGNED, strict).strict_identity) == (Status.PASS, True)
    below = altered(b"v=1;", b"v=1; i=a@mail.example.com;")
    assert one(below, strict).reason is Reason.DOMAIN_MISMATCH
    assert one(below).reason is Reason.SIGNATURE  # but for which it would be looked at further
    assert one(below).identity == "a@mail.example.com"


@pytest.mark.covers("RFC 6376 §3.5", "RFC 6376 §3.6.1")
def test_tags_that_mean_nothing_to_us() -> None:
    """`z=` may be anything, `g=` is a tag of DKIM's first edition, and unknown tags are ignored."""
    with_tags = by_hand(MAIL, more="z=From:a=20b|Subject:; q=x/y:dns/txt; odd_1=; ") + MAIL
    assert one(with_tags).status is Status.PASS
    for more in (b"; g=nobody", b"; n=a note; x=y", b"; s=email:x", b"; h=sha1:sha256"):
        assert one(SIGNED, Answers({NAME: [RECORD + more]})).status is Status.PASS


@pytest.mark.covers("RFC 6376 §5.4.2")
def test_fields_of_one_name_count_from_the_bottom() -> None:
    raw = b"X-A: top\r\nX-A: bottom\r\n" + MAIL
    once = by_hand(raw, names="from:x-a")
    assert one(once + raw).status is Status.PASS
    assert one(once + raw.replace(b"X-A: top\r\n", b"")).status is Status.PASS
    assert one(once + raw.replace(b"X-A: bottom\r\n", b"")).reason is Reason.SIGNATURE
    twice = by_hand(raw, names="from:x-a:x-a")
    assert one(b"X-A: more\r\n" + twice + raw).status is Status.PASS
    assert one(twice + raw.replace(b"X-A: top\r\n", b"")).reason is Reason.SIGNATURE


@pytest.mark.covers("mail-server:C8", "RFC 8463 §3")
def test_two_keys_at_once_and_an_end() -> None:
    raw = sign_message(MAIL, [signer(rsa_key()), signer(ed_key())], signed_at=NOW, expires_at=NOW + 60)
    results = run(raw)
    assert [(r.status, r.algorithm, r.expires_at) for r in results] == [
        (Status.PASS, "rsa-sha256", NOW + 60),
        (Status.PASS, "ed25519-sha256", NOW + 60),
    ]
    assert {r.reason for r in run(raw, now=NOW + 361)} == {Reason.EXPIRED}
    assert {r.status for r in run(raw, now=NOW + 360)} == {Status.PASS}


@pytest.mark.covers("RFC 8301 §3.2")
def test_weak_keys_are_refused() -> None:
    weak = rsa.RSAPublicNumbers(65537, (1 << 767) + 12345).public_key()
    der = weak.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    raw = sign_message(MAIL, [signer(rsa_key())], signed_at=NOW)
    result = one(raw, Answers({f"rsa._domainkey.{DOMAIN}": [b"p=" + base64.b64encode(der)]}))
    assert (result.status, result.reason, result.key_bits) == (Status.POLICY, Reason.WEAK_KEY, 768)


def by_hand(raw: bytes, *, length: int | None = None, names: str = "from", more: str = "") -> bytes:
    """A signature of `raw` such as ours never are: with `l=`, or over other signatures."""
    at = find_body(raw)
    digest = hashlib.sha256(reference_body(raw[at:], True)[:length]).digest()
    text = f"DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed; d={DOMAIN}; s=ed25519; {more}h={names}; "
    text += f"bh={base64.b64encode(digest).decode()}; " + ("b=" if length is None else f"l={length}; b=")
    unsigned = HeaderField("dkim-signature", text.encode(), len("DKIM-Signature:"))
    hashed = header_digest(parse_fields(raw[:at]), names.split(":"), unsigned, Canonicalisation.RELAXED)
    return text.encode() + base64.b64encode(ed_key().sign_digest(hashed)) + b"\r\n"


def with_length(length: int | None, body: bytes) -> bytes:
    raw = MAIL[: find_body(MAIL)] + body
    return by_hand(raw, length=length) + raw


@pytest.mark.covers("RFC 6376 §8.2", "RFC 6376 §3.5")
def test_the_length_of_the_body() -> None:
    body = b"0123\r\n567\r\n"
    for length, reason in ((len(body), Reason.VERIFIED), (7, Reason.UNSIGNED_TAIL), (0, Reason.UNSIGNED_TAIL)):
        result = one(with_length(length, body))
        assert (result.reason, result.body_length) == (reason, length)
    raw = with_length(len(body), body)
    assert one(raw + b"\r\n\r\n").reason is Reason.VERIFIED
    assert one(raw + b"more\r\n").reason is Reason.UNSIGNED_TAIL
    assert one(raw + b"more\r\n").status is Status.POLICY
    assert one(raw[:-2]).reason is Reason.VERIFIED
    assert one(raw[:-5]).reason is Reason.BODY_LENGTH
    assert one(with_length(7, body).replace(b"0123", b"0124")).reason is Reason.BODY_HASH
    assert one(with_length(len(body) + 1, body)).reason is Reason.BODY_LENGTH
    assert one(with_length(None, body)).body_length is None


@pytest.mark.covers("RFC 6376 §5.4", "RFC 6376 §8.15")
@pytest.mark.parametrize("name", [b"From", b"To", b"Subject", b"Reply-To", b"Date", b"References", b"Content-Type"])
def test_no_field_can_be_added(name: bytes) -> None:
    assert one(name + b": mallory@example.net\r\n" + SIGNED).reason is Reason.SIGNATURE
    assert one(altered(b"\r\n\r\nDear", b"\r\n" + name + b": x\r\n\r\nDear")).reason is Reason.SIGNATURE


def test_trace_fields_may_be_added() -> None:
    assert one(b"Received: from c by d; now\r\nReturn-Path: <>\r\n" + SIGNED).status is Status.PASS


@pytest.mark.covers("RFC 6376 §3.8")
@pytest.mark.parametrize("line", [b"no field\r\n", b": x\r\n", b"\xe4: x\r\n", b"\r\r\n"])
def test_a_header_that_readers_take_differently(line: bytes) -> None:
    results = run(altered(b"Received: from a", line + b"Received: from a"))
    assert [(r.reason, r.status) for r in results] == [(Reason.MALFORMED_MESSAGE, Status.NEUTRAL)]
    assert run(line + MAIL) == ()


@pytest.mark.covers("RFC 6376 §3.7", "RFC 6376 §5.4")
def test_a_signature_may_cover_others_but_never_itself() -> None:
    signature = SIGNED[: -len(MAIL)]
    outer = by_hand(SIGNED, names="dkim-signature:from")
    # Whichever of both stands nearer to the body, which is where names are looked up from.
    for raw in (outer + SIGNED, signature + outer + MAIL):
        assert [r.status for r in run(raw)] == [Status.PASS, Status.PASS]
    assert {r.status for r in run(outer + MAIL)} == {Status.FAIL}


@pytest.mark.covers("FR-IN-4")
def test_no_more_signatures_than_the_limit() -> None:
    raw = SIGNED
    for n in range(MAX_SIGNATURES):
        raw = sign_message(raw, [Signer(DOMAIN, f"s{n}", ed_key())], signed_at=NOW)
    answers = Answers({f"s{n}._domainkey.{DOMAIN}": [RECORD] for n in range(MAX_SIGNATURES)})
    results = run(raw, answers)
    assert [r.selector for r in results] == [f"s{n}" for n in reversed(range(MAX_SIGNATURES))]
    assert all(r.status is Status.PASS for r in results)
    assert len(answers.asked) == MAX_SIGNATURES
    assert Verifier(raw[: find_body(raw)], now=NOW).unchecked == 1


@pytest.mark.covers("mail-server:B4")
def test_checks_of_one_message_share_its_body() -> None:
    at = find_body(SIGNED)
    body = BodyHashes()
    fields = parse_fields(SIGNED[:at])
    first = Verifier(SIGNED[:at], now=NOW, body=body, fields=fields)
    second = Verifier(b"", now=NOW, body=body, fields=fields)
    assert first.domains == second.domains == (DOMAIN,)
    body.update(SIGNED[at:])
    for verifier in (first, second):
        assert [r.status for r in done(verifier.results(published()))] == [Status.PASS]
    with pytest.raises(ValueError, match="has begun"):
        Verifier(SIGNED[:at], now=NOW, body=body)


@pytest.mark.covers("decisions:D3")
def test_what_was_not_asked_for_beforehand_is_not_absent() -> None:
    known = KnownAnswers({NAME: [RECORD]})
    assert done(verify(SIGNED, known, now=NOW))[0].reason is Reason.VERIFIED
    assert done(verify(SIGNED, KnownAnswers({}), now=NOW))[0].reason is Reason.DNS
    assert done(verify(SIGNED, KnownAnswers({NAME: NameNotFoundError()}), now=NOW))[0].reason is Reason.NO_KEY
    assert done(verify(SIGNED, KnownAnswers({}, published()), now=NOW))[0].reason is Reason.VERIFIED


@pytest.mark.covers("decisions:D3")
def test_each_name_is_asked_for_once_and_known_beforehand() -> None:
    raw = sign_message(MAIL, [signer(ed_key()), signer(rsa_key()), signer(ed_key())], signed_at=NOW)
    answers = published()
    verifier = Verifier(raw[: find_body(raw)], now=NOW)
    assert verifier.queries == (NAME, f"rsa._domainkey.{DOMAIN}")
    assert [r.status for r in run(raw, answers)] == [Status.PASS] * 3
    assert tuple(answers.asked) == verifier.queries


@pytest.mark.covers("decisions:D3")
def test_one_name_without_answer_harms_no_other_signature() -> None:
    raw = sign_message(SIGNED, [signer(rsa_key())], signed_at=NOW)
    answers = Answers({NAME: [RECORD], f"rsa._domainkey.{DOMAIN}": TemporaryResolverError()})
    assert [r.status for r in run(raw, answers)] == [Status.TEMPERROR, Status.PASS]


@pytest.mark.covers("mail-server:B4")
@settings(deadline=None)
@given(st.lists(st.integers(0, len(SIGNED)), max_size=6))
async def test_the_body_may_come_in_pieces(cuts: list[int]) -> None:
    at = find_body(SIGNED)
    verifier = Verifier(SIGNED[:at], now=NOW)
    edges = [at, *sorted(max(at, cut) for cut in cuts), len(SIGNED)]
    for start, end in itertools.pairwise(edges):
        verifier.update(SIGNED[start:end])
    assert [r.status for r in await verifier.results(published())] == [Status.PASS]


async def test_where_the_body_begins_may_be_given() -> None:
    (result,) = await verify(SIGNED, published(), now=NOW, body_start=find_body(SIGNED))
    assert result.status is Status.PASS


@pytest.mark.covers("RFC 8616 §4")
def test_a_domain_beyond_ascii() -> None:
    raw = sign_message(MAIL, [Signer("münchen.example", "s", ed_key())], signed_at=NOW)
    answers = Answers({"s._domainkey.xn--mnchen-3ya.example": [RECORD]})
    assert one(raw, answers).status is Status.PASS
    written = raw.replace(b"d=xn--mnchen-3ya.example", "d=münchen.example".encode())
    assert (one(written, answers).reason, one(written, answers).domain) == (
        Reason.SIGNATURE,
        "xn--mnchen-3ya.example",
    )


KEEP: list[Callable[[bytes, bytes], tuple[bytes, bytes]]] = [
    lambda header, body: (header.replace(b"\nSubject:", b"\nSUBJECT \t:"), body),
    lambda header, body: (header.replace(b"Invoice \t 17", b"Invoice\r\n\t17"), body),
    lambda header, body: (header.replace(b"Invoice \t 17 ", b"  Invoice 17\t\t"), body),
    lambda header, body: (header.replace(b",\r\n  Carol", b", Carol"), body),
    lambda header, body: (header.replace(b"Received:", b"X-New: a\r\nReceived:"), body),
    lambda header, body: (header.replace(b"Mon, 02", b"Mon,  02"), body),
    lambda header, body: (header.replace(b"\r\n", b"\n"), body),
    lambda header, body: (header, body.replace(b"please  pay. ", b"please\tpay.")),
    lambda header, body: (header, body + b"\r\n\r\n \r\n"),
    lambda header, body: (header, body.rstrip(b"\r\n")),
    lambda header, body: (header, body.replace(b"\r\n", b" \r\n")),
    lambda header, body: (header, body.replace(b"\r\n", b"\n")),
]


@pytest.mark.covers("RFC 6376 §3.4.2", "RFC 6376 §3.4.4")
@settings(deadline=None)
@given(st.lists(st.sampled_from(range(len(KEEP))), max_size=8))
def test_what_relaxed_forms_allow(changes: list[int]) -> None:
    at = find_body(SIGNED)
    header, body = SIGNED[:at], SIGNED[at:]
    for number in changes:
        header, body = KEEP[number](header, body)
    assert one(header + body).status is Status.PASS


SIGNED_BY = {
    policy.header is Canonicalisation.RELAXED: sign_message(MAIL, [signer(ed_key())], signed_at=NOW, policy=policy)
    for policy in (RELAXED, SIMPLE)
}
OCTETS = st.sampled_from([b"", b" ", b"\t", b"\r\n", b"\n", b"\r", b"\r\n ", b"x", b"X", b":", b"\x00", b"\xff"])


@pytest.mark.covers("RFC 6376 §3.7", "mail-server:B4")
@settings(deadline=None, max_examples=600)
@given(st.booleans(), st.integers(1, len(MAIL)), st.integers(0, 3), OCTETS)
@example(True, 0, 0, b"\r\n")
@example(False, len(MAIL) - 2, 2, b"")
def test_a_change_passes_just_when_the_canonical_form_is_the_same(
    relaxed: bool, where: int, removed: int, put: bytes
) -> None:
    raw = SIGNED_BY[relaxed]
    at = len(raw) - len(MAIL) + where
    changed = raw[:at] + put + raw[at + removed :]
    # A CR of its own is text to us, and nothing to a reference that works by lines; SMTP takes no such mail.
    assume(re.search(rb"\r(?!\n)", changed) is None)
    result = one(changed)
    names = run(raw)[0].signed_fields
    forms = []
    for message in (raw, changed):
        end = find_body(message)
        forms.append((reference_header(message[:end], names, relaxed), reference_body(message[end:], relaxed)))
    if result.reason is not Reason.MALFORMED_MESSAGE:
        assert (result.status is Status.PASS) == (forms[0] == forms[1])


@pytest.mark.covers("RFC 6376 §3.7")
@settings(deadline=None, max_examples=400)
@given(st.booleans(), st.integers(0, 2000), OCTETS)
def test_any_change_of_the_signature_itself(relaxed: bool, where: int, put: bytes) -> None:
    """White space that relaxed forms, or base64, do not count is all that may change."""
    raw = SIGNED_BY[relaxed]
    end = len(raw) - len(MAIL)
    at = where % end
    changed = raw[:at] + put + raw[at + 1 :]
    results = run(changed)
    if any(result.status is Status.PASS for result in results):
        value = raw[:end].index(b" b=") + 3
        # A bare LF counts as CRLF, so that its CR may go.
        assert relaxed or at >= value or changed.replace(b"\r\n", b"\n") == raw.replace(b"\r\n", b"\n")
        before, after = raw[:end], changed[: len(changed) - len(MAIL)]
        assert re.sub(rb"\s", b"", before).lower() == re.sub(rb"\s", b"", after).lower() or at >= value


@given(st.binary(max_size=400))
def test_any_bytes(raw: bytes) -> None:
    assert all(r.status is not Status.PASS for r in run(raw))
    assert all(r.status is not Status.PASS for r in run(b"DKIM-Signature: " + raw))


@pytest.mark.covers("FR-IN-4")
@pytest.mark.parametrize(
    "raw",
    [
        b"DKIM-Signature: v=1;\r\n" * 10_000 + b"\r\n",
        b"DKIM-Signature: " + b"a=b;" * 60_000 + b"\r\n\r\n",
        b"DKIM-Signature: " + b" \r\n" * 60_000 + b"\r\n\r\n",
        SIGNED + b"\r\n" * 500_000,
        SIGNED + b" \t" * 500_000,
        b"\r" * 1_000_000,
        b"a:\n" * 300_000,
    ],
)
def test_hostile_messages_end(raw: bytes) -> None:
    assert len(run(raw)) <= MAX_SIGNATURES
