"""Who sent a message: what the judge makes of envelope, octets and the DNS, and what is stored and told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email import message_from_bytes
from email.policy import default
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.inbound.describe import describe
from postroom.inbound.judging import NOT_JUDGED, Judge, Judgement, JudgingRules
from postroom.inbound.receive import judged
from postroom.mail.mime import MAX_HEADER_BYTES
from postroom.mailauth.dkim_key import Algorithm, PrivateKey
from postroom.mailauth.dkim_sign import Signer, sign_message
from postroom.mailauth.zone import Trouble, Written, Zone
from postroom.mailbox.models import Verification
from postroom.net.dns_cache import Found
from postroom.net.dns_types import Kind
from postroom.net.known_names import KnownNames
from postroom.smtp.envelope import Envelope
from tests.fuzz.seeds import seeds
from tests.inbound.fakes import To, envelope

NOW = datetime(2026, 3, 5, 9, 8, tzinfo=UTC)
HOST = "mx.agents.example"
KEY = PrivateKey.generate(Algorithm.ED25519_SHA256)
LETTER = (
    b"From: Ann <ann@example.com>\r\nTo: bob@agents.example\r\nSubject: Hello\r\n"
    b"Message-ID: <1@example.com>\r\nDate: Thu, 05 Mar 2026 09:07:03 +0000\r\n\r\nHello Bob\r\n"
)
SPF: dict[str, Written] = {"example.com": {"TXT": ["v=spf1 ip4:192.0.2.0/24 -all"]}}
REJECT: dict[str, Written] = {"_dmarc.example.com": {"TXT": ["v=DMARC1; p=reject"]}}
DKIM: dict[str, Written] = {"s1._domainkey.example.com": {"TXT": [KEY.public_record()]}}


def judge_of(names: Mapping[str, Written], *, rules: JudgingRules | None = None, **more: Any) -> tuple[Judge, Zone]:
    zone, clock = Zone(names), ManualClock(NOW)
    return Judge(KnownNames(zone), clock, rules or JudgingRules(), hostname=HOST, **more), zone


def envelope_of(**changes: Any) -> Envelope[To]:
    return envelope(To("bob@agents.example"))._replace(**{"mail_from": "ann@example.com", **changes})


async def verdict(names: Mapping[str, Written], raw: bytes = LETTER, **envelope: Any) -> Judgement:
    return await judge_of(names)[0].judge(envelope_of(**envelope), raw)


def signed(raw: bytes = LETTER) -> bytes:
    return sign_message(raw, (Signer("example.com", "s1", KEY),), signed_at=int(ManualClock(NOW).now().timestamp()))


@pytest.mark.covers("edge:D1", "mail-server:B4", "FR-IN-4", "RFC 7489 §6.6.2")
@pytest.mark.parametrize(
    ("names", "peer", "is_signed", "expected"),
    [
        (SPF | REJECT, "192.0.2.1", False, ("pass", "pass", "none", "pass")),
        (SPF | REJECT, "198.51.100.1", False, ("fail", "fail", "none", "fail")),
        (SPF | REJECT | DKIM, "198.51.100.1", True, ("pass", "fail", "pass", "pass")),
        (SPF | {"_dmarc.example.com": {"TXT": ["v=DMARC1; p=none"]}}, "198.51.100.1", False,
         ("unaligned", "fail", "none", "fail")),
        (SPF, "192.0.2.1", False, ("none", "pass", "none", "none")),
        ({}, "192.0.2.1", False, ("none", "none", "none", "none")),
        (SPF | {"_dmarc.example.com": Trouble.TIMEOUT}, "192.0.2.1", False, ("softfail", "pass", "none", "temperror")),
        ({"example.com": Trouble.SERVFAIL} | REJECT, "192.0.2.1", False,
         ("softfail", "temperror", "none", "temperror")),
    ],
)  # fmt: skip
async def test_what_comes_of_it(
    names: Mapping[str, Written], peer: str, is_signed: bool, expected: Sequence[str]
) -> None:
    found = await verdict(names, signed() if is_signed else LETTER, peer_ip=peer)
    assert found.auth is not None
    told = found.auth["summary"]
    assert (found.verdict, told["spf"], told["dkim"], told["dmarc"]) == expected
    field = message_from_bytes(found.field + LETTER, policy=default)["Authentication-Results"]
    assert field.startswith(f"{HOST};")
    assert f"dmarc={expected[3]}" in field
    assert f"spf={expected[1]}" in field


@pytest.mark.covers("edge:D9", "RFC 8601 §5")
async def test_results_that_somebody_else_wrote_in_our_name_go() -> None:
    judge, _ = judge_of({})
    forged = b"Authentication-Results: MX.Agents.Example; dmarc=pass\r\n" + LETTER
    assert await judge.purge(forged) == LETTER
    foreign = b"Authentication-Results: mx.example.net; dmarc=pass\r\n" + LETTER
    assert await judge.purge(foreign) == foreign
    assert await judge.purge(LETTER) is LETTER
    assert await judge.purge(b"Authentication-Results: a; none\r\n" * 2000 + forged) == (
        b"Authentication-Results: a; none\r\n" * 50 + LETTER
    )


@pytest.mark.covers("edge:D9")
async def test_a_server_before_us_is_believed_by_lmtp_alone_and_only_the_topmost() -> None:
    rules = JudgingRules(trusted_id="front.example")
    raw = (
        b"Authentication-Results: front.example; spf=pass smtp.mailfrom=ann@example.com\r\n"
        b"Authentication-Results: front.example; spf=fail smtp.mailfrom=ann@example.com\r\n" + LETTER
    )
    judge, _ = judge_of(REJECT, rules=rules)
    assert (await judge.judge(envelope_of(lmtp=True), raw)).verdict == "pass"
    assert (await judge.judge(envelope_of(), raw)).verdict == "fail"
    untrusting, _ = judge_of(REJECT)
    unchecked = await untrusting.judge(envelope_of(lmtp=True), raw)
    assert unchecked.verdict == "unverified"
    assert b"spf=" not in unchecked.field


@pytest.mark.covers("edge:B13")
async def test_several_authors_never_pass() -> None:
    two = LETTER.replace(b"From: Ann <ann@example.com>", b"From: ann@example.com, eve@example.com")
    assert (await verdict(SPF | REJECT, two, peer_ip="192.0.2.1")).verdict == "unaligned"
    hidden = LETTER.replace(b"Ann <ann@example.com>", b"ann@example.com, " + b"g:;, " * 500 + b"eve@example.net")
    assert (await verdict(SPF | REJECT, hidden, peer_ip="192.0.2.1")).verdict == "unaligned"
    other = LETTER.replace(b"From: Ann <ann@example.com>", b"From: ann@example.com, eve@example.net")
    assert (await verdict(SPF | REJECT, other, peer_ip="192.0.2.1")).verdict == "none"


@pytest.mark.covers("mail-server:C5", "edge:G11")
async def test_our_own_mail_is_verified_by_our_own_keys() -> None:
    async def published(name: str) -> bytes | None:
        return KEY.public_record().encode() if name == "s1._domainkey.example.com" else None

    judge, zone = judge_of(REJECT, published=published)
    found = await judge.judge(envelope_of(peer_ip=""), signed())
    assert (found.verdict, found.auth and found.auth["spf"]["source"]) == ("pass", None)
    assert ("s1._domainkey.example.com", "TXT") not in zone.asked
    unpublished, _ = judge_of({}, published=published)
    assert (await unpublished.judge(envelope_of(peer_ip=""), signed())).verdict == "pass"
    assert (await unpublished.judge(envelope_of(peer_ip=""), LETTER)).verdict == "none"
    assert (
        await unpublished.judge(envelope_of(peer_ip=""), signed(LETTER.replace(b"ann@example.com", b"e@x.example")))
    ).verdict == "none"
    # From outside it is the DNS that counts, and by LMTP through a local socket, too.
    assert (await judge.judge(envelope_of(peer_ip="", lmtp=True), signed())).verdict == "fail"
    assert (await judge.judge(envelope_of(peer_ip="192.0.2.1"), signed())).verdict == "fail"


async def test_what_others_signed_is_not_ours_though_our_queue_or_a_local_socket_hands_it_over() -> None:
    async def published(name: str) -> bytes | None:
        return None

    judge, _ = judge_of(DKIM, published=published)
    assert (await judge.judge(envelope_of(peer_ip=""), signed())).verdict == "none"

    async def ours(name: str) -> bytes | None:
        return KEY.public_record().encode()

    judge, _ = judge_of({}, published=ours)
    assert (await judge.judge(envelope_of(peer_ip="", lmtp=True), signed())).verdict == "none"


@pytest.mark.covers("edge:B13", "FR-IN-11")
@pytest.mark.parametrize(
    "raw",
    [
        b"From : ann@bank.example\r\n" + LETTER,
        b"From \t: ann@bank.example\r\n" + LETTER,
        LETTER.replace(b"<ann@example.com>", b"a" * (320 - len("@bank.com")) + b"@bank.com.example.com"),
    ],
)
async def test_nobody_is_shown_as_believed_whom_the_verdict_is_not_about(raw: bytes) -> None:
    found = await verdict(SPF | REJECT, raw, peer_ip="192.0.2.1")
    content = judged(describe(b"Return-Path: <ann@example.com>\r\n", raw, NOW), found)
    assert content.sender is not None
    assert "@bank." in content.sender.address
    assert content.verdict != "pass"


@pytest.mark.covers("edge:B13")
async def test_an_author_whom_a_limit_cuts_off_is_not_believed() -> None:
    prefix = b"Return-Path: <ann@example.com>\r\n"
    author = b"From: ann@bank.com"
    filler = b"X: " + b"x" * (MAX_HEADER_BYTES - len(prefix) - len(author) - len(b"X: \r\n")) + b"\r\n"
    raw = filler + author + b".example.com\r\n\r\nHello\r\n"
    found = await verdict(SPF | REJECT, raw, peer_ip="192.0.2.1")
    content = judged(describe(prefix, raw, NOW), found)
    assert (found.verdict, content.sender and content.sender.address) == ("pass", "ann@bank.com")
    assert content.verdict == "unaligned"


@pytest.mark.covers("edge:D1")
async def test_questions_of_the_senders_choice_do_not_keep_a_known_policy_from_counting() -> None:
    class Remembering(KnownNames):
        def known(self, name: str, kind: Kind) -> Found | None:
            return Found(name, (b"v=DMARC1; p=reject",), 300, False) if name == "_dmarc.example.com" else None

    many = b"".join(
        b"DKIM-Signature: v=1; a=ed25519-sha256; d=a%d.b%d.c.d.example.com; s=x%d; h=from; bh=AAAA; b=AAAA\r\n"
        % (at, at, at)
        for at in range(10)
    ) + b"".join(
        b"ARC-Seal: i=%d; a=ed25519-sha256; cv=%s; d=x%d.net; s=z; b=AAAA\r\n"
        b"ARC-Message-Signature: i=%d; a=ed25519-sha256; d=x%d.net; s=z; h=from; bh=AAAA; b=AAAA\r\n"
        b"ARC-Authentication-Results: i=%d; x.net; none\r\n" % (at, b"none" if at == 1 else b"pass", at, at, at, at)
        for at in range(1, 6)
    )
    judge = Judge(Remembering(Zone(SPF | REJECT)), ManualClock(NOW), JudgingRules(), hostname=HOST)
    envelope = envelope_of(peer_ip="198.51.100.1", mail_from="x@q.w.e.r.t.example.com")
    assert (await judge.judge(envelope, many + LETTER)).verdict == "fail"


async def test_results_say_why_and_whose_domain_was_checked() -> None:
    found = await verdict(SPF | REJECT, peer_ip="192.0.2.1")
    assert found.auth is not None
    assert found.auth["spf"] == {
        "result": "pass", "domain": "example.com", "source": "smtp", "identity": "mailfrom", "reason": "match"
    }  # fmt: skip
    bounce = await verdict({"mx.example.com": {"TXT": ["v=spf1 -all"]}}, peer_ip="192.0.2.1", mail_from="")
    assert bounce.auth is not None
    assert (bounce.auth["spf"]["identity"], bounce.auth["spf"]["domain"]) == ("helo", "mx.example.com")
    assert (found.auth["dmarc"]["reason"], found.auth["arc"]["reason"]) == ("aligned", "no_chain")


async def test_without_any_check_nothing_is_asked_nor_told() -> None:
    judge, zone = judge_of(SPF | REJECT, rules=JudgingRules(spf=False, dkim=False, dmarc=False))
    assert await judge.judge(envelope_of(), signed()) == NOT_JUDGED
    assert zone.questions == 0
    quiet, _ = judge_of(SPF | REJECT, rules=JudgingRules(tell=False))
    assert (await quiet.judge(envelope_of(peer_ip="192.0.2.1"), LETTER)).field == b""
    no_dmarc, _ = judge_of(SPF | REJECT, rules=JudgingRules(dmarc=False))
    assert (await no_dmarc.judge(envelope_of(peer_ip="198.51.100.1"), LETTER)).verdict == "unverified"


@pytest.mark.covers("RFC 9989")
async def test_the_policy_for_names_that_do_not_exist() -> None:
    raw = LETTER.replace(b"<ann@example.com>", b"<ann@no.such.example.com>")
    policy: dict[str, Written] = {"_dmarc.example.com": {"TXT": ["v=DMARC1; p=reject; sp=none; np=reject"]}}
    assert (await verdict(policy, raw)).verdict == "fail"
    exists: dict[str, Written] = {"no.such.example.com": {"A": ["192.0.2.7"]}}
    assert (await verdict(policy | exists, raw)).verdict == "unaligned"


@pytest.mark.covers("RFC 7208 §4.6.4")
async def test_look_ups_of_spf_are_limited_as_it_is_set() -> None:
    names: dict[str, Written] = {
        "example.com": {"TXT": ["v=spf1 include:a.example.net include:b.example.net -all"]},
        "a.example.net": {"TXT": ["v=spf1 -all"]},
        "b.example.net": {"TXT": ["v=spf1 ip4:192.0.2.0/24 -all"]},
    }
    for limit, result in ((2, "pass"), (1, "permerror")):
        judge, _ = judge_of(names, rules=JudgingRules(spf_max_lookups=limit))
        found = await judge.judge(envelope_of(), LETTER)
        assert found.auth is not None
        assert found.auth["spf"]["result"] == result


@pytest.mark.covers("edge:B9")
async def test_a_signature_of_another_kind_is_kept_beside_the_verdict() -> None:
    judgement = await verdict(SPF, LETTER)
    raw = LETTER.replace(b"Subject:", b"Content-Type: application/pkcs7-mime; smime-type=signed-data\r\nSubject:")
    told = judged(describe(b"", raw, NOW), judgement).auth
    assert told is not None
    assert told["signature"] == {"type": "smime", "status": "present_unverified"}
    assert told["spf"]["result"] == "pass"


@pytest.mark.covers("FR-IN-11", "edge:E4")
def test_codes_are_kept_of_authenticated_mail_only() -> None:
    code = Verification("code", "481207", "example.com")
    found = replace(describe(b"", LETTER, ManualClock(NOW).now()), verifications=(code,))
    assert judged(found, Judgement("pass", {})).verifications == (code,)
    for other in ("none", "fail", "softfail", "unaligned", "unverified"):
        assert judged(found, Judgement(other, {})).verifications == ()


@given(st.sampled_from(seeds()) | st.binary(max_size=300), st.text(max_size=30), st.text(max_size=60))
async def test_nothing_that_comes_makes_it_raise(raw: bytes, helo: str, sender: str) -> None:
    found = await verdict(SPF | REJECT | DKIM, raw, helo=helo, mail_from=sender, peer_ip="192.0.2.1")
    assert found.field.endswith(b"\r\n")
    assert found.field.count(b"\n") == found.field.count(b"\r\n")
    assert b"\n\r\n" not in found.field
    found.field.decode()


async def test_who_is_cancelled_does_not_wait_for_name_servers() -> None:
    class Silent(KnownNames):
        async def txt(self, name: str, *, within: float | None = None) -> Any:
            await asyncio.Event().wait()

    judge = Judge(Silent(Zone({})), ManualClock(NOW), JudgingRules(), hostname=HOST)
    judging = asyncio.create_task(judge.judge(envelope_of(peer_ip="192.0.2.1"), signed()))
    await asyncio.sleep(0.01)
    judging.cancel()
    done, _ = await asyncio.wait({judging}, timeout=1)
    assert done
    assert judging.cancelled()


async def test_signatures_over_a_large_header_are_verified_in_turns() -> None:
    raw = LETTER.replace(b"Hello\r\n", b"Hello" + b" \t" * 20_000 + b"\r\n", 1)
    for _ in range(10):
        raw = signed(raw)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    meanwhile = asyncio.create_task(others())
    found = await verdict(DKIM | REJECT, raw, peer_ip="198.51.100.1")
    meanwhile.cancel()
    assert found.verdict == "pass"
    assert turns >= 10


async def test_a_large_body_is_hashed_in_turns() -> None:
    big = signed(LETTER + b"x" * 76 * 40_000)
    assert (await verdict(DKIM | REJECT, big)).verdict == "pass"
