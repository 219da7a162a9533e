"""DMARC: discovery, organisations, alignment, results; authheaders as another opinion."""

import functools
import itertools
from types import SimpleNamespace

import authheaders  # type: ignore[import-untyped]  # it has no annotations
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailauth.answers import Answers as KnownAnswers
from postroom.mailauth.dkim_result import Status
from postroom.mailauth.dmarc import (
    DmarcReason,
    DmarcStatus,
    SpfStatus,
    author_domain,
    evaluate,
    queries,
)
from postroom.mailauth.dmarc_policy import MAX_QUERIES, Organisation, Records, find_organisation
from postroom.mailauth.dmarc_record import Policy
from postroom.mailauth.resolver import NameNotFoundError, ResolverError
from tests.mailauth.dkim_tools import Answers, done
from tests.mailauth.dmarc_tools import DOWN, dkim, judged, spf, zone

REJECT = "v=DMARC1; p=reject"
SUFFIX = "v=DMARC1; p=reject; psd=y"


@pytest.mark.covers("RFC 7489 §3.1", "FR-IN-4", "edge:D1")
@pytest.mark.parametrize(
    ("author", "sender", "strict", "relaxed"),
    [
        # The examples of RFC 7489 §B.1.1 and §B.1.2.
        ("example.com", "example.com", True, True),
        ("child.example.com", "example.com", False, True),
        ("example.com", "child.example.com", False, True),
        ("example.com", "sample.net", False, False),
        ("example.com", "sender.example.net", False, False),
        ("a.example.com", "b.example.com", False, True),
        ("EXAMPLE.com.", "Example.COM", True, True),
        ("münchen.example", "xn--mnchen-3ya.example", True, True),
        ("example.co.uk", "other.co.uk", False, False),
        ("a.github.io", "b.github.io", False, False),
        ("example.com", "badexample.com", False, False),
        ("example.com", "com", False, False),
        ("co.uk", "a.co.uk", False, False),
    ],
)
def test_alignment(author: str, sender: str, strict: bool, relaxed: bool) -> None:
    listed = done(find_organisation(Records(zone({})), author_domain([author]) or "")).domain
    for mode, aligned in (("s", strict), ("r", relaxed)):
        records = {listed: f"v=DMARC1; p=reject; aspf={mode}; adkim={mode}"}
        by_dkim, by_spf = judged(author, records, dkim(sender)), judged(author, records, by=spf(sender))
        wanted = DmarcReason.ALIGNED if aligned else DmarcReason.NOT_ALIGNED
        assert (by_dkim.reason, by_spf.reason) == (wanted, wanted)
        assert (by_dkim.aligned_by, by_spf.aligned_by) == (("dkim", "spf") if aligned else (None, None))
        assert by_dkim.dkim_aligned == (aligned,)
        assert by_spf.spf_aligned is aligned


@pytest.mark.covers("RFC 7489 §3.1")
def test_modes_are_apart() -> None:
    records = {"example.com": "v=DMARC1; p=reject; adkim=s"}
    assert judged("example.com", records, dkim("a.example.com")).reason is DmarcReason.NOT_ALIGNED
    both = judged("example.com", records, dkim("a.example.com"), by=spf("b.example.com"))
    assert (both.reason, both.aligned_by) == (DmarcReason.ALIGNED, "spf")
    assert judged("example.com", records, dkim("example.com"), by=spf("example.com")).aligned_by == "dkim"


@pytest.mark.covers("RFC 7489 §4.2", "edge:D1")
@pytest.mark.parametrize("status", [status.value for status in Status])
def test_only_a_pass_passes(status: str) -> None:
    result = judged("example.com", {"example.com": REJECT}, dkim("example.com", status))
    expected = {"pass": DmarcStatus.PASS, "temperror": DmarcStatus.TEMPERROR}.get(status, DmarcStatus.FAIL)
    assert result.status is expected
    assert result.dkim_aligned == (True,)


@pytest.mark.covers("RFC 7489 §4.2")
@pytest.mark.parametrize("status", [status.value for status in SpfStatus])
def test_only_a_pass_of_spf_passes(status: str) -> None:
    result = judged("example.com", {"example.com": REJECT}, by=spf("example.com", status))
    expected = {"pass": DmarcStatus.PASS, "temperror": DmarcStatus.TEMPERROR}.get(status, DmarcStatus.FAIL)
    assert result.status is expected
    assert result.spf_aligned


