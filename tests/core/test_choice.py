from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core import choice


@pytest.mark.parametrize(
    ("configured", "has_key", "installed", "chosen"),
    [
        ("auto", True, {"polling", "ably"}, "ably"),
        ("auto", False, {"polling", "ably"}, "polling"),
        ("auto", True, {"polling"}, "polling"),
        ("auto", False, {"polling"}, "polling"),
        ("polling", True, {"polling", "ably"}, "polling"),
        ("ably", False, {"polling"}, "ably"),
        ("memory", True, set(), "memory"),
    ],
)
def test_the_transport_is_what_was_asked_for_else_ably_where_it_can_be_used_else_polling(
    configured: str, has_key: bool, installed: set[str], chosen: str
) -> None:
    assert choice.transport(configured, has_key=has_key, installed=installed) == chosen


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        (("release", "trunk", "dev", "topic"), "release"),
        ((None, "trunk", "dev", "topic"), "trunk"),
        ((None, None, "dev", "topic"), "dev"),
        ((None, None, None, "topic"), "topic"),
        ((None, None, None, None), "main"),
        (("", "", "", ""), "main"),
    ],
)
def test_the_target_is_the_setting_then_the_remotes_then_the_upstream_then_the_branch(
    candidates: tuple[str | None, str | None, str | None, str | None], chosen: str
) -> None:
    assert choice.target(*candidates) == chosen


@pytest.mark.parametrize("at", range(4))
def test_a_branch_of_forge_is_passed_over_wherever_it_comes_from(at: int) -> None:
    candidates: list[str | None] = [None] * 4
    candidates[at] = "forge/collab-state"
    assert choice.target(*candidates) == "main"
    candidates[3 if at < 3 else 2] = "trunk"
    assert choice.target(*candidates) == "trunk"


@pytest.mark.parametrize("name", ["forge", "forgery", "my/forge/x"])
def test_a_branch_that_only_looks_like_forges_is_a_target(name: str) -> None:
    assert choice.target(None, name, None, "topic") == name


BRANCHES = st.none() | st.sampled_from(["", "forge/state", "main", "dev", "a/b"])


@given(BRANCHES, BRANCHES, BRANCHES, BRANCHES)
def test_a_target_is_always_a_branch_that_is_not_forges(
    configured: str | None, head: str | None, upstream: str | None, branch: str | None
) -> None:
    chosen = choice.target(configured, head, upstream, branch)
    assert chosen in {configured, head, upstream, branch, "main"} - {None, ""}
    assert not chosen.startswith("forge/")
