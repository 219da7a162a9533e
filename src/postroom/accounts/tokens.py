"""Secrets that we draw for people: application passwords and session tokens (mail-server F2, F5; decisions B11). Pure.

`ap_` and 24 random bytes, `pms_` and 32, in base64url. The database holds their HMAC-SHA-256 under the deployment's
pepper (`keys.mac`), by which they are found: no password hash is computed for them, and none is needed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Final

APP_PASSWORD_BYTES: Final = 24
SESSION_BYTES: Final = 32

_APP_PASSWORD: Final = re.compile(r"ap_[A-Za-z0-9_-]{32}", re.ASCII)
_SESSION: Final = re.compile(r"pms_[A-Za-z0-9_-]{43}", re.ASCII)


def draw_app_password(random: Callable[[int], bytes]) -> str:
    return f"ap_{_text(random(APP_PASSWORD_BYTES))}"


def draw_session(random: Callable[[int], bytes]) -> str:
    return f"pms_{_text(random(SESSION_BYTES))}"


def is_app_password(text: str) -> bool:
    """Whether the text has the form of an application password."""
    return _APP_PASSWORD.fullmatch(text) is not None


def is_session(text: str) -> bool:
    """Whether the text has the form of a session token."""
    return _SESSION.fullmatch(text) is not None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")