@pytest.mark.covers("RFC 7489 §6.6.3", "RFC 9989 §4.10", "decisions:B9")
@pytest.mark.parametrize(
    ("author", "records", "exists", "policy", "where"),
    [
        ("example.com", {"example.com": REJECT}, None, "reject", "example.com"),
        ("a.example.com", {"example.com": REJECT}, None, "reject", "example.com"),
        ("a.example.com", {"example.com": REJECT + "; sp=none"}, None, "none", "example.com"),
        ("example.com", {"example.com": REJECT + "; sp=none"}, None, "reject", "example.com"),
        ("a.example.com", {"example.com": REJECT + "; np=none"}, None, "reject", "example.com"),
        ("a.example.com", {"example.com": REJECT + "; np=none"}, True, "reject", "example.com"),
        ("a.example.com", {"example.com": REJECT + "; np=none"}, False, "none", "example.com"),
        ("example.com", {"example.com": REJECT + "; np=none"}, False, "reject", "example.com"),
        ("a.example.com", {"a.example.com": "v=DMARC1; p=none; sp=reject", "example.com": REJECT}, None, "none",
         "a.example.com"),
        # What stands between the author and the organisation does not count.
        ("a.b.example.com", {"b.example.com": "v=DMARC1; p=none", "example.com": REJECT}, None, "reject",
         "example.com"),
        ("example.com", {"com": REJECT}, None, None, None),
        ("example.com", {"com": SUFFIX + "; sp=quarantine"}, None, "quarantine", "com"),
        ("a.example.com", {"com": SUFFIX + "; np=none"}, False, "none", "com"),
        ("gov", {"gov": SUFFIX}, None, "reject", "gov"),
        ("a.b.example.com", {"b.example.com": "v=DMARC1; p=none; psd=n", "example.com": REJECT}, None, "none",
         "b.example.com"),
        ("a.b.example.com", {"b.example.com": "v=DMARC1; p=none; psd=y", "example.com": REJECT}, None, "none",
         "b.example.com"),
        ("a.example.com", {"example.com": REJECT + "; pct=0; t=y"}, None, "reject", "example.com"),
    ],
)  # fmt: skip
def test_the_policy_in_force(
    author: str, records: dict[str, str], exists: bool | None, policy: str | None, where: str | None
) -> None:
    result = judged(author, records, exists=exists)
    assert (result.policy, result.record_domain) == (policy, where)
    assert result.reason is (DmarcReason.NO_RECORD if policy is None else DmarcReason.NOT_ALIGNED)


@pytest.mark.covers("RFC 9989 §4.7")
def test_existence_is_asked_for_only_where_it_matters() -> None:
    full = REJECT + "; sp=quarantine; np=none"
    below = judged("a.example.com", {"example.com": full})
    assert below.existence_matters
    for exists in (True, False):
        assert below.with_existence(exists) == judged("a.example.com", {"example.com": full}, exists=exists)
    for other in (
        judged("example.com", {"example.com": full}),
        judged("a.example.com", {"example.com": REJECT}),
        judged("a.example.com", {}),
    ):
        assert not other.existence_matters
        assert other.with_existence(False) is other


@pytest.mark.covers("RFC 7489 §6.6.3", "edge:D1")
@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ({}, DmarcReason.NO_RECORD),
        ({"a.example.com": []}, DmarcReason.NO_RECORD),
        ({"a.example.com": ["v=spf1 -all"]}, DmarcReason.NO_RECORD),
        ({"a.example.com": [REJECT, REJECT + ";"], "example.com": REJECT}, DmarcReason.SEVERAL_RECORDS),
        ({"example.com": [REJECT, "v=DMARC1"]}, DmarcReason.SEVERAL_RECORDS),
        ({"a.example.com": "v=DMARC1; p=x", "example.com": REJECT}, DmarcReason.UNUSABLE_RECORD),
    ],
)
def test_without_a_policy_alignment_is_told(records: dict[str, str | list[str]], reason: DmarcReason) -> None:
    result = judged("a.example.com", records, dkim("example.com"))
    assert (result.status, result.reason) == (DmarcStatus.NONE, reason)
    assert (result.policy, result.record_domain, result.aligned_by) == (None, None, "dkim")
    assert result.document() == {
        "result": "none",
        "policy": None,
        "record_domain": None,
        "aligned_by": "dkim",
        "reason": reason.value,
    }


