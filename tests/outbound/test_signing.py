"""Keys of domains: made once, sealed, rotated; and what is signed with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import dkim  # type: ignore[import-untyped] # it has no annotations
import pytest

from postroom.base.clock import ManualClock, SystemClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db import Database
from postroom.mailauth.dkim_key import Algorithm
from postroom.mailauth.dkim_result import Status
from postroom.mailauth.dkim_verify import verify
from postroom.mailauth.resolver import NameNotFoundError, TemporaryResolverError
from postroom.net.auth_resolver import MessageResolver
from postroom.outbound import wire
from postroom.outbound.signing import DkimKeys, PublicKey, RotationError
from tests.mailbox.letters import make_boxes, raw_mail
from tests.outbound.fake_mx import FakeDns
from tests.outbound.mail_room import in_process

MASTER = Keyring(b"m" * 32)
MAIL = raw_mail(message_id="1@agents.example", body="Hello\r\n" * 20)


async def domain_of(db: Database, ids: IdGenerator, clock: ManualClock) -> str:
    (box,) = await make_boxes(db, ids, clock)
    return box.address.rpartition("@")[2]


def keys(db: Database, clock: ManualClock, **options: object) -> DkimKeys:
    # Ed25519 is made in no time.
    return DkimKeys(db, MASTER, clock, **({"algorithm": Algorithm.ED25519_SHA256} | options))  # type: ignore[arg-type] # the test names the options


def published(found: Sequence[PublicKey]) -> FakeDns:
    return FakeDns(texts={key.name: [key.record.encode()] for key in found})


async def judged(raw: bytes, dns: FakeDns, clock: ManualClock) -> list[tuple[Status, str | None]]:
    results = await verify(raw, MessageResolver(dns, clock), now=int(clock.now().timestamp()))
    return [(result.status, result.domain) for result in results]


@pytest.mark.covers("mail-server:C8", "decisions:D2")
async def test_the_first_message_of_a_domain_makes_its_key(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    domain = await domain_of(db, ids, clock)
    made = DkimKeys(db, MASTER, clock, offload=in_process)
    signed = await made.sign(MAIL, domain.upper())
    (key,) = await made.show(domain)
    assert (key.selector, key.algorithm, key.signs, key.retire_at) == ("pm1", "rsa-sha256", True, None)
    assert key.name == f"pm1._domainkey.{domain}"
    assert await judged(signed, published([key]), clock) == [(Status.PASS, domain)]
    assert signed.endswith(MAIL)
    # A large message is signed by another process, and verifies with other people's code, whose clock is the machine's.
    clock.set(SystemClock().now())
    large = await made.sign(MAIL + b"x" * 70_000 + b"\r\n", domain)
    assert dkim.verify(large, dnsfunc=lambda name, timeout=0: key.record.encode())
    async with db.acquire() as conn:
        row = await conn.fetchrow("SELECT * FROM dkim_keys")
    assert row is not None
    assert b"PRIVATE" not in row["private_sealed"]
    assert "PRIVATE" not in repr(key)


async def test_many_at_once_make_one_key(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    domain = await domain_of(db, ids, clock)
    nodes = [keys(db, clock) for _ in range(3)]
    signed = await asyncio.gather(*(node.sign(MAIL, domain) for node in nodes for _ in range(5)))
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM dkim_keys") == 1
    found = published(await nodes[0].show(domain))
    assert [await judged(one, found, clock) for one in signed] == [[(Status.PASS, domain)]] * 15


@pytest.mark.covers("mail-server:C8")
async def test_what_is_not_ours_is_not_signed(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    domain = await domain_of(db, ids, clock)
    made = keys(db, clock)
    assert await made.sign(MAIL, "example.com") == MAIL
    async with db.acquire() as conn:
        await conn.execute("UPDATE domains SET enabled = false")
    assert await made.sign(MAIL, domain) == MAIL
    with pytest.raises(PostroomError, match="domain"):
        await made.show("example.com")


@pytest.mark.covers("mail-server:C8", "decisions:D2")
async def test_rotation(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    domain = await domain_of(db, ids, clock)
    made, other_node = keys(db, clock), keys(db, clock)
    old = await made.sign(MAIL, domain)
    await other_node.sign(MAIL, domain)
    with pytest.raises(RotationError):
        await made.switch(domain)
    first, second = await made.rotate(domain)
    assert (second.selector, second.signs, second.retire_at) == ("pm2", False, None)
    assert await made.rotate(domain) == (first, second), "until the switch it is the same key that is asked for"
    # Not before its record is published.
    assert b"s=pm1;" in await made.sign(MAIL, domain)
    first, second = await made.switch(domain)
    assert (first.signs, second.signs) == (False, True)
    assert first.retire_at is not None
    assert (first.retire_at - clock.now()).days == 30
    new = await made.sign(MAIL, domain)
    assert b"s=pm2;" in new
    for signed in (old, new):
        assert await judged(signed, published([first, second]), clock) == [(Status.PASS, domain)]
    assert b"s=pm1;" in await other_node.sign(MAIL, domain)
    clock.advance(61)
    assert b"s=pm2;" in await other_node.sign(MAIL, domain), "others follow within a minute"
    with pytest.raises(RotationError) as early:
        await made.rotate(domain)
    assert early.value.until == first.retire_at
    clock.advance(30 * 86400)
    third, _ = await made.rotate(domain)
    assert (third.selector, third.signs) == ("pm1", False)
    assert third.record != first.record


def both(db: Database, clock: ManualClock, **options: object) -> DkimKeys:
    return keys(db, clock, algorithm=Algorithm.RSA_SHA256, second=True, **options)


def states(found: Sequence[PublicKey]) -> list[tuple[str, str, bool, bool]]:
    """Selector, kind of key, whether it signs, whether it retires."""
    return [(key.selector, key.algorithm, key.signs, key.retire_at is not None) for key in found]


RSA, ED = "rsa-sha256", "ed25519-sha256"


@pytest.mark.covers("mail-server:C8", "decisions:D2", "RFC 8463 §3")
@pytest.mark.parametrize("size", [0, 70_000])
async def test_a_second_signature(db: Database, clock: ManualClock, ids: IdGenerator, size: int) -> None:
    """Both verify by our code and by other people's, which goes by the machine's clock."""
    domain = await domain_of(db, ids, clock)
    clock.set(SystemClock().now())
    made = both(db, clock, offload=in_process)
    raw = b"List-Unsubscribe: <https://a.example/u>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" + MAIL
    signed = await made.sign(raw + b"x" * size + b"\r\n" * bool(size), domain)
    found = await made.show(domain)
    assert states(found) == [("pm1", RSA, True, False), ("pm1e", ED, True, False)]
    assert found[1].name == f"pm1e._domainkey.{domain}"
    assert await judged(signed, published(found), clock) == [(Status.PASS, domain)] * 2
    records = {f"{key.name}.".encode(): key.record.encode() for key in found}
    other = dkim.DKIM(signed)
    for at, algorithm in enumerate((RSA, ED)):
        assert other.verify(idx=at, dnsfunc=lambda name, timeout=0: records.get(name, b""))
        assert other.signature_fields[b"a"] == algorithm.encode()
        # Somebody who takes the list's headers away, or adds a From, breaks both (RFC 8058 §4, RFC 6376 §8.15).
        for broken in (
            signed.replace(b"List-Unsubscribe-Post:", b"X-Nothing:"),
            b"From: eve@evil.example\r\n" + signed,
        ):
            with pytest.raises(AssertionError):
                assert dkim.DKIM(broken).verify(idx=at, dnsfunc=lambda name, timeout=0: records.get(name, b""))


@pytest.mark.covers("mail-server:C8")
async def test_the_second_key_is_shown_before_it_signs(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    domain = await domain_of(db, ids, clock)
    off = keys(db, clock, algorithm=Algorithm.RSA_SHA256)
    assert states(await off.show(domain)) == [("pm1", RSA, True, False)]
    shown = await off.show(domain, second=True)
    assert states(shown) == [("pm1", RSA, True, False), ("pm1e", ED, False, False)]
    assert (await off.sign(MAIL, domain)).count(b"DKIM-Signature:") == 1
    on = both(db, clock)
    assert (await on.sign(MAIL, domain)).count(b"DKIM-Signature:") == 2
    assert [key.record for key in await on.show(domain)] == [key.record for key in shown], "it is the same key"


@pytest.mark.covers("mail-server:C8")
async def test_both_keys_rotate_together(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    domain = await domain_of(db, ids, clock)
    made = both(db, clock)
    old = await made.sign(MAIL, domain)
    rotated = await made.rotate(domain)
    assert states(rotated) == [
        ("pm1", RSA, True, False),
        ("pm1e", ED, True, False),
        ("pm2", RSA, False, False),
        ("pm2e", ED, False, False),
    ]
    assert await made.rotate(domain) == rotated
    switched = await made.switch(domain)
    assert states(switched) == [
        ("pm1", RSA, False, True),
        ("pm1e", ED, False, True),
        ("pm2", RSA, True, False),
        ("pm2e", ED, True, False),
    ]
    new = await made.sign(MAIL, domain)
    for signed, selectors in ((old, (b"s=pm1;", b"s=pm1e;")), (new, (b"s=pm2;", b"s=pm2e;"))):
        assert all(selector in signed for selector in selectors)
        assert await judged(signed, published(switched), clock) == [(Status.PASS, domain)] * 2
    with pytest.raises(RotationError):
        await made.rotate(domain)
    clock.advance(30 * 86400)
    third = await made.rotate(domain)
    assert states(third)[:2] == [("pm1", RSA, False, False), ("pm1e", ED, False, False)]
    assert not {key.record for key in third[:2]} & {key.record for key in switched}


async def test_many_at_once_make_one_pair(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    domain = await domain_of(db, ids, clock)
    nodes = [both(db, clock) for _ in range(3)]
    signed = await asyncio.gather(*(node.sign(MAIL, domain) for node in nodes for _ in range(3)))
    found = await nodes[0].show(domain)
    assert len(found) == 2
    for one in signed:
        assert await judged(one, published(found), clock) == [(Status.PASS, domain)] * 2


async def test_beside_ed25519_there_is_no_second_key(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    """A domain whose key was made while the setting said so."""
    domain = await domain_of(db, ids, clock)
    await keys(db, clock).sign(MAIL, domain)
    made = both(db, clock)
    assert (await made.sign(MAIL, domain)).count(b"DKIM-Signature:") == 1
    assert states(await made.show(domain, second=True)) == [("pm1", ED, True, False)]
    assert states(await made.rotate(domain))[1:] == [("pm2", RSA, False, False), ("pm2e", ED, False, False)]


@pytest.mark.covers("mail-server:C8")
async def test_without_the_master_key_nothing_goes_out_unsigned(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    domain = await domain_of(db, ids, clock)
    await keys(db, clock).sign(MAIL, domain)
    with pytest.raises(PostroomError) as refused:
        await DkimKeys(db, Keyring(b"x" * 32), clock).sign(MAIL, domain)
    assert refused.value.code == "unavailable"
    # During a rotation of the master key the other slot opens it.
    rotated = DkimKeys(db, Keyring(b"x" * 32, b"m" * 32), clock)
    assert b"DKIM-Signature" in await rotated.sign(MAIL, domain)


async def test_txt_records(clock: ManualClock) -> None:
    dns = FakeDns(texts={"a.example": [b"one", b"two"]}, broken={"b.example"})
    records = MessageResolver(dns, clock)
    assert list(await records.txt("a.example")) == [b"one", b"two"]
    with pytest.raises(NameNotFoundError):
        await records.txt("c.example")
    with pytest.raises(TemporaryResolverError):
        await records.txt("b.example")


@pytest.mark.covers("mail-server:C8", "mail-server:C5")
async def test_a_message_made_anew_for_a_peer_is_signed_anew(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    domain = await domain_of(db, ids, clock)
    made = keys(db, clock)
    signed = await made.sign(MAIL.replace(b"Hello", "Grüße".encode()), domain)
    changed = wire.seven_bit(signed, (domain,))
    assert changed is not None
    assert b"DKIM-Signature" not in changed
    again = await made.sign(changed, domain)
    assert again.isascii()
    assert await judged(again, published(await made.show(domain)), clock) == [(Status.PASS, domain)]


def test_fields_are_taken_out_whole() -> None:
    raw = (
        b"DKIM-Signature: v=1; d=ours.example;\r\n\tb=abc\r\nDKIM-Signature: v=1; d=other.example; b=x\r\n"
        b"DKIM-Signature: nonsense\r\nbcc: a@example.com,\r\n b@example.com\r\nTo: c@example.com\r\n\r\nBcc: d\r\n"
    )
    assert wire.without_signatures(raw, ("ours.example",)) == raw[raw.index(b"DKIM-Signature: v=1; d=other") :]
    bare = wire.from_sent_copy(raw)
    assert b"a@example.com" not in bare
    assert b"b@example.com" not in bare
    assert bare.endswith(b"To: c@example.com\r\n\r\nBcc: d\r\n")
    assert wire.from_sent_copy(b"Bcc: x") == b""
    assert wire.from_sent_copy(b"") == b""
