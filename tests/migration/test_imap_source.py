"""Imports from IMAP servers: our own, Dovecot where it is installed, and one that answers nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.migration import imap_replies as replies
from postroom.migration import imap_source
from postroom.migration.imap_source import ImapAccount, ImapSource, Tls
from postroom.migration.models import Letter, SourceError, SourceErrorKind, Trouble, Uids
from tests.imap_server.conftest import PASSWORD, Office, certificate, client_tls, office, server_tls
from tests.migration.moving import House, letter, make_maildir

__all__ = ["certificate", "client_tls", "office", "server_tls"]

LIMIT = 1 << 20


def source(port: int, user: str, password: str = PASSWORD, limit: int = LIMIT, **changes: Any) -> ImapSource:
    account = ImapAccount("127.0.0.1", port, changes.pop("tls", Tls.NONE), user, password, changes.pop("context", None))
    return ImapSource(account, max_bytes=limit, timeout=20)


@pytest.mark.covers("decisions:C7", "RFC 3501 §6.4.5", "RFC 6154")
async def test_from_our_own_server(home: House, office: Office) -> None:
    listener = await office.listen()
    client = await office.client(None)
    await client.ok(b"CREATE Work/2026")
    await client.ok(b"CREATE Entw&APw-rfe")
    await client.ok(b'UNSUBSCRIBE "Work/2026"')
    for n in range(1, 31):
        extra = b'(\\Seen $Label1) "01-May-2019 12:00:%02d +0200" ' % n
        assert (await client.append(letter(n, "x" * n), b"Work/2026", extra)).startswith(b"OK")
    await client.append(letter(50), b"Sent", b"(\\Answered) ")
    await client.append(letter(51).replace(b"\r\n", b"\n"), b"INBOX", b"")
    await client.ok(b"SELECT Work/2026")
    await client.ok(b"STORE 7 +FLAGS (\\Deleted)")
    await client.ok(b"EXPUNGE")
    home.clock.advance(1000)
    box = await home.box()
    report = await home.bring(box, source(listener.port, office.address))
    seen = await home.seen(box.ref)
    assert [one[0] for one in seen["Work/2026"]] == [letter(n, "x" * n) for n in range(1, 31) if n != 7]
    assert {one[1] for one in seen["Work/2026"]} == {("$label1", "$seen")}
    assert seen["Work/2026"][0][2] == datetime(2019, 5, 1, 10, 0, 1, tzinfo=UTC)
    assert [one[:2] for one in seen["Sent"]] == [(letter(50), ("$answered",))]
    assert seen["INBOX"][0][0] == letter(51).replace(b"\r\n", b"\n"), "as it was stored there, to the octet"
    assert seen["Entwürfe"] == []
    assert {one.uids for one in report.folders} == {Uids.KEPT}
    assert await home.uids(box.ref, "Work/2026") == await home.uids(office.ref, "Work/2026")
    assert not (await home.boxes.folder(box.ref, "Work/2026")).subscribed
    again = await home.bring(box, source(listener.port, office.address))
    assert (sum(one.imported for one in again.folders), sum(one.earlier for one in again.folders)) == (0, 31)
    await client.append(letter(60), b"INBOX", b"")
    later = await home.bring(box, source(listener.port, office.address))
    assert sum(one.imported for one in later.folders) == 1
    assert {one.uids for one in later.folders} == {Uids.KEPT}


@pytest.mark.covers("decisions:C7")
async def test_large_messages_are_not_even_fetched(home: House, office: Office) -> None:
    listener = await office.listen()
    client = await office.client(None)
    await client.append(letter(1, "x" * 9000))
    await client.append(letter(2))
    box = await home.box()
    report = await home.bring(box, source(listener.port, office.address, limit=4096))
    assert report.troubles == {Trouble.TOO_LARGE: 1}
    assert [one[0] for one in (await home.seen(box.ref))["INBOX"]] == [letter(2)]


async def test_a_wrong_password(office: Office) -> None:
    listener = await office.listen()
    with pytest.raises(SourceError) as raised:
        await asyncio.to_thread(source(listener.port, office.address, "wrong").folders)
    assert raised.value.kind is SourceErrorKind.ACCESS
    assert "wrong" not in str(raised.value)


@pytest.mark.covers("decisions:C7")
@pytest.mark.parametrize("tls", [Tls.IMPLICIT, Tls.STARTTLS])
async def test_tls_is_verified(
    office: Office, client_tls: ssl.SSLContext, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imap_source, "PAUSE", 0)
    listener = await office.listen(tls=True, implicit=tls is Tls.IMPLICIT)
    trusting = source(listener.port, office.address, tls=tls, context=client_tls)
    folders = await asyncio.to_thread(trusting.folders)
    assert "INBOX" in {one.path[0] for one in folders}
    trusting.close()
    with pytest.raises(SourceError, match="certificate"):
        await asyncio.to_thread(source(listener.port, office.address, tls=tls).folders)


async def test_the_connection_breaks(home: House, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again, and goes on where it was."""
    monkeypatch.setattr(imap_source, "PAUSE", 0)
    listener = await office.listen()
    client = await office.client(None)
    for n in range(1, 60):
        await client.append(letter(n))
    opened = source(listener.port, office.address)
    fetched = opened._fetched
    breaks: list[int] = []

    def breaking(*args: Any) -> Any:
        if len(breaks) < 2 and opened._conn is not None:
            breaks.append(1)
            opened._conn.sock.shutdown(socket.SHUT_RDWR)
        return fetched(*args)

    monkeypatch.setattr(opened, "_fetched", breaking)
    box = await home.box()
    await home.bring(box, opened)
    assert len(breaks) == 2
    assert len((await home.seen(box.ref))["INBOX"]) == 59


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap_source, "PAUSE", 0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(SourceError) as raised:
        await asyncio.to_thread(source(port, "a").folders)
    assert raised.value.kind is SourceErrorKind.REMOTE


