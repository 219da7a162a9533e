"""A decided request to octets and what is stored of them (outbound §6). Pure, and made to run in another process: what
goes in and out can be pickled, and a refusal is a value."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from postroom.accounts.policy import Disclosure
from postroom.directory.models import IdentityKind
from postroom.inbound.describe import describe
from postroom.mail import body, mime
from postroom.mail.address import Address, parse_addresses
from postroom.mail.compose import (
    Attachment,
    AutoSubmitted,
    Body,
    Composed,
    ComposeError,
    Draft,
    Forwarded,
    ListUnsubscribe,
    assemble,
    build_references,
    compose,
    forward_subject,
    message_id,
    reply_subject,
)
from postroom.mail.compose.fields import is_writable_id
from postroom.mail.content import EXTRACTED_LIMIT, safe_html
from postroom.mail.subject import clean_subject
from postroom.mail.transfer import decoded
from postroom.mail.tree import moved_tree
from postroom.mailbox.linked_files import LinkedFile
from postroom.mailbox.models import Content, Mailpoint, RecipientKind
from postroom.mailbox.queries import MessageView
from postroom.outbound.facts import Facts, has_own_id
from postroom.outbound.file_links import LinkPlan
from postroom.outbound.models import Operation, RecipientField, SendKind
from postroom.outbound.policy import Chosen, Decision
from postroom.outbound.request import SendRequest
from postroom.outbound.send_rules import SendRules

QUICK_OCTETS: Final = 24 * 1024
QUICK_TAGS: Final = 150
"""What of each a message may have that is composed on the event loop: about two milliseconds' worth."""
MAX_REATTACHED: Final = 500
BASE64_STEP: Final = 192 * 1024
SYNTHETIC_SUFFIX: Final = "@synthetic.invalid"
"""Ends the ids that stand in for those of messages without any; nobody else knows them."""


@dataclass(frozen=True, slots=True)
class Original:
    """The message that is forwarded: its note, and its octets when they are needed."""

    note: Forwarded
    raw: bytes | None = field(default=None, repr=False)
    with_html: bool = False
    with_files: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """Everything of one message. `draft` has neither bodies nor attachments; `limit` is in octets."""

    draft: Draft
    words: Body
    signature: Body | None
    files: tuple[Attachment, ...]
    original: Original | None
    unsubscribe_url: str | None
    blind: tuple[Mailpoint, ...]
    kind: SendKind
    boundary: str
    limit: int
    disclosure: str | None = None
    """What both bodies end with: that an AI wrote it (E8)."""
    links: LinkPlan | None = None
    """What links in place of large attachments are made with; None: a message that is too large is refused (G5)."""

    @property
    def is_quick(self) -> bool:
        """Whether it is no trouble to do it while others wait."""
        bodies = [self.words, self.signature or Body()]
        if self.original is not None:
            if self.original.raw is not None:
                return False
            bodies.append(self.original.note.body)
        size = sum(len(one.text or "") + len(one.html or "") for one in bodies)
        size += sum(file.octets for file in self.files)
        return size <= QUICK_OCTETS and sum((one.html or "").count("<") for one in bodies) <= QUICK_TAGS


@dataclass(frozen=True, slots=True)
class Written:
    """The octets, unsigned, and their description; `eight_bit` when an attached message needs 8BITMIME."""

    octets: bytes = field(repr=False)
    content: Content = field(repr=False)
    eight_bit: bool
    linked: tuple[LinkedFile, ...] = ()
    """Files that it links to and does not hold."""


@dataclass(frozen=True, slots=True)
class Unwritable:
    """Why not: `message_too_large`, or `invalid_request` about the member `path`."""

    code: str
    path: str


def write(job: Job, now: datetime) -> Written | Unwritable:
    """Compose and describe. Never raises on the content of a request or of the message forwarded."""
    files, html = list(job.files), None
    if job.original is not None and job.original.raw is not None:
        html, more = _opened(job.original)
        files += more
    if job.links is None and sum(file.octets for file in files) > job.limit:
        return Unwritable("message_too_large", "attachments")
    words = job.words
    if words.html is None and html is not None:
        words = Body(words.text, "")  # the caller wrote nothing: the original's look is not lost
    linked: list[int] = []
    try:
        while True:
            composed = _composed(job, words, _note(job.original, html), files, linked)
            if composed.size <= job.limit:
                break
            further = () if job.links is None else job.links.further(composed.size, files, linked, job.limit)
            if not further:
                return Unwritable("message_too_large", "attachments")
            linked += further
        octets = composed.to_bytes()
    except ComposeError as error:
        return Unwritable("invalid_request", _MEMBERS.get(error.field, error.field.lower()))
    content = describe(b"", octets, now)
    stored = () if job.links is None else tuple(job.links.file(at, files[at]) for at in linked)
    return Written(octets, _stored(job, content), composed.eight_bit, stored)


