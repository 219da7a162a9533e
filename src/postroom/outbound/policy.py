"""What may be sent, to whom, from where: the policy of outbound §4 (FR-OUT-3) as a pure function of request and facts.

The checks are the rows of `STEPS`, in their fixed order; the first that fails is what the caller is told, and nothing
was stored. A dry run takes exactly these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from postroom.accounts.models import Mode, TenantStatus
from postroom.accounts.policy import StoredPolicy, TenantPolicy
from postroom.base.errors import PostroomError
from postroom.directory.models import AddressStatus, HostedAddress, Identity, IdentityKind, IdentityStatus
from postroom.mail.address import Address, parse_addresses
from postroom.mail.compose.custom import CustomHeaderError, HeaderRefusal, custom_headers
from postroom.mail.compose.reply import reply_all_recipients, reply_target, without_detail
from postroom.mail.srs import LoopError, next_hop
from postroom.mailbox.models import Direction, Mailpoint
from postroom.mailbox.queries import MessageView
from postroom.outbound.facts import Facts, normalised
from postroom.outbound.models import Operation, RecipientField, SendKind
from postroom.outbound.request import Person, SendRequest
from postroom.outbound.send_rules import SendRules
from postroom.smtp.address import AddressSyntaxError

SIMULATOR: Final = "simulator.invalid"
MAX_FILES: Final = 32
MAX_FILENAME_BYTES: Final = 255
MAX_SUBJECT: Final = 998
MAX_NAME: Final = 78
MAX_LABELS: Final = 64
MAX_METADATA: Final = 16
MAX_METADATA_BYTES: Final = 512
SEND_BLOCK: Final = "send_block"
NOT_ON_ALLOWLIST: Final = "not_on_allowlist"
UNKNOWN_RECIPIENT: Final = "unknown_recipient"
HUMAN_KINDS: Final = frozenset({"normal", "calendar"})
"""Kinds of received messages that may be answered automatically (D6)."""

_LABEL: Final = re.compile(r"[a-z0-9][a-z0-9_:-]{0,63}")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(?:[ \t]*;[^\r\n]*)?")
_LINE_BREAK: Final = re.compile(r"[\r\n]")
_NOT_READY: Final = frozenset({"pending", "verifying"})
"""Status of a domain that was never ready. What became of one that was is looked at when the message leaves."""


@dataclass(slots=True)
class Chosen:
    """A recipient; `suppressed` says why nothing will be sent there."""

    address: Address
    key: str
    field: RecipientField
    suppressed: str | None = None


@dataclass(slots=True)
class Decision:
    """What the policy made of a request."""

    recipients: list[Chosen] = field(default_factory=list)
    sender: HostedAddress | None = None
    hop: int = 1
    headers: tuple[tuple[str, str], ...] = ()
    target_key: str | None = None
    """Whom an answer goes to by itself, beside those who got copies."""

    @property
    def from_(self) -> HostedAddress:
        assert self.sender is not None, "the policy chose no sender"
        return self.sender

    @property
    def is_suppressed(self) -> bool:
        return all(one.suppressed is not None for one in self.recipients)


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged. `bad_files` are indices of attachments that are no base64."""

    request: SendRequest
    facts: Facts
    rules: SendRules
    bad_files: tuple[int, ...]
    organisational_domain: Callable[[str], str]


Step = Callable[[Case, Decision], None]


def invalid(path: str, message: str) -> PostroomError:
    """`invalid_request` about one member of the body."""
    return PostroomError("invalid_request", details={"errors": [{"path": path, "message": message}]})


def decide(case: Case) -> Decision:
    """Apply every step. Raises PostroomError of the first that fails."""
    decision = Decision()
    for _, step in STEPS:
        step(case, decision)
    return decision


# -- who sends


def _identity_exists(case: Case, decision: Decision) -> None:
    if case.facts.identity.status in (IdentityStatus.DELETING, IdentityStatus.DELETED):
        raise PostroomError("identity_not_found")


def _tenant_active(case: Case, decision: Decision) -> None:
    status = case.facts.tenant_status
    if status.is_gone:
        raise PostroomError("identity_not_found")
    if status is TenantStatus.SUSPENDED:
        raise PostroomError("tenant_suspended")


def _identity_active(case: Case, decision: Decision) -> None:
    identity = case.facts.identity
    if identity.status is IdentityStatus.PAUSED:
        reason = identity.pause_reason.value if identity.pause_reason else "manual"
        raise PostroomError("identity_paused", details={"reason": reason})


def _tenant_sends(case: Case, decision: Decision) -> None:
    """G12, J33: not for what the system itself says."""
    if case.facts.pause is not None and not case.facts.identity.is_system:
        raise PostroomError("sending_paused", details={"scope": "tenant", "reason": case.facts.pause})


