"""The policy as a pure function: its order, and rows that need no database (outbound §4, §5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.models import Mode, TenantStatus
from postroom.accounts.policy import DEFAULT_POLICY, StoredPolicy
from postroom.base.errors import PostroomError
from postroom.directory.models import (
    AddressRole,
    AddressStatus,
    HostedAddress,
    Identity,
    IdentityKey,
    IdentityKind,
    IdentityStatus,
    PauseReason,
)
from postroom.mailbox.models import Direction, Mailpoint
from postroom.mailbox.queries import MessageView
from postroom.outbound.compose_message import Unwritable, Written, job_for, references_after, write
from postroom.outbound.facts import Facts, ThreadFacts, candidates, nature, normalised
from postroom.outbound.models import Operation, RecipientField, SendKind
from postroom.outbound.policy import STEPS, Case, Decision, decide, requires_known
from postroom.outbound.request import Person, SendRequest, Unsubscribe
from postroom.outbound.send_rules import SendRules
from postroom.smtp.address import AddressSyntaxError

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ANNA = "anna@example.com"
OWN = "robot@agents.example"


def address(text: str = OWN, status: AddressStatus = AddressStatus.ACTIVE, **more: Any) -> HostedAddress:
    given_ = {"domain_id": 1, "is_platform": True, "role": AddressRole.PRIMARY, **more}
    return HostedAddress(
        id=1,
        public_id="adr_1",
        address=text,
        domain=text.partition("@")[2],
        domain_public_id="dom_1",
        status=status,
        retire_at=None,
        retired_at=None,
        created_at=NOW,
        **given_,
    )


IDENTITY = Identity(
    id=IdentityKey(1),
    public_id="idn_1",
    tenant_id=1,
    tenant_public_id="ten_1",
    kind=IdentityKind.AGENT,
    username="robot",
    display_name="Robot",
    purpose=None,
    client_id=None,
    owner_name="Ola",
    owner_email="ola@example.com",
    signature_text=None,
    signature_html=None,
    status=IdentityStatus.ACTIVE,
    pause_reason=None,
    send_policy={"require_known_recipient": False},
    metadata={},
    is_system=False,
    created_at=NOW,
    updated_at=NOW,
    addresses=(address(),),
)
FACTS = Facts(
    now=NOW,
    identity=IDENTITY,
    tenant_status=TenantStatus.ACTIVE,
    mode=Mode.LIVE,
    domains={1: "healthy"},
    target=None,
    target_hop=0,
    target_automated=False,
    thread=None,
    written_to=frozenset(),
    hosted=frozenset(),
    suppressed={},
)
REQUEST = SendRequest(Operation.SEND, to=(Person(ANNA),), subject="Hello", text="Hi.")
THREAD = ThreadFacts("thr_1", 1, None, None, 0, None, 0, frozenset())


def message(**changes: Any) -> MessageView:
    values: dict[str, Any] = {
        "key": (NOW, 1),
        "id": "msg_1",
        "thread_id": "thr_1",
        "identity_id": "idn_1",
        "direction": Direction.INBOUND,
        "status": "received",
        "sender": Mailpoint(ANNA, "Anna"),
        "to": (Mailpoint(OWN, ""),),
        "cc": (),
        "bcc": (),
        "reply_to": (),
        "delivered_to": OWN,
        "is_bcc": False,
        "is_primary_recipient": True,
        "subject": "Meeting",
        "snippet": "",
        "sent_at": NOW,
        "received_at": NOW,
        "extracted_text": None,
        "text": None,
        "html": None,
        "attachments": (),
        "labels": (),
        "read": False,
        "kind": "normal",
        "verdict": "pass",
        "facts": (),
        "rfc_message_id": "m1@example.com",
        "in_reply_to": None,
        "reference_ids": (),
        "blob_key": "",
        "raw_size": 1,
        "prefix_len": 0,
        "language": None,
        "auth": None,
        "refs": (),
    }
    return MessageView(**{**values, **changes})


def judged(request: SendRequest = REQUEST, facts: Facts = FACTS, **more: Any) -> Decision:
    given_ = {"rules": SendRules(), "bad_files": (), "organisational_domain": str, **more}
    return decide(Case(request, facts, **given_))


def refused(request: SendRequest = REQUEST, facts: Facts = FACTS, **more: Any) -> str:
    with pytest.raises(PostroomError) as caught:
        judged(request, facts, **more)
    return caught.value.code


# -- the order


def identity(**changes: Any) -> Callable[[Any], Any]:
    return lambda case: replace(case, facts=replace(case.facts, identity=replace(case.facts.identity, **changes)))


def facts(**changes: Any) -> Callable[[Any], Any]:
    return lambda case: replace(case, facts=replace(case.facts, **changes))


def request(**changes: Any) -> Callable[[Any], Any]:
    return lambda case: replace(case, request=replace(case.request, **changes))


@pytest.mark.covers("edge:A8")
def test_a_person_answers_for_what_they_write() -> None:
    case = identity(owner_name=None, owner_email=None, kind=IdentityKind.PERSON)(
        Case(REQUEST, FACTS, SendRules(), (), str)
    )
    assert decide(case).recipients


# Each step with something that only it refuses, in the order of outbound §4.
FAULTS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("1", "identity_not_found", identity(status=IdentityStatus.DELETING)),
    ("2", "tenant_suspended", facts(tenant_status=TenantStatus.SUSPENDED)),
    ("3", "identity_paused", identity(status=IdentityStatus.PAUSED, pause_reason=PauseReason.MANUAL)),
    ("3a", "sending_paused", facts(pause="abuse_threshold")),
    ("4", "identity_owner_required", identity(owner_email=None)),
    ("5", "thread_not_found", request(thread_id="thr_2")),
    ("6", "address_invalid", request(to=(Person("nobody"),))),
    ("7", "too_many_recipients", request(cc=tuple(Person(f"a{n}@simulator.invalid") for n in range(10)))),
    ("8", "test_mode_recipient", facts(mode=Mode.TEST)),
    ("9", "marketing_requirements_missing", request(kind=SendKind.MARKETING)),
    ("10", "auto_reply_not_allowed", request(kind=SendKind.AUTO_REPLY)),
    ("10a", "loop_detected", facts(thread=replace(THREAD, newest_hop=9))),
    ("11", "header_not_allowed", request(headers={"Subject": "x"})),
    ("12", "invalid_request", request(text=None)),
    ("13", "invalid_request", request(from_address="other@agents.example")),
    ("14", "domain_not_ready", facts(domains={1: "pending"})),
    ("14a", "sending_paused", facts(paused_domains=frozenset({1}))),
]


@pytest.mark.covers("FR-OUT-3")
def test_the_steps_are_those_of_the_specification() -> None:
    assert [name for name, _ in STEPS] == [name for name, _, _ in FAULTS] + ["15", "16"]


@pytest.mark.covers("FR-OUT-3")
@given(st.sets(st.integers(0, len(FAULTS) - 1), min_size=1))
def test_the_first_failure_is_told(wrong: set[int]) -> None:
    case = Case(REQUEST, FACTS, SendRules(), (), str)
    for number in sorted(wrong, reverse=True):  # of two about the same thing, the earlier stands
        case = FAULTS[number][2](case)
    if 5 in wrong and 11 in wrong:
        case = replace(case, facts=replace(case.facts, thread=None))
    with pytest.raises(PostroomError) as caught:
        decide(case)
    assert caught.value.code == FAULTS[min(wrong)][1]


@pytest.mark.covers("FR-OUT-15")
def test_marketing() -> None:
    marketing = replace(
        REQUEST, kind=SendKind.MARKETING, unsubscribe=Unsubscribe("https://example.com/u"), has_consent=True
    )
    own = replace(FACTS, identity=replace(IDENTITY, addresses=(address(is_platform=False),)))
    allowed = SendRules(marketing_direct=True)
    assert refused(marketing, own) == "transport_unavailable"
    assert refused(marketing, rules=allowed) == "transport_unavailable"  # the shared domain, always
    assert judged(marketing, own, rules=allowed).from_.address == OWN
    for lacking in (
        replace(marketing, has_consent=False),
        replace(marketing, unsubscribe=Unsubscribe("http://example.com/u")),
    ):
        assert refused(lacking, own, rules=allowed) == "marketing_requirements_missing"


@pytest.mark.covers("edge:E2", "FR-OUT-13")
def test_who_has_to_know_their_recipients() -> None:
    for kind, is_system, expected in (
        (IdentityKind.AGENT, False, True),
        (IdentityKind.PERSON, False, False),
        (IdentityKind.AGENT, True, False),
    ):
        one = replace(IDENTITY, kind=kind, is_system=is_system, send_policy={})
        assert requires_known(one) is expected
        assert requires_known(replace(one, send_policy={"require_known_recipient": not expected})) is not expected


@pytest.mark.covers("edge:E2", "FR-OUT-13")
@pytest.mark.parametrize(
    ("verdict", "known"),
    [("pass", True), ("unverified", False), ("fail", False), ("none", False), ("softfail", False)],
)
def test_whoever_is_answered_must_not_be_forged(verdict: str, known: bool) -> None:
    careful = replace(IDENTITY, send_policy={})
    there = replace(FACTS, identity=careful, target=message(verdict=verdict), thread=THREAD)
    answer = SendRequest(Operation.REPLY, message_id="msg_1", text="Yes.")
    assert judged(answer, there).is_suppressed is not known
    quarantined = replace(there, target=message(verdict=verdict, status="quarantined"))
    assert judged(answer, quarantined).is_suppressed


@pytest.mark.covers("edge:D3")
def test_a_reply_to_that_nobody_knows_does_not_become_known() -> None:
    careful = replace(IDENTITY, send_policy={})
    target = message(reply_to=(Mailpoint("eve@example.net", ""),))
    found = judged(
        SendRequest(Operation.REPLY, message_id="msg_1", text="Yes."),
        replace(FACTS, identity=careful, target=target, thread=THREAD),
    )
    assert [(one.key, one.suppressed) for one in found.recipients] == [(ANNA, None)]


# -- recipients


_names = st.sampled_from(["a", "A", "b", "b+x", "c"])
_domains = st.sampled_from(["example.com", "EXAMPLE.com", "münchen.example", "xn--mnchen-3ya.example"])
_people = st.lists(st.builds(lambda n, d: Person(f" {n}@{d} "), _names, _domains), max_size=4).map(tuple)


@given(_people, _people, _people)
def test_each_recipient_once_in_the_first_field(to: Any, cc: Any, bcc: Any) -> None:
    asked = replace(REQUEST, to=to, cc=cc, bcc=bcc)
    if not (to or cc or bcc):
        assert refused(asked) == "invalid_request"
        return
    found = judged(asked, rules=SendRules(max_recipients=49)).recipients
    expected: dict[str, RecipientField] = {}
    for place, people in ((RecipientField.TO, to), (RecipientField.CC, cc), (RecipientField.BCC, bcc)):
        for person in people:
            local, _, domain = person.address.strip().partition("@")
            key = f"{local}@{domain}".lower().replace("münchen", "xn--mnchen-3ya")
            expected.setdefault(key, place)
    assert {one.key: one.field for one in found} == expected
    assert set(candidates(asked, None)) == set(expected)


@given(st.text(max_size=40))
def test_any_text_as_address(text: str) -> None:
    try:
        found = normalised(text)
    except AddressSyntaxError:
        assert refused(replace(REQUEST, to=(Person(text),))) == "address_invalid"
        assert candidates(replace(REQUEST, to=(Person(text),)), None) == []
    else:
        assert found.key == normalised(str(found)).key


# -- what is written


def written(asked: SendRequest, there: Facts = FACTS, **more: Any) -> Written | Unwritable:
    decision = judged(asked, there)
    message_id = "msg_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    return write(job_for(asked, there, decision, (), SendRules(), message=message_id, raw=None), NOW, **more)


@pytest.mark.covers("edge:C7")
def test_nothing_of_blind_copies_is_written() -> None:
    found = written(replace(REQUEST, bcc=(Person("eve@example.net", "Eve"),)))
    assert isinstance(found, Written)
    assert b"eve" not in found.octets.lower()
    assert found.octets.count(b"Message-ID: <01arz3ndektsv4rrffq69g5fav@agents.example>\r\n") == 1
    assert [(kind.value, point.address) for kind, point in found.content.recipients] == [
        ("to", ANNA),
        ("bcc", "eve@example.net"),
    ]


@pytest.mark.covers("edge:C2")
def test_ids_of_ours_alone_stay_ours() -> None:
    ours = "0" * 64 + "@synthetic.invalid"
    nameless = message(
        rfc_message_id=ours,
        facts=("message_id_synthetic",),
        in_reply_to="p@example.com",
        reference_ids=("q@example.com",),
    )
    assert references_after(nameless) == ("q@example.com",)
    assert references_after(replace(nameless, reference_ids=())) == ("p@example.com",)
    assert references_after(replace(nameless, reference_ids=(), in_reply_to=None)) == ()
    after = message(reference_ids=("q@example.com", ours))
    assert references_after(after) == ("q@example.com", "m1@example.com")
    answer = SendRequest(Operation.REPLY, message_id="msg_1", text="Yes.")
    found = written(answer, replace(FACTS, target=nameless, thread=THREAD))
    assert isinstance(found, Written)
    assert b"synthetic" not in found.octets
    assert found.content.in_reply_to is None


@pytest.mark.covers("edge:C2")
def test_an_id_that_cannot_be_written() -> None:
    odd = message(rfc_message_id="ü@example.com")
    answer = SendRequest(Operation.REPLY, message_id="msg_1", text="Yes.")
    found = written(answer, replace(FACTS, target=odd, thread=THREAD))
    assert isinstance(found, Written)
    assert b"In-Reply-To" not in found.octets
    assert found.content.reference_ids == ()


@pytest.mark.covers("FR-OUT-8")
def test_how_marketing_is_left() -> None:
    asked = replace(
        REQUEST,
        kind=SendKind.MARKETING,
        unsubscribe=Unsubscribe("https://example.com/u?a=1", "leave@example.com"),
        has_consent=True,
        html="<p>Buy.</p>",
    )
    there = replace(FACTS, identity=replace(IDENTITY, addresses=(address(is_platform=False),)))
    decision = judged(asked, there, rules=SendRules(marketing_direct=True))
    job = job_for(asked, there, decision, (), SendRules(), message="msg_01ARZ3NDEKTSV4RRFFQ69G5FAV", raw=None)
    found = write(job, NOW)
    assert isinstance(found, Written)
    assert b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" in found.octets
    unfolded = found.octets.replace(b"\r\n ", b" ")
    assert b"List-Unsubscribe: <https://example.com/u?a=1>, <mailto:leave@example.com>\r\n" in unfolded
    assert found.octets.count(b"https://example.com/u?a=1") + found.octets.count(b"https://example.com/u?a=3D1") >= 3
    assert found.content.kind == "marketing"


@pytest.mark.covers("edge:D6", "edge:N13")
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", (0, False)),
        ("X-Postroom-Hop: 3\r\nX-Postroom-Hop: 7\r\n", (7, False)),
        ("X-Postroom-Hop: many\r\n", (11, True)),
        ("Auto-Submitted: no; really\r\n", (0, False)),
        ("Auto-Submitted: no (a person)\r\n", (0, False)),
        ("X-Autoreply: yes\r\n", (0, True)),
        ("Subject: Out of Office: back on Monday\r\n", (0, True)),
        ("Auto-Submitted: AUTO-GENERATED\r\n", (0, True)),
        ("Precedence: List\r\n", (0, True)),
        ("Precedence: first-class\r\n", (0, False)),
        ("Return-Path: <>\r\n", (0, True)),
        ("Return-Path: <a@example.com>\r\n", (0, False)),
        ("List-Unsubscribe: <https://example.com/>\r\n", (0, True)),
        ("Content-Type: multipart/report; boundary=b\r\n", (0, True)),
    ],
)
def test_the_nature_of_a_message(header: str, expected: tuple[int, bool]) -> None:
    assert nature(f"{header}From: a@example.com\r\n\r\nX-Postroom-Hop: 9\r\n".encode()) == expected


@given(st.binary(max_size=300))
def test_the_nature_of_anything(raw: bytes) -> None:
    hop, _ = nature(raw)
    assert hop >= 0


@pytest.mark.covers("FR-OUT-16")
def test_the_deployment_may_let_tenants_write_to_their_lists_alone() -> None:
    rules = SendRules().by_default(replace(DEFAULT_POLICY, send_allowlist_only=True))
    assert judged(rules=rules).recipients[0].suppressed == "not_on_allowlist"
    loosened = replace(FACTS, policy=StoredPolicy({"send_allowlist_only": False}))
    assert judged(facts=loosened, rules=rules).recipients[0].suppressed != "not_on_allowlist"
