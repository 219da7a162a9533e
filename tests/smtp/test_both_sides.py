"""Our client and our server, byte for byte in memory; then each against somebody else's other half."""

import asyncio
import contextlib
import re
import smtplib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import (
    Address,
    Authenticated,
    Body,
    BodyWanted,
    ClientConfig,
    ClientSession,
    CommandRefused,
    CredentialsOffered,
    Evidence,
    Fault,
    GreetingReceived,
    HelloDone,
    MailRequest,
    MessageReceived,
    Notify,
    Profile,
    RcptParameters,
    RecipientProposed,
    RecipientRequest,
    RecipientResult,
    Reply,
    Return,
    SenderProposed,
    ServerConfig,
    ServerSession,
    SessionEnded,
    Signal,
    Stage,
    TransactionEnded,
)

_ANN = Address("ann", "example.com")
_QUEUED = Reply(250, "2.0.0", "Ok: queued as msg_1")
_GONE = Reply(550, "5.1.1", "No such user here")
_LATER = Reply(450, "4.2.1", "Later")
_FULL = Reply(452, "4.2.2", "Mailbox full")


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@dataclass
class Sender:
    """Signs in if it can, sends its requests one after the other, quits."""

    session: ClientSession
    requests: list[tuple[MailRequest, bytes]]
    piece: int = 1000
    credentials: tuple[str, str] | None = None
    seen: list[Any] = field(default_factory=list)
    results: list[tuple[RecipientResult, ...]] = field(default_factory=list)

    def handle(self) -> None:
        while (event := self.session.next_event()) is not None:
            self.seen.append(event)
            if isinstance(event, GreetingReceived):
                self.session.hello()
            elif isinstance(event, HelloDone) and self.credentials is not None:
                self.session.authenticate(*self.credentials)
            elif isinstance(event, HelloDone | Authenticated):
                self._next()
            elif isinstance(event, BodyWanted):
                for piece in _cut(self.requests[len(self.results)][1], self.piece):
                    self.session.send_body(piece)
                self.session.end_body()
            elif isinstance(event, CommandRefused):
                self.session.quit()
            elif isinstance(event, TransactionEnded):
                self.results.append(event.results)
                if self.session.is_ready:
                    self._next()

    def _next(self) -> None:
        if len(self.results) < len(self.requests):
            self.session.send(self.requests[len(self.results)][0])
        else:
            self.session.quit()


@dataclass
class Receiver:
    """Takes everybody but `no…` and `later…`; over LMTP a mailbox of `full…` is full."""

    session: ServerSession
    seen: list[Any] = field(default_factory=list)

    def handle(self) -> None:
        session = self.session
        while (event := session.next_event()) is not None:
            self.seen.append(event)
            if isinstance(event, RecipientProposed):
                name = event.address.local
                if name.startswith(("no", "later")):
                    session.reject_recipient(_GONE if name.startswith("no") else _LATER)
                else:
                    session.accept_recipient(name)
            elif isinstance(event, MessageReceived):
                answers = [_FULL if str(value).startswith("full") else _QUEUED for _, value in event.recipients]
                try:
                    session.finish_recipients(answers)
                except RuntimeError:
                    session.finish_message(_QUEUED)
            elif isinstance(event, SenderProposed):
                session.accept_sender()
            elif isinstance(event, CredentialsOffered):
                if event.credentials.password == "secret":
                    session.accept_credentials(event.credentials.username)
                else:
                    session.reject_credentials()
            elif event is Signal.TLS_REQUESTED:
                session.refuse_tls()

    @property
    def messages(self) -> list[MessageReceived]:
        return [event for event in self.seen if isinstance(event, MessageReceived)]


def _converse(sender: Sender, receiver: Receiver, to_server: int, to_client: int) -> None:
    """Move the bytes both ways, so many at a time, until nobody says anything."""
    while True:
        down, up = receiver.session.take_output(), sender.session.take_output()
        if not down and not up:
            return
        for chunk in _cut(down, to_client):
            sender.session.receive(chunk)
            sender.handle()
        for chunk in _cut(up, to_server):
            receiver.session.receive(chunk)
            receiver.handle()


