"""The frame of the benchmarks: modules run apart, one that fails is told, figures become a table and a document."""

import io
import json
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import __main__ as frame
from benchmarks.common import Row, row


@pytest.mark.parametrize(
    ("made", "met"),
    [
        (row("rate", 10, "messages/s", target=9), True),
        (row("rate", 8, "messages/s", target=9), False),
        (row("time", 8, "ms", target=9), True),
        (row("time", 10, "ms", target=9), False),
        (row("share", 10, "%", target=9, better="higher"), True),
        (row("nothing wanted", 10, "ms"), None),
    ],
)
def test_target_is_met(made: Row, met: bool | None) -> None:
    assert frame.is_met(made) is met


@pytest.mark.parametrize("named", ["", "Dovecot"])
def test_table_shows_figures_of_both(named: str) -> None:
    rows = [row("work", 1234.56, "messages/s", target=1000, peer=617.3, peer_name=named), row("[cost]", 0.5, "ms")]
    console = Console(file=io.StringIO(), width=160)
    console.print(
        frame.table([frame.Outcome("one", 1.0, (0.0, 0.0), rows), frame.Outcome("two", 1.0, (0.0, 0.0), [], "x")])
    )
    text = console.file.getvalue()  # type: ignore[attr-defined] # the file is the StringIO above
    for piece in ("one", "work", "1,235", "≥ 1,000", "yes", "617.3", "2.00", named, "[cost]", "two", "FAILED: x"):
        assert piece in text


def test_failing_module_is_told_with_what_it_said() -> None:
    outcome = frame.run_module("no_such_module", True, 60)
    assert outcome.error.startswith("ended with exit code 1")
    assert "No module named 'benchmarks.no_such_module'" in outcome.error
    assert outcome.rows == []


def test_module_that_takes_too_long_is_ended() -> None:
    outcome = frame.run_module("mime", False, 0.2)
    assert outcome.error.startswith("did not end within")


def test_module_leaves_contexts_on_sigterm() -> None:
    with pytest.raises(SystemExit):
        frame._leave(signal.SIGTERM, None)


def test_run_writes_documents_and_fails_with_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row("work", 5, "ms", target=4)]
    outcomes = {
        "mime": frame.Outcome("mime", 1.0, (0.5, 0.6), rows),
        "imap": frame.Outcome("imap", 1, (0, 0), [], "gone"),
    }
    monkeypatch.setattr(frame, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(frame, "run_module", lambda name, quick, limit: outcomes[name])

    assert frame.main(["--only", "mime", "--json", str(tmp_path / "own.json")]) == 0
    document = json.loads((tmp_path / "own.json").read_text())
    assert document["modules"][0]["rows"] == [{**rows[0], "met": False}]
    assert document["modules"][0]["load"] == [0.5, 0.6]
    assert len(list((tmp_path / "results").iterdir())) == 1

    outcomes["imap_growth"] = outcomes["mime"]
    assert frame.main(["--only", "imap_growth"]) == 0
    assert frame.main(["--only", "mime", "imap"]) == 1
    assert "gone" in capsys.readouterr().out


def test_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        frame.main(["--only", "nothing"])
    assert "no such benchmark: nothing" in capsys.readouterr().err


def test_document_has_the_machine() -> None:
    document = frame.document([], True, datetime(2030, 1, 1, tzinfo=UTC))
    assert document["started_at"] == "2030-01-01T00:00:00+00:00"
    assert document["machine"]["cpus"]
