"""SASL as SMTP AUTH carries it (RFC 4954 §4, rule A4): PLAIN (RFC 4616) and LOGIN, both halves; SCRAM, the server's.

LOGIN was never standardised; it asks for the name, then for the password, each line in base64.
"""

import binascii
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from postroom.sasl import Challenge, Offer, Proof, Refused, Step
from postroom.sasl import Exchange as Scram
from postroom.smtp import replies
from postroom.smtp.replies import Reply

MECHANISMS: Final = ("PLAIN", "LOGIN")
_CANCEL: Final = b"*"
_EMPTY: Final = b"="  # RFC 4954 §4: how an empty initial response is written


# A command line stays a command line, without CRLF: a longer initial response has to wait for the challenge.
_MAX_COMMAND: Final = 510


class UnsupportedError(ValueError):
    """The server does not offer what was asked for."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client claims: `username` as given, `password`, which never shows in a log."""

    mechanism: str
    username: str
    password: str = field(repr=False)


class Exchange:
    """One AUTH exchange. Each step gives a challenge (a 334), a refusal that ends it, or the credentials."""

    __slots__ = ("_mechanism", "_username")

    def __init__(self, mechanism: str) -> None:
        """Raises `ValueError` for a mechanism that is not one of `MECHANISMS`."""
        if mechanism not in MECHANISMS:
            raise ValueError("unknown SASL mechanism")
        self._mechanism = mechanism
        self._username: str | None = None

    def start(self, initial: bytes) -> Reply | Credentials:
        """Begin, with the initial response of the AUTH command or with nothing."""
        if initial == _EMPTY:
            # Neither mechanism has any use for an empty response.
            return replies.BAD_BASE64
        if initial:
            return self.respond(initial)
        return replies.EMPTY_CHALLENGE if self._mechanism == "PLAIN" else replies.ASK_USERNAME

    def respond(self, line: bytes) -> Reply | Credentials:
        """Take the client's next line, without its CRLF."""
        if line == _CANCEL:
            return replies.AUTH_CANCELLED
        try:
            response = binascii.a2b_base64(line, strict_mode=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            return replies.BAD_BASE64
        if self._mechanism == "PLAIN":
            return _plain(response)
        if self._username is None:
            if not response:
                return replies.MALFORMED_RESPONSE
            self._username = response
            return replies.ASK_PASSWORD
        return Credentials("LOGIN", self._username, response) if response else replies.MALFORMED_RESPONSE


class ScramExchange:
    """One AUTH exchange by SCRAM (RFC 5802). Each step gives a challenge, a refusal that ends it, a proof to decide on,
    or `replies.AUTHENTICATED`.
    """

    __slots__ = ("_scram",)

    def __init__(self, mechanism: str, offer: Offer, binding: bytes | None) -> None:
        """Raises `ValueError` for a mechanism that is not offered with that binding."""
        self._scram = Scram(mechanism, offer, binding)

    def start(self, initial: bytes) -> Reply | Proof:
        """Begin, with the initial response of the AUTH command or with nothing."""
        if not initial:
            return replies.EMPTY_CHALLENGE
        return self._take(self._scram.respond(b"")) if initial == _EMPTY else self.respond(initial)

    def respond(self, line: bytes) -> Reply | Proof:
        """Take the client's next line, without its CRLF."""
        if line == _CANCEL:
            return replies.AUTH_CANCELLED
        try:
            response = binascii.a2b_base64(line, strict_mode=True)
        except binascii.Error:
            return replies.BAD_BASE64
        return self._take(self._scram.respond(response))

    def accept(self, signature: bytes) -> Reply:
        """The proof is right: what to say, before the client's last word."""
        return _challenge(self._scram.accept(signature).data)

    def _take(self, step: Step) -> Reply | Proof:
        match step:
            case Proof():
                return step
            case Challenge(data):
                return _challenge(data)
            case Refused():
                return replies.AUTH_FAILED
        return replies.AUTHENTICATED


def _challenge(data: bytes) -> Reply:
    # What SCRAM says is far below the limit of a reply line: the client's part of the nonce is bounded.
    return Reply(334, None, binascii.b2a_base64(data, newline=False).decode("ascii"))


def _plain(response: str) -> Reply | Credentials:
    match response.split("\0"):
        case [authorise, username, password] if username and password:
            # RFC 4616 §2: acting as somebody else needs a right that nobody has here.
            if authorise not in ("", username):
                return replies.AUTH_FAILED
            return Credentials("PLAIN", username, password)
        case _:
            return replies.MALFORMED_RESPONSE


def client_exchange(offered: tuple[str, ...], username: str, password: str) -> tuple[bytes, deque[bytes]]:
    """The AUTH command, and the answers to the challenges that follow it, all without CRLF: PLAIN rather than LOGIN.

    Raises `UnsupportedError` if neither is `offered`, `ValueError` for an empty part or one with a NUL.
    """
    if not username or not password or "\0" in username + password:
        raise ValueError("credentials that cannot be sent")
    if "PLAIN" in offered:
        response = _base64(f"\0{username}\0{password}")
        command = b"AUTH PLAIN " + response
        return (command, deque()) if len(command) <= _MAX_COMMAND else (b"AUTH PLAIN", deque([response]))
    if "LOGIN" in offered:
        return b"AUTH LOGIN", deque([_base64(username), _base64(password)])
    raise UnsupportedError("no SASL mechanism that we know")


def _base64(text: str) -> bytes:
    return binascii.b2a_base64(text.encode("utf-8"), newline=False)