_names = st.lists(
    st.sampled_from(["a", "b", "no1", "no2", "later", "full", "c.d", "x+y", "q r", 'q"r']), min_size=1, max_size=5
)
_message = st.lists(
    st.one_of(st.sampled_from([b"", b".", b"..x", b"Received: y"]), st.binary(max_size=20)), max_size=8
).map(lambda lines: b"".join(re.sub(rb"[\r\n]", b"", line) + b"\r\n" for line in lines))
_profile = st.sampled_from(Profile)


@pytest.mark.covers("edge:N20", "decisions:C2")
@given(
    st.lists(st.tuples(_names, _message), min_size=1, max_size=3), _profile,
    st.booleans(), st.booleans(), st.booleans(), st.integers(1, 50), st.integers(1, 50), st.integers(1, 30),
)  # fmt: skip
def test_any_cutting_of_both_streams(
    mails: list[tuple[list[str], bytes]],
    profile: Profile,
    pipelining: bool,
    chunking: bool,
    extensions: bool,
    to_server: int,
    to_client: int,
    piece: int,
) -> None:
    requests = [
        (MailRequest(_ANN, tuple(RecipientRequest(Address(name, "agents.example")) for name in names)), data)
        for names, data in mails
    ]
    config = ServerConfig("mx.example.com", profile=profile, auth=True, dsn=True, advertise_extensions=extensions)
    signs_in = extensions and profile is Profile.SUBMISSION
    if profile is Profile.SUBMISSION and not signs_in:
        return

    def run(server_cut: int, client_cut: int) -> tuple[Sender, Receiver]:
        client = ClientConfig(
            "mail.example.com", lmtp=profile is Profile.LMTP, pipelining=pipelining, chunking=chunking
        )
        sender = Sender(ClientSession(client, encrypted=True), requests, piece, ("ann", "secret") if signs_in else None)
        receiver = Receiver(ServerSession(config, encrypted=True))
        _converse(sender, receiver, server_cut, client_cut)
        return sender, receiver

    sender, receiver = run(to_server, to_client)
    whole = run(1 << 20, 1 << 20)
    assert sender.seen == whole[0].seen
    assert receiver.seen == whole[1].seen
    assert sender.seen[-1] == SessionEnded(None)
    assert receiver.session.is_closed
    taken = [(names, data) for names, data in mails if any(not name.startswith(("no", "later")) for name in names)]
    assert [message.data for message in receiver.messages] == [data for _, data in taken]
    for (names, _), results in zip(mails, sender.results, strict=True):
        assert [(r.address.local, _code(r.evidence)) for r in results] == [
            (name, _expected(name, profile)) for name in names
        ]


def _code(evidence: Evidence) -> tuple[Stage, int, str | None]:
    assert evidence.reply is not None
    return evidence.stage, evidence.reply.code, (evidence.reply.enhanced or str(evidence.reply.code))[:1]


