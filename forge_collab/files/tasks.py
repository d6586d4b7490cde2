"""Task files: strict YAML in, tidy YAML out; what a task is, `core.tasks` decides.

A task file comes from teammates and agents, so the reader takes less than YAML allows: one
document of mappings, lists and scalars. It refuses anchors, aliases and tags, keys that come
twice, deep nesting and large files. Only ``true`` and ``false`` are booleans and a date is text,
so that a title ``no`` or a goal ``2024-05-01`` stays what its author typed.

Values are put together from the parser's events, one by one: a file that goes too far is given
up where it does, before anything big is built, and each key's line is known afterwards.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import ValidationError

from forge_collab.core.errors import EnvironmentError_, UsageError
from forge_collab.core.tasks import Task

if TYPE_CHECKING:
    from yaml import SafeLoader as _SafeLoader
else:
    # The compiled parser where PyYAML has it: the same events, faster.
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

TARGET_FOLDER: Final = ".forge/tasks"
SHARED_FOLDER: Final = "shared/tasks"
MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32

_SUFFIXES = (".yaml", ".yml")
_CACHED = 65_536
_STR = "tag:yaml.org,2002:str"

_SURROGATE = re.compile(r"[\ud800-\udfff]")

Where = tuple[str | int, ...]


# Reading YAML


class _Fault(Exception):
    """What is wrong with a file, and on which line, counted from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def _line_of(mark: Any) -> int:
    return int(mark.line) + 1 if mark else 1


class _Loader(_SafeLoader):
    """Scalars as YAML 1.2's core schema has them, less octal, hexadecimal and ``.inf``.

    All that is no string here is none in YAML 1.1 either, so stock dumpers quote enough.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("bool", r"(?:true|false)", ["t", "f"]),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,99})", list("-+0123456789")),
    ("float", r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?", list("-+0123456789")),
):
    _regex = re.compile(f"^{_pattern}$")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _regex, _first)


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end hasn't come yet; `key` waits for its value."""

    value: dict[str, Any] | list[Any]
    where: Where
    key: str | None = None


