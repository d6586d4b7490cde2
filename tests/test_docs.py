"""The pages in docs/ say what is built: every command, option, setting, code, record and promise.

The ``console`` blocks of docs/collaborate.md are run again, in order, in a world of real clones
and daemons, and compared after what differs from run to run was made alike. After a change that
is meant, ``python tests/test_docs.py`` writes the new output and the generated tables into the
page; read the difference before you keep it.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import FAST, FORGE, World, clean_environ

from forge_collab.cli.main import CLOSED_PIPE, INTERRUPTED, forge
from forge_collab.core import errors, keys, records
from forge_collab.core.change import Change, Urgency
from forge_collab.core.lifecycle import EXPLANATION, Class
from forge_collab.core.tasks import TaskStatus
from forge_collab.files.config import SETTINGS
from forge_collab.transport import GROUP, Capability, Context, Transport

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = ("collaborate.md", "protocol.md", "transports.md")
COLLABORATE = DOCS / "collaborate.md"
PEOPLE = ("ada", "ben")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#{1,4}) (.+)$", re.MULTILINE)


def page(name: str) -> str:
    """The text of a page."""
    return (DOCS / name).read_text("utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language; there is at least one."""
    found = [text for kind, text in FENCE.findall(page(name)) if kind == language]
    assert found, f"docs/{name} has no {language} block"
    return found


def section(name: str, title: str) -> str:
    """The text below the heading `title` (backticks aside), up to one as high."""
    text = page(name)
    masked = FENCE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    found = [(len(m[1]), m[2].replace("`", "").strip(), m.end()) for m in HEADING.finditer(masked)]
    starts = [m.start() for m in HEADING.finditer(masked)]
    matching = [i for i, (_, shown, _) in enumerate(found) if shown == title]
    assert len(matching) == 1, f"docs/{name} has {len(matching)} headings '{title}'"
    level, _, begin = found[matching[0]]
    later = range(matching[0] + 1, len(found))
    end = next((starts[i] for i in later if found[i][0] <= level), len(text))
    return text[begin:end]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row in `text`, heads and rules aside."""
    found = []
    for line in text.splitlines():
        if line.startswith("| ") and line.endswith(" |"):
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return [row for row in found if not set("".join(row)) <= set("-: ")]


# Commands


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below `group` that isn't a group itself, with its name as typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join(("forge", *path, name)), command


COMMANDS = dict(commands(forge))


def typed(fence: re.Match[str]) -> str:
    """The commands of a console block without their output."""
    return "".join(line for line in fence[2].splitlines(keepends=True) if PROMPT.match(line))


def spellings(command: click.Command) -> Iterator[str]:
    """Every option as typed, and every argument as the help shows it."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from parameter.opts
        else:
            yield (parameter.name or "").upper()


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 22
    assert "forge collaborate claim" in COMMANDS
    assert "--next" in list(spellings(COMMANDS["forge collaborate claim"]))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_section_with_its_options_and_exit_codes(name: str) -> None:
    text = FENCE.sub(typed, section("collaborate.md", name))
    for spelling in spellings(COMMANDS[name]):
        assert re.search(rf"(?<![\w-]){re.escape(spelling)}(?![\w-])", text), spelling
    [codes] = re.findall(r"^Exit codes: (.+(?:\n.+)*)", text, re.MULTILINE)
    named = {int(code) for code in re.findall(r"\*\*(\d+)\*\*", codes)}
    assert 0 in named
    assert named <= set(exit_codes())


@pytest.mark.parametrize("name", [n for n in COMMANDS if "--json" in spellings(COMMANDS[n])])
def test_a_command_with_json_shows_its_document(name: str) -> None:
    text = section("collaborate.md", name)
    command = name.removeprefix("forge ")
    assert f'{{"v": 1, "ok": true, "command": "{command}"' in text


