from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_collab.core.board import Board
from forge_collab.core.errors import EnvironmentError_, UsageError
from forge_collab.core.tasks import Task
from forge_collab.files.tasks import dump_task, parse_task, read_checkout, read_plan

PATH = ".forge/tasks/T001.yaml"
HEAD = "id: T001\ntitle: Log in\n"


def parse(text: str) -> Task:
    return parse_task(text.encode(), PATH)


def refusal(data: str | bytes) -> tuple[int, str]:
    """Line and words with which a file is refused."""
    with pytest.raises(UsageError) as caught:
        parse_task(data.encode() if isinstance(data, str) else data, PATH)
    error = caught.value
    line = error.data["line"]
    assert error.data == {"path": PATH, "line": line}
    prefix = f"{PATH}:{line}: "
    assert error.message.startswith(prefix)
    assert "\n" not in error.message
    return line, error.message.removeprefix(prefix)


def test_a_whole_task_file_is_read() -> None:
    task = parse(
        HEAD
        + """\
description: |
  Two
  lines
depends_on: [T000, T002.1]
priority: 1
technical:
  approach: simple
  files_to_create: [src/login.py]
criteria:
  - type: command
    name: tests
    config: {run: pytest -q, retries: 2, ratio: 0.5, strict: true, none: ~}
execution: {max_iterations: 5, timeout_minutes: 90}
goals:
  - people can log in
owner: ann
"""
    )
    assert task.description == "Two\nlines\n"
    assert task.depends_on == ("T000", "T002.1")
    assert task.criteria[0].config == {
        "run": "pytest -q", "retries": 2, "ratio": 0.5, "strict": True, "none": None,
    }  # fmt: skip
    assert task.execution.timeout_minutes == 90
    assert task.fields()["owner"] == "ann"


def test_crlf_and_a_byte_order_mark_make_no_difference() -> None:
    text = HEAD + "description: |\n  a\n  b\n"
    windows = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    assert parse_task(windows, PATH) == parse(text)


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "Y", "True", "2024-05-01", "1:30"])
def test_words_that_old_yaml_converts_stay_text(word: str) -> None:
    task = parse(f"id: T001\ntitle: {word}\n{word}: 2001-12-14 21:59:43\n")
    assert task.title == word
    assert task.fields()[word] == "2001-12-14 21:59:43"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((text, text) for text in ("007", "0x1F", "1_000", ".inf", ".nan", "=", "9" * 5000)),
        *(("-5", -5), ("1.5e+3", 1500.0), ("", None)),
    ],
)
def test_numbers_are_only_what_everybody_reads_as_a_number(word: str, value: object) -> None:
    found = parse(f"{HEAD}x: {word}\n").fields()["x"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        ("", 1, "the file is empty"),
        ("# only a comment\n", 1, "the file is empty"),
        ("- a\n", 1, "a task file holds fields"),
        ("just text\n", 1, "a task file holds fields"),
        ("title: x\n", 1, "id is missing"),
        ("id: T001\n", 1, "title is missing"),
        ("id: T001\ntitle:\n", 2, "title is missing"),
        ("\n\nid: T002\ntitle: x\n", 3, "the id is T002, but the file is named T001"),
        ("id: T/1\ntitle: x\n", 1, "id 'T/1' can't be a task id"),
        ("id: T001\ntitle: 404\n", 2, "title must be text, not 404; put it in quotes"),
        ("id: T001\ntitle: true\n", 2, "title must be text, not true; put it in quotes"),
        ("id: T001\ntitle: [a]\n", 2, "title must be text"),
        ('id: T001\ntitle: "a\\nb"\n', 2, "title must be one line"),
        (HEAD + "depends_on: T002\n", 3, "depends_on must be a list, not T002"),
        (HEAD + "goals: {a: b}\n", 3, "goals must be a list"),
        (HEAD + "depends_on:\n  - T002\n  - a b\n", 5, "depends_on, item 2 'a b' can't be"),
        (HEAD + "priority: high\n", 3, "priority must be a whole number, not high"),
        (HEAD + "priority: 0\n", 3, "priority must be at least 1, not 0"),
        (HEAD + "priority: true\n", 3, "priority must be a whole number, not true"),
        (HEAD + "type: epic\n", 3, "type must be 'feature', 'bugfix', 'refactor'"),
        (HEAD + "technical: soon\n", 3, "technical must be a mapping, not soon"),
        (HEAD + "execution:\n  a: 1\n  max_iterations: 0\n", 5, "execution.max_iterations must"),
        (HEAD + "criteria:\n- type: a\n- name: b\n", 5, "criteria, item 2.type is missing"),
        (HEAD + "x:\n  a: 1\n  b: 2\n  a: 3\n", 6, "the key a comes twice, first on line 4"),
        (HEAD + "title: y\n", 3, "the key title comes twice, first on line 2"),
        (HEAD + "1: x\n", 3, "the key 1 must be text"),
        (HEAD + "x: {~: x}\n", 3, "the key None must be text"),
        (HEAD + "? [a]\n: b\n", 3, "a key must be text"),
        (HEAD + "x: &a 1\n", 3, "anchors and aliases"),
        (HEAD + "x: *a\n", 3, "anchors and aliases"),
        (HEAD + "x: &a [1]\n", 3, "anchors and aliases"),
        (HEAD + "x: !!python/name:os.system a\n", 3, "tags (!)"),
        (HEAD + "x: !!set {a}\n", 3, "tags (!)"),
        (HEAD + "---\nid: T1\n", 3, "one document per file"),
        (HEAD + "goals: [a\n", 4, "not YAML: "),
        (HEAD + "\tx: 1\n", 3, "not YAML: "),
        (HEAD + "x: 'a\n", 4, "not YAML: "),
        (HEAD + "x: 1" + "0" * 400 + ".0\n", 3, "the number 1000"),
        (HEAD + 'x: "\\ud800"\n', 3, "not YAML: "),
        ('x: "\\UFFFFFFFF"\n', 1, "not YAML: "),
        (HEAD + "description: a\x07b\n", 3, "the character U+0007 must be"),
        (HEAD.encode() + b"goals: [\xff]\n", 3, "not UTF-8"),
        (HEAD.encode("utf-16"), 1, "not UTF-8"),
        (HEAD + "x: " + "[" * 200, 3, "nested deeper than 32 levels"),
        (HEAD + "x: " + "[" * 200_000, 3, ""),
        (HEAD + "x: " + "{a: " * 60_000, 3, ""),
        (HEAD + "- " * 100_000, 3, "not YAML: "),
        (HEAD + "x: " + "a" * 262_144, 1, "a task file has at most 256 KiB"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, (str, bytes)) else None,
)
def test_a_bad_file_is_refused_with_its_line(data: str | bytes, line: int, words: str) -> None:
    found = refusal(data)
    assert found[1].startswith(words)
    assert found[0] == line


