"""What is decided about webhooks without asking anybody (events-webhooks-errors §5.3 to §9)."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.permissions import Permission
from postroom.events.registry import EventType
from postroom.events.webhooks import signing
from postroom.events.webhooks.models import Answered, DisabledReason, Endpoint, EndpointScope, Happened
from postroom.events.webhooks.rules import (
    MAX_ATTEMPTS,
    WAITS,
    Health,
    answered,
    matches,
    needed,
    needed_to_change,
    wait_after,
)
from postroom.net.guarded_http import Code, Failure, Response

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
ENDPOINT: Final = Endpoint(
    *(1, "whk_1", None, None, None, None, "https://hooks.example.com/", None, ("*",), None, True, None, NOW, NOW),
)
EVENT: Final = Happened("message.received", 1, 7, "idn_1", False, NOW, "idn_1")

keys = st.none() | st.integers(1, 3)
events = st.builds(
    Happened,
    type=st.sampled_from((*map(str, EventType), "delivery.updated", "future.type")),
    tenant_id=keys,
    partner_id=keys,
    identity=st.none() | st.sampled_from(("idn_1", "idn_2")),
    is_system=st.booleans(),
    occurred_at=st.just(NOW),
    about=st.sampled_from(("whk_1", "whk_2", "idn_1")),
)
filters = st.lists(st.sampled_from((*map(str, EventType), "*")), min_size=1, max_size=6).map(tuple)


@st.composite
def endpoints(draw: st.DrawFn) -> Endpoint:
    tenant, partner = draw(st.sampled_from(((None, None), (1, None), (2, None), (None, 1), (None, 2))))
    identities = draw(st.none() | st.lists(st.sampled_from(("idn_1", "idn_2")), max_size=2).map(tuple))
    return replace(ENDPOINT, tenant_id=tenant, partner_id=partner, events=draw(filters), identity_ids=identities)


@pytest.mark.covers("FR-WH-1", "edge:J15", "edge:A15", "SEC-1")
@given(endpoints(), events)
def test_nobody_is_told_of_what_is_not_theirs(endpoint: Endpoint, event: Happened) -> None:
    if not matches(endpoint, event):
        return
    assert event.type in endpoint.events or "*" in endpoint.events
    assert endpoint.identity_ids is None or event.identity in endpoint.identity_ids
    assert event.type not in ("webhook.test", "delivery.updated")
    if endpoint.scope is EndpointScope.TENANT:
        assert event.tenant_id == endpoint.tenant_id
        assert event.type != "webhook.disabled"
    if endpoint.scope is EndpointScope.PARTNER:
        assert event.partner_id == endpoint.partner_id
    if event.is_system:
        assert endpoint.scope is EndpointScope.PLATFORM
    if event.type == "webhook.disabled":
        assert event.about != endpoint.public_id


@given(events.filter(lambda one: one.type not in ("webhook.test", "delivery.updated")))
def test_the_platform_hears_of_everything_but_of_itself(event: Happened) -> None:
    assert matches(ENDPOINT, event) == (event.type != "webhook.disabled" or event.about != ENDPOINT.public_id)


@st.composite
def changed(draw: st.DrawFn) -> tuple[Endpoint, Endpoint, frozenset[str]]:
    """An endpoint before and after a change that names some of its members."""
    before = draw(endpoints())
    before = draw(st.sampled_from((before, replace(before, enabled=False, disabled_reason=DisabledReason.MANUAL))))
    names = frozenset(draw(st.sets(st.sampled_from(("url", "events", "identity_ids", "enabled")), min_size=1)))
    asked = draw(endpoints())
    after = replace(before, **{name: getattr(asked, name) for name in names - {"enabled"}})
    if "url" in names:
        after = replace(after, url=draw(st.sampled_from((before.url, "https://other.example.com/"))))
    if "enabled" in names:
        after = replace(after, enabled=draw(st.booleans()))
    return before, after, names


@pytest.mark.covers("edge:J29")
@given(changed(), events)
def test_who_may_not_read_mail_has_none_sent(
    change: tuple[Endpoint, Endpoint, frozenset[str]], event: Happened
) -> None:
    """Whatever is changed: what is sent afterwards and was not before takes what it would take to read it."""
    before, after, names = change

    def is_sent(one: Endpoint) -> bool:
        return one.enabled and matches(one, event)

    sent_anew = is_sent(after) and not (is_sent(before) and before.url == after.url)
    required = needed_to_change(before, after, names)
    if sent_anew:
        assert needed([event.type]) <= required
    assert required <= needed(after.events)
    if not names & {"url", "events"} and not after.enabled and before.identity_ids == after.identity_ids:
        assert not required


def test_who_sees_an_event() -> None:
    of_tenant, of_partner = replace(ENDPOINT, tenant_id=1), replace(ENDPOINT, partner_id=7)
    assert matches(of_tenant, EVENT)
    assert matches(of_partner, EVENT)
    assert not matches(of_partner, replace(EVENT, partner_id=None))
    assert not matches(replace(ENDPOINT, events=("message.sent",)), EVENT)
    assert matches(replace(of_tenant, identity_ids=("idn_1",)), EVENT)
    assert not matches(replace(of_tenant, identity_ids=("idn_1",)), replace(EVENT, identity=None))
    disabled = Happened("webhook.disabled", 1, 7, None, False, NOW, "whk_9")
    assert matches(of_partner, disabled)
    assert not matches(of_tenant, disabled)


@pytest.mark.covers("edge:J29")
@given(filters)
def test_what_is_needed_to_read_mail(types: tuple[str, ...]) -> None:
    mail = any(one == "*" or one.startswith("message.") or one == "verification.received" for one in types)
    hidden = any(one in ("*", "message.quarantined") for one in types)
    assert needed(types) == {
        *([Permission.MESSAGES_READ] if mail else []),
        *([Permission.QUARANTINE_REVIEW] if hidden else []),
    }


# -- the schedule


@pytest.mark.covers("edge:J4", "FR-WH-3")
def test_the_schedule() -> None:
    words = "30 s, 2 m, 10 m, 30 m, 1 h, 2 h, 4 h, 8 h, 12 h, 12 h, 12 h, 19 h"
    units = {"s": 1, "m": 60, "h": 3600}
    assert list(WAITS) == [int(n) * units[unit] for n, unit in (word.split() for word in words.split(", "))]
    waits = [wait_after(number, 0.5) for number in range(1, 13)]
    assert sum((one for one in waits if one), timedelta()) == timedelta(hours=70, minutes=42, seconds=30)
    assert wait_after(MAX_ATTEMPTS, 0.5) is None


@given(st.integers(1, 12), st.floats(0, 1, exclude_max=True))
def test_jitter(number: int, drawn: float) -> None:
    wait = wait_after(number, drawn)
    assert wait is not None
    assert 0.9 * WAITS[number - 1] - 1 <= wait.total_seconds() <= 1.1 * WAITS[number - 1] + 1
    assert wait.microseconds == 0


@given(st.integers(100, 999))
def test_any_2xx_is_a_success_and_nothing_else(status: int) -> None:
    found = answered(Response(status, 5, b"", complete=True))
    assert (found.error is None) == (status // 100 == 2)
    assert found.http_status == status
    if status == 410:
        assert found.error == "status_410"
    elif status >= 500:
        assert found.error == "status_5xx"


def test_failures_keep_their_code() -> None:
    assert answered(Failure(Code.REDIRECT, 4, status=302)) == Answered(302, "redirect", 4)
    assert answered(Failure(Code.SSRF_BLOCKED, 4)) == Answered(None, "ssrf_blocked", 4)


@pytest.mark.covers("FR-WH-3")
def test_a_hundred_failures_within_a_day_do_not_disable() -> None:
    health = Health()
    for n in range(150):
        health = health.failed(NOW + timedelta(minutes=n))
    assert not health.is_lost(NOW + timedelta(hours=23, minutes=59))
    assert health.is_lost(NOW + timedelta(hours=24))
    few = Health(99, NOW)
    assert not few.is_lost(NOW + timedelta(days=9))


def test_pauses_grow_and_end() -> None:
    pauses = [Health(n, NOW).paused_until(NOW) for n in (1, 4, 5, 6, 9, 10, 90)]
    seconds = [None if one is None else (one - NOW).total_seconds() for one in pauses]
    assert seconds == [None, None, 10, 20, 160, 300, 300]


# -- signatures

SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""Of the vector that the Standard Webhooks project publishes; the rest of it below."""
VECTOR_ID, VECTOR_TIME, VECTOR_BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
VECTOR: Final = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.covers("FR-WH-2")
def test_the_published_vector() -> None:
    assert signing.signature(signing.secret_bytes(SECRET), VECTOR_ID, VECTOR_TIME, VECTOR_BODY) == VECTOR


