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
from postroom.mailauth.dkim_key import Algorithm, PrivateKey
from postroom.mailauth.dkim_sign import Signer, sign_message
from postroom.mailauth.zone import Trouble, Written, Zone
from postroom.mailbox.models import Verification
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
    assert judge.purge(forged) == LETTER
    foreign = b"Authentication-Results: mx.example.net; dmarc=pass\r\n" + LETTER
    assert judge.purge(foreign) == foreign
    assert judge.purge(LETTER) is LETTER


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


async def test_whoever_gives_up_does_not_wait_for_name_servers() -> None:
    class Silent(KnownNames):
        async def txt(self, name: str, *, within: float | None = None) -> Any:
            await asyncio.Event().wait()

    judge = Judge(Silent(Zone({})), ManualClock(NOW), JudgingRules(), hostname=HOST)
    work = asyncio.create_task(judge.judge(envelope_of(), signed()))
    await asyncio.sleep(0.01)
    work.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await work


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


async def test_a_large_body_is_hashed_in_turns() -> None:
    big = signed(LETTER + b"x" * 76 * 40_000)
    assert (await verdict(DKIM | REJECT, big)).verdict == "pass"
