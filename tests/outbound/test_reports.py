"""What a report means for deliveries: against the table of the specification, and what must hold of any report."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.dsn import Action, DeliveryReport, ReportedRecipient
from postroom.outbound.models import Status
from postroom.outbound.reports import Reported, attribute, decide, is_wanted
from postroom.outbound.rules import MAX_RESPONSE, TRANSITIONS, after_event

ADDRESSES = st.sampled_from(
    ["anna@example.com", "bob@example.com", "Carl@EXAMPLE.org", "carl@example.org", "x y@z", ""]
)
ENTRIES = st.builds(
    ReportedRecipient,
    final_recipient=ADDRESSES | st.text(max_size=30),
    action=st.none() | st.sampled_from(Action),
    status=st.none() | st.sampled_from(["5.1.1", "4.4.7", "2.0.0", "5.0.0"]),
    diagnostic_code=st.none() | st.text(max_size=600) | st.sampled_from(["550 5.1.1 No", "550", "5500", "250 Ok", "x"]),
    original_recipient=st.none() | ADDRESSES,
)
STANDINGS = st.builds(Reported, st.sampled_from(Status), st.sampled_from([None, "hard", "soft"]), sent=st.booleans())


def of(*entries: ReportedRecipient) -> DeliveryReport:
    return DeliveryReport(None, None, None, None, entries)


def entry(
    final: str, action: Action | None = Action.FAILED, status: str | None = "5.1.1", original: str | None = None
) -> ReportedRecipient:
    return ReportedRecipient(final, action, status, None, original)


# outbound §13.3, for what a report can say; a delay is somebody else's, see docs/decisions.
TABLE = {
    Status.QUEUED: ("bounced", "delivered", None),
    Status.SUBMITTED: ("bounced", "delivered", None),
    Status.UNCERTAIN: ("bounced", "delivered", "submitted"),
    Status.DEFERRED: ("bounced", "delivered", None),
    Status.DELIVERED: ("bounced", None, None),
    Status.BOUNCED: (None, None, None),
    Status.COMPLAINED: (None, None, None),
    Status.FAILED: (None, None, None),
    Status.REJECTED: (None, None, None),
    Status.SUPPRESSED: (None, None, None),
    Status.CANCELED: (None, None, None),
}


@pytest.mark.covers("edge:G6", "edge:N19")
@pytest.mark.parametrize("status", Status)
def test_the_table(status: Status) -> None:
    failed, taken, delayed = TABLE[status]
    standing = Reported(status, "hard" if status is Status.BOUNCED else None, sent=True)
    for action, wanted in (
        (Action.FAILED, failed),
        (Action.DELIVERED, taken),
        (Action.RELAYED, taken),
        (Action.EXPANDED, taken),
        (Action.DELAYED, delayed),
        (None, None),
    ):
        found = decide(entry("anna@example.com", action), standing)
        assert (found and found.status) == wanted, action


@given(ENTRIES, STANDINGS)
@pytest.mark.covers("edge:G6", "edge:G2")
def test_any_entry(one: ReportedRecipient, standing: Reported) -> None:
    decided = decide(one, standing)
    if decided is None:
        return
    assert decided.status in TRANSITIONS[standing.status]
    assert not decided.status.is_waiting, "a report never has anything sent"
    assert (decided.next_at, decided.counts) == (None, False)
    assert (decided.bounce is not None) == (decided.status is Status.BOUNCED)
    assert decided.bounce == "hard" or not (one.status or "").startswith("5.") or decided.bounce is None
    assert len(decided.text or "") <= MAX_RESPONSE
    assert (decided.text or "").isprintable() or "\n" in (decided.text or "")
    assert decided.code is None or 400 <= decided.code < 600
    # Again, it says nothing new.
    assert decide(one, Reported(decided.status, decided.bounce, sent=True)) is None
    assert standing.sent


@pytest.mark.covers("edge:N19")
@pytest.mark.parametrize(
    ("before", "status", "applies"),
    [("soft", "5.1.1", True), ("soft", "4.4.7", False), ("hard", "5.1.1", False), ("hard", "4.4.7", False)],
)
def test_what_bounced_bounces_again_only_for_good(before: str, status: str, applies: bool) -> None:
    found = decide(entry("anna@example.com", status=status), Reported(Status.BOUNCED, before, sent=True))
    assert (found is not None) == applies


OURS = st.sampled_from(["anna@example.com", "bob@example.com", "carl@example.org"])


@given(st.lists(ENTRIES, max_size=6), st.lists(OURS, unique=True, min_size=1))
@pytest.mark.covers("edge:D11")
def test_any_report(entries: list[ReportedRecipient], ours: list[str]) -> None:
    recipients = {100 + at: address for at, address in enumerate(ours)}
    found = attribute(of(*entries), recipients)
    assert found.keys() <= recipients.keys()
    assert all(one in entries for one in found.values())
    if len(ours) == 1:
        assert bool(found) == bool(entries)
    else:
        for key, one in found.items():
            names = {(one.final_recipient or "").lower(), (one.original_recipient or "").lower()}
            assert recipients[key] in names


@pytest.mark.covers("RFC 3464 §2.3")
def test_who_is_meant() -> None:
    ours = {1: "anna@example.com", 2: "bob@example.com", 3: "jörg@xn--bcher-kva.example"}
    report = of(
        entry("bob@example.com", Action.DELIVERED, original="Anna@Example.com"),
        entry("anna@example.com"),
        entry("elsewhere@example.net", original="jörg@bücher.example"),
    )
    found = attribute(report, ours)
    assert {key: one.final_recipient for key, one in found.items()} == {
        1: "bob@example.com",
        3: "elsewhere@example.net",
    }
    # Of one, what went wrong behind it, rather than what went well.
    several = of(entry("x@example.net", Action.DELIVERED), entry("y@example.net"), entry("z@example.net"))
    assert attribute(several, {7: "anna@example.com"})[7].final_recipient == "y@example.net"


@pytest.mark.covers("RFC 3461 §4.1")
def test_what_is_wanted() -> None:
    words = {Action.FAILED: "FAILURE", Action.DELAYED: "DELAY"}
    for action, notify in product(Action, [(), ("NEVER",), ("FAILURE",), ("DELAY", "SUCCESS")]):
        assert is_wanted(entry("a@b", action), notify) == (words.get(action, "SUCCESS") in notify)
    assert is_wanted(entry("a@b", None), ("NEVER",))
    assert is_wanted(entry("a@b"), None)


@pytest.mark.covers("FR-DLV-1")
def test_a_message_that_ended_changes_only_for_late_news() -> None:
    """outbound §13.3: "a terminal message status changes only …"."""
    ended = {"suppressed", "delivered", "bounced", "complained", "rejected", "failed", "canceled"}
    late = {("delivered", "bounced"), ("delivered", "complained"), ("bounced", "complained")}
    for before, rolled_up in product(Status, Status):
        changes = before.value not in ended or (before.value, rolled_up.value) in late
        assert after_event(before, rolled_up) is (rolled_up if changes else before)
