"""AUTHENTICATE by SCRAM (RFC 5802 over RFC 9051 §6.2.2, mail-server D1), down to the database."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes

from postroom.accounts.audit import HOST
from postroom.accounts.service.standing import Standing
from postroom.base.settings_tree import PlaintextAuth
from postroom.net.tls import Certificate, CertificateFiles, replace_certificate, server_context
from tests.imap_server.conftest import PASSWORD, Client
from tests.interop.place import Missing, libraries, skip_or_fail, unpacked
from tests.net.test_end_point import issue
from tests.sasl.client import Client as Scram

CYRUS_HAS_SCRAM = any(Path("/usr/lib").glob("*/sasl2/libscram.so*"))
FAILED = b"x NO [AUTHENTICATIONFAILED] Invalid credentials"


def b64(data: bytes) -> bytes:
    return base64.b64encode(data)


async def challenge(client: Client) -> bytes:
    line = await client.line()
    assert line.startswith(b"+ "), line
    return base64.b64decode(line[2:], validate=True)


async def answer(client: Client, response: bytes) -> bytes:
    client.send(b64(response) + b"\r\n")
    return await challenge(client)


async def sign_in(client: Client, scram: Scram, *, initial: bool = True) -> bytes:
    """The tagged answer."""
    name = b"SCRAM-SHA-256" if scram.binding is None else b"SCRAM-SHA-256-PLUS"
    if initial:
        client.send(b"x AUTHENTICATE %b %b\r\n" % (name, b64(scram.first())))
        first = await challenge(client)
    else:
        client.send(b"x authenticate %b\r\n" % name.lower())
        assert await challenge(client) == b""
        first = await answer(client, scram.first())
    client.send(b64(scram.final(first)) + b"\r\n")
    line = await client.line()
    if not line.startswith(b"+ "):
        return line
    scram.check(base64.b64decode(line[2:], validate=True))
    client.send(b"\r\n")
    return await client.line()


def mechanisms(lines: list[bytes]) -> list[bytes]:
    return [word for word in b" ".join(lines).split() if word.startswith(b"AUTH=")]


def seen_by(client: Client) -> bytes:
    """What a client that saw this certificate binds to."""
    der = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return hashlib.sha256(der).digest()


@pytest.fixture
def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.mark.covers("mail-server:D1", "RFC 5802 §5", "RFC 9051 §6.2.2", "RFC 4959")
@pytest.mark.parametrize("initial", [True, False])
async def test_signing_in_without_showing_the_password(office: Any, initial: bool) -> None:
    client = await office.connect()
    assert mechanisms(await client.ok(b"CAPABILITY")) == [b"AUTH=PLAIN", b"AUTH=SCRAM-SHA-256"]
    password = await office.app_password()
    said = await sign_in(client, Scram(office.address, password), initial=initial)
    assert said.startswith(b"x OK [CAPABILITY IMAP4rev1 ")
    assert mechanisms(await client.ok(b"CAPABILITY")) == []
    await client.ok(b"SELECT INBOX")
    assert (await client.ask(b"AUTHENTICATE SCRAM-SHA-256"))[0].startswith(b"BAD ")


@pytest.mark.covers("mail-server:D1", "RFC 5802 §6", "RFC 5929 §4")
@pytest.mark.parametrize("implicit", [True, False], ids=["implicit", "STARTTLS"])
async def test_bound_to_the_certificate(office: Any, trusting: ssl.SSLContext, implicit: bool) -> None:
    password = await office.app_password()
    listener = await office.listen(tls=True, implicit=implicit, plaintext_auth=PlaintextAuth.NEVER)

    async def connect() -> Client:
        if implicit:
            client = await Client.connect(listener.port, ssl=trusting)
            assert b"AUTH=SCRAM-SHA-256-PLUS AUTH=SCRAM-SHA-256]" in await client.line()
        else:
            client = await Client.connect(listener.port)
            assert b"AUTH=" not in await client.line()
            assert (await client.ask(b"AUTHENTICATE SCRAM-SHA-256"))[0].startswith(b"NO [PRIVACYREQUIRED]")
            await client.ok(b"STARTTLS")
            await client.writer.start_tls(trusting)
            assert mechanisms(await client.ok(b"CAPABILITY")) == [
                b"AUTH=PLAIN",
                b"AUTH=SCRAM-SHA-256-PLUS",
                b"AUTH=SCRAM-SHA-256",
            ]
        office.clients.append(client)
        return client

    client = await connect()
    said = await sign_in(client, Scram(office.address, password, binding=seen_by(client)))
    assert said.startswith(b"x OK ")
    # Who stands between shows another certificate, or takes the mechanism from the list.
    client = await connect()
    assert await sign_in(client, Scram(office.address, password, binding=b"m" * 32)) == FAILED
    client.send(b"x AUTHENTICATE SCRAM-SHA-256 %b\r\n" % b64(Scram(office.address, password, flag="y").first()))
    assert await client.line() == FAILED
    # Without a wish to bind, as before.
    assert (await sign_in(client, Scram(office.address, password))).startswith(b"x OK ")


@pytest.mark.covers("mail-server:G1", "RFC 5929 §4")
async def test_bound_to_the_certificate_of_this_very_connection(
    office: Any, certificate: Path, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    password = await office.app_password()
    office.tls = server_context(Certificate(certificate, certificate, self_signed=False))  # others go on with theirs
    listener = await office.listen(implicit=True)
    before = await Client.connect(listener.port, ssl=trusting)
    await before.line()
    issue(tmp_path / "new.pem", None)
    files = CertificateFiles(tmp_path / "new.pem", tmp_path / "new.pem")
    for digest in (None, "sha384"):
        der = issue(tmp_path / "new.pem", None if digest is None else hashes.SHA384(), extra=b"\n")
        renewed = files.renewed()
        assert renewed is not None
        replace_certificate(office.tls, renewed)
        after = await Client.connect(listener.port, ssl=trusting)
        assert (b"-PLUS" in await after.line()) is (digest is not None)
        if digest is not None:
            bound = hashlib.new(digest, der).digest()
            assert (await sign_in(after, Scram(office.address, password, binding=bound))).startswith(b"x OK ")
        await after.close()
    # Who came before is bound to what they were shown.
    said = await sign_in(before, Scram(office.address, password, binding=seen_by(before)))
    assert said.startswith(b"x OK ")
    await before.close()


@pytest.mark.covers("mail-server:D1", "mail-server:F3")
async def test_failures_look_alike_and_end_the_session(office: Any) -> None:
    password = await office.app_password()
    client = await office.connect(await office.listen(max_login_failures=4))
    for scram in (
        Scram(office.address, "ap_wrong"),
        Scram("nobody@agents.example", password),
        Scram(office.address, PASSWORD),  # the person's own is kept in another form
    ):
        assert await sign_in(client, scram) == FAILED
    client.send(b"x AUTHENTICATE SCRAM-SHA-256 =\r\n")
    assert await client.line() == FAILED
    assert (await client.line()).startswith(b"* BYE ")


@pytest.mark.covers("mail-server:F3")
async def test_too_many_failures_are_told_as_such(office: Any) -> None:
    await office.app_password()
    listener = await office.listen(max_login_failures=100)
    client = await office.connect(listener)
    for at in range(11):
        said = await sign_in(client, Scram(office.address, "ap_wrong"))
        assert said.startswith(b"x NO [AUTHENTICATIONFAILED]" if at < 10 else b"x NO [UNAVAILABLE]")


@pytest.mark.covers("RFC 9051 §6.2.2", "RFC 4422 §3.5")
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("line", [b"*", b"!!", b"A" * 9000])
async def test_an_exchange_that_is_broken_off(office: Any, after: int, line: bytes) -> None:
    password = await office.app_password()
    client = await office.connect()
    scram = Scram(office.address, password)
    client.send(b"x AUTHENTICATE SCRAM-SHA-256\r\n")
    await challenge(client)
    if after > 1:
        first = await answer(client, scram.first())
    if after > 2:
        scram.check(await answer(client, scram.final(first)))
    client.send(line + b"\r\n")
    assert (await client.line()).startswith(b"x BAD ")
    assert (await client.ask(b"SELECT INBOX"))[0].startswith(b"BAD ")
    assert (await sign_in(client, Scram(office.address, password))).startswith(b"x OK ")


async def test_a_client_that_goes_away(office: Any, until: Any) -> None:
    password = await office.app_password()
    listener = await office.listen()
    scram = Scram(office.address, password)
    for after in (1, 2, 3):
        client = await office.connect(listener)
        client.send(b"x AUTHENTICATE SCRAM-SHA-256\r\n")
        await challenge(client)
        if after > 1:
            first = await answer(client, scram.first())
        if after > 2:
            await answer(client, scram.final(first))
        await client.close()
        await until(lambda: listener.connection_count == 0)


@pytest.mark.covers("RFC 5802 §5.1")
async def test_what_was_overheard_does_not_sign_in(office: Any) -> None:
    password = await office.app_password()
    scram = Scram(office.address, password)
    client = await office.connect()
    client.send(b"x AUTHENTICATE SCRAM-SHA-256 %b\r\n" % b64(scram.first()))
    final = scram.final(await challenge(client))
    scram.check(await answer(client, final))
    client.send(b"\r\n")
    assert (await client.line()).startswith(b"x OK ")
    thief = await office.connect()
    thief.send(b"x AUTHENTICATE SCRAM-SHA-256 %b\r\n" % b64(scram.first()))
    await challenge(thief)
    thief.send(b64(final) + b"\r\n")
    assert await thief.line() == FAILED


@pytest.mark.covers("mail-server:F5")
async def test_a_session_ends_with_its_application_password(office: Any) -> None:
    standing = Standing(office.db, office.clock)
    office.services = replace(office.services, standing=standing)
    made, password = await office.app_passwords.create(office.person, "phone", HOST)
    client = await office.connect()
    assert (await sign_in(client, Scram(office.address, password))).startswith(b"x OK ")
    await standing.check()
    await client.ok(b"NOOP")
    await office.app_passwords.revoke(office.person, made.public_id, HOST)
    await standing.check()
    assert (await client.line()).startswith(b"* BYE ")
    assert await asyncio.wait_for(client.rest(), 20) == b""


@pytest.mark.covers("mail-server:F5")
async def test_revoked_between_the_proof_and_the_last_word(office: Any) -> None:
    made, password = await office.app_passwords.create(office.person, "phone", HOST)
    client, scram = await office.connect(), Scram(office.address, password)
    client.send(b"x AUTHENTICATE SCRAM-SHA-256 %b\r\n" % b64(scram.first()))
    scram.check(await answer(client, scram.final(await challenge(client))))
    await office.app_passwords.revoke(office.person, made.public_id, HOST)
    client.send(b"\r\n")
    assert await client.line() == FAILED
    assert (await client.ask(b"SELECT INBOX"))[-1].startswith(b"BAD ")


async def test_where_it_is_not_offered(office: Any) -> None:
    office.services = replace(office.services, scram=None)
    client = await office.connect()
    assert mechanisms(await client.ok(b"CAPABILITY")) == [b"AUTH=PLAIN"]
    assert (await client.ask(b"AUTHENTICATE SCRAM-SHA-256"))[0].startswith(b"NO [CANNOT]")


@pytest.mark.covers("RFC 5802 §5", "decisions:C1")
async def test_isync(office: Any, tmp_path: Path) -> None:
    """It takes the strongest mechanism on the list by itself, and does not fall back."""
    try:
        (program,), where = unpacked("isync", "usr/bin/mbsync"), libraries()
    except Missing as error:
        skip_or_fail(error)
    if not CYRUS_HAS_SCRAM:
        skip_or_fail(Missing("Cyrus SASL has no SCRAM here: libsasl2-modules is not installed"))
    await office.fill(3)
    listener = await office.listen()
    inbox = tmp_path / "mail" / "INBOX"
    inbox.parent.mkdir()

    async def sync(password: str, more: str = "") -> int | None:
        rules = tmp_path / "mbsyncrc"
        rules.write_text(
            f'IMAPAccount ours\nHost 127.0.0.1\nPort {listener.port}\nUser {office.address}\nPass "{password}"\n'
            f"SSLType None\n{more}\nIMAPStore far\nAccount ours\n\nMaildirStore near\nPath {tmp_path}/mail/\n"
            f"Inbox {inbox}\n\nChannel all\nFar :far:\nNear :near:\nPatterns INBOX\nCreate Near\nSyncState *\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(str(program), "-c", str(rules), "-a"),
            env={"LD_LIBRARY_PATH": str(where), "HOME": str(tmp_path)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return await asyncio.wait_for(process.wait(), 60)

    assert await sync(PASSWORD) != 0
    assert await sync(await office.app_password()) == 0
    assert len(list(inbox.glob("*/*"))) == 3
    assert await sync(PASSWORD, "AuthMechs PLAIN\n") == 0
    async with office.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM app_passwords WHERE last_used_at IS NOT NULL") == 1
