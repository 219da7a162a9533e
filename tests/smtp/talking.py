"""A client session, and what a written server says to it."""

from typing import Any

from postroom.smtp import (
    Address,
    BodyWanted,
    ClientConfig,
    ClientSession,
    Fault,
    HelloDone,
    MailRequest,
    RecipientRequest,
    Stage,
    TransactionEnded,
)

ANN = Address("ann", "example.com")
PLAIN_OFFER = b"250 mx.example\r\n"
PIPELINING = b"250-mx.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE 1000\r\n"
CHUNKING = b"250-mx.example\r\n250-PIPELINING\r\n250-BINARYMIME\r\n250 CHUNKING\r\n"


def mail_request(*names: str, **kwargs: Any) -> MailRequest:
    recipients = tuple(RecipientRequest(Address(name, "agents.example")) for name in names or ("bot",))
    return MailRequest(ANN, recipients, **kwargs)


def events(session: ClientSession) -> list[Any]:
    return list(iter(session.next_event, None))


def ready(offer: bytes = PIPELINING, *, encrypted: bool = False, **config: Any) -> ClientSession:
    session = ClientSession(ClientConfig("mail.example.com", **config), encrypted=encrypted)
    session.receive(b"220 hello\r\n")
    session.hello()
    session.receive(offer)
    assert isinstance(events(session)[-1], HelloDone)
    session.take_output()
    return session


def say(session: ClientSession, *replies: str) -> list[Any]:
    session.receive("".join(f"{reply}\r\n" for reply in replies).encode())
    return events(session)


def fates_of(event: Any) -> list[tuple[Stage, int | Fault]]:
    assert isinstance(event, TransactionEnded)
    return [(e.stage, e.fault or (e.reply.code if e.reply else 0)) for e in (r.evidence for r in event.results)]


def to_body(session: ClientSession, *names: str) -> None:
    """With pipelining and without chunks, up to the body."""
    names = names or ("bot",)
    session.send(mail_request(*names))
    assert isinstance(say(session, "250 ok", *["250 ok"] * len(names), "354 go")[-1], BodyWanted)
    session.take_output()