def signed_copy(content: Content, before: int) -> Content:
    """The description of the same message with `before` bytes of signatures before it."""
    if not before:
        return content
    size, prefix = content.raw_size + before, content.prefix_len + before
    return replace(content, raw_size=size, prefix_len=prefix, part_tree=moved_tree(content.part_tree, before))


def _composed(
    job: Job, words: Body, note: Forwarded | None, files: Sequence[Attachment], linked: Sequence[int]
) -> Composed:
    """The message with links to the files at `linked`, and the others in it. Raises ComposeError."""
    bodies = assemble(
        words,
        forwarded=note,
        signature=job.signature,
        links=[] if job.links is None else [job.links.link(at, files[at]) for at in linked],
        disclosure=job.disclosure,
        unsubscribe_url=job.unsubscribe_url,
    )
    held = tuple(file for at, file in enumerate(files) if at not in linked)
    return compose(replace(job.draft, text=bodies.text, html=bodies.html, attachments=held), job.boundary)


# Of what the composer complains, as members of a request.
_MEMBERS: Final = {
    "Subject": "subject",
    "To": "to",
    "Cc": "cc",
    "content_type": "attachments",
    "filename": "attachments",
    "Content-ID": "attachments",
    "List-Unsubscribe": "unsubscribe",
}


def _stored(job: Job, content: Content) -> Content:
    """What is stored says more than the octets: the kind, and who got blind copies; and all of what we send is new."""
    blind = tuple((RecipientKind.BCC, point) for point in job.blind)
    text, _ = body.cut_text(content.text, EXTRACTED_LIMIT)
    return replace(
        content,
        kind=job.kind.value,
        recipients=(*content.recipients, *blind),
        extracted_text=text,
        snippet=body.snippet(text),
    )


def _note(original: Original | None, html: str | None) -> Forwarded | None:
    if original is None:
        return None
    return replace(original.note, body=Body(original.note.body.text, html))


def _opened(original: Original) -> tuple[str | None, list[Attachment]]:
    """Sanitised HTML and attachments of the message that is handed on."""
    assert original.raw is not None
    raw, html = original.raw, None
    if original.with_html:
        html = safe_html(raw)
    if not original.with_files:
        return html, []
    message = mime.parse(raw)
    found = []
    for info in body.attachments(message, raw)[:MAX_REATTACHED]:
        part = message.part(info.path)
        if part is None:
            continue
        inline = info.disposition == "inline" and html is not None and is_writable_id(info.content_id or "")
        found.append(
            Attachment(
                filename=info.filename,
                content_type=_media_type(part),
                content=raw[part.body_start : part.body_end] if part.children else decoded(raw, part),
                inline=inline,
                content_id=info.content_id if inline else None,
            )
        )
    return html, found


_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")


def _media_type(part: mime.Part) -> str:
    """The declared type and character set, if they can be written."""
    if part.is_multipart or not (_TOKEN.fullmatch(part.type) and _TOKEN.fullmatch(part.subtype)):
        return "application/octet-stream"
    charset = part.params.get("charset", "")
    return f"{part.content_type}; charset={charset}" if _TOKEN.fullmatch(charset) else part.content_type


