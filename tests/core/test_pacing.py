from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core.lease import Timing
from forge_collab.core.pacing import (
    FAST_SECONDS,
    MANY_HOLDERS,
    RECENT_COMMITS,
    Fairness,
    beat_seconds,
    poll_seconds,
)

CHANCES = st.floats(0, 1, exclude_max=True)


def test_who_is_alone_on_the_branch_never_waits_after_a_success() -> None:
    fairness = Fairness(push_seconds=1.0)
    assert fairness.writers == 1
    fairness.saw_commits(["a"] * 30)
    assert fairness.writers == 1
    assert fairness.after_success(0.999) == 0.0


def test_a_winner_among_others_waits_one_push_and_a_share_of_everybodys() -> None:
    fairness = Fairness(push_seconds=2.0)
    fairness.saw_commits(["a", "b", "c"])
    assert fairness.after_success(0.0) == 2.0
    assert fairness.after_success(0.5) == 2.0 * (1 + 3 * 0.5)


def test_a_loser_waits_a_share_of_everybodys_push() -> None:
    fairness = Fairness(push_seconds=2.0)
    fairness.saw_commits(["a", "b", "c"])
    assert fairness.after_loss(0.0) == 0.0
    assert fairness.after_loss(0.5) == 2.0 * 3 * 0.5


def test_a_loser_knows_of_a_rival_before_it_has_seen_its_commits() -> None:
    assert Fairness(push_seconds=2.0).after_loss(0.5) == 2.0 * 2 * 0.5


def test_only_the_last_commits_count() -> None:
    fairness = Fairness()
    fairness.saw_commits(f"writer {n}" for n in range(100))
    assert fairness.writers == RECENT_COMMITS
    fairness.saw_commits(["a"] * (RECENT_COMMITS - 1))
    assert fairness.writers == 2
    fairness.saw_commits(["a"])
    assert fairness.writers == 1


@given(st.lists(st.floats(0.01, 60), min_size=1, max_size=50))
def test_the_smoothed_push_time_stays_among_what_was_measured(seconds: list[float]) -> None:
    fairness = Fairness(push_seconds=seconds[0])
    for measured in seconds:
        fairness.took(measured)
    assert min(seconds) - 1e-9 <= fairness.push_seconds <= max(seconds) + 1e-9


def test_the_smoothed_push_time_follows_what_is_measured() -> None:
    fairness = Fairness(push_seconds=0.1)
    for _ in range(20):
        fairness.took(3.0)
    assert fairness.push_seconds == pytest.approx(3.0, rel=0.01)


def test_eight_writers_who_follow_the_rule_share_the_branch() -> None:
    """The race of the specification in a few lines: whose push is through first has won."""
    chance = random.Random(7).random
    writers = {f"writer {n}": Fairness(push_seconds=1.0) for n in range(8)}
    starts = dict.fromkeys(writers, 0.0)
    wins = dict.fromkeys(writers, 0)
    for _ in range(160):
        ends = {name: start + 0.5 + chance() for name, start in starts.items()}
        winner = min(ends, key=lambda name: ends[name])
        now = ends[winner]
        wins[winner] += 1
        for name, fairness in writers.items():
            fairness.saw_commits([winner])
            if name == winner:
                starts[name] = now + fairness.after_success(chance())
            elif starts[name] < now:
                starts[name] = now + fairness.after_loss(chance())
    assert min(wins.values()) >= 8
    assert max(wins.values()) <= 40


@given(fast=st.floats(0.1, 10), idle=st.floats(0.1, 60), chance=CHANCES)
def test_polls_are_fast_for_five_minutes_after_anything_happened(
    fast: float, idle: float, chance: float
) -> None:
    soon = poll_seconds(fast, idle, quiet_for=FAST_SECONDS - 1, chance=chance)
    later = poll_seconds(fast, idle, quiet_for=FAST_SECONDS, chance=chance)
    assert 0.85 * fast - 1e-9 <= soon <= 1.15 * fast + 1e-9
    assert 0.85 * idle - 1e-9 <= later <= 1.15 * idle + 1e-9


def test_a_team_of_many_holders_beats_three_times_a_lease_at_most() -> None:
    assert beat_seconds(30, 120, MANY_HOLDERS) == 30
    assert beat_seconds(30, 120, MANY_HOLDERS + 1) == 40
    assert beat_seconds(40, 120, MANY_HOLDERS + 1) == 40


@given(ttl=st.floats(1, 3600), share=st.floats(0.01, 1), holders=st.integers(1, 50))
def test_a_stretched_beat_still_fits_three_times(ttl: float, share: float, holders: int) -> None:
    stretched = beat_seconds(ttl / 3 * share, ttl, holders)
    assert stretched <= ttl / 3
    assert ttl - Timing(ttl, ttl / 4).deadline(0.0) <= ttl / 3
