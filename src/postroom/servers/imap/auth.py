"""Sign-in, and what is always there: CAPABILITY, ID, ENABLE, STARTTLS, LOGIN, AUTHENTICATE, NOOP, LOGOUT (D1)."""

from __future__ import annotations

import binascii
from typing import Final

from postroom import __version__
from postroom.accounts.models import Principal
from postroom.accounts.service.sign_in import SignInError, SignInFailure
from postroom.base import log as base_log
from postroom.imap import BadCommand, Code, ProtocolNo, SessionState, Status, parse_sasl_line, render
from postroom.imap import commands as c
from postroom.sasl import SUCCEEDED, Exchange, Proof, Proven, Refused, ServerError
from postroom.servers.imap.answers import Done
from postroom.servers.imap.capabilities import ENABLES
from postroom.servers.imap.failures import Disconnected
from postroom.servers.imap.session import Session

_log = base_log.get("servers.imap")

_AUTHENTICATION_FAILED: Final = "Invalid credentials"
_MAX_SASL: Final = 8192


async def capability(session: Session, command: c.Capability) -> Done:
    session.write(render.capability_line(session.capabilities()))
    return Done("CAPABILITY completed")


async def noop(session: Session, command: c.Noop) -> Done:
    return Done("NOOP completed")


async def logout(session: Session, command: c.Logout) -> Done:
    session.write(render.untagged(Status.BYE, "Logging out"))
    session.deselect()
    session.state = SessionState.LOGOUT
    return Done("LOGOUT completed", quiet=True)


async def identify(session: Session, command: c.Id) -> Done:
    session.write(render.id_line({"name": "Postroom", "version": __version__}))
    return Done("ID completed")


async def enable(session: Session, command: c.Enable) -> Done:
    """What is on offer and was not enabled yet is told; the rest is passed over (RFC 5161 §3.1)."""
    new: dict[str, None] = {}
    for word in command.capabilities:
        if word in ENABLES and word not in session.enabled:
            session.enable(*ENABLES[word])
            new["IMAP4rev2" if word == "IMAP4REV2" else word] = None
    if session.is_rev2 and session.selected is not None:
        session.selected.forget_recent()
    session.write(render.enabled_line(new))
    return Done("ENABLE completed")


async def start_tls(session: Session, command: c.StartTls) -> Done:
    if not session.may_start_tls:
        raise BadCommand("TLS is not available")
    session.write(render.tagged(session.tag, Status.OK, "Begin TLS negotiation now"))
    # What came in clear after the command is an injection (RFC 9051 §6.2.1).
    session.reader.discard_buffer()
    session.flush()
    # From here on nothing comes in clear. What is there when the handshake is done came right behind it, under TLS.
    await session.wire.start_tls()
    return Done("", nothing=True)


async def compress(session: Session, command: c.Compress) -> Done:
    """Everything after the tagged OK is compressed, both ways (RFC 4978 §3)."""
    if command.mechanism != "DEFLATE":
        raise BadCommand("Unknown compression mechanism")
    if session.wire.compressed:
        raise ProtocolNo("COMPRESSIONACTIVE", "Compression is active already")
    session.write(render.tagged(session.tag, Status.OK, "DEFLATE active"))
    session.flush()
    session.wire.compress(session.reader.take_buffer())
    return Done("", nothing=True)


async def login(session: Session, command: c.Login) -> Done:
    _require_privacy(session)
    return await _sign_in(session, command.username, command.password)


async def authenticate(session: Session, command: c.Authenticate) -> Done:
    """With or without an initial response (RFC 4959)."""
    _require_privacy(session)
    if command.mechanism == "PLAIN":
        return await _plain(session, command.initial)
    if command.mechanism in session.scram_mechanisms:
        return await _scram(session, command.mechanism, command.initial)
    raise ProtocolNo(Code.CANNOT, "Unsupported authentication mechanism")


async def _plain(session: Session, initial: bytes | None) -> Done:
    """RFC 4616."""
    response = await _ask(session, b"") if initial is None else initial
    parts = response.split(b"\0")
    try:
        authorise, username, password = (part.decode("utf-8") for part in parts)
    except ValueError:
        raise ProtocolNo(Code.AUTHENTICATIONFAILED, _AUTHENTICATION_FAILED) from None
    if authorise and authorise.lower() != username.lower():
        raise ProtocolNo(Code.AUTHENTICATIONFAILED, _AUTHENTICATION_FAILED)
    return await _sign_in(session, username, password)


async def _scram(session: Session, mechanism: str, initial: bytes | None) -> Done:
    """RFC 5802."""
    offer = session.services.scram
    assert offer is not None
    exchange = Exchange(mechanism, offer, session.wire.binding)
    response = await _ask(session, b"") if initial is None else initial
    proven: Proven[Principal] | None = None
    while True:
        step = exchange.respond(response)
        if isinstance(step, Proof):
            found = await session.services.sign_in.prove(step, session.wire.peer_ip)
            if isinstance(found, SignInError):
                return _refused(session, found.kind)
            proven = found
            step = exchange.accept(found.signature)
        if isinstance(step, Refused):
            return _refused(session, SignInFailure.INVALID, step.error)
        if step is SUCCEEDED:
            assert proven is not None
            # Its client has had all the time it wanted since the proof, and nobody watched it meanwhile.
            if not await session.services.sign_in.stands(proven.account):
                return _refused(session, SignInFailure.INVALID)
            return _signed_in(session, proven.account)
        response = await _ask(session, step.data)


async def _ask(session: Session, challenge: bytes) -> bytes:
    """The client's response to a challenge. Raises `BadCommand`, for a cancellation too."""
    session.reader.expect_line()
    session.write(render.continuation(binascii.b2a_base64(challenge, newline=False).decode("ascii")))
    line = await session.read_line()
    if len(line) > _MAX_SASL:
        raise BadCommand("Response too long")
    return parse_sasl_line(line)


def _require_privacy(session: Session) -> None:
    if not session.may_sign_in:
        raise ProtocolNo(Code.PRIVACYREQUIRED, "Sign-in needs TLS")


async def _sign_in(session: Session, username: str, password: str) -> Done:
    found = await session.services.sign_in.sign_in(username, password, session.wire.peer_ip)
    return _refused(session, found.kind) if isinstance(found, SignInError) else _signed_in(session, found)


def _refused(session: Session, why: SignInFailure, error: ServerError | None = None) -> Done:
    session.login_failures += 1
    _log.info("imap_login_failed", reason=why.value if error is None else error.value)
    failure = (
        render.tagged(session.tag, Status.NO, _AUTHENTICATION_FAILED, Code.AUTHENTICATIONFAILED)
        if why is SignInFailure.INVALID
        else render.tagged(session.tag, Status.NO, "Try again later", Code.UNAVAILABLE)
    )
    session.write(failure)
    if session.login_failures >= session.shared.config.max_login_failures:
        session.bye("Too many failed logins")
        raise Disconnected
    return Done("", nothing=True)


def _signed_in(session: Session, principal: Principal) -> Done:
    session.signed_in(principal)
    session.reader.authenticated = True
    session.state = SessionState.AUTHENTICATED
    _log.info("imap_login", principal=principal.public_id, secure=session.wire.secure)
    return Done("Logged in", render.code_capability(session.capabilities()))
