"""What the tests of DKIM share: answers of DNS, keys, and the canonical forms written down once more, line by line."""

import functools
import re
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from postroom.mailauth.dkim_key import Algorithm, PrivateKey
from postroom.mailauth.dkim_result import SignatureResult
from postroom.mailauth.dkim_sign import Signer
from postroom.mailauth.dkim_verify import verify
from postroom.mailauth.resolver import NameNotFoundError

T = TypeVar("T")

NOW = 1_750_000_000
DOMAIN = "example.com"

MAIL = (
    b"Received: from a.example by b.example;\r\n\tMon, 02 Feb 2026 10:00:00 +0100\r\n"
    b"From: Alice <alice@example.com>\r\n"
    b"To: Bob <bob@example.net>,\r\n  Carol <carol@example.net>\r\n"
    b"Subject:  Invoice \t 17 \r\n"
    b"Date: Mon, 02 Feb 2026 10:00:00 +0100\r\n"
    b"Message-ID: <1@example.com>\r\n"
    b"List-Unsubscribe: <https://example.com/u>\r\n"
    b"\r\n"
    b"Dear Bob,\r\n\r\nplease  pay. \r\n\t\r\nAlice\r\n\r\n\r\n"
)


@functools.cache
def rsa_key() -> PrivateKey:
    return PrivateKey.generate(Algorithm.RSA_SHA256)


@functools.cache
def ed_key() -> PrivateKey:
    return PrivateKey.generate(Algorithm.ED25519_SHA256)


def signer(key: PrivateKey) -> Signer:
    return Signer(DOMAIN, key.algorithm.key_type, key)


class Answers:
    """A resolver that knows these names; a value may be an error to raise. Names asked for are kept in `asked`."""

    def __init__(self, records: Mapping[str, Sequence[bytes] | Exception]) -> None:
        self.records = records
        self.asked: list[str] = []

    async def txt(self, name: str) -> Sequence[bytes]:
        self.asked.append(name)
        found = self.records.get(name)
        if found is None:
            raise NameNotFoundError(name)
        if isinstance(found, Exception):
            raise found
        return found


def published() -> Answers:
    """The records of both keys."""
    return Answers({f"{k.algorithm.key_type}._domainkey.{DOMAIN}": [k.public_record().encode()] for k in _keys()})


def _keys() -> tuple[PrivateKey, PrivateKey]:
    return rsa_key(), ed_key()


def done(work: Coroutine[Any, Any, T]) -> T:
    """Its result, without a loop: the answers are there at once; turns that it leaves to others pass."""
    try:
        while work.send(None) is None:
            pass
    except StopIteration as end:
        found: T = end.value
        return found
    raise AssertionError("it waited for something else than the resolver")


def run(raw: bytes, resolver: Answers | None = None, *, now: int = NOW) -> tuple[SignatureResult, ...]:
    """The results for a whole message."""
    return done(verify(raw, resolver if resolver is not None else published(), now=now))


def one(raw: bytes, resolver: Answers | None = None, *, now: int = NOW) -> SignatureResult:
    (result,) = run(raw, resolver, now=now)
    return result


def lines_of(body: bytes) -> list[bytes]:
    """Lines without their ends; the last is empty when the text ends in a line end."""
    return [line.removesuffix(b"\r") for line in body.split(b"\n")[:-1]] + body.split(b"\n")[-1:]


def reference_body(body: bytes, relaxed: bool) -> bytes:
    """RFC 6376 §3.4.3 and §3.4.4, as the text says it."""
    lines = lines_of(body)
    if relaxed:
        lines = [re.sub(rb"[ \t]+", b" ", line).rstrip(b" ") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    text = b"".join(line + b"\r\n" for line in lines)
    return text or (b"" if relaxed else b"\r\n")


def reference_header(header: bytes, names: Sequence[str], relaxed: bool) -> list[bytes]:
    """The fields that stand for `names`, in canonical form (RFC 6376 §3.4.1, §3.4.2, §5.4.2)."""
    fields: list[bytes] = []
    for line in lines_of(header):
        if line[:1] in (b" ", b"\t") and fields:
            fields[-1] += b"\r\n" + line
        elif line:
            fields.append(line)
    chosen = []
    for name in names:
        for at in range(len(fields) - 1, -1, -1):
            if fields[at].partition(b":")[0].strip().lower() == name.encode():
                chosen.append(fields.pop(at))
                break
    if not relaxed:
        return chosen
    made = []
    for field in chosen:
        title, _, value = field.partition(b":")
        value = re.sub(rb"[ \t]+", b" ", value.replace(b"\r\n", b"")).strip(b" ")
        made.append(title.strip().lower() + b":" + value)
    return made
