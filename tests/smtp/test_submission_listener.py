"""Submitting mail over the wire: real clients, and clients that mean no good."""

from __future__ import annotations

import asyncio
import base64
import shutil
import smtplib
import ssl
from collections.abc import AsyncIterator, Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, TypeVar

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.settings_tree import PlaintextAuth
from postroom.db import Database
from postroom.servers.limits import ConnectionCounter
from postroom.servers.smtp import ListenerLimits, MxListener
from postroom.servers.submission import AtMx, Door, SubmissionListener
from postroom.smtp import Envelope, Reply, ServerConfig, SessionInfo
from tests.outbound.submitting import DOMAIN, PASSWORD, PostOffice, mail, post_office, recipients_of

CAROL = f"carol@{DOMAIN}"
T = TypeVar("T")


@pytest.fixture
async def office(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[PostOffice]:
    async with post_office(db, clock, ids, tmp_path) as made:
        yield made


class Client:
    """Shows every reply."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, listener: Any, **options: Any) -> Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", listener.port, **options))
        assert (await client.reply()).startswith("220 ")
        return client

    async def reply(self) -> str:
        """The last line of the next reply, or nothing at the end."""
        while True:
            line = (await asyncio.wait_for(self.reader.readline(), 20)).decode()
            if line[3:4] != "-":
                return line.strip()

    async def ask(self, *lines: str) -> str:
        """Send lines at once; the last one's reply."""
        self.writer.write("".join(f"{line}\r\n" for line in lines).encode())
        return [await self.reply() for _ in lines][-1]

    async def lines(self, line: str) -> list[str]:
        self.writer.write(f"{line}\r\n".encode())
        found: list[str] = []
        while not found or found[-1][3:4] == "-":
            found.append((await asyncio.wait_for(self.reader.readline(), 20)).decode().strip())
        return found

    async def start_tls(self, context: ssl.SSLContext) -> None:
        assert (await self.ask("STARTTLS")).startswith("220 ")
        await self.writer.start_tls(context, server_hostname="127.0.0.1")

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 20)

    def close(self) -> None:
        self.writer.close()


def plain(name: str = CAROL, password: str = PASSWORD) -> str:
    return "AUTH PLAIN " + base64.b64encode(f"\0{name}\0{password}".encode()).decode()


async def signed_in(listener: Any, name: str = CAROL, password: str = PASSWORD) -> Client:
    client = await Client.connect(listener)
    assert (await client.ask("EHLO laptop.example", plain(name, password))).startswith("235 ")
    return client


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


# -- real clients