def _accountable(case: Case, decision: Decision) -> None:
    """A person answers for what they write (A8 is about whoever is none)."""
    identity = case.facts.identity
    if identity.kind is not IdentityKind.PERSON and not (identity.owner_name and identity.owner_email):
        raise PostroomError("identity_owner_required")


def _target_visible(case: Case, decision: Decision) -> None:
    """Also what the caller may not see is missing."""
    facts = case.facts
    if case.request.operation is not Operation.SEND and (facts.target is None or facts.thread is None):
        raise PostroomError("message_not_found")
    if case.request.thread_id is not None and facts.thread is None:
        raise PostroomError("thread_not_found")


# -- who receives


def _recipients(case: Case, decision: Decision) -> None:
    request, target = case.request, case.facts.target
    if request.is_answer:
        assert target is not None
        listed = _of_answer(case, target, decision)
    else:
        listed = [
            (place, _named(name, at, person))
            for name, place, people in (
                ("to", RecipientField.TO, request.to),
                ("cc", RecipientField.CC, request.cc),
                ("bcc", RecipientField.BCC, request.bcc),
            )
            for at, person in enumerate(people)
        ]
    seen: set[str] = set()
    for place, address in listed:
        chosen = _chosen(address, place)
        if chosen.key not in seen:
            seen.add(chosen.key)
            decision.recipients.append(chosen)
    if not decision.recipients:
        raise invalid("to", "no recipient is left")


def _named(name: str, at: int, person: Person) -> Address:
    path = f"{name}.{at}"
    if _LINE_BREAK.search(person.name) or len(person.name) > MAX_NAME:
        raise invalid(f"{path}.name", f"is one line of at most {MAX_NAME} characters")
    return _address(person.address, person.name, path)


def _address(text: str, name: str, path: str) -> Address:
    try:
        found = normalised(text)
    except AddressSyntaxError:
        raise _refused("address_invalid", path, "is no address, RFC 5321") from None
    if not found.local.isascii():
        raise _refused("address_unsupported", path, "the part before the @ has to be ASCII")
    return Address(name, found.local, found.domain)


def _refused(code: str, path: str, message: str) -> PostroomError:
    return PostroomError(code, details={"errors": [{"path": path, "message": message}]})


def _chosen(address: Address, place: RecipientField) -> Chosen:
    # Also addresses that came out of a message have to be such that mail can be sent to.
    clean = _address(address.address, address.name, place.value)
    return Chosen(clean, f"{clean.local}@{clean.domain}", place)


def _of_answer(case: Case, target: MessageView, decision: Decision) -> list[tuple[RecipientField, Address]]:
    own = {item.address for item in case.facts.identity.addresses}
    to, cc = _addresses(target.to), _addresses(target.cc)
    if target.direction is Direction.OUTBOUND:
        if not to and not cc:
            raise invalid("to", "the message answered has no recipients that can be written to")
        skipped = own if case.request.operation is Operation.REPLY_ALL else ()
        # Whom we wrote to are those who are written to again; there is no sender but us.
        first, *rest = to or cc
        both = reply_all_recipients(first, rest, cc if to else (), skipped)
        return _fields(both.to, both.cc)
    senders = _addresses((target.sender,) if target.sender else ())
    if not senders:
        raise invalid("to", "the message answered names no sender")
    answered = reply_target(
        senders[0],
        _addresses(target.reply_to),
        known_sender=False,  # nobody is known by authentication yet
        organisational_domain=case.organisational_domain,
        written_before=lambda address: _key(address) in case.facts.written_to,
    ).address
    decision.target_key = _key(answered)
    if case.request.operation is Operation.REPLY:
        return [(RecipientField.TO, answered)]
    both = reply_all_recipients(answered, to, cc, own)
    return _fields(both.to, both.cc)


def _fields(to: Sequence[Address], cc: Sequence[Address]) -> list[tuple[RecipientField, Address]]:
    return [*((RecipientField.TO, one) for one in to), *((RecipientField.CC, one) for one in cc)]


def _addresses(points: Sequence[Mailpoint]) -> list[Address]:
    found = []
    for point in points:
        parsed = parse_addresses(point.address) if point.address else []
        found += [Address(point.name, one.local, one.domain) for one in parsed[:1]]
    return found


def _key(address: Address) -> str:
    try:
        return normalised(address.address).key
    except AddressSyntaxError:
        return address.address.lower()


def _count(case: Case, decision: Decision) -> None:
    limit = case.rules.max_recipients
    if len(decision.recipients) > limit:
        raise PostroomError("too_many_recipients", details={"limit": limit})