@pytest.mark.covers("FR-WH-2")
@given(st.binary(min_size=24, max_size=64), st.binary(max_size=300), st.integers(0, 2**37))
def test_the_library_of_the_standard_takes_our_signatures(secret: bytes, body: bytes, now: int) -> None:
    standardwebhooks = pytest.importorskip("standardwebhooks", reason="the library of the standard is not installed")
    theirs = standardwebhooks.Webhook(base64.b64encode(secret).decode())
    moment = datetime.fromtimestamp(now, UTC)
    text = body.hex()
    assert theirs.sign("evt_1", moment, text) == signing.signature(secret, "evt_1", now, text.encode())


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.data())
def test_what_was_tampered_with_replayed_or_skewed_is_refused(secret: bytes, body: bytes, data: st.DataObject) -> None:
    text, other = signing.secret_text(secret), signing.secret_text(bytes(32) if secret != bytes(32) else b"x" * 32)
    now = 1_900_000_000
    sent = signing.headers([signing.secret_bytes(other), secret], "evt_1", now, body)

    def verdict(**changes: object) -> signing.Mismatch | None:
        asked = {
            "message_id": sent["webhook-id"],
            "timestamp": sent["webhook-timestamp"],
            "signatures": sent["webhook-signature"],
            "body": body,
            "now": now,
        } | changes
        return signing.verify(text, **asked)  # type: ignore[arg-type] # made of the keywords that it takes

    assert verdict() is None
    assert verdict(now=now + 300) is None
    assert verdict(now=now - 300) is None
    assert verdict(now=now + 301) is signing.Mismatch.TIMESTAMP
    assert verdict(now=now - 301) is signing.Mismatch.TIMESTAMP
    assert verdict(timestamp=str(now + 1)) is signing.Mismatch.SIGNATURE
    assert verdict(message_id="evt_2") is signing.Mismatch.SIGNATURE
    assert verdict(body=body + b" ") is signing.Mismatch.SIGNATURE
    assert verdict(signatures=sent["webhook-signature"].split()[0]) is signing.Mismatch.SIGNATURE
    assert verdict(signatures="") is signing.Mismatch.HEADER
    assert verdict(timestamp="soon") is signing.Mismatch.HEADER
    found = data.draw(st.text(max_size=40))
    assert verdict(signatures=found or "v1,") in (signing.Mismatch.SIGNATURE, signing.Mismatch.HEADER)
    assert (
        signing.verify("whsec_%", message_id="evt_1", timestamp="1", signatures="v1,", body=b"", now=1)
        is signing.Mismatch.SECRET
    )


def test_reasons_are_the_published_ones() -> None:
    assert [one.value for one in DisabledReason] == ["manual", "failing", "url_changed"]