@settings(deadline=None)
@given(
    st.binary(max_size=60)
    | st.text("ab1:-?,[]{}#&*!|>'\"%@`~<=. \t\n\r\\uUx0fFde", max_size=60).map(str.encode)
)
def test_whatever_the_bytes_a_file_is_read_or_refused(data: bytes) -> None:
    for whole in (data, HEAD.encode() + data):
        try:
            task = parse_task(whole, PATH)
        except UsageError:
            assert refusal(whole)[0] <= len(whole) + 1
        else:
            assert parse_task(dump_task(task), PATH) == task


def test_what_a_refusal_quotes_cannot_drive_the_terminal() -> None:
    assert "\x1b" not in refusal(HEAD + 'priority: "\\e[2J"\n')[1]
    assert "\x1b" not in refusal(HEAD + '"\\e[2J": 1\n"\\e[2J": 1\n')[1]


# Writing

TEXT = st.text(max_size=300) | st.text("ab \n\t\r:#-'\"|>\\\x85\u2028\ufeff\x00", max_size=30)
TITLES = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=200
).filter(str.strip)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
FIELDS = st.fixed_dictionaries(
    {"title": TITLES},
    optional={
        "description": TEXT,
        "goals": st.lists(TEXT, max_size=3),
        "depends_on": st.lists(st.sampled_from(["T002", "no", "Y", "e1"]), max_size=3),
        "priority": st.integers(1, 9),
        "technical": st.fixed_dictionaries({}, optional={"approach": TEXT, "risk": VALUES}),
        "criteria": st.lists(
            st.fixed_dictionaries({"type": TEXT}, optional={"config": st.just({"a": "yes"})}),
            max_size=2,
        ),
        "execution": st.fixed_dictionaries({}, optional={"timeout_minutes": st.integers(1, 99)}),
        "plan_id": TEXT,
        "uid": st.just("u-1"),
        "extra": VALUES,
    },
)


@settings(deadline=None)
@given(FIELDS)
def test_a_written_task_reads_back_the_same(fields: dict[str, Any]) -> None:
    task = Task.model_validate({"id": "T001", **fields})
    written = dump_task(task)
    again = parse_task(written, PATH)
    assert again == task
    assert again.definition_hash == task.definition_hash
    assert dump_task(again) == written


