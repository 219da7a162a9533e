"""The standard library's client against the reader, the parser and the serialisers, without a socket."""

from __future__ import annotations

import imaplib
from typing import Any

import pytest

from postroom.imap import commands as c
from postroom.imap import render
from postroom.imap.errors import CommandError, Status
from postroom.imap.fetch import FetchAtt, FetchItem, Section
from postroom.imap.parser import parse_command, parse_sasl_line
from postroom.imap.search import And, Contains, TextField
from postroom.imap.sequence import SequenceSet
from postroom.imap.state import SessionState, require
from postroom.imap.wire import CommandReader, Continuation, Line, RawCommand, Rejected


class Scripted:
    """Answers every valid command with OK and remembers it."""

    def __init__(self) -> None:
        self.reader = CommandReader()
        self.state = SessionState.NOT_AUTHENTICATED
        self.seen: list[c.Command | bytes] = []
        self.out = bytearray(render.untagged(Status.OK, "ready", render.code_capability(["IMAP4rev1"])))
        self.waiting = b""

    def receive(self, data: bytes) -> None:
        for event in self.reader.feed(data):
            if isinstance(event, Continuation):
                self.out += render.continuation()
            elif isinstance(event, Rejected):
                self.out += render.rejection(event)
            elif isinstance(event, Line):
                self.seen.append(parse_sasl_line(event.data))
                self.sign_in(self.waiting)
            else:
                self.answer(event)

    def sign_in(self, tag: bytes) -> None:
        self.state = SessionState.AUTHENTICATED
        self.reader.authenticated = True
        self.out += render.tagged(tag, Status.OK, "welcome")

    def answer(self, raw: RawCommand) -> None:
        try:
            command = parse_command(raw)
            require(self.state, command)
        except CommandError as error:
            self.out += render.failure(raw.tag, error)
            return
        self.seen.append(command)
        match command:
            case c.Authenticate():
                self.waiting = raw.tag
                self.reader.expect_line()
                self.out += render.continuation("")
                return
            case c.Login():
                self.sign_in(raw.tag)
                return
            case c.Capability():
                self.out += render.capability_line(["IMAP4rev1"])
            case c.Select():
                self.state = SessionState.SELECTED
                self.out += render.exists(1) + render.untagged(Status.OK, "x", "UIDVALIDITY 7")
            case c.Search():
                self.out += b"".join(render.found_line(b"SEARCH", [b"3 5"]))
            case c.Fetch():
                self.out += b"".join(render.fetch_buffers(1, [b"UID 3", (b"BODY[]", b"Subject: x\r\n\r\n")]))
            case c.Logout():
                self.out += render.untagged(Status.BYE, "bye")
        self.out += render.tagged(raw.tag, Status.OK, "done")


class Client(imaplib.IMAP4):
    """imaplib with its socket replaced by the scripted end."""

    def __init__(self) -> None:
        self.end = Scripted()
        super().__init__("imap.invalid")

    def open(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing to connect to."""

    def read(self, size: int) -> bytes:
        found = bytes(self.end.out[:size])
        del self.end.out[:size]
        return found

    def readline(self) -> bytes:
        return self.read(self.end.out.find(b"\n") + 1)

    def send(self, data: Any) -> None:
        self.end.receive(bytes(data))

    def shutdown(self) -> None:
        """Nothing to close."""


@pytest.mark.covers("mail-server:D1", "mail-server:D6", "mail-server:D7", "mail-server:D8")
def test_a_session() -> None:
    client = Client()
    assert client.login("joe@example.com", 'p"w\\')[0] == "OK"
    assert client.select('"Sent Mail"') == ("OK", [b"1"])
    assert client.uid("SEARCH", "ALL") == ("OK", [b"3 5"])
    client.literal = "日本".encode()  # type: ignore[assignment] # typeshed says None only
    assert client.search("UTF-8", "TEXT") == ("OK", [b"3 5"])
    assert client.uid("FETCH", "3", "(BODY.PEEK[])") == (
        "OK",
        [(b"1 (UID 3 BODY[] {14}", b"Subject: x\r\n\r\n"), b")"],
    )
    assert client.store("1", "+FLAGS", "\\Seen")[0] == "OK"
    assert client.append("INBOX", "(\\Seen)", '"17-Jul-1996 02:44:25 -0700"', b"a\r\nb")[0] == "OK"
    with pytest.raises(imaplib.IMAP4.error, match="Unknown command"):
        client.xatom("FOO")
    assert client.noop()[0] == "OK"
    assert client.logout()[0] == "BYE"
    seen = client.end.seen
    one = SequenceSet.parse(b"1")
    assert seen[0] == c.Capability()
    assert seen[1] == c.Login("joe@example.com", 'p"w\\')
    assert seen[2] == c.Select("Sent Mail")
    assert seen[3] == c.Search(And(), uid=True)
    assert seen[4] == c.Search(Contains(TextField.TEXT, "日本"), "UTF-8")
    assert seen[5] == c.Fetch(SequenceSet.parse(b"3"), (FetchItem(FetchAtt.SECTION, Section()),), uid=True)
    assert seen[6] == c.Store(one, c.StoreMode.ADD, ("$seen",))
    appended = seen[7]
    assert isinstance(appended, c.Append)
    assert appended.messages[0].data == b"a\r\nb"
    assert seen[8:] == [c.Noop(), c.Logout()]


@pytest.mark.covers("mail-server:D1")
def test_sasl_plain() -> None:
    client = Client()
    assert client.authenticate("PLAIN", lambda _challenge: b"\0joe\0pw")[0] == "OK"
    assert client.end.seen[1:] == [c.Authenticate("PLAIN"), b"\0joe\0pw"]
    client.end.state = SessionState.NOT_AUTHENTICATED
    with pytest.raises(imaplib.IMAP4.error, match="not valid in this state"):
        client.list()
