"""DMARC records: the examples of RFC 7489, what is forgiven and what is not."""

import dkim.util  # type: ignore[import-untyped]  # it has no annotations
import pytest
from authheaders.dmarc_lookup import answer_to_dict  # type: ignore[import-untyped]  # it has no annotations
from hypothesis import given
from hypothesis import strategies as st

from postroom.mailauth.dmarc_record import (
    MAX_URIS,
    Mode,
    Policy,
    Record,
    ReportUri,
    SuffixFlag,
    choose_record,
    is_record,
    parse_record,
)


def parsed(text: str) -> Record:
    record = parse_record(text.encode())
    assert record is not None
    return record


@pytest.mark.covers("RFC 7489 §6.3")
def test_the_examples_of_rfc_7489() -> None:
    """Appendix B.2."""
    record = parsed("v=DMARC1; p=none; rua=mailto:dmarc-feedback@example.com")
    assert record == Record(Policy.NONE, aggregate_reports=(ReportUri("mailto:dmarc-feedback@example.com"),))
    record = parsed("v=DMARC1; p=none; rua=mailto:dmarc-feedback@example.com; ruf=mailto:auth-reports@example.com")
    assert [uri.mailbox for uri in record.failure_reports] == ["auth-reports@example.com"]
    record = parsed(
        "v=DMARC1; p=none; rua=mailto:dmarc-feedback@example.com; ruf=mailto:auth-reports@thirdparty.example.net"
    )
    assert record.failure_reports[0].mailbox == "auth-reports@thirdparty.example.net"
    record = parsed(
        "v=DMARC1; p=quarantine; rua=mailto:dmarc-feedback@example.com,"
        "mailto:tld-test@thirdparty.example.net!10m; pct=25"
    )
    assert (record.policy, record.percent) == (Policy.QUARANTINE, 25)
    assert record.aggregate_reports[1] == ReportUri("mailto:tld-test@thirdparty.example.net", 10 << 20)


@pytest.mark.covers("RFC 9989 §4.7")
def test_every_tag() -> None:
    record = parsed(
        "v = DMARC1 ;p=reject; sp=quarantine;np=none;adkim=s;aspf = s; psd=n; t=y; pct=0; fo=1:d:s;"
        "rua=https://example.com/r!5k , mailto:a@example.com ;ruf=mailto:b@example.com?subject=x;"
    )
    assert record == Record(
        policy=Policy.REJECT,
        subdomain_policy=Policy.QUARANTINE,
        missing_policy=Policy.NONE,
        dkim_mode=Mode.STRICT,
        spf_mode=Mode.STRICT,
        suffix=SuffixFlag.NO,
        testing=True,
        percent=0,
        aggregate_reports=(ReportUri("https://example.com/r", 5 << 10), ReportUri("mailto:a@example.com")),
        failure_reports=(ReportUri("mailto:b@example.com?subject=x"),),
        failure_options=frozenset("1ds"),
    )
    assert record.aggregate_reports[0].mailbox is None
    assert record.failure_reports[0].mailbox == "b@example.com"


@pytest.mark.covers("RFC 7489 §6.4", "RFC 9989 §4.8")
@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("v=DMARC1", True),
        ("v=DMARC1;", True),
        ("V = DMARC1;p=none", True),
        ("v=DMARC1\t; p=none", True),
        ("v=dmarc1; p=none", False),
        (" v=DMARC1; p=none", False),
        ("v=DMARC1 p=none", False),
        ("v=DMARC12; p=none", False),
        ("p=none; v=DMARC1", False),
        ("v=spf1 -all", False),
        ("v=DMARC1,p=none", False),
        ("", False),
        ('"v=DMARC1; p=none"', False),
    ],
)
def test_what_is_a_record(text: str, is_one: bool) -> None:
    assert is_record(text.encode()) is is_one
    assert (parse_record(text.encode()) is not None) is is_one


@pytest.mark.covers("RFC 7489 §6.3", "RFC 7489 §6.6.3", "RFC 9989 §4.7")
@pytest.mark.parametrize(
    ("rest", "policy"),
    [
        ("p=REJECT", Policy.REJECT),
        ("P=reject", Policy.REJECT),
        ("p=reject; p=none", Policy.REJECT),
        ("p=none; p=reject", Policy.NONE),
        ("sp=reject; p=quarantine", Policy.QUARANTINE),
        (";;;p=reject;;", Policy.REJECT),
        ("=x; ; y; p=reject", Policy.REJECT),
        ("unknown=1; p=reject; x-y=2", Policy.REJECT),
        ("p=reject; adkim=x; aspf=; fo=z; pct=200; psd=q; t=maybe", Policy.REJECT),
        ("p=reject; rua=nonsense", Policy.REJECT),
        ("rua=mailto:a@b.example", Policy.NONE),
        ("", Policy.NONE),
        ("p=block; rua=mailto:a@b.example", Policy.NONE),
        ("p=reject; sp=block; rua=mailto:a@b.example", Policy.NONE),
        ("p=reject; np=block; rua=mailto:a@b.example", Policy.NONE),
        ("p=block", None),
        ("p=", None),
        ("p=reject; sp=block", None),
        ("p=reject; np=block; rua=x", None),
        ("p=reject\xff", Policy.NONE),
    ],
)
def test_faults(rest: str, policy: Policy | None) -> None:
    record = parse_record(b"v=DMARC1;" + rest.encode("latin-1"))
    assert (None if record is None else record.policy) is policy
    if record is not None and "adkim" in rest:
        assert record == Record(Policy.REJECT)


