"""Every command says what it does, and every argument and option what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from postroom.cli import program
from tests.cli.driver import Cli


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The whole tree, groups included."""
    yield path, command
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


TREE = dict(commands(typer.main.get_command(program.app)))


def test_where_an_id_is_taken_too_it_says_so() -> None:
    (name,) = [one for one in TREE["queue", "show"].params if one.name == "name"]
    assert "QUEUE|ID" in name.metavar
    assert "id of a delivery" in name.help


def test_the_tree_is_walked() -> None:
    assert {("serve",), ("queue", "show"), ("key", "rotate"), ("mail", "reply"), ("identity", "update")} <= set(TREE)
    assert len(TREE) > 35


@pytest.mark.covers("cli-config-ops:A3")
def test_lists_can_be_had_whole() -> None:
    """But for the queues, which are counted, and of which `--all` is what is tried again."""
    options = {path: {name for one in command.params for name in one.opts} for path, command in TREE.items()}
    paged = {path for path, names in options.items() if {"--limit", "--cursor"} <= names}
    assert len(paged) > 10
    assert {path for path in paged if "--all" not in options[path]} == {("queue", "list")}


@pytest.mark.covers("cli-config-ops:A2", "cli-config-ops:A5")
@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_everything_has_words(path: tuple[str, ...]) -> None:
    command = TREE[path]
    assert (command.help or "").strip(), "says nothing of what it does"
    parameters = [one for one in command.params if one.name != "help"]
    silent = [one.name for one in parameters if not (getattr(one, "help", None) or "").strip()]
    assert silent == []
    unfinished = [one.name for one in parameters if one.help.strip()[-1] not in ".;…]"]
    assert unfinished == [], "a sentence ends with a full stop"


@pytest.mark.covers("cli-config-ops:A5")
@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_help_is_shown_without_a_deployment(bare: Cli, path: tuple[str, ...]) -> None:
    shown = bare(*path, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert "Usage:" in shown.out
    words = " ".join(shown.out.replace("│", " ").split())
    for parameter in TREE[path].params:
        first = " ".join((getattr(parameter, "help", None) or "").split()[:2])
        assert first in words, parameter.name
