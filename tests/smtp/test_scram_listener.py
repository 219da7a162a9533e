"""Submitting after AUTH by SCRAM, over real sockets and TLS, down to the database (RFC 5802, RFC 5929; A2, A4, D1)."""

from __future__ import annotations

import base64
import hashlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.audit import HOST
from postroom.accounts.service.app_passwords import AppPasswords
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.settings_tree import PlaintextAuth
from postroom.db import Database
from postroom.servers.smtp import ListenerLimits, MxListener
from postroom.servers.submission import AtMx, Door
from postroom.smtp import ServerConfig
from tests.outbound.submitting import DOMAIN, PASSWORD, PEPPER, PostOffice, mail, post_office
from tests.sasl.client import Client as Scram
from tests.smtp.test_submission_listener import Client

CAROL = f"carol@{DOMAIN}"


@pytest.fixture
async def office(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[PostOffice]:
    async with post_office(db, clock, ids, tmp_path) as made:
        yield made


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def challenge(client: Client, line: str) -> bytes:
    reply = await client.ask(line)
    assert reply.startswith("334"), reply
    return base64.b64decode(reply[4:], validate=True)


async def sign_in(client: Client, scram: Scram) -> str:
    """The last reply."""
    name = "SCRAM-SHA-256" if scram.binding is None else "SCRAM-SHA-256-PLUS"
    first = await challenge(client, f"AUTH {name} {b64(scram.first())}")
    reply = await client.ask(b64(scram.final(first)))
    if not reply.startswith("334 "):
        return reply
    scram.check(base64.b64decode(reply[4:], validate=True))
    return await client.ask("")


def seen_by(client: Client) -> bytes:
    der = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return hashlib.sha256(der).digest()


async def offered(client: Client) -> str:
    return "".join(line[4:] for line in await client.lines("EHLO laptop.example") if line[4:].startswith("AUTH"))


async def send(client: Client) -> str:
    assert (await client.ask(f"MAIL FROM:<{CAROL}>")).startswith("250 ")
    assert (await client.ask("RCPT TO:<ann@example.com>")).startswith("250 ")
    assert (await client.ask("DATA")).startswith("354 ")
    client.writer.write(mail() + b".\r\n")
    return await client.reply()


@pytest.mark.covers("mail-server:A2", "mail-server:A4", "RFC 4954 §4", "RFC 5802 §5", "RFC 5929 §4")
@pytest.mark.parametrize("implicit", [True, False], ids=["implicit", "STARTTLS"])
async def test_bound_to_the_certificate(
    office: PostOffice, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, implicit: bool
) -> None:
    password = await office.app_password()
    listener = await office.listen(tls=server_tls, implicit=implicit, plaintext_auth=PlaintextAuth.NEVER)

    async def connect() -> Client:
        if implicit:
            client = await Client.connect(listener, ssl=client_tls)
        else:
            client = await Client.connect(listener)
            assert await offered(client) == ""
            assert (await client.ask("AUTH SCRAM-SHA-256")).startswith("538 ")
            await client.start_tls(client_tls)
        assert await offered(client) == "AUTH PLAIN LOGIN SCRAM-SHA-256-PLUS SCRAM-SHA-256"
        return client

    client = await connect()
    said = await sign_in(client, Scram(CAROL, password, binding=seen_by(client)))
    assert said == "235 2.7.0 Authentication successful"
    assert (await send(client)).startswith("250 ")
    row, _, wire = await office.stored()
    assert row["person_id"] == office.person.id
    assert b"with ESMTPSA id" in wire
    client.close()
    client = await connect()
    assert (await sign_in(client, Scram(CAROL, password, binding=b"m" * 32))).startswith("535 5.7.8")
    taken = Scram(CAROL, password, flag="y")  # somebody took -PLUS from the list
    assert (await client.ask(f"AUTH SCRAM-SHA-256 {b64(taken.first())}")).startswith("535 5.7.8")
    assert (await sign_in(client, Scram(CAROL, password))).startswith("235 ")
    client.close()


@pytest.mark.covers("decisions:D1", "mail-server:A4", "mail-server:F3")
async def test_without_tls_from_the_machine_itself(office: PostOffice) -> None:
    password = await office.app_password()
    client = await Client.connect(await office.listen(limits=ListenerLimits(auth_failures=4)))
    assert await offered(client) == "AUTH PLAIN LOGIN SCRAM-SHA-256"
    for name, secret in ((CAROL, "ap_wrong"), (f"nobody@{DOMAIN}", password), (CAROL, PASSWORD)):
        assert await sign_in(client, Scram(name, secret)) == "535 5.7.8 Authentication credentials invalid"
    assert (await sign_in(client, Scram(CAROL, password))).startswith("235 ")
    client.close()


@pytest.mark.covers("mail-server:F3", "mail-server:A7")
async def test_guessing_is_throttled_and_ends_the_connection(office: PostOffice) -> None:
    password = await office.app_password()
    listener = await office.listen(limits=ListenerLimits(auth_failures=5))
    client = await Client.connect(listener)
    await offered(client)
    for at in range(5):
        assert (await sign_in(client, Scram(CAROL, "ap_wrong"))).startswith("535 " if at < 3 else "454 4.7.0")
    assert (await client.reply()).startswith("421 ")
    # Of a locked account the right application password is let in, as it is when it is shown.
    client = await Client.connect(listener)
    await offered(client)
    assert (await sign_in(client, Scram(CAROL, password))).startswith("235 ")
    client.close()


@pytest.mark.covers("mail-server:F5")
async def test_what_is_revoked_submits_no_more(office: PostOffice) -> None:
    passwords = AppPasswords(office.db, office.ids, office.clock, PEPPER, scram=office.scram)
    made, password = await passwords.create(office.person, "phone", HOST)
    client = await Client.connect(await office.listen())
    await offered(client)
    assert (await sign_in(client, Scram(CAROL, password))).startswith("235 ")
    await passwords.revoke(office.person, made.public_id, HOST)
    assert (await client.ask(f"MAIL FROM:<{CAROL}>")).startswith("421 4.7.0")


@pytest.mark.covers("mail-server:A2")
async def test_on_the_port_of_the_mx_and_where_it_is_off(office: PostOffice) -> None:
    async def never(*_: Any) -> Any:
        raise AssertionError("nobody asked")

    password = await office.app_password()
    door = Door(office.sign_in, office.find, office.submission())
    both = AtMx(door, never, never)
    listener: MxListener[Any] = MxListener(
        ServerConfig("mail.agents.example", scram=office.scram.offer()),
        resolve=both.resolve,
        receive=both.receive,
        sign_in=door.sign_in,
        prove=door.prove,
        check_sender=door.check_sender,
        now=office.clock.now,
    )
    await listener.start("127.0.0.1", 0)
    client = await Client.connect(listener)
    assert await offered(client) == "AUTH PLAIN LOGIN SCRAM-SHA-256"
    assert (await sign_in(client, Scram(CAROL, password))).startswith("235 ")
    assert (await send(client)).startswith("250 ")
    client.close()
    await listener.drain(0)
    client = await Client.connect(await office.listen(config=ServerConfig("mail.agents.example")))
    assert await offered(client) == "AUTH PLAIN LOGIN"
    assert (await client.ask("AUTH SCRAM-SHA-256")).startswith("504 ")
    client.close()
