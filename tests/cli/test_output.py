"""What people read cannot play tricks on their terminal; what programs read is left alone (A3)."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.cli.output import MAX_CELL, Mode, Output, cell, clean

EVIL = "a\x1b[2Jb\x9bc\x7f\u202egpj.exe\u200b\u2066x\ufeff"


def make(mode: Mode) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Output(mode, out, err), out, err


@pytest.mark.covers("cli-config-ops:A3")
def test_controls_are_replaced_and_reordering_is_spelled_out() -> None:
    assert clean(EVIL) == "a\ufffd[2Jb\ufffdc\ufffd<U+202E>gpj.exe<U+200B><U+2066>x<U+FEFF>"
    assert clean("line\n\ttab") == "line\n\ttab"


@given(st.text())
def test_nothing_dangerous_passes(text: str) -> None:
    shown = clean(text)
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in shown if char not in "\n\t")
    assert not any(unicodedata.bidirectional(char) in _BIDI for char in shown)
    assert not set(shown) & set("\u200b\u200c\u200d\u2060\ufeff\u00ad\u2028\u2029")
    assert clean(shown) == shown


_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(st.text())
def test_a_cell_is_one_short_line(text: str) -> None:
    shown = cell(text)
    assert "\n" not in shown
    assert "\t" not in shown
    assert 0 < len(shown) <= MAX_CELL


def test_cells_of_other_things() -> None:
    assert [cell(one) for one in (None, "", True, False, 3, ["a", "b"], [])] == [
        "-",
        "-",
        "yes",
        "no",
        "3",
        "a, b",
        "-",
    ]


@pytest.mark.covers("cli-config-ops:A3", "FR-CLI-1")
def test_one_document_with_json() -> None:
    output, out, err = make(Mode.JSON)
    output.line("a step")
    output.note("a remark")
    output.result({"id": "x", "text": EVIL})
    assert json.loads(out.getvalue()) == {"id": "x", "text": EVIL}
    assert out.getvalue().count("\n") == 1
    assert err.getvalue() == ""


def test_lists_with_json_keep_their_cursor() -> None:
    output, out, _ = make(Mode.JSON)
    output.listing([{"id": "x"}], ("id",), next_cursor="later")
    assert json.loads(out.getvalue()) == {"data": [{"id": "x"}], "next_cursor": "later"}


def test_quiet_prints_the_essential_value_alone() -> None:
    output, out, err = make(Mode.QUIET)
    output.result({"id": "x", "key": "s\x1becret"}, essential="key")
    output.result({"status": "without one"})
    output.listing([{"id": "a"}, {"id": "b"}], ("id",))
    output.listing([], ("id",))
    output.note("a remark")
    assert out.getvalue() == "s\ufffdecret\na\nb\n"
    assert err.getvalue() == ""


def test_people_get_tables_and_indented_json() -> None:
    output, out, err = make(Mode.HUMAN)
    output.listing([{"id": "x", "name": "two\nlines"}, {"id": "y", "name": "[red]markup[/red]"}], ("id", "name"))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines == ["ID  NAME", "x   two⏎lines", "y   [red]markup[/red]"]
    output.listing([], ("id",), empty="Nothing.")
    assert err.getvalue() == "Nothing.\n"
    output.result({"id": "ü"})
    assert out.getvalue().endswith('{\n  "id": "ü"\n}\n')


def test_a_terminal_of_another_encoding_shows_what_it_can() -> None:
    raw = io.BytesIO()
    output = Output(Mode.HUMAN, io.TextIOWrapper(raw, "ascii", write_through=True), io.StringIO())
    output.line("héllo ✓")
    assert raw.getvalue() == b"h\\xe9llo \\u2713\n"