@pytest.mark.parametrize(
    "answer",
    [
        b'* LIST (\\HasNoChildren) "/" {99999999}\r\n',
        b"* LIST ((((\r\n",
        b'* LIST () "/" "a\r\n',
        b"* BYE no\r\n",
        b'* LIST () "/" INBOX\r\n* STATUS INBOX (UIDVALIDITY x)\r\n',
        b"x" * 2_000_000,
    ],
)
async def test_a_server_that_makes_no_sense(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap_source, "PAUSE", 0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK hello\r\n")
        while line := await reader.readline():
            tag, command = line.split()[:2]
            if command == b"CAPABILITY":
                writer.write(b"* CAPABILITY IMAP4rev1\r\n")
            elif command in (b"LIST", b"STATUS"):
                writer.write(answer)
            writer.write(tag + b" OK done\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        with pytest.raises(SourceError) as raised:
            await asyncio.to_thread(source(server.sockets[0].getsockname()[1], "a", limit=4096).folders)
        assert raised.value.kind is SourceErrorKind.REMOTE
    finally:
        server.close()


async def test_an_answer_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap_source, "PAUSE", 0)
    monkeypatch.setattr(imap_source, "ANSWER_BYTES", 100_000)
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"* OK hello\r\n")
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                tag, command = line.split()[:2]
                while command == b"LIST" and sent < 100_000_000:
                    writer.write(b'* LIST () "/" {9999}\r\n' + b"x" * 9999 + b"\r\n")
                    sent += 9999
                    await writer.drain()
                writer.write(tag + b" OK done\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        with pytest.raises(SourceError):
            await asyncio.to_thread(source(server.sockets[0].getsockname()[1], "a", limit=4096).folders)
        assert sent < 50_000_000
    finally:
        server.close()


@given(
    st.lists(st.sampled_from([b"(", b")", b'"', b"\\", b"NIL", b" ", b"{3}", b"a", b"BODY[]", b"\xff"])).map(b"".join)
)
def test_replies_are_parsed_or_refused(text: bytes) -> None:
    try:
        replies.parse(text, [b"lit"])
    except replies.BadReply:
        return


def test_a_fetch_response() -> None:
    pieces = [
        (b"4 (BODY[] {3}", b"a)b"),
        b' UID 7 FLAGS (\\Seen x) INTERNALDATE "01-May-2019 12:00:00 +0200")',
        b"5 (UID 9)",
    ]
    first, second = replies.responses(pieces)
    values = replies.pairs(first[-1])
    assert values[b"BODY[]"] == b"a)b"
    assert replies.number(values[b"UID"]) == 7
    assert replies.words(values[b"FLAGS"]) == ("\\Seen", "x")
    assert replies.moment(values[b"INTERNALDATE"]) == datetime(2019, 5, 1, 10, tzinfo=UTC)
    assert replies.pairs(second[-1]) == {b"UID": b"9"}


# -- Dovecot -----------------------------------------------------------------------------------------------------------

needs_dovecot = pytest.mark.skipif(
    shutil.which("dovecot") is None or os.geteuid() != 0, reason="Dovecot is not installed, or not ours to start"
)

_CONF = """\
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/dovecot.log
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
first_valid_uid = 1
first_valid_gid = 1
mail_location = maildir:{home}/Maildir
passdb {{
  driver = static
  args = password=secret
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={home} allow_all_users=yes
}}
namespace inbox {{
  inbox = yes
  separator = .
  prefix = INBOX.
  mailbox Papierkorb {{
    special_use = \\Trash
  }}
}}
service imap-login {{
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
"""


@contextmanager
def dovecot(maildir: Path) -> Iterator[int]:
    """A Dovecot of our own on a copy of the Maildir, as nobody; its port."""
    home = Path(tempfile.mkdtemp(prefix="postroom-dovecot-"))
    home.chmod(0o755)
    shutil.copytree(maildir, home / "Maildir")
    for path in (home, *home.rglob("*")):
        shutil.chown(path, "nobody", "nogroup")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (home / "dovecot.conf").write_text(_CONF.format(home=home, port=port))
    server = subprocess.Popen(["dovecot", "-F", "-c", str(home / "dovecot.conf")])
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and server.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(20)
        shutil.rmtree(home)


@needs_dovecot
@pytest.mark.covers("decisions:C7", "RFC 2342", "RFC 6154")
async def test_from_dovecot(home: House, tmp_path: Path) -> None:
    root = make_maildir(
        tmp_path / "m",
        {f"cur/{n}.x,S={len(letter(n))}:2,S": letter(n) for n in range(1, 8)},
        dovecot_uidlist="3 V1400000000 N50\n" + "".join(f"{n * 5} :{n}.x,S={len(letter(n))}\n" for n in range(1, 8)),
        subscriptions="V\t2\n\nINBOX\tWork\n",
    )
    make_maildir(root / ".Papierkorb", {"cur/1.y:2,T": letter(20).replace(b"\r\n", b"\n")})
    make_maildir(root / ".Work.Entw&APw-rfe", {"cur/1.z:2,DF": letter(21)})
    make_maildir(root / '.A "b"', {"new/1.z": letter(22)})
    box = await home.box()
    with dovecot(root) as port:
        report = await home.bring(box, source(port, "somebody", "secret"))
        again = await home.bring(box, source(port, "somebody", "secret"))
    seen = await home.seen(box.ref)
    assert {name: [one[:2] for one in messages] for name, messages in seen.items() if messages} == {
        "INBOX": [(letter(n), ("$seen",)) for n in range(1, 8)],
        "Trash": [(letter(20), ("$deleted",))],
        "Work/Entwürfe": [(letter(21), ("$draft", "$flagged"))],
        'A "b"': [(letter(22), ())],
    }
    assert (await home.uids(box.ref, "INBOX"))[::2] == (1_400_000_000, [5, 10, 15, 20, 25, 30, 35])
    assert {one.source: one.uids for one in report.folders}["INBOX"] is Uids.KEPT
    assert (sum(one.imported for one in again.folders), sum(one.earlier for one in again.folders)) == (0, 10)


def test_a_letter_shows_no_content() -> None:
    from postroom.migration.models import Item

    assert "secret" not in repr(Letter(Item(b"1"), b"secret"))
    assert "secret" not in repr(ImapAccount("h", 1, Tls.NONE, "u", "secret"))