@pytest.mark.covers("decisions:D3", "RFC 9989 §5.3")
@pytest.mark.parametrize(
    ("records", "signed_by", "reason"),
    [
        # The record of the author or of the organisation.
        ({"a.example.com": DOWN, "example.com": REJECT}, "a.example.com", DmarcReason.DNS_POLICY),
        ({"a.example.com": DOWN, "example.com": REJECT}, "other.example", DmarcReason.DNS_POLICY),
        ({"example.com": DOWN}, "a.example.com", DmarcReason.DNS_POLICY),
        # Not needed.
        ({"a.example.com": REJECT, "com": DOWN}, "example.com", DmarcReason.ALIGNED),
        ({"a.example.com": REJECT, "com": DOWN}, "other.example", DmarcReason.NOT_ALIGNED),
        ({"a.example.com": REJECT, "example.com": DOWN}, "a.example.com", DmarcReason.ALIGNED),
        ({"a.example.com": REJECT, "example.com": DOWN}, "other.example", DmarcReason.NOT_ALIGNED),
        # A psd= there might keep the two apart.
        ({"a.example.com": REJECT, "example.com": DOWN}, "b.example.com", DmarcReason.DNS_IDENTIFIERS),
        ({"a.example.com": REJECT, "b.example.com": DOWN}, "b.example.com", DmarcReason.DNS_IDENTIFIERS),
        ({"a.example.com": REJECT, "b.example.com": DOWN}, "c.b.example.com", DmarcReason.DNS_IDENTIFIERS),
        ({"com": DOWN}, "example.com", DmarcReason.NO_RECORD),
    ],
)
def test_dns_that_does_not_answer(records: dict[str, str | Exception], signed_by: str, reason: DmarcReason) -> None:
    result = judged("a.example.com", records, dkim(signed_by))
    assert result.reason is reason
    assert (result.status is DmarcStatus.TEMPERROR) == reason.value.startswith("dns_")


@pytest.mark.covers("decisions:D3")
def test_a_record_that_may_not_apply_does_not_condemn() -> None:
    records: dict[str, str | Exception] = {"b.example.com": DOWN, "example.com": REJECT}
    assert judged("a.b.example.com", records, dkim("other.example")).reason is DmarcReason.DNS_POLICY
    assert judged("a.b.example.com", records, dkim("a.b.example.com")).reason is DmarcReason.ALIGNED


@pytest.mark.covers("RFC 9989 §5.3")
def test_what_could_not_be_looked_up_may_have_passed() -> None:
    records = {"example.com": REJECT}
    assert judged("example.com", records, dkim("example.com", "temperror")).status is DmarcStatus.TEMPERROR
    assert judged("example.com", records, dkim("other.example", "temperror")).status is DmarcStatus.FAIL
    both = judged("example.com", records, dkim("example.com", "temperror"), dkim("example.com"))
    assert both.status is DmarcStatus.PASS


@pytest.mark.covers("RFC 9989 §4.10")
@pytest.mark.parametrize(
    ("author", "signed_by", "records", "aligned"),
    [
        # Customers below a name that says so are strangers to one another, and to the owner.
        ("a.example.com", "b.example.com", {"example.com": SUFFIX}, False),
        ("a.example.com", "a.example.com", {"example.com": SUFFIX}, True),
        ("a.example.com", "x.a.example.com", {"example.com": SUFFIX}, True),
        ("example.com", "a.shops.example.com", {"example.com": REJECT, "shops.example.com": SUFFIX}, False),
        ("example.com", "shops.example.com", {"example.com": REJECT, "shops.example.com": SUFFIX}, False),
        ("example.com", "a.b.example.com", {"example.com": REJECT, "b.example.com": REJECT}, True),
        ("example.com", "a.b.example.com", {"example.com": REJECT, "b.example.com": REJECT + "; psd=n"}, False),
        # No psd=y joins what the list keeps apart.
        ("a.co.uk", "b.co.uk", {"a.co.uk": REJECT, "uk": SUFFIX}, False),
        ("a.github.io", "b.github.io", {"io": SUFFIX}, False),
        ("a.co.uk", "b.co.uk", {"co.uk": REJECT}, False),
        # The owner of a listed suffix may call it one organisation.
        ("a.github.io", "b.github.io", {"github.io": REJECT + "; psd=n"}, True),
    ],
)
def test_boundaries_that_owners_draw(author: str, signed_by: str, records: dict[str, str], aligned: bool) -> None:
    result = judged(author, records, dkim(signed_by))
    assert result.dkim_aligned == (aligned,)


