"""What comes back: a deployment with signed return paths and an MX listener, and reports as other servers write them,
made with the standard library alone."""

from __future__ import annotations

import asyncio
import email
import email.policy
import smtplib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage, Message
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from typing import Any
from zlib import crc32

from postroom.accounts.signing_keys import SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db import Database
from postroom.directory.models import Forward
from postroom.directory.models import Refusal as DirectoryRefusal
from postroom.directory.resolver import Directory
from postroom.inbound.judging import Judging
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import Receiver
from postroom.inbound.reception import Addressee, Reception
from postroom.mailbox.ingest import Ingest
from postroom.outbound.address_bounces import AddressBounces
from postroom.outbound.return_paths import ReturnPaths
from postroom.outbound.returns import Returns
from postroom.servers.smtp import MxListener
from postroom.smtp import ServerConfig
from postroom.smtp.envelope import Refusal, SessionInfo
from postroom.smtp.replies import Reply
from tests.inbound.fakes import reader
from tests.mailbox.letters import Box, check_mailbox
from tests.outbound.fake_mx import FakeMx, Received
from tests.outbound.mail_room import MailRoom

HOST = "pm-bounce.agents.example"
PLATFORM = "agents.example"
MASTER = Keyring(b"m" * 32)


class QuickParser(Parser):
    """Does its work where it stands: a process for each test would take longer than all the rest."""

    async def run(self, size: int, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)


@dataclass
class Place:
    """One server process: a door of its own, with everything behind it, on the database that all share."""

    returns: Returns
    reception: Reception
    ingest: Ingest
    listener: MxListener[Addressee]
    parser: Parser
    bounces: AddressBounces

    async def close(self) -> None:
        await self.listener.drain(0)
        await self.ingest.stop()
        self.parser.close()


@dataclass
class Returning:
    """A mail room whose mail leaves with signed return paths, and the processes that take what comes back."""

    room: MailRoom
    keys: SigningKeys
    paths: ReturnPaths
    places: list[Place] = field(default_factory=list)

    @property
    def box(self) -> Box:
        return self.room.box

    async def place(self, parser: Parser | None = None, judge: Judging | None = None, relay: str = "") -> Place:
        """Another process; it takes bounces that come to addresses, too."""
        room = self.room
        parser = parser or QuickParser()
        ingest = Ingest(room.db, room.blobs, room.clock, committed=lambda _: None)
        ingest.start()

        async def nobody(address: str) -> None:
            return None

        bounces = AddressBounces(
            room.db,
            room.blobs,
            parser,
            room.clock,
            room.ids,
            relay=relay,
            changed=lambda ref, modseq: room.changed.append((ref, modseq)),
        )
        receiver = Receiver(
            ingest,
            parser,
            room.clock,
            room.ids,
            hostname="mx.agents.example",
            version="1",
            local_mailbox=nobody,
            tokens=reader(room.clock),
            judge=judge,
            bounces=bounces,
        )
        directory = Directory(room.db, room.clock, PLATFORM, security_contact=self.box.address, query_seconds=60)

        async def role_mail(address: str, mail_from: str) -> Addressee | DirectoryRefusal:
            found = await directory.resolve(address)
            assert not isinstance(found, Forward)
            return found

        returns = Returns(
            room.db,
            room.blobs,
            parser,
            receiver,
            room.clock,
            room.ids,
            paths=self.paths,
            role_mail=role_mail,
            directory=directory.resolve,
            platform_domain=PLATFORM,
            changed=lambda ref, modseq: room.changed.append((ref, modseq)),
        )
        reception = Reception(directory.resolve, receiver, [returns])

        async def resolve(address: str, session: SessionInfo) -> Addressee | Refusal:
            found = await reception.resolve(address, session.mail_from)
            if isinstance(found, DirectoryRefusal):
                return Refusal(Reply(found.code, found.enhanced, found.text))
            return found

        listener = MxListener(
            ServerConfig("mx.agents.example"), resolve=resolve, receive=reception.receive, now=room.clock.now
        )
        await listener.start("127.0.0.1", 0)
        self.places.append(Place(returns, reception, ingest, listener, parser, bounces))
        return self.places[-1]

    async def send(self, mx: FakeMx, *recipients: Any, domain: str = "example.com", **changes: Any) -> str:
        """Accept and dispatch a message to a domain whose server is `mx`; its id."""
        if domain not in self.room.net.dns.exchanges:
            self.room.net.add(domain, mx)
        message = await self.room.accept(*(recipients or ("anna@example.com",)), **changes)
        await self.room.dispatcher().run_due()
        return message

    async def bounce(self, to: str, report: bytes, *, sender: str = "", place: Place | None = None) -> tuple[int, str]:
        """Hand it in at the listener, as another server does; the reply that decides."""
        port = (place or self.places[0]).listener.port
        return await asyncio.to_thread(_deliver, port, sender, to, report)

    async def inbox(self) -> list[tuple[dict[str, Any], EmailMessage]]:
        """What was received: rows and messages."""
        async with self.room.db.acquire() as conn:
            rows = await conn.fetch("SELECT * FROM messages WHERE source = 'mx' ORDER BY id")
        found = []
        for row in rows:
            raw = await self.room.blobs.get(row["blob_key"])
            found.append((dict(row), email.message_from_bytes(raw, policy=email.policy.default)))
        return found

    async def kinds(self) -> list[str]:
        return [kind for kind, _ in await self.room.events()]

    async def execute(self, statement: str, *values: Any) -> None:
        async with self.room.db.acquire() as conn:
            await conn.execute(statement, *values)