@settings(deadline=None)
@given(TITLES, TEXT)
def test_stock_yaml_reads_the_same_text(title: str, description: str) -> None:
    task = Task.model_validate({"id": "T001", "title": title, "description": description})
    found = yaml.safe_load(dump_task(task))
    assert (found["title"], found.get("description", "")) == (title, description)


def test_a_written_task_is_tidy() -> None:
    task = Task.model_validate(
        {
            "zeta": ["yes", 1],
            "title": "Größe: prüfen",
            "id": "T001",
            "priority": 3,
            "goals": ["ein Ziel"],
            "description": "Two\n\n  lines\n",
            "status": "done",
        }
    )
    assert dump_task(task).decode() == (
        "id: T001\n"
        "title: 'Größe: prüfen'\n"
        "description: |\n"
        "  Two\n"
        "\n"
        "    lines\n"
        "goals:\n"
        "- ein Ziel\n"
        "zeta:\n"
        "- 'yes'\n"
        "- 1\n"
    )


def test_a_task_too_large_to_be_read_is_not_written() -> None:
    with pytest.raises(UsageError, match="256 KiB"):
        dump_task(Task(id="T001", title="x", description="a" * 262_144))


# Plans


def file(task_id: str, title: str = "x", more: str = "") -> bytes:
    return f"id: {task_id}\ntitle: {title}\n{more}".encode()


def test_a_bad_file_leaves_the_rest_of_the_plan_usable() -> None:
    plan = read_plan(
        {
            "T1.yaml": b"id: [",
            "T2.yaml": file("T2", more="depends_on: [T1]\n"),
            "T3.yml": file("T3"),
            "README.md": b"\xff",
        }
    )
    assert [task.id for task in plan.tasks] == ["T2", "T3"]
    assert plan.broken["T1"].startswith(".forge/tasks/T1.yaml:")
    assert Board(plan.tasks, plan.broken).ready() == ("T3",)


def test_the_targets_definition_wins_with_a_warning() -> None:
    shared = {"T1.yaml": file("T1", "shared"), "T2.yaml": file("T2", "shared")}
    plan = read_plan({"T1.yml": file("T1", "target")}, shared)
    assert {task.id: task.title for task in plan.tasks} == {"T1": "target", "T2": "shared"}
    assert plan.warnings == ("shared/tasks/T1.yaml is ignored: the target branch has the task too",)


def test_a_broken_file_of_the_target_is_not_hidden_by_a_shared_one() -> None:
    plan = read_plan({"T1.yaml": b"id: ["}, {"T1.yaml": file("T1")})
    assert plan.tasks == ()
    assert set(plan.broken) == {"T1"}


def test_a_shared_id_in_another_case_does_not_unseat_the_targets() -> None:
    plan = read_plan({"t1.yaml": file("t1")}, {"T1.yaml": file("T1")})
    assert set(plan.broken) == {"T1"}
    assert Board(plan.tasks, plan.broken).ready() == ("t1",)


def test_two_spellings_of_one_file_name_give_one_task_and_a_warning() -> None:
    plan = read_plan({"T1.yml": file("T1", "second"), "T1.yaml": file("T1", "first")})
    assert [task.title for task in plan.tasks] == ["first"]
    assert len(plan.warnings) == 1


def test_unchanged_content_is_not_parsed_again() -> None:
    files = {f"C{i}.yaml": file(f"C{i}") for i in range(20)} | {"C99.yaml": b"id: ["}
    first, second = read_plan(files), read_plan(dict(files))
    assert all(a is b for a, b in zip(first.tasks, second.tasks, strict=True))
    assert first.broken == second.broken
    changed = read_plan(files | {"C0.yaml": file("C0", "new")})
    assert changed.tasks[0].title == "new"


def test_a_checkout_is_read_without_following_links(tmp_path: Path) -> None:
    assert read_checkout(tmp_path) == {}
    folder = tmp_path / ".forge" / "tasks"
    folder.mkdir(parents=True)
    (folder / "T1.yaml").write_bytes(b"one")
    (folder / "T2.yaml").symlink_to(folder / "T1.yaml")
    (folder / "T3.yaml").mkdir()
    (folder / "T4.txt").write_bytes(b"four")
    os.mkfifo(folder / "T5.yaml")
    (folder / "T6.yaml").write_bytes(b"x" * 300_000)
    found = read_checkout(tmp_path)
    assert set(found) == {"T1.yaml", "T6.yaml"}
    assert found["T1.yaml"] == b"one"
    assert "256 KiB" in read_plan(found).broken["T6"]


def test_a_linked_folder_is_an_error_and_not_an_empty_plan(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "tasks").mkdir(parents=True)
    (tmp_path / ".forge").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentError_, match=r"\.forge"):
        read_checkout(tmp_path)
