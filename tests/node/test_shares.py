"""Limits of a machine, divided among its processes (B19)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.settings_tree import LimitSettings
from postroom.node.shares import LEAST_CONNECTIONS_PER_IP, Shares, divided


@pytest.mark.covers("decisions:B19", "decisions:D21")
def test_one_process_has_all_and_several_their_share() -> None:
    limits = LimitSettings(max_connections=1000, max_connections_per_ip=50, smtp_rate_limit=100)
    assert divided(limits, 1) == Shares(1000, 50, 100)
    assert divided(limits, 4) == Shares(250, 12, 25)


@pytest.mark.covers("decisions:B19")
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 256))
def test_shares_stay_within_the_limits_and_let_everyone_in(total: int, per_ip: int, rate: int, processes: int) -> None:
    limits = LimitSettings(max_connections=total, max_connections_per_ip=min(per_ip, total), smtp_rate_limit=rate)
    shares = divided(limits, processes)
    assert shares.max_connections * processes <= max(total, processes)
    assert shares.command_rate * processes <= max(rate, processes)
    assert shares.max_connections >= 1
    assert shares.command_rate >= 1
    assert min(LEAST_CONNECTIONS_PER_IP, per_ip, total) <= shares.max_connections_per_ip <= min(per_ip, total)