@pytest.mark.covers("RFC 9989 §4.10")
@pytest.mark.parametrize(
    ("records", "organisation"),
    [
        ({"mail.example.com": REJECT, "example.com": REJECT}, "example.com"),
        ({"com": SUFFIX}, "example.com"),
    ],
)
def test_the_examples_of_rfc_9989(records: dict[str, str], organisation: str) -> None:
    assert done(find_organisation(Records(zone(records)), "a.mail.example.com")) == Organisation(organisation)


@pytest.mark.covers("RFC 9989 §5.3.1", "edge:B13")
def test_the_domain_of_the_author() -> None:
    assert author_domain(["Example.com", "example.com."]) == "example.com"
    assert author_domain(["a.example", "b.example"]) is None
    assert author_domain([]) is None
    assert author_domain(["[192.0.2.1]"]) is None
    for author in (None, "", "[192.0.2.1]", "a b", "\ud800"):
        result = judged(author, {}, dkim("example.com"), by=spf("example.com"))
        assert (result.reason, result.status) == (DmarcReason.NO_AUTHOR, DmarcStatus.NONE)
        assert result.dkim_aligned == (False,)
        assert queries(author, ["example.com"]) == ()


@pytest.mark.covers("decisions:D3")
def test_all_names_are_known_beforehand() -> None:
    names = queries("a.example.com", ["a.example.com", "b.c.example.com", "other.example", "", "bad name"])
    assert names == tuple(
        f"_dmarc.{name}" for name in ("a.example.com", "example.com", "com", "b.c.example.com", "c.example.com")
    )
    answers = zone({"example.com": REJECT})
    result = judged("a.example.com", answers, dkim("b.c.example.com"), dkim("other.example"))
    assert result.status is DmarcStatus.PASS
    assert set(answers.asked) <= set(names)
    assert len(answers.asked) == len(set(answers.asked))


def test_look_ups_have_a_limit() -> None:
    author = "a.b.c.d.e.f.g.h.i.example.com"
    signatures = [dkim(f"x{n}.y{n}.z{n}.w{n}.example.com") for n in range(10)]
    answers = zone({})
    result = judged(author, answers, *signatures, by=spf("q.example.com"))
    assert result.status is DmarcStatus.NONE
    assert len(answers.asked) == MAX_QUERIES
    assert len(queries(author, [signature.domain for signature in signatures])) == MAX_QUERIES
    # What is beyond it is not taken for absent.
    assert judged("example.com", zone({"example.com": REJECT}), *signatures).status is DmarcStatus.PASS


@pytest.mark.covers("RFC 7489 §6.6.3")
def test_names_that_are_too_long_have_no_record() -> None:
    long = ".".join(["a" * 60] * 4) + ".example"
    answers = zone({})
    assert judged(long, answers).reason is DmarcReason.NO_RECORD
    assert f"_dmarc.{long}" not in answers.asked


DOMAINS = st.sampled_from(["example.com", "a.example.com", "b.a.example.com", "c.example.com", "other.example", "com"])
RECORDS = st.dictionaries(
    DOMAINS,
    st.one_of(
        st.just(DOWN),
        st.lists(
            st.sampled_from(
                [
                    REJECT,
                    "v=DMARC1; p=none; adkim=s; aspf=s",
                    SUFFIX,
                    f"{REJECT}; psd=n; sp=none",
                    "v=spf1",
                    "v=DMARC1; p=",
                ]
            ),
            max_size=2,
        ),
    ),
    max_size=4,
)
SIGNATURES = st.lists(st.builds(dkim, DOMAINS, st.sampled_from([status.value for status in Status])), max_size=4)
SPF = st.builds(spf, st.one_of(st.none(), DOMAINS), st.sampled_from([status.value for status in SpfStatus]))


