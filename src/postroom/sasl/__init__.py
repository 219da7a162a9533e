"""SASL mechanisms (RFC 4422) that more than one protocol carries, sans-I/O and pure: SCRAM-SHA-256 and its -PLUS form.

A protocol gives an `Exchange` what the client sends, decoded from base64, and does what it answers::

    step = exchange.respond(response)
    Challenge   send its data, and take the client's next response
    Proof       decide on it; if it is right, send what `accept` gives, else refuse as the protocol does
    Refused     refuse as the protocol does
    SUCCEEDED   the client has seen that we know its keys too: it is signed in
"""

from postroom.sasl.exchange import SUCCEEDED, Challenge, Exchange, Offer, Proven, Refused, Step
from postroom.sasl.prep import PrepError, saslprep
from postroom.sasl.scram import MECHANISM, PLUS, Keys, Proof, ScramError, ServerError, derive_keys

__all__ = [
    "MECHANISM",
    "PLUS",
    "SUCCEEDED",
    "Challenge",
    "Exchange",
    "Keys",
    "Offer",
    "PrepError",
    "Proof",
    "Proven",
    "Refused",
    "ScramError",
    "ServerError",
    "Step",
    "derive_keys",
    "saslprep",
]
