"""Mail of ours reaches other people's servers, octet for octet and signed (sending, story 2)."""

from __future__ import annotations

import asyncio
import email
import email.policy
import random
import smtplib
from email.message import EmailMessage

import pytest

from postroom.mail.dsn import parse_dsn
from tests.interop.exim import Exim
from tests.interop.office import (
    ADA,
    DOMAIN,
    HOST,
    PASSWORD,
    SUBMISSION_PORT,
    Office,
    arrived,
    blocking,
    letter,
    unverified,
)
from tests.interop.opensmtpd import OpenSmtpd
from tests.interop.place import Peer, new_address, our_address
from tests.interop.postfix import Postfix

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODIES = {
    "words": b"Hello there,\r\nhow are you?\r\n",
    "dots": b".\r\n..\r\n...\r\n.leading\r\n. \r\n\r\n.\r\nend\r\n.\r\n",
    "empty-lines-at-the-end": b"Hello\r\n\r\n\r\n\r\n",
    "nothing": b"",
    "one-empty-line": b"\r\n",
    "long-lines": b"x" * 998 + b"\r\n" + b"." * 997 + b"\r\n" + b"y " * 400 + b"\r\n",
    "spaces": b" leading\r\ntrailing  \r\n\ttab\t\r\n   \r\n",
    "looks-like-a-header": b"Subject: another\r\n\r\nFrom here on\r\nFrom: nobody\r\n",
}


@pytest.fixture
def anna(office: Office, peer: Peer) -> str:
    """Somebody at the peer, whose domain leads there."""
    office.leads_to(peer.domain, (peer.host, peer.address))
    return f"anna@{peer.domain}"


async def as_written(office: Office, peer: Peer, message_id: str, raw: bytes) -> bytes:
    """The message at the peer: with our fields as they were, our body, and a signature that dkimpy finds good."""
    there = await arrived(peer, message_id)
    (recipient,) = await office.rows(message_id)
    await office.row(message_id, recipient, status="delivered", remote_mx=peer.host, tries=1)
    (our_head, _, our_body), (head, _, body) = raw.partition(b"\r\n\r\n"), there.partition(b"\r\n\r\n")
    assert body == our_body
    assert head.endswith(our_head), "our fields, in their order, below those of the way"
    assert await office.is_signed(there)
    # Of another message the signature is not good: the oracle looks.
    assert not await office.is_signed(there.replace(b"Subject: A", b"Subject: B"))
    return there


def secured(peer: Peer, there: bytes) -> bool:
    """Whether the peer says that it came over TLS: in the field that it added last."""
    parsed = email.message_from_bytes(there, policy=email.policy.default)
    received = parsed.get_all("Received", [])[0]
    assert f"by {peer.host}" in received
    assert HOST in received.partition(" by ")[0].partition("\tby ")[0]
    assert f"<{ADA}>" in parsed["Return-Path"]
    return any(word in received for word in ("ESMTPS", "esmtps", "UTF8SMTPS", "utf8esmtps"))


@pytest.mark.covers("mail-server:C5", "mail-server:C8", "RFC 5321 §4.5.2", "RFC 6376", "RFC 3207")
async def test_messages_arrive_as_they_were_written_and_signed(office: Office, peer: Peer, anna: str) -> None:
    raws = {
        f"{name}.{peer.name}@{DOMAIN}": letter(f"{name}.{peer.name}@{DOMAIN}", body, to=anna)
        for name, body in BODIES.items()
    }
    await asyncio.gather(*(office.submit(raw, anna) for raw in raws.values()))
    for message_id, raw in raws.items():
        there = await as_written(office, peer, message_id, raw)
        # TLS where it is offered, whatever the certificate is worth.
        assert secured(peer, there) is not isinstance(peer, OpenSmtpd)


@pytest.mark.covers("mail-server:C5", "RFC 6152 §2")
async def test_eight_bits(office: Office, peer: Peer, anna: str) -> None:
    message_id = f"eight.{peer.name}@{DOMAIN}"
    more = "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n"
    raw = letter(message_id, "Příliš žluťoučký kůň 🗻\r\n".encode() * 20, to=anna, more=more)
    await office.submit(raw, anna, options=["BODY=8BITMIME"])
    await as_written(office, peer, message_id, raw)


