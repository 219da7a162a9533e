"""Other people's servers deliver to our MX listener, with what of SMTP they use."""

from __future__ import annotations

import asyncio
import email
import email.policy
import random
import re
import smtplib
from collections.abc import Sequence
from email.message import EmailMessage
from typing import cast

import pytest

from postroom.mail.dsn import Action, parse_dsn
from tests.interop.exim import Exim
from tests.interop.office import ADA, DOMAIN, HOST, Office, blocking, eventually
from tests.interop.opensmtpd import OpenSmtpd
from tests.interop.place import SMTP_PORT, Peer, in_maildir
from tests.interop.postfix import Postfix

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODIES = {
    "words": b"Hello Ada,\r\nhow are you?\r\n",
    "dots": b".\r\n..\r\n...\r\n.leading\r\n. \r\n\r\n.\r\nend\r\n.\r\n",
    "empty-lines-at-the-end": b"Hello\r\n\r\n\r\n\r\n",
    "long-lines": b"x" * 998 + b"\r\n" + b"." * 997 + b"\r\n" + b"y " * 400 + b"\r\n",
    "eight-bits": "Příliš žluťoučký kůň 🗻\r\n".encode() * 20,
}


def olgas(peer: Peer, name: str, body: bytes, subject: str = "A subject") -> tuple[str, bytes]:
    """A Message-ID and a message of somebody at the peer."""
    message_id = f"{name}@{peer.domain}"
    head = (
        f"From: Olga Example <olga@{peer.domain}>\r\nTo: <{ADA}>\r\nSubject: {subject}\r\n"
        f"Date: Mon, 30 Nov 2026 08:00:00 +0000\r\nMessage-ID: <{message_id}>\r\nMIME-Version: 1.0\r\n"
        "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
    )
    return message_id, head.encode() + body


async def relayed(
    peer: Peer, *raws: bytes, sender: str = "", recipient: str = ADA, options: Sequence[str] = ("BODY=8BITMIME",)
) -> None:
    """Give them to the peer, for somebody of ours."""

    def work() -> None:
        with smtplib.SMTP(peer.address, SMTP_PORT, timeout=30) as client:
            for raw in raws:
                client.sendmail(sender or f"olga@{peer.domain}", [recipient], raw, mail_options=list(options))

    await blocking(work)


async def as_sent(office: Office, peer: Peer, message_id: str, raw: bytes) -> EmailMessage:
    """The message in Ada's inbox: the fields and the body that the peer was given."""
    found = await office.received(f"Message-ID: <{message_id}>".encode())
    (given_head, _, given_body), (head, _, body) = raw.partition(b"\r\n\r\n"), found.partition(b"\r\n\r\n")
    assert body == given_body
    # A peer may write fields in its own order, and fold them as it likes; these it leaves alone.
    assert set(given_head.split(b"\r\n")) <= set(head.split(b"\r\n"))
    parsed = email.message_from_bytes(found, policy=email.policy.default)
    ours = parsed.get_all("Received", [])[0]
    assert peer.host in ours
    assert f"by {HOST}" in ours
    assert re.search(r"with (UTF8SMTPS|ESMTPS) ", ours), "over TLS, which we offer"
    assert "olga@" in parsed["Return-Path"] or "ołga@" in parsed["Return-Path"]
    return parsed


@pytest.mark.covers("RFC 5321 §4.5.2", "RFC 6152 §3", "RFC 3207", "RFC 2920", "RFC 3030 §2")
async def test_messages_arrive_as_they_were_sent(office: Office, peer: Peer) -> None:
    letters = dict(olgas(peer, name, body) for name, body in BODIES.items())
    await relayed(peer, *letters.values())
    for message_id, raw in letters.items():
        await as_sent(office, peer, message_id, raw)
    log = peer.log()
    if isinstance(peer, Exim):
        # What it says of each that it delivered: L for PIPELINING, K for CHUNKING.
        ways = re.findall(rf"=> {ADA} .*", log)
        assert len(ways) >= len(letters)
        assert all(" X=TLS1.3:" in way and " L " in way and " K " in way for way in ways)
    elif isinstance(peer, Postfix):
        assert "TLS connection established to 127." in log
        assert len(re.findall(rf"to=<{ADA}>,.* dsn=2\.0\.0, status=sent", log)) >= len(letters)


