"""SMTP replies (RFC 5321 §4.2, RFC 3463 enhanced codes): the type, and every fixed reply the receiving side gives.

Texts are plain and constant. Nothing the client sent — addresses, host names, content — is echoed back in a refusal.
"""

import re
from dataclasses import dataclass, field
from typing import Final

# RFC 5321 §4.5.3.1.5: a reply line is at most 512 octets with code and CRLF. Room is left for "550-5.1.1 ".
_MAX_TEXT: Final = 480
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply: three-digit `code`, `enhanced` status code (RFC 3463) or `None`, and `text`.

    A newline in `text` starts a further reply line (RFC 5321 §4.2.1). Any other character outside printable ASCII
    becomes `?`, and a line longer than the limit of RFC 5321 §4.5.3.1.5 is cut, so no text can break the protocol.

    Raises `ValueError` for a code outside 200–599 or an enhanced code of another class.
    """

    code: int
    enhanced: str | None
    text: str
    wire: bytes = field(init=False, repr=False, compare=False)
    """The reply as sent when ENHANCEDSTATUSCODES is offered."""
    bare: bytes = field(init=False, repr=False, compare=False)
    """The reply without its enhanced code."""

    def __post_init__(self) -> None:
        if not 200 <= self.code <= 599:
            raise ValueError(f"not an SMTP reply code: {self.code}")
        if self.enhanced is not None and not self.enhanced.startswith(f"{self.code // 100}."):
            raise ValueError(f"enhanced code {self.enhanced} does not belong to {self.code}")
        text = self.text
        if text.isascii() and text.isprintable() and len(text) <= _MAX_TEXT:
            bare = f"{self.code} {text}\r\n".encode("ascii")
            wire = f"{self.code} {self.enhanced} {text}\r\n".encode("ascii") if self.enhanced else bare
        else:
            lines = [_UNPRINTABLE.sub("?", line)[:_MAX_TEXT] for line in text.split("\n")]
            bare = _render(self.code, "", lines)
            wire = _render(self.code, f"{self.enhanced} ", lines) if self.enhanced else bare
        object.__setattr__(self, "bare", bare)
        object.__setattr__(self, "wire", wire)

    @property
    def is_failure(self) -> bool:
        """Whether the reply is a 4xx or 5xx."""
        return self.code >= 400

    @property
    def is_permanent(self) -> bool:
        """Whether the reply is a 5xx."""
        return self.code >= 500


def _render(code: int, prefix: str, lines: list[str]) -> bytes:
    *first, last = lines
    return "".join([*(f"{code}-{prefix}{line}\r\n" for line in first), f"{code} {prefix}{last}\r\n"]).encode("ascii")


# 2xx and 3xx
READY_FOR_TLS: Final = Reply(220, "2.0.0", "Ready to start TLS")
BYE: Final = Reply(221, "2.0.0", "Bye")
AUTHENTICATED: Final = Reply(235, "2.7.0", "Authentication successful")
OK: Final = Reply(250, "2.0.0", "Ok")
CHUNK_OK: Final = Reply(250, "2.0.0", "Chunk ok")
SENDER_OK: Final = Reply(250, "2.1.0", "Sender ok")
RECIPIENT_OK: Final = Reply(250, "2.1.5", "Recipient ok")
CANNOT_VERIFY: Final = Reply(252, "2.5.2", "Cannot verify the user, send some mail and try")
EMPTY_CHALLENGE: Final = Reply(334, None, "")
ASK_USERNAME: Final = Reply(334, None, "VXNlcm5hbWU6")
ASK_PASSWORD: Final = Reply(334, None, "UGFzc3dvcmQ6")
START_DATA: Final = Reply(354, None, "End data with <CR><LF>.<CR><LF>")

# 421: always followed by the end of the connection
TOO_MANY_CONNECTIONS: Final = Reply(421, "4.3.2", "Too many connections, try again later")
TOO_MANY_FROM_ADDRESS: Final = Reply(421, "4.3.2", "Too many connections from your address")
SHUTTING_DOWN: Final = Reply(421, "4.3.2", "Service shutting down, try again later")
COMMAND_TIMEOUT: Final = Reply(421, "4.4.2", "Timeout waiting for command")
DATA_TIMEOUT: Final = Reply(421, "4.4.2", "Timeout waiting for data")
TOO_MANY_COMMANDS: Final = Reply(421, "4.7.0", "Too many commands, slow down")
TOO_MANY_FAILURES: Final = Reply(421, "4.7.0", "Too many failed logins")

# other temporary refusals
LOCAL_ERROR: Final = Reply(451, "4.3.0", "Temporary local problem, try again later")
TOO_MANY_RECIPIENTS: Final = Reply(452, "4.5.3", "Too many recipients")
AUTH_UNAVAILABLE: Final = Reply(454, "4.7.0", "Temporary authentication failure")
TLS_UNAVAILABLE: Final = Reply(454, "4.7.0", "TLS temporarily unavailable")

# syntax
UNKNOWN_COMMAND: Final = Reply(500, "5.5.2", "Command not recognised")
LINE_TOO_LONG: Final = Reply(500, "5.5.2", "Line too long")
BARE_LINE_FEED: Final = Reply(500, "5.5.2", "Lines must end with CRLF")
SYNTAX_NAME: Final = Reply(501, "5.5.4", "Host name required")
SYNTAX_SENDER: Final = Reply(501, "5.5.4", "Syntax: MAIL FROM:<address>")
SYNTAX_RECIPIENT: Final = Reply(501, "5.5.4", "Syntax: RCPT TO:<address>")
SYNTAX_ADDRESS: Final = Reply(501, "5.5.4", "Address syntax error")
SYNTAX_PARAMETERS: Final = Reply(501, "5.5.4", "Parameter syntax error")
SYNTAX_AUTH: Final = Reply(501, "5.5.4", "Syntax: AUTH mechanism")
SYNTAX_CHUNK: Final = Reply(501, "5.5.4", "Syntax: BDAT size [LAST]")
BAD_BASE64: Final = Reply(501, "5.5.4", "Invalid base64 data")
MALFORMED_RESPONSE: Final = Reply(501, "5.5.4", "Malformed authentication response")
AUTH_CANCELLED: Final = Reply(501, "5.5.4", "Authentication cancelled")
NO_PARAMETERS: Final = Reply(501, "5.5.4", "No parameters allowed")
NOT_IMPLEMENTED: Final = Reply(502, "5.5.1", "Command not implemented")
TLS_OFF: Final = Reply(502, "5.5.1", "TLS not available")

# sequence
SEND_HELO: Final = Reply(503, "5.5.1", "Send HELO/EHLO first")
SEND_LHLO: Final = Reply(503, "5.5.1", "Send LHLO first")
SENDER_SPECIFIED: Final = Reply(503, "5.5.1", "Sender already specified")
NEED_MAIL: Final = Reply(503, "5.5.1", "Need MAIL FROM before RCPT TO")
NEED_RCPT: Final = Reply(503, "5.5.1", "Need RCPT TO before DATA")
NEED_BDAT: Final = Reply(503, "5.5.1", "Binary data and chunks need BDAT")
CHUNKS_BEGUN: Final = Reply(503, "5.5.1", "Message data has begun")
TLS_ACTIVE: Final = Reply(503, "5.5.1", "TLS already active")
ALREADY_AUTHENTICATED: Final = Reply(503, "5.5.1", "Already authenticated")
AUTH_IN_TRANSACTION: Final = Reply(503, "5.5.1", "AUTH not permitted during a mail transaction")

# authentication
UNKNOWN_MECHANISM: Final = Reply(504, "5.5.4", "Unknown authentication mechanism")
AUTH_REQUIRED: Final = Reply(530, "5.7.0", "Authentication required")
AUTH_FAILED: Final = Reply(535, "5.7.8", "Authentication credentials invalid")
AUTH_NEEDS_TLS: Final = Reply(538, "5.7.11", "Encryption required for authentication")

# permanent refusals
REQUIRETLS_UNAVAILABLE: Final = Reply(550, "5.7.30", "REQUIRETLS not available")
TOO_LARGE: Final = Reply(552, "5.3.4", "Message size exceeds the limit")
MAIL_LOOP: Final = Reply(554, "5.4.6", "Too many hops, mail loop")
PIPELINING_VIOLATED: Final = Reply(554, "5.5.1", "Pipelining violated")
BARE_LINE_ENDING: Final = Reply(554, "5.5.1", "Bare CR or LF in message data")


def banner(hostname: str, text: str) -> Reply:
    """The 220 greeting of a connection (RFC 5321 §4.3.1); it never carries an enhanced code (RFC 2034 §3)."""
    return Reply(220, None, f"{hostname} {text}")


def help_text(verbs: list[str]) -> Reply:
    """The answer to HELP: the commands of the profile."""
    return Reply(214, "2.0.0", "Commands: " + " ".join(verbs))


def queued(message_id: str) -> Reply:
    """The acceptance of a message, given only when it is committed (A8)."""
    return Reply(250, "2.0.0", f"Ok: queued as {message_id}")
