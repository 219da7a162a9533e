"""Programs that others wrote talk to the listener: imaplib, imapclient, aioimaplib."""

import asyncio
import email
import email.policy
import imaplib
import ssl
from typing import Any

import aioimaplib
import imapclient
import pytest
import uvloop

PASSWORD = "correct horse battery"


@pytest.fixture(
    scope="module", params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"]
)
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return request.param()


def _message(subject: str) -> bytes:
    return (
        f"From: ann@example.com\r\nTo: carol@agents.example\r\nSubject: {subject}\r\n\r\nBody of {subject}\r\n".encode()
    )


@pytest.mark.covers(
    "mail-server:D1",
    "mail-server:D2",
    "mail-server:D3",
    "mail-server:D4",
    "mail-server:D5",
    "mail-server:D6",
    "mail-server:D7",
    "mail-server:D8",
    "decisions:A5",
)
async def test_imaplib(office: Any) -> None:
    listener = await office.listen()

    def session() -> None:
        with imaplib.IMAP4("127.0.0.1", listener.port, timeout=20) as box:
            assert "LIST-EXTENDED" not in box.capabilities
            with pytest.raises(imaplib.IMAP4.error, match="AUTHENTICATIONFAILED"):
                box.login(office.address, "wrong")
            box.login(office.address, PASSWORD)
            assert box.append("INBOX", r"(\Flagged work)", None, _message("one"))[0] == "OK"
            assert box.append("INBOX", "", imaplib.Time2Internaldate(1_700_000_000), _message("two"))[0] == "OK"
            assert box.select("INBOX") == ("OK", [b"2"])
            assert box.response("RECENT") == ("RECENT", [b"2"])
            assert box.search(None, "FLAGGED")[1] == [b"1"]
            assert box.search(None, "SUBJECT", "TWO")[1] == [b"2"]
            assert box.search(None, "BODY", '"of one"')[1] == [b"1"]
            fetched: Any = box.fetch("2", "(FLAGS UID INTERNALDATE RFC822.SIZE BODY.PEEK[])")[1]
            first = fetched[0][0]
            assert b"UID 2" in first
            assert b'"14-Nov-2023 22:13:20 +0000"' in first
            assert box.store("1:2", "+FLAGS", r"(\Deleted)")[0] == "OK"
            assert box.create("Work/2030")[0] == "OK"
            assert box.copy("1", "Work/2030")[0] == "OK"
            assert box.expunge()[1] == [b"1", b"1"]
            assert box.select("Work/2030")[1] == [b"1"]
            # Typeshed says Any or None.
            # Typeshed says Any or None.
            assert box.fetch("1", "(RFC822)")[1][0][1] == _message("one")  # type: ignore[index]
            assert b"\\Seen" in box.fetch("1", "(FLAGS)")[1][0]  # type: ignore[operator] # the same
            assert box.status("Work/2030", "(MESSAGES UNSEEN UIDNEXT)")[1] == [
                b"Work/2030 (MESSAGES 1 UNSEEN 0 UIDNEXT 2)"
            ]
            assert box.rename("Work", "Projects")[0] == "OK"
            assert b'(\\HasNoChildren) "/" Projects/2030' in box.list()[1]
            assert box.uid("MOVE", "1", "Archive")[0] == "OK"
            assert box.close()[0] == "OK"
            assert box.delete("Projects/2030")[0] == "OK"
            assert box.select("Missing")[0] == "NO"

    await asyncio.to_thread(session)


@pytest.mark.covers("mail-server:D1", "mail-server:D2", "mail-server:D6", "mail-server:D9")
async def test_imapclient(office: Any) -> None:
    listener = await office.listen()
    raw = _message("hello")

    def session() -> None:
        with imapclient.IMAPClient("127.0.0.1", listener.port, ssl=False, timeout=20) as box:
            box.login(office.address, PASSWORD)
            assert box.has_capability("MOVE")
            assert box.namespace().personal == (("", "/"),)
            assert b"Postroom" in box.id_({"name": "test"})[0]
            folders = {name: flags for flags, _, name in box.list_folders()}
            assert set(folders) == {"INBOX", "Sent", "Drafts", "Trash", "Junk", "Archive"}
            assert b"\\Sent" in folders["Sent"]
            assert box.find_special_folder(b"\\Trash") == "Trash"
            box.create_folder("Entwürfe & mehr")
            assert "Entwürfe & mehr" in {name for _, _, name in box.list_folders()}
            box.append("INBOX", raw, flags=[imapclient.SEEN])
            info = box.select_folder("INBOX")
            assert (info[b"EXISTS"], info[b"READ-WRITE"]) == (1, True)
            (message,) = box.fetch([1], ["FLAGS", "ENVELOPE", "BODYSTRUCTURE", "BODY[]"]).values()
            assert message[b"BODY[]"] == raw
            assert message[b"ENVELOPE"].subject == b"hello"
            assert message[b"BODYSTRUCTURE"][:2] == (b"text", b"plain")
            assert set(box.add_flags([1], ["$Label1"])[1]) == {b"\\Recent", b"\\Seen", b"$label1"}
            box.idle()
            assert box.idle_check(timeout=0) == []
            box.idle_done()
            box.move([1], "Entwürfe & mehr")
            assert box.search() == []
            assert box.folder_status("Entwürfe & mehr", ["MESSAGES"]) == {b"MESSAGES": 1}

    await asyncio.to_thread(session)


@pytest.mark.covers("mail-server:D1", "mail-server:D9")
async def test_aioimaplib_is_told_while_it_idles(office: Any) -> None:
    listener = await office.listen()
    box = aioimaplib.IMAP4("127.0.0.1", listener.port, timeout=20)
    await box.wait_hello_from_server()
    assert (await box.login(office.address, PASSWORD)).result == "OK"
    assert (await box.select("INBOX")).result == "OK"
    idle = await box.idle_start(timeout=20)
    await office.deliver(_message("pushed"))
    pushed = await asyncio.wait_for(box.wait_server_push(), 20)
    assert pushed[0] == b"1 EXISTS"
    box.idle_done()
    await asyncio.wait_for(idle, 20)
    answer = await box.fetch("1", "(RFC822.HEADER)")
    assert b"pushed" in email.message_from_bytes(answer.lines[1], policy=email.policy.default)["subject"].encode()
    await box.logout()


@pytest.mark.covers("mail-server:D1", "mail-server:G1")
async def test_under_tls(office: Any, client_tls: ssl.SSLContext) -> None:
    listener = await office.listen(tls=True)
    implicit = await office.listen(implicit=True)
    raw = _message("x") + b"y" * 70 + b"\r\n" * 40_000

    def session() -> None:
        with imaplib.IMAP4("127.0.0.1", listener.port, timeout=20) as box:
            assert "STARTTLS" in box.capabilities
            box.starttls(client_tls)
            assert "STARTTLS" not in box.capabilities
            box.login(office.address, PASSWORD)
            assert box.append("INBOX", "", "", raw)[0] == "OK"
        with imaplib.IMAP4_SSL("127.0.0.1", implicit.port, ssl_context=client_tls, timeout=20) as box:
            box.authenticate("PLAIN", lambda _: f"\0{office.address}\0{PASSWORD}".encode())
            box.select("INBOX", readonly=True)
            assert box.fetch("1", "(BODY[])")[1][0][1] == raw  # type: ignore[index] # typeshed says Any or None

    await asyncio.to_thread(session)
