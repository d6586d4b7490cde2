"""Every combination of markers has its class, and the remote's silence changes none."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core.lifecycle import EXPLANATION, Class, classify

BOOLS = (False, True)
REPOS = (None, "", "r-1", "r-2")


def found(has: bool, readable: bool, enabled: bool, own: str | None, remote: str | None) -> Class:
    return classify(
        has_participant=has,
        is_readable=readable,
        is_enabled=enabled,
        own_repo=own,
        remote_repo=remote,
    )


TABLE = {
    # participant.json there, readable, enabled there
    (False, False, False): Class.INACTIVE,
    (False, True, False): Class.INACTIVE,
    (False, False, True): Class.STALE_ENABLED,
    (False, True, True): Class.STALE_ENABLED,
    (True, False, False): Class.STALE_PARTICIPANT,
    (True, False, True): Class.STALE_PARTICIPANT,
    (True, True, False): Class.STALE_PARTICIPANT,
    (True, True, True): Class.HEALTHY,
}


@pytest.mark.parametrize("state", list(product(BOOLS, repeat=3)))
@pytest.mark.parametrize(("own", "remote"), list(product(REPOS, repeat=2)))
def test_the_markers_decide_the_class_and_only_a_whole_one_can_be_in_another_session(
    state: tuple[bool, bool, bool], own: str | None, remote: str | None
) -> None:
    expected = TABLE[state]
    if expected is Class.HEALTHY and {own, remote} == {"r-1", "r-2"}:
        expected = Class.SESSION_MISMATCH
    assert found(*state, own, remote) is expected


@pytest.mark.parametrize("state", list(product(BOOLS, repeat=3)))
@pytest.mark.parametrize("own", REPOS)
def test_an_origin_that_can_not_be_reached_changes_nothing(
    state: tuple[bool, bool, bool], own: str | None
) -> None:
    assert found(*state, own, None) is found(*state, own, own) is TABLE[state]


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_known_ids_are_a_mismatch_exactly_when_they_differ(own: str, remote: str) -> None:
    is_mismatch = found(True, True, True, own, remote) is Class.SESSION_MISMATCH
    assert is_mismatch == (own != remote)


@pytest.mark.parametrize("kind", list(Class))
def test_every_class_has_an_explanation_of_its_own(kind: Class) -> None:
    assert EXPLANATION[kind].strip()
    assert [k for k, text in EXPLANATION.items() if text == EXPLANATION[kind]] == [kind]


def test_every_class_comes_from_some_combination_of_markers() -> None:
    combinations = product(BOOLS, BOOLS, BOOLS, REPOS, REPOS)
    assert {found(*combination) for combination in combinations} == set(Class)
