"""Every fuzz target holds on any bytes, on messages that something happened to, and on what broke it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import REGRESSIONS, seeds
from tests.fuzz.targets import TARGETS

_SEEDS: Final = seeds()


@st.composite
def _spoilt(draw: st.DrawFn) -> bytes:
    """A message of the corpus that something happened to: cut, doubled, crossed with another, bytes changed."""
    data = bytearray(draw(st.sampled_from(_SEEDS))[:20_000])
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 400)))
        match draw(st.sampled_from(["cut", "double", "cross", "change"])):
            case "cut":
                del data[at:end]
            case "double":
                data[at:at] = data[at:end]
            case "cross":
                other = draw(st.sampled_from(_SEEDS))
                data[at:end] = other[at : at + 600]
            case _:
                data[at:end] = draw(st.binary(max_size=12))
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.binary(max_size=400) | _spoilt())
def test_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_seeds(target: Callable[[bytes], None]) -> None:
    for seed in _SEEDS:
        target(seed)


def test_regressions() -> None:
    for path in sorted(REGRESSIONS.glob("*/*")):
        TARGETS[path.parent.name](path.read_bytes())
