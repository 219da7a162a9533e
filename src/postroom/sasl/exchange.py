"""One SCRAM exchange as a state machine: the client's responses in, what to send or decide out (RFC 5802 §5)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

from postroom.sasl import scram
from postroom.sasl.scram import MECHANISM, PLUS, ClientFirst, Proof, ScramError, ServerError

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server offers to everybody: one salt and one count, whoever signs in. `nonce` draws a fresh one."""

    salt: bytes
    iterations: int
    nonce: Callable[[], str]

    def mechanisms(self, binding: bytes | None) -> tuple[str, ...]:
        """The mechanisms to advertise on a channel that has such a binding."""
        return (MECHANISM,) if binding is None else (PLUS, MECHANISM)


@dataclass(frozen=True, slots=True)
class Challenge:
    """Something to say, to which the client responds."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The exchange is over, for this reason. It is for our log: the client is refused as the protocol does (RFC 4422
    §3.6). A server-final-message with it would be a challenge more, which clients of Cyrus SASL never respond to.
    """

    error: ServerError


@dataclass(frozen=True, slots=True)
class Proven(Generic[T_co]):
    """Whose keys a proof is of, and the ServerSignature that shows the client that we have them."""

    account: T_co
    signature: bytes = field(repr=False)


class _Outcome(enum.Enum):
    SUCCEEDED = enum.auto()


SUCCEEDED: Final = _Outcome.SUCCEEDED
Succeeded = Literal[_Outcome.SUCCEEDED]
Step = Challenge | Refused | Proof | Succeeded


class _Waiting(enum.Enum):
    FOR_FIRST = enum.auto()
    FOR_FINAL = enum.auto()
    FOR_VERDICT = enum.auto()
    FOR_LAST = enum.auto()
    """The client has ServerSignature, and answers with nothing (RFC 4422 §5: additional data with success)."""
    NOTHING = enum.auto()


class Exchange:
    """The server's side of one. `binding` is the tls-server-end-point of this channel, None where it has none; with it
    the -PLUS mechanism is taken to have been advertised.

    Raises `ValueError` for a mechanism that the channel does not have.
    """

    __slots__ = ("_binding", "_first", "_mechanism", "_nonce", "_offer", "_said", "_waiting")

    def __init__(self, mechanism: str, offer: Offer, binding: bytes | None) -> None:
        if mechanism not in offer.mechanisms(binding):
            raise ValueError("a mechanism that was not offered")
        self._mechanism, self._offer, self._binding = mechanism, offer, binding
        self._nonce = offer.nonce()
        self._first: ClientFirst | None = None
        self._said = b""
        self._waiting = _Waiting.FOR_FIRST

    def respond(self, response: bytes) -> Step:
        """Take what the client sent. Raises `RuntimeError` when nothing is awaited of it."""
        waiting, self._waiting = self._waiting, _Waiting.NOTHING
        try:
            match waiting:
                case _Waiting.FOR_FIRST:
                    return self._begin(response)
                case _Waiting.FOR_FINAL:
                    return self._finish(response)
                case _Waiting.FOR_LAST:
                    return Refused(ServerError.OTHER) if response else SUCCEEDED
        except ScramError as error:
            return Refused(error.error)
        raise RuntimeError("nothing is awaited of the client")

    def accept(self, signature: bytes) -> Challenge:
        """Answer a `Proof`: it is right, and this is ServerSignature. One that is not ends the exchange."""
        if self._waiting is not _Waiting.FOR_VERDICT:
            raise RuntimeError("nothing is to be decided")
        self._waiting = _Waiting.FOR_LAST
        return Challenge(scram.write_final(signature))

    def _begin(self, response: bytes) -> Step:
        self._first = scram.read_first(response, self._mechanism, binding_offered=self._binding is not None)
        offer = self._offer
        self._said = scram.write_first(self._first.nonce, self._nonce, offer.salt, offer.iterations)
        self._waiting = _Waiting.FOR_FINAL
        return Challenge(self._said)

    def _finish(self, response: bytes) -> Step:
        assert self._first is not None
        proof = scram.read_final(response, self._first, self._said, self._nonce, self._binding, self._mechanism)
        self._waiting = _Waiting.FOR_VERDICT
        return proof