@pytest.mark.covers("RFC 5321 §4.5.3.1.7", "mail-server:A7")
async def test_a_large_message(office: Office, peer: Peer) -> None:
    lines = random.Random(5).randbytes(2_000_000).hex().encode()
    body = b"\r\n".join(lines[at : at + 76] for at in range(0, len(lines), 76)) + b"\r\n"
    message_id, raw = olgas(peer, "large", body)
    await relayed(peer, raw)
    await as_sent(office, peer, message_id, raw)


@pytest.mark.covers("RFC 6531 §3.3", "RFC 6531 §3.6")
@pytest.mark.parametrize("peer", ["postfix", "exim"], indirect=True)  # the third knows nothing of it
async def test_addresses_and_fields_in_utf8(office: Office, peer: Peer) -> None:
    message_id, raw = olgas(peer, "utf8", "Dobrý den\r\n".encode(), subject="Žádost 🗻")
    await relayed(peer, raw, sender=f"ołga@{peer.domain}", options=["SMTPUTF8", "BODY=8BITMIME"])
    parsed = await as_sent(office, peer, message_id, raw)
    assert parsed["Subject"] == "Žádost 🗻"
    assert "ołga@" in parsed["Return-Path"]
    assert "with UTF8SMTPS" in parsed.get_all("Received", [])[0]


@pytest.mark.covers("mail-server:A9", "RFC 3464 §2.3", "FR-DLV-5")
async def test_a_recipient_whom_we_refuse(office: Office, peer: Peer) -> None:
    """The peer tells its sender; our parser and the standard library read what it says."""
    message_id, raw = olgas(peer, "nobody", b"Hello nobody\r\n")
    await relayed(peer, raw, recipient=f"nobody@{DOMAIN}")

    async def look() -> bytes | None:
        found = (one.replace(b"\n", b"\r\n") for one in in_maildir(peer.mail))
        return next((one for one in found if b"nobody@" in one and b"message/delivery-status" in one), None)

    notice = await eventually(look, lambda: f"a notice (log: {peer.log()[-3000:]})")
    report = parse_dsn(notice)
    assert report is not None
    assert report.reporting_mta == peer.host
    assert (report.original_message_id, report.original_from) == (message_id, f"olga@{peer.domain}")
    (nobody,) = report.recipients
    assert (nobody.final_recipient, nobody.action) == (f"nobody@{DOMAIN}", Action.FAILED)
    parsed = email.message_from_bytes(notice, policy=email.policy.default)
    (status,) = [part for part in parsed.walk() if part.get_content_type() == "message/delivery-status"]
    groups = cast(list[EmailMessage], status.get_payload())
    assert groups[1]["Status"] == nobody.status
    assert nobody.status is not None
    assert nobody.status.startswith("5.")
    if not isinstance(peer, OpenSmtpd):  # which says 5.0.0, whatever it heard
        assert nobody.diagnostic_code is not None
        assert "550" in nobody.diagnostic_code
        assert "5.1.1" in nobody.diagnostic_code
    assert not any(b"Hello nobody" in one for one in await office.inbox())


@pytest.mark.covers("RFC 5321 §3.3", "decisions:B14")
async def test_many_at_once_arrive_once(office: Office, peer: Peer) -> None:
    letters = dict(olgas(peer, f"many{n}", b"Hello %d\r\n" % n) for n in range(40))
    parts, before = list(letters.values()), await office.count()
    await asyncio.gather(*(relayed(peer, *parts[at::4]) for at in range(4)))

    async def look() -> bool | None:
        return await office.count() >= before + len(letters) or None

    await eventually(look, lambda: f"all of them (log: {peer.log()[-3000:]})")
    found = await office.inbox()
    ids = [email.message_from_bytes(one)["Message-ID"].strip("<>") for one in found]
    assert sorted(one for one in ids if one in letters) == sorted(letters)
