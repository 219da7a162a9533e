"""A driver without I/O, and a listener with a directory and a store in memory."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroom.net.tls import Certificate, server_context
from postroom.sasl import Proof
from postroom.servers.smtp import ListenerLimits, MxListener
from postroom.smtp import (
    CredentialsOffered,
    Envelope,
    MessageReceived,
    ProofOffered,
    RecipientProposed,
    Refusal,
    Reply,
    SenderProposed,
    ServerConfig,
    ServerSession,
    SessionInfo,
    Signal,
)

NO_SUCH_USER = Reply(550, "5.1.1", "No such user here")
QUEUED = Reply(250, "2.0.0", "Ok: queued as msg_1")


@dataclass
class Transcript:
    """What a session said and did."""

    session: ServerSession
    output: bytes = b""
    messages: list[MessageReceived] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    credentials: list[CredentialsOffered] = field(default_factory=list)
    proofs: list[ProofOffered] = field(default_factory=list)
    senders: list[SenderProposed] = field(default_factory=list)

    @property
    def codes(self) -> list[str]:
        """Code and enhanced code of each reply, the greeting left out, continuation lines left out."""
        lines = self.output.decode("ascii").split("\r\n")[1:-1]
        return [line[:3] + " " + _enhanced(line) for line in lines if line[3:4] == " "]


def _enhanced(line: str) -> str:
    word = line[4:].partition(" ")[0]
    return word if word.count(".") == 2 and word.replace(".", "").isdigit() else "-"


def _drive(
    chunks: Iterable[bytes],
    config: ServerConfig | None = None,
    *,
    refuse: Callable[[str], Reply | None] = lambda address: None,
    final: Reply = QUEUED,
    tls: bool = True,
    sign_in: Callable[[str, str], Reply | None] = lambda username, password: None,
    prove: Callable[[Proof], Reply | bytes] = lambda proof: Reply(535, "5.7.8", "Authentication credentials invalid"),
    refuse_sender: Reply | None = None,
    finals: Callable[[int], list[Reply]] | None = None,
    encrypted: bool = False,
    auth_in_clear: bool = False,
    binding: bytes | None = None,
) -> Transcript:
    session = ServerSession(
        config or ServerConfig("mx.example.com"), encrypted=encrypted, auth_in_clear=auth_in_clear, binding=binding
    )
    seen = Transcript(session)
    for chunk in chunks:
        session.receive(chunk)
        while (event := session.next_event()) is not None:
            if isinstance(event, RecipientProposed):
                reply = refuse(event.address.key)
                if reply is None:
                    session.accept_recipient(event.address.key)
                else:
                    session.reject_recipient(reply)
            elif isinstance(event, MessageReceived):
                seen.messages.append(event)
                if finals is not None:
                    session.finish_recipients(finals(len(event.recipients)))
                else:
                    session.finish_message(final)
            elif isinstance(event, CredentialsOffered):
                seen.credentials.append(event)
                reply = sign_in(event.credentials.username, event.credentials.password)
                if reply is None:
                    session.accept_credentials(event.credentials.username)
                else:
                    session.reject_credentials(reply)
            elif isinstance(event, ProofOffered):
                seen.proofs.append(event)
                verdict = prove(event.proof)
                if isinstance(verdict, Reply):
                    session.reject_credentials(verdict)
                else:
                    session.accept_proof(event.proof.username, verdict)
            elif isinstance(event, SenderProposed):
                seen.senders.append(event)
                if refuse_sender is None:
                    session.accept_sender()
                else:
                    session.reject_sender(refuse_sender)
            else:
                seen.signals.append(event)
                if event is Signal.TLS_REQUESTED:
                    if tls:
                        session.start_tls()
                        session.tls_started(binding)
                    else:
                        session.refuse_tls()
        seen.output += session.take_output()
    return seen


@pytest.fixture(scope="session")
def drive() -> Callable[..., Transcript]:
    """Runs chunks of input through a session and answers its events."""
    return _drive


@dataclass
class Deployment:
    """Stands for directory and inbound: every address of `agents.example` but those that start with `no`."""

    messages: list[tuple[Envelope[str], bytes]] = field(default_factory=list)
    resolved: list[tuple[str, SessionInfo]] = field(default_factory=list)
    receive_gate: asyncio.Event | None = None
    receiving: asyncio.Event = field(default_factory=asyncio.Event)
    failure: BaseException | None = None
    final: Reply = QUEUED

    async def resolve(self, address: str, session: SessionInfo) -> str | Refusal:
        self.resolved.append((address, session))
        if address.startswith("crash"):
            raise OSError("the directory is gone")
        if address.startswith("no") or not address.endswith("@agents.example"):
            return Refusal(NO_SUCH_USER)
        return f"mailbox of {address}"

    async def receive(self, envelope: Envelope[str], raw: bytes) -> Reply:
        self.receiving.set()
        if self.receive_gate is not None:
            await self.receive_gate.wait()
        if self.failure is not None:
            raise self.failure
        self.messages.append((envelope, raw))
        return self.final


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What moves real bytes is tested on both event loops: they differ in pausing, closing and TLS."""
    if item.path.name == "test_listener.py":
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


Start = Callable[..., Awaitable[MxListener[str]]]


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


@pytest_asyncio.fixture
async def start(deployment: Deployment) -> AsyncIterator[Start]:
    """Starts listeners on a free loopback port; they are drained at the end."""
    started: list[MxListener[str]] = []

    async def _start(
        *, config: ServerConfig | None = None, limits: ListenerLimits | None = None, tls: ssl.SSLContext | None = None
    ) -> MxListener[str]:
        listener: MxListener[str] = MxListener(
            config or ServerConfig("mx.example.com"),
            resolve=deployment.resolve,
            receive=deployment.receive,
            limits=limits,
            ssl_context=tls,
        )
        await listener.start("127.0.0.1", 0)
        started.append(listener)
        return listener

    yield _start
    for listener in started:
        await listener.drain(0)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mx.example.com")])
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + built.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    return server_context(Certificate(certificate, certificate, self_signed=False))


@pytest.fixture
def client_tls(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))