@pytest.mark.covers("mail-server:A1", "mail-server:A3", "mail-server:A4", "mail-server:A5", "RFC 4954", "RFC 6409 §4.3")
async def test_smtplib_with_starttls(
    office: PostOffice, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    listener = await office.listen(tls=server_tls, plaintext_auth=PlaintextAuth.NEVER)
    message = EmailMessage()
    message["From"], message["To"], message["Bcc"] = (
        f"Carol <{CAROL}>",
        f"ann@example.com, dave@{DOMAIN}",
        "eve@example.org",
    )
    message["Subject"] = "Grüße"
    message.set_content("Schöne Grüße.\n")

    def send() -> tuple[dict[str, Any], bool, bool]:
        with smtplib.SMTP("127.0.0.1", listener.port, "laptop.example", timeout=20) as client:
            client.ehlo()
            before = client.has_extn("auth")
            client.starttls(context=client_tls)
            client.login(CAROL.upper(), PASSWORD)
            refused = client.send_message(message)
            return refused, before, client.has_extn("auth")

    assert await in_thread(send) == ({}, False, True)
    row, copy, wire = await office.stored()
    assert b"with ESMTPSA id" in wire
    assert b"127.0.0.1" not in wire
    assert recipients_of(await office.deliveries()) == [
        ("ann@example.com", "to", "direct", "queued"),
        (f"dave@{DOMAIN}", "to", "local", "queued"),
        # smtplib takes the Bcc out by itself.
        ("eve@example.org", "envelope", "direct", "queued"),
    ]
    assert row["subject"] == "Grüße"
    assert copy == wire


@pytest.mark.covers("mail-server:A1", "RFC 8314 §3.3")
async def test_smtplib_with_tls_from_the_first_byte(
    office: PostOffice, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    listener = await office.listen(tls=server_tls, implicit=True, plaintext_auth=PlaintextAuth.NEVER)

    def send() -> list[dict[str, Any]]:
        with smtplib.SMTP_SSL("127.0.0.1", listener.port, timeout=20, context=client_tls) as client:
            client.ehlo()
            assert not client.has_extn("starttls")
            client.user, client.password = CAROL, PASSWORD
            client.auth("LOGIN", client.auth_login)
            return [client.sendmail(CAROL, ["ann@example.com"], mail(text=text)) for text in ("One.", "Two.")]

    assert await in_thread(send) == [{}, {}]
    assert len(await office.deliveries()) == 2


@pytest.mark.covers("mail-server:A3", "mail-server:A4")
async def test_an_agent_with_a_key(office: PostOffice) -> None:
    address = f"robot@{DOMAIN}"
    await office.execute("UPDATE identities SET send_policy_json = '{\"require_known_recipient\": false}'")
    listener = await office.listen()
    key, other = await office.key("messages:send"), await office.key("messages:read")

    def send(password: str) -> dict[str, Any]:
        with smtplib.SMTP("127.0.0.1", listener.port, timeout=20) as client:
            client.login(address, password)
            return client.sendmail(address, ["ann@example.com"], mail(address))

    assert await in_thread(lambda: send(key)) == {}
    row, _, wire = await office.stored()
    assert (row["person_id"], row["mailbox_id"]) == (None, office.robot.id)
    assert b"with ESMTPA id" in wire
    with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
        await in_thread(lambda: send(other))
    assert refused.value.smtp_code == 535


@pytest.mark.skipif(shutil.which("swaks") is None, reason="needs swaks")
@pytest.mark.covers("mail-server:A1")
async def test_swaks(office: PostOffice, server_tls: ssl.SSLContext) -> None:
    listener = await office.listen(tls=server_tls)
    run = await asyncio.create_subprocess_exec(
        *("swaks", "--server", "127.0.0.1", "--port", str(listener.port), "--tls", "--auth", "PLAIN"),
        *("--auth-user", CAROL, "--auth-password", PASSWORD, "--from", CAROL, "--to", "ann@example.com"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(run.communicate(), 60)
    assert run.returncode == 0, said.decode("utf-8", "replace")
    assert len(await office.deliveries()) == 1


# -- the dialogue


@pytest.mark.covers("mail-server:A2", "decisions:D1", "RFC 4954 §4")
@pytest.mark.parametrize(
    ("policy", "offered"),
    [(PlaintextAuth.NEVER, False), (PlaintextAuth.LOOPBACK, True), (PlaintextAuth.ALWAYS, True)],
)
async def test_auth_before_tls(
    office: PostOffice,
    server_tls: ssl.SSLContext,
    client_tls: ssl.SSLContext,
    policy: PlaintextAuth,
    offered: bool,
) -> None:
    client = await Client.connect(await office.listen(tls=server_tls, plaintext_auth=policy))
    greeted = await client.lines("EHLO laptop.example")
    assert any("AUTH PLAIN LOGIN" in line for line in greeted) is offered
    assert (await client.ask(f"MAIL FROM:<{CAROL}>")).startswith("530 5.7.0")
    assert (await client.ask(plain())).startswith("235 " if offered else "538 5.7.11")
    await client.start_tls(client_tls)
    # What was said in clear is forgotten (A5).
    greeted = await client.lines("EHLO laptop.example")
    assert any("AUTH PLAIN LOGIN" in line for line in greeted)
    assert any("DSN" in line for line in greeted)
    assert (await client.ask(f"MAIL FROM:<{CAROL}>")).startswith("530 5.7.0")
    client.close()


@pytest.mark.covers("mail-server:A2", "RFC 2920", "RFC 3030 §2")
async def test_pipelined_and_in_chunks(office: PostOffice) -> None:
    client = await signed_in(await office.listen())
    raw = mail()
    head, tail = raw[:20], raw[20:]
    client.writer.write(
        f"MAIL FROM:<{CAROL}> SIZE={len(raw)}\r\nRCPT TO:<ann@example.com> NOTIFY=NEVER\r\n"
        f"RCPT TO:<nobody@{DOMAIN}>\r\nRCPT TO:<dave@{DOMAIN}>\r\n".encode()
        + b"BDAT %d\r\n%bBDAT %d LAST\r\n%b" % (len(head), head, len(tail), tail)
        + f"MAIL FROM:<{CAROL}>\r\nRCPT TO:<bob@example.com>\r\nDATA\r\n".encode()
    )
    codes = [(await client.reply())[:9] for _ in range(9)]
    assert codes[:6] == ["250 2.1.0", "250 2.1.5", "550 5.1.1", "250 2.1.5", "250 2.0.0", "250 2.0.0"]
    assert [code[:3] for code in codes[6:]] == ["250", "250", "354"]
    client.writer.write(raw + b".\r\nQUIT\r\n")
    assert (await client.reply()).startswith("250 2.0.0 Ok: queued as msg_")
    assert (await client.reply()).startswith("221 ")
    assert [(row["recipient"], row["dsn_notify"]) for row in await office.deliveries()] == [
        ("ann@example.com", ["NEVER"]),
        (f"dave@{DOMAIN}", None),
        ("bob@example.com", None),
    ]


@pytest.mark.covers("mail-server:A3", "mail-server:A2")
async def test_senders_that_are_not_owned(office: PostOffice) -> None:
    client = await signed_in(await office.listen())
    not_owned = "550 5.7.1 Sender address rejected: not owned by user"
    assert await client.ask(f"MAIL FROM:<dave@{DOMAIN}>") == not_owned
    assert await client.ask("MAIL FROM:<ann@example.com>") == not_owned
    assert (await client.ask("MAIL FROM:<>")).startswith("550 5.7.1")
    assert (await client.ask("RCPT TO:<ann@example.com>")).startswith("503 ")
    # The session goes on, and the header is looked at, too.
    assert (await client.ask(f"MAIL FROM:<{CAROL}>", "RCPT TO:<ann@example.com>", "DATA")).startswith("354 ")
    client.writer.write(mail("ann@example.com") + b".\r\n")
    assert await client.reply() == not_owned
    assert await office.deliveries() == []
    client.close()


@pytest.mark.covers("mail-server:A3", "mail-server:A6")
async def test_an_unknown_local_address_is_never_relayed(office: PostOffice) -> None:
    client = await signed_in(await office.listen())
    await office.execute("UPDATE mailboxes SET quota_bytes = 0 WHERE id = $1", office.dave.id)
    assert (await client.ask(f"MAIL FROM:<{CAROL}>", f"RCPT TO:<nobody@{DOMAIN}>")).startswith("550 5.1.1")
    assert (await client.ask(f"RCPT TO:<dave@{DOMAIN}>")).startswith("452 4.2.2")
    assert (await client.ask("DATA")).startswith("503 ")
    client.close()


@pytest.mark.covers("mail-server:A7")
async def test_too_many_recipients(office: PostOffice) -> None:
    client = await signed_in(await office.listen())
    assert (await client.ask(f"MAIL FROM:<{CAROL}>")).startswith("250 ")
    client.writer.write(b"".join(b"RCPT TO:<a%d@example.com>\r\n" % n for n in range(103)))
    codes = [(await client.reply())[:9] for _ in range(103)]
    assert codes == ["250 2.1.5"] * 100 + ["452 4.5.3"] * 3
    assert (await client.ask("DATA")).startswith("354 ")
    client.writer.write(mail() + b".\r\n")
    assert (await client.reply()).startswith("250 2.0.0")
    assert len(await office.deliveries()) == 100
    client.close()


@pytest.mark.covers("mail-server:A7", "edge:B1")
async def test_oversize(office: PostOffice) -> None:
    client = await signed_in(await office.listen(config=ServerConfig("mail.agents.example", max_message_size=1000)))
    assert (await client.ask(f"MAIL FROM:<{CAROL}> SIZE=1001")).startswith("552 5.3.4")
    assert (await client.ask(f"MAIL FROM:<{CAROL}>", "RCPT TO:<ann@example.com>", "DATA")).startswith("354 ")
    client.writer.write(mail(text="x" * 998 + "\r\n" + "y" * 500) + b".\r\n")
    assert (await client.reply()).startswith("552 5.3.4")
    assert await office.deliveries() == []
    client.close()


@pytest.mark.covers("mail-server:A5")
async def test_bytes_after_starttls(office: PostOffice, server_tls: ssl.SSLContext) -> None:
    client = await Client.connect(await office.listen(tls=server_tls))
    await client.lines("EHLO laptop.example")
    client.writer.write(f"STARTTLS\r\n{plain()}\r\nMAIL FROM:<{CAROL}>\r\n".encode())
    assert await client.rest() == b"554 5.5.1 Pipelining violated\r\n"
    client.close()


# -- guessing


@pytest.mark.covers("mail-server:A4", "mail-server:F3")
async def test_wrong_passwords_lock_the_account(office: PostOffice) -> None:
    listener = await office.listen()
    replies = []
    for _ in range(4):
        client = await Client.connect(listener)
        replies.append((await client.ask("EHLO x", plain(password="wrong")))[:9])
        client.close()
    assert replies == ["535 5.7.8"] * 3 + ["454 4.7.0"]
    client = await Client.connect(listener)
    # Nor does the right one help while the lock lasts, and it says no more than that.
    assert await client.ask("EHLO x", plain()) == "454 4.7.0 Temporary authentication failure"
    assert (await client.ask(f"MAIL FROM:<{CAROL}>")).startswith("530 ")
    office.clock.advance(200)
    assert (await client.ask(plain())).startswith("235 ")
    client.close()


@pytest.mark.covers("mail-server:A4", "mail-server:F1")
async def test_all_failures_look_alike_and_a_connection_has_few(office: PostOffice) -> None:
    listener = await office.listen(limits=ListenerLimits(auth_failures=4))
    client = await Client.connect(listener)
    await client.lines("EHLO x")
    wrong = [
        await client.ask(plain(f"nobody@{DOMAIN}")),
        await client.ask(plain("nonsense")),
        await client.ask(plain(f"dave@{DOMAIN}")),
    ]
    assert set(wrong) == {"535 5.7.8 Authentication credentials invalid"}
    client.writer.write(f"{plain(f'robot@{DOMAIN}')}\r\nNOOP\r\n".encode())
    assert await client.rest() == (
        b"535 5.7.8 Authentication credentials invalid\r\n421 4.7.0 Too many failed logins\r\n"
    )
    client.close()


@pytest.mark.covers("mail-server:A4", "edge:J1")
async def test_faults_while_deciding_are_temporary(office: PostOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise OSError("gone")

    submission = office.submission()
    listener = await office.listen(submission=submission)
    client = await signed_in(listener)
    monkeypatch.setattr(submission, "check_sender", fail)
    assert (await client.ask(f"MAIL FROM:<{CAROL}>")).startswith("451 4.3.0")
    monkeypatch.setattr(office.sign_in, "sign_in", fail)
    other = await Client.connect(listener)
    assert (await other.ask("EHLO x", plain())).startswith("454 4.7.0")
    client.close()
    other.close()


@pytest.mark.covers("mail-server:A4")
async def test_a_decision_that_takes_too_long(office: PostOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    listener = await office.listen(limits=ListenerLimits(resolve_timeout=0.05))
    monkeypatch.setattr(office.sign_in, "sign_in", never)
    client = await Client.connect(listener)
    assert (await client.ask("EHLO x", plain())).startswith("454 4.7.0")
    client.close()


@pytest.mark.covers("mail-server:A7")
async def test_the_rate_of_commands_is_for_those_who_have_not_signed_in(office: PostOffice) -> None:
    class Used:
        def exceeded(self, peer_ip: str) -> bool:
            return True

    listener = await office.listen()
    client = await signed_in(listener)
    listener._context.rate = Used()
    assert [(await client.ask("NOOP"))[:3] for _ in range(3)] == ["250"] * 3
    client.close()
    stranger = await Client.connect(listener)
    assert await stranger.ask("NOOP", "NOOP") == "421 4.7.0 Too many commands, slow down"
    stranger.close()


# -- the MX's port, and both ports together


@pytest.mark.covers("mail-server:A1", "mail-server:A2", "mail-server:A3")
async def test_submission_at_the_mx(office: PostOffice) -> None:
    taken: list[tuple[str, object]] = []

    async def resolve(address: str, session: SessionInfo) -> str | Any:
        return f"box of {address}"

    async def receive(envelope: Envelope[str], raw: bytes) -> Reply:
        taken.append((envelope.mail_from, envelope.recipients))
        return Reply(250, "2.0.0", "Ok")

    door = Door(office.sign_in, office.find, office.submission())
    both: AtMx[str] = AtMx(door, resolve, receive)
    listener: MxListener[Any] = MxListener(
        ServerConfig("mx.agents.example"),
        resolve=both.resolve,
        receive=both.receive,
        sign_in=door.sign_in,
        check_sender=door.check_sender,
        now=office.clock.now,
    )
    await listener.start("127.0.0.1", 0)
    client = await Client.connect(listener)
    greeted = await client.lines("EHLO mx.example.com")
    assert any("AUTH PLAIN LOGIN" in line for line in greeted)
    assert not any("DSN" in line for line in greeted)
    # Another server needs no sender of ours, and may have none.
    for sender in ("", "ann@example.com"):
        assert (await client.ask(f"MAIL FROM:<{sender}>", f"RCPT TO:<dave@{DOMAIN}>", "DATA")).startswith("354 ")
        client.writer.write(mail("ann@example.com") + b".\r\n")
        assert (await client.reply()).startswith("250 ")
    assert taken == [(sender, ((f"dave@{DOMAIN}", f"box of dave@{DOMAIN}"),)) for sender in ("", "ann@example.com")]
    assert (await client.ask(plain())).startswith("235 ")
    assert (await client.ask("MAIL FROM:<ann@example.com>")).startswith("550 5.7.1")
    assert (await client.ask(f"MAIL FROM:<{CAROL}>", "RCPT TO:<ann@example.com>", "DATA")).startswith("354 ")
    client.writer.write(mail() + b".\r\n")
    assert (await client.reply()).startswith("250 2.0.0 Ok: queued as msg_")
    assert len(taken) == 2
    assert len(await office.deliveries()) == 1
    client.close()
    await listener.drain(0)


@pytest.mark.covers("mail-server:A7", "mail-server:A1")
async def test_connections_are_counted_together(office: PostOffice, server_tls: ssl.SSLContext) -> None:
    counter = ConnectionCounter(1, 1)
    one: SubmissionListener = await office.listen(counter=counter)
    two: SubmissionListener = await office.listen(counter=counter, tls=server_tls)
    client = await Client.connect(one)
    second = Client(*await asyncio.open_connection("127.0.0.1", two.port))
    assert (await second.reply()).startswith("421 4.3.2")
    with pytest.raises(ValueError, match="implicit TLS"):
        await office.listen(implicit=True)
    client.close()
    second.close()


@pytest.mark.covers("mail-server:H4")
async def test_draining_finishes_what_is_being_submitted(office: PostOffice) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    class Slow:
        def __init__(self, inner: Any) -> None:
            self.check_sender = inner.check_sender
            self._inner = inner

        async def submit(self, *arguments: Any) -> Reply:
            begun.set()
            await gate.wait()
            answer: Reply = await self._inner.submit(*arguments)
            return answer

    listener = await office.listen(submission=Slow(office.submission()))
    client = await signed_in(listener)
    assert (await client.ask(f"MAIL FROM:<{CAROL}>", "RCPT TO:<ann@example.com>", "DATA")).startswith("354 ")
    client.writer.write(mail() + b".\r\n")
    await asyncio.wait_for(begun.wait(), 20)
    draining = asyncio.create_task(listener.drain(20))
    gate.set()
    assert (await client.reply()).startswith("250 2.0.0 Ok")
    assert (await client.reply()).startswith("421 4.3.2")
    client.close()
    await draining