def test_no_section_is_about_a_command_that_does_not_exist() -> None:
    titles = [title.replace("`", "") for _, title in HEADING.findall(page("collaborate.md"))]
    named = [title for title in titles if title.startswith("forge ")]
    assert sorted(named) == sorted(COMMANDS)


def test_the_programs_own_options_are_told() -> None:
    text = section("collaborate.md", "What holds for every command")
    for spelling in [*spellings(forge), "--help", "-h"]:
        assert f"`{spelling}" in text, spelling


# Settings and exit codes


def settings_table() -> str:
    """The table of settings, as the code has them."""
    lines = [
        "| key | default | meaning | environment | git config |",
        "| --- | --- | --- | --- | --- |",
    ]
    for setting in SETTINGS:
        default = "unset" if setting.default is None else f"`{json.dumps(setting.default)}`"
        variable = f"`{setting.environment}`" if setting.environment else "none"
        cells = (f"`{setting.key}`", default, setting.meaning, variable, f"`{setting.git_config}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_every_setting_is_in_the_table_with_its_default_and_names() -> None:
    assert len(SETTINGS) >= 15
    assert settings_table() in section("collaborate.md", "Settings")


def all_errors(cls: type[errors.ForgeError] = errors.ForgeError) -> Iterator[type]:
    """Every class of the error tree, wherever it is defined."""
    importlib.import_module("forge_collab.core.session")
    yield cls
    for below in cls.__subclasses__():
        yield from all_errors(below)


def exit_codes() -> dict[int, set[str]]:
    """Every exit code with the `error.code` values that have it."""
    found: dict[int, set[str]] = {0: set(), INTERRUPTED: set(), CLOSED_PIPE: set()}
    for cls in all_errors():
        if cls.__module__.startswith("forge_collab"):
            found.setdefault(cls.exit_code, set()).add(cls.code)
    return found


def test_the_table_of_exit_codes_is_that_of_the_code() -> None:
    table = rows(section("collaborate.md", "Exit codes"))[1:]
    told = {int(row[0].strip("*")): set(re.findall(r"`(\w+)`", row[1])) for row in table}
    assert told == exit_codes()
    assert len(told) >= 12


def test_every_class_is_explained_in_its_own_words() -> None:
    for name, where in (
        ("collaborate.md", "forge collaborate recover"),
        ("protocol.md", "Classes"),
    ):
        told = {row[0].strip("`"): row[1] for row in rows(section(name, where))}
        for found in Class:
            assert found.value in told
            assert EXPLANATION[found] in told[found.value]


# The protocol


DOCUMENTS = {
    "meta": records.Meta,
    "leases/": records.Lease,
    "participants/": records.Participant,
    "tasks/": records.TaskRecord,
    "messages/": records.Message,
    "audit/": records.AuditEntry,
}


def test_every_folder_of_the_state_branch_is_told() -> None:
    folders = {v for k, v in vars(keys).items() if k.isupper() and isinstance(v, str)}
    assert folders >= set(DOCUMENTS)
    [_, layout] = FENCE.findall(section("protocol.md", "The state branch"))[0]
    for folder in folders:
        shown = f"{folder}.json" if folder == keys.META else folder
        assert re.search(rf"^{re.escape(shown)}", layout, re.MULTILINE), folder


def document_kinds() -> set[type[records.Document]]:
    kinds = {v for v in vars(records).values() if isinstance(v, type)}
    known = {k for k in kinds if issubclass(k, records.Document)}
    return known - {records.Document, records.Record}


def test_every_kind_of_record_has_a_folder() -> None:
    assert set(DOCUMENTS.values()) == document_kinds()


@pytest.mark.parametrize("folder", DOCUMENTS)
def test_a_record_has_its_fields_and_a_real_example(folder: str) -> None:
    kind = DOCUMENTS[folder]
    text = section("protocol.md", f"{folder} · {kind.__name__}")
    told = {row[0].strip("`") for row in rows(text)[1:]}
    assert told == set(kind.model_fields)
    [example] = [body for language, body in FENCE.findall(text) if language == "json"]
    assert records.encode(records.decode(kind, example.encode(), folder)).decode() == example


def test_a_claimant_has_its_fields() -> None:
    text = section("protocol.md", "leases/ · Lease")
    for name in records.Claimant.model_fields:
        assert f"`{name}`" in text


def test_every_status_of_a_task_is_told() -> None:
    text = section("protocol.md", "tasks/ · TaskRecord")
    for status in TaskStatus:
        assert f"`{status.value}`" in text


# Transports


def public(cls: type) -> list[str]:
    """The public attributes that a class defines itself."""
    return [name for name in (*vars(cls), *cls.__annotations__) if not name.startswith("_")]


def names_of(kind: type[Enum]) -> list[str]:
    return [f"{kind.__name__}.{member.name}" for member in kind]


def test_the_whole_contract_is_told() -> None:
    text = page("transports.md")
    operations = public(Transport)
    assert {"read", "cas", "delete", "list", "publish", "subscribe", "send_targeted"} <= {
        *operations
    }
    wanted = [*operations, *Context.__dataclass_fields__, *Change.__dataclass_fields__]
    for name in wanted:
        assert re.search(rf"`{name}[`(:]", text), name
    for name in (*names_of(Urgency), *names_of(Capability)):
        assert f"`{name}`" in text
    for name in Transport.__abstractmethods__:
        assert f"`{name}`" in section("transports.md", "Writing one")
    for error in ("ConflictError", "UnavailableError", "RefusedError", "CorruptError"):
        assert f"`{error}`" in text


def test_the_guarantees_are_told_of_each_transport() -> None:
    table = rows(section("transports.md", "What each one promises"))
    assert table[0][1:] == ["memory", "local", "polling"]
    assert len(table) >= 10
    assert all(len(row) == 4 and all(row) for row in table)


def test_the_entry_point_group_is_told() -> None:
    assert f'[project.entry-points."{GROUP}"]' in section("transports.md", "Writing one")


# Links


def anchors(name: str) -> set[str]:
    titles = (title for _, title in HEADING.findall(FENCE.sub("", page(name))))
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_and_every_named_test_exists(name: str) -> None:
    text = FENCE.sub("", page(name))
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    for link in links:
        assert not link.startswith("/")
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        where = (DOCS / target).resolve() if target else DOCS / name
        assert where.exists(), link
        if anchor:
            assert anchor in anchors(where.name), link
    for path in re.findall(r"`((?:tests|forge_collab|transports)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path


def test_every_row_of_the_failure_table_names_a_test_that_exists() -> None:
    table = rows(section("protocol.md", "When something fails"))[1:]
    assert len(table) >= 12
    for row in table:
        named = re.findall(r"`(tests/[\w/.-]+\.py)`", row[-1])
        assert named, row
        for path in named:
            text = (ROOT / path).read_text("utf-8")
            assert re.search(r"def test_|\.TestCase", text), path


def test_what_is_not_built_is_told_in_one_place_of_each_page() -> None:
    for name in PAGES:
        assert section(name, "Not yet").strip()
        elsewhere = page(name).replace(section(name, "Not yet"), "")
        assert "not built" not in elsewhere


def test_no_page_has_a_path_of_the_machine_it_was_written_on() -> None:
    for name in PAGES:
        text = page(name)
        assert str(ROOT) not in text
        assert not re.search(r"(?<![\w.])/(?:work|tmp/(?!forge-))", text)


# The console blocks, run again


@dataclass
class Step:
    """A command of a console block, with what the page says it prints."""

    who: str
    command: str
    printed: str


PROMPT = re.compile(r"^(ada|ben|server)\$ (.+)$")


def steps(block: str) -> list[Step]:
    """The commands of one block."""
    found: list[Step] = []
    for line in block.splitlines(keepends=True):
        if (match := PROMPT.match(line)) is not None:
            found.append(Step(match[1], match[2], ""))
        else:
            assert found, f"output before any command: {line}"
            found[-1].printed += line
    return found


class DocWorld(World):
    """A bare repository with a README and no plan yet, and a clone for Ada and for Ben."""

    @property
    def origin(self) -> Path:
        return self.root / "git" / "project.git"

    def begin(self) -> None:
        self.origin.parent.mkdir()
        self.make_origin({})
        for name in PEOPLE:
            clone = self.clone(name)
            clone.git("config", "user.name", name.title())
            clone.git("config", "user.email", f"{name}@example.org")

    def shown(self, text: str) -> str:
        """`text` with the paths that the page shows."""
        for name in PEOPLE:
            text = text.replace(str(self.root / name), f"/home/{name}/project")
        text = text.replace(str(self.origin.parent), "/srv/git")
        assert str(self.root) not in text, text
        return text


@dataclass
class Terminal:
    """Runs the commands of the page, each in its person's clone, with the exit code before."""

    world: DocWorld
    code: dict[str, int] = field(default_factory=dict)
    last: str = ""

    def run(self, step: Step) -> str:
        """What the command prints, stdout and stderr as a terminal shows them."""
        if step.who != self.last:
            time.sleep(2 * float(FAST["forge__poll_seconds"]))  # The other's daemon has polled.
        self.last = step.who
        is_server = step.who == "server"
        done = subprocess.run(
            ["bash", "-c", f"(exit {self.code.get(step.who, 0)}); {step.command}"],
            cwd=self.world.origin.parent if is_server else self.world.root / step.who,
            env=self.world.environ | {"PATH": f"{FORGE.parent}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
            check=False,
        )
        self.code[step.who] = done.returncode
        return self.world.shown(done.stdout)


ALIKE = (
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d+Z?", "<time>"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "<time>"),
    (r"\b[0-9a-f]{40}\b", "<object>"),
    (r"\b[0-9a-f]{16}\b", "<id>"),
    (r"\b[0-9a-f]{12}\b", "<session>"),
    (r'("(?!ttl)\w+_seconds": )\d+(?:\.\d+)?', r"\1<seconds>"),
    (r"\b\d+(?:\.\d+)? (?:s|min|h)\b", "<duration>"),
    (r'\bprocess \d+|("pid": )\d+', r"\1<pid>"),
    (r"\bgit \d+(?:\.\d+)+", "git <version>"),
    (r"\bforge \d+(?:\.\d+)+|(\"version\": )\"[^\"]+\"", r"\1<version>"),
    (r"(?<=\S) {2,}", "  "),
)
DOCUMENT = '{"v": 1, '


def alike(text: str) -> list[str]:
    """The lines of an output without what differs from run to run."""
    lines: list[str] = []
    while text:
        before, mark, rest = text.partition(DOCUMENT)
        lines += _sorted_people(_without_chance(before).splitlines())
        text = ""
        if mark:
            found, end = json.JSONDecoder().raw_decode(mark + rest)
            lines.append(_without_chance(json.dumps(_by_handle(found), ensure_ascii=False)))
            text = (mark + rest)[end:].lstrip("\n")
    return lines


def _without_chance(text: str) -> str:
    for pattern, plain in ALIKE:
        text = re.sub(pattern, plain, text)
    return text


def _sorted_people(lines: list[str]) -> list[str]:
    """Participants are listed in the order of their instance ids, which are random."""
    if "participants:" not in lines:
        return lines
    start = lines.index("participants:") + 2
    end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    return [*lines[:start], *sorted(lines[start:end]), *lines[end:]]


def _by_handle(document: Any) -> Any:
    people = document.get("data", {}).get("participants")
    if people:
        people.sort(key=lambda person: person["handle"])
    return document


def run_all(world: DocWorld, text: str) -> Iterable[tuple[Step, str]]:
    """Every step of the console blocks in `text`, with what it really prints."""
    terminal = Terminal(world)
    for language, block in FENCE.findall(text):
        if language == "console":
            for step in steps(block):
                yield step, terminal.run(step)


@pytest.fixture
def doc_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocWorld]:
    root = tmp_path_factory.mktemp("d")
    made = DocWorld(root, clean_environ(root))
    made.begin()
    yield made
    made.end()
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.timeout(600)
def test_the_transcripts_are_what_the_commands_print(doc_world: DocWorld) -> None:
    told: list[str] = []
    real: list[str] = []
    count = 0
    for step, printed in run_all(doc_world, page("collaborate.md")):
        count += 1
        prompt = f"{step.who}$ {step.command}"
        told += [prompt, *alike(step.printed)]
        real += [prompt, *alike(printed)]
    assert count >= 40
    assert told == real, "\n".join(difflib.unified_diff(told, real, "page", "real", lineterm=""))


def test_what_is_made_alike_still_tells_sentences_apart() -> None:
    held = "forge: T001 is held by ada under fence 1; last sign of life 0.7 s ago\n"
    assert alike(held) == alike(held.replace("0.7 s", "12 s"))
    for other in ("ben", "fence 2", "T002"):
        old = {"ben": "ada", "fence 2": "fence 1", "T002": "T001"}[other]
        assert alike(held) != alike(held.replace(old, other))
    document = f'{DOCUMENT}"ok": true, "data": {{"last_seen_seconds": 3.0, "fence": 1}}}}\n'
    assert alike(document) == alike(document.replace("3.0", "4"))
    assert alike(document) == alike(
        document.replace(", ", ",\n  ").replace('{"v": 1,\n  ', DOCUMENT)
    )
    assert alike(document) != alike(document.replace("fence", "fences"))
    assert alike(document) != alike(document.replace('"fence": 1', '"fence": 2'))


# Writing the page anew

_WIDTH = 98


def wrapped(value: Any, indent: int = 0, used: int = 0) -> str:
    """JSON on one line where it fits, else with an item, or as many as fit, per line."""
    flat = json.dumps(value, ensure_ascii=False)
    if indent + used + len(flat) <= _WIDTH or not value or not isinstance(value, (dict, list)):
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, list):
        items = [wrapped(item, indent + 2) for item in value]
        return "[\n" + ",\n".join(pad + item for item in items) + "]"
    lines: list[str] = []
    for key, inner in value.items():
        item = f"{json.dumps(key)}: {wrapped(inner, indent + 2, len(key) + 4)}"
        fits = lines and indent + 4 + len(lines[-1]) + len(item) <= _WIDTH
        if fits and "\n" not in lines[-1] + item:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    return "{" + f",\n{pad}".join(lines) + "}"


def readable(printed: str) -> str:
    """An output with its JSON documents wrapped."""
    lines = printed.splitlines()
    shown = [wrapped(json.loads(line)) if line.startswith(DOCUMENT) else line for line in lines]
    return "".join(f"{line}\n" for line in shown)


def write_anew() -> None:
    """Put the real output and the generated tables into docs/collaborate.md."""
    root = Path(tempfile.mkdtemp(prefix="d"))
    world = DocWorld(root, clean_environ(root))
    try:
        world.begin()
        text = page("collaborate.md")
        real = iter(list(run_all(world, text)))

        def fill(match: re.Match[str]) -> str:
            if match[1] != "console":
                return match[0]
            lines = []
            for _ in steps(match[2]):
                step, printed = next(real)
                lines.append(f"{step.who}$ {step.command}\n{readable(printed)}")
            return f"```console\n{''.join(lines)}```"

        text = FENCE.sub(fill, text)
        text = re.sub(
            r"^\| key \| default (?:.*\n)(?:\|.*\n)+", lambda _: settings_table(), text, flags=re.M
        )
        COLLABORATE.write_text(text, "utf-8")
    finally:
        world.end()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    write_anew()
