"""Every setting is read by the program: none is there that changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from postroom.base.settings_tree import SECTIONS, Settings, all_keys

SOURCE: Final = Path(__file__).resolve().parents[2] / "src" / "postroom"
DEFINES: Final = SOURCE / "base" / "settings_tree.py"
CLASSES: Final = {model.__name__: section for section, model in SECTIONS.items()}
READ_OTHERWISE: Final = {
    "server.strict_config": "wanted before there is a tree: what is read decides whether there is one"
}
"""Keys that nothing reads as an attribute, each with its reason."""


class _Reads(ast.NodeVisitor):
    """The keys that a module reads: an attribute of a section, of a name that a section was given to, or of what is
    annotated as one; and the whole tree's own keys, as attributes of something called settings."""

    def __init__(self, tree: ast.Module) -> None:
        self.keys: set[str] = set()
        self._names: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            self._learn(node)
        self.visit(tree)

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._bind(name, value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, value in zip(names, values, strict=False):
                    if isinstance(target, ast.Name):
                        self._bind(target.id, value)
            case ast.arg(arg=name, annotation=ast.Name(id=kind)) if kind in CLASSES:
                self._names.setdefault(name, set()).add(CLASSES[kind])
            case _:
                pass

    def _bind(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.Attribute) and value.attr in SECTIONS and _is_settings(value.value):
            self._names.setdefault(name, set()).add(value.attr)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value
        if isinstance(owner, ast.Name):
            self.keys.update(f"{section}.{node.attr}" for section in self._names.get(owner.id, ()))
        if isinstance(owner, ast.Attribute) and owner.attr in SECTIONS and _is_settings(owner.value):
            self.keys.add(f"{owner.attr}.{node.attr}")
        if _is_settings(owner):
            self.keys.add(node.attr)
        self.generic_visit(node)


def _is_settings(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_") == "settings"


def _read(text: str) -> set[str]:
    return _Reads(ast.parse(text)).keys


def _modules() -> Iterator[Path]:
    return (path for path in SOURCE.rglob("*.py") if path != DEFINES)


def test_every_key_is_read_somewhere() -> None:
    read = set().union(*(_read(path.read_text("utf-8")) for path in _modules()))
    # What a property of a section makes of its keys is read by whoever asks for the property.
    endpoint = {f"{section}.listen" for section in ("lmtp", "metrics") if f"{section}.endpoint" in read}
    assert sorted(set(all_keys()) - read - endpoint) == sorted(READ_OTHERWISE)
    loader = DEFINES.with_name("settings.py").read_text("utf-8")
    assert all(f'"{key}"' in loader for key in READ_OTHERWISE)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("core.settings.queue.max_attempts", "queue.max_attempts"),
        ("queue = self._core.settings.queue\nprint(queue.max_attempts)", "queue.max_attempts"),
        ("roles, smtp = settings.server.roles, settings.smtp\nsmtp.port", "smtp.port"),
        ("def f(limits: LimitSettings) -> int:\n    return limits.max_recipients", "limits.max_recipients"),
        ("settings.platform_domain", "platform_domain"),
    ],
)
def test_what_reading_is(text: str, key: str) -> None:
    assert key in _read(text)


@pytest.mark.parametrize("text", ["other.queue.max_attempts", "queue.max_attempts", "x.max_attempts", "'max_attempts'"])
def test_what_reading_is_not(text: str) -> None:
    assert "queue.max_attempts" not in _read(text)


def test_the_whole_tree_is_known() -> None:
    assert set(SECTIONS) < set(Settings.model_fields)
