"""The promises of the house: packaging, fault points, and what no file may name."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest

import forge_collab
from forge_collab import faults
from forge_collab.transport import GROUP, Transport

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("forge_collab", "transports")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def files() -> Iterator[Path]:
    """Every file of the checkout but what .gitignore names."""
    ignored = [line.strip("/\n") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()]

    def walk(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name == ".git" or any(fnmatch(path.name, pattern) for pattern in ignored):
                continue
            if path.is_dir():
                yield from walk(path)
            else:
                yield path

    return walk(ROOT)


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Every module of the product, parsed."""
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text("utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def passes() -> Counter[str]:
    """How often each fault point is passed in the source."""
    found: Counter[str] = Counter()
    for path, tree in modules():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "at"
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "faults"
            ):
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno} names no point"
                found[argument.value] += 1
    return found


# Packaging


def test_the_version_is_the_same_everywhere(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["version"] == forge_collab.__version__
    assert version("forge-collab") == forge_collab.__version__


def test_every_script_loads(pyproject: dict[str, Any]) -> None:
    scripts = {p.name: p for p in entry_points(group="console_scripts")}
    for name in pyproject["project"]["scripts"]:
        assert callable(scripts[name].load())


def test_every_transport_loads_by_its_entry_point(pyproject: dict[str, Any]) -> None:
    wanted = pyproject["project"]["entry-points"][GROUP]
    found = {point.name: point for point in entry_points(group=GROUP)}
    for name in wanted:
        transport = found[name].load()
        assert issubclass(transport, Transport)
        assert transport.name == name


def test_every_transport_folder_is_packaged_and_has_an_entry_point(
    pyproject: dict[str, Any],
) -> None:
    folders = {path.parent.name for path in (ROOT / "transports").glob("*/__init__.py")}
    packages = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert folders == {p.removeprefix("transports/") for p in packages} - {"forge_collab"}
    points = pyproject["project"]["entry-points"][GROUP].values()
    assert folders == {point.partition(":")[0] for point in points}


def test_every_package_has_a_docstring_that_is_its_map() -> None:
    assert [str(path) for path, tree in modules() if not ast.get_docstring(tree)] == []


def test_the_list_of_hooks_is_json_and_packaged(pyproject: dict[str, Any]) -> None:
    hooks = json.loads((ROOT / "hooks" / "hooks.json").read_text("utf-8"))
    assert isinstance(hooks["hooks"], dict)
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"hooks": "forge_collab/_hooks"}


def test_the_plugin_manifest_names_this_version() -> None:
    manifest = json.loads((ROOT / ".claude-plugin" / "plugin.json").read_text("utf-8"))
    assert manifest.get("version", forge_collab.__version__) == forge_collab.__version__


# Floors


def test_no_module_imports_a_transport_by_name() -> None:
    named = [
        f"{path}: {name}"
        for path, tree in modules()
        for name in imported(tree)
        if name.split(".")[0] == "transports"
        or (path.parts[0] == "forge_collab" and name.startswith("forge_transport_"))
    ]
    assert named == []


# Fault points


def test_every_fault_point_is_passed_at_exactly_one_place() -> None:
    found = passes()
    assert {point: found[point] for point in faults.POINTS if found[point] != 1} == {}


def test_every_place_passes_a_listed_fault_point() -> None:
    assert set(passes()) - set(faults.POINTS) == set()


def test_fault_points_are_listed_once_each() -> None:
    assert len(set(faults.POINTS)) == len(faults.POINTS)


# What no file may name: put together here, so that this file doesn't either


def text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def test_no_file_names_a_package_registry() -> None:
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"))]
    hosts += [".".join(parts) for parts in (("npmjs", "org"), ("npmjs", "com"), ("crates", "io"))]
    named = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in files()
        for host in hosts
        if host in text_of(path)
    ]
    assert named == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    absolute = re.compile(r"(?<![\w.~$})/-])/(?:" + "|".join(("work", "root")) + r")/")
    named = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if absolute.search(line)
    ]
    assert named == []
