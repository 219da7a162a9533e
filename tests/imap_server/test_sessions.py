"""Exact transcripts: states, sign-in, literals, limits, farewells (mail-server D1, D3)."""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from postroom.base.settings_tree import PlaintextAuth
from postroom.servers.imap import ImapListener, ImapShared, idle
from tests.imap_server.conftest import mail

PASSWORD = b"correct horse battery"
Until = Callable[[Callable[[], bool]], Awaitable[None]]


def _plain(user: str, password: bytes, authorise: bytes = b"") -> bytes:
    return base64.b64encode(authorise + b"\0" + user.encode() + b"\0" + password)


@pytest.mark.covers("mail-server:D1")
async def test_capabilities_follow_the_state(office: Any) -> None:
    client = await office.connect(await office.listen(tls=True))
    (line,) = await client.ok(b"CAPABILITY")
    always = {b"UIDPLUS", b"MOVE", b"SPECIAL-USE", b"CHILDREN", b"NAMESPACE", b"UNSELECT", b"IDLE", b"LITERAL+", b"ID"}
    assert always | {b"SASL-IR", b"STARTTLS", b"AUTH=PLAIN"} <= set(line.split())
    answer = await client.ask(b'LOGIN %b "%b"' % (office.address.encode(), PASSWORD))
    assert answer[0].startswith(b"OK [CAPABILITY IMAP4rev1 ")
    (line,) = await client.ok(b"CAPABILITY")
    words = set(line.split()[2:])
    assert always <= words
    assert not words & {b"STARTTLS", b"AUTH=PLAIN", b"LOGINDISABLED"}
    assert await client.ok(b"ENABLE X-OTHER") == [b"* ENABLED"]
    assert await client.ok(b"NAMESPACE") == [b'* NAMESPACE (("" "/")) (("Other Users/" "/")) NIL']


@pytest.mark.covers("mail-server:D1")
async def test_no_password_without_tls_where_it_is_forbidden(office: Any) -> None:
    client = await office.connect(await office.listen(tls=True, plaintext_auth=PlaintextAuth.NEVER))
    (line,) = await client.ok(b"CAPABILITY")
    assert b"LOGINDISABLED" in line
    assert b"AUTH=PLAIN" not in line
    assert (await client.ask(b"LOGIN a b"))[0].startswith(b"NO [PRIVACYREQUIRED]")
    assert (await client.ask(b"AUTHENTICATE PLAIN"))[0].startswith(b"NO [PRIVACYREQUIRED]")


@pytest.mark.covers("mail-server:D1")
async def test_authenticate_in_both_forms(office: Any) -> None:
    client = await office.connect()
    initial = _plain(office.address, PASSWORD)
    client.send(b"x AUTHENTICATE PLAIN\r\n")
    assert await client.line() == b"+ "
    client.send(initial + b"\r\n")
    assert (await client.line()).startswith(b"x OK [CAPABILITY ")
    second = await office.connect()
    assert (await second.ask(b"AUTHENTICATE PLAIN " + initial))[0].startswith(b"OK ")
    third = await office.connect()
    third.send(b"x AUTHENTICATE PLAIN\r\n*\r\ny NOOP\r\n")
    assert [await third.line() for _ in range(3)] == [
        b"+ ",
        b"x BAD Authentication cancelled",
        b"y OK NOOP completed",
    ]
    assert (await third.ask(b"AUTHENTICATE PLAIN !!!"))[0].startswith(b"BAD ")
    assert (await third.ask(b"AUTHENTICATE LOGIN"))[0].startswith(b"NO ")
    other = _plain(office.address, PASSWORD, b"other@example.com")
    assert (await third.ask(b"AUTHENTICATE PLAIN " + other))[0].startswith(b"NO [AUTHENTICATIONFAILED]")
    own = _plain(office.address, PASSWORD, office.address.encode())
    assert (await third.ask(b"AUTHENTICATE PLAIN " + own))[0].startswith(b"OK ")


@pytest.mark.covers("mail-server:D1", "mail-server:F3")
async def test_failures_look_alike_and_are_counted(office: Any) -> None:
    client = await office.connect(await office.listen(max_login_failures=3))
    answers = [
        (await client.ask(b"LOGIN %b nonsense" % user))[0] for user in (office.address.encode(), b"nobody@example.com")
    ]
    assert answers[0] == answers[1] == b"NO [AUTHENTICATIONFAILED] Invalid credentials"
    client.send(b"x LOGIN a b\r\n")
    assert (await client.rest()).split(b"\r\n")[:2] == [
        b"x NO [AUTHENTICATIONFAILED] Invalid credentials",
        b"* BYE Too many failed logins",
    ]


