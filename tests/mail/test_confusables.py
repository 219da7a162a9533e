"""The confusable fold and the script test, against their laws and against ICU's spoof checker."""

import importlib.util
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.confusables import _table, fold, has_right_to_left, is_mixed_script
from postroom.mail.confusables_data import UNICODE_VERSION

ASCII_NAMES = st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789.-_", min_size=1, max_size=40)
ANY = st.text(max_size=60)


@pytest.mark.covers("edge:A4")
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("rnailer-daemon", "mailer-daemon"),
        ("p0stmaster", "postmaster"),
        ("POSTMASTER", "postmaster"),
        ("аbuse", "abuse"),  # Cyrillic а
        ("ｐostmaster", "postmaster"),
        ("post\u200bmaster", "postmaster"),
        ("𝐚𝐛𝐮𝐬𝐞", "abuse"),
        ("noreρly", "noreply"),  # Greek ρ
        ("aIice", "aiice"),
        ("paypa1", "paypal"),
    ],
)
def test_look_alikes_fold_the_same(left: str, right: str) -> None:
    assert fold(left) == fold(right)


@given(ANY)
def test_the_fold_ignores_case_and_normal_form(text: str) -> None:
    assert fold(text.casefold()) == fold(text)
    assert fold(unicodedata.normalize("NFD", text.casefold())) == fold(text)


@given(ASCII_NAMES)
def test_the_fold_of_ascii_is_ascii_and_settled(name: str) -> None:
    folded = fold(name)
    assert folded.isascii()
    assert folded == folded.lower()
    assert fold(folded) == folded


@given(ANY, st.sampled_from(["\u200b", "\u00ad", "\ufeff", "\u2060", "\ufe0f"]), st.integers(0, 60))
def test_what_draws_nothing_changes_nothing(text: str, ignorable: str, at: int) -> None:
    # A combining mark reorders across an invisible character: only plain letters are compared.
    letters = "".join(char for char in text if unicodedata.category(char).startswith("L") and char.isascii())
    assert fold(letters[:at] + ignorable + letters[at:]) == fold(letters)


def test_the_fold_has_a_limit() -> None:
    with pytest.raises(ValueError, match="too long"):
        fold("a" * 1025)


@pytest.mark.parametrize(
    ("text", "mixed"),
    [
        ("alice", False),
        ("аlice", True),
        ("алиса", False),
        ("日本語かな", False),
        ("日本語abc", True),
        ("a-1.b", False),
        ("alicé", False),
        ("한국漢字", False),
    ],
)
@pytest.mark.covers("edge:A4")
def test_mixed_scripts(text: str, mixed: bool) -> None:
    assert is_mixed_script(text) is mixed


def test_right_to_left() -> None:
    assert has_right_to_left("אבג")
    assert has_right_to_left("سلام")
    assert not has_right_to_left("alice1")


def oracle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("icu_oracle", Path(__file__).with_name("icu_oracle.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_icu() -> None:
    icu_oracle = oracle()
    icu = icu_oracle.load()
    if icu is None or icu.unicode_version() != UNICODE_VERSION:
        pytest.skip("no ICU library of the tables' Unicode version on this system")
    table = _table()
    for point, prototype in table.items():
        char = chr(point)
        if prototype is not None and unicodedata.normalize("NFD", char) == char:
            assert icu.skeleton(char) == prototype
    for char in "aаα日かé가אa1-漢":
        scripts = icu_oracle.augmented(icu.scripts(ord(char)))
        expected = scripts if not scripts & {"Zyyy", "Zinh", "Zzzz"} else None
        for other in "aя日":
            others = icu_oracle.augmented(icu.scripts(ord(other)))
            assert is_mixed_script(char + other) is (expected is not None and not expected & others)