@pytest.mark.covers("RFC 7489 §6.2")
@pytest.mark.parametrize(
    ("text", "uris"),
    [
        ("mailto:a@b.example!", []),
        ("mailto:a@b.example!5", [("mailto:a@b.example", 5)]),
        ("mailto:a@b.example!1G", [("mailto:a@b.example", 1 << 30)]),
        ("MAILTO:a@b.example", [("mailto:a@b.example", None)]),
        ("a@b.example", []),
        ("mailto:", []),
        ("mailto:a", []),
        ("mailto:a@b@c", []),
        ("mailto:a b@c", []),
        (",,mailto:a@b.example,", [("mailto:a@b.example", None)]),
        ("ftp://x/y", [("ftp://x/y", None)]),
    ],
)
def test_uris(text: str, uris: list[tuple[str, int | None]]) -> None:
    found = [(uri.uri, uri.max_bytes) for uri in parsed(f"v=DMARC1; rua={text}").aggregate_reports]
    assert found == uris


@pytest.mark.covers("RFC 7489 §6.6.3")
def test_one_among_many() -> None:
    assert choose_record([]) == (0, None)
    assert choose_record([b"v=spf1 -all", b"v=DMARC1; p=reject"])[1] == Record(Policy.REJECT)
    assert choose_record([b"v=DMARC1; p=reject", b"v=DMARC1; p=none"]) == (2, None)
    assert choose_record([b"v=DMARC1; p=block"]) == (1, None)


@pytest.mark.covers("RFC 9989 §4.7")
def test_policies_of_subdomains() -> None:
    full = parsed("v=DMARC1; p=reject; sp=quarantine; np=none")
    assert [full.policy_for_subdomain(exists=known) for known in (True, None, False)] == [
        "quarantine",
        "quarantine",
        "none",
    ]
    assert parsed("v=DMARC1; p=reject; sp=none").policy_for_subdomain(exists=False) is Policy.NONE
    assert parsed("v=DMARC1; p=reject; np=none").policy_for_subdomain(exists=True) is Policy.REJECT


@pytest.mark.covers("mail-server:B4")
def test_the_milder_of_two() -> None:
    none, quarantine, reject = Policy
    assert [one.milder(two) for one in Policy for two in Policy] == [
        none, none, none, none, quarantine, quarantine, none, quarantine, reject,
    ]  # fmt: skip


@given(st.binary(max_size=300))
def test_any_bytes(text: bytes) -> None:
    assert parse_record(text) is None or is_record(text)
    parse_record(b"v=DMARC1;" + text)


def test_large_records_end() -> None:
    assert parse_record(b"v=DMARC1;" + b"a=b;" * 2000) is None
    record = parse_record(b"v=DMARC1;p=none;rua=" + b"mailto:a@b.c," * 200)
    assert record is not None
    assert len(record.aggregate_reports) == MAX_URIS
    assert parse_record(b"v=DMARC1" + b" " * 4000) is not None


TAGS = st.sampled_from(
    ["p=none", "p=reject", "sp=quarantine", "adkim=s", "aspf=r", "pct=5", "fo=1", "x=y", "t=y", "p = reject"]
)


@pytest.mark.covers("RFC 7489 §6.3")
@given(
    st.lists(TAGS, max_size=6, unique_by=lambda tag: tag.partition("=")[0].strip()), st.sampled_from([";", "; ", " ; "])
)
def test_authheaders_reads_the_same(tags: list[str], separator: str) -> None:
    text = separator.join(["v=DMARC1", *tags])
    theirs = answer_to_dict(text)
    ours = parsed(text)
    assert ours.policy == theirs.get("p", "none")
    assert ours.subdomain_policy == theirs.get("sp")
    assert (ours.dkim_mode, ours.spf_mode) == (theirs.get("adkim", "r"), theirs.get("aspf", "r"))
    assert dkim.util.parse_tag_value(text.encode())[b"v"] == b"DMARC1"