def job_for(
    request: SendRequest,
    facts: Facts,
    decision: Decision,
    files: Sequence[Attachment],
    rules: SendRules,
    *,
    message: str,
    raw: bytes | None,
    reply_to: Address | None = None,
    links: LinkPlan | None = None,
) -> Job:
    """The job of a decided request for the new message id `message`; `raw` is the message that is forwarded, when its
    HTML or attachments are needed; `reply_to` is where answers go if not to From. Pure."""
    identity, sender = facts.identity, decision.from_
    local, _, domain = sender.address.rpartition("@")
    parent = facts.target if facts.target is not None else facts.thread.parent if facts.thread is not None else None
    answers = parent is not None and has_own_id(parent) and request.operation is not Operation.FORWARD
    references = () if parent is None else references_after(parent)
    in_reply_to = parent.rfc_message_id if parent is not None and answers else None
    ulid = message.partition("_")[2]
    is_agent = identity.kind is IdentityKind.AGENT and not identity.is_system
    marketing = request.kind is SendKind.MARKETING and request.unsubscribe is not None
    draft = Draft(
        from_=Address(identity.display_name, local, domain),
        date=facts.now,
        message_id=message_id(ulid, domain),
        to=_people(decision, RecipientField.TO),
        cc=_people(decision, RecipientField.CC),
        reply_to=() if reply_to is None else (reply_to,),
        subject=_subject(request, parent),
        in_reply_to=in_reply_to if in_reply_to in references else None,  # it may be one that cannot be written
        references=references,
        auto_submitted=AutoSubmitted.REPLIED if request.kind is SendKind.AUTO_REPLY else None,
        list_unsubscribe=_unsubscribe(request) if marketing else None,
        hop=decision.hop,
        ai_generated=rules.disclosure is Disclosure.HEADER and is_agent,
        headers=decision.headers,
    )
    return Job(
        draft=draft,
        words=_words(request),
        signature=_signature(facts),
        files=tuple(files),
        original=_original(request, facts.target, raw),
        unsubscribe_url=request.unsubscribe.url if marketing and request.unsubscribe else None,
        blind=tuple(Mailpoint(one.key, one.address.name) for one in _of(decision, RecipientField.BCC)),
        kind=request.kind,
        boundary=ulid,
        limit=rules.max_composed,
        disclosure=rules.disclosure_text if rules.disclosure is Disclosure.FOOTER and is_agent else None,
        links=links,
    )


def references_after(parent: MessageView) -> tuple[str, ...]:
    """References of what follows `parent` (C2). Ids that only we know are left out."""
    known = [one for one in parent.reference_ids if not one.endswith(SYNTHETIC_SUFFIX)]
    before = [parent.in_reply_to] if parent.in_reply_to else []
    if has_own_id(parent):
        return build_references(known, before, parent.rfc_message_id)
    chain = known or before
    return build_references(chain[:-1], (), chain[-1]) if chain else ()


def _subject(request: SendRequest, parent: MessageView | None) -> str:
    if parent is None or request.operation is Operation.SEND:
        return request.subject
    make = forward_subject if request.operation is Operation.FORWARD else reply_subject
    return make(parent.subject)


def _words(request: SendRequest) -> Body:
    """What the caller wrote; a forward may go without a word."""
    return Body("" if request.html is None and request.text is None else request.text, request.html)


def _signature(facts: Facts) -> Body | None:
    identity = facts.identity
    if not (identity.signature_text or identity.signature_html):
        return None
    return Body(identity.signature_text, identity.signature_html)


def _original(request: SendRequest, target: MessageView | None, raw: bytes | None) -> Original | None:
    if request.operation is not Operation.FORWARD or target is None:
        return None
    note = Forwarded(
        from_=_named((target.sender,) if target.sender else ()),
        date=target.sent_at,
        subject=clean_subject(target.subject),
        to=_named(target.to),
        body=Body(target.text if target.text is not None else target.extracted_text or ""),
    )
    with_html = request.html is not None or request.text is None
    return Original(note, raw, with_html=with_html, with_files=request.include_attachments)


def needs_original(request: SendRequest, target: MessageView | None) -> bool:
    """Whether the octets of the message that is forwarded are needed, beyond the text that is stored."""
    if request.operation is not Operation.FORWARD or target is None:
        return False
    return (request.include_attachments and bool(target.attachments)) or not (
        request.text is not None and request.html is None
    )


def _named(points: Iterable[Mailpoint]) -> tuple[Address, ...]:
    read = ((point.name, parse_addresses(point.address)) for point in points if point.address)
    return tuple(Address(name, found[0].local, found[0].domain) for name, found in read if found)


def _unsubscribe(request: SendRequest) -> ListUnsubscribe:
    assert request.unsubscribe is not None
    return ListUnsubscribe(url=request.unsubscribe.url, mailto=request.unsubscribe.mailto, one_click=True)


def _of(decision: Decision, place: RecipientField) -> list[Chosen]:
    return [one for one in decision.recipients if one.field is place]


def _people(decision: Decision, place: RecipientField) -> tuple[Address, ...]:
    return tuple(one.address for one in _of(decision, place))


def decode_step(text: str, at: int) -> bytes | None:
    """A stretch of base64 from the character `at` (RFC 4648 §4), strictly; None when it is none.

    Stretch by stretch, so that megabytes can be decoded while others get their turn.
    """
    piece = text[at : at + BASE64_STEP]
    if piece.endswith("=") and at + BASE64_STEP < len(text):
        return None
    try:
        return binascii.a2b_base64(piece, strict_mode=True)
    except ValueError:
        return None