def _expected(name: str, profile: Profile) -> tuple[Stage, int, str | None]:
    code = {"no": 550, "la": 450, "fu": 452 if profile is Profile.LMTP else 250}.get(name[:2], 250)
    stage = Stage.RCPT if name.startswith(("no", "later")) else Stage.FINAL
    return stage, code, str(code // 100)


@pytest.mark.covers("RFC 3461 §4", "RFC 3030 §3", "RFC 8689 §4")
def test_parameters_arrive() -> None:
    parameters = RcptParameters(frozenset({Notify.SUCCESS, Notify.DELAY}), ("rfc822", "old+name@example.com"))
    recipients = (
        RecipientRequest(Address("a", "agents.example"), parameters),
        RecipientRequest(Address("bö", "b.example")),
    )
    request = MailRequest(None, recipients, size=3, body=Body.BINARY, requiretls=True, ret=Return.FULL, envid="id=7")
    config = ServerConfig("mx.example.com", dsn=True, requiretls=True)
    sender = Sender(ClientSession(ClientConfig("m"), encrypted=True), [(request, b"\0\n\r")])
    receiver = Receiver(ServerSession(config, encrypted=True))
    _converse(sender, receiver, 1 << 20, 1 << 20)
    (message,) = receiver.messages
    assert message.sender is None
    assert message.data == b"\0\n\r"
    assert message.recipient_parameters == (parameters, RcptParameters())
    read = message.parameters
    assert (read.size, read.body, read.requiretls, read.ret, read.envid) == (3, Body.BINARY, True, Return.FULL, "id=7")
    assert read.smtputf8


@pytest.mark.covers("mail-server:A4", "edge:N14")
def test_a_wrong_password_is_an_answer() -> None:
    config = ServerConfig("mail.example.com", profile=Profile.SUBMISSION, auth=True)
    sender = Sender(ClientSession(ClientConfig("m"), encrypted=True), [], credentials=("ann", "wrong"))
    _converse(sender, Receiver(ServerSession(config, encrypted=True)), 7, 5)
    (refused,) = [event for event in sender.seen if isinstance(event, CommandRefused)]
    assert (refused.stage, refused.reply.code, refused.reply.enhanced) == (Stage.AUTH, 535, "5.7.8")


# -- over sockets, against the other halves of aiosmtpd and of the standard library


def _send_over_socket(port: int, sender: Sender) -> None:
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        while not sender.session.is_closed:
            data = connection.recv(1 << 16)
            if data:
                sender.session.receive(data)
            else:
                sender.session.fail(Fault.CONNECTION_LOST)
            sender.handle()
            connection.sendall(sender.session.take_output())


class _Handler:
    def __init__(self) -> None:
        self.envelopes: list[Any] = []

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> str:
        if address.startswith("no"):
            return "550 5.1.1 No such user"
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 Ok"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.envelopes.append(envelope)
        return "250 2.0.0 Taken"


def _authenticator(server: Any, session: Any, envelope: Any, mechanism: str, auth_data: Any) -> AuthResult:
    known = isinstance(auth_data, LoginPassword) and auth_data.password == b"secret"
    return AuthResult(success=known, handled=False)


@contextlib.asynccontextmanager
async def _aiosmtpd(factory: Callable[[Any], SMTP]) -> AsyncIterator[tuple[int, _Handler]]:
    handler = _Handler()
    async with await asyncio.get_running_loop().create_server(lambda: factory(handler), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], handler


_TWO = tuple(RecipientRequest(Address(name, "agents.example")) for name in ("bot", "no"))
_DOTTED = b"Subject: x\r\n\r\n.\r\n..\r\nend"


async def test_client_against_aiosmtpd() -> None:
    async with _aiosmtpd(lambda handler: SMTP(handler, enable_SMTPUTF8=True)) as (port, handler):
        requests = [(MailRequest(_ANN, _TWO, size=len(_DOTTED), body=Body.EIGHT_BIT), _DOTTED)] * 2
        sender = Sender(ClientSession(ClientConfig("mail.example.com")), requests, piece=3)
        await asyncio.to_thread(_send_over_socket, port, sender)
    assert sender.seen[-1] == SessionEnded(None)
    for results in sender.results:
        assert [_code(result.evidence) for result in results] == [(Stage.FINAL, 250, "2"), (Stage.RCPT, 550, "5")]
    assert [envelope.content for envelope in handler.envelopes] == [_DOTTED + b"\r\n"] * 2
    assert handler.envelopes[0].mail_options == [f"SIZE={len(_DOTTED)}", "BODY=8BITMIME"]


@pytest.mark.parametrize("offered", ["PLAIN", "LOGIN"])
async def test_client_signs_in_to_aiosmtpd(offered: str) -> None:
    other = {"PLAIN": "LOGIN", "LOGIN": "PLAIN"}[offered]

    def factory(handler: Any) -> SMTP:
        return SMTP(
            handler, authenticator=_authenticator, auth_require_tls=False, auth_exclude_mechanism=[other],
            auth_required=True,
        )  # fmt: skip

    async with _aiosmtpd(factory) as (port, handler):
        request = (MailRequest(_ANN, _TWO[:1]), _DOTTED)
        # `encrypted` only says that the driver vouches for the connection; here it is a loopback one.
        sender = Sender(ClientSession(ClientConfig("m"), encrypted=True), [request], credentials=("ann", "secret"))
        await asyncio.to_thread(_send_over_socket, port, sender)
        assert len(handler.envelopes) == 1
        sender = Sender(ClientSession(ClientConfig("m"), encrypted=True), [request], credentials=("ann", "wrong"))
        await asyncio.to_thread(_send_over_socket, port, sender)
        assert [event.reply.code for event in sender.seen if isinstance(event, CommandRefused)] == [535]
        assert len(handler.envelopes) == 1


async def test_client_against_aiosmtpd_lmtp() -> None:
    async with _aiosmtpd(LMTP) as (port, handler):
        sender = Sender(ClientSession(ClientConfig("m", lmtp=True)), [(MailRequest(_ANN, _TWO), _DOTTED)])
        await asyncio.to_thread(_send_over_socket, port, sender)
    assert [_code(result.evidence)[:2] for result in sender.results[0]] == [(Stage.FINAL, 250), (Stage.RCPT, 550)]
    assert len(handler.envelopes) == 1


@contextlib.contextmanager
def _our_server(config: ServerConfig) -> Iterator[tuple[int, list[Receiver]]]:
    """Serves one connection after the other in a thread; AUTH is allowed in clear text, as from loopback."""
    receivers: list[Receiver] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            receiver = Receiver(ServerSession(config, auth_in_clear=True))
            receivers.append(receiver)
            with connection:
                connection.sendall(receiver.session.take_output())
                while not receiver.session.is_closed and (data := connection.recv(1 << 16)):
                    receiver.session.receive(data)
                    receiver.handle()
                    connection.sendall(receiver.session.take_output())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1], receivers
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(20)


