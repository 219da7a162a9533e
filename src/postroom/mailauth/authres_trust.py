"""Which Authentication-Results are believed, and which must go (RFC 8601 §5; inbound §17 step 1, edge case D9).

To be believed takes an authserv-id that is exactly the trusted one; to be removed it is enough that somebody might
take it for ours.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

import idna

from postroom.mail.domain import MAX_DOMAIN, domain_name
from postroom.mail.header import FIELD, decode_words
from postroom.mailauth.authres import FIELD_NAME, MAX_FIELD_BYTES, AuthenticationResults, parse
from postroom.mailauth.canonical import HeaderField, find_body

MAX_FIELDS: Final = 50
"""Fields that are looked at for one that is trusted."""

MAX_OCTETS: Final = 32 * 1024
"""Of all those fields together: reading that takes some ten milliseconds."""

_BREAKS: Final = re.compile(r"[\s;,()\"\\<>=/]+")
_LEFT_OUT: Final = re.compile(r"[\s\"\\]")
_COMMENT: Final = re.compile(r"\((?:[^()\\]|\\.)*+\)", re.DOTALL)
_MAX_NESTING: Final = 8
_HEAD: Final = 2048
"""Characters of a field in which its authserv-id is looked for."""


def canonical_id(text: str) -> str:
    """An authserv-id as it is compared: domains as A-labels in lower case, without a final dot."""
    name = domain_name(text.strip()) if len(text) <= MAX_DOMAIN + 1 else None
    return text.strip().rstrip(".").casefold() if name is None else name


def trusted_results(fields: Iterable[HeaderField], authserv_id: str) -> AuthenticationResults | None:
    """What the topmost field with that authserv-id says, of the fields of a message from the top down.

    Fields below it do not count, even with the same id, nor does a format of another version. Only for mail that a
    trusted server handed over (edge case D9). None: there is none.
    """
    wanted = canonical_id(authserv_id)
    looked_at = octets = 0
    for field in fields:
        if field.name != FIELD_NAME:
            continue
        looked_at += 1
        octets += len(field.value)
        if looked_at > MAX_FIELDS or octets > MAX_OCTETS or not wanted:
            return None
        found = parse(field.value)
        if found is not None and canonical_id(found.authserv_id) == wanted:
            return found if found.version in (None, 1) else None
    return None


def claims(value: bytes, authserv_ids: Iterable[str]) -> bool:
    """Whether the value of a field may be taken for one that a server of one of these ids wrote.

    Comments, quotes, case, final dots, escapes, other forms of the same characters (RFC 5890, Unicode's compatibility
    forms) and encoded words do not hide it. A long field that cannot be read is taken for one.
    """
    return _claims(value, _forms(authserv_ids))


def _forms(authserv_ids: Iterable[str]) -> frozenset[str]:
    """Our ids as they are compared, and as people see them."""
    forms = {canonical_id(text) for text in authserv_ids}
    for name in tuple(forms):
        if "xn--" in name:
            forms.add(_shown(idna.decode(name)))
    return frozenset(forms - {""})


def _claims(value: bytes, ours: frozenset[str]) -> bool:
    if len(value) > MAX_FIELD_BYTES:
        return True
    found = parse(value)
    if found is not None and canonical_id(found.authserv_id) in ours:
        return True
    text = value.decode("utf-8", "replace").replace("\r", "").replace("\n", "")
    if found is None and len(text) > _HEAD:
        return True  # too much to be looked through in all ways
    text = text[:_HEAD]
    return any(word.rstrip(".") in ours for word in _words(text, whole=found is None))


def _words(text: str, *, whole: bool) -> Iterator[str]:
    """What may be the authserv-id, read in all the ways that readers have; `whole`: results are not told apart."""
    bare = text
    for _ in range(_MAX_NESTING):
        shorter = _COMMENT.sub("", bare)
        if shorter == bare:
            break
        bare = shorter
    for form in {text, bare, decode_words(text), decode_words(bare)}:
        shown = _shown(form)
        before = shown.partition(";")[0]
        yield from _BREAKS.split(shown if whole else before)
        # Broken up by white space, quotes or escapes that a reader may leave out.
        yield "".join(before.split())
        yield _LEFT_OUT.sub("", before)


def _shown(text: str) -> str:
    """As it looks: one form for all compatible characters, none for those that nobody sees, in lower case."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(c for c in folded if unicodedata.category(c) not in ("Cf", "Mn"))


def claiming_spans(header: bytes, authserv_ids: Iterable[str]) -> list[tuple[int, int]]:
    """Where in a header block the Authentication-Results fields stand that must be removed: from, to behind each.

    Of more than `MAX_FIELDS` of them the lower ones go unread.
    """
    ours = _forms(authserv_ids)
    spans: list[tuple[int, int]] = []
    looked_at = 0
    for match in FIELD.finditer(header):
        if match[1].lower() == b"authentication-results":
            looked_at += 1
            if looked_at > MAX_FIELDS or _claims(match[2], ours):
                spans.append(match.span())
    return spans


def without_claims(raw: bytes, authserv_ids: Iterable[str], *, body_start: int | None = None) -> bytes:
    """A message without the fields that claim to be ours, for mail from strangers (edge case D9). `raw` if none do."""
    end = find_body(raw) if body_start is None else body_start
    spans = claiming_spans(raw[:end], authserv_ids)
    if not spans:
        return raw
    edges = [0, *(edge for span in spans for edge in span), len(raw)]
    return b"".join(raw[edges[at] : edges[at + 1]] for at in range(0, len(edges), 2))
