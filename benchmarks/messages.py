"""The reference load: distinct, realistic messages, the same for the same seed.

4.5 KB on average, half of them multipart/alternative, a vocabulary with the frequencies of a natural language (Zipf),
a fifth of them replies to earlier ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

VOCABULARY: Final = 30_000
REPLIES: Final = 0.2
_ONSETS: Final = (
    "",
    "b",
    "br",
    "c",
    "d",
    "dr",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "v",
    "w",
)
_NUCLEI: Final = ("a", "e", "i", "o", "u", "ai", "ea", "io", "ou")
_CODAS: Final = ("", "", "", "l", "m", "n", "nd", "ng", "r", "rt", "s", "st", "t", "x")
_GIVEN: Final = (
    "Anna",
    "Bo",
    "Chen",
    "Dana",
    "Emil",
    "Farah",
    "Goran",
    "Hanna",
    "Ilse",
    "Jonas",
    "Kofi",
    "Lena",
    "Mara",
    "Niko",
)
_FAMILY: Final = (
    "Abel",
    "Berg",
    "Costa",
    "Dietz",
    "Endo",
    "Frisch",
    "Garcia",
    "Holm",
    "Ivanov",
    "Jansen",
    "Kaya",
    "Lindt",
)
_HOSTS: Final = tuple(
    f"{name}.example" for name in ("north", "south", "east", "west", "harbour", "mill", "orchard", "quarry")
)


class Load:
    """Messages by number. `message(n)` is the same bytes whenever it is asked for."""

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed
        rng = random.Random(seed)
        words: dict[str, None] = {}
        while len(words) < VOCABULARY:
            # Frequent words are short, as in any language.
            syllables = 1 if len(words) < 120 else rng.choice((1, 2, 2, 3, 3, 4))
            words["".join(rng.choice(_ONSETS) + rng.choice(_NUCLEI) + rng.choice(_CODAS) for _ in range(syllables))] = (
                None
            )
        self._words = list(words)
        self._weights = list(accumulate(1 / (rank + 2.7) for rank in range(1, VOCABULARY + 1)))

    def message_id(self, number: int) -> str:
        """The Message-ID of a message, without its angle brackets."""
        return f"{number:08x}.{self._seed:x}@{_HOSTS[number % len(_HOSTS)]}"

    def message(self, number: int, to: str = "box@agents.example") -> bytes:
        """The message as it comes over the wire, CRLF and all."""
        rng = random.Random(self._seed * 1_000_003 + number)
        multipart = number % 2 == 1
        words = rng.choices(self._words, cum_weights=self._weights, k=self._length(rng, multipart))
        paragraphs = list(_paragraphs(rng, words))
        given, family = rng.choice(_GIVEN), rng.choice(_FAMILY)
        host = _HOSTS[number % len(_HOSTS)]
        sender = f"{given} {family} <{given.lower()}.{family.lower()}@{host}>"
        subject = " ".join(rng.choices(self._words[100:5000], k=rng.randint(2, 8))).capitalize()
        head = [
            f"Received: from out{rng.randint(1, 9)}.{host} (out.{host} [192.0.2.{rng.randint(1, 254)}])",
            f"\tby relay.{host} with ESMTPS id {rng.getrandbits(64):016x};",
            f"\tMon, 02 Feb 2026 {rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02} +0000",
            "DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d="
            + host
            + "; s=s1; h=from:to:subject:date:message-id;",
            f"\tbh={rng.getrandbits(256):064x}; b=" + "".join(rng.choices("ABCDEFabcdef0123456789+/", k=172)),
            f"From: {sender}",
            f"To: {to}",
            f"Subject: {subject}",
            "Date: Mon, 02 Feb 2026 10:00:00 +0100",
            f"Message-ID: <{self.message_id(number)}>",
            "MIME-Version: 1.0",
        ]
        if number > 40 and rng.random() < REPLIES:
            parent = self.message_id(rng.randrange(number - 40, number))
            head += [f"In-Reply-To: <{parent}>", f"References: <{parent}>"]
        body = _alternative(rng, paragraphs) if multipart else _plain(paragraphs)
        return ("\r\n".join(head) + "\r\n" + body).encode()

    def messages(self, count: int, start: int = 0, to: str = "box@agents.example") -> Iterator[bytes]:
        """`count` messages from number `start` on."""
        for number in range(start, start + count):
            yield self.message(number, to)

    @staticmethod
    def _length(rng: random.Random, multipart: bool) -> int:
        """Words; long-tailed as sizes of mail are. A multipart says everything twice."""
        return max(20, min(6000, int(rng.lognormvariate(4.95 if multipart else 5.75, 0.8))))


def _paragraphs(rng: random.Random, words: list[str]) -> Iterator[str]:
    at = 0
    while at < len(words):
        sentences = []
        for _ in range(rng.randint(1, 5)):
            if piece := words[at : at + rng.randint(4, 18)]:
                sentences.append(" ".join(piece).capitalize() + ".")
                at += len(piece)
        yield " ".join(sentences)


def _wrapped(text: str) -> str:
    lines, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) > 76:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\r\n".join([*lines, line])


def _plain(paragraphs: list[str]) -> str:
    head = "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 7bit\r\n\r\n"
    return head + "\r\n\r\n".join(map(_wrapped, paragraphs)) + "\r\n"


def _alternative(rng: random.Random, paragraphs: list[str]) -> str:
    boundary = f"=_{rng.getrandbits(96):024x}"
    html = "".join(f'<p style="margin:0 0 1em">{_wrapped(text)}</p>\r\n' for text in paragraphs)
    return (
        f'Content-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n'
        f"--{boundary}\r\n{_plain(paragraphs)}\r\n"
        f"--{boundary}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: 7bit\r\n\r\n"
        f'<html><head><meta charset="utf-8"></head><body>\r\n{html}</body></html>\r\n\r\n--{boundary}--\r\n'
    )
