from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from forge_collab.core.errors import BlockedError
from forge_collab.core.tasks import NEXT, Task, TaskStatus, check_transition


def task(**fields: Any) -> Task:
    return Task.model_validate({"id": "T001", "title": "Log in", **fields})


def test_only_id_and_title_are_required() -> None:
    made = task()
    assert (made.type, made.priority, made.complexity) == ("feature", 3, "medium")
    assert made.execution.max_iterations == 30
    assert made.execution.checkpoint_every == 10
    assert made.execution.on_stuck == "retry-variation"
    assert made.execution.timeout_minutes is None
    for missing in ("id", "title"):
        with pytest.raises(ValidationError, match=missing):
            Task.model_validate({"id": "T001", "title": "Log in"} | {missing: None})


@pytest.mark.parametrize(
    "title", ["", "  ", "a\nb", "a\u2028b", "a\x85b", "\x1b[31mred", "x" * 201, "\ud800", 5]
)
def test_a_title_is_one_line_of_text(title: object) -> None:
    with pytest.raises(ValidationError):
        task(title=title)


def test_a_title_may_have_two_hundred_characters_of_any_script() -> None:
    assert task(title="é" * 200).title == "é" * 200
    assert task(title="👩‍👩‍👧 family").title == "👩‍👩‍👧 family"


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "../x"},
        {"depends_on": ["a/b"]},
        {"blocks": ["con"]},
        {"depends_on": "T002"},
        {"blocks": "T002"},
        {"goals": "works"},
        {"goals": {"a": 1}},
        {"priority": 0},
        {"priority": True},
        {"priority": "2"},
        {"type": "epic"},
        {"complexity": "huge"},
        {"execution": {"timeout_minutes": 0}},
        {"criteria": [{"name": "no type"}]},
        {"uid": "a\nForge-Task: T9"},
        {"unknown": {"not": {"json"}}},
    ],
)
def test_a_field_that_cannot_be_what_it_says_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        task(**fields)


def test_a_status_in_a_definition_is_dropped() -> None:
    assert task(status="done") == task()
    assert task(status="done").definition_hash == task().definition_hash


def test_unknown_fields_are_kept_even_with_awkward_names() -> None:
    extra = {"owner": "ann", "model_config": 1, "fields": [None], "definition_hash": {"a": None}}
    made = task(**extra, technical={"risk": "low"})
    assert made.fields() == {
        "id": "T001",
        "title": "Log in",
        "technical": {"risk": "low"},
        **extra,
    }
    assert len(made.definition_hash) == 16


def test_a_field_without_a_value_counts_as_left_out() -> None:
    assert task(description=None, depends_on=None, uid=None, execution=None) == task()
    assert task(execution={"max_iterations": None}) == task()


def test_a_uid_is_made_of_plan_and_id_unless_given() -> None:
    assert task(uid="abc").uid == "abc"
    assert len(task().uid) == 16
    assert len({task().uid, task(plan_id="P1").uid, task(id="T002").uid}) == 3
    assert task().uid == task(title="Another").uid


def test_the_hash_follows_the_definition_and_ignores_spelled_out_defaults() -> None:
    assert task(priority=3, goals=[], execution={}).definition_hash == task().definition_hash
    changes: list[dict[str, Any]] = [
        {"title": "x"},
        {"priority": 1},
        {"goals": ["g"]},
        {"new": None},
        {"uid": "u"},
    ]
    hashes = {task(**change).definition_hash for change in changes}
    assert len(hashes | {task().definition_hash}) == len(changes) + 1
    assert task().model_copy(update={"title": "x"}).definition_hash in hashes


def test_a_task_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        task().title = "other"  # type: ignore[misc]


@given(st.sampled_from(TaskStatus), st.sampled_from(TaskStatus))
def test_exactly_the_pairs_of_the_table_may_follow(old: TaskStatus, new: TaskStatus) -> None:
    if new in NEXT[old]:
        check_transition("T001", old, new)
        return
    with pytest.raises(BlockedError, match="T001") as caught:
        check_transition("T001", old, new)
    assert caught.value.data == {"task": "T001", "from": old.value, "to": new.value}


def test_the_table_says_what_the_design_says() -> None:
    stopped = {"pending", "done", "cancelled"}
    assert {old.value: {new.value for new in follow} for old, follow in NEXT.items()} == {
        "pending": {
            "done", "blocked", "paused", "failed", "merge_blocked", "awaiting_merge", "cancelled",
        },
        "merge_blocked": stopped,
        "awaiting_merge": stopped,
        "blocked": stopped,
        "paused": stopped,
        "failed": stopped,
        "done": {"pending"},
        "cancelled": {"pending"},
    }  # fmt: skip


def test_a_refused_change_of_a_finished_task_names_reopen() -> None:
    with pytest.raises(BlockedError) as caught:
        check_transition("T001", TaskStatus.DONE, TaskStatus.FAILED)
    assert caught.value.hint == "forge task reopen T001"