@pytest.mark.covers("mail-server:D1")
async def test_commands_in_the_wrong_state(office: Any) -> None:
    client = await office.connect()
    assert await client.ask(b"SELECT INBOX") == [b"BAD Command not valid in this state"]
    await client.ok(b'LOGIN %b "%b"' % (office.address.encode(), PASSWORD))
    for command in (b"LOGIN a b", b"FETCH 1 FLAGS", b"CLOSE", b"EXPUNGE", b"STARTTLS"):
        assert await client.ask(command) == [b"BAD Command not valid in this state"]
    await client.ok(b"SELECT INBOX")
    assert (await client.ask(b"SELECT Missing"))[-1].startswith(b"NO [NONEXISTENT]")
    assert await client.ask(b"FETCH 1 FLAGS") == [b"BAD Command not valid in this state"]


@pytest.mark.covers("mail-server:D1")
async def test_pipelined_commands_are_answered_in_order(office: Any) -> None:
    await office.deliver(b"Subject: x\r\n\r\nx\r\n")
    client = await office.connect()
    client.send(
        b"1 LOGIN %b {%d+}\r\n%b\r\n2 SELECT {5+}\r\nINBOX\r\n3 FETCH 1 UID\r\n4 NOOP\r\n5 LOGOUT\r\n6 NOOP\r\n"
        % (office.address.encode(), len(PASSWORD), PASSWORD)
    )
    lines = (await client.rest()).split(b"\r\n")
    assert [line[:4] for line in lines if line[:1].isdigit()] == [b"1 OK", b"2 OK", b"3 OK", b"4 OK", b"5 OK"]
    assert b"* 1 FETCH (UID 1)" in lines
    assert lines[-3:] == [b"* BYE Logging out", b"5 OK LOGOUT completed", b""]


@pytest.mark.covers("mail-server:D1")
async def test_literal_edge_cases(office: Any) -> None:
    client = await office.client(None)
    # A literal that waits, of no octets, in the middle of a command.
    client.send(b"x STATUS {5}\r\n")
    assert (await client.line()).startswith(b"+ ")
    client.send(b"INBOX (MESSAGES)\r\n")
    assert await client.until(b"x") == [b"* STATUS INBOX (MESSAGES 0)", b"x OK STATUS completed"]
    assert (await client.ask(b'LIST {0+}\r\n "*"'))[-1] == b"OK LIST completed"
    # A bomb is refused and the session goes on; what does not wait is skipped.
    assert (await client.ask(b"SELECT {99999999999}"))[0].startswith(b"BAD ")
    assert (await client.ask(b"SELECT {70000+}\r\n" + b"x" * 70_000))[0].startswith(b"BAD ")
    assert (await client.ask(b"APPEND INBOX {999999999}"))[0].startswith(b"NO [TOOBIG]")
    client.send(b"y SELECT {18446744073709551616+}\r\n")
    assert b"* BYE" in await client.rest()


@pytest.mark.covers("mail-server:D1")
async def test_long_lines_and_garbage(office: Any) -> None:
    client = await office.client(None)
    assert (await client.ask(b"NOOP " + b"x" * 10_000))[0].startswith(b"BAD ")
    names = b" ".join(b"X-%d" % n for n in range(900))
    await client.ok(b"SELECT INBOX")
    assert len(names) > 5000
    await client.ok(b"UID FETCH 1 (BODY.PEEK[HEADER.FIELDS (%b)])" % names)
    client.send(b"x " + b"y" * 100_000 + b"\r\n")
    assert (await client.line()).startswith(b"x BAD ")
    client.send(b"\r\n\x00\xff\r\n")
    assert (await client.line()).startswith(b"* BAD ")
    assert (await client.line()).startswith(b"* BAD ")
    assert (await client.ask(b"NOOP"))[-1] == b"OK NOOP completed"


@pytest.mark.covers("decisions:D21")
async def test_nonsense_ends_the_session(office: Any) -> None:
    client = await office.connect(await office.listen(max_bad_commands=5))
    client.send(b"".join(b"%d NONSENSE\r\n" % n for n in range(20)))
    lines = (await client.rest()).split(b"\r\n")
    assert lines == [*(b"%d BAD Unknown command" % n for n in range(5)), b"* BYE Too many bad commands", b""]


@pytest.mark.covers("mail-server:D1", "mail-server:D9")
async def test_idle_clients_are_sent_away(office: Any) -> None:
    listener = await office.listen(idle_timeout=0.1, max_idle=0.1)
    client = await office.client(b"INBOX", listener)
    assert await client.rest() == b"* BYE Autologout; idle for too long\r\n"
    client = await office.client(b"INBOX", listener)
    client.send(b"x IDLE\r\n")
    assert await client.rest() == b"+ idling\r\n* BYE Idle timeout\r\n"
    stranger = await office.connect(await office.listen(login_timeout=0.2))
    stranger.send(b"x NOOP\r\n")
    assert await stranger.rest() == b"x OK NOOP completed\r\n* BYE Autologout; no login\r\n"


@pytest.mark.covers("decisions:D21")
async def test_connection_limit(office: Any, until: Until) -> None:
    listener = await office.listen(max_connections=1)
    first = await office.connect(listener)
    _, writer = second = await asyncio.open_connection("127.0.0.1", listener.port)
    assert await second[0].read() == b"* BYE [UNAVAILABLE] Too many connections\r\n"
    writer.close()
    await first.close()
    await until(lambda: listener.connection_count == 0)
    await office.connect(listener)


