"""The messages of `auth/` are what their recipes make, and others judge their signatures as is expected of us."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from unittest.mock import patch

import dkim  # type: ignore[import-untyped]  # it has no annotations
import pytest

from postroom.mailauth.zone import Trouble
from tests.corpus.cases import HERE, Case, load, names
from tests.corpus.making import RECIPES, SIGNED_AT

CASES: Final = sorted((HERE / "auth").glob("*.toml"))
DIFFERS: Final = {
    "d1-dkim-length-and-more": "it believes a tail that nobody signed",
    "d1-dkim-expired": "it gives ten hours' grace",
    "d1-dkim-from-not-signed": "it takes a signature that leaves From out (RFC 6376 §6.1.1)",
    "d1-dkim-from-added": "it refuses whatever has two From fields",
    "d1-arc-pass-ed25519": "it knows RSA alone in chains",
}
"""Where dkimpy says something else, and why that is no fault of ours."""
SILENT: Final = logging.getLogger("corpus.dkimpy")


@pytest.mark.parametrize("name", RECIPES)
def test_as_its_recipe_makes_it(name: str) -> None:
    assert (HERE / "auth" / f"{name}.eml").read_bytes() == RECIPES[name]()


def test_each_case_has_a_recipe() -> None:
    assert {path.stem for path in CASES} == set(RECIPES)


def _txt(name: bytes, timeout: float = 5) -> bytes | None:
    found = names().get(name.decode().removesuffix("."))
    records = found.get("TXT", ()) if isinstance(found, Mapping) else ()
    if isinstance(records, Trouble) or len(records) != 1:
        return None
    record = records[0]
    return record.encode() if isinstance(record, str) else record


def _signatures(case: Case) -> Sequence[bool]:
    """What dkimpy says of each."""
    judge = dkim.DKIM(case.raw, logger=SILENT)
    count = sum(name.lower() == b"dkim-signature" for name, _ in judge.headers)
    return [
        _passes(functools.partial(dkim.DKIM(case.raw, logger=SILENT).verify, at, dnsfunc=_txt)) for at in range(count)
    ]


def _passes(verify: Any) -> bool:
    try:
        return bool(verify())
    except dkim.DKIMException:
        return False


@pytest.mark.covers("RFC 6376 §6.1", "RFC 8463", "edge:D1")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_dkimpy_finds_the_same_signatures_good(path: Any) -> None:
    case = load(path)
    with patch("time.time", lambda: SIGNED_AT + 7200.0):
        found = _signatures(case)
    is_same = any(found) is (case.expect["dkim"] == "pass")
    assert is_same is (case.name not in DIFFERS or "-arc-" in case.name)
    if "dkim" in case.expect.get("auth", {}):
        assert found == [result == "pass" for result in case.expect["auth"]["dkim"]]


@pytest.mark.covers("RFC 8617 §5.2")
@pytest.mark.parametrize("path", [path for path in CASES if "-arc-" in path.stem], ids=lambda path: path.stem)
def test_dkimpy_finds_the_same_chains_good(path: Any) -> None:
    case = load(path)
    with patch("time.time", lambda: SIGNED_AT + 7200.0):
        status, _, _ = dkim.arc_verify(case.raw, logger=SILENT, dnsfunc=_txt)
    is_same = (status or b"fail").decode() == case.expect["arc"]
    assert is_same is (case.name not in DIFFERS)
