"""Which usernames may be taken: every error in its order (inbound §3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.names import PERSON_NAMES, ROLE_NAMES, SERVICE_NAMES, NameClass, suffix_of
from postroom.base.errors import PostroomError
from postroom.directory.usernames import MAX_ALIAS, validate_username
from postroom.mail.confusables import fold

PLATFORM, TENANT = NameClass.PLATFORM, NameClass.TENANT


def refusal(name: str, name_class: NameClass = TENANT, max_length: int = 24, suffix: str = "") -> str | None:
    try:
        validate_username(name, name_class, max_length=max_length, suffix=suffix)
    except PostroomError as error:
        return error.code
    return None


@pytest.mark.covers("edge:A1", "edge:A3", "edge:A4", "edge:A12", "FR-ADR-6", "FR-ADR-7")
@pytest.mark.parametrize(
    ("name", "name_class", "suffix", "code"),
    [
        ("alice", PLATFORM, "", None),
        ("Alice.Smith", PLATFORM, "", None),
        ("a", PLATFORM, "", None),
        ("0", PLATFORM, "", None),
        # 1: looks like a reserved name, whatever else is wrong with it
        ("rnailer-daemon", TENANT, "", "address_reserved"),
        ("аbuse", TENANT, "", "address_reserved"),
        ("Postmaster", TENANT, "", "address_reserved"),
        ("p0stmaster", TENANT, "", "address_reserved"),
        ("inf0", PLATFORM, "", "address_reserved"),
        ("inf0", TENANT, "", None),
        # 2: mixed scripts, right-to-left
        ("pаypal", TENANT, "", "address_reserved"),
        ("שלום", TENANT, "", "address_reserved"),
        # 3: any other text that is not ASCII
        ("алиса", TENANT, "", "address_unsupported"),
        ("josé", TENANT, "", "address_unsupported"),
        ("日本", TENANT, "", "address_unsupported"),
        # 4: form
        ("", TENANT, "", "address_invalid"),
        (".alice", TENANT, "", "address_invalid"),
        ("alice.", TENANT, "", "address_invalid"),
        ("a..b", TENANT, "", "address_invalid"),
        ("a b", TENANT, "", "address_invalid"),
        ("a+b", TENANT, "", "address_invalid"),
        ("a@b", TENANT, "", "address_invalid"),
        ("a\0b", TENANT, "", "address_invalid"),
        ("alice\n", TENANT, "", "address_invalid"),
        ("-alice", TENANT, "", "address_invalid"),
        ("x" * 25, TENANT, "", "address_invalid"),
        ("x" * 24, TENANT, "", None),
        ("x" * 5000, TENANT, "", "address_invalid"),
        # 5: reserved by name or pattern
        ("owner-x", TENANT, "", "address_reserved"),
        ("list-request", TENANT, "", "address_reserved"),
        ("pm-probe", TENANT, "", "address_reserved"),
        ("sales", PLATFORM, "", "address_reserved"),
        ("sales", TENANT, "", None),
        ("noreply", TENANT, "", "address_reserved"),
        # 6: with the suffix
        ("x" * 24, TENANT, "." + "s" * 16, "local_part_too_long"),
        ("x" * 24, TENANT, "." + "s" * 15, None),
    ],
)
def test_the_first_rule_that_fails_names_the_error(
    name: str, name_class: NameClass, suffix: str, code: str | None
) -> None:
    assert refusal(name, name_class, suffix=suffix) == code


@pytest.mark.covers("edge:A4", "FR-ADR-6")
@pytest.mark.parametrize("name", sorted(PERSON_NAMES | SERVICE_NAMES))
@pytest.mark.parametrize("name_class", list(NameClass))
def test_names_reserved_everywhere(name: str, name_class: NameClass) -> None:
    assert refusal(name, name_class) == "address_reserved"
    assert refusal(name.upper(), name_class) == "address_reserved"


@pytest.mark.covers("edge:A4", "FR-ADR-6")
@pytest.mark.parametrize("name", sorted(ROLE_NAMES))
def test_role_names_are_a_tenants_to_take(name: str) -> None:
    assert refusal(name, PLATFORM) == "address_reserved"
    assert refusal(name, TENANT) is None


@given(st.text(max_size=50), st.sampled_from(NameClass), st.sampled_from(["", ".acme", "." + "s" * 31]))
def test_what_passes_is_plain(name: str, name_class: NameClass, suffix: str) -> None:
    refused = refusal(name, name_class, MAX_ALIAS, suffix)
    if refused is not None:
        assert refused in {"address_reserved", "address_unsupported", "address_invalid", "local_part_too_long"}
        return
    lower, folded = validate_username(name, name_class, max_length=MAX_ALIAS, suffix=suffix)
    assert lower == name.lower()
    assert lower.isascii()
    assert "@" not in lower
    assert "+" not in lower
    assert len(lower) + len(suffix) <= 40
    assert folded == fold(lower)
    assert validate_username(lower, name_class, max_length=MAX_ALIAS, suffix=suffix) == (lower, folded)


def suffix(slug: str, wanted: str | None) -> tuple[str, str] | str:
    try:
        return suffix_of(slug, wanted, default_tenant=False)
    except PostroomError as error:
        return error.code


@pytest.mark.covers("edge:D12")
@pytest.mark.parametrize(
    ("slug", "wanted", "outcome"),
    [
        ("acme", None, (".acme", "acrne")),
        ("acme", ".other", (".other", "other")),
        ("support", None, "address_reserved"),
        ("supp0rt", None, "address_reserved"),
        ("acme", "nodot", "invalid_request"),
        ("acme", ".-x", "invalid_request"),
        ("acme", ".x", "invalid_request"),
        ("pm-x", None, "address_reserved"),
    ],
)
def test_suffixes(slug: str, wanted: str | None, outcome: object) -> None:
    assert suffix(slug, wanted) == outcome


def test_only_the_default_tenant_has_no_suffix() -> None:
    assert suffix_of("main", None, default_tenant=True) == ("", "")
    with pytest.raises(PostroomError):
        suffix_of("main", ".x2", default_tenant=True)