@pytest.mark.covers("mail-server:A4", "mail-server:A3")
@pytest.mark.parametrize("mechanism", ["plain", "login"])
@pytest.mark.parametrize("initial", [True, False])
def test_smtplib_submits(mechanism: str, initial: bool) -> None:
    config = ServerConfig("mail.example.com", profile=Profile.SUBMISSION, auth=True, dsn=True)
    with (
        _our_server(config) as (port, receivers),
        smtplib.SMTP("127.0.0.1", port, "client.example", timeout=20) as client,
    ):
        with pytest.raises(smtplib.SMTPSenderRefused) as refused:
            client.sendmail("ann@example.com", ["bot@agents.example"], _DOTTED)
        assert (refused.value.smtp_code, refused.value.smtp_error) == (530, b"5.7.0 Authentication required")
        client.user, client.password = "ann@example.com", "wrong"
        method = getattr(client, f"auth_{mechanism}")
        with pytest.raises(smtplib.SMTPAuthenticationError) as wrong:
            client.auth(mechanism.upper(), method, initial_response_ok=initial)
        assert wrong.value.smtp_code == 535
        client.password = "secret"
        assert client.auth(mechanism.upper(), method, initial_response_ok=initial)[0] == 235
        refusals = client.sendmail(
            "ann@example.com", ["bot@agents.example", "no@agents.example"], _DOTTED,
            mail_options=["RET=HDRS", "ENVID=x+2By"], rcpt_options=["NOTIFY=NEVER"],
        )  # fmt: skip
        assert refusals == {"no@agents.example": (550, b"5.1.1 No such user here")}
    (message,) = receivers[0].messages
    assert message.data == _DOTTED + b"\r\n"
    assert (message.parameters.ret, message.parameters.envid) == (Return.HEADERS, "x+y")
    assert message.recipient_parameters == (RcptParameters(frozenset({Notify.NEVER})),)
    assert receivers[0].session.account == "ann@example.com"


@pytest.mark.covers("mail-server:A1", "RFC 2033")
def test_smtplib_delivers_by_lmtp() -> None:
    config = ServerConfig("mx.example.com", profile=Profile.LMTP)
    with _our_server(config) as (port, receivers):
        client = smtplib.LMTP("127.0.0.1", port, "relay.example", timeout=20)
        client.sendmail("ann@example.com", ["bot@agents.example", "no@agents.example"], _DOTTED)
        client.quit()
    assert [message.data for message in receivers[0].messages] == [_DOTTED + b"\r\n"]
