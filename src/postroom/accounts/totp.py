"""The second step: time-based one-time passwords (RFC 6238) and recovery codes (mail-server F4). Pure."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from datetime import datetime
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.hotp import HOTP
from cryptography.hazmat.primitives.twofactor.totp import TOTP

SECRET_BYTES: Final = 20
DIGITS: Final = 6
STEP_SECONDS: Final = 30
SKEW_STEPS: Final = 1
"""Steps before and after the present one that are taken, for clocks that differ (RFC 6238 §5.2)."""

RECOVERY_CODES: Final = 10
_RECOVERY_BYTES: Final = 10
_GROUP: Final = 4
_MAX_TYPED: Final = 64

_CODE: Final = re.compile(r"[0-9]{3} ?[0-9]{3}")
_RECOVERY: Final = re.compile(r"[A-Z2-7]{16}")


def step_of(now: datetime) -> int:
    """The number of the time step (RFC 6238 §4.2)."""
    return int(now.timestamp()) // STEP_SECONDS


def code_at(secret: bytes, step: int) -> str:
    """The six digits of a step (RFC 4226 §5.3; SHA-1, which is what authenticator apps know)."""
    return _hotp(secret).generate(step).decode("ascii")


def matching_step(secret: bytes, typed: str, now: datetime, last_step: int) -> int | None:
    """The step whose code was typed, or None. Steps up to `last_step` were used, or are older than what was.

    One space in the middle is tolerated. Every step of the window is compared, in constant time each.
    """
    text = typed[:_MAX_TYPED].strip()
    if _CODE.fullmatch(text) is None:
        return None
    digits = text.replace(" ", "").encode("ascii")
    found = None
    present = step_of(now)
    hotp = _hotp(secret)
    for step in range(max(0, present - SKEW_STEPS), present + SKEW_STEPS + 1):
        same = hmac.compare_digest(hotp.generate(step), digits)
        if same and step > last_step:
            found = step
    return found


def shown_secret(secret: bytes) -> str:
    """The secret as people type it into an app: base 32 (RFC 4648 §6) without padding."""
    return base64.b32encode(secret).decode("ascii").rstrip("=")


def provisioning_uri(secret: bytes, account: str, issuer: str) -> str:
    """The `otpauth:` address that apps read from a picture."""
    totp = TOTP(secret, DIGITS, SHA1(), STEP_SECONDS)
    return totp.get_provisioning_uri(account, issuer)


def draw_recovery_codes(random: Callable[[int], bytes]) -> tuple[str, ...]:
    """Ten codes of 80 random bits, in groups of four: `ABCD-EFGH-IJKL-MNOP`."""
    return tuple(_grouped(base64.b32encode(random(_RECOVERY_BYTES)).decode("ascii")) for _ in range(RECOVERY_CODES))


def read_recovery_code(typed: str) -> str | None:
    """The code in the one form that is hashed, or None for what is none; case, spaces and dashes are ignored."""
    text = re.sub(r"[\s-]", "", typed[:_MAX_TYPED]).upper()
    return text if _RECOVERY.fullmatch(text) else None


def _grouped(text: str) -> str:
    return "-".join(text[at : at + _GROUP] for at in range(0, len(text), _GROUP))


def _hotp(secret: bytes) -> HOTP:
    return HOTP(secret, DIGITS, SHA1())