def _test_mode(case: Case, decision: Decision) -> None:
    """A test tenant writes to the simulator and to its own people (L1, L3, FR-OUT-12)."""
    if case.facts.mode is not Mode.TEST:
        return
    for one in decision.recipients:
        inside = one.key in case.facts.hosted or without_detail(one.key) in case.facts.hosted
        if one.address.domain != SIMULATOR and not inside:
            raise PostroomError("test_mode_recipient")


# -- what kind of mail


def _marketing(case: Case, decision: Decision) -> None:
    request = case.request
    if request.kind is not SendKind.MARKETING:
        return
    url = request.unsubscribe.url if request.unsubscribe else ""
    if not url.startswith("https://") or not request.has_consent:
        raise PostroomError("marketing_requirements_missing")


def _auto_reply(case: Case, decision: Decision) -> None:
    """D6, FR-OUT-7: never to a machine or a list, and not for ever."""
    if case.request.kind is not SendKind.AUTO_REPLY:
        return
    target, thread = case.facts.target, case.facts.thread
    allowed = (
        case.request.is_answer
        and target is not None
        and target.direction is Direction.INBOUND
        and target.kind in HUMAN_KINDS
        and not case.facts.target_automated
        and case.rules.auto_reply_allowed
        and case.facts.identity.send_policy.get("auto_reply", "allowed") != "denied"
        and (thread is None or thread.automatic < case.rules.max_automatic_exchanges)
    )
    if not allowed:
        raise PostroomError("auto_reply_not_allowed")


def _loop(case: Case, decision: Decision) -> None:
    """N13, FR-OUT-14: the tenth hop is refused, whatever the kind."""
    facts = case.facts
    before = facts.target_hop if facts.target is not None else facts.thread.newest_hop if facts.thread else 0
    try:
        decision.hop = next_hop(before)
    except LoopError as error:
        raise PostroomError("loop_detected", details={"hop": error.hop}) from None


# -- what it says


def _headers(case: Case, decision: Decision) -> None:
    try:
        decision.headers = custom_headers(case.request.headers)
    except CustomHeaderError as error:
        path = f"headers.{error.name}"[:256]
        if error.refusal is HeaderRefusal.NOT_ALLOWED:
            raise PostroomError(
                "header_not_allowed", details={"errors": [{"path": path, "message": "may not be set"}]}
            ) from None
        raise invalid(path, "is empty, given twice, too long, or not one of its values") from None


def _content(case: Case, decision: Decision) -> None:
    request = case.request
    if request.text is None and request.html is None and request.operation is not Operation.FORWARD:
        raise invalid("text", "text or html is required")
    if len(request.subject) > MAX_SUBJECT or _LINE_BREAK.search(request.subject):
        raise invalid("subject", f"is one line of at most {MAX_SUBJECT} characters")
    _files(case)
    if len(request.labels) > MAX_LABELS or not all(map(_LABEL.fullmatch, request.labels)):
        raise invalid("labels", f"are at most {MAX_LABELS} words of lower-case letters, digits, `_`, `:` and `-`")
    if len(request.metadata) > MAX_METADATA or any(
        len(value.encode("utf-8", "surrogatepass")) > MAX_METADATA_BYTES for value in request.metadata.values()
    ):
        raise invalid("metadata", f"has at most {MAX_METADATA} members of at most {MAX_METADATA_BYTES} bytes")


def _files(case: Case) -> None:
    files = case.request.files
    if len(files) > MAX_FILES:
        raise invalid("attachments", f"are at most {MAX_FILES}")
    for at, file in enumerate(files):
        path = f"attachments.{at}"
        if not 1 <= len(file.filename.encode("utf-8", "surrogatepass")) <= MAX_FILENAME_BYTES:
            raise invalid(f"{path}.filename", f"has 1 to {MAX_FILENAME_BYTES} bytes")
        if _MEDIA_TYPE.fullmatch(file.content_type) is None or file.content_type.lower().startswith("multipart/"):
            raise invalid(f"{path}.content_type", "is no media type of a file")
        if file.inline and not file.content_id:
            raise invalid(f"{path}.content_id", "is required of an inline attachment")
    if case.bad_files:
        raise invalid(f"attachments.{case.bad_files[0]}.content_base64", "is no base64")


# -- from where


def _sender(case: Case, decision: Decision) -> None:
    """FR-OUT-5, C3: an answer comes from the address that was written to; a retiring one stays on its threads (G7)."""
    identity, thread, named = case.facts.identity, case.facts.thread, case.request.from_address
    if named is not None:
        try:
            found = _own(identity, normalised(named).key)
        except AddressSyntaxError:
            found = None
        if found is None or not _may_use(found, case.facts):
            raise invalid("from_address", "is no address that this may be sent from")
        decision.sender = found
        return
    platform = _platform(identity) if thread is not None and thread.is_pinned else None
    if platform is not None:
        decision.sender = platform
        return
    last = None
    if thread is not None and thread.reply_from is not None:
        last = _own(identity, thread.reply_from) or _own(identity, without_detail(thread.reply_from))
    decision.sender = last if last is not None and last.status.receives else identity.primary


