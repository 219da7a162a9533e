"""MIME library: scan, structures and derived text, against the standard library's `email`."""

import email
import email.policy
import random
import time
import tracemalloc
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any

from postroom.mail.body import attachments
from postroom.mail.content import read
from postroom.mail.imap_data import bodystructure, envelope
from postroom.mail.mime import parse
from postroom.mail.tree import pack_tree, unpack_tree

_PROSE = (
    "the quarterly report shows that invoices were paid late by several customers in spring and we would like to "
    "propose a meeting about delivery terms prices and the new warehouse before the end of next month"
)
_WORDS = _PROSE.split()


def sample(size: int = 10_000) -> bytes:
    """A multipart/mixed message of about `size` bytes: alternative text and HTML, one small attachment."""
    rng = random.Random(7)  # fixed, so that runs compare
    prose = "\n".join(" ".join(rng.choices(_WORDS, k=12)) for _ in range(size // 240))
    message = EmailMessage()
    message["Received"] = "from out.example.com (out.example.com [192.0.2.7]) by mx.example.net with ESMTPS; " * 2
    message["DKIM-Signature"] = "v=1; a=rsa-sha256; c=relaxed/relaxed; d=example.com; s=s1; b=" + "QUJD" * 80
    message["From"] = "Alice Example <alice@example.com>"
    message["To"] = "Bob <bob@example.net>, Carol Jones <carol@example.net>"
    message["Cc"] = "team@example.org"
    message["Subject"] = "Grüße: quarterly report and the meeting"
    message["Date"] = "Mon, 02 Feb 2026 10:00:00 +0100"
    message["Message-ID"] = "<20260202.1@example.com>"
    message["References"] = "<a1@example.net> <a2@example.net> <a3@example.net>"
    message["In-Reply-To"] = "<a3@example.net>"
    message.set_content(prose)
    message.add_alternative(f"<html><body><p>{prose.replace(chr(10), '</p><p>')}</p></body></html>", subtype="html")
    message.add_attachment(rng.randbytes(size // 7), maintype="application", subtype="pdf", filename="report.pdf")
    return message.as_bytes(policy=email.policy.SMTP)


def _best(work: Callable[[], Any], seconds: float) -> float:
    """Seconds per call of the best of ten rounds, which is the figure least disturbed by neighbours."""
    work()
    started = time.perf_counter()
    work()
    once = max(time.perf_counter() - started, 1e-7)
    calls = max(1, int(seconds / 10 / once))
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - started) / calls)
    return best


def _stdlib(raw: bytes, policy: Any) -> None:
    message = email.message_from_bytes(raw, policy=policy)
    for name in ("from", "to", "cc", "subject", "date", "message-id"):
        _ = message[name]


def _hostile() -> dict[str, bytes]:
    mega = 1_000_000
    opening = b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n'
    nested = b"".join(b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (n, n) for n in range(10_000))
    return {
        "boundary-like lines": opening + b"--\n" * (mega // 3),
        "a million parts": opening + b"--b\n\n" * (mega // 5),
        "headers only": b"a:\n" * (mega // 3),
        "nested 10,000 deep": nested,
        "one line without end": b"x" * mega,
        "base64 body": b"Content-Transfer-Encoding: base64\r\n\r\n" + b"QUJD" * 19 * (mega // 78),
    }


def _large() -> bytes:
    """25 MB: a text and one attachment."""
    lines = (b"QUJD" * 19 + b"\r\n") * (25_000_000 // 78)
    return (
        b'From: a@example.com\r\nContent-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n\r\nhi\r\n--b\r\n'
        b"Content-Type: application/pdf; name=a.pdf\r\nContent-Transfer-Encoding: base64\r\n\r\n" + lines + b"--b--\r\n"
    )


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows `name`, `value`, `unit`, and where there is one `target` and `peer` (the standard library's figure)."""
    seconds = 0.1 if quick else 1.0
    raw = sample()
    message = parse(raw)
    packed = pack_tree(message.root)
    compat32 = _best(lambda: _stdlib(raw, email.policy.compat32), seconds) * 1000
    default = _best(lambda: _stdlib(raw, email.policy.default), seconds) * 1000

    def structures() -> None:
        envelope(message)
        bodystructure(message.root)

    rows: list[dict[str, Any]] = [
        _row("mime.parse 10 KB multipart", _best(lambda: parse(raw), seconds) * 1e3, "ms", 0.15, compat32),
        _row("email default policy, same", default, "ms"),
        _row("envelope + bodystructure", _best(structures, seconds) * 1e6, "µs", 60),
        _row("pack_tree", _best(lambda: pack_tree(message.root), seconds) * 1e6, "µs"),
        _row("unpack_tree", _best(lambda: unpack_tree(packed), seconds) * 1e6, "µs"),
        _row("packed tree", len(packed), "bytes"),
        _row("content.read", _best(lambda: read(raw, message), seconds) * 1e6, "µs"),
        _row("attachments", _best(lambda: attachments(message, raw), seconds) * 1e6, "µs"),
    ]
    large = _large()
    tracemalloc.start()
    parse(large)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows.append(_row("mime.parse 25 MB", _best(lambda: parse(large), seconds) * 1e3, "ms", 500))
    rows.append(_row("mime.parse 25 MB, memory beside the message", peak / 1e6, "MB", 25))
    for name, hostile in _hostile().items():
        # No type is inferred for a default.
        spent = _best(lambda hostile=hostile: parse(hostile), seconds / 10)  # type: ignore[misc]
        rows.append(_row(f"hostile: {name}", spent * 1e3 / (len(hostile) / 1e6), "ms/MB", 50))
    return rows


def _row(name: str, value: float, unit: str, target: float | None = None, peer: float | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "value": round(value, 4), "unit": unit}
    if target is not None:
        row["target"] = target
    if peer is not None:
        row["peer"] = round(peer, 4)
    return row


if __name__ == "__main__":
    import sys

    for line in run("--quick" in sys.argv):
        print(line)
