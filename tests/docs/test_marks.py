"""What `covers` marks name is unambiguous (CONTRIBUTING), and whoever silences a checker says why."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_FORMS: Final = re.compile(
    r"""
      (?:edge|decisions|mail-server|security-privacy|cli-config-ops):[A-Z]\d{1,2}(?:\.\d{1,2})?
    | quality:[a-z-]+
    | RFC\ \d{3,5}(?:\ §\d+(?:\.\d+)*)?
    | (?:FR|NFR)-[A-Z]{2,4}-\d{1,2}
    | SEC-\d{1,2}
    """,
    re.VERBOSE,
)
_SILENCED: Final = re.compile(
    r"#\s*(?:(?:ruff: )?noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type: ignore(?:\[[\w, -]+\])?)(.*)"
)


def _marks(tree: ast.AST) -> Iterator[tuple[int, object]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "covers":
            for argument in node.args:
                yield node.lineno, argument.value if isinstance(argument, ast.Constant) else None


def test_every_mark_has_a_form_that_names_one_thing() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {mark!r}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, mark in _marks(ast.parse(path.read_text("utf-8")))
        if not isinstance(mark, str) or _FORMS.fullmatch(mark) is None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("mark", "good"),
    [
        ("edge:B14", True),
        ("security-privacy:A4.2", True),
        ("RFC 3501 §6.4.5", True),
        ("NFR-REL-1", True),
        ("B14", False),
        ("rfc 3501", False),
        ("edge:", False),
    ],
)
def test_forms(mark: str, good: bool) -> None:
    assert (_FORMS.fullmatch(mark) is not None) is good


@pytest.mark.parametrize("directory", ["src", "tests", "benchmarks", "scripts"])
def test_every_silenced_check_has_a_reason(directory: str) -> None:
    """On its line, or in a comment on the line before."""
    wrong = []
    for path in sorted((ROOT / directory).rglob("*.py")):
        if path == Path(__file__):
            continue
        before = ""
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            found = _SILENCED.search(line)
            if found and len(found[1].strip(" #-")) < 3 and not before.strip().startswith("#"):
                wrong.append(f"{path.relative_to(ROOT)}:{number}")
            before = line
    assert wrong == []
