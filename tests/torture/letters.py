"""Messages by number: the same bytes whenever they are asked for, and no two alike."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass, field
from typing import Final

_WORDS: Final = ("anchor", "barley", "cedar", "delta", "ember", "fjord", "garnet", "harbour", "indigo", "juniper")
LARGE: Final = 0.012
"""Share of messages too large to be parsed inside the server's loop."""


@dataclass(slots=True)
class Letter:
    """A message for mailboxes, by their place in `Deployment.boxes`. `stored` once it was answered `250`."""

    number: int
    seed: int
    to: tuple[int, ...]
    stored: bool = False
    tries: int = 0
    text: bytes | None = field(default=None, repr=False)

    @property
    def message_id(self) -> str:
        return f"{self.number}.{self.seed}@sender.example"

    @property
    def token(self) -> str:
        """A word that stands in no other message."""
        return f"zq{self.number}x{self.seed}"

    def octets(self) -> bytes:
        """The message as it goes over the wire, before dot-stuffing."""
        return make(self.seed, self.number, self.message_id, self.token, "team@lists.example")


def make(seed: int, number: int, message_id: str, token: str, to: str) -> bytes:
    """A message; one in five answers an earlier one, a few have an attachment of up to 1.5 MB."""
    rng = random.Random(f"{seed}/{message_id}")
    large = rng.random() < LARGE
    head = [
        f"From: Sender {number % 7} <sender{number % 7}@example.com>",
        f"To: <{to}>",
        f"Subject: {' '.join(rng.choices(_WORDS, k=4))} {number}",
        f"Date: Mon, 02 Feb 2026 10:{number // 60 % 60:02}:{number % 60:02} +0000",
        f"Message-ID: <{message_id}>",
        "MIME-Version: 1.0",
    ]
    if number > 30 and rng.random() < 0.2:
        parent = f"{number - rng.randint(1, 30)}.{seed}@sender.example"
        head += [f"In-Reply-To: <{parent}>", f"References: <{parent}>"]
    lines = [token]
    for _ in range(rng.randint(2, 60)):
        lines.append(("." if rng.random() < 0.05 else "") + " ".join(rng.choices(_WORDS, k=rng.randint(1, 12))))
    text = "\r\n".join(lines)
    if not large and rng.random() < 0.8:
        return ("\r\n".join([*head, "Content-Type: text/plain; charset=utf-8", "", text]) + "\r\n").encode()
    bound = f"=_{rng.getrandbits(64):x}"
    size = rng.randint(150_000, 1_100_000) if large else rng.randint(10, 4000)
    encoded = base64.encodebytes(rng.randbytes(size)).replace(b"\n", b"\r\n").decode()
    parts = [
        *head,
        f'Content-Type: multipart/mixed; boundary="{bound}"',
        "",
        f"--{bound}",
        "Content-Type: text/plain; charset=utf-8",
        "",
        text,
        f"--{bound}",
        "Content-Type: application/octet-stream",
        "Content-Transfer-Encoding: base64",
        f'Content-Disposition: attachment; filename="blob{number}.bin"',
        "",
        f"{encoded}--{bound}--",
    ]
    return ("\r\n".join(parts) + "\r\n").encode()
