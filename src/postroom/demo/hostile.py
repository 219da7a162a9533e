"""Steps of the story with bad input: each gets its documented answer, and the server goes on (edge cases; A9)."""

from __future__ import annotations

import smtplib
from collections.abc import Callable
from typing import Final

from postroom.demo.clients import TIMEOUT, Rest, Wire, deliver, imap
from postroom.demo.place import HOST
from postroom.demo.stage import SENDER, Stage, expect

OVERSIZE: Final = 1 << 40
BOMB: Final = 4_000_000_000
LONG: Final = 10_000
LARGE: Final = 25_000_000
"""Octets, below the size limit with the trace headers."""
BOUNDARY: Final = b"--b\r\n"
NOBODY_ID: Final = "idn_00000000000000000000000000"
NO_MESSAGE: Final = "msg_00000000000000000000000000"


def _addresses(stage: Stage) -> str:
    """Nobody there, elsewhere, no address at all, too large by its own word."""
    domain = stage.cast.agent.address.rpartition("@")[2]
    cases = (
        ("an unknown recipient", f"RCPT TO:<nobody-{stage.token}@{domain}>", 550),
        ("a domain that is not ours", "RCPT TO:<someone@elsewhere.invalid>", 550),
        ("a malformed address", "RCPT TO:<not an address>", 501),
        ("an empty command", "RCPT TO:", 501),
    )
    with smtplib.SMTP(HOST, stage.ports.smtp, local_hostname="mail.example.com", timeout=TIMEOUT) as client:
        client.ehlo()
        code, _ = client.docmd(f"MAIL FROM:<{SENDER}> SIZE={OVERSIZE}")
        expect(code == 552, f"a message of {OVERSIZE} bytes was answered {code}")
        client.docmd(f"MAIL FROM:<{SENDER}>")
        for what, command, wanted in cases:
            code, _ = client.docmd(command)
            expect(code == wanted, f"{what} was answered {code}, not {wanted}")
        code, _ = client.docmd(f"RCPT TO:<{stage.cast.agent.address}>")
        expect(code == 250, f"then the agent's address was answered {code}")
    return "552, 550, 501; then 250"


def _smuggling(stage: Stage) -> str:
    """A bare LF in the data is refused and the connection ends: no second message comes out of the first."""
    with _in_data(stage) as wire:
        wire.send(b"Subject: smuggled\r\n\r\nHello\n.\nMAIL FROM:<smuggler@example.com>\r\n.\r\n")
        reply = wire.reply()
        expect(reply.startswith(b"554 5.5.1"), f"bare LF was answered {_shown(reply)}")
        expect(not wire.line(), "the connection stayed open")
    return "554 5.5.1, connection closed"


def _truncated(stage: Stage) -> str:
    """A connection that ends within the data leaves nothing behind."""
    with _in_data(stage) as wire:
        wire.send(f"Subject: truncated {stage.token}\r\n\r\nHello\r\n".encode())
    answer = stage.rest.get(f"/v1/identities/{stage.cast.agent.identity_id}/messages", {"limit": "50"})
    subjects = [message["subject"] or "" for message in answer.document["data"]]
    expect(not any(subject.startswith(f"truncated {stage.token}") for subject in subjects), "it was stored")
    return "nothing was stored"


def _injection(stage: Stage) -> str:
    """Plaintext sent behind STARTTLS is never taken for something said under TLS (RFC 3207 §4.2)."""
    with Wire(stage.ports.smtp) as wire:
        wire.reply()
        wire.send(b"EHLO mail.example.com\r\n")
        wire.reply()
        wire.send(b"STARTTLS\r\nNOOP\r\n")
        reply = wire.reply()
        expect(reply[:3] in (b"220", b"554"), f"it was answered {_shown(reply)}")
        # Under TLS there is nothing but a handshake or the end to come.
        rest = wire.line() if reply.startswith(b"554") else b""
        expect(not rest.startswith(b"250"), "the command was carried out")
    return f"{reply[:3].decode()}, and the command was not carried out"


def _long_command(stage: Stage) -> str:
    """A command of 10,000 characters, and a line without an end."""
    with Wire(stage.ports.imap) as wire:
        wire.line()
        wire.send(b"a1 NOOP " + b"x" * LONG + b"\r\n")
        reply = wire.until(b"a1 ")
        expect(reply.startswith(b"a1 BAD"), f"10,000 characters were answered {_shown(reply)}")
        wire.send(b"a2 NOOP\r\n")
        expect(wire.until(b"a2 ").startswith(b"a2 OK"), "then the session was over")
    return "BAD, and the session goes on"


