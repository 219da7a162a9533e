"""Rewritten envelope senders, and loops."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.address import Address
from postroom.mail.srs import (
    MAX_HOP,
    Hops,
    LoopError,
    Rewriter,
    SrsError,
    SrsProblem,
    check_arrival,
    hop_field,
    hops,
    next_hop,
)

NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
OURS = Rewriter("pm-bounce.example.com", [KEY])
ROOMY = Rewriter("Fwd.example", [KEY], max_local=255)
THEIRS = Rewriter("fwd2.example", [OTHER_KEY], max_local=255)
LOCALS = st.text(st.sampled_from("abcXYZ019.+-=_'\" \\ö"), min_size=1, max_size=30)
SENDERS = st.builds(Address, st.just(""), LOCALS, st.sampled_from(["example.org", "a-b.co.uk", "x"]))


def moved(sender: Address | None, rewriter: Rewriter, now: datetime = NOW) -> Address:
    made = rewriter.rewrite(sender, now)
    assert made is not None
    return made


@pytest.mark.covers("mail-server:A6")
def test_form() -> None:
    made = moved(Address("", "Ann", "Example.ORG"), OURS)
    assert made.domain == "pm-bounce.example.com"
    tag, mac, day, rest = made.local.split("=", 3)
    assert (tag, len(mac), len(day), rest) == ("SRS0", 8, 2, "example.org=Ann")
    assert OURS.rewrite(None, NOW) is None


@given(SENDERS, st.integers(0, 21), st.sampled_from([str, str.lower, str.upper]))
@pytest.mark.covers("mail-server:A6")
def test_bounces_find_back(sender: Address, days: int, case: type[str]) -> None:
    made = moved(sender, ROOMY)
    assert made.domain == "fwd.example"
    back = ROOMY.reverse(Address("", case(made.local), case(made.domain)), NOW + timedelta(days=days))
    assert back is not None
    assert (back.local.lower(), back.domain.lower()) == (sender.local.lower(), sender.domain)


@given(SENDERS)
def test_two_forwarders_and_more(sender: Address) -> None:
    first = moved(sender, ROOMY)
    second = moved(first, THEIRS)
    assert second.local.startswith("SRS1=")
    third = moved(second, ROOMY)
    fourth = moved(third, THEIRS)
    assert len(third.local) == len(second.local) == len(fourth.local)
    # From wherever it bounces, it comes back to the first forwarder, and from there to the sender.
    for rewriter, address in ((THEIRS, fourth), (ROOMY, third), (THEIRS, second)):
        back = rewriter.reverse(address, NOW)
        assert back is not None
        assert back == first
    assert ROOMY.reverse(first, NOW) == sender


def test_forms_of_other_forwarders() -> None:
    for local in ("SRS0+abcd=xy=example.org=ann", "srs0-abcd=xy=example.org=ann"):
        made = moved(Address("", local, "other.example"), ROOMY)
        assert made.local.endswith(f"=other.example={local[4:]}")
        assert ROOMY.reverse(made, NOW) == Address("", "SRS0" + local[4:], "other.example")


@given(SENDERS, st.data())
@pytest.mark.covers("mail-server:A6")
def test_forged_ones_are_refused(sender: Address, data: st.DataObject) -> None:
    made = moved(sender, ROOMY)
    at = data.draw(st.integers(5, len(made.local) - 1))
    char = data.draw(st.sampled_from("abz27=.").filter(lambda c: c != made.local[at].lower()))
    forged = Address("", made.local[:at] + char + made.local[at + 1 :], made.domain)
    assert problem(ROOMY, forged) in (SrsProblem.FORGED, SrsProblem.MALFORMED)


def problem(rewriter: Rewriter, address: Address, now: datetime = NOW) -> SrsProblem:
    with pytest.raises(SrsError) as caught:
        rewriter.reverse(address, now)
    return caught.value.problem


def test_time() -> None:
    made = moved(Address("", "ann", "example.org"), OURS)
    assert problem(OURS, made, NOW + timedelta(days=22)) is SrsProblem.EXPIRED
    # Of the day after tomorrow nobody can have made one yet; nor is it good when the code of its day comes round.
    for days in (-2, 1024, 1030, 2048):
        assert problem(OURS, made, NOW + timedelta(days=days)) is SrsProblem.FORGED
    assert OURS.reverse(made, NOW - timedelta(days=1)) == Address("", "ann", "example.org")
    assert OURS.reverse(made, NOW + timedelta(days=21)) is not None


@pytest.mark.covers("mail-server:A6")
def test_time_of_what_was_forwarded_before() -> None:
    made = moved(moved(Address("", "ann", "example.org"), THEIRS), ROOMY)
    assert made.local.startswith("SRS1=")
    assert problem(ROOMY, made, NOW + timedelta(days=22)) is SrsProblem.EXPIRED
    assert ROOMY.reverse(made, NOW + timedelta(days=21)) is not None
    # Whoever passes it on from here renews it.
    again = moved(made, ROOMY, NOW + timedelta(days=20))
    assert len(again.local) == len(made.local)
    assert ROOMY.reverse(again, NOW + timedelta(days=41)) == ROOMY.reverse(made, NOW)


@pytest.mark.covers("mail-server:A6")
@given(SENDERS)
def test_another_domain_with_the_same_key(sender: Address) -> None:
    other = Rewriter("other.example", [KEY], max_local=255)
    for made in (moved(sender, ROOMY), moved(moved(sender, THEIRS), ROOMY)):
        assert problem(other, Address("", made.local, "other.example")) is SrsProblem.FORGED


def test_keys_rotate() -> None:
    made = moved(Address("", "ann", "example.org"), OURS)
    assert Rewriter("pm-bounce.example.com", [OTHER_KEY, KEY]).reverse(made, NOW) is not None
    assert problem(Rewriter("pm-bounce.example.com", [OTHER_KEY]), made) is SrsProblem.FORGED
    for keys in ([], [b"short"], [KEY] * 9):
        with pytest.raises(ValueError):
            Rewriter("example.com", keys)
    for days in (0, 1023):
        with pytest.raises(ValueError):
            Rewriter("example.com", [KEY], valid_days=days)


@pytest.mark.parametrize("sender", [Address("", "a" * 60, "example.org"), Address("", "ö" * 25, "example.org")])
def test_too_long_for_a_local_part(sender: Address) -> None:
    with pytest.raises(SrsError) as caught:
        OURS.rewrite(sender, NOW)
    assert caught.value.problem is SrsProblem.TOO_LONG


@pytest.mark.parametrize(
    "sender",
    [
        *(Address("", "", "example.org"), Address("", "a", ""), Address("", "a", "b=c")),
        *(
            Address("", f"SRS1=x={domain}==y", "b.example")
            for domain in ("[192.0.2.1]", "a b", "a@b", ".", "a>", "\u00e9.b")
        ),
    ],
)
def test_no_senders(sender: Address) -> None:
    with pytest.raises(SrsError) as caught:
        OURS.rewrite(sender, NOW)
    assert caught.value.problem is SrsProblem.MALFORMED


@pytest.mark.parametrize("local", ["SRS0=x", "SRS1=x=y", "srs0=aaaaaaaa=a=example.org=ann", "SRS1=aaaaaaaa=x=y"])
def test_malformed(local: str) -> None:
    assert problem(OURS, Address("", local, "pm-bounce.example.com")) is SrsProblem.MALFORMED


@given(LOCALS | st.text(st.sampled_from("srsSRS01=+-ab\udc80é"), max_size=30).map(lambda text: "SRS0=" + text))
def test_any_recipient(local: str) -> None:
    try:
        assert OURS.reverse(Address("", local, "pm-bounce.example.com"), NOW) is None
    except SrsError:
        assert local[:4].lower() in ("srs0", "srs1")
    assert OURS.reverse(Address("", local, "elsewhere.example"), NOW) is None


@pytest.mark.covers("edge:N13", "FR-OUT-14", "edge:D6")
def test_hops() -> None:
    assert next_hop(None) == 1
    assert next_hop(8) == 9
    with pytest.raises(LoopError):
        next_hop(9)
    assert hops(["2", " 7 ", "0"], 4) == Hops(7, 4)
    for garbage in ("x", "-3", "9" * 50, "", "1 2", "١"):
        assert hops(["2", garbage], 0).hop > MAX_HOP
    assert hops([], 0) == Hops(0, 0)
    assert hop_field(next_hop(3)) == b"X-Postroom-Hop: 4\r\n"


@pytest.mark.covers("mail-server:A6")
def test_loops_on_arrival() -> None:
    check_arrival(Hops(10, 50))
    for found in (Hops(11, 0), Hops(0, 51)):
        with pytest.raises(LoopError):
            check_arrival(found)
