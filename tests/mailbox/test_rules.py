"""Names of folders, sets of flags, people of a thread: decisions without a database."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.errors import PostroomError
from postroom.mailbox import rules
from postroom.mailbox.models import MAX_FLAGS, SYSTEM_FLAGS
from postroom.mailbox.rules import FlagMode, LimitExceeded

WORDS = st.from_regex(r"\$?[a-z0-9]{1,8}", fullmatch=True)
FLAGS = st.frozensets(WORDS, max_size=40)


@pytest.mark.covers("mail-server:D2")
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("INBOX", "INBOX"),
        ("inbox", "INBOX"),
        ("iNbOx/Child", "INBOX/Child"),
        ("Inboxes", "Inboxes"),
        ("work/inbox", "work/inbox"),
        ("Cafe\N{COMBINING ACUTE ACCENT}", "Caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("a b/c.d", "a b/c.d"),
        # Lower-cases to "inbox" in some foldings, but is no ASCII INBOX.
        ("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}nbox", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}nbox"),
    ],
)
def test_folder_names_have_one_form(raw: str, name: str) -> None:
    assert rules.folder_name(raw) == name


@pytest.mark.covers("mail-server:D2")
@pytest.mark.parametrize(
    "raw",
    [
        *("", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a\\b", "a:b"),
        *("a\0b", "a\rb", "a\x7fb", "a\x85b", "a\ud800b"),
        *("x" * 256, "é" * 128, "/".join(["x" * 200] * 6), "x/" * 600 + "x"),
    ],
)
def test_impossible_folder_names(raw: str) -> None:
    with pytest.raises(PostroomError) as caught:
        rules.folder_name(raw)
    assert caught.value.code == "invalid_request"
    assert caught.value.details is not None
    assert caught.value.details["errors"][0]["path"] == "name"


@given(st.text(max_size=300))
def test_a_canonical_name_stays_and_fits(raw: str) -> None:
    try:
        name = rules.folder_name(raw)
    except PostroomError:
        return
    assert rules.folder_name(name) == name == unicodedata.normalize("NFC", name)
    assert len(name.encode()) <= rules.MAX_PATH_BYTES
    assert all(0 < len(segment.encode()) <= rules.MAX_SEGMENT_BYTES for segment in name.split("/"))
    assert rules.ancestors(name) == [name.rsplit("/", depth)[0] for depth in range(name.count("/"), 0, -1)]


@pytest.mark.covers("mail-server:D2")
def test_order_of_a_folder_list() -> None:
    names = ["work-2", "work/b", "Zeta", "INBOX/x", "alpha", "work", "INBOX", "work/a"]
    assert sorted(names, key=rules.folder_order) == [
        *("INBOX", "INBOX/x", "Zeta", "alpha", "work", "work/a", "work/b", "work-2"),
    ]


@pytest.mark.covers("mail-server:D5")
@pytest.mark.parametrize(
    ("raw", "word"), [("$Seen", "$seen"), ("NonJunk", "nonjunk"), ("$Label1", "$label1"), ("a]b", None)]
)
def test_flag_words(raw: str, word: str | None) -> None:
    if word is None:
        with pytest.raises(PostroomError):
            rules.flag_word(raw)
    else:
        assert rules.flag_word(raw) == word


@pytest.mark.parametrize("raw", ["", "a b", "a(b", 'a"b', "a{b", "a%b", "a*b", "a\\b", "a\nb", "é", "x" * 101])
def test_impossible_flags(raw: str) -> None:
    with pytest.raises(PostroomError, match="malformed") as caught:
        rules.flag_word(raw)
    assert caught.value.code == "invalid_request"


@pytest.mark.covers("mail-server:D5")
@given(old=FLAGS, flags=FLAGS, mode=st.sampled_from(FlagMode))
def test_changing_flags_is_set_arithmetic(old: frozenset[str], flags: frozenset[str], mode: FlagMode) -> None:
    expected = {FlagMode.ADD: old | flags, FlagMode.REMOVE: old - flags, FlagMode.REPLACE: flags}[mode]
    if mode is FlagMode.ADD and len(expected - SYSTEM_FLAGS) > MAX_FLAGS and not expected <= old:
        with pytest.raises(LimitExceeded):
            rules.change_flags(sorted(old), mode, flags)
        return
    new = rules.change_flags(sorted(old), mode, flags)
    assert new == tuple(sorted(expected))


@pytest.mark.covers("mail-server:D5")
def test_keywords_have_a_limit_and_system_flags_are_free() -> None:
    full = frozenset(f"k{n}" for n in range(MAX_FLAGS)) | SYSTEM_FLAGS
    assert len(rules.change_flags((), FlagMode.REPLACE, full)) == MAX_FLAGS + len(SYSTEM_FLAGS)
    with pytest.raises(LimitExceeded) as caught:
        rules.change_flags(tuple(full), FlagMode.ADD, frozenset({"one-more"}))
    assert caught.value.code == "invalid_request"
    # What is too full already may shrink, and may swap within the limit.
    over = tuple(sorted(full | {"one-more"}))
    assert "k1" not in rules.change_flags(over, FlagMode.REMOVE, frozenset({"k1"}))
    assert "one-more" in rules.edit_flags(tuple(full), frozenset({"one-more"}), frozenset({"k1"}))


@pytest.mark.covers("decisions:A5", "mail-server:D5")
def test_labels_are_the_words_that_fit() -> None:
    flags = ("$label1", "$seen", "a.b", "urgent", "x" * 65, "2024:q1", "-dash")
    assert rules.labels(flags) == ("2024:q1", "urgent")
    assert rules.is_read(flags)
    assert not rules.is_read(("seen",))


@given(st.lists(st.tuples(st.sampled_from(["", *(f"p{n}@example.com" for n in range(60))]), st.text(max_size=90))))
def test_participants(appearances: list[tuple[str, str]]) -> None:
    own = frozenset({"p3@example.com"})
    people = rules.participants(appearances, own)
    addresses = [person["address"] for person in people]
    expected = dict.fromkeys(address for address, _ in appearances if address and address not in own)
    assert addresses == list(expected)[:50]
    for person in people:
        names = [name[:78] for address, name in appearances if address == person["address"] and name]
        assert person["name"] == (names[-1] if names else "")
