"""`forge task list|show|add`, alone in a checkout and in a session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Clone, World, bytes_below, put_on_main, put_on_state, refusal, wait_until

HOSTILE = [
    *("../../x", "a/b", "T1\n", "T1\t", "con", "CON", "con.txt", "lpt1", "HEAD"),
    *("head", "-x", "T1.", "T1.lock", "T" * 65, "a..b", "1T", "", " ", "T1 ", "Tü", ".T", "T@{1"),
]


@pytest.fixture
def checkout(world: World) -> Clone:
    """A clone that works alone."""
    return world.clone("ada")


def task_file(clone: Clone, name: str, text: str) -> None:
    (clone.path / ".forge" / "tasks" / name).write_text(text)


# Alone


def test_alone_the_checkout_is_the_plan(checkout: Clone) -> None:
    tasks = checkout.forge("task", "list", "--json").data["tasks"]
    assert [task["id"] for task in tasks] == ["T001", "T002", "T003", "T004"]
    assert tasks[3]["depends_on"] == tasks[3]["waits_for"] == ["T001"]
    assert {task["status"] for task in tasks} == {"pending"}
    text = checkout.forge("task", "list").out
    assert "Later" in text
    (checkout.path / ".forge" / "tasks" / "T002.yaml").unlink()
    tasks = checkout.forge("task", "list", "--json").data["tasks"]
    assert [task["id"] for task in tasks] == ["T001", "T003", "T004"]


def test_alone_a_task_can_be_shown(checkout: Clone) -> None:
    task_file(
        checkout,
        "T005.yaml",
        "id: T005\ntitle: Whole\ndescription: |\n  two\n  lines\npriority: 1\ntype: docs\n"
        "complexity: low\ndepends_on: [T001]\ngoals: [fast]\nfuture_field: {a: 1}\n",
    )
    task = checkout.forge("task", "show", "T005", "--json").data["tasks"][0]
    assert task["description"] == "two\nlines\n"
    assert (task["priority"], task["type"], task["complexity"]) == (1, "docs", "low")
    assert task["future_field"] == {"a": 1}
    text = checkout.forge("task", "show", "T005").out
    assert "T005: Whole" in text
    assert "lines" in text
    says = ("no task", "T999")
    assert refusal(checkout, "task", "show", "T999", code=2, says=says)["code"] == "usage"


def test_alone_a_task_is_added_as_a_file(checkout: Clone) -> None:
    ran = checkout.forge(
        *("task", "add", "Parse the header", "--depends-on", "T001", "--priority", "2"),
        *("--type", "test", "--description", "all: of it\n- and more", "--json"),
    )
    made = ran.data["tasks"][0]
    assert made["id"] == "T005"
    path = checkout.path / ".forge" / "tasks" / "T005.yaml"
    assert path.is_file()
    shown = checkout.forge("task", "show", "T005", "--json").data["tasks"][0]
    assert shown["title"] == "Parse the header"
    assert shown["description"] == "all: of it\n- and more"
    assert (shown["depends_on"], shown["priority"], shown["type"]) == (["T001"], 2, "test")
    named = checkout.forge("task", "add", "Named", "--id", "parser.v2", "--json")
    assert named.data["tasks"][0]["id"] == "parser.v2"
    assert checkout.git("status", "--porcelain").out.count("\n") == 2


def test_alone_nothing_is_added_that_spoils_the_plan(checkout: Clone) -> None:
    before = bytes_below(checkout.path, checkout.path / ".git")
    add = ("task", "add", "No")
    refusal(checkout, *add, "--id", "T001", code=2, says=("T001", "already"))
    refusal(checkout, *add, "--id", "t001", code=2, says=("already",))
    refusal(checkout, *add, "--depends-on", "T999", code=2, says=("T999",))
    refusal(checkout, *add, "--id", "T009", "--depends-on", "T009", code=2, says=("T009",))
    assert bytes_below(checkout.path, checkout.path / ".git") == before


BAD = {
    "T005.yaml": ("id: T005\ntitle: [unclosed\n", "T005.yaml:"),
    "T006.yaml": ("id: T006\n", "T006.yaml:1: title is missing"),
    "T007.yaml": ("title: x\nid: T008\n", "T007.yaml:2: the id is T008"),
    "T008.yaml": ("id: T008\ntitle: x\npriority: high\n", "T008.yaml:3: priority"),
    "T009.yaml": ("<<<<<<< HEAD\nid: T009\n", "T009.yaml:"),
    "T010.yaml": ("id: T010\ntitle: a\ntitle: b\n", "T010.yaml:3: the key title comes twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_its_line(checkout: Clone, name: str) -> None:
    text, says = BAD[name]
    task_file(checkout, name, text)
    error = refusal(
        checkout, "task", "list", code=2, is_partial=True, says=(f".forge/tasks/{says}",)
    )
    assert error["code"] == "usage"
    assert [task["id"] for task in error["data"]["tasks"]] == ["T001", "T002", "T003", "T004"]
    refusal(checkout, "task", "show", name.removesuffix(".yaml"), code=2, says=(says,))
    assert checkout.forge("task", "show", "T001").code == 0


def test_an_unknown_dependency_names_both_ids(checkout: Clone) -> None:
    task_file(checkout, "T005.yaml", "id: T005\ntitle: x\ndepends_on: [T404]\n")
    refusal(checkout, "task", "list", code=2, is_partial=True, says=("T005", "T404"))


def test_a_cycle_is_shown_as_a_path(checkout: Clone) -> None:
    for task, other in (("T005", "T006"), ("T006", "T007"), ("T007", "T005")):
        task_file(checkout, f"{task}.yaml", f"id: {task}\ntitle: x\ndepends_on: [{other}]\n")
    says = ("T005 -> T006 -> T007 -> T005",)
    error = refusal(checkout, "task", "list", code=2, is_partial=True)
    assert error["data"]["cycle"] == ["T005", "T006", "T007", "T005"]
    told = checkout.forge("task", "list").err.replace("→", "->")
    assert says[0] in told


@pytest.mark.parametrize("odd", HOSTILE, ids=ascii)
def test_a_hostile_id_is_a_usage_error_alone(checkout: Clone, odd: str) -> None:
    before = bytes_below(checkout.path.parent, checkout.path / ".git", checkout.path.parent / "run")
    for args in (
        ("show", "--", odd),
        ("add", f"--id={odd}", "x"),
        ("add", "y", "--depends-on", odd),
    ):
        ran = checkout.forge("task", *args)
        assert ran.code == 2, (args, ran)
        assert ran.out == ""
    world_root = checkout.path.parent
    assert bytes_below(world_root, checkout.path / ".git", world_root / "run") == before


def test_a_link_is_no_task_file(checkout: Clone, tmp_path: Path) -> None:
    outside = tmp_path / "T005.yaml"
    outside.write_text("id: T005\ntitle: from outside\n")
    (checkout.path / ".forge" / "tasks" / "T005.yaml").symlink_to(outside)
    tasks = checkout.forge("task", "list", "--json").data["tasks"]
    assert "T005" not in [task["id"] for task in tasks]
    shutil.rmtree(checkout.path / ".forge")
    (checkout.path / ".forge").symlink_to(tmp_path)
    ran = checkout.forge("task", "add", "x")
    assert ran.code == 9, ran
    assert sorted(path.name for path in tmp_path.iterdir()) == ["T005.yaml"]


# In a session


@pytest.fixture(scope="module")
def ada(shared_world: World) -> Clone:
    made = shared_world.clone("ada")
    made.start()
    return made


@pytest.fixture(scope="module")
def ben(shared_world: World, ada: Clone) -> Clone:
    made = shared_world.clone("ben")
    made.start()
    return made


def test_a_task_that_was_added_is_everybodys_at_once(ada: Clone, ben: Clone) -> None:
    head = ada.git("rev-parse", "HEAD").out
    made = ada.forge("task", "add", "For everybody", "--depends-on", "T001", "--json").data
    task = made["tasks"][0]["id"]
    shown = ben.forge("task", "show", task, "--json").data["tasks"][0]
    assert (shown["title"], shown["waits_for"]) == ("For everybody", ["T001"])
    assert shown["uid"] == made["tasks"][0]["uid"]
    free = ada.forge("task", "add", "At once", "--json").data["tasks"][0]["id"]
    assert ben.collaborate("claim", free).code == 0
    assert task in [t["id"] for t in ben.forge("task", "list", "--json").data["tasks"]]
    assert ada.git("rev-parse", "HEAD").out == head
    assert ada.git("status", "--porcelain", "--untracked-files=all").out == ""


def test_two_who_add_at_once_get_two_ids(ada: Clone, ben: Clone) -> None:
    running = [c.popen("task", "add", f"By {c.handle}", "--json") for c in (ada, ben) * 2]
    said = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0] * 4, said

    def added() -> list[str]:
        tasks = {t["id"]: t["title"] for t in ada.forge("task", "list", "--json").data["tasks"]}
        return sorted(title for title in tasks.values() if title.startswith("By "))

    wait_until(lambda: added() == ["By ada", "By ada", "By ben", "By ben"])


def test_status_in_a_file_is_not_believed(shared_world: World, ada: Clone) -> None:
    text = "id: T020\ntitle: Copied\nstatus: done\n"
    put_on_main(shared_world, {".forge/tasks/T020.yaml": text})
    shown = ada.forge("task", "show", "T020", "--json").data["tasks"][0]
    assert shown["status"] == "pending"
    ada.collaborate("claim", "T020")
    shown = ada.forge("task", "show", "T020", "--json").data["tasks"][0]
    assert (shown["status"], shown["lease"]["fence"]) == ("claimed", 1)
    ada.collaborate("release", "T020")


def test_the_checkout_does_not_count_in_a_session(ada: Clone) -> None:
    task_file(ada, "T050.yaml", "id: T050\ntitle: Only here\n")
    try:
        refusal(ada, "task", "show", "T050", code=2, says=("no task", "T050"))
        refusal(ada, "collaborate", "claim", "T050", code=2)
    finally:
        (ada.path / ".forge" / "tasks" / "T050.yaml").unlink()


@pytest.mark.parametrize("odd", ["../../x", "T1\n", "con", "HEAD", "-x", "T" * 65], ids=ascii)
def test_a_hostile_id_is_a_usage_error_in_a_session(
    shared_world: World, ada: Clone, odd: str
) -> None:
    records = _records(shared_world)
    before = bytes_below(ada.path, ada.path / ".git")
    for args in (
        *(("task", "show", "--", odd), ("task", "add", f"--id={odd}", "x")),
        *(("collaborate", "claim", "--", odd), ("collaborate", "renew", "--", odd)),
        *(("collaborate", "note", "--", odd, "x"), ("collaborate", "release", "--", odd)),
        ("collaborate", "takeover", "--reason", "x", "--", odd),
    ):
        ran = ada.forge(*args)
        assert ran.code == 2, (args, ran)
    assert bytes_below(ada.path, ada.path / ".git") == before
    assert _records(shared_world) == records


def _records(world: World) -> list[str]:
    """The files of the state branch with their objects, but for presence, which beats by itself."""
    listed = world.on_origin("ls-tree", "-r", "forge/collab-state").splitlines()
    return [line for line in listed if "\tparticipants/" not in line]


def test_hostile_files_of_others_block_themselves_alone(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    put_on_state(
        world,
        {
            "shared/tasks/HEAD.yaml": b"id: HEAD\ntitle: x\n",
            "shared/tasks/con.yaml": b"id: con\ntitle: x\n",
            "shared/tasks/T090.yaml": b"id: ../../x\ntitle: x\n",
            "shared/tasks/t001.yaml": b"id: t001\ntitle: like T001\n",
            "shared/tasks/T091.yaml": b"\xff\xfe\n",
            "shared/tasks/T092.yaml": b"id: T092\ntitle: &a x\ndescription: *a\n",
            "shared/tasks/T093.yaml": b"\xef\xbb\xbfid: T093\r\ntitle: good, by BOM and CRLF\r\n",
        },
    )
    put_on_main(
        world,
        {
            ".forge/tasks/T080.yaml": "id: T080\ntitle: [\n",
            ".forge/tasks/T081.yaml": "id: T081\ntitle: x\ndepends_on: [T404]\n",
            ".forge/tasks/T082.yaml": "id: T082\ntitle: x\ndepends_on: [T083]\n",
            ".forge/tasks/T083.yaml": "id: T083\ntitle: x\ndepends_on: [T082]\n",
            ".forge/tasks/T084.yaml": "id: T084\ntitle: x\ndepends_on: [T080]\n",
        },
    )
    wait_until(lambda: ada.forge("task", "list").code == 2)
    error = refusal(ada, "task", "list", code=2, is_partial=True, says=("/tasks/", ".yaml:1: "))
    good = {"T001", "T002", "T003", "T004", "T093"}
    assert good <= {task["id"] for task in error["data"]["tasks"]}
    told = " ".join(problem["message"] for problem in error["data"]["problems"])
    for word in ("T080.yaml:", "T404", "T082", "T083", "T090.yaml:", "T091.yaml:", "T092.yaml:"):
        assert word in told, word
    for bad in ("T080", "T081", "T082", "T084", "T092"):
        ran = ada.collaborate("claim", bad)
        assert ran.code in (2, 7), (bad, ran)
        assert ran.error["hint"]
    for fine in ("T001", "T093"):
        assert ada.collaborate("claim", fine).code == 0
    status = ada.collaborate("status").data
    assert not {"T080", "T081", "T082", "T083", "T084"} & set(status["claimable"])
    assert "T002" in status["claimable"]
