"""SCRAM-SHA-256 keys of application passwords (RFC 5802, RFC 7677; decision 0054). Pure but for the seal's nonce.

One salt for everybody: what a mailbox is opened with may be anybody's whom it is granted to, and who that is, is known
only when they have proved it. A salt keeps passwords that people choose from being guessed all at once; nobody guesses
192 random bits. So nothing that is said before the proof depends on who signs in, or on whether there is such a
mailbox.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Callable
from typing import Final

from postroom.base.sealed_columns import SCRAM_KEYS
from postroom.base.sealing import Keyring
from postroom.sasl import Keys, Offer, derive_keys
from postroom.sasl.scram import KEY_BYTES

ITERATIONS: Final = 4096
"""The least that RFC 7677 §4 allows: more would slow down the mail program, and nobody who guesses. Another number, or
another label of the salt, makes useless the keys of what was made before."""
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 18
_SALT_LABEL: Final = b"postroom-scram-sha-256-salt-v1"


class ScramKeys:
    """Makes, seals and opens them, and offers the exchange."""

    def __init__(
        self,
        keyring: Keyring,
        pepper: bytes,
        *,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._keyring = keyring
        self._salt = hmac.digest(pepper, _SALT_LABEL, "sha256")[:SALT_BYTES]
        self._random = random

    def offer(self) -> Offer:
        """What every exchange begins with."""
        return Offer(self._salt, ITERATIONS, lambda: base64.b64encode(self._random(NONCE_BYTES)).decode("ascii"))

    def sealed_keys_of(self, app_password: str, public_id: str) -> bytes:
        """What is stored of the application password of that id. Takes 1.4 ms, as `derive_keys` does."""
        keys = derive_keys(app_password, self._salt, ITERATIONS)
        return self._keyring.seal(SCRAM_KEYS, keys.stored + keys.server, public_id)

    def opened(self, sealed: bytes, public_id: str) -> Keys:
        """What `sealed_keys_of` sealed for that id. Raises `UnsealError`."""
        both = self._keyring.open(SCRAM_KEYS, sealed, public_id)
        return Keys(both[:KEY_BYTES], both[KEY_BYTES:])