def _platform(identity: Identity) -> HostedAddress | None:
    """The identity's address on the platform domain, which stands in for the others (FR-DOM-6)."""
    return next((item for item in identity.addresses if item.is_platform and item.status.receives), None)


def _own(identity: Identity, key: str) -> HostedAddress | None:
    return next((item for item in identity.addresses if item.address == key), None)


def _may_use(address: HostedAddress, facts: Facts) -> bool:
    if address.status in (AddressStatus.ACTIVE, AddressStatus.PENDING):
        return True  # what is pending is told apart by the next step
    thread = facts.thread
    if address.status is not AddressStatus.RETIRING or thread is None:
        return False
    used = thread.reply_from is not None and address.address in (thread.reply_from, without_detail(thread.reply_from))
    return used or address.address in thread.written_from


def _domain_ready(case: Case, decision: Decision) -> None:
    sender = decision.from_
    if sender.status is AddressStatus.PENDING or case.facts.domains.get(sender.domain_id) in _NOT_READY:
        raise PostroomError("domain_not_ready")


def _domain_sends(case: Case, decision: Decision) -> None:
    """G12; the platform address is no way around it."""
    sender = decision.from_
    if sender.domain_id in case.facts.paused_domains and not case.facts.identity.is_system:
        details = {"scope": "domain", "reason": "abuse_threshold", "domain_id": sender.domain_public_id}
        raise PostroomError("sending_paused", details=details)


def _transport(case: Case, decision: Decision) -> None:
    """FR-OUT-15: marketing does not share this server's address with everybody's mail."""
    if case.request.kind is not SendKind.MARKETING:
        return
    if decision.from_.is_platform or not case.rules.marketing_direct:
        raise PostroomError("transport_unavailable", details={"reason": "marketing_needs_ses"})


# -- who is left


def _filters(case: Case, decision: Decision) -> None:
    """Recipients that nothing is sent to: no error, each is told of (outbound §5.4; FR-OUT-4, G4, E2)."""
    facts = case.facts
    only_known, only_allowed = requires_known(facts.identity), allowlist_only(facts.policy, case.rules.defaults)
    for one in decision.recipients:
        reason = facts.suppressed.get(one.key)
        if reason is not None:
            one.suppressed = f"suppression ({reason})"
        elif one.key in facts.listed.blocked:
            one.suppressed = SEND_BLOCK
        elif only_allowed and one.key not in facts.listed.allowed:
            one.suppressed = NOT_ON_ALLOWLIST
        elif only_known and not _is_known(case, decision, one):
            one.suppressed = UNKNOWN_RECIPIENT


def allowlist_only(policy: StoredPolicy, defaults: TenantPolicy) -> bool:
    """Whether the tenant writes to nobody but whom its list allows; where it has not said, as the deployment does."""
    return policy.under(defaults).send_allowlist_only


def requires_known(identity: Identity) -> bool:
    """FR-OUT-13: of agents, unless they are told otherwise; people write to whom they like."""
    by_default = identity.kind is IdentityKind.AGENT and not identity.is_system
    return bool(identity.send_policy.get("require_known_recipient", by_default))


def _is_known(case: Case, decision: Decision, one: Chosen) -> bool:
    """Somebody the mailbox has written to, whom the tenant's list allows, or who is being answered (outbound §5.5).
    That they wrote is not enough.
    """
    if one.key in case.facts.written_to or one.key in case.facts.listed.allowed:
        return True
    target = case.facts.target
    return (
        case.request.is_answer
        and one.key == decision.target_key
        and target is not None
        and target.status == "received"
        and target.verdict == "pass"
    )


STEPS: Final[tuple[tuple[str, Step], ...]] = (
    ("1", _identity_exists),
    ("2", _tenant_active),
    ("3", _identity_active),
    ("3a", _tenant_sends),
    # 3b, the switch of free plans, comes with plans.
    ("4", _accountable),
    ("5", _target_visible),
    ("6", _recipients),
    ("7", _count),
    ("8", _test_mode),
    ("9", _marketing),
    ("10", _auto_reply),
    ("10a", _loop),
    ("11", _headers),
    ("12", _content),
    ("13", _sender),
    ("14", _domain_ready),
    ("14a", _domain_sends),
    ("15", _transport),
    ("16", _filters),
)
"""The checks before anything is composed, in their order. 17 (size) follows composing, 18 (allowance and daily caps)
will stand between it and 19 (the thread's lock): `submit` has them."""
