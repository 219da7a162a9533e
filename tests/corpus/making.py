"""How the messages of `auth/` were made: what they say, who signed and sealed them, and what was done to them then.

`python -m tests.corpus.making` writes them again; a test compares. Signed by the letter of RFC 6376, RFC 8463 and
RFC 8617, with nothing of the product: canonical forms are those that `tests/mailauth` wrote down line by line.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.corpus.cases import HERE
from tests.mailauth.dkim_tools import reference_body, reference_header

SIGNED_AT: Final = 1_770_026_400
"""2026-02-02T10:00:00Z, two hours before the messages arrive."""
NAMES: Final = ("from", "to", "subject", "date", "message-id")
FAILED: Final = "front.example; dkim=fail header.d=reject.example"


@cache
def _key(name: str) -> RSAPrivateKey | Ed25519PrivateKey:
    found = load_pem_private_key((HERE / "keys" / f"{name}.test-only.pem").read_bytes(), None)
    assert isinstance(found, RSAPrivateKey | Ed25519PrivateKey)
    return found


def _signature(key: str, data: bytes) -> str:
    digest, private = hashlib.sha256(data).digest(), _key(key)
    if isinstance(private, Ed25519PrivateKey):
        signed = private.sign(digest)  # RFC 8463 §3: of the hash
    else:
        signed = private.sign(digest, padding.PKCS1v15(), Prehashed(hashes.SHA256()))
    return base64.b64encode(signed).decode()


def letter(domain: str, *, author: str = "", text: str = "The offer is good for two weeks.", more: str = "") -> bytes:
    """A message from `ann` at the domain; `author` is the whole value of From where it is another."""
    head = (
        f"From: {author or f'Ann Example <ann@{domain}>'}\r\nTo: Box <box@agents.example>\r\nSubject: Our  offer\r\n"
        f"Message-ID: <offer-1@{domain}>\r\nDate: Mon, 02 Feb 2026 10:00:00 +0000\r\n{more}"
        "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    )
    return f"{head}Dear Box,\r\n\r\n{text} \r\n\r\nAnn\r\n".encode()


def signed(
    raw: bytes,
    domain: str,
    *,
    key: str = "rsa",
    selector: str = "",
    c: str = "relaxed/relaxed",
    names: Sequence[str] = NAMES,
    length: int | None = None,
    tags: str = "",
    algorithm: str = "",
    at: int = SIGNED_AT,
) -> bytes:
    """The message with a DKIM-Signature before it; `tags` are more of them, each with its semicolon."""
    kind = algorithm or ("ed25519-sha256" if key == "ed25519" else "rsa-sha256")
    start = f"DKIM-Signature: v=1; a={kind}; c={c}; d={domain}; s={selector or key};\r\n\tt={at}; {tags}"
    return _field(start, raw, key, c, names, length) + raw


def _field(start: str, raw: bytes, key: str, c: str, names: Sequence[str], length: int | None = None) -> bytes:
    header, _, body = raw.partition(b"\r\n\r\n")
    by_header, by_body = (form == "relaxed" for form in c.split("/"))
    canonical = reference_body(body, by_body)[:length]
    body_hash = base64.b64encode(hashlib.sha256(canonical).digest()).decode()
    counted = "" if length is None else f"l={length}; "
    text = f"{start}{counted}h={':'.join(names)};\r\n\tbh={body_hash};\r\n\tb="
    chosen = reference_header(header + b"\r\n", names, by_header)
    return (text + _signature(key, _hashed(chosen, text, by_header))).encode() + b"\r\n"


def _hashed(chosen: Sequence[bytes], own: str, relaxed: bool) -> bytes:
    title = own.partition(":")[0].lower()
    (last,) = reference_header(own.encode() + b"\r\n", [title], relaxed)
    return b"".join(field + b"\r\n" for field in chosen) + last


def sealed(raw: bytes, *, cv: str, findings: str = FAILED, domain: str = "sealer.example", key: str = "rsa") -> bytes:
    """The message with one more ARC set before it (RFC 8617 §5.1)."""
    header = raw.partition(b"\r\n\r\n")[0]
    instance = header.count(b"ARC-Seal:") + 1
    kind = "ed25519-sha256" if key == "ed25519" else "rsa-sha256"
    results = f"ARC-Authentication-Results: i={instance}; {findings}\r\n".encode()
    start = (
        f"ARC-Message-Signature: i={instance}; a={kind}; c=relaxed/relaxed; d={domain}; s={key}; t={SIGNED_AT};\r\n\t"
    )
    message_signature = _field(start, raw, key, "relaxed/relaxed", NAMES)
    seal = f"ARC-Seal: i={instance}; a={kind}; cv={cv}; d={domain}; s={key}; t={SIGNED_AT};\r\n\tb="
    new = message_signature + results
    earlier = _sets(new + header + b"\r\n", instance)
    return (seal + _signature(key, _hashed(earlier, seal, relaxed=True))).encode() + b"\r\n" + new + raw


def _sets(header: bytes, last: int) -> list[bytes]:
    """The canonical fields of all sets in the order in which a seal covers them, the seal of the last left out."""
    titles = ("arc-authentication-results", "arc-message-signature", "arc-seal")
    found = {}
    for title in titles:
        for field in reference_header(header, [title] * last, relaxed=True):
            found[int(field.partition(b"i=")[2].partition(b";")[0]), title] = field
    places = [(instance, title) for instance in range(1, last + 1) for title in titles]
    return [found[place] for place in places if place in found]


def changed(raw: bytes, old: bytes, new: bytes) -> bytes:
    """As it was after somebody edited it on its way."""
    assert raw.count(old) == 1
    return raw.replace(old, new)


def results(text: str, raw: bytes) -> bytes:
    """The message with a claim of authentication results before it."""
    return f"Authentication-Results: {text}\r\n".encode() + raw


def _forwarded(raw: bytes) -> bytes:
    """As a list sends it on: with a line of its own below."""
    return raw + b"-- \r\nThe list\r\n"


REJECT: Final = "reject.example"
PASSES: Final = "dmarc=pass header.from=reject.example; dkim=pass header.d=reject.example; spf=pass"


def _signed(domain: str = REJECT, **how: object) -> bytes:
    return signed(letter(domain), domain, **how)  # type: ignore[arg-type]  # what `signed` takes


def _expires(seconds: int) -> bytes:
    return _signed(tags=f"x={SIGNED_AT + seconds}; ")


def _in_strict(author: str, domain: str) -> bytes:
    return signed(letter(author), domain)


def _two_authors() -> bytes:
    return signed(letter(REJECT, author="ann@reject.example, eve@reject.example"), REJECT)


def _chain(*, broken: bool = False) -> bytes:
    once = sealed(_forwarded(_signed()), cv="none")
    again = sealed(once, cv="pass", domain="nothing.example")
    return changed(again, b"two weeks", b"two years") if broken else again


RECIPES: Final[dict[str, Callable[[], bytes]]] = {
    "d1-dkim-relaxed-relaxed": _signed,
    "d1-dkim-simple-simple": lambda: _signed(c="simple/simple"),
    "d1-dkim-relaxed-simple": lambda: _signed(c="relaxed/simple"),
    "d1-dkim-simple-relaxed": lambda: _signed(c="simple/relaxed"),
    "d1-dkim-ed25519": lambda: _signed(key="ed25519"),
    "d1-dkim-ed25519-simple": lambda: _signed(key="ed25519", c="simple/simple"),
    "d1-dkim-both-algorithms": lambda: signed(_signed(), REJECT, key="ed25519"),
    "d1-dkim-relaxed-survives-reflowing": lambda: changed(_signed(), b"Subject: Our  offer", b"SUBJECT:  Our offer"),
    "d1-dkim-simple-breaks-by-reflowing": lambda: changed(
        _signed(c="simple/simple"), b"Subject: Our  offer", b"Subject: Our offer"
    ),
    "d1-dkim-relaxed-survives-blanks": lambda: changed(_signed(), b"weeks. \r\n", b"weeks.\t \t\r\n"),
    "d1-dkim-body-changed": lambda: changed(_signed(), b"two weeks", b"two years"),
    "d1-dkim-header-changed": lambda: changed(_signed(), b"Subject: Our  offer", b"Subject: Your offer"),
    "d1-dkim-from-changed": lambda: changed(_signed(), b"From: Ann Example <ann@", b"From: Ann Example <eve@"),
    "d1-dkim-from-added": lambda: b"From: eve@reject.example\r\n" + _signed(),
    "d1-dkim-field-added-below": lambda: changed(_signed(), b"MIME-Version", b"Subject: Pay at once\r\nMIME-Version"),
    "d1-dkim-length-is-all": lambda: _signed(
        length=len(b"Dear Box,\r\n\r\nThe offer is good for two weeks.\r\n\r\nAnn\r\n")
    ),
    "d1-dkim-length-and-more": lambda: _signed(length=11) + b"Pay at once.\r\n",
    "d1-dkim-length-too-long": lambda: _signed(length=11).replace(b"l=11;", b"l=1100;"),
    "d1-dkim-not-expired": lambda: _expires(86_400),
    "d1-dkim-expired": lambda: _expires(600),
    "d1-dkim-signed-tomorrow": lambda: _signed(at=SIGNED_AT + 172_800),
    "d1-dkim-domain-of-another": lambda: signed(letter(REJECT), "nothing.example"),
    "d1-dkim-other-key": lambda: _signed(key="other", selector="rsa"),
    "d1-dkim-no-key": lambda: _signed(selector="absent"),
    "d1-dkim-key-revoked": lambda: _signed(selector="revoked"),
    "d1-dkim-two-keys": lambda: _signed(selector="twice"),
    "d1-dkim-weak-key": lambda: _signed(key="weak"),
    "d1-dkim-key-for-tests": lambda: _signed(selector="testing"),
    "d1-dkim-key-not-known-now": lambda: _signed(selector="slow"),
    "d1-dkim-sha1": lambda: _signed(algorithm="rsa-sha1"),
    "d1-dkim-unknown-algorithm": lambda: _signed(algorithm="rsa-sha512"),
    "d1-dkim-from-not-signed": lambda: _signed(names=("to", "subject", "date")),
    "d1-dkim-identity-outside": lambda: _signed(tags="i=ann@nothing.example; "),
    "d1-dkim-identity-below": lambda: _signed(tags="i=ann@sub.reject.example; "),
    "d1-dkim-unreadable": lambda: b"DKIM-Signature: v=1; a=rsa-sha256; this is none\r\n" + letter(REJECT),
    "d1-dkim-one-of-two-passes": lambda: signed(changed(_signed(), b"two weeks", b"two years"), REJECT, key="ed25519"),
    "d1-dkim-no-author-policy": lambda: _signed("nothing.example"),
    "d1-dkim-policy-none": lambda: _signed("monitor.example"),
    "d1-nothing-policy-reject": lambda: letter(REJECT),
    "d1-nothing-policy-quarantine": lambda: letter("quarantine.example"),
    "d1-nothing-policy-none": lambda: letter("monitor.example"),
    "d1-nothing-no-policy": lambda: letter("nothing.example"),
    "d1-nothing-from-a-domain-that-is-none": lambda: letter("absent.example"),
    "d1-policy-unreadable": lambda: letter("broken.example"),
    "d1-policy-twice": lambda: letter("twice.example"),
    "d1-policy-not-known-now": lambda: letter("slow.example"),
    "d1-strict-dkim-of-subdomain": lambda: _in_strict("strict.example", "mail.strict.example"),
    "d1-strict-dkim-of-the-domain": lambda: _in_strict("strict.example", "strict.example"),
    "d1-strict-spf-of-subdomain": lambda: letter("strict.example"),
    "d1-relaxed-dkim-of-subdomain": lambda: _in_strict("relaxed.example", "mail.relaxed.example"),
    "d1-relaxed-dkim-of-parent": lambda: _in_strict("mail.relaxed.example", "relaxed.example"),
    "d1-relaxed-spf-of-subdomain": lambda: letter("relaxed.example"),
    "d1-relaxed-spf-of-sibling": lambda: letter("news.relaxed.example"),
    "d1-subdomain-policy-none": lambda: letter("news.parent.example"),
    "d1-subdomain-policy-reject": lambda: letter("news.loose.example"),
    "d1-subdomain-that-is-none": lambda: letter("gone.missing.example"),
    "d1-subdomain-inherits": lambda: letter("a.b.reject.example"),
    "d1-walk-stops-at-an-organisation": lambda: letter("x.dept.walk.example"),
    "d1-walk-does-not-align-across": lambda: signed(letter("x.dept.walk.example"), "walk.example"),
    "d1-spf-fail": lambda: letter("nothing.example"),
    "d1-spf-pass-of-another-domain": lambda: letter(REJECT),
    "d1-spf-softfail": lambda: letter("soft.example"),
    "d1-spf-neutral": lambda: letter("neutral.example"),
    "d1-spf-none": lambda: letter("absent.example"),
    "d1-spf-include": lambda: letter("include.example"),
    "d1-spf-include-does-not-match": lambda: letter("include.example"),
    "d1-spf-include-of-nothing": lambda: letter("includenone.example"),
    "d1-spf-redirect": lambda: letter("redirect.example"),
    "d1-spf-mx": lambda: letter("mx.example"),
    "d1-spf-a-with-length": lambda: letter("a.example"),
    "d1-spf-exists-macro": lambda: letter("macro.example"),
    "d1-spf-three-void": lambda: letter("void.example"),
    "d1-spf-eleven-lookups": lambda: letter("many.example"),
    "d1-spf-includes-itself": lambda: letter("circle.example"),
    "d1-spf-unreadable": lambda: letter("syntax.example"),
    "d1-spf-twice": lambda: letter("twospf.example"),
    "d1-spf-not-known-now": lambda: letter("slowspf.example"),
    "d1-spf-of-helo": lambda: letter("helo.example"),
    "d1-spf-of-helo-of-another": lambda: letter(REJECT),
    "d1-two-authors-in-one-field": _two_authors,
    "d1-two-authors-of-two-domains": lambda: signed(
        letter(REJECT, author="ann@reject.example, eve@nothing.example"), REJECT
    ),
    "d1-two-from-fields": lambda: signed(
        b"From: eve@nothing.example\r\n" + letter(REJECT), REJECT, names=("from", "from", "to", "subject")
    ),
    "d1-author-without-domain": lambda: letter(REJECT, author="Ann"),
    "d1-author-in-a-group": lambda: signed(letter(REJECT, author="Sales: ann@reject.example;"), REJECT),
    "d1-author-is-in-the-name": lambda: signed(
        letter("nothing.example", author='"ceo@reject.example" <eve@nothing.example>'), "nothing.example"
    ),
    "d1-author-in-other-case": lambda: signed(letter(REJECT, author="ANN@Reject.EXAMPLE"), REJECT),
    "d1-author-international": lambda: signed(letter("xn--bcher-kva.example"), "xn--bcher-kva.example"),
    "d1-code-of-a-known-sender": lambda: signed(letter(REJECT, text="Your verification code is 481 207."), REJECT),
    "d1-code-of-who-says-so": lambda: letter(REJECT, text="Your verification code is 481 207."),
    "d1-arc-pass": _chain,
    "d1-arc-pass-that-says-dmarc-passed": lambda: sealed(
        _forwarded(_signed()), cv="none", findings=f"front.example; {PASSES}", domain="loose.example"
    ),
    "d1-arc-pass-ed25519": lambda: sealed(_forwarded(_signed()), cv="none", key="ed25519"),
    "d1-arc-and-dkim-pass": lambda: sealed(_signed(), cv="none"),
    "d1-arc-body-changed": lambda: _chain(broken=True),
    "d1-arc-says-it-failed": lambda: sealed(sealed(_forwarded(_signed()), cv="none"), cv="fail"),
    "d1-arc-first-says-pass": lambda: sealed(_forwarded(_signed()), cv="pass"),
    "d1-arc-set-is-missing": lambda: changed(_chain(), b"ARC-Seal: i=1;", b"X-Was-Seal: i=1;"),
    "d1-arc-seal-of-another-key": lambda: sealed(_forwarded(_signed()), cv="none", domain="other.example"),
    "d1-arc-key-not-known-now": lambda: sealed(_forwarded(_signed()), cv="none", domain="slow.example"),
    "d9-in-our-name": lambda: results(f"mx.agents.example; {PASSES}", letter(REJECT)),
    "d9-in-our-name-in-disguise": lambda: results(
        '(x) "MX.Agents.Example" . 1; dmarc=pass', results(f"mx.agents.example.; {PASSES}", letter(REJECT))
    ),
    "d9-in-our-name-folded": lambda: results("\r\n mx.agents.example\r\n\t; dmarc=pass", letter(REJECT)),
    "d9-of-a-stranger": lambda: results(f"mx.nothing.example; {PASSES}", letter(REJECT)),
    "d9-in-the-name-of-the-trusted": lambda: results(f"front.example; {PASSES}", letter(REJECT)),
    "d9-relayed-spf-pass": lambda: results("front.example; spf=pass smtp.mailfrom=ann@reject.example", letter(REJECT)),
    "d9-relayed-spf-fail": lambda: results("front.example; spf=fail smtp.mailfrom=ann@reject.example", letter(REJECT)),
    "d9-relayed-unchecked": lambda: letter(REJECT),
    "d9-relayed-dmarc-pass-is-ours-to-find": lambda: results(
        "front.example; dmarc=pass header.from=reject.example", letter(REJECT)
    ),
    "d9-relayed-dmarc-while-we-cannot": lambda: results(
        "front.example; dmarc=pass header.from=slow.example", letter("slow.example")
    ),
    "d9-relayed-dmarc-fail-while-we-cannot": lambda: results(
        "front.example; dmarc=fail (p=reject) header.from=slow.example policy.dmarc=reject", letter("slow.example")
    ),
    "d9-relayed-only-the-topmost": lambda: results(
        "front.example; spf=fail smtp.mailfrom=ann@reject.example",
        results("front.example; spf=pass smtp.mailfrom=ann@reject.example", letter(REJECT)),
    ),
    "d9-relayed-below-a-stranger": lambda: results(
        "mx.nothing.example; spf=fail",
        results("front.example; spf=pass smtp.mailfrom=ann@reject.example", letter(REJECT)),
    ),
    "d9-relayed-in-our-name": lambda: results(f"mx.agents.example; {PASSES}", letter(REJECT)),
    "d9-relayed-and-signed": _signed,
}


def main() -> None:
    for name, recipe in RECIPES.items():
        (HERE / "auth" / f"{name}.eml").write_bytes(recipe())


if __name__ == "__main__":
    main()
