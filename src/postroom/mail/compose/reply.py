"""Answering and forwarding: subjects, References, who is answered (outbound §5, §6.4; inbound §28.8; FR-OUT-5)."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from postroom.mail.address import Address
from postroom.mail.compose.errors import ComposeError
from postroom.mail.compose.fields import ascii_domain, is_writable_id, whole_characters
from postroom.mail.subject import MAX_SUBJECT_CHARS, normalise_subject

MAX_REFERENCES: Final = 20
MAX_REFERENCES_BYTES: Final = 2048
MAX_NAME_CHARS: Final = 78

_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def message_id(ulid: str, from_domain: str) -> str:
    """The Message-ID of a message of ours, without angle brackets (outbound §6.9, C7)."""
    return f"{ulid.lower()}@{ascii_domain(from_domain, 'Message-ID').lower()}"


def reply_subject(subject: str | None) -> str:
    """`Re: ` exactly once before the normalised subject, at most 998 characters."""
    return _prefixed("Re: ", subject)


def forward_subject(subject: str | None) -> str:
    """`Fwd: ` exactly once before the normalised subject, at most 998 characters."""
    return _prefixed("Fwd: ", subject)


def _prefixed(prefix: str, subject: str | None) -> str:
    return (prefix + normalise_subject(subject))[:MAX_SUBJECT_CHARS].rstrip()


def build_references(references: Sequence[str], in_reply_to: Sequence[str], parent_id: str) -> tuple[str, ...]:
    """References of an answer to the message `parent_id` with these References and In-Reply-To, all normalised (C2).

    Of repeated ids the last counts; at most 20 are kept, the first and the newest, in at most 2,048 bytes; ids that
    cannot be written (not ASCII, controls, over-long) are left out.
    """
    newest_first: dict[str, None] = {}
    for value in reversed((*(references or in_reply_to), parent_id)):
        if is_writable_id(value):
            newest_first.setdefault(value, None)
    ids = list(reversed(newest_first))
    kept = ids if len(ids) <= MAX_REFERENCES else [ids[0], *ids[1 - MAX_REFERENCES :]]
    size = sum(len(value) + 3 for value in kept) - 1  # `<`, `>` and one space between
    while size > MAX_REFERENCES_BYTES:
        size -= len(kept.pop(1)) + 3  # never the parent: two ids of the longest fit
    return tuple(kept)


class ReplyTarget(NamedTuple):
    address: Address
    mismatch: bool
    """There was a Reply-To that is not trusted: flag `reply_to_mismatch`."""


def reply_target(
    from_: Address,
    reply_to: Sequence[Address],
    *,
    known_sender: bool,
    organisational_domain: Callable[[str], str],
    written_before: Callable[[Address], bool],
) -> ReplyTarget:
    """Whom an answer goes to (outbound §5.2, D3): the first Reply-To if it can be trusted, else From.

    `known_sender` is the trust of the message answered; `organisational_domain` maps a domain (A-labels) by the public
    suffix list; `written_before` says whether an address is a contact that the identity has written to.
    """
    if not reply_to or address_key(reply_to[0]) == address_key(from_):
        return ReplyTarget(_tidy(from_), False)
    first = reply_to[0]
    domains = [_domain_of(first), _domain_of(from_)]
    same = None not in domains and len({organisational_domain(domain) for domain in domains if domain}) == 1
    if known_sender or same or written_before(first):
        return ReplyTarget(_tidy(first), False)
    return ReplyTarget(_tidy(from_), True)


class ReplyRecipients(NamedTuple):
    to: tuple[Address, ...]
    cc: tuple[Address, ...]


def reply_all_recipients(
    target: Address, to: Iterable[Address], cc: Iterable[Address], own: Collection[str]
) -> ReplyRecipients:
    """Recipients of a reply to all: the target, then To; Cc stays Cc (outbound §5.1).

    Left out are repetitions and every address of the identity: `own`, in lower case with A-labels, of any status, with
    or without a detail after `+`. Blind recipients are no argument, so the answer cannot reveal one (A10).
    """
    seen: set[str] = set()
    listed: list[tuple[Address, ...]] = []
    for addresses in ((target, *to), cc):
        kept = []
        for address in addresses:
            key = address_key(address)
            if key in seen or key in own or without_detail(key) in own:
                continue
            seen.add(key)
            kept.append(_tidy(address))
        listed.append(tuple(kept))
    return ReplyRecipients(*listed)


def address_key(address: Address) -> str:
    """The form in which addresses are compared: lower case, A-labels (outbound §5.3); as written where that fails."""
    domain = _domain_of(address)
    return f"{address.local}@{address.domain if domain is None else domain}".lower()


def without_detail(key: str) -> str:
    """An address key without the detail after the first `+` of its local part (inbound §7.1)."""
    local, _, domain = key.rpartition("@")
    return f"{local.partition('+')[0]}@{domain}"


def _domain_of(address: Address) -> str | None:
    try:
        return ascii_domain(address.domain, "domain").lower()
    except ComposeError:
        return None


def _tidy(address: Address) -> Address:
    """The address with a display name that can be written: no controls, at most 78 characters."""
    name = " ".join(_CONTROLS.sub(" ", whole_characters(address.name)).split())[:MAX_NAME_CHARS].rstrip()
    return Address(name, address.local, address.domain)


def quote_text(text: str) -> str:
    """`text` with `> ` before each line, `>` before lines that are quotes themselves; for composers of people."""
    return "\n".join((">" if line.startswith(">") else "> ") + line for line in text.splitlines()).replace(
        "> \n", ">\n"
    )