def _deliver(port: int, sender: str, to: str, report: bytes) -> tuple[int, str]:
    with smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
        client.ehlo("mx.example.com")
        code, text = client.mail(sender)
        if code == 250:
            code, text = client.rcpt(to)
        if code == 250:
            code, text = client.data(report)
    return code, text.decode()


@asynccontextmanager
async def returning(
    db: Database, clock: ManualClock, ids: IdGenerator, directory: Path, *, kind: str = "person"
) -> AsyncIterator[Returning]:
    room = await MailRoom.open(db, clock, ids, directory, kind=kind)
    keys = SigningKeys(db, MASTER, clock)
    made = Returning(room, keys, ReturnPaths(keys, HOST))
    room.return_path = made.paths.of
    await made.place()
    try:
        yield made
        async with db.acquire() as conn:
            await check_mailbox(conn, room.box.ref)
    finally:
        for place in made.places:
            await place.close()
        await room.close()


# -- reports ----------------------------------------------------------------------------------------------------------


def fields(**values: str) -> Message:
    part = Message()
    for name, value in values.items():
        part[name.replace("_", "-")] = value
    return part


def recipient(address: str, action: str = "failed", status: str = "5.1.1", **more: str) -> Message:
    """A group of RFC 3464 §2.3 about one recipient."""
    values = {"Final_Recipient": f"rfc822; {address}", "Action": action, "Status": status}
    return fields(**{**values, **more})


def report(received: Received, *groups: Message, words: str = "It did not work out.") -> bytes:
    """RFC 3464, with the header of the message."""
    made = MIMEMultipart("report", report_type="delivery-status")
    made["From"] = "Mail Delivery System <MAILER-DAEMON@mx.example.com>"
    made["To"] = received.sender
    made["Subject"] = "Delivery status notification"
    made["Date"] = "Tue, 01 Jan 2030 00:10:00 +0000"
    made["Message-ID"] = f"<{crc32(repr([words, *map(str, groups)]).encode())}@mx.example.com>"
    made.attach(MIMEText(words))
    status = Message()
    status.set_type("message/delivery-status")
    status.set_payload([fields(Reporting_MTA="dns; mx.example.com"), *groups])
    made.attach(status)
    header = received.data.partition(b"\r\n\r\n")[0].decode()
    made.attach(MIMEText(header, "rfc822-headers"))
    return made.as_bytes(policy=email.policy.SMTP)


def like_postfix(received: Received, address: str) -> bytes:
    """With its own fields, a diagnostic over several lines, and the whole message."""
    made = MIMEMultipart("report", report_type="delivery-status")
    made["From"] = "MAILER-DAEMON@mx.example.com (Mail Delivery System)"
    made["Subject"] = "Undelivered Mail Returned to Sender"
    made["To"] = received.sender
    made["Auto-Submitted"] = "auto-replied"
    made["Message-ID"] = "<20300101001000.ABCDEF@mx.example.com>"
    made.attach(
        MIMEText(f"This is the mail system at host mx.example.com.\n\n<{address}>: host in[192.0.2.9] said: no")
    )
    status = Message()
    status.set_type("message/delivery-status")
    about = fields(
        Reporting_MTA="dns; mx.example.com",
        X_Postfix_Queue_ID="ABCDEF",
        X_Postfix_Sender=f"rfc822; {received.sender}",
        Arrival_Date="Tue,  1 Jan 2030 00:00:00 +0000 (UTC)",
    )
    group = fields(
        Final_Recipient=f"rfc822; {address}",
        Original_Recipient=f"rfc822;{address}",
        Action="failed",
        Status="5.1.1",
        Remote_MTA="dns; in.example.com",
        Diagnostic_Code="smtp; 550-5.1.1 The account does not exist.\n    550 5.1.1 Ask somebody else",
    )
    status.set_payload([about, group])
    made.attach(status)
    made.attach(MIMEMessage(email.message_from_bytes(received.data)))
    return made.as_bytes(policy=email.policy.SMTP)


def like_exim(received: Received, address: str) -> bytes:
    """A plain text with X-Failed-Recipients, as it was before 4.88 and still is for many."""
    made = EmailMessage(email.policy.SMTP)
    made["X-Failed-Recipients"] = address
    made["Auto-Submitted"] = "auto-replied"
    made["From"] = "Mail Delivery System <Mailer-Daemon@mx.example.com>"
    made["To"] = received.sender
    made["Subject"] = "Mail delivery failed: returning message to sender"
    made["Message-ID"] = "<E1abcDE-000000-00@mx.example.com>"
    made.set_content(
        "This message was created automatically by mail delivery software.\n\nA message that you sent could not be "
        f"delivered to one or more of its\nrecipients. This is a permanent error.\n\n  {address}\n    Unrouteable\n\n"
        "------ This is a copy of the message, including all the headers. ------\n\n" + received.data.decode()
    )
    return made.as_bytes()


def like_qmail(received: Received, address: str) -> bytes:
    """QSBMF: paragraphs, and nothing for programs."""
    made = EmailMessage(email.policy.SMTP)
    made["From"] = "MAILER-DAEMON@mx.example.com"
    made["To"] = received.sender
    made["Subject"] = "failure notice"
    made["Message-ID"] = "<20300101001000.1.qmail@mx.example.com>"
    made.set_content(
        "Hi. This is the qmail-send program at mx.example.com.\nI'm afraid I wasn't able to deliver your message to "
        "the following addresses.\nThis is a permanent error; I've given up. Sorry it didn't work out.\n\n"
        f"<{address}>:\n"
        "Sorry, no mailbox here by that name. (#5.1.1)\n\n--- Below this line is a copy of the message.\n\n"
        + received.data.decode()
    )
    return made.as_bytes()
