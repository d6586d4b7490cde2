"""What every command prints, and how it ends: help, JSON, pipes, Ctrl-C, others' text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest
from conftest import FORGE, Clone, Ran, World, put_on_state, wait_until

from forge_collab.cli.main import forge


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


@pytest.fixture(scope="module")
def outsider(shared_world: World) -> Clone:
    """A clone that is in no session."""
    return shared_world.clone("eve")


# Help and usage


def commands(
    group: click.Group = forge, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], type]]:
    yield path, click.Group
    for name in group.list_commands(click.Context(group)):
        found = group.commands.get(name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), click.Command


COMMANDS = list(commands())


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_every_command_has_help_with_an_example(outsider: Clone, path: tuple[str, ...]) -> None:
    ran = outsider.forge(*path, "--help")
    assert ran.code == 0, ran
    assert ran.err == ""
    assert "Example: forge " in ran.out
    assert " ".join(("forge", *path)) in ran.out


def test_the_version_is_told(outsider: Clone) -> None:
    ran = outsider.forge("--version")
    assert ran.code == 0
    assert ran.out.startswith("forge")


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (("nonsense",), ""),
        (("collaborate", "nonsense"), "collaborate status"),
        (("task", "nonsense"), "task"),
        (("collaborate", "claim", "T001", "--nonsense"), "collaborate claim"),
        (("collaborate", "claim"), "collaborate claim"),
        (("collaborate", "claim", "T001", "--next"), "collaborate claim"),
        (("collaborate", "claim", "T001", "T002"), "collaborate claim"),
        (("collaborate", "renew"), "collaborate renew"),
        (("collaborate", "renew", "T001", "--fence", "x"), "collaborate renew"),
        (("collaborate", "note", "T001"), "collaborate note"),
        (("collaborate", "takeover", "T001"), "collaborate takeover"),
        (("collaborate", "takeover", "T001", "--reason", ""), "collaborate takeover"),
        (("task", "add", "x", "--priority", "0"), "task add"),
        (("task", "add", "x", "--type", "epic"), "task add"),
        (("task", "add", ""), "task add"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_meant_is_a_usage_error(
    ada: Clone, args: tuple[str, ...], command: str
) -> None:
    told = ada.forge(*args)
    assert told.code == 2, told
    assert told.out == ""
    assert told.err.startswith("forge: ")
    assert "\n  try: forge" in told.err
    ran = ada.forge(*args, "--json")
    assert ran.code == 2
    assert ran.out.count("\n") == 1
    assert ran.document["command"] == command
    assert ran.error["code"] == "usage"


def test_without_a_command_the_help_is_shown(outsider: Clone) -> None:
    for path in ((), ("task",), ("daemon",)):
        ran = outsider.forge(*path)
        assert "Example: forge" in ran.out + ran.err
        assert ran.code in (0, 2)
        assert "Traceback" not in ran.err


# JSON: for each command the keys that interface.md promises, and those that were added since.

LEASE = {"key", "claimant", "fence", "ttl_seconds", "last_seen_seconds", "takeover_in_seconds"}
START = {"session", "repo", "transport", "me", "claimable"}
PROMISED: Mapping[str, tuple[set[str], set[str]]] = {
    "collaborate start": (START, {"target", "participants", "lands_whole"}),
    "collaborate join": (START, {"target", "participants", "lands_whole"}),
    "collaborate status": (
        {"session", "class", "transport", "online", "me", "participants", "claims", "claimable"}
        | {"blocked", "stopped", "flags_open", "warnings"},
        {"daemon"},
    ),
    "collaborate claim": ({"task", "acquired", "lease"}, {"already", "since", "took_over"}),
    "collaborate renew": ({"task", "renewed", "lease"}, set()),
    "collaborate note": ({"task", "lease"}, {"noted"}),
    "collaborate release": ({"task", "released", "lease"}, set()),
    "collaborate takeover": ({"task", "acquired", "lease"}, {"already", "since", "took_over"}),
    "collaborate leave": (set(), {"left", "released", "lapsing"}),
    "collaborate log": ({"entries"}, set()),
    "collaborate recover": ({"class", "actions", "applied"}, set()),
    "task list": ({"tasks"}, set()),
    "task show": ({"tasks"}, set()),
    "task add": ({"tasks"}, set()),
    "doctor": ({"checks"}, set()),
    "daemon status": (
        {"running", "pid", "version", "uptime_seconds", "transport", "online"}
        | {"last_sync_seconds", "queued"},
        {"session", "repo", "class", "me", "target", "remote", "clone", "holding", "warnings"},
    ),
    "init": (set(), {"made", "offers"}),
}


def data_of(ran: Ran, command: str) -> dict[str, Any]:
    """`data` of the one document of a command that succeeded, its keys compared."""
    assert ran.code == 0, ran
    assert ran.out.count("\n") == 1
    assert set(ran.document) == {"v", "ok", "command", "data"}
    assert (ran.document["v"], ran.document["command"]) == (1, command)
    promised, added = PROMISED[command]
    assert promised <= set(ran.data) <= promised | added, set(ran.data) ^ promised
    return ran.data


def test_json_has_the_keys_that_are_promised(shared_world: World, ada: Clone) -> None:
    clone = shared_world.clone("jo")
    assert data_of(clone.forge("init", "--json"), "init")["made"]
    data_of(clone.forge("daemon", "status", "--json"), "daemon status")
    data_of(clone.collaborate("status"), "collaborate status")
    data_of(clone.forge("collaborate", "status", "--json"), "collaborate status")
    start = data_of(clone.collaborate("start", "--handle", "jo"), "collaborate start")
    assert set(start["me"]) == {"handle", "instance"}
    data_of(clone.collaborate("join"), "collaborate join")

    task = clone.forge("task", "add", "Mine", "--json")
    task_id = data_of(task, "task add")["tasks"][0]["id"]
    for words in (("list",), ("show", task_id)):
        tasks = data_of(clone.forge("task", *words, "--json"), f"task {words[0]}")["tasks"]
        wanted = {"id", "uid", "title", "status", "round", "priority", "depends_on"}
        assert all(wanted <= set(task) for task in tasks)

    claim = data_of(clone.collaborate("claim", task_id), "collaborate claim")
    assert claim["acquired"] is True
    assert set(claim["lease"]) == LEASE
    assert set(claim["lease"]["claimant"]) == {"handle", "instance", "worker"}
    for verb, words in (("renew", ()), ("note", ("hello",)), ("release", ())):
        done = data_of(clone.collaborate(verb, task_id, *words), f"collaborate {verb}")
        assert set(done["lease"]) == LEASE
    ada.collaborate("claim", task_id)
    taken = clone.collaborate("takeover", task_id, "--reason", "to see")
    taken = data_of(taken, "collaborate takeover")
    assert set(taken["lease"]) == LEASE

    status = data_of(clone.collaborate("status"), "collaborate status")
    for participant in status["participants"]:
        assert set(participant) == {"handle", "instance", "last_seen_seconds", "working_on"}
    assert {"jo", "ada"} <= {p["handle"] for p in status["participants"]}
    assert all(set(lease) == LEASE for lease in status["claims"])
    assert all(set(blocked) == {"task", "waits_for"} for blocked in status["blocked"])
    entries = data_of(clone.collaborate("log"), "collaborate log")["entries"]
    assert all({"seq", "ts", "who", "event", "key", "fence"} <= set(entry) for entry in entries)
    assert [e["seq"] for e in entries] == sorted(e["seq"] for e in entries)

    assert data_of(clone.collaborate("recover"), "collaborate recover")["applied"] is False
    checks = data_of(clone.forge("doctor", "--json"), "doctor")["checks"]
    assert all(set(check) == {"name", "status", "message", "remedy"} for check in checks)
    assert data_of(clone.forge("daemon", "status", "--json"), "daemon status")["running"] is True
    data_of(clone.collaborate("leave"), "collaborate leave")


def test_collaborate_alone_is_status_as_json_too(ada: Clone) -> None:
    assert "participants:" in ada.forge("collaborate").out
    ran = ada.forge("collaborate", "--json")
    assert ran.code == 0, ran
    assert set(ran.data) >= PROMISED["collaborate status"][0]


def test_held_says_in_json_who_has_it(ada: Clone, ben: Clone) -> None:
    task = ada.forge("task", "add", "Held", "--json").data["tasks"][0]["id"]
    ada.collaborate("claim", task)
    wait_until(lambda: f"claim:{task}" in str(ben.collaborate("status").data["claims"]))
    data = ben.collaborate("claim", task).error["data"]
    assert {"task", "acquired", "reason", "holder"} <= set(data)
    assert (data["task"], data["acquired"], data["reason"]) == (task, False, "held")
    assert set(data["holder"]) == LEASE


# -C, pipes, Ctrl-C, colours


def test_dash_c_runs_as_if_started_there(shared_world: World, ada: Clone) -> None:
    (ada.path / "deep").mkdir(exist_ok=True)
    for folder in (str(ada.path), str(ada.path / "deep"), os.path.relpath(ada.path, "/")):
        ran = subprocess.run(
            [str(FORGE), "-C", folder, "daemon", "status", "--json"],
            cwd="/",
            env=ada.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran
        assert json.loads(ran.stdout)["data"]["clone"] == str(ada.path / ".git")


@pytest.mark.parametrize(
    "args",
    [
        *(("collaborate", "log"), ("collaborate", "log", "--json"), ("collaborate", "status")),
        *(("task", "list"), ("--help",), ("collaborate", "claim", "--help"), ("--version",)),
        *(("doctor",), ("daemon", "logs")),
    ],
    ids=" ".join,
)
def test_a_closed_pipe_is_quiet(ada: Clone, args: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [str(FORGE), *args],
            cwd=ada.path,
            env=ada.environ,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert ran.stderr == ""
    assert ran.returncode == 141


def test_head_is_happy(ada: Clone) -> None:
    ran = subprocess.run(
        ["bash", "-c", f"'{FORGE}' collaborate log | head -n0; echo ${{PIPESTATUS[0]}}"],
        cwd=ada.path,
        env=ada.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    assert ran.stdout.strip() in ("0", "141")


@pytest.mark.parametrize(
    "args",
    [
        *(("collaborate", "log", "-f"), ("collaborate", "status", "--watch")),
        *(("collaborate", "status", "--watch", "--json"), ("daemon", "logs", "-f")),
    ],
    ids=" ".join,
)
def test_ctrl_c_ends_what_goes_on_printing(ada: Clone, args: tuple[str, ...]) -> None:
    assert ada.forge("task", "add", "Something to be told of", "--json").code == 0
    process = ada.popen(*args)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_ctrl_c_ends_a_claim_that_waits_and_nothing_is_claimed_later(
    shared_world: World, ada: Clone, ben: Clone
) -> None:
    task = ada.forge("task", "add", "Waited for", "--json").data["tasks"][0]["id"]
    ada.collaborate("claim", task)
    process = ben.popen("collaborate", "claim", task, "--wait")
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    ada.collaborate("release", task)
    time.sleep(1.5)
    assert (shared_world.lease(task) or {})["claimant"] is None


def test_a_claim_that_waits_gets_the_task_when_it_is_free(ada: Clone, ben: Clone) -> None:
    task = ada.forge("task", "add", "Waited for too", "--json").data["tasks"][0]["id"]
    ada.collaborate("claim", task)
    process = ben.popen("collaborate", "claim", task, "--wait", "--json")
    time.sleep(1)
    ada.collaborate("release", task)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(out)["data"]["lease"]["fence"] == 2


def test_nothing_is_coloured_in_a_pipe(ada: Clone) -> None:
    for environ in ({}, {"NO_COLOR": ""}, {"NO_COLOR": "1"}):
        for args in (("collaborate", "status"), ("--help",), ("doctor",), ("nonsense",)):
            ran = ada.forge(*args, **environ)
            assert "\x1b" not in ran.out + ran.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_few_characters_gets_them_replaced(ada: Clone, encoding: str) -> None:
    task = ada.forge("task", "add", "Grüße → ∞ 日本", "--json").data["tasks"][0]["id"]
    for args in (("task", "list"), ("task", "show", task), ("task", "show", task, "--json")):
        ran = ada.forge(*args, PYTHONIOENCODING=encoding)
        assert ran.code == 0, ran


# Others' text

EVIL = "red \x1b[31m\x1b]0;title\x07 bell \x07 csi \x9b31m del \x7f cr \r back \x08 end"


def check_no_control(text: str) -> None:
    """No character that could drive a terminal, but for the end of a line."""
    odd = {c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"}
    assert odd == set(), text


def everything_said(clone: Clone) -> list[str]:
    said = []
    for args in (
        *(("collaborate", "log"), ("collaborate", "log", "--json"), ("collaborate", "status")),
        *(("collaborate", "status", "--json"), ("task", "list"), ("task", "list", "--json")),
        *(("doctor",), ("doctor", "--json"), ("daemon", "logs"), ("collaborate", "recover")),
    ):
        ran = clone.forge(*args)
        assert ran.code in (0, 1, 2), ran
        said.append(ran.out + ran.err)
    return said


def test_control_characters_of_others_never_reach_the_terminal(ada: Clone, ben: Clone) -> None:
    task = ada.forge("task", "add", "Evil", "--json").data["tasks"][0]["id"]
    ben.collaborate("claim", task)
    assert ben.forge("collaborate", "note", task, EVIL).code == 0
    assert ada.collaborate("takeover", task, "--reason", EVIL).code == 0
    said = everything_said(ada) + everything_said(ben)
    assert "red" in said[0]
    for text in said:
        check_no_control(text)
    kept = ada.collaborate("log").data["entries"]
    assert EVIL in [entry["text"] for entry in kept], "in JSON the text is whole"


def test_records_that_somebody_wrote_by_hand_are_harmless_too(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    presence = {"v": 1, "rev": 1, "handle": EVIL, "run": "x", "renewals": {}, "version": "0"}
    claimant = {"handle": EVIL, "instance": "f" * 16, "worker": EVIL}
    lease = {"v": 1, "rev": 1, "fence": 1, "nonce": "n", "claimant": claimant, "ttl_seconds": 60}
    line = {"v": 1, "seq": 90, "ts": EVIL, "event": EVIL, "who": claimant, "nonce": EVIL}
    title = json.dumps(f"id: T009\ntitle: {EVIL!r}\n")
    put_on_state(
        world,
        {
            f"participants/{'f' * 16}.json": json.dumps(presence).encode(),
            "leases/claim%3AT001.json": json.dumps(lease).encode(),
            f"audit/{'f' * 16}/1.jsonl": json.dumps(line).encode() + b"\n",
            "shared/tasks/T009.yaml": title.encode(),
        },
    )
    wait_until(lambda: "red" in ada.forge("collaborate", "status").out)
    refused = ada.forge("collaborate", "claim", "T001")
    assert refused.code == 3
    for text in [*everything_said(ada), refused.err]:
        check_no_control(text)


@pytest.mark.parametrize("title", ["a\x1b[31mb", "a\nb", "a\x9bb", "a\u2028b", "x" * 201])
def test_a_title_with_control_characters_is_refused(
    ada: Clone, outsider: Clone, title: str
) -> None:
    for clone in (ada, outsider):
        ran = clone.forge("task", "add", title)
        assert ran.code == 2, ran
        check_no_control(ran.err)
        assert clone.forge("task", "add", title, "--json").error["code"] == "usage"


def test_an_argument_that_is_no_text_spoils_nothing(ada: Clone) -> None:
    task = ada.forge("task", "add", "Bytes", "--json").data["tasks"][0]["id"]
    ada.collaborate("claim", task)
    odd = os.fsdecode(b"caf\xe9")
    for args in (
        ("collaborate", "note", task, odd),
        ("collaborate", "takeover", task, "--reason", odd, "--as", "other"),
        ("task", "add", odd),
        ("collaborate", "claim", odd),
    ):
        ran = ada.forge(*args)
        assert ran.code in (0, 2), ran
        assert "Traceback" not in ran.err
    assert ada.collaborate("log").code == 0, "the log can still be read"
    assert ada.forge("doctor").code == 0