@pytest.mark.covers("mail-server:C5")
async def test_a_large_attachment(office: Office, peer: Peer, anna: str) -> None:
    attachment = random.Random(3).randbytes(3_000_000)
    made = EmailMessage(email.policy.SMTP)
    made.set_content("Here it is.\n")
    made.add_attachment(attachment, maintype="application", subtype="octet-stream", filename="big.bin")
    head, _, body = made.as_bytes().partition(b"\r\n\r\n")
    message_id = f"large.{peer.name}@{DOMAIN}"
    raw = letter(message_id, body, to=anna, more=head.decode() + "\r\n")
    await office.submit(raw, anna)
    there = await as_written(office, peer, message_id, raw)
    parsed = email.message_from_bytes(there, policy=email.policy.default)
    (part,) = parsed.iter_attachments()
    assert part.get_content() == attachment


@pytest.mark.covers("RFC 3030 §2", "RFC 5321 §4.1.1.4", "mail-server:C8")
async def test_a_message_without_a_final_line_end(office: Office, peer: Peer, anna: str) -> None:
    """CHUNKING can submit one; to the peer it goes with DATA, whose lines all end."""
    message_id = f"endless.{peer.name}@{DOMAIN}"
    raw = letter(message_id, b"one\r\n.two", to=anna)

    def submit() -> None:
        with smtplib.SMTP(our_address(), SUBMISSION_PORT, timeout=30) as client:
            client.starttls(context=unverified())
            client.login(ADA, PASSWORD)
            assert client.mail(ADA)[0] == client.rcpt(anna)[0] == 250
            client.send(b"BDAT 5\r\n" + raw[:5] + b"BDAT %d LAST\r\n" % (len(raw) - 5) + raw[5:])
            assert [client.getreply()[0], client.getreply()[0]] == [250, 250]

    await blocking(submit)
    await as_written(office, peer, message_id, raw + b"\r\n")


@pytest.mark.covers("mail-server:C5", "RFC 6531 §3.2")
async def test_addresses_and_fields_in_utf8(office: Office, peer: Peer, anna: str) -> None:
    recipient, message_id = f"žofie@{peer.domain}", f"utf8.{peer.name}@{DOMAIN}"
    more = "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n"
    raw = letter(message_id, "Dobrý den\r\n".encode(), to=recipient, subject="A žádost 🗻", more=more)
    await office.submit(raw, recipient, options=["SMTPUTF8", "BODY=8BITMIME"])
    if isinstance(peer, OpenSmtpd):
        # It cannot be told of her, and nobody may rewrite the address (RFC 6531 §3.2).
        row = await office.row(message_id, recipient, status="bounced")
        assert row["enhanced_code"] == "5.6.7"
        report = parse_dsn(await office.received(f"In-Reply-To: <{message_id}>".encode()))
        assert report is not None
        assert [(one.final_recipient, one.status) for one in report.recipients] == [(recipient, "5.6.7")]
        return
    there = await as_written(office, peer, message_id, raw)
    parsed = email.message_from_bytes(there, policy=email.policy.default)
    assert parsed["Subject"] == "A žádost 🗻"
    assert secured(peer, there)


@pytest.mark.covers("mail-server:C5", "RFC 5321 §5.1")
async def test_the_second_host_when_the_first_is_not_there(office: Office, exim: Exim, postfix: Postfix) -> None:
    refused = "550 5.7.1 This is not ours"
    exim.answer({"anna@both.example": refused, "anna@more.example": refused})
    office.leads_to("both.example", ("mx1.both.example", new_address()), ("mx2.both.example", exim.address))
    # What a host refuses for good is not offered to another (C5), even one that would take it.
    office.leads_to("more.example", ("mx1.more.example", exim.address), ("mx2.more.example", postfix.address))
    for name, number in (("both", 2), ("more", 1)):
        message_id, recipient = f"{name}@{DOMAIN}", f"anna@{name}.example"
        await office.submit(letter(message_id, b"Hello\r\n"), recipient)
        row = await office.row(message_id, recipient, status="bounced")
        assert (row["remote_mx"], row["enhanced_code"]) == (f"mx{number}.{name}.example", "5.7.1")
    assert "more.example" not in postfix.log()