@pytest.mark.covers("decisions:D3", "FR-IN-4")
@settings(max_examples=400, deadline=None)
@given(DOMAINS, RECORDS, SIGNATURES, SPF)
def test_no_silence_of_dns_makes_mail_pass(author, records, signatures, by) -> None:  # type: ignore[no-untyped-def]  # hypothesis fills them
    """Where DNS is silent, whatever it might have said is not better than what we say."""
    result = judged(author, records, *signatures, by=by)
    assert result.reason.status is result.status
    down = [name for name, value in records.items() if value is DOWN]
    for said in itertools.product(([], [REJECT], [SUFFIX], ["v=DMARC1; p=none; psd=n"]), repeat=min(len(down), 2)):
        known = {**records, **dict(zip(down, said, strict=False))}
        other = judged(author, known, *signatures, by=by)
        if result.status is DmarcStatus.PASS:
            assert other.status is DmarcStatus.PASS
        if result.status is DmarcStatus.FAIL:
            assert other.status in (DmarcStatus.FAIL, DmarcStatus.TEMPERROR) or "psd=n" in str(said)


@pytest.mark.covers("FR-IN-4")
@settings(max_examples=200, deadline=None)
@given(DOMAINS, RECORDS, SIGNATURES, SPF)
def test_answers_beforehand_suffice(author, records, signatures, by) -> None:  # type: ignore[no-untyped-def]  # hypothesis fills them
    live = zone(records)
    names = queries(author, [*(signature.domain for signature in signatures), by.domain or ""])
    known: dict[str, list[bytes] | ResolverError] = {name: NameNotFoundError() for name in names}
    known |= {name: value for name, value in live.records.items() if name in known}  # type: ignore[misc]  # as zone makes them
    first = judged(author, live, *signatures, by=by)
    again = done(evaluate(author, by, signatures, KnownAnswers(known)))
    joined = any("psd=n" in str(value) and name == "_dmarc.com" for name, value in live.records.items())
    assert first == again or joined


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60), st.binary(max_size=60))
def test_never_raises(author: str, signed_by: str, by: str, text: bytes) -> None:
    class Everywhere(Answers):
        async def txt(self, name: str) -> list[bytes]:
            return [b"v=DMARC1;" + text]

    result = judged(author, Everywhere({}), dkim(signed_by), by=spf(by))
    assert result.reason.status is result.status
    queries(author, [signed_by, by])


# It reads the list of suffixes for every question.
for module in (authheaders, authheaders.dmarc_lookup):
    module.get_org_domain = functools.cache(module.get_org_domain)

PLAIN = st.dictionaries(
    st.sampled_from(["example.com", "a.example.com", "other.co.uk"]),
    st.sampled_from(
        [REJECT, "v=DMARC1; p=none; adkim=s", "v=DMARC1; p=quarantine; sp=none; aspf=s", "v=DMARC1;p=none"]
    ),
)


@pytest.mark.covers("RFC 7489 §6.6.3", "RFC 7489 §3.1")
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["example.com", "a.example.com", "x.other.co.uk"]),
    PLAIN,
    st.sampled_from(["example.com", "b.example.com", "a.example.com", "other.co.uk", "more.co.uk"]),
    st.sampled_from(["example.com", "b.example.com", "other.co.uk"]),
    st.booleans(),
    st.booleans(),
)
def test_authheaders_agrees(
    author: str, records: dict[str, str], signed: str, mailed: str, dkim_passes: bool, spf_passes: bool
) -> None:
    """Policies are compared where the record is not the author's own: authheaders takes `sp=` there, too, against
    RFC 7489 §6.3."""

    def words(passes: bool) -> str:
        return "pass" if passes else "fail"

    theirs = authheaders.dmarc_per_from(
        author,
        spf_result=SimpleNamespace(result=words(spf_passes), smtp_mailfrom=f"a@{mailed}"),
        dkim_result=SimpleNamespace(result=words(dkim_passes), header_d=signed),
        dnsfunc=lambda name: records.get(name.removeprefix("_dmarc.")),
    )
    ours = judged(author, records, dkim(signed, words(dkim_passes)), by=spf(mailed, words(spf_passes)))
    assert ours.status.value == theirs[0]
    if ours.policy is not None and (ours.record_domain != author or "sp=" not in records[author]):
        assert ours.policy is Policy(theirs[3])