@pytest.mark.covers("mail-server:D1")
async def test_drain_says_goodbye(office: Any) -> None:
    listener = await office.listen()
    resting, idling = await office.client(b"INBOX", listener), await office.client(b"INBOX", listener)
    idling.send(b"x IDLE\r\n")
    assert await idling.line() == b"+ idling"
    await listener.drain(5)
    assert await resting.rest() == b"* BYE Server is shutting down\r\n"
    assert await idling.rest() == b"* BYE Server is shutting down\r\n"
    assert listener.connection_count == 0


@pytest.mark.covers("mail-server:D1")
async def test_a_command_that_ends_after_the_goodbye(
    office: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nobody to answer, and its session ends as any other."""
    listener = await office.listen(linger=5)
    client = await office.client(b"INBOX", listener)
    (connection,) = listener._context.connections
    session, list_folders, go_on = connection._session, office.boxes.list_folders, asyncio.Event()

    async def slow(*given: Any) -> Any:
        await go_on.wait()
        return await list_folders(*given)

    monkeypatch.setattr(office.boxes, "list_folders", slow)
    client.send(b'x LIST "" *\r\n')
    await until(lambda: connection.is_busy)
    draining = asyncio.create_task(listener.drain(0.01))
    assert await client.line() == b"* BYE Server is shutting down"
    go_on.set()
    await until(lambda: connection._task is None)
    assert session.selected is None
    assert await client.rest() == b""
    await client.close()
    await draining


@pytest.mark.covers("mail-server:D1")
async def test_half_closed_connection_is_still_answered(office: Any) -> None:
    client = await office.connect()
    client.send(b'1 LOGIN %b "%b"\r\n2 LIST "" *\r\n' % (office.address.encode(), PASSWORD))
    client.writer.write_eof()
    assert b"2 OK LIST completed\r\n" in await client.rest()


@pytest.mark.covers("edge:J1")
async def test_database_away(office: Any) -> None:
    """Commands are refused for the time being; the session lives."""
    client = await office.client()
    pool, office.db._pool = office.db._pool, None
    try:

        class Away:
            async def acquire(self, timeout: float) -> None:
                raise ConnectionRefusedError

        office.db._pool = Away()
        assert (await client.ask(b'LIST "" *'))[-1].startswith(b"NO [UNAVAILABLE]")
        assert (await client.ask(b"NOOP"))[-1] == b"OK NOOP completed"
        assert (await client.ask(b"STATUS INBOX (MESSAGES)"))[-1].startswith(b"NO [UNAVAILABLE]")
    finally:
        office.db._pool = pool
    await client.ok(b'LIST "" *')


@pytest.mark.covers("decisions:B19", "decisions:D21")
async def test_the_listeners_of_a_process_share_their_limits(office: Any) -> None:
    config = replace(office.config, max_connections=2)
    shared = ImapShared.make(office.services, config)
    ports = []
    for implicit in (False, True):
        listener = ImapListener(office.services, config, office.tls, implicit_tls=implicit, shared=shared)
        await listener.start("127.0.0.1", 0)
        office.listeners.append(listener)
        ports.append(listener.port)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    kind = type(await office.connect(office.listeners[0]))
    client = await kind.connect(ports[1], ssl=context)
    office.clients.append(client)
    assert (await client.line()).startswith(b"* OK ")
    for port, options in ((ports[0], {}), (ports[1], {"ssl": context})):
        client = await kind.connect(port, **options)
        office.clients.append(client)
        assert (await client.line()).startswith(b"* BYE [UNAVAILABLE] ")
    assert [listener.connection_count for listener in office.listeners] == [2, 2]


@pytest.mark.covers("RFC 9051 §6.2.1", "mail-server:D1")
async def test_what_comes_around_starttls(office: Any, client_tls: ssl.SSLContext) -> None:
    client = await office.connect(await office.listen(tls=True))
    # In clear behind the command it was put there by somebody else.
    client.send(b"x STARTTLS\r\ny NOOP\r\n")
    assert await client.line() == b"x OK Begin TLS negotiation now"
    await client.writer.start_tls(client_tls, server_hostname="127.0.0.1")
    # Under TLS it is the client's, however close behind the handshake.
    client.send(b"z NOOP\r\n")
    assert await client.line() == b"z OK NOOP completed"


@pytest.mark.covers("mail-server:D9", "RFC 2177")
async def test_idle_looks_again_at_what_could_not_be_read(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "RETRY", 0.05)
    client = await office.client()
    client.send(b"x IDLE\r\n")
    assert await client.line() == b"+ idling"
    reads = office.boxes.reads
    before, failures = reads.changes_since, 3

    async def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionError
        return await before(*arguments, **named)

    monkeypatch.setattr(reads, "changes_since", failing)
    # There is one change, and nothing after it that would wake anybody.
    await office.deliver(mail())
    assert await client.line() == b"* 1 EXISTS"
    assert failures < 0
    client.send(b"DONE\r\n")
    assert (await client.until(b"x"))[-1] == b"x OK IDLE completed"