def _literal_bomb(stage: Stage) -> str:
    """A literal of four billion bytes is refused before a byte of it is read."""
    with imap(stage.ports, stage.cast) as client:
        client.send(f"b1 APPEND INBOX {{{BOMB}}}\r\n".encode())
        reply = client.readline()
        while reply.startswith(b"* ") and not reply.upper().startswith(b"* BYE"):
            reply = client.readline()
        expect(not reply.startswith(b"+"), "the server asked for all of it")
        refused = reply.startswith((b"b1 NO", b"b1 BAD")) or reply.upper().startswith(b"* BYE")
        expect(refused, f"it was answered {_shown(reply)}")
        expect(client.noop()[0] == "OK", "then the session was over")
    return _shown(reply)


def _million_parts(stage: Stage) -> str:
    """A message of a million parts and more is taken, IMAP tells of what is kept of its structure, and mail goes on."""
    recipient = stage.cast.person.address
    head = (
        f"From: <{SENDER}>\r\nTo: <{recipient}>\r\nSubject: parts {stage.token}\r\nMIME-Version: 1.0\r\n"
        f"Message-ID: <parts.{stage.token}@example.com>\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
    )
    count = (LARGE - len(head)) // len(BOUNDARY)
    raw = head.encode() + BOUNDARY * count
    # smtplib would walk through every line.
    with _in_data(stage, recipient) as wire:
        wire.send(raw + b".\r\n")
        reply = wire.reply()
        expect(reply.startswith(b"250"), f"it was answered {_shown(reply)}")
    with imap(stage.ports, stage.cast) as client:
        client.select("INBOX", readonly=True)
        last = client.response("EXISTS")[1][-1]
        answer, items = client.fetch(str(int(last or b"0")), "(RFC822.SIZE BODYSTRUCTURE)")
        line = items[0] if isinstance(items[0], bytes) else b""
        expect(answer == "OK" and b'"mixed"' in line.lower(), f"FETCH BODYSTRUCTURE answered {answer} {_shown(line)}")
    deliver(stage.ports, stage.letter(recipient, "after-the-parts"))
    return f"250 for {count} parts, BODYSTRUCTURE in {len(line)} octets, and the next message was taken"


def _requests(stage: Stage) -> str:
    """JSON of the wrong shape, ids of nobody, no credentials."""
    rest, identity = stage.rest, stage.cast.agent.identity_id
    message = stage.find(identity, "agent-0")["id"]
    path = f"/v1/identities/{identity}/messages/{message}"
    cases = (
        ("JSON of the wrong shape", rest.patch(path, {"read": "perhaps", "unknown": 1}), 400, "invalid_request"),
        ("a list for an object", rest.patch(path, [1, 2]), 400, "invalid_request"),
        ("a foreign identity", rest.get(f"/v1/identities/{NOBODY_ID}/messages"), 404, "identity_not_found"),
        ("a foreign message", rest.get(f"{path[: path.rfind('/')]}/{NO_MESSAGE}"), 404, "message_not_found"),
        ("a wrong key", Rest(stage.ports, "pmk_live_wrong").get("/v1/me"), 401, "unauthenticated"),
    )
    for what, answer, status, code in cases:
        seen = f"{answer.status} {answer.code}"
        expect((answer.status, answer.code) == (status, code), f"{what} was answered {seen}, not {status} {code}")
    return "400, 404 and 401 with their codes"


def _goes_on(stage: Stage) -> str:
    """After all this every door is open."""
    expect(stage.rest.get("/health/ready").status == 200, "/health/ready does not answer 200")
    with smtplib.SMTP(HOST, stage.ports.smtp, timeout=TIMEOUT) as client:
        expect(client.noop()[0] == 250, "SMTP does not answer NOOP")
    with imap(stage.ports, stage.cast) as session:
        expect(session.noop()[0] == "OK", "IMAP does not answer NOOP")
    return "HTTP, SMTP and IMAP answer"


def _in_data(stage: Stage, recipient: str | None = None) -> Wire:
    """A connection that was asked to send its message to *recipient*, by default the agent."""
    wire = Wire(stage.ports.smtp)
    wire.reply()
    commands = (
        "EHLO mail.example.com",
        f"MAIL FROM:<{SENDER}>",
        f"RCPT TO:<{recipient or stage.cast.agent.address}>",
        "DATA",
    )
    for command in commands:
        wire.send(f"{command}\r\n".encode())
        reply = wire.reply()
    expect(reply.startswith(b"354"), f"DATA was answered {_shown(reply)}")
    return wire


def _shown(reply: bytes) -> str:
    return reply.decode("ascii", "replace").strip()[:80] or "nothing"


STEPS: Final[tuple[tuple[str, Callable[[Stage], str]], ...]] = (
    ("bad addresses and sizes over SMTP", _addresses),
    ("SMTP smuggling with a bare LF", _smuggling),
    ("a connection that ends within DATA", _truncated),
    ("plaintext behind STARTTLS", _injection),
    ("an IMAP command of 10,000 characters", _long_command),
    ("an IMAP literal of 4 GB", _literal_bomb),
    ("a message of millions of parts", _million_parts),
    ("bad requests over REST", _requests),
    ("and the server goes on", _goes_on),
)
