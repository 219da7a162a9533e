"""The outcome tables (outbound §9.2, §11; mail-server C5, C6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import (
    Backoff,
    BounceType,
    DeliveryStatus,
    Evidence,
    Fault,
    Issue,
    Outcome,
    Reason,
    Route,
    ServerReply,
    Stage,
    Verdict,
    classify,
    expire,
)

_RELAYS = (Route.SMARTHOST, Route.TENANT_RELAY)
_BEFORE_THE_END = [stage for stage in Stage if stage < Stage.FINAL]


def _judge(stage: Stage, said: str | Fault, route: Route = Route.DIRECT) -> Outcome:
    if isinstance(said, Fault):
        return classify(Evidence(stage, fault=said), route)
    return classify(Evidence(stage, ServerReply(int(said[:3]), (said[4:],))), route)


@pytest.mark.covers("mail-server:C5", "mail-server:C6", "edge:G2")
def test_accepted() -> None:
    assert _judge(Stage.FINAL, "250 2.6.0 Queued") == Outcome(
        Verdict.DELIVERED, DeliveryStatus.DELIVERED, "2.6.0", 250, "2.6.0 Queued"
    )
    assert _judge(Stage.FINAL, "251 ok").status == "2.0.0"
    for route in _RELAYS:
        assert _judge(Stage.FINAL, "250 ok", route).delivery is DeliveryStatus.SUBMITTED


@pytest.mark.covers("edge:G6", "mail-server:C5", "decisions:B8")
@pytest.mark.parametrize(
    ("stage", "reply", "hard"),
    [
        *((Stage.RCPT, f"550 {status} x", True) for status in ("5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10", "5.2.1")),
        (Stage.RCPT, "554 5.4.1 x", True),
        *((Stage.RCPT, f"{code} no", True) for code in (550, 551, 553)),
        *((Stage.RCPT, f"{code} no", False) for code in (552, 554, 500)),
        *((Stage.RCPT, f"550 {status} x", False) for status in ("5.7.1", "5.6.0", "5.3.4", "5.2.2", "5.2.3", "5.1.8")),
        (Stage.MAIL, "550 no", False),
        (Stage.MAIL, "550 5.1.1 x", False),
        (Stage.DATA, "554 no", False),
        (Stage.BODY, "552 5.3.4 x", False),
        (Stage.FINAL, "550 5.7.1 x", False),
        (Stage.FINAL, "550 no", False),
    ],
)
def test_refused_by_the_receiver(stage: Stage, reply: str, hard: bool) -> None:
    outcome = _judge(stage, reply)
    assert outcome.verdict is Verdict.PERMANENT
    assert outcome.delivery is DeliveryStatus.BOUNCED
    assert outcome.bounce is (BounceType.HARD if hard else BounceType.SOFT)
    assert outcome.suppress is hard
    assert outcome.code == int(reply[:3])
    assert outcome.status == (reply.split()[1] if "5." in reply else "5.0.0")
    assert not outcome.next_host


@pytest.mark.covers("edge:G10", "edge:N20", "mail-server:C6")
@pytest.mark.parametrize("route", _RELAYS)
@pytest.mark.parametrize("stage", [Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.FINAL])
def test_refused_by_a_relay(route: Route, stage: Stage) -> None:
    outcome = _judge(stage, "550 5.1.1 x", route)
    assert (outcome.verdict, outcome.delivery) == (Verdict.PERMANENT, DeliveryStatus.REJECTED)
    assert outcome.reason is Reason.PROVIDER_VALIDATION
    assert (outcome.bounce, outcome.suppress) == (None, False)


@pytest.mark.covers("mail-server:C5", "edge:N20", "edge:G3")
@pytest.mark.parametrize("reply", ["421 4.3.2 x", "450 4.2.0 x", "451 x", "452 4.5.3 x"])
@pytest.mark.parametrize("stage", [stage for stage in Stage if Stage.GREETING <= stage <= Stage.FINAL])
@pytest.mark.parametrize("route", list(Route))
def test_put_off(route: Route, stage: Stage, reply: str) -> None:
    outcome = _judge(stage, reply, route)
    direct = route is Route.DIRECT
    assert outcome.verdict is Verdict.TEMPORARY
    assert outcome.delivery is (DeliveryStatus.DEFERRED if direct else DeliveryStatus.QUEUED)
    assert outcome.backoff is (Backoff.RECEIVER if direct else Backoff.RELAY)
    assert outcome.status == (reply.split()[1] if "4." in reply else "4.0.0")
    assert (outcome.reason, outcome.bounce, outcome.suppress) == (None, None, False)
    assert outcome.next_host == (direct and stage < Stage.RESET)


@pytest.mark.covers("mail-server:C5")
@pytest.mark.parametrize("stage", [Stage.GREETING, Stage.HELLO, Stage.TLS])
@pytest.mark.parametrize("route", list(Route))
def test_a_host_that_does_not_talk_to_us(route: Route, stage: Stage) -> None:
    outcome = _judge(stage, "554 5.7.1 go away", route)
    assert outcome.verdict is Verdict.TEMPORARY
    assert outcome.status == "4.0.0"
    assert outcome.next_host == (route is Route.DIRECT)


@pytest.mark.covers("edge:N14", "edge:N16", "mail-server:C6")
@pytest.mark.parametrize(
    ("said", "issue"),
    [
        ("535 5.7.8 no", Issue.AUTH_FAILED),
        (Fault.AUTH_MISSING, Issue.AUTH_FAILED),
        (Fault.TLS_MISSING, Issue.TLS_REQUIRED),
    ],
)
def test_login_and_tls_of_a_relay(said: str | Fault, issue: Issue) -> None:
    stage = Stage.AUTH if issue is Issue.AUTH_FAILED else Stage.TLS
    tenant = _judge(stage, said, Route.TENANT_RELAY)
    assert (tenant.verdict, tenant.delivery) == (Verdict.PERMANENT, DeliveryStatus.REJECTED)
    assert (tenant.reason, tenant.issue) == (Reason.SENDER_DOMAIN_UNAVAILABLE, issue)
    assert tenant.status.startswith("5.7.")
    ours = _judge(stage, said, Route.SMARTHOST)
    assert (ours.verdict, ours.delivery, ours.backoff) == (*(Verdict.TEMPORARY, DeliveryStatus.QUEUED, Backoff.PAUSED),)
    assert (ours.reason, ours.issue) == (None, issue)
    assert ours.status.startswith("4.7.")
    # A login that is refused for now is not.
    assert _judge(Stage.AUTH, "454 4.7.0 later", Route.TENANT_RELAY).backoff is Backoff.RELAY


@pytest.mark.covers("edge:G2", "edge:N15", "mail-server:C5")
@pytest.mark.parametrize("route", list(Route))
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Fault.CONNECTION_LOST, Reason.TRANSPORT_CONNECTION_LOST),
        (Fault.TIMEOUT, Reason.TRANSPORT_TIMEOUT),
        (Fault.BAD_REPLY, Reason.PROVIDER_OUTCOME_UNKNOWN),
        (Fault.TLS_FAILED, Reason.PROVIDER_OUTCOME_UNKNOWN),
        ("354 what?", Reason.PROVIDER_OUTCOME_UNKNOWN),
    ],
)
def test_unknown(route: Route, said: str | Fault, reason: Reason) -> None:
    outcome = _judge(Stage.FINAL, said, route)
    assert (outcome.verdict, outcome.delivery) == (Verdict.UNCERTAIN, DeliveryStatus.UNCERTAIN)
    assert outcome.reason is reason
    assert (outcome.backoff, outcome.next_host, outcome.bounce, outcome.suppress) == (None, False, None, False)


@pytest.mark.covers("mail-server:C5", "edge:G2")
@given(
    st.sampled_from(_BEFORE_THE_END),
    st.sampled_from([Fault.CONNECT_FAILED, Fault.CONNECTION_LOST, Fault.TIMEOUT, Fault.TLS_FAILED, Fault.BAD_REPLY]),
    st.sampled_from(Route),
)
def test_broken_off_before_the_end_is_certain(stage: Stage, fault: Fault, route: Route) -> None:
    outcome = _judge(stage, fault, route)
    assert outcome.verdict is Verdict.TEMPORARY
    assert outcome.code is None
    assert outcome.next_host == (route is Route.DIRECT and Stage.CONNECT <= stage <= Stage.AUTH)


@pytest.mark.covers("edge:G2")
@given(st.sampled_from(Stage), st.sampled_from(Fault), st.sampled_from(Route), st.integers(200, 599), st.booleans())
def test_never_again_unless_certain(stage: Stage, fault: Fault, route: Route, code: int, replied: bool) -> None:
    """Whatever happens: another attempt, or another host, only of what was certainly not sent."""
    evidence = Evidence(stage, ServerReply(code)) if replied else Evidence(stage, fault=fault)
    outcome = classify(evidence, route)
    assert (outcome.backoff is not None) == (outcome.verdict is Verdict.TEMPORARY)
    if stage is Stage.FINAL:
        definite = replied and (code < 300 or code >= 400)
        assert (outcome.verdict is Verdict.UNCERTAIN) == (not definite)
        assert not outcome.next_host
    else:
        assert outcome.verdict in (Verdict.TEMPORARY, Verdict.PERMANENT)
    assert outcome.status[0] in {Verdict.DELIVERED: "2", Verdict.TEMPORARY: "4", Verdict.PERMANENT: "5"}.get(
        outcome.verdict, "4"
    )
    assert outcome.suppress == (outcome.bounce is BounceType.HARD)


@pytest.mark.covers("mail-server:C5", "edge:G6")
@pytest.mark.parametrize(
    ("fault", "verdict", "status", "bounce", "next_host"),
    [
        (Fault.NO_SUCH_DOMAIN, Verdict.PERMANENT, "5.1.2", BounceType.HARD, False),
        (Fault.NULL_MX, Verdict.PERMANENT, "5.1.10", BounceType.HARD, False),
        (Fault.DNS_FAILURE, Verdict.TEMPORARY, "4.4.3", None, False),
        (Fault.BLOCKED_TARGET, Verdict.PERMANENT, "5.4.4", BounceType.SOFT, True),
    ],
)
def test_routing(fault: Fault, verdict: Verdict, status: str, bounce: BounceType | None, next_host: bool) -> None:
    outcome = _judge(Stage.ROUTE, fault)
    assert (outcome.verdict, outcome.status, outcome.bounce, outcome.next_host) == (verdict, status, bounce, next_host)
    for route in _RELAYS:
        assert _judge(Stage.ROUTE, fault, route).backoff is Backoff.RELAY
    assert _judge(Stage.ROUTE, Fault.NULL_MX).code == 556


@pytest.mark.covers("edge:G5", "mail-server:C5")
@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault.TOO_LARGE, "5.3.4"),
        (Fault.UTF8_MISSING, "5.6.7"),
        (Fault.EIGHT_BIT_MISSING, "5.6.3"),
        (Fault.BINARY_MISSING, "5.6.3"),
        (Fault.REQUIRETLS_MISSING, "5.7.30"),
    ],
)
def test_what_the_server_cannot_take(fault: Fault, status: str) -> None:
    outcome = _judge(Stage.MAIL, fault)
    assert (outcome.verdict, outcome.status, outcome.bounce) == (Verdict.PERMANENT, status, BounceType.SOFT)
    assert _judge(Stage.MAIL, fault, Route.TENANT_RELAY).reason is Reason.PROVIDER_VALIDATION


@pytest.mark.covers("decisions:B8", "edge:G3", "mail-server:C5")
def test_no_further_attempt() -> None:
    last = expire(_judge(Stage.RCPT, "450 4.2.1 greylisted"), Route.DIRECT)
    assert (last.verdict, last.delivery, last.bounce) == (
        *(Verdict.PERMANENT, DeliveryStatus.BOUNCED, BounceType.SOFT),
    )
    assert (last.reason, last.status) == (Reason.DELIVERY_EXPIRED, "4.4.7")
    assert (last.code, last.text, last.suppress) == (450, "4.2.1 greylisted", False)
    held = expire(_judge(Stage.CONNECT, Fault.CONNECT_FAILED, Route.SMARTHOST), Route.SMARTHOST)
    assert (held.delivery, held.reason, held.bounce) == (DeliveryStatus.FAILED, Reason.QUOTA_EXHAUSTED, None)
    for final in (_judge(Stage.FINAL, "250 ok"), _judge(Stage.FINAL, Fault.TIMEOUT), _judge(Stage.RCPT, "550 no")):
        with pytest.raises(ValueError):
            expire(final, Route.DIRECT)


def test_evidence_is_something() -> None:
    with pytest.raises(ValueError):
        Evidence(Stage.MAIL)