@dataclass(slots=True)
class _Builder:
    """Puts values together from events, and remembers the line of each key and item."""

    loader: _Loader
    root: Any = None
    lines: dict[Where, int] = field(default_factory=dict)
    stack: list[_Open] = field(default_factory=list)

    def feed(self, event: yaml.Event) -> None:
        line = _line_of(event.start_mark)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Fault("anchors and aliases (& and *) are not allowed in a task file", line)
        if getattr(event, "tag", None) is not None:
            raise _Fault("tags (!) are not allowed in a task file", line)
        if isinstance(event, yaml.ScalarEvent):
            self.add_scalar(event, line)
        elif isinstance(event, yaml.MappingStartEvent):
            self.open({}, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            self.open([], line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.stack.pop()

    def open(self, value: dict[str, Any] | list[Any], line: int) -> None:
        if len(self.stack) == MAX_DEPTH:
            raise _Fault(f"nested deeper than {MAX_DEPTH} levels", line)
        self.stack.append(_Open(value, self.put(value, line)))

    def add_scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        value = self.scalar(event, line)
        top = self.stack[-1] if self.stack else None
        if top is None or top.key is not None or isinstance(top.value, list):
            self.put(value, line)
            return
        if not isinstance(value, str):
            raise _Fault(f"the key {_cut(value)} must be text; put it in quotes", line)
        if value in top.value:
            first = self.lines[(*top.where, value)]
            raise _Fault(f"the key {_cut(value)} comes twice, first on line {first}", line)
        top.key = value
        self.lines[(*top.where, value)] = line

    def scalar(self, event: yaml.ScalarEvent, line: int) -> object:
        resolve: Any = self.loader.resolve
        tag = resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag == _STR:
            if _SURROGATE.search(event.value):
                raise _Fault("not YAML: an escape that is no character", line)
            return event.value
        value = self.loader.construct_object(yaml.ScalarNode(tag, event.value))
        if isinstance(value, float) and not math.isfinite(value):
            raise _Fault(f"the number {_cut(event.value)} is too large", line)
        return value

    def put(self, value: object, line: int) -> Where:
        """Hang `value` where it belongs; the answer is the place."""
        if not self.stack:
            self.root = value
            return ()
        top = self.stack[-1]
        if isinstance(top.value, list):
            where = (*top.where, len(top.value))
            self.lines[where] = line
            top.value.append(value)
            return where
        if top.key is None:
            raise _Fault("a key must be text, not a mapping or a list", line)
        key, top.key = top.key, None
        top.value[key] = value
        return (*top.where, key)


def _text(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise _Fault(f"a task file has at most {MAX_BYTES // 1024} KiB", 1)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Fault("not UTF-8", data[: error.start].count(b"\n") + 1) from None
    if odd := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        raise _Fault(f"the character U+{ord(odd[0]):04X} must be written as an escape", line)
    return text


def _events(loader: _Loader) -> Iterator[yaml.Event]:
    get_event: Any = loader.get_event
    documents = 0
    while loader.check_event():
        event: yaml.Event = get_event()
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise _Fault("one document per file; --- starts a second", _line_of(event.start_mark))
        yield event


def _load(data: bytes) -> tuple[Any, Mapping[Where, int]]:
    """The value that a file holds, and the line of each of its keys and items."""
    loader = _Loader(_text(data))
    builder = _Builder(loader)
    try:
        for event in _events(loader):
            builder.feed(event)
    except yaml.MarkedYAMLError as error:
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise _Fault(f"not YAML: {what}", _line_of(error.problem_mark)) from None
    except (ValueError, OverflowError):  # PyYAML's own scanner lets chr() speak
        raise _Fault("not YAML: an escape that is no character", 1) from None
    except yaml.YAMLError as error:
        raise _Fault(f"not YAML: {' '.join(str(error).split())}", 1) from None
    finally:
        loader.dispose()
    return builder.root, builder.lines


# From YAML to tasks

_SENTENCES: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "int_type": "must be a whole number",
    "greater_than_equal": "must be at least {ge}",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
}


def shown(text: str) -> str:
    """`text` from a file or a folder, fit for a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _cut(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return shown(text if len(text) <= 60 else text[:57] + "...")


def _field(where: Where) -> str:
    name = ""
    for part in where:
        dot = "." if name else ""
        name += f", item {part + 1}" if isinstance(part, int) else f"{dot}{_cut(part)}"
    return name


def _sentence(kind: str, where: Where, value: object, context: Mapping[str, Any]) -> str:
    said = _SENTENCES.get(kind, "can't be read").format_map(context)
    if kind in ("missing", "value_error") or isinstance(value, (dict, list)):
        return f"{_field(where)} {said}"
    is_bare = kind == "string_type" and isinstance(value, (bool, int, float))
    hint = "; put it in quotes" if is_bare else ""
    return f"{_field(where)} {said}, not {_cut(value)}{hint}"


def _line(lines: Mapping[Where, int], where: Where) -> int:
    while where and where not in lines:
        where = where[:-1]
    return lines.get(where, 1)


def _validated(fields: Mapping[str, Any], lines: Mapping[Where, int]) -> Task:
    try:
        return Task.model_validate(fields)
    except ValidationError as errors:
        error = errors.errors(include_url=False)[0]
        where, context = error["loc"], error.get("ctx", {})
        message = _sentence(error["type"], where, error["input"], context)
        raise _Fault(message, _line(lines, where)) from None


def make_task(fields: Mapping[str, Any]) -> Task:
    """The task with these fields.

    :raises UsageError: when they don't make one; the message names the field.
    """
    try:
        return _validated(fields, {})
    except _Fault as fault:
        raise UsageError(fault.message, hint="forge task add --help") from None


def _task(data: bytes, stem: str) -> Task:
    value, lines = _load(data)
    if value is None:
        raise _Fault("the file is empty", 1)
    if not isinstance(value, dict):
        raise _Fault("a task file holds fields, such as 'id: T001' and 'title: ...'", 1)
    task = _validated(value, lines)
    if task.id != stem:
        line = _line(lines, ("id",))
        raise _Fault(f"the id is {task.id}, but the file is named {shown(stem)}", line)
    return task


def parse_task(data: bytes, path: str) -> Task:
    """The task that the file at `path` with the content `data` defines.

    :raises UsageError: when it defines none; the message begins with path and line, and data has
        `path` and `line`.
    """
    try:
        return _task(data, PurePosixPath(path).stem)
    except _Fault as fault:
        raise UsageError(
            f"{shown(path)}:{fault.line}: {fault.message}", data={"path": path, "line": fault.line}
        ) from None


# Writing


class _Dumper(yaml.SafeDumper):
    """Block style without aliases, which `parse_task` would refuse."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _style(text: str) -> str | None:
    """How `text` is written: plainly, as a literal block if that is tidy, else with escapes."""
    if text.isprintable():
        return None
    lines = text.split("\n")
    is_flush = lines[0] == lines[0].strip() != ""
    is_tidy = all(line == line.rstrip() and line.isprintable() for line in lines)
    # PyYAML would write some kinds of line break so that they come back as another.
    return "|" if is_flush and is_tidy else '"'


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_STR, text, style=_style(text))


_Dumper.add_representer(str, _represent_text)


def dump_task(task: Task) -> bytes:
    """The file that defines `task`, defaults left out; `parse_task` reads it back the same.

    :raises UsageError: when it would be larger than `parse_task` accepts.
    """
    text = yaml.dump(
        task.fields(),
        Dumper=_Dumper,
        allow_unicode=True,
        default_flow_style=False,
        sort_keys=False,
        width=100,
    )
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise UsageError(f"{task.id}: a task file has at most {MAX_BYTES // 1024} KiB")
    return data


# Whole plans


@dataclass(frozen=True)
class Plan:
    """The tasks that exist; `broken` maps an id to why its file can't be used."""

    tasks: tuple[Task, ...]
    broken: dict[str, str]
    warnings: tuple[str, ...] = ()


_cache: dict[tuple[str, bytes], Task | UsageError] = {}


def _parsed(path: str, data: bytes) -> Task | UsageError:
    key = (path, hashlib.sha1(data, usedforsecurity=False).digest())
    known = _cache.get(key)
    if known is not None:
        return known
    if len(_cache) >= _CACHED:
        _cache.clear()
    try:
        _cache[key] = parse_task(data, path)
    except UsageError as error:
        _cache[key] = error.with_traceback(None)
    return _cache[key]


def _by_stem(names: Iterable[str], folder: str, warnings: list[str]) -> dict[str, str]:
    """The path of each task's file; of T1.yaml and T1.yml the first wins, with a warning."""
    paths: dict[str, str] = {}
    for name in sorted(names):
        stem, suffix = os.path.splitext(name)
        if suffix not in _SUFFIXES:
            continue
        path = f"{folder}/{name}"
        if stem in paths:
            warnings.append(f"{shown(path)} is ignored: {shown(paths[stem])} has the same id")
        else:
            paths[stem] = path
    return paths


def read_plan(target: Mapping[str, bytes], shared: Mapping[str, bytes] = {}) -> Plan:
    """The plan in two folders, each given as file name to content.

    `target` is ``.forge/tasks`` of the target branch, `shared` is ``shared/tasks`` of the state
    branch. Of the same id in both, the target's wins, with a warning; a shared id that differs
    from one of the target's only in case is broken. Files that aren't YAML by name are skipped.
    Content that was read before under the same name isn't parsed again.
    """
    warnings: list[str] = []
    here = _by_stem(target, TARGET_FOLDER, warnings)
    there = _by_stem(shared, SHARED_FOLDER, warnings)
    alike = {stem.casefold(): stem for stem in here}
    tasks: list[Task] = []
    broken: dict[str, str] = {}
    for files, paths in ((target, here), (shared, there)):
        for stem, path in paths.items():
            if paths is there and stem in here:
                warnings.append(f"{shown(path)} is ignored: the target branch has the task too")
                continue
            other = alike.get(stem.casefold(), stem)
            if other != stem and paths is there:
                broken[shown(stem)] = f"{shown(path)}: differs from {shown(other)} only in case"
                continue
            found = _parsed(path, files[path.rpartition("/")[2]])
            if isinstance(found, Task):
                tasks.append(found)
            else:
                broken[shown(stem)] = found.message
    return Plan(tuple(tasks), broken, tuple(warnings))


def _open_folder(root: Path) -> int | None:
    """A descriptor of the tasks' folder, reached without following a link below `root`."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in TARGET_FOLDER.split("/"):
        try:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            return None
        finally:
            os.close(folder)
        folder = inner
    return folder


def _read_regular(folder: int, name: str) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        number = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:  # removed since the folder was listed
        return None
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return None
        # One byte more than allowed is enough for `parse_task` to refuse the file.
        return file.read(MAX_BYTES + 1)


def _is_candidate(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(_SUFFIXES) and entry.is_file(follow_symlinks=False)


def read_checkout(root: Path) -> Mapping[str, bytes]:
    """The task files in the checkout at `root`, by name; none when there is no such folder.

    Links aren't followed, and what is no regular file is skipped.

    :raises EnvironmentError_: when the folder or one of the files can't be read.
    """
    files: dict[str, bytes] = {}
    folder: int | None = None
    try:
        folder = _open_folder(root)
        if folder is None:
            return files
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if _is_candidate(entry))
        for name in names:
            data = _read_regular(folder, name)
            if data is not None:
                files[name] = data
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else TARGET_FOLDER
        raise EnvironmentError_(
            f"can't read the tasks in {root / TARGET_FOLDER}: {shown(where)}: {error.strerror}"
        ) from None
    finally:
        if folder is not None:
            os.close(folder)
    return files
